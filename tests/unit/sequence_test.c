#include "worker/sequence.h"

#include "common/mem.h"
#include "tests/testlib/core_rig.h"
#include "tests/testlib/test.h"

static const struct account_geometry geometry = {
    .page_tokens = 64,
    .window_tokens = 1024,
    .max_step_tokens = 2048,
};

struct bench {
    struct pool pools[RUNNER_FAMILY_COUNT];
    struct prefix prefix; /* off */
    uint32_t held_pages[RUNNER_FAMILY_COUNT];
    struct sequence seq;
    uint32_t *prompt; /* owned, [4000] */
};

static void setup(struct bench *bench)
{
    struct err err;
    bench->prompt = mem_zalloc(4000, sizeof(*bench->prompt));
    for (uint32_t i = 0; i < 4000; i++) {
        bench->prompt[i] = i % 50;
    }
    test_ok(pool_init(&bench->pools[RUNNER_FAMILY_LOCAL], 60, &err), &err);
    test_ok(pool_init(&bench->pools[RUNNER_FAMILY_GLOBAL], 80, &err), &err);
    const struct prefix_options options = {.page_tokens = 64, .window_tokens = 1024};
    test_ok(prefix_init(&bench->prefix, bench->pools, &options, &err), &err);
    bench->held_pages[RUNNER_FAMILY_LOCAL] = 0;
    bench->held_pages[RUNNER_FAMILY_GLOBAL] = 0;
    struct plan_admit admit = rig_plain_admit(9, bench->prompt, 4000, 4500);
    const struct seq_home home = {
        .writer = 1,
        .slot = 2,
        .page_tokens = geometry.page_tokens,
        .most_local_pages = account_peak(&geometry, UINT32_MAX, 4096).local_pages,
    };
    bench->seq = (struct sequence){.state = SEQ_STATE_FREE};
    test_ok(seq_open(&bench->seq, &home, &admit, &err), &err);
}

static void teardown(struct bench *bench)
{
    bench->seq.launched_rows = 0;
    seq_stop(&bench->seq);
    seq_drop_pages(&bench->seq, bench->pools, bench->held_pages);
    test_eq_u64(bench->held_pages[RUNNER_FAMILY_LOCAL], 0);
    test_eq_u64(bench->held_pages[RUNNER_FAMILY_GLOBAL], 0);
    seq_close(&bench->seq);
    prefix_fini(&bench->prefix);
    mem_free(bench->prompt);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        struct err err;
        test_ok(pool_check(&bench->pools[f], &err), &err);
        test_eq_u64(pool_available(&bench->pools[f]), bench->pools[f].page_count);
        pool_fini(&bench->pools[f]);
    }
}

static struct account_need launch(struct bench *bench, uint32_t tokens)
{
    struct account_need need;
    struct err err;
    const uint32_t first[RUNNER_FAMILY_COUNT] = {0};
    test_ok(seq_need(&bench->seq, &geometry, tokens, &need, &err), &err);
    test_true(pool_try_reserve(&bench->pools[RUNNER_FAMILY_LOCAL], need.local_pages));
    test_true(pool_try_reserve(&bench->pools[RUNNER_FAMILY_GLOBAL], need.global_pages));
    seq_launch(&bench->seq, &need, bench->pools, first, tokens);
    prefix_commit_pools(&bench->prefix, 0);
    bench->held_pages[RUNNER_FAMILY_LOCAL] += need.local_pages;
    bench->held_pages[RUNNER_FAMILY_GLOBAL] += need.global_pages;
    return need;
}

/* Local pages that it let go. */
static uint32_t commit(struct bench *bench, uint32_t tokens)
{
    uint32_t before = bench->held_pages[RUNNER_FAMILY_LOCAL];
    bench->seq.launched_rows--;
    seq_commit(&bench->seq, &geometry, &bench->prefix, tokens, bench->held_pages);
    return before - bench->held_pages[RUNNER_FAMILY_LOCAL];
}

static void test_the_front_is_released_at_commit(void)
{
    struct bench bench;
    setup(&bench);
    test_eq_u64(launch(&bench, 1000).local_pages, 16);
    test_eq_u64(commit(&bench, 1000), 0);
    test_eq_u64(launch(&bench, 100).global_pages, 2);
    test_eq_u64(commit(&bench, 100), 1);
    test_eq_u64(seq_held_pages(&bench.seq, RUNNER_FAMILY_LOCAL), 17);
    test_eq_u64(seq_held_pages(&bench.seq, RUNNER_FAMILY_GLOBAL), 18);
    test_eq_u64(pool_available(&bench.pools[RUNNER_FAMILY_LOCAL]), 60 - 17);
    teardown(&bench);
}

static void test_pages_stay_with_their_positions(void)
{
    struct bench bench;
    uint32_t local_at[70] = {0};
    setup(&bench);
    uint32_t committed = 0;
    for (uint32_t tokens = 1; committed + tokens <= 4000; tokens = tokens * 3 % 700 + 1) {
        (void)launch(&bench, tokens);
        uint32_t end = committed + tokens;
        for (uint32_t p = committed; p < end; p++) {
            uint32_t page = seq_page_at(&bench.seq, RUNNER_FAMILY_LOCAL, &geometry, p);
            test_true(p % 64 == 0 || page == local_at[p / 64]);
            local_at[p / 64] = page;
        }
        (void)commit(&bench, tokens);
        committed = end;
        test_true(account_check(&bench.seq.account, &geometry));
        test_true(seq_held_pages(&bench.seq, RUNNER_FAMILY_LOCAL) <= 17);
        uint32_t oldest = committed > 1024 ? committed - 1024 : 0;
        for (uint32_t p = oldest; p < committed; p++) {
            test_eq_u64(seq_page_at(&bench.seq, RUNNER_FAMILY_LOCAL, &geometry, p),
                        local_at[p / 64]);
        }
    }
    test_true(committed > 3000);
    teardown(&bench);
}

static void test_a_held_row_keeps_its_page(void)
{
    struct bench bench;
    setup(&bench);
    (void)launch(&bench, 64);
    (void)commit(&bench, 64);
    test_eq_u64(launch(&bench, 1).local_pages, 1);
    seq_unlaunch(&bench.seq, 1);
    bench.seq.launched_rows--;
    test_eq_u64(bench.seq.account.launched_tokens, 64);
    test_eq_u64(seq_held_pages(&bench.seq, RUNNER_FAMILY_LOCAL), 2);
    struct account_need need = launch(&bench, 1);
    test_eq_u64(need.local_pages, 0);
    test_eq_u64(need.global_pages, 0);
    (void)commit(&bench, 1);
    teardown(&bench);
}

static void test_check_names_what_does_not_fit(void)
{
    struct bench bench;
    struct err err;
    setup(&bench);
    test_ok(seq_check(&bench.seq, &geometry, &err), &err);
    (void)launch(&bench, 100);
    test_ok(seq_check(&bench.seq, &geometry, &err), &err);
    bench.seq.account.local.resident_pages++;
    test_eq_u64(seq_check(&bench.seq, &geometry, &err), ERR_INTERNAL);
    test_eq_str(err.message, "sequence 9: frontiers 0/100, local 0+3, global 0+2 do not fit");
    bench.seq.account.local.resident_pages--;
    bench.seq.token_count++;
    test_eq_u64(seq_check(&bench.seq, &geometry, &err), ERR_INTERNAL);
    test_eq_str(err.message, "sequence 9: 4001 tokens at frontier 0, at most 4500");
    bench.seq.token_count--;
    teardown(&bench);
}

static const struct test_case cases[] = {
    TEST(test_the_front_is_released_at_commit),
    TEST(test_pages_stay_with_their_positions),
    TEST(test_a_held_row_keeps_its_page),
    TEST(test_check_names_what_does_not_fit),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
