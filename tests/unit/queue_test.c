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
    queue_remove(&queue, &reqs[1]);
    insert(&queue, &reqs[1], 0, 2);
    test_true(queue.waiting.first->next == &reqs[1]);
    queue_remove(&queue, &reqs[0]);
    queue_remove(&queue, &reqs[3]);
    test_true(queue.waiting.first == &reqs[1] && queue.waiting.last == &reqs[2]);
    test_eq_u64(queue.waiting.count, 2);
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
}

static const struct test_case cases[] = {
    TEST(test_order_is_priority_then_arrival),
    TEST(test_one_that_returns_has_its_old_place),
    TEST(test_full),
    TEST(test_expired_come_out_one_by_one),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
