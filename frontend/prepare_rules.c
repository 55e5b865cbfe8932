/* Which tokens a request may have: allowed_token_ids and bad_words. */
#include "frontend/prepare.h"

#include <string.h>

#include "common/mem.h"
#include "frontend/constraint_tokens.h"

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void add_row(struct prepared *prepared, struct tok_ids *row)
{
    if (row->count == 1) {
        tok_ids_push(&prepared->suppressed, row->at[0]);
        tok_ids_fini(row);
    } else {
        prepared->bad_rows[prepared->bad_row_count++] = *row;
    }
}

/* The spaced row is a token and the bare one: that one stands for both. */
static bool ends_with(const struct tok_ids *row, const struct tok_ids *end)
{
    return row->count >= end->count &&
           (end->count == 0 ||
            memcmp(row->at + row->count - end->count, end->at, end->count * sizeof(*end->at)) == 0);
}

/* A word may begin a text or stand behind a space, and be other tokens there. */
static void add_bad_word(const struct prepare_model *model, const struct api_text *word,
                         struct prepared *prepared)
{
    const char *text = word->at;
    size_t byte_count = word->byte_count;
    while (byte_count > 0 && is_white(text[0])) {
        text++;
        byte_count--;
    }
    struct tok_ids bare = {0};
    struct tok_ids spaced = {0};
    struct buf with_space;
    buf_init(&with_space);
    buf_append_char(&with_space, ' ');
    buf_append(&with_space, text, byte_count);
    tok_encode(model->tokenizer, text, byte_count, TOK_SPECIAL_PARSE, &bare);
    tok_encode(model->tokenizer, with_space.at, with_space.used_bytes, TOK_SPECIAL_PARSE, &spaced);
    buf_fini(&with_space);
    if (bare.count == 0 || !ends_with(&spaced, &bare)) {
        add_row(prepared, &spaced);
    } else {
        tok_ids_fini(&spaced);
    }
    if (bare.count > 0) {
        add_row(prepared, &bare);
    } else {
        tok_ids_fini(&bare);
    }
}

static enum err_code add_bad_words(const struct prepare_model *model, struct prepared *prepared,
                                   struct api_error *error)
{
    const struct api_request *request = &prepared->request;
    if (request->bad_word_count == 0) {
        return ERR_OK;
    }
    if (!model->tokenizer) {
        return api_error_set(error, ERR_UNSUPPORTED, "bad_words",
                             "this checkpoint has no tokenizer.json: use logit_bias");
    }
    prepared->bad_rows =
        mem_zalloc((size_t)2 * request->bad_word_count, sizeof(*prepared->bad_rows));
    for (uint32_t i = 0; i < model->checkpoint->suppress_count; i++) {
        tok_ids_push(&prepared->suppressed, model->checkpoint->suppress_ids[i]);
    }
    for (uint32_t i = 0; i < request->bad_word_count; i++) {
        add_bad_word(model, &request->bad_words[i], prepared);
    }
    if (prepared->suppressed.count > PLAN_MAX_LOGIT_BIAS) {
        return api_error_set(error, ERR_LIMIT, "bad_words",
                             "bad_words and the model suppress %zu tokens, at most %d",
                             prepared->suppressed.count, PLAN_MAX_LOGIT_BIAS);
    }
    return ERR_OK;
}

static bool holds(const uint32_t *ids, size_t count, uint32_t id)
{
    size_t i = 0;
    while (i < count && ids[i] != id) {
        i++;
    }
    return i < count;
}

/* Something is left at every position: not suppressed, and no end before min_tokens. */
static enum err_code check_allowed(const struct plan_admit *admit,
                                   const struct api_request *request, uint32_t vocab_tokens,
                                   struct api_error *error)
{
    bool is_left = false;
    for (uint32_t i = 0; i < request->allowed_count; i++) {
        uint32_t id = request->allowed_ids[i];
        if (id >= vocab_tokens) {
            return api_error_set(error, ERR_ARGUMENT, "allowed_token_ids",
                                 "allowed_token_ids holds %u, outside the vocabulary of %u", id,
                                 vocab_tokens);
        }
        bool is_end = holds(admit->stop_ids.at, admit->stop_ids.count, id);
        is_left = is_left || (!holds(admit->suppress_ids.at, admit->suppress_ids.count, id) &&
                              !(is_end && admit->min_tokens > 0));
    }
    if (request->allowed_count > 0 && !is_left) {
        return api_error_set(error, ERR_ARGUMENT, "allowed_token_ids",
                             "allowed_token_ids holds only ids that are suppressed, or end the "
                             "output before min_tokens");
    }
    return ERR_OK;
}

enum err_code prepare_rules(const struct prepare_model *model, uint32_t vocab_tokens,
                            struct prepared *prepared, struct api_error *error)
{
    enum err_code code = add_bad_words(model, prepared, error);
    for (uint32_t i = 0; !code && i < prepared->prompt_count; i++) {
        struct plan_admit *admit = &prepared->prompts[i].plan.admit;
        if (prepared->suppressed.count > 0) {
            admit->suppress_ids = (struct wire_u32_array){prepared->suppressed.at,
                                                          (uint32_t)prepared->suppressed.count};
        }
        code = check_allowed(admit, &prepared->request, vocab_tokens, error);
        admit->constrained = prepared->request.allowed_count > 0 || prepared->bad_row_count > 0;
    }
    prepared->vocab_tokens = vocab_tokens;
    return code;
}

struct constraint *prepare_rules_constraint(const struct prepared *prepared)
{
    const struct api_request *request = &prepared->request;
    if (request->allowed_count == 0 && prepared->bad_row_count == 0) {
        return NULL;
    }
    struct constraint_tokens tokens = {
        .allowed = request->allowed_count > 0 ? request->allowed_ids : NULL,
        .allowed_count = request->allowed_count,
        .rows = prepared->bad_rows,
        .row_count = prepared->bad_row_count,
        .vocab_tokens = prepared->vocab_tokens,
    };
    return constraint_tokens_create(&tokens);
}
