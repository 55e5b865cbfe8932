#include "frontend/request.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "frontend/constraint.h"

#define OUTPUT_FIRST_TOKENS 64U

static const enum req_state next_states[REQ_STATE_COUNT][REQ_EVENT_COUNT] = {
#define STATE(name)
#define EVENT(name)
#define NEXT(from, event, to) [REQ_STATE_##from][REQ_EVENT_##event] = REQ_STATE_##to,
#include "frontend/request.def"
#undef STATE
#undef EVENT
#undef NEXT
};

static enum err_code check_bounds(const struct engine_request *request, struct err *err)
{
    const struct plan_admit *admit = &request->admit;
    if (request->on_event == NULL) {
        return err_set(err, ERR_ARGUMENT, "a request needs an event callback");
    }
    if (admit->prompt.count == 0) {
        return err_set(err, ERR_ARGUMENT, "the prompt is empty: at least 1 token is needed");
    }
    if (admit->prompt.count > PLAN_MAX_PROMPT_TOKENS) {
        return err_set(err, ERR_LIMIT, "the prompt has %u tokens, at most %u", admit->prompt.count,
                       PLAN_MAX_PROMPT_TOKENS);
    }
    if (admit->max_total <= admit->prompt.count) {
        return err_set(err, ERR_ARGUMENT,
                       "max_total is %u tokens: the prompt of %u leaves no room for output",
                       admit->max_total, admit->prompt.count);
    }
    if (admit->output_start > admit->prompt.count) {
        return err_set(err, ERR_ARGUMENT, "output_start is %u, the prompt has %u tokens",
                       admit->output_start, admit->prompt.count);
    }
    if (admit->logit_bias.count > PLAN_MAX_LOGIT_BIAS) {
        return err_set(err, ERR_LIMIT, "logit_bias has %u entries, at most %u",
                       admit->logit_bias.count, PLAN_MAX_LOGIT_BIAS);
    }
    if (admit->suppress_ids.count > PLAN_MAX_LOGIT_BIAS) {
        return err_set(err, ERR_LIMIT, "%u suppressed ids, at most %u", admit->suppress_ids.count,
                       PLAN_MAX_LOGIT_BIAS);
    }
    if (admit->stop_ids.count > PLAN_MAX_STOP_IDS) {
        return err_set(err, ERR_LIMIT, "%u stop ids, at most %u", admit->stop_ids.count,
                       PLAN_MAX_STOP_IDS);
    }
    if (admit->logprobs > PLAN_MAX_LOGPROBS + 1) {
        return err_set(err, ERR_LIMIT, "logprobs of %u tokens, at most %u", admit->logprobs - 1,
                       PLAN_MAX_LOGPROBS);
    }
    if (admit->prompt_logprobs > PLAN_MAX_LOGPROBS + 1) {
        return err_set(err, ERR_LIMIT, "prompt_logprobs of %u tokens, at most %u",
                       admit->prompt_logprobs - 1, PLAN_MAX_LOGPROBS);
    }
    if (admit->constrained != (request->constraint != NULL)) {
        return err_set(err, ERR_ARGUMENT, "constrained is %d: the constraint is %s",
                       admit->constrained, request->constraint != NULL ? "there" : "missing");
    }
    return ERR_OK;
}

/* Copies an array into *at and moves *at behind it. */
static const void *copy_array(unsigned char **at, const void *from, size_t byte_count)
{
    if (byte_count == 0) {
        return NULL;
    }
    unsigned char *to = *at;
    memcpy(to, from, byte_count);
    *at = to + byte_count;
    return to;
}

enum err_code req_create(const struct engine_request *request, struct req **out_req,
                         struct err *err)
{
    enum err_code code = check_bounds(request, err);
    if (code != ERR_OK) {
        return code;
    }
    const struct plan_admit *from = &request->admit;
    size_t prompt_bytes = from->prompt.count * sizeof(from->prompt.at[0]);
    size_t stop_bytes = from->stop_ids.count * sizeof(from->stop_ids.at[0]);
    size_t suppress_bytes = from->suppress_ids.count * sizeof(from->suppress_ids.at[0]);
    size_t bias_bytes = from->logit_bias.count * sizeof(from->logit_bias.at[0]);
    uint32_t *tokens = mem_try_zalloc(from->prompt.count, sizeof(tokens[0]));
    unsigned char *at = mem_try_zalloc(stop_bytes + suppress_bytes + bias_bytes + 1, 1);
    if (tokens == NULL || at == NULL) {
        mem_free(tokens);
        mem_free(at);
        return err_set(err, ERR_MEMORY, "no memory for a prompt of %u tokens", from->prompt.count);
    }
    struct req *req = mem_zalloc(1, sizeof(*req));
    req->storage = at;
    req->state = REQ_STATE_QUEUED;
    req->priority = request->priority;
    req->deadline_ns = request->deadline_ns;
    req->key_hash = request->key_hash;
    req->group = request->group;
    req->constraint = request->constraint;
    req->on_event = request->on_event;
    req->owner = request->owner;
    req->admit = *from;
    memcpy(tokens, from->prompt.at, prompt_bytes);
    req->tokens = tokens;
    req->token_count = from->prompt.count;
    req->token_cap = from->prompt.count;
    req->admit.prompt.at = tokens;
    req->admit.stop_ids.at = copy_array(&at, from->stop_ids.at, stop_bytes);
    req->admit.suppress_ids.at = copy_array(&at, from->suppress_ids.at, suppress_bytes);
    req->admit.logit_bias.at = copy_array(&at, from->logit_bias.at, bias_bytes);
    *out_req = req;
    return ERR_OK;
}

void req_destroy(struct req *req)
{
    if (req == NULL) {
        return;
    }
    constraint_release(req->constraint);
    mem_free(req->tokens);
    mem_free(req->storage);
    mem_free(req);
}

void req_list_insert(struct req_list *list, struct req *after, struct req *req)
{
    req->prev = after;
    req->next = after == NULL ? list->first : after->next;
    *(req->prev == NULL ? &list->first : &req->prev->next) = req;
    *(req->next == NULL ? &list->last : &req->next->prev) = req;
    list->count++;
}

void req_list_remove(struct req_list *list, struct req *req)
{
    assert(list->count > 0);
    *(req->prev == NULL ? &list->first : &req->prev->next) = req->next;
    *(req->next == NULL ? &list->last : &req->next->prev) = req->prev;
    req->prev = NULL;
    req->next = NULL;
    list->count--;
}

enum req_state req_next(enum req_state state, enum req_event event)
{
    return next_states[state][event];
}

void req_step(struct req *req, enum req_event event)
{
    enum req_state to = req_next(req->state, event);
    assert(to != REQ_STATE_INVALID);
    req->state = to;
}

void req_push_output(struct req *req, uint32_t token)
{
    if (req->token_count == req->token_cap) {
        /* grows with the output, not with the prompt */
        uint32_t output = req->token_count - req->admit.output_start;
        req->token_cap = req->token_count + num_max(output, OUTPUT_FIRST_TOKENS);
        req->tokens = mem_realloc(req->tokens, req->token_cap, sizeof(req->tokens[0]));
        req->admit.prompt.at = req->tokens;
    }
    req->tokens[req->token_count++] = token;
}

void req_requeue(struct req *req)
{
    assert(!req->token.is_open && !req->prompt.is_open);
    req_step(req, REQ_EVENT_REQUEUE);
    req->preemptions++;
    req->admit.prompt.count = req->token_count;
    req->admit.seq_id = 0;
    req->account = (struct account){0};
    req->pinned = (struct account_need){0};
    req->admit_msg_seq = 0;
    req->last_step_seq = 0;
    req->sampled_step_seq = 0;
    req->blocked_plans = 0;
    req->overtaken = 0;
    if (req->token_count > req->admit.output_start) {
        req->admit.prompt_logprobs = 0; /* all told before the first token */
    }
}

bool req_is_live(const struct req *req)
{
    switch (req->state) {
    case REQ_STATE_QUEUED:
    case REQ_STATE_ADMITTING:
    case REQ_STATE_PROMPT:
    case REQ_STATE_DECODE:
    case REQ_STATE_PREEMPTED: return true;
    case REQ_STATE_ENDED:
    case REQ_STATE_GONE:
    case REQ_STATE_INVALID:
    case REQ_STATE_COUNT: break;
    }
    return false;
}

bool req_check(const struct req *req)
{
    uint32_t launched = req->account.launched_tokens;
    bool is_ordered = req->account.committed_tokens <= launched;
    if (req->admit.prompt.at != req->tokens || req->admit.prompt.count > req->token_count ||
        req->token_count > req->token_cap) {
        return false;
    }
    switch (req->state) {
    case REQ_STATE_QUEUED:
    case REQ_STATE_ADMITTING:
        return launched == 0 && req->account.local.resident_pages == 0 &&
               req->account.global.resident_pages == 0 && req->last_step_seq == 0;
    case REQ_STATE_PROMPT: return is_ordered && launched < req->admit.prompt.count;
    case REQ_STATE_DECODE:
        return is_ordered && launched >= req->admit.prompt.count &&
               launched <= req_max_launched(req);
    case REQ_STATE_PREEMPTED:
    case REQ_STATE_ENDED: return is_ordered;
    case REQ_STATE_GONE: return true;
    case REQ_STATE_INVALID:
    case REQ_STATE_COUNT: break;
    }
    return false;
}

uint32_t req_pair_count(uint32_t logprobs)
{
    return logprobs == 0 ? 0 : logprobs - 1;
}

uint32_t req_max_launched(const struct req *req)
{
    return req->admit.max_total - 1;
}

void req_emit(const struct req *req, const struct engine_event *event)
{
    req->on_event(req->owner, event);
}
