/* The loop with its tasks, timers and watches; the mailbox and the work pool that post to it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "frontend/loop.h"
#include "frontend/mailbox.h"
#include "frontend/work.h"
#include "tests/testlib/test.h"

enum {
    EVENTS = 20000,
    ITEMS = 500,
};

struct post {
    struct mailbox mailbox;
    struct loop *loop;
    uint32_t next_token;
    uint32_t wake_count;
    bool has_ended;
};

static void check_event(struct post *post, const struct engine_event *event)
{
    if (event->kind == ENGINE_EVENT_FAILED) {
        test_eq_str(event->text, "the end");
        post->has_ended = true;
        loop_stop(post->loop);
        return;
    }
    test_eq_u64(event->token, post->next_token);
    test_eq_u64(event->pair_count, post->next_token % 4);
    for (uint32_t i = 0; i < event->pair_count; i++) {
        test_eq_u64(event->ids[i], event->token + i);
        test_true(event->logprobs[i] == (float)i);
    }
    post->next_token++;
}

static void on_mail(struct loop_task *task)
{
    struct post *post = (struct post *)(void *)((char *)task - offsetof(struct post, mailbox.task));
    struct engine_event event;
    post->wake_count++;
    mailbox_take(&post->mailbox);
    while (mailbox_next(&post->mailbox, &event)) {
        check_event(post, &event);
    }
}

static void *put_events(void *argument)
{
    struct post *post = argument;
    const float logprobs[4] = {0, 1, 2, 3};
    for (uint32_t token = 0; token < EVENTS; token++) {
        const uint32_t ids[4] = {token, token + 1, token + 2, token + 3};
        struct engine_event event = {.kind = ENGINE_EVENT_TOKEN,
                                     .token = token,
                                     .pair_count = token % 4,
                                     .ids = ids,
                                     .logprobs = logprobs};
        mailbox_put(&post->mailbox, &event);
    }
    struct engine_event last = {.kind = ENGINE_EVENT_FAILED, .text = "the end"};
    mailbox_put(&post->mailbox, &last);
    return NULL;
}

static void test_events_arrive_in_order(void)
{
    struct err err;
    struct post post = {0};
    pthread_t thread;
    test_ok(loop_create(&post.loop, &err), &err);
    mailbox_init(&post.mailbox, post.loop, on_mail);
    test_true(pthread_create(&thread, NULL, put_events, &post) == 0);
    test_ok(loop_run(post.loop, &err), &err);
    (void)pthread_join(thread, NULL);
    test_true(post.has_ended);
    test_eq_u64(post.next_token, EVENTS);
    test_true(post.wake_count <= EVENTS + 1);
    mailbox_fini(&post.mailbox);
    loop_destroy(post.loop);
}

struct pool;

struct job {
    struct work_item item;
    struct loop_task task;
    struct pool *pool;
};

struct pool {
    struct loop *loop;
    struct work *work;
    struct job jobs[ITEMS];
    uint32_t done_count;
    _Atomic uint32_t large_now;
    _Atomic uint32_t large_most;
};

static void on_done(struct loop_task *task)
{
    struct job *job = (struct job *)(void *)((char *)task - offsetof(struct job, task));
    if (++job->pool->done_count == ITEMS) {
        loop_stop(job->pool->loop);
    }
}

static void run_job(struct work_item *item)
{
    struct job *job = (struct job *)(void *)((char *)item - offsetof(struct job, item));
    struct pool *pool = job->pool;
    if (item->is_large) {
        uint32_t now = ++pool->large_now;
        uint32_t most = pool->large_most;
        while (now > most && !atomic_compare_exchange_weak(&pool->large_most, &most, now)) {
        }
        (void)usleep(500); /* the work */
        pool->large_now--;
    }
    loop_post(pool->loop, &job->task);
}

static void test_every_item_is_run_once(void)
{
    static struct pool pool;
    struct err err;
    memset(&pool, 0, sizeof(pool));
    test_ok(loop_create(&pool.loop, &err), &err);
    test_ok(work_create(3, ITEMS, &pool.work, &err), &err);
    for (uint32_t i = 0; i < ITEMS; i++) {
        struct job *job = &pool.jobs[i];
        job->pool = &pool;
        job->item.run = run_job;
        job->item.is_large = i % 5 == 0;
        job->task.run = on_done;
        test_true(work_try_submit(pool.work, &job->item));
    }
    test_ok(loop_run(pool.loop, &err), &err);
    test_eq_u64(pool.done_count, ITEMS);
    test_true(pool.large_most <= 2); /* one thread is never taken by large items */
    work_destroy(pool.work);
    loop_destroy(pool.loop);
}

struct gate {
    struct work_item item;
    int fd;
};

static void wait_at_gate(struct work_item *item)
{
    char byte;
    struct gate *gate = (struct gate *)(void *)((char *)item - offsetof(struct gate, item));
    test_true(read(gate->fd, &byte, 1) == 0);
}

static void test_pool_is_bounded(void)
{
    struct err err;
    struct work *work = NULL;
    struct gate gates[4] = {0};
    int ends[2];
    test_true(pipe(ends) == 0);
    test_ok(work_create(1, 3, &work, &err), &err);
    for (int i = 0; i < 4; i++) {
        gates[i].item.run = wait_at_gate;
        gates[i].fd = ends[0];
        test_true(work_try_submit(work, &gates[i].item) == (i < 3));
    }
    (void)close(ends[1]);
    work_destroy(work); /* runs what is queued */
    (void)close(ends[0]);
}

struct clockwork {
    struct loop *loop;
    struct loop_watch *watch;
    uint32_t ticks;
    uint32_t reads;
    int write_fd;
};

static void on_tick(void *owner)
{
    struct clockwork *clockwork = owner;
    clockwork->ticks++;
    test_true(write(clockwork->write_fd, "x", 1) == 1);
}

static void on_readable(void *owner, int fd)
{
    struct clockwork *clockwork = owner;
    char byte;
    test_true(read(fd, &byte, 1) == 1);
    if (++clockwork->reads == 5) {
        loop_stop(clockwork->loop);
    }
}

static void test_timers_and_watches(void)
{
    struct err err;
    struct clockwork clockwork = {0};
    int ends[2];
    test_true(pipe(ends) == 0);
    clockwork.write_fd = ends[1];
    test_ok(loop_create(&clockwork.loop, &err), &err);
    clockwork.watch = loop_watch_create(clockwork.loop, ends[0], on_readable, &clockwork);
    struct loop_timer *timer = loop_timer_create(clockwork.loop, 2, on_tick, &clockwork);
    uint64_t start_ns = clock_now_ns();
    test_ok(loop_run(clockwork.loop, &err), &err);
    test_true(clock_now_ns() - start_ns >= 8 * CLOCK_NS_PER_MS);
    test_eq_u64(clockwork.reads, 5);
    test_true(clockwork.ticks >= 5);
    loop_timer_destroy(timer);
    loop_watch_destroy(clockwork.watch);
    loop_destroy(clockwork.loop);
    (void)close(ends[1]);
}

static const struct test_case cases[] = {
    TEST(test_events_arrive_in_order),
    TEST(test_every_item_is_run_once),
    TEST(test_pool_is_bounded),
    TEST(test_timers_and_watches),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
