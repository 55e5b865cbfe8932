#include "worker/sequence.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"

static struct account_family *family_of(struct account *account, enum runner_family family)
{
    return family == RUNNER_FAMILY_LOCAL ? &account->local : &account->global;
}

enum err_code seq_open(struct sequence *seq, const struct seq_home *home,
                       const struct plan_admit *admit, struct err *err)
{
    assert(seq->state == SEQ_STATE_FREE);
    struct sequence opened = {
        .state = SEQ_STATE_WAITING,
        .slot = home->slot,
        .seq_id = admit->seq_id,
        .session = home->session,
        .lane = home->lane,
        .writer = home->writer,
        .token_count = admit->prompt.count,
        .prompt_tokens = admit->prompt.count,
        .max_total_tokens = admit->max_total,
        .logprob_pairs = admit->logprobs == 0 ? 0 : admit->logprobs - 1,
        .prompt_logprob_pairs = admit->prompt_logprobs == 0 ? 0 : admit->prompt_logprobs - 1,
        .wants_logprobs = admit->logprobs != 0,
        .wants_prompt_logprobs = admit->prompt_logprobs != 0,
        .is_constrained = admit->constrained,
        .cache_salt = admit->cache_salt,
        .cacheable_pages = UINT32_MAX,
    };
    if (home->cut_tokens != 0) {
        uint32_t cuts = admit->prompt.count / home->cut_tokens;
        opened.cacheable_pages = (uint32_t)((uint64_t)cuts * home->cut_tokens / home->page_tokens);
    }
    /* Zeroed pages of the address space cost nothing until they are written. */
    opened.tokens = mem_try_zalloc(admit->max_total, sizeof(*opened.tokens));
    uint32_t most_pages = num_ceil_div(admit->max_total, home->page_tokens);
    opened.pages[RUNNER_FAMILY_GLOBAL].cap = most_pages;
    opened.pages[RUNNER_FAMILY_LOCAL].cap = num_min(most_pages, home->most_local_pages);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        opened.pages[f].at = mem_try_zalloc(opened.pages[f].cap, sizeof(*opened.pages[f].at));
    }
    if (opened.tokens == NULL || opened.pages[0].at == NULL || opened.pages[1].at == NULL) {
        mem_free(opened.tokens);
        mem_free(opened.pages[0].at);
        mem_free(opened.pages[1].at);
        return err_set(err, ERR_MEMORY, "no memory for a sequence of %u tokens", admit->max_total);
    }
    memcpy(opened.tokens, admit->prompt.at, (size_t)admit->prompt.count * sizeof(*opened.tokens));
    *seq = opened;
    return ERR_OK;
}

void seq_close(struct sequence *seq)
{
    assert(seq->launched_rows == 0);
    assert(seq->account.local.resident_pages == 0 && seq->account.global.resident_pages == 0);
    mem_free(seq->tokens);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        mem_free(seq->pages[f].at);
    }
    *seq = (struct sequence){.state = SEQ_STATE_FREE};
}

uint32_t seq_device_position(const struct sequence *seq)
{
    assert(seq->held_tokens <= seq->account.launched_tokens);
    return seq->account.launched_tokens - seq->held_tokens;
}

/* ---- the prefix cache ---- */

static uint32_t *page_at(struct sequence *seq, enum runner_family family, uint32_t logical)
{
    struct seq_pages *pages = &seq->pages[family];
    return &pages->at[logical % pages->cap];
}

static void note_unplaced(struct seq_pages *pages, uint32_t logical)
{
    bool is_empty = pages->unplaced_first == pages->unplaced_end;
    pages->unplaced_first = is_empty ? logical : num_min(pages->unplaced_first, logical);
    pages->unplaced_end = is_empty ? logical + 1 : num_max(pages->unplaced_end, logical + 1);
}

static bool is_new_to(const struct pool *pool, uint32_t page, uint32_t lane)
{
    return lane != POOL_NO_LANE &&
           (pool->counts_holders || pool->pages[page].lane_counts[lane] == 0);
}

uint32_t seq_find_prefix(struct sequence *seq, const struct prefix *prefix, uint32_t most_tokens,
                         uint32_t out_pages[RUNNER_FAMILY_COUNT])
{
    const struct pool *pools = prefix->pools;
    uint32_t *nodes = seq->pages[RUNNER_FAMILY_GLOBAL].at;
    /* With prompt logprobs every position is asked for. */
    uint32_t tokens = seq->wants_prompt_logprobs ? 0 : num_min(most_tokens, seq->prompt_tokens - 1);
    uint32_t page_count = prefix_find(prefix, seq->cache_salt, seq->tokens, tokens, nodes);
    out_pages[RUNNER_FAMILY_LOCAL] = 0;
    out_pages[RUNNER_FAMILY_GLOBAL] = 0;
    for (uint32_t i = 0; i < page_count; i++) {
        out_pages[RUNNER_FAMILY_GLOBAL] +=
            is_new_to(&pools[RUNNER_FAMILY_GLOBAL], nodes[i], seq->lane);
    }
    for (uint32_t i = prefix_first_local(prefix, page_count); i < page_count; i++) {
        out_pages[RUNNER_FAMILY_LOCAL] +=
            is_new_to(&pools[RUNNER_FAMILY_LOCAL], prefix->nodes[nodes[i]].local_page, seq->lane);
    }
    return page_count;
}

void seq_reuse_prefix(struct sequence *seq, const struct account_geometry *geometry,
                      struct prefix *prefix, uint32_t page_count)
{
    assert(seq->state == SEQ_STATE_WAITING && seq->account.launched_tokens == 0);
    const uint32_t *nodes = seq->pages[RUNNER_FAMILY_GLOBAL].at;
    uint32_t first_local = prefix_first_local(prefix, page_count);
    for (uint32_t i = 0; i < page_count; i++) {
        (void)pool_share(&prefix->pools[RUNNER_FAMILY_GLOBAL], nodes[i], seq->lane); /* counted */
        note_unplaced(&seq->pages[RUNNER_FAMILY_GLOBAL], i);
        if (i >= first_local) {
            uint32_t page = prefix->nodes[nodes[i]].local_page;
            (void)pool_share(&prefix->pools[RUNNER_FAMILY_LOCAL], page, seq->lane); /* counted */
            *page_at(seq, RUNNER_FAMILY_LOCAL, i) = page;
            note_unplaced(&seq->pages[RUNNER_FAMILY_LOCAL], i);
        }
    }
    seq->chain_pages = page_count;
    seq->account = account_begin(geometry, page_count * geometry->page_tokens);
}

/* Somebody was first with this page: hold theirs instead. */
static void change_over(struct sequence *seq, struct pool *pool, uint32_t logical, uint32_t page,
                        uint32_t held_pages[RUNNER_FAMILY_COUNT])
{
    uint32_t *at = page_at(seq, RUNNER_FAMILY_GLOBAL, logical);
    held_pages[RUNNER_FAMILY_GLOBAL] += pool_share(pool, page, seq->lane);
    held_pages[RUNNER_FAMILY_GLOBAL] -= pool_release(pool, *at, seq->lane);
    *at = page;
    note_unplaced(&seq->pages[RUNNER_FAMILY_GLOBAL], logical);
}

/* Committed pages that are full go into the cache; local ones from first_local on are still held. */
static void extend_chain(struct sequence *seq, uint32_t first_local, struct prefix *prefix,
                         uint32_t held_pages[RUNNER_FAMILY_COUNT])
{
    uint32_t page_tokens = prefix->options.page_tokens;
    uint32_t full_pages = seq->account.committed_tokens / page_tokens;
    uint32_t end = num_min(full_pages, seq->cacheable_pages);
    for (uint32_t i = seq->chain_pages; prefix->options.is_on && i < end; i++) {
        const struct prefix_page page = {
            .parent = i == 0 ? PREFIX_NO_NODE : *page_at(seq, RUNNER_FAMILY_GLOBAL, i - 1),
            .salt = seq->cache_salt,
            .tokens = seq->tokens + (uint64_t)i * page_tokens,
            .global_page = *page_at(seq, RUNNER_FAMILY_GLOBAL, i),
            .local_page = i < first_local ? POOL_NO_PAGE : *page_at(seq, RUNNER_FAMILY_LOCAL, i),
        };
        uint32_t node = prefix_add(prefix, &page);
        if (node != page.global_page) {
            change_over(seq, &prefix->pools[RUNNER_FAMILY_GLOBAL], i, node, held_pages);
        }
        seq->chain_pages = i + 1;
    }
}

void seq_distrust(struct sequence *seq, struct prefix *prefix)
{
    const struct pool *pool = &prefix->pools[RUNNER_FAMILY_GLOBAL];
    while (seq->chain_pages > 0) {
        uint32_t node = *page_at(seq, RUNNER_FAMILY_GLOBAL, seq->chain_pages - 1);
        if (prefix->nodes[node].child_count > 0 || pool->pages[node].holder_count > 1) {
            return;
        }
        prefix_drop(prefix, node);
        seq->chain_pages--;
    }
}

/* ---- rows ---- */

enum err_code seq_need(const struct sequence *seq, const struct account_geometry *geometry,
                       uint32_t row_tokens, struct account_need *out_need, struct err *err)
{
    return account_need(&seq->account, geometry, row_tokens, out_need, err);
}

void seq_launch(struct sequence *seq, const struct account_need *need,
                const struct pool pools[RUNNER_FAMILY_COUNT],
                const uint32_t first_reserved[RUNNER_FAMILY_COUNT], uint32_t row_tokens)
{
    assert(seq->state == SEQ_STATE_WAITING || seq->state == SEQ_STATE_RUNNING);
    const uint32_t counts[RUNNER_FAMILY_COUNT] = {
        [RUNNER_FAMILY_LOCAL] = need->local_pages,
        [RUNNER_FAMILY_GLOBAL] = need->global_pages,
    };
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct account_family *held = family_of(&seq->account, (enum runner_family)f);
        struct seq_pages *pages = &seq->pages[f];
        uint32_t end = held->origin_pages + held->resident_pages;
        assert(held->resident_pages + counts[f] <= pages->cap);
        for (uint32_t i = 0; i < counts[f]; i++) {
            pages->at[(end + i) % pages->cap] =
                pool_reserved_page(&pools[f], first_reserved[f] + i);
        }
    }
    account_launch(&seq->account, need, row_tokens);
    seq->launched_rows++;
    seq->state = SEQ_STATE_RUNNING;
}

void seq_unlaunch(struct sequence *seq, uint32_t row_tokens)
{
    account_unlaunch(&seq->account, row_tokens);
}

void seq_place(struct sequence *seq)
{
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        seq->pages[f].unplaced_first = 0;
        seq->pages[f].unplaced_end = 0;
    }
}

/* From the last to the first, so that the end of a chain is given up before its beginning. */
static uint32_t release_pages(struct sequence *seq, struct pool *pool, enum runner_family family,
                              uint32_t first, uint32_t count)
{
    uint32_t left = 0;
    for (uint32_t i = count; i-- > 0;) {
        left += pool_release(pool, *page_at(seq, family, first + i), seq->lane);
    }
    return left;
}

void seq_commit(struct sequence *seq, const struct account_geometry *geometry,
                struct prefix *prefix, uint32_t row_tokens,
                uint32_t held_pages[RUNNER_FAMILY_COUNT])
{
    assert(seq->state == SEQ_STATE_RUNNING);
    uint32_t first = seq->account.local.origin_pages;
    uint32_t released = account_commit(&seq->account, geometry, row_tokens);
    extend_chain(seq, first, prefix, held_pages);
    held_pages[RUNNER_FAMILY_LOCAL] -= release_pages(seq, &prefix->pools[RUNNER_FAMILY_LOCAL],
                                                     RUNNER_FAMILY_LOCAL, first, released);
}

void seq_append(struct sequence *seq, uint32_t token)
{
    assert(seq->token_count < seq->max_total_tokens);
    seq->tokens[seq->token_count++] = token;
}

void seq_stop(struct sequence *seq)
{
    assert(seq->state == SEQ_STATE_WAITING || seq->state == SEQ_STATE_RUNNING);
    seq->state = SEQ_STATE_STOPPED;
}

void seq_drop_pages(struct sequence *seq, struct pool pools[RUNNER_FAMILY_COUNT],
                    uint32_t held_pages[RUNNER_FAMILY_COUNT])
{
    assert(seq->state == SEQ_STATE_STOPPED && seq->launched_rows == 0);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct account_family *held = family_of(&seq->account, (enum runner_family)f);
        held_pages[f] -= release_pages(seq, &pools[f], (enum runner_family)f, held->origin_pages,
                                       held->resident_pages);
    }
    seq->account = (struct account){0};
    seq->chain_pages = 0;
    seq_place(seq);
}

void seq_leave_lane(struct sequence *seq, struct pool pools[RUNNER_FAMILY_COUNT])
{
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct account_family *held = family_of(&seq->account, (enum runner_family)f);
        for (uint32_t i = 0; i < held->resident_pages; i++) {
            uint32_t page = *page_at(seq, (enum runner_family)f, held->origin_pages + i);
            pool_leave_lane(&pools[f], page, seq->lane);
        }
    }
    seq->lane = POOL_NO_LANE;
}

uint32_t seq_held_pages(const struct sequence *seq, enum runner_family family)
{
    return family == RUNNER_FAMILY_LOCAL ? seq->account.local.resident_pages
                                         : seq->account.global.resident_pages;
}

uint32_t seq_page_at(const struct sequence *seq, enum runner_family family,
                     const struct account_geometry *geometry, uint32_t position)
{
    const struct account_family *held =
        family == RUNNER_FAMILY_LOCAL ? &seq->account.local : &seq->account.global;
    uint32_t logical = position / geometry->page_tokens;
    assert(logical >= held->origin_pages);
    assert(logical - held->origin_pages < held->resident_pages);
    return seq->pages[family].at[logical % seq->pages[family].cap];
}

enum err_code seq_check(const struct sequence *seq, const struct account_geometry *geometry,
                        struct err *err)
{
    const struct account *account = &seq->account;
    unsigned long long id = seq->seq_id;
    if (seq->state == SEQ_STATE_STOPPED) {
        if (seq->launched_rows == 0 && account->global.resident_pages != 0) {
            return err_set(err, ERR_INTERNAL, "sequence %llu: stopped with %u pages and no row", id,
                           account->global.resident_pages);
        }
        return ERR_OK;
    }
    if (!account_check(account, geometry)) {
        return err_set(err, ERR_INTERNAL,
                       "sequence %llu: frontiers %u/%u, local %u+%u, global %u+%u do not fit", id,
                       account->committed_tokens, account->launched_tokens,
                       account->local.origin_pages, account->local.resident_pages,
                       account->global.origin_pages, account->global.resident_pages);
    }
    if (seq->launched_rows == 0 &&
        (account->committed_tokens != account->launched_tokens || seq->held_tokens != 0)) {
        return err_set(err, ERR_INTERNAL, "sequence %llu: no row, frontiers %u/%u, %u held", id,
                       account->committed_tokens, account->launched_tokens, seq->held_tokens);
    }
    /* While decoding, the last token is the one whose KV is not written yet. */
    uint32_t known = account->committed_tokens < seq->prompt_tokens ? seq->prompt_tokens
                                                                    : account->committed_tokens + 1;
    if (seq->token_count != known || seq->token_count > seq->max_total_tokens) {
        return err_set(err, ERR_INTERNAL, "sequence %llu: %u tokens at frontier %u, at most %u", id,
                       seq->token_count, account->committed_tokens, seq->max_total_tokens);
    }
    return ERR_OK;
}
