#include "common/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/json_lex.h"

/* A big integer is kept as a text that starts with this byte.  It is never part of UTF-8, and the
 * lexer admits only UTF-8, so no document can make a text that is taken for one. */
#define BIG_INTEGER_MARK '\xff'

struct parser {
    struct json_lex lex;
    uint32_t max_depth;
    uint32_t container_count;
};

static enum err_code parse_value(struct parser *parser, uint32_t depth, json_t **out_value,
                                 struct err *err);

static enum err_code no_memory(struct err *err)
{
    return err_set(err, ERR_MEMORY, "out of memory while parsing JSON");
}

static enum err_code check_container(struct parser *parser, uint32_t depth, struct err *err)
{
    if (depth > parser->max_depth) {
        return err_set(err, ERR_LIMIT, "JSON nested deeper than %u", parser->max_depth);
    }
    if (++parser->container_count > JSON_MAX_CONTAINERS) {
        return err_set(err, ERR_LIMIT, "JSON with more than %u arrays and objects",
                       JSON_MAX_CONTAINERS);
    }
    return ERR_OK;
}

/* The current token must be a key; sets the member in object. */
static enum err_code parse_member(struct parser *parser, uint32_t depth, json_t *object,
                                  struct err *err)
{
    struct json_lex *lex = &parser->lex;
    if (lex->kind != JSON_LEX_TEXT) {
        return json_lex_unexpected(lex, "expected a key in double quotes", err);
    }
    if (memchr(lex->text, '\0', lex->text_bytes) != NULL) {
        return json_lex_fail(lex, lex->token_byte, "zero byte in a key", err);
    }
    size_t key_byte = lex->token_byte;
    struct buf key; /* the value's tokens overwrite the lexer's text */
    buf_init(&key);
    buf_append(&key, lex->text, lex->text_bytes);
    json_t *value = NULL;
    enum err_code code = json_lex_next(lex, err);
    if (code == ERR_OK && lex->kind != JSON_LEX_COLON) {
        code = json_lex_unexpected(lex, "expected ':' after a key", err);
    }
    if (code == ERR_OK) {
        code = json_lex_next(lex, err);
    }
    if (code == ERR_OK) {
        code = parse_value(parser, depth, &value, err);
    }
    if (code == ERR_OK) {
        size_t count_before = json_object_size(object);
        if (json_object_setn_new_nocheck(object, key.at, key.used_bytes, value) != 0) {
            code = no_memory(err);
        } else if (json_object_size(object) == count_before) {
            code = json_lex_fail(lex, key_byte, "duplicate key", err);
        }
    }
    buf_fini(&key);
    return code;
}

static enum err_code parse_object(struct parser *parser, uint32_t depth, json_t *object,
                                  struct err *err)
{
    struct json_lex *lex = &parser->lex;
    enum err_code code = json_lex_next(lex, err);
    if (code != ERR_OK || lex->kind == JSON_LEX_OBJECT_CLOSE) {
        return code;
    }
    for (;;) {
        code = parse_member(parser, depth, object, err);
        if (code == ERR_OK) {
            code = json_lex_next(lex, err);
        }
        if (code != ERR_OK || lex->kind == JSON_LEX_OBJECT_CLOSE) {
            return code;
        }
        if (lex->kind != JSON_LEX_COMMA) {
            return json_lex_unexpected(lex, "expected ',' or '}'", err);
        }
        code = json_lex_next(lex, err);
        if (code != ERR_OK) {
            return code;
        }
    }
}

static enum err_code parse_array(struct parser *parser, uint32_t depth, json_t *array,
                                 struct err *err)
{
    struct json_lex *lex = &parser->lex;
    enum err_code code = json_lex_next(lex, err);
    if (code != ERR_OK || lex->kind == JSON_LEX_ARRAY_CLOSE) {
        return code;
    }
    for (;;) {
        json_t *value = NULL;
        code = parse_value(parser, depth, &value, err);
        if (code != ERR_OK) {
            return code;
        }
        if (json_array_append_new(array, value) != 0) {
            return no_memory(err);
        }
        code = json_lex_next(lex, err);
        if (code != ERR_OK || lex->kind == JSON_LEX_ARRAY_CLOSE) {
            return code;
        }
        if (lex->kind != JSON_LEX_COMMA) {
            return json_lex_unexpected(lex, "expected ',' or ']'", err);
        }
        code = json_lex_next(lex, err);
        if (code != ERR_OK) {
            return code;
        }
    }
}

static enum err_code parse_container(struct parser *parser, uint32_t depth, json_t **out_value,
                                     struct err *err)
{
    enum err_code code = check_container(parser, depth, err);
    if (code != ERR_OK) {
        return code;
    }
    bool is_object = parser->lex.kind == JSON_LEX_OBJECT_OPEN;
    json_t *container = is_object ? json_object() : json_array();
    if (container == NULL) {
        return no_memory(err);
    }
    code = is_object ? parse_object(parser, depth, container, err)
                     : parse_array(parser, depth, container, err);
    if (code != ERR_OK) {
        json_decref(container);
        return code;
    }
    *out_value = container;
    return ERR_OK;
}

static json_t *make_big_integer(const struct json_lex *lex)
{
    struct buf marked;
    buf_init(&marked);
    buf_append_char(&marked, BIG_INTEGER_MARK);
    buf_append(&marked, lex->text, lex->text_bytes);
    json_t *value = json_stringn_nocheck(marked.at, marked.used_bytes);
    buf_fini(&marked);
    return value;
}

/* A value from the current token, which must start one; depth is that of the container around. */
static enum err_code parse_value(struct parser *parser, uint32_t depth, json_t **out_value,
                                 struct err *err)
{
    struct json_lex *lex = &parser->lex;
    json_t *value = NULL;
    switch (lex->kind) {
    case JSON_LEX_OBJECT_OPEN:
    case JSON_LEX_ARRAY_OPEN: return parse_container(parser, depth + 1, out_value, err);
    case JSON_LEX_TEXT: value = json_stringn_nocheck(lex->text, lex->text_bytes); break;
    case JSON_LEX_INTEGER: value = json_integer(lex->integer); break;
    case JSON_LEX_BIG_INTEGER: value = make_big_integer(lex); break;
    case JSON_LEX_REAL: value = json_real(lex->real); break;
    case JSON_LEX_TRUE: value = json_true(); break;
    case JSON_LEX_FALSE: value = json_false(); break;
    case JSON_LEX_NULL: value = json_null(); break;
    case JSON_LEX_END:
    case JSON_LEX_OBJECT_CLOSE:
    case JSON_LEX_ARRAY_CLOSE:
    case JSON_LEX_COLON:
    case JSON_LEX_COMMA: return json_lex_unexpected(lex, "expected a value", err);
    }
    if (value == NULL) {
        return no_memory(err);
    }
    *out_value = value;
    return ERR_OK;
}

enum err_code json_parse(const char *text, size_t byte_count, uint32_t max_depth,
                         struct json_t **out_value, struct err *err)
{
    struct parser parser = {.max_depth = max_depth < JSON_MAX_DEPTH ? max_depth : JSON_MAX_DEPTH};
    json_lex_init(&parser.lex, text, byte_count);
    json_t *value = NULL;
    enum err_code code = json_lex_next(&parser.lex, err);
    if (code == ERR_OK) {
        code = parse_value(&parser, 0, &value, err);
    }
    if (code == ERR_OK) {
        code = json_lex_next(&parser.lex, err);
    }
    if (code == ERR_OK && parser.lex.kind != JSON_LEX_END) {
        code = json_lex_unexpected(&parser.lex, "expected the end", err);
    }
    if (code == ERR_OK) {
        *out_value = value;
        value = NULL;
    }
    json_decref(value);
    json_lex_fini(&parser.lex);
    return code;
}

void json_release(struct json_t *value)
{
    json_decref(value);
}

struct json_t *json_retain(const struct json_t *value)
{
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): the count alone is written, atomically */
    return json_incref((json_t *)(uintptr_t)value);
}

static bool is_big_integer(const json_t *value)
{
    return json_string_value(value)[0] == BIG_INTEGER_MARK;
}

enum json_kind json_kind(const struct json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return JSON_KIND_OBJECT;
    case JSON_ARRAY: return JSON_KIND_ARRAY;
    case JSON_STRING: return is_big_integer(value) ? JSON_KIND_BIG_INTEGER : JSON_KIND_TEXT;
    case JSON_INTEGER: return JSON_KIND_INTEGER;
    case JSON_REAL: return JSON_KIND_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return JSON_KIND_BOOL;
    case JSON_NULL: return JSON_KIND_NULL;
    }
    abort(); /* not a jansson value */
}

const char *json_kind_text(enum json_kind kind)
{
    switch (kind) {
    case JSON_KIND_NULL: return "null";
    case JSON_KIND_BOOL: return "a boolean";
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER: return "an integer";
    case JSON_KIND_REAL: return "a number";
    case JSON_KIND_TEXT: return "a string";
    case JSON_KIND_ARRAY: return "an array";
    case JSON_KIND_OBJECT: return "an object";
    }
    return "unknown";
}

struct json_t *json_member(const struct json_t *object, const char *key)
{
    return json_object_get(object, key);
}

struct json_t *json_element(const struct json_t *array, size_t index)
{
    return json_array_get(array, index);
}

size_t json_count(const struct json_t *value)
{
    return json_is_object(value) ? json_object_size(value) : json_array_size(value);
}

/* The library takes a mutable object for its iterators and does not change it. */
static json_t *unconst(const json_t *value)
{
    union {
        const json_t *from;
        json_t *to;
    } same = {.from = value};
    return same.to;
}

void json_iter_start(struct json_iter *iter, const struct json_t *object)
{
    *iter = (struct json_iter){.object = object};
}

bool json_iter_next(struct json_iter *iter)
{
    json_t *object = unconst(iter->object);
    iter->position = iter->position == NULL ? json_object_iter(object)
                                            : json_object_iter_next(object, iter->position);
    if (iter->position == NULL) {
        return false;
    }
    iter->key = json_object_iter_key(iter->position);
    iter->value = json_object_iter_value(iter->position);
    return true;
}

bool json_bool(const struct json_t *value)
{
    assert(json_is_boolean(value));
    return json_is_true(value);
}

int64_t json_int64(const struct json_t *value)
{
    assert(json_is_integer(value));
    return json_integer_value(value);
}

double json_number(const struct json_t *value)
{
    return json_is_string(value) ? strtod(json_number_text(value), NULL) : json_number_value(value);
}

const char *json_text(const struct json_t *value, size_t *out_byte_count)
{
    assert(json_kind(value) == JSON_KIND_TEXT);
    if (out_byte_count != NULL) {
        *out_byte_count = json_string_length(value);
    }
    return json_string_value(value);
}

const char *json_number_text(const struct json_t *value)
{
    assert(json_kind(value) == JSON_KIND_BIG_INTEGER);
    return json_string_value(value) + 1;
}
