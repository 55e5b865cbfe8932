#include "frontend/http_reply.h"

#include <stdio.h>
#include <string.h>

#include <h2o.h>

#include "frontend/app.h"
#include "frontend/http_conn.h"
#include "frontend/http_cors.h"

/* Lives in the request's pool. */
struct reply {
    h2o_generator_t generator;
    struct buf body;
};

static void dispose_reply(void *at)
{
    struct reply *reply = at;
    buf_fini(&reply->body);
}

static bool is_good_id(const h2o_iovec_t *value)
{
    if (value->len == 0 || value->len >= HTTP_REQUEST_ID_BYTES) {
        return false;
    }
    for (size_t i = 0; i < value->len; i++) {
        if (value->base[i] <= ' ' || value->base[i] > '~') {
            return false;
        }
    }
    return true;
}

void http_reply_request_id(struct app *app, struct st_h2o_req_t *request,
                           char out_id[HTTP_REQUEST_ID_BYTES])
{
    ssize_t index = h2o_find_header_by_str(&request->headers, H2O_STRLIT("x-request-id"), -1);
    if (index >= 0 && is_good_id(&request->headers.entries[index].value)) {
        const h2o_iovec_t *value = &request->headers.entries[index].value;
        memcpy(out_id, value->base, value->len);
        out_id[value->len] = '\0';
        return;
    }
    (void)snprintf(out_id, HTTP_REQUEST_ID_BYTES, "req-%016llx%016llx", /* fits */
                   (unsigned long long)app_random(app), (unsigned long long)app_random(app));
}

static uint64_t *refusals_of(struct metrics *metrics, int status)
{
    switch (status) {
    case 400: return &metrics->status_400;
    case 401: return &metrics->status_401;
    case 403: return &metrics->status_403;
    case 404: return &metrics->status_404;
    case 405: return &metrics->status_405;
    case 408: return &metrics->status_408;
    case 409: return &metrics->status_409;
    case 413: return &metrics->status_413;
    case 417: return &metrics->status_417;
    case 429: return &metrics->status_429;
    case 431: return &metrics->status_431;
    case 500: return &metrics->status_500;
    case 503: return &metrics->status_503;
    default: /* foreign */ return &metrics->status_other;
    }
}

static void count_response(struct metrics *metrics, int status)
{
    if (status >= 400) {
        (*refusals_of(metrics, status))++;
    }
    metrics->responses_2xx += status < 300;
    metrics->responses_4xx += status >= 400 && status < 500;
    metrics->responses_5xx += status >= 500;
}

void http_reply_prepare(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                        int status)
{
    h2o_iovec_t id = h2o_strdup(&request->pool, request_id, SIZE_MAX);
    h2o_add_header_by_str(&request->pool, &request->res.headers, H2O_STRLIT("x-request-id"), 0,
                          NULL, id.base, id.len);
    http_cors_mark(app, request);
    request->res.status = status;
    request->res.reason = api_error_reason(status);
    if (app->is_draining) {
        request->http1_is_persistent = 0;
    }
    count_response(&app->metrics, status);
}

static void send_body(struct st_h2o_req_t *request, const char *content_type, struct buf *body)
{
    struct reply *reply = h2o_mem_alloc_shared(&request->pool, sizeof(*reply), dispose_reply);
    memset(reply, 0, sizeof(*reply));
    reply->body = *body;
    buf_init(body);
    h2o_add_header(&request->pool, &request->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL,
                   content_type, strlen(content_type));
    request->res.content_length = reply->body.used_bytes;
    h2o_start_response(request, &reply->generator);
    bool has_body = reply->body.used_bytes > 0 &&
                    !h2o_memis(request->method.base, request->method.len, H2O_STRLIT("HEAD"));
    h2o_iovec_t part = h2o_iovec_init(reply->body.at, reply->body.used_bytes);
    h2o_send(request, &part, has_body ? 1 : 0, H2O_SEND_STATE_FINAL);
}

void http_reply_body(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                     const char *content_type, struct buf *body)
{
    http_reply_prepare(app, request, request_id, request->res.status ? request->res.status : 200);
    send_body(request, content_type, body);
}

void http_reply_error_body(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                           const struct api_error *error, struct buf *body)
{
    http_reply_prepare(app, request, request_id, error->status);
    if (error->retry_after_s > 0) {
        char text[16];
        (void)snprintf(text, sizeof(text), "%u", error->retry_after_s); /* fits */
        h2o_iovec_t value = h2o_strdup(&request->pool, text, SIZE_MAX);
        h2o_add_header_by_str(&request->pool, &request->res.headers, H2O_STRLIT("retry-after"), 1,
                              NULL, value.base, value.len);
    }
    send_body(request, "application/json", body);
}

void http_reply_error(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                      const struct api_error *error)
{
    struct buf body;
    buf_init(&body);
    api_error_body(error, &body);
    http_reply_error_body(app, request, request_id, error, &body);
}

void http_reply_empty(struct app *app, struct st_h2o_req_t *request, int status)
{
    static h2o_generator_t generator; /* does nothing: the answer is over with its head */
    char id[HTTP_REQUEST_ID_BYTES];
    http_reply_request_id(app, request, id);
    http_reply_prepare(app, request, id, status);
    request->res.content_length = 0;
    h2o_start_response(request, &generator);
    h2o_send(request, NULL, 0, H2O_SEND_STATE_FINAL);
}

struct error_filter {
    h2o_filter_t filter;
    struct app *app; /* borrowed */
};

/* Replaces the one body that h2o sends with an error. */
struct error_stream {
    h2o_ostream_t stream;
    h2o_iovec_t body;
};

static void send_error_body(h2o_ostream_t *stream, h2o_req_t *request, h2o_iovec_t *parts,
                            size_t part_count, h2o_send_state_t state)
{
    struct error_stream *errors = H2O_STRUCT_FROM_MEMBER(struct error_stream, stream, stream);
    (void)parts; /* h2o's text */
    h2o_ostream_send_next(&errors->stream, request, &errors->body, part_count > 0 ? 1 : 0, state);
}

static void fill_h2o_error(const struct app *app, int status, struct api_error *out_error)
{
    switch (status) {
    case 413:
        api_error_http(out_error, 413, "body_too_large", "the body is larger than %u MB",
                       app->options->max_body_mb);
        break;
    case 417: api_error_http(out_error, 417, NULL, "the expectation cannot be met"); break;
    default: /* foreign */
        api_error_http(out_error, status, NULL, "the HTTP request is malformed");
        break;
    }
}

static void on_setup_error(h2o_filter_t *filter, h2o_req_t *request, h2o_ostream_t **slot)
{
    struct app *app = H2O_STRUCT_FROM_MEMBER(struct error_filter, filter, filter)->app;
    ssize_t index = h2o_find_header(&request->res.headers, H2O_TOKEN_CONTENT_TYPE, -1);
    bool is_own = index < 0 || h2o_memis(request->res.headers.entries[index].value.base,
                                         request->res.headers.entries[index].value.len,
                                         H2O_STRLIT("application/json"));
    if (request->res.status < 400 || is_own) {
        h2o_setup_next_ostream(request, slot);
        return;
    }
    struct api_error error;
    struct buf body;
    char id[HTTP_REQUEST_ID_BYTES];
    buf_init(&body);
    fill_h2o_error(app, request->res.status, &error);
    api_error_body(&error, &body);
    request->res.headers.entries[index].value = h2o_iovec_init(H2O_STRLIT("application/json"));
    http_reply_request_id(app, request, id);
    http_reply_prepare(app, request, id, error.status);
    struct error_stream *errors = H2O_STRUCT_FROM_MEMBER(
        struct error_stream, stream, h2o_add_ostream(request, sizeof(*errors), slot));
    errors->stream.do_send = send_error_body;
    errors->body = h2o_strdup(&request->pool, body.at, body.used_bytes);
    request->res.content_length = body.used_bytes;
    buf_fini(&body);
    if (request->version < 0x200 && !request->http1_is_persistent) {
        http_conn_linger(http_conn_of(request)); /* the client may be in the middle of its body */
    }
    h2o_setup_next_ostream(request, &errors->stream.next);
}

void http_reply_reshape_errors(struct app *app, struct st_h2o_pathconf_t *pathconf)
{
    struct error_filter *filter = H2O_STRUCT_FROM_MEMBER(
        struct error_filter, filter, h2o_create_filter(pathconf, sizeof(*filter)));
    filter->filter.on_setup_ostream = on_setup_error;
    filter->app = app;
}
