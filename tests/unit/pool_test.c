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
    test_true(memcmp(pages, pool.pages, sizeof(pages)) == 0);
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
    TEST(test_a_pool_has_pages),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
