/* The cpu backend against the reference of each dense checkpoint: within the yardstick at every case
 * length, bit-equal whole and in segments, however pages are cut, and whatever runs beside it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/paged_forward.h"
#include "tests/testlib/straight_forward.h"
#include "tests/testlib/test.h"

static const char *const checkpoints[] = {"dense-unified", "dense-sharded", "dense-window1024"};
#define CHECKPOINT_COUNT (sizeof(checkpoints) / sizeof(checkpoints[0]))

static struct paged *paged_of(const struct golden *golden, uint32_t page_tokens, bool is_plain)
{
    struct paged_options options = {
        .model_dir = golden->dir,
        .threads = 2,
        .slots = 6,
        .page_tokens = page_tokens,
        .max_step_tokens = 1664,
        .max_context_tokens = 2048,
        .pad_tokens_multiple = 1,
        .is_plain = is_plain,
        .seed = 20261129,
    };
    return paged_create(&options);
}

static uint16_t *logits_of(const struct golden *golden, uint32_t count)
{
    return mem_zalloc((uint64_t)count * golden->vocab_tokens, sizeof(uint16_t));
}

static uint64_t logits_bytes(const struct golden *golden, uint32_t count)
{
    return (uint64_t)count * golden->vocab_tokens * sizeof(uint16_t);
}

static struct paged_rows rows_of(const struct golden *golden, const uint16_t *logits,
                                 uint32_t count)
{
    return (struct paged_rows){
        .logits = logits,
        .rows = count,
        .vocab_tokens = golden->vocab_tokens,
    };
}

static void meter_add(struct golden_meter *meter, const struct golden *golden,
                      const struct golden_case *at, const uint16_t *logits)
{
    float *logprobs = mem_zalloc((uint64_t)at->count * GOLDEN_TOP, sizeof(*logprobs));
    uint32_t *best = mem_zalloc(at->count, sizeof(*best));
    struct paged_rows rows = rows_of(golden, logits, at->count);
    paged_logprobs(&rows, at->top_ids, GOLDEN_TOP, logprobs, best);
    golden_meter_add(meter, at, logprobs, best);
    mem_free(best);
    mem_free(logprobs);
}

static void check_checkpoint(const char *name, bool is_plain)
{
    struct golden *golden = golden_load(name);
    struct paged *paged = paged_of(golden, 64, is_plain);
    struct golden_meter meter = {0};
    for (uint32_t i = 0; i < golden->case_count; i++) {
        const struct golden_case *at = &golden->cases[i];
        uint16_t *logits = logits_of(golden, at->count);
        paged_sequence(paged, at->ids, at->count, at->count, logits);
        meter_add(&meter, golden, at, logits);
        mem_free(logits);
    }
    struct golden_distance distance = golden_meter_distance(&meter);
    test_true(golden_is_within(golden, &distance, is_plain ? "plain loops" : "cpu"));
    printf("%s: best token agrees %.4f, reference's bf16 %.4f\n", name,
           golden_meter_top1_rate(&meter), golden->top1_rate);
    test_true(golden_meter_top1_rate(&meter) >= golden->top1_rate - 0.02);
    paged_destroy(paged);
    golden_destroy(golden);
}

static void test_all_cases_are_within_the_yardstick(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        check_checkpoint(checkpoints[i], false);
    }
}

static void test_plain_loops_are_within_the_yardstick(void)
{
    check_checkpoint("dense-sharded", true);
}

static void check_segments(const char *name)
{
    static const uint32_t chunks[] = {1, 16, 63, 64, 65};
    struct golden *golden = golden_load(name);
    struct paged *paged = paged_of(golden, 64, false);
    for (uint32_t i = 0; i < golden->case_count; i++) {
        const struct golden_case *at = &golden->cases[i];
        uint16_t *whole = logits_of(golden, at->count);
        uint16_t *cut = logits_of(golden, at->count);
        paged_sequence(paged, at->ids, at->count, at->count, whole);
        for (uint32_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
            paged_sequence(paged, at->ids, at->count, chunks[c], cut);
            test_true(memcmp(whole, cut, logits_bytes(golden, at->count)) == 0);
        }
        mem_free(cut);
        mem_free(whole);
    }
    paged_destroy(paged);
    golden_destroy(golden);
}

static void test_segments_give_the_bits_of_the_whole(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        check_segments(checkpoints[i]);
    }
}

static void test_page_sizes_give_the_same_bits(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        struct golden *golden = golden_load(checkpoints[i]);
        const struct golden_case *at = &golden->cases[golden->case_count - 1];
        struct paged *small = paged_of(golden, 16, false);
        struct paged *one_page = paged_of(golden, 2048, false); /* contiguous: no paging at all */
        uint16_t *first = logits_of(golden, at->count);
        uint16_t *second = logits_of(golden, at->count);
        paged_sequence(small, at->ids, at->count, 65, first);
        paged_sequence(one_page, at->ids, at->count, at->count, second);
        test_true(memcmp(first, second, logits_bytes(golden, at->count)) == 0);
        mem_free(second);
        mem_free(first);
        paged_destroy(one_page);
        paged_destroy(small);
        golden_destroy(golden);
    }
}

/* Distance of two runs of one case at the truth's best tokens. */
static void compare(const struct golden *golden, const struct golden_case *at, const uint16_t *left,
                    const uint16_t *right, struct golden_distance *out)
{
    uint64_t pairs = (uint64_t)at->count * GOLDEN_TOP;
    float *a = mem_zalloc(pairs, sizeof(*a));
    float *b = mem_zalloc(pairs, sizeof(*b));
    struct paged_rows left_rows = rows_of(golden, left, at->count);
    struct paged_rows right_rows = rows_of(golden, right, at->count);
    paged_logprobs(&left_rows, at->top_ids, GOLDEN_TOP, a, NULL);
    paged_logprobs(&right_rows, at->top_ids, GOLDEN_TOP, b, NULL);
    *out = (struct golden_distance){0};
    for (uint64_t i = 0; i < pairs; i++) {
        double distance = fabs((double)a[i] - (double)b[i]);
        out->mean += distance / (double)pairs;
        out->max = distance > out->max ? distance : out->max;
    }
    mem_free(b);
    mem_free(a);
}

static void check_straight(const char *name, uint32_t longest)
{
    struct golden *golden = golden_load(name);
    struct paged *paged = paged_of(golden, 64, false);
    for (uint32_t i = 0; i < golden->case_count && golden->cases[i].count <= longest; i++) {
        const struct golden_case *at = &golden->cases[i];
        uint16_t *paged_logits = logits_of(golden, at->count);
        uint16_t *straight = logits_of(golden, at->count);
        struct golden_distance distance;
        paged_sequence(paged, at->ids, at->count, 64, paged_logits);
        straight_forward(&paged->config, &paged->weights, at->ids, at->count, straight);
        compare(golden, at, paged_logits, straight, &distance);
        printf("%s case %u: straight mean %.4f max %.4f, yardstick %.4f %.4f\n", name, at->count,
               distance.mean, distance.max, golden->yardstick.mean, golden->yardstick.max);
        test_true(distance.mean <= 1.25 * golden->yardstick.mean);
        test_true(distance.max <= 2.0 * golden->yardstick.max);
        mem_free(straight);
        mem_free(paged_logits);
    }
    paged_destroy(paged);
    golden_destroy(golden);
}

static void test_a_straight_forward_pass_agrees(void)
{
    check_straight("dense-unified", 300);
    check_straight("dense-sharded", 130);
    check_straight("dense-window1024", 9);
}

/* The reference's tokens are forced; where its margin is beyond the noise, ours is the same. */
static void check_greedy(const char *name)
{
    struct golden *golden = golden_load(name);
    struct paged *paged = paged_of(golden, 64, false);
    uint32_t agreed = 0;
    uint32_t steps = 0;
    for (uint32_t i = 0; i < golden->greedy_count; i++) {
        const struct golden_greedy *greedy = &golden->greedy[i];
        uint32_t prompt_count = greedy->prompt->count;
        uint32_t count = prompt_count + greedy->count;
        uint32_t *ids = mem_zalloc(count, sizeof(*ids));
        uint32_t *best = mem_zalloc(count, sizeof(*best));
        uint16_t *logits = logits_of(golden, count);
        memcpy(ids, greedy->prompt->ids, prompt_count * sizeof(*ids));
        memcpy(ids + prompt_count, greedy->tokens, greedy->count * sizeof(*ids));
        paged_sequence(paged, ids, count, 64, logits);
        struct paged_rows rows = rows_of(golden, logits, count);
        paged_logprobs(&rows, NULL, 0, NULL, best);
        for (uint32_t t = 0; t < greedy->count; t++) {
            bool is_same = best[prompt_count - 1 + t] == greedy->tokens[t];
            agreed += is_same ? 1 : 0;
            steps++;
            test_true(is_same || (double)greedy->margins[t] <= golden->yardstick.max);
        }
        mem_free(logits);
        mem_free(best);
        mem_free(ids);
    }
    printf("%s: greedy agrees at %u of %u steps\n", name, agreed, steps);
    test_true((double)agreed >= (golden->top1_rate - 0.02) * steps);
    paged_destroy(paged);
    golden_destroy(golden);
}

static void test_forced_greedy_agrees(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        check_greedy(checkpoints[i]);
    }
}

/* Sequences side by side, in any order, with padding behind them, give the bits that each gives
 * alone; NaN in every page that they do not write goes nowhere. */
static void test_neighbours_and_padding_change_nothing(void)
{
    struct golden *golden = golden_load("dense-unified");
    struct paged *alone = paged_of(golden, 64, false);
    struct paged_options options = alone->options;
    options.pad_tokens_multiple = 48;
    struct paged *crowd = paged_create(&options);
    uint32_t vocab_tokens = golden->vocab_tokens;
    const struct golden_case *at = &golden->cases[golden->case_count - 1];
    enum {
        SEQUENCES = 5
    };
    /* slot s runs counts[s] prompt tokens in the first step, then one per step */
    static const uint32_t counts[SEQUENCES] = {1, 63, 64, 65, 130};
    static const uint32_t orders[3][SEQUENCES] = {
        {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}};
    uint16_t *expected[SEQUENCES];
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        expected[s] = logits_of(golden, counts[s] + 3);
        /* every sequence starts elsewhere in the case: different content */
        paged_sequence(alone, at->ids + 37UL * s, counts[s] + 3, counts[s] + 3, expected[s]);
    }
    uint16_t *logits = logits_of(golden, 1664);
    for (uint32_t step = 0; step < 3; step++) {
        struct paged_segment segments[SEQUENCES];
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint32_t s = orders[step][i];
            uint32_t start = step == 0 ? 0 : counts[s] + step - 1;
            segments[i] = (struct paged_segment){
                .slot = s,
                .start = start,
                .count = step == 0 ? counts[s] : 1,
                .ids = at->ids + 37UL * s + start,
            };
        }
        paged_step(crowd, segments, SEQUENCES, logits);
        uint64_t from = 0;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint64_t start = (uint64_t)segments[i].start * vocab_tokens;
            test_true(memcmp(logits + from, expected[segments[i].slot] + start,
                             logits_bytes(golden, segments[i].count)) == 0);
            from += (uint64_t)segments[i].count * vocab_tokens;
        }
    }
    mem_free(logits);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        mem_free(expected[s]);
    }
    paged_destroy(crowd);
    paged_destroy(alone);
    golden_destroy(golden);
}

static void test_thread_counts_give_the_same_bits(void)
{
    struct golden *golden = golden_load("dense-sharded");
    const struct golden_case *at = &golden->cases[golden->case_count - 1];
    struct paged *two = paged_of(golden, 64, false);
    struct paged_options options = two->options;
    uint16_t *expected = logits_of(golden, at->count);
    uint16_t *logits = logits_of(golden, at->count);
    paged_sequence(two, at->ids, at->count, 100, expected);
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        options.threads = threads;
        struct paged *other = paged_create(&options);
        paged_sequence(other, at->ids, at->count, 100, logits);
        test_true(memcmp(logits, expected, logits_bytes(golden, at->count)) == 0);
        paged_destroy(other);
    }
    mem_free(logits);
    mem_free(expected);
    paged_destroy(two);
    golden_destroy(golden);
}

static const struct test_case cases[] = {
    TEST(test_all_cases_are_within_the_yardstick),
    TEST(test_plain_loops_are_within_the_yardstick),
    TEST(test_segments_give_the_bits_of_the_whole),
    TEST(test_page_sizes_give_the_same_bits),
    TEST(test_a_straight_forward_pass_agrees),
    TEST(test_forced_greedy_agrees),
    TEST(test_neighbours_and_padding_change_nothing),
    TEST(test_thread_counts_give_the_same_bits),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
