#include "common/ring.h"

#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/test.h"

enum {
    RECORD_BYTES = 64,
    EPOCH = 77
};

struct record {
    uint64_t number;
    uint64_t words[7];
};

static struct record make_record(uint64_t number)
{
    struct record record = {.number = number};
    for (size_t i = 0; i < 7; i++) {
        record.words[i] = number * 0x9e3779b97f4a7c15ULL + i;
    }
    return record;
}

static bool is_record(const struct record *record, uint64_t number)
{
    struct record want = make_record(number);
    return memcmp(record, &want, sizeof(want)) == 0;
}

struct pair {
    void *segment; /* owned */
    size_t segment_bytes;
    struct ring_producer producer;
    struct ring_consumer consumer;
};

static void pair_init(struct pair *pair, uint32_t record_count)
{
    struct err err;
    pair->segment_bytes = ring_segment_bytes(RECORD_BYTES, record_count);
    pair->segment = mem_zalloc(pair->segment_bytes, 1);
    test_ok(ring_producer_init(&pair->producer, pair->segment, pair->segment_bytes, RECORD_BYTES,
                               record_count, EPOCH, &err),
            &err);
    test_ok(ring_consumer_init(&pair->consumer, pair->segment, pair->segment_bytes, RECORD_BYTES,
                               EPOCH, &err),
            &err);
}

static void pair_fini(struct pair *pair)
{
    mem_free(pair->segment);
}

/* As if the ring had already carried start_seq records. */
static void pair_start_at(struct pair *pair, uint64_t start_seq)
{
    unsigned char *bytes = pair->segment;
    memcpy(bytes + RING_TAIL_SEQ_OFFSET_BYTES, &start_seq, sizeof(start_seq));
    memcpy(bytes + RING_HEAD_SEQ_OFFSET_BYTES, &start_seq, sizeof(start_seq));
    pair->producer.tail_seq = start_seq;
    pair->producer.head_seen_seq = start_seq;
    pair->consumer.head_seq = start_seq;
    pair->consumer.tail_seen_seq = start_seq;
}

static uint32_t bell_of(const struct pair *pair)
{
    uint32_t bell;
    memcpy(&bell, (unsigned char *)pair->segment + RING_DOORBELL_OFFSET_BYTES, sizeof(bell));
    return bell;
}

static void test_segment_sizes(void)
{
    test_eq_u64(ring_segment_bytes(64, 1), 512 + 64);
    test_eq_u64(ring_segment_bytes(128, 4096), 512 + 128 * 4096);
    test_eq_u64(ring_segment_bytes(64, 0), 0);
    test_eq_u64(ring_segment_bytes(64, 3), 0);
    test_eq_u64(ring_segment_bytes(0, 4), 0);
    test_eq_u64(ring_segment_bytes(65, 4), 0);
    test_eq_u64(ring_segment_bytes(64, 1u << 31), 0);
}

static void test_pushed_is_seen_only_when_published(void)
{
    struct pair pair;
    struct record record = make_record(1);
    pair_init(&pair, 4);
    test_true(!ring_consumer_try_pop(&pair.consumer, &record));
    test_true(ring_producer_try_push(&pair.producer, &record));
    test_true(!ring_consumer_try_pop(&pair.consumer, &record));
    ring_producer_publish(&pair.producer);
    test_true(ring_consumer_try_pop(&pair.consumer, &record));
    test_true(is_record(&record, 1));
    test_true(!ring_consumer_try_pop(&pair.consumer, &record));
    test_eq_u64(bell_of(&pair), 0); /* nobody slept: no bell, no system call */
    pair_fini(&pair);
}

static void test_all_slots_are_usable_and_full_refuses(void)
{
    struct pair pair;
    struct record record;
    pair_init(&pair, 4);
    test_eq_u64(ring_producer_room(&pair.producer, 4), 4);
    for (uint64_t i = 0; i < 4; i++) {
        record = make_record(i);
        test_true(ring_producer_try_push(&pair.producer, &record));
    }
    test_true(!ring_producer_try_push(&pair.producer, &record));
    test_eq_u64(ring_producer_room(&pair.producer, 1), 0);
    ring_producer_publish(&pair.producer);
    test_true(ring_consumer_try_pop(&pair.consumer, &record) && is_record(&record, 0));
    test_eq_u64(ring_producer_room(&pair.producer, 2), 1);
    record = make_record(4);
    test_true(ring_producer_try_push(&pair.producer, &record));
    test_true(!ring_producer_try_push(&pair.producer, &record));
    ring_producer_publish(&pair.producer);
    for (uint64_t i = 1; i <= 4; i++) {
        test_true(ring_consumer_try_pop(&pair.consumer, &record) && is_record(&record, i));
    }
    pair_fini(&pair);
}

/* A random walk against a plain counter, over every kind of index wrap. */
static void check_walk(uint32_t record_count, uint64_t start_seq)
{
    struct pair pair;
    struct err err;
    uint64_t seed = 11 + start_seq;
    uint64_t pushed = 0;
    uint64_t published = 0;
    uint64_t popped = 0;
    pair_init(&pair, record_count);
    pair_start_at(&pair, start_seq);
    for (int step = 0; step < 20000; step++) {
        struct record record = make_record(pushed);
        uint64_t choice = test_random(&seed) % 8;
        if (choice < 3) {
            bool has_room = pushed - popped < record_count;
            test_true(ring_producer_try_push(&pair.producer, &record) == has_room);
            pushed += has_room;
        } else if (choice < 5) {
            ring_producer_publish(&pair.producer);
            published = pushed;
        } else {
            bool is_there = popped < published;
            test_true(ring_consumer_try_pop(&pair.consumer, &record) == is_there);
            test_true(!is_there || is_record(&record, popped));
            popped += is_there;
        }
        test_ok(ring_check(pair.segment, pair.segment_bytes, &err), &err);
        test_eq_u64(ring_producer_room(&pair.producer, record_count),
                    record_count - (pushed - popped));
    }
    test_true(popped > 2 * (uint64_t)record_count);
    pair_fini(&pair);
}

static void test_indices_wrap(void)
{
    for (uint32_t record_count = 1; record_count <= 64; record_count *= 4) {
        check_walk(record_count, 0);
        check_walk(record_count, UINT32_MAX - 500ULL);
        check_walk(record_count, UINT64_MAX - 500ULL);
    }
}

static void check_refused(struct pair *pair, size_t segment_bytes, uint32_t record_bytes,
                          uint64_t epoch, const char *message)
{
    struct ring_consumer consumer;
    struct err err = {0};
    test_true(ring_consumer_init(&consumer, pair->segment, segment_bytes, record_bytes, epoch,
                                 &err) == ERR_PROTOCOL);
    test_eq_str(err.message, message);
}

static void test_attach_names_both_values(void)
{
    struct pair pair;
    pair_init(&pair, 4);
    size_t bytes = pair.segment_bytes;
    check_refused(&pair, bytes, 128, EPOCH, "ring record size is 64, expected 128");
    check_refused(&pair, bytes, 64, EPOCH + 1, "ring epoch is 77, expected 78");
    check_refused(&pair, bytes + 64, 64, EPOCH, "ring segment size is 832, expected 768");
    check_refused(&pair, 100, 64, EPOCH, "ring segment size is 100, expected 512");
    uint32_t version = 9;
    memcpy((unsigned char *)pair.segment + 8, &version, sizeof(version));
    check_refused(&pair, bytes, 64, EPOCH, "ring layout version is 9, expected 1");
    memset(pair.segment, 0, 8);
    check_refused(&pair, bytes, 64, EPOCH, "ring magic is 0, expected 3550892908026152258");
    struct ring_producer producer;
    struct err err;
    test_true(ring_producer_init(&producer, pair.segment, bytes, 64, 8, 1, &err) == ERR_ARGUMENT);
    test_eq_str(err.message, "ring of 8 records of 64 bytes in 768 bytes, needs 1024");
    pair_fini(&pair);
}

static void test_wake_before_wait_is_seen_once(void)
{
    struct pair pair;
    pair_init(&pair, 4);
    uint64_t far_ns = clock_now_ns() + 20 * CLOCK_NS_PER_SEC;
    ring_wake(pair.producer.shared);
    test_true(!ring_consumer_wait(&pair.consumer, 0, far_ns));
    ring_wake(pair.producer.shared);
    ring_wake(pair.producer.shared);
    test_true(!ring_consumer_wait(&pair.consumer, CLOCK_NS_PER_SEC, far_ns));
    test_true(clock_now_ns() < far_ns - 10 * CLOCK_NS_PER_SEC);
    uint64_t near_ns = clock_now_ns() + 20 * CLOCK_NS_PER_MS;
    test_true(!ring_consumer_wait(&pair.consumer, 0, near_ns));
    test_true(clock_now_ns() >= near_ns); /* slept to the deadline: both wakes were taken */
    test_true(!ring_consumer_wait(&pair.consumer, 0, 0));
    pair_fini(&pair);
}

/* Who wakes a sleeper and is held up must not take the flag of the sleep after: the next wake would
 * find nobody asleep.  So wakers leave the flag alone. */
static void test_wakers_leave_the_flag_to_the_sleeper(void)
{
    struct pair pair;
    struct record record = make_record(0);
    const uint32_t asleep = 1;
    uint32_t flag = 0;
    pair_init(&pair, 4);
    unsigned char *at = (unsigned char *)pair.segment + RING_DOORBELL_OFFSET_BYTES + 4;
    memcpy(at, &asleep, sizeof(asleep));
    ring_wake(pair.producer.shared);
    test_eq_u64(bell_of(&pair), 1);
    test_true(ring_producer_try_push(&pair.producer, &record));
    ring_producer_publish(&pair.producer);
    test_eq_u64(bell_of(&pair), 2);
    memcpy(&flag, at, sizeof(flag));
    test_eq_u64(flag, 1);
    pair_fini(&pair);
}

static void test_nonsense_indices_stop_the_ring(void)
{
    uint64_t seed = 5;
    for (int round = 0; round < 2000; round++) {
        struct pair pair;
        struct err err;
        struct record record = make_record(0);
        pair_init(&pair, 8);
        uint64_t head_seq = test_random(&seed);
        uint64_t tail_seq = test_random(&seed);
        unsigned char *bytes = pair.segment;
        memcpy(bytes + RING_TAIL_SEQ_OFFSET_BYTES, &tail_seq, sizeof(tail_seq));
        memcpy(bytes + RING_HEAD_SEQ_OFFSET_BYTES, &head_seq, sizeof(head_seq));
        test_true(ring_check(pair.segment, pair.segment_bytes, &err) == ERR_FORMAT);
        test_true(!ring_consumer_try_pop(&pair.consumer, &record));
        test_eq_u64(ring_producer_room(&pair.producer, 9), 0);
        test_true(!ring_producer_try_push(&pair.producer, &record));
        test_true(!ring_consumer_wait(&pair.consumer, 0, 0));
        pair_fini(&pair);
    }
}

/* Any change of a byte before the records either leaves a valid ring (an epoch, a bell, indices that
 * still fit) or is named by ring_check; it never crashes. */
static void test_check_finds_changed_bytes(void)
{
    uint64_t seed = 8;
    unsigned refused = 0;
    for (size_t at = 0; at < RING_RECORDS_OFFSET_BYTES; at++) {
        struct pair pair;
        struct err err;
        pair_init(&pair, 8);
        test_ok(ring_check(pair.segment, pair.segment_bytes, &err), &err);
        unsigned char *bytes = pair.segment;
        bytes[at] ^= (unsigned char)(1 + test_random(&seed) % 255);
        bool is_epoch = at >= 24 && at < 32;
        bool is_bell = at >= RING_DOORBELL_OFFSET_BYTES && at < RING_DOORBELL_OFFSET_BYTES + 4;
        bool may_pass = is_epoch || is_bell || at == RING_TAIL_SEQ_OFFSET_BYTES ||
                        at == RING_DOORBELL_OFFSET_BYTES + 4;
        enum err_code code = ring_check(pair.segment, pair.segment_bytes, &err);
        refused += code == ERR_FORMAT;
        test_true(code == ERR_FORMAT || (code == ERR_OK && may_pass));
        pair_fini(&pair);
    }
    test_true(refused >= RING_RECORDS_OFFSET_BYTES - 14);
    struct err err;
    unsigned char shorter[64] = {0};
    test_true(ring_check(shorter, sizeof(shorter), &err) == ERR_FORMAT);
}

static const struct test_case cases[] = {
    TEST(test_segment_sizes),
    TEST(test_pushed_is_seen_only_when_published),
    TEST(test_all_slots_are_usable_and_full_refuses),
    TEST(test_indices_wrap),
    TEST(test_attach_names_both_values),
    TEST(test_wake_before_wait_is_seen_once),
    TEST(test_wakers_leave_the_flag_to_the_sleeper),
    TEST(test_nonsense_indices_stop_the_ring),
    TEST(test_check_finds_changed_bytes),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
