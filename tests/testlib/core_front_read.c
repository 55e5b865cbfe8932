/* What the random frontend makes of each record, and what must be true of it. */
#include "tests/testlib/core_front.h"

#include "common/num.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

static struct front_seq *seq_of(struct front *front, uint64_t seq_id)
{
    test_true(seq_id >= 1 && seq_id <= front->seq_count);
    return &front->seqs[seq_id - 1];
}

static uint32_t records_behind(const struct front_seq *seq)
{
    return seq->admit.logprobs == 0 ? 0 : seq->admit.logprobs - 1;
}

/* The token that an undisturbed run has next. */
static uint32_t expected_token(struct front *front, struct front_seq *seq)
{
    if (seq->folded == 0) {
        seq->fold = model_fold_start(seq->admit.seed);
    }
    while (seq->folded < seq->token_count) {
        seq->fold = model_fold_add(seq->fold, seq->folded, seq->tokens[seq->folded]);
        seq->folded++;
    }
    uint32_t mask[FRONT_MASK_WORDS];
    front_mask(&front->options, seq->admit.seq_id, seq->token_count, mask);
    return model_fold_next(seq->fold, front->options.limits.vocab_tokens, &seq->admit,
                           seq->token_count, seq->admit.constrained ? mask : NULL);
}

/* Every row that is launched as of `applied` took pages up to its end. */
static void take_figures(struct front *front, const struct result_figures *figures)
{
    test_true(figures->applied >= front->figures.applied);
    test_true(figures->applied < front->session.next_msg_seq);
    for (uint32_t i = 0; i < front->step_count; i++) {
        struct front_step *step = front_step_at(front, i);
        if (step->msg_seq > figures->applied) {
            break;
        }
        for (uint32_t r = 0; r < step->row_count; r++) {
            struct front_row *row = &step->rows[r];
            if (row->end_tokens == 0) {
                row->end_tokens = front_launched(front, row->seq, step->msg_seq);
            }
        }
    }
    front->figures = *figures;
}

static struct front_row *row_of(struct front *front, uint64_t msg_seq, const struct front_seq *seq)
{
    test_true(front->step_count > 0);
    struct front_step *step = front_step_at(front, 0);
    test_eq_u64(msg_seq, step->msg_seq);
    for (uint32_t r = 0; r < step->row_count; r++) {
        if (step->rows[r].seq == seq) {
            return &step->rows[r];
        }
    }
    test_fail(__FILE__, __LINE__, "record of sequence %llu, which is not in step %llu",
              (unsigned long long)seq->admit.seq_id, (unsigned long long)msg_seq);
}

static void on_token(struct front *front, const struct result_record *record)
{
    struct front_seq *seq = seq_of(front, record->seq_id);
    const struct front_row *row = row_of(front, record->msg_seq, seq);
    test_true(!seq->is_closed);
    test_true(row->samples);
    test_eq_u64(seq->pairs_due, 0);
    test_true(seq->token_step != record->msg_seq);
    test_true(seq->token_count < seq->admit.max_total);
    test_eq_u64(record->as.token.position, seq->token_count);
    uint32_t want = expected_token(front, seq);
    test_eq_u64(record->as.token.token, want);
    bool may_stop = seq->token_count - seq->admit.output_start >= seq->admit.min_tokens;
    bool stops = want == seq->stop_id && may_stop && !seq->admit.ignore_eos;
    seq->tokens[seq->token_count++] = want;
    bool is_last = stops || seq->token_count == seq->admit.max_total;
    test_eq_u64((record->flags & RESULT_TOKEN_LAST) != 0, is_last);
    test_eq_u64(record->as.token.rank != 0, seq->admit.logprobs != 0);
    seq->token_step = record->msg_seq;
    seq->pairs_due = records_behind(seq);
    front->stats.tokens++;
}

static void on_logprobs(struct front *front, const struct result_record *record)
{
    struct front_seq *seq = seq_of(front, record->seq_id);
    const struct result_logprobs *logprobs = &record->as.logprobs;
    (void)row_of(front, record->msg_seq, seq); /* it is in that step */
    test_true(!seq->is_closed);
    test_eq_u64(logprobs->token, seq->tokens[logprobs->position]);
    uint32_t pairs = records_behind(seq);
    if (record->flags == RESULT_LOGPROBS_PROMPT) {
        pairs = seq->admit.prompt_logprobs - 1;
        test_eq_u64(logprobs->position, seq->next_prompt_logprob);
        if (logprobs->first_index + logprobs->pair_count == pairs) {
            seq->next_prompt_logprob++;
        }
    } else {
        test_eq_u64(logprobs->position, seq->token_count - 1);
        test_eq_u64(logprobs->first_index, pairs - seq->pairs_due);
        seq->pairs_due -= logprobs->pair_count;
    }
    test_true(logprobs->first_index + logprobs->pair_count <= pairs);
}

static void on_finished(struct front *front, const struct result_record *record)
{
    struct front_seq *seq = seq_of(front, record->seq_id);
    test_true(seq->is_admitted && !seq->is_closed);
    test_eq_u64(record->as.finished.total_tokens, seq->token_count);
    test_eq_u64(seq->pairs_due, 0);
    if (record->as.finished.reason == RESULT_FINISH_CANCEL) {
        test_true(seq->is_cancelled);
        front->stats.cancelled++;
    } else {
        test_eq_u64(seq->token_step, record->msg_seq);
        bool is_stop = seq->tokens[seq->token_count - 1] == seq->stop_id &&
                       !seq->admit.ignore_eos &&
                       seq->token_count - 1 - seq->admit.output_start >= seq->admit.min_tokens;
        test_eq_u64(record->as.finished.reason,
                    is_stop ? RESULT_FINISH_STOP : RESULT_FINISH_LENGTH);
        front->stats.finished++;
    }
    seq->is_closed = true;
}

static void on_failed(struct front *front, const struct result_record *record)
{
    struct front_seq *seq = seq_of(front, record->seq_id);
    (void)row_of(front, record->msg_seq, seq); /* it is in that step */
    if (!front->options.allows_failures) {
        test_fail(__FILE__, __LINE__, "FAILED: %s", record->as.failed.text);
    }
    test_true(seq->is_admitted && !seq->is_closed);
    test_true(record->as.failed.code == ERR_STEP || record->as.failed.code == ERR_SEQUENCE);
    seq->is_closed = true;
    front->stats.failed++;
}

static void pop_step(struct front *front)
{
    front->step_first = (front->step_first + 1) % FRONT_MAX_STEPS;
    front->step_count--;
}

/* The oldest STEP is refused: those that do not know of it will be too. */
static void on_step_refused(struct front *front, const struct result_record *record)
{
    struct front_step *step = front_step_at(front, 0);
    uint32_t code = record->as.refused.code;
    bool is_behind =
        front->pending_refusal != 0 && step->after < front->pending_refusal && code != ERR_FORMAT;
    test_eq_u64(code == ERR_AFTER_REFUSAL, is_behind);
    front->stats.refused[code]++;
    if (!is_behind) {
        bool may_fail = front->options.allows_failures && (code == ERR_PAGES || code == ERR_STEP);
        bool may_lack_pages = step->is_greedy && code == ERR_PAGES;
        if (!step->is_bad && !may_fail && !may_lack_pages) {
            test_fail(__FILE__, __LINE__, "STEP refused: %s", record->as.refused.text);
        }
        front->pending_refusal = record->msg_seq;
        front->after = record->msg_seq;
        for (uint32_t i = 0; i < front->step_count; i++) {
            struct front_step *later = front_step_at(front, i);
            later->is_rejected = later->after < record->msg_seq;
        }
    }
    pop_step(front);
}

static void on_refused(struct front *front, const struct result_record *record)
{
    if (front->step_count > 0 && front_step_at(front, 0)->msg_seq == record->msg_seq) {
        on_step_refused(front, record);
        return;
    }
    test_fail(__FILE__, __LINE__, "message %llu refused out of order: %s",
              (unsigned long long)record->msg_seq, record->as.refused.text);
}

static void on_step_done(struct front *front, const struct result_record *record)
{
    test_true(front->step_count > 0);
    struct front_step *step = front_step_at(front, 0);
    test_eq_u64(record->msg_seq, step->msg_seq);
    test_true(!step->is_bad && !step->is_rejected);
    test_true(front->pending_refusal == 0 || step->after >= front->pending_refusal);
    take_figures(front, &record->as.step_done.figures);
    front->pending_refusal = 0;
    uint32_t held_rows = 0;
    for (uint32_t r = 0; r < step->row_count; r++) {
        const struct front_row *row = &step->rows[r];
        struct front_seq *seq = row->seq;
        seq->floor_tokens = num_max(seq->floor_tokens, row->end_tokens);
        test_eq_u64(seq->pairs_due, 0);
        bool is_over = seq->is_closed || seq->is_cancelled || seq->is_released;
        if (row->samples && seq->token_step != step->msg_seq) {
            held_rows += !is_over;
            test_true(is_over || seq->admit.constrained);
            seq->prompt_was_held = seq->prompt_was_held || row->is_prompt;
        } else {
            seq->committed_tokens += row->count;
            seq->prompt_was_held = false;
        }
    }
    test_true(record->as.step_done.held_rows >= held_rows);
    front->stats.held_rows += record->as.step_done.held_rows;
    front->stats.steps_done++;
    pop_step(front);
}

static void on_admitted(struct front *front, const struct result_record *record)
{
    struct front_seq *seq = seq_of(front, record->seq_id);
    test_true(!seq->is_admitted && !seq->is_closed);
    uint32_t reused = record->as.admitted.reused_tokens;
    bool may_reuse = front->options.shares_prefixes && seq->admit.prompt_logprobs == 0;
    test_true(reused == 0 || may_reuse);
    test_true(reused < seq->admit.prompt.count && reused % front->geometry.page_tokens == 0);
    take_figures(front, &record->as.admitted.figures);
    seq->is_admitted = true;
    seq->reused_tokens = reused;
    seq->committed_tokens = reused;
    seq->floor_tokens = reused;
    front->stats.reused_tokens += reused;
    front->stats.reusing += reused > 0;
}

static void read_one(struct front *front, const struct result_record *record)
{
    switch ((enum result_kind)record->kind) {
    case RESULT_TOKEN: on_token(front, record); break;
    case RESULT_LOGPROBS: on_logprobs(front, record); break;
    case RESULT_FINISHED: on_finished(front, record); break;
    case RESULT_ADMITTED: on_admitted(front, record); break;
    case RESULT_REFUSED: on_refused(front, record); break;
    case RESULT_STEP_DONE: on_step_done(front, record); break;
    case RESULT_STATE: take_figures(front, &record->as.state.figures); break;
    case RESULT_PONG:
        test_eq_u64(record->as.pong.nonce, ++front->pong_nonce);
        take_figures(front, &record->as.pong.figures);
        break;
    case RESULT_FAILED: on_failed(front, record); break;
    }
}

void front_read(struct front *front, uint32_t record_count)
{
    struct rig_session *session = &front->session;
    for (uint32_t i = 0; i < record_count && session->read_count < session->seen_count; i++) {
        const struct result_record record = *rig_record(session, session->read_count);
        session->read_count++;
        read_one(front, &record);
    }
}
