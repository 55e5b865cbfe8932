#include "frontend/loop.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include <h2o.h>

#include "common/mem.h"

struct loop {
    h2o_evloop_t *evloop;           /* owned */
    h2o_multithread_queue_t *queue; /* owned */
    h2o_multithread_receiver_t receiver;
    bool is_stopped;
};

struct loop_timer {
    struct loop *loop; /* borrowed */
    h2o_timeout_t timeout;
    h2o_timeout_entry_t entry;
    loop_timer_fn on_timer;
    void *owner;
};

struct loop_watch {
    h2o_socket_t *socket; /* owned */
    int fd;
    loop_watch_fn on_readable;
    void *owner;
};

_Static_assert(sizeof(((struct loop_task *)NULL)->link) == sizeof(h2o_multithread_message_t) &&
                   offsetof(struct loop_task, link) == 0,
               "a task begins with h2o's message");

static void on_messages(h2o_multithread_receiver_t *receiver, h2o_linklist_t *messages)
{
    (void)receiver; /* tasks carry what they need */
    while (!h2o_linklist_is_empty(messages)) {
        h2o_linklist_t *link = messages->next;
        h2o_linklist_unlink(link);
        struct loop_task *task = (struct loop_task *)(void *)link;
        task->run(task);
    }
}

enum err_code loop_create(struct loop **out_loop, struct err *err)
{
    struct loop *loop = mem_zalloc(1, sizeof(*loop));
    loop->evloop = h2o_evloop_create();
    if (!loop->evloop) {
        mem_free(loop);
        return err_errno(err, errno, "creating the event loop");
    }
    loop->queue = h2o_multithread_create_queue(loop->evloop);
    h2o_multithread_register_receiver(loop->queue, &loop->receiver, on_messages);
    *out_loop = loop;
    return ERR_OK;
}

void loop_destroy(struct loop *loop)
{
    if (!loop) {
        return;
    }
    loop_turn(loop);
    h2o_multithread_unregister_receiver(loop->queue, &loop->receiver);
    h2o_multithread_destroy_queue(loop->queue);
    free(loop->queue); /* left behind by the evloop build of h2o 2.2.5 */
    loop_turn(loop);   /* frees closed sockets */
    h2o_evloop_destroy(loop->evloop);
    mem_free(loop);
}

struct st_h2o_evloop_t *loop_h2o(struct loop *loop)
{
    return loop->evloop;
}

enum err_code loop_run(struct loop *loop, struct err *err)
{
    while (!loop->is_stopped) {
        if (h2o_evloop_run(loop->evloop, INT32_MAX) != 0 && errno != EINTR) {
            return err_errno(err, errno, "waiting for events");
        }
    }
    return ERR_OK;
}

void loop_stop(struct loop *loop)
{
    loop->is_stopped = true;
}

void loop_turn(struct loop *loop)
{
    (void)h2o_evloop_run(loop->evloop, 0); /* an interrupted turn is a short one */
}

void loop_post(struct loop *loop, struct loop_task *task)
{
    task->link[0] = NULL;
    task->link[1] = NULL;
    h2o_multithread_send_message(&loop->receiver, (h2o_multithread_message_t *)(void *)task);
}

static void on_timeout(h2o_timeout_entry_t *entry)
{
    struct loop_timer *timer = H2O_STRUCT_FROM_MEMBER(struct loop_timer, entry, entry);
    h2o_timeout_link(timer->loop->evloop, &timer->timeout, &timer->entry);
    timer->on_timer(timer->owner);
}

struct loop_timer *loop_timer_create(struct loop *loop, uint32_t period_ms, loop_timer_fn on_timer,
                                     void *owner)
{
    struct loop_timer *timer = mem_zalloc(1, sizeof(*timer));
    timer->loop = loop;
    timer->on_timer = on_timer;
    timer->owner = owner;
    timer->entry.cb = on_timeout;
    h2o_timeout_init(loop->evloop, &timer->timeout, period_ms);
    h2o_timeout_link(loop->evloop, &timer->timeout, &timer->entry);
    return timer;
}

void loop_timer_destroy(struct loop_timer *timer)
{
    if (!timer) {
        return;
    }
    h2o_timeout_unlink(&timer->entry);
    h2o_timeout_dispose(timer->loop->evloop, &timer->timeout);
    mem_free(timer);
}

static void on_socket_readable(h2o_socket_t *socket, const char *err)
{
    (void)err; /* h2o reads nothing: on_readable sees the error itself */
    struct loop_watch *watch = socket->data;
    watch->on_readable(watch->owner, watch->fd);
}

struct loop_watch *loop_watch_create(struct loop *loop, int fd, loop_watch_fn on_readable,
                                     void *owner)
{
    struct loop_watch *watch = mem_zalloc(1, sizeof(*watch));
    watch->fd = fd;
    watch->on_readable = on_readable;
    watch->owner = owner;
    watch->socket = h2o_evloop_socket_create(loop->evloop, fd, H2O_SOCKET_FLAG_DONT_READ);
    watch->socket->data = watch;
    h2o_socket_read_start(watch->socket, on_socket_readable);
    return watch;
}

void loop_watch_destroy(struct loop_watch *watch)
{
    if (!watch) {
        return;
    }
    h2o_socket_read_stop(watch->socket);
    h2o_socket_close(watch->socket);
    mem_free(watch);
}
