/* The worker's sockets: the control socket (REP) and one plan socket (PAIR) per session.
 *
 * A plan socket serves one pipe in its life.  nng's threads put what it receives into a bounded
 * queue; a full queue leaves messages on the socket.  Only link.c includes nng. */
#ifndef WORKER_LINK_H
#define WORKER_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct link;

/* Listen at ipc://RUN_DIR/control.ipc.  Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code link_open(const char *run_dir, struct link **out_link, struct err *err);
void link_close(struct link *link); /* null is fine */

/* Readable while a request waits; borrowed.  Control thread, as the two below. */
int link_fd(const struct link *link);

/* The next request, appended to out; false when there is none.  Answer it before the next. */
bool link_try_take_request(struct link *link, struct buf *out);

/* A client that is gone is no error. */
void link_answer(struct link *link, const struct buf *bytes);

struct link_plan;

enum link_plan_state {
    LINK_PLAN_WAITING, /* for its pipe */
    LINK_PLAN_OPEN,
    LINK_PLAN_CLOSED, /* the pipe is gone, for good */
};

struct link_plan_options {
    const char *run_dir; /* borrowed during the call */
    uint64_t epoch;
    void (*on_event)(void *owner); /* a message came or the state changed; nng's threads */
    void *owner;                   /* borrowed until link_plan_close returns */
};

/* Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code link_plan_open(const struct link_plan_options *options,
                                           struct link_plan **out_plan, struct err *err);

/* No event comes after it returns.  Waits for nng's threads, milliseconds: not on the executor. */
void link_plan_close(struct link_plan *plan); /* null is fine */

const char *link_plan_url(const struct link_plan *plan); /* borrowed */

/* Any thread. */
enum link_plan_state link_plan_state(struct link_plan *plan);

struct link_message {
    const void *bytes; /* owned by handle */
    size_t byte_count;
    void *handle;
};

/* The oldest message; false when there is none.  Executor thread. */
bool link_plan_try_take(struct link_plan *plan, struct link_message *out_message);
void link_message_free(struct link_message *message);

#endif
