#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/chat_internal.h"

enum {
    PATH_MAX_DEPTH = 32, /* deeper ones show their end */
    PATH_MAX_BYTES = 120,
};

void chat_prompt_init(struct chat_prompt *prompt)
{
    *prompt = (struct chat_prompt){0};
    buf_init(&prompt->text);
}

void chat_prompt_fini(struct chat_prompt *prompt)
{
    buf_fini(&prompt->text);
    mem_free(prompt->spans);
    *prompt = (struct chat_prompt){0};
}

static void put(struct chat_prompt *prompt, const char *text, size_t byte_count, bool is_control)
{
    if (byte_count == 0) {
        return;
    }
    size_t count = prompt->span_count;
    if (count == 0 || prompt->spans[count - 1].is_control != is_control) {
        if (count == prompt->span_cap) {
            prompt->span_cap = count == 0 ? 16 : count * 2;
            prompt->spans = mem_realloc(prompt->spans, prompt->span_cap, sizeof(*prompt->spans));
        }
        prompt->spans[count] =
            (struct chat_span){.start = prompt->text.used_bytes, .is_control = is_control};
        prompt->span_count++;
    }
    prompt->spans[prompt->span_count - 1].byte_count += byte_count;
    buf_append(&prompt->text, text, byte_count);
}

void chat_put_control(struct chat_prompt *prompt, const char *control)
{
    put(prompt, control, strlen(control), true);
}

void chat_put_text(struct chat_prompt *prompt, const char *text, size_t byte_count)
{
    put(prompt, text, byte_count, false);
}

void chat_put_literal(struct chat_prompt *prompt, const char *literal)
{
    put(prompt, literal, strlen(literal), false);
}

void chat_put_quoted(struct chat_prompt *prompt, const char *text, size_t byte_count)
{
    chat_put_control(prompt, "<|\"|>");
    chat_put_text(prompt, text, byte_count);
    chat_put_control(prompt, "<|\"|>");
}

/* Python's str.isspace(). */
static bool is_space(uint32_t code_point)
{
    return (code_point >= 0x09 && code_point <= 0x0d) ||
           (code_point >= 0x1c && code_point <= 0x20) || code_point == 0x85 || code_point == 0xa0 ||
           code_point == 0x1680 || (code_point >= 0x2000 && code_point <= 0x200a) ||
           code_point == 0x2028 || code_point == 0x2029 || code_point == 0x202f ||
           code_point == 0x205f || code_point == 0x3000;
}

/* The code point that ends at end; *out_start is where it begins. */
static uint32_t last_code_point(const char *text, size_t end, size_t *out_start)
{
    size_t start = end - 1;
    while (start > 0 && end - start < 4 && ((unsigned char)text[start] & 0xc0) == 0x80) {
        start--;
    }
    uint32_t code_point = 0; /* no space: stays where the text is malformed */
    (void)utf8_decode(text + start, end - start, &code_point);
    *out_start = start;
    return code_point;
}

struct chat_slice chat_trim(const char *text, size_t byte_count)
{
    size_t start = 0;
    size_t end = byte_count;
    while (start < end) {
        uint32_t code_point = 0;
        size_t one = utf8_decode(text + start, end - start, &code_point);
        if (one == 0 || !is_space(code_point)) {
            break;
        }
        start += one;
    }
    while (end > start) {
        size_t one_start = 0;
        if (!is_space(last_code_point(text, end, &one_start))) {
            break;
        }
        end = one_start;
    }
    return (struct chat_slice){text + start, end - start};
}

struct lower_range {
    uint32_t first;
    uint32_t last;
    uint32_t stride;
    int32_t delta;
};

static const struct lower_range lower_ranges[] = {
#define LOWER(first, last, stride, delta) {first, last, stride, delta},
#include "frontend/chat_lower.def"
#undef LOWER
};

static uint32_t lower_code_point(uint32_t code_point)
{
    size_t low = 0;
    size_t high = sizeof(lower_ranges) / sizeof(lower_ranges[0]);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct lower_range *range = &lower_ranges[middle];
        if (code_point > range->last) {
            low = middle + 1;
        } else if (code_point < range->first) {
            high = middle;
        } else {
            bool is_hit = (code_point - range->first) % range->stride == 0;
            return is_hit ? (uint32_t)((int32_t)code_point + range->delta) : code_point;
        }
    }
    return code_point;
}

void chat_put_lower(struct buf *out, const char *text, size_t byte_count)
{
    for (size_t at = 0; at < byte_count;) {
        uint32_t code_point = 0;
        char bytes[4];
        size_t one = utf8_decode(text + at, byte_count - at, &code_point);
        if (one == 0) {
            buf_append_char(out, text[at++]);
            continue;
        }
        at += one;
        if (code_point < 0x80) {
            bool is_upper = code_point >= 'A' && code_point <= 'Z';
            buf_append_char(out, (char)(is_upper ? code_point + 32 : code_point));
        } else if (code_point == 0x130) {
            buf_append_text(out, "i\u0307"); /* the one letter that becomes two code points */
        } else {
            buf_append(out, bytes, utf8_encode(lower_code_point(code_point), bytes));
        }
    }
}

static void path_text(struct buf *out, const struct chat_path *path)
{
    const struct chat_path *steps[PATH_MAX_DEPTH];
    size_t count = 0;
    for (; path != NULL && count < PATH_MAX_DEPTH; path = path->up) {
        steps[count++] = path;
    }
    for (size_t i = count; i-- > 0;) {
        if (steps[i]->key == NULL) {
            buf_printf(out, "[%zu]", steps[i]->index);
        } else {
            buf_printf(out, "%s%.60s", out->used_bytes == 0 ? "" : ".", steps[i]->key);
        }
    }
}

enum err_code chat_refuse(struct err *err, enum err_code code, const struct chat_path *path,
                          const char *format, ...)
{
    struct buf text;
    char message[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args); /* cut where it is too long */
    va_end(args);
    buf_init(&text);
    path_text(&text, path);
    if (text.used_bytes > PATH_MAX_BYTES) {
        text.used_bytes = utf8_complete_prefix(text.at, PATH_MAX_BYTES);
    }
    buf_printf(&text, " %s", message);
    for (size_t i = 0; i < text.used_bytes; i++) {
        bool is_control = (unsigned char)text.at[i] < 0x20 || text.at[i] == 0x7f;
        text.at[i] = is_control ? '?' : text.at[i]; /* keys of a request may hold any */
    }
    code = err_set(err, code, "%s", buf_text(&text));
    buf_fini(&text);
    return code;
}

enum err_code chat_refuse_kind(struct err *err, const struct chat_path *path,
                               const struct json_t *value, const char *wanted)
{
    if (value == NULL) {
        return chat_refuse(err, ERR_ARGUMENT, path, "is missing, it must be %s", wanted);
    }
    return chat_refuse(err, ERR_ARGUMENT, path, "is %s, not %s", json_kind_text(json_kind(value)),
                       wanted);
}
