#include "frontend/prepare.h"

#include <string.h>

#include "common/json.h"
#include "common/mem.h"

enum err_code prepare_check_model(const struct prepare_model *model, const struct api_text *name,
                                  struct api_error *error)
{
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

enum err_code prepare_render(const struct prepare_model *model, const struct api_request *request,
                             struct buf *out_text, struct tok_ids *out_ids, struct api_error *error)
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
        .continue_final_message = request->continue_final_message,
    };
    struct chat_prompt prompt;
    struct err err;
    chat_prompt_init(&prompt);
    enum err_code code = chat_render(request->messages, request->tools, &options, &prompt, &err);
    if (code) {
        api_error_from_err(error, &err);
    } else {
        chat_encode(model->tokenizer, &prompt, out_ids);
    }
    if (!code && out_text) {
        buf_append(out_text, prompt.text.at, prompt.text.used_bytes);
    }
    chat_prompt_fini(&prompt);
    return code;
}

static enum err_code encode_completion(const struct prepare_model *model,
                                       const struct api_request *request, uint32_t index,
                                       struct prepared_prompt *out_prompt, struct api_error *error)
{
    const struct api_prompt *prompt = &request->prompts[index];
    if (!prompt->text.at) {
        for (uint32_t i = 0; i < prompt->id_count; i++) {
            tok_ids_push(&out_prompt->ids, prompt->ids[i]);
        }
        return ERR_OK;
    }
    if (!model->tokenizer) {
        return api_error_set(error, ERR_UNSUPPORTED, "prompt",
                             "this checkpoint has no tokenizer.json: prompt must be token ids");
    }
    bool adds_bos = !request->has_add_special_tokens || request->add_special_tokens;
    if (prompt->text.byte_count > 0) {
        tok_encode(model->tokenizer, prompt->text.at, prompt->text.byte_count, TOK_SPECIAL_PARSE,
                   &out_prompt->ids);
        out_prompt->has_added_bos =
            adds_bos && api_plan_add_bos(model->checkpoint, &out_prompt->ids);
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

static enum err_code prepare_prompt(const struct prepare_model *model,
                                    const struct prepare_input *input,
                                    const struct api_request *request, uint32_t index,
                                    struct prepared_prompt *prompt, struct api_error *error)
{
    enum err_code code = request->route == API_ROUTE_CHAT
                             ? prepare_render(model, request, input->rendered, &prompt->ids, error)
                             : encode_completion(model, request, index, prompt, error);
    if (!code) {
        code = api_plan_build(request, model->checkpoint, &input->limits, &prompt->ids,
                              &prompt->plan, error);
    }
    if (!code && !request->has_seed) {
        /* prompts that are the same shall not get the same answers */
        prompt->plan.admit.seed = input->random_seed + (uint64_t)index * request->n;
    }
    return code;
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
        code = prepare_check_model(model, &prepared->request.model, error);
    }
    if (!code) {
        code = check_stops(model, &prepared->request, error);
    }
    if (code) {
        return code;
    }
    /* Plans point into themselves: the array stays where it is. */
    prepared->prompt_count = prepared->request.prompt_count;
    prepared->prompts = mem_zalloc(prepared->prompt_count, sizeof(*prepared->prompts));
    for (uint32_t i = 0; !code && i < prepared->prompt_count; i++) {
        code = prepare_prompt(model, input, &prepared->request, i, &prepared->prompts[i], error);
    }
    if (!code) {
        code = prepare_rules(model, input->limits.vocab_tokens, prepared, error);
    }
    if (!code) {
        code = prepare_grammar(model, prepared, error);
    }
    return code;
}

uint64_t prepare_seed(const struct prepared *prepared, uint32_t prompt_index, uint32_t index)
{
    return prepared->prompts[prompt_index].plan.admit.seed + index;
}

void prepare_fini(struct prepared *prepared)
{
    for (uint32_t i = 0; prepared->prompts && i < prepared->prompt_count; i++) {
        tok_ids_fini(&prepared->prompts[i].ids);
    }
    mem_free(prepared->prompts);
    for (uint32_t i = 0; i < prepared->bad_row_count; i++) {
        tok_ids_fini(&prepared->bad_rows[i]);
    }
    mem_free(prepared->bad_rows);
    tok_ids_fini(&prepared->suppressed);
    grammar_release(prepared->grammar);
    api_request_fini(&prepared->request);
    json_release(prepared->body);
    memset(prepared, 0, sizeof(*prepared));
}
