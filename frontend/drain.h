/* The consuming end of a session's ring: records are validated and handed on in order.
 *
 * A record of another epoch is dropped and counted.  Engine thread only, but for drain_wake. */
#ifndef FRONTEND_DRAIN_H
#define FRONTEND_DRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/ring.h"
#include "proto/result.h"

struct drain {
    struct ring_consumer consumer;
    uint64_t epoch;
    uint64_t record_count; /* handed on or dropped */
    uint64_t stale_count;
};

/* Takes a record; an error ends drain_run with it. */
typedef enum err_code (*drain_record_fn)(void *owner, const struct result_record *record,
                                         struct err *err);

/* segment: borrowed until the last call.  Errors: ERR_PROTOCOL. */
ERR_NODISCARD enum err_code drain_init(struct drain *drain, void *segment, size_t ring_bytes,
                                       uint64_t epoch, struct err *err);

/* Hand on what is there, at most max_records.  Errors: ERR_FORMAT (a record that cannot be), or
 * on_record's. */
ERR_NODISCARD enum err_code drain_run(struct drain *drain, uint32_t max_records,
                                      drain_record_fn on_record, void *owner, struct err *err);

/* Returns when a record is there, at drain_wake, or at deadline_ns: spins for spin_ns, then sleeps. */
void drain_wait(struct drain *drain, uint64_t spin_ns, uint64_t deadline_ns);

/* Any thread, while the segment is mapped. */
void drain_wake(struct drain *drain);

#endif
