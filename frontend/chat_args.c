#include "frontend/chat_args.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/json.h"
#include "common/mem.h"

enum {
    MAX_DEPTH = 64,       /* deeper values are strings */
    MAX_COMPARED = 1024,  /* members of one object looked through for equal keys */
    MAX_NUMBER_BYTES = 64 /* longer digits are a string */
};

struct slice {
    const char *at;
    const char *end;
};

struct member {
    struct slice key;
    struct slice value;
};

struct members {
    struct member *at; /* owned */
    size_t count;
    size_t cap;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static struct slice trim(struct slice text)
{
    while (text.at < text.end && is_space(*text.at)) {
        text.at++;
    }
    while (text.at < text.end && is_space(text.end[-1])) {
        text.end--;
    }
    return text;
}

static size_t slice_bytes(const struct slice *text)
{
    return (size_t)(text->end - text->at);
}

/* Past the string that begins at the quote at `at`; its end where it is not closed. */
static const char *skip_string(const char *at, const char *end)
{
    const char *close = memchr(at + 1, CHAT_ARGS_QUOTE, (size_t)(end - at - 1));
    return close ? close + 1 : end;
}

/* Past the bracket that closes the one at `at`. */
static const char *skip_nested(const char *at, const char *end)
{
    uint32_t depth = 0;
    while (at < end) {
        if (*at == CHAT_ARGS_QUOTE) {
            at = skip_string(at, end);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
        if (depth == 0) {
            break;
        }
    }
    return at;
}

/* The value that begins at text->at; advances past it. */
static struct slice take_value(struct slice *text)
{
    struct slice value = {text->at, text->at};
    if (text->at == text->end) {
        return value;
    }
    if (*text->at == CHAT_ARGS_QUOTE) {
        value.end = skip_string(text->at, text->end);
    } else if (*text->at == '{' || *text->at == '[') {
        value.end = skip_nested(text->at, text->end);
    } else {
        /* Bare, or a string whose opening quote the model left out. */
        while (value.end < text->end && !strchr(",}]", *value.end) &&
               *value.end != CHAT_ARGS_QUOTE) {
            value.end++;
        }
        value.end += value.end < text->end && *value.end == CHAT_ARGS_QUOTE;
    }
    text->at = value.end;
    return value;
}

static void skip_separators(struct slice *text)
{
    while (text->at < text->end && (is_space(*text->at) || *text->at == ',')) {
        text->at++;
    }
}

static struct slice unwrap(struct slice text)
{
    if (text.at < text.end && *text.at == CHAT_ARGS_QUOTE) {
        text.at++;
    }
    if (text.at < text.end && text.end[-1] == CHAT_ARGS_QUOTE) {
        text.end--;
    }
    return text;
}

static void put_string(struct slice text, struct buf *out)
{
    json_put_text(out, text.at, slice_bytes(&text));
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

static bool put_number(struct slice text, struct buf *out)
{
    char number[MAX_NUMBER_BYTES];
    size_t byte_count = slice_bytes(&text);
    if (byte_count == 0 || byte_count >= sizeof(number)) {
        return false;
    }
    memcpy(number, text.at, byte_count);
    number[byte_count] = '\0';
    if (strspn(number, "+-0123456789_.eE") != byte_count) {
        return false;
    }
    if (put_integer(number, out)) {
        return true;
    }
    char *end = NULL;
    double value = strtod(number, &end);
    if (*end != '\0' || !(value - value == 0)) { /* infinite: a string after all */
        return false;
    }
    json_put_f64(out, value);
    return true;
}

static void put_bare(struct slice text, struct buf *out)
{
    static const char *const nulls[] = {"null", "none", "nil"};
    size_t byte_count = slice_bytes(&text);
    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++) {
        if (byte_count == strlen(nulls[i]) && strncasecmp(text.at, nulls[i], byte_count) == 0) {
            buf_append_text(out, "null");
            return;
        }
    }
    bool is_true = byte_count == 4 && memcmp(text.at, "true", 4) == 0;
    bool is_false = byte_count == 5 && memcmp(text.at, "false", 5) == 0;
    if (is_true || is_false) {
        buf_append_text(out, is_true ? "true" : "false");
    } else if (!put_number(text, out)) {
        put_string(unwrap(text), out);
    }
}

static void put_object(struct slice text, uint32_t depth, struct buf *out);
static void put_array(struct slice text, uint32_t depth, struct buf *out);

static void put_value(struct slice value, uint32_t depth, struct buf *out)
{
    value = trim(value);
    char first = '\0';
    if (value.at < value.end) {
        first = *value.at;
    }
    bool is_nested = (first == '{' || first == '[') && depth < MAX_DEPTH;
    if (!is_nested) {
        if (first == CHAT_ARGS_QUOTE) {
            put_string(unwrap(value), out);
        } else {
            put_bare(value, out);
        }
        return;
    }
    struct slice inner = {value.at + 1, value.end};
    if (inner.at < inner.end && (inner.end[-1] == '}' || inner.end[-1] == ']')) {
        inner.end--;
    }
    if (first == '{') {
        put_object(inner, depth + 1, out);
    } else {
        put_array(inner, depth + 1, out);
    }
}

static void put_array(struct slice text, uint32_t depth, struct buf *out)
{
    const char *comma = "";
    buf_append_char(out, '[');
    for (;;) {
        skip_separators(&text);
        const char *start = text.at;
        struct slice value = take_value(&text);
        if (text.at == start) { /* the end, or a stray bracket */
            break;
        }
        buf_append_text(out, comma);
        put_value(value, depth, out);
        comma = ", ";
    }
    buf_append_char(out, ']');
}

static void add_member(struct members *members, struct slice key, struct slice value)
{
    if (members->count == members->cap) {
        members->cap = members->cap == 0 ? 8 : members->cap * 2;
        members->at = mem_realloc(members->at, members->cap, sizeof(*members->at));
    }
    members->at[members->count++] = (struct member){key, value};
}

static bool is_same(const struct slice *a, const struct slice *b)
{
    return slice_bytes(a) == slice_bytes(b) && memcmp(a->at, b->at, slice_bytes(a)) == 0;
}

static bool is_repeated_later(const struct members *members, size_t index)
{
    for (size_t i = index + 1; i < members->count && members->count <= MAX_COMPARED; i++) {
        if (is_same(&members->at[i].key, &members->at[index].key)) {
            return true;
        }
    }
    return false;
}

static void read_members(struct slice text, struct members *out_members)
{
    for (;;) {
        skip_separators(&text);
        const char *colon = text.at;
        while (colon < text.end && *colon != ':') {
            colon = *colon == CHAT_ARGS_QUOTE ? skip_string(colon, text.end) : colon + 1;
        }
        if (colon >= text.end) {
            break; /* no key any more */
        }
        struct slice key = unwrap(trim((struct slice){text.at, colon}));
        text.at = colon + 1;
        while (text.at < text.end && is_space(*text.at)) {
            text.at++;
        }
        add_member(out_members, key, take_value(&text));
        while (text.at < text.end && *text.at != ',') {
            text.at++; /* what follows a value up to the comma means nothing */
        }
    }
}

static void put_object(struct slice text, uint32_t depth, struct buf *out)
{
    struct members members = {NULL, 0, 0};
    const char *comma = "";
    read_members(text, &members);
    buf_append_char(out, '{');
    for (size_t i = 0; i < members.count; i++) {
        if (is_repeated_later(&members, i)) {
            continue;
        }
        buf_append_text(out, comma);
        put_string(members.at[i].key, out);
        buf_append_text(out, ": ");
        put_value(members.at[i].value, depth, out);
        comma = ", ";
    }
    buf_append_char(out, '}');
    mem_free(members.at);
}

void chat_args_to_json(const char *text, size_t byte_count, struct buf *out)
{
    static const char nothing[1] = "";
    const char *at = byte_count > 0 ? text : nothing;
    put_object((struct slice){at, at + byte_count}, 0, out);
}
