/* From the engine's events to the answer's bytes. */
#include "frontend/http_generate_internal.h"

#include <h2o.h>

#include "common/clock.h"
#include "frontend/app.h"
#include "frontend/engine.h"

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / (double)CLOCK_NS_PER_SEC : 0.0;
}

/* The stream's head goes out with its first event, so that what fails before has a status. */
static void open_stream(struct http_call *call)
{
    if (call->has_replied) {
        return;
    }
    call->has_replied = true;
    http_reply_prepare(call->app, call->request, call->request_id_text, 200);
    sse_open(&call->sse, call->request);
    if (call->head.route == API_ROUTE_CHAT) {
        struct buf json;
        buf_init(&json);
        api_response_role(&call->head, &json);
        sse_put(&call->sse, &json);
        buf_fini(&json);
    }
}

/* What has gathered since the last chunk becomes one. */
static void put_piece(struct http_call *call)
{
    if (!output_has_piece(&call->output)) {
        return;
    }
    struct buf json;
    buf_init(&json);
    struct api_piece piece = output_piece(&call->output);
    api_response_delta(&call->head, &piece, API_FINISH_NONE, &json);
    sse_put(&call->sse, &json);
    output_reset(&call->output);
    buf_fini(&json);
}

static void end_slow_reader(struct http_call *call)
{
    struct api_error error;
    api_error_http(&error, 503, "slow_reader",
                   "the stream was read too slowly: over %u KB were waiting",
                   call->app->options->stream_buffer_kb);
    call->app->metrics.slow_readers++;
    http_call_cancel_engine(call);
    output_reset(&call->output);
    http_call_fail(call, HTTP_CALL_CANCELLED, &error);
    if (call->request && call->request->version < 0x200) {
        http_conn_shut(http_conn_of(call->request));
    }
}

static void write_stream(struct http_call *call)
{
    if (!output_has_piece(&call->output)) {
        return;
    }
    open_stream(call);
    if (!call->sse.is_sending) {
        put_piece(call);
        sse_flush(&call->sse);
        call->written_ns = clock_now_ns();
        return;
    }
    size_t held_bytes = output_held_bytes(&call->output) + call->sse.pending.used_bytes;
    if (held_bytes > (size_t)call->app->options->stream_buffer_kb << 10) {
        end_slow_reader(call);
    }
}

void http_call_on_writable(void *owner)
{
    struct http_call *call = owner;
    if (!call->has_ended) {
        put_piece(call);
        call->written_ns = clock_now_ns();
    }
}

void http_call_ping(struct http_call *call)
{
    if (!call->request || call->sse.is_sending) {
        return;
    }
    call->ref_count++;
    open_stream(call);
    sse_put_ping(&call->sse);
    sse_flush(&call->sse);
    call->written_ns = clock_now_ns();
    http_call_release(call);
}

static void finish_stream(struct http_call *call, enum api_finish finish)
{
    open_stream(call);
    put_piece(call);
    struct buf json;
    buf_init(&json);
    struct api_piece piece = output_piece(&call->output); /* empty by now */
    api_response_delta(&call->head, &piece, finish, &json);
    sse_put(&call->sse, &json);
    if (call->head.wants_usage) {
        buf_reset(&json);
        api_response_usage(&call->head, &call->usage, &json);
        sse_put(&call->sse, &json);
    }
    buf_fini(&json);
    sse_put_done(&call->sse);
    sse_end(&call->sse);
}

static void finish_whole(struct http_call *call, enum api_finish finish)
{
    struct buf json;
    buf_init(&json);
    struct api_piece piece = output_piece(&call->output);
    api_response_whole(&call->head, &piece, finish, &call->usage, &json);
    call->has_replied = true;
    http_reply_body(call->app, call->request, call->request_id_text, "application/json", &json);
}

static void count_finish(struct http_call *call, enum api_finish finish)
{
    struct metrics *metrics = &call->app->metrics;
    metrics->success_stop += finish != API_FINISH_LENGTH;
    metrics->success_length += finish == API_FINISH_LENGTH;
    metrics_observe(metrics, METRICS_e2e, seconds_between(call->arrived_ns, call->last_ns));
    metrics_observe(metrics, METRICS_decode_time, seconds_between(call->first_ns, call->last_ns));
    metrics_observe(metrics, METRICS_inference_time,
                    seconds_between(call->admitted_ns, call->last_ns));
    if (call->usage.output_tokens > 1) {
        metrics_observe(metrics, METRICS_tpot,
                        seconds_between(call->first_ns, call->last_ns) /
                            (call->usage.output_tokens - 1));
    }
    metrics_observe(metrics, METRICS_request_prompt, call->usage.prompt_tokens);
    metrics_observe(metrics, METRICS_request_output, call->usage.output_tokens);
}

static void finish(struct http_call *call, enum api_finish finish)
{
    if (call->has_ended) {
        return;
    }
    output_finish(&call->output);
    if (finish == API_FINISH_STOP && call->output.parse.call_count > 0) {
        finish = API_FINISH_TOOL_CALLS;
    }
    call->usage.output_tokens = call->output.token_count;
    call->usage.reasoning_tokens = call->output.reasoning_count;
    count_finish(call, finish);
    http_call_end(call, HTTP_CALL_FINISHED, finish == API_FINISH_LENGTH ? "length" : "stop");
    if (!call->request) {
        return;
    }
    if (call->is_stream) {
        finish_stream(call, finish);
    } else {
        finish_whole(call, finish);
    }
}

static void take_admitted(struct http_call *call, const struct engine_event *event)
{
    struct metrics *metrics = &call->app->metrics;
    bool is_first = call->admitted_ns == 0;
    http_call_leave_queue(call);
    if (!is_first) {
        return; /* admitted again after a preemption */
    }
    call->admitted_ns = event->time_ns;
    call->usage.cached_tokens = event->reused_tokens;
    metrics->prompt_tokens += call->usage.prompt_tokens;
    metrics->prefix_queries += event->queried_tokens;
    metrics->prefix_hits += event->reused_tokens;
    metrics_observe(metrics, METRICS_queue_time, seconds_between(call->arrived_ns, event->time_ns));
}

static void count_token(struct http_call *call, const struct engine_event *event)
{
    struct metrics *metrics = &call->app->metrics;
    metrics->output_tokens++;
    if (call->first_ns == 0) {
        call->first_ns = event->time_ns;
        metrics_observe(metrics, METRICS_ttft, seconds_between(call->arrived_ns, event->time_ns));
        metrics_observe(metrics, METRICS_prefill_time,
                        seconds_between(call->admitted_ns, event->time_ns));
    } else {
        double seconds = seconds_between(call->last_ns, event->time_ns);
        metrics_observe(metrics, METRICS_itl, seconds);
        metrics_observe(metrics, METRICS_itl_old, seconds);
    }
    call->last_ns = event->time_ns;
}

static void take_token(struct http_call *call, const struct engine_event *event)
{
    if (call->has_ended) {
        return; /* tokens that were under way when it ended */
    }
    http_call_leave_queue(call);
    count_token(call, event);
    bool has_matched = output_push(&call->output, event);
    call->usage.output_tokens = call->output.token_count;
    if (has_matched) {
        http_call_cancel_engine(call);
        finish(call, API_FINISH_STOP);
    }
}

static void take_finished(struct http_call *call, const struct engine_event *event)
{
    struct api_error error;
    switch (event->reason) {
    case RESULT_FINISH_STOP: finish(call, API_FINISH_STOP); break;
    case RESULT_FINISH_LENGTH: finish(call, API_FINISH_LENGTH); break;
    case RESULT_FINISH_CANCEL: /* no-op where it was this side's wish */
        (void)api_error_set(&error, ERR_CANCELLED, NULL, "the server cancelled the request");
        http_call_fail(call, HTTP_CALL_FAILED, &error);
        break;
    }
}

static void take_failed(struct http_call *call, const struct engine_event *event)
{
    struct api_error error;
    (void)api_error_set(&error, event->code ? event->code : ERR_INTERNAL, NULL, "%s",
                        event->text ? event->text : "the request failed");
    http_call_fail(call, call->is_admitted ? HTTP_CALL_FAILED : HTTP_CALL_REJECTED, &error);
}

static void take_event(struct http_call *call, const struct engine_event *event)
{
    switch (event->kind) {
    case ENGINE_EVENT_ADMITTED: take_admitted(call, event); break;
    case ENGINE_EVENT_TOKEN: take_token(call, event); break;
    case ENGINE_EVENT_PROMPT_LOGPROBS: break; /* never asked for */
    case ENGINE_EVENT_FINISHED:
        call->has_terminal = true;
        take_finished(call, event);
        break;
    case ENGINE_EVENT_FAILED:
        call->has_terminal = true;
        take_failed(call, event);
        break;
    }
}

void http_call_on_mail(struct loop_task *task)
{
    struct http_call *call = H2O_STRUCT_FROM_MEMBER(struct http_call, mailbox.task, task);
    struct engine_event event;
    call->ref_count++;
    call->is_running = true; /* the id was set before the first event */
    mailbox_take(&call->mailbox);
    while (mailbox_next(&call->mailbox, &event)) {
        take_event(call, &event);
    }
    if (!call->has_ended && call->is_stream && call->request) {
        write_stream(call);
    }
    if (call->has_terminal) {
        http_call_release(call); /* the engine's */
    }
    http_call_release(call);
}
