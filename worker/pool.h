/* Pages of one family: who holds which, never what is in them.
 *
 * Granting is in two parts, so that a plan can take pages of both families or of neither: reserve
 * sets free pages aside (no state of a page changes), commit grants what is reserved, rollback
 * forgets it and leaves the pool exactly as before.  Reserve and rollback cost the same for any
 * count.  Pages are counted references: one for each holder.
 *
 * Executor thread only. */
#ifndef WORKER_POOL_H
#define WORKER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct pool {
    uint32_t page_count;
    uint32_t free_count;
    uint32_t reserved_count; /* set aside, at most free_count */
    uint32_t *free_pages;    /* owned, [page_count], a stack: the last of free_count is next */
    uint32_t *holder_counts; /* owned, [page_count]; 0: free */
    uint64_t *last_writers;  /* owned, [page_count]; who wrote it since it was granted; 0: nobody */
};

/* Errors: ERR_ARGUMENT (no page), ERR_MEMORY. */
ERR_NODISCARD enum err_code pool_init(struct pool *pool, uint32_t page_count, struct err *err);
void pool_fini(struct pool *pool);

/* Pages that are neither held nor reserved. */
uint32_t pool_available(const struct pool *pool);

/* Set page_count more pages aside, all or none.  Reservations add up until commit or rollback. */
bool pool_try_reserve(struct pool *pool, uint32_t page_count);

/* The index-th page that commit will grant, 0 first; index < reserved_count. */
uint32_t pool_reserved_page(const struct pool *pool, uint32_t index);

/* Every reserved page gets one holder. */
void pool_commit(struct pool *pool);
void pool_rollback(struct pool *pool);

/* One more holder of a held page; its content must not change from now on. */
void pool_share(struct pool *pool, uint32_t page);

/* One holder less; the page is free after the last. */
void pool_release(struct pool *pool, uint32_t page);

/* A launched step writes a page on behalf of writer (not 0).  Asserts that it has one holder and
 * that nobody else wrote it since it was granted. */
void pool_note_write(struct pool *pool, uint32_t page, uint64_t writer);

/* Errors: ERR_INTERNAL: the free list and the holders do not add up. */
ERR_NODISCARD enum err_code pool_check(const struct pool *pool, struct err *err);

#endif
