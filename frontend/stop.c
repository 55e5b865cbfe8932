#include "frontend/stop.h"

#include <string.h>

#include "common/mem.h"

void stop_init(struct stop *stop, bool include_match)
{
    *stop = (struct stop){.include_match = include_match};
    buf_init(&stop->held);
}

void stop_fini(struct stop *stop)
{
    for (uint32_t i = 0; i < stop->string_count; i++) {
        mem_free(stop->strings[i]);
    }
    buf_fini(&stop->held);
    *stop = (struct stop){0};
}

enum err_code stop_add(struct stop *stop, const char *text, size_t byte_count, struct err *err)
{
    if (byte_count == 0) {
        return err_set(err, ERR_ARGUMENT, "stop string %u is empty", stop->string_count);
    }
    if (byte_count > STOP_MAX_BYTES) {
        return err_set(err, ERR_LIMIT, "stop string %u has %zu bytes, at most %d",
                       stop->string_count, byte_count, STOP_MAX_BYTES);
    }
    if (stop->string_count == STOP_MAX_STRINGS) {
        return err_set(err, ERR_LIMIT, "more than %d stop strings", STOP_MAX_STRINGS);
    }
    char *copy = mem_zalloc(byte_count, 1);
    memcpy(copy, text, byte_count);
    stop->strings[stop->string_count] = copy;
    stop->string_bytes[stop->string_count] = byte_count;
    stop->string_count++;
    return ERR_OK;
}

struct match {
    size_t start;
    size_t end;
    uint32_t index;
};

/* The first occurrence of a string is the one that ends first. */
static bool find_match(const struct stop *stop, struct match *out_match)
{
    bool has_match = false;
    const struct buf *held = &stop->held;
    for (uint32_t i = 0; i < stop->string_count; i++) {
        const char *at =
            memmem(held->at, held->used_bytes, stop->strings[i], stop->string_bytes[i]);
        if (at == NULL) {
            continue;
        }
        struct match match = {.start = (size_t)(at - held->at), .index = i};
        match.end = match.start + stop->string_bytes[i];
        if (!has_match || match.end < out_match->end ||
            (match.end == out_match->end && match.start < out_match->start)) {
            *out_match = match;
            has_match = true;
        }
    }
    return has_match;
}

static bool begins_some(const struct stop *stop, const char *text, size_t byte_count)
{
    for (uint32_t i = 0; i < stop->string_count; i++) {
        if (byte_count < stop->string_bytes[i] && stop->strings[i][0] == text[0] &&
            memcmp(stop->strings[i], text, byte_count) == 0) {
            return true;
        }
    }
    return false;
}

/* Length of the longest end of the held text that may yet become a stop string. */
static size_t count_uncertain(const struct stop *stop)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < stop->string_count; i++) {
        longest = stop->string_bytes[i] > longest ? stop->string_bytes[i] : longest;
    }
    const struct buf *held = &stop->held;
    size_t count = held->used_bytes < longest ? held->used_bytes : longest;
    while (count > 0 && !begins_some(stop, held->at + held->used_bytes - count, count)) {
        count--;
    }
    return count;
}

bool stop_push(struct stop *stop, const char *text, size_t byte_count, struct buf *out,
               uint32_t *out_index)
{
    if (stop->string_count == 0) {
        buf_append(out, text, byte_count);
        return false;
    }
    struct buf *held = &stop->held;
    buf_append(held, text, byte_count);
    struct match match = {0};
    if (held->used_bytes > 0 && find_match(stop, &match)) {
        buf_append(out, held->at, stop->include_match ? match.end : match.start);
        buf_reset(held);
        *out_index = match.index;
        return true;
    }
    size_t kept = count_uncertain(stop);
    size_t certain = held->used_bytes - kept;
    if (certain > 0) {
        buf_append(out, held->at, certain);
        memmove(held->at, held->at + certain, kept + 1); /* with its final zero */
        held->used_bytes = kept;
    }
    return false;
}

void stop_finish(struct stop *stop, struct buf *out)
{
    buf_append(out, buf_text(&stop->held), stop->held.used_bytes);
    buf_reset(&stop->held);
}
