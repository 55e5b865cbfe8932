/* One request at a time over the worker's control socket, and its answer.
 *
 * Nothing blocks but link_ask_destroy: nng's threads set a flag and call on_wake, link_ask_poll then
 * takes the next step.  The socket dials again and again by itself; a request that finds nobody, or
 * gets no answer in time, fails within LINK_ASK_TIMEOUT_MS for each way.  One thread. */
#ifndef FRONTEND_LINK_ASK_H
#define FRONTEND_LINK_ASK_H

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/err.h"

#define LINK_ASK_TIMEOUT_MS 1000 /* a frozen worker costs this much */

struct link_ask;

enum link_ask_state {
    LINK_ASK_NONE,     /* nothing was sent since the last answer or failure */
    LINK_ASK_PENDING,  /* on_wake tells when to look again */
    LINK_ASK_ANSWERED, /* told once */
    LINK_ASK_FAILED,   /* told once */
};

/* on_wake comes from nng's threads; owner is borrowed until link_ask_destroy returns.
 * Errors: ERR_ARGUMENT (run directory too long), ERR_SYSTEM. */
ERR_NODISCARD enum err_code link_ask_create(const char *run_dir, void (*on_wake)(void *owner),
                                            void *owner, struct link_ask **out_ask,
                                            struct err *err);

/* Waits for an answer that is due, at most LINK_ASK_TIMEOUT_MS.  Null is fine. */
void link_ask_destroy(struct link_ask *ask);

/* Nothing is pending.  False when memory is short. */
bool link_ask_send(struct link_ask *ask, const struct buf *request);

/* ANSWERED: *out_bytes are borrowed until the next link_ask_send. */
enum link_ask_state link_ask_poll(struct link_ask *ask, const void **out_bytes,
                                  size_t *out_byte_count);

#endif
