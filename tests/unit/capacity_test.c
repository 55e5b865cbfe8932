#include "worker/capacity.h"

#include <string.h>

#include "tests/testlib/test.h"

static struct capacity_wish wish_of(void)
{
    return (struct capacity_wish){
        .slots = 16,
        .max_context_tokens = 131072,
        .max_step_tokens = 512,
        .pipeline_depth = 2,
        .page_tokens = 64,
        .window_tokens = 1024,
        .page_bytes = {1 << 20, 1 << 18},
        .available_bytes = 1ULL << 40,
    };
}

static void test_every_slot_gets_a_default_context(void)
{
    struct capacity_wish wish = wish_of();
    uint32_t pages[RUNNER_FAMILY_COUNT];
    struct err err;
    test_ok(capacity_plan(&wish, pages, &err), &err);
    test_eq_u64(pages[RUNNER_FAMILY_GLOBAL], 16ULL * 128);
    /* window / page + 1, and one where two steps in flight straddle a page; segments of two steps. */
    test_eq_u64(pages[RUNNER_FAMILY_LOCAL], 16 * 18 + 2 * 8);
    test_eq_u64(capacity_requests(&wish, pages, 8192), 16);
    test_eq_u64(capacity_requests(&wish, pages, 131072), 1);
    test_eq_u64(capacity_requests(&wish, pages, 262144), 0);
}

static void test_a_device_gives_all_it_has(void)
{
    struct capacity_wish wish = wish_of();
    uint32_t pages[RUNNER_FAMILY_COUNT];
    struct err err;
    wish.takes_all = true;
    wish.available_bytes = 8ULL << 30;
    test_ok(capacity_plan(&wish, pages, &err), &err);
    uint64_t bytes = pages[0] * wish.page_bytes[0] + pages[1] * wish.page_bytes[1];
    test_true(bytes <= wish.available_bytes);
    test_true(bytes + wish.page_bytes[0] + wish.page_bytes[1] > wish.available_bytes);
    test_eq_u64(capacity_requests(&wish, pages, 8192), 16); /* slots */
    wish.slots = 1000;
    test_eq_u64(capacity_requests(&wish, pages, 8192), 163);
}

static void test_memory_is_split_and_kept(void)
{
    uint64_t random = 5;
    for (uint32_t round = 0; round < 2000; round++) {
        struct capacity_wish wish = wish_of();
        wish.slots = (uint32_t)(test_random(&random) % 128 + 1);
        wish.max_context_tokens = (uint32_t)(test_random(&random) % 200000 + 100);
        wish.page_bytes[0] = test_random(&random) % 4000000 + 1000;
        wish.page_bytes[1] = test_random(&random) % 4000000 + 1000;
        wish.memory_bytes = (test_random(&random) % 4000 + 1) << 20;
        uint32_t pages[RUNNER_FAMILY_COUNT] = {0, 0};
        struct err err;
        enum err_code code = capacity_plan(&wish, pages, &err);
        if (code != ERR_OK) {
            test_eq_u64(code, ERR_CONFIG);
            test_true(strstr(err.message, "one sequence of") != NULL);
            continue;
        }
        test_true(pages[0] * wish.page_bytes[0] + pages[1] * wish.page_bytes[1] <=
                  wish.memory_bytes);
        uint32_t tokens = wish.max_context_tokens < CAPACITY_DEFAULT_CONTEXT_TOKENS
                              ? wish.max_context_tokens
                              : CAPACITY_DEFAULT_CONTEXT_TOKENS;
        test_true(capacity_requests(&wish, pages, tokens) >= 1);
    }
}

static void test_too_little_memory_says_what_it_takes(void)
{
    struct capacity_wish wish = wish_of();
    uint32_t pages[RUNNER_FAMILY_COUNT] = {7, 7};
    struct err err;
    wish.memory_bytes = 10ULL << 20;
    test_eq_u64(capacity_plan(&wish, pages, &err), ERR_CONFIG);
    test_eq_str(err.message, "10 MB for both page pools, one sequence of 8192 tokens takes 66 MB: "
                             "raise --kv-memory-mb or lower --max-context-tokens");
    test_eq_u64(pages[0], 7);
    wish.memory_bytes = 0;
    wish.available_bytes = 10ULL << 20;
    test_eq_u64(capacity_plan(&wish, pages, &err), ERR_CONFIG);
}

static void test_explicit_pages_win(void)
{
    struct capacity_wish wish = wish_of();
    uint32_t pages[RUNNER_FAMILY_COUNT];
    struct err err;
    wish.memory_bytes = 1;
    wish.pages[RUNNER_FAMILY_LOCAL] = 3;
    wish.pages[RUNNER_FAMILY_GLOBAL] = 5;
    test_ok(capacity_plan(&wish, pages, &err), &err);
    test_eq_u64(pages[RUNNER_FAMILY_LOCAL], 3);
    test_eq_u64(pages[RUNNER_FAMILY_GLOBAL], 5);
    test_eq_u64(capacity_requests(&wish, pages, 64), 1);
    wish.memory_bytes = 0;
    wish.pages[RUNNER_FAMILY_LOCAL] = 0;
    test_ok(capacity_plan(&wish, pages, &err), &err);
    test_eq_u64(pages[RUNNER_FAMILY_GLOBAL], 5);
    test_eq_u64(pages[RUNNER_FAMILY_LOCAL], 16 * 18 + 2 * 8);
}

static const struct test_case cases[] = {
    TEST(test_every_slot_gets_a_default_context),
    TEST(test_a_device_gives_all_it_has),
    TEST(test_memory_is_split_and_kept),
    TEST(test_too_little_memory_says_what_it_takes),
    TEST(test_explicit_pages_win),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
