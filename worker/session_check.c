#include "worker/session_internal.h"

#include <stddef.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"

static enum err_code differs(struct err *err, const char *what, uint64_t has, uint64_t want)
{
    return err_set(err, ERR_INTERNAL, "%s: %llu kept, %llu counted", what, (unsigned long long)has,
                   (unsigned long long)want);
}

static bool is_alive(const struct sequence *seq)
{
    return seq->state != SEQ_STATE_FREE && !seq->released;
}

/* Holders of the pages of a family as the lists of sequences say: all, and those of each lane. */
struct holders {
    uint32_t *all; /* owned, [page_count] */
    uint32_t *lanes[POOL_LANE_COUNT];
};

static void count_holders(const struct session_core *core, enum runner_family family,
                          struct holders *holders)
{
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        const struct sequence *seq = &core->sequences[slot];
        uint32_t first = family == RUNNER_FAMILY_LOCAL ? seq->account.local.origin_pages
                                                       : seq->account.global.origin_pages;
        for (uint32_t i = 0; i < seq_held_pages(seq, family); i++) {
            uint32_t page = seq->pages[family].at[(first + i) % seq->pages[family].cap];
            holders->all[page]++;
            if (seq->lane != POOL_NO_LANE) {
                holders->lanes[seq->lane][page]++;
            }
        }
    }
}

static enum err_code compare_holders(const struct pool *pool, enum runner_family family,
                                     const struct holders *holders, struct err *err)
{
    for (uint32_t page = 0; page < pool->page_count; page++) {
        const struct pool_page *entry = &pool->pages[page];
        if (holders->all[page] != entry->holder_count) {
            return err_set(err, ERR_INTERNAL, "family %u page %u: %u holders, in %u lists", family,
                           page, entry->holder_count, holders->all[page]);
        }
        for (uint32_t lane = 0; lane < POOL_LANE_COUNT; lane++) {
            if (holders->lanes[lane][page] != entry->lane_counts[lane]) {
                return err_set(err, ERR_INTERNAL,
                               "family %u page %u: %u holders of lane %u, in %u lists", family,
                               page, entry->lane_counts[lane], lane, holders->lanes[lane][page]);
            }
        }
    }
    return ERR_OK;
}

/* Every page has as many holders as there are lists that name it. */
static enum err_code check_holders(const struct session_core *core, enum runner_family family,
                                   struct err *err)
{
    const struct pool *pool = &core->line.pools[family];
    struct holders holders = {.all = mem_zalloc(pool->page_count, sizeof(*holders.all))};
    for (uint32_t lane = 0; lane < POOL_LANE_COUNT; lane++) {
        holders.lanes[lane] = mem_zalloc(pool->page_count, sizeof(*holders.lanes[lane]));
    }
    count_holders(core, family, &holders);
    enum err_code code = compare_holders(pool, family, &holders, err);
    mem_free(holders.all);
    for (uint32_t lane = 0; lane < POOL_LANE_COUNT; lane++) {
        mem_free(holders.lanes[lane]);
    }
    return code;
}

/* The pages of a sequence that are in the cache are the cache's own, one behind the other. */
static enum err_code check_chain(const struct session_core *core, const struct sequence *seq,
                                 struct err *err)
{
    const struct prefix *prefix = &core->line.prefix;
    uint32_t page_tokens = prefix->options.page_tokens;
    uint32_t parent = PREFIX_NO_NODE;
    for (uint32_t i = 0; i < seq->chain_pages; i++) {
        uint32_t at = seq->pages[RUNNER_FAMILY_GLOBAL].at[i];
        const struct prefix_node *node = &prefix->nodes[at];
        const uint32_t *tokens = prefix->tokens + (uint64_t)at * page_tokens;
        if (!node->is_used || node->parent != parent || node->salt != seq->cache_salt ||
            memcmp(tokens, seq->tokens + (uint64_t)i * page_tokens,
                   page_tokens * sizeof(*tokens)) != 0) {
            return err_set(err, ERR_INTERNAL, "sequence %llu: page %u is not what the cache has",
                           (unsigned long long)seq->seq_id, i);
        }
        parent = at;
    }
    uint32_t full = num_min(seq->account.committed_tokens / page_tokens, seq->cacheable_pages);
    bool is_short = seq->state != SEQ_STATE_STOPPED && seq->chain_pages != full;
    return prefix->options.is_on && (is_short || seq->chain_pages > full)
               ? differs(err, "pages in the cache", seq->chain_pages, full)
               : ERR_OK;
}

static enum err_code check_session(const struct session_core *core, const struct session *session,
                                   struct err *err)
{
    uint32_t alive = 0;
    uint32_t owed = 0;
    uint32_t records = 0;
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        const struct sequence *seq = &core->sequences[slot];
        uint32_t found;
        if (seq->session != session) {
            continue;
        }
        if (seq->lane != session->lane) {
            return differs(err, "lane of a sequence", seq->lane, session->lane);
        }
        alive += is_alive(seq);
        owed += seq->owed_msg_seq != 0;
        if (is_alive(seq) &&
            (!seq_index_find(&session->index, seq->seq_id, &found) || found != slot)) {
            return differs(err, "slot of an id", found, slot);
        }
    }
    for (uint32_t i = 0; i < core->line.step_count; i++) {
        const struct step *step = step_at(&core->line, i);
        records += step->session == session ? step->record_count : 0;
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        uint32_t held = session->is_open ? core->line.pools[f].lane_pages[session->lane] : 0;
        if (held != session->held_pages[f]) {
            return differs(err, "pages of a session", session->held_pages[f], held);
        }
    }
    if (alive != session->sequence_count) {
        return differs(err, "sequences of a session", session->sequence_count, alive);
    }
    if (session->is_open && owed != session->owed_finished) {
        return differs(err, "finished owed", session->owed_finished, owed);
    }
    if (records != session->reserved_records) {
        return differs(err, "records reserved", session->reserved_records, records);
    }
    return ERR_OK;
}

/* Rows in flight of one sequence, and their tokens against its frontiers. */
static enum err_code check_rows(const struct session_core *core, const struct sequence *seq,
                                struct err *err)
{
    uint32_t rows = 0;
    uint32_t tokens = 0;
    uint32_t held_tokens = 0;
    for (uint32_t i = 0; i < core->line.step_count; i++) {
        const struct step *step = step_at(&core->line, i);
        for (uint32_t r = 0; r < step->row_count; r++) {
            if (step->rows[r].seq == seq) {
                rows++;
                tokens += step->rows[r].count;
                held_tokens += step->rows[r].is_held ? step->rows[r].count : 0;
            }
        }
    }
    if (rows != seq->launched_rows) {
        return differs(err, "rows of a sequence", seq->launched_rows, rows);
    }
    if (seq->state == SEQ_STATE_STOPPED) {
        return ERR_OK;
    }
    uint32_t ahead = seq->account.launched_tokens - seq->account.committed_tokens;
    if (tokens != ahead) {
        return differs(err, "launched less committed tokens", ahead, tokens);
    }
    if (held_tokens != seq->held_tokens) {
        return differs(err, "held tokens", seq->held_tokens, held_tokens);
    }
    return ERR_OK;
}

static enum err_code check_sequences(const struct session_core *core, struct err *err)
{
    uint32_t used = 0;
    uint32_t alive = 0;
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        const struct sequence *seq = &core->sequences[slot];
        if (seq->state == SEQ_STATE_FREE) {
            continue;
        }
        used++;
        alive += is_alive(seq);
        enum err_code code = seq_check(seq, &core->line.geometry, err);
        if (code == ERR_OK) {
            code = check_rows(core, seq, err);
        }
        if (code == ERR_OK) {
            code = check_chain(core, seq, err);
        }
        if (code != ERR_OK) {
            return code;
        }
        if (seq->released && seq->launched_rows == 0) {
            return differs(err, "slots of released sequences without a row", 1, 0);
        }
    }
    if (alive != core->alive_count) {
        return differs(err, "sequences alive", core->alive_count, alive);
    }
    if (used + core->free_slot_count != core->limits.runner.slots) {
        return differs(err, "free slots", core->free_slot_count, core->limits.runner.slots - used);
    }
    return ERR_OK;
}

/* What sessions may have adds up to what there is, and nobody has more. */
static enum err_code check_shares(const struct session_core *core, struct err *err)
{
    struct session_share sum = {0};
    bool is_shared = false;
    for (uint32_t i = 0; i < core->session_count; i++) {
        const struct session *session = core->sessions[i];
        if (!session->is_open || session->has_own_quota) {
            continue;
        }
        const struct session_share share = session_share_of(session);
        is_shared = true;
        sum.slots += share.slots;
        for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
            sum.pages[f] += share.pages[f];
            if (session->held_pages[f] > share.pages[f]) {
                return differs(err, "pages of a session beyond its share", session->held_pages[f],
                               share.pages[f]);
            }
        }
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT && is_shared; f++) {
        if (sum.pages[f] != core->line.pools[f].page_count) {
            return differs(err, "pages shared out", sum.pages[f], core->line.pools[f].page_count);
        }
    }
    if (is_shared && sum.slots > core->slots) {
        return differs(err, "slots shared out", sum.slots, core->slots);
    }
    return ERR_OK;
}

enum err_code session_core_check(const struct session_core *core, struct err *err)
{
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        enum err_code code = pool_check(&core->line.pools[f], err);
        if (code == ERR_OK) {
            code = check_holders(core, (enum runner_family)f, err);
        }
        if (code != ERR_OK) {
            return code;
        }
        if (core->line.pools[f].reserved_count != 0) {
            return differs(err, "pages reserved", core->line.pools[f].reserved_count, 0);
        }
    }
    enum err_code code = check_sequences(core, err);
    code = code == ERR_OK ? check_shares(core, err) : code;
    code = code == ERR_OK ? prefix_check(&core->line.prefix, err) : code;
    for (uint32_t i = 0; i < core->session_count && code == ERR_OK; i++) {
        code = check_session(core, core->sessions[i], err);
    }
    return code;
}
