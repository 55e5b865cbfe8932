#include "frontend/prepare.h"

#include <string.h>

#include "common/json.h"

static enum err_code check_model(const struct prepare_model *model,
                                 const struct api_request *request, struct api_error *error)
{
    const struct api_text *name = &request->model;
    if (!name->at || (strlen(model->name) == name->byte_count &&
                      memcmp(model->name, name->at, name->byte_count) == 0)) {
        return ERR_OK;
    }
    enum err_code code = api_error_set(error, ERR_NOT_FOUND, "model",
                                       "the model '%.64s' does not exist; this server has '%.64s'",
                                       name->at, model->name);
    error->slug = "model_not_found";
    return code;
}

static enum err_code render_chat(const struct prepare_model *model,
                                 const struct api_request *request, struct tok_ids *out_prompt,
                                 struct api_error *error)
{
    if (!model->tokenizer) {
        return api_error_set(error, ERR_UNSUPPORTED, "messages",
                             "this checkpoint has no tokenizer.json: only /v1/completions with "
                             "token ids is served");
    }
    if (model->chat_format == CHAT_FORMAT_NONE) {
        return api_error_set(error, ERR_UNSUPPORTED, "messages",
                             "this checkpoint has no chat template: use /v1/completions");
    }
    struct chat_options options = {
        .format = model->chat_format,
        .add_generation_prompt =
            !request->has_add_generation_prompt || request->add_generation_prompt,
        .enable_thinking = request->enable_thinking,
        .preserve_thinking = request->preserve_thinking,
    };
    struct chat_prompt prompt;
    struct err err;
    chat_prompt_init(&prompt);
    enum err_code code = chat_render(request->messages, request->tools, &options, &prompt, &err);
    if (code) {
        api_error_from_err(error, &err);
    } else {
        chat_encode(model->tokenizer, &prompt, out_prompt);
    }
    chat_prompt_fini(&prompt);
    return code;
}

static enum err_code encode_completion(const struct prepare_model *model,
                                       const struct api_request *request,
                                       struct tok_ids *out_prompt, struct api_error *error)
{
    if (request->is_prompt_ids) {
        for (uint32_t i = 0; i < request->prompt_id_count; i++) {
            tok_ids_push(out_prompt, request->prompt_ids[i]);
        }
        return ERR_OK;
    }
    if (!model->tokenizer) {
        return api_error_set(error, ERR_UNSUPPORTED, "prompt",
                             "this checkpoint has no tokenizer.json: prompt must be token ids");
    }
    if (request->prompt_text.byte_count > 0) {
        tok_encode(model->tokenizer, request->prompt_text.at, request->prompt_text.byte_count,
                   TOK_SPECIAL_PARSE, out_prompt);
        api_plan_add_bos(model->checkpoint, out_prompt);
    }
    return ERR_OK;
}

static enum err_code check_stops(const struct prepare_model *model,
                                 const struct api_request *request, struct api_error *error)
{
    if (request->stop_count > 0 && !model->tokenizer) {
        return api_error_set(error, ERR_UNSUPPORTED, "stop",
                             "this checkpoint has no tokenizer.json: use stop_token_ids");
    }
    return ERR_OK;
}

enum err_code prepare_request(const struct prepare_model *model, const struct prepare_input *input,
                              struct prepared *out_prepared, struct api_error *error)
{
    struct prepared *prepared = out_prepared;
    memset(prepared, 0, sizeof(*prepared));
    enum err_code code =
        api_request_parse_body(input->body->at, input->body->used_bytes, &prepared->body, error);
    if (!code) {
        code = api_request_parse(prepared->body, input->route, &prepared->request, error);
    }
    if (!code) {
        code = check_model(model, &prepared->request, error);
    }
    if (!code) {
        code = check_stops(model, &prepared->request, error);
    }
    if (!code) {
        code = input->route == API_ROUTE_CHAT
                   ? render_chat(model, &prepared->request, &prepared->prompt, error)
                   : encode_completion(model, &prepared->request, &prepared->prompt, error);
    }
    if (!code) {
        code = api_plan_build(&prepared->request, model->checkpoint, &input->limits,
                              &prepared->prompt, &prepared->plan, error);
    }
    if (!code && !prepared->request.has_seed) {
        prepared->plan.admit.seed = input->random_seed;
    }
    return code;
}

void prepare_fini(struct prepared *prepared)
{
    api_request_fini(&prepared->request);
    tok_ids_fini(&prepared->prompt);
    json_release(prepared->body);
    memset(prepared, 0, sizeof(*prepared));
}
