#include "frontend/http_info.h"

#include <string.h>

#include <h2o.h>

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
    if (status.is_ready && !app->is_draining && !app->is_broken) {
        struct buf body;
        buf_init(&body);
        buf_append_text(&body, "{\"status\":\"ready\"}");
        reply(app, request, "application/json", &body);
        return;
    }
    const char *reason = "no worker is attached";
    if (app->is_draining) {
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

/* Figures that the engine counts. */
static void copy_status(const struct app *app, const struct engine_status *status,
                        struct metrics *metrics)
{
    const struct hello_welcome *welcome = &status->welcome;
    double local = used_share(status->figures.local_quota_left_pages, welcome->local_pages);
    double global = used_share(status->figures.global_quota_left_pages, welcome->global_pages);
    metrics->requests_running = status->running_requests;
    metrics->requests_waiting = app->waiting_count;
    metrics->open = app->open_count;
    metrics->connections = http_conns_count(app->conns);
    metrics->worker_attached = status->is_attached;
    metrics->worker_ready = status->is_ready;
    metrics->worker_attaches = status->worker_attaches;
    metrics->steps = status->steps;
    metrics->plans_refused = status->plans_refused;
    metrics->records_stale = status->records_stale;
    metrics->local_pages = welcome->local_pages;
    metrics->global_pages = welcome->global_pages;
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
    struct buf body;
    buf_init(&body);
    metrics_render(&app->metrics, app->model.name, &body);
    reply(app, request, "text/plain; version=0.0.4; charset=utf-8", &body);
}
