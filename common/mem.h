/* Allocators that abort when memory is gone, and a bump arena. */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H

#include <stddef.h>

#include "common/err.h"

/* Zeroed memory of count elements; aborts on overflow or exhaustion.  Freed by mem_free. */
void *mem_zalloc(size_t count, size_t elem_bytes);

/* Resize to count elements; new bytes are not initialised.  Aborts as mem_zalloc. */
void *mem_realloc(void *at, size_t count, size_t elem_bytes);

char *mem_strdup(const char *text);
void mem_free(void *at);

/* Zeroed memory for sizes that come from outside: null instead of an abort. */
void *mem_try_zalloc(size_t count, size_t elem_bytes);

/* A fixed block carved front to back; reset frees everything at once.  One thread. */
struct mem_arena {
    unsigned char *base; /* owned */
    size_t cap_bytes;
    size_t used_bytes;
};

/* Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code mem_arena_init(struct mem_arena *arena, size_t cap_bytes,
                                           struct err *err);
void mem_arena_fini(struct mem_arena *arena);
void mem_arena_reset(struct mem_arena *arena);

/* 16-byte aligned, not zeroed; null when the arena is full. */
void *mem_arena_alloc(struct mem_arena *arena, size_t count, size_t elem_bytes);

#endif
