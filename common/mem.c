#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/num.h"

enum {
    ARENA_ALIGN_BYTES = 16
};

static void out_of_memory(size_t count, size_t elem_bytes)
{
    (void)fprintf(stderr, "out of memory: %zu elements of %zu bytes\n", count, elem_bytes);
    abort();
}

void *mem_try_zalloc(size_t count, size_t elem_bytes)
{
    return calloc(count == 0 ? 1 : count, elem_bytes == 0 ? 1 : elem_bytes);
}

void *mem_zalloc(size_t count, size_t elem_bytes)
{
    void *at = mem_try_zalloc(count, elem_bytes);
    if (at == NULL) {
        out_of_memory(count, elem_bytes);
    }
    return at;
}

void *mem_realloc(void *at, size_t count, size_t elem_bytes)
{
    size_t bytes = 0;
    if (!num_mul(count, elem_bytes, &bytes)) {
        out_of_memory(count, elem_bytes);
    }
    void *grown = realloc(at, bytes == 0 ? 1 : bytes);
    if (grown == NULL) {
        out_of_memory(count, elem_bytes);
    }
    return grown;
}

char *mem_strdup(const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL) {
        out_of_memory(strlen(text) + 1, 1);
    }
    return copy;
}

void mem_free(void *at)
{
    free(at);
}

enum err_code mem_arena_init(struct mem_arena *arena, size_t cap_bytes, struct err *err)
{
    unsigned char *base = malloc(cap_bytes == 0 ? 1 : cap_bytes);
    if (base == NULL) {
        return err_set(err, ERR_MEMORY, "arena of %zu bytes", cap_bytes);
    }
    *arena = (struct mem_arena){.base = base, .cap_bytes = cap_bytes};
    return ERR_OK;
}

void mem_arena_fini(struct mem_arena *arena)
{
    free(arena->base);
    *arena = (struct mem_arena){0};
}

void mem_arena_reset(struct mem_arena *arena)
{
    arena->used_bytes = 0;
}

void *mem_arena_alloc(struct mem_arena *arena, size_t count, size_t elem_bytes)
{
    size_t bytes = 0;
    size_t end = 0;
    size_t start = num_align_up(arena->used_bytes, ARENA_ALIGN_BYTES);
    if (!num_mul(count, elem_bytes, &bytes) || !num_add(start, bytes, &end) ||
        end > arena->cap_bytes) {
        return NULL;
    }
    arena->used_bytes = end;
    return arena->base + start;
}
