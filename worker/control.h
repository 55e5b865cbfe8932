/* The control thread: answers the control socket, closes ended sessions, takes signals, watches the
 * lifeline, and is the watchdog of the executor.
 *
 * It runs from before the weights load until the process ends.  Watchdog: a launched step (or a
 * call into the core) older than max(watchdog_ns, 20 times the longest so far) means one last line
 * and _exit(CONTROL_EXIT_FROZEN). */
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/hello.h"
#include "proto/mask.h"

#define CONTROL_EXIT_FROZEN 3

struct control;
struct executor;
struct link;
struct run_dir;

struct control_options {
    struct run_dir *run_dir; /* borrowed until control_stop, as all below */
    struct link *link;
    struct hello_welcome welcome; /* what is known while weights load; texts borrowed */
    int lifeline_fd;              /* readable or closed: the launcher is gone; -1: none */
    uint64_t drain_timeout_ns;    /* sessions may go on so long after that */
};

/* Signals SIGINT, SIGTERM are blocked in every thread by then.  Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code control_start(const struct control_options *options,
                                          struct control **out_control, struct err *err);

/* Any thread. */
void control_set_progress(struct control *control, uint64_t done_bytes, uint64_t total_bytes);

struct control_ready {
    struct executor *executor;    /* borrowed until control_stop */
    struct hello_welcome welcome; /* complete; texts borrowed */
    struct mask_geometry masks;
    uint64_t watchdog_ns;
};

/* From now on sessions can attach. */
void control_set_ready(struct control *control, const struct control_ready *ready);

/* A session has ended; fits executor_options.on_ended. */
void control_on_ended(void *context);

/* Ends the thread and closes what sessions left; the executor's loop has returned. */
void control_stop(struct control *control); /* null is fine */

#endif
