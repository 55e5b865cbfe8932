#include "frontend/api_request_constraint.h"

#include <stddef.h>
#include <string.h>

#include "common/json.h"
#include "frontend/api_request.h"
#include "frontend/api_request_internal.h"

enum {
    SCHEMA_DEPTH = 128
};

/* One constraint of a request, however it is spelled. */
static enum err_code claim(struct api_constraint *constraint, const char *param,
                           enum grammar_kind kind, struct api_error *error)
{
    if (constraint->is_given) {
        return api_error_set(error, ERR_ARGUMENT, param, "%s and %s exclude each other",
                             constraint->param, param);
    }
    constraint->is_given = true;
    constraint->param = param;
    constraint->source.kind = kind;
    return ERR_OK;
}

static enum err_code take_schema(struct api_constraint *constraint, const char *param,
                                 const struct json_t *value, struct api_error *error)
{
    enum err_code code = claim(constraint, param, GRAMMAR_SCHEMA, error);
    if (code) {
        return code;
    }
    constraint->source.value = value;
    if (json_kind(value) == JSON_KIND_TEXT) { /* some clients send it written out */
        struct err err;
        size_t byte_count = 0;
        const char *text = json_text(value, &byte_count);
        code = json_parse(text, byte_count, SCHEMA_DEPTH, &constraint->owned, &err);
        if (code) {
            return api_error_set(error, ERR_ARGUMENT, param, "%s is no JSON: %s", param,
                                 err.message);
        }
        constraint->source.value = constraint->owned;
    }
    return ERR_OK;
}

static enum err_code take_regex(struct api_constraint *constraint, const char *param,
                                const struct json_t *value, struct api_error *error)
{
    if (json_kind(value) != JSON_KIND_TEXT) {
        return api_request_wrong_kind(value, param, "a string", error);
    }
    enum err_code code = claim(constraint, param, GRAMMAR_REGEX, error);
    constraint->source.regex = json_text(value, &constraint->source.regex_bytes);
    return code;
}

static enum err_code take_choice(struct api_constraint *constraint, const char *param,
                                 const struct json_t *value, struct api_error *error)
{
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return api_request_wrong_kind(value, param, "a list of strings", error);
    }
    constraint->source.value = value;
    return claim(constraint, param, GRAMMAR_CHOICE, error);
}

static enum err_code take_object(struct api_constraint *constraint, const char *param,
                                 const struct json_t *value, struct api_error *error)
{
    if (json_kind(value) != JSON_KIND_BOOL) {
        return api_request_wrong_kind(value, param, "true or false", error);
    }
    return json_bool(value) ? claim(constraint, param, GRAMMAR_OBJECT, error) : ERR_OK;
}

typedef enum err_code (*take_fn)(struct api_constraint *, const char *, const struct json_t *,
                                 struct api_error *);

/* A field by any of its names. */
struct spelling {
    const char *name;
    take_fn take;
};

static enum err_code read_spellings(const struct json_t *object, const struct spelling *spellings,
                                    size_t count, struct api_constraint *constraint,
                                    struct api_error *error)
{
    enum err_code code = ERR_OK;
    for (size_t i = 0; !code && i < count; i++) {
        const struct json_t *value = api_request_given(object, spellings[i].name);
        code = value ? spellings[i].take(constraint, spellings[i].name, value, error) : ERR_OK;
    }
    return code;
}

static enum err_code read_structured(const struct json_t *body, struct api_constraint *constraint,
                                     struct api_error *error)
{
    static const char param[] = "structured_outputs";
    static const struct spelling spellings[] = {{"json", take_schema},
                                                {"regex", take_regex},
                                                {"choice", take_choice},
                                                {"json_object", take_object}};
    const struct json_t *value = api_request_given(body, param);
    if (!value) {
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_OBJECT) {
        return api_request_wrong_kind(value, param, "an object", error);
    }
    if (api_request_given(value, "grammar") || api_request_given(value, "structural_tag")) {
        return api_error_set(error, ERR_UNSUPPORTED, param,
                             "structured_outputs: 'grammar' and 'structural_tag' are not served");
    }
    bool was_given = constraint->is_given;
    enum err_code code = read_spellings(value, spellings, sizeof(spellings) / sizeof(spellings[0]),
                                        constraint, error);
    constraint->param = constraint->is_given && !was_given ? param : constraint->param;
    return code;
}

static enum err_code read_format(const struct json_t *body, struct api_constraint *constraint,
                                 struct api_error *error)
{
    static const char param[] = "response_format";
    struct api_text type = {NULL, 0};
    const struct json_t *format = api_request_given(body, param);
    if (!format) {
        return ERR_OK;
    }
    bool is_object = json_kind(format) == JSON_KIND_OBJECT;
    enum err_code code = is_object ? api_request_read_text(format, "type", &type, error) : ERR_OK;
    if (code || !type.at) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "response_format must be an object with a type");
    }
    if (strcmp(type.at, "text") == 0) {
        return ERR_OK;
    }
    bool is_schema = strcmp(type.at, "json_schema") == 0;
    if (!is_schema && strcmp(type.at, "json_object") != 0) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "response_format '%.32s' is none of text, json_object, json_schema",
                             type.at);
    }
    const struct json_t *named = api_request_given(format, "json_schema");
    const struct json_t *holder = named && json_kind(named) == JSON_KIND_OBJECT ? named : format;
    const struct json_t *schema = api_request_given(holder, "schema");
    if (is_schema && !schema) {
        return api_error_set(error, ERR_ARGUMENT, param,
                             "response_format.json_schema must be an object with a schema");
    }
    return schema ? take_schema(constraint, param, schema, error)
                  : claim(constraint, param, GRAMMAR_OBJECT, error);
}

static enum err_code read_calls(struct api_request *request, struct api_error *error)
{
    struct api_constraint *constraint = &request->constraint;
    bool is_named = request->tool_choice == API_TOOL_CHOICE_NAMED;
    bool is_forced = is_named || request->tool_choice == API_TOOL_CHOICE_REQUIRED;
    if (!request->tools || (!is_forced && !constraint->is_given)) {
        return ERR_OK;
    }
    if (is_forced) {
        enum err_code code = claim(constraint, "tool_choice", GRAMMAR_NONE, error);
        if (code) {
            return code;
        }
    }
    constraint->source.tools = request->tools;
    constraint->source.tool = is_named ? request->tool_name.at : NULL;
    constraint->source.has_one_call =
        is_named || (request->has_parallel_calls && !request->parallel_calls);
    return ERR_OK;
}

/* What would leave no token, or none that ends. */
static enum err_code check_together(const struct api_request *request, struct api_error *error)
{
    if (!request->constraint.is_given) {
        return ERR_OK;
    }
    if (request->has_ignore_eos && request->ignore_eos) {
        return api_error_set(error, ERR_ARGUMENT, "ignore_eos",
                             "%s and ignore_eos exclude each other", request->constraint.param);
    }
    if (request->allowed_count > 0 || request->bad_word_count > 0) {
        const char *other = request->allowed_count > 0 ? "allowed_token_ids" : "bad_words";
        return api_error_set(error, ERR_UNSUPPORTED, other, "%s beside %s is not served", other,
                             request->constraint.param);
    }
    if (request->has_min_tokens && request->min_tokens > 0) {
        return api_error_set(error, ERR_ARGUMENT, "min_tokens",
                             "%s and min_tokens exclude each other: the output ends where it is "
                             "complete",
                             request->constraint.param);
    }
    return ERR_OK;
}

enum err_code api_request_read_constraint(const struct json_t *body, struct api_request *request,
                                          struct api_error *error)
{
    static const struct spelling spellings[] = {
        {"guided_json", take_schema},
        {"json_schema", take_schema},
        {"regex", take_regex},
        {"guided_regex", take_regex},
        {"choice", take_choice},
        {"guided_choice", take_choice},
        {"guided_json_object", take_object},
    };
    struct api_constraint *constraint = &request->constraint;
    if (api_request_given(body, "guided_grammar") || api_request_given(body, "grammar")) {
        return api_error_set(error, ERR_UNSUPPORTED, "grammar", "grammar is not served");
    }
    enum err_code code = read_format(body, constraint, error);
    if (!code) {
        code = read_spellings(body, spellings, sizeof(spellings) / sizeof(spellings[0]), constraint,
                              error);
    }
    if (!code) {
        code = read_structured(body, constraint, error);
    }
    if (!code) {
        code = read_calls(request, error);
    }
    return code ? code : check_together(request, error);
}

void api_request_constraint_fini(struct api_constraint *constraint)
{
    json_release(constraint->owned);
    constraint->owned = NULL;
}
