/* Which keywords a schema may have, and which kinds of values they leave. */
#include <math.h>
#include <string.h>

#include "frontend/grammar_schema_internal.h"

enum keyword_class {
    KEYWORD_NOTE,   /* constrains nothing */
    KEYWORD_TYPE,   /* stands beside anything */
    KEYWORD_ALONE,  /* only beside notes and `type` */
    KEYWORD_OF_TYPE /* says something of the types beside it */
};

struct keyword {
    const char *name;
    enum keyword_class class;
    uint32_t types;
};

static const struct keyword keywords[] = {
    {"type", KEYWORD_TYPE, 0},
    {"enum", KEYWORD_ALONE, 0},
    {"const", KEYWORD_ALONE, 0},
    {"anyOf", KEYWORD_ALONE, 0},
    {"allOf", KEYWORD_ALONE, 0},
    {"$ref", KEYWORD_ALONE, 0},
    {"properties", KEYWORD_OF_TYPE, SCHEMA_OBJECT},
    {"required", KEYWORD_OF_TYPE, SCHEMA_OBJECT},
    {"additionalProperties", KEYWORD_OF_TYPE, SCHEMA_OBJECT},
    {"items", KEYWORD_OF_TYPE, SCHEMA_ARRAY},
    {"prefixItems", KEYWORD_OF_TYPE, SCHEMA_ARRAY},
    {"minItems", KEYWORD_OF_TYPE, SCHEMA_ARRAY},
    {"maxItems", KEYWORD_OF_TYPE, SCHEMA_ARRAY},
    {"minLength", KEYWORD_OF_TYPE, SCHEMA_STRING},
    {"maxLength", KEYWORD_OF_TYPE, SCHEMA_STRING},
    {"pattern", KEYWORD_OF_TYPE, SCHEMA_STRING},
    {"format", KEYWORD_OF_TYPE, SCHEMA_STRING},
    {"minimum", KEYWORD_OF_TYPE, SCHEMA_NUMBER},
    {"maximum", KEYWORD_OF_TYPE, SCHEMA_NUMBER},
    {"exclusiveMinimum", KEYWORD_OF_TYPE, SCHEMA_NUMBER},
    {"exclusiveMaximum", KEYWORD_OF_TYPE, SCHEMA_NUMBER},
    {"title", KEYWORD_NOTE, 0},
    {"description", KEYWORD_NOTE, 0},
    {"default", KEYWORD_NOTE, 0},
    {"examples", KEYWORD_NOTE, 0},
    {"example", KEYWORD_NOTE, 0},
    {"deprecated", KEYWORD_NOTE, 0},
    {"readOnly", KEYWORD_NOTE, 0},
    {"writeOnly", KEYWORD_NOTE, 0},
    {"strict", KEYWORD_NOTE, 0},
    {"discriminator", KEYWORD_NOTE, 0},
    {"$schema", KEYWORD_NOTE, 0},
    {"$id", KEYWORD_NOTE, 0},
    {"$comment", KEYWORD_NOTE, 0},
    {"$defs", KEYWORD_NOTE, 0},
    {"definitions", KEYWORD_NOTE, 0},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (strcmp(keywords[i].name, name) == 0) {
            return &keywords[i];
        }
    }
    return NULL;
}

static uint32_t type_named(const char *name)
{
    static const struct {
        const char *name;
        uint32_t types;
    } types[] = {
        {"null", SCHEMA_NULL},     {"boolean", SCHEMA_BOOL},  {"integer", SCHEMA_INTEGER},
        {"number", SCHEMA_NUMBER}, {"string", SCHEMA_STRING}, {"array", SCHEMA_ARRAY},
        {"object", SCHEMA_OBJECT},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, name) == 0) {
            return types[i].types;
        }
    }
    return 0;
}

static enum err_code read_type(struct schema *schema, const struct schema_path *path,
                               const struct json_t *value, uint32_t *types)
{
    bool is_text = json_kind(value) == JSON_KIND_TEXT;
    uint32_t type = is_text ? type_named(json_text(value, NULL)) : 0;
    if (type == 0) {
        return schema_fail(schema, path, ERR_ARGUMENT,
                           "type must be null, boolean, integer, number, string, array, object, or "
                           "a list of them");
    }
    *types |= type;
    return ERR_OK;
}

static enum err_code read_types(struct schema *schema, const struct schema_at *at,
                                const struct json_t *value, uint32_t *out_types)
{
    *out_types = 0;
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return read_type(schema, at->path, value, out_types);
    }
    enum err_code code = ERR_OK;
    for (size_t i = 0; !code && i < json_count(value); i++) {
        code = read_type(schema, at->path, json_element(value, i), out_types);
    }
    return code;
}

enum err_code schema_check(struct schema *schema, const struct schema_at *at, uint32_t *out_types)
{
    struct json_iter iter;
    uint32_t hinted = 0;
    json_iter_start(&iter, at->value);
    while (json_iter_next(&iter)) {
        const struct keyword *keyword = find_keyword(iter.key);
        bool is_void = strcmp(iter.key, "uniqueItems") == 0 &&
                       json_kind(iter.value) == JSON_KIND_BOOL && !json_bool(iter.value);
        if (keyword == NULL && !is_void && strncmp(iter.key, "x-", 2) != 0) {
            return schema_fail(schema, at->path, ERR_UNSUPPORTED, "'%.60s' is not served",
                               iter.key);
        }
        hinted |= keyword != NULL ? keyword->types : 0;
    }
    uint32_t types = hinted == 0 ? SCHEMA_ANY : hinted;
    const struct json_t *type = json_member(at->value, "type");
    enum err_code code = type != NULL ? read_types(schema, at, type, &types) : ERR_OK;
    *out_types = types & at->types;
    return code;
}

enum err_code schema_check_alone(struct schema *schema, const struct schema_at *at,
                                 const char *name)
{
    struct json_iter iter;
    json_iter_start(&iter, at->value);
    while (json_iter_next(&iter)) {
        const struct keyword *keyword = find_keyword(iter.key);
        bool constrains = keyword != NULL &&
                          (keyword->class == KEYWORD_ALONE || keyword->class == KEYWORD_OF_TYPE);
        if (constrains && strcmp(iter.key, name) != 0) {
            return schema_fail(schema, at->path, ERR_UNSUPPORTED, "'%s' beside '%s' is not served",
                               iter.key, name);
        }
    }
    return ERR_OK;
}

enum err_code schema_read_count(struct schema *schema, const struct schema_at *at,
                                const char *keyword, uint32_t *out_count)
{
    const struct json_t *value = json_member(at->value, keyword);
    if (value == NULL) {
        return ERR_OK;
    }
    enum json_kind kind = json_kind(value);
    double number = -1;
    if (kind == JSON_KIND_INTEGER || kind == JSON_KIND_BIG_INTEGER || kind == JSON_KIND_REAL) {
        number = json_number(value);
    }
    if (number < 0 || number != floor(number)) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "%s must be a count", keyword);
    }
    *out_count = number > BODY_LIMIT ? BODY_LIMIT : (uint32_t)number;
    return ERR_OK;
}
