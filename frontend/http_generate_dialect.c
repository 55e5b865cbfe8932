/* A call in another dialect: its body before it is prepared, its answer's bytes. */
#include "frontend/http_generate_internal.h"

#include <h2o.h>

#include "common/json.h"

enum err_code http_dialect_translate(struct http_call *call)
{
    struct json_t *body = NULL;
    struct buf chat;
    buf_init(&chat);
    enum err_code code =
        api_request_parse_body(call->body.at, call->body.used_bytes, &body, &call->error);
    if (!code) {
        code = call->dialect->to_chat(body, &chat, &call->error);
    }
    json_release(body);
    if (code) {
        buf_fini(&chat);
    } else {
        buf_fini(&call->body);
        call->body = chat;
    }
    return code;
}

void http_dialect_put_piece(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    struct dialect_state *state = &call->dialect_state;
    if (!state->has_begun) {
        struct api_usage usage = http_call_usage(call);
        state->has_begun = true;
        call->dialect->begin(state, &call->head, &usage, &call->sse.pending);
    }
    struct api_piece piece = output_piece(&choice->output);
    call->dialect->piece(state, &call->head, &piece, &call->sse.pending);
    output_reset(&choice->output);
}

static struct dialect_end end_of(const struct http_choice *choice, const struct api_usage *usage)
{
    return (struct dialect_end){
        .finish = choice->finish, .usage = usage, .stop_reason = &choice->output.stop_reason};
}

void http_dialect_put_end(struct http_choice *choice)
{
    struct http_call *call = choice->call;
    struct api_usage usage = http_call_usage(call);
    struct dialect_end end = end_of(choice, &usage);
    http_dialect_put_piece(choice);
    call->dialect->end(&call->dialect_state, &call->head, &end, &call->sse.pending);
}

void http_dialect_put_whole(struct http_choice *choice, struct buf *out)
{
    struct http_call *call = choice->call;
    struct api_usage usage = http_call_usage(call);
    struct dialect_end end = end_of(choice, &usage);
    struct api_piece piece = output_piece(&choice->output);
    call->dialect->whole(&call->head, &piece, &end, out);
}
