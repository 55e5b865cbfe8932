#include "frontend/api_logprobs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"

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

/* Characters that the token adds to the output. */
static uint32_t count_chars(const struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                            uint32_t token, const struct token_text *text)
{
    uint32_t count = 0;
    if (logprobs->skips_special && tokenizer && tok_is_special(tokenizer, token)) {
        return 0;
    }
    for (uint32_t i = 0; i < text->byte_count; i++) {
        count += ((unsigned char)text->at[i] & 0xC0U) != 0x80U;
    }
    return count;
}

/* Token and offset; the values follow. */
static void begin_completion(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                             uint32_t token)
{
    const char *comma = logprobs->entry_count > 0 ? "," : "";
    struct token_text text;
    read_token(tokenizer, token, &text);
    buf_append_text(&logprobs->tokens, comma);
    json_put_text(&logprobs->tokens, text.at, text.byte_count);
    buf_append_text(&logprobs->values, comma);
    buf_append_text(&logprobs->tops, comma);
    buf_printf(&logprobs->offsets, "%s%u", comma, logprobs->text_offset_chars);
    logprobs->text_offset_chars += count_chars(logprobs, tokenizer, token, &text);
}

static void add_completion(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                           const struct engine_event *event, uint32_t pair_count)
{
    begin_completion(logprobs, tokenizer, event->token);
    put_logprob(&logprobs->values, event->logprob);
    buf_append_char(&logprobs->tops, '{');
    for (uint32_t i = 0; i < pair_count; i++) {
        struct token_text text;
        read_token(tokenizer, event->ids[i], &text);
        buf_append_text(&logprobs->tops, i > 0 ? "," : "");
        json_put_text(&logprobs->tops, text.at, text.byte_count);
        buf_append_char(&logprobs->tops, ':');
        put_logprob(&logprobs->tops, event->logprobs[i]);
    }
    buf_append_char(&logprobs->tops, '}');
}

void api_logprobs_add_first(struct api_logprobs *logprobs, const struct tokenizer *tokenizer,
                            uint32_t token, bool is_shown)
{
    begin_completion(logprobs, tokenizer, token);
    buf_append_text(&logprobs->values, "null");
    buf_append_text(&logprobs->tops, "null");
    logprobs->text_offset_chars = is_shown ? logprobs->text_offset_chars : 0;
    logprobs->entry_count++;
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

void api_logprobs_put(struct buf *out, const struct api_logprobs *logprobs)
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

static void put_ranked(struct buf *out, const struct tokenizer *tokenizer, uint32_t token,
                       float logprob, uint32_t rank)
{
    struct token_text text;
    read_token(tokenizer, token, &text);
    buf_printf(out, "\"%u\":{\"logprob\":", token);
    put_logprob(out, logprob);
    buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
    json_put_text(out, text.at, text.byte_count);
    buf_append_char(out, '}');
}

void api_prompt_logprobs_add(struct buf *out, const struct tokenizer *tokenizer,
                             const struct engine_event *event, uint32_t pair_count)
{
    buf_append_text(out, ",{");
    put_ranked(out, tokenizer, event->token, event->logprob, event->rank);
    for (uint32_t i = 0; i < pair_count && i < event->pair_count; i++) {
        if (event->ids[i] != event->token) {
            buf_append_char(out, ',');
            put_ranked(out, tokenizer, event->ids[i], event->logprobs[i], i + 1);
        }
    }
    buf_append_char(out, '}');
}
