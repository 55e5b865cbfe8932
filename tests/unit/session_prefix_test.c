/* What an ADMIT reuses of what others computed, and what that costs and saves.  The model device
 * reads every position back, so a page that holds anything else is a violation and a wrong token. */
#include <string.h>

#include "tests/testlib/core_bench.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

enum {
    PAGE = 16,
    TEXT = 400
};

/* Tokens without a pattern that repeats. */
static void write_text(uint64_t which, uint32_t *out_tokens)
{
    uint64_t random = which;
    for (uint32_t i = 0; i < TEXT; i++) {
        out_tokens[i] = (uint32_t)(test_random(&random) % 89);
    }
}

static void setup(struct core_bench *bench)
{
    struct runner_limits limits = bench_limits();
    bench_setup_prefixes(bench, &limits);
}

/* Admits; how many tokens it begins behind. */
static uint32_t admit(struct core_bench *bench, const struct plan_admit *admit)
{
    rig_admit(&bench->session, admit);
    bench_run(bench);
    const struct result_record *record = rig_last(&bench->session, RESULT_ADMITTED, admit->seq_id);
    test_true(record != NULL);
    rig_read_all(&bench->session);
    return record->as.admitted.reused_tokens;
}

/* Rows of at most 100 tokens up to the end of the prompt. */
static void run_prompt(struct core_bench *bench, const struct plan_admit *admit, uint32_t start)
{
    while (start < admit->prompt.count) {
        uint32_t count = admit->prompt.count - start < 100 ? admit->prompt.count - start : 100;
        (void)bench_row(bench, admit->seq_id, start, count);
        bench_run(bench);
        rig_read_all(&bench->session);
        start += count;
    }
}

static void run_decode(struct core_bench *bench, uint64_t seq_id, uint32_t tokens)
{
    for (uint32_t i = 0; i < tokens; i++) {
        (void)bench_row(bench, seq_id, 0, 0);
        bench_run(bench);
        rig_read_all(&bench->session);
    }
}

static void check_tokens(const struct core_bench *bench, const struct plan_admit *admit)
{
    uint32_t want[TEXT];
    uint32_t got[TEXT];
    uint32_t count = rig_tokens(&bench->session, admit->seq_id, got, TEXT);
    test_eq_u64(bench_reference(admit, want, count), count);
    test_true(memcmp(want, got, count * sizeof(*got)) == 0);
}

/* A whole run of a prompt, released; how much it reused. */
static uint32_t serve(struct core_bench *bench, uint64_t seq_id, const uint32_t *prompt,
                      uint32_t prompt_count, uint32_t output_count)
{
    struct plan_admit message =
        rig_plain_admit(seq_id, prompt, prompt_count, prompt_count + output_count);
    uint32_t reused = admit(bench, &message);
    run_prompt(bench, &message, reused);
    run_decode(bench, seq_id, output_count - 1);
    test_eq_u64(rig_count(&bench->session, RESULT_FINISHED, seq_id), 1);
    check_tokens(bench, &message);
    rig_release(&bench->session, seq_id);
    bench_run(bench);
    rig_read_all(&bench->session);
    return reused;
}

static struct session_stats stats_of(const struct core_bench *bench)
{
    struct session_stats stats;
    session_core_stats(bench->rig.core, &stats);
    return stats;
}

static uint32_t unheld(const struct core_bench *bench, enum runner_family family)
{
    struct session_stats stats = stats_of(bench);
    return stats.pages_free[family] + stats.pages_cached[family];
}

/* What the session may still take, asked for by a PING. */
static struct result_figures figures_of(struct core_bench *bench)
{
    rig_ping(&bench->session, 5);
    bench_run(bench);
    const struct result_record *record = rig_last(&bench->session, RESULT_PONG, 0);
    rig_read_all(&bench->session);
    return record->as.pong.figures;
}

static void test_whole_pages_before_the_last_token_are_reused(void)
{
    static const struct {
        uint32_t prompt_tokens;
        uint32_t reused_tokens;
    } rows[] = {{1, 0},   {15, 0},  {16, 0},  {17, 16},   {31, 16},   {32, 16},
                {33, 32}, {64, 48}, {65, 64}, {128, 112}, {129, 128}, {300, 288}};
    uint32_t text[TEXT];
    write_text(1, text);
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct core_bench bench;
        setup(&bench);
        test_eq_u64(serve(&bench, 1, text, rows[i].prompt_tokens, 3), 0);
        uint64_t before = model_runner_rows_run(bench.runner);
        test_eq_u64(serve(&bench, 2, text, rows[i].prompt_tokens, 3), rows[i].reused_tokens);
        test_true(model_runner_rows_run(bench.runner) > before);
        struct session_stats stats = stats_of(&bench);
        test_eq_u64(stats.prefix_query_tokens, 2ULL * rows[i].prompt_tokens);
        test_eq_u64(stats.prefix_hit_tokens, rows[i].reused_tokens);
        test_eq_u64(stats.prefix_hits, rows[i].reused_tokens > 0);
        bench_teardown(&bench);
    }
}

static void test_without_a_cache_nothing_is_kept(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    bench_setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 100, 3), 0);
    test_eq_u64(serve(&bench, 2, text, 100, 3), 0);
    struct session_stats stats = stats_of(&bench);
    test_eq_u64(stats.prefix_query_tokens, 0);
    test_eq_u64(stats.prefix.cached_pages[RUNNER_FAMILY_GLOBAL], 0);
    bench_teardown(&bench);
}

static void test_reuse_ends_where_the_text_differs(void)
{
    uint32_t text[TEXT];
    uint32_t edited[TEXT];
    struct core_bench bench;
    write_text(1, text);
    write_text(1, edited);
    setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 200, 3), 0);
    edited[150] = (text[150] + 1) % 89;
    test_eq_u64(serve(&bench, 2, edited, 200, 3), 144);
    edited[144] = (text[144] + 1) % 89;
    test_eq_u64(serve(&bench, 3, edited, 200, 3), 144);
    edited[143] = (text[143] + 1) % 89;
    test_eq_u64(serve(&bench, 4, edited, 200, 3), 128);
    edited[0] = (text[0] + 1) % 89;
    test_eq_u64(serve(&bench, 5, edited, 200, 3), 0);
    test_eq_u64(serve(&bench, 6, text + 16, 200, 3), 0);
    bench_teardown(&bench);
}

static bool is_legal(const uint32_t *tokens, uint32_t count)
{
    bool is_legal = true;
    for (uint32_t i = 0; i < count; i++) {
        is_legal = is_legal && tokens[i] != 90 && tokens[i] != 91;
    }
    return is_legal;
}

static void test_answers_are_part_of_the_chain(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    uint64_t id = 1; /* of a seed whose answer may stand in a prompt */
    uint32_t turn[TEXT];
    memcpy(turn, text, sizeof(turn));
    do {
        struct plan_admit message = rig_plain_admit(id++, text, 100, 160);
        test_eq_u64(bench_reference(&message, turn + 100, 60), 60);
    } while (!is_legal(turn, 160));
    test_eq_u64(serve(&bench, id - 1, text, 100, 60), 0);
    /* The last token was sampled and never written: 159 are there, nine whole pages. */
    test_eq_u64(serve(&bench, id, turn, 180, 3), 144);
    bench_teardown(&bench);
}

static void test_salts_and_prompt_logprobs_keep_apart(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 100, 3), 0);
    struct plan_admit salted = rig_plain_admit(2, text, 100, 103);
    salted.cache_salt = 1;
    test_eq_u64(admit(&bench, &salted), 0);
    run_prompt(&bench, &salted, 0);
    salted.seq_id = 3;
    test_eq_u64(admit(&bench, &salted), 96);
    salted.seq_id = 4;
    salted.cache_salt = 2;
    test_eq_u64(admit(&bench, &salted), 0);
    struct plan_admit asking = rig_plain_admit(5, text, 100, 103);
    asking.prompt_logprobs = 1;
    test_eq_u64(admit(&bench, &asking), 0);
    run_prompt(&bench, &asking, 0);
    test_eq_u64(rig_count(&bench.session, RESULT_LOGPROBS, 5), 99);
    bench_teardown(&bench);
}

static void test_live_sequences_share_at_once(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    struct plan_admit message = rig_plain_admit(1, text, 100, 200);
    test_eq_u64(admit(&bench, &message), 0);
    run_prompt(&bench, &message, 0);
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 80 - 7);
    for (uint64_t id = 2; id <= 6; id++) {
        message.seq_id = id;
        message.seed = id;
        test_eq_u64(admit(&bench, &message), 96);
    }
    /* Six pages are shared; a local one counts for each of its sequences. */
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 80 - 7);
    test_eq_u64(figures_of(&bench).local_quota_left_pages, 40 - 5 - 5 * 4);
    test_eq_u64(unheld(&bench, RUNNER_FAMILY_LOCAL), 40 - 5);
    for (uint64_t id = 2; id <= 6; id++) {
        message.seq_id = id;
        run_prompt(&bench, &message, 96);
    }
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 80 - 6 - 6);
    test_eq_u64(unheld(&bench, RUNNER_FAMILY_GLOBAL), 80 - 6 - 6);
    for (uint64_t id = 1; id <= 6; id++) {
        run_decode(&bench, id, 20);
    }
    test_eq_u64(unheld(&bench, RUNNER_FAMILY_GLOBAL), 80 - 6 - 6 * 2);
    for (uint64_t id = 1; id <= 6; id++) {
        rig_release(&bench.session, id);
    }
    bench_run(&bench);
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 80);
    test_eq_u64(figures_of(&bench).local_quota_left_pages, 40);
    bench_teardown(&bench);
}

static void test_who_computed_the_same_changes_over(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    struct plan_admit one = rig_plain_admit(1, text, 100, 120);
    struct plan_admit two = rig_plain_admit(2, text, 100, 120);
    test_eq_u64(admit(&bench, &one), 0);
    test_eq_u64(admit(&bench, &two), 0);
    const struct wire_row rows[] = {{.seq_id = 1, .start = 0, .count = 50},
                                    {.seq_id = 2, .start = 0, .count = 50}};
    rig_step(&bench.session, 0, rows, 2);
    bench_run(&bench);
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 80 - 3 - 1 - 1);
    run_prompt(&bench, &one, 50);
    run_prompt(&bench, &two, 50);
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 80 - 6 - 1 - 1);
    run_decode(&bench, 1, 19);
    run_decode(&bench, 2, 19);
    check_tokens(&bench, &one);
    check_tokens(&bench, &two);
    bench_teardown(&bench);
}

/* The device is told of each page once, with the first row. */
static void test_tables_are_told_once(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 165, 3), 0);
    struct plan_admit message = rig_plain_admit(2, text, 165, 200);
    test_eq_u64(admit(&bench, &message), 160);
    uint64_t before = model_runner_patches(bench.runner);
    run_prompt(&bench, &message, 160);
    test_eq_u64(model_runner_patches(bench.runner) - before, 10 + 4 + 2);
    run_decode(&bench, 2, 8);
    test_eq_u64(model_runner_patches(bench.runner) - before, 10 + 4 + 2);
    run_decode(&bench, 2, 8);
    test_eq_u64(model_runner_patches(bench.runner) - before, 10 + 4 + 2 + 2);
    bench_teardown(&bench);
}

static void test_a_failed_step_leaves_nothing_in_the_cache(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    struct plan_admit message = rig_plain_admit(1, text, 200, 210);
    test_eq_u64(admit(&bench, &message), 0);
    (void)bench_row(&bench, 1, 0, 70);
    bench_run(&bench);
    model_runner_fault_next(bench.runner, MODEL_FAULT_STEP);
    (void)bench_row(&bench, 1, 70, 70);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 1), 1);
    test_eq_u64(stats_of(&bench).prefix.cached_pages[RUNNER_FAMILY_GLOBAL], 4);
    test_eq_u64(serve(&bench, 2, text, 200, 3), 64);
    bench_teardown(&bench);
}

static void test_pages_before_unusable_logits_are_forgotten(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 40, 3), 0);
    struct plan_admit message = rig_plain_admit(2, text, 100, 110);
    struct plan_admit other = rig_plain_admit(3, text, 60, 110);
    test_eq_u64(admit(&bench, &message), 32);
    test_eq_u64(admit(&bench, &other), 32);
    (void)bench_row(&bench, 2, 32, 60);
    bench_run(&bench);
    model_runner_fault_next(bench.runner, MODEL_FAULT_ROW);
    (void)bench_row(&bench, 2, 92, 8);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 2), 1);
    /* What another goes on from is not doubted. */
    test_eq_u64(stats_of(&bench).prefix.cached_pages[RUNNER_FAMILY_GLOBAL], 2);
    test_eq_u64(serve(&bench, 4, text, 100, 3), 32);
    bench_teardown(&bench);
}

static void test_a_refusal_changes_nothing(void)
{
    static const enum inject_stage stages[] = {INJECT_RESERVE_LOCAL, INJECT_RESERVE_GLOBAL,
                                               INJECT_STAGE, INJECT_LAUNCH};
    uint32_t text[TEXT];
    uint32_t other[TEXT];
    write_text(1, text);
    write_text(2, other);
    for (uint32_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
        struct runner_limits limits = bench_limits();
        struct core_bench bench;
        limits.pages[RUNNER_FAMILY_LOCAL] = 16;
        limits.pages[RUNNER_FAMILY_GLOBAL] = 20;
        bench_setup_prefixes(&bench, &limits);
        test_eq_u64(serve(&bench, 1, text, 300, 3), 0);
        struct plan_admit message = rig_plain_admit(2, other, 100, 110);
        test_eq_u64(admit(&bench, &message), 0);
        struct session_stats before = stats_of(&bench);
        bench.inject.at[stages[i]] = bench.inject.seen[stages[i]] + 1;
        uint64_t msg_seq = bench_row(&bench, 2, 0, 100); /* would take cached pages */
        bench_run(&bench);
        test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 1);
        struct session_stats after = stats_of(&bench);
        test_true(memcmp(&before.prefix, &after.prefix, sizeof(before.prefix)) == 0);
        test_true(memcmp(before.pages_free, after.pages_free, sizeof(before.pages_free)) == 0);
        test_true(memcmp(before.pages_cached, after.pages_cached, sizeof(before.pages_cached)) ==
                  0);
        struct plan_admit again = rig_plain_admit(3, text, 300, 301);
        test_eq_u64(admit(&bench, &again), 288);
        rig_release(&bench.session, 3);
        const struct wire_row row = {.seq_id = 2, .start = 0, .count = 100};
        rig_step(&bench.session, msg_seq, &row, 1);
        bench_run(&bench);
        check_tokens(&bench, &message);
        test_true(stats_of(&bench).prefix.evicted_pages[RUNNER_FAMILY_GLOBAL] > 0);
        bench_teardown(&bench);
    }
}

static void test_cached_pages_never_stand_in_the_way(void)
{
    struct core_bench bench;
    setup(&bench);
    for (uint64_t id = 1; id <= 40; id++) {
        uint32_t text[TEXT];
        write_text(id, text);
        test_eq_u64(serve(&bench, id, text, 300, 3), 0);
        test_eq_u64(figures_of(&bench).global_quota_left_pages, 80);
        test_eq_u64(figures_of(&bench).local_quota_left_pages, 40);
    }
    struct session_stats stats = stats_of(&bench);
    test_eq_u64(stats.plans_refused, 0);
    test_true(stats.prefix.cached_pages[RUNNER_FAMILY_GLOBAL] > 60);
    test_true(stats.prefix.evicted_pages[RUNNER_FAMILY_GLOBAL] > 600);
    bench_teardown(&bench);
}

/* Local pages outside of every last window go first, so the ends of four texts stay. */
static void test_last_windows_outlive_the_pages_before_them(void)
{
    struct runner_limits limits = bench_limits();
    struct core_bench bench;
    limits.pages[RUNNER_FAMILY_LOCAL] = 28;
    limits.pages[RUNNER_FAMILY_GLOBAL] = 400;
    bench_setup_prefixes(&bench, &limits);
    uint32_t texts[4][TEXT];
    for (uint64_t i = 0; i < 4; i++) {
        write_text(i, texts[i]);
        test_eq_u64(serve(&bench, i + 1, texts[i], 300, 3), 0);
    }
    for (uint64_t i = 0; i < 4; i++) {
        struct plan_admit message = rig_plain_admit(10 + i, texts[i], 300, 310);
        test_eq_u64(admit(&bench, &message), 288);
        rig_release(&bench.session, message.seq_id);
    }
    /* The middle of the oldest has lost its local pages. */
    struct plan_admit message = rig_plain_admit(20, texts[0], 150, 160);
    test_eq_u64(admit(&bench, &message), 0);
    bench_teardown(&bench);
}

static void test_the_longest_unused_text_goes_first_from_its_end(void)
{
    struct runner_limits limits = bench_limits();
    struct core_bench bench;
    limits.pages[RUNNER_FAMILY_LOCAL] = 400;
    limits.pages[RUNNER_FAMILY_GLOBAL] = 60;
    bench_setup_prefixes(&bench, &limits);
    uint32_t texts[4][TEXT];
    for (uint64_t i = 0; i < 4; i++) {
        write_text(i, texts[i]);
    }
    test_eq_u64(serve(&bench, 1, texts[0], 257, 2), 0);
    test_eq_u64(serve(&bench, 2, texts[1], 257, 2), 0);
    test_eq_u64(serve(&bench, 3, texts[2], 257, 2), 0);
    test_eq_u64(serve(&bench, 4, texts[0], 257, 2), 256);
    test_eq_u64(serve(&bench, 5, texts[3], 257, 2), 0); /* 17 pages, 12 were free */
    struct plan_admit message = rig_plain_admit(6, texts[0], 257, 260);
    test_eq_u64(admit(&bench, &message), 256);
    message = rig_plain_admit(7, texts[2], 257, 260);
    test_eq_u64(admit(&bench, &message), 256);
    message = rig_plain_admit(8, texts[1], 257, 260);
    test_eq_u64(admit(&bench, &message), 256 - 5 * PAGE);
    bench_teardown(&bench);
}

static void test_prefixes_outlive_their_session(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 100, 3), 0);
    struct plan_admit message = rig_plain_admit(2, text, 200, 210);
    test_eq_u64(admit(&bench, &message), 96);
    (void)bench_row(&bench, 2, 96, 50);
    rig_advance(&bench.rig);
    rig_close(&bench.session); /* with a step in flight */
    rig_open(&bench.rig, &bench.session, NULL);
    rig_advance(&bench.rig);
    message.seq_id = 1;
    test_eq_u64(admit(&bench, &message), 96);
    bench_run(&bench);
    test_eq_u64(serve(&bench, 2, text, 100, 3), 96);
    bench_teardown(&bench);
}

static void test_sessions_share_pages_and_count_them_each(void)
{
    const struct session_quota half = {.pages = {20, 40}};
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    rig_close(&bench.session);
    rig_open(&bench.rig, &bench.session, &half);
    struct rig_session other;
    rig_open(&bench.rig, &other, &half);
    struct plan_admit message = rig_plain_admit(1, text, 100, 110);
    test_eq_u64(admit(&bench, &message), 0);
    run_prompt(&bench, &message, 0);
    rig_admit(&other, &message);
    bench_run(&bench);
    const struct result_record *record = rig_last(&other, RESULT_ADMITTED, 1);
    test_eq_u64(record->as.admitted.reused_tokens, 96);
    test_eq_u64(record->as.admitted.figures.global_quota_left_pages, 40 - 6);
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 40 - 7);
    test_eq_u64(unheld(&bench, RUNNER_FAMILY_GLOBAL), 80 - 7);
    rig_close(&bench.session);
    rig_open(&bench.rig, &bench.session, &half);
    bench_run(&bench);
    test_eq_u64(figures_of(&bench).global_quota_left_pages, 40);
    test_eq_u64(unheld(&bench, RUNNER_FAMILY_GLOBAL), 80 - 6);
    rig_close(&other);
    bench_teardown(&bench);
}

/* No frontend that plans by its figures gets there. */
static void test_a_prefix_beyond_the_quota_is_computed(void)
{
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    setup(&bench);
    test_eq_u64(serve(&bench, 1, text, 100, 3), 0);
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        struct session_quota quota = {.pages = {20, 40}};
        quota.pages[family] = family == RUNNER_FAMILY_LOCAL ? 3 : 5; /* 4 and 6 are in the way */
        rig_close(&bench.session);
        rig_open(&bench.rig, &bench.session, &quota);
        struct plan_admit message = rig_plain_admit(1, text, 100, 110);
        test_eq_u64(admit(&bench, &message), 0);
        message = rig_plain_admit(2, text, 40, 50);
        test_eq_u64(admit(&bench, &message), 32);
    }
    bench_teardown(&bench);
}

/* Shapes are pinned: only whole cuts of prompts are kept, and reuse ends at a cut. */
static void test_pinned_shapes_reuse_whole_cuts_of_prompts(void)
{
    struct runner_limits limits = bench_limits();
    uint32_t text[TEXT];
    struct core_bench bench;
    write_text(1, text);
    limits.segment_tokens = 64;
    bench_setup_prefixes(&bench, &limits);
    struct plan_admit message = rig_plain_admit(1, text, 150, 260);
    test_eq_u64(admit(&bench, &message), 0);
    (void)bench_row(&bench, 1, 0, 128);
    (void)bench_row(&bench, 1, 128, 22);
    bench_run(&bench);
    run_decode(&bench, 1, 100);
    test_eq_u64(stats_of(&bench).prefix.cached_pages[RUNNER_FAMILY_GLOBAL], 8);
    message = rig_plain_admit(2, text, 150, 160);
    test_eq_u64(admit(&bench, &message), 128);
    message = rig_plain_admit(3, text, 128, 160);
    test_eq_u64(admit(&bench, &message), 64);
    message = rig_plain_admit(4, text, 120, 160);
    test_eq_u64(admit(&bench, &message), 64);
    message = rig_plain_admit(5, text, 60, 160);
    test_eq_u64(admit(&bench, &message), 0);
    bench_teardown(&bench);
}

static const struct test_case cases[] = {
    TEST(test_whole_pages_before_the_last_token_are_reused),
    TEST(test_without_a_cache_nothing_is_kept),
    TEST(test_reuse_ends_where_the_text_differs),
    TEST(test_answers_are_part_of_the_chain),
    TEST(test_salts_and_prompt_logprobs_keep_apart),
    TEST(test_live_sequences_share_at_once),
    TEST(test_who_computed_the_same_changes_over),
    TEST(test_tables_are_told_once),
    TEST(test_a_failed_step_leaves_nothing_in_the_cache),
    TEST(test_pages_before_unusable_logits_are_forgotten),
    TEST(test_a_refusal_changes_nothing),
    TEST(test_cached_pages_never_stand_in_the_way),
    TEST(test_last_windows_outlive_the_pages_before_them),
    TEST(test_the_longest_unused_text_goes_first_from_its_end),
    TEST(test_prefixes_outlive_their_session),
    TEST(test_sessions_share_pages_and_count_them_each),
    TEST(test_a_prefix_beyond_the_quota_is_computed),
    TEST(test_pinned_shapes_reuse_whole_cuts_of_prompts),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
