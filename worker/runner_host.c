#include "worker/runner_host.h"

#include <assert.h>
#include <stddef.h>

#define MAX_STEP_ROWS 65536

/* A record of the sampler is handed out as it lies. */
static_assert(sizeof(struct runner_logprob) == sizeof(struct k_logprob));
static_assert(offsetof(struct runner_logprob, token) == offsetof(struct k_logprob, token));
static_assert(offsetof(struct runner_logprob, logprob) == offsetof(struct k_logprob, logprob));
static_assert(offsetof(struct runner_logprob, rank) == offsetof(struct k_logprob, rank));
static_assert(offsetof(struct runner_logprob, pair_count) ==
              offsetof(struct k_logprob, pair_count));
static_assert(offsetof(struct runner_logprob, ids) == offsetof(struct k_logprob, ids));
static_assert(offsetof(struct runner_logprob, logprobs) == offsetof(struct k_logprob, logprobs));
static_assert(PLAN_MAX_LOGPROBS == K_MAX_LOGPROBS && PLAN_MAX_STOP_IDS == K_MAX_STOP_IDS &&
              PLAN_MAX_LOGIT_BIAS == K_MAX_BIAS);
static_assert((int)RUNNER_OUTCOME_NONE == (int)K_OUTCOME_NONE &&
              (int)RUNNER_OUTCOME_TOKEN == (int)K_OUTCOME_TOKEN &&
              (int)RUNNER_OUTCOME_STOP == (int)K_OUTCOME_STOP &&
              (int)RUNNER_OUTCOME_LENGTH == (int)K_OUTCOME_LENGTH &&
              (int)RUNNER_OUTCOME_MASKED == (int)K_OUTCOME_MASKED &&
              (int)RUNNER_OUTCOME_HELD == (int)K_OUTCOME_HELD &&
              (int)RUNNER_OUTCOME_BAD == (int)K_OUTCOME_BAD);

static enum err_code check_limit(const char *name, uint32_t value, uint32_t least, uint32_t most,
                                 struct err *err)
{
    return value >= least && value <= most
               ? ERR_OK
               : err_set(err, ERR_ARGUMENT, "%s %u, %u to %u are taken", name, value, least, most);
}

enum err_code runner_check_limits(const struct model_config *config,
                                  const struct runner_limits *limits, struct err *err)
{
    const struct {
        const char *name;
        uint32_t value;
        uint32_t least;
        uint32_t most;
    } rows[] = {
        {"slots", limits->slots, 1, MAX_STEP_ROWS},
        {"max_step_rows", limits->max_step_rows, 1, MAX_STEP_ROWS},
        {"max_step_tokens", limits->max_step_tokens, 1, PLAN_MAX_STEP_TOKENS},
        {"max_context_tokens", limits->max_context_tokens, 1, config->max_positions},
        {"vocab_tokens", limits->vocab_tokens, config->info.vocab_tokens,
         config->info.vocab_tokens},
        {"window_tokens", limits->window_tokens,
         config->families[RUNNER_FAMILY_LOCAL].window_tokens,
         config->families[RUNNER_FAMILY_LOCAL].window_tokens},
        {"page_tokens", limits->page_tokens, 1, 1U << 16},
        {"local pages", limits->pages[RUNNER_FAMILY_LOCAL], 1, UINT32_MAX - 1},
        {"global pages", limits->pages[RUNNER_FAMILY_GLOBAL], 1, UINT32_MAX - 1},
        {"pipeline_depth", limits->pipeline_depth, 1, RUNNER_MAX_DEPTH},
    };
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum err_code code =
            check_limit(rows[i].name, rows[i].value, rows[i].least, rows[i].most, err);
        if (code != ERR_OK) {
            return code;
        }
    }
    if ((limits->page_tokens & (limits->page_tokens - 1)) != 0) {
        return err_set(err, ERR_ARGUMENT, "page_tokens %u is no power of two", limits->page_tokens);
    }
    return ERR_OK;
}

static enum err_code check_ids(const char *what, const uint32_t *ids, uint32_t count,
                               uint32_t vocab_tokens, struct err *err)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] >= vocab_tokens) {
            return err_set(err, ERR_ARGUMENT, "%s: token id %u, the vocabulary has %u", what,
                           ids[i], vocab_tokens);
        }
    }
    return ERR_OK;
}

enum err_code runner_check_admit(const struct runner_limits *limits, uint32_t slot,
                                 const struct plan_admit *admit, struct err *err)
{
    uint32_t vocab_tokens = limits->vocab_tokens;
    if (slot >= limits->slots) {
        return err_set(err, ERR_ARGUMENT, "slot %u of %u", slot, limits->slots);
    }
    if (admit->stop_ids.count > K_MAX_STOP_IDS || admit->suppress_ids.count > K_MAX_BIAS ||
        admit->logit_bias.count > K_MAX_BIAS) {
        return err_set(err, ERR_ARGUMENT,
                       "%u stop ids, %u suppressed, %u biased; at most %u, %u, %u",
                       admit->stop_ids.count, admit->suppress_ids.count, admit->logit_bias.count,
                       K_MAX_STOP_IDS, K_MAX_BIAS, K_MAX_BIAS);
    }
    enum err_code code =
        check_ids("prompt", admit->prompt.at, admit->prompt.count, vocab_tokens, err);
    if (code == ERR_OK) {
        code = check_ids("stop_ids", admit->stop_ids.at, admit->stop_ids.count, vocab_tokens, err);
    }
    if (code == ERR_OK) {
        code = check_ids("suppress_ids", admit->suppress_ids.at, admit->suppress_ids.count,
                         vocab_tokens, err);
    }
    for (uint32_t i = 0; code == ERR_OK && i < admit->logit_bias.count; i++) {
        code = check_ids("logit_bias", &admit->logit_bias.at[i].token, 1, vocab_tokens, err);
    }
    return code;
}

bool runner_counts_tokens(const struct plan_admit *admit)
{
    return admit->presence_penalty != 0.0F || admit->frequency_penalty != 0.0F ||
           admit->repetition_penalty != 1.0F;
}

void runner_take_sampler(const struct plan_admit *admit, struct k_sampler *sampler)
{
    *sampler = (struct k_sampler){
        .seed = admit->seed,
        .output_start = admit->output_start,
        .max_total = admit->max_total,
        .min_tokens = admit->min_tokens,
        .top_k = admit->top_k,
        .temperature = admit->temperature,
        .top_p = admit->top_p,
        .min_p = admit->min_p,
        .presence_penalty = admit->presence_penalty,
        .frequency_penalty = admit->frequency_penalty,
        .repetition_penalty = admit->repetition_penalty,
        .logprobs = admit->logprobs,
        .prompt_logprobs = admit->prompt_logprobs,
        .counts_tokens = runner_counts_tokens(admit),
        .ignore_eos = admit->ignore_eos,
        .stop_count = admit->stop_ids.count,
        .suppress_count = admit->suppress_ids.count,
        .bias_count = admit->logit_bias.count,
    };
    for (uint32_t i = 0; i < admit->stop_ids.count; i++) {
        sampler->stop_ids[i] = admit->stop_ids.at[i];
    }
    for (uint32_t i = 0; i < admit->suppress_ids.count; i++) {
        sampler->suppress_ids[i] = admit->suppress_ids.at[i];
    }
    for (uint32_t i = 0; i < admit->logit_bias.count; i++) {
        sampler->bias_ids[i] = admit->logit_bias.at[i].token;
        sampler->bias_values[i] = admit->logit_bias.at[i].bias;
    }
}

void runner_take_pick(const struct runner_raw *raw, struct runner_pick *out_pick)
{
    uint32_t outcome = raw->pick->outcome;
    bool is_sampled =
        outcome == K_OUTCOME_TOKEN || outcome == K_OUTCOME_STOP || outcome == K_OUTCOME_LENGTH;
    bool is_computed = is_sampled || outcome == K_OUTCOME_NONE;
    bool has_prompt = is_computed && (raw->row->flags & K_ROW_PROMPT_LOGPROBS) != 0;
    const void *prompt = has_prompt ? &raw->prompt_records[raw->row->first_id] : NULL;
    const void *sampled = is_sampled ? raw->sample_record : NULL;
    *out_pick = (struct runner_pick){
        .outcome = (enum runner_outcome)outcome,
        .token = raw->pick->token,
        .logprob = sampled,
        .prompt_logprobs = prompt,
    };
}
