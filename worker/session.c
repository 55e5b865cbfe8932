#include "worker/session_internal.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"

static enum err_code check_arguments(const struct runner_limits *runner,
                                     const struct session_limits *limits, struct err *err)
{
    if (limits->slots == 0 || limits->slots > runner->slots) {
        return err_set(err, ERR_ARGUMENT, "%u sequences at once, want 1 to %u", limits->slots,
                       runner->slots);
    }
    if (limits->ring_records < 2) {
        return err_set(err, ERR_ARGUMENT, "ring of %u records, at least 2", limits->ring_records);
    }
    if (runner->max_step_rows == 0 || runner->max_step_rows > PLAN_MAX_ROWS) {
        return err_set(err, ERR_ARGUMENT, "%u rows in a step, want 1 to %u", runner->max_step_rows,
                       PLAN_MAX_ROWS);
    }
    if (runner->max_step_tokens == 0 || runner->max_step_tokens > PLAN_MAX_STEP_TOKENS) {
        return err_set(err, ERR_ARGUMENT, "%u tokens in a step, want 1 to %u",
                       runner->max_step_tokens, PLAN_MAX_STEP_TOKENS);
    }
    return ERR_OK;
}

static void copy_limits(struct session_core *core, const struct session_limits *limits)
{
    const struct runner_limits *runner = &core->runner->limits;
    core->limits = (struct plan_limits){
        .runner = *runner,
        .max_step_records = limits->ring_records,
        .modality_id_count = limits->modality_id_count,
    };
    if (limits->modality_id_count > 0) {
        uint32_t *ids = mem_zalloc(limits->modality_id_count, sizeof(*ids));
        memcpy(ids, limits->modality_ids, limits->modality_id_count * sizeof(*ids));
        core->modality_ids = ids;
        core->limits.modality_ids = ids;
    }
    core->slots = limits->slots;
    uint64_t ahead_tokens = (uint64_t)runner->pipeline_depth * runner->max_step_tokens;
    core->most_local_pages =
        account_peak(&core->line.geometry, UINT32_MAX, (uint32_t)ahead_tokens).local_pages;
}

enum err_code session_core_create(struct runner *runner, const struct session_limits *limits,
                                  const struct session_sink *sink, struct inject *inject,
                                  struct session_core **out_core, struct err *err)
{
    enum err_code code = check_arguments(&runner->limits, limits, err);
    if (code != ERR_OK) {
        return code;
    }
    struct session_core *core = mem_zalloc(1, sizeof(*core));
    core->runner = runner;
    core->sink = *sink;
    const struct step_options options = {
        .runner = runner,
        .inject = inject,
        .keeps_prefixes = limits->keeps_prefixes,
        .hash_seed = limits->hash_seed,
    };
    code = step_line_init(&core->line, &options, err);
    if (code != ERR_OK) {
        mem_free(core);
        return code;
    }
    copy_limits(core, limits);
    uint32_t slots = runner->limits.slots;
    core->sequences = mem_zalloc(slots, sizeof(*core->sequences));
    core->free_slots = mem_zalloc(slots, sizeof(*core->free_slots));
    for (uint32_t i = 0; i < slots; i++) {
        core->free_slots[i] = slots - 1 - i;
    }
    core->free_slot_count = slots;
    core->plan_rows = mem_zalloc(runner->limits.max_step_rows, sizeof(*core->plan_rows));
    *out_core = core;
    return ERR_OK;
}

static void destroy_session(struct session *session)
{
    inbox_fini(&session->inbox);
    seq_index_fini(&session->index);
    mem_free(session);
}

void session_core_destroy(struct session_core *core)
{
    if (core == NULL) {
        return;
    }
    for (uint32_t i = 0; i < core->session_count; i++) {
        destroy_session(core->sessions[i]);
    }
    for (uint32_t i = 0; i < core->limits.runner.slots; i++) {
        struct sequence *seq = &core->sequences[i];
        mem_free(seq->tokens);
        mem_free(seq->pages[RUNNER_FAMILY_LOCAL].at);
        mem_free(seq->pages[RUNNER_FAMILY_GLOBAL].at);
    }
    step_line_fini(&core->line);
    mem_free(core->sequences);
    mem_free(core->free_slots);
    mem_free(core->plan_rows);
    mem_free(core->modality_ids);
    mem_free(core);
}

enum err_code session_lose_device(struct session_core *core, const struct err *why)
{
    core->lost = *why;
    core->lost.code = ERR_DEVICE;
    return ERR_DEVICE;
}

void session_stop_sequence(struct session_core *core, struct sequence *seq)
{
    seq_stop(seq);
    core->runner->table->slot_stop(core->runner, seq->slot);
}

void session_retire_sequence(struct session_core *core, struct sequence *seq)
{
    if (seq->state != SEQ_STATE_STOPPED || seq->launched_rows > 0) {
        return;
    }
    seq_drop_pages(seq, core->line.pools, seq->session->held_pages);
    if (seq->released) {
        core->free_slots[core->free_slot_count++] = seq->slot;
        seq_close(seq);
    }
}

void session_cancel(struct session *session, uint64_t seq_id, uint64_t msg_seq)
{
    uint32_t slot;
    if (!seq_index_find(&session->index, seq_id, &slot)) {
        return;
    }
    struct session_core *core = session->core;
    struct sequence *seq = &core->sequences[slot];
    if (seq->state != SEQ_STATE_STOPPED) {
        session_stop_sequence(core, seq);
        seq->owed_msg_seq = msg_seq;
        session->owed_finished++;
        session_retire_sequence(core, seq);
    }
}

static void flush(struct session *session)
{
    if (session->needs_flush) {
        session->core->sink.flush(session->core->sink.context, session->owner);
        session->needs_flush = false;
    }
}

static void flush_all(struct session_core *core)
{
    for (uint32_t i = 0; i < core->session_count; i++) {
        if (core->sessions[i]->is_open) {
            flush(core->sessions[i]);
        }
    }
}

/* Forget closed sessions whose last step is collected. */
static void sweep_sessions(struct session_core *core)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < core->session_count; i++) {
        struct session *session = core->sessions[i];
        if (session->is_open || session_steps_in_flight(session) > 0) {
            core->sessions[kept++] = session;
        } else {
            destroy_session(session);
        }
    }
    core->session_count = kept;
}

static enum err_code collect_done(struct session_core *core, bool *out_moved, struct err *err)
{
    enum err_code code = ERR_OK;
    while (code == ERR_OK && step_oldest_done(&core->line) != NULL) {
        code = session_collect(core, err);
        *out_moved = true;
    }
    sweep_sessions(core);
    flush_all(core);
    return code;
}

/* Every message up to the next STEP of each session. */
static enum err_code apply_messages(struct session_core *core, bool *out_moved, struct err *err)
{
    for (uint32_t i = 0; i < core->session_count; i++) {
        struct session *session = core->sessions[i];
        bool moved = session->is_open;
        while (moved) {
            session_pay_finished(session);
            enum err_code code = session_apply_next(session, &moved, err);
            if (code != ERR_OK) {
                return code;
            }
            *out_moved = *out_moved || moved;
        }
    }
    return ERR_OK;
}

/* One STEP of the session whose turn it is, or of the next that can. */
static enum err_code launch_one(struct session_core *core, bool *out_moved, struct err *err)
{
    for (uint32_t i = 0; i < core->session_count && step_can_launch(&core->line); i++) {
        uint32_t at = (core->turn + i) % core->session_count;
        struct session *session = core->sessions[at];
        const struct inbox_entry *entry = inbox_peek(&session->inbox);
        if (!session->is_open || entry == NULL) {
            continue;
        }
        bool moved = false;
        enum err_code code = session_apply_step(session, entry, &moved, err);
        if (code != ERR_OK) {
            return code;
        }
        if (moved) {
            inbox_pop(&session->inbox);
            core->turn = at + 1;
            *out_moved = true;
            return ERR_OK;
        }
    }
    return ERR_OK;
}

/* What the newest step waits for before its sampler. */
static enum err_code give_masks(struct session_core *core, bool *out_moved, struct err *err)
{
    const struct step *step = step_awaiting_masks(&core->line);
    if (step == NULL) {
        return ERR_OK;
    }
    bool is_given = false;
    struct err why;
    const struct session *session = step->session;
    enum err_code code = step_give_masks(&core->line, session->is_open ? &core->sink : NULL,
                                         session->owner, &is_given, &why);
    if (code != ERR_OK) {
        (void)session_lose_device(core, &why); /* says so below */
        return err_set(err, ERR_DEVICE, "%s", why.message);
    }
    *out_moved = *out_moved || is_given;
    return ERR_OK;
}

static void fill_progress(const struct session_core *core, bool moved,
                          struct session_progress *out_progress)
{
    *out_progress = (struct session_progress){
        .steps_in_flight = core->line.step_count,
        .moved = moved,
        .wants_room = core->wants_room,
        .wants_masks = step_awaiting_masks(&core->line) != NULL,
    };
    for (uint32_t i = 0; i < core->session_count; i++) {
        out_progress->queued_steps += core->sessions[i]->inbox.step_count;
    }
}

enum err_code session_core_advance(struct session_core *core, uint64_t now_ns,
                                   struct session_progress *out_progress, struct err *err)
{
    if (core->lost.code != ERR_OK) {
        return err_set(err, ERR_DEVICE, "%s", core->lost.message);
    }
    core->now_ns = now_ns;
    core->wants_room = false;
    bool any_moved = false;
    bool moved = true;
    while (moved) {
        moved = false;
        enum err_code code = collect_done(core, &moved, err);
        if (code == ERR_OK) {
            code = give_masks(core, &moved, err);
        }
        if (code == ERR_OK) {
            code = apply_messages(core, &moved, err);
        }
        if (code == ERR_OK) {
            code = launch_one(core, &moved, err);
        }
        if (code != ERR_OK) {
            flush_all(core);
            return code;
        }
        any_moved = any_moved || moved;
    }
    for (uint32_t i = 0; i < core->session_count; i++) {
        if (core->sessions[i]->is_open) {
            session_tell_state(core->sessions[i]);
        }
    }
    flush_all(core);
    fill_progress(core, any_moved, out_progress);
    return ERR_OK;
}

void session_core_reset_cache(struct session_core *core)
{
    prefix_reset(&core->line.prefix);
}

void session_core_stats(const struct session_core *core, struct session_stats *out_stats)
{
    *out_stats = core->counted;
    for (uint32_t i = 0; i < core->session_count; i++) {
        out_stats->sessions += core->sessions[i]->is_open;
    }
    out_stats->sequences = core->alive_count;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        out_stats->pages_free[f] = core->line.pools[f].free_count;
        out_stats->pages_cached[f] = core->line.pools[f].idle_count;
    }
    out_stats->prefix = core->line.prefix.stats;
    out_stats->steps_in_flight = core->line.step_count;
    for (uint32_t i = 0; i < core->line.step_count && out_stats->oldest_launch_ns == 0; i++) {
        const struct step *step = step_at(&core->line, i);
        out_stats->oldest_launch_ns = step->is_on_device ? step->launch_ns : 0;
    }
    if (core->runner->table->counters != NULL) {
        core->runner->table->counters(core->runner, &out_stats->device);
    }
}

struct session_quota session_core_all_pages(const struct session_core *core)
{
    struct session_quota quota;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        quota.pages[f] = core->line.pools[f].page_count;
    }
    return quota;
}

/* Open sessions have one each. */
static uint32_t free_lane(const struct session_core *core)
{
    bool is_taken[POOL_LANE_COUNT] = {false};
    for (uint32_t i = 0; i < core->session_count; i++) {
        if (core->sessions[i]->lane != POOL_NO_LANE) {
            is_taken[core->sessions[i]->lane] = true;
        }
    }
    uint32_t lane = 0;
    while (lane + 1 < POOL_LANE_COUNT && is_taken[lane]) {
        lane++;
    }
    assert(!is_taken[lane]);
    return lane;
}

enum err_code session_open(struct session_core *core, uint64_t epoch, void *owner,
                           const struct session_quota *quota, struct session **out_session,
                           struct err *err)
{
    uint32_t open_count = 0;
    for (uint32_t i = 0; i < core->session_count; i++) {
        open_count += core->sessions[i]->is_open;
    }
    if (open_count >= SESSION_MAX_COUNT) {
        return err_set(err, ERR_BUSY, "%u sessions are open, at most %u", open_count,
                       SESSION_MAX_COUNT);
    }
    assert(core->session_count < SESSION_MAX_KEPT);
    struct session *session = mem_zalloc(1, sizeof(*session));
    session->core = core;
    session->epoch = epoch;
    session->owner = owner;
    session->is_open = true;
    session->lane = free_lane(core);
    session->has_own_quota = quota != NULL;
    if (quota != NULL) {
        session->quota = *quota;
    }
    session->due_msg_seq = 1;
    inbox_init(&session->inbox);
    seq_index_init(&session->index, core->slots);
    core->sessions[core->session_count++] = session;
    session_settle_shares(core);
    *out_session = session;
    return ERR_OK;
}

void session_close(struct session *session)
{
    if (session == NULL) {
        return;
    }
    struct session_core *core = session->core;
    session->is_open = false;
    inbox_fini(&session->inbox);
    for (uint32_t slot = 0; slot < core->limits.runner.slots; slot++) {
        struct sequence *seq = &core->sequences[slot];
        if (seq->state == SEQ_STATE_FREE || seq->session != session) {
            continue;
        }
        if (seq->state != SEQ_STATE_STOPPED) {
            session_stop_sequence(core, seq);
        }
        core->alive_count -= !seq->released;
        seq->released = true;
        seq_leave_lane(seq, core->line.pools);
        session_retire_sequence(core, seq);
    }
    session->sequence_count = 0;
    session->lane = POOL_NO_LANE;
    session->held_pages[RUNNER_FAMILY_LOCAL] = 0;
    session->held_pages[RUNNER_FAMILY_GLOBAL] = 0;
    sweep_sessions(core);
}

bool session_can_receive(const struct session *session)
{
    return !inbox_is_full(&session->inbox);
}

enum err_code session_deliver(struct session *session, const struct plan_message *message,
                              struct err *err)
{
    if (message->epoch != session->epoch) {
        session->core->counted.messages_stale++;
        return ERR_OK;
    }
    uint64_t due = session->due_msg_seq;
    if (message->msg_seq < due || message->msg_seq - due > session->unnumbered_count) {
        return err_set(err, ERR_PROTOCOL, "message %llu of epoch %llu, want %llu",
                       (unsigned long long)message->msg_seq, (unsigned long long)message->epoch,
                       (unsigned long long)due);
    }
    session->due_msg_seq = message->msg_seq + 1;
    session->unnumbered_count = 0;
    if (message->type == PLAN_CANCEL) {
        /* Now, and again in its turn: its ADMIT may be waiting behind a STEP. */
        session_cancel(session, message->as.cancel.seq_id, message->msg_seq);
    }
    inbox_push(&session->inbox, message);
    return ERR_OK;
}

void session_deliver_malformed(struct session *session, const struct err *why)
{
    session->core->counted.messages_malformed++;
    inbox_push_malformed(&session->inbox, session->due_msg_seq + session->unnumbered_count, why);
    session->unnumbered_count++;
}
