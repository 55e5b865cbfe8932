/* Strings, numbers and literals. */
#include <string.h>

#include "common/mem.h"
#include "frontend/grammar_number.h"
#include "frontend/grammar_regex.h"
#include "frontend/grammar_schema_internal.h"

#define MAX_MIN_LENGTH 100000U

/* Formats as expressions for the whole text. */
static const struct {
    const char *name;
    const char *pattern;
} formats[] = {
    {"date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
    {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):"
             "[0-5][0-9])"},
    {"date-time", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:"
                  "[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
    {"duration", "P([0-9]{1,4}D(T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"email", "[a-z0-9]{1,24}([._+-][a-z0-9]{1,24}){0,3}@[a-z0-9]{1,24}(-[a-z0-9]{1,24})?"
              "(\\.[a-z0-9]{1,24}){0,2}\\.[a-z]{2,12}"},
    {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|"
             "[1-9]?[0-9])"},
};

uint32_t schema_put_quote(struct schema *schema, uint32_t from)
{
    return net_symbol(schema->net, from, schema->style == SCHEMA_STYLE_JSON ? '"' : GRAMMAR_QUOTE);
}

static const char *find_format(const char *name)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return formats[i].pattern;
        }
    }
    return NULL;
}

/* The expression that the text has to match, null where any does. */
static enum err_code read_pattern(struct schema *schema, const struct schema_at *at,
                                  const char **out_pattern, size_t *out_bytes, bool *out_is_search)
{
    const struct json_t *pattern = json_member(at->value, "pattern");
    const struct json_t *format = json_member(at->value, "format");
    *out_pattern = NULL;
    if (pattern != NULL && format != NULL) {
        return schema_fail(schema, at->path, ERR_UNSUPPORTED,
                           "'format' beside 'pattern' is not "
                           "served");
    }
    const struct json_t *given = pattern != NULL ? pattern : format;
    if (given == NULL) {
        return ERR_OK;
    }
    if (json_kind(given) != JSON_KIND_TEXT) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "%s must be a string",
                           pattern != NULL ? "pattern" : "format");
    }
    *out_is_search = pattern != NULL;
    *out_pattern = json_text(given, out_bytes);
    if (format != NULL) {
        const char *name = *out_pattern;
        *out_pattern = find_format(name);
        if (*out_pattern == NULL) {
            return schema_fail(schema, at->path, ERR_UNSUPPORTED, "'format' %.40s is not served",
                               name);
        }
        *out_bytes = strlen(*out_pattern);
    }
    return ERR_OK;
}

static enum err_code put_text(struct schema *schema, const struct schema_at *at, uint32_t from,
                              uint32_t *out_to)
{
    bool is_json = schema->style == SCHEMA_STYLE_JSON;
    struct regex_options options = {.text = is_json ? REGEX_TEXT_JSON : REGEX_TEXT_PLAIN,
                                    .max_chars = BODY_ANY};
    const char *pattern = NULL;
    size_t pattern_bytes = 0;
    enum err_code code = schema_read_count(schema, at, "minLength", &options.min_chars);
    if (!code) {
        code = schema_read_count(schema, at, "maxLength", &options.max_chars);
    }
    if (!code) {
        code = read_pattern(schema, at, &pattern, &pattern_bytes, &options.is_search);
    }
    if (code) {
        return code;
    }
    if (options.min_chars > MAX_MIN_LENGTH) {
        return schema_fail(schema, at->path, ERR_LIMIT, "minLength is %u, at most %u",
                           options.min_chars, MAX_MIN_LENGTH);
    }
    options.max_chars = options.max_chars >= BODY_LIMIT ? BODY_ANY : options.max_chars;
    if (options.min_chars > options.max_chars) {
        *out_to = net_node(schema->net); /* no text is that long and that short */
        return ERR_OK;
    }
    if (pattern == NULL) {
        struct body body = {.kind = is_json ? BODY_JSON : BODY_PLAIN,
                            .min_chars = options.min_chars,
                            .max_chars = options.max_chars};
        *out_to = net_body(schema->net, from, &body);
        return ERR_OK;
    }
    struct err why;
    options.pattern = pattern;
    options.byte_count = pattern_bytes;
    code = regex_compile(schema->net, from, &options, out_to, &why);
    return code ? schema_fail(schema, at->path, code, "'pattern': %s", why.message) : ERR_OK;
}

enum err_code schema_put_string(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    uint32_t inside = schema_put_quote(schema, at->from);
    uint32_t behind = inside;
    enum err_code code = put_text(schema, at, inside, &behind);
    if (!code) {
        *out_to = schema_put_quote(schema, behind);
    }
    return code;
}

static enum err_code read_bound(struct schema *schema, const struct schema_at *at,
                                const char *keyword, bool is_exclusive, struct number_bound *bound)
{
    const struct json_t *value = json_member(at->value, keyword);
    struct number_bound other;
    struct err why;
    if (value == NULL) {
        return ERR_OK;
    }
    enum json_kind kind = json_kind(value);
    if (kind != JSON_KIND_INTEGER && kind != JSON_KIND_BIG_INTEGER && kind != JSON_KIND_REAL) {
        return schema_fail(schema, at->path, ERR_ARGUMENT, "%s must be a number", keyword);
    }
    enum err_code code = number_bound_read(value, is_exclusive, &other, &why);
    if (code) {
        return schema_fail(schema, at->path, code, "%s: %s", keyword, why.message);
    }
    number_bound_narrow(bound, &other, strstr(keyword, "inimum") != NULL);
    return ERR_OK;
}

enum err_code schema_put_number(struct schema *schema, const struct schema_at *at, uint32_t *out_to)
{
    struct number_bound lower = {0};
    struct number_bound upper = {0};
    enum err_code code = read_bound(schema, at, "minimum", false, &lower);
    if (!code) {
        code = read_bound(schema, at, "exclusiveMinimum", true, &lower);
    }
    if (!code) {
        code = read_bound(schema, at, "maximum", false, &upper);
    }
    if (!code) {
        code = read_bound(schema, at, "exclusiveMaximum", true, &upper);
    }
    if (!code) {
        *out_to =
            number_put(schema->net, at->from, &lower, &upper, (at->types & SCHEMA_FRACTION) == 0);
    }
    return code;
}

/* ---- literals ---- */

uint32_t schema_type_of(const struct json_t *value)
{
    switch (json_kind(value)) {
    case JSON_KIND_NULL: return SCHEMA_NULL;
    case JSON_KIND_BOOL: return SCHEMA_BOOL;
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER: return SCHEMA_INTEGER;
    case JSON_KIND_REAL: return SCHEMA_FRACTION;
    case JSON_KIND_TEXT: return SCHEMA_STRING;
    case JSON_KIND_ARRAY: return SCHEMA_ARRAY;
    case JSON_KIND_OBJECT: return SCHEMA_OBJECT;
    }
    return 0;
}

static uint32_t share_text(struct net *net, uint32_t from, const char *text, size_t byte_count)
{
    for (size_t i = 0; i < byte_count; i++) {
        from = net_share(net, from, (unsigned char)text[i]);
    }
    return from;
}

static uint32_t put_literal_text(struct schema *schema, uint32_t from, const struct json_t *value)
{
    size_t byte_count;
    const char *text = json_text(value, &byte_count);
    if (schema->style == SCHEMA_STYLE_CALL) {
        from = net_share(schema->net, from, GRAMMAR_QUOTE);
        from = share_text(schema->net, from, text, byte_count);
        return net_share(schema->net, from, GRAMMAR_QUOTE);
    }
    struct buf quoted;
    buf_init(&quoted);
    json_put_text(&quoted, text, byte_count);
    from = share_text(schema->net, from, quoted.at, quoted.used_bytes);
    buf_fini(&quoted);
    return from;
}

static uint32_t put_literal_items(struct schema *schema, uint32_t from, const struct json_t *value)
{
    from = net_share(schema->net, from, '[');
    for (size_t i = 0; i < json_count(value); i++) {
        from = i > 0 ? net_share(schema->net, from, ',') : from;
        from = schema_put_literal(schema, from, json_element(value, i));
    }
    return net_share(schema->net, from, ']');
}

static uint32_t put_literal_members(struct schema *schema, uint32_t from,
                                    const struct json_t *value)
{
    struct json_iter iter;
    bool is_first = true;
    from = net_share(schema->net, from, '{');
    json_iter_start(&iter, value);
    while (json_iter_next(&iter)) {
        from = is_first ? from : net_share(schema->net, from, ',');
        from = schema_put_name(schema, from, iter.key);
        from = schema_put_literal(schema, from, iter.value);
        is_first = false;
    }
    return net_share(schema->net, from, '}');
}

uint32_t schema_put_literal(struct schema *schema, uint32_t from, const struct json_t *value)
{
    switch (json_kind(value)) {
    case JSON_KIND_TEXT: return put_literal_text(schema, from, value);
    case JSON_KIND_ARRAY: return put_literal_items(schema, from, value);
    case JSON_KIND_OBJECT: return put_literal_members(schema, from, value);
    case JSON_KIND_NULL:
    case JSON_KIND_BOOL:
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER:
    case JSON_KIND_REAL: break;
    }
    struct buf text;
    buf_init(&text);
    json_put_value(&text, value);
    from = share_text(schema->net, from, buf_text(&text), text.used_bytes);
    buf_fini(&text);
    return from;
}
