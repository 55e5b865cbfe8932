/* References that lie beside the golden checkpoints, and the yardsticks made from them.
 *
 * golden.safetensors holds, per case of n prompt tokens, the truth (an f32 run of the reference) at
 * the 16 best tokens of every position, and what two bf16 runs of the reference gave at the same
 * tokens; and greedy continuations of some cases with their margins.  A load failure ends the
 * running test. */
#ifndef TESTS_TESTLIB_GOLDEN_H
#define TESTS_TESTLIB_GOLDEN_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/model_config.h"

#define GOLDEN_TOP       16
#define GOLDEN_MAX_CASES 16

enum golden_run {
    GOLDEN_RUN_EAGER,
    GOLDEN_RUN_SDPA,
    GOLDEN_RUN_COUNT,
};

struct golden_case {
    uint32_t count;                        /* prompt tokens */
    bool weighs_positions;                 /* in rates each position counts, not each case */
    uint32_t *ids;                         /* [count] */
    uint32_t *top_ids;                     /* [count, GOLDEN_TOP] best first */
    float *top_logprobs;                   /* [count, GOLDEN_TOP] the truth */
    float *run_logprobs[GOLDEN_RUN_COUNT]; /* [count, GOLDEN_TOP] of a bf16 run, at top_ids */
    float *full_logprobs;                  /* [count, vocab] the truth; null for most cases */
};

struct golden_greedy {
    const struct golden_case *prompt;
    uint32_t count;
    uint32_t *tokens; /* [count] picked by the f32 run, one after the other */
    float *margins;   /* [count] logprob of the best less that of the second */
    uint32_t
        *run_tokens[GOLDEN_RUN_COUNT]; /* [count] best of a bf16 run behind the same tokens; null
                                               where the file does not say */
};

/* Distances from the truth over all cases: mean of the cases' means, as the reference's own summary
 * weighs them, and the largest. */
struct golden_distance {
    double mean;
    double max;
};

struct golden {
    char dir[1024]; /* the checkpoint */
    uint32_t vocab_tokens;
    bool
        has_experts; /* a near-tie between two goes either way, and then a token lies anywhere: of such
                         a checkpoint means and rates count, never one distance or one margin */
    struct golden_case cases[GOLDEN_MAX_CASES]; /* by count, shortest first */
    uint32_t case_count;
    struct golden_greedy greedy[GOLDEN_MAX_CASES];
    uint32_t greedy_count;
    struct golden_distance runs[GOLDEN_RUN_COUNT];
    struct golden_distance yardstick; /* mean and max each of the better run */
    double top1_rate; /* how often the worse bf16 run's best token is the truth's: means over cases,
                         or over positions where reference-noise.json says so */
};

/* name: "dense-unified", ...  All is owned by the result. */
struct golden *golden_load(const char *name);
void golden_destroy(struct golden *golden);

/* How often a backend's best token must at least be the truth's: as often as the worse bf16 run's, less
 * two points.  Fresh checkpoints, unlike the committed ones, differ from run to run: there chance may
 * take two standard deviations of a difference of two rates more. */
double golden_least_rate(const struct golden *golden);        /* over the cases' positions */
double golden_least_greedy_rate(const struct golden *golden); /* over the steps of all greedy */

/* Collects a backend's distances case by case, in the same weighing. */
struct golden_meter {
    double mean_sum;
    double max;
    double top1_sum;
    double top1_weight;
    uint32_t case_count;
};

/* logprobs [count, GOLDEN_TOP]: the backend's at the case's top_ids; best_ids [count]: its best
 * token per position, or null. */
void golden_meter_add(struct golden_meter *meter, const struct golden_case *golden_case,
                      const float *logprobs, const uint32_t *best_ids);
struct golden_distance golden_meter_distance(const struct golden_meter *meter);
double golden_meter_top1_rate(const struct golden_meter *meter);

/* Prints distance and yardstick under a label; true when the mean is within 1.25 times and, without
 * experts, the max within 2 times of the yardstick. */
bool golden_is_within(const struct golden *golden, const struct golden_distance *distance,
                      const char *label);

/* Prompts and greedy outputs of the demo model, from its reference-greedy.json. */
struct golden_prompt {
    char name[64];
    uint32_t *prompt_ids;
    uint32_t prompt_count;
    uint32_t *output_ids;
    uint32_t output_count;
};
struct golden_prompts {
    struct golden_prompt *at;
    uint32_t count;
};
void golden_prompts_load(struct golden_prompts *prompts);
void golden_prompts_fini(struct golden_prompts *prompts);

#endif
