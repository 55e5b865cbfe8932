/* The JSON writer; needs no tree library. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"

/* Bytes of the longest prefix that needs no escape and is valid UTF-8. */
static size_t plain_bytes(const char *text, size_t byte_count)
{
    size_t at = 0;
    while (at < byte_count) {
        unsigned char c = (unsigned char)text[at];
        if (c == '"' || c == '\\' || c < 0x20) {
            break;
        }
        uint32_t code_point;
        size_t sequence_bytes = c < 0x80 ? 1 : utf8_decode(text + at, byte_count - at, &code_point);
        if (sequence_bytes == 0) {
            break;
        }
        at += sequence_bytes;
    }
    return at;
}

static void put_escape(struct buf *out, unsigned char c)
{
    switch (c) {
    case '"': buf_append_text(out, "\\\""); break;
    case '\\': buf_append_text(out, "\\\\"); break;
    case '\b': buf_append_text(out, "\\b"); break;
    case '\f': buf_append_text(out, "\\f"); break;
    case '\n': buf_append_text(out, "\\n"); break;
    case '\r': buf_append_text(out, "\\r"); break;
    case '\t': buf_append_text(out, "\\t"); break;
    default: /* foreign */
        if (c < 0x20) {
            buf_printf(out, "\\u%04x", c);
        } else {
            buf_append_text(out, UTF8_REPLACEMENT);
        }
    }
}

void json_put_text(struct buf *out, const char *text, size_t byte_count)
{
    buf_append_char(out, '"');
    size_t at = 0;
    while (at < byte_count) {
        size_t run_bytes = plain_bytes(text + at, byte_count - at);
        buf_append(out, text + at, run_bytes);
        at += run_bytes;
        if (at < byte_count) {
            put_escape(out, (unsigned char)text[at]);
            at++;
        }
    }
    buf_append_char(out, '"');
}

/* "D.DDDe+XX" of the fewest digits that read back as value.  Up to 15 digits always survive the way
 * to a normal double and back, so that one try decides whether 15 are enough; subnormal ones hold
 * fewer and are searched.  A power of two has a gap twice as wide above as below: there the 16-digit
 * text above the nearest one may read back though the nearest does not. */
static void shortest_digits(double value, char out[32])
{
    int exponent;
    bool is_power_of_two = fabs(frexp(value, &exponent)) == 0.5;
    int first = fabs(value) < DBL_MIN ? 0 : 14;
    for (int decimals = first; decimals <= 16; decimals++) {
        (void)snprintf(out, 32, "%.*e", decimals, value); /* at most 25 bytes */
        if (strtod(out, NULL) == value) {
            return;
        }
        char *last = strchr(out, 'e') - 1;
        if (is_power_of_two && decimals == 15 && *last < '9') {
            (*last)++;
            if (strtod(out, NULL) == value) {
                return;
            }
        }
    }
}

/* Digits without the point and trailing zeros; the decimal exponent of the first. */
static int split_digits(const char *scientific, char digits[24])
{
    const char *mark = strchr(scientific, 'e');
    size_t count = 0;
    for (const char *at = scientific; at < mark; at++) {
        if (*at >= '0' && *at <= '9') {
            digits[count++] = *at;
        }
    }
    while (count > 1 && digits[count - 1] == '0') {
        count--;
    }
    digits[count] = '\0';
    return (int)strtol(mark + 1, NULL, 10);
}

void json_put_f64(struct buf *out, double value)
{
    if (!isfinite(value)) {
        buf_append_text(out, "null");
        return;
    }
    char scientific[32];
    char digits[24];
    shortest_digits(value, scientific);
    int exponent = split_digits(scientific, digits);
    int count = (int)strlen(digits);
    if (signbit(value)) {
        buf_append_char(out, '-');
    }
    if (exponent < -4 || exponent >= 16) {
        buf_printf(out, "%c%s%se%c%02d", digits[0], count > 1 ? "." : "", digits + 1,
                   exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        buf_printf(out, "0.%.*s%s", -exponent - 1, "000", digits);
    } else if (count <= exponent + 1) {
        buf_printf(out, "%s%.*s.0", digits, exponent + 1 - count, "000000000000000");
    } else {
        buf_printf(out, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

static void put_object(struct buf *out, const struct json_t *object)
{
    struct json_iter iter;
    const char *separator = "{";
    json_iter_start(&iter, object);
    while (json_iter_next(&iter)) {
        buf_append_text(out, separator);
        json_put_text(out, iter.key, strlen(iter.key));
        buf_append_char(out, ':');
        json_put_value(out, iter.value);
        separator = ",";
    }
    buf_append_text(out, json_count(object) == 0 ? "{}" : "}");
}

static void put_array(struct buf *out, const struct json_t *array)
{
    buf_append_char(out, '[');
    for (size_t i = 0; i < json_count(array); i++) {
        if (i > 0) {
            buf_append_char(out, ',');
        }
        json_put_value(out, json_element(array, i));
    }
    buf_append_char(out, ']');
}

void json_put_value(struct buf *out, const struct json_t *value)
{
    size_t byte_count;
    const char *text;
    switch (json_kind(value)) {
    case JSON_KIND_NULL: buf_append_text(out, "null"); break;
    case JSON_KIND_BOOL: buf_append_text(out, json_bool(value) ? "true" : "false"); break;
    case JSON_KIND_INTEGER: buf_printf(out, "%lld", (long long)json_int64(value)); break;
    case JSON_KIND_BIG_INTEGER: buf_append_text(out, json_number_text(value)); break;
    case JSON_KIND_REAL: json_put_f64(out, json_number(value)); break;
    case JSON_KIND_TEXT:
        text = json_text(value, &byte_count);
        json_put_text(out, text, byte_count);
        break;
    case JSON_KIND_ARRAY: put_array(out, value); break;
    case JSON_KIND_OBJECT: put_object(out, value); break;
    }
}
