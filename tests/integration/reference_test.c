/* A backend's forward pass against the reference of each checkpoint: within the yardstick at
 * every case length, whole and in segments, however pages are cut, and whatever runs beside it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/paged_forward.h"
#include "tests/testlib/straight_forward.h"
#include "tests/testlib/test.h"

static const char *const checkpoints[] = {"dense-unified", "dense-sharded", "dense-window1024",
                                          "moe", "ple-shared"};
#define CHECKPOINT_COUNT (sizeof(checkpoints) / sizeof(checkpoints[0]))

#define WHOLE 2048 /* a segment longer than every case */
static const uint32_t chunks[] = {1, 16, 63, 64, 65};
#define CHUNK_COUNT (sizeof(chunks) / sizeof(chunks[0]))

static struct paged_options options_of(const struct golden *golden, uint32_t page_tokens)
{
    return (struct paged_options){
        .backend = backend_under_test(),
        .model_dir = golden->dir,
        .threads = 2,
        .slots = 6,
        .page_tokens = page_tokens,
        .max_step_tokens = 1664,
        .max_context_tokens = 2048,
        .pad_tokens_multiple = 1,
        .seed = 20261129,
    };
}

static struct paged *paged_of(const struct golden *golden, uint32_t page_tokens)
{
    const struct paged_options options = options_of(golden, page_tokens);
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

/* ---- against the reference ---- */

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

/* All cases in segments of chunk tokens; false (and said why) when beyond the yardstick. */
static bool is_checkpoint_within(struct paged *paged, const struct golden *golden, uint32_t chunk)
{
    char label[64];
    struct golden_meter meter = {0};
    for (uint32_t i = 0; i < golden->case_count; i++) {
        const struct golden_case *at = &golden->cases[i];
        uint16_t *logits = logits_of(golden, at->count);
        paged_sequence(paged, at->ids, at->count, chunk, logits);
        meter_add(&meter, golden, at, logits);
        mem_free(logits);
    }
    struct golden_distance distance = golden_meter_distance(&meter);
    double rate = golden_meter_top1_rate(&meter);
    bool is_rate_within = rate >= golden_least_rate(golden);
    (void)snprintf(label, sizeof(label), "%s%s, segments of %u", paged->device.backend->name,
                   paged->options.is_plain ? ", plain loops" : "", chunk);
    bool is_within = golden_is_within(golden, &distance, label);
    printf("%s: best token agrees %.4f, reference's bf16 %.4f, at least %.4f%s\n", label, rate,
           golden->top1_rate, golden_least_rate(golden), is_rate_within ? "" : ": TOO SELDOM");
    return is_within && is_rate_within;
}

/* Where bits do not depend on shapes, test_segments_give_the_bits_of_the_whole covers the rest. */
static void test_all_cases_are_within_the_yardstick(void)
{
    bool is_within = true;
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        struct golden *golden = golden_load(checkpoints[i]);
        struct paged *paged = paged_of(golden, 64);
        is_within = is_checkpoint_within(paged, golden, WHOLE) && is_within;
        for (uint32_t c = 0; !backend_under_test()->is_exact && c < CHUNK_COUNT; c++) {
            is_within = is_checkpoint_within(paged, golden, chunks[c]) && is_within;
        }
        paged_destroy(paged);
        golden_destroy(golden);
    }
    test_true(is_within);
}

static void test_plain_loops_are_within_the_yardstick(void)
{
    if (backend_under_test()->is_cuda) {
        test_skip("plain loops are the cpu's");
    }
    struct golden *golden = golden_load("dense-sharded");
    struct paged_options options = options_of(golden, 64);
    options.is_plain = true;
    struct paged *paged = paged_create(&options);
    test_true(is_checkpoint_within(paged, golden, WHOLE));
    paged_destroy(paged);
    golden_destroy(golden);
}

/* The reference's tokens are forced; where its margin is beyond the noise, ours is the same. */
static void check_greedy(struct paged *paged, const struct golden *golden, uint32_t chunk)
{
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
        paged_sequence(paged, ids, count, chunk, logits);
        struct paged_rows rows = rows_of(golden, logits, count);
        paged_logprobs(&rows, NULL, 0, NULL, best);
        for (uint32_t t = 0; t < greedy->count; t++) {
            bool is_same = best[prompt_count - 1 + t] == greedy->tokens[t];
            agreed += is_same ? 1 : 0;
            steps++;
            if (!is_same && !golden->has_experts &&
                (double)greedy->margins[t] > golden->yardstick.max) {
                test_fail(__FILE__, __LINE__,
                          "%s: prompt of %u, step %u: best is %u, the reference's %u by %.4f",
                          golden->dir, prompt_count, t, best[prompt_count - 1 + t],
                          greedy->tokens[t], (double)greedy->margins[t]);
            }
        }
        mem_free(logits);
        mem_free(best);
        mem_free(ids);
    }
    double least_rate = golden_least_greedy_rate(golden);
    printf("segments of %u: greedy agrees at %u of %u steps, at least %.4f of them\n", chunk,
           agreed, steps, least_rate);
    test_true((double)agreed >= least_rate * steps);
}

static void test_forced_greedy_agrees(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        struct golden *golden = golden_load(checkpoints[i]);
        struct paged *paged = paged_of(golden, 64);
        check_greedy(paged, golden, 64);
        if (!backend_under_test()->is_exact) {
            check_greedy(paged, golden, 1);
        }
        paged_destroy(paged);
        golden_destroy(golden);
    }
}

/* ---- a backend against itself ---- */

/* The best of a row, lowest id first among equals. */
static void best_of_row(const uint16_t *row, uint32_t vocab_tokens, uint32_t *out_ids)
{
    float values[GOLDEN_TOP];
    for (uint32_t i = 0; i < GOLDEN_TOP; i++) {
        values[i] = -INFINITY;
        out_ids[i] = 0;
    }
    for (uint32_t v = 0; v < vocab_tokens; v++) {
        float value = k_f32_from_bf16(row[v]);
        uint32_t at = GOLDEN_TOP;
        for (; at > 0 && value > values[at - 1]; at--) {
            if (at < GOLDEN_TOP) {
                values[at] = values[at - 1];
                out_ids[at] = out_ids[at - 1];
            }
        }
        if (at < GOLDEN_TOP) {
            values[at] = value;
            out_ids[at] = v;
        }
    }
}

/* Distance of two runs at the first one's best tokens. */
static struct golden_distance distance_of(const struct golden *golden, uint32_t count,
                                          const uint16_t *left, const uint16_t *right)
{
    uint64_t pairs = (uint64_t)count * GOLDEN_TOP;
    uint32_t *ids = mem_zalloc(pairs, sizeof(*ids));
    float *a = mem_zalloc(pairs, sizeof(*a));
    float *b = mem_zalloc(pairs, sizeof(*b));
    struct paged_rows left_rows = rows_of(golden, left, count);
    struct paged_rows right_rows = rows_of(golden, right, count);
    for (uint32_t r = 0; r < count; r++) {
        best_of_row(left + (uint64_t)r * golden->vocab_tokens, golden->vocab_tokens,
                    ids + (uint64_t)r * GOLDEN_TOP);
    }
    paged_logprobs(&left_rows, ids, GOLDEN_TOP, a, NULL);
    paged_logprobs(&right_rows, ids, GOLDEN_TOP, b, NULL);
    struct golden_distance distance = {0};
    for (uint64_t i = 0; i < pairs; i++) {
        double apart = fabs((double)a[i] - (double)b[i]);
        distance.mean += apart / (double)pairs;
        distance.max = apart > distance.max || isnan(apart) ? apart : distance.max;
    }
    mem_free(b);
    mem_free(a);
    mem_free(ids);
    return distance;
}

/* Equal in every bit, or the test ends with where it is not. */
static void check_bits(const struct golden *golden, uint32_t count, const uint16_t *got,
                       const uint16_t *want, const char *what)
{
    uint64_t elems = (uint64_t)count * golden->vocab_tokens;
    for (uint64_t i = 0; i < elems; i++) {
        if (got[i] != want[i]) {
            struct golden_distance apart = distance_of(golden, count, want, got);
            test_fail(__FILE__, __LINE__,
                      "%s: logit %llu of token %llu of %u is %04x, want %04x; apart by mean %g, "
                      "max %g",
                      what, (unsigned long long)(i % golden->vocab_tokens),
                      (unsigned long long)(i / golden->vocab_tokens), count, got[i], want[i],
                      apart.mean, apart.max);
        }
    }
}

/* Two runs, each as far from the truth as it may be, are apart by the root of two times that. */
static void check_noise(const struct golden *golden, uint32_t count, const uint16_t *got,
                        const uint16_t *want, const char *what)
{
    struct golden_distance apart = distance_of(golden, count, want, got);
    if (!(apart.mean <= M_SQRT2 * 1.25 * golden->yardstick.mean &&
          (golden->has_experts || apart.max <= M_SQRT2 * 2.0 * golden->yardstick.max))) {
        test_fail(__FILE__, __LINE__,
                  "%s: %u tokens apart by mean %.4f max %.4f, yardstick %.4f %.4f", what, count,
                  apart.mean, apart.max, golden->yardstick.mean, golden->yardstick.max);
    }
}

/* Runs of different shapes: bit for bit where a backend promises it. */
static void check_agree(const struct golden *golden, uint32_t count, const uint16_t *got,
                        const uint16_t *want, const char *what)
{
    if (backend_under_test()->is_exact) {
        check_bits(golden, count, got, want, what);
    } else {
        check_noise(golden, count, got, want, what);
    }
}

static void check_segments(const char *name)
{
    char what[64];
    struct golden *golden = golden_load(name);
    struct paged *paged = paged_of(golden, 64);
    for (uint32_t i = 0; i < golden->case_count; i++) {
        const struct golden_case *at = &golden->cases[i];
        uint16_t *whole = logits_of(golden, at->count);
        uint16_t *cut = logits_of(golden, at->count);
        paged_sequence(paged, at->ids, at->count, at->count, whole);
        for (uint32_t c = 0; c < CHUNK_COUNT; c++) {
            (void)snprintf(what, sizeof(what), "%s, segments of %u", name, chunks[c]);
            paged_sequence(paged, at->ids, at->count, chunks[c], cut);
            check_agree(golden, at->count, cut, whole, what);
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

/* The same segments in small pages, and in one page that holds all: no paging at all. */
static void test_page_sizes_give_the_same_bits(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        struct golden *golden = golden_load(checkpoints[i]);
        const struct golden_case *at = &golden->cases[golden->case_count - 1];
        struct paged *small = paged_of(golden, 16);
        struct paged *one_page = paged_of(golden, 2048);
        uint16_t *first = logits_of(golden, at->count);
        uint16_t *second = logits_of(golden, at->count);
        paged_sequence(small, at->ids, at->count, 65, first);
        paged_sequence(one_page, at->ids, at->count, at->count, second);
        check_agree(golden, at->count, first, second, "65 tokens in small pages, whole in one");
        paged_sequence(small, at->ids, at->count, at->count, first);
        check_bits(golden, at->count, first, second, "whole in small pages, whole in one");
        mem_free(second);
        mem_free(first);
        paged_destroy(one_page);
        paged_destroy(small);
        golden_destroy(golden);
    }
}

/* Whole, and in segments of one token, where experts have few pairs. */
static void check_expert_blocks(const struct golden *golden, uint32_t chunk)
{
    static const uint32_t block_rows[] = {8, 16, 32, 64, 128};
    const struct golden_case *at = &golden->cases[golden->case_count - 1];
    uint32_t count = chunk == 1 ? 64 : at->count;
    struct paged *chosen = paged_of(golden, 64);
    uint16_t *want = logits_of(golden, count);
    uint16_t *got = logits_of(golden, count);
    test_true(chosen->config.experts > 0 && at->count >= count);
    paged_sequence(chosen, at->ids, count, chunk, want);
    for (uint32_t i = 0; i < sizeof(block_rows) / sizeof(block_rows[0]); i++) {
        char what[64];
        struct paged_options options = options_of(golden, 64);
        options.expert_block_rows = block_rows[i];
        struct paged *other = paged_create(&options);
        paged_sequence(other, at->ids, count, chunk, got);
        (void)snprintf(what, sizeof(what), "experts' pairs in blocks of %u", block_rows[i]);
        check_bits(golden, count, got, want, what);
        paged_destroy(other);
    }
    mem_free(got);
    mem_free(want);
    paged_destroy(chosen);
}

static void test_expert_blocks_give_the_same_bits(void)
{
    struct golden *golden = golden_load("moe");
    check_expert_blocks(golden, WHOLE);
    check_expert_blocks(golden, 1);
    golden_destroy(golden);
}

static void check_straight(const char *name, uint32_t longest)
{
    struct err err = {0};
    struct weights weights;
    struct golden *golden = golden_load(name);
    struct paged *paged = paged_of(golden, 64);
    test_ok(weights_open_host(golden->dir, &paged->config, NULL, &weights, &err), &err);
    for (uint32_t i = 0; i < golden->case_count && golden->cases[i].count <= longest; i++) {
        const struct golden_case *at = &golden->cases[i];
        uint16_t *paged_logits = logits_of(golden, at->count);
        uint16_t *straight = logits_of(golden, at->count);
        paged_sequence(paged, at->ids, at->count, 64, paged_logits);
        straight_forward(&paged->config, &weights, at->ids, at->count, straight);
        struct golden_distance apart = distance_of(golden, at->count, straight, paged_logits);
        printf("%s case %u: straight mean %.4f max %.4f, yardstick %.4f %.4f\n", name, at->count,
               apart.mean, apart.max, golden->yardstick.mean, golden->yardstick.max);
        check_noise(golden, at->count, paged_logits, straight, name);
        mem_free(straight);
        mem_free(paged_logits);
    }
    weights_fini(&weights);
    paged_destroy(paged);
    golden_destroy(golden);
}

static void test_a_straight_forward_pass_agrees(void)
{
    check_straight("dense-unified", 300);
    check_straight("dense-sharded", 130);
    check_straight("dense-window1024", 9);
    check_straight("moe", 130);
    check_straight("ple-shared", 130);
}

static void test_thread_counts_give_the_same_bits(void)
{
    if (backend_under_test()->is_cuda) {
        test_skip("threads are the cpu's");
    }
    struct golden *golden = golden_load("dense-sharded");
    const struct golden_case *at = &golden->cases[golden->case_count - 1];
    struct paged_options options = options_of(golden, 64);
    struct paged *two = paged_create(&options);
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

/* ---- neighbours and padding ---- */

enum {
    SEQUENCES = 5,
    STEPS = 3,
    STEP_TOKENS = 384,
    FIRST_APART = 37, /* tokens between the first tokens of two sequences: different content */
};

static const char *const crowd_checkpoints[] = {"dense-unified", "moe", "ple-shared"};
#define CROWD_COUNT (sizeof(crowd_checkpoints) / sizeof(crowd_checkpoints[0]))

/* Sequence s runs counts[s] prompt tokens in the first step, then one per step. */
static const uint32_t counts[SEQUENCES] = {1, 63, 64, 65, 130};

/* What runs in a crowd: ids without 0, the id of padding. */
struct crowd {
    struct golden *golden;
    uint32_t ids[512];
    uint16_t *logits; /* of a step */
};

static struct crowd *crowd_create(const char *name)
{
    struct crowd *crowd = mem_zalloc(1, sizeof(*crowd));
    crowd->golden = golden_load(name);
    const struct golden_case *at = &crowd->golden->cases[crowd->golden->case_count - 1];
    test_true(at->count >= 512);
    for (uint32_t i = 0; i < 512; i++) {
        crowd->ids[i] = at->ids[i] == 0 ? 1 : at->ids[i];
    }
    crowd->logits = logits_of(crowd->golden, STEP_TOKENS);
    return crowd;
}

static void crowd_destroy(struct crowd *crowd)
{
    mem_free(crowd->logits);
    golden_destroy(crowd->golden);
    mem_free(crowd);
}

static struct paged_options crowd_options(const struct crowd *crowd, uint32_t multiple)
{
    struct paged_options options = options_of(crowd->golden, 64);
    options.max_step_tokens = STEP_TOKENS;
    options.max_context_tokens = 512;
    options.pad_tokens_multiple = multiple;
    return options;
}

/* All sequences, in this order in every step; logits of each into out[s]. */
static void run_crowd(struct crowd *crowd, struct paged *paged, const uint32_t *order,
                      uint16_t *const *out)
{
    uint64_t vocab_tokens = crowd->golden->vocab_tokens;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct paged_segment segments[SEQUENCES];
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint32_t s = order[i];
            uint32_t start = step == 0 ? 0 : counts[s] + step - 1;
            segments[i] = (struct paged_segment){
                .slot = s,
                .start = start,
                .count = step == 0 ? counts[s] : 1,
                .ids = crowd->ids + (size_t)FIRST_APART * s + start,
            };
        }
        paged_step(paged, segments, SEQUENCES, crowd->logits);
        uint64_t from = 0;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            memcpy(out[order[i]] + segments[i].start * vocab_tokens, crowd->logits + from,
                   logits_bytes(crowd->golden, segments[i].count));
            from += segments[i].count * vocab_tokens;
        }
    }
}

static void alloc_all(const struct crowd *crowd, uint16_t **out)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        out[s] = logits_of(crowd->golden, counts[s] + STEPS);
    }
}

static void free_all(uint16_t **out)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        mem_free(out[s]);
    }
}

/* Sequences side by side, in any order, with padding behind them, give the same bits, and those that
 * each gives alone; nothing is written but to their own pages. */
static void check_orders(struct crowd *crowd, uint32_t multiple)
{
    static const uint32_t orders[4][SEQUENCES] = {
        {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}, {3, 4, 0, 2, 1}};
    char what[64];
    const struct paged_options options = crowd_options(crowd, multiple);
    struct paged *paged = paged_create(&options);
    struct paged *alone = paged_of(crowd->golden, 64);
    uint16_t *first[SEQUENCES];
    uint16_t *other[SEQUENCES];
    alloc_all(crowd, first);
    alloc_all(crowd, other);
    run_crowd(crowd, paged, orders[0], first);
    paged_check_unwritten(paged);
    for (uint32_t o = 1; o < sizeof(orders) / sizeof(orders[0]); o++) {
        run_crowd(crowd, paged, orders[o], other);
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            (void)snprintf(what, sizeof(what), "padded to %u, order %u, sequence %u", multiple, o,
                           s);
            check_bits(crowd->golden, counts[s] + STEPS - 1, other[s], first[s], what);
        }
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t count = counts[s] + STEPS - 1;
        (void)snprintf(what, sizeof(what), "padded to %u, sequence %u, alone", multiple, s);
        paged_sequence(alone, crowd->ids + (size_t)FIRST_APART * s, count, count, other[s]);
        check_agree(crowd->golden, count, first[s], other[s], what);
    }
    free_all(other);
    free_all(first);
    paged_destroy(alone);
    paged_destroy(paged);
}

static void test_neighbours_and_padding_change_nothing(void)
{
    static const uint32_t multiples[] = {1, 8, 48};
    for (uint32_t c = 0; c < CROWD_COUNT; c++) {
        struct crowd *crowd = crowd_create(crowd_checkpoints[c]);
        for (uint32_t m = 0; m < sizeof(multiples) / sizeof(multiples[0]); m++) {
            check_orders(crowd, multiples[m]);
        }
        crowd_destroy(crowd);
    }
}

/* Padding that computes with NaN from the embedding on leaves every row and page as it was. */
static void check_poisoned(struct crowd *crowd, uint32_t multiple)
{
    static const uint32_t order[SEQUENCES] = {2, 0, 4, 1, 3};
    char what[64];
    uint64_t vocab_tokens = crowd->golden->vocab_tokens;
    struct paged_options options = crowd_options(crowd, multiple);
    struct paged *sound = paged_create(&options);
    options.poisons_padding = true;
    struct paged *poisoned = paged_create(&options);
    uint16_t *want[SEQUENCES];
    uint16_t *got[SEQUENCES];
    alloc_all(crowd, want);
    alloc_all(crowd, got);
    run_crowd(crowd, sound, order, want);
    run_crowd(crowd, poisoned, order, got);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t count = counts[s] + STEPS - 1;
        (void)snprintf(what, sizeof(what), "poisoned padding to %u, sequence %u", multiple, s);
        for (uint32_t row = 0; row < count; row++) { /* embedding and head are one table here */
            test_true(isnan(k_f32_from_bf16(got[s][row * vocab_tokens])));
            got[s][row * vocab_tokens] = want[s][row * vocab_tokens];
        }
        check_bits(crowd->golden, count, got[s], want[s], what);
    }
    paged_check_unwritten(poisoned);
    free_all(got);
    free_all(want);
    paged_destroy(poisoned);
    paged_destroy(sound);
}

static void test_poisoned_padding_reaches_nothing(void)
{
    for (uint32_t c = 0; c < CROWD_COUNT; c++) {
        struct crowd *crowd = crowd_create(crowd_checkpoints[c]);
        check_poisoned(crowd, 8);
        check_poisoned(crowd, 48);
        crowd_destroy(crowd);
    }
}

static const struct test_case cases[] = {
    TEST(test_all_cases_are_within_the_yardstick),
    TEST(test_plain_loops_are_within_the_yardstick),
    TEST(test_forced_greedy_agrees),
    TEST(test_segments_give_the_bits_of_the_whole),
    TEST(test_page_sizes_give_the_same_bits),
    TEST(test_expert_blocks_give_the_same_bits),
    TEST(test_a_straight_forward_pass_agrees),
    TEST(test_thread_counts_give_the_same_bits),
    TEST(test_neighbours_and_padding_change_nothing),
    TEST(test_poisoned_padding_reaches_nothing),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
