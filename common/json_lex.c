#include "common/json_lex.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum {
    FIRST_HIGH_SURROGATE = 0xd800,
    FIRST_LOW_SURROGATE = 0xdc00,
    LAST_SURROGATE = 0xdfff,
    FIRST_SUPPLEMENTARY = 0x10000,
    SHOWN_TOKEN_BYTES = 24
};

void json_lex_init(struct json_lex *lex, const char *input, size_t input_bytes)
{
    *lex = (struct json_lex){.input = input, .input_bytes = input_bytes};
    buf_init(&lex->scratch);
}

void json_lex_fini(struct json_lex *lex)
{
    buf_fini(&lex->scratch);
}

/* Positions are counted only when something is wrong: the good path touches each byte once. */
static void locate(const struct json_lex *lex, size_t at_byte, size_t *line, size_t *column)
{
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < at_byte && i < lex->input_bytes; i++) {
        bool is_newline = lex->input[i] == '\n';
        *line += is_newline;
        *column = is_newline ? 1 : *column + 1;
    }
}

enum err_code json_lex_fail(const struct json_lex *lex, size_t at_byte, const char *what,
                            struct err *err)
{
    size_t line;
    size_t column;
    locate(lex, at_byte, &line, &column);
    return err_set(err, ERR_FORMAT, "line %zu column %zu: %s", line, column, what);
}

enum err_code json_lex_unexpected(const struct json_lex *lex, const char *what, struct err *err)
{
    size_t line;
    size_t column;
    locate(lex, lex->token_byte, &line, &column);
    if (lex->kind == JSON_LEX_END) {
        return err_set(err, ERR_FORMAT, "line %zu column %zu: %s, found the end", line, column,
                       what);
    }
    size_t shown_bytes = lex->next_byte - lex->token_byte;
    const char *more = shown_bytes > SHOWN_TOKEN_BYTES ? "..." : "";
    shown_bytes = shown_bytes > SHOWN_TOKEN_BYTES ? SHOWN_TOKEN_BYTES : shown_bytes;
    const char *shown = lex->input + lex->token_byte;
    shown_bytes = utf8_complete_prefix(shown, shown_bytes);
    return err_set(err, ERR_FORMAT, "line %zu column %zu: %s, found %.*s%s", line, column, what,
                   (int)shown_bytes, shown, more);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char byte_at(const struct json_lex *lex, size_t at_byte)
{
    return at_byte < lex->input_bytes ? lex->input[at_byte] : '\0';
}

static size_t after_digits(const struct json_lex *lex, size_t at_byte)
{
    while (is_digit(byte_at(lex, at_byte))) {
        at_byte++;
    }
    return at_byte;
}

/* The end of the number at token_byte by the grammar, 0 where it does not follow it. */
static size_t number_end(const struct json_lex *lex, bool *is_integer)
{
    size_t start = lex->token_byte + (byte_at(lex, lex->token_byte) == '-');
    size_t end = after_digits(lex, start);
    bool has_leading_zero = byte_at(lex, start) == '0' && end - start > 1;
    if (end == start || has_leading_zero) {
        return 0;
    }
    *is_integer = true;
    if (byte_at(lex, end) == '.') {
        size_t fraction = end + 1;
        end = after_digits(lex, fraction);
        *is_integer = false;
        if (end == fraction) {
            return 0;
        }
    }
    if (byte_at(lex, end) == 'e' || byte_at(lex, end) == 'E') {
        char sign = byte_at(lex, end + 1);
        size_t exponent = end + 1 + (sign == '+' || sign == '-');
        end = after_digits(lex, exponent);
        *is_integer = false;
        if (end == exponent) {
            return 0;
        }
    }
    return end;
}

/* False when the digits do not fit int64. */
static bool to_int64(const char *text, size_t byte_count, int64_t *out)
{
    bool is_negative = text[0] == '-';
    int64_t value = 0;
    for (size_t i = is_negative; i < byte_count; i++) {
        int64_t digit = text[i] - '0';
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_sub_overflow(value, digit, &value)) {
            return false;
        }
    }
    if (!is_negative && value == INT64_MIN) {
        return false;
    }
    *out = is_negative ? value : -value;
    return true;
}

static enum err_code scan_number(struct json_lex *lex, struct err *err)
{
    bool is_integer = false;
    size_t end = number_end(lex, &is_integer);
    if (end == 0) {
        return json_lex_fail(lex, lex->token_byte, "malformed number", err);
    }
    lex->next_byte = end;
    lex->text = lex->input + lex->token_byte;
    lex->text_bytes = end - lex->token_byte;
    if (is_integer && to_int64(lex->text, lex->text_bytes, &lex->integer)) {
        lex->kind = JSON_LEX_INTEGER;
        return ERR_OK;
    }
    buf_reset(&lex->scratch); /* strtod wants a terminated text; the input need not have one */
    buf_append(&lex->scratch, lex->text, lex->text_bytes);
    lex->real = strtod(buf_text(&lex->scratch), NULL);
    lex->kind = is_integer ? JSON_LEX_BIG_INTEGER : JSON_LEX_REAL;
    if (!isfinite(lex->real)) {
        return json_lex_fail(lex, lex->token_byte, "number beyond the range of a double", err);
    }
    return ERR_OK;
}

static bool four_hex(const struct json_lex *lex, size_t at_byte, uint32_t *out)
{
    uint32_t value = 0;
    for (size_t i = at_byte; i < at_byte + 4; i++) {
        char c = byte_at(lex, i);
        if (!isxdigit((unsigned char)c)) {
            return false;
        }
        uint32_t digit = (uint32_t)(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

/* at_byte is that of the backslash of \uXXXX; moves past the escape (or the surrogate pair). */
static enum err_code unescape_unicode(struct json_lex *lex, size_t *at_byte, struct err *err)
{
    uint32_t code_point;
    size_t start = *at_byte;
    if (!four_hex(lex, start + 2, &code_point)) {
        return json_lex_fail(lex, start, "\\u needs four hex digits", err);
    }
    *at_byte += 6;
    if (code_point >= FIRST_HIGH_SURROGATE && code_point <= LAST_SURROGATE) {
        uint32_t low = 0;
        bool is_pair = code_point < FIRST_LOW_SURROGATE && byte_at(lex, start + 6) == '\\' &&
                       byte_at(lex, start + 7) == 'u' && four_hex(lex, start + 8, &low) &&
                       low >= FIRST_LOW_SURROGATE && low <= LAST_SURROGATE;
        if (!is_pair) {
            return json_lex_fail(lex, start, "\\u escape of half a surrogate pair", err);
        }
        code_point = FIRST_SUPPLEMENTARY + ((code_point - FIRST_HIGH_SURROGATE) << 10) +
                     (low - FIRST_LOW_SURROGATE);
        *at_byte += 6;
    }
    char encoded[4];
    buf_append(&lex->scratch, encoded, utf8_encode(code_point, encoded));
    return ERR_OK;
}

static enum err_code unescape(struct json_lex *lex, size_t *at_byte, struct err *err)
{
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    char name = byte_at(lex, *at_byte + 1);
    if (name == 'u') {
        return unescape_unicode(lex, at_byte, err);
    }
    const char *found = name == '\0' ? NULL : strchr(names, name);
    if (found == NULL) {
        return json_lex_fail(lex, *at_byte, "unknown escape in a string", err);
    }
    buf_append_char(&lex->scratch, values[found - names]);
    *at_byte += 2;
    return ERR_OK;
}

/* The first byte from at_byte that is not plain: a quote, a backslash, or one not allowed. */
static enum err_code after_plain(const struct json_lex *lex, size_t *at_byte, struct err *err)
{
    size_t at = *at_byte;
    while (at < lex->input_bytes) {
        unsigned char c = (unsigned char)lex->input[at];
        if (c == '"' || c == '\\') {
            *at_byte = at;
            return ERR_OK;
        }
        if (c < 0x20) {
            return json_lex_fail(lex, at, "control character in a string", err);
        }
        uint32_t code_point;
        size_t sequence_bytes =
            c < 0x80 ? 1 : utf8_decode(lex->input + at, lex->input_bytes - at, &code_point);
        if (sequence_bytes == 0) {
            return json_lex_fail(lex, at, "malformed UTF-8 in a string", err);
        }
        at += sequence_bytes;
    }
    return json_lex_fail(lex, lex->token_byte, "unterminated string", err);
}

static enum err_code scan_text(struct json_lex *lex, struct err *err)
{
    size_t run_start = lex->token_byte + 1;
    size_t at = run_start;
    bool has_escapes = false;
    buf_reset(&lex->scratch);
    for (;;) {
        if (after_plain(lex, &at, err) != ERR_OK) {
            return ERR_FORMAT;
        }
        if (lex->input[at] == '"') {
            break;
        }
        buf_append(&lex->scratch, lex->input + run_start, at - run_start);
        if (unescape(lex, &at, err) != ERR_OK) {
            return ERR_FORMAT;
        }
        run_start = at;
        has_escapes = true;
    }
    lex->kind = JSON_LEX_TEXT;
    lex->next_byte = at + 1;
    lex->text = lex->input + run_start;
    lex->text_bytes = at - run_start;
    if (has_escapes) {
        buf_append(&lex->scratch, lex->text, lex->text_bytes);
        lex->text = buf_text(&lex->scratch);
        lex->text_bytes = lex->scratch.used_bytes;
    }
    return ERR_OK;
}

static enum err_code scan_word(struct json_lex *lex, struct err *err)
{
    static const struct {
        const char *text;
        enum json_lex_kind kind;
    } words[] = {{"true", JSON_LEX_TRUE}, {"false", JSON_LEX_FALSE}, {"null", JSON_LEX_NULL}};
    size_t left_bytes = lex->input_bytes - lex->token_byte;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t word_bytes = strlen(words[i].text);
        if (left_bytes >= word_bytes &&
            memcmp(lex->input + lex->token_byte, words[i].text, word_bytes) == 0) {
            lex->kind = words[i].kind;
            lex->next_byte = lex->token_byte + word_bytes;
            return ERR_OK;
        }
    }
    return json_lex_fail(lex, lex->token_byte, "not a JSON value", err);
}

static enum err_code scan_mark(struct json_lex *lex, enum json_lex_kind kind)
{
    lex->kind = kind;
    lex->next_byte = lex->token_byte + 1;
    return ERR_OK;
}

enum err_code json_lex_next(struct json_lex *lex, struct err *err)
{
    size_t at = lex->next_byte;
    while (at < lex->input_bytes && (lex->input[at] == ' ' || lex->input[at] == '\n' ||
                                     lex->input[at] == '\r' || lex->input[at] == '\t')) {
        at++;
    }
    lex->token_byte = at;
    lex->next_byte = at;
    if (at == lex->input_bytes) {
        lex->kind = JSON_LEX_END;
        return ERR_OK;
    }
    switch (lex->input[at]) {
    case '{': return scan_mark(lex, JSON_LEX_OBJECT_OPEN);
    case '}': return scan_mark(lex, JSON_LEX_OBJECT_CLOSE);
    case '[': return scan_mark(lex, JSON_LEX_ARRAY_OPEN);
    case ']': return scan_mark(lex, JSON_LEX_ARRAY_CLOSE);
    case ':': return scan_mark(lex, JSON_LEX_COLON);
    case ',': return scan_mark(lex, JSON_LEX_COMMA);
    case '"': return scan_text(lex, err);
    case '-': return scan_number(lex, err);
    default: /* foreign */
        return is_digit(lex->input[at]) ? scan_number(lex, err) : scan_word(lex, err);
    }
}
