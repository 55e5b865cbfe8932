#include "worker/session_internal.h"

#include <stddef.h>

#include "common/mem.h"

static enum err_code differs(struct err *err, const char *what, uint64_t has, uint64_t want)
{
    return err_set(err, ERR_INTERNAL, "%s: %llu kept, %llu counted", what, (unsigned long long)has,
                   (unsigned long long)want);
}

static bool is_alive(const struct sequence *seq)
{
    return seq->state != SEQ_STATE_FREE && !seq->released;
}

/* Every page has as many holders as there are lists that name it. */
static enum err_code check_holders(const struct session_core *core, enum runner_family family,
                                   struct err *err)
{
    const struct pool *pool = &core->line.pools[family];
    uint32_t *counts = mem_zalloc(pool->page_count, sizeof(*counts));
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        const struct sequence *seq = &core->sequences[slot];
        uint32_t first = family == RUNNER_FAMILY_LOCAL ? seq->account.local.origin_pages
                                                       : seq->account.global.origin_pages;
        for (uint32_t i = 0; i < seq_held_pages(seq, family); i++) {
            counts[seq->pages[family].at[(first + i) % seq->pages[family].cap]]++;
        }
    }
    enum err_code code = ERR_OK;
    for (uint32_t page = 0; page < pool->page_count && code == ERR_OK; page++) {
        if (counts[page] != pool->holder_counts[page]) {
            code = err_set(err, ERR_INTERNAL, "family %u page %u: %u holders, in %u lists", family,
                           page, pool->holder_counts[page], counts[page]);
        }
    }
    mem_free(counts);
    return code;
}

static enum err_code check_session(const struct session_core *core, const struct session *session,
                                   struct err *err)
{
    uint32_t held[RUNNER_FAMILY_COUNT] = {0};
    uint32_t alive = 0;
    uint32_t owed = 0;
    uint32_t records = 0;
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        const struct sequence *seq = &core->sequences[slot];
        uint32_t found;
        if (seq->session != session) {
            continue;
        }
        held[RUNNER_FAMILY_LOCAL] += seq_held_pages(seq, RUNNER_FAMILY_LOCAL);
        held[RUNNER_FAMILY_GLOBAL] += seq_held_pages(seq, RUNNER_FAMILY_GLOBAL);
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
        if (held[f] != session->held_pages[f]) {
            return differs(err, "pages of a session", session->held_pages[f], held[f]);
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
    if (is_shared && sum.slots != core->slots) {
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
    for (uint32_t i = 0; i < core->session_count && code == ERR_OK; i++) {
        code = check_session(core, core->sessions[i], err);
    }
    return code;
}
