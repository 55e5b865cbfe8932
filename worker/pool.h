/* Pages of one family: who holds which, never what is in them.
 *
 *   free   no holder, nothing worth keeping: on a stack
 *   held   counted holders; the prefix cache may know it as well
 *   idle   no holder, but cached: its content may be shared again until the page is wanted
 *
 * Idle pages are as good as free ones: pool_available counts both, and a reservation takes free ones
 * first, then idle ones in the order of their lists.  Granting is in two parts, so that a plan can
 * take pages of both families or of neither: reserve sets pages aside (no state of a page changes),
 * commit grants what is reserved, rollback forgets it and leaves the pool exactly as before.
 *
 * A lane counts the pages that one session holds: each once however many of its sequences do, or,
 * where the pool counts_holders, once for each.
 *
 * Executor thread only. */
#ifndef WORKER_POOL_H
#define WORKER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/limits.h"

#define POOL_LANE_COUNT SESSION_MAX_COUNT
#define POOL_NO_LANE    UINT32_MAX /* a holder that counts for no session */
#define POOL_NO_PAGE    UINT32_MAX

/* Which idle pages go first. */
enum pool_rank {
    POOL_RANK_FIRST,
    POOL_RANK_LAST,
    POOL_RANK_COUNT,
};

/* Idle pages of one rank, the next to be taken first. */
struct pool_list {
    uint32_t first; /* POOL_NO_PAGE: empty */
    uint32_t last;
};

struct pool_page {
    uint64_t last_writer;                  /* who wrote it since it was granted; 0: nobody */
    uint32_t holder_count;                 /* of all sequences */
    uint32_t lane_counts[POOL_LANE_COUNT]; /* of those, by lane */
    uint32_t next;                         /* of an idle page, in its rank's list */
    uint32_t prev;
    enum pool_rank rank; /* of a cached page */
    bool is_cached;
};

struct pool {
    uint32_t page_count;
    uint32_t free_count;
    uint32_t idle_count;
    uint32_t reserved_count; /* set aside, at most free_count + idle_count */
    uint32_t victim_count;   /* of those, idle pages */
    uint32_t lane_pages[POOL_LANE_COUNT];
    bool counts_holders; /* set right behind pool_init */
    struct pool_list idle[POOL_RANK_COUNT];
    uint32_t *free_pages;    /* owned, [page_count], a stack: the last of free_count is next */
    uint32_t *victims;       /* owned, [page_count]: idle pages set aside, in the order of grants */
    struct pool_page *pages; /* owned, [page_count] */
};

/* Errors: ERR_ARGUMENT (no page), ERR_MEMORY. */
ERR_NODISCARD enum err_code pool_init(struct pool *pool, uint32_t page_count, struct err *err);
void pool_fini(struct pool *pool);

/* Pages that are neither held nor reserved. */
uint32_t pool_available(const struct pool *pool);

/* Set page_count more pages aside, all or none.  Reservations add up until commit or rollback.  Costs
 * the same for any count of free pages, and a step of a list for each idle one. */
bool pool_try_reserve(struct pool *pool, uint32_t page_count);

/* The index-th page that commit will grant, 0 first; index < reserved_count. */
uint32_t pool_reserved_page(const struct pool *pool, uint32_t index);

/* Every reserved page gets one holder, of that lane.  Idle ones among them (victims) are not cached
 * any more: whoever cached them must have forgotten them. */
void pool_commit(struct pool *pool, uint32_t lane);
void pool_rollback(struct pool *pool);

/* One more holder of a held or idle page; its content must not change from now on.  True when its lane
 * has a page more. */
bool pool_share(struct pool *pool, uint32_t page, uint32_t lane);

/* One holder less; after the last the page is idle where it is cached, else free.  True when its lane
 * has a page less. */
bool pool_release(struct pool *pool, uint32_t page, uint32_t lane);

/* A holder stays and counts for no lane any more. */
void pool_leave_lane(struct pool *pool, uint32_t page, uint32_t lane);

/* A held page's content is worth keeping when nobody holds it any more. */
void pool_cache(struct pool *pool, uint32_t page, enum pool_rank rank);

/* It is not; an idle page is free then. */
void pool_uncache(struct pool *pool, uint32_t page);

/* An idle page goes to the end of FIRST, or to the front of LAST. */
void pool_set_rank(struct pool *pool, uint32_t page, enum pool_rank rank);

/* A launched step writes a page on behalf of writer (not 0).  Asserts that it has one holder, that it
 * is not cached, and that nobody else wrote it since it was granted. */
void pool_note_write(struct pool *pool, uint32_t page, uint64_t writer);

/* Errors: ERR_INTERNAL: free stack, idle lists, lanes and holders do not add up. */
ERR_NODISCARD enum err_code pool_check(const struct pool *pool, struct err *err);

#endif
