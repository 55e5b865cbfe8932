#include "worker/pool.h"

#include <assert.h>
#include <stddef.h>

#include "common/mem.h"
#include "common/num.h"

enum err_code pool_init(struct pool *pool, uint32_t page_count, struct err *err)
{
    *pool = (struct pool){0};
    if (page_count == 0) {
        return err_set(err, ERR_ARGUMENT, "a pool of 0 pages, at least 1");
    }
    pool->free_pages = mem_try_zalloc(page_count, sizeof(*pool->free_pages));
    pool->victims = mem_try_zalloc(page_count, sizeof(*pool->victims));
    pool->pages = mem_try_zalloc(page_count, sizeof(*pool->pages));
    if (pool->free_pages == NULL || pool->victims == NULL || pool->pages == NULL) {
        pool_fini(pool);
        return err_set(err, ERR_MEMORY, "no memory for the records of %u pages", page_count);
    }
    pool->page_count = page_count;
    pool->free_count = page_count;
    for (uint32_t i = 0; i < page_count; i++) {
        pool->free_pages[i] = page_count - 1 - i; /* page 0 is granted first */
    }
    for (uint32_t r = 0; r < POOL_RANK_COUNT; r++) {
        pool->idle[r] = (struct pool_list){.first = POOL_NO_PAGE, .last = POOL_NO_PAGE};
    }
    return ERR_OK;
}

void pool_fini(struct pool *pool)
{
    mem_free(pool->free_pages);
    mem_free(pool->victims);
    mem_free(pool->pages);
    *pool = (struct pool){0};
}

/* ---- idle pages ---- */

static void link_last(struct pool *pool, uint32_t page)
{
    struct pool_page *entry = &pool->pages[page];
    struct pool_list *list = &pool->idle[entry->rank];
    entry->prev = list->last;
    entry->next = POOL_NO_PAGE;
    if (list->last == POOL_NO_PAGE) {
        list->first = page;
    } else {
        pool->pages[list->last].next = page;
    }
    list->last = page;
    pool->idle_count++;
}

static void link_first(struct pool *pool, uint32_t page)
{
    struct pool_page *entry = &pool->pages[page];
    struct pool_list *list = &pool->idle[entry->rank];
    entry->prev = POOL_NO_PAGE;
    entry->next = list->first;
    if (list->first == POOL_NO_PAGE) {
        list->last = page;
    } else {
        pool->pages[list->first].prev = page;
    }
    list->first = page;
    pool->idle_count++;
}

static void unlink_idle(struct pool *pool, uint32_t page)
{
    const struct pool_page *entry = &pool->pages[page];
    struct pool_list *list = &pool->idle[entry->rank];
    if (entry->prev == POOL_NO_PAGE) {
        list->first = entry->next;
    } else {
        pool->pages[entry->prev].next = entry->next;
    }
    if (entry->next == POOL_NO_PAGE) {
        list->last = entry->prev;
    } else {
        pool->pages[entry->next].prev = entry->prev;
    }
    pool->idle_count--;
}

/* The idle page that is taken after this one; POOL_NO_PAGE: the first of all. */
static uint32_t idle_after(const struct pool *pool, uint32_t page)
{
    uint32_t rank = POOL_RANK_FIRST;
    uint32_t next = POOL_NO_PAGE;
    if (page != POOL_NO_PAGE) {
        rank = pool->pages[page].rank + 1;
        next = pool->pages[page].next;
    }
    for (; next == POOL_NO_PAGE && rank < POOL_RANK_COUNT; rank++) {
        next = pool->idle[rank].first;
    }
    return next;
}

/* ---- reservations ---- */

uint32_t pool_available(const struct pool *pool)
{
    return pool->free_count + pool->idle_count - pool->reserved_count;
}

bool pool_try_reserve(struct pool *pool, uint32_t page_count)
{
    if (page_count > pool_available(pool)) {
        return false;
    }
    pool->reserved_count += page_count;
    uint32_t victims = pool->reserved_count - num_min(pool->reserved_count, pool->free_count);
    while (pool->victim_count < victims) {
        uint32_t last =
            pool->victim_count == 0 ? POOL_NO_PAGE : pool->victims[pool->victim_count - 1];
        uint32_t page = idle_after(pool, last);
        assert(page != POOL_NO_PAGE);
        pool->victims[pool->victim_count++] = page;
    }
    return true;
}

uint32_t pool_reserved_page(const struct pool *pool, uint32_t index)
{
    assert(index < pool->reserved_count);
    return index < pool->free_count ? pool->free_pages[pool->free_count - 1 - index]
                                    : pool->victims[index - pool->free_count];
}

static bool add_holder(struct pool_page *page, struct pool *pool, uint32_t lane)
{
    page->holder_count++;
    if (lane == POOL_NO_LANE) {
        return false;
    }
    bool is_more = page->lane_counts[lane]++ == 0 || pool->counts_holders;
    pool->lane_pages[lane] += is_more;
    return is_more;
}

static bool leave(struct pool_page *page, struct pool *pool, uint32_t lane)
{
    if (lane == POOL_NO_LANE) {
        return false;
    }
    assert(page->lane_counts[lane] > 0);
    bool is_less = --page->lane_counts[lane] == 0 || pool->counts_holders;
    pool->lane_pages[lane] -= is_less;
    return is_less;
}

void pool_commit(struct pool *pool, uint32_t lane)
{
    for (uint32_t i = 0; i < pool->victim_count; i++) {
        unlink_idle(pool, pool->victims[i]);
        pool->pages[pool->victims[i]].is_cached = false;
    }
    for (uint32_t i = 0; i < pool->reserved_count; i++) {
        struct pool_page *page = &pool->pages[pool_reserved_page(pool, i)];
        assert(page->holder_count == 0 && !page->is_cached);
        (void)add_holder(page, pool, lane); /* it had none */
        page->last_writer = 0;
    }
    pool->free_count -= pool->reserved_count - pool->victim_count;
    pool->reserved_count = 0;
    pool->victim_count = 0;
}

void pool_rollback(struct pool *pool)
{
    pool->reserved_count = 0;
    pool->victim_count = 0;
}

/* ---- holders ---- */

bool pool_share(struct pool *pool, uint32_t page, uint32_t lane)
{
    assert(page < pool->page_count && pool->reserved_count == 0);
    struct pool_page *entry = &pool->pages[page];
    assert(entry->holder_count > 0 || entry->is_cached);
    if (entry->holder_count == 0) {
        unlink_idle(pool, page);
    }
    return add_holder(entry, pool, lane);
}

bool pool_release(struct pool *pool, uint32_t page, uint32_t lane)
{
    assert(page < pool->page_count && pool->pages[page].holder_count > 0);
    assert(pool->reserved_count == 0); /* a push would move what is reserved */
    struct pool_page *entry = &pool->pages[page];
    bool is_less = leave(entry, pool, lane);
    if (--entry->holder_count == 0) {
        if (entry->is_cached) {
            link_last(pool, page);
        } else {
            pool->free_pages[pool->free_count++] = page;
        }
    }
    return is_less;
}

void pool_leave_lane(struct pool *pool, uint32_t page, uint32_t lane)
{
    assert(page < pool->page_count);
    (void)leave(&pool->pages[page], pool, lane); /* the lane is asked for its count */
}

void pool_cache(struct pool *pool, uint32_t page, enum pool_rank rank)
{
    struct pool_page *entry = &pool->pages[page];
    assert(entry->holder_count > 0 && !entry->is_cached);
    entry->is_cached = true;
    entry->rank = rank;
}

void pool_uncache(struct pool *pool, uint32_t page)
{
    struct pool_page *entry = &pool->pages[page];
    assert(entry->is_cached && pool->reserved_count == 0);
    if (entry->holder_count == 0) {
        unlink_idle(pool, page);
        pool->free_pages[pool->free_count++] = page;
    }
    entry->is_cached = false;
}

void pool_set_rank(struct pool *pool, uint32_t page, enum pool_rank rank)
{
    struct pool_page *entry = &pool->pages[page];
    assert(entry->is_cached && pool->reserved_count == 0);
    if (entry->holder_count > 0 || entry->rank == rank) {
        entry->rank = rank;
        return;
    }
    unlink_idle(pool, page);
    entry->rank = rank;
    if (rank == POOL_RANK_FIRST) {
        link_last(pool, page);
    } else {
        link_first(pool, page);
    }
}

void pool_note_write(struct pool *pool, uint32_t page, uint64_t writer)
{
    assert(page < pool->page_count);
    struct pool_page *entry = &pool->pages[page];
    assert(entry->holder_count == 1 && !entry->is_cached);
    assert(entry->last_writer == 0 || entry->last_writer == writer);
    entry->last_writer = writer;
}

/* ---- checks ---- */

static uint64_t mix(uint64_t value)
{
    value = (value + 1) * 0x9e3779b97f4a7c15ULL;
    return value ^ (value >> 29);
}

/* Pages without holder that are not cached, against the stack: both sets have the same size and the
 * same sum of mixed ids, so they are the same set and no page is twice on the stack. */
static enum err_code check_free(const struct pool *pool, struct err *err)
{
    uint32_t free_pages = 0;
    uint64_t difference = 0;
    for (uint32_t page = 0; page < pool->page_count; page++) {
        if (pool->pages[page].holder_count == 0 && !pool->pages[page].is_cached) {
            free_pages++;
            difference += mix(page);
        }
    }
    if (free_pages != pool->free_count ||
        pool->reserved_count > pool->free_count + pool->idle_count) {
        return err_set(err, ERR_INTERNAL,
                       "%u pages without holder, %u on the free list, %u idle, %u reserved",
                       free_pages, pool->free_count, pool->idle_count, pool->reserved_count);
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

static enum err_code check_idle(const struct pool *pool, struct err *err)
{
    uint32_t idle = 0;
    uint32_t listed = 0;
    for (uint32_t page = 0; page < pool->page_count; page++) {
        idle += pool->pages[page].holder_count == 0 && pool->pages[page].is_cached;
    }
    for (uint32_t rank = 0; rank < POOL_RANK_COUNT; rank++) {
        uint32_t prev = POOL_NO_PAGE;
        uint32_t page = pool->idle[rank].first;
        for (; page != POOL_NO_PAGE && listed <= idle; page = pool->pages[page].next) {
            const struct pool_page *entry = &pool->pages[page];
            if (entry->holder_count > 0 || !entry->is_cached || entry->rank != rank ||
                entry->prev != prev) {
                return err_set(err, ERR_INTERNAL,
                               "page %u is on the list of idle pages of rank %u: %u holders, "
                               "%scached, rank %u",
                               page, rank, entry->holder_count, entry->is_cached ? "" : "not ",
                               entry->rank);
            }
            prev = page;
            listed++;
        }
        if (page == POOL_NO_PAGE && pool->idle[rank].last != prev) {
            return err_set(err, ERR_INTERNAL, "the list of idle pages of rank %u ends wrongly",
                           rank);
        }
    }
    if (idle != listed || idle != pool->idle_count) {
        return err_set(err, ERR_INTERNAL, "%u idle pages, %u on their lists, %u counted", idle,
                       listed, pool->idle_count);
    }
    return ERR_OK;
}

static enum err_code check_lanes(const struct pool *pool, struct err *err)
{
    uint32_t counts[POOL_LANE_COUNT] = {0};
    for (uint32_t page = 0; page < pool->page_count; page++) {
        const struct pool_page *entry = &pool->pages[page];
        uint32_t holders = 0;
        for (uint32_t lane = 0; lane < POOL_LANE_COUNT; lane++) {
            counts[lane] +=
                pool->counts_holders ? entry->lane_counts[lane] : entry->lane_counts[lane] > 0;
            holders += entry->lane_counts[lane];
        }
        if (holders > entry->holder_count) {
            return err_set(err, ERR_INTERNAL, "page %u: %u holders, %u in lanes", page,
                           entry->holder_count, holders);
        }
    }
    for (uint32_t lane = 0; lane < POOL_LANE_COUNT; lane++) {
        if (counts[lane] != pool->lane_pages[lane]) {
            return err_set(err, ERR_INTERNAL, "lane %u: %u pages, %u counted", lane,
                           pool->lane_pages[lane], counts[lane]);
        }
    }
    return ERR_OK;
}

enum err_code pool_check(const struct pool *pool, struct err *err)
{
    enum err_code code = check_free(pool, err);
    code = code == ERR_OK ? check_idle(pool, err) : code;
    return code == ERR_OK ? check_lanes(pool, err) : code;
}
