/* Sessions as the control thread knows them: socket, segment and nonce of each.
 *
 * A repeated nonce gets the same answer while its session lives.  Control thread only. */
#ifndef WORKER_ATTACH_H
#define WORKER_ATTACH_H

#include <stdint.h>

#include "common/err.h"
#include "proto/hello.h"
#include "proto/mask.h"

struct attach_table;
struct executor;
struct run_dir;

struct attach_table *attach_table_create(uint64_t instance_id);

/* Closes what is left.  The executor's loop has returned.  Null is fine. */
void attach_table_destroy(struct attach_table *table);

struct attach_options {
    struct executor *executor;
    struct run_dir *run_dir; /* borrowed until the session is closed */
    struct mask_geometry masks;
    uint32_t ring_records;
    uint64_t instance_id;
};

/* Makes socket and segment and begins the session.  Texts of *out_answer are borrowed from the table
 * until the session is closed.  Errors: ERR_BUSY (another session lives), ERR_STALE (the nonce's
 * session is over), ERR_SYSTEM (/dev/shm full, run directory unusable), ERR_TIMEOUT. */
ERR_NODISCARD enum err_code attach_begin(struct attach_table *table,
                                         const struct attach_options *options,
                                         const struct hello_attach *request,
                                         struct hello_attached *out_answer, struct err *err);

/* Closes sockets and segments of the sessions that the executor has ended. */
void attach_close_ended(struct attach_table *table, struct executor *executor);

uint32_t attach_alive_count(const struct attach_table *table);

#endif
