#include "frontend/api_response.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/answer.h"
#include "frontend/api_message.h"

void api_logprobs_init(struct api_logprobs *logprobs, enum api_route route)
{
    memset(logprobs, 0, sizeof(*logprobs));
    logprobs->route = route;
    buf_init(&logprobs->content);
    buf_init(&logprobs->tokens);
    buf_init(&logprobs->values);
    buf_init(&logprobs->tops);
    buf_init(&logprobs->offsets);
}

void api_logprobs_fini(struct api_logprobs *logprobs)
{
    buf_fini(&logprobs->content);
    buf_fini(&logprobs->tokens);
    buf_fini(&logprobs->values);
    buf_fini(&logprobs->tops);
    buf_fini(&logprobs->offsets);
}

void api_logprobs_reset(struct api_logprobs *logprobs)
{
    logprobs->entry_count = 0;
    buf_reset(&logprobs->content);
    buf_reset(&logprobs->tokens);
    buf_reset(&logprobs->values);
    buf_reset(&logprobs->tops);
    buf_reset(&logprobs->offsets);
}

struct token_text {
    const char *at;
    uint32_t byte_count;
    char id_text[24];
};

static void read_token(const struct tokenizer *tokenizer, uint32_t id, struct token_text *out_text)
{
    out_text->byte_count = 0;
    out_text->at = tokenizer ? tok_bytes(tokenizer, id, &out_text->byte_count) : NULL;
    if (!out_text->at) {
        int count = snprintf(out_text->id_text, sizeof(out_text->id_text), "token_id:%u", id);
        out_text->at = out_text->id_text;
        out_text->byte_count = (uint32_t)count;
    }
}

/* JSON has no infinities; clients expect a very small number in their place. */
static void put_logprob(struct buf *out, float logprob)
{
    double value = isfinite(logprob) ? (double)logprob : -9999.0;
    json_put_f64(out, value);
}

static void put_chat_token(struct buf *out, const struct token_text *text, float logprob)
{
    buf_append_text(out, "{\"token\":");
    json_put_text(out, text->at, text->byte_count);
    buf_append_text(out, ",\"logprob\":");
    put_logprob(out, logprob);
    buf_append_text(out, ",\"bytes\":[");
    for (uint32_t i = 0; i < text->byte_count; i++) {
        buf_printf(out, i > 0 ? ",%u" : "%u", (unsigned char)text->at[i]);
    }
    buf_append_char(out, ']');
}

static void add_chat(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                     const struct engine_event *event, uint32_t pair_count)
{
    struct buf *out = &logprobs->content;
    struct token_text text;
    read_token(tokenizer, event->token, &text);
    buf_append_text(out, logprobs->entry_count > 0 ? "," : "");
    put_chat_token(out, &text, event->logprob);
    buf_append_text(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < pair_count; i++) {
        read_token(tokenizer, event->ids[i], &text);
        buf_append_text(out, i > 0 ? "," : "");
        put_chat_token(out, &text, event->logprobs[i]);
        buf_append_char(out, '}');
    }
    buf_append_text(out, "]}");
}

static uint32_t count_chars(const struct token_text *text)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < text->byte_count; i++) {
        count += ((unsigned char)text->at[i] & 0xC0U) != 0x80U;
    }
    return count;
}

static void add_completion(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                           const struct engine_event *event, uint32_t pair_count)
{
    const char *comma = logprobs->entry_count > 0 ? "," : "";
    struct token_text text;
    read_token(tokenizer, event->token, &text);
    buf_append_text(&logprobs->tokens, comma);
    json_put_text(&logprobs->tokens, text.at, text.byte_count);
    buf_append_text(&logprobs->values, comma);
    put_logprob(&logprobs->values, event->logprob);
    buf_printf(&logprobs->offsets, "%s%u", comma, logprobs->text_offset_chars);
    logprobs->text_offset_chars += count_chars(&text);
    buf_printf(&logprobs->tops, "%s{", comma);
    for (uint32_t i = 0; i < pair_count; i++) {
        read_token(tokenizer, event->ids[i], &text);
        buf_append_text(&logprobs->tops, i > 0 ? "," : "");
        json_put_text(&logprobs->tops, text.at, text.byte_count);
        buf_append_char(&logprobs->tops, ':');
        put_logprob(&logprobs->tops, event->logprobs[i]);
    }
    buf_append_char(&logprobs->tops, '}');
}

void api_logprobs_add(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                      const struct engine_event *event, uint32_t pair_count)
{
    uint32_t shown = pair_count < event->pair_count ? pair_count : event->pair_count;
    if (logprobs->route == API_ROUTE_CHAT) {
        add_chat(logprobs, tokenizer, event, shown);
    } else {
        add_completion(logprobs, tokenizer, event, shown);
    }
    logprobs->entry_count++;
}

static void put_buf(struct buf *out, const struct buf *text)
{
    if (text->used_bytes > 0) {
        buf_append(out, text->at, text->used_bytes);
    }
}

static void put_logprobs(struct buf *out, const struct api_logprobs *logprobs)
{
    buf_append_text(out, ",\"logprobs\":");
    if (!logprobs || (logprobs->entry_count == 0 && logprobs->route == API_ROUTE_COMPLETIONS)) {
        buf_append_text(out, "null");
    } else if (logprobs->route == API_ROUTE_CHAT) {
        buf_append_text(out, "{\"content\":[");
        put_buf(out, &logprobs->content);
        buf_append_text(out, "],\"refusal\":null}");
    } else {
        buf_append_text(out, "{\"tokens\":[");
        put_buf(out, &logprobs->tokens);
        buf_append_text(out, "],\"token_logprobs\":[");
        put_buf(out, &logprobs->values);
        buf_append_text(out, "],\"top_logprobs\":[");
        put_buf(out, &logprobs->tops);
        buf_append_text(out, "],\"text_offset\":[");
        put_buf(out, &logprobs->offsets);
        buf_append_text(out, "]}");
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

static void put_token_ids(struct buf *out, const struct buf *token_ids)
{
    if (token_ids) {
        buf_append_text(out, ",\"token_ids\":[");
        put_buf(out, token_ids);
        buf_append_char(out, ']');
    }
}

static void put_tail(const struct api_head *head, struct buf *out)
{
    buf_append_text(out, head->wants_usage ? "}],\"usage\":null}" : "}]}");
}

void api_response_role(const struct api_head *head, uint32_t index, struct buf *out)
{
    put_head(head, out);
    buf_printf(out,
               ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":"
               "\"\"},\"logprobs\":null,\"finish_reason\":null",
               index);
    put_tail(head, out);
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
    put_logprobs(out, logprobs && logprobs->entry_count > 0 ? logprobs : NULL);
    put_token_ids(out, piece->token_ids);
    put_finish(out, finish);
    put_tail(head, out);
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
    put_logprobs(out, piece->logprobs);
    put_token_ids(out, piece->token_ids);
    put_finish(out, finish);
    buf_append_char(out, '}');
}

void api_response_end(const struct api_usage *usage, struct buf *out)
{
    buf_append_text(out, "],\"usage\":");
    put_usage(usage, out);
    buf_append_char(out, '}');
}
