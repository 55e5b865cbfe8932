/* The page account of one sequence, used by both processes so that the scheduler plans with the
 * arithmetic that the worker enforces.
 *
 * Two families of layers hold different KV: local (sliding window) and global (full attention).  A
 * sequence has one pair of frontiers, in tokens, and per family an origin and resident pages:
 *   launched   tokens that launched steps will have written
 *   committed  tokens that completed steps have written; committed <= launched
 *   origin     whole pages released from the front (always 0 for global)
 *   resident   pages held now; accounted = origin + resident
 * need = ceil((launched + new) / page) - accounted, exactly; a negative need is a bookkeeping error.
 * Rows that were held keep pages beyond the launched frontier, up to `reserved`: those are asked for
 * once only, so need counts from the further of both.  Pure. */
#ifndef PROTO_ACCOUNT_H
#define PROTO_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct account_geometry {
    uint32_t page_tokens;   /* a power of two */
    uint32_t window_tokens; /* sliding window */
    uint32_t max_step_tokens;
};

struct account_family {
    uint32_t origin_pages;
    uint32_t resident_pages;
};

struct account {
    uint32_t launched_tokens;
    uint32_t reserved_tokens; /* furthest launched frontier so far; set by account_launch */
    uint32_t committed_tokens;
    struct account_family local;
    struct account_family global;
};

struct account_need {
    uint32_t local_pages;
    uint32_t global_pages;
};

/* Whole local pages that lie before the window of the token at committed_tokens. */
uint32_t account_local_origin_pages(const struct account_geometry *geometry,
                                    uint32_t committed_tokens);

/* An account that begins behind reused_tokens, a multiple of the page: as if it had committed them. */
struct account account_begin(const struct account_geometry *geometry, uint32_t reused_tokens);

/* Pages that new_tokens more launched tokens need.  Errors: ERR_INTERNAL (negative need). */
ERR_NODISCARD enum err_code account_need(const struct account *account,
                                         const struct account_geometry *geometry,
                                         uint32_t new_tokens, struct account_need *out_need,
                                         struct err *err);

/* Take the pages of `need` and advance the launched frontier by new_tokens. */
void account_launch(struct account *account, const struct account_need *need, uint32_t new_tokens);

/* Pages were granted but new_tokens did not advance (a held row): the launched frontier goes back,
 * the pages stay. */
void account_unlaunch(struct account *account, uint32_t new_tokens);

/* Completed tokens: advances committed and releases the local front.  Returns local pages
 * released: new origin - old origin, origin = floor(max(0, committed - window) / page). */
uint32_t account_commit(struct account *account, const struct account_geometry *geometry,
                        uint32_t tokens);

/* Entries of a sliding page table: ceil(window/page) + ceil(max step tokens/page) + 2. */
uint32_t account_local_table_pages(const struct account_geometry *geometry);

/* Most pages of each family that a sequence of total_tokens ever holds at once, when never more than
 * step_tokens are launched and not yet committed (all steps in flight together). */
struct account_need account_peak(const struct account_geometry *geometry, uint32_t total_tokens,
                                 uint32_t step_tokens);

/* The same for one whose sliding page table bounds it: a frontend plans no more than that holds. */
struct account_need account_table_peak(const struct account_geometry *geometry,
                                       uint32_t total_tokens, uint32_t step_tokens);

/* The invariants: frontiers ordered, both families cover launched and reserved tokens exactly, local
 * origin as committed says.  False is a bookkeeping error. */
bool account_check(const struct account *account, const struct account_geometry *geometry);

#endif
