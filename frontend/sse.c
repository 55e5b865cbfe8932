#include "frontend/sse.h"

#include <string.h>

static void send_pending(struct sse *sse)
{
    struct buf empty = sse->in_flight;
    sse->in_flight = sse->pending;
    sse->pending = empty;
    buf_reset(&sse->pending);
    sse->has_ended = sse->must_end;
    sse->is_sending = true;
    h2o_iovec_t part = h2o_iovec_init(sse->in_flight.at, sse->in_flight.used_bytes);
    h2o_send(sse->request, &part, part.len > 0 ? 1 : 0,
             sse->has_ended ? H2O_SEND_STATE_FINAL : H2O_SEND_STATE_IN_PROGRESS);
}

static void on_proceed(h2o_generator_t *generator, h2o_req_t *request)
{
    struct sse *sse = H2O_STRUCT_FROM_MEMBER(struct sse, generator, generator);
    (void)request; /* the one of sse_open */
    sse->is_sending = false;
    if (sse->must_abort) {
        sse_abort(sse);
        return;
    }
    sse->on_writable(sse->owner);
    sse_flush(sse);
}

static void on_stop(h2o_generator_t *generator, h2o_req_t *request)
{
    struct sse *sse = H2O_STRUCT_FROM_MEMBER(struct sse, generator, generator);
    (void)request; /* the one of sse_open */
    sse->has_ended = true;
    sse->request = NULL;
}

void sse_init(struct sse *sse, void (*on_writable)(void *owner), void *owner)
{
    memset(sse, 0, sizeof(*sse));
    sse->generator.proceed = on_proceed;
    sse->generator.stop = on_stop;
    sse->on_writable = on_writable;
    sse->owner = owner;
    buf_init(&sse->pending);
    buf_init(&sse->in_flight);
}

void sse_fini(struct sse *sse)
{
    buf_fini(&sse->pending);
    buf_fini(&sse->in_flight);
}

void sse_open(struct sse *sse, h2o_req_t *request)
{
    sse->request = request;
    request->res.status = 200;
    request->res.reason = "OK";
    h2o_add_header(&request->pool, &request->res.headers, H2O_TOKEN_CONTENT_TYPE, NULL,
                   H2O_STRLIT("text/event-stream; charset=utf-8"));
    h2o_add_header(&request->pool, &request->res.headers, H2O_TOKEN_CACHE_CONTROL, NULL,
                   H2O_STRLIT("no-cache"));
    h2o_add_header_by_str(&request->pool, &request->res.headers, H2O_STRLIT("x-accel-buffering"), 0,
                          NULL, H2O_STRLIT("no"));
    h2o_start_response(request, &sse->generator);
}

void sse_put(struct sse *sse, const struct buf *json)
{
    buf_append_text(&sse->pending, "data: ");
    buf_append(&sse->pending, json->at, json->used_bytes);
    buf_append_text(&sse->pending, "\n\n");
}

void sse_put_done(struct sse *sse)
{
    buf_append_text(&sse->pending, "data: [DONE]\n\n");
}

void sse_put_ping(struct sse *sse)
{
    buf_append_text(&sse->pending, ": ping\n\n");
}

void sse_flush(struct sse *sse)
{
    bool has_more = sse->pending.used_bytes > 0 || sse->must_end;
    if (sse->request && !sse->has_ended && !sse->is_sending && has_more) {
        send_pending(sse);
    }
}

void sse_end(struct sse *sse)
{
    sse->must_end = true;
    sse_flush(sse);
}

void sse_abort(struct sse *sse)
{
    sse->must_abort = true; /* when the write in flight is done, if there is one */
    if (sse->request && !sse->has_ended && !sse->is_sending) {
        sse->has_ended = true;
        h2o_send(sse->request, NULL, 0, H2O_SEND_STATE_ERROR);
    }
}
