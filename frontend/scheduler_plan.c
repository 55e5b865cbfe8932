/* What the scheduler sends: the rows of each STEP.
 *
 * Pages left are the figures as last heard less every claim: what the STEPs and ADMITs sent after
 * `applied` may take.  The mirror of each account commits later than the worker does, so it never
 * counts fewer resident pages than the worker holds. */
#include <assert.h>
#include <stddef.h>

#include "common/num.h"
#include "frontend/scheduler_internal.h"

uint64_t sched_send(struct sched *sched, struct plan_message *message, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    message->epoch = session->epoch;
    message->msg_seq = session->next_msg_seq++;
    session->sent_ns = now_ns;
    sched->send(sched->send_owner, message);
    return message->msg_seq;
}

uint32_t sched_rest_tokens(const struct req *req)
{
    return req->admit.prompt.count - req->account.launched_tokens;
}

uint32_t sched_tokens_to_cut(const struct sched_limits *limits, const struct req *req)
{
    uint32_t cut = num_max(limits->cut_tokens, 1);
    return cut - req->account.launched_tokens % cut;
}

struct account_need sched_peak(const struct sched_limits *limits, uint32_t max_total_tokens)
{
    return account_table_peak(&limits->geometry, max_total_tokens, limits->peak_step_tokens);
}

struct account_need sched_pages_left(const struct sched *sched)
{
    const struct sched_session *session = &sched->session;
    return (struct account_need){
        .local_pages =
            sched_less(session->figures.local_quota_left_pages, session->claimed.local_pages),
        .global_pages =
            sched_less(session->figures.global_quota_left_pages, session->claimed.global_pages),
    };
}

void sched_push_claim(struct sched *sched, uint64_t msg_seq, const struct account_need *need)
{
    struct sched_session *session = &sched->session;
    if (need->local_pages == 0 && need->global_pages == 0) {
        return;
    }
    assert(session->claim_count < session->claim_cap);
    uint32_t at = (session->claim_head + session->claim_count) % session->claim_cap;
    session->claims[at] = (struct sched_claim){.msg_seq = msg_seq, .need = *need};
    session->claim_count++;
    session->claimed.local_pages += need->local_pages;
    session->claimed.global_pages += need->global_pages;
}

/* Tokens that accounted pages plus `more` cover beyond the launched frontier. */
static uint64_t cover(const struct account_family *family, uint32_t more, uint32_t page_tokens,
                      uint32_t launched_tokens)
{
    uint64_t pages = (uint64_t)family->origin_pages + family->resident_pages + more;
    return pages * page_tokens - launched_tokens;
}

uint32_t sched_allowed_tokens(const struct sched_builder *builder, const struct req *req,
                              uint32_t wanted_tokens)
{
    const struct account *account = &req->account;
    uint32_t page = builder->sched->limits.geometry.page_tokens;
    uint32_t local_room = num_min(builder->left.local_pages,
                                  sched_less(req->peak.local_pages, account->local.resident_pages));
    uint64_t local = cover(&account->local, local_room, page, account->launched_tokens);
    uint64_t global =
        cover(&account->global, builder->left.global_pages, page, account->launched_tokens);
    uint64_t tokens = num_min(wanted_tokens, builder->tokens_left);
    tokens = local < tokens ? local : tokens;
    tokens = global < tokens ? global : tokens;
    return (uint32_t)tokens;
}

void sched_add_row(struct sched_builder *builder, struct req *req, uint32_t tokens)
{
    struct sched *sched = builder->sched;
    struct sched_step *step = builder->step;
    bool is_prompt = req->state == REQ_STATE_PROMPT;
    req->blocked_plans = 0;
    struct account_need need = sched_need(sched, req, tokens);
    sched->session.wire_rows[step->row_count] = (struct wire_row){
        .seq_id = req->admit.seq_id,
        .start = is_prompt ? req->account.launched_tokens : 0,
        .count = is_prompt ? tokens : 0,
    };
    uint32_t reserved_before = req->account.reserved_tokens;
    account_launch(&req->account, &need, tokens);
    if (is_prompt && req->account.launched_tokens == req->admit.prompt.count) {
        req_step(req, REQ_EVENT_PLANNED);
    }
    step->rows[step->row_count++] = (struct sched_row){
        .seq_id = req->admit.seq_id,
        .tokens = tokens,
        .samples = req->state == REQ_STATE_DECODE,
        .reserved_before_tokens = reserved_before,
        .need = need,
    };
    builder->tokens_left -= tokens;
    builder->left.local_pages -= need.local_pages;
    builder->left.global_pages -= need.global_pages;
    builder->taken.local_pages += need.local_pages;
    builder->taken.global_pages += need.global_pages;
}

void sched_note_blocked(struct sched_builder *builder, struct req *req)
{
    struct account_need need = sched_least_need(builder->sched, req);
    if (need.local_pages > builder->left.local_pages ||
        need.global_pages > builder->left.global_pages) {
        req->blocked_plans++;
        builder->sched->session.has_blocked = true;
    }
}

static bool is_step_full(const struct sched_builder *builder)
{
    return builder->step->row_count + builder->kept_rows >= builder->sched->limits.max_step_rows ||
           builder->tokens_left <= builder->kept_tokens;
}

/* The mask of a constrained row follows from the token before it, so the row waits for that. */
static bool awaits_token(const struct req *req)
{
    return req->constraint != NULL && req->account.launched_tokens >= req->token_count;
}

/* Decode rows [from, to) in order of admission; false when the step filled up before the end, and
 * *out_next is then the first left out. */
static bool add_decode_rows(struct sched_builder *builder, uint32_t from, uint32_t to,
                            uint32_t *out_next)
{
    uint32_t index = 0;
    for (struct req *req = builder->sched->running.first; req != NULL && index < to;
         req = req->next) {
        if (req->state != REQ_STATE_DECODE ||
            req->account.launched_tokens >= req_max_launched(req) || awaits_token(req) ||
            index++ < from) {
            continue;
        }
        if (is_step_full(builder)) {
            *out_next = index - 1;
            return false;
        }
        if (sched_allowed_tokens(builder, req, 1) == 1) {
            sched_add_row(builder, req, 1);
        } else {
            sched_note_blocked(builder, req);
        }
    }
    return true;
}

/* Decode rows that do not fit leave this much to prompts, or those would never start. */
static void keep_for_prompts(struct sched_builder *builder)
{
    const struct sched_limits *limits = &builder->sched->limits;
    const struct req *req = builder->sched->running.first;
    while (req != NULL && req->state != REQ_STATE_PROMPT) {
        req = req->next;
    }
    builder->kept_rows = req != NULL && limits->max_step_rows > 1 ? 1 : 0;
    builder->kept_tokens = req != NULL ? num_max(limits->budget_tokens / 4, limits->cut_tokens) : 0;
}

/* The next STEP; false when there is nothing to run. */
static bool plan_step(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    uint32_t at = (session->step_head + session->step_count) % sched->limits.depth;
    struct sched_builder builder = {
        .sched = sched,
        .step = &session->steps[at],
        .left = sched_pages_left(sched),
        .tokens_left = sched->limits.budget_tokens,
    };
    builder.step->row_count = 0;
    builder.step->is_rolled_back = false;
    session->has_blocked = false;
    keep_for_prompts(&builder);
    /* More decode rows than fit take turns: this step begins where the last one ended. */
    uint32_t first = session->first_row_skip;
    uint32_t next = 0;
    if (add_decode_rows(&builder, first, UINT32_MAX, &next) && first > 0) {
        (void)add_decode_rows(&builder, 0, first, &next); /* next says enough */
    }
    session->first_row_skip = next;
    sched_add_prompt_rows(&builder, builder.step->row_count > 0);
    builder.step->load = builder.load;
    if (builder.step->row_count == 0) {
        return false;
    }
    struct plan_message message = {
        .type = PLAN_STEP,
        .as.step = {.after = session->after_seq,
                    .rows = {.at = session->wire_rows, .count = builder.step->row_count}},
    };
    session->after_seq = 0;
    session->step_count++;
    sched->stats.step_rows += builder.step->row_count;
    builder.step->sent_ns = now_ns;
    builder.step->msg_seq = sched_send(sched, &message, now_ns);
    sched_push_claim(sched, builder.step->msg_seq, &builder.taken);
    for (uint32_t i = 0; i < builder.step->row_count; i++) {
        sched_find_sequence(sched, builder.step->rows[i].seq_id)->last_step_seq =
            builder.step->msg_seq;
    }
    return true;
}

void sched_plan(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    sched_admit_waiting(sched, now_ns);
    bool goes_on = session->has_figures;
    while (goes_on && session->step_count < sched->limits.depth &&
           session->claim_count < session->claim_cap) {
        goes_on = plan_step(sched, now_ns);
    }
    sched_make_room(sched, now_ns);
}
