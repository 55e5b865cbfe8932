/* With pinned shapes a request's tokens and logprobs are the same in every bit: in every way of a
 * backend, at every pipeline depth, in any order, beside anything, early or late in an engine's life. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/core_drive.h"
#include "tests/testlib/demo_rig.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/test.h"

/* ---- four requests, one digest ---- */

enum {
    REQUESTS = 8, /* four prompts, greedy and drawn */
    PROMPTS = 4,
    OUTPUT = 64,
    PAIRS = 5, /* logprobs: the token and four more */
};

static const uint32_t prompt_counts[PROMPTS] = {31, 33, 35, 1421};

struct four {
    struct golden *golden;
    struct drive_model model;
    struct drive_seq *seqs; /* owned, [REQUESTS] */
    struct drive_seq *want; /* owned, [REQUESTS] of the first run */
    bool has_want;
    uint32_t run_count;
};

static struct four *four_create(void)
{
    struct four *four = mem_zalloc(1, sizeof(*four));
    four->golden = golden_load("dense-window1024");
    four->seqs = mem_zalloc(REQUESTS, sizeof(*four->seqs));
    four->want = mem_zalloc(REQUESTS, sizeof(*four->want));
    drive_model_load(&four->model, four->golden->dir);
    return four;
}

static void four_destroy(struct four *four)
{
    mem_free(four->want);
    mem_free(four->seqs);
    golden_destroy(four->golden);
    mem_free(four);
}

/* Request r: prompt r % 4, the second four drawn at temperature 1. */
static void four_prepare(struct four *four)
{
    const struct golden_case *longest = &four->golden->cases[four->golden->case_count - 1];
    test_true(longest->count >= 1421 + 3 * 40);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        uint32_t p = r % PROMPTS;
        struct plan_admit admit = rig_plain_admit(1, longest->ids + 40UL * p, prompt_counts[p],
                                                  prompt_counts[p] + OUTPUT);
        admit.temperature = r < PROMPTS ? 0.0F : 1.0F;
        admit.seed = 4242 + p;
        admit.logprobs = PAIRS;
        four->seqs[r] = (struct drive_seq){.admit = admit};
    }
}

static void four_compare(struct four *four, const char *what)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        const struct drive_seq *got = &four->seqs[r];
        struct drive_seq *want = &four->want[r];
        if (!four->has_want) {
            *want = *got;
        }
        test_eq_u64(got->token_count, OUTPUT);
        for (uint32_t t = 0; t < OUTPUT; t++) {
            if (got->tokens[t] != want->tokens[t]) {
                test_fail(__FILE__, __LINE__,
                          "%s: request %u (prompt of %u, %s): token %u is %u, "
                          "first run %u",
                          what, r, prompt_counts[r % PROMPTS], r < PROMPTS ? "greedy" : "drawn", t,
                          got->tokens[t], want->tokens[t]);
            }
        }
        if (got->digest != want->digest) {
            test_fail(__FILE__, __LINE__,
                      "%s: request %u (prompt of %u, %s): tokens are the same, a logprob is not",
                      what, r, prompt_counts[r % PROMPTS], r < PROMPTS ? "greedy" : "drawn");
        }
    }
    four->has_want = true;
    four->run_count++;
}

static struct drive_options four_options(const struct backend *backend, uint32_t depth)
{
    return (struct drive_options){
        .backend = backend,
        .limits =
            {
                .slots = REQUESTS,
                .max_step_rows = REQUESTS,
                .max_step_tokens = 256,
                .max_context_tokens = 1536,
                .page_tokens = 64,
                .pipeline_depth = depth,
            },
        .chunk_tokens = 256,
        .ahead = depth,
        .is_pinned = true,
    };
}

enum arrangement {
    ARRANGE_ALONE, /* one after the other */
    ARRANGE_TOGETHER,
    ARRANGE_REVERSED,
    ARRANGE_COUNT,
};

static void reverse(struct drive_seq *seqs)
{
    struct drive_seq *other = mem_zalloc(1, sizeof(*other));
    for (uint32_t r = 0; r < REQUESTS / 2; r++) {
        *other = seqs[r];
        seqs[r] = seqs[REQUESTS - 1 - r];
        seqs[REQUESTS - 1 - r] = *other;
    }
    mem_free(other);
}

static void four_run(struct four *four, const struct drive_options *options,
                     enum arrangement arrangement)
{
    char what[128];
    struct drive *drive = drive_create(&four->model, options);
    four_prepare(four);
    if (arrangement == ARRANGE_ALONE) {
        for (uint32_t r = 0; r < REQUESTS; r++) {
            drive_run(drive, &four->seqs[r], 1);
        }
    } else if (arrangement == ARRANGE_TOGETHER) {
        drive_run(drive, four->seqs, REQUESTS);
    } else {
        reverse(four->seqs);
        drive_run(drive, four->seqs, REQUESTS);
        reverse(four->seqs);
    }
    (void)snprintf(what, sizeof(what), "%s, depth %u, %s", options->backend->name,
                   options->limits.pipeline_depth,
                   arrangement == ARRANGE_ALONE      ? "alone"
                   : arrangement == ARRANGE_TOGETHER ? "together"
                                                     : "reversed");
    test_eq_u64(drive->refused_count, 0);
    test_eq_u64(drive->drained_count, 0);
    four_compare(four, what);
    drive_destroy(drive);
}

/* FNV-1a over the tokens of all requests: to be compared between machines and builds. */
static uint64_t four_digest(const struct four *four)
{
    uint64_t digest = 0xcbf29ce484222325ULL;
    for (uint32_t r = 0; r < REQUESTS; r++) {
        for (uint32_t t = 0; t < OUTPUT; t++) {
            digest = (digest ^ four->want[r].tokens[t]) * 0x100000001b3ULL;
        }
    }
    return digest;
}

/* Alone is slowest and runs at one depth; ways and depths meet in the others. */
static void four_run_all(struct four *four, const struct backend *backend)
{
    for (uint32_t depth = 1; depth <= 4; depth *= 2) {
        struct drive_options options = four_options(backend, depth);
        for (uint32_t a = depth == 2 ? ARRANGE_ALONE : ARRANGE_TOGETHER; a < ARRANGE_COUNT; a++) {
            four_run(four, &options, (enum arrangement)a);
        }
    }
}

static void test_four_requests_give_one_digest_in_every_mode(void)
{
    struct four *four = four_create();
    uint32_t backend_count = 0;
    const struct backend *const *backends = backends_under_test(&backend_count);
    for (uint32_t b = 0; b < backend_count; b++) {
        four_run_all(four, backends[b]);
    }
    printf("four requests, %u runs: digest %016llx\n", four->run_count,
           (unsigned long long)four_digest(four));
    four_destroy(four);
}

/* The same plans in two ways of a backend: padding is the same, so bits are, pinned or not. */
static void test_same_plans_give_the_same_bits_unpinned(void)
{
    struct four *four = four_create();
    uint32_t backend_count = 0;
    const struct backend *const *backends = backends_under_test(&backend_count);
    for (uint32_t b = 0; b < backend_count; b++) {
        struct drive_options options = four_options(backends[b], 1);
        options.is_pinned = false;
        four_run(four, &options, ARRANGE_TOGETHER);
    }
    four_destroy(four);
}

/* ---- beside others ---- */

enum {
    CROWD = 33, /* largest batch, the canary included */
    CROWD_SLOTS = 36,
    STEPS_PER_SIZE = 3,
    CANARY_OUTPUT = CROWD * STEPS_PER_SIZE,
    OTHER_MOST = 20, /* tokens of a neighbour */
};

struct canary_output {
    uint32_t tokens[CANARY_OUTPUT];
    struct runner_logprob logprobs[CANARY_OUTPUT];
    uint32_t count;
};

struct crowd {
    struct demo_rig *rig;
    bool is_open[CROWD_SLOTS];
    uint32_t left[CROWD_SLOTS]; /* tokens until the neighbour goes */
    uint64_t random;
};

static struct demo_rig *crowd_rig(const struct backend *backend)
{
    struct demo_rig *rig = demo_rig_create_stopped();
    rig->options.backend = backend;
    rig->options.slots = CROWD_SLOTS;
    rig->options.max_step_rows = CROWD_SLOTS;
    rig->options.max_context_tokens = 512;
    rig->options.is_pinned = true;
    demo_rig_start(rig);
    return rig;
}

static struct plan_admit canary_admit(const struct demo_rig *rig, bool is_greedy)
{
    struct plan_admit admit = demo_admit(rig, 2);
    admit.max_total = admit.prompt.count + CANARY_OUTPUT + 1;
    admit.seed = 77;
    admit.temperature = is_greedy ? 0.0F : 1.1F;
    admit.top_k = is_greedy ? 0 : 50;
    admit.frequency_penalty = is_greedy ? 0.0F : 0.4F;
    admit.logprobs = 3;
    return admit;
}

static struct plan_admit other_admit(struct crowd *crowd)
{
    uint64_t draw = test_random(&crowd->random);
    struct plan_admit admit = demo_admit(crowd->rig, (uint32_t)(draw % 6));
    admit.max_total = admit.prompt.count + OTHER_MOST + 2;
    admit.seed = draw;
    admit.temperature = draw >> 8 & 1U ? 1.5F : 0.0F;
    admit.top_p = draw >> 9 & 1U ? 0.9F : 1.0F;
    admit.repetition_penalty = draw >> 10 & 1U ? 1.2F : 1.0F;
    admit.logprobs = draw >> 11 & 1U ? 7 : 0;
    return admit;
}

/* The whole prompt in one segment, which no other row shares; its pick. */
static struct runner_pick run_prompt(struct crowd *crowd, uint32_t slot,
                                     const struct plan_admit *admit)
{
    driver_open(crowd->rig->driver, slot, admit);
    struct driver_row row = {.slot = slot, .count = admit->prompt.count};
    return driver_step(crowd->rig->driver, &row, 1).picks[0];
}

static void take(struct canary_output *output, const struct runner_pick *pick)
{
    test_eq_u64(pick->outcome, RUNNER_OUTCOME_TOKEN);
    test_true(pick->logprob != NULL && output->count < CANARY_OUTPUT);
    output->tokens[output->count] = pick->token;
    output->logprobs[output->count++] = *pick->logprob;
}

static void canary_alone(struct crowd *crowd, const struct plan_admit *admit,
                         struct canary_output *output)
{
    struct runner_pick pick = run_prompt(crowd, 0, admit);
    take(output, &pick);
    while (output->count < CANARY_OUTPUT) {
        struct driver_row row = {.slot = 0};
        pick = driver_step(crowd->rig->driver, &row, 1).picks[0];
        take(output, &pick);
    }
    driver_release(crowd->rig->driver, 0);
}

/* Neighbours whose time has come go, others come, until there are so many. */
static void fill_crowd(struct crowd *crowd, uint32_t wanted)
{
    uint32_t open = 0;
    for (uint32_t slot = 1; slot < CROWD_SLOTS; slot++) {
        if (crowd->is_open[slot] && (crowd->left[slot] == 0 || open == wanted)) {
            driver_release(crowd->rig->driver, slot);
            crowd->is_open[slot] = false;
        }
        open += crowd->is_open[slot];
    }
    for (uint32_t slot = 1; slot < CROWD_SLOTS && open < wanted; slot++) {
        if (!crowd->is_open[slot]) {
            struct plan_admit admit = other_admit(crowd);
            (void)run_prompt(crowd, slot, &admit);
            crowd->is_open[slot] = true;
            crowd->left[slot] = 1 + (uint32_t)(test_random(&crowd->random) % OTHER_MOST);
            open++;
        }
    }
}

/* One decode step of the canary and everybody, in a random order; returns the canary's pick. */
static struct runner_pick crowd_step(struct crowd *crowd)
{
    struct driver_row rows[CROWD_SLOTS] = {{.slot = 0}};
    uint32_t row_count = 1;
    uint32_t canary = 0;
    for (uint32_t slot = 1; slot < CROWD_SLOTS; slot++) {
        if (crowd->is_open[slot]) {
            uint32_t at = (uint32_t)(test_random(&crowd->random) % (row_count + 1));
            rows[row_count] = rows[at];
            rows[at] = (struct driver_row){.slot = slot};
            row_count++;
            crowd->left[slot]--;
        }
    }
    for (uint32_t i = 0; i < row_count; i++) {
        canary = rows[i].slot == 0 ? i : canary;
    }
    return driver_step(crowd->rig->driver, rows, row_count).picks[canary];
}

static void check_canary(struct crowd *crowd, bool is_greedy)
{
    const char *name = crowd->rig->options.backend->name;
    struct canary_output *alone = mem_zalloc(1, sizeof(*alone));
    struct canary_output *beside = mem_zalloc(1, sizeof(*beside));
    struct plan_admit admit = canary_admit(crowd->rig, is_greedy);
    canary_alone(crowd, &admit, alone);
    struct runner_pick pick = run_prompt(crowd, 0, &admit);
    take(beside, &pick);
    while (beside->count < CANARY_OUTPUT) {
        uint32_t at = beside->count;
        uint32_t size = 1 + at / STEPS_PER_SIZE;
        fill_crowd(crowd, size - 1);
        pick = crowd_step(crowd);
        take(beside, &pick);
        if (beside->tokens[at] != alone->tokens[at] ||
            !driver_is_same_logprob(&beside->logprobs[at], &alone->logprobs[at])) {
            test_fail(__FILE__, __LINE__,
                      "%s, %s canary in a batch of %u: token %u is %u (logprob %a), alone %u (%a)",
                      name, is_greedy ? "greedy" : "drawn", size, at, beside->tokens[at],
                      (double)beside->logprobs[at].logprob, alone->tokens[at],
                      (double)alone->logprobs[at].logprob);
        }
    }
    driver_release(crowd->rig->driver, 0);
    fill_crowd(crowd, 0);
    mem_free(beside);
    mem_free(alone);
}

static void test_a_canary_beside_every_batch_size(void)
{
    uint32_t backend_count = 0;
    const struct backend *const *backends = backends_under_test(&backend_count);
    for (uint32_t b = 0; b < backend_count; b++) {
        struct crowd crowd = {.rig = crowd_rig(backends[b]), .random = 33};
        check_canary(&crowd, true);
        check_canary(&crowd, false);
        demo_rig_destroy(crowd.rig);
    }
}

/* ---- order ---- */

enum {
    PERMUTED = 13,
    PERMUTED_STEPS = 24,
};

struct permuted_run {
    uint32_t tokens[PERMUTED][PERMUTED_STEPS];
    struct runner_logprob logprobs[PERMUTED][PERMUTED_STEPS];
};

/* Every sequence decodes in every step; random 0: in the order of their slots. */
static void run_permuted(struct crowd *crowd, uint64_t random, struct permuted_run *run)
{
    struct driver_row rows[PERMUTED];
    crowd->random = 5; /* the same requests every time */
    for (uint32_t slot = 0; slot < PERMUTED; slot++) {
        struct plan_admit admit = other_admit(crowd);
        admit.max_total = admit.prompt.count + PERMUTED_STEPS + 2;
        admit.logprobs = 2;
        (void)run_prompt(crowd, slot, &admit);
        rows[slot] = (struct driver_row){.slot = slot};
    }
    for (uint32_t step = 0; step < PERMUTED_STEPS; step++) {
        for (uint32_t i = PERMUTED - 1; random != 0 && i > 0; i--) {
            uint32_t other = (uint32_t)(test_random(&random) % (i + 1));
            struct driver_row row = rows[i];
            rows[i] = rows[other];
            rows[other] = row;
        }
        struct runner_result result = driver_step(crowd->rig->driver, rows, PERMUTED);
        for (uint32_t i = 0; i < PERMUTED; i++) {
            test_eq_u64(result.picks[i].outcome, RUNNER_OUTCOME_TOKEN);
            run->tokens[rows[i].slot][step] = result.picks[i].token;
            run->logprobs[rows[i].slot][step] = *result.picks[i].logprob;
        }
    }
    for (uint32_t slot = 0; slot < PERMUTED; slot++) {
        driver_release(crowd->rig->driver, slot);
    }
}

static void check_permuted(const struct backend *backend, bool is_pinned)
{
    struct crowd crowd = {.rig = demo_rig_create_stopped()};
    struct driver_options *options = &crowd.rig->options;
    options->backend = backend;
    options->slots = CROWD_SLOTS;
    options->max_context_tokens = 512;
    options->is_pinned = is_pinned;
    demo_rig_start(crowd.rig);
    struct permuted_run *want = mem_zalloc(1, sizeof(*want));
    struct permuted_run *got = mem_zalloc(1, sizeof(*got));
    run_permuted(&crowd, 0, want);
    for (uint64_t random = 1; random <= 3; random++) {
        run_permuted(&crowd, random, got);
        for (uint32_t i = 0; i < PERMUTED * PERMUTED_STEPS; i++) {
            uint32_t slot = i % PERMUTED;
            uint32_t step = i / PERMUTED;
            if (!driver_is_same_logprob(&got->logprobs[slot][step], &want->logprobs[slot][step])) {
                test_fail(__FILE__, __LINE__,
                          "%s, %s, order %llu: sequence %u step %u gives %u "
                          "(logprob %a), in order of slots %u (%a)",
                          backend->name, is_pinned ? "pinned" : "not pinned",
                          (unsigned long long)random, slot, step, got->tokens[slot][step],
                          (double)got->logprobs[slot][step].logprob, want->tokens[slot][step],
                          (double)want->logprobs[slot][step].logprob);
            }
        }
    }
    mem_free(got);
    mem_free(want);
    demo_rig_destroy(crowd.rig);
}

/* Always as many rows: their order is all that differs, so nothing need be pinned. */
static void test_permuted_rows_give_the_same_bits(void)
{
    uint32_t backend_count = 0;
    const struct backend *const *backends = backends_under_test(&backend_count);
    for (uint32_t b = 0; b < backend_count; b++) {
        check_permuted(backends[b], true);
        check_permuted(backends[b], false);
    }
}

/* ---- early and late ---- */

/* Slots, pages and counts that others left behind change nothing; what an idle engine holds is
 * nothing. */
static void test_an_idle_engine_refilled_equals_a_fresh_one(void)
{
    struct four *four = four_create();
    uint32_t backend_count = 0;
    const struct backend *const *backends = backends_under_test(&backend_count);
    for (uint32_t b = 0; b < backend_count; b++) {
        struct drive_options options = four_options(backends[b], 2);
        struct drive *drive = drive_create(&four->model, &options);
        for (uint32_t turn = 0; turn < 3; turn++) {
            char what[64];
            four_prepare(four);
            for (uint32_t r = 0; turn == 1 && r < REQUESTS; r++) {
                /* In between others: short, with penalties, so that slots and pages change hands. */
                four->seqs[r].admit.max_total = four->seqs[r].admit.prompt.count + 3 + r;
                four->seqs[r].admit.frequency_penalty = 1.0F;
            }
            drive_run(drive, four->seqs, REQUESTS);
            (void)snprintf(what, sizeof(what), "%s, turn %u", backends[b]->name, turn);
            if (turn != 1) {
                four_compare(four, what);
            }
            struct session_stats stats;
            session_core_stats(drive->rig.core, &stats);
            test_eq_u64(stats.sequences, 0);
            test_eq_u64(stats.pages_free[RUNNER_FAMILY_LOCAL],
                        drive->options.limits.pages[RUNNER_FAMILY_LOCAL]);
            test_eq_u64(stats.pages_free[RUNNER_FAMILY_GLOBAL],
                        drive->options.limits.pages[RUNNER_FAMILY_GLOBAL]);
        }
        drive_destroy(drive);
    }
    four_destroy(four);
}

static const struct test_case cases[] = {
    TEST(test_four_requests_give_one_digest_in_every_mode),
    TEST(test_same_plans_give_the_same_bits_unpinned),
    TEST(test_a_canary_beside_every_batch_size),
    TEST(test_permuted_rows_give_the_same_bits),
    TEST(test_an_idle_engine_refilled_equals_a_fresh_one),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
