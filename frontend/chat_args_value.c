#include "frontend/chat_args_value.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"

enum {
    MAX_NUMBER_BYTES = 64,  /* longer digits are a string */
    MAX_SCHEMA_DEPTH = 4,   /* of anyOf in anyOf */
    MAX_ALTERNATIVES = 32,  /* of one anyOf */
    MAX_UNQUOTED_DEPTH = 32 /* of JSON within a quoted value */
};

static uint32_t type_of_name(const struct json_t *value)
{
    static const struct {
        const char *name;
        uint32_t types;
    } rows[] = {
        {"null", CHAT_TYPE_NULL},       {"boolean", CHAT_TYPE_BOOL},
        {"integer", CHAT_TYPE_INTEGER}, {"number", CHAT_TYPE_NUMBER | CHAT_TYPE_INTEGER},
        {"string", CHAT_TYPE_STRING},   {"array", CHAT_TYPE_ARRAY},
        {"object", CHAT_TYPE_OBJECT},
    };
    const char *name = json_kind(value) == JSON_KIND_TEXT ? json_text(value, NULL) : "";
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcasecmp(rows[i].name, name) == 0) { /* Gemma's own declarations are upper-case */
            return rows[i].types;
        }
    }
    return 0;
}

static uint32_t read_types(const struct json_t *schema, uint32_t depth);

/* Of a list of schemas; 0 as soon as one takes anything. */
static uint32_t read_alternatives(const struct json_t *list, uint32_t depth)
{
    uint32_t types = 0;
    for (size_t i = 0; i < json_count(list) && i < MAX_ALTERNATIVES; i++) {
        uint32_t more = read_types(json_element(list, i), depth + 1);
        if (more == 0) {
            return 0;
        }
        types |= more;
    }
    return types;
}

static uint32_t read_types(const struct json_t *schema, uint32_t depth)
{
    if (!schema || json_kind(schema) != JSON_KIND_OBJECT || depth > MAX_SCHEMA_DEPTH) {
        return 0;
    }
    const struct json_t *nullable = json_member(schema, "nullable");
    uint32_t null_type = 0;
    if (nullable && json_kind(nullable) == JSON_KIND_BOOL && json_bool(nullable)) {
        null_type = CHAT_TYPE_NULL;
    }
    const struct json_t *type = json_member(schema, "type");
    if (type && json_kind(type) == JSON_KIND_TEXT) {
        uint32_t types = type_of_name(type);
        return types ? types | null_type : 0;
    }
    if (type && json_kind(type) == JSON_KIND_ARRAY) {
        uint32_t types = 0;
        for (size_t i = 0; i < json_count(type) && i < MAX_ALTERNATIVES; i++) {
            types |= type_of_name(json_element(type, i));
        }
        return types ? types | null_type : 0;
    }
    static const char *const lists[] = {"anyOf", "oneOf"};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        const struct json_t *list = json_member(schema, lists[i]);
        if (list && json_kind(list) == JSON_KIND_ARRAY) {
            uint32_t types = read_alternatives(list, depth);
            return types ? types | null_type : 0;
        }
    }
    return 0;
}

uint32_t chat_types_of(const struct json_t *schema)
{
    return read_types(schema, 0);
}

/* The first of schema and its alternatives with that keyword. */
static const struct json_t *find_keyword(const struct json_t *schema, const char *keyword)
{
    if (!schema || json_kind(schema) != JSON_KIND_OBJECT) {
        return NULL;
    }
    const struct json_t *found = json_member(schema, keyword);
    const struct json_t *list = json_member(schema, "anyOf");
    for (size_t i = 0; !found && list && i < json_count(list) && i < MAX_ALTERNATIVES; i++) {
        const struct json_t *element =
            json_kind(list) == JSON_KIND_ARRAY ? json_element(list, i) : NULL;
        if (element && json_kind(element) == JSON_KIND_OBJECT) {
            found = json_member(element, keyword);
        }
    }
    return found;
}

const struct json_t *chat_schema_member(const struct json_t *schema, const char *key)
{
    const struct json_t *properties = find_keyword(schema, "properties");
    if (!properties || json_kind(properties) != JSON_KIND_OBJECT) {
        return NULL;
    }
    return json_member(properties, key);
}

const struct json_t *chat_schema_element(const struct json_t *schema)
{
    return find_keyword(schema, "items");
}

void chat_put_escaped(const char *text, size_t byte_count, struct buf *out)
{
    size_t start = out->used_bytes;
    json_put_text(out, text, byte_count);
    size_t inner = out->used_bytes - start - 2; /* less its two quotes */
    memmove(out->at + start, out->at + start + 1, inner);
    buf_truncate(out, start + inner);
}

/* Digits with an optional sign; underscores between them and leading zeros mean nothing. */
static bool put_integer(const char *number, struct buf *out)
{
    char digits[MAX_NUMBER_BYTES];
    size_t count = 0;
    const char *at = number + (*number == '-' || *number == '+');
    for (; *at; at++) {
        bool is_joint = *at == '_' && count > 0 && isdigit((unsigned char)at[1]);
        if (!isdigit((unsigned char)*at) && !is_joint) {
            return false;
        }
        if (*at != '_') {
            digits[count++] = *at;
        }
    }
    if (count == 0) {
        return false;
    }
    size_t zeros = 0;
    while (zeros + 1 < count && digits[zeros] == '0') {
        zeros++;
    }
    if (*number == '-' && !(count - zeros == 1 && digits[zeros] == '0')) {
        buf_append_char(out, '-');
    }
    buf_append(out, digits + zeros, count - zeros);
    return true;
}

/* Type of the literal that the text reads as, STRING for none; its JSON is appended unless STRING.
 */
static uint32_t put_number(const char *text, size_t byte_count, struct buf *out)
{
    char number[MAX_NUMBER_BYTES];
    if (byte_count == 0 || byte_count >= sizeof(number)) {
        return CHAT_TYPE_STRING;
    }
    memcpy(number, text, byte_count);
    number[byte_count] = '\0';
    if (strspn(number, "+-0123456789_.eE") != byte_count) {
        return CHAT_TYPE_STRING;
    }
    if (put_integer(number, out)) {
        return CHAT_TYPE_INTEGER;
    }
    char *end = NULL;
    double value = strtod(number, &end);
    if (*end != '\0' || !(value - value == 0)) { /* infinite: a string after all */
        return CHAT_TYPE_STRING;
    }
    json_put_f64(out, value);
    return CHAT_TYPE_NUMBER;
}

static bool is_word(const char *text, size_t byte_count, const char *word, bool any_case)
{
    if (byte_count != strlen(word)) {
        return false;
    }
    return any_case ? strncasecmp(text, word, byte_count) == 0
                    : memcmp(text, word, byte_count) == 0;
}

/* Likewise.  With any_case True and FALSE are booleans, too. */
static uint32_t put_literal(const char *text, size_t byte_count, bool any_case, struct buf *out)
{
    static const char *const nulls[] = {"null", "none", "nil"};
    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++) {
        if (is_word(text, byte_count, nulls[i], true)) {
            buf_append_text(out, "null");
            return CHAT_TYPE_NULL;
        }
    }
    bool is_true = is_word(text, byte_count, "true", any_case);
    if (is_true || is_word(text, byte_count, "false", any_case)) {
        buf_append_text(out, is_true ? "true" : "false");
        return CHAT_TYPE_BOOL;
    }
    return put_number(text, byte_count, out);
}

void chat_put_bare(const char *text, size_t byte_count, uint32_t types, struct buf *out)
{
    size_t start = out->used_bytes;
    uint32_t type = put_literal(text, byte_count, (types & CHAT_TYPE_BOOL) != 0, out);
    bool is_refused = types != 0 && (types & type) == 0 && (types & CHAT_TYPE_STRING) != 0;
    if (type == CHAT_TYPE_STRING || is_refused) {
        buf_truncate(out, start);
        json_put_text(out, text, byte_count);
    }
}

static uint32_t type_of_kind(enum json_kind kind)
{
    switch (kind) {
    case JSON_KIND_NULL: return CHAT_TYPE_NULL;
    case JSON_KIND_BOOL: return CHAT_TYPE_BOOL;
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER: return CHAT_TYPE_INTEGER;
    case JSON_KIND_REAL: return CHAT_TYPE_NUMBER;
    case JSON_KIND_TEXT: return CHAT_TYPE_STRING;
    case JSON_KIND_ARRAY: return CHAT_TYPE_ARRAY;
    case JSON_KIND_OBJECT: return CHAT_TYPE_OBJECT;
    }
    return 0;
}

void chat_put_unquoted(const char *text, size_t byte_count, uint32_t types, struct buf *out)
{
    size_t start = out->used_bytes;
    uint32_t type = put_literal(text, byte_count, true, out);
    if (type != CHAT_TYPE_STRING && (types & type) != 0) {
        return;
    }
    buf_truncate(out, start);
    struct json_t *value = NULL;
    struct err err;
    bool is_json = json_parse(text, byte_count, MAX_UNQUOTED_DEPTH, &value, &err) == ERR_OK;
    if (is_json && (types & type_of_kind(json_kind(value))) != 0) {
        json_put_value(out, value);
    } else {
        json_put_text(out, text, byte_count);
    }
    json_release(value);
}
