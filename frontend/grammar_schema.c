#include "frontend/grammar_schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/grammar_schema_internal.h"

enum {
    MAX_DEPTH = 200, /* of schemas within each other */
    MAX_PATH_BYTES = 120
};

struct schema *schema_create(struct net *net, enum schema_style style)
{
    struct schema *schema = mem_zalloc(1, sizeof(*schema));
    schema->net = net;
    schema->style = style;
    (void)net_node(net); /* node 0 is nobody's start */
    return schema;
}

void schema_destroy(struct schema *schema)
{
    if (schema == NULL) {
        return;
    }
    mem_free(schema->rules);
    mem_free(schema);
}

static void put_path(const struct schema_path *path, struct buf *out)
{
    if (path == NULL) {
        return;
    }
    put_path(path->up, out);
    if (out->used_bytes < MAX_PATH_BYTES) {
        buf_printf(out, "%s%.40s", out->used_bytes > 0 ? "." : "", path->key);
    }
}

enum err_code schema_fail(struct schema *schema, const struct schema_path *path, enum err_code code,
                          const char *format, ...)
{
    char text[ERR_MESSAGE_BYTES];
    struct buf at;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments); /* cut where it is too long */
    va_end(arguments);
    buf_init(&at);
    put_path(path, &at);
    (void)err_set(schema->err, code, "schema%s%s: %s", at.used_bytes > 0 ? " at " : "",
                  buf_text(&at), text); /* the code given */
    buf_fini(&at);
    return code;
}

/* ---- references ---- */

/* One step of a JSON pointer, "~1" and "~0" undone. */
static void take_pointer_step(const char **at, struct buf *out)
{
    buf_reset(out);
    while (**at != '\0' && **at != '/') {
        char c = **at;
        if (c == '~' && ((*at)[1] == '0' || (*at)[1] == '1')) {
            c = (*at)[1] == '0' ? '~' : '/';
            (*at)++;
        }
        buf_append_char(out, c);
        (*at)++;
    }
}

static const struct json_t *step_into(const struct json_t *value, const char *step)
{
    if (json_kind(value) == JSON_KIND_OBJECT) {
        return json_member(value, step);
    }
    if (json_kind(value) == JSON_KIND_ARRAY && step[0] >= '0' && step[0] <= '9') {
        return json_element(value, strtoul(step, NULL, 10));
    }
    return NULL;
}

enum err_code schema_find(struct schema *schema, const struct schema_path *path,
                          const char *reference, const struct json_t **out_value)
{
    const struct json_t *value = schema->root;
    const char *at = reference + 1;
    struct buf step;
    if (reference[0] != '#') {
        return schema_fail(schema, path, ERR_UNSUPPORTED,
                           "'$ref' %.60s is not served: only those within the schema", reference);
    }
    buf_init(&step);
    while (value != NULL && *at == '/') {
        at++;
        take_pointer_step(&at, &step);
        value = step_into(value, buf_text(&step));
    }
    buf_fini(&step);
    if (value == NULL || *at != '\0') {
        return schema_fail(schema, path, ERR_ARGUMENT, "'$ref' %.60s leads nowhere", reference);
    }
    *out_value = value;
    return ERR_OK;
}

/* ---- rules ---- */

enum err_code schema_put_rule(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    uint32_t i = 0;
    while (i < schema->rule_count &&
           (schema->rules[i].value != at->value || schema->rules[i].types != at->types)) {
        i++;
    }
    if (i == SCHEMA_MAX_RULES) {
        return schema_fail(schema, at->path, ERR_LIMIT, "more than %u lists and references",
                           SCHEMA_MAX_RULES);
    }
    if (i == schema->rule_count) {
        if (schema->rule_count == schema->rule_cap) {
            schema->rule_cap = schema->rule_cap == 0 ? 16 : schema->rule_cap * 2;
            schema->rules = mem_realloc(schema->rules, schema->rule_cap, sizeof(schema->rules[0]));
        }
        schema->rules[schema->rule_count++] = (struct schema_rule){.value = at->value,
                                                                   .root = schema->root,
                                                                   .types = at->types,
                                                                   .start = net_node(schema->net)};
    }
    *out_to = net_node(schema->net);
    net_call(schema->net, at->from, schema->rules[i].start, *out_to);
    return ERR_OK;
}

enum err_code schema_finish(struct schema *schema, struct err *err)
{
    schema->err = err;
    while (schema->done_count < schema->rule_count) {
        struct schema_rule rule = schema->rules[schema->done_count++];
        struct schema_at at = {.value = rule.value, .types = rule.types, .from = rule.start};
        struct schema_path path = {NULL, "$ref"};
        uint32_t to = 0;
        at.path = &path;
        schema->root = rule.root;
        enum err_code code = schema_put_value(schema, &at, &to);
        if (code) {
            return code;
        }
        net_end(schema->net, to);
    }
    return ERR_OK;
}

/* ---- values ---- */

static enum err_code put_reference(struct schema *schema, const struct schema_at *at,
                                   const struct json_t *reference, uint32_t *out_to)
{
    if (json_kind(reference) != JSON_KIND_TEXT) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "$ref must be a string");
    }
    struct schema_at target = *at;
    enum err_code code = schema_find(schema, at->path, json_text(reference, NULL), &target.value);
    return code ? code : schema_put_rule(schema, &target, out_to);
}

static enum err_code put_any_of(struct schema *schema, const struct schema_at *at,
                                const struct json_t *choices, uint32_t *out_to)
{
    if (json_kind(choices) != JSON_KIND_ARRAY || json_count(choices) == 0) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "anyOf must be a list of schemas");
    }
    struct schema_path path = {at->path, "anyOf"};
    *out_to = net_node(schema->net);
    for (size_t i = 0; i < json_count(choices); i++) {
        struct schema_at choice = *at;
        uint32_t to = 0;
        choice.value = json_element(choices, i);
        choice.path = &path;
        choice.from = net_node(schema->net);
        net_nothing(schema->net, at->from, choice.from);
        enum err_code code = schema_put_value(schema, &choice, &to);
        if (code) {
            return code;
        }
        net_nothing(schema->net, to, *out_to);
    }
    return ERR_OK;
}

static enum err_code put_all_of(struct schema *schema, const struct schema_at *at,
                                const struct json_t *parts, uint32_t *out_to)
{
    if (json_kind(parts) != JSON_KIND_ARRAY || json_count(parts) != 1) {
        return schema_fail(schema, at->path, ERR_UNSUPPORTED,
                           "'allOf' of other than one schema is not served");
    }
    struct schema_at only = *at;
    only.value = json_element(parts, 0);
    return schema_put_value(schema, &only, out_to);
}

static bool allows(uint32_t types, const struct json_t *value)
{
    uint32_t type = schema_type_of(value);
    if (type == SCHEMA_FRACTION) { /* 1.0 is an integer, too */
        double number = json_number(value);
        bool is_whole = number > -9e15 && number < 9e15 && (double)(int64_t)number == number;
        type = is_whole ? SCHEMA_NUMBER : SCHEMA_FRACTION;
    }
    if (type == SCHEMA_INTEGER) {
        return (types & SCHEMA_INTEGER) != 0;
    }
    return (types & type) != 0;
}

static enum err_code put_enum(struct schema *schema, const struct schema_at *at,
                              const struct json_t *values, uint32_t *out_to)
{
    if (json_kind(values) != JSON_KIND_ARRAY) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "enum must be a list");
    }
    uint32_t begin = net_node(schema->net);
    net_nothing(schema->net, at->from, begin);
    *out_to = net_node(schema->net);
    for (size_t i = 0; i < json_count(values) && !schema->net->is_full; i++) {
        const struct json_t *value = json_element(values, i);
        if (allows(at->types, value)) {
            net_nothing(schema->net, schema_put_literal(schema, begin, value), *out_to);
        }
    }
    return ERR_OK;
}

static enum err_code put_const(struct schema *schema, const struct schema_at *at,
                               const struct json_t *value, uint32_t *out_to)
{
    uint32_t begin = net_node(schema->net);
    *out_to = net_node(schema->net);
    if (allows(at->types, value)) {
        net_nothing(schema->net, at->from, begin);
        net_nothing(schema->net, schema_put_literal(schema, begin, value), *out_to);
    }
    return ERR_OK;
}

typedef enum err_code (*put_fn)(struct schema *, const struct schema_at *, uint32_t *);

static enum err_code put_word(struct schema *schema, const struct schema_at *at, const char *word,
                              uint32_t to)
{
    net_nothing(schema->net, net_text(schema->net, at->from, word, strlen(word)), to);
    return ERR_OK;
}

/* Values of at->types, each with the keywords of its kind. */
static enum err_code put_types(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    static const struct {
        uint32_t types;
        put_fn put;
    } kinds[] = {{SCHEMA_NUMBER, schema_put_number},
                 {SCHEMA_STRING, schema_put_string},
                 {SCHEMA_ARRAY, schema_put_items},
                 {SCHEMA_OBJECT, schema_put_members}};
    static const struct {
        uint32_t type;
        const char *word;
    } words[] = {{SCHEMA_NULL, "null"}, {SCHEMA_BOOL, "true"}, {SCHEMA_BOOL, "false"}};
    enum err_code code = ERR_OK;
    *out_to = net_node(schema->net);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((at->types & words[i].type) != 0) {
            code = put_word(schema, at, words[i].word, *out_to);
        }
    }
    for (size_t i = 0; !code && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct schema_at one = *at;
        uint32_t to = 0;
        one.types = at->types & kinds[i].types;
        if (one.types == 0) {
            continue;
        }
        one.from = net_node(schema->net);
        net_nothing(schema->net, at->from, one.from);
        code = kinds[i].put(schema, &one, &to);
        if (!code) {
            net_nothing(schema->net, to, *out_to);
        }
    }
    return code;
}

static enum err_code put_checked(struct schema *schema, const struct schema_at *at,
                                 uint32_t *out_to)
{
    typedef enum err_code (*put_keyword_fn)(struct schema *, const struct schema_at *,
                                            const struct json_t *, uint32_t *);
    static const struct {
        const char *keyword;
        put_keyword_fn put;
    } keywords[] = {{"$ref", put_reference},
                    {"anyOf", put_any_of},
                    {"allOf", put_all_of},
                    {"enum", put_enum},
                    {"const", put_const}};
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        const struct json_t *value = json_member(at->value, keywords[i].keyword);
        if (value == NULL) {
            continue;
        }
        enum err_code code = schema_check_alone(schema, at, keywords[i].keyword);
        return code ? code : keywords[i].put(schema, at, value, out_to);
    }
    return put_types(schema, at, out_to);
}

/* Any value of the types: without keywords, as if the schema were {}. */
static enum err_code put_any(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    struct err why;
    struct json_t *nothing = NULL;
    struct schema_at any = *at;
    enum err_code code = json_parse("{}", 2, 4, &nothing, &why);
    if (code) {
        return schema_fail(schema, at->path, code, "%s", why.message);
    }
    any.value = nothing;
    code = put_types(schema, &any, out_to);
    json_release(nothing);
    return code;
}

enum err_code schema_put_value(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    if (at->value == NULL) {
        return put_any(schema, at, out_to);
    }
    enum json_kind kind = json_kind(at->value);
    if (kind == JSON_KIND_BOOL) {
        if (!json_bool(at->value)) {
            *out_to = net_node(schema->net); /* nothing leads there */
            return ERR_OK;
        }
        struct schema_at any = *at;
        any.value = NULL;
        return schema_put_rule(schema, &any, out_to);
    }
    if (kind != JSON_KIND_OBJECT) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "a schema must be an object, not %s",
                           json_kind_text(kind));
    }
    if (schema->depth >= MAX_DEPTH) {
        return schema_fail(schema, at->path, ERR_LIMIT, "schemas nest deeper than %d", MAX_DEPTH);
    }
    struct schema_at checked = *at;
    enum err_code code = schema_check(schema, at, &checked.types);
    if (!code) {
        schema->depth++;
        code = put_checked(schema, &checked, out_to);
        schema->depth--;
    }
    return code;
}

enum err_code schema_put(struct schema *schema, uint32_t from, const struct json_t *root,
                         uint32_t *out_to, struct err *err)
{
    struct schema_at at = {.value = root, .types = SCHEMA_ANY, .from = from};
    schema->err = err;
    schema->root = root;
    return schema_put_value(schema, &at, out_to);
}

enum err_code schema_put_object(struct schema *schema, uint32_t from, uint32_t *out_to,
                                struct err *err)
{
    struct schema_at at = {.types = SCHEMA_OBJECT, .from = from};
    schema->err = err;
    return schema_put_value(schema, &at, out_to);
}
