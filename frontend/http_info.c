#include "frontend/http_info.h"

#include <string.h>

#include <h2o.h>

#include "common/clock.h"
#include "common/json.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/http_conn.h"
#include "frontend/http_reply.h"

static void reply(struct app *app, struct st_h2o_req_t *request, const char *content_type,
                  struct buf *body)
{
    char id[HTTP_REQUEST_ID_BYTES];
    http_reply_request_id(app, request, id);
    http_reply_body(app, request, id, content_type, body);
}

static void put_model(const struct app *app, const struct engine_status *status, struct buf *out)
{
    buf_append_text(out, "{\"id\":");
    json_put_text(out, app->model.name, strlen(app->model.name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"bezel\",\"root\":",
               (unsigned long long)app->created_s);
    json_put_text(out, app->model.name, strlen(app->model.name));
    buf_append_text(out, ",\"parent\":null,\"max_model_len\":");
    if (status->welcome.max_context_tokens > 0) {
        buf_printf(out, "%u}", status->welcome.max_context_tokens);
    } else {
        buf_append_text(out, "null}"); /* no worker was ever attached */
    }
}

void http_info_models(struct app *app, struct st_h2o_req_t *request)
{
    struct engine_status status;
    engine_get_status(app->engine, &status);
    struct buf body;
    buf_init(&body);
    static const char list_path[] = "/v1/models";
    size_t prefix_bytes = sizeof(list_path) - 1;
    if (request->path_normalized.len <= prefix_bytes + 1) {
        buf_append_text(&body, "{\"object\":\"list\",\"data\":[");
        put_model(app, &status, &body);
        buf_append_text(&body, "]}");
        reply(app, request, "application/json", &body);
        return;
    }
    const char *name = request->path_normalized.base + prefix_bytes + 1;
    size_t name_bytes = request->path_normalized.len - prefix_bytes - 1;
    if (name_bytes == strlen(app->model.name) && memcmp(name, app->model.name, name_bytes) == 0) {
        put_model(app, &status, &body);
        reply(app, request, "application/json", &body);
        return;
    }
    struct api_error error;
    char id[HTTP_REQUEST_ID_BYTES];
    api_error_http(&error, 404, "model_not_found", "the model '%.*s' does not exist",
                   (int)(name_bytes < 64 ? name_bytes : 64), name);
    http_reply_request_id(app, request, id);
    http_reply_error(app, request, id, &error);
}

void http_info_version(struct app *app, struct st_h2o_req_t *request)
{
    struct buf body;
    buf_init(&body);
    buf_append_text(&body, "{\"version\":\"" BEZEL_VERSION "\"}");
    reply(app, request, "application/json", &body);
}

void http_info_health(struct app *app, struct st_h2o_req_t *request)
{
    struct buf body;
    buf_init(&body);
    buf_append_text(&body, "{\"status\":\"ok\"}");
    reply(app, request, "application/json", &body);
}

void http_info_ready(struct app *app, struct st_h2o_req_t *request)
{
    struct engine_status status;
    engine_get_status(app->engine, &status);
    bool is_leaving = app->is_draining && !app->has_successor;
    if (status.is_ready && !is_leaving && !app->is_broken) {
        struct buf body;
        buf_init(&body);
        buf_append_text(&body, "{\"status\":\"ready\"}");
        reply(app, request, "application/json", &body);
        return;
    }
    const char *reason = "no worker is attached";
    if (is_leaving) {
        reason = "the server is draining";
    } else if (app->is_broken) {
        reason = "the worker serves another checkpoint";
    } else if (status.is_attached) {
        reason = "the worker does not answer";
    } else if (status.welcome.state == HELLO_STATE_LOADING) {
        reason = "the worker is loading";
    }
    struct api_error error;
    char id[HTTP_REQUEST_ID_BYTES];
    api_error_http(&error, 503, "not_ready", "not ready: %s", reason);
    http_reply_request_id(app, request, id);
    http_reply_error(app, request, id, &error);
}

static double used_share(uint32_t left, uint32_t total)
{
    return total > 0 && left <= total ? 1.0 - (double)left / total : 0.0;
}

static double seconds_of(uint64_t ns)
{
    return (double)ns / (double)CLOCK_NS_PER_SEC;
}

static uint32_t held_pages(uint32_t pages, uint32_t cached_pages, uint32_t free_pages)
{
    uint32_t others = cached_pages + free_pages;
    return pages > others ? pages - others
                          : 0; /* of another worker than the pool's, for a second */
}

/* What the worker counts, of all sessions. */
static void copy_worker(const struct engine_status *status, struct metrics *metrics)
{
    const struct hello_welcome *welcome = &status->welcome;
    const struct hello_stats_answer *worker = &status->worker;
    if (status->worker_heard_ns == 0) {
        metrics->worker_age = -1;
        return;
    }
    metrics->worker_age = seconds_of(clock_now_ns() - status->worker_heard_ns);
    metrics->worker_sessions = worker->sessions;
    metrics->worker_sequences = worker->sequences;
    metrics->worker_steps = worker->steps;
    metrics->worker_steps_failed = worker->steps_failed;
    metrics->worker_sequences_failed = worker->sequences_failed;
    metrics->worker_plans_refused = worker->plans_refused;
    metrics->worker_malformed = worker->messages_malformed;
    metrics->worker_stale = worker->messages_stale;
    metrics->worker_busy = seconds_of(worker->busy_ns);
    metrics->steady_steps = worker->steady_steps;
    metrics->steady_host = seconds_of(worker->steady_host_ns);
    metrics->steady_device = seconds_of(worker->steady_device_ns);
    metrics->gaps = worker->gaps;
    metrics->local_free = worker->local_pages_free;
    metrics->global_free = worker->global_pages_free;
    metrics->local_prefix = worker->local_prefix_pages;
    metrics->global_prefix = worker->global_prefix_pages;
    metrics->local_evicted = worker->local_pages_evicted;
    metrics->global_evicted = worker->global_pages_evicted;
    metrics->prefix_reuses = worker->prefix_hits;
    metrics->local_cached = worker->local_pages_cached;
    metrics->global_cached = worker->global_pages_cached;
    metrics->local_held =
        held_pages(welcome->local_pages, worker->local_pages_cached, worker->local_pages_free);
    metrics->global_held =
        held_pages(welcome->global_pages, worker->global_pages_cached, worker->global_pages_free);
}

/* What the pools hold when nothing runs. */
static void copy_capacity(const struct app *app, const struct engine_status *status,
                          struct metrics *metrics)
{
    const struct hello_welcome *welcome = &status->welcome;
    metrics->slots = welcome->slots;
    metrics->page_tokens = welcome->page_tokens;
    metrics->local_pages = welcome->local_pages;
    metrics->global_pages = welcome->global_pages;
    metrics->local_page_bytes = (double)welcome->local_page_bytes;
    metrics->global_page_bytes = (double)welcome->global_page_bytes;
    metrics->request_tokens = status->pool_tokens;
    metrics->fit_1k = engine_requests_that_fit(app->engine, 1024);
    metrics->fit_8k = engine_requests_that_fit(app->engine, 8192);
    metrics->fit_32k = engine_requests_that_fit(app->engine, 32768);
    metrics->fit_128k = engine_requests_that_fit(app->engine, 131072);
}

/* Figures that the engine counts. */
static void copy_status(const struct app *app, const struct engine_status *status,
                        struct metrics *metrics)
{
    const struct hello_welcome *welcome = &status->welcome;
    double local = used_share(status->figures.local_quota_left_pages, welcome->local_pages);
    double global = used_share(status->figures.global_quota_left_pages, welcome->global_pages);
    metrics->requests_running = status->running_requests;
    metrics->requests_waiting = app->waiting_count + status->preempted_waiting;
    metrics->preemptions = status->preemptions;
    metrics->open = app->open_count;
    metrics->connections = http_conns_count(app->conns);
    metrics->worker_attached = status->is_attached;
    metrics->worker_ready = status->is_ready;
    metrics->worker_attaches = status->worker_attaches;
    metrics->steps = status->steps;
    metrics->step_prompt_tokens = status->step_prompt_tokens;
    metrics->step_decode_rows = status->step_decode_rows;
    metrics->step_device = seconds_of(status->step_device_ns);
    metrics->step_span = seconds_of(status->step_span_ns);
    metrics->plan_messages = status->plan_messages;
    metrics->plan_bytes = status->plan_bytes;
    metrics->records = status->records;
    metrics->plans_refused = status->plans_refused;
    metrics->records_stale = status->records_stale;
    metrics->local_left = status->figures.local_quota_left_pages;
    metrics->global_left = status->figures.global_quota_left_pages;
    metrics->cache_usage = 0;
    if (status->is_attached) {
        metrics->cache_usage = local > global ? local : global;
    }
}

void http_info_metrics(struct app *app, struct st_h2o_req_t *request)
{
    struct engine_status status;
    engine_get_status(app->engine, &status);
    copy_status(app, &status, &app->metrics);
    copy_capacity(app, &status, &app->metrics);
    copy_worker(&status, &app->metrics);
    struct buf body;
    buf_init(&body);
    metrics_render(&app->metrics, app->model.name, &body);
    reply(app, request, "text/plain; version=0.0.4; charset=utf-8", &body);
}
