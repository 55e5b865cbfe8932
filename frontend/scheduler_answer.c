/* The worker's records: what was done, what was refused, what came out. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/num.h"
#include "frontend/scheduler_internal.h"

void sched_settle_claims(struct sched *sched, uint64_t applied)
{
    struct sched_session *session = &sched->session;
    while (session->claim_count > 0) {
        const struct sched_claim *claim = &session->claims[session->claim_head];
        bool is_void = claim->need.local_pages == 0 && claim->need.global_pages == 0;
        if (claim->msg_seq > applied && !is_void) {
            return;
        }
        session->claimed.local_pages -= claim->need.local_pages;
        session->claimed.global_pages -= claim->need.global_pages;
        session->claim_head = (session->claim_head + 1) % session->claim_cap;
        session->claim_count--;
    }
}

/* A refused message takes nothing. */
static void void_claim(struct sched *sched, uint64_t msg_seq)
{
    struct sched_session *session = &sched->session;
    for (uint32_t i = 0; i < session->claim_count; i++) {
        struct sched_claim *claim =
            &session->claims[(session->claim_head + i) % session->claim_cap];
        if (claim->msg_seq == msg_seq) {
            session->claimed.local_pages -= claim->need.local_pages;
            session->claimed.global_pages -= claim->need.global_pages;
            claim->need = (struct account_need){0};
            break;
        }
    }
    sched_settle_claims(sched, session->figures.applied);
}

static enum err_code take_figures(struct sched *sched, const struct result_figures *figures,
                                  struct err *err)
{
    struct sched_session *session = &sched->session;
    if (figures->applied < session->figures.applied || figures->applied >= session->next_msg_seq) {
        return err_set(err, ERR_PROTOCOL, "applied is %llu: not from %llu to %llu",
                       (unsigned long long)figures->applied,
                       (unsigned long long)session->figures.applied,
                       (unsigned long long)session->next_msg_seq - 1);
    }
    session->figures = *figures;
    session->has_figures = true;
    sched_settle_claims(sched, figures->applied);
    return ERR_OK;
}

static enum err_code broken_order(const char *what, const struct result_record *record,
                                  struct err *err)
{
    return err_set(err, ERR_PROTOCOL, "%s for sequence %llu, message %llu: not expected now", what,
                   (unsigned long long)record->seq_id, (unsigned long long)record->msg_seq);
}

/* The live request of a record's sequence; null, and counted, when its owner waits no more. */
static struct req *find_live(struct sched *sched, const struct result_record *record)
{
    struct req *req = sched_find_sequence(sched, record->seq_id);
    if (req == NULL || !req_is_live(req)) {
        sched->stats.records_unowned++;
        return NULL;
    }
    return req;
}

static void emit_pairs(struct sched *sched, struct req *req, enum engine_event_kind kind,
                       struct req_pairs *pairs, uint64_t now_ns)
{
    sched->stats.output_tokens += kind == ENGINE_EVENT_TOKEN;
    struct engine_event event = {
        .kind = kind,
        .request_id = req->request_id,
        .time_ns = now_ns,
        .token = pairs->token,
        .position = pairs->position,
        .logprob = pairs->logprob,
        .rank = pairs->rank,
        .pair_count = pairs->pair_count,
        .ids = pairs->ids,
        .logprobs = pairs->logprobs,
    };
    pairs->is_open = false;
    req_emit(req, &event);
}

static void ask_mask(const struct sched *sched, const struct req *req)
{
    if (req->constraint != NULL && req->next_position < req->admit.max_total) {
        sched->options.mask(sched->send_owner, req,
                            (uint32_t)(req->admit.seq_id % SCHED_MAX_SLOTS));
    }
}

static enum err_code on_token(struct sched *sched, const struct result_record *record,
                              uint64_t now_ns, struct err *err)
{
    struct req *req = find_live(sched, record);
    if (req == NULL) {
        return ERR_OK;
    }
    const struct result_token *token = &record->as.token;
    bool may_sample = req->state == REQ_STATE_DECODE || req->state == REQ_STATE_PREEMPTED;
    if (!may_sample || req->token.is_open) {
        return broken_order("TOKEN", record, err);
    }
    if (token->position != req->next_position) {
        return err_set(err, ERR_PROTOCOL, "token of sequence %llu has position %u, expected %u",
                       (unsigned long long)record->seq_id, token->position, req->next_position);
    }
    req->next_position++;
    req_push_output(req, token->token);
    queue_charge_output(req);
    ask_mask(sched, req);
    req->sampled_step_seq = record->msg_seq;
    struct req_pairs *pairs = &req->token;
    pairs->is_open = true;
    pairs->position = token->position;
    pairs->token = token->token;
    pairs->logprob = token->logprob;
    pairs->rank = token->rank;
    pairs->pair_count = 0;
    if (req_pair_count(req->admit.logprobs) == 0) {
        emit_pairs(sched, req, ENGINE_EVENT_TOKEN, pairs, now_ns);
    }
    return ERR_OK;
}

/* Adds the record's pairs; true when all pair_count are there. */
static enum err_code add_pairs(struct req_pairs *pairs, const struct result_record *record,
                               uint32_t pair_count, bool *out_is_whole, struct err *err)
{
    const struct result_logprobs *more = &record->as.logprobs;
    if (!pairs->is_open || more->position != pairs->position ||
        more->first_index != pairs->pair_count ||
        more->pair_count > pair_count - pairs->pair_count) {
        return broken_order("LOGPROBS", record, err);
    }
    memcpy(pairs->ids + pairs->pair_count, more->ids, more->pair_count * sizeof(more->ids[0]));
    memcpy(pairs->logprobs + pairs->pair_count, more->logprobs,
           more->pair_count * sizeof(more->logprobs[0]));
    pairs->pair_count += more->pair_count;
    *out_is_whole = pairs->pair_count == pair_count;
    return ERR_OK;
}

static enum err_code on_logprobs(struct sched *sched, const struct result_record *record,
                                 uint64_t now_ns, struct err *err)
{
    struct req *req = find_live(sched, record);
    if (req == NULL) {
        return ERR_OK;
    }
    const struct result_logprobs *more = &record->as.logprobs;
    bool is_prompt = (record->flags & RESULT_LOGPROBS_PROMPT) != 0;
    struct req_pairs *pairs = is_prompt ? &req->prompt : &req->token;
    if (is_prompt && !pairs->is_open) {
        if (req->admit.prompt_logprobs == 0 || more->position != req->prompt_position) {
            return broken_order("prompt LOGPROBS", record, err);
        }
        req->prompt_position++;
        pairs->is_open = true;
        pairs->position = more->position;
        pairs->token = more->token;
        pairs->logprob = more->logprob;
        pairs->rank = more->rank;
        pairs->pair_count = 0;
    }
    bool is_whole = false;
    enum err_code code = add_pairs(
        pairs, record, req_pair_count(is_prompt ? req->admit.prompt_logprobs : req->admit.logprobs),
        &is_whole, err);
    if (code == ERR_OK && is_whole && is_prompt && pairs->position <= req->prompt_told) {
        pairs->is_open = false; /* told before a preemption */
        return ERR_OK;
    }
    if (code == ERR_OK && is_whole) {
        req->prompt_told = is_prompt ? pairs->position : req->prompt_told;
        emit_pairs(sched, req, is_prompt ? ENGINE_EVENT_PROMPT_LOGPROBS : ENGINE_EVENT_TOKEN, pairs,
                   now_ns);
    }
    return code;
}

static enum err_code on_finished(struct sched *sched, const struct result_record *record,
                                 uint64_t now_ns, struct err *err)
{
    struct req *req = find_live(sched, record);
    if (req == NULL) {
        return ERR_OK;
    }
    if (req->token.is_open || req->state == REQ_STATE_ADMITTING) {
        return broken_order("FINISHED", record, err);
    }
    sched_finish(sched, req, (enum result_finish)record->as.finished.reason, now_ns);
    sched_leave(sched, req, now_ns);
    return ERR_OK;
}

static enum err_code on_failed(struct sched *sched, const struct result_record *record,
                               uint64_t now_ns)
{
    struct req *req = find_live(sched, record);
    if (req != NULL) {
        sched_fail(sched, req, (enum err_code)record->as.failed.code, record->as.failed.text,
                   now_ns);
        sched_leave(sched, req, now_ns);
    }
    return ERR_OK;
}

static enum err_code on_admitted(struct sched *sched, const struct result_record *record,
                                 uint64_t now_ns, struct err *err)
{
    enum err_code code = take_figures(sched, &record->as.admitted.figures, err);
    struct req *req = code == ERR_OK ? find_live(sched, record) : NULL;
    if (req == NULL) {
        return code;
    }
    uint32_t reused = record->as.admitted.reused_tokens;
    if (req->state != REQ_STATE_ADMITTING || reused >= req->admit.prompt.count ||
        reused % sched->limits.geometry.page_tokens != 0) {
        return broken_order("ADMITTED", record, err);
    }
    req->account = account_begin(&sched->limits.geometry, reused);
    req->pinned = (struct account_need){0};
    req->next_position = req->admit.prompt.count;
    req->prompt_position = 1;
    ask_mask(sched, req);
    req_step(req, REQ_EVENT_ADMITTED);
    sched->stats.prompt_tokens += req->was_admitted ? 0 : req->admit.prompt.count;
    req->was_admitted = true;
    bool is_queried = sched->limits.has_prefix_cache && req->admit.prompt_logprobs == 0;
    struct engine_event event = {.kind = ENGINE_EVENT_ADMITTED,
                                 .request_id = req->request_id,
                                 .time_ns = now_ns,
                                 .reused_tokens = reused,
                                 .queried_tokens = is_queried ? req->admit.prompt.count : 0};
    req_emit(req, &event);
    return ERR_OK;
}

/* The oldest STEP has its answer: sequences that ended meanwhile may go. */
static void pop_step(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    const struct sched_step *step = &session->steps[session->step_head];
    session->step_head = (session->step_head + 1) % sched->limits.depth;
    session->step_count--;
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct req *req = sched_find_sequence(sched, step->rows[i].seq_id);
        if (req != NULL && (req->state == REQ_STATE_ENDED || req->state == REQ_STATE_PREEMPTED)) {
            sched_leave(sched, req, now_ns);
        }
    }
}

/* A token or prompt position of the step still lacks some of its pairs. */
static bool has_open_pairs(const struct sched *sched, const struct sched_step *step)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct req *req = sched_find_sequence(sched, step->rows[i].seq_id);
        if (req != NULL && req_is_live(req) && (req->token.is_open || req->prompt.is_open)) {
            return true;
        }
    }
    return false;
}

static uint32_t step_tokens(const struct sched_step *step)
{
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        tokens += step->rows[i].tokens;
    }
    return tokens;
}

static enum err_code on_step_done(struct sched *sched, const struct result_record *record,
                                  uint64_t now_ns, struct err *err)
{
    struct sched_session *session = &sched->session;
    const struct sched_step *step = &session->steps[session->step_head];
    if (session->step_count == 0 || step->msg_seq != record->msg_seq || step->is_rolled_back) {
        return broken_order("STEP_DONE", record, err);
    }
    if (has_open_pairs(sched, step)) {
        return broken_order("STEP_DONE before all LOGPROBS", record, err);
    }
    enum err_code code = take_figures(sched, &record->as.step_done.figures, err);
    if (code != ERR_OK) {
        return code;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct sched_row *row = &step->rows[i];
        struct req *req = sched_find_sequence(sched, row->seq_id);
        if (req == NULL || !req_is_live(req)) {
            continue;
        }
        if (row->samples && req->sampled_step_seq != step->msg_seq) {
            return broken_order("STEP_DONE without TOKEN", record, err);
        }
        (void)account_commit(&req->account, &sched->limits.geometry,
                             row->tokens); /* the figures count what was released */
    }
    if (record->as.step_done.token_count == step_tokens(step) &&
        record->as.step_done.device_ns != 0) {
        pace_observe(&sched->pace, &step->load, record->as.step_done.device_ns);
    }
    backlog_note_step(&sched->backlog, step->sent_ns, now_ns, step->load.tokens,
                      step_tokens(step) - step->load.tokens);
    session->alive_ns = now_ns;
    session->refusals_in_row = 0;
    sched->stats.steps++;
    sched->stats.step_prompt_tokens += step->load.tokens;
    sched->stats.step_decode_rows += step_tokens(step) - step->load.tokens;
    sched->stats.step_device_ns += record->as.step_done.device_ns;
    sched->stats.step_span_ns += now_ns > step->sent_ns ? now_ns - step->sent_ns : 0;
    pop_step(sched, now_ns);
    return ERR_OK;
}

/* Takes back the rows of every outstanding STEP, newest first: the worker refuses all of them. */
static void roll_back(struct sched *sched)
{
    struct sched_session *session = &sched->session;
    for (uint32_t back = session->step_count; back-- > 0;) {
        struct sched_step *step =
            &session->steps[(session->step_head + back) % sched->limits.depth];
        for (uint32_t i = step->is_rolled_back ? 0 : step->row_count; i-- > 0;) {
            const struct sched_row *row = &step->rows[i];
            struct req *req = sched_find_sequence(sched, row->seq_id);
            if (req == NULL || !req_is_live(req)) {
                continue;
            }
            account_unlaunch(&req->account, row->tokens);
            req->account.reserved_tokens = row->reserved_before_tokens;
            req->account.local.resident_pages -= row->need.local_pages;
            req->account.global.resident_pages -= row->need.global_pages;
            if (req->state == REQ_STATE_DECODE &&
                req->account.launched_tokens < req->admit.prompt.count) {
                req_step(req, REQ_EVENT_UNPLANNED);
            }
        }
        step->is_rolled_back = true;
    }
}

/* Refused again and again: the named sequence, or all rows, cannot be served. */
static void give_up(struct sched *sched, const struct sched_step *step,
                    const struct result_record *record, uint64_t now_ns)
{
    struct req *named = sched_find_sequence(sched, record->seq_id);
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct req *req = sched_find_sequence(sched, step->rows[i].seq_id);
        if (req == NULL || !req_is_live(req) || (named != NULL && named != req)) {
            continue;
        }
        sched_cancel_sequence(sched, req, now_ns);
        sched_fail(sched, req, (enum err_code)record->as.refused.code, record->as.refused.text,
                   now_ns);
        sched_leave(sched, req, now_ns);
    }
}

static enum err_code on_step_refused(struct sched *sched, const struct result_record *record,
                                     uint64_t now_ns, struct err *err)
{
    struct sched_session *session = &sched->session;
    const struct sched_step *step = &session->steps[session->step_head];
    if (has_open_pairs(sched, step)) {
        return broken_order("REFUSED in the middle of LOGPROBS", record, err);
    }
    if (step->is_rolled_back) {
        /* a STEP sent since then names the first refusal; a later one of its own kind (bytes that
         * did not decode) is to be named too, and those STEPs are refused for not naming it */
        if (record->as.refused.code != ERR_AFTER_REFUSAL) {
            roll_back(sched);
            session->last_refusal_seq = record->msg_seq;
            session->after_seq = record->msg_seq;
        }
        pop_step(sched, now_ns);
        return ERR_OK;
    }
    roll_back(sched);
    if (record->as.refused.code == ERR_AFTER_REFUSAL) {
        if (session->last_refusal_seq == 0) {
            return broken_order("REFUSED (after a refusal)", record, err);
        }
        session->after_seq = session->last_refusal_seq;
        pop_step(sched, now_ns);
        return ERR_OK;
    }
    session->last_refusal_seq = record->msg_seq;
    session->after_seq = record->msg_seq;
    session->refusals_in_row++;
    if (session->refusals_in_row >= SCHED_MAX_REFUSALS) {
        session->refusals_in_row = 0;
        give_up(sched, step, record, now_ns);
    }
    pop_step(sched, now_ns);
    return ERR_OK;
}

static bool is_outstanding(const struct sched *sched, uint64_t msg_seq)
{
    const struct sched_session *session = &sched->session;
    for (uint32_t i = 0; i < session->step_count; i++) {
        if (session->steps[(session->step_head + i) % sched->limits.depth].msg_seq == msg_seq) {
            return true;
        }
    }
    return false;
}

static enum err_code on_refused(struct sched *sched, const struct result_record *record,
                                uint64_t now_ns, struct err *err)
{
    struct sched_session *session = &sched->session;
    sched->stats.plans_refused++;
    void_claim(sched, record->msg_seq);
    if (session->step_count > 0 && session->steps[session->step_head].msg_seq == record->msg_seq) {
        return on_step_refused(sched, record, now_ns, err);
    }
    if (is_outstanding(sched, record->msg_seq)) {
        return broken_order("REFUSED before an older STEP's answer", record, err);
    }
    session->last_refusal_seq = record->msg_seq;
    struct req *req = sched->running.first;
    while (req != NULL && req->admit_msg_seq != record->msg_seq) {
        req = req->next;
    }
    if (req == NULL || !req_is_live(req)) {
        sched->stats.records_unowned++;
        return ERR_OK;
    }
    if (req->state != REQ_STATE_ADMITTING) {
        return broken_order("REFUSED after ADMITTED", record, err);
    }
    if (record->as.refused.code == ERR_BUSY) { /* another frontend was faster */
        session->busy_seq = record->msg_seq;
        sched_requeue(sched, req);
        return ERR_OK;
    }
    sched_fail(sched, req, (enum err_code)record->as.refused.code, record->as.refused.text, now_ns);
    req_step(req, REQ_EVENT_LOST);
    sched_forget(sched, req);
    return ERR_OK;
}

enum err_code sched_record(struct sched *sched, const struct result_record *record, uint64_t now_ns,
                           struct err *err)
{
    assert(sched->is_attached);
    sched->session.heard_ns = now_ns;
    switch ((enum result_kind)record->kind) {
    case RESULT_TOKEN: return on_token(sched, record, now_ns, err);
    case RESULT_LOGPROBS: return on_logprobs(sched, record, now_ns, err);
    case RESULT_FINISHED: return on_finished(sched, record, now_ns, err);
    case RESULT_ADMITTED: return on_admitted(sched, record, now_ns, err);
    case RESULT_REFUSED: return on_refused(sched, record, now_ns, err);
    case RESULT_STEP_DONE: return on_step_done(sched, record, now_ns, err);
    case RESULT_STATE: return take_figures(sched, &record->as.state.figures, err);
    case RESULT_PONG:
        sched->session.alive_ns = now_ns;
        return take_figures(sched, &record->as.pong.figures, err);
    case RESULT_FAILED: return on_failed(sched, record, now_ns);
    }
    return err_set(err, ERR_PROTOCOL, "record of unknown kind %u", record->kind);
}
