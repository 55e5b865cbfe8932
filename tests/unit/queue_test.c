#include "frontend/queue.h"

#include <string.h>

#include "tests/testlib/test.h"

static void insert(struct queue *queue, struct req *req, int32_t priority, uint64_t arrival_seq)
{
    req->state = REQ_STATE_QUEUED;
    req->priority = priority;
    req->arrival_seq = arrival_seq;
    test_true(queue_try_insert(queue, req));
}

/* Everything goes, wherever it is. */
static void finish(struct queue *queue, struct req *reqs, uint32_t count)
{
    while (queue->waiting.first != NULL) {
        queue_remove(queue, queue->waiting.first);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (reqs[i].key != NULL) {
            queue_forget(queue, &reqs[i]);
        }
    }
    test_true(queue_check(queue));
    queue_fini(queue);
}

static void test_order_is_priority_then_arrival(void)
{
    struct req reqs[6];
    memset(reqs, 0, sizeof(reqs));
    struct queue queue;
    queue_init(&queue, 6);
    static const int32_t priorities[6] = {0, 0, -3, 7, 0, -3};
    static const uint32_t order[6] = {2, 5, 0, 1, 4, 3};
    for (uint32_t i = 0; i < 6; i++) {
        insert(&queue, &reqs[i], priorities[i], i + 1);
    }
    const struct req *at = queue.waiting.first;
    for (uint32_t i = 0; i < 6; i++) {
        test_true(at == &reqs[order[i]]);
        at = at->next;
    }
    test_true(at == NULL);
    finish(&queue, reqs, 6);
}

static void test_one_that_returns_has_its_old_place(void)
{
    struct req reqs[4];
    memset(reqs, 0, sizeof(reqs));
    struct queue queue;
    queue_init(&queue, 4);
    for (uint32_t i = 0; i < 4; i++) {
        insert(&queue, &reqs[i], 0, i + 1);
    }
    queue_take(&queue, &reqs[1]);
    reqs[1].preemptions = 1;
    queue_return(&queue, &reqs[1]);
    test_true(queue.waiting.first->next == &reqs[1]);
    test_true(queue_head(&queue) == &reqs[1]); /* its owner has had tokens */
    test_true(queue_check(&queue));
    queue_remove(&queue, &reqs[0]);
    queue_remove(&queue, &reqs[3]);
    test_true(queue.waiting.first == &reqs[1] && queue.waiting.last == &reqs[2]);
    test_eq_u64(queue.waiting.count, 2);
    finish(&queue, reqs, 4);
}

static void test_full(void)
{
    struct req reqs[3];
    memset(reqs, 0, sizeof(reqs));
    struct queue queue;
    queue_init(&queue, 2);
    insert(&queue, &reqs[0], 0, 1);
    insert(&queue, &reqs[1], 0, 2);
    test_true(!queue_try_insert(&queue, &reqs[2]));
    test_eq_u64(queue.waiting.count, 2);
    finish(&queue, reqs, 3);
}

/* Reqs of one key after the other: index i has key 1 + i / per_key. */
static void fill_keys(struct queue *queue, struct req *reqs, uint32_t count, uint32_t per_key)
{
    memset(reqs, 0, count * sizeof(reqs[0]));
    queue_init(queue, count);
    for (uint32_t i = 0; i < count; i++) {
        reqs[i].key_hash = 1 + i / per_key;
        reqs[i].admit.prompt.count = 100;
        insert(queue, &reqs[i], 0, i + 1);
    }
}

static struct req *take_head(struct queue *queue)
{
    struct req *req = queue_head(queue);
    test_true(req != NULL);
    queue_take(queue, req);
    test_true(queue_check(queue));
    return req;
}

static void test_keys_take_turns_whatever_they_have_queued(void)
{
    static struct req reqs[1000];
    static struct req late;
    struct queue queue;
    memset(reqs, 0, sizeof(reqs));
    memset(&late, 0, sizeof(late));
    queue_init(&queue, 1001);
    for (uint32_t i = 0; i < 1000; i++) {
        reqs[i].key_hash = 7;
        reqs[i].admit.prompt.count = 100;
        insert(&queue, &reqs[i], 0, i + 1);
    }
    test_true(take_head(&queue) == &reqs[0]);
    test_true(take_head(&queue) == &reqs[1]);
    late.key_hash = 8;
    late.admit.prompt.count = 5000;
    insert(&queue, &late, 0, 1001);
    test_true(take_head(&queue) == &late); /* past 998 of another key */
    test_true(take_head(&queue) == &reqs[2]);
    while (queue.waiting.count > 0) {
        (void)take_head(&queue); /* order was looked at above */
    }
    for (uint32_t i = 0; i < 1000; i++) {
        queue_forget(&queue, &reqs[i]);
    }
    queue_forget(&queue, &late);
    queue_fini(&queue);
}

static void test_turns_go_by_tokens_served(void)
{
    static struct req reqs[40];
    struct queue queue;
    fill_keys(&queue, reqs, 40, 20);
    uint32_t taken[3] = {0};
    for (uint32_t i = 0; i < 22; i++) {
        struct req *req = take_head(&queue);
        taken[req->key_hash]++;
        /* key 1 also has 450 tokens of output each: a request of 1,000 against one of 100 */
        for (uint32_t k = 0; k < 450 && req->key_hash == 1; k++) {
            queue_charge_output(req);
        }
    }
    test_eq_u64(taken[1], 2);
    test_eq_u64(taken[2], 20);
    finish(&queue, reqs, 40);
}

static void test_a_pause_saves_nothing_up(void)
{
    static struct req reqs[6];
    struct queue queue;
    fill_keys(&queue, reqs, 3, 3); /* one key */
    memset(&reqs[3], 0, 3 * sizeof(reqs[0]));
    for (uint32_t i = 0; i < 2; i++) {
        struct req *req = take_head(&queue);
        for (uint32_t k = 0; k < 1000; k++) {
            queue_charge_output(req);
        }
    }
    /* another comes for the first time: level with what the first had at its last turn */
    for (uint32_t i = 3; i < 6; i++) {
        reqs[i].key_hash = 9;
        reqs[i].admit.prompt.count = 1500;
        queue.max_requests = 6;
        insert(&queue, &reqs[i], 0, i + 1);
    }
    test_true(take_head(&queue) == &reqs[3]);
    test_true(take_head(&queue) == &reqs[4]);
    test_true(take_head(&queue) == &reqs[2]);
    test_true(take_head(&queue) == &reqs[5]);
    finish(&queue, reqs, 6);
}

static void test_the_oldest_is_passed_a_bounded_number_of_times(void)
{
    static struct req reqs[QUEUE_MAX_PASSES + 10];
    const uint32_t count = QUEUE_MAX_PASSES + 10;
    struct queue queue;
    fill_keys(&queue, reqs, count, 1); /* each a key of its own */
    reqs[0].key->served_tokens = 1000000;
    uint32_t before = 0;
    while (take_head(&queue) != &reqs[0]) {
        before++;
    }
    test_eq_u64(before, QUEUE_MAX_PASSES);
    finish(&queue, reqs, count);
}

static void test_memory_of_keys_is_bounded(void)
{
    struct queue queue;
    queue_init(&queue, 4);
    for (uint64_t i = 1; i <= 10000; i++) {
        struct req req;
        memset(&req, 0, sizeof(req));
        req.key_hash = i;
        req.admit.prompt.count = 10;
        insert(&queue, &req, 0, i);
        test_true(take_head(&queue) == &req);
        queue_forget(&queue, &req);
        test_true(queue.idle.count <= QUEUE_MAX_IDLE_KEYS);
    }
    queue_fini(&queue);
}

static void test_expired_come_out_one_by_one(void)
{
    struct req reqs[5];
    memset(reqs, 0, sizeof(reqs));
    struct queue queue;
    queue_init(&queue, 5);
    static const uint64_t deadlines[5] = {0, 500, 100, 0, 200};
    for (uint32_t i = 0; i < 5; i++) {
        reqs[i].deadline_ns = deadlines[i];
        insert(&queue, &reqs[i], 0, i + 1);
    }
    test_eq_u64(queue.soonest_ns, 100);
    test_true(queue_take_expired(&queue, 99) == NULL);
    test_true(queue_take_expired(&queue, 250) == &reqs[2]);
    test_true(queue_take_expired(&queue, 250) == &reqs[4]);
    test_true(queue_take_expired(&queue, 250) == NULL);
    test_eq_u64(queue.soonest_ns, 500);
    test_true(queue_take_expired(&queue, UINT64_MAX) == &reqs[1]);
    test_true(queue_take_expired(&queue, UINT64_MAX) == NULL);
    test_eq_u64(queue.waiting.count, 2);
    finish(&queue, reqs, 5);
}

static const struct test_case cases[] = {
    TEST(test_order_is_priority_then_arrival),
    TEST(test_one_that_returns_has_its_old_place),
    TEST(test_full),
    TEST(test_keys_take_turns_whatever_they_have_queued),
    TEST(test_turns_go_by_tokens_served),
    TEST(test_a_pause_saves_nothing_up),
    TEST(test_the_oldest_is_passed_a_bounded_number_of_times),
    TEST(test_memory_of_keys_is_bounded),
    TEST(test_expired_come_out_one_by_one),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
