/* The lists of tokens and words that an output is held to. */
#include "frontend/api_request_internal.h"

#include "common/json.h"
#include "common/mem.h"

enum err_code api_request_read_allowed(const struct json_t *body, struct api_request *request,
                                       struct api_error *error)
{
    static const char param[] = "allowed_token_ids";
    const struct json_t *value = api_request_given(body, param);
    if (!value) {
        return ERR_OK;
    }
    size_t count = json_count(value);
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return api_request_wrong_kind(value, param, "a list of token ids", error);
    }
    if (count == 0) {
        return api_error_set(error, ERR_ARGUMENT, param, "%s must not be empty", param);
    }
    if (count > PLAN_MAX_PROMPT_TOKENS) {
        return api_error_set(error, ERR_LIMIT, param, "%s has %zu ids, at most %d", param, count,
                             PLAN_MAX_PROMPT_TOKENS);
    }
    request->allowed_ids = mem_zalloc(count, sizeof(*request->allowed_ids));
    for (size_t i = 0; i < count; i++) {
        enum err_code code =
            api_request_read_id(json_element(value, i), param, &request->allowed_ids[i], error);
        if (code) {
            return code;
        }
    }
    request->allowed_count = (uint32_t)count;
    return ERR_OK;
}

enum err_code api_request_read_bad_words(const struct json_t *body, struct api_request *request,
                                         struct api_error *error)
{
    static const char param[] = "bad_words";
    const struct json_t *value = api_request_given(body, param);
    if (!value) {
        return ERR_OK;
    }
    size_t count = json_count(value);
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return api_request_wrong_kind(value, param, "a list of strings", error);
    }
    if (count > API_MAX_BAD_WORDS) {
        return api_error_set(error, ERR_LIMIT, param, "%s has %zu words, at most %d", param, count,
                             API_MAX_BAD_WORDS);
    }
    request->bad_words = mem_zalloc(count + 1, sizeof(*request->bad_words));
    for (size_t i = 0; i < count; i++) {
        const struct json_t *word = json_element(value, i);
        if (json_kind(word) != JSON_KIND_TEXT) {
            return api_request_wrong_kind(word, param, "a list of strings", error);
        }
        struct api_text *text = &request->bad_words[i];
        text->at = json_text(word, &text->byte_count);
        if (text->byte_count == 0 || text->byte_count > API_MAX_WORD_BYTES) {
            return api_error_set(error, ERR_LIMIT, param,
                                 "a word of %s has %zu bytes; at least 1 and at most %d", param,
                                 text->byte_count, API_MAX_WORD_BYTES);
        }
        request->bad_word_count++;
    }
    return ERR_OK;
}
