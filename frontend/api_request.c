#include "frontend/api_request.h"

#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "frontend/api_request_internal.h"

static enum err_code read_flag(const struct json_t *object, const char *name, const char *param,
                               bool *out_given, bool *out_flag, struct api_error *error)
{
    const struct json_t *value = api_request_given(object, name);
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_BOOL) {
        return api_request_wrong_kind(value, param, "true or false", error);
    }
    *out_given = true;
    *out_flag = json_bool(value);
    return ERR_OK;
}

static enum err_code read_stream_options(const struct json_t *body, struct api_request *request,
                                         struct api_error *error)
{
    static const char param[] = "stream_options";
    const struct json_t *value = api_request_given(body, param);
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_OBJECT) {
        return api_request_wrong_kind(value, param, "an object", error);
    }
    if (!request->stream) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "stream_options is only allowed where stream is true");
    }
    bool ignored = false;
    enum err_code code = read_flag(value, "include_usage", "stream_options.include_usage", &ignored,
                                   &request->include_usage, error);
    if (!code) {
        code = read_flag(value, "continuous_usage_stats", "stream_options.continuous_usage_stats",
                         &ignored, &request->include_live_usage, error);
    }
    return code;
}

static enum err_code read_id_list(const struct json_t *list, struct api_prompt *prompt,
                                  struct api_error *error)
{
    size_t count = json_count(list);
    if (count > PLAN_MAX_PROMPT_TOKENS) {
        return api_error_set(error, ERR_LIMIT, "prompt", "prompt has %zu token ids, at most %d",
                             count, PLAN_MAX_PROMPT_TOKENS);
    }
    prompt->ids = mem_zalloc(count + 1, sizeof(*prompt->ids));
    for (size_t i = 0; i < count; i++) {
        enum err_code code =
            api_request_read_id(json_element(list, i), "prompt", &prompt->ids[i], error);
        if (code) {
            return code;
        }
    }
    prompt->id_count = (uint32_t)count;
    return ERR_OK;
}

static enum err_code read_prompt(const struct json_t *value, struct api_prompt *prompt,
                                 struct api_error *error)
{
    if (json_kind(value) == JSON_KIND_ARRAY) {
        return read_id_list(value, prompt, error);
    }
    if (json_kind(value) != JSON_KIND_TEXT) {
        return api_request_wrong_kind(value, "prompt",
                                      "a string, a list of token ids, or a list of either", error);
    }
    prompt->text.at = json_text(value, &prompt->text.byte_count);
    return ERR_OK;
}

/* A list whose first element is a prompt is a list of prompts. */
static bool is_prompt_list(const struct json_t *value)
{
    const struct json_t *first =
        json_kind(value) == JSON_KIND_ARRAY ? json_element(value, 0) : NULL;
    return first && (json_kind(first) == JSON_KIND_TEXT || json_kind(first) == JSON_KIND_ARRAY);
}

static enum err_code read_prompts(const struct json_t *body, struct api_request *request,
                                  struct api_error *error)
{
    const struct json_t *value = api_request_given(body, "prompt");
    if (!value) {
        return api_error_set(error, ERR_ARGUMENT, "prompt", "prompt is required");
    }
    bool is_list = is_prompt_list(value);
    size_t count = is_list ? json_count(value) : 1;
    if (count > API_MAX_CHOICES) {
        return api_error_set(error, ERR_LIMIT, "prompt", "prompt is a list of %zu, at most %d",
                             count, API_MAX_CHOICES);
    }
    request->prompts = mem_zalloc(count, sizeof(*request->prompts));
    request->prompt_count = (uint32_t)count;
    enum err_code code = ERR_OK;
    for (size_t i = 0; !code && i < count; i++) {
        code = read_prompt(is_list ? json_element(value, i) : value, &request->prompts[i], error);
    }
    return code;
}

/* How many answers. */
static enum err_code read_choices(struct api_request *request, struct api_error *error)
{
    request->n = request->has_n ? request->n : 1;
    if (request->has_best_of && request->best_of != request->n) {
        return api_error_set(error, ERR_UNSUPPORTED, "best_of",
                             "best_of is %u and n is %u: choosing among answers is not served",
                             request->best_of, request->n);
    }
    if (request->n * request->prompt_count > API_MAX_CHOICES) {
        return api_error_set(error, ERR_LIMIT, "n",
                             "n is %u for each of %u prompts, at most %d "
                             "answers together",
                             request->n, request->prompt_count, API_MAX_CHOICES);
    }
    return ERR_OK;
}

/* Values that are not this server's to honour yet are refused by name. */
static enum err_code refuse_unserved(const struct json_t *body, struct api_request *request,
                                     struct api_error *error)
{
    struct api_text suffix = {NULL, 0};
    enum err_code code = request->route == API_ROUTE_COMPLETIONS
                             ? api_request_read_text(body, "suffix", &suffix, error)
                             : ERR_OK;
    if (code) {
        return code;
    }
    if (suffix.byte_count > 0) {
        return api_error_set(error, ERR_UNSUPPORTED, "suffix",
                             "suffix is not served: the model continues text, it does not fill in");
    }
    return ERR_OK;
}

static enum err_code read_tools(const struct json_t *body, struct api_request *request,
                                struct api_error *error)
{
    const struct json_t *tools = api_request_given(body, "tools");
    if (tools && json_kind(tools) != JSON_KIND_ARRAY) {
        return api_request_wrong_kind(tools, "tools", "a list of tools", error);
    }
    enum err_code code = api_request_read_tool_choice(body, tools, request, error);
    bool is_none = request->tool_choice == API_TOOL_CHOICE_NONE;
    request->tools = tools && !is_none && json_count(tools) > 0 ? tools : NULL;
    return code;
}

/* chat_template_kwargs.enable_thinking decides; without it, any reasoning_effort but "none". */
static enum err_code read_thinking(const struct json_t *body, struct api_request *request,
                                   struct api_error *error)
{
    struct api_text effort = {NULL, 0};
    enum err_code code = api_request_read_text(body, "reasoning_effort", &effort, error);
    if (code) {
        return code;
    }
    if (effort.at) {
        static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
        uint32_t known = 0;
        while (known < sizeof(efforts) / sizeof(efforts[0]) &&
               strcmp(efforts[known], effort.at) != 0) {
            known++;
        }
        if (known == sizeof(efforts) / sizeof(efforts[0])) {
            return api_error_set(error, ERR_ARGUMENT, "reasoning_effort",
                                 "reasoning_effort '%.32s' is none of none, minimal, low, medium, "
                                 "high, xhigh",
                                 effort.at);
        }
        request->has_thinking = true;
        request->enable_thinking = known != 0;
    }
    const struct json_t *options = api_request_given(body, "chat_template_kwargs");
    if (!options) {
        return ERR_OK;
    }
    if (json_kind(options) != JSON_KIND_OBJECT) {
        return api_request_wrong_kind(options, "chat_template_kwargs", "an object", error);
    }
    bool ignored = false;
    code = read_flag(options, "enable_thinking", "chat_template_kwargs.enable_thinking",
                     &request->has_thinking, &request->enable_thinking, error);
    if (!code) {
        code = read_flag(options, "preserve_thinking", "chat_template_kwargs.preserve_thinking",
                         &ignored, &request->preserve_thinking, error);
    }
    return code;
}

static enum err_code read_chat(const struct json_t *body, struct api_request *request,
                               struct api_error *error)
{
    request->messages = api_request_given(body, "messages");
    if (!request->messages) {
        return api_error_set(error, ERR_ARGUMENT, "messages", "messages is required");
    }
    if (json_kind(request->messages) != JSON_KIND_ARRAY) {
        return api_request_wrong_kind(request->messages, "messages", "a list of messages", error);
    }
    if (json_count(request->messages) == 0) {
        return api_error_set(error, ERR_ARGUMENT, "messages", "messages must not be empty");
    }
    if (request->has_top_logprobs && request->top_logprobs > 0 && !request->logprobs) {
        return api_error_set(error, ERR_ARGUMENT, "top_logprobs",
                             "top_logprobs needs logprobs to be true");
    }
    if (request->has_max_completion_tokens) {
        request->max_tokens = request->max_completion_tokens;
        request->has_max_tokens = true;
    }
    if (request->has_continue_final_message && request->continue_final_message) {
        if (request->has_add_generation_prompt && request->add_generation_prompt) {
            return api_error_set(error, ERR_ARGUMENT, "continue_final_message",
                                 "continue_final_message and add_generation_prompt exclude each "
                                 "other");
        }
        request->has_add_generation_prompt = true;
    }
    request->prompt_count = 1;
    request->wants_logprobs = request->logprobs;
    request->pair_count = request->logprobs ? request->top_logprobs : 0;
    enum err_code code = read_choices(request, error);
    if (!code) {
        code = read_tools(body, request, error);
    }
    return code ? code : read_thinking(body, request, error);
}

/* Whose type alone matters: they are the client's own. */
static enum err_code read_labels(const struct json_t *body, struct api_request *request,
                                 struct api_error *error)
{
    (void)request;
    struct api_text user = {NULL, 0};
    const struct json_t *metadata = api_request_given(body, "metadata");
    if (metadata && json_kind(metadata) != JSON_KIND_OBJECT) {
        return api_request_wrong_kind(metadata, "metadata", "an object", error);
    }
    return api_request_read_text(body, "user", &user, error);
}

/* What contradicts itself. */
static enum err_code check_together(const struct json_t *body, struct api_request *request,
                                    struct api_error *error)
{
    (void)body;
    bool asks_for_prompt = request->echo || request->has_prompt_logprobs;
    if (request->has_max_tokens && request->max_tokens == 0 &&
        (request->route == API_ROUTE_CHAT || !asks_for_prompt)) {
        return api_error_set(
            error, ERR_ARGUMENT, "max_tokens",
            "max_tokens is 0, which needs echo or prompt_logprobs in a completion; "
            "it must be at least 1 otherwise");
    }
    if (request->stream && request->has_prompt_logprobs) {
        return api_error_set(error, ERR_ARGUMENT, "prompt_logprobs",
                             "prompt_logprobs is only served where stream is false");
    }
    if (request->has_min_tokens && request->has_max_tokens &&
        request->min_tokens > request->max_tokens) {
        return api_error_set(error, ERR_ARGUMENT, "min_tokens",
                             "min_tokens is %u, more than max_tokens, %u", request->min_tokens,
                             request->max_tokens);
    }
    return ERR_OK;
}

static enum err_code read_completion(const struct json_t *body, struct api_request *request,
                                     struct api_error *error)
{
    request->wants_logprobs = request->has_logprob_count;
    request->pair_count = request->logprob_count;
    enum err_code code = read_prompts(body, request, error);
    return code ? code : read_choices(request, error);
}

enum err_code api_request_parse(const struct json_t *body, enum api_route route,
                                struct api_request *out_request, struct api_error *error)
{
    memset(out_request, 0, sizeof(*out_request));
    out_request->route = route;
    typedef enum err_code (*read_fn)(const struct json_t *, struct api_request *,
                                     struct api_error *);
    const read_fn readers[] = {
        api_request_read_fields,
        refuse_unserved,
        route == API_ROUTE_CHAT ? read_chat : read_completion,
        api_request_read_salt,
        api_request_read_stop,
        api_request_read_stop_ids,
        api_request_read_logit_bias,
        api_request_read_allowed,
        api_request_read_bad_words,
        read_stream_options,
        api_request_read_constraint,
        read_labels,
        check_together,
    };
    enum err_code code = api_request_read_text(body, "model", &out_request->model, error);
    for (uint32_t i = 0; !code && i < sizeof(readers) / sizeof(readers[0]); i++) {
        code = readers[i](body, out_request, error);
    }
    return code;
}

void api_request_fini(struct api_request *request)
{
    for (uint32_t i = 0; request->prompts && i < request->prompt_count; i++) {
        mem_free(request->prompts[i].ids);
    }
    mem_free(request->prompts);
    mem_free(request->allowed_ids);
    mem_free(request->bad_words);
    mem_free(request->logit_bias);
    api_request_constraint_fini(&request->constraint);
    request->allowed_ids = NULL;
    request->bad_words = NULL;
    request->prompts = NULL;
    request->logit_bias = NULL;
}

enum err_code api_request_parse_body(const char *bytes, size_t byte_count, struct json_t **out_body,
                                     struct api_error *error)
{
    struct err err;
    *out_body = NULL;
    if (byte_count == 0) {
        return api_error_set(error, ERR_FORMAT, NULL, "the body is empty; it must be JSON");
    }
    enum err_code code = json_parse(bytes, byte_count, API_REQUEST_MAX_DEPTH, out_body, &err);
    if (code) {
        return api_error_set(error, code, NULL, "the body is not valid JSON: %s", err.message);
    }
    if (json_kind(*out_body) != JSON_KIND_OBJECT) {
        code = api_error_set(error, ERR_ARGUMENT, NULL, "the body must be a JSON object, not %s",
                             json_kind_text(json_kind(*out_body)));
        json_release(*out_body);
        *out_body = NULL;
    }
    return code;
}
