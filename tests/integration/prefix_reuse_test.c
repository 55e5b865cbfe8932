/* The core over a backend's runner with a prefix cache: a prompt that begins behind pages of others
 * gives what it gives when it is computed whole, bit for bit where shapes are the same, within the
 * reference's own noise else. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/core_drive.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/test.h"

enum {
    OUTPUT = 8,
    PAGE = 16,
    MAX_REQUESTS = GOLDEN_MAX_CASES
};

static const char *const checkpoints[] = {"dense-unified", "dense-sharded", "dense-window1024",
                                          "moe", "ple-shared"};

#define CHECKPOINT_COUNT (sizeof(checkpoints) / sizeof(checkpoints[0]))

/* One checkpoint and its prompts. */
struct rig {
    struct golden *golden;
    struct drive_model model;
    struct plan_admit admits[MAX_REQUESTS];
    uint32_t count;
};

static void rig_load(struct rig *rig, const char *name)
{
    rig->golden = golden_load(name);
    drive_model_load(&rig->model, rig->golden->dir);
    rig->count = 0;
    for (uint32_t i = 0; i < rig->golden->case_count; i++) {
        const struct golden_case *one = &rig->golden->cases[i];
        struct plan_admit admit = rig_plain_admit(1, one->ids, one->count, one->count + OUTPUT);
        admit.seed = 100 + i;
        admit.temperature = i % 3 == 1 ? 1.1F : 0;
        admit.logprobs = 1 + GOLDEN_TOP;
        if (one->count <= 1100) {
            rig->admits[rig->count++] = admit;
        }
    }
    test_true(rig->count >= 3);
}

static struct drive *drive_of(const struct rig *rig, bool is_pinned, bool keeps_prefixes)
{
    const struct drive_options options = {
        .limits =
            {
                .slots = 16,
                .max_step_rows = 16,
                .max_step_tokens = 512,
                .max_context_tokens = 2048,
                .page_tokens = PAGE,
                .pipeline_depth = 2,
            },
        .chunk_tokens = 512,
        .ahead = 2,
        .is_pinned = is_pinned,
        .keeps_prefixes = keeps_prefixes,
    };
    return drive_create(&rig->model, &options);
}

static void run(struct drive *drive, const struct rig *rig, uint32_t first, uint32_t count,
                struct drive_seq *out_seqs)
{
    memset(out_seqs, 0, count * sizeof(*out_seqs));
    for (uint32_t i = 0; i < count; i++) {
        out_seqs[i].admit = rig->admits[first + i];
    }
    drive_run(drive, out_seqs, count);
    for (uint32_t i = 0; i < count; i++) {
        test_true(!out_seqs[i].has_failed);
    }
}

static void check_same(const struct drive_seq *got, const struct drive_seq *want)
{
    test_eq_u64(got->token_count, want->token_count);
    test_true(memcmp(got->tokens, want->tokens, want->token_count * sizeof(want->tokens[0])) == 0);
    test_eq_u64(got->digest, want->digest);
}

static uint32_t most_reuse(const struct drive_seq *seq, uint32_t unit_tokens)
{
    return (seq->admit.prompt.count - 1) / unit_tokens * unit_tokens;
}

/* Shapes do not differ: on cpu by nature, elsewhere because they are pinned. */
static void check_bits(const char *name)
{
    bool is_pinned = !backend_under_test()->is_exact;
    uint32_t unit_tokens = is_pinned ? num_max(PAGE, BACKEND_PINNED_TOKENS) : PAGE;
    struct rig rig;
    rig_load(&rig, name);
    struct drive_seq *cold = mem_zalloc(MAX_REQUESTS, sizeof(*cold));
    struct drive_seq *warm = mem_zalloc(MAX_REQUESTS, sizeof(*warm));
    struct drive *plain = drive_of(&rig, is_pinned, false);
    struct drive *caching = drive_of(&rig, is_pinned, true);
    uint32_t reused = 0;
    for (uint32_t i = 0; i < rig.count; i++) {
        run(plain, &rig, i, 1, &cold[i]);
        test_eq_u64(cold[i].reused, 0);
        for (uint32_t round = 0; round < 3; round++) {
            run(caching, &rig, i, 1, warm);
            check_same(warm, &cold[i]);
        }
        test_eq_u64(warm[0].reused, most_reuse(warm, unit_tokens));
        reused += warm[0].reused;
    }
    run(caching, &rig, 0, rig.count, warm); /* live ones share */
    for (uint32_t i = 0; i < rig.count; i++) {
        check_same(&warm[i], &cold[i]);
        test_eq_u64(warm[i].reused, most_reuse(&warm[i], unit_tokens));
    }
    test_true(reused > 0);
    drive_destroy(caching);
    drive_destroy(plain);
    mem_free(warm);
    mem_free(cold);
    golden_destroy(rig.golden);
}

static void test_same_shapes_give_the_bits_of_a_whole_prompt(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        check_bits(checkpoints[i]);
    }
}

/* Logprobs of the first token and of the best beside it, as they were reported. */
struct best {
    uint32_t ids[GOLDEN_TOP];
    float logprobs[GOLDEN_TOP];
    uint32_t count;
};

static void find_best(const struct drive *drive, const struct drive_seq *seq, struct best *out_best)
{
    out_best->count = 0;
    const struct result_record *record;
    for (uint32_t i = 0; (record = rig_record(&drive->session, i)) != NULL; i++) {
        const struct result_logprobs *more = &record->as.logprobs;
        if (record->kind != RESULT_LOGPROBS || record->seq_id != seq->admit.seq_id ||
            more->position != seq->admit.prompt.count) {
            continue;
        }
        for (uint32_t k = 0; k < more->pair_count && out_best->count < GOLDEN_TOP; k++) {
            out_best->ids[out_best->count] = more->ids[k];
            out_best->logprobs[out_best->count++] = more->logprobs[k];
        }
    }
    test_eq_u64(out_best->count, GOLDEN_TOP);
}

/* At the tokens that both name: ids of equal worth may differ at the end of the lists. */
static void add_distance(const struct best *left, const struct best *right,
                         struct golden_distance *distance, uint32_t *pairs)
{
    for (uint32_t i = 0; i < GOLDEN_TOP; i++) {
        for (uint32_t k = 0; k < GOLDEN_TOP; k++) {
            if (left->ids[i] == right->ids[k]) {
                double apart = fabs((double)left->logprobs[i] - (double)right->logprobs[k]);
                distance->mean += apart;
                distance->max = apart > distance->max || isnan(apart) ? apart : distance->max;
                (*pairs)++;
            }
        }
    }
}

/* Shapes as they come: a warm prompt is as near to a cold one as two runs of the reference are. */
static void check_noise(const char *name)
{
    struct rig rig;
    rig_load(&rig, name);
    struct drive_seq *seq = mem_zalloc(1, sizeof(*seq));
    struct drive *plain = drive_of(&rig, false, false);
    struct drive *caching = drive_of(&rig, false, true);
    struct golden_distance apart = {0};
    uint32_t pairs = 0;
    for (uint32_t i = 0; i < rig.count; i++) {
        struct best cold = {0};
        struct best warm = {0};
        run(plain, &rig, i, 1, seq);
        find_best(plain, seq, &cold);
        run(caching, &rig, i, 1, seq);
        run(caching, &rig, i, 1, seq);
        test_eq_u64(seq->reused, most_reuse(seq, PAGE));
        find_best(caching, seq, &warm);
        add_distance(&cold, &warm, &apart, &pairs);
    }
    test_true(pairs > rig.count * GOLDEN_TOP / 2);
    apart.mean /= pairs;
    const struct golden_distance *yardstick = &rig.golden->yardstick;
    printf("%s: warm and cold apart by mean %.4f max %.4f, yardstick %.4f %.4f\n", name, apart.mean,
           apart.max, yardstick->mean, yardstick->max);
    test_true(apart.mean <= M_SQRT2 * 1.25 * yardstick->mean);
    test_true(rig.golden->has_experts || apart.max <= M_SQRT2 * 2.0 * yardstick->max);
    drive_destroy(caching);
    drive_destroy(plain);
    mem_free(seq);
    golden_destroy(rig.golden);
}

static void test_other_shapes_stay_within_the_noise(void)
{
    for (uint32_t i = 0; i < CHECKPOINT_COUNT; i++) {
        check_noise(checkpoints[i]);
    }
}

static const struct test_case cases[] = {
    TEST(test_same_shapes_give_the_bits_of_a_whole_prompt),
    TEST(test_other_shapes_stay_within_the_noise),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
