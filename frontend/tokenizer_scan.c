#include "frontend/tokenizer_scan.h"

#include <string.h>

#include "common/utf8.h"

void tok_scan_init(struct tok_scan *scan, const char *text, size_t byte_count)
{
    *scan = (struct tok_scan){.text = text, .byte_count = byte_count};
}

static enum err_code expected(const struct tok_scan *scan, const char *what, struct err *err)
{
    if (scan->at >= scan->byte_count) {
        return err_set(err, ERR_FORMAT, "the text ends at byte %zu where %s must follow", scan->at,
                       what);
    }
    return err_set(err, ERR_FORMAT, "byte %zu is 0x%02x where %s must be", scan->at,
                   (unsigned char)scan->text[scan->at], what);
}

char tok_scan_peek(struct tok_scan *scan)
{
    while (scan->at < scan->byte_count) {
        char c = scan->text[scan->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
            return c;
        }
        scan->at++;
    }
    return '\0';
}

enum err_code tok_scan_open(struct tok_scan *scan, char mark, struct err *err)
{
    if (tok_scan_peek(scan) != mark) {
        return expected(scan, mark == '[' ? "an array" : "an object", err);
    }
    scan->at++;
    return ERR_OK;
}

enum err_code tok_scan_next(struct tok_scan *scan, char closing_mark, bool *is_first,
                            bool *out_more, struct err *err)
{
    char c = tok_scan_peek(scan);
    bool was_first = *is_first;
    *is_first = false;
    if (c == closing_mark && c != '\0') {
        scan->at++;
        *out_more = false;
        return ERR_OK;
    }
    if (was_first) {
        *out_more = true;
        return ERR_OK;
    }
    if (c != ',') {
        return expected(scan, "a comma or the closing mark", err);
    }
    scan->at++;
    if (tok_scan_peek(scan) == closing_mark) {
        return expected(scan, "another element after the comma", err);
    }
    *out_more = true;
    return ERR_OK;
}

/* Four hexadecimal digits at scan->at. */
static enum err_code read_hex4(struct tok_scan *scan, uint32_t *out_value, struct err *err)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = scan->at < scan->byte_count ? scan->text[scan->at] : '\0';
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            digit = (uint32_t)(c - 'a') + 10;
        } else if (c >= 'A' && c <= 'F') {
            digit = (uint32_t)(c - 'A') + 10;
        } else {
            return expected(scan, "a hexadecimal digit", err);
        }
        value = value * 16 + digit;
        scan->at++;
    }
    *out_value = value;
    return ERR_OK;
}

/* After "\u": one code point, of two escapes where the first is a high surrogate. */
static enum err_code read_unicode_escape(struct tok_scan *scan, struct buf *out, struct err *err)
{
    uint32_t code_point = 0;
    enum err_code code = read_hex4(scan, &code_point, err);
    if (code != ERR_OK) {
        return code;
    }
    if (code_point >= 0xd800 && code_point < 0xdc00 && scan->byte_count - scan->at >= 2 &&
        memcmp(scan->text + scan->at, "\\u", 2) == 0) {
        uint32_t low = 0;
        scan->at += 2;
        code = read_hex4(scan, &low, err);
        if (code != ERR_OK) {
            return code;
        }
        if (low >= 0xdc00 && low < 0xe000) {
            code_point = 0x10000 + ((code_point - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (code_point >= 0xd800 && code_point < 0xe000) {
        return err_set(err, ERR_FORMAT, "the escape before byte %zu is a lone surrogate", scan->at);
    }
    char bytes[4];
    buf_append(out, bytes, utf8_encode(code_point, bytes));
    return ERR_OK;
}

/* scan->at is behind a backslash. */
static enum err_code read_escape(struct tok_scan *scan, struct buf *out, struct err *err)
{
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    char c = scan->at < scan->byte_count ? scan->text[scan->at] : '\0';
    if (c == 'u') {
        scan->at++;
        return read_unicode_escape(scan, out, err);
    }
    const char *name = c == '\0' ? NULL : strchr(names, c);
    if (name == NULL) {
        return expected(scan, "an escape", err);
    }
    scan->at++;
    buf_append_char(out, values[name - names]);
    return ERR_OK;
}

/* Bytes from scan->at that stand for themselves. */
static size_t plain_run(const struct tok_scan *scan)
{
    size_t end = scan->at;
    while (end < scan->byte_count) {
        unsigned char c = (unsigned char)scan->text[end];
        if (c == '"' || c == '\\' || c < 0x20) {
            break;
        }
        end++;
    }
    return end - scan->at;
}

enum err_code tok_scan_text(struct tok_scan *scan, struct buf *out, struct err *err)
{
    buf_reset(out);
    if (tok_scan_peek(scan) != '"') {
        return expected(scan, "a string", err);
    }
    scan->at++;
    for (;;) {
        size_t run_bytes = plain_run(scan);
        if (run_bytes > 0 && !utf8_is_valid(scan->text + scan->at, run_bytes)) {
            return err_set(err, ERR_FORMAT, "the string at byte %zu is not UTF-8", scan->at);
        }
        buf_append(out, scan->text + scan->at, run_bytes);
        scan->at += run_bytes;
        if (scan->at < scan->byte_count && scan->text[scan->at] == '"') {
            scan->at++;
            return ERR_OK;
        }
        if (scan->at >= scan->byte_count || scan->text[scan->at] != '\\') {
            return expected(scan, "the end of a string", err);
        }
        scan->at++;
        enum err_code code = read_escape(scan, out, err);
        if (code != ERR_OK) {
            return code;
        }
    }
}

enum err_code tok_scan_key(struct tok_scan *scan, struct buf *out, struct err *err)
{
    enum err_code code = tok_scan_text(scan, out, err);
    if (code != ERR_OK) {
        return code;
    }
    if (tok_scan_peek(scan) != ':') {
        return expected(scan, "a colon", err);
    }
    scan->at++;
    return ERR_OK;
}

enum err_code tok_scan_u32(struct tok_scan *scan, uint32_t max_value, uint32_t *out_value,
                           struct err *err)
{
    char first = tok_scan_peek(scan);
    if (first < '0' || first > '9') {
        return expected(scan, "a non-negative integer", err);
    }
    uint64_t value = 0;
    size_t start = scan->at;
    while (scan->at < scan->byte_count && scan->text[scan->at] >= '0' &&
           scan->text[scan->at] <= '9') {
        value = value * 10 + (uint64_t)(scan->text[scan->at] - '0');
        scan->at++;
        if (value > max_value) {
            return err_set(err, ERR_FORMAT, "the number at byte %zu exceeds %u", start, max_value);
        }
    }
    char after = scan->at < scan->byte_count ? scan->text[scan->at] : '\0';
    if ((first == '0' && scan->at - start > 1) || after == '.' || after == 'e' || after == 'E') {
        return err_set(err, ERR_FORMAT, "the number at byte %zu is not a plain integer", start);
    }
    *out_value = (uint32_t)value;
    return ERR_OK;
}

/* Passes over a string without resolving it. */
static enum err_code skip_text(struct tok_scan *scan, struct err *err)
{
    scan->at++;
    for (;;) {
        scan->at += plain_run(scan);
        char c = scan->at < scan->byte_count ? scan->text[scan->at] : '\0';
        if (c == '"') {
            scan->at++;
            return ERR_OK;
        }
        if (c != '\\' || scan->byte_count - scan->at < 2) {
            return expected(scan, "the end of a string", err);
        }
        scan->at += 2;
    }
}

/* Passes over a number or a word such as null: what it is gets checked by whoever parses it. */
static enum err_code skip_word(struct tok_scan *scan, struct err *err)
{
    size_t start = scan->at;
    while (scan->at < scan->byte_count) {
        char c = scan->text[scan->at];
        bool is_part = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' ||
                       c == '.' || c == 'E';
        if (!is_part) {
            break;
        }
        scan->at++;
    }
    return scan->at > start ? ERR_OK : expected(scan, "a value", err);
}

enum err_code tok_scan_skip(struct tok_scan *scan, struct tok_scan_span *out_span, struct err *err)
{
    char closing[TOK_SCAN_MAX_DEPTH];
    uint32_t depth = 0;
    (void)tok_scan_peek(scan);
    size_t start = scan->at;
    do {
        char c = tok_scan_peek(scan);
        if (c == '{' || c == '[') {
            if (depth == TOK_SCAN_MAX_DEPTH) {
                return err_set(err, ERR_FORMAT, "byte %zu is nested deeper than %d", scan->at,
                               TOK_SCAN_MAX_DEPTH);
            }
            closing[depth++] = c == '{' ? '}' : ']';
            scan->at++;
        } else if (depth > 0 && c == closing[depth - 1]) {
            depth--;
            scan->at++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            scan->at++;
        } else {
            enum err_code code = c == '"' ? skip_text(scan, err) : skip_word(scan, err);
            if (code != ERR_OK) {
                return code;
            }
        }
    } while (depth > 0);
    *out_span = (struct tok_scan_span){scan->text + start, scan->at - start};
    return ERR_OK;
}

enum err_code tok_scan_end(struct tok_scan *scan, struct err *err)
{
    return tok_scan_peek(scan) == '\0' && scan->at >= scan->byte_count
               ? ERR_OK
               : expected(scan, "the end of the file", err);
}
