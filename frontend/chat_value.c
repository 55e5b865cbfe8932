#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/chat_internal.h"

struct json_t *chat_member(const struct json_t *value, const char *key)
{
    bool is_object = value != NULL && json_kind(value) == JSON_KIND_OBJECT;
    return is_object ? json_member(value, key) : NULL;
}

bool chat_is_null(const struct json_t *value)
{
    return value == NULL || json_kind(value) == JSON_KIND_NULL;
}

bool chat_is_text(const struct json_t *value)
{
    return value != NULL && json_kind(value) == JSON_KIND_TEXT;
}

bool chat_text_equals(const struct json_t *value, const char *text)
{
    if (!chat_is_text(value)) {
        return false;
    }
    size_t byte_count = 0;
    const char *at = json_text(value, &byte_count);
    return byte_count == strlen(text) && memcmp(at, text, byte_count) == 0;
}

bool chat_is_truthy(const struct json_t *value)
{
    if (value == NULL) {
        return false;
    }
    size_t byte_count = 0;
    switch (json_kind(value)) {
    case JSON_KIND_NULL: return false;
    case JSON_KIND_BOOL: return json_bool(value);
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER:
    case JSON_KIND_REAL: return json_number(value) != 0;
    case JSON_KIND_TEXT: (void)json_text(value, &byte_count); return byte_count > 0;
    case JSON_KIND_ARRAY:
    case JSON_KIND_OBJECT: return json_count(value) > 0;
    }
    return false;
}

struct sort_context {
    const char *lower;
};

static int compare_entries(const void *a, const void *b, void *context)
{
    const struct chat_entry *left = a;
    const struct chat_entry *right = b;
    const struct sort_context *sort = context;
    size_t shorter =
        left->lower_bytes < right->lower_bytes ? left->lower_bytes : right->lower_bytes;
    /* The order of UTF-8 bytes is that of the code points. */
    int order = memcmp(sort->lower + left->lower_at, sort->lower + right->lower_at, shorter);
    if (order != 0) {
        return order;
    }
    if (left->lower_bytes != right->lower_bytes) {
        return left->lower_bytes < right->lower_bytes ? -1 : 1;
    }
    return left->index < right->index ? -1 : 1;
}

void chat_sorted_init(struct chat_sorted *sorted, const struct json_t *object)
{
    *sorted = (struct chat_sorted){.count = json_count(object)};
    buf_init(&sorted->lower);
    sorted->entries = mem_zalloc(sorted->count, sizeof(*sorted->entries));
    struct json_iter iter;
    json_iter_start(&iter, object);
    for (size_t i = 0; json_iter_next(&iter); i++) {
        assert(i < sorted->count);
        size_t start = sorted->lower.used_bytes;
        chat_put_lower(&sorted->lower, iter.key, strlen(iter.key));
        sorted->entries[i] = (struct chat_entry){.key = iter.key,
                                                 .value = iter.value,
                                                 .lower_at = start,
                                                 .lower_bytes = sorted->lower.used_bytes - start,
                                                 .index = i};
    }
    struct sort_context context = {.lower = buf_text(&sorted->lower)};
    qsort_r(sorted->entries, sorted->count, sizeof(*sorted->entries), compare_entries, &context);
}

void chat_sorted_fini(struct chat_sorted *sorted)
{
    mem_free(sorted->entries);
    buf_fini(&sorted->lower);
    *sorted = (struct chat_sorted){0};
}

/* A number as Python prints it. */
static void put_number(struct buf *out, const struct json_t *value)
{
    enum json_kind kind = json_kind(value);
    if (kind == JSON_KIND_INTEGER) {
        buf_printf(out, "%" PRId64, json_int64(value));
    } else if (kind == JSON_KIND_BIG_INTEGER) {
        buf_append_text(out, json_number_text(value));
    } else {
        json_put_f64(out, json_number(value));
    }
}

static void put_pairs(struct chat_prompt *prompt, const struct json_t *object, bool wraps_keys,
                      bool wraps_inner_keys)
{
    struct chat_sorted sorted;
    chat_sorted_init(&sorted, object);
    for (size_t i = 0; i < sorted.count; i++) {
        const struct chat_entry *entry = &sorted.entries[i];
        chat_put_literal(prompt, i == 0 ? "" : ",");
        if (wraps_keys) {
            chat_put_quoted(prompt, entry->key, strlen(entry->key));
        } else {
            chat_put_literal(prompt, entry->key);
        }
        chat_put_literal(prompt, ":");
        chat_put_value(prompt, entry->value, wraps_inner_keys);
    }
    chat_sorted_fini(&sorted);
}

void chat_put_members(struct chat_prompt *prompt, const struct json_t *object)
{
    put_pairs(prompt, object, false, false);
}

void chat_put_value(struct chat_prompt *prompt, const struct json_t *value, bool wraps_keys)
{
    struct buf number;
    size_t byte_count = 0;
    switch (json_kind(value)) {
    case JSON_KIND_NULL: chat_put_literal(prompt, "null"); return;
    case JSON_KIND_BOOL: chat_put_literal(prompt, json_bool(value) ? "true" : "false"); return;
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER:
    case JSON_KIND_REAL:
        buf_init(&number);
        put_number(&number, value);
        chat_put_text(prompt, number.at, number.used_bytes);
        buf_fini(&number);
        return;
    case JSON_KIND_TEXT: {
        const char *text = json_text(value, &byte_count);
        chat_put_quoted(prompt, text, byte_count);
        return;
    }
    case JSON_KIND_ARRAY:
        chat_put_literal(prompt, "[");
        for (size_t i = 0; i < json_count(value); i++) {
            chat_put_literal(prompt, i == 0 ? "" : ",");
            chat_put_value(prompt, json_element(value, i), wraps_keys);
        }
        chat_put_literal(prompt, "]");
        return;
    case JSON_KIND_OBJECT:
        chat_put_literal(prompt, "{");
        put_pairs(prompt, value, wraps_keys, wraps_keys);
        chat_put_literal(prompt, "}");
        return;
    }
}

enum err_code chat_str(struct buf *out, const struct json_t *value, const struct chat_path *path,
                       struct err *err)
{
    size_t byte_count = 0;
    switch (json_kind(value)) {
    case JSON_KIND_NULL: buf_append_text(out, "None"); return ERR_OK;
    case JSON_KIND_BOOL: buf_append_text(out, json_bool(value) ? "True" : "False"); return ERR_OK;
    case JSON_KIND_INTEGER:
    case JSON_KIND_BIG_INTEGER:
    case JSON_KIND_REAL: put_number(out, value); return ERR_OK;
    case JSON_KIND_TEXT: {
        const char *text = json_text(value, &byte_count);
        buf_append(out, text, byte_count);
        return ERR_OK;
    }
    case JSON_KIND_ARRAY:
    case JSON_KIND_OBJECT: break;
    }
    return chat_refuse_kind(err, path, value, "a string");
}
