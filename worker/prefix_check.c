/* The prefix cache against everything that its counts, lists and hashes are made from. */
#include "worker/prefix.h"

#include <stddef.h>
#include <string.h>

#include "common/mem.h"

/* What counting from scratch gives. */
struct counted {
    uint32_t *child_counts; /* owned, [global pages] */
    uint32_t *end_counts;   /* owned, likewise */
    bool *is_seen;          /* owned, likewise: on the list of idle pages so far */
};

static enum err_code differs(struct err *err, const char *what, uint32_t node, uint64_t has,
                             uint64_t want)
{
    return err_set(err, ERR_INTERNAL, "prefix node %u: %s %llu kept, %llu counted", node, what,
                   (unsigned long long)has, (unsigned long long)want);
}

static bool is_end(uint32_t child_count)
{
    return child_count != 1;
}

static void count(const struct prefix *prefix, struct counted *counted)
{
    uint32_t node_count = prefix->pools[RUNNER_FAMILY_GLOBAL].page_count;
    for (uint32_t i = 0; i < node_count; i++) {
        const struct prefix_node *node = &prefix->nodes[i];
        if (node->is_used && node->parent != PREFIX_NO_NODE) {
            counted->child_counts[node->parent]++;
        }
    }
    for (uint32_t i = 0; i < node_count; i++) {
        if (!prefix->nodes[i].is_used || !is_end(counted->child_counts[i])) {
            continue;
        }
        uint32_t at = i;
        for (uint32_t w = 0; w < prefix->window_pages && at != PREFIX_NO_NODE; w++) {
            counted->end_counts[at]++;
            at = prefix->nodes[at].parent;
        }
    }
}

/* A node's local page, and what the pool thinks of it. */
static enum err_code check_local(const struct prefix *prefix, uint32_t at, struct err *err)
{
    const struct prefix_node *node = &prefix->nodes[at];
    const struct pool *pool = &prefix->pools[RUNNER_FAMILY_LOCAL];
    if (node->local_page == POOL_NO_PAGE) {
        return ERR_OK;
    }
    const struct pool_page *page = &pool->pages[node->local_page];
    if (prefix->local_nodes[node->local_page] != at) {
        return differs(err, "node of its local page", at, prefix->local_nodes[node->local_page],
                       at);
    }
    enum pool_rank rank = node->end_count > 0 ? POOL_RANK_LAST : POOL_RANK_FIRST;
    if (!page->is_cached || page->rank != rank) {
        return differs(err, "rank of its local page", at, page->rank, rank);
    }
    const struct pool_page *global = &prefix->pools[RUNNER_FAMILY_GLOBAL].pages[at];
    if (page->holder_count > global->holder_count) {
        return differs(err, "holders of its global page", at, global->holder_count,
                       page->holder_count);
    }
    return ERR_OK;
}

/* It is found where its content says, once. */
static enum err_code check_place(const struct prefix *prefix, uint32_t at, struct err *err)
{
    const struct prefix_node *node = &prefix->nodes[at];
    uint32_t page_tokens = prefix->options.page_tokens;
    const uint32_t *tokens = prefix->tokens + (uint64_t)at * page_tokens;
    uint32_t same = 0;
    for (uint32_t i = prefix->buckets[node->key & (prefix->bucket_count - 1)]; i != PREFIX_NO_NODE;
         i = prefix->nodes[i].next_in_bucket) {
        const struct prefix_node *other = &prefix->nodes[i];
        same += other->is_used && other->parent == node->parent && other->salt == node->salt &&
                memcmp(prefix->tokens + (uint64_t)i * page_tokens, tokens,
                       page_tokens * sizeof(*tokens)) == 0;
    }
    return same == 1 ? ERR_OK : differs(err, "nodes of its content", at, 1, same);
}

static enum err_code check_node(const struct prefix *prefix, const struct counted *counted,
                                uint32_t at, struct err *err)
{
    const struct prefix_node *node = &prefix->nodes[at];
    const struct pool *pool = &prefix->pools[RUNNER_FAMILY_GLOBAL];
    if (pool->pages[at].is_cached != node->is_used) {
        return differs(err, "cached global page", at, node->is_used, pool->pages[at].is_cached);
    }
    if (!node->is_used) {
        return ERR_OK;
    }
    if (node->child_count != counted->child_counts[at]) {
        return differs(err, "pages that follow", at, node->child_count, counted->child_counts[at]);
    }
    if (node->end_count != counted->end_counts[at]) {
        return differs(err, "ends of chains", at, node->end_count, counted->end_counts[at]);
    }
    if (node->parent != PREFIX_NO_NODE) {
        const struct prefix_node *parent = &prefix->nodes[node->parent];
        if (!parent->is_used || parent->salt != node->salt) {
            return differs(err, "node before it", at, node->parent, PREFIX_NO_NODE);
        }
        if (pool->pages[node->parent].holder_count < pool->pages[at].holder_count) {
            return differs(err, "holders of the page before it", at,
                           pool->pages[node->parent].holder_count, pool->pages[at].holder_count);
        }
    }
    enum err_code code = check_local(prefix, at, err);
    return code == ERR_OK ? check_place(prefix, at, err) : code;
}

/* Idle pages are given up from the end of each chain. */
static enum err_code check_order(const struct prefix *prefix, struct counted *counted,
                                 struct err *err)
{
    const struct pool *pool = &prefix->pools[RUNNER_FAMILY_GLOBAL];
    for (uint32_t rank = 0; rank < POOL_RANK_COUNT; rank++) {
        for (uint32_t page = pool->idle[rank].first; page != POOL_NO_PAGE;
             page = pool->pages[page].next) {
            uint32_t parent = prefix->nodes[page].parent;
            if (parent != PREFIX_NO_NODE && counted->is_seen[parent]) {
                return differs(err, "place in line behind the node before it", page, parent, page);
            }
            counted->is_seen[page] = true;
        }
    }
    return ERR_OK;
}

static enum err_code check_totals(const struct prefix *prefix, struct err *err)
{
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct pool *pool = &prefix->pools[f];
        uint32_t cached = 0;
        for (uint32_t i = 0; i < pool->page_count; i++) {
            bool is_lost = f == RUNNER_FAMILY_LOCAL &&
                           pool->pages[i].is_cached != (prefix->local_nodes[i] != PREFIX_NO_NODE);
            cached += pool->pages[i].is_cached;
            if (is_lost) {
                return err_set(err, ERR_INTERNAL, "local page %u: cached and of no node, or not",
                               i);
            }
        }
        if (cached != prefix->stats.cached_pages[f]) {
            return err_set(err, ERR_INTERNAL, "family %u: %u pages cached, %u counted", f,
                           prefix->stats.cached_pages[f], cached);
        }
    }
    return ERR_OK;
}

enum err_code prefix_check(const struct prefix *prefix, struct err *err)
{
    uint32_t node_count = prefix->pools[RUNNER_FAMILY_GLOBAL].page_count;
    if (!prefix->options.is_on) {
        return ERR_OK;
    }
    struct counted counted = {
        .child_counts = mem_zalloc(node_count, sizeof(*counted.child_counts)),
        .end_counts = mem_zalloc(node_count, sizeof(*counted.end_counts)),
        .is_seen = mem_zalloc(node_count, sizeof(*counted.is_seen)),
    };
    count(prefix, &counted);
    enum err_code code = ERR_OK;
    for (uint32_t i = 0; i < node_count && code == ERR_OK; i++) {
        code = check_node(prefix, &counted, i, err);
    }
    code = code == ERR_OK ? check_order(prefix, &counted, err) : code;
    code = code == ERR_OK ? check_totals(prefix, err) : code;
    mem_free(counted.child_counts);
    mem_free(counted.end_counts);
    mem_free(counted.is_seen);
    return code;
}
