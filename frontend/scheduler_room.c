/* Who is at the worker: admission, and preemption when pages run out.
 *
 * Admission is hopeful: a request enters when all that it has to compute and one page more per family
 * fit beside what the running ones need next (the rest of their prompts and a page of output).  What
 * they grow beyond that is found by preempting.
 *
 * Nothing runs in circles.  Let R be the oldest request of the highest priority.  Rows take pages only
 * from those behind them in the order of `running`, where only requests of R's priority that were
 * preempted twice are ahead of R; so R is preempted at most twice, and then is first and goes on until
 * it ends: alone it fits, or it would have been refused.  While R waits, the first of those running
 * goes on in the same way, so all of them end; at most QUEUE_MAX_PASSES + SCHED_MAX_OVERTAKES enter
 * before R meanwhile, beside those that were there before and return.  A preempted request enters
 * again only when its whole recompute fits beside a page for each that runs: the pages that it gave up
 * do not bring it back by themselves.  While two frontends share a worker one that cannot go on may be
 * preempted for the other's sake: once for each request that waits there, and those are bounded, since
 * what is new comes to one of the two only. */
#include <assert.h>
#include <stddef.h>

#include "common/num.h"
#include "frontend/scheduler_internal.h"

#define GROWTH_PAGES 1U

/* From so many preemptions on others go first. */
#define SPARED_AFTER_PREEMPTIONS 2

static struct account_need need_less(struct account_need from, const struct account_need *amount)
{
    return (struct account_need){
        .local_pages = sched_less(from.local_pages, amount->local_pages),
        .global_pages = sched_less(from.global_pages, amount->global_pages),
    };
}

static struct account_need need_min(struct account_need a, const struct account_need *b)
{
    return (struct account_need){
        .local_pages = num_min(a.local_pages, b->local_pages),
        .global_pages = num_min(a.global_pages, b->global_pages),
    };
}

static void need_add(struct account_need *sum, const struct account_need *more)
{
    sum->local_pages += more->local_pages;
    sum->global_pages += more->global_pages;
}

static bool need_fits(const struct account_need *need, const struct account_need *room)
{
    return need->local_pages <= room->local_pages && need->global_pages <= room->global_pages;
}

static struct account_need resident(const struct req *req)
{
    return (struct account_need){
        .local_pages = req->account.local.resident_pages,
        .global_pages = req->account.global.resident_pages,
    };
}

bool sched_goes_before(const struct req *a, const struct req *b)
{
    if (a->priority != b->priority) {
        return a->priority > b->priority;
    }
    bool is_spared = a->preemptions >= SPARED_AFTER_PREEMPTIONS;
    if (is_spared != (b->preemptions >= SPARED_AFTER_PREEMPTIONS)) {
        return !is_spared;
    }
    return a->arrival_seq > b->arrival_seq;
}

/* All that it has to compute, and a page more per family. */
static struct account_need entry_need(const struct sched_limits *limits, const struct req *req)
{
    struct account_need peak = sched_peak(limits, req->admit.max_total);
    struct account_need entry = sched_peak(limits, req->admit.prompt.count);
    entry.local_pages += GROWTH_PAGES;
    entry.global_pages += GROWTH_PAGES;
    return need_min(entry, &peak);
}

/* What a running request is counted with beside one that would enter. */
static struct account_need next_need(const struct sched *sched, const struct req *req)
{
    struct account_need held = resident(req);
    struct account_need growth = {GROWTH_PAGES, GROWTH_PAGES};
    switch (req->state) {
    case REQ_STATE_ADMITTING: return need_less(req->entry, &req->pinned);
    case REQ_STATE_PROMPT: {
        uint32_t rest = num_ceil_div(sched_rest_tokens(req), sched->limits.geometry.page_tokens);
        struct account_need most = {rest + 1 + GROWTH_PAGES, rest + 1 + GROWTH_PAGES};
        return need_min(need_less(req->entry, &held), &most);
    }
    case REQ_STATE_DECODE: return need_min(need_less(req->decode_top, &held), &growth);
    case REQ_STATE_QUEUED:
    case REQ_STATE_PREEMPTED:
    case REQ_STATE_ENDED:
    case REQ_STATE_GONE:
    case REQ_STATE_INVALID:
    case REQ_STATE_COUNT: break;
    }
    return (struct account_need){0};
}

/* Pages left beside what the running ones need next. */
static struct account_need spare_pages(const struct sched *sched)
{
    struct account_need left = sched_pages_left(sched);
    for (const struct req *req = sched->running.first; req != NULL; req = req->next) {
        struct account_need next = next_need(sched, req);
        left = need_less(left, &next);
    }
    return left;
}

/* Pages that a prefix hit could pin: whole pages before the last prompt token. */
static struct account_need most_pinned(const struct sched_limits *limits, const struct req *req)
{
    uint32_t page = limits->geometry.page_tokens;
    uint32_t whole_pages = (req->admit.prompt.count - 1) / page;
    uint32_t window_pages = num_ceil_div(limits->geometry.window_tokens, page);
    struct account_need pinned = {num_min(whole_pages, window_pages), whole_pages};
    return need_min(pinned, &req->peak);
}

static void insert_running(struct sched *sched, struct req *req)
{
    struct req *after = sched->running.last;
    while (after != NULL && sched_goes_before(after, req)) {
        after = after->prev;
    }
    req_list_insert(&sched->running, after, req);
    sched->live_running++;
    if (req->deadline_ns != 0 && req->deadline_ns < sched->soonest_ns) {
        sched->soonest_ns = req->deadline_ns;
    }
}

static void admit(struct sched *sched, struct req *req, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    const struct sched_limits *limits = &sched->limits;
    queue_take(&sched->queue, req);
    uint32_t slot = session->free_slots[--session->free_slot_count];
    session->by_slot[slot] = req;
    req->admit.seq_id = session->next_serial++ * SCHED_MAX_SLOTS + slot;
    req->peak = sched_peak(limits, req->admit.max_total);
    req->entry = entry_need(limits, req);
    req->decode_top = account_peak(&limits->geometry, req->admit.max_total, limits->depth);
    req->decode_top = need_min(req->decode_top, &req->peak);
    req->pinned = most_pinned(limits, req);
    insert_running(sched, req);
    req_step(req, REQ_EVENT_ADMIT);
    struct plan_message message = {.type = PLAN_ADMIT, .as.admit = req->admit};
    req->admit_msg_seq = sched_send(sched, &message, now_ns);
    sched_push_claim(sched, req->admit_msg_seq, &req->pinned);
}

static bool fits(const struct sched *sched, struct req *req, const struct account_need *spare)
{
    struct account_need entry = entry_need(&sched->limits, req);
    return need_fits(&entry, spare) && !sched_awaits_prefix(sched, req);
}

/* Past a preempted head only what will never need its pages. */
static bool may_overtake(const struct sched *sched, struct req *req, const struct req *head,
                         const struct account_need *spare)
{
    if (head->preemptions > 0) {
        struct account_need peak = sched_peak(&sched->limits, req->admit.max_total);
        return need_fits(&peak, spare) && !sched_awaits_prefix(sched, req);
    }
    return fits(sched, req, spare);
}

/* Each of the two is passed a bounded number of times. */
static struct req *pass(struct sched *sched, struct req *head, struct req *new_head,
                        struct req *passing)
{
    head->overtaken++;
    if (new_head != NULL && new_head != head && new_head != passing) {
        new_head->overtaken++;
    }
    sched->stats.overtakes++;
    return passing;
}

/* The head, or another that fits while the head does not; null when nobody may go. */
static struct req *next_to_admit(struct sched *sched, const struct account_need *spare)
{
    struct req *head = queue_head(&sched->queue);
    if (head == NULL || fits(sched, head, spare)) {
        return head;
    }
    struct req *new_head = queue_new_head(&sched->queue); /* the head, or behind a preempted one */
    bool is_new_spent = new_head != NULL && new_head->overtaken >= SCHED_MAX_OVERTAKES;
    if (head->overtaken >= SCHED_MAX_OVERTAKES) {
        return NULL;
    }
    struct req *req = sched->queue.waiting.first;
    for (uint32_t i = 0; req != NULL && i <= SCHED_OVERTAKE_REACH; i++, req = req->next) {
        if (req != head && (!is_new_spent || req == new_head || req->preemptions > 0) &&
            may_overtake(sched, req, head, spare)) {
            return pass(sched, head, new_head, req);
        }
    }
    return NULL;
}

void sched_admit_waiting(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    if (!session->has_figures || sched->queue.waiting.first == NULL ||
        session->busy_seq > session->figures.applied) {
        return;
    }
    struct account_need spare = spare_pages(sched);
    while (session->free_slot_count > session->figures.slots_withheld &&
           session->claim_count + 2 * SCHED_MAX_DEPTH < session->claim_cap) {
        struct req *req = next_to_admit(sched, &spare);
        if (req == NULL) {
            return;
        }
        admit(sched, req, now_ns);
        spare = need_less(spare, &req->entry);
    }
}

struct account_need sched_waiting_need(const struct sched *sched)
{
    const struct req *head = queue_head(&sched->queue);
    struct account_need need = {0};
    if (head != NULL) {
        need = sched_peak(&sched->limits, head->admit.max_total);
    }
    return need;
}

/* ---- preemption ---- */

struct account_need sched_need(const struct sched *sched, const struct req *req, uint32_t tokens)
{
    struct err err;
    struct account_need need;
    enum err_code code = account_need(&req->account, &sched->limits.geometry, tokens, &need, &err);
    assert(code == ERR_OK); /* sched_check: accounts are exact */
    (void)code;
    return need;
}

struct account_need sched_least_need(const struct sched *sched, const struct req *req)
{
    uint32_t tokens = 1;
    if (req->state == REQ_STATE_PROMPT) {
        tokens = num_min(sched_rest_tokens(req), sched_tokens_to_cut(&sched->limits, req));
    }
    return sched_need(sched, req, tokens);
}

static bool is_planned(const struct req *req)
{
    return req->state == REQ_STATE_PROMPT || req->state == REQ_STATE_DECODE;
}

/* The first that has waited long enough for pages: steps in flight might still have given some. */
static struct req *first_blocked(const struct sched *sched)
{
    const struct sched_session *session = &sched->session;
    if (session->step_count > 0 && session->figures.slots_withheld > 0) {
        return NULL; /* during a hand-over what is given back goes to the other session: hold on */
    }
    uint32_t patience = session->step_count == 0 ? 0 : sched->limits.depth;
    struct req *req = sched->running.first;
    while (req != NULL && !(is_planned(req) && req->blocked_plans > patience)) {
        req = req->next;
    }
    return req;
}

/* All slots are withheld from those that have some: what waits at the other session needs the pages
 * that those hold which cannot go on. */
static bool must_yield(const struct sched_session *session, const struct sched_limits *limits)
{
    return session->step_count == 0 && session->figures.slots_withheld >= limits->slots;
}

static void preempt(struct sched *sched, struct req *req, uint64_t now_ns)
{
    req_step(req, REQ_EVENT_PREEMPT);
    req->blocked_plans = 0;
    sched->stats.preemptions++;
    sched_leave(sched, req, now_ns);
}

/* A RELEASE or a refused ADMIT with nothing behind it is told of only if it changed the figures. */
static void ask_for_figures(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    uint64_t wanted_seq =
        session->release_seq > session->busy_seq ? session->release_seq : session->busy_seq;
    if (session->step_count == 0 && session->figures.applied < wanted_seq &&
        session->figures_ping_seq < wanted_seq) {
        session->figures_ping_seq = sched_ping(sched, now_ns);
    }
}

void sched_make_room(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    ask_for_figures(sched, now_ns);
    if (session->release_seq > session->figures.applied) {
        return;
    }
    struct req *blocked = session->has_blocked ? first_blocked(sched) : NULL;
    if (blocked == NULL) {
        return;
    }
    struct account_need wanted = {0};
    struct account_need coming = sched_pages_left(sched);
    for (const struct req *req = sched->running.first; req != NULL; req = req->next) {
        struct account_need pages = resident(req);
        if (req->state == REQ_STATE_PREEMPTED || req->state == REQ_STATE_ENDED) {
            need_add(&coming, &pages);
        } else if (is_planned(req) && req->blocked_plans > 0) {
            pages = sched_least_need(sched, req);
            need_add(&wanted, &pages);
        }
    }
    for (struct req *victim = sched->running.last, *prev;
         victim != blocked && !need_fits(&wanted, &coming); victim = prev) {
        prev = victim->prev;
        struct account_need pages = resident(victim);
        if (!is_planned(victim) || (pages.local_pages == 0 && pages.global_pages == 0)) {
            continue;
        }
        if (victim->blocked_plans > 0) {
            struct account_need own = sched_least_need(sched, victim);
            wanted = need_less(wanted, &own);
        }
        need_add(&coming, &pages);
        preempt(sched, victim, now_ns);
    }
    if (!need_fits(&wanted, &coming) && must_yield(session, &sched->limits)) {
        preempt(sched, blocked, now_ns);
    }
}
