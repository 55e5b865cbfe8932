#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/test.h"

static double noise_figure(const struct json_t *noise, const char *run, const char *key)
{
    struct err err = {0};
    double value = 0;
    test_ok(json_get_f64_or(json_member(noise, run), run, key, 0, &value, &err), &err);
    return value;
}

/* The reference wrote a summary of the same runs: both ways must give the same figures. */
static void check_summary(const struct golden *golden)
{
    static const char *const runs[GOLDEN_RUN_COUNT] = {"bf16_eager", "bf16_sdpa"};
    char path[1200];
    struct err err = {0};
    struct json_t *noise = NULL;
    (void)snprintf(path, sizeof(path), "%s/reference-noise.json", golden->dir);
    test_ok(json_parse_file(path, 1 << 16, &noise, &err), &err);
    for (int run = 0; run < GOLDEN_RUN_COUNT; run++) {
        test_true(fabs(golden->runs[run].max - noise_figure(noise, runs[run], "max")) < 1e-6);
        test_true(fabs(golden->runs[run].mean - noise_figure(noise, runs[run], "mean")) < 1e-6);
        test_true(golden->top1_rate <= noise_figure(noise, runs[run], "top1"));
    }
    json_release(noise);
}

static void test_yardsticks_match_the_reference_summary(void)
{
    static const char *const names[] = {"dense-unified", "dense-sharded", "dense-window1024", "moe",
                                        "ple-shared"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct golden *golden = golden_load(names[i]);
        check_summary(golden);
        test_true(golden->yardstick.mean <= golden->runs[GOLDEN_RUN_EAGER].mean);
        test_true(golden->yardstick.max <= golden->runs[GOLDEN_RUN_SDPA].max);
        golden_destroy(golden);
    }
}

static void check_case(const struct golden *golden, const struct golden_case *tested)
{
    test_eq_u64(tested->ids[0], 2);
    for (uint32_t i = 0; i < tested->count * GOLDEN_TOP; i++) {
        test_true(tested->top_ids[i] < golden->vocab_tokens);
        test_true(i % GOLDEN_TOP == 0 || tested->top_logprobs[i] <= tested->top_logprobs[i - 1]);
    }
}

static void test_cases_are_whole(void)
{
    struct golden *golden = golden_load("dense-unified");
    static const uint32_t counts[] = {1, 2, 9, 31, 63, 64, 65, 66, 130, 300, 700};
    test_eq_u64(golden->case_count, sizeof(counts) / sizeof(counts[0]));
    for (uint32_t i = 0; i < golden->case_count; i++) {
        test_eq_u64(golden->cases[i].count, counts[i]);
        check_case(golden, &golden->cases[i]);
    }
    test_true(golden->cases[0].full_logprobs != NULL && golden->cases[1].full_logprobs == NULL);
    golden_destroy(golden);
}

static void test_greedy_continues_its_case(void)
{
    struct golden *golden = golden_load("dense-unified");
    test_eq_u64(golden->greedy_count, 3);
    test_eq_u64(golden->greedy[2].prompt->count, 130);
    for (uint32_t i = 0; i < golden->greedy_count; i++) {
        const struct golden_greedy *greedy = &golden->greedy[i];
        uint64_t last = (uint64_t)greedy->prompt->count - 1;
        test_eq_u64(greedy->count, 48);
        test_true(greedy->margins[0] > 0);
        /* The first pick is the truth's best token at the prompt's end. */
        test_eq_u64(greedy->tokens[0], greedy->prompt->top_ids[last * GOLDEN_TOP]);
    }
    golden_destroy(golden);
}

static void test_meter_tells_distance(void)
{
    struct golden *golden = golden_load("dense-window1024");
    struct golden_meter meter = {0};
    float shifted[9 * GOLDEN_TOP];
    uint32_t best_ids[9];
    const struct golden_case *first = &golden->cases[0];
    test_eq_u64(first->count, 9);
    for (int i = 0; i < 9 * GOLDEN_TOP; i++) {
        shifted[i] = first->top_logprobs[i] + (i == 5 ? 2.0F : 0.0F);
    }
    for (size_t i = 0; i < 9; i++) {
        best_ids[i] = first->top_ids[i * GOLDEN_TOP] + (i == 3);
    }
    golden_meter_add(&meter, first, shifted, best_ids);
    struct golden_distance distance = golden_meter_distance(&meter);
    test_true(fabs(distance.max - 2) < 1e-5);
    test_true(fabs(distance.mean - 2.0 / (9 * GOLDEN_TOP)) < 1e-5);
    test_true(fabs(golden_meter_top1_rate(&meter) - 8.0 / 9) < 1e-9);
    test_true(!golden_is_within(golden, &distance, "shifted"));
    test_true(golden_is_within(golden, &golden->yardstick, "reference"));
    golden_destroy(golden);
}

static void test_committed_checkpoints_are_held_to_two_points(void)
{
    struct golden *golden = golden_load("dense-sharded");
    test_true(fabs(golden_least_rate(golden) - (golden->top1_rate - 0.02)) < 1e-12);
    test_true(fabs(golden_least_greedy_rate(golden) - (golden->top1_rate - 0.02)) < 1e-12);
    golden_destroy(golden);
}

/* As tests/tools/make_checkpoints.py writes them: 96 steps of which the worse run agrees at 92. */
static void test_few_steps_leave_room_for_chance(void)
{
    static uint32_t tokens[96];
    static uint32_t worse[96] = {1, 0, 1, 0, 1, 1};
    struct golden *golden = mem_zalloc(1, sizeof(*golden));
    golden->greedy_count = 1;
    golden->greedy[0] =
        (struct golden_greedy){.count = 96, .tokens = tokens, .run_tokens = {worse, tokens}};
    double rate = 92.0 / 96;
    test_true(golden_least_greedy_rate(golden) < rate - 0.02 - 0.05);
    test_true(golden_least_greedy_rate(golden) > rate - 0.02 - 0.07);
    worse[0] = worse[2] = worse[4] = worse[5] = 0; /* all agree: chance still has a part */
    test_true(golden_least_greedy_rate(golden) < 1 - 0.02 - 0.02);
    mem_free(golden);
}

static void test_demo_prompts(void)
{
    struct golden_prompts prompts = {0};
    golden_prompts_load(&prompts);
    test_true(prompts.count > 3);
    test_eq_str(prompts.at[0].name, "capital");
    test_eq_u64(prompts.at[0].prompt_count, 19);
    test_eq_u64(prompts.at[0].prompt_ids[0], 2);
    test_eq_u64(prompts.at[0].output_count, 7);
    test_eq_u64(prompts.at[0].output_ids[6], 6);
    golden_prompts_fini(&prompts);
}

static const struct test_case cases[] = {
    TEST(test_yardsticks_match_the_reference_summary),
    TEST(test_cases_are_whole),
    TEST(test_greedy_continues_its_case),
    TEST(test_meter_tells_distance),
    TEST(test_committed_checkpoints_are_held_to_two_points),
    TEST(test_few_steps_leave_room_for_chance),
    TEST(test_demo_prompts),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
