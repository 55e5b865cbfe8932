#include "worker/session_internal.h"

#include <assert.h>
#include <stddef.h>

#include "common/num.h"

enum {
    MOST_STEPS = 64 /* outstanding: more are not believed */
};

static void refuse(struct session *session, uint64_t seq_id, uint64_t msg_seq,
                   const struct err *why)
{
    session->core->counted.plans_refused++;
    struct publish_to to = session_to(session);
    publish_refused(&to, seq_id, msg_seq, why);
}

/* Begins behind the longest prefix that is there.  Pages that this pins come out of the quota; the
 * frontend has left room for them, and where it has not, the prompt is computed. */
static uint32_t reuse_prefix(struct session *session, struct sequence *seq, uint64_t msg_seq)
{
    struct session_core *core = session->core;
    const struct session_sink *sink = &core->sink;
    uint32_t most_tokens = sink->most_reused == NULL
                               ? UINT32_MAX
                               : sink->most_reused(sink->context, session->owner, msg_seq);
    uint32_t pages[RUNNER_FAMILY_COUNT];
    uint32_t page_count = seq_find_prefix(seq, &core->line.prefix, most_tokens, pages);
    if (page_count > 0 && !session_can_pin(session, pages)) {
        page_count = 0;
    }
    if (page_count > 0) {
        seq_reuse_prefix(seq, &core->line.geometry, &core->line.prefix, page_count);
        session->held_pages[RUNNER_FAMILY_LOCAL] += pages[RUNNER_FAMILY_LOCAL];
        session->held_pages[RUNNER_FAMILY_GLOBAL] += pages[RUNNER_FAMILY_GLOBAL];
    }
    uint32_t tokens = page_count * core->line.geometry.page_tokens;
    if (core->line.prefix.options.is_on && !seq->wants_prompt_logprobs) {
        core->counted.prefix_query_tokens += seq->prompt_tokens;
        core->counted.prefix_hit_tokens += tokens;
        core->counted.prefix_hits += page_count > 0;
    }
    return tokens;
}

/* Slot, sampler state and bookkeeping of a checked ADMIT. */
static enum err_code open_sequence(struct session *session, const struct plan_admit *admit,
                                   struct sequence **out_seq, struct err *err)
{
    struct session_core *core = session->core;
    uint32_t slot = core->free_slots[core->free_slot_count - 1];
    const struct seq_home home = {
        .session = session,
        .writer = core->writer + 1,
        .lane = session->lane,
        .slot = slot,
        .page_tokens = core->line.geometry.page_tokens,
        .cut_tokens = core->limits.runner.segment_tokens,
        .most_local_pages = core->most_local_pages,
    };
    struct sequence *seq = &core->sequences[slot];
    enum err_code code = seq_open(seq, &home, admit, err);
    if (code != ERR_OK) {
        return code;
    }
    code = core->runner->table->slot_open(core->runner, slot, admit, err);
    if (code != ERR_OK) {
        seq_close(seq);
        return code;
    }
    core->writer++;
    core->free_slot_count--;
    core->alive_count++;
    session->sequence_count++;
    seq_index_add(&session->index, admit->seq_id, slot);
    *out_seq = seq;
    return ERR_OK;
}

static enum err_code check_admit(const struct session *session, const struct plan_admit *admit,
                                 struct err *err)
{
    const struct session_core *core = session->core;
    if (seq_index_was_used(&session->index, admit->seq_id)) {
        return err_set(err, ERR_PLAN, "seq_id: %llu was used before in this session",
                       (unsigned long long)admit->seq_id);
    }
    enum err_code code = plan_check_admit(&core->limits, admit, err);
    if (code != ERR_OK) {
        return code;
    }
    if (core->alive_count >= core->slots) {
        return err_set(err, ERR_BUSY, "%u sequences are alive, at most %u", core->alive_count,
                       core->slots);
    }
    return ERR_OK;
}

static enum err_code apply_admit(struct session *session, uint64_t msg_seq,
                                 const struct plan_admit *admit, bool *out_moved, struct err *err)
{
    struct session_core *core = session->core;
    if (!session_has_room(session, 1)) {
        return ERR_OK;
    }
    struct err why;
    enum err_code code = check_admit(session, admit, &why);
    if (code == ERR_OK && core->free_slot_count == 0) {
        return ERR_OK; /* steps in flight still name the slots of released sequences */
    }
    struct sequence *seq = NULL;
    if (code == ERR_OK) {
        code = open_sequence(session, admit, &seq, &why);
    }
    if (code == ERR_DEVICE) {
        (void)session_lose_device(core, &why); /* says so below */
        return err_set(err, ERR_DEVICE, "%s", why.message);
    }
    *out_moved = true;
    session->applied = msg_seq;
    if (code != ERR_OK) {
        why.code = code;
        refuse(session, admit->seq_id, msg_seq, &why);
        return ERR_OK;
    }
    uint32_t reused_tokens = reuse_prefix(session, seq, msg_seq);
    struct publish_to to = session_to(session);
    struct result_figures figures = session_figures(session);
    publish_admitted(&to, admit->seq_id, msg_seq, &figures, reused_tokens);
    session_note_told(session, &figures);
    return ERR_OK;
}

/* A cancelled sequence gets its FINISHED before it goes; one released while it runs gets none. */
static bool apply_release(struct session *session, uint64_t seq_id)
{
    struct session_core *core = session->core;
    uint32_t slot;
    if (!seq_index_find(&session->index, seq_id, &slot)) {
        return true;
    }
    struct sequence *seq = &core->sequences[slot];
    if (seq->owed_msg_seq != 0) {
        return false; /* session_pay_finished found no room */
    }
    if (seq->state != SEQ_STATE_STOPPED) {
        session_stop_sequence(core, seq);
    }
    seq->released = true;
    seq_index_remove(&session->index, seq_id);
    core->alive_count--;
    session->sequence_count--;
    session_retire_sequence(core, seq);
    return true;
}

static bool apply_ping(struct session *session, uint64_t msg_seq, const struct plan_ping *ping)
{
    if (!session_has_room(session, 1)) {
        return false;
    }
    session->applied = msg_seq;
    session->waiting_pages[RUNNER_FAMILY_LOCAL] = ping->waiting_local_pages;
    session->waiting_pages[RUNNER_FAMILY_GLOBAL] = ping->waiting_global_pages;
    session->most_steps = num_min(ping->most_steps, MOST_STEPS);
    session->is_leaving = ping->is_leaving;
    struct publish_to to = session_to(session);
    struct result_figures figures = session_figures(session);
    publish_pong(&to, msg_seq, &figures, ping->nonce);
    session_note_told(session, &figures);
    return true;
}

enum err_code session_apply_next(struct session *session, bool *out_moved, struct err *err)
{
    const struct inbox_entry *entry = inbox_peek(&session->inbox);
    *out_moved = false;
    if (entry == NULL || entry->is_malformed) {
        return ERR_OK;
    }
    const struct plan_message *message = &entry->message;
    enum err_code code = ERR_OK;
    switch (message->type) {
    case PLAN_ADMIT:
        code = apply_admit(session, message->msg_seq, &message->as.admit, out_moved, err);
        break;
    case PLAN_STEP: return ERR_OK;
    case PLAN_CANCEL:
        session_cancel(session, message->as.cancel.seq_id, message->msg_seq);
        *out_moved = true;
        break;
    case PLAN_RELEASE: *out_moved = apply_release(session, message->as.release.seq_id); break;
    case PLAN_PING: *out_moved = apply_ping(session, message->msg_seq, &message->as.ping); break;
    }
    if (*out_moved) {
        session->applied = message->msg_seq;
        inbox_pop(&session->inbox);
    }
    return code;
}

/* In line behind the steps in flight, so that answers keep their order. */
static void refuse_step(struct session *session, uint64_t msg_seq, const struct err *why)
{
    struct session_core *core = session->core;
    step_refuse(&core->line, session, msg_seq, why);
    session->reserved_records++;
    core->counted.plans_refused++;
    if (why->code != ERR_AFTER_REFUSAL) {
        session->refused_msg_seq = msg_seq;
    }
}

static enum err_code check_step(struct session *session, const struct plan_step *step,
                                struct plan_rows *out_rows, struct err *err)
{
    struct session_core *core = session->core;
    if (session->refused_msg_seq != 0 && step->after < session->refused_msg_seq) {
        return err_set(err, ERR_AFTER_REFUSAL, "step after the refused message %llu names %llu",
                       (unsigned long long)session->refused_msg_seq,
                       (unsigned long long)step->after);
    }
    const struct plan_scope scope = {
        .index = &session->index,
        .sequences = core->sequences,
        .plan_mark = ++core->plan_mark,
    };
    out_rows->rows = core->plan_rows;
    return plan_check_step(&core->limits, &scope, step, out_rows, err);
}

static enum err_code launch(struct session *session, uint64_t msg_seq, const struct plan_rows *rows,
                            struct err *err)
{
    struct session_core *core = session->core;
    struct result_figures figures = session_figures(session);
    const struct step_order order = {
        .session = session,
        .owner = session->owner,
        .lane = session->lane,
        .msg_seq = msg_seq,
        .sink = &core->sink,
        .rows = rows,
        .quota_left =
            {
                [RUNNER_FAMILY_LOCAL] = figures.local_quota_left_pages,
                [RUNNER_FAMILY_GLOBAL] = figures.global_quota_left_pages,
            },
        .now_ns = core->now_ns,
    };
    uint32_t pages[RUNNER_FAMILY_COUNT];
    enum err_code code = step_launch(&core->line, &order, pages, err);
    if (code == ERR_OK) {
        session->held_pages[RUNNER_FAMILY_LOCAL] += pages[RUNNER_FAMILY_LOCAL];
        session->held_pages[RUNNER_FAMILY_GLOBAL] += pages[RUNNER_FAMILY_GLOBAL];
        session->reserved_records += rows->record_count;
        session->refused_msg_seq = 0;
    }
    return code;
}

enum err_code session_apply_step(struct session *session, const struct inbox_entry *entry,
                                 bool *out_moved, struct err *err)
{
    const struct plan_message *message = &entry->message;
    if (!entry->is_malformed && message->type != PLAN_STEP) {
        return ERR_OK;
    }
    assert(step_can_launch(&session->core->line));
    struct err why;
    struct plan_rows rows = {0};
    enum err_code code;
    if (entry->is_malformed) {
        why = entry->error;
        code = why.code;
    } else {
        code = check_step(session, &message->as.step, &rows, &why);
    }
    if (!session_has_room(session, code == ERR_OK ? rows.record_count : 1)) {
        return ERR_OK;
    }
    if (code == ERR_OK) {
        code = launch(session, message->msg_seq, &rows, &why);
    }
    if (code == ERR_DEVICE) {
        (void)session_lose_device(session->core, &why); /* says so below */
        return err_set(err, ERR_DEVICE, "%s", why.message);
    }
    if (code != ERR_OK) {
        why.code = code;
        refuse_step(session, message->msg_seq, &why);
    }
    session->applied = message->msg_seq;
    *out_moved = true;
    return ERR_OK;
}
