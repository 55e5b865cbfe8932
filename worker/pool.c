#include "worker/pool.h"

#include <assert.h>
#include <stddef.h>

#include "common/mem.h"

enum err_code pool_init(struct pool *pool, uint32_t page_count, struct err *err)
{
    *pool = (struct pool){0};
    if (page_count == 0) {
        return err_set(err, ERR_ARGUMENT, "a pool of 0 pages, at least 1");
    }
    pool->free_pages = mem_try_zalloc(page_count, sizeof(*pool->free_pages));
    pool->holder_counts = mem_try_zalloc(page_count, sizeof(*pool->holder_counts));
    pool->last_writers = mem_try_zalloc(page_count, sizeof(*pool->last_writers));
    if (pool->free_pages == NULL || pool->holder_counts == NULL || pool->last_writers == NULL) {
        pool_fini(pool);
        return err_set(err, ERR_MEMORY, "no memory for the records of %u pages", page_count);
    }
    pool->page_count = page_count;
    pool->free_count = page_count;
    for (uint32_t i = 0; i < page_count; i++) {
        pool->free_pages[i] = page_count - 1 - i; /* page 0 is granted first */
    }
    return ERR_OK;
}

void pool_fini(struct pool *pool)
{
    mem_free(pool->free_pages);
    mem_free(pool->holder_counts);
    mem_free(pool->last_writers);
    *pool = (struct pool){0};
}

uint32_t pool_available(const struct pool *pool)
{
    return pool->free_count - pool->reserved_count;
}

bool pool_try_reserve(struct pool *pool, uint32_t page_count)
{
    if (page_count > pool_available(pool)) {
        return false;
    }
    pool->reserved_count += page_count;
    return true;
}

uint32_t pool_reserved_page(const struct pool *pool, uint32_t index)
{
    assert(index < pool->reserved_count);
    return pool->free_pages[pool->free_count - 1 - index];
}

void pool_commit(struct pool *pool)
{
    for (uint32_t i = 0; i < pool->reserved_count; i++) {
        uint32_t page = pool_reserved_page(pool, i);
        assert(pool->holder_counts[page] == 0);
        pool->holder_counts[page] = 1;
        pool->last_writers[page] = 0;
    }
    pool->free_count -= pool->reserved_count;
    pool->reserved_count = 0;
}

void pool_rollback(struct pool *pool)
{
    pool->reserved_count = 0;
}

void pool_share(struct pool *pool, uint32_t page)
{
    assert(page < pool->page_count && pool->holder_counts[page] > 0);
    pool->holder_counts[page]++;
}

void pool_release(struct pool *pool, uint32_t page)
{
    assert(page < pool->page_count && pool->holder_counts[page] > 0);
    assert(pool->reserved_count == 0); /* a push would move what is reserved */
    if (--pool->holder_counts[page] == 0) {
        pool->free_pages[pool->free_count++] = page;
    }
}

void pool_note_write(struct pool *pool, uint32_t page, uint64_t writer)
{
    assert(page < pool->page_count && pool->holder_counts[page] == 1);
    assert(pool->last_writers[page] == 0 || pool->last_writers[page] == writer);
    pool->last_writers[page] = writer;
}

static uint64_t mix(uint64_t value)
{
    value = (value + 1) * 0x9e3779b97f4a7c15ULL;
    return value ^ (value >> 29);
}

enum err_code pool_check(const struct pool *pool, struct err *err)
{
    /* Both sets have the same size and the same sum of mixed ids: they are the same set, so no page
     * is twice on the list. */
    uint32_t free_pages = 0;
    uint64_t difference = 0;
    for (uint32_t page = 0; page < pool->page_count; page++) {
        if (pool->holder_counts[page] == 0) {
            free_pages++;
            difference += mix(page);
        }
    }
    if (free_pages != pool->free_count || pool->reserved_count > pool->free_count) {
        return err_set(err, ERR_INTERNAL,
                       "%u pages without holder, %u on the free list, %u reserved", free_pages,
                       pool->free_count, pool->reserved_count);
    }
    for (uint32_t i = 0; i < pool->free_count; i++) {
        difference -= mix(pool->free_pages[i]);
    }
    if (difference != 0) {
        return err_set(err, ERR_INTERNAL, "the free list is not the set of %u pages without holder",
                       free_pages);
    }
    return ERR_OK;
}
