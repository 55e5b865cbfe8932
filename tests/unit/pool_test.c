#include "worker/pool.h"

#include <string.h>

#include "tests/testlib/test.h"

#define PAGES 8

static void setup(struct pool *pool)
{
    struct err err;
    test_ok(pool_init(pool, PAGES, &err), &err);
}

static void check(const struct pool *pool)
{
    struct err err;
    test_ok(pool_check(pool, &err), &err);
}

static void test_reserve_is_all_or_none(void)
{
    struct pool pool;
    setup(&pool);
    test_true(pool_try_reserve(&pool, 5));
    test_true(!pool_try_reserve(&pool, 4));
    test_eq_u64(pool.reserved_count, 5);
    test_true(pool_try_reserve(&pool, 3));
    test_eq_u64(pool_available(&pool), 0);
    test_true(!pool_try_reserve(&pool, 1));
    test_true(pool_try_reserve(&pool, 0));
    for (uint32_t i = 0; i < PAGES; i++) {
        test_eq_u64(pool_reserved_page(&pool, i), i);
    }
    check(&pool);
    pool_fini(&pool);
}

static void expect_same_page(const struct pool_page *a, const struct pool_page *b)
{
    test_eq_u64(a->last_writer, b->last_writer);
    test_eq_u64(a->holder_count, b->holder_count);
    for (uint32_t lane = 0; lane < POOL_LANE_COUNT; lane++) {
        test_eq_u64(a->lane_counts[lane], b->lane_counts[lane]);
    }
    test_eq_u64(a->next, b->next);
    test_eq_u64(a->prev, b->prev);
    test_eq_u64(a->rank, b->rank);
    test_true(a->is_cached == b->is_cached);
}

static void test_rollback_leaves_the_pool_as_it_was(void)
{
    struct pool pool;
    setup(&pool);
    test_true(pool_try_reserve(&pool, 6));
    pool_commit(&pool, 0);
    (void)pool_release(&pool, 3, 0);
    (void)pool_release(&pool, 0, 0);
    uint32_t free_pages[PAGES];
    struct pool_page pages[PAGES];
    memcpy(free_pages, pool.free_pages, sizeof(free_pages));
    memcpy(pages, pool.pages, sizeof(pages));
    test_true(pool_try_reserve(&pool, 4));
    pool_rollback(&pool);
    test_true(memcmp(free_pages, pool.free_pages, sizeof(free_pages)) == 0);
    for (uint32_t i = 0; i < PAGES; i++) {
        expect_same_page(&pages[i], &pool.pages[i]);
    }
    test_eq_u64(pool_available(&pool), 4);
    check(&pool);
    pool_fini(&pool);
}

static void test_commit_grants_what_was_shown(void)
{
    struct pool pool;
    setup(&pool);
    test_true(pool_try_reserve(&pool, 3));
    uint32_t shown = pool_reserved_page(&pool, 2);
    pool_commit(&pool, 0);
    test_eq_u64(pool.pages[shown].holder_count, 1);
    test_eq_u64(pool_available(&pool), 5);
    test_true(pool_try_reserve(&pool, 5));
    for (uint32_t i = 0; i < 5; i++) {
        test_true(pool_reserved_page(&pool, i) != shown);
    }
    pool_commit(&pool, 0);
    check(&pool);
    pool_fini(&pool);
}

static void test_a_shared_page_is_free_after_its_last_holder(void)
{
    struct pool pool;
    setup(&pool);
    test_true(pool_try_reserve(&pool, 1));
    pool_commit(&pool, 0);
    (void)pool_share(&pool, 0, 0);
    (void)pool_release(&pool, 0, 0);
    test_eq_u64(pool_available(&pool), 7);
    check(&pool);
    (void)pool_release(&pool, 0, 0);
    test_eq_u64(pool_available(&pool), 8);
    check(&pool);
    pool_fini(&pool);
}

static void test_a_granted_page_forgets_who_wrote_it(void)
{
    struct pool pool;
    setup(&pool);
    test_true(pool_try_reserve(&pool, 1));
    pool_commit(&pool, 0);
    pool_note_write(&pool, 0, 41);
    pool_note_write(&pool, 0, 41);
    test_eq_u64(pool.pages[0].last_writer, 41);
    (void)pool_release(&pool, 0, 0);
    test_true(pool_try_reserve(&pool, 1));
    test_eq_u64(pool_reserved_page(&pool, 0), 0);
    pool_commit(&pool, 0);
    pool_note_write(&pool, 0, 42);
    pool_fini(&pool);
}

static void test_check_finds_a_page_twice_on_the_list(void)
{
    struct pool pool;
    struct err err;
    setup(&pool);
    pool.free_pages[2] = pool.free_pages[3];
    test_eq_u64(pool_check(&pool, &err), ERR_INTERNAL);
    test_eq_str(err.message, "the free list is not the set of 8 pages without holder");
    pool.pages[5].holder_count = 1;
    test_eq_u64(pool_check(&pool, &err), ERR_INTERNAL);
    test_eq_str(err.message, "7 pages without holder, 8 on the free list, 0 idle, 0 reserved");
    pool_fini(&pool);
}

static void test_random_grants_and_returns_balance(void)
{
    struct pool pool;
    uint64_t random = 5;
    uint32_t held[PAGES];
    uint32_t held_count = 0;
    setup(&pool);
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t count = (uint32_t)(test_random(&random) % 4);
        if (test_random(&random) % 2 == 0) {
            bool fits = count <= PAGES - held_count;
            test_eq_u64(pool_try_reserve(&pool, count), fits);
            for (uint32_t k = 0; fits && k < count; k++) {
                held[held_count++] = pool_reserved_page(&pool, k);
            }
            if (test_random(&random) % 3 == 0) {
                held_count -= fits ? count : 0;
                pool_rollback(&pool);
            }
            pool_commit(&pool, 0);
        } else if (held_count > 0) {
            uint32_t at = (uint32_t)(test_random(&random) % held_count);
            (void)pool_release(&pool, held[at], 0);
            held[at] = held[--held_count];
        }
        check(&pool);
        test_eq_u64(pool_available(&pool), PAGES - held_count);
    }
    pool_fini(&pool);
}

/* Pages 0 .. count - 1, held and cached. */
static void hold_cached(struct pool *pool, uint32_t count)
{
    test_true(pool_try_reserve(pool, count));
    pool_commit(pool, 0);
    for (uint32_t i = 0; i < count; i++) {
        pool_cache(pool, i, i % 2 == 0 ? POOL_RANK_LAST : POOL_RANK_FIRST);
    }
}

static void test_idle_pages_are_taken_after_free_ones_in_their_order(void)
{
    static const uint32_t order[] = {6, 7, 3, 1, 0, 4, 2};
    struct pool pool;
    setup(&pool);
    hold_cached(&pool, 6);
    test_eq_u64(pool_available(&pool), 2);
    (void)pool_release(&pool, 3, 0);
    (void)pool_release(&pool, 4, 0);
    (void)pool_release(&pool, 1, 0);
    (void)pool_release(&pool, 2, 0);
    (void)pool_release(&pool, 0, 0);
    pool_set_rank(&pool, 0, POOL_RANK_FIRST);
    pool_set_rank(&pool, 0, POOL_RANK_LAST); /* to the front of it */
    check(&pool);
    test_eq_u64(pool.free_count, 2);
    test_eq_u64(pool.idle_count, 5);
    test_eq_u64(pool_available(&pool), 7);
    test_true(pool_try_reserve(&pool, 1));
    test_true(pool_try_reserve(&pool, 4));
    test_true(!pool_try_reserve(&pool, 3));
    test_true(pool_try_reserve(&pool, 2));
    for (uint32_t i = 0; i < 7; i++) {
        test_eq_u64(pool_reserved_page(&pool, i), order[i]);
    }
    pool_rollback(&pool);
    check(&pool);
    test_eq_u64(pool_available(&pool), 7);
    test_true(pool_try_reserve(&pool, 4));
    pool_commit(&pool, 0);
    check(&pool);
    test_true(!pool.pages[3].is_cached && !pool.pages[1].is_cached && pool.pages[0].is_cached);
    test_eq_u64(pool_available(&pool), 3);
    pool_fini(&pool);
}

static void test_an_idle_page_is_shared_again_or_given_up(void)
{
    struct pool pool;
    setup(&pool);
    hold_cached(&pool, 2);
    (void)pool_release(&pool, 0, 0);
    (void)pool_release(&pool, 1, 0);
    test_eq_u64(pool.idle_count, 2);
    test_true(pool_share(&pool, 0, 1));
    test_eq_u64(pool.idle_count, 1);
    pool_uncache(&pool, 1);
    test_eq_u64(pool.idle_count, 0);
    test_eq_u64(pool.free_count, 7);
    pool_uncache(&pool, 0); /* its holder keeps it */
    check(&pool);
    (void)pool_release(&pool, 0, 1);
    test_eq_u64(pool.free_count, 8);
    check(&pool);
    pool_fini(&pool);
}

static void test_lanes_count_pages_once_or_for_each_holder(void)
{
    for (uint32_t each = 0; each < 2; each++) {
        struct pool pool;
        setup(&pool);
        pool.counts_holders = each != 0;
        hold_cached(&pool, 2);
        test_eq_u64(pool.lane_pages[0], 2);
        test_eq_u64(pool_share(&pool, 0, 0), each);
        test_true(pool_share(&pool, 0, 1));
        test_true(!pool_share(&pool, 0, POOL_NO_LANE));
        test_eq_u64(pool.lane_pages[0], 2 + each);
        test_eq_u64(pool.lane_pages[1], 1);
        check(&pool);
        test_eq_u64(pool_release(&pool, 0, 0), each);
        pool_leave_lane(&pool, 0, 0);
        test_eq_u64(pool.lane_pages[0], 1);
        test_true(!pool_release(&pool, 0, POOL_NO_LANE));
        test_true(!pool_release(&pool, 0, POOL_NO_LANE)); /* that left its lane */
        test_eq_u64(pool.idle_count, 0);
        test_true(pool_release(&pool, 0, 1));
        test_eq_u64(pool.idle_count, 1);
        check(&pool);
        pool_fini(&pool);
    }
}

static void test_a_pool_has_pages(void)
{
    struct pool pool;
    struct err err;
    test_eq_u64(pool_init(&pool, 0, &err), ERR_ARGUMENT);
    pool_fini(&pool);
}

static const struct test_case cases[] = {
    TEST(test_reserve_is_all_or_none),
    TEST(test_rollback_leaves_the_pool_as_it_was),
    TEST(test_commit_grants_what_was_shown),
    TEST(test_a_shared_page_is_free_after_its_last_holder),
    TEST(test_a_granted_page_forgets_who_wrote_it),
    TEST(test_check_finds_a_page_twice_on_the_list),
    TEST(test_random_grants_and_returns_balance),
    TEST(test_idle_pages_are_taken_after_free_ones_in_their_order),
    TEST(test_an_idle_page_is_shared_again_or_given_up),
    TEST(test_lanes_count_pages_once_or_for_each_holder),
    TEST(test_a_pool_has_pages),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
