/* From what the choices gathered to the answer's bytes. */
#include "frontend/http_generate_internal.h"

#include <h2o.h>

#include "common/clock.h"
#include "frontend/app.h"

/* The stream's head goes out with its first event, so that what fails before has a status. */
static void open_stream(struct http_call *call)
{
    if (call->has_replied) {
        return;
    }
    call->has_replied = true;
    http_reply_prepare(call->app, call->request, call->request_id_text, 200);
    sse_open(&call->sse, call->request);
}

/* So far, where every chunk is to tell. */
static void note_usage(struct http_call *call)
{
    if (call->head.wants_live_usage) {
        call->head.live_usage = http_call_usage(call);
    }
}

static void begin_choice(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    if (choice->has_begun) {
        return;
    }
    choice->has_begun = true;
    if (call->head.route == API_ROUTE_CHAT) {
        struct buf json;
        buf_init(&json);
        struct api_piece piece = output_piece(&choice->output);
        api_response_role(&call->head, &piece, &json);
        output_told_prompt(&choice->output);
        sse_put(&call->sse, &json);
        buf_fini(&json);
    }
}

/* What has gathered since the choice's last chunk becomes one; the usage is noted before. */
static void put_piece(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    if (!output_has_piece(&choice->output)) {
        return;
    }
    if (call->dialect) {
        http_dialect_put_piece(choice);
        return;
    }
    begin_choice(choice);
    struct buf json;
    buf_init(&json);
    struct api_piece piece = output_piece(&choice->output);
    api_response_delta(&call->head, &piece, API_FINISH_NONE, &json);
    sse_put(&call->sse, &json);
    output_reset(&choice->output);
    buf_fini(&json);
}

static void put_pieces(struct http_call *call)
{
    note_usage(call);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        put_piece(&call->choices[i]);
    }
    call->written_ns = clock_now_ns();
}

static size_t held_bytes(const struct http_call *call)
{
    size_t byte_count = call->sse.pending.used_bytes;
    for (uint32_t i = 0; i < call->choice_count; i++) {
        byte_count += output_held_bytes(&call->choices[i].output);
    }
    return byte_count;
}

static void end_slow_reader(struct http_call *call)
{
    struct api_error error;
    api_error_http(&error, 503, "slow_reader",
                   "the stream was read too slowly: over %u KB were waiting",
                   call->app->options->stream_buffer_kb);
    call->app->metrics.slow_readers++;
    http_call_cancel_engine(call);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        output_reset(&call->choices[i].output);
    }
    http_call_fail(call, HTTP_CALL_CANCELLED, &error);
    if (call->request && call->request->version < 0x200) {
        http_conn_shut(http_conn_of(call->request));
    }
}

static bool has_piece(const struct http_call *call)
{
    for (uint32_t i = 0; i < call->choice_count; i++) {
        if (output_has_piece(&call->choices[i].output)) {
            return true;
        }
    }
    return false;
}

void http_call_write(struct http_call *call)
{
    if (!has_piece(call)) {
        return;
    }
    open_stream(call);
    if (!call->sse.is_sending) {
        put_pieces(call);
        sse_flush(&call->sse);
    } else if (held_bytes(call) > (size_t)call->app->options->stream_buffer_kb << 10) {
        end_slow_reader(call);
    }
}

void http_call_on_writable(void *owner)
{
    struct http_call *call = owner;
    if (!call->has_ended) {
        put_pieces(call);
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

static void put_end(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    struct buf json;
    if (call->dialect) {
        http_dialect_put_end(choice);
        return;
    }
    note_usage(call);
    put_piece(choice);
    begin_choice(choice);
    buf_init(&json);
    struct api_piece piece = output_piece(&choice->output); /* empty by now */
    piece.stop_reason = &choice->output.stop_reason;
    api_response_delta(&call->head, &piece, choice->finish, &json);
    sse_put(&call->sse, &json);
    buf_fini(&json);
}

static void end_stream(struct http_call *call)
{
    if (call->head.wants_usage) {
        struct buf json;
        struct api_usage usage = http_call_usage(call);
        buf_init(&json);
        api_response_usage(&call->head, &usage, &json);
        sse_put(&call->sse, &json);
        buf_fini(&json);
    }
    if (!call->dialect) {
        sse_put_done(&call->sse);
    }
    sse_end(&call->sse);
}

static void put_whole(struct http_call *call, struct buf *out)
{
    if (call->dialect) {
        http_dialect_put_whole(&call->choices[0], out);
        return;
    }
    struct api_usage usage = http_call_usage(call);
    api_response_begin(&call->head, out);
    for (uint32_t i = 0; i < call->choice_count; i++) {
        struct api_piece piece = output_piece(&call->choices[i].output);
        piece.stop_reason = &call->choices[i].output.stop_reason;
        api_response_choice(&call->head, &piece, call->choices[i].finish, out);
    }
    struct api_piece first = output_piece(&call->choices[0].output);
    api_response_end(&call->head, &first, &usage, out);
}

static void write_whole(struct http_call *call)
{
    struct buf json;
    buf_init(&json);
    put_whole(call, &json);
    call->has_replied = true;
    http_reply_body(call->app, call->request, call->request_id_text, "application/json", &json);
}

void http_choice_write_end(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    bool is_last = call->done_count == call->choice_count;
    if (!call->is_stream) {
        if (is_last) {
            write_whole(call);
        }
        return;
    }
    open_stream(call);
    put_end(choice);
    if (is_last) {
        end_stream(call);
    } else if (!call->sse.is_sending) {
        sse_flush(&call->sse);
        call->written_ns = clock_now_ns();
    }
}
