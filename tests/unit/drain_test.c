#include "frontend/drain.h"

#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/test.h"

#define RECORDS 64

struct rig {
    void *segment;
    struct ring_producer producer;
    struct drain drain;
    uint64_t seen[RECORDS];
    uint32_t seen_count;
    uint64_t refuse_seq; /* on_record refuses this msg_seq */
};

static void prepare(struct rig *rig)
{
    struct err err;
    size_t byte_count = ring_segment_bytes(RESULT_RECORD_BYTES, RECORDS);
    *rig = (struct rig){.segment = mem_zalloc(byte_count, 1)};
    test_ok(ring_producer_init(&rig->producer, rig->segment, byte_count, RESULT_RECORD_BYTES,
                               RECORDS, 7, &err),
            &err);
    test_ok(drain_init(&rig->drain, rig->segment, byte_count, 7, &err), &err);
}

static void push(struct rig *rig, uint64_t epoch, uint16_t kind, uint64_t msg_seq)
{
    struct result_record record = {.kind = kind, .epoch = epoch, .msg_seq = msg_seq};
    test_true(ring_producer_try_push(&rig->producer, &record));
    ring_producer_publish(&rig->producer);
}

static enum err_code on_record(void *owner, const struct result_record *record, struct err *err)
{
    struct rig *rig = owner;
    if (record->msg_seq == rig->refuse_seq) {
        return err_set(err, ERR_PROTOCOL, "not this one");
    }
    rig->seen[rig->seen_count++] = record->msg_seq;
    return ERR_OK;
}

static void test_records_come_in_order_and_in_batches(void)
{
    struct rig rig;
    struct err err;
    prepare(&rig);
    for (uint64_t i = 1; i <= 10; i++) {
        push(&rig, 7, RESULT_PONG, i);
    }
    test_ok(drain_run(&rig.drain, 4, on_record, &rig, &err), &err);
    test_eq_u64(rig.seen_count, 4);
    test_ok(drain_run(&rig.drain, 100, on_record, &rig, &err), &err);
    test_eq_u64(rig.seen_count, 10);
    for (uint32_t i = 0; i < 10; i++) {
        test_eq_u64(rig.seen[i], i + 1);
    }
    mem_free(rig.segment);
}

static void test_another_epoch_is_dropped_and_counted(void)
{
    struct rig rig;
    struct err err;
    prepare(&rig);
    push(&rig, 6, RESULT_PONG, 1);
    push(&rig, 7, RESULT_PONG, 2);
    push(&rig, 6, 999, 3); /* not even looked at */
    test_ok(drain_run(&rig.drain, 100, on_record, &rig, &err), &err);
    test_eq_u64(rig.seen_count, 1);
    test_eq_u64(rig.drain.stale_count, 2);
    mem_free(rig.segment);
}

static void test_what_cannot_be_ends_the_run(void)
{
    struct rig rig;
    struct err err;
    prepare(&rig);
    push(&rig, 7, RESULT_PONG, 1);
    push(&rig, 7, 999, 2);
    push(&rig, 7, RESULT_PONG, 3);
    test_eq_u64(drain_run(&rig.drain, 100, on_record, &rig, &err), ERR_FORMAT);
    test_eq_u64(rig.seen_count, 1);
    rig.refuse_seq = 3;
    test_eq_u64(drain_run(&rig.drain, 100, on_record, &rig, &err), ERR_PROTOCOL);
    mem_free(rig.segment);
}

static void test_a_ring_of_another_epoch_is_refused(void)
{
    struct rig rig;
    struct err err;
    struct drain drain;
    prepare(&rig);
    test_eq_u64(
        drain_init(&drain, rig.segment, ring_segment_bytes(RESULT_RECORD_BYTES, RECORDS), 8, &err),
        ERR_PROTOCOL);
    mem_free(rig.segment);
}

static void test_wake_and_deadline_end_the_wait(void)
{
    struct rig rig;
    prepare(&rig);
    drain_wake(&rig.drain);
    drain_wait(&rig.drain, 0, UINT64_MAX); /* the wake came first */
    uint64_t start_ns = clock_now_ns();
    drain_wait(&rig.drain, 1000, start_ns + 5 * CLOCK_NS_PER_MS);
    test_true(clock_now_ns() - start_ns >= 5 * CLOCK_NS_PER_MS);
    push(&rig, 7, RESULT_PONG, 1);
    drain_wait(&rig.drain, 0, UINT64_MAX);
    mem_free(rig.segment);
}

static const struct test_case cases[] = {
    TEST(test_records_come_in_order_and_in_batches),
    TEST(test_another_epoch_is_dropped_and_counted),
    TEST(test_what_cannot_be_ends_the_run),
    TEST(test_a_ring_of_another_epoch_is_refused),
    TEST(test_wake_and_deadline_end_the_wait),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
