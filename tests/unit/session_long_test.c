/* Long runs: pages over thousands of tokens, and time over hundreds of steps. */
#include <malloc.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/core_bench.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"
#include "worker/session.h"

enum {
    OUTPUT_TOKENS = 3000
};

/* Chunks of a prompt and then one token a step, depth steps ahead; local pages after every move. */
static void run_long(uint32_t page_tokens, uint32_t window_tokens, uint32_t depth,
                     uint32_t chunk_tokens)
{
    uint32_t prompt_count = 2 * window_tokens + 77;
    uint32_t total = prompt_count + OUTPUT_TOKENS;
    uint32_t window_pages = num_ceil_div(window_tokens, page_tokens);
    struct runner_limits limits = bench_limits();
    limits.page_tokens = page_tokens;
    limits.window_tokens = window_tokens;
    limits.pipeline_depth = depth;
    limits.max_context_tokens = total;
    limits.pages[RUNNER_FAMILY_LOCAL] = 2 * window_pages;
    limits.pages[RUNNER_FAMILY_GLOBAL] = num_ceil_div(total, page_tokens);
    struct core_bench bench;
    bench_setup_limits(&bench, &limits, 1024);
    uint32_t *prompt = mem_zalloc(prompt_count, sizeof(*prompt));
    for (uint32_t i = 0; i < prompt_count; i++) {
        prompt[i] = i * 11 % 83;
    }
    struct plan_admit admit = rig_plain_admit(1, prompt, prompt_count, total);
    rig_admit(&bench.session, &admit);
    uint32_t planned = 0;
    uint32_t committed = 0;
    uint32_t most_held = 0;
    while (rig_count(&bench.session, RESULT_FINISHED, 0) == 0) {
        while (bench.rig.progress.queued_steps + bench.rig.progress.steps_in_flight < depth &&
               planned + 1 < total) {
            uint32_t count =
                planned < prompt_count ? num_min(chunk_tokens, prompt_count - planned) : 0;
            bench_row(&bench, 1, count == 0 ? 0 : planned, count);
            planned += num_max(count, 1);
            rig_advance(&bench.rig);
        }
        struct session_stats stats;
        session_core_stats(bench.rig.core, &stats);
        uint32_t held = limits.pages[RUNNER_FAMILY_LOCAL] - stats.pages_free[RUNNER_FAMILY_LOCAL];
        /* One token in flight belongs to the window's own pages; more are a segment. */
        uint32_t segment_tokens = planned - committed - 1;
        test_true(held <= window_pages + 1 + num_ceil_div(segment_tokens, page_tokens));
        most_held = num_max(most_held, planned < prompt_count ? 0 : held);
        test_eq_u64(model_runner_complete(bench.runner, 1), 1);
        rig_advance(&bench.rig);
        rig_read_all(&bench.session);
        committed += rig_last(&bench.session, RESULT_STEP_DONE, 0)->as.step_done.token_count;
    }
    test_true(most_held >= window_pages); /* it did fill the window */
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    uint32_t *want = mem_zalloc(2ULL * OUTPUT_TOKENS, sizeof(*want));
    uint32_t *got = want + OUTPUT_TOKENS;
    test_eq_u64(bench_reference(&admit, want, OUTPUT_TOKENS), OUTPUT_TOKENS);
    test_eq_u64(rig_tokens(&bench.session, 1, got, OUTPUT_TOKENS), OUTPUT_TOKENS);
    test_true(memcmp(want, got, OUTPUT_TOKENS * sizeof(*want)) == 0);
    mem_free(want);
    mem_free(prompt);
    bench_teardown(&bench);
}

static void test_a_local_pool_of_two_windows_suffices(void)
{
    run_long(64, 1024, 2, 128);
    run_long(16, 128, 2, 32);
    run_long(64, 256, 1, 64);
    run_long(16, 64, 4, 8);
}

/* Steps of 10 ms on the device, 2 ms from the worker to the frontend and as many back: how long
 * count steps take when the frontend keeps ahead plans outstanding. */
static uint64_t run_delayed(uint32_t depth, uint32_t step_count)
{
    const uint64_t tick_ns = CLOCK_NS_PER_MS / 10;
    const uint64_t way_ns = 2 * CLOCK_NS_PER_MS;
    const uint64_t no_time_ns = UINT64_MAX;
    struct runner_limits limits = bench_limits();
    limits.pipeline_depth = depth;
    struct core_bench bench = {0};
    const struct model_runner_options options = {
        .limits = limits,
        .step_ns = 10 * CLOCK_NS_PER_MS,
    };
    bench_setup_runner(&bench, model_runner_create(&options), true, 1024);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 1000);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 5);
    uint32_t sent = 1;
    for (; sent < depth; sent++) {
        bench_row(&bench, 1, 0, 0);
    }
    uint64_t arrivals[8] = {0}; /* when the plan that follows an answer reaches the worker */
    uint32_t arriving = 0;
    uint32_t seen = 0;
    uint32_t done = 0;
    while (done < step_count) {
        rig_advance(&bench.rig);
        for (; rig_record(&bench.session, seen) != NULL; seen++) {
            if (rig_record(&bench.session, seen)->kind == RESULT_STEP_DONE) {
                done++;
                test_true(arriving < 8);
                arrivals[arriving++] = bench.rig.now_ns + 2 * way_ns;
            }
        }
        rig_read_all(&bench.session);
        bench.rig.now_ns += tick_ns;
        for (uint32_t i = 0; i < arriving; i++) {
            if (arrivals[i] <= bench.rig.now_ns) {
                bench_row(&bench, 1, 0, 0);
                arrivals[i] = no_time_ns;
            }
        }
        while (arriving > 0 && arrivals[0] == no_time_ns) {
            memmove(arrivals, arrivals + 1, --arriving * sizeof(arrivals[0]));
        }
    }
    uint64_t took_ns = bench.rig.now_ns;
    rig_close(&bench.session);
    rig_fini(&bench.rig);
    bench.runner->table->destroy(bench.runner);
    return took_ns;
}

static void test_run_ahead_hides_the_way_to_the_frontend(void)
{
    uint64_t ideal_ns = 200ULL * 10 * CLOCK_NS_PER_MS;
    test_true(run_delayed(2, 200) < ideal_ns * 105 / 100);
    test_true(run_delayed(4, 200) < ideal_ns * 105 / 100);
    uint64_t alone_ns = run_delayed(1, 200);
    test_true(alone_ns > ideal_ns * 139 / 100 && alone_ns < ideal_ns * 145 / 100);
}

enum {
    REQUESTS = 6000,
    SETTLED = 1500, /* of those, after which nothing grows */
    SESSION_REQUESTS = 500,
    TEXT_TOKENS = 150
};

/* One request that begins like one of seven others, as far as chance wants. */
static uint32_t serve_one(struct core_bench *bench, uint64_t seq_id, uint64_t *random)
{
    uint32_t prompt[TEXT_TOKENS];
    uint64_t text = test_random(random) % 7;
    uint32_t same = (uint32_t)(test_random(random) % TEXT_TOKENS);
    for (uint32_t i = 0; i < TEXT_TOKENS; i++) {
        uint64_t token = text * 1000 + i;
        prompt[i] = (uint32_t)((i < same ? test_random(&token) : test_random(random)) % 89);
    }
    struct plan_admit admit = rig_plain_admit(seq_id, prompt, TEXT_TOKENS, TEXT_TOKENS + 3);
    rig_admit(&bench->session, &admit);
    bench_run(bench);
    uint32_t reused = rig_last(&bench->session, RESULT_ADMITTED, seq_id)->as.admitted.reused_tokens;
    uint32_t half = num_max(1, (TEXT_TOKENS - reused) / 2);
    bench_row(bench, seq_id, reused, half);
    bench_row(bench, seq_id, reused + half, TEXT_TOKENS - reused - half);
    bench_row(bench, seq_id, 0, 0);
    bench_run(bench);
    bench_row(bench, seq_id, 0, 0);
    bench_run(bench);
    test_eq_u64(rig_count(&bench->session, RESULT_FINISHED, seq_id), 1);
    rig_release(&bench->session, seq_id);
    bench_run(bench);
    rig_read_all(&bench->session);
    return reused;
}

/* Sessions come and go, prefixes are kept and given up: neither memory nor time grows. */
static void test_thousands_of_prefixes_leave_nothing_behind(void)
{
    struct runner_limits limits = bench_limits();
    struct core_bench bench;
    limits.pages[RUNNER_FAMILY_LOCAL] = 80;
    bench_setup_prefixes(&bench, &limits);
    uint64_t random = 1;
    uint64_t reused = 0;
    size_t used_bytes = 0;
    uint64_t session_ns = UINT64_MAX; /* the fastest of the settled ones */
    uint64_t last_ns = UINT64_MAX;    /* the fastest of the last four */
    for (uint32_t first = 0; first < REQUESTS; first += SESSION_REQUESTS) {
        uint64_t start_ns = clock_now_ns();
        for (uint64_t id = 1; id <= SESSION_REQUESTS; id++) {
            reused += serve_one(&bench, id, &random);
        }
        uint64_t took_ns = clock_now_ns() - start_ns;
        rig_close(&bench.session);
        size_t now_bytes = mallinfo2().uordblks;
        rig_open(&bench.rig, &bench.session, NULL);
        used_bytes = first < SETTLED ? now_bytes : used_bytes;
        test_true(now_bytes <= used_bytes + 4096);
        session_ns = took_ns < session_ns && first < SETTLED ? took_ns : session_ns;
        last_ns = took_ns < last_ns && first >= REQUESTS - 4 * SESSION_REQUESTS ? took_ns : last_ns;
    }
    struct session_stats stats;
    session_core_stats(bench.rig.core, &stats);
    test_true(reused > (uint64_t)REQUESTS * 16);
    test_true(stats.prefix.evicted_pages[RUNNER_FAMILY_GLOBAL] > REQUESTS);
    test_eq_u64(stats.plans_refused, 0);
    test_true(last_ns < session_ns * 3 / 2 || !test_times_count());
    bench_teardown(&bench);
}

static const struct test_case cases[] = {
    TEST(test_a_local_pool_of_two_windows_suffices),
    TEST(test_run_ahead_hides_the_way_to_the_frontend),
    TEST(test_thousands_of_prefixes_leave_nothing_behind),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
