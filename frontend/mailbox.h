/* Events of one request on their way from the engine thread to the loop thread.
 *
 * The engine thread copies each event in; the loop thread takes all that have gathered at once.  A
 * task is posted only when none is on its way, so that a busy stream costs no allocation and at most
 * one wake-up per batch. */
#ifndef FRONTEND_MAILBOX_H
#define FRONTEND_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/engine.h"
#include "frontend/loop.h"

struct mailbox {
    struct loop_task task; /* run on the loop thread when there is mail; set by the owner */
    struct loop *loop;     /* borrowed */
    pthread_mutex_t lock;  /* guards arriving and is_posted */
    bool is_posted;
    struct buf arriving;
    struct buf taken; /* loop thread only */
    size_t offset_bytes;
};

void mailbox_init(struct mailbox *mailbox, struct loop *loop, void (*run)(struct loop_task *task));
void mailbox_fini(struct mailbox *mailbox);

/* Any thread.  Copies the event with its arrays and text. */
void mailbox_put(struct mailbox *mailbox, const struct engine_event *event);

/* Loop thread, from task.run: take what has arrived, then read it event by event.  The arrays and
 * text of *out_event are borrowed until the next mailbox_take. */
void mailbox_take(struct mailbox *mailbox);
bool mailbox_next(struct mailbox *mailbox, struct engine_event *out_event);

#endif
