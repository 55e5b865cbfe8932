/* The sampler on cuda against the cpu twin, given equal logits: each rule, all of them at random, and
 * what stands beside a row.  What may differ is stated, and counted, in sample_rig.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/sample_rig.h"
#include "tests/testlib/test.h"

#define SEED        101
#define LABEL_BYTES 96

static void open_rig(struct cuda_rig *rig, uint32_t vocab, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = {
        .max_tokens = SAMPLE_RIG_MAX_ROWS,
        .max_rows = SAMPLE_RIG_MAX_ROWS,
        .slots = SAMPLE_RIG_MAX_ROWS,
        .max_context_tokens = 1024,
        .hidden_elems = 64,
        .max_linear_out_elems = 64,
        .heads = 2,
        .max_head_dim = 256,
        .max_kv_heads = 1,
        .vocab_tokens = vocab,
    };
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

/* Batches of every size, every rule at random, several times each. */
static void check_random_rules(uint32_t vocab, const uint32_t *row_counts, uint32_t count_count)
{
    uint64_t random = SEED + vocab;
    uint32_t most = 0;
    uint32_t rows = 0;
    uint32_t permitted = 0;
    struct cuda_rig rig;
    struct sample_case at;
    for (uint32_t i = 0; i < count_count; i++) {
        most = num_max(most, row_counts[i]);
    }
    open_rig(&rig, vocab, true);
    sample_case_init(&at, vocab, most, &random);
    for (uint32_t i = 0; i < count_count; i++) {
        char label[LABEL_BYTES];
        (void)snprintf(label, sizeof(label), "random rules, batch of %u", row_counts[i]);
        for (uint32_t row = 0; row < row_counts[i]; row++) {
            sample_case_random_rules(&at, row, &random);
        }
        permitted += sample_case_check(&at, &rig, row_counts[i], label);
        rows += row_counts[i];
    }
    (void)printf("vocabulary %u: %u rows, %u picks permitted that are not the twin's\n", vocab,
                 rows, permitted);
    test_true(permitted <= 1 + rows / 100);
    sample_case_fini(&at);
    cuda_rig_close(&rig);
}

static void test_random_rules_over_small_vocabularies(void)
{
    static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                          11, 12, 13, 14, 15, 16, 17, 33, 64, 128};
    static const uint32_t vocabs[] = {2048, 512, 1000, 8193, 8191, 31};
    for (uint32_t i = 0; i < TWIN_COUNT_OF(vocabs); i++) {
        check_random_rules(vocabs[i], row_counts, TWIN_COUNT_OF(row_counts));
    }
}

static void test_random_rules_over_the_whole_vocabulary(void)
{
    static const uint32_t row_counts[] = {1, 8, 16, 64};
    check_random_rules(262144, row_counts, cuda_rig_is_stand_in() ? 2 : 4);
}

/* ---- rules one by one ---- */

/* One rule in every row, over a small and the whole vocabulary. */
static void check_rule(void (*rule)(const struct sample_case *at, uint32_t row), const char *label)
{
    static const uint32_t vocabs[] = {512, 262144};
    for (uint32_t i = 0; i < TWIN_COUNT_OF(vocabs); i++) {
        uint32_t rows = vocabs[i] == 512 ? 64 : cuda_rig_is_stand_in() ? 2 : 16;
        uint64_t random = SEED + i;
        struct cuda_rig rig;
        struct sample_case at;
        open_rig(&rig, vocabs[i], true);
        sample_case_init(&at, vocabs[i], rows, &random);
        for (uint32_t row = 0; row < rows; row++) {
            struct k_sampler *s = sample_case_sampler(&at, row);
            s->seed = test_random(&random);
            sample_case_row(&at, row)->position = row * 3;
            rule(&at, row);
        }
        uint32_t permitted = sample_case_check(&at, &rig, rows, label);
        (void)printf("%s, vocabulary %u: %u of %u picks permitted\n", label, vocabs[i], permitted,
                     rows);
        test_true(permitted <= 1);
        sample_case_fini(&at);
        cuda_rig_close(&rig);
    }
}

/* Ties of the largest: a few values alone. */
static void greedy(const struct sample_case *at, uint32_t row)
{
    uint16_t *logits = sample_case_logits(at, row);
    for (uint32_t v = 0; v < at->vocab; v++) {
        logits[v] = (uint16_t)(0x4000 + ((v * 2654435761U >> 20) + row) % 8);
    }
    sample_case_sampler(at, row)->temperature = row % 3 == 0 ? 0.9e-5F : 0.0F;
}

static void temperature(const struct sample_case *at, uint32_t row)
{
    static const float temperatures[] = {1e-5F, 0.1F, 0.7F, 1.0F, 1.3F, 2.0F, 100.0F};
    sample_case_sampler(at, row)->temperature = temperatures[row % 7];
}

static void top_k(const struct sample_case *at, uint32_t row)
{
    static const uint32_t ks[] = {1, 2, 5, 64, 511, 512, 5000};
    sample_case_sampler(at, row)->temperature = 1.5F;
    sample_case_sampler(at, row)->top_k = ks[row % 7];
}

static void top_p(const struct sample_case *at, uint32_t row)
{
    static const float ps[] = {0.0F, 1e-9F, 0.1F, 0.5F, 0.9F, 0.95F, 0.999F, 0.99999994F};
    sample_case_sampler(at, row)->temperature = row % 2 == 0 ? 1.0F : 3.0F;
    sample_case_sampler(at, row)->top_p = ps[row % 8];
}

static void min_p(const struct sample_case *at, uint32_t row)
{
    static const float ps[] = {1e-6F, 0.01F, 0.05F, 0.3F, 0.9F, 1.0F};
    sample_case_sampler(at, row)->temperature = 2.0F;
    sample_case_sampler(at, row)->min_p = ps[row % 6];
}

/* Values at which one rounding in place of two would show. */
static void penalties(const struct sample_case *at, uint32_t row)
{
    struct k_sampler *s = sample_case_sampler(at, row);
    s->temperature = row % 2 == 0 ? 0.0F : 0.8F;
    s->counts_tokens = true;
    s->repetition_penalty = row % 4 < 2 ? 1.0F + 0.1F * (float)(row % 5) : 0.7F;
    s->presence_penalty = row % 3 == 0 ? 0.3F : -0.7F;
    s->frequency_penalty = row % 5 == 0 ? 0.0F : 0.1F;
}

static void bias(const struct sample_case *at, uint32_t row)
{
    struct k_sampler *s = sample_case_sampler(at, row);
    s->temperature = row % 2 == 0 ? 0.0F : 1.0F;
    s->bias_count = K_MAX_BIAS;
    for (uint32_t i = 0; i < K_MAX_BIAS; i++) {
        s->bias_ids[i] = i * 769 % at->vocab; /* some stand several times where it is small */
        s->bias_values[i] = 0.1F * (float)(i % 100) - 3.0F;
    }
}

static void suppressed(const struct sample_case *at, uint32_t row)
{
    struct k_sampler *s = sample_case_sampler(at, row);
    s->temperature = row % 2 == 0 ? 0.0F : 1.0F;
    s->suppress_count = 256;
    for (uint32_t i = 0; i < 256; i++) {
        s->suppress_ids[i] = (i * 2 + row) % at->vocab;
    }
}

/* Stop ids whose logits are the largest, below, at and past min_tokens. */
static void min_tokens(const struct sample_case *at, uint32_t row)
{
    struct k_sampler *s = sample_case_sampler(at, row);
    s->output_start = 10;
    s->min_tokens = 5;
    s->stop_count = K_MAX_STOP_IDS;
    sample_case_row(at, row)->position = 10 + row % 9;
    for (uint32_t i = 0; i < K_MAX_STOP_IDS; i++) {
        s->stop_ids[i] = (i * (at->vocab / K_MAX_STOP_IDS) + row) % at->vocab;
        sample_case_logits(at, row)[s->stop_ids[i]] = (uint16_t)(0x41e0 + i);
    }
}

static void masked(const struct sample_case *at, uint32_t row)
{
    sample_case_sampler(at, row)->temperature = row % 2 == 0 ? 0.0F : 1.0F;
    sample_case_row(at, row)->mask_row = row % SAMPLE_RIG_MASKS; /* one allows nothing */
}

static void test_greedy(void)
{
    check_rule(greedy, "greedy");
}

static void test_temperature(void)
{
    check_rule(temperature, "temperature");
}

static void test_top_k(void)
{
    check_rule(top_k, "top_k");
}

static void test_top_p(void)
{
    check_rule(top_p, "top_p");
}

static void test_min_p(void)
{
    check_rule(min_p, "min_p");
}

static void test_penalties(void)
{
    check_rule(penalties, "penalties");
}

static void test_bias(void)
{
    check_rule(bias, "bias");
}

static void test_suppressed_tokens(void)
{
    check_rule(suppressed, "suppressed tokens");
}

static void test_stop_ids_wait_for_min_tokens(void)
{
    check_rule(min_tokens, "min_tokens");
}

static void test_masks(void)
{
    check_rule(masked, "masks");
}

/* A mask that did not come holds its rows, sampled or not, whatever it says. */
static void held(const struct sample_case *at, uint32_t row)
{
    masked(at, row);
    uint32_t *missing = at->missing.host;
    missing[1] = 1;
    missing[SAMPLE_RIG_MASKS - 1] = 0x80000000U;
}

static void test_masks_that_did_not_come(void)
{
    check_rule(held, "masks that did not come");
}

/* Both zeros are one value: of a tie of them exactly k survive, the lowest ids. */
static void zeros(const struct sample_case *at, uint32_t row)
{
    uint16_t *logits = sample_case_logits(at, row);
    for (uint32_t v = 0; v < at->vocab; v++) {
        logits[v] = (uint16_t)(v % 2 == 0 ? 0x8000 : v % 64 == 63 ? 0x0000 : 0xc000);
    }
    sample_case_sampler(at, row)->temperature = 1.0F;
    sample_case_sampler(at, row)->top_k = 1 + row % 8;
    sample_case_sampler(at, row)->top_p = row % 16 < 8 ? 1.0F : 0.6F;
}

static void test_zeros_of_either_sign_tie(void)
{
    check_rule(zeros, "zeros");
}

/* ---- rows that cannot be sampled ---- */

/* A value that is not finite anywhere makes a row bad, even where a mask excludes it. */
static void test_bad_rows(void)
{
    static const uint16_t bad_values[] = {0x7f80, 0xff80, 0x7fc0, 0xffc1};
    static const uint32_t places[] = {0, 511, 8191, 8192, 9999};
    enum {
        ROWS = 20
    };
    uint64_t random = SEED;
    struct cuda_rig rig;
    struct sample_case at;
    open_rig(&rig, 10000, true);
    sample_case_init(&at, 10000, ROWS + 5, &random);
    for (uint32_t row = 0; row < ROWS; row++) {
        sample_case_logits(&at, row)[places[row / 4]] = bad_values[row % 4];
        sample_case_sampler(&at, row)->temperature = row % 3 == 0 ? 1.0F : 0.0F;
        sample_case_row(&at, row)->mask_row = row % 2 == 0 ? 1 : K_NONE;
    }
    sample_case_row(&at, ROWS)->mask_row = SAMPLE_RIG_MASKS - 1;
    sample_case_row(&at, ROWS + 1)->mask_row = SAMPLE_RIG_MASKS - 1;
    sample_case_sampler(&at, ROWS + 1)->temperature = 1.0F;
    struct k_sampler *infinite = sample_case_sampler(&at, ROWS + 2);
    infinite->bias_count = 1;
    infinite->bias_ids[0] = 9999;
    infinite->bias_values[0] = INFINITY;
    test_eq_u64(sample_case_check(&at, &rig, ROWS + 5, "bad rows"), 0);
    struct k_pick *got = sample_case_picks(&at, "bad rows");
    for (uint32_t row = 0; row < ROWS + 5; row++) {
        uint32_t outcome = got[sample_case_row(&at, row)->row].outcome;
        test_eq_u64(outcome, row < ROWS + 3 ? K_OUTCOME_BAD : K_OUTCOME_TOKEN);
    }
    mem_free(got);
    sample_case_fini(&at);
    cuda_rig_close(&rig);
}

/* ---- what stands beside a row ---- */

/* Row `from` of a case with its rules, as row `to` of another of the same vocabulary. */
static void copy_row(const struct sample_case *to_case, uint32_t to,
                     const struct sample_case *from_case, uint32_t from)
{
    uint64_t vocab = to_case->vocab;
    struct k_sample_row *row = sample_case_row(to_case, to);
    const struct k_sample_row *source = sample_case_row(from_case, from);
    memcpy(sample_case_logits(to_case, to), sample_case_logits(from_case, from),
           vocab * sizeof(uint16_t));
    *sample_case_sampler(to_case, to) = *sample_case_sampler(from_case, from);
    memcpy((uint32_t *)to_case->counts.host + row->slot * vocab,
           (const uint32_t *)from_case->counts.host + source->slot * vocab,
           vocab * sizeof(uint32_t));
    row->position = source->position;
    row->mask_row = source->mask_row;
}

/* Each row alone, then at each place of batches of every size among others and rows of nobody: the
 * same pick, to the bit, on the device itself. */
static void check_places(uint32_t vocab, uint32_t canaries, const uint32_t *sizes,
                         uint32_t size_count)
{
    uint64_t random = SEED + 7;
    struct cuda_rig rig;
    struct sample_case source;
    open_rig(&rig, vocab, true);
    sample_case_init(&source, vocab, 33, &random);
    for (uint32_t row = 0; row < 33; row++) {
        sample_case_random_rules(&source, row, &random);
    }
    uint64_t mask_random = SEED + 7;
    for (uint32_t canary = 0; canary < canaries; canary++) {
        struct k_pick alone = {0};
        for (uint32_t i = 0; i < size_count; i++) {
            uint32_t rows = sizes[i];
            uint32_t place = i == 0 ? 0 : twin_random_below(&random, rows);
            struct sample_case batch;
            sample_case_init(&batch, vocab, rows, &mask_random);
            memcpy(batch.masks.host, source.masks.host, source.masks.bytes);
            for (uint32_t row = 0; row < rows; row++) {
                copy_row(&batch, row, &source, (canary + 1 + row) % 33);
                sample_case_row(&batch, row)->row = row % 4 == 3 ? K_NONE : row;
            }
            copy_row(&batch, place, &source, canary);
            sample_case_row(&batch, place)->row = place;
            sample_case_write(&batch);
            sample_case_run(&batch, &rig, rows);
            cuda_rig_wait(&rig);
            struct k_pick *got = sample_case_picks(&batch, "a canary");
            alone = i == 0 ? got[place] : alone;
            char label[LABEL_BYTES];
            (void)snprintf(label, sizeof(label), "canary %u at %u of %u", canary, place, rows);
            twin_check_equal(label, &got[place], &alone, 1, sizeof(alone));
            for (uint32_t row = 0; row < rows; row++) {
                bool is_nobody = row % 4 == 3 && row != place;
                test_true((got[row].outcome == UINT32_MAX) == is_nobody);
            }
            mem_free(got);
            sample_case_fini(&batch);
        }
    }
    sample_case_fini(&source);
    cuda_rig_close(&rig);
}

static void test_a_row_is_the_same_in_every_batch(void)
{
    static const uint32_t sizes[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                     13, 14, 15, 16, 17, 33, 64, 33, 16, 8,  4,  2};
    static const uint32_t few_sizes[] = {1, 2, 17, 33};
    check_places(1000, 12, sizes, TWIN_COUNT_OF(sizes));
    check_places(262144, cuda_rig_is_stand_in() ? 1 : 4, few_sizes, cuda_rig_is_stand_in() ? 2 : 4);
}

/* Seed and position alone decide: not the slot, not the row. */
static void test_noise_is_keyed_by_seed_and_position(void)
{
    enum {
        ROWS = 96
    };
    uint64_t random = SEED + 8;
    uint32_t changes = 0;
    struct cuda_rig rig;
    struct sample_case at;
    open_rig(&rig, 512, true);
    sample_case_init(&at, 512, ROWS, &random);
    for (uint32_t row = 0; row < ROWS; row++) {
        memcpy(sample_case_logits(&at, row), sample_case_logits(&at, 0), 512 * sizeof(uint16_t));
        sample_case_sampler(&at, row)->temperature = 1.5F;
        sample_case_sampler(&at, row)->seed = 0x123456789abcdefULL + (uint64_t)(row / 48 % 2) * 5;
        sample_case_row(&at, row)->position = row % 24; /* each twice */
        sample_case_row(&at, row)->row = row;
    }
    test_true(sample_case_check(&at, &rig, ROWS, "seeds") <= 1);
    struct k_pick *got = sample_case_picks(&at, "seeds");
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t same = row / 48 * 48 + row % 24;
        test_eq_u64(got[row].token, got[same].token);
        changes += row >= 24 && row < 72 && got[row].token != got[row - 24].token ? 1 : 0;
        changes += row % 24 > 0 && got[row].token != got[row - 1].token ? 1 : 0;
    }
    test_true(changes > 24);
    mem_free(got);
    sample_case_fini(&at);
    cuda_rig_close(&rig);
}

/* ---- graphs ---- */

struct recording {
    struct cuda_rig *rig;
    const struct sample_case *at;
};

static void record(void *context)
{
    const struct recording *recording = context;
    sample_case_run(recording->at, recording->rig, recording->at->rows);
}

/* A bucket captured once; then other logits, other rules, other rows of nobody, in place. */
static void test_a_graph_of_a_bucket(void)
{
    static const uint32_t row_counts[] = {1, 8, 16};
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(row_counts); i++) {
        uint32_t rows = row_counts[i / 2];
        uint64_t random = SEED + 9;
        struct cuda_rig rig;
        struct sample_case at;
        open_rig(&rig, 9000, i % 2 == 0);
        sample_case_init(&at, 9000, rows, &random);
        struct recording recording = {&rig, &at};
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        for (uint32_t turn = 0; turn < 3; turn++) {
            for (uint32_t row = 0; row < rows; row++) {
                bool is_nobody = turn > 0 && row % 3 == turn;
                sample_case_random_rules(&at, row, &random);
                sample_case_row(&at, row)->row = is_nobody ? K_NONE : (row + 1) % rows;
                sample_case_logits(&at, row)[turn] = 0x41f0;
            }
            sample_case_write(&at);
            cuda_rig_launch(&rig, graph);
            cuda_rig_wait(&rig);
            struct k_pick *got = sample_case_picks(&at, "a graph");
            test_true(sample_case_check(&at, &rig, rows, "a graph") <= 1);
            struct k_pick *again = sample_case_picks(&at, "a graph");
            twin_check_equal("a graph against eager", got, again, rows, sizeof(*got));
            mem_free(got);
            mem_free(again);
        }
        cuda_rig_graph_free(graph);
        sample_case_fini(&at);
        cuda_rig_close(&rig);
    }
}

/* ---- that these tests can fail ---- */

/* The rule passes every pick of the twin and refuses nearly every other token that it could have
 * been: those that are cut off, and those whose noise is smaller. */
static void test_planted_picks_are_refused(void)
{
    enum {
        ROWS = 60
    };
    uint64_t random = SEED + 10;
    uint32_t tried = 0;
    uint32_t refused = 0;
    struct cuda_rig rig;
    struct sample_case at;
    open_rig(&rig, 512, true);
    sample_case_init(&at, 512, ROWS, &random);
    for (uint32_t row = 0; row < ROWS; row++) {
        sample_case_random_rules(&at, row, &random);
    }
    test_true(sample_case_check(&at, &rig, ROWS, "before") <= 1);
    const struct k_pick *picks = at.picks.host;
    for (uint32_t row = 0; row < ROWS; row++) {
        const struct k_pick *pick = &picks[sample_case_row(&at, row)->row];
        bool is_sampled = sample_case_sampler(&at, row)->temperature > 0.0F;
        if (pick->outcome != K_OUTCOME_TOKEN || !is_sampled) {
            continue;
        }
        test_true(sample_case_permits(&at, row, pick->token));
        for (uint32_t token = 0; token < 512; token++) {
            tried += token != pick->token ? 1 : 0;
            refused += token != pick->token && !sample_case_permits(&at, row, token) ? 1 : 0;
        }
    }
    (void)printf("%u of %u other tokens refused\n", refused, tried);
    test_true(tried > 5000 && refused >= tried - 2);
    sample_case_fini(&at);
    cuda_rig_close(&rig);
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    struct cuda_rig rig;
    if (cuda_rig_is_stand_in()) {
        test_skip("the cpu backend takes other shapes");
    }
    open_rig(&rig, 512, false);
    struct k_sample_args args = {.slots = {.vocab_tokens = 511}, .row_count = 1};
    test_eq_u64(k_cuda_ops()->sample(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "sample: 1 rows of vocabulary 511, made for 128 of 512");
    args.slots.vocab_tokens = 512;
    args.row_count = SAMPLE_RIG_MAX_ROWS + 1;
    test_eq_u64(k_cuda_ops()->sample(rig.k, &args, &err), ERR_SHAPE);
    args.row_count = 0;
    test_ok(k_cuda_ops()->sample(rig.k, &args, &err), &err);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_random_rules_over_small_vocabularies),
    TEST(test_random_rules_over_the_whole_vocabulary),
    TEST(test_greedy),
    TEST(test_temperature),
    TEST(test_top_k),
    TEST(test_top_p),
    TEST(test_min_p),
    TEST(test_penalties),
    TEST(test_bias),
    TEST(test_suppressed_tokens),
    TEST(test_stop_ids_wait_for_min_tokens),
    TEST(test_masks),
    TEST(test_masks_that_did_not_come),
    TEST(test_zeros_of_either_sign_tie),
    TEST(test_bad_rows),
    TEST(test_a_row_is_the_same_in_every_batch),
    TEST(test_noise_is_keyed_by_seed_and_position),
    TEST(test_a_graph_of_a_bucket),
    TEST(test_planted_picks_are_refused),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
