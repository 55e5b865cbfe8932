#include "frontend/api_response.h"

#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/answer.h"
#include "frontend/api_message.h"

static void put_buf(struct buf *out, const struct buf *text)
{
    if (text->used_bytes > 0) {
        buf_append(out, text->at, text->used_bytes);
    }
}

static void put_head(const struct api_head *head, struct buf *out)
{
    const char *object = "text_completion"; /* streamed or not */
    if (head->route == API_ROUTE_CHAT) {
        object = head->is_stream ? "chat.completion.chunk" : "chat.completion";
    }
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", head->id,
               object, (unsigned long long)head->created_s);
    json_put_text(out, head->model, strlen(head->model));
}

static void put_finish(struct buf *out, enum api_finish finish)
{
    buf_append_text(out, ",\"finish_reason\":");
    switch (finish) {
    case API_FINISH_NONE: buf_append_text(out, "null"); break;
    case API_FINISH_STOP: buf_append_text(out, "\"stop\""); break;
    case API_FINISH_LENGTH: buf_append_text(out, "\"length\""); break;
    case API_FINISH_TOOL_CALLS: buf_append_text(out, "\"tool_calls\""); break;
    }
}

static void put_usage(const struct api_usage *usage, struct buf *out)
{
    buf_printf(out,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
               usage->prompt_tokens, usage->output_tokens,
               usage->prompt_tokens + usage->output_tokens, usage->cached_tokens,
               usage->reasoning_tokens);
}

/* A member that is an array; nothing where there are no elements to show. */
static void put_array(struct buf *out, const char *name, const struct buf *elements)
{
    if (elements) {
        buf_printf(out, ",\"%s\":[", name);
        put_buf(out, elements);
        buf_append_char(out, ']');
    }
}

static void put_stop_reason(struct buf *out, const struct api_stop_reason *reason)
{
    if (!reason) {
        return;
    }
    buf_append_text(out, ",\"stop_reason\":");
    if (reason->text) {
        json_put_text(out, reason->text, reason->byte_count);
    } else if (reason->token != TOK_NONE) {
        buf_printf(out, "%u", reason->token);
    } else {
        buf_append_text(out, "null");
    }
}

/* What is told of the prompt: completions have it in each choice, chats once beside the choices. */
static void put_prompt(const struct api_piece *piece, struct buf *out)
{
    put_array(out, "prompt_logprobs", piece->prompt_logprobs);
    put_array(out, "prompt_token_ids", piece->prompt_ids);
}

static void put_tail(const struct api_head *head, const struct api_piece *piece, struct buf *out)
{
    buf_append_text(out, "}]");
    if (head->route == API_ROUTE_CHAT) {
        put_prompt(piece, out);
    }
    if (head->wants_live_usage) {
        buf_append_text(out, ",\"usage\":");
        put_usage(&head->live_usage, out);
    } else if (head->wants_usage) {
        buf_append_text(out, ",\"usage\":null");
    }
    buf_append_char(out, '}');
}

void api_response_role(const struct api_head *head, const struct api_piece *piece, struct buf *out)
{
    put_head(head, out);
    buf_printf(out,
               ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":"
               "\"\"},\"logprobs\":null,\"finish_reason\":null",
               piece->index);
    put_tail(head, piece, out);
}

static void put_text_member(const struct answer *answer, struct buf *out)
{
    struct buf text;
    buf_init(&text);
    answer_join(answer, ANSWER_CONTENT, &text);
    buf_append_text(out, "\"text\":");
    json_put_text(out, buf_text(&text), text.used_bytes);
    buf_fini(&text);
}

static void put_choice_end(const struct api_head *head, const struct api_piece *piece,
                           enum api_finish finish, struct buf *out)
{
    if (head->route == API_ROUTE_COMPLETIONS) {
        put_prompt(piece, out);
    }
    put_array(out, "token_ids", piece->token_ids);
    put_finish(out, finish);
    put_stop_reason(out, piece->stop_reason);
}

void api_response_delta(const struct api_head *head, const struct api_piece *piece,
                        enum api_finish finish, struct buf *out)
{
    put_head(head, out);
    buf_printf(out, ",\"choices\":[{\"index\":%u,", piece->index);
    if (head->route == API_ROUTE_CHAT) {
        api_message_delta(head, piece, out);
    } else {
        put_text_member(piece->answer, out);
    }
    const struct api_logprobs *logprobs = piece->logprobs;
    api_logprobs_put(out, logprobs && logprobs->entry_count > 0 ? logprobs : NULL);
    put_choice_end(head, piece, finish, out);
    put_tail(head, piece, out);
}

void api_response_usage(const struct api_head *head, const struct api_usage *usage, struct buf *out)
{
    put_head(head, out);
    buf_append_text(out, ",\"choices\":[],\"usage\":");
    put_usage(usage, out);
    buf_append_char(out, '}');
}

void api_response_begin(const struct api_head *head, struct buf *out)
{
    put_head(head, out);
    buf_append_text(out, ",\"choices\":[");
}

void api_response_choice(const struct api_head *head, const struct api_piece *piece,
                         enum api_finish finish, struct buf *out)
{
    buf_printf(out, piece->index > 0 ? ",{\"index\":%u," : "{\"index\":%u,", piece->index);
    if (head->route == API_ROUTE_CHAT) {
        api_message_whole(head, piece, out);
    } else {
        put_text_member(piece->answer, out);
    }
    api_logprobs_put(out, piece->logprobs);
    put_choice_end(head, piece, finish, out);
    buf_append_char(out, '}');
}

void api_response_end(const struct api_head *head, const struct api_piece *first,
                      const struct api_usage *usage, struct buf *out)
{
    buf_append_char(out, ']');
    if (head->route == API_ROUTE_CHAT) {
        put_prompt(first, out);
    }
    buf_append_text(out, ",\"usage\":");
    put_usage(usage, out);
    buf_append_char(out, '}');
}
