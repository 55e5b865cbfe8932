/* The scalar fields of the table, and the lists that both routes share. */
#include "frontend/api_request_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "common/sha256.h"

enum field_kind {
    FIELD_KIND_F32,
    FIELD_KIND_U32,
    FIELD_KIND_I64,
    FIELD_KIND_BOOL,
};

struct field_row {
    struct api_field field;
    enum field_kind kind;
    size_t offset_bytes;
    size_t has_offset_bytes;
};

#define ROUTES_CHAT        true, false
#define ROUTES_COMPLETIONS false, true
#define ROUTES_BOTH        true, true

#define FIELD_ROW(name, kind, min, max, is_chat, is_completions) \
    {                                                            \
        name, #kind, min, max, is_chat, is_completions           \
    }
/* Expands the route pair before FIELD_ROW counts its arguments. */
#define FIELD_ROW_OF(...) FIELD_ROW(__VA_ARGS__)

static const struct field_row field_rows[] = {
#define FIELD(kind, member, name, min, max, routes)                          \
    {FIELD_ROW_OF(name, kind, min, max, ROUTES_##routes), FIELD_KIND_##kind, \
     offsetof(struct api_request, member), offsetof(struct api_request, has_##member)},
#include "frontend/api_request.def"
#undef FIELD
};

enum {
    FIELD_COUNT = sizeof(field_rows) / sizeof(field_rows[0])
};

/* Present and not null. */
const struct json_t *api_request_given(const struct json_t *body, const char *name)
{
    const struct json_t *value = json_member(body, name);
    return value && json_kind(value) != JSON_KIND_NULL ? value : NULL;
}

enum err_code api_request_wrong_kind(const struct json_t *value, const char *param,
                                     const char *wanted, struct api_error *error)
{
    return api_error_set(error, ERR_ARGUMENT, param, "%s must be %s, not %s", param, wanted,
                         json_kind_text(json_kind(value)));
}

static bool is_number(enum json_kind kind)
{
    return kind == JSON_KIND_INTEGER || kind == JSON_KIND_BIG_INTEGER || kind == JSON_KIND_REAL;
}

/* 1.0 counts as 1: some clients send whole numbers with a point. */
static bool is_whole(const struct json_t *value)
{
    enum json_kind kind = json_kind(value);
    if (kind != JSON_KIND_REAL) {
        return kind == JSON_KIND_INTEGER;
    }
    double number = json_number(value);
    return number > -9e15 && number < 9e15 && (double)(int64_t)number == number;
}

static int64_t whole(const struct json_t *value)
{
    return json_kind(value) == JSON_KIND_REAL ? (int64_t)json_number(value) : json_int64(value);
}

static enum err_code out_of_range(const struct field_row *row, const struct json_t *value,
                                  struct api_error *error)
{
    struct buf shown;
    buf_init(&shown);
    json_put_value(&shown, value);
    enum err_code code = api_error_set(
        error, ERR_ARGUMENT, row->field.name,
        row->kind == FIELD_KIND_F32 ? "%s is %.32s; it must be at least %.6g and at most %.6g"
                                    : "%s is %.32s; it must be at least %.16g and at most %.16g",
        row->field.name, buf_text(&shown), row->field.min_value, row->field.max_value);
    buf_fini(&shown);
    return code;
}

static enum err_code read_number(const struct field_row *row, const struct json_t *value,
                                 void *member, struct api_error *error)
{
    bool wants_whole = row->kind != FIELD_KIND_F32;
    if (wants_whole && json_kind(value) == JSON_KIND_BIG_INTEGER) {
        return out_of_range(row, value, error);
    }
    if (wants_whole ? !is_whole(value) : !is_number(json_kind(value))) {
        return api_request_wrong_kind(value, row->field.name,
                                      wants_whole ? "an integer" : "a number", error);
    }
    /* Judged as it will be kept: 1e-50 is no probability mass as a float. */
    double number = wants_whole ? (double)whole(value) : (double)(float)json_number(value);
    if (number < row->field.min_value || number > row->field.max_value) {
        return out_of_range(row, value, error);
    }
    switch (row->kind) {
    case FIELD_KIND_F32: {
        float narrow = (float)number;
        memcpy(member, &narrow, sizeof(narrow));
        break;
    }
    case FIELD_KIND_U32: {
        uint32_t narrow = (uint32_t)whole(value);
        memcpy(member, &narrow, sizeof(narrow));
        break;
    }
    case FIELD_KIND_I64: {
        int64_t wide = whole(value);
        memcpy(member, &wide, sizeof(wide));
        break;
    }
    case FIELD_KIND_BOOL: break;
    }
    return ERR_OK;
}

static enum err_code read_field(const struct field_row *row, const struct json_t *value,
                                struct api_request *request, struct api_error *error)
{
    char *base = (char *)request;
    enum err_code code = ERR_OK;
    if (row->kind == FIELD_KIND_BOOL) {
        if (json_kind(value) != JSON_KIND_BOOL) {
            return api_request_wrong_kind(value, row->field.name, "true or false", error);
        }
        bool flag = json_bool(value);
        memcpy(base + row->offset_bytes, &flag, sizeof(flag));
    } else {
        code = read_number(row, value, base + row->offset_bytes, error);
    }
    bool has = true;
    memcpy(base + row->has_offset_bytes, &has, sizeof(has));
    return code;
}

enum err_code api_request_read_fields(const struct json_t *body, struct api_request *request,
                                      struct api_error *error)
{
    for (uint32_t i = 0; i < FIELD_COUNT; i++) {
        const struct field_row *row = &field_rows[i];
        bool applies =
            request->route == API_ROUTE_CHAT ? row->field.is_chat : row->field.is_completions;
        const struct json_t *value = applies ? api_request_given(body, row->field.name) : NULL;
        enum err_code code = value ? read_field(row, value, request, error) : ERR_OK;
        if (code) {
            return code;
        }
    }
    return ERR_OK;
}

enum err_code api_request_read_text(const struct json_t *body, const char *name,
                                    struct api_text *out_text, struct api_error *error)
{
    const struct json_t *value = api_request_given(body, name);
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_TEXT) {
        return api_request_wrong_kind(value, name, "a string", error);
    }
    out_text->at = json_text(value, &out_text->byte_count);
    return ERR_OK;
}

/* Requests reuse each other's prefixes only where their salts are the same; nobody can find another
 * text with the same hash, so 64 bits of it will do. */
enum err_code api_request_read_salt(const struct json_t *body, struct api_request *request,
                                    struct api_error *error)
{
    struct api_text salt = {NULL, 0};
    char hex[SHA256_HEX_BYTES];
    struct err err;
    enum err_code code = api_request_read_text(body, "cache_salt", &salt, error);
    if (code || !salt.at) {
        return code;
    }
    if (salt.byte_count == 0) {
        return api_error_set(error, ERR_ARGUMENT, "cache_salt", "cache_salt must not be empty");
    }
    if (sha256_hex(salt.at, salt.byte_count, hex, &err)) {
        return api_error_set(error, err.code, "cache_salt", "%s", err.message);
    }
    for (uint32_t i = 0; i < 16; i++) {
        uint64_t digit = hex[i] <= '9' ? (uint64_t)(hex[i] - '0') : (uint64_t)(hex[i] - 'a' + 10);
        request->cache_salt = request->cache_salt << 4 | digit;
    }
    request->cache_salt |= request->cache_salt == 0; /* 0 is no salt */
    return ERR_OK;
}

static enum err_code add_stop(const struct json_t *value, struct api_request *request,
                              struct api_error *error)
{
    if (json_kind(value) != JSON_KIND_TEXT) {
        return api_request_wrong_kind(value, "stop", "a string or a list of strings", error);
    }
    size_t byte_count = 0;
    const char *text = json_text(value, &byte_count);
    if (byte_count == 0) {
        return api_error_set(error, ERR_ARGUMENT, "stop", "stop strings must not be empty");
    }
    if (byte_count > STOP_MAX_BYTES) {
        return api_error_set(error, ERR_LIMIT, "stop", "a stop string has %zu bytes, at most %d",
                             byte_count, STOP_MAX_BYTES);
    }
    request->stops[request->stop_count++] = (struct api_text){text, byte_count};
    return ERR_OK;
}

enum err_code api_request_read_stop(const struct json_t *body, struct api_request *request,
                                    struct api_error *error)
{
    const struct json_t *value = api_request_given(body, "stop");
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return add_stop(value, request, error);
    }
    if (json_count(value) > STOP_MAX_STRINGS) {
        return api_error_set(error, ERR_LIMIT, "stop", "stop has %zu strings, at most %d",
                             json_count(value), STOP_MAX_STRINGS);
    }
    for (size_t i = 0; i < json_count(value); i++) {
        enum err_code code = add_stop(json_element(value, i), request, error);
        if (code) {
            return code;
        }
    }
    return ERR_OK;
}

/* A token id: its upper bound is the vocabulary's and is checked by the caller of this module. */
enum err_code api_request_read_id(const struct json_t *value, const char *param, uint32_t *out_id,
                                  struct api_error *error)
{
    if (value && json_kind(value) == JSON_KIND_BIG_INTEGER) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "%s holds an integer beyond 64 bits, which is no token id", param);
    }
    if (!value || !is_whole(value)) {
        return api_error_set(error, ERR_ARGUMENT, param, "%s must hold integers only, not %s",
                             param, value ? json_kind_text(json_kind(value)) : "nothing");
    }
    int64_t id = whole(value);
    if (id < 0 || id > UINT32_MAX - 1) {
        return api_error_set(error, ERR_ARGUMENT, param, "%s holds %lld, which is no token id",
                             param, (long long)id);
    }
    *out_id = (uint32_t)id;
    return ERR_OK;
}

enum err_code api_request_read_stop_ids(const struct json_t *body, struct api_request *request,
                                        struct api_error *error)
{
    static const char param[] = "stop_token_ids";
    const struct json_t *value = api_request_given(body, param);
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return api_request_wrong_kind(value, param, "a list of token ids", error);
    }
    if (json_count(value) > PLAN_MAX_STOP_IDS) {
        return api_error_set(error, ERR_LIMIT, param, "%s has %zu ids, at most %d", param,
                             json_count(value), PLAN_MAX_STOP_IDS);
    }
    for (size_t i = 0; i < json_count(value); i++) {
        enum err_code code = api_request_read_id(json_element(value, i), param,
                                                 &request->stop_ids[request->stop_id_count], error);
        if (code) {
            return code;
        }
        request->stop_id_count++;
    }
    return ERR_OK;
}

/* One spelling per id, so that no id comes twice: keys of an object differ. */
static bool parse_id(const char *text, uint32_t *out_id)
{
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '\0')) {
        return false;
    }
    errno = 0;
    char *end = NULL;
    unsigned long id = strtoul(text, &end, 10);
    *out_id = (uint32_t)id;
    return errno == 0 && *end == '\0' && id < UINT32_MAX;
}

enum err_code api_request_read_logit_bias(const struct json_t *body, struct api_request *request,
                                          struct api_error *error)
{
    static const char param[] = "logit_bias";
    const struct json_t *value = api_request_given(body, param);
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_OBJECT) {
        return api_request_wrong_kind(value, param, "an object of token ids and numbers", error);
    }
    size_t count = json_count(value);
    if (count > PLAN_MAX_LOGIT_BIAS) {
        return api_error_set(error, ERR_LIMIT, param, "%s has %zu entries, at most %d", param,
                             count, PLAN_MAX_LOGIT_BIAS);
    }
    request->logit_bias = mem_zalloc(count + 1, sizeof(*request->logit_bias));
    struct json_iter iter;
    json_iter_start(&iter, value);
    while (json_iter_next(&iter)) {
        struct wire_bias *bias = &request->logit_bias[request->logit_bias_count];
        if (!parse_id(iter.key, &bias->token)) {
            return api_error_set(error, ERR_ARGUMENT, param, "'%.24s' in %s is no token id",
                                 iter.key, param);
        }
        if (!is_number(json_kind(iter.value))) {
            return api_request_wrong_kind(iter.value, param, "an object of token ids and numbers",
                                          error);
        }
        double number = json_number(iter.value);
        if (number < -100 || number > 100) {
            return api_error_set(error, ERR_ARGUMENT, param,
                                 "%s of token %u is %g; it must be from -100 to 100", param,
                                 bias->token, number);
        }
        bias->bias = (float)number;
        request->logit_bias_count++;
    }
    return ERR_OK;
}

bool api_request_knows(const char *name)
{
    static const char *const others[] = {
        "allowed_token_ids",
        "bad_words",
        "cache_salt",
        "chat_template_kwargs",
        "choice",
        "guided_choice",
        "guided_json",
        "guided_json_object",
        "guided_regex",
        "json_schema",
        "logit_bias",
        "messages",
        "metadata",
        "model",
        "prompt",
        "reasoning_effort",
        "regex",
        "response_format",
        "stop",
        "stop_token_ids",
        "stream_options",
        "structured_outputs",
        "suffix",
        "tool_choice",
        "tools",
        "user",
    };
    for (uint32_t i = 0; i < FIELD_COUNT; i++) {
        if (strcmp(field_rows[i].field.name, name) == 0) {
            return true;
        }
    }
    for (uint32_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strcmp(others[i], name) == 0) {
            return true;
        }
    }
    return false;
}

const struct api_field *api_request_field(uint32_t index)
{
    return index < FIELD_COUNT ? &field_rows[index].field : NULL;
}
