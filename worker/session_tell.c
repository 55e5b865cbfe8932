/* What a session is told beside the results of its steps: room, figures, owed answers. */
#include "worker/session_internal.h"

#include "common/num.h"

struct publish_to session_to(struct session *session)
{
    session->needs_flush = true;
    return (struct publish_to){
        .sink = &session->core->sink,
        .owner = session->owner,
        .epoch = session->epoch,
    };
}

bool session_has_room(struct session *session, uint32_t count)
{
    const struct session_sink *sink = &session->core->sink;
    uint32_t wanted = session->reserved_records + count;
    if (sink->room(sink->context, session->owner, wanted) >= wanted) {
        return true;
    }
    session->core->wants_room = true;
    return false;
}

uint32_t session_steps_in_flight(const struct session *session)
{
    const struct step_line *line = &session->core->line;
    uint32_t count = 0;
    for (uint32_t i = 0; i < line->step_count; i++) {
        count += step_at(line, i)->session == session;
    }
    return count;
}

/* What sessions opened before this one may still take of a family.  Theirs comes first, so that what
 * they were told stays true while a session that has ended still holds pages which its successor
 * counts on.  Quotas that promise more pages than there are bind nobody: then pages go to whoever
 * asks first. */
static uint32_t claims_of_older(const struct session *session, enum runner_family family)
{
    const struct session_core *core = session->core;
    uint64_t promised = 0;
    uint32_t claimed = 0;
    bool is_older = true;
    for (uint32_t i = 0; i < core->session_count; i++) {
        const struct session *other = core->sessions[i];
        uint32_t quota = other->is_open ? session_share_of(other).pages[family] : 0;
        promised += quota;
        is_older = is_older && other != session;
        if (is_older && quota > other->held_pages[family]) {
            claimed += quota - other->held_pages[family];
        }
    }
    return promised <= core->line.pools[family].page_count ? claimed : 0;
}

static uint32_t quota_left(const struct session *session, uint32_t quota, enum runner_family family)
{
    uint32_t held = session->held_pages[family];
    uint32_t available = pool_available(&session->core->line.pools[family]);
    uint32_t claimed = claims_of_older(session, family);
    uint32_t mine = quota > held ? quota - held : 0;
    return num_min(mine, available > claimed ? available - claimed : 0);
}

struct result_figures session_figures(struct session *session)
{
    session_settle_shares(session->core);
    struct session_share share = session_share_of(session);
    const struct session_core *core = session->core;
    uint32_t slots =
        num_min(share.slots, session->sequence_count + core->slots - core->alive_count);
    return (struct result_figures){
        .applied = session->applied,
        .local_quota_left_pages =
            quota_left(session, share.pages[RUNNER_FAMILY_LOCAL], RUNNER_FAMILY_LOCAL),
        .global_quota_left_pages =
            quota_left(session, share.pages[RUNNER_FAMILY_GLOBAL], RUNNER_FAMILY_GLOBAL),
        .slots_withheld = core->slots - slots,
    };
}

void session_note_told(struct session *session, const struct result_figures *figures)
{
    session->told = *figures;
}

void session_pay_finished(struct session *session)
{
    struct session_core *core = session->core;
    for (uint32_t slot = 0; session->owed_finished > 0 && slot < core->limits.runner.slots;
         slot++) {
        struct sequence *seq = &core->sequences[slot];
        if (seq->session != session || seq->owed_msg_seq == 0) {
            continue;
        }
        if (!session_has_room(session, 1)) {
            return;
        }
        struct publish_to to = session_to(session);
        publish_finished(&to, seq, seq->owed_msg_seq, RESULT_FINISH_CANCEL);
        seq->owed_msg_seq = 0;
        session->owed_finished--;
    }
}

void session_tell_state(struct session *session)
{
    struct result_figures figures = session_figures(session);
    bool is_told = figures.local_quota_left_pages == session->told.local_quota_left_pages &&
                   figures.global_quota_left_pages == session->told.global_quota_left_pages &&
                   figures.slots_withheld == session->told.slots_withheld;
    if (is_told || session_steps_in_flight(session) > 0 || !session_has_room(session, 1)) {
        return;
    }
    struct publish_to to = session_to(session);
    publish_state(&to, &figures, session->sequence_count);
    session_note_told(session, &figures);
}
