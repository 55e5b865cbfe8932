#include "frontend/api_text.h"

#include "common/json.h"
#include "frontend/api_read.h"
#include "frontend/detok.h"

static enum err_code need_tokenizer(const struct prepare_model *model, struct api_error *error)
{
    if (model->tokenizer) {
        return ERR_OK;
    }
    return api_error_set(error, ERR_UNSUPPORTED, NULL,
                         "this checkpoint has no tokenizer.json: text is not served");
}

/* The body as an object that names no other model. */
static enum err_code open_body(const struct prepare_model *model, const struct prepare_input *input,
                               struct json_t **out_body, struct api_error *error)
{
    struct api_text name = {NULL, 0};
    *out_body = NULL;
    enum err_code code = need_tokenizer(model, error);
    if (!code) {
        code = api_request_parse_body(input->body->at, input->body->used_bytes, out_body, error);
    }
    if (!code) {
        code = api_request_read_text(*out_body, "model", &name, error);
    }
    return code ? code : prepare_check_model(model, &name, error);
}

static void put_ids(struct buf *out, const char *name, const struct tok_ids *ids)
{
    buf_printf(out, "\"%s\":[", name);
    for (size_t i = 0; i < ids->count; i++) {
        buf_printf(out, i > 0 ? ",%u" : "%u", ids->at[i]);
    }
    buf_append_char(out, ']');
}

/* A token that is part of a character has no text of its own: its entry's name stands for it. */
static void put_texts(struct buf *out, const struct tokenizer *tokenizer, const struct tok_ids *ids)
{
    buf_append_text(out, ",\"token_strs\":[");
    for (size_t i = 0; i < ids->count; i++) {
        uint32_t byte_count = 0;
        const char *text = tok_bytes(tokenizer, ids->at[i], &byte_count);
        buf_append_text(out, i > 0 ? "," : "");
        if (text && tok_is_byte(tokenizer, ids->at[i])) {
            buf_printf(out, "\"<0x%02X>\"", (unsigned char)text[0]);
        } else {
            json_put_text(out, text ? text : "", byte_count);
        }
    }
    buf_append_char(out, ']');
}

static enum err_code read_flag(const struct json_t *body, const char *name, bool *out_flag,
                               struct api_error *error)
{
    const struct json_t *value = api_request_given(body, name);
    if (value && json_kind(value) != JSON_KIND_BOOL) {
        return api_request_wrong_kind(value, name, "true or false", error);
    }
    *out_flag = value ? json_bool(value) : *out_flag;
    return ERR_OK;
}

static enum err_code encode_text(const struct prepare_model *model, const struct json_t *body,
                                 struct tok_ids *out_ids, struct api_error *error)
{
    struct api_text text = {NULL, 0};
    bool adds_special = true;
    enum err_code code = api_request_read_text(body, "prompt", &text, error);
    if (!code) {
        code = read_flag(body, "add_special_tokens", &adds_special, error);
    }
    if (!code && !text.at) {
        code = api_error_set(error, ERR_ARGUMENT, "prompt", "prompt or messages is required");
    }
    if (code) {
        return code;
    }
    tok_encode(model->tokenizer, text.at, text.byte_count, TOK_SPECIAL_PARSE, out_ids);
    if (adds_special) {
        (void)api_plan_add_bos(model->checkpoint, out_ids); /* whether it was there */
    }
    return ERR_OK;
}

static enum err_code encode_chat(const struct prepare_model *model, const struct json_t *body,
                                 struct tok_ids *out_ids, struct api_error *error)
{
    struct api_request request;
    enum err_code code = api_request_parse(body, API_ROUTE_CHAT, &request, error);
    if (!code) {
        code = prepare_render(model, &request, NULL, out_ids, error);
    }
    api_request_fini(&request);
    return code;
}

enum err_code api_text_tokenize(const struct prepare_model *model,
                                const struct prepare_input *input, struct buf *out,
                                struct api_error *error)
{
    struct json_t *body = NULL;
    struct tok_ids ids = {0};
    bool wants_texts = false;
    enum err_code code = open_body(model, input, &body, error);
    if (!code) {
        code = read_flag(body, "return_token_strs", &wants_texts, error);
    }
    if (!code) {
        code = api_request_given(body, "messages") ? encode_chat(model, body, &ids, error)
                                                   : encode_text(model, body, &ids, error);
    }
    if (!code) {
        buf_printf(out, "{\"count\":%zu,\"max_model_len\":", ids.count);
        if (input->limits.max_context_tokens > 0) {
            buf_printf(out, "%u,", input->limits.max_context_tokens);
        } else {
            buf_append_text(out, "null,");
        }
        put_ids(out, "tokens", &ids);
        if (wants_texts) {
            put_texts(out, model->tokenizer, &ids);
        } else {
            buf_append_text(out, ",\"token_strs\":null");
        }
        buf_append_char(out, '}');
    }
    tok_ids_fini(&ids);
    json_release(body);
    return code;
}

static enum err_code decode(const struct prepare_model *model, const struct json_t *list,
                            struct buf *out_text, struct api_error *error)
{
    static const char param[] = "tokens";
    struct detok detok;
    if (!list || json_kind(list) != JSON_KIND_ARRAY) {
        return api_error_set(error, ERR_ARGUMENT, param, "tokens must be a list of token ids");
    }
    detok_init(&detok, model->tokenizer, false);
    for (size_t i = 0; i < json_count(list); i++) {
        uint32_t id = 0;
        enum err_code code = api_request_read_id(json_element(list, i), param, &id, error);
        if (code) {
            return code;
        }
        if (id >= tok_vocab_count(model->tokenizer)) {
            return api_error_set(error, ERR_ARGUMENT, param,
                                 "token id %u at position %zu is outside the vocabulary of %u", id,
                                 i, tok_vocab_count(model->tokenizer));
        }
        detok_push(&detok, id, out_text);
    }
    detok_finish(&detok, out_text);
    return ERR_OK;
}

enum err_code api_text_detokenize(const struct prepare_model *model,
                                  const struct prepare_input *input, struct buf *out,
                                  struct api_error *error)
{
    struct json_t *body = NULL;
    struct buf text;
    buf_init(&text);
    enum err_code code = open_body(model, input, &body, error);
    if (!code) {
        code = decode(model, api_request_given(body, "tokens"), &text, error);
    }
    if (!code) {
        buf_append_text(out, "{\"prompt\":");
        json_put_text(out, buf_text(&text), text.used_bytes);
        buf_append_char(out, '}');
    }
    buf_fini(&text);
    json_release(body);
    return code;
}

enum err_code api_text_render(const struct prepare_model *model, const struct prepare_input *input,
                              struct buf *out, struct api_error *error)
{
    struct prepared prepared;
    struct buf text;
    buf_init(&text);
    struct prepare_input kept = *input;
    kept.route = API_ROUTE_CHAT;
    kept.rendered = &text;
    if (kept.limits.max_context_tokens == 0) { /* no worker was ever attached */
        kept.limits = (struct api_limits){
            .vocab_tokens = model->checkpoint->vocab_tokens,
            .max_context_tokens = PLAN_MAX_PROMPT_TOKENS,
            .pool_tokens = PLAN_MAX_PROMPT_TOKENS,
        };
    }
    enum err_code code = prepare_request(model, &kept, &prepared, error);
    if (!code) {
        buf_append_text(out, "{\"prompt\":");
        json_put_text(out, buf_text(&text), text.used_bytes);
        buf_append_char(out, ',');
        put_ids(out, "token_ids", &prepared.prompts[0].ids);
        buf_append_char(out, '}');
    }
    prepare_fini(&prepared);
    buf_fini(&text);
    return code;
}
