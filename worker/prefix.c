#include "worker/prefix.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "proto/account.h"

/* Two buckets for each node keep the chains of hashes short. */
#define BUCKETS_PER_NODE 2

static struct pool *local_pool(const struct prefix *prefix)
{
    return &prefix->pools[RUNNER_FAMILY_LOCAL];
}

static struct pool *global_pool(const struct prefix *prefix)
{
    return &prefix->pools[RUNNER_FAMILY_GLOBAL];
}

static enum err_code allocate(struct prefix *prefix, struct err *err)
{
    uint32_t global_pages = global_pool(prefix)->page_count;
    uint32_t local_pages = local_pool(prefix)->page_count;
    uint64_t token_count = (uint64_t)global_pages * prefix->options.page_tokens;
    prefix->bucket_count = 1;
    while (prefix->bucket_count / BUCKETS_PER_NODE < global_pages &&
           prefix->bucket_count <= UINT32_MAX / 2) {
        prefix->bucket_count *= 2;
    }
    prefix->nodes = mem_try_zalloc(global_pages, sizeof(*prefix->nodes));
    prefix->tokens = mem_try_zalloc(token_count, sizeof(*prefix->tokens));
    prefix->local_nodes = mem_try_zalloc(local_pages, sizeof(*prefix->local_nodes));
    prefix->buckets = mem_try_zalloc(prefix->bucket_count, sizeof(*prefix->buckets));
    if (prefix->nodes == NULL || prefix->tokens == NULL || prefix->local_nodes == NULL ||
        prefix->buckets == NULL) {
        prefix_fini(prefix);
        return err_set(err, ERR_MEMORY, "no memory for a prefix cache of %u pages", global_pages);
    }
    for (uint32_t i = 0; i < prefix->bucket_count; i++) {
        prefix->buckets[i] = PREFIX_NO_NODE;
    }
    for (uint32_t i = 0; i < local_pages; i++) {
        prefix->local_nodes[i] = PREFIX_NO_NODE;
    }
    return ERR_OK;
}

enum err_code prefix_init(struct prefix *prefix, struct pool *pools,
                          const struct prefix_options *options, struct err *err)
{
    *prefix = (struct prefix){
        .pools = pools,
        .options = *options,
        .window_pages = num_ceil_div(options->window_tokens, options->page_tokens),
    };
    return options->is_on ? allocate(prefix, err) : ERR_OK;
}

void prefix_fini(struct prefix *prefix)
{
    mem_free(prefix->nodes);
    mem_free(prefix->tokens);
    mem_free(prefix->local_nodes);
    mem_free(prefix->buckets);
    *prefix = (struct prefix){0};
}

/* ---- looking up ---- */

static uint64_t stir(uint64_t key, uint64_t word)
{
    key = (key ^ word) * 0x9e3779b97f4a7c15ULL;
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93ULL;
    return key ^ key >> 32;
}

static uint64_t key_of(const struct prefix *prefix, uint32_t parent, uint64_t salt,
                       const uint32_t *tokens)
{
    uint32_t count = prefix->options.page_tokens;
    uint64_t key = parent == PREFIX_NO_NODE ? stir(prefix->options.hash_seed, salt)
                                            : stir(prefix->nodes[parent].key, 0);
    uint32_t i = 0;
    for (; i + 1 < count; i += 2) {
        key = stir(key, (uint64_t)tokens[i] << 32 | tokens[i + 1]);
    }
    return i < count ? stir(key, tokens[i]) : key;
}

static uint32_t *tokens_of(const struct prefix *prefix, uint32_t node)
{
    return prefix->tokens + (uint64_t)node * prefix->options.page_tokens;
}

static uint32_t bucket_of(const struct prefix *prefix, uint64_t key)
{
    return (uint32_t)key & (prefix->bucket_count - 1);
}

static uint32_t find_child(const struct prefix *prefix, uint32_t parent, uint64_t salt,
                           const uint32_t *tokens)
{
    uint64_t key = key_of(prefix, parent, salt, tokens);
    size_t byte_count = prefix->options.page_tokens * sizeof(*tokens);
    uint32_t at = prefix->buckets[bucket_of(prefix, key)];
    while (at != PREFIX_NO_NODE) {
        const struct prefix_node *node = &prefix->nodes[at];
        if (node->key == key && node->parent == parent && node->salt == salt &&
            memcmp(tokens_of(prefix, at), tokens, byte_count) == 0) {
            return at;
        }
        at = node->next_in_bucket;
    }
    return PREFIX_NO_NODE;
}

uint32_t prefix_first_local(const struct prefix *prefix, uint32_t page_count)
{
    const struct account_geometry geometry = {
        .page_tokens = prefix->options.page_tokens,
        .window_tokens = prefix->options.window_tokens,
    };
    return account_local_origin_pages(&geometry, page_count * geometry.page_tokens);
}

uint32_t prefix_find(const struct prefix *prefix, uint64_t salt, const uint32_t *tokens,
                     uint32_t token_count, uint32_t *out_nodes)
{
    uint32_t page_tokens = prefix->options.page_tokens;
    uint32_t cut_pages = num_max(1, prefix->options.cut_tokens / page_tokens);
    uint32_t parent = PREFIX_NO_NODE;
    uint32_t local_run = 0; /* pages before here whose local pages are all there */
    uint32_t hit_pages = 0;
    if (!prefix->options.is_on) {
        return 0;
    }
    for (uint32_t i = 0; i < token_count / page_tokens; i++) {
        parent = find_child(prefix, parent, salt, tokens + (uint64_t)i * page_tokens);
        if (parent == PREFIX_NO_NODE) {
            break;
        }
        out_nodes[i] = parent;
        local_run = prefix->nodes[parent].local_page == POOL_NO_PAGE ? 0 : local_run + 1;
        uint32_t pages = i + 1;
        if (pages % cut_pages == 0 && local_run >= pages - prefix_first_local(prefix, pages)) {
            hit_pages = pages;
        }
    }
    return hit_pages;
}

/* ---- ends of chains ---- */

static void set_rank(const struct prefix *prefix, const struct prefix_node *node)
{
    if (node->local_page != POOL_NO_PAGE) {
        pool_set_rank(local_pool(prefix), node->local_page,
                      node->end_count > 0 ? POOL_RANK_LAST : POOL_RANK_FIRST);
    }
}

/* The pages of the last window before an end at node. */
static void add_end(const struct prefix *prefix, uint32_t at)
{
    for (uint32_t i = 0; i < prefix->window_pages && at != PREFIX_NO_NODE; i++) {
        struct prefix_node *node = &prefix->nodes[at];
        node->end_count++;
        if (node->end_count == 1) {
            set_rank(prefix, node);
        }
        at = node->parent;
    }
}

static void remove_end(const struct prefix *prefix, uint32_t at)
{
    for (uint32_t i = 0; i < prefix->window_pages && at != PREFIX_NO_NODE; i++) {
        struct prefix_node *node = &prefix->nodes[at];
        assert(node->end_count > 0);
        node->end_count--;
        if (node->end_count == 0) {
            set_rank(prefix, node);
        }
        at = node->parent;
    }
}

/* A new end behind parent.  Protection comes before it goes, so that pages which have it before and
 * after keep their places in line. */
static void gain_child(const struct prefix *prefix, uint32_t parent, uint32_t child)
{
    add_end(prefix, child);
    uint32_t count = parent == PREFIX_NO_NODE ? 0 : ++prefix->nodes[parent].child_count;
    if (count == 1) {
        remove_end(prefix, parent);
    } else if (count == 2) {
        add_end(prefix, parent);
    }
}

static void lose_child(const struct prefix *prefix, uint32_t parent, uint32_t child)
{
    uint32_t count = parent == PREFIX_NO_NODE ? UINT32_MAX : --prefix->nodes[parent].child_count;
    if (count == 0) {
        add_end(prefix, parent);
    }
    remove_end(prefix, child);
    if (count == 1) {
        remove_end(prefix, parent);
    }
}

/* ---- coming and going ---- */

static void attach_local(struct prefix *prefix, uint32_t at, uint32_t local_page)
{
    struct prefix_node *node = &prefix->nodes[at];
    if (local_page == POOL_NO_PAGE || node->local_page != POOL_NO_PAGE) {
        return;
    }
    node->local_page = local_page;
    prefix->local_nodes[local_page] = at;
    prefix->stats.cached_pages[RUNNER_FAMILY_LOCAL]++;
    pool_cache(local_pool(prefix), local_page,
               node->end_count > 0 ? POOL_RANK_LAST : POOL_RANK_FIRST);
}

static void detach_local(struct prefix *prefix, struct prefix_node *node)
{
    prefix->local_nodes[node->local_page] = PREFIX_NO_NODE;
    node->local_page = POOL_NO_PAGE;
    prefix->stats.cached_pages[RUNNER_FAMILY_LOCAL]--;
}

uint32_t prefix_add(struct prefix *prefix, const struct prefix_page *page)
{
    if (!prefix->options.is_on) {
        return PREFIX_NO_NODE;
    }
    uint32_t at = find_child(prefix, page->parent, page->salt, page->tokens);
    if (at != PREFIX_NO_NODE) {
        attach_local(prefix, at, page->local_page);
        return at;
    }
    at = page->global_page;
    struct prefix_node *node = &prefix->nodes[at];
    assert(!node->is_used);
    *node = (struct prefix_node){
        .key = key_of(prefix, page->parent, page->salt, page->tokens),
        .salt = page->salt,
        .parent = page->parent,
        .local_page = POOL_NO_PAGE,
        .is_used = true,
    };
    memcpy(tokens_of(prefix, at), page->tokens,
           prefix->options.page_tokens * sizeof(*page->tokens));
    uint32_t *bucket = &prefix->buckets[bucket_of(prefix, node->key)];
    node->next_in_bucket = *bucket;
    *bucket = at;
    pool_cache(global_pool(prefix), at, POOL_RANK_FIRST);
    prefix->stats.cached_pages[RUNNER_FAMILY_GLOBAL]++;
    gain_child(prefix, page->parent, at);
    attach_local(prefix, at, page->local_page);
    return at;
}

/* Out of the hash and the chain; the global page's state is the caller's matter. */
static void forget(struct prefix *prefix, uint32_t at)
{
    struct prefix_node *node = &prefix->nodes[at];
    assert(node->is_used && node->child_count == 0);
    uint32_t *link = &prefix->buckets[bucket_of(prefix, node->key)];
    while (*link != at) {
        link = &prefix->nodes[*link].next_in_bucket;
    }
    *link = node->next_in_bucket;
    if (node->local_page != POOL_NO_PAGE) {
        uint32_t local_page = node->local_page;
        detach_local(prefix, node);
        pool_uncache(local_pool(prefix), local_page);
    }
    lose_child(prefix, node->parent, at);
    node->is_used = false;
    prefix->stats.cached_pages[RUNNER_FAMILY_GLOBAL]--;
}

void prefix_drop(struct prefix *prefix, uint32_t node)
{
    forget(prefix, node);
    pool_uncache(global_pool(prefix), node);
}

void prefix_reset(struct prefix *prefix)
{
    struct pool *local = local_pool(prefix);
    struct pool *global = global_pool(prefix);
    for (int rank = 0; rank < POOL_RANK_COUNT; rank++) {
        while (global->idle[rank].first != POOL_NO_PAGE) {
            prefix_drop(prefix, global->idle[rank].first);
        }
    }
    /* Those of nodes that are held. */
    for (int rank = 0; rank < POOL_RANK_COUNT; rank++) {
        while (local->idle[rank].first != POOL_NO_PAGE) {
            uint32_t page = local->idle[rank].first;
            detach_local(prefix, &prefix->nodes[prefix->local_nodes[page]]);
            pool_uncache(local, page);
        }
    }
}

void prefix_commit_pools(struct prefix *prefix, uint32_t lane)
{
    struct pool *local = local_pool(prefix);
    struct pool *global = global_pool(prefix);
    for (uint32_t i = 0; i < local->victim_count; i++) {
        detach_local(prefix, &prefix->nodes[prefix->local_nodes[local->victims[i]]]);
    }
    prefix->stats.evicted_pages[RUNNER_FAMILY_LOCAL] += local->victim_count;
    pool_commit(local, lane);
    /* A node that goes frees its local page, which the local pool can take now. */
    uint32_t local_before = prefix->stats.cached_pages[RUNNER_FAMILY_LOCAL];
    for (uint32_t i = 0; i < global->victim_count; i++) {
        forget(prefix, global->victims[i]);
    }
    prefix->stats.evicted_pages[RUNNER_FAMILY_LOCAL] +=
        local_before - prefix->stats.cached_pages[RUNNER_FAMILY_LOCAL];
    prefix->stats.evicted_pages[RUNNER_FAMILY_GLOBAL] += global->victim_count;
    pool_commit(global, lane);
}
