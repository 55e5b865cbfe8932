/* Gemma 4 opens its thoughts with <|channel>, the channel's name "thought" and a newline, and ends
 * them with <channel|>.  Some checkpoints drop the opener, so an output that begins with the name
 * counts as a thought, too. */
#include "frontend/chat_parse.h"

#include <string.h>

static const char channel_name[] = "thought\n";

enum {
    CHANNEL_NAME_BYTES = sizeof(channel_name) - 1
};

void chat_markers_find(const struct tokenizer *tokenizer, struct chat_markers *out_markers)
{
    out_markers->channel_open = tok_find(tokenizer, "<|channel>");
    out_markers->channel_close = tok_find(tokenizer, "<channel|>");
    out_markers->call_open = tok_find(tokenizer, "<|tool_call>");
    out_markers->call_close = tok_find(tokenizer, "<tool_call|>");
    out_markers->response_open = tok_find(tokenizer, "<|tool_response>");
    out_markers->turn_open = tok_find(tokenizer, "<|turn>");
    out_markers->turn_close = tok_find(tokenizer, "<turn|>");
}

/* The last marker of the prompt decides. */
static bool ends_in_open_channel(const struct chat_markers *markers, const uint32_t *ids,
                                 size_t count)
{
    for (size_t i = count; i > 0; i--) {
        uint32_t id = ids[i - 1];
        if (id == markers->channel_open) {
            return true;
        }
        if (id == markers->channel_close || id == markers->call_open || id == markers->call_close ||
            id == markers->response_open || id == markers->turn_open || id == markers->turn_close) {
            return false;
        }
    }
    return false;
}

void chat_parse_init(struct chat_parse *parse, const struct chat_markers *markers,
                     const struct tokenizer *tokenizer, const uint32_t *prompt_ids,
                     size_t prompt_count)
{
    memset(parse, 0, sizeof(*parse));
    parse->markers = markers;
    bool is_open = ends_in_open_channel(markers, prompt_ids, prompt_count);
    parse->state = is_open ? CHAT_PARSE_REASONING : CHAT_PARSE_CONTENT;
    parse->is_at_head = !is_open; /* such a prompt holds the channel's name already */
    detok_init(&parse->detok, tokenizer, true);
    buf_init(&parse->head);
    buf_init(&parse->piece);
}

void chat_parse_fini(struct chat_parse *parse)
{
    buf_fini(&parse->head);
    buf_fini(&parse->piece);
}

struct outputs {
    struct buf *content;
    struct buf *reasoning;
};

static void emit(struct chat_parse *parse, const char *text, size_t byte_count,
                 const struct outputs *outputs)
{
    if (byte_count > 0) {
        buf_append(parse->state == CHAT_PARSE_CONTENT ? outputs->content : outputs->reasoning, text,
                   byte_count);
    }
}

/* Text that came since the head began. */
static void take_head(struct chat_parse *parse, const struct outputs *outputs)
{
    const struct buf *head = &parse->head;
    size_t common_bytes =
        head->used_bytes < CHANNEL_NAME_BYTES ? head->used_bytes : CHANNEL_NAME_BYTES;
    bool matches = common_bytes == 0 || memcmp(head->at, channel_name, common_bytes) == 0;
    if (matches && head->used_bytes < CHANNEL_NAME_BYTES) {
        return; /* still undecided */
    }
    parse->is_at_head = false;
    size_t name_bytes = 0;
    if (matches) {
        parse->state = CHAT_PARSE_REASONING;
        name_bytes = CHANNEL_NAME_BYTES;
    }
    emit(parse, head->at + name_bytes, head->used_bytes - name_bytes, outputs);
    buf_reset(&parse->head);
}

static void take_piece(struct chat_parse *parse, const struct outputs *outputs)
{
    if (parse->piece.used_bytes == 0) {
        return;
    }
    if (parse->is_at_head) {
        buf_append(&parse->head, parse->piece.at, parse->piece.used_bytes);
        take_head(parse, outputs);
    } else {
        emit(parse, parse->piece.at, parse->piece.used_bytes, outputs);
    }
    buf_reset(&parse->piece);
}

/* A marker or the end: what is held back belongs to the state that ends here.  The bare name of a
 * channel is no text. */
static void end_segment(struct chat_parse *parse, const struct outputs *outputs)
{
    detok_finish(&parse->detok, &parse->piece);
    take_piece(parse, outputs);
    const struct buf *head = &parse->head;
    bool is_name = head->used_bytes == CHANNEL_NAME_BYTES - 1; /* undecided heads are prefixes */
    if (!is_name) {
        emit(parse, head->at, head->used_bytes, outputs);
    }
    parse->is_at_head = parse->is_at_head && head->used_bytes == 0;
    buf_reset(&parse->head);
}

bool chat_parse_push(struct chat_parse *parse, uint32_t token, struct buf *content,
                     struct buf *reasoning)
{
    const struct outputs outputs = {content, reasoning};
    if (token == parse->markers->channel_open) {
        end_segment(parse, &outputs);
        parse->state = CHAT_PARSE_REASONING;
        parse->is_at_head = true;
        return false;
    }
    if (token == parse->markers->channel_close || token == parse->markers->call_open ||
        token == parse->markers->call_close) {
        end_segment(parse, &outputs);
        parse->state = CHAT_PARSE_CONTENT;
        parse->is_at_head = false;
        return false;
    }
    bool is_text = !tok_is_special(parse->detok.tokenizer, token);
    detok_push(&parse->detok, token, &parse->piece);
    take_piece(parse, &outputs);
    return is_text && parse->state == CHAT_PARSE_CONTENT;
}

void chat_parse_finish(struct chat_parse *parse, struct buf *content, struct buf *reasoning)
{
    const struct outputs outputs = {content, reasoning};
    end_segment(parse, &outputs);
}
