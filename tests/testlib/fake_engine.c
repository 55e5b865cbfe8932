#include "tests/testlib/fake_engine.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "frontend/constraint.h"
#include "frontend/engine.h"

struct fake_request {
    struct fake_request *next;
    struct engine_request request;
    uint64_t id;
    uint32_t *prompt; /* owned */
    uint32_t *stop_ids;
    uint32_t emitted;
    bool is_admitted;
    bool is_cancelled;
};

struct engine {
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    pthread_t thread;
    struct fake_request *first;
    uint64_t next_id;
    uint64_t created_ns;
    bool is_ending;
    struct engine_status status;
    uint64_t step_us;
    uint64_t slots;
    uint64_t fail_after;
    uint64_t ready_ms;
    uint64_t max_queue;
    int cancels_fd;
};

static const char *setting(const char *run_dir, const char *name)
{
    size_t name_bytes = strlen(name);
    for (const char *at = strpbrk(run_dir, "?&"); at; at = strpbrk(at + 1, "?&")) {
        if (strncmp(at + 1, name, name_bytes) == 0 && at[1 + name_bytes] == '=') {
            return at + name_bytes + 2;
        }
    }
    return NULL;
}

static uint64_t number(const char *run_dir, const char *name, uint64_t default_value)
{
    const char *text = setting(run_dir, name);
    return text ? strtoull(text, NULL, 0) : default_value;
}

static void send_event(struct fake_request *request, enum engine_event_kind kind,
                       struct engine_event event)
{
    event.kind = kind;
    event.request_id = request->id;
    event.time_ns = clock_now_ns();
    request->request.on_event(request->request.owner, &event);
}

/* The next token: the prompt again, then a stop id; without one it goes round. */
static uint32_t next_token(const struct fake_request *request, bool *out_is_stop)
{
    const struct plan_admit *admit = &request->request.admit;
    uint32_t round = admit->prompt.count > 1 ? admit->prompt.count - 1 : 1;
    *out_is_stop = admit->stop_ids.count > 0 && request->emitted >= round &&
                   request->emitted >= admit->min_tokens;
    if (*out_is_stop) {
        return request->stop_ids[0];
    }
    return request->prompt[admit->prompt.count > 1 ? 1 + request->emitted % round : 0];
}

/* True when the request has had its last event. */
static bool step_request(struct engine *engine, struct fake_request *request)
{
    const struct plan_admit *admit = &request->request.admit;
    if (request->is_cancelled) {
        send_event(request, ENGINE_EVENT_FINISHED,
                   (struct engine_event){.reason = RESULT_FINISH_CANCEL});
        return true;
    }
    if (!request->is_admitted) {
        request->is_admitted = true;
        send_event(request, ENGINE_EVENT_ADMITTED, (struct engine_event){0});
        return false;
    }
    if (engine->fail_after > 0 && request->emitted >= engine->fail_after) {
        send_event(request, ENGINE_EVENT_FAILED,
                   (struct engine_event){.code = ERR_DEVICE, .text = "the device is lost"});
        engine->status.requests_failed++;
        return true;
    }
    if (request->request.deadline_ns != 0 && clock_now_ns() >= request->request.deadline_ns) {
        send_event(request, ENGINE_EVENT_FAILED,
                   (struct engine_event){.code = ERR_TIMEOUT,
                                         .text = "the deadline passed while the request ran"});
        engine->status.requests_failed++;
        return true;
    }
    bool is_stop = false;
    uint32_t token = next_token(request, &is_stop);
    uint32_t pair_count = admit->logprobs > 0 ? admit->logprobs - 1 : 0;
    uint32_t ids[PLAN_MAX_LOGPROBS];
    float logprobs[PLAN_MAX_LOGPROBS];
    for (uint32_t i = 0; i < pair_count; i++) {
        ids[i] = token + i;
        logprobs[i] = -0.25F * (float)(i + 1);
    }
    send_event(request, ENGINE_EVENT_TOKEN,
               (struct engine_event){.token = token,
                                     .position = admit->prompt.count + request->emitted,
                                     .logprob = -0.25F,
                                     .rank = admit->logprobs > 0,
                                     .pair_count = pair_count,
                                     .ids = ids,
                                     .logprobs = logprobs});
    request->emitted++;
    bool is_full = admit->prompt.count + request->emitted >= admit->max_total;
    if (!is_stop && !is_full) {
        return false;
    }
    enum result_finish reason = is_stop ? RESULT_FINISH_STOP : RESULT_FINISH_LENGTH;
    send_event(request, ENGINE_EVENT_FINISHED, (struct engine_event){.reason = reason});
    engine->status.requests_finished[reason]++;
    return true;
}

static void free_request(struct fake_request *request)
{
    constraint_release(request->request.constraint);
    mem_free(request->prompt);
    mem_free(request->stop_ids);
    mem_free(request);
}

/* The lock is held. */
static void step(struct engine *engine)
{
    uint64_t running = 0;
    struct fake_request **slot = &engine->first;
    while (*slot && running < engine->slots) {
        struct fake_request *request = *slot;
        running++;
        if (step_request(engine, request)) {
            *slot = request->next;
            free_request(request);
        } else {
            slot = &request->next;
        }
    }
    engine->status.steps++;
}

static void fail_all(struct engine *engine)
{
    while (engine->first) {
        struct fake_request *request = engine->first;
        engine->first = request->next;
        send_event(request, ENGINE_EVENT_FAILED,
                   (struct engine_event){.code = ERR_CLOSED, .text = "the engine has ended"});
        free_request(request);
    }
}

static void *run_steps(void *argument)
{
    struct engine *engine = argument;
    (void)pthread_mutex_lock(&engine->lock);
    while (!engine->is_ending) {
        if (!engine->first) {
            (void)pthread_cond_wait(&engine->wake, &engine->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&engine->lock);
        (void)usleep((useconds_t)engine->step_us); /* the time a step takes */
        (void)pthread_mutex_lock(&engine->lock);
        step(engine);
    }
    fail_all(engine);
    (void)pthread_mutex_unlock(&engine->lock);
    return NULL;
}

enum err_code engine_create(const struct engine_options *options, struct engine **out_engine,
                            struct err *err)
{
    const char *run_dir = options->run_dir;
    struct engine *engine = mem_zalloc(1, sizeof(*engine));
    engine->step_us = number(run_dir, "step_us", 1000);
    engine->slots = number(run_dir, "slots", 64);
    engine->fail_after = number(run_dir, "fail_after", 0);
    engine->ready_ms = number(run_dir, "ready_ms", 0);
    engine->max_queue = options->max_queue;
    engine->created_ns = clock_now_ns();
    engine->next_id = 1;
    engine->cancels_fd = -1;
    struct hello_welcome *welcome = &engine->status.welcome;
    welcome->instance_id = 77;
    welcome->state = HELLO_STATE_READY;
    welcome->vocab_tokens = (uint32_t)number(run_dir, "vocab", 2048);
    welcome->max_context_tokens = (uint32_t)number(run_dir, "context", 8192);
    engine->status.pool_tokens = welcome->max_context_tokens;
    const char *hash = setting(run_dir, "hash");
    welcome->tokenizer_hash = hash ? strtoull(hash, NULL, 16) : 0;
    welcome->local_pages = 100;
    welcome->global_pages = 100;
    engine->status.figures.local_quota_left_pages = 100;
    engine->status.figures.global_quota_left_pages = 100;
    const char *cancels = setting(run_dir, "cancels");
    if (cancels) {
        char path[256];
        (void)snprintf(path, sizeof(path), "%.*s", (int)strcspn(cancels, "&"), cancels);
        engine->cancels_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    (void)pthread_mutex_init(&engine->lock, NULL);
    (void)pthread_cond_init(&engine->wake, NULL);
    if (pthread_create(&engine->thread, NULL, run_steps, engine) != 0) {
        mem_free(engine);
        return err_set(err, ERR_SYSTEM, "no thread");
    }
    *out_engine = engine;
    return ERR_OK;
}

void engine_destroy(struct engine *engine)
{
    if (!engine) {
        return;
    }
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_ending = true;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
    (void)pthread_mutex_destroy(&engine->lock);
    (void)pthread_cond_destroy(&engine->wake);
    if (engine->cancels_fd >= 0) {
        (void)close(engine->cancels_fd);
    }
    mem_free(engine);
}

static uint32_t *copy_ids(const struct wire_u32_array *ids)
{
    uint32_t *copy = mem_zalloc(ids->count + 1, sizeof(*copy));
    memcpy(copy, ids->at, ids->count * sizeof(*copy));
    return copy;
}

enum err_code engine_submit(struct engine *engine, const struct engine_request *request,
                            uint64_t *out_request_id, struct err *err)
{
    struct fake_request *own = mem_zalloc(1, sizeof(*own));
    own->request = *request;
    own->prompt = copy_ids(&request->admit.prompt);
    own->stop_ids = copy_ids(&request->admit.stop_ids);
    (void)pthread_mutex_lock(&engine->lock);
    struct fake_request **last = &engine->first;
    uint64_t waiting = 0;
    while (*last) {
        waiting += !(*last)->is_admitted;
        last = &(*last)->next;
    }
    if (waiting >= engine->max_queue) {
        (void)pthread_mutex_unlock(&engine->lock);
        free_request(own);
        return err_set(err, ERR_BUSY, "%llu requests are waiting", (unsigned long long)waiting);
    }
    own->id = engine->next_id++;
    *out_request_id = own->id;
    *last = own;
    engine->status.requests_arrived++;
    (void)pthread_cond_signal(&engine->wake);
    (void)pthread_mutex_unlock(&engine->lock);
    return ERR_OK;
}

void engine_leave(struct engine *engine)
{
    (void)engine; /* there is no worker that would have to know */
}

void engine_cancel(struct engine *engine, uint64_t request_id)
{
    (void)pthread_mutex_lock(&engine->lock);
    for (struct fake_request *request = engine->first; request; request = request->next) {
        if (request->id != request_id || request->is_cancelled) {
            continue;
        }
        request->is_cancelled = true;
        uint32_t count = request->request.admit.prompt.count;
        struct fake_cancel record = {request->prompt[count - 1], clock_now_ns()};
        if (engine->cancels_fd >= 0 &&
            write(engine->cancels_fd, &record, sizeof(record)) != (ssize_t)sizeof(record)) {
            abort();
        }
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

uint64_t engine_reset_cache(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    uint64_t ticket = ++engine->status.cache_resets_done;
    (void)pthread_mutex_unlock(&engine->lock);
    return ticket;
}

void engine_get_status(struct engine *engine, struct engine_status *out_status)
{
    (void)pthread_mutex_lock(&engine->lock);
    bool is_up = clock_now_ns() - engine->created_ns >= engine->ready_ms * CLOCK_NS_PER_MS;
    engine->status.is_attached = is_up;
    engine->status.is_ready = is_up;
    engine->status.waiting_requests = 0;
    engine->status.running_requests = 0;
    for (struct fake_request *request = engine->first; request; request = request->next) {
        engine->status.running_requests += request->is_admitted;
        engine->status.waiting_requests += !request->is_admitted;
    }
    *out_status = engine->status;
    (void)pthread_mutex_unlock(&engine->lock);
}

uint32_t engine_requests_that_fit(struct engine *engine, uint32_t total_tokens)
{
    (void)engine;
    return total_tokens == 0 ? 0 : 131072 / total_tokens;
}
