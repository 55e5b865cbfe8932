/* What Gemma 4 writes, with its markers as single tokens:
 *
 *   <|channel>thought\n REASONING <channel|> CONTENT <|tool_call>call:NAME{ARGUMENTS}<tool_call|>
 *
 * Some checkpoints drop the opener of a thought, so an output that begins with the channel's name
 * counts as one, too. */
#include "frontend/chat_parse.h"

#include <ctype.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/chat_args.h"

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
    out_markers->quote = tok_find(tokenizer, "<|\"|>");
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
                     size_t prompt_count, bool takes_calls)
{
    memset(parse, 0, sizeof(*parse));
    parse->markers = markers;
    parse->takes_calls = takes_calls;
    bool is_open = ends_in_open_channel(markers, prompt_ids, prompt_count);
    parse->state = is_open ? CHAT_PARSE_REASONING : CHAT_PARSE_CONTENT;
    parse->is_at_head = !is_open; /* such a prompt holds the channel's name already */
    detok_init(&parse->detok, tokenizer, true);
    buf_init(&parse->head);
    buf_init(&parse->piece);
    buf_init(&parse->call);
}

void chat_parse_fini(struct chat_parse *parse)
{
    buf_fini(&parse->head);
    buf_fini(&parse->piece);
    buf_fini(&parse->call);
    for (uint32_t i = 0; i < parse->call_count; i++) {
        mem_free(parse->calls[i].name);
        mem_free(parse->calls[i].arguments);
    }
    mem_free(parse->calls);
}

struct outputs {
    struct buf *content;
    struct buf *reasoning;
};

static void emit(struct chat_parse *parse, const char *text, size_t byte_count,
                 const struct outputs *outputs)
{
    if (byte_count == 0) {
        return;
    }
    switch (parse->state) {
    case CHAT_PARSE_CONTENT: buf_append(outputs->content, text, byte_count); break;
    case CHAT_PARSE_REASONING: buf_append(outputs->reasoning, text, byte_count); break;
    case CHAT_PARSE_CALL: buf_append(&parse->call, text, byte_count); break;
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

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

static void add_call(struct chat_parse *parse, const char *name, size_t name_bytes,
                     const char *args, size_t arg_bytes)
{
    struct buf json;
    buf_init(&json);
    chat_args_to_json(args, arg_bytes, &json);
    if (parse->call_count == parse->call_cap) {
        parse->call_cap = parse->call_cap == 0 ? 4 : parse->call_cap * 2;
        parse->calls = mem_realloc(parse->calls, parse->call_cap, sizeof(*parse->calls));
    }
    struct chat_call *call = &parse->calls[parse->call_count++];
    call->name = mem_zalloc(name_bytes + 1, 1);
    memcpy(call->name, name, name_bytes);
    call->arguments = mem_strdup(buf_text(&json));
    buf_fini(&json);
}

/* call:NAME{ARGUMENTS}, with or without the word; a call that reads otherwise is dropped. */
static void end_call(struct chat_parse *parse)
{
    const char *text = buf_text(&parse->call);
    const char *end = text + parse->call.used_bytes;
    const char *name = text + strspn(text, " \n\t");
    name += strncmp(name, "call", 4) == 0 && name[4] == ':' ? 4 : 0;
    name += *name == ':';
    const char *brace = name;
    while (is_name_char(*brace)) {
        brace++;
    }
    while (end > brace && end[-1] != '}') {
        end--;
    }
    if (brace > name && *brace == '{' && end > brace + 1) {
        add_call(parse, name, (size_t)(brace - name), brace + 1, (size_t)(end - brace - 2));
    }
    buf_reset(&parse->call);
}

/* Every bracket outside strings is closed: only the closing marker is missing. */
static bool is_call_whole(const struct chat_parse *parse)
{
    const struct buf *call = &parse->call;
    int64_t depth = 0;
    bool is_in_string = false;
    bool has_bracket = false;
    for (size_t i = 0; i < call->used_bytes; i++) {
        char c = call->at[i];
        is_in_string ^= c == CHAT_ARGS_QUOTE;
        bool opens = !is_in_string && (c == '{' || c == '[');
        bool closes = !is_in_string && (c == '}' || c == ']');
        has_bracket = has_bracket || opens;
        depth += opens - closes;
    }
    return has_bracket && depth == 0 && !is_in_string;
}

/* A marker that begins the state to. */
static void change_state(struct chat_parse *parse, enum chat_parse_state to,
                         const struct outputs *outputs)
{
    end_segment(parse, outputs);
    if (parse->state == CHAT_PARSE_CALL) {
        end_call(parse);
    }
    parse->state = to;
    parse->is_at_head = to == CHAT_PARSE_REASONING;
}

bool chat_parse_push(struct chat_parse *parse, uint32_t token, struct buf *content,
                     struct buf *reasoning)
{
    const struct outputs outputs = {content, reasoning};
    const struct chat_markers *markers = parse->markers;
    if (token == markers->channel_open) {
        change_state(parse, CHAT_PARSE_REASONING, &outputs);
        return false;
    }
    if (token == markers->call_open) {
        change_state(parse, parse->takes_calls ? CHAT_PARSE_CALL : CHAT_PARSE_CONTENT, &outputs);
        return false;
    }
    if (token == markers->channel_close || token == markers->call_close) {
        change_state(parse, CHAT_PARSE_CONTENT, &outputs);
        return false;
    }
    if (token == markers->quote && parse->state == CHAT_PARSE_CALL) {
        end_segment(parse, &outputs);
        buf_append_char(&parse->call, CHAT_ARGS_QUOTE);
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
    if (parse->state == CHAT_PARSE_CALL && is_call_whole(parse)) {
        end_call(parse);
    }
}
