#include "frontend/http_generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <h2o.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/http_generate_internal.h"
#include "frontend/prepare.h"
#include "proto/wire.h"

enum {
    COPY_SLICE_BYTES = 256 << 10, /* some 50 us of the loop thread */
    LARGE_BODY_BYTES = 128 << 10, /* tokenizing takes tens of milliseconds from here */
};

struct http_calls *http_calls_create(struct app *app)
{
    struct http_calls *calls = mem_zalloc(1, sizeof(*calls));
    calls->app = app;
    return calls;
}

void http_calls_destroy(struct http_calls *calls)
{
    mem_free(calls);
}

uint32_t http_calls_count(const struct http_calls *calls)
{
    return calls->count;
}

void http_call_release(struct http_call *call)
{
    if (--call->ref_count > 0) {
        return;
    }
    *call->slot = call->next;
    if (call->next) {
        call->next->slot = call->slot;
    }
    call->calls->count--;
    if (call->has_output) {
        output_fini(&call->output);
    }
    buf_fini(&call->body);
    sse_fini(&call->sse);
    mailbox_fini(&call->mailbox);
    mem_free(call);
}

void http_call_leave_queue(struct http_call *call)
{
    if (!call->is_admitted) {
        call->is_admitted = true;
        call->app->waiting_count--;
    }
}

static void count_outcome(struct http_call *call, enum http_call_outcome outcome)
{
    struct metrics *metrics = &call->app->metrics;
    switch (outcome) {
    case HTTP_CALL_FINISHED: metrics->finished++; break;
    case HTTP_CALL_CANCELLED:
        metrics->cancelled++;
        metrics->success_abort++;
        break;
    case HTTP_CALL_REJECTED: metrics->rejected++; break;
    case HTTP_CALL_FAILED: metrics->failed++; break;
    }
}

void http_call_end(struct http_call *call, enum http_call_outcome outcome, const char *reason)
{
    if (call->has_ended) {
        return;
    }
    call->has_ended = true;
    http_call_leave_queue(call);
    call->app->open_count--;
    count_outcome(call, outcome);
    http_conn_remove_guest(&call->guest);
    atomic_store_explicit(&call->is_unwanted, true, memory_order_relaxed);
    uint64_t now_ns = clock_now_ns();
    char id[HTTP_REQUEST_ID_BYTES + 8];
    log_info(
        "http", "request_ended",
        "req=%s route=%s outcome=%s prompt_tokens=%u output_tokens=%u stream=%d ttft_us=%" PRIu64
        " total_us=%" PRIu64,
        log_quote(call->request_id_text, id, sizeof(id)),
        call->head.route == API_ROUTE_CHAT ? "chat" : "completions", reason,
        call->usage.prompt_tokens, call->usage.output_tokens, call->is_stream,
        call->first_ns ? (call->first_ns - call->arrived_ns) / 1000 : 0,
        (now_ns - call->arrived_ns) / 1000);
}

void http_call_cancel_engine(struct http_call *call)
{
    if (call->is_running && !call->has_terminal) {
        engine_cancel(call->app->engine, call->request_id);
    }
}

static void fail_stream(struct http_call *call, const struct api_error *error)
{
    struct buf body;
    buf_init(&body);
    api_error_body(error, &body);
    sse_put(&call->sse, &body);
    buf_fini(&body);
    sse_end(&call->sse);
}

void http_call_fail(struct http_call *call, enum http_call_outcome outcome,
                    const struct api_error *error)
{
    if (call->has_ended) {
        return;
    }
    http_call_end(call, outcome, error->slug ? error->slug : "error");
    if (!call->request) {
        return;
    }
    if (!call->has_replied) {
        call->has_replied = true;
        http_reply_error(call->app, call->request, call->request_id_text, error);
    } else if (call->is_stream) {
        fail_stream(call, error);
    }
}

/* The client has gone: take the work off the engine, then off this process. */
static void lose_client(struct http_call *call)
{
    if (!call->has_ended) {
        call->app->metrics.clients_gone++;
        http_call_cancel_engine(call);
        http_call_end(call, HTTP_CALL_CANCELLED, "client_gone");
    }
}

/* h2o would not look at an HTTP/1 socket before its next write: make it see the end. */
static void drop_connection(struct http_call *call)
{
    h2o_req_t *request = call->request;
    if (!request || request->version >= 0x200) {
        return; /* on HTTP/2 h2o reads all the time and sees for itself */
    }
    http_conn_shut(http_conn_of(request));
    request->http1_is_persistent = 0;
    if (!call->has_replied) {
        struct api_error error;
        call->has_replied = true;
        api_error_http(&error, 503, "client_gone", "the client has gone");
        http_reply_error(call->app, request, call->request_id_text, &error);
    } else {
        sse_abort(&call->sse);
    }
}

static void on_gone(struct http_conn_guest *guest)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, guest, guest);
    call->ref_count++;
    lose_client(call);
    drop_connection(call);
    http_call_release(call);
}

/* Lives in the request's pool; its end is the request's. */
struct anchor {
    struct http_call *call;
};

static void on_request_disposed(void *at)
{
    struct http_call *call = ((struct anchor *)at)->call;
    call->request = NULL;
    call->sse.request = NULL;
    lose_client(call);
    http_call_release(call);
}

/* Engine thread. */
static void on_event(void *owner, const struct engine_event *event)
{
    struct http_call *call = owner;
    mailbox_put(&call->mailbox, event);
}

/* When a full queue will have room again.  Any thread. */
static uint32_t retry_after_s(const struct app *app)
{
    struct engine_status status;
    engine_get_status(app->engine, &status);
    return status.retry_after_s > 0 ? status.retry_after_s : API_ERROR_RETRY_SECONDS;
}

/* Work thread. */
static enum err_code submit(struct http_call *call, const struct prepared *prepared)
{
    const struct api_request *asked = &prepared->request;
    struct engine_request request = {
        .admit = prepared->plan.admit,
        .priority = asked->has_priority ? (int32_t)asked->priority : 0,
        .key_hash = call->key_hash,
        .on_event = on_event,
        .owner = call,
    };
    if (asked->has_timeout) {
        request.deadline_ns =
            call->arrived_ns + (uint64_t)((double)asked->timeout * (double)CLOCK_NS_PER_SEC);
    }
    struct err err;
    enum err_code code = engine_submit(call->app->engine, &request, &call->request_id, &err);
    if (code) {
        api_error_from_err(&call->error, &err);
    }
    if (code == ERR_BUSY) {
        call->error.retry_after_s = retry_after_s(call->app);
    }
    call->was_submitted = !code;
    return code;
}

/* Work thread.  What the answer needs is set before the engine's first event can come. */
static enum err_code fill_answer(struct http_call *call, const struct prepared *prepared)
{
    const struct api_request *request = &prepared->request;
    const struct prepare_model *model = &call->app->model;
    struct err err;
    call->is_stream = request->stream;
    call->head.is_stream = request->stream;
    call->head.wants_usage = request->include_usage;
    call->head.wants_logprobs = request->wants_logprobs;
    call->usage.prompt_tokens = (uint32_t)prepared->prompt.count;
    enum err_code code = output_init(&call->output, request, &prepared->plan, model->tokenizer,
                                     &model->markers, &err);
    call->has_output = true;
    if (code) {
        api_error_from_err(&call->error, &err);
    }
    return code;
}

/* Work thread. */
static enum err_code prepare_and_submit(struct http_call *call, struct prepared *out_prepared)
{
    struct engine_status status;
    engine_get_status(call->app->engine, &status);
    if (!status.is_attached) {
        return api_error_set(&call->error, ERR_CLOSED, NULL, "%s",
                             status.welcome.state == HELLO_STATE_LOADING ? "the worker is loading"
                                                                         : "no worker is attached");
    }
    struct prepare_input input = {
        .route = call->head.route,
        .limits = {.vocab_tokens = status.welcome.vocab_tokens,
                   .max_context_tokens = status.welcome.max_context_tokens,
                   .pool_tokens = status.pool_tokens},
        .body = &call->body,
        .random_seed = call->random_seed,
    };
    enum err_code code = prepare_request(&call->app->model, &input, out_prepared, &call->error);
    if (!code) {
        code = fill_answer(call, out_prepared);
    }
    if (!code && atomic_load_explicit(&call->is_unwanted, memory_order_relaxed)) {
        code = api_error_set(&call->error, ERR_CANCELLED, NULL, "the client has gone");
    }
    return code ? code : submit(call, out_prepared);
}

/* Work thread. */
static void run_work(struct work_item *item)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, work, item);
    struct prepared prepared = {0};
    if (atomic_load_explicit(&call->is_unwanted, memory_order_relaxed)) {
        call->prepare_code =
            api_error_set(&call->error, ERR_CANCELLED, NULL, "the client has gone");
    } else {
        call->prepare_code = prepare_and_submit(call, &prepared);
    }
    /* Large trees and buffers are freed here rather than on the loop thread. */
    prepare_fini(&prepared);
    buf_fini(&call->body);
    loop_post(call->app->loop, &call->prepared_task);
}

static void on_prepared(struct loop_task *task)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, prepared_task, task);
    metrics_observe(&call->app->metrics, METRICS_work_time,
                    (double)(clock_now_ns() - call->arrived_ns) / (double)CLOCK_NS_PER_SEC);
    call->is_running = call->was_submitted;
    if (!call->was_submitted) {
        http_call_fail(call, HTTP_CALL_REJECTED, &call->error);
        http_call_release(call); /* the engine has never known it */
    } else if (call->has_ended) {
        http_call_cancel_engine(call);
    }
    http_call_release(call);
}

/* The call goes no further than this: neither work nor engine will hold it. */
static void stop_early(struct http_call *call)
{
    http_call_release(call);
    http_call_release(call);
}

static void refuse(struct http_call *call, enum err_code code, const char *text)
{
    struct api_error error;
    (void)api_error_set(&error, code, NULL, "%s", text); /* the code given */
    if (code == ERR_BUSY) {
        error.retry_after_s = retry_after_s(call->app);
    }
    http_call_fail(call, HTTP_CALL_REJECTED, &error);
    stop_early(call);
}

static void start_work(struct http_call *call)
{
    call->work.run = run_work;
    call->work.is_large = call->body.used_bytes >= LARGE_BODY_BYTES;
    if (!work_try_submit(call->app->work, &call->work)) {
        refuse(call, ERR_BUSY, "too many bodies wait for a work thread; try again");
    }
}

/* One slice, then back to the loop: other streams go on in between. */
static void copy_body(struct loop_task *task)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, copy_task, task);
    if (call->has_ended || !call->request) {
        stop_early(call);
        return;
    }
    const h2o_iovec_t *entity = &call->request->entity;
    size_t left_bytes = entity->len - call->body.used_bytes;
    size_t slice_bytes = left_bytes < COPY_SLICE_BYTES ? left_bytes : COPY_SLICE_BYTES;
    if (slice_bytes > 0) {
        buf_append(&call->body, entity->base + call->body.used_bytes, slice_bytes);
    }
    if (slice_bytes < left_bytes) {
        loop_post(call->app->loop, &call->copy_task);
        return;
    }
    start_work(call);
}

/* The bearer token's hash: enough to tell keys apart, and nothing that could be told on. */
static uint64_t hash_key(const h2o_req_t *request)
{
    static const char scheme[] = "bearer ";
    const size_t scheme_bytes = sizeof(scheme) - 1;
    ssize_t at = h2o_find_header(&request->headers, H2O_TOKEN_AUTHORIZATION, -1);
    if (at == -1) {
        return 0;
    }
    h2o_iovec_t value = request->headers.entries[at].value;
    if (value.len <= scheme_bytes || strncasecmp(value.base, scheme, scheme_bytes) != 0) {
        return 0;
    }
    uint64_t hash =
        wire_hash_bytes(0xcbf29ce484222325ULL, value.base + scheme_bytes, value.len - scheme_bytes);
    return hash == 0 ? 1 : hash;
}

static struct http_call *create_call(struct http_calls *calls, struct st_h2o_req_t *request,
                                     enum api_route route)
{
    struct app *app = calls->app;
    struct http_call *call = mem_zalloc(1, sizeof(*call));
    call->calls = calls;
    call->app = app;
    call->ref_count = 3;
    call->next = calls->first;
    call->slot = &calls->first;
    if (call->next) {
        call->next->slot = &call->next;
    }
    calls->first = call;
    calls->count++;
    call->request = request;
    call->guest.on_gone = on_gone;
    call->copy_task.run = copy_body;
    call->prepared_task.run = on_prepared;
    call->random_seed = app_random(app);
    call->key_hash = hash_key(request);
    call->arrived_ns = clock_now_ns();
    call->written_ns = call->arrived_ns;
    call->head.route = route;
    call->head.model = app->model.name;
    call->head.created_s = (uint64_t)time(NULL);
    (void)snprintf(call->head.id, sizeof(call->head.id), "%s-%016" PRIx64 "%08" PRIx32, /* fits */
                   route == API_ROUTE_CHAT ? "chatcmpl" : "cmpl", app_random(app),
                   (uint32_t)app_random(app));
    buf_init(&call->body);
    mailbox_init(&call->mailbox, app->loop, http_call_on_mail);
    sse_init(&call->sse, http_call_on_writable, call);
    http_reply_request_id(app, request, call->request_id_text);
    return call;
}

void http_generate_start(struct http_calls *calls, struct st_h2o_req_t *request,
                         enum api_route route)
{
    struct app *app = calls->app;
    struct http_call *call = create_call(calls, request, route);
    struct anchor *anchor =
        h2o_mem_alloc_shared(&request->pool, sizeof(*anchor), on_request_disposed);
    anchor->call = call;
    app->metrics.arrived++;
    app->open_count++;
    app->waiting_count++;
    struct http_conn *conn = http_conn_of(request);
    if (app->is_broken) {
        refuse(call, ERR_CLOSED, "the worker serves another checkpoint than this frontend");
    } else if (app->waiting_count > app->options->max_queue) {
        char text[96];
        (void)snprintf(text, sizeof(text), "%u requests are waiting, at most %u may; try again",
                       app->waiting_count - 1, app->options->max_queue); /* fits */
        refuse(call, ERR_BUSY, text);
    } else if (http_conn_is_gone(conn)) {
        on_gone(&call->guest);
        stop_early(call);
    } else {
        http_conn_add_guest(conn, &call->guest);
        buf_reserve(&call->body, request->entity.len + 1);
        copy_body(&call->copy_task);
    }
}

void http_calls_sweep(struct http_calls *calls, uint64_t now_ns)
{
    uint64_t silence_ns = calls->app->options->sse_ping_s * CLOCK_NS_PER_SEC;
    struct http_call *next;
    for (struct http_call *call = calls->first; call; call = next) {
        next = call->next;
        if (call->is_running && !call->has_ended && call->is_stream &&
            now_ns - call->written_ns > silence_ns) {
            http_call_ping(call);
        }
    }
}

static struct http_call *first_open(struct http_calls *calls)
{
    struct http_call *call = calls->first;
    while (call && call->has_ended) {
        call = call->next;
    }
    return call;
}

void http_calls_cancel_all(struct http_calls *calls)
{
    struct http_call *call;
    while ((call = first_open(calls)) != NULL) {
        struct api_error error;
        api_error_http(&error, 503, "shutting_down", "the server is shutting down");
        error.retry_after_s = API_ERROR_RETRY_SECONDS;
        call->ref_count++;
        http_call_cancel_engine(call);
        http_call_fail(call, HTTP_CALL_FAILED, &error);
        http_call_release(call);
    }
}
