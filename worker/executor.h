/* The executor thread's loop around the core: plan sockets in, steps launched and collected, records
 * out, sessions ended.
 *
 * executor_run is the executor thread; the control thread talks to it through the functions below
 * it, which never wait longer than their deadline.  An idle executor sleeps on a condition. */
#ifndef WORKER_EXECUTOR_H
#define WORKER_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/link.h"
#include "worker/segment.h"
#include "worker/session.h"

struct executor;
struct record_writer;

#define EXECUTOR_ANSWER_WAIT_NS 2000000000ULL

struct executor_options {
    struct runner *runner; /* borrowed until destroy, as all below */
    struct session_core *core;
    struct record_writer *record;  /* null: no recording */
    void (*on_ended)(void *owner); /* a session ended: executor_try_take_ended; executor thread */
    void *owner;
    uint64_t spin_ns; /* at the end of a step, before sleeping */
    uint64_t session_timeout_ns;
    uint64_t attach_timeout_ns; /* for the plan pipe to come */
};

/* A session's ends outside the core.  Owned by the executor from a successful executor_attach until
 * executor_try_take_ended gives it back. */
struct executor_attach {
    uint64_t epoch;
    struct link_plan *plan;
    struct segment *segment;
};

/* Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code executor_create(const struct executor_options *options,
                                            struct executor **out_executor, struct err *err);
void executor_destroy(struct executor *executor); /* null is fine; the loop has returned */

/* Until executor_stop (ERR_OK) or the device is lost (ERR_DEVICE). */
ERR_NODISCARD enum err_code executor_run(struct executor *executor, struct err *err);

/* ---- control thread ---- */

/* Leave the loop soon.  Any thread. */
void executor_stop(struct executor *executor);

/* Look at sockets and requests again.  Any thread; fits link_plan_options.on_event. */
void executor_wake(void *context);

/* Begin a session with all pages.  Waits for an older session to end.  Errors: ERR_BUSY (it has not
 * by the deadline), ERR_TIMEOUT (the executor has not even looked, EXECUTOR_ANSWER_WAIT_NS later). */
ERR_NODISCARD enum err_code executor_attach(struct executor *executor,
                                            const struct executor_attach *attach,
                                            uint64_t deadline_ns, struct err *err);

/* Forgets cached prefixes that no sequence holds.  Figures and errors: as executor_stats. */
ERR_NODISCARD enum err_code executor_reset_cache(struct executor *executor,
                                                 struct session_stats *out_stats, struct err *err);

/* Errors: ERR_TIMEOUT, likewise. */
ERR_NODISCARD enum err_code executor_stats(struct executor *executor,
                                           struct session_stats *out_stats, struct err *err);

/* Ends of a session that is over, to be closed by the caller; false when there are none. */
bool executor_try_take_ended(struct executor *executor, struct executor_attach *out_attach);

/* For the watchdog; never waits. */
struct executor_watch {
    uint64_t oldest_launch_ns; /* of the steps in flight; 0: none */
    uint64_t busy_since_ns;    /* the executor is inside the core since; 0: it is not */
    uint64_t longest_step_ns;
};
void executor_watch(struct executor *executor, struct executor_watch *out_watch);

#endif
