#include "frontend/http_route.h"

#include <stdbool.h>
#include <string.h>

#include <h2o.h>

#include "frontend/api_text.h"
#include "frontend/app.h"
#include "frontend/dialect.h"
#include "frontend/http_admin.h"
#include "frontend/http_auth.h"
#include "frontend/http_conn.h"
#include "frontend/http_cors.h"
#include "frontend/http_generate.h"
#include "frontend/http_info.h"
#include "frontend/http_reply.h"

struct handler {
    h2o_handler_t handler;
    struct app *app;          /* borrowed */
    struct http_calls *calls; /* borrowed */
};

static void route_chat(const struct handler *handler, h2o_req_t *request)
{
    http_generate_start(handler->calls, request, API_ROUTE_CHAT);
}

static void route_completions(const struct handler *handler, h2o_req_t *request)
{
    http_generate_start(handler->calls, request, API_ROUTE_COMPLETIONS);
}

static void route_tokenize(const struct handler *handler, h2o_req_t *request)
{
    http_generate_start_text(handler->calls, request, api_text_tokenize);
}

static void route_detokenize(const struct handler *handler, h2o_req_t *request)
{
    http_generate_start_text(handler->calls, request, api_text_detokenize);
}

static void route_render(const struct handler *handler, h2o_req_t *request)
{
    http_generate_start_text(handler->calls, request, api_text_render);
}

static void route_version(const struct handler *handler, h2o_req_t *request)
{
    http_info_version(handler->app, request);
}

static void route_messages(const struct handler *handler, h2o_req_t *request)
{
    http_generate_start_dialect(handler->calls, request, &dialect_messages);
}

static void route_models(const struct handler *handler, h2o_req_t *request)
{
    http_info_models(handler->app, request);
}

static void route_health(const struct handler *handler, h2o_req_t *request)
{
    http_info_health(handler->app, request);
}

static void route_ready(const struct handler *handler, h2o_req_t *request)
{
    http_info_ready(handler->app, request);
}

static void route_metrics(const struct handler *handler, h2o_req_t *request)
{
    http_info_metrics(handler->app, request);
}

static void route_reload(const struct handler *handler, h2o_req_t *request)
{
    http_admin_reload(handler->app, request);
}

static void route_reset_cache(const struct handler *handler, h2o_req_t *request)
{
    http_admin_reset_cache(handler->app, request);
}

static const struct route {
    const char *path;
    bool is_prefix; /* anything below it, too */
    bool is_post;   /* else GET and HEAD */
    enum http_access access;
    void (*serve)(const struct handler *handler, h2o_req_t *request);
} routes[] = {
    {"/admin/cache/reset", false, true, HTTP_ACCESS_ADMIN, route_reset_cache},
    {"/admin/reload", false, true, HTTP_ACCESS_ADMIN, route_reload},
    {"/detokenize", false, true, HTTP_ACCESS_KEY, route_detokenize},
    {"/health", false, false, HTTP_ACCESS_OPEN, route_health},
    {"/metrics", false, false, HTTP_ACCESS_KEY, route_metrics},
    {"/ready", false, false, HTTP_ACCESS_OPEN, route_ready},
    {"/tokenize", false, true, HTTP_ACCESS_KEY, route_tokenize},
    {"/v1/chat/completions", false, true, HTTP_ACCESS_KEY, route_chat},
    {"/v1/chat/completions/render", false, true, HTTP_ACCESS_KEY, route_render},
    {"/v1/completions", false, true, HTTP_ACCESS_KEY, route_completions},
    {"/v1/messages", false, true, HTTP_ACCESS_KEY, route_messages},
    {"/v1/models", true, false, HTTP_ACCESS_KEY, route_models},
    {"/version", false, false, HTTP_ACCESS_KEY, route_version},
};

static bool matches(const struct route *route, const h2o_iovec_t *path)
{
    size_t route_bytes = strlen(route->path);
    if (path->len < route_bytes || memcmp(path->base, route->path, route_bytes) != 0) {
        return false;
    }
    return path->len == route_bytes || (route->is_prefix && path->base[route_bytes] == '/');
}

static const struct route *find_route(const h2o_iovec_t *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (matches(&routes[i], path)) {
            return &routes[i];
        }
    }
    return NULL;
}

static bool is_method(const h2o_req_t *request, const char *method)
{
    return h2o_memis(request->method.base, request->method.len, method, strlen(method));
}

static void reply_http_error(const struct handler *handler, h2o_req_t *request,
                             const struct api_error *error)
{
    char id[HTTP_REQUEST_ID_BYTES];
    http_reply_request_id(handler->app, request, id);
    http_reply_error(handler->app, request, id, error);
}

static void refuse_method(const struct handler *handler, h2o_req_t *request,
                          const struct route *route)
{
    struct api_error error;
    const char *allowed = route->is_post ? "POST" : "GET, HEAD";
    api_error_http(&error, 405, "method_not_allowed", "%.16s is not allowed for %s, only %s",
                   h2o_strdup(&request->pool, request->method.base, request->method.len).base,
                   route->path, allowed);
    h2o_add_header_by_str(&request->pool, &request->res.headers, H2O_STRLIT("allow"), 1, NULL,
                          allowed, strlen(allowed));
    reply_http_error(handler, request, &error);
}

/* As HTTP/1 writes it. */
static size_t header_bytes(const h2o_req_t *request)
{
    size_t byte_count = request->input.method.len + request->input.path.len + 12;
    for (size_t i = 0; i < request->headers.size; i++) {
        const h2o_header_t *header = &request->headers.entries[i];
        byte_count += header->name->len + header->value.len + 4;
    }
    return byte_count;
}

static bool is_header_too_large(const struct handler *handler, h2o_req_t *request)
{
    struct api_error error;
    uint32_t limit_kb = handler->app->options->max_header_kb;
    size_t byte_count = header_bytes(request);
    if (byte_count <= (size_t)limit_kb << 10) {
        return false;
    }
    api_error_http(&error, 431, "header_too_large", "the header has %zu bytes, at most %u KB",
                   byte_count, limit_kb);
    reply_http_error(handler, request, &error);
    return true;
}

/* h2o does not notice that a whole answer failed to leave, and would serve all that a client had
 * sent ahead, in one turn of the loop. */
static bool is_for_nobody(const struct handler *handler, h2o_req_t *request)
{
    struct api_error error;
    if (request->version >= 0x200 || !http_conn_is_dead(http_conn_of(request))) {
        return false;
    }
    request->http1_is_persistent = 0;
    api_error_http(&error, 503, "client_gone", "the client has gone");
    reply_http_error(handler, request, &error);
    return true;
}

static int on_request(h2o_handler_t *own, h2o_req_t *request)
{
    const struct handler *handler = H2O_STRUCT_FROM_MEMBER(struct handler, handler, own);
    const struct options *options = handler->app->options;
    const struct route *route = find_route(&request->path_normalized);
    struct api_error error;
    if (is_for_nobody(handler, request) || is_header_too_large(handler, request) ||
        http_cors_take_preflight(handler->app, request) ||
        !http_auth_allow(handler->app, request, route ? route->access : HTTP_ACCESS_KEY)) {
        return 0;
    }
    if (!route) {
        api_error_http(
            &error, 404, "not_found", "no route %.120s",
            h2o_strdup(&request->pool, request->path_normalized.base, request->path_normalized.len)
                .base);
        reply_http_error(handler, request, &error);
    } else if (route->is_post ? !is_method(request, "POST")
                              : !is_method(request, "GET") && !is_method(request, "HEAD")) {
        refuse_method(handler, request, route);
    } else if (request->entity.len > (size_t)options->max_body_mb << 20) {
        api_error_http(&error, 413, "body_too_large", "the body has %zu bytes, at most %u MB",
                       request->entity.len, options->max_body_mb);
        reply_http_error(handler, request, &error);
    } else {
        route->serve(handler, request);
    }
    return 0;
}

void http_route_install(struct app *app, struct http_calls *calls,
                        struct st_h2o_pathconf_t *pathconf)
{
    struct handler *handler = H2O_STRUCT_FROM_MEMBER(
        struct handler, handler, h2o_create_handler(pathconf, sizeof(*handler)));
    handler->handler.on_req = on_request;
    handler->app = app;
    handler->calls = calls;
}
