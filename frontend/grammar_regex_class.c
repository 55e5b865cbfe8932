/* Sets of characters: classes and escapes. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/grammar_regex_internal.h"

enum {
    LAST_ASCII = 0x7f
};

/* White space in either dialect beyond ASCII, and Python's separators within it. */
static const struct regex_range more_spaces[] = {
    {0x1c, 0x1f},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff},
};

void regex_add_range(struct regex *regex, uint32_t lo, uint32_t hi)
{
    if (regex->range_count == regex->range_cap) {
        regex->range_cap = regex->range_cap == 0 ? 32 : regex->range_cap * 2;
        regex->ranges = mem_realloc(regex->ranges, regex->range_cap, sizeof(regex->ranges[0]));
    }
    regex->ranges[regex->range_count++] = (struct regex_range){lo, hi};
}

static int compare_ranges(const void *a, const void *b)
{
    const struct regex_range *left = a;
    const struct regex_range *right = b;
    return (left->lo > right->lo) - (left->lo < right->lo);
}

void regex_invert(struct regex *regex, uint32_t first)
{
    uint32_t count = regex->range_count - first;
    struct regex_range *old = mem_zalloc((size_t)count + 1, sizeof(old[0]));
    if (count > 0) {
        memcpy(old, regex->ranges + first, count * sizeof(old[0]));
    }
    qsort(old, count, sizeof(old[0]), compare_ranges);
    regex->range_count = first;
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (old[i].lo > next) {
            regex_add_range(regex, next, old[i].lo - 1);
        }
        next = old[i].hi + 1 > next ? old[i].hi + 1 : next;
    }
    if (next <= REGEX_LAST_CHAR) {
        regex_add_range(regex, next, REGEX_LAST_CHAR);
    }
    mem_free(old);
}

static void add_digits(struct regex *regex)
{
    regex_add_range(regex, '0', '9');
}

static void add_word(struct regex *regex)
{
    regex_add_range(regex, '0', '9');
    regex_add_range(regex, 'A', 'Z');
    regex_add_range(regex, '_', '_');
    regex_add_range(regex, 'a', 'z');
}

static void add_spaces(struct regex *regex)
{
    regex_add_range(regex, '\t', '\r');
    regex_add_range(regex, ' ', ' ');
}

/* The complement of what was added from first on; within ASCII where the dialects differ beyond. */
static void complement(struct regex *regex, uint32_t first, bool is_ascii)
{
    if (is_ascii) {
        regex_add_range(regex, LAST_ASCII + 1, REGEX_LAST_CHAR);
    }
    regex_invert(regex, first);
}

static bool try_class_escape(struct regex *regex, uint32_t c)
{
    uint32_t first = regex->range_count;
    switch (c) {
    case 'd': add_digits(regex); return true;
    case 'D':
        add_digits(regex);
        complement(regex, first, true);
        return true;
    case 'w': add_word(regex); return true;
    case 'W':
        add_word(regex);
        complement(regex, first, true);
        return true;
    case 's': add_spaces(regex); return true;
    case 'S':
        add_spaces(regex);
        for (size_t i = 0; i < sizeof(more_spaces) / sizeof(more_spaces[0]); i++) {
            regex_add_range(regex, more_spaces[i].lo, more_spaces[i].hi);
        }
        complement(regex, first, false);
        return true;
    default: return false; /* foreign */
    }
}

static enum err_code take_hex(struct regex *regex, uint32_t digit_count, uint32_t *out_char)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < digit_count; i++) {
        char c = regex->used_bytes < regex->byte_count ? regex->at[regex->used_bytes] : 0;
        uint32_t digit = 0;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)((c | 0x20) - 'a') + 10;
        } else {
            return regex_fail(regex, ERR_ARGUMENT, "an escape lacks hexadecimal digits");
        }
        value = value * 16 + digit;
        regex->used_bytes++;
    }
    if (value >= 0xd800 && value <= 0xdfff) {
        return regex_fail(regex, ERR_UNSUPPORTED, "half a surrogate pair is no character");
    }
    *out_char = value;
    return ERR_OK;
}

static enum err_code take_escaped_char(struct regex *regex, uint32_t c, bool is_in_class,
                                       uint32_t *out_char)
{
    *out_char = c;
    switch (c) {
    case 't': *out_char = '\t'; return ERR_OK;
    case 'n': *out_char = '\n'; return ERR_OK;
    case 'r': *out_char = '\r'; return ERR_OK;
    case 'f': *out_char = '\f'; return ERR_OK;
    case 'v': *out_char = '\v'; return ERR_OK;
    case 'a': *out_char = '\a'; return ERR_OK;
    case '0': *out_char = 0; return ERR_OK;
    case 'x': return take_hex(regex, 2, out_char);
    case 'u': return take_hex(regex, 4, out_char);
    case 'b':
        if (is_in_class) {
            *out_char = '\b';
            return ERR_OK;
        }
        return regex_fail(regex, ERR_UNSUPPORTED, "\\b is not served");
    default: break; /* foreign */
    }
    if ((c >= '1' && c <= '9') || c == 'k') {
        return regex_fail(regex, ERR_UNSUPPORTED, "back references are not served");
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        return regex_fail(regex, ERR_UNSUPPORTED, "this escape is not served");
    }
    return ERR_OK;
}

enum err_code regex_parse_escape(struct regex *regex, bool is_in_class)
{
    uint32_t c = 0;
    if (regex->used_bytes == regex->byte_count) {
        return regex_fail(regex, ERR_ARGUMENT, "nothing follows the backslash");
    }
    enum err_code code = regex_take_char(regex, &c);
    if (code || try_class_escape(regex, c)) {
        return code;
    }
    code = take_escaped_char(regex, c, is_in_class, &c);
    if (!code) {
        regex_add_range(regex, c, c);
    }
    return code;
}

/* One end of a range within brackets; true in *out_is_set where it was \d or the like. */
static enum err_code take_member(struct regex *regex, uint32_t *out_char, bool *out_is_set)
{
    uint32_t first = regex->range_count;
    *out_is_set = false;
    enum err_code code = regex_take_char(regex, out_char);
    if (code || *out_char != '\\') {
        return code;
    }
    code = regex_parse_escape(regex, true);
    if (code) {
        return code;
    }
    const struct regex_range *range = &regex->ranges[first];
    *out_is_set = regex->range_count - first != 1 || range->lo != range->hi;
    if (!*out_is_set) {
        *out_char = range->lo;
        regex->range_count = first;
    }
    return ERR_OK;
}

static bool is_next(const struct regex *regex, char c)
{
    return regex->used_bytes < regex->byte_count && regex->at[regex->used_bytes] == c;
}

enum err_code regex_parse_class(struct regex *regex)
{
    uint32_t first = regex->range_count;
    bool is_inverted = is_next(regex, '^');
    regex->used_bytes += is_inverted;
    for (bool is_first = true; is_first || !is_next(regex, ']'); is_first = false) {
        uint32_t lo = 0;
        uint32_t hi = 0;
        bool is_set = false;
        if (regex->used_bytes >= regex->byte_count) {
            return regex_fail(regex, ERR_ARGUMENT, "a class is not closed");
        }
        enum err_code code = take_member(regex, &lo, &is_set);
        if (code) {
            return code;
        }
        if (is_set) {
            continue;
        }
        hi = lo;
        bool is_range = is_next(regex, '-') && regex->used_bytes + 1 < regex->byte_count &&
                        regex->at[regex->used_bytes + 1] != ']';
        if (is_range) {
            regex->used_bytes++;
            code = take_member(regex, &hi, &is_set);
            if (code) {
                return code;
            }
        }
        if (is_set || hi < lo) {
            return regex_fail(regex, ERR_ARGUMENT, "a range of a class is out of order");
        }
        regex_add_range(regex, lo, hi);
    }
    regex->used_bytes++;
    if (is_inverted) {
        regex_invert(regex, first);
    }
    return ERR_OK;
}
