#include "worker/session_internal.h"

#include <assert.h>
#include <stddef.h>

#include "common/num.h"

/* A step being settled. */
struct settling {
    struct session_core *core;
    const struct step *step;
    const struct step_outcome *outcome;
    struct publish_to to;
    uint32_t token_count;
    uint32_t held_rows;
};

static void fail_sequence(struct settling *settling, struct sequence *seq, const struct err *why)
{
    session_stop_sequence(settling->core, seq);
    settling->core->counted.sequences_failed++;
    publish_failed(&settling->to, seq, settling->step->msg_seq, why);
}

static void commit_row(struct settling *settling, const struct step_row *row)
{
    struct session_core *core = settling->core;
    struct sequence *seq = row->seq;
    seq_commit(seq, &core->line.geometry, &core->line.prefix, row->count, seq->session->held_pages);
    settling->token_count += row->count;
}

/* A runner that breaks its contract costs the sequence, not the process. */
static enum err_code check_pick(const struct settling *settling, const struct step_row *row,
                                const struct runner_pick *pick, struct err *err)
{
    const struct sequence *seq = row->seq;
    bool has_token = pick->outcome == RUNNER_OUTCOME_TOKEN ||
                     pick->outcome == RUNNER_OUTCOME_STOP || pick->outcome == RUNNER_OUTCOME_LENGTH;
    bool is_wrong = pick->outcome == RUNNER_OUTCOME_MASKED || pick->outcome == RUNNER_OUTCOME_HELD;
    if (is_wrong || has_token != row->samples || row->is_held) {
        return err_set(err, ERR_INTERNAL, "runner: outcome %u of a row that %s%s", pick->outcome,
                       row->samples ? "samples" : "does not sample",
                       row->is_held ? " and has no mask" : "");
    }
    if (row->is_prompt && seq->wants_prompt_logprobs && pick->prompt_logprobs == NULL) {
        return err_set(err, ERR_INTERNAL, "runner: no prompt logprobs");
    }
    if (!has_token) {
        return ERR_OK;
    }
    if (pick->token >= settling->core->limits.runner.vocab_tokens) {
        return err_set(err, ERR_INTERNAL, "runner: token %u, vocabulary is %u", pick->token,
                       settling->core->limits.runner.vocab_tokens);
    }
    if (seq->wants_logprobs && pick->logprob == NULL) {
        return err_set(err, ERR_INTERNAL, "runner: no logprobs");
    }
    bool is_full = seq->token_count + 1 == seq->max_total_tokens;
    if (pick->outcome == (is_full ? RUNNER_OUTCOME_TOKEN : RUNNER_OUTCOME_LENGTH)) {
        return err_set(err, ERR_INTERNAL, "runner: outcome %u at token %u of %u", pick->outcome,
                       seq->token_count + 1, seq->max_total_tokens);
    }
    return ERR_OK;
}

static void settle_token(struct settling *settling, const struct step_row *row,
                         const struct runner_pick *pick)
{
    struct sequence *seq = row->seq;
    uint64_t msg_seq = settling->step->msg_seq;
    bool is_last = pick->outcome != RUNNER_OUTCOME_TOKEN;
    seq_append(seq, pick->token);
    publish_token(&settling->to, seq, msg_seq, seq->wants_logprobs ? pick->logprob : NULL, is_last);
    if (is_last) {
        session_stop_sequence(settling->core, seq);
        publish_finished(&settling->to, seq, msg_seq,
                         pick->outcome == RUNNER_OUTCOME_STOP ? RESULT_FINISH_STOP
                                                              : RESULT_FINISH_LENGTH);
    }
}

/* A row of a step that succeeded, of a sequence that is not stopped. */
static void settle_row(struct settling *settling, const struct step_row *row)
{
    static const struct runner_pick held = {.outcome = RUNNER_OUTCOME_HELD};
    const struct runner_pick *pick =
        row->pick_index == STEP_NOT_ON_DEVICE ? &held : &settling->outcome->picks[row->pick_index];
    struct sequence *seq = row->seq;
    struct err why;
    bool may_hold = row->samples && seq->is_constrained;
    if (pick->outcome == RUNNER_OUTCOME_HELD && (row->is_held || may_hold)) {
        seq_unlaunch(seq, row->count);
        seq->prompt_was_held = seq->prompt_was_held || row->is_prompt;
        settling->held_rows++;
        return;
    }
    if (pick->outcome == RUNNER_OUTCOME_BAD) {
        (void)err_set(&why, ERR_SEQUENCE, "no usable logits at position %u",
                      seq->account.committed_tokens + row->count);
        seq_distrust(seq, &settling->core->line.prefix);
        fail_sequence(settling, seq, &why);
        return;
    }
    if (check_pick(settling, row, pick, &why) != ERR_OK) {
        fail_sequence(settling, seq, &why);
        return;
    }
    uint32_t start = seq->account.committed_tokens;
    commit_row(settling, row);
    if (row->is_prompt && seq->wants_prompt_logprobs) {
        publish_prompt_logprobs(&settling->to, seq, settling->step->msg_seq, pick->prompt_logprobs,
                                start, row->count);
    }
    if (row->samples) {
        settle_token(settling, row, pick);
    }
}

static void settle_rows(struct settling *settling)
{
    const struct step *step = settling->step;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->rows[i];
        struct sequence *seq = row->seq;
        seq->launched_rows--;
        seq->held_tokens -= row->is_held ? row->count : 0;
        if (seq->state != SEQ_STATE_STOPPED) {
            if (settling->outcome->status == ERR_OK) {
                settle_row(settling, row);
            } else {
                fail_sequence(settling, seq, &settling->outcome->error);
            }
        }
        session_retire_sequence(settling->core, seq);
    }
}

static void count_step(struct session_core *core, const struct step *step,
                       const struct step_outcome *outcome)
{
    if (outcome->status != ERR_OK) {
        core->counted.steps_failed++;
        return;
    }
    core->counted.steps++;
    uint64_t began_ns = step->launch_ns > core->last_done_ns ? step->launch_ns : core->last_done_ns;
    if (step->is_on_device && core->now_ns - began_ns > core->counted.longest_step_ns) {
        core->counted.longest_step_ns = core->now_ns - began_ns;
    }
}

static void answer_done(struct settling *settling)
{
    struct session *session = settling->step->session;
    struct result_step_done done = {
        .figures = session_figures(session),
        .device_ns = settling->outcome->device_ns,
        .row_count = settling->step->planned_rows,
        .token_count = settling->token_count,
        .in_flight = session_steps_in_flight(session) - 1,
        .held_rows = settling->held_rows,
    };
    publish_step_done(&settling->to, settling->step->msg_seq, &done);
    session_note_told(session, &done.figures);
}

enum err_code session_collect(struct session_core *core, struct err *err)
{
    const struct step *step = step_oldest_done(&core->line);
    assert(step != NULL);
    struct step_outcome outcome;
    step_collect(&core->line, &outcome);
    if (outcome.status == ERR_DEVICE) {
        (void)session_lose_device(core, &outcome.error); /* says so below */
        return err_set(err, ERR_DEVICE, "%s", outcome.error.message);
    }
    struct session *session = step->session;
    struct settling settling = {.core = core, .step = step, .outcome = &outcome};
    session->reserved_records -= step->record_count;
    if (session->is_open) {
        settling.to = session_to(session);
    }
    /* Every sequence of a closed session is stopped: nothing is published below. */
    if (step->is_refused) {
        if (session->is_open) {
            publish_refused(&settling.to, 0, step->msg_seq, &step->refusal);
        }
    } else {
        settle_rows(&settling);
        count_step(core, step, &outcome);
        if (session->is_open) {
            answer_done(&settling);
        }
    }
    if (step->is_on_device) {
        core->last_done_ns = core->now_ns;
    }
    step_retire(&core->line);
    return ERR_OK;
}
