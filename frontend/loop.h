/* The event loop thread: tasks from other threads, watched file descriptors, periodic timers.
 *
 * A thin layer over h2o's loop, so that modules without HTTP need not know it.  Everything runs on
 * the thread that calls loop_run; loop_post alone may be called from any thread. */
#ifndef FRONTEND_LOOP_H
#define FRONTEND_LOOP_H

#include <stdint.h>

#include "common/err.h"

struct st_h2o_evloop_t;
struct loop;
struct loop_timer;
struct loop_watch;

/* Embedded in the thing it is about.  May be posted again once it has begun to run. */
struct loop_task {
    void *link[2]; /* the queue's */
    void (*run)(struct loop_task *task);
};

/* Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code loop_create(struct loop **out_loop, struct err *err);
/* Runs what was posted before; no other thread may post any more.  All timers and watches are
 * gone. */
void loop_destroy(struct loop *loop);

struct st_h2o_evloop_t *loop_h2o(struct loop *loop);

/* Returns after loop_stop.  Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code loop_run(struct loop *loop, struct err *err);
void loop_stop(struct loop *loop);

/* Run what is due now and return. */
void loop_turn(struct loop *loop);

/* Any thread: task->run is called once on the loop thread, in posting order. */
void loop_post(struct loop *loop, struct loop_task *task);

/* Call on_timer every period_ms until it is destroyed, which on_timer itself may not do. */
typedef void (*loop_timer_fn)(void *owner);
struct loop_timer *loop_timer_create(struct loop *loop, uint32_t period_ms, loop_timer_fn on_timer,
                                     void *owner);
void loop_timer_destroy(struct loop_timer *timer);

/* Call on_readable whenever fd is readable or its peer is gone; it reads by itself.  Takes fd: it is
 * set non-blocking and closed by loop_watch_destroy. */
typedef void (*loop_watch_fn)(void *owner, int fd);
struct loop_watch *loop_watch_create(struct loop *loop, int fd, loop_watch_fn on_readable,
                                     void *owner);
void loop_watch_destroy(struct loop_watch *watch);

#endif
