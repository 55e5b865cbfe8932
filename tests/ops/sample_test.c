/* The sampler against a twin that sorts everything in f64, and its rules one by one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "kernels/philox.h"
#include "tests/testlib/ops_rig.h"
#include "tests/testlib/slots_rig.h"
#include "tests/testlib/test.h"

#define SEED       14
#define MASK_WORDS ((OPS_VOCAB + 31) / 32)

/* One row of logits under one slot's rules. */
struct rig {
    struct slots_rig slots;
    struct k_stream *stream;
    struct k_sampler *sampler; /* of slot 1, borrowed from the slots */
    uint16_t logits[OPS_VOCAB];
    uint32_t mask[MASK_WORDS];
    bool has_mask;
    uint32_t position;
};

static void rig_init(struct rig *rig)
{
    *rig = (struct rig){.position = 10};
    slots_rig_init(&rig->slots);
    rig->stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    struct k_sampler *fresh = slots_rig_sampler();
    rig->sampler = &rig->slots.slots.samplers[1];
    *rig->sampler = *fresh;
    mem_free(fresh);
}

static void rig_fini(struct rig *rig)
{
    k_cpu_stream_destroy(rig->stream);
    slots_rig_fini(&rig->slots);
}

static uint32_t *counts_of(struct rig *rig)
{
    return rig->slots.slots.counts + OPS_VOCAB;
}

static void fill_logits(struct rig *rig, uint64_t *random, double width)
{
    uint16_t *values = ops_random_bf16(random, OPS_VOCAB, width);
    memcpy(rig->logits, values, sizeof(rig->logits));
    mem_free(values);
}

static struct k_pick run(struct rig *rig)
{
    struct err err = {0};
    struct k_sample_row row = {
        .row = 2,
        .slot = 1,
        .position = rig->position,
        .mask_row = rig->has_mask ? 0 : K_NONE,
    };
    struct k_pick picks[3] = {0};
    struct k_logprob_row logprob = {0};
    struct k_sample_args args = {
        .slots = rig->slots.slots,
        .logits = rig->logits,
        .row_count = 1,
        .rows = &row,
        .masks = rig->mask,
        .mask_words = MASK_WORDS,
        .picks = picks,
        .logprobs = &logprob,
    };
    test_ok(k_cpu_ops()->sample(rig->stream, &args, &err), &err);
    test_eq_u64(logprob.target, picks[2].outcome == K_OUTCOME_TOKEN ? picks[2].token : K_NONE);
    return picks[2];
}

static uint32_t run_token(struct rig *rig)
{
    struct k_pick pick = run(rig);
    test_eq_u64(pick.outcome, K_OUTCOME_TOKEN);
    return pick.token;
}

struct entry {
    double value;
    uint32_t id;
};

static int best_first(const void *a, const void *b)
{
    const struct entry *left = a;
    const struct entry *right = b;
    if (left->value != right->value) {
        return left->value > right->value ? -1 : 1;
    }
    return left->id < right->id ? -1 : 1;
}

/* Values after suppression, mask, penalties and bias. */
static void twin_values(struct rig *rig, double *values)
{
    const struct k_sampler *s = rig->sampler;
    const uint32_t *counts = counts_of(rig);
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        values[v] = ops_f64(rig->logits, v);
    }
    for (uint32_t i = 0; i < s->suppress_count; i++) {
        values[s->suppress_ids[i]] = (double)-INFINITY;
    }
    for (uint32_t i = 0; i < s->stop_count && rig->position - s->output_start < s->min_tokens;
         i++) {
        values[s->stop_ids[i]] = (double)-INFINITY;
    }
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        if (rig->has_mask && (rig->mask[v / 32] >> (v % 32) & 1U) == 0) {
            values[v] = (double)-INFINITY;
        }
        if (s->counts_tokens && counts[v] != 0) {
            uint32_t output = counts[v] & ~K_COUNT_PROMPT;
            double p = (double)s->repetition_penalty;
            values[v] = values[v] > 0.0 ? values[v] / p : values[v] * p;
            values[v] -= output > 0 ? (double)s->presence_penalty : 0.0;
            values[v] -= (double)s->frequency_penalty * (double)output;
        }
    }
    for (uint32_t i = 0; i < s->bias_count; i++) {
        values[s->bias_ids[i]] += (double)s->bias_values[i];
    }
}

/* How many of the sorted entries survive top-k, top-p and min-p. */
static uint32_t twin_survivors(const struct k_sampler *s, const struct entry *sorted)
{
    uint32_t count = 0;
    while (count < OPS_VOCAB && sorted[count].value > -1e300) {
        count++;
    }
    count = s->top_k != 0 && s->top_k < count ? s->top_k : count;
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += exp(sorted[i].value - sorted[0].value);
    }
    double mass = 0.0;
    for (uint32_t i = 0; s->top_p < 1.0F && i < count; i++) {
        mass += exp(sorted[i].value - sorted[0].value);
        count = mass >= (double)s->top_p * total ? i + 1 : count;
    }
    while (s->min_p > 0.0F && exp(sorted[count - 1].value - sorted[0].value) < (double)s->min_p) {
        count--;
    }
    return count;
}

static uint32_t twin(struct rig *rig)
{
    double *values = mem_zalloc(OPS_VOCAB, sizeof(*values));
    struct entry *sorted = mem_zalloc(OPS_VOCAB, sizeof(*sorted));
    twin_values(rig, values);
    bool is_greedy = rig->sampler->temperature < K_MIN_TEMPERATURE;
    double temperature = is_greedy ? 1.0 : (double)rig->sampler->temperature;
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        sorted[v] = (struct entry){.value = values[v] / temperature, .id = v};
    }
    qsort(sorted, OPS_VOCAB, sizeof(sorted[0]), best_first);
    uint32_t count = is_greedy ? 1 : twin_survivors(rig->sampler, sorted);
    for (uint32_t i = 0; i < count && !is_greedy; i++) {
        sorted[i].value += (double)k_philox_gumbel(rig->sampler->seed, rig->position, sorted[i].id);
    }
    qsort(sorted, count, sizeof(sorted[0]), best_first);
    uint32_t best = sorted[0].id;
    mem_free(sorted);
    mem_free(values);
    return best;
}

/* Every rule on or off at random. */
static void random_rules(struct rig *rig, uint64_t *random)
{
    struct k_sampler *s = rig->sampler;
    s->seed = test_random(random);
    rig->position = 10 + (uint32_t)(test_random(random) % 100);
    s->output_start = 5;
    s->temperature =
        test_random(random) % 4 == 0 ? 0.0F : 0.3F + (float)(test_random(random) % 20) / 10.0F;
    s->top_k = test_random(random) % 3 == 0 ? 1 + (uint32_t)(test_random(random) % 80) : 0;
    s->top_p =
        test_random(random) % 2 == 0 ? 1.0F : 0.05F + (float)(test_random(random) % 90) / 100.0F;
    s->min_p = test_random(random) % 3 == 0 ? (float)(1 + test_random(random) % 50) / 100.0F : 0.0F;
    s->presence_penalty = (float)(test_random(random) % 3) - 1.0F;
    s->frequency_penalty = (float)(test_random(random) % 3) / 2.0F - 0.5F;
    s->repetition_penalty = 0.5F + (float)(test_random(random) % 4) / 2.0F;
    s->counts_tokens = test_random(random) % 2 == 0;
    s->min_tokens = (uint32_t)(test_random(random) % 60);
    s->stop_count = (uint32_t)(test_random(random) % 5);
    s->suppress_count = (uint32_t)(test_random(random) % 20);
    s->bias_count = (uint32_t)(test_random(random) % 20);
    rig->has_mask = test_random(random) % 3 == 0;
    for (uint32_t i = 0; i < 20; i++) {
        s->stop_ids[i % K_MAX_STOP_IDS] = (uint32_t)(test_random(random) % OPS_VOCAB);
        s->suppress_ids[i] = (uint32_t)(test_random(random) % OPS_VOCAB);
        s->bias_ids[i] = (uint32_t)(test_random(random) % OPS_VOCAB);
        s->bias_values[i] = (float)(test_random(random) % 200) / 10.0F - 10.0F;
    }
    for (uint32_t word = 0; word < MASK_WORDS; word++) {
        rig->mask[word] = (uint32_t)test_random(random);
    }
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        uint32_t count = (uint32_t)(test_random(random) % 8);
        counts_of(rig)[v] = count < 3 ? count : (count == 3 ? K_COUNT_PROMPT | 1U : 0);
    }
}

static void test_random_rules_agree_with_the_twin(void)
{
    enum {
        CASES = 3000
    };
    struct rig rig;
    uint64_t random = SEED;
    uint32_t close_calls = 0;
    rig_init(&rig);
    for (uint32_t i = 0; i < CASES; i++) {
        fill_logits(&rig, &random, 1.0 + (double)(i % 5));
        random_rules(&rig, &random);
        uint32_t want = twin(&rig);
        uint32_t got = run_token(&rig);
        /* A token at the very edge of top-p or min-p may fall on either side: rare, and counted. */
        close_calls += got != want ? 1 : 0;
        test_true(got == want || rig.sampler->temperature > 0.0F);
    }
    printf("%u of %d choices differ from the twin's\n", close_calls, CASES);
    test_true(close_calls <= CASES / 500);
    rig_fini(&rig);
}

static void test_greedy_takes_the_lowest_id_of_a_tie(void)
{
    struct rig rig;
    rig_init(&rig);
    rig.logits[700] = k_bf16_from_f32(5.0F);
    rig.logits[31] = k_bf16_from_f32(5.0F);
    rig.logits[999] = k_bf16_from_f32(5.0F);
    test_eq_u64(run_token(&rig), 31);
    rig_fini(&rig);
}

static void test_bad_logits_and_empty_masks_fail_the_row(void)
{
    static const uint16_t broken[] = {0x7fc0, 0xffff, 0x7f80, 0xff80}; /* NaNs, infinities */
    struct rig rig;
    rig_init(&rig);
    for (uint32_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        rig.logits[OPS_VOCAB - 1] = broken[i];
        test_eq_u64(run(&rig).outcome, K_OUTCOME_BAD);
    }
    rig.logits[OPS_VOCAB - 1] = 0;
    rig.has_mask = true; /* nothing allowed */
    for (int is_sampled = 0; is_sampled <= 1; is_sampled++) {
        rig.sampler->temperature = (float)is_sampled;
        test_eq_u64(run(&rig).outcome, K_OUTCOME_BAD);
    }
    rig.mask[OPS_VOCAB / 32] = 1U << 7; /* token 999 alone */
    test_eq_u64(run_token(&rig), 999);
    rig.sampler->suppress_count = 1;
    rig.sampler->suppress_ids[0] = 999;
    test_eq_u64(run(&rig).outcome, K_OUTCOME_BAD);
    rig_fini(&rig);
}

static void test_stop_ids_wait_for_min_tokens(void)
{
    struct rig rig;
    rig_init(&rig);
    rig.logits[5] = k_bf16_from_f32(9.0F);
    rig.logits[6] = k_bf16_from_f32(8.0F);
    rig.sampler->stop_count = 1;
    rig.sampler->stop_ids[0] = 5;
    rig.sampler->output_start = 7;
    rig.sampler->min_tokens = 4; /* position 10 is the fourth output token */
    test_eq_u64(run_token(&rig), 6);
    rig.position = 11;
    test_eq_u64(run_token(&rig), 5);
    rig_fini(&rig);
}

static void test_filters_at_their_extremes(void)
{
    struct rig rig;
    uint64_t random = SEED;
    rig_init(&rig);
    fill_logits(&rig, &random, 1.0);
    uint32_t best = run_token(&rig);
    rig.sampler->temperature = 2.0F;
    for (uint32_t seed = 0; seed < 200; seed++) {
        rig.sampler->seed = seed;
        rig.sampler->top_k = 1;
        test_eq_u64(run_token(&rig), best);
        rig.sampler->top_k = 0;
        rig.sampler->top_p = 1e-9F;
        test_eq_u64(run_token(&rig), best);
        rig.sampler->top_p = 1.0F;
        rig.sampler->min_p = 1.0F;
        test_eq_u64(run_token(&rig), best);
        rig.sampler->min_p = 0.0F;
    }
    rig.sampler->temperature = 1e-6F; /* below the least: greedy */
    test_eq_u64(run_token(&rig), best);
    rig_fini(&rig);
}

/* Frequencies over positions follow the softmax: chi-square over the likely tokens. */
static void test_frequencies_follow_the_softmax(void)
{
    enum {
        DRAWS = 20000,
        TOKENS = 12
    };
    struct rig rig;
    rig_init(&rig);
    double p[TOKENS];
    double total = 0.0;
    uint32_t seen[TOKENS] = {0};
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        rig.logits[v] = k_bf16_from_f32(v < TOKENS ? (float)v / 4.0F : -60.0F);
    }
    for (uint32_t v = 0; v < TOKENS; v++) {
        p[v] = exp(v / 4.0 / 0.8);
        total += p[v];
    }
    rig.sampler->temperature = 0.8F;
    rig.sampler->seed = 77;
    for (rig.position = 0; rig.position < DRAWS; rig.position++) {
        uint32_t token = run_token(&rig);
        test_true(token < TOKENS);
        seen[token]++;
    }
    double chi = 0.0;
    for (uint32_t v = 0; v < TOKENS; v++) {
        double expected = DRAWS * p[v] / total;
        chi += (seen[v] - expected) * (seen[v] - expected) / expected;
    }
    printf("chi-square %.2f with %d degrees of freedom\n", chi, TOKENS - 1);
    test_true(chi < 31.3); /* 11 degrees of freedom: one in a thousand; the seed is fixed */
    rig_fini(&rig);
}

/* Rows of one call, in any order, give what each gives alone. */
static void test_rows_do_not_see_each_other(void)
{
    enum {
        ROWS = 4
    };
    struct err err = {0};
    struct slots_rig slots;
    uint64_t random = SEED;
    slots_rig_init(&slots);
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t *logits = ops_random_bf16(&random, (uint64_t)ROWS * OPS_VOCAB, 1.0);
    uint16_t *reordered = mem_zalloc((size_t)ROWS * OPS_VOCAB, sizeof(*reordered));
    struct k_sample_row rows[ROWS];
    struct k_pick picks[2][ROWS];
    struct k_logprob_row logprobs[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        struct k_sampler *fresh = slots_rig_sampler();
        slots.slots.samplers[r] = *fresh;
        slots.slots.samplers[r].temperature = 1.0F;
        slots.slots.samplers[r].seed = r;
        mem_free(fresh);
    }
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < ROWS; i++) {
            uint32_t r = turn == 0 ? i : ROWS - 1 - i;
            rows[i] =
                (struct k_sample_row){.row = r, .slot = r, .position = 40 + r, .mask_row = K_NONE};
            memcpy(reordered + (size_t)i * OPS_VOCAB, logits + (size_t)r * OPS_VOCAB,
                   OPS_VOCAB * sizeof(*logits));
        }
        struct k_sample_args args = {
            .slots = slots.slots,
            .logits = reordered,
            .row_count = ROWS,
            .rows = rows,
            .picks = picks[turn],
            .logprobs = logprobs,
        };
        test_ok(k_cpu_ops()->sample(stream, &args, &err), &err);
    }
    test_true(memcmp(picks[0], picks[1], sizeof(picks[0])) == 0);
    mem_free(reordered);
    mem_free(logits);
    k_cpu_stream_destroy(stream);
    slots_rig_fini(&slots);
}

/* Known answers of the paper's authors. */
static void test_philox_known_answers(void)
{
    static const uint32_t zeros[4] = {0};
    static const uint32_t ones[4] = {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
    static const uint32_t digits[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    static const uint32_t answers[3][4] = {
        {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    struct k_philox got[3] = {
        k_philox(0, zeros),
        k_philox(UINT64_MAX, ones),
        k_philox(0x299f31d0a4093822ULL, digits),
    };
    for (uint32_t i = 0; i < 3; i++) {
        test_true(memcmp(got[i].words, answers[i], sizeof(answers[i])) == 0);
    }
}

static void check_logprobs(const uint16_t *logits, const struct k_logprob *record, uint32_t target,
                           uint32_t pairs)
{
    struct entry sorted[OPS_VOCAB];
    double sum = 0.0;
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        sorted[v] = (struct entry){.value = ops_f64(logits, v), .id = v};
        sum += exp(sorted[v].value);
    }
    qsort(sorted, OPS_VOCAB, sizeof(sorted[0]), best_first);
    test_eq_u64(record->token, target);
    test_true(fabs((double)record->logprob - ops_f64(logits, target) + log(sum)) < 1e-5);
    test_eq_u64(sorted[record->rank - 1].id, target);
    test_eq_u64(record->pair_count, pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        test_eq_u64(record->ids[i], sorted[i].id);
        test_true(fabs((double)record->logprobs[i] - (sorted[i].value - log(sum))) < 1e-5);
    }
}

static void test_logprobs_rank_and_pairs(void)
{
    struct err err = {0};
    uint64_t random = SEED;
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        struct k_stream *stream = ops_stream((enum ops_loops)loops, 0.0F);
        uint16_t *logits = ops_random_bf16(&random, 4UL * OPS_VOCAB, 4.0);
        /* In any order into records; the third asks for nothing, the fourth has no token. */
        struct k_logprob_row rows[] = {
            {.target = 999, .want = 1, .record = 3},
            {.target = 0, .want = 21, .record = 0},
            {.target = 5, .want = 0, .record = 1},
            {.target = K_NONE, .want = 5, .record = 2},
        };
        struct k_logprob records[4];
        memset(records, 0x55, sizeof(records));
        struct k_logprobs_args args = {
            .logits = logits,
            .row_count = 4,
            .vocab_tokens = OPS_VOCAB,
            .rows = rows,
            .records = records,
        };
        test_ok(k_cpu_ops()->logprobs(stream, &args, &err), &err);
        check_logprobs(logits, &records[3], 999, 0);
        check_logprobs(logits + OPS_VOCAB, &records[0], 0, 20);
        test_eq_u64(records[1].token, 0x55555555);
        test_eq_u64(records[2].token, K_NONE);
        test_eq_u64(records[2].pair_count, 0);
        mem_free(logits);
        k_cpu_stream_destroy(stream);
    }
}

static const struct test_case cases[] = {
    TEST(test_random_rules_agree_with_the_twin),
    TEST(test_greedy_takes_the_lowest_id_of_a_tie),
    TEST(test_bad_logits_and_empty_masks_fail_the_row),
    TEST(test_stop_ids_wait_for_min_tokens),
    TEST(test_filters_at_their_extremes),
    TEST(test_frequencies_follow_the_softmax),
    TEST(test_rows_do_not_see_each_other),
    TEST(test_philox_known_answers),
    TEST(test_logprobs_rank_and_pairs),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
