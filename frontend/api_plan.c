#include "frontend/api_plan.h"

#include <string.h>

#include "common/num.h"

static const char *prompt_param(const struct api_request *request)
{
    return request->route == API_ROUTE_CHAT ? "messages" : "prompt";
}

bool api_plan_add_bos(const struct checkpoint_info *checkpoint, struct tok_ids *prompt)
{
    uint32_t bos = checkpoint->bos_id;
    if (bos == CHECKPOINT_NO_ID || (prompt->count > 0 && prompt->at[0] == bos)) {
        return false;
    }
    tok_ids_push(prompt, bos);
    memmove(prompt->at + 1, prompt->at, (prompt->count - 1) * sizeof(*prompt->at));
    prompt->at[0] = bos;
    return true;
}

static enum err_code check_prompt(const struct api_request *request,
                                  const struct checkpoint_info *checkpoint,
                                  const struct api_limits *limits, const struct tok_ids *prompt,
                                  struct api_error *error)
{
    const char *param = prompt_param(request);
    if (prompt->count == 0) {
        return api_error_set(error, ERR_ARGUMENT, param, "the prompt is empty");
    }
    if (prompt->count >= limits->max_context_tokens) {
        enum err_code code = api_error_set(
            error, ERR_LIMIT, param,
            "the prompt has %zu tokens; the context holds %u, at least one of them for output",
            prompt->count, limits->max_context_tokens);
        error->slug = "context_length_exceeded";
        return code;
    }
    for (size_t i = 0; i < prompt->count; i++) {
        uint32_t id = prompt->at[i];
        if (id >= limits->vocab_tokens) {
            return api_error_set(error, ERR_ARGUMENT, param,
                                 "token id %u at position %zu is outside the vocabulary of %u", id,
                                 i, limits->vocab_tokens);
        }
        if (checkpoint_is_modality(checkpoint, id)) {
            return api_error_set(error, ERR_ARGUMENT, param,
                                 "token id %u at position %zu stands for another modality; only "
                                 "text is served",
                                 id, i);
        }
    }
    return ERR_OK;
}

static enum err_code check_ids(const struct api_request *request, const struct api_limits *limits,
                               struct api_error *error)
{
    for (uint32_t i = 0; i < request->stop_id_count; i++) {
        if (request->stop_ids[i] >= limits->vocab_tokens) {
            return api_error_set(error, ERR_ARGUMENT, "stop_token_ids",
                                 "stop_token_ids holds %u, outside the vocabulary of %u",
                                 request->stop_ids[i], limits->vocab_tokens);
        }
    }
    for (uint32_t i = 0; i < request->logit_bias_count; i++) {
        if (request->logit_bias[i].token >= limits->vocab_tokens) {
            return api_error_set(error, ERR_ARGUMENT, "logit_bias",
                                 "logit_bias names token %u, outside the vocabulary of %u",
                                 request->logit_bias[i].token, limits->vocab_tokens);
        }
    }
    return ERR_OK;
}

static bool holds(const uint32_t *ids, uint32_t count, uint32_t id)
{
    uint32_t i = 0;
    while (i < count && ids[i] != id) {
        i++;
    }
    return i < count;
}

/* The checkpoint's end ids (unless ignored) and the request's own, each once. */
static enum err_code fill_stop_ids(const struct api_request *request,
                                   const struct checkpoint_info *checkpoint, struct api_plan *plan,
                                   struct api_error *error)
{
    uint32_t eos_count = request->ignore_eos ? 0 : checkpoint->eos_count;
    uint32_t count = 0;
    for (uint32_t i = 0; i < eos_count + request->stop_id_count; i++) {
        uint32_t id = i < eos_count ? checkpoint->eos_ids[i] : request->stop_ids[i - eos_count];
        if (holds(plan->stop_ids, count, id)) {
            continue;
        }
        if (count == PLAN_MAX_STOP_IDS) {
            return api_error_set(error, ERR_LIMIT, "stop_token_ids",
                                 "stop_token_ids has %u ids beside %u of the model, at most %d "
                                 "together",
                                 request->stop_id_count, eos_count, PLAN_MAX_STOP_IDS);
        }
        plan->stop_ids[count++] = id;
        plan->eos_count += i < eos_count;
    }
    plan->admit.stop_ids = (struct wire_u32_array){plan->stop_ids, count};
    return ERR_OK;
}

static enum err_code fill_lengths(const struct api_request *request,
                                  const struct api_limits *limits, struct api_plan *plan,
                                  struct api_error *error)
{
    struct plan_admit *admit = &plan->admit;
    uint32_t room = limits->max_context_tokens - admit->prompt.count;
    const char *param = request->has_max_completion_tokens ? "max_completion_tokens" : "max_tokens";
    if (request->has_max_tokens && request->max_tokens > room) {
        enum err_code code = api_error_set(
            error, ERR_LIMIT, param, "%s is %u and the prompt has %u tokens; the context holds %u",
            param, request->max_tokens, admit->prompt.count, limits->max_context_tokens);
        error->slug = "context_length_exceeded";
        return code;
    }
    uint32_t output = room;
    if (request->has_max_tokens) {
        output = request->max_tokens;
    } else if (limits->pool_tokens > admit->prompt.count) {
        output = num_min(room, limits->pool_tokens - admit->prompt.count);
    }
    if (request->min_tokens > output) {
        return api_error_set(error, ERR_LIMIT, "min_tokens",
                             "min_tokens is %u; at most %u tokens can be generated",
                             request->min_tokens, output);
    }
    plan->is_prompt_only = output == 0;
    admit->max_total = admit->prompt.count + num_max(output, 1);
    admit->min_tokens = request->min_tokens;
    return ERR_OK;
}

static void fill_sampling(const struct api_request *request,
                          const struct checkpoint_sampling *defaults, struct plan_admit *admit)
{
    float default_temperature = defaults->do_sample ? defaults->temperature : 0.0F;
    admit->temperature = request->has_temperature ? request->temperature : default_temperature;
    admit->top_k = defaults->top_k;
    if (request->has_top_k) {
        admit->top_k = request->top_k > 0 ? (uint32_t)request->top_k : 0;
    }
    float default_top_p = defaults->top_p < PLAN_MIN_TOP_P ? PLAN_MIN_TOP_P : defaults->top_p;
    admit->top_p = request->has_top_p ? request->top_p : default_top_p;
    admit->min_p = request->min_p;
    admit->presence_penalty = request->presence_penalty;
    admit->frequency_penalty = request->frequency_penalty;
    admit->repetition_penalty =
        request->has_repetition_penalty ? request->repetition_penalty : 1.0F;
    admit->seed = (uint64_t)request->seed;
    admit->logprobs = request->wants_logprobs ? request->pair_count + 1 : 0;
    admit->prompt_logprobs = request->has_prompt_logprobs ? request->prompt_logprobs + 1 : 0;
    if (request->echo && request->wants_logprobs) {
        admit->prompt_logprobs = num_max(admit->prompt_logprobs, admit->logprobs);
    }
}

enum err_code api_plan_build(const struct api_request *request,
                             const struct checkpoint_info *checkpoint,
                             const struct api_limits *limits, const struct tok_ids *prompt,
                             struct api_plan *out_plan, struct api_error *error)
{
    memset(out_plan, 0, sizeof(*out_plan));
    struct plan_admit *admit = &out_plan->admit;
    enum err_code code = check_prompt(request, checkpoint, limits, prompt, error);
    if (!code) {
        code = check_ids(request, limits, error);
    }
    if (!code) {
        admit->prompt = (struct wire_u32_array){prompt->at, (uint32_t)prompt->count};
        admit->output_start = admit->prompt.count;
        code = fill_lengths(request, limits, out_plan, error);
    }
    if (!code) {
        code = fill_stop_ids(request, checkpoint, out_plan, error);
    }
    if (!code) {
        fill_sampling(request, &checkpoint->sampling, admit);
        admit->logit_bias =
            (struct wire_bias_array){request->logit_bias, request->logit_bias_count};
        admit->cache_salt = request->cache_salt;
        admit->suppress_ids =
            (struct wire_u32_array){checkpoint->suppress_ids, checkpoint->suppress_count};
    }
    return code;
}
