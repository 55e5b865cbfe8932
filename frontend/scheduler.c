/* Inputs of the scheduler: requests come and go, sessions begin and end.  scheduler_gate.c says what
 * may come in, scheduler_room.c who is at the worker, scheduler_plan.c what is sent,
 * scheduler_answer.c reads the records. */
#include "frontend/scheduler.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/scheduler_internal.h"

/* What waits is told no sooner after it was told last. */
#define TELL_NS (100 * 1000000ULL)

static uint32_t bucket_of(const struct sched *sched, uint64_t request_id)
{
    return (uint32_t)(request_id * 0x9e3779b97f4a7c15ULL >> 32) & (sched->bucket_count - 1);
}

static struct req *table_find(const struct sched *sched, uint64_t request_id)
{
    struct req *req = sched->buckets[bucket_of(sched, request_id)];
    while (req != NULL && req->request_id != request_id) {
        req = req->bucket_next;
    }
    return req;
}

static void table_insert(struct sched *sched, struct req *req)
{
    struct req **chain = &sched->buckets[bucket_of(sched, req->request_id)];
    req->bucket_next = *chain;
    *chain = req;
}

static void table_remove(struct sched *sched, const struct req *req)
{
    struct req **at = &sched->buckets[bucket_of(sched, req->request_id)];
    while (*at != req) {
        assert(*at != NULL);
        at = &(*at)->bucket_next;
    }
    *at = req->bucket_next;
}

struct sched *sched_create(const struct sched_options *options, sched_send_fn send, void *owner)
{
    struct sched *sched = mem_zalloc(1, sizeof(*sched));
    sched->options = *options;
    sched->send = send;
    sched->send_owner = owner;
    sched->soonest_ns = UINT64_MAX;
    queue_init(&sched->queue, options->max_queue + SCHED_MAX_SLOTS);
    sched->bucket_count = 256;
    while (sched->bucket_count < options->max_queue && sched->bucket_count < (1U << 20)) {
        sched->bucket_count *= 2;
    }
    sched->buckets = mem_zalloc(sched->bucket_count, sizeof(struct req *));
    return sched;
}

static void close_session(struct sched *sched)
{
    struct sched_session *session = &sched->session;
    for (uint32_t i = 0; i < SCHED_MAX_DEPTH; i++) {
        mem_free(session->steps[i].rows);
    }
    mem_free(session->by_slot);
    mem_free(session->free_slots);
    mem_free(session->claims);
    mem_free(session->wire_rows);
    *session = (struct sched_session){0};
}

/* The last event; the request stays where it is. */
static void end(struct sched *sched, struct req *req, struct engine_event *event, uint64_t now_ns)
{
    assert(req_is_live(req));
    table_remove(sched, req);
    event->request_id = req->request_id;
    event->time_ns = now_ns;
    if (req->state != REQ_STATE_QUEUED) {
        sched->live_running--;
        req_step(req, REQ_EVENT_END);
    }
    req_emit(req, event);
}

void sched_fail(struct sched *sched, struct req *req, enum err_code code, const char *text,
                uint64_t now_ns)
{
    sched->stats.failed++;
    struct engine_event event = {.kind = ENGINE_EVENT_FAILED, .code = code, .text = text};
    end(sched, req, &event, now_ns);
}

void sched_finish(struct sched *sched, struct req *req, enum result_finish reason, uint64_t now_ns)
{
    sched->stats.finished[reason]++;
    if (reason != RESULT_FINISH_CANCEL) {
        backlog_note_output(&sched->backlog, req->token_count - req->admit.output_start);
    }
    struct engine_event event = {.kind = ENGINE_EVENT_FINISHED, .reason = reason};
    end(sched, req, &event, now_ns);
}

struct req *sched_find_sequence(const struct sched *sched, uint64_t seq_id)
{
    uint32_t slot = (uint32_t)(seq_id % SCHED_MAX_SLOTS);
    if (slot >= sched->limits.slots) {
        return NULL;
    }
    struct req *req = sched->session.by_slot[slot];
    return req != NULL && req->admit.seq_id == seq_id ? req : NULL;
}

/* Out of the running: the slot is free. */
static void vacate(struct sched *sched, struct req *req)
{
    struct sched_session *session = &sched->session;
    uint32_t slot = (uint32_t)(req->admit.seq_id % SCHED_MAX_SLOTS);
    session->by_slot[slot] = NULL;
    session->free_slots[session->free_slot_count++] = slot;
    req_list_remove(&sched->running, req);
}

void sched_requeue(struct sched *sched, struct req *req)
{
    vacate(sched, req);
    sched->live_running--;
    req_requeue(req);
    queue_return(&sched->queue, req);
}

void sched_forget(struct sched *sched, struct req *req)
{
    assert(req->state == REQ_STATE_GONE);
    vacate(sched, req);
    queue_forget(&sched->queue, req);
    req_destroy(req);
}

void sched_leave(struct sched *sched, struct req *req, uint64_t now_ns)
{
    const struct sched_session *session = &sched->session;
    assert(req->state == REQ_STATE_ENDED || req->state == REQ_STATE_PREEMPTED);
    bool is_answered =
        session->step_count == 0 || req->last_step_seq < session->steps[session->step_head].msg_seq;
    if (!is_answered) {
        return;
    }
    struct plan_message message = {.type = PLAN_RELEASE, .as.release.seq_id = req->admit.seq_id};
    uint64_t msg_seq = sched_send(sched, &message, now_ns);
    if (req->state == REQ_STATE_PREEMPTED) {
        sched->session.release_seq = msg_seq;
        sched_requeue(sched, req);
        return;
    }
    req_step(req, REQ_EVENT_RELEASE);
    sched_forget(sched, req);
}

/* A waiting request that will never reach the worker. */
static void drop_waiting(struct sched *sched, struct req *req)
{
    req_step(req, REQ_EVENT_DROP);
    queue_forget(&sched->queue, req);
    req_destroy(req);
}

enum err_code sched_submit(struct sched *sched, struct req *req, uint64_t now_ns, struct err *err)
{
    assert(req->request_id != 0 && table_find(sched, req->request_id) == NULL);
    sched->stats.arrived++;
    req->arrival_seq = ++sched->last_arrival_seq;
    req->arrival_ns = now_ns;
    struct sched_gate gate;
    sched_get_gate(sched, &gate);
    enum err_code code = sched_gate_check(&gate, &req->admit, now_ns, err);
    if (code == ERR_OK && !queue_try_insert(&sched->queue, req)) {
        code = err_set(err, ERR_BUSY, "%u requests wait already", sched->queue.max_requests);
    }
    if (code != ERR_OK) {
        sched->stats.rejected++;
        return code;
    }
    table_insert(sched, req);
    return ERR_OK;
}

void sched_cancel_sequence(struct sched *sched, const struct req *req, uint64_t now_ns)
{
    if (req->state == REQ_STATE_ADMITTING) {
        return; /* CANCEL jumps the queue: before the ADMIT it would find nothing; RELEASE is enough */
    }
    struct plan_message message = {.type = PLAN_CANCEL, .as.cancel.seq_id = req->admit.seq_id};
    (void)sched_send(sched, &message, now_ns); /* its number is of no use */
}

void sched_cancel(struct sched *sched, uint64_t request_id, uint64_t now_ns)
{
    struct req *req = table_find(sched, request_id);
    if (req == NULL) {
        return;
    }
    if (req->state == REQ_STATE_QUEUED) {
        queue_remove(&sched->queue, req);
        sched_finish(sched, req, RESULT_FINISH_CANCEL, now_ns);
        drop_waiting(sched, req);
        return;
    }
    sched_cancel_sequence(sched, req, now_ns);
    sched_finish(sched, req, RESULT_FINISH_CANCEL, now_ns);
    sched_leave(sched, req, now_ns);
}

uint64_t sched_ping(struct sched *sched, uint64_t now_ns)
{
    struct sched_session *session = &sched->session;
    struct account_need waiting = sched_waiting_need(sched);
    struct plan_message ping = {.type = PLAN_PING,
                                .as.ping = {.nonce = now_ns,
                                            .waiting_local_pages = waiting.local_pages,
                                            .waiting_global_pages = waiting.global_pages,
                                            .most_steps = sched->limits.depth,
                                            .is_leaving = sched->is_leaving}};
    session->told_waiting = waiting;
    session->told_leaving = sched->is_leaving;
    session->told_ns = now_ns;
    session->tell_ns = UINT64_MAX;
    return sched_send(sched, &ping, now_ns);
}

static void open_session(struct sched *sched, uint64_t epoch, uint64_t now_ns)
{
    const struct sched_limits *limits = &sched->limits;
    struct sched_session *session = &sched->session;
    *session = (struct sched_session){
        .epoch = epoch, .next_msg_seq = 1, .next_serial = 1, .heard_ns = now_ns};
    session->by_slot = mem_zalloc(limits->slots, sizeof(struct req *));
    session->free_slots = mem_zalloc(limits->slots, sizeof(uint32_t));
    session->free_slot_count = limits->slots;
    for (uint32_t i = 0; i < limits->slots; i++) {
        session->free_slots[i] = limits->slots - 1 - i;
    }
    for (uint32_t i = 0; i < limits->depth; i++) {
        session->steps[i].rows = mem_zalloc(limits->max_step_rows, sizeof(struct sched_row));
    }
    session->claim_cap = 4 * limits->slots + 2 * SCHED_MAX_DEPTH;
    session->claims = mem_zalloc(session->claim_cap, sizeof(struct sched_claim));
    session->wire_rows = mem_zalloc(limits->max_step_rows, sizeof(struct wire_row));
}

enum err_code sched_attach(struct sched *sched, const struct hello_welcome *welcome, uint64_t epoch,
                           uint64_t now_ns, struct err *err)
{
    assert(!sched->is_attached);
    enum err_code code = sched_read_limits(&sched->options, welcome, &sched->limits, err);
    if (code != ERR_OK) {
        return code;
    }
    open_session(sched, epoch, now_ns);
    sched->pace = (struct pace){0};
    sched->is_attached = true;
    sched->was_attached = true;
    struct sched_gate gate;
    sched_get_gate(sched, &gate);
    gate.max_queue = UINT32_MAX; /* those who wait have their place */
    for (struct req *req = sched->queue.waiting.first, *next; req != NULL; req = next) {
        next = req->next;
        struct err misfit;
        enum err_code misfit_code = sched_gate_check(&gate, &req->admit, now_ns, &misfit);
        if (misfit_code != ERR_OK) {
            queue_remove(&sched->queue, req);
            sched_fail(sched, req, misfit_code, misfit.message, now_ns);
            drop_waiting(sched, req);
        }
    }
    /* The PONG brings the first figures: nothing is admitted before. */
    (void)sched_ping(sched, now_ns); /* its number is of no use */
    return ERR_OK;
}

void sched_detach(struct sched *sched, const char *text, uint64_t now_ns)
{
    assert(sched->is_attached);
    sched->is_attached = false;
    sched->lost_ns = now_ns;
    while (sched->running.first != NULL) {
        struct req *req = sched->running.first;
        if (req_is_live(req)) {
            sched_fail(sched, req, ERR_CLOSED, text, now_ns);
        }
        req_step(req, REQ_EVENT_LOST);
        sched_forget(sched, req);
    }
    sched->soonest_ns = UINT64_MAX;
    close_session(sched);
}

static void fail_all_waiting(struct sched *sched, const char *text, uint64_t now_ns)
{
    while (sched->queue.waiting.first != NULL) {
        struct req *req = sched->queue.waiting.first;
        queue_remove(&sched->queue, req);
        sched_fail(sched, req, ERR_CLOSED, text, now_ns);
        drop_waiting(sched, req);
    }
}

void sched_destroy(struct sched *sched, uint64_t now_ns)
{
    if (sched == NULL) {
        return;
    }
    if (sched->is_attached) {
        sched_detach(sched, "the server is stopping", now_ns);
    }
    fail_all_waiting(sched, "the server is stopping", now_ns);
    queue_fini(&sched->queue);
    mem_free(sched->buckets);
    mem_free(sched);
}

static void end_late_waiting(struct sched *sched, uint64_t now_ns)
{
    struct req *late = queue_take_expired(&sched->queue, now_ns);
    while (late != NULL) {
        sched_fail(sched, late, ERR_TIMEOUT, "the deadline passed while the request waited",
                   now_ns);
        drop_waiting(sched, late);
        late = queue_take_expired(&sched->queue, now_ns);
    }
}

static void end_late_running(struct sched *sched, uint64_t now_ns)
{
    if (now_ns < sched->soonest_ns) {
        return;
    }
    sched->soonest_ns = UINT64_MAX;
    struct req *next;
    for (struct req *req = sched->running.first; req != NULL; req = next) {
        next = req->next;
        if (req->deadline_ns == 0 || !req_is_live(req)) {
            continue;
        }
        if (req->deadline_ns > now_ns) {
            sched->soonest_ns =
                req->deadline_ns < sched->soonest_ns ? req->deadline_ns : sched->soonest_ns;
            continue;
        }
        sched_cancel_sequence(sched, req, now_ns);
        sched_fail(sched, req, ERR_TIMEOUT, "the deadline passed while the request ran", now_ns);
        sched_leave(sched, req, now_ns);
    }
}

void sched_set_leaving(struct sched *sched)
{
    sched->is_leaving = true;
}

/* The worker divides its pages between two sessions: it has to know what waits here. */
static void watch_waiting(struct sched *sched)
{
    struct sched_session *session = &sched->session;
    struct account_need need = sched_waiting_need(sched);
    bool is_told = need.local_pages == session->told_waiting.local_pages &&
                   need.global_pages == session->told_waiting.global_pages &&
                   session->told_leaving == sched->is_leaving;
    session->tell_ns = is_told ? UINT64_MAX : session->told_ns + TELL_NS;
}

void sched_tick(struct sched *sched, uint64_t now_ns)
{
    end_late_waiting(sched, now_ns);
    if (!sched->is_attached) {
        if (now_ns >= sched_waiting_until_ns(sched)) {
            fail_all_waiting(sched, "no worker came back in time", now_ns);
        }
        return;
    }
    end_late_running(sched, now_ns);
    sched_plan(sched, now_ns);
    watch_waiting(sched);
    if (now_ns - sched->session.sent_ns >= sched->limits.ping_ns ||
        now_ns >= sched->session.tell_ns) {
        (void)sched_ping(sched, now_ns); /* its number is of no use */
    }
}

uint64_t sched_wake_ns(const struct sched *sched)
{
    uint64_t wake_ns = sched->queue.waiting.count > 0 ? sched->queue.soonest_ns : UINT64_MAX;
    uint64_t other_ns = UINT64_MAX;
    if (sched->is_attached) {
        wake_ns = sched->soonest_ns < wake_ns ? sched->soonest_ns : wake_ns;
        other_ns = sched->session.sent_ns + sched->limits.ping_ns;
        other_ns = sched->session.tell_ns < other_ns ? sched->session.tell_ns : other_ns;
    } else if (sched->queue.waiting.count > 0) {
        other_ns = sched_waiting_until_ns(sched);
    }
    return other_ns < wake_ns ? other_ns : wake_ns;
}

bool sched_is_attached(const struct sched *sched)
{
    return sched->is_attached;
}

uint32_t sched_outstanding_steps(const struct sched *sched)
{
    return sched->session.step_count;
}

uint32_t sched_live_running(const struct sched *sched)
{
    return sched->live_running;
}

uint64_t sched_heard_ns(const struct sched *sched)
{
    return sched->session.heard_ns;
}

uint64_t sched_alive_ns(const struct sched *sched)
{
    return sched->session.alive_ns;
}

void sched_get_stats(const struct sched *sched, struct sched_stats *out_stats)
{
    *out_stats = sched->stats;
    /* the list has those too whose first ADMIT found no slot */
    for (const struct req *req = sched->queue.returned.first; req != NULL;
         req = req->key_link.next) {
        out_stats->preempted_waiting += req->was_admitted;
    }
}

void sched_get_figures(const struct sched *sched, struct result_figures *out_figures)
{
    *out_figures = sched->session.figures;
}

static bool check_claims(const struct sched_session *session)
{
    struct account_need sum = {0};
    for (uint32_t i = 0; i < session->claim_count; i++) {
        const struct sched_claim *claim =
            &session->claims[(session->claim_head + i) % session->claim_cap];
        sum.local_pages += claim->need.local_pages;
        sum.global_pages += claim->need.global_pages;
    }
    return sum.local_pages == session->claimed.local_pages &&
           sum.global_pages == session->claimed.global_pages;
}

static bool check_running(const struct sched *sched, const struct req *req)
{
    bool is_in_order = req->next == NULL || !sched_goes_before(req, req->next);
    return req_check(req) && is_in_order && req->key != NULL &&
           sched_find_sequence(sched, req->admit.seq_id) == req &&
           account_check(&req->account, &sched->limits.geometry) &&
           (!req_is_live(req) || req->account.local.resident_pages <= req->peak.local_pages) &&
           (req->deadline_ns == 0 || req->deadline_ns >= sched->soonest_ns || !req_is_live(req));
}

bool sched_check(const struct sched *sched)
{
    uint32_t live = 0;
    for (const struct req *req = sched->running.first; req != NULL; req = req->next) {
        if (!check_running(sched, req)) {
            return false;
        }
        live += req_is_live(req);
    }
    for (const struct req *req = sched->queue.waiting.first; req != NULL; req = req->next) {
        if (req->state != REQ_STATE_QUEUED || !req_check(req)) {
            return false;
        }
    }
    const struct sched_stats *stats = &sched->stats;
    uint64_t ended = stats->rejected + stats->failed;
    for (uint32_t i = 0; i <= RESULT_FINISH_CANCEL; i++) {
        ended += stats->finished[i];
    }
    return live == sched->live_running && check_claims(&sched->session) &&
           queue_check(&sched->queue) &&
           stats->arrived == ended + live + sched->queue.waiting.count;
}
