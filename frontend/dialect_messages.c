/* Answers of /v1/messages: blocks of text, thinking and tool use. */
#include <string.h>

#include "common/json.h"
#include "frontend/dialect.h"
#include "frontend/dialect_internal.h"

static const char *stop_reason_of(const struct dialect_end *end)
{
    bool is_string = end->stop_reason && end->stop_reason->text;
    switch (end->finish) {
    case API_FINISH_LENGTH: return "max_tokens";
    case API_FINISH_TOOL_CALLS: return "tool_use";
    case API_FINISH_NONE:
    case API_FINISH_STOP: break;
    }
    return is_string ? "stop_sequence" : "end_turn";
}

static void put_stop(const struct dialect_end *end, struct buf *out)
{
    const struct api_stop_reason *reason = end->stop_reason;
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason_of(end));
    if (reason && reason->text) {
        json_put_text(out, reason->text, reason->byte_count);
    } else {
        buf_append_text(out, "null");
    }
}

/* Tokens found in the cache are counted apart. */
static void put_usage(const struct api_usage *usage, struct buf *out)
{
    buf_printf(out,
               "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
               usage->prompt_tokens - usage->cached_tokens, usage->cached_tokens,
               usage->output_tokens);
}

static void put_head(const struct api_head *head, struct buf *out)
{
    buf_printf(out,
               "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", head->id);
    dialect_put_string(head->model, out);
}

static void put_call_id(const struct api_head *head, uint32_t call_index, struct buf *out)
{
    const char *unique = strchr(head->id, '_');
    buf_printf(out, "\"toolu_%s%u\"", unique ? unique + 1 : head->id, call_index);
}

static void put_tool_head(const struct api_head *head, uint32_t call_index, const char *name,
                          size_t name_bytes, struct buf *out)
{
    buf_append_text(out, "{\"type\":\"tool_use\",\"id\":");
    put_call_id(head, call_index, out);
    buf_append_text(out, ",\"name\":");
    json_put_text(out, name, name_bytes);
    buf_append_text(out, ",\"input\":");
}

static void put_block(const struct api_head *head, const struct dialect_block *block,
                      struct buf *out)
{
    switch (block->kind) {
    case ANSWER_REASONING:
        buf_append_text(out, "{\"type\":\"thinking\",\"thinking\":");
        json_put_text(out, block->text, block->byte_count);
        buf_append_text(out, ",\"signature\":\"\"}");
        break;
    case ANSWER_CALL:
        put_tool_head(head, block->call_index, block->name, block->name_bytes, out);
        if (block->is_whole) {
            buf_append(out, block->text, block->byte_count);
        } else {
            buf_append_text(out, "{}"); /* half of an object is none */
        }
        buf_append_char(out, '}');
        break;
    case ANSWER_CONTENT:
    case ANSWER_ARGUMENTS:
    case ANSWER_CALL_END:
        buf_append_text(out, "{\"type\":\"text\",\"text\":");
        json_put_text(out, block->text, block->byte_count);
        buf_append_char(out, '}');
        break;
    }
}

static void whole(const struct api_head *head, const struct api_piece *piece,
                  const struct dialect_end *end, struct buf *out)
{
    struct dialect_block block;
    const char *comma = "";
    uint32_t at = 0;
    put_head(head, out);
    buf_append_text(out, ",\"content\":[");
    while (dialect_next_block(piece->answer, &at, &block)) {
        buf_append_text(out, comma);
        put_block(head, &block, out);
        comma = ",";
    }
    buf_append_text(out, "],");
    put_stop(end, out);
    buf_append_char(out, ',');
    put_usage(end->usage, out);
    buf_append_char(out, '}');
}

static void begin(struct dialect_state *state, const struct api_head *head,
                  const struct api_usage *usage, struct buf *out)
{
    struct buf json;
    buf_init(&json);
    (void)state; /* blocks count from zero */
    buf_append_text(&json, "{\"type\":\"message_start\",\"message\":");
    put_head(head, &json);
    buf_append_text(&json, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(usage, &json);
    buf_append_text(&json, "}}");
    dialect_put_event("message_start", &json, out);
    buf_fini(&json);
}

static void close_block(struct dialect_state *state, struct buf *out)
{
    struct buf json;
    if (!state->is_open) {
        return;
    }
    buf_init(&json);
    buf_printf(&json, "{\"type\":\"content_block_stop\",\"index\":%u}", state->block_index);
    dialect_put_event("content_block_stop", &json, out);
    buf_fini(&json);
    state->is_open = false;
    state->block_index++;
}

static void open_block(struct dialect_state *state, const struct api_head *head,
                       const struct answer *answer, const struct answer_part *part, struct buf *out)
{
    struct buf json;
    buf_init(&json);
    state->is_open = true;
    state->open = *part;
    buf_printf(&json, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":",
               state->block_index);
    if (part->kind == ANSWER_CALL) {
        put_tool_head(head, part->call_index, answer_part_text(answer, part), part->byte_count,
                      &json);
        buf_append_text(&json, "{}}");
    } else if (part->kind == ANSWER_REASONING) {
        buf_append_text(&json, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else {
        buf_append_text(&json, "{\"type\":\"text\",\"text\":\"\"}");
    }
    buf_append_char(&json, '}');
    dialect_put_event("content_block_start", &json, out);
    buf_fini(&json);
}

static void put_delta(const struct dialect_state *state, const struct answer *answer,
                      const struct answer_part *part, struct buf *out)
{
    struct buf json;
    buf_init(&json);
    buf_printf(&json, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{",
               state->block_index);
    if (part->kind == ANSWER_ARGUMENTS) {
        buf_append_text(&json, "\"type\":\"input_json_delta\",\"partial_json\":");
    } else if (part->kind == ANSWER_REASONING) {
        buf_append_text(&json, "\"type\":\"thinking_delta\",\"thinking\":");
    } else {
        buf_append_text(&json, "\"type\":\"text_delta\",\"text\":");
    }
    json_put_text(&json, answer_part_text(answer, part), part->byte_count);
    buf_append_text(&json, "}}");
    dialect_put_event("content_block_delta", &json, out);
    buf_fini(&json);
}

static void piece(struct dialect_state *state, const struct api_head *head,
                  const struct api_piece *next, struct buf *out)
{
    const struct answer *answer = next->answer;
    for (uint32_t i = 0; i < answer->part_count; i++) {
        const struct answer_part *part = &answer->parts[i];
        if (!dialect_continues(state, part)) {
            close_block(state, out);
            open_block(state, head, answer, part, out);
        }
        if (part->kind != ANSWER_CALL && part->kind != ANSWER_CALL_END) {
            put_delta(state, answer, part, out);
        }
    }
}

static void end_stream(struct dialect_state *state, const struct api_head *head,
                       const struct dialect_end *end, struct buf *out)
{
    (void)head; /* said at the beginning */
    struct buf json;
    buf_init(&json);
    close_block(state, out);
    buf_append_text(&json, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(end, &json);
    buf_append_text(&json, "},");
    put_usage(end->usage, &json);
    buf_append_char(&json, '}');
    dialect_put_event("message_delta", &json, out);
    buf_reset(&json);
    buf_append_text(&json, "{\"type\":\"message_stop\"}");
    dialect_put_event("message_stop", &json, out);
    buf_fini(&json);
}

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: /* foreign */ return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void error_body(const struct api_error *error, struct buf *out)
{
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
               error_type(error->status));
    dialect_put_string(error->message, out);
    buf_append_text(out, "}}");
}

static void error_event(const struct api_error *error, struct buf *out)
{
    struct buf json;
    buf_init(&json);
    error_body(error, &json);
    dialect_put_event("error", &json, out);
    buf_fini(&json);
}

const struct dialect dialect_messages = {
    .id_prefix = "msg_",
    .route_name = "messages",
    .to_chat = dialect_messages_to_chat,
    .begin = begin,
    .piece = piece,
    .end = end_stream,
    .whole = whole,
    .error_body = error_body,
    .error_event = error_event,
};
