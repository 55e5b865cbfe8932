/* The engine thread: it alone touches scheduler, link and drain.  Other threads leave submits and
 * cancels in a mailbox and wake it; it leaves a snapshot for them.  Attached it sleeps on the ring's
 * doorbell, else on a condition. */
#include "frontend/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/constraint.h"
#include "frontend/drain.h"
#include "frontend/link.h"
#include "frontend/link_stats.h"
#include "frontend/scheduler.h"

#define DETACHED_WAIT_MS 30000
#define READY_NS         (2 * CLOCK_NS_PER_SEC) /* a worker heard from this recently is ready */
#define SPIN_NS          20000 /* while steps run: shorter than a futex sleep and wake */
#define RECORD_BATCH     4096  /* records before submits are looked at again */
#define MAX_TEXTS        64    /* distinct names of models and backends ever told to callers */

/* A submit (req) or a cancel (request_id). */
struct mail {
    struct mail *next;
    struct req *req; /* owned; null for a cancel */
    uint64_t request_id;
};

struct engine {
    pthread_t thread;
    bool has_thread;

    /* engine thread only */
    struct sched *sched;
    struct link *link;
    struct link_stats *worker_stats;
    uint32_t *mask_words; /* owned; [mask_word_count] */
    uint32_t mask_word_count;
    struct drain drain; /* valid while is_draining */
    bool is_draining;
    uint64_t stale_before;   /* stale records of sessions that have ended */
    uint64_t records_before; /* and all of theirs */
    uint64_t silence_ns;     /* an attached worker silent for so long is lost */
    uint64_t attaches;
    struct hello_welcome welcome; /* texts are in texts */
    char *texts[MAX_TEXTS];       /* owned; callers may hold them until engine_destroy */

    /* guarded by mutex: everything below */
    pthread_mutex_t mutex;
    pthread_cond_t cond;   /* has_mail, is_stopping or is_woken while there is no ring */
    struct drain *wake_at; /* whose sleep a wake ends; null: the condition's */
    bool is_woken;
    bool is_stopping;
    bool is_leaving;
    uint64_t resets_asked;   /* the last ticket */
    uint64_t resets_taken;   /* of those, by the engine thread */
    struct mail *mail_first; /* owned */
    struct mail *mail_last;
    uint32_t mail_submits;
    uint64_t next_request_id;
    uint64_t rejected_here; /* by engine_submit */
    struct sched_gate gate;
    struct engine_status status; /* without mail and rejected_here */
    uint64_t alive_ns;
};

static void wake_locked(struct engine *engine)
{
    engine->is_woken = true;
    if (engine->wake_at != NULL) {
        drain_wake(engine->wake_at);
    } else {
        (void)pthread_cond_signal(&engine->cond); /* cannot fail */
    }
}

static void on_link_wake(void *owner)
{
    struct engine *engine = owner;
    (void)pthread_mutex_lock(&engine->mutex);
    wake_locked(engine);
    (void)pthread_mutex_unlock(&engine->mutex);
}

static void on_send(void *owner, const struct plan_message *message)
{
    struct engine *engine = owner;
    link_send(engine->link, message);
}

/* Engine thread, attached. */
static void on_mask(void *owner, const struct req *req, uint32_t lane)
{
    struct engine *engine = owner;
    const struct mask_area *area = &link_session(engine->link)->mask;
    if (engine->mask_word_count != area->geometry.words) {
        mem_free(engine->mask_words);
        engine->mask_words = mem_zalloc(area->geometry.words, sizeof(*engine->mask_words));
        engine->mask_word_count = area->geometry.words;
    }
    uint32_t start = req->admit.output_start;
    req->constraint->fill(req->constraint, req->tokens + start, req->token_count - start,
                          engine->mask_words, engine->mask_word_count);
    mask_write(area, lane, req->admit.seq_id, req->next_position, engine->mask_words);
}

static enum err_code on_record(void *owner, const struct result_record *record, struct err *err)
{
    struct engine *engine = owner;
    return sched_record(engine->sched, record, clock_now_ns(), err);
}

/* ---- the engine thread ---- */

/* A copy of text that lives as long as the engine; callers keep such pointers. */
static struct wire_text keep_text(struct engine *engine, const struct wire_text *text)
{
    for (uint32_t i = 0; i < MAX_TEXTS; i++) {
        char **at = &engine->texts[i];
        if (*at == NULL) {
            *at = mem_zalloc((size_t)text->byte_count + 1, 1);
            memcpy(*at, text->at, text->byte_count);
        }
        if (strlen(*at) == text->byte_count && memcmp(*at, text->at, text->byte_count) == 0) {
            return (struct wire_text){.at = *at, .byte_count = text->byte_count};
        }
    }
    return (struct wire_text){.at = "", .byte_count = 0}; /* MAX_TEXTS names in one life */
}

static void take_welcome(struct engine *engine)
{
    engine->welcome = *link_welcome(engine->link);
    engine->welcome.model_id = keep_text(engine, &engine->welcome.model_id);
    engine->welcome.backend = keep_text(engine, &engine->welcome.backend);
}

static void set_wake_target(struct engine *engine, struct drain *drain)
{
    (void)pthread_mutex_lock(&engine->mutex);
    engine->wake_at = drain;
    if (drain != NULL && engine->is_woken) {
        drain_wake(drain); /* the wake that went to the condition */
    }
    (void)pthread_mutex_unlock(&engine->mutex);
}

static void attach(struct engine *engine, uint64_t now_ns)
{
    const struct link_session *session = link_session(engine->link);
    const struct hello_welcome *welcome = &engine->welcome;
    struct err err;
    enum err_code code =
        drain_init(&engine->drain, session->segment, session->ring_bytes, session->epoch, &err);
    if (code == ERR_OK) {
        code = sched_attach(engine->sched, welcome, session->epoch, now_ns, &err);
    }
    if (code != ERR_OK) {
        link_drop(engine->link, err.message);
        return;
    }
    engine->is_draining = true;
    engine->attaches++;
    engine->silence_ns = welcome->session_timeout_ms * CLOCK_NS_PER_MS;
    set_wake_target(engine, &engine->drain);
    char quoted[2 * ERR_MESSAGE_BYTES]; /* the texts that are kept end with a zero */
    log_info("engine", "attached", "instance=%016llx epoch=%llu model=%s backend=%s slots=%u",
             (unsigned long long)welcome->instance_id, (unsigned long long)session->epoch,
             log_quote(welcome->model_id.at, quoted, sizeof(quoted)), welcome->backend.at,
             welcome->slots);
}

static void run_drain(struct engine *engine)
{
    struct err err;
    if (!engine->is_draining) {
        return;
    }
    if (drain_run(&engine->drain, RECORD_BATCH, on_record, engine, &err) != ERR_OK) {
        link_drop(engine->link, err.message);
    }
}

/* Ahead of the failures: who asks again upon one is told that the worker is gone. */
static void publish_lost(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    engine->status.is_attached = false;
    (void)pthread_mutex_unlock(&engine->mutex);
}

static void detach(struct engine *engine, uint64_t now_ns)
{
    char quoted[2 * ERR_MESSAGE_BYTES];
    const char *why = link_lost_text(engine->link);
    log_warn("engine", "worker_lost", "why=%s", log_quote(why, quoted, sizeof(quoted)));
    run_drain(engine); /* what it said last still counts */
    set_wake_target(engine, NULL);
    if (engine->is_draining) {
        engine->is_draining = false;
        engine->stale_before += engine->drain.stale_count;
        engine->records_before += engine->drain.record_count;
        publish_lost(engine);
        sched_detach(engine->sched, why, now_ns);
    }
    link_detach(engine->link, now_ns);
}

static void poll_link(struct engine *engine)
{
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        switch (link_poll(engine->link, now_ns)) {
        case LINK_CHANGE_NONE: return;
        case LINK_CHANGE_WELCOME: take_welcome(engine); break;
        case LINK_CHANGE_ATTACHED: attach(engine, now_ns); break;
        case LINK_CHANGE_LOST: detach(engine, now_ns); break;
        }
    }
}

static void fail_unsubmitted(struct req *req, const struct err *why, uint64_t now_ns)
{
    struct engine_event event = {.kind = ENGINE_EVENT_FAILED,
                                 .request_id = req->request_id,
                                 .time_ns = now_ns,
                                 .code = why->code,
                                 .text = why->message};
    req_emit(req, &event);
    req_destroy(req);
}

/* Oldest first; the caller frees. */
static struct mail *take_mail(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    struct mail *mail = engine->mail_first;
    engine->gate.waiting += engine->mail_submits; /* until publish counts them */
    engine->status.requests_arrived += engine->mail_submits;
    engine->status.waiting_requests += engine->mail_submits;
    engine->mail_submits = 0;
    engine->mail_first = NULL;
    engine->mail_last = NULL;
    engine->is_woken = false;
    if (engine->is_leaving) {
        sched_set_leaving(engine->sched);
    }
    if (engine->resets_asked > engine->resets_taken) {
        engine->resets_taken = engine->resets_asked;
        link_stats_reset_cache(engine->worker_stats, engine->resets_taken);
    }
    (void)pthread_mutex_unlock(&engine->mutex);
    return mail;
}

static void run_mail(struct engine *engine)
{
    struct mail *mail = take_mail(engine);
    while (mail != NULL) {
        struct mail *next = mail->next;
        uint64_t now_ns = clock_now_ns();
        struct err err;
        if (mail->req == NULL) {
            sched_cancel(engine->sched, mail->request_id, now_ns);
        } else if (sched_submit(engine->sched, mail->req, now_ns, &err) != ERR_OK) {
            fail_unsubmitted(mail->req, &err, now_ns); /* the worker left since engine_submit */
        }
        mem_free(mail);
        mail = next;
    }
}

static void publish(struct engine *engine)
{
    struct sched_stats stats;
    struct sched_gate gate;
    sched_get_stats(engine->sched, &stats);
    sched_get_gate(engine->sched, &gate);
    struct link_sent sent = link_sent(engine->link);
    struct engine_status status = {
        .is_attached = sched_is_attached(engine->sched),
        .welcome = engine->welcome,
        .pool_tokens = gate.limits.pool_tokens,
        .waiting_requests = gate.waiting,
        .running_requests = sched_live_running(engine->sched),
        .requests_arrived = stats.arrived,
        .requests_failed = stats.failed,
        .requests_rejected = stats.rejected,
        .prompt_tokens = stats.prompt_tokens,
        .output_tokens = stats.output_tokens,
        .steps = stats.steps,
        .step_prompt_tokens = stats.step_prompt_tokens,
        .step_decode_rows = stats.step_decode_rows,
        .step_device_ns = stats.step_device_ns,
        .step_span_ns = stats.step_span_ns,
        .plan_messages = sent.messages,
        .plan_bytes = sent.bytes,
        .records = engine->records_before + (engine->is_draining ? engine->drain.record_count : 0),
        .plans_refused = stats.plans_refused,
        .retry_after_s = gate.retry_after_s,
        .preemptions = stats.preemptions,
        .preempted_waiting = stats.preempted_waiting,
        .records_stale =
            engine->stale_before + (engine->is_draining ? engine->drain.stale_count : 0),
        .worker_attaches = engine->attaches,
        .misfit_lasts = link_misfit_lasts(engine->link),
    };
    (void)snprintf(status.misfit, sizeof(status.misfit), "%s",
                   link_misfit_text(engine->link)); /* as long as an error's text */
    sched_get_figures(engine->sched, &status.figures);
    status.cache_resets_done = link_stats_resets_done(engine->worker_stats);
    status.worker_heard_ns = link_stats_get(engine->worker_stats, &status.worker);
    for (uint32_t i = 0; i <= RESULT_FINISH_CANCEL; i++) {
        status.requests_finished[i] = stats.finished[i];
    }
    (void)pthread_mutex_lock(&engine->mutex);
    engine->gate = gate;
    engine->status = status;
    engine->alive_ns = sched_alive_ns(engine->sched);
    (void)pthread_mutex_unlock(&engine->mutex);
}

/* A worker that says nothing at all is as good as gone. */
static uint64_t check_silence(struct engine *engine, uint64_t now_ns)
{
    if (!engine->is_draining || engine->silence_ns == 0) {
        return UINT64_MAX;
    }
    uint64_t end_ns = sched_heard_ns(engine->sched) + engine->silence_ns;
    if (now_ns >= end_ns) {
        link_drop(engine->link, "the worker has not answered within the session timeout");
        return 0;
    }
    return end_ns;
}

static void sleep_until(struct engine *engine, uint64_t deadline_ns)
{
    if (engine->is_draining) {
        bool steps_run = sched_outstanding_steps(engine->sched) > 0;
        drain_wait(&engine->drain, steps_run ? SPIN_NS : 0, deadline_ns);
        return;
    }
    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_SEC),
                                .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_SEC)};
    (void)pthread_mutex_lock(&engine->mutex);
    int result = 0;
    while (!engine->is_woken && !engine->is_stopping && result != ETIMEDOUT) {
        result = deadline_ns == UINT64_MAX
                     ? pthread_cond_wait(&engine->cond, &engine->mutex)
                     : pthread_cond_timedwait(&engine->cond, &engine->mutex, &deadline);
    }
    (void)pthread_mutex_unlock(&engine->mutex);
}

static bool is_stopping(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    bool stops = engine->is_stopping;
    (void)pthread_mutex_unlock(&engine->mutex);
    return stops;
}

static void *run(void *argument)
{
    struct engine *engine = argument;
    while (!is_stopping(engine)) {
        run_drain(engine);
        run_mail(engine);
        poll_link(engine);
        uint64_t now_ns = clock_now_ns();
        sched_tick(engine->sched, now_ns);
        uint64_t deadline_ns = check_silence(engine, now_ns);
        link_stats_poll(engine->worker_stats, engine->is_draining, now_ns);
        publish(engine);
        uint64_t stats_ns = link_stats_wake_ns(engine->worker_stats, engine->is_draining);
        uint64_t link_ns = link_wake_ns(engine->link);
        uint64_t sched_ns = sched_wake_ns(engine->sched);
        deadline_ns = link_ns < deadline_ns ? link_ns : deadline_ns;
        deadline_ns = sched_ns < deadline_ns ? sched_ns : deadline_ns;
        deadline_ns = stats_ns < deadline_ns ? stats_ns : deadline_ns;
        if (deadline_ns > now_ns) {
            sleep_until(engine, deadline_ns);
        }
    }
    run_mail(engine);
    set_wake_target(engine, NULL);
    sched_destroy(engine->sched, clock_now_ns()); /* the last events, on this thread */
    return NULL;
}

/* ---- any thread ---- */

static enum err_code start_thread(struct engine *engine, struct err *err)
{
    int result = pthread_create(&engine->thread, NULL, run, engine);
    if (result != 0) {
        return err_errno(err, result, "engine thread");
    }
    engine->has_thread = true;
    return ERR_OK;
}

static void init_locks(struct engine *engine)
{
    pthread_condattr_t attributes;
    (void)pthread_mutex_init(&engine->mutex, NULL); /* these cannot fail on Linux */
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&engine->cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

enum err_code engine_create(const struct engine_options *options, struct engine **out_engine,
                            struct err *err)
{
    struct engine *engine = mem_zalloc(1, sizeof(*engine));
    uint32_t wait_ms =
        options->detached_wait_ms == 0 ? DETACHED_WAIT_MS : options->detached_wait_ms;
    struct sched_options sched_options = {
        .mask = on_mask,
        .max_queue = options->max_queue,
        .max_step_tokens = options->max_step_tokens,
        .itl_target_ns = options->itl_target_ms * CLOCK_NS_PER_MS,
        .pipeline_depth = options->pipeline_depth,
        .detached_wait_ns = wait_ms * CLOCK_NS_PER_MS,
    };
    struct link_options link_options = {
        .run_dir = options->run_dir,
        .name = options->name,
        .tokenizer_hash = options->tokenizer_hash,
        .on_wake = on_link_wake,
        .owner = engine,
    };
    init_locks(engine);
    engine->next_request_id = 1;
    engine->sched = sched_create(&sched_options, on_send, engine);
    engine->welcome.model_id.at = "";
    engine->welcome.backend.at = "";
    sched_get_gate(engine->sched, &engine->gate);
    engine->status.welcome = engine->welcome;
    enum err_code code = link_create(&link_options, &engine->link, err);
    if (code == ERR_OK) {
        code =
            link_stats_create(options->run_dir, on_link_wake, engine, &engine->worker_stats, err);
    }
    if (code == ERR_OK) {
        code = start_thread(engine, err);
    }
    if (code != ERR_OK) {
        sched_destroy(engine->sched, clock_now_ns());
        engine_destroy(engine);
        return code;
    }
    *out_engine = engine;
    return ERR_OK;
}

void engine_destroy(struct engine *engine)
{
    if (engine == NULL) {
        return;
    }
    if (engine->has_thread) {
        (void)pthread_mutex_lock(&engine->mutex);
        engine->is_stopping = true;
        wake_locked(engine);
        (void)pthread_mutex_unlock(&engine->mutex);
        (void)pthread_join(engine->thread, NULL); /* it is joinable: cannot fail */
    }
    struct err stopping;
    (void)err_set(&stopping, ERR_CLOSED, "the server is stopping"); /* told to the owners */
    while (engine->mail_first != NULL) { /* came while the thread ended */
        struct mail *mail = engine->mail_first;
        engine->mail_first = mail->next;
        if (mail->req != NULL) {
            fail_unsubmitted(mail->req, &stopping, clock_now_ns());
        }
        mem_free(mail);
    }
    link_stats_destroy(engine->worker_stats);
    link_destroy(engine->link);
    mem_free(engine->mask_words);
    for (uint32_t i = 0; i < MAX_TEXTS; i++) {
        mem_free(engine->texts[i]);
    }
    (void)pthread_cond_destroy(&engine->cond);
    (void)pthread_mutex_destroy(&engine->mutex);
    mem_free(engine);
}

static void post_locked(struct engine *engine, struct mail *mail)
{
    *(engine->mail_last == NULL ? &engine->mail_first : &engine->mail_last->next) = mail;
    engine->mail_last = mail;
    if (!engine->is_woken) {
        wake_locked(engine);
    }
}

static enum err_code reject(struct engine *engine, enum err_code code)
{
    (void)pthread_mutex_lock(&engine->mutex);
    engine->rejected_here++;
    (void)pthread_mutex_unlock(&engine->mutex);
    return code;
}

enum err_code engine_submit(struct engine *engine, const struct engine_request *request,
                            uint64_t *out_request_id, struct err *err)
{
    (void)pthread_mutex_lock(&engine->mutex);
    struct sched_gate gate = engine->gate;
    gate.waiting += engine->mail_submits;
    (void)pthread_mutex_unlock(&engine->mutex);
    enum err_code code = sched_gate_check(&gate, &request->admit, clock_now_ns(), err);
    struct req *req = NULL;
    if (code == ERR_OK) {
        code = req_create(request, &req, err);
    }
    if (code != ERR_OK) {
        constraint_release(request->constraint);
        return reject(engine, code);
    }
    struct mail *mail = mem_zalloc(1, sizeof(*mail));
    mail->req = req;
    (void)pthread_mutex_lock(&engine->mutex);
    req->request_id = engine->next_request_id++;
    *out_request_id = req->request_id;
    engine->mail_submits++;
    post_locked(engine, mail);
    (void)pthread_mutex_unlock(&engine->mutex);
    return ERR_OK;
}

void engine_cancel(struct engine *engine, uint64_t request_id)
{
    struct mail *mail = mem_zalloc(1, sizeof(*mail));
    mail->request_id = request_id;
    (void)pthread_mutex_lock(&engine->mutex);
    post_locked(engine, mail);
    (void)pthread_mutex_unlock(&engine->mutex);
}

void engine_leave(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    engine->is_leaving = true;
    wake_locked(engine);
    (void)pthread_mutex_unlock(&engine->mutex);
}

uint64_t engine_reset_cache(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->mutex);
    uint64_t ticket = ++engine->resets_asked;
    wake_locked(engine);
    (void)pthread_mutex_unlock(&engine->mutex);
    return ticket;
}

void engine_get_status(struct engine *engine, struct engine_status *out_status)
{
    uint64_t now_ns = clock_now_ns();
    (void)pthread_mutex_lock(&engine->mutex);
    *out_status = engine->status;
    out_status->waiting_requests += engine->mail_submits;
    out_status->requests_arrived += engine->mail_submits + engine->rejected_here;
    out_status->requests_rejected += engine->rejected_here;
    out_status->is_ready =
        out_status->is_attached && engine->alive_ns != 0 && now_ns < engine->alive_ns + READY_NS;
    (void)pthread_mutex_unlock(&engine->mutex);
}

uint32_t engine_requests_that_fit(struct engine *engine, uint32_t total_tokens)
{
    (void)pthread_mutex_lock(&engine->mutex);
    struct sched_limits limits = engine->gate.limits;
    (void)pthread_mutex_unlock(&engine->mutex);
    return sched_requests_that_fit(&limits, total_tokens);
}
