/* Prefixes whose keys and values are in pages: which chains of full pages there are, and where.
 *
 * A node stands for one full page of tokens behind another node, its parent, or behind a salt where
 * it is the first.  It is named by the global page that holds it, so there are never more nodes than
 * global pages, and nothing is allocated after prefix_init.  It may know a local page too.  Nodes are
 * found by a keyed hash over salt and all tokens up to the page's end; what is found is compared
 * (parent, salt, tokens), and the parent was, so a collision costs time and never gives wrong text.
 *
 * A hit of R tokens needs the global pages of [0, R) and the local pages of [max(0, R - window), R).
 *
 * Invariants (prefix_check and the pools'):
 *   - the holders of a node's global page hold those of all nodes before it, so idle nodes have no
 *     held ones behind them and can be given up from the end;
 *   - in the pool's list of idle global pages a node comes before its parent: those that were let go
 *     longest ago first, the end of a chain before its beginning;
 *   - a local page has rank LAST while it is in the last window before an end of a chain, and FIRST
 *     else.  A chain ends where nothing follows, and where more than one page does.
 *
 * The pools' counts move with pool_share and pool_release alone; this module only says what is worth
 * keeping.  Executor thread only. */
#ifndef WORKER_PREFIX_H
#define WORKER_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/pool.h"
#include "worker/runner.h"

#define PREFIX_NO_NODE POOL_NO_PAGE

struct prefix_options {
    uint32_t page_tokens;
    uint32_t window_tokens;
    uint32_t cut_tokens; /* hits are multiples of it; 0 or a power of two */
    uint64_t hash_seed;  /* unknown to whoever writes prompts */
    bool is_on;          /* false: nothing is ever found or kept */
};

struct prefix_node {
    uint64_t key;  /* of the chain up to this page */
    uint64_t salt; /* of the whole chain */
    uint32_t parent;
    uint32_t next_in_bucket;
    uint32_t child_count;
    uint32_t end_count;  /* ends of chains whose last window this page is in */
    uint32_t local_page; /* POOL_NO_PAGE: none cached */
    bool is_used;
};

struct prefix_stats {
    uint64_t evicted_pages[RUNNER_FAMILY_COUNT];
    uint32_t cached_pages[RUNNER_FAMILY_COUNT]; /* held ones too */
};

struct prefix {
    struct pool *pools; /* borrowed, [RUNNER_FAMILY_COUNT] */
    struct prefix_options options;
    uint32_t window_pages;
    struct prefix_node *nodes; /* owned, [global pages] */
    uint32_t *tokens;          /* owned, [global pages, page_tokens] */
    uint32_t *local_nodes;     /* owned, [local pages]: node whose local page it is */
    uint32_t *buckets;         /* owned, [bucket_count]: first node of each chain of hashes */
    uint32_t bucket_count;     /* a power of two */
    struct prefix_stats stats;
};

/* pools are borrowed until prefix_fini.  Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code prefix_init(struct prefix *prefix, struct pool *pools,
                                        const struct prefix_options *options, struct err *err);
void prefix_fini(struct prefix *prefix);

/* Pages of the longest hit among tokens[0 .. token_count).  out_nodes[0 .. result) are its nodes;
 * room for token_count / page_tokens.  Changes nothing. */
uint32_t prefix_find(const struct prefix *prefix, uint64_t salt, const uint32_t *tokens,
                     uint32_t token_count, uint32_t *out_nodes);

/* Of a hit of page_count pages: the first whose local page is needed. */
uint32_t prefix_first_local(const struct prefix *prefix, uint32_t page_count);

/* A full page that a completed step has written. */
struct prefix_page {
    uint32_t parent; /* node of the page before it; PREFIX_NO_NODE: it is the first */
    uint64_t salt;
    const uint32_t *tokens; /* [page_tokens], copied */
    uint32_t global_page;   /* held by the caller, not cached */
    uint32_t local_page;    /* likewise; POOL_NO_PAGE: none */
};

/* The node with that content: a new one over the caller's pages, or one that was there, which takes
 * the local page where it had none.  The caller is to hold its global page from then on.
 * PREFIX_NO_NODE while the cache is off. */
uint32_t prefix_add(struct prefix *prefix, const struct prefix_page *page);

/* Forget a node that nothing follows; its pages stay with their holders. */
void prefix_drop(struct prefix *prefix, uint32_t node);

/* Forget all that no sequence holds: its pages are free. */
void prefix_reset(struct prefix *prefix);

/* Grants what both pools have reserved, to lane; the idle pages among it are forgotten first. */
void prefix_commit_pools(struct prefix *prefix, uint32_t lane);

/* Everything recomputed.  Errors: ERR_INTERNAL names the first difference. */
ERR_NODISCARD enum err_code prefix_check(const struct prefix *prefix, struct err *err);

#endif
