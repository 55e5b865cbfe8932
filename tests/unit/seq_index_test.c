#include "worker/seq_index.h"

#include "tests/testlib/test.h"

static void test_an_id_is_alive_until_removed_and_used_for_ever(void)
{
    struct seq_index index;
    uint32_t slot;
    seq_index_init(&index, 4);
    test_true(!seq_index_find(&index, 1, &slot));
    test_true(!seq_index_was_used(&index, 1));
    seq_index_add(&index, 1, 3);
    test_true(seq_index_find(&index, 1, &slot));
    test_eq_u64(slot, 3);
    test_true(seq_index_was_used(&index, 1));
    seq_index_remove(&index, 1);
    test_true(!seq_index_find(&index, 1, &slot));
    test_true(seq_index_was_used(&index, 1));
    test_true(!seq_index_was_used(&index, 0));
    test_true(!seq_index_was_used(&index, 2));
    seq_index_fini(&index);
}

static void test_ids_in_order_are_one_range(void)
{
    struct seq_index index;
    seq_index_init(&index, 4);
    for (uint64_t id = 1; id <= 100000; id++) {
        seq_index_add(&index, id, 0);
        seq_index_remove(&index, id);
    }
    test_eq_u64(index.range_count, 1);
    test_true(seq_index_was_used(&index, 100000));
    test_true(!seq_index_was_used(&index, 100001));
    seq_index_fini(&index);
}

static void test_ranges_join_from_both_sides(void)
{
    struct seq_index index;
    seq_index_init(&index, 8);
    static const uint64_t ids[] = {10, 12, 8, 11, 9, 7, 13, UINT64_MAX};
    for (uint32_t i = 0; i < 8; i++) {
        test_true(!seq_index_was_used(&index, ids[i]));
        seq_index_add(&index, ids[i], i);
        test_true(seq_index_was_used(&index, ids[i]));
    }
    test_eq_u64(index.range_count, 2);
    test_eq_u64(index.ranges[0].first, 7);
    test_eq_u64(index.ranges[0].last, 13);
    seq_index_fini(&index);
}

static void test_scattered_ids_keep_memory_bounded(void)
{
    struct seq_index index;
    seq_index_init(&index, 4);
    for (uint64_t i = 0; i < 3ULL * SEQ_INDEX_MAX_RANGES; i++) {
        seq_index_add(&index, 10 * (i + 1), 0);
        seq_index_remove(&index, 10 * (i + 1));
        test_true(seq_index_was_used(&index, 10 * (i + 1)));
        test_true(index.range_count <= SEQ_INDEX_MAX_RANGES);
    }
    for (uint64_t i = 0; i < 3ULL * SEQ_INDEX_MAX_RANGES; i++) {
        test_true(seq_index_was_used(&index, 10 * (i + 1))); /* nothing used is ever forgotten */
    }
    test_true(!seq_index_was_used(&index, 30 * SEQ_INDEX_MAX_RANGES - 5));
    seq_index_fini(&index);
}

static void test_random_ids_against_a_list(void)
{
    struct seq_index index;
    uint64_t alive[16];
    uint32_t alive_count = 0;
    uint64_t random = 11;
    seq_index_init(&index, 16);
    for (uint32_t i = 0; i < 50000; i++) {
        uint64_t id = test_random(&random) % 4096 + i;
        if (alive_count < 16 && !seq_index_was_used(&index, id)) {
            seq_index_add(&index, id, (uint32_t)(id % 977));
            alive[alive_count++] = id;
        } else if (alive_count > 0) {
            uint32_t at = (uint32_t)(test_random(&random) % alive_count);
            seq_index_remove(&index, alive[at]);
            alive[at] = alive[--alive_count];
        }
        for (uint32_t k = 0; k < alive_count; k++) {
            uint32_t slot = 0;
            test_true(seq_index_find(&index, alive[k], &slot));
            test_eq_u64(slot, alive[k] % 977);
        }
        test_eq_u64(index.entry_count, alive_count);
    }
    seq_index_fini(&index);
}

static const struct test_case cases[] = {
    TEST(test_an_id_is_alive_until_removed_and_used_for_ever),
    TEST(test_ids_in_order_are_one_range),
    TEST(test_ranges_join_from_both_sides),
    TEST(test_scattered_ids_keep_memory_bounded),
    TEST(test_random_ids_against_a_list),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
