#include "frontend/http_generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include <h2o.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/http_auth.h"
#include "frontend/http_generate_internal.h"

#define CHAT_ID "chatcmpl-"

enum {
    COPY_SLICE_BYTES = 256 << 10, /* some 50 us of the loop thread */
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
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct http_choice *choice = &call->choices[i];
        if (choice->has_output) {
            output_fini(&choice->output);
        }
        mailbox_fini(&choice->mailbox);
    }
    mem_free(call->choices);
    buf_fini(&call->body);
    buf_fini(&call->text);
    sse_fini(&call->sse);
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
    case HTTP_CALL_FAILED:
        metrics->failed++;
        metrics->success_error++;
        break;
    }
}

static const char *route_name(const struct http_call *call)
{
    if (call->text_answer || call->dialect) {
        return call->dialect ? call->dialect->route_name : "text";
    }
    return call->head.route == API_ROUTE_CHAT ? "chat" : "completions";
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
    struct api_usage usage = http_call_usage(call);
    char id[HTTP_REQUEST_ID_BYTES + 8];
    log_info(
        "http", "request_ended",
        "req=%s route=%s outcome=%s choices=%u prompt_tokens=%u output_tokens=%u stream=%d ttft_us=%" PRIu64
        " total_us=%" PRIu64,
        log_quote(call->request_id_text, id, sizeof(id)), route_name(call), reason,
        call->is_prepared ? call->choice_count : 0, usage.prompt_tokens, usage.output_tokens,
        call->is_prepared && call->is_stream,
        call->first_ns ? (call->first_ns - call->arrived_ns) / 1000 : 0,
        (now_ns - call->arrived_ns) / 1000);
}

struct api_usage http_call_usage(const struct http_call *call)
{
    struct api_usage usage = {0};
    for (uint32_t i = 0; call->is_prepared && i < call->choice_count; i++) {
        const struct http_choice *choice = &call->choices[i];
        usage.prompt_tokens += choice->is_first ? choice->prompt_tokens : 0;
        usage.cached_tokens += choice->is_first ? choice->cached_tokens : 0;
        usage.output_tokens += choice->output.token_count;
        usage.reasoning_tokens += choice->output.reasoning_count;
    }
    return usage;
}

void http_call_cancel_engine(struct http_call *call)
{
    for (uint32_t i = 0; call->is_prepared && i < call->choice_count; i++) {
        const struct http_choice *choice = &call->choices[i];
        if (choice->was_submitted && !choice->has_terminal) {
            engine_cancel(call->app->engine, choice->request_id);
        }
    }
}

static void fail_stream(struct http_call *call, const struct api_error *error)
{
    struct buf body;
    buf_init(&body);
    if (call->dialect) {
        call->dialect->error_event(error, &call->sse.pending);
    } else {
        api_error_body(error, &body);
        sse_put(&call->sse, &body);
    }
    buf_fini(&body);
    sse_end(&call->sse);
}

static void reply_error(struct http_call *call, const struct api_error *error)
{
    struct buf body;
    buf_init(&body);
    if (call->dialect) {
        call->dialect->error_body(error, &body);
    } else {
        api_error_body(error, &body);
    }
    http_reply_error_body(call->app, call->request, call->request_id_text, error, &body);
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
        reply_error(call, error);
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
    if (!call->has_ended && call->request->version >= 0x200) {
        http_conn_count_reset(http_conn_of(call->request));
    }
    call->request = NULL;
    call->sse.request = NULL;
    lose_client(call);
    http_call_release(call);
}

/* One slice, then back to the loop: other streams go on in between. */
static void copy_body(struct loop_task *task)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, copy_task, task);
    if (call->has_ended || !call->request) {
        http_call_stop_early(call);
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
    http_call_start_work(call);
}

static struct http_call *create_call(struct http_calls *calls, struct st_h2o_req_t *request,
                                     enum api_route route, const char *id_prefix)
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
    call->random_seed = app_random(app);
    call->key_hash = http_auth_key_hash(app, request);
    call->arrived_ns = clock_now_ns();
    call->written_ns = call->arrived_ns;
    call->head.route = route;
    call->head.model = app->model.name;
    call->head.created_s = (uint64_t)time(NULL);
    (void)snprintf(call->head.id, sizeof(call->head.id), "%s%016" PRIx64 "%08" PRIx32, /* fits */
                   id_prefix, app_random(app), (uint32_t)app_random(app));
    buf_init(&call->body);
    buf_init(&call->text);
    sse_init(&call->sse, http_call_on_writable, call);
    http_reply_request_id(app, request, call->request_id_text);
    return call;
}

static void start(struct http_call *call)
{
    struct app *app = call->app;
    h2o_req_t *request = call->request;
    struct anchor *anchor =
        h2o_mem_alloc_shared(&request->pool, sizeof(*anchor), on_request_disposed);
    anchor->call = call;
    app->metrics.arrived++;
    app->open_count++;
    app->waiting_count++;
    struct http_conn *conn = http_conn_of(request);
    if (app->is_broken) {
        http_call_refuse(call, ERR_CLOSED,
                         "the worker serves another checkpoint than this frontend");
    } else if (app->waiting_count > app->options->max_queue) {
        char text[96];
        (void)snprintf(text, sizeof(text), "%u requests are waiting, at most %u may; try again",
                       app->waiting_count - 1, app->options->max_queue); /* fits */
        http_call_refuse(call, ERR_BUSY, text);
    } else if (http_conn_is_gone(conn)) {
        on_gone(&call->guest);
        http_call_stop_early(call);
    } else {
        http_conn_add_guest(conn, &call->guest);
        buf_reserve(&call->body, request->entity.len + 1);
        copy_body(&call->copy_task);
    }
}

void http_generate_start(struct http_calls *calls, struct st_h2o_req_t *request,
                         enum api_route route)
{
    start(create_call(calls, request, route, route == API_ROUTE_CHAT ? CHAT_ID : "cmpl-"));
}

void http_generate_start_dialect(struct http_calls *calls, struct st_h2o_req_t *request,
                                 const struct dialect *dialect)
{
    struct http_call *call = create_call(calls, request, API_ROUTE_CHAT, dialect->id_prefix);
    call->dialect = dialect;
    start(call);
}

void http_generate_start_text(struct http_calls *calls, struct st_h2o_req_t *request,
                              http_text_fn answer)
{
    struct http_call *call = create_call(calls, request, API_ROUTE_CHAT, CHAT_ID);
    call->text_answer = answer;
    start(call);
}

void http_calls_sweep(struct http_calls *calls, uint64_t now_ns)
{
    uint64_t silence_ns = calls->app->options->sse_ping_s * CLOCK_NS_PER_SEC;
    struct http_call *next;
    for (struct http_call *call = calls->first; call; call = next) {
        next = call->next;
        if (call->is_prepared && !call->has_ended && call->is_stream &&
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
