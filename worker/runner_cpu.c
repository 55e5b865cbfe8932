/* The runner over device_cpu.  Threads: the executor calls the table; steps and slot openings run on
 * the device's stream thread.  What they share is a step buffer, handed over by the device's queue
 * and back by its done count, and the stop requests, which are atomic.
 *
 * Failure: a step that fails leaves slots as they were, but for its page patches, which always take
 * effect because the pages stay granted.  Steps launched before that failure was collected fail
 * too: each carries the number of failures collected at its launch, and runs only while no more have
 * happened. */
#include "worker/runner_cpu.h"

#include <assert.h>
#include <stddef.h>

#include "common/mem.h"
#include "worker/runner_cpu_internal.h"

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

static struct runner_cpu *runner_of(struct runner *runner)
{
    return (struct runner_cpu *)runner;
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

static enum err_code check_admit(const struct runner_limits *limits, uint32_t slot,
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

static bool has_penalty(const struct plan_admit *admit)
{
    return admit->presence_penalty != 0.0F || admit->frequency_penalty != 0.0F ||
           admit->repetition_penalty != 1.0F;
}

static void take_sampler(const struct plan_admit *admit, struct k_sampler *sampler)
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
        .counts_tokens = has_penalty(admit),
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

static enum err_code slot_open(struct runner *super, uint32_t slot, const struct plan_admit *admit,
                               struct err *err)
{
    struct runner_cpu *runner = runner_of(super);
    enum err_code code = check_admit(&super->limits, slot, admit, err);
    if (code != ERR_OK) {
        return code;
    }
    uint32_t context_count = has_penalty(admit) ? admit->prompt.count : 0;
    struct opening *opening =
        mem_zalloc(1, sizeof(*opening) + context_count * sizeof(opening->context[0]));
    opening->task.run = runner_cpu_on_open;
    opening->runner = runner;
    take_sampler(admit, &opening->sampler);
    for (uint32_t i = 0; i < context_count; i++) {
        opening->context[i] = admit->prompt.at[i];
    }
    /* Generation 0 is nobody's: it is what an untouched stop request holds. */
    runner->generations[slot] += runner->generations[slot] == UINT32_MAX ? 2 : 1;
    runner->wants_logprobs[slot] = admit->logprobs > 0;
    opening->args = (struct k_open_args){
        .slots = runner->tables.slots,
        .slot = slot,
        .generation = runner->generations[slot],
        .sampler = &opening->sampler,
        .context = opening->context,
        .context_count = context_count,
    };
    (void)device_cpu_enqueue(runner->device, &opening->task);
    return ERR_OK;
}

static void slot_stop(struct runner *super, uint32_t slot)
{
    struct runner_cpu *runner = runner_of(super);
    /* relaxed: the flag carries no data with it */
    __atomic_store_n(&runner->tables.stop_request[slot], runner->generations[slot],
                     __ATOMIC_RELAXED);
}

static void inject_into(struct runner_cpu *runner, struct launched *step)
{
    static const enum inject_stage stages[] = {
        INJECT_FORWARD, INJECT_SAMPLE, INJECT_DEVICE_LOST, INJECT_FREEZE, INJECT_DELAY_STEP_10MS,
    };
    for (uint32_t i = 0; runner->inject != NULL && i < sizeof(stages) / sizeof(stages[0]); i++) {
        step->injected[stages[i]] = inject_hits(runner->inject, stages[i]);
    }
}

static enum err_code launch(struct runner *super, const struct runner_step *step, struct err *err)
{
    struct runner_cpu *runner = runner_of(super);
    if (runner->launched_count - runner->collected_count >= super->limits.pipeline_depth) {
        return err_set(err, ERR_STEP, "%u steps in flight already", super->limits.pipeline_depth);
    }
    if (device_cpu_is_lost(runner->device)) {
        return err_set(err, ERR_DEVICE, "the device is lost");
    }
    struct launched *launched = &runner->steps[runner->launched_count % runner->step_cap];
    enum err_code code =
        stage_pack(&super->limits, step, runner->generations, &launched->upload, err);
    if (code != ERR_OK) {
        return code;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        launched->has_record[i] = runner->wants_logprobs[step->rows[i].slot];
    }
    inject_into(runner, launched);
    launched->failures_seen = runner->failures_collected;
    launched->task.run = runner_cpu_on_step;
    launched->task_number = device_cpu_enqueue(runner->device, &launched->task);
    runner->launched_count++;
    return ERR_OK;
}

static const struct launched *oldest(const struct runner_cpu *runner)
{
    return &runner->steps[runner->collected_count % runner->step_cap];
}

static bool is_done(struct runner *super)
{
    const struct runner_cpu *runner = runner_of(super);
    return runner->collected_count < runner->launched_count &&
           device_cpu_is_done(runner->device, oldest(runner)->task_number);
}

static bool wait_done(struct runner *super, uint64_t deadline_ns)
{
    const struct runner_cpu *runner = runner_of(super);
    return runner->collected_count < runner->launched_count &&
           device_cpu_wait(runner->device, oldest(runner)->task_number, deadline_ns);
}

static void wake(struct runner *super)
{
    device_cpu_wake(runner_of(super)->device);
}

static void take_pick(const struct launched *step, uint32_t index, struct runner_pick *out)
{
    const struct k_row *row = &step->upload.rows[index];
    const struct k_pick *pick = &step->picks[index];
    bool is_sampled = pick->outcome == K_OUTCOME_TOKEN || pick->outcome == K_OUTCOME_STOP ||
                      pick->outcome == K_OUTCOME_LENGTH;
    bool is_computed = is_sampled || pick->outcome == K_OUTCOME_NONE;
    const void *sampled = &step->sample_records[index];
    const void *prompt = is_computed && (row->flags & K_ROW_PROMPT_LOGPROBS) != 0
                             ? &step->prompt_records[row->first_id]
                             : NULL;
    *out = (struct runner_pick){
        .outcome = (enum runner_outcome)pick->outcome,
        .token = pick->token,
        .logprob = is_sampled && step->has_record[index] ? sampled : NULL,
        .prompt_logprobs = prompt,
    };
}

static void collect(struct runner *super, struct runner_result *out_result)
{
    struct runner_cpu *runner = runner_of(super);
    const struct launched *step = oldest(runner);
    *out_result = (struct runner_result){
        .status = step->status,
        .device_ns = step->device_ns,
        .picks = runner->picks,
    };
    if (step->status != ERR_OK) {
        out_result->error = step->error;
        /* Only the first of a chain counts: those after it were doomed when they were launched. */
        runner->failures_collected += step->failures_seen == runner->failures_collected ? 1 : 0;
    }
    for (uint32_t i = 0; i < step->upload.row_count; i++) {
        take_pick(step, i, &runner->picks[i]);
    }
    runner->collected_count++;
}

static void destroy(struct runner *super)
{
    struct runner_cpu *runner = runner_of(super);
    device_cpu_destroy(runner->device);
    mem_free(runner->generations);
    mem_free(runner->wants_logprobs);
    mem_free(runner->picks);
    mem_free(runner);
}

const struct runner_table runner_cpu_table = {
    .slot_open = slot_open,
    .slot_stop = slot_stop,
    .launch = launch,
    .is_done = is_done,
    .wait = wait_done,
    .wake = wake,
    .collect = collect,
    .destroy = destroy,
};
