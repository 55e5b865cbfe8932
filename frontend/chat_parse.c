/* What Gemma 4 writes, with its markers as single tokens:
 *
 *   <|channel>thought\n REASONING <channel|> CONTENT <|tool_call>call:NAME{ARGUMENTS}<tool_call|>
 *
 * Some checkpoints drop the opener of a thought or of a call, so an output that begins with the
 * channel's name counts as a thought, and content that begins with the call of a tool as one. */
#include "frontend/chat_parse.h"

#include <assert.h>
#include <string.h>

#include "common/json.h"
#include "frontend/chat_heads.h"

enum {
    MAX_SPACE_BYTES = 256, /* of white space held back because a call may follow */
    MAX_TAIL_BYTES = 64,   /* behind a call's arguments; more is content */
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

/* The last marker of the prompt, TOK_NONE where it has none. */
static uint32_t last_marker(const struct chat_markers *markers, const uint32_t *ids, size_t count)
{
    for (size_t i = count; i > 0; i--) {
        uint32_t id = ids[i - 1];
        if (id == markers->channel_open || id == markers->channel_close ||
            id == markers->call_open || id == markers->call_close || id == markers->response_open ||
            id == markers->turn_open || id == markers->turn_close) {
            return id;
        }
    }
    return TOK_NONE;
}

void chat_parse_init(struct chat_parse *parse, const struct chat_markers *markers,
                     const struct tokenizer *tokenizer, const uint32_t *prompt_ids,
                     size_t prompt_count, const struct json_t *tools)
{
    memset(parse, 0, sizeof(*parse));
    parse->markers = markers;
    parse->tools = tools ? json_retain(tools) : NULL;
    uint32_t marker = last_marker(markers, prompt_ids, prompt_count);
    bool is_open = marker != TOK_NONE && marker == markers->channel_open;
    bool is_closed = marker != TOK_NONE && marker == markers->channel_close;
    parse->state = is_open ? CHAT_PARSE_REASONING : CHAT_PARSE_CONTENT;
    parse->is_at_head = !is_open; /* such a prompt holds the channel's name already */
    parse->can_open_channel = !is_open && !is_closed;
    detok_init(&parse->detok, tokenizer, true);
    buf_init(&parse->held);
    buf_init(&parse->piece);
    buf_init(&parse->name);
    buf_init(&parse->json);
    chat_args_init(&parse->args, NULL);
}

void chat_parse_fini(struct chat_parse *parse)
{
    json_release(parse->tools);
    buf_fini(&parse->held);
    buf_fini(&parse->piece);
    buf_fini(&parse->name);
    buf_fini(&parse->json);
    chat_args_fini(&parse->args);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void put_content(struct chat_parse *parse, const char *text, size_t byte_count,
                        struct answer *answer)
{
    answer_put(answer, ANSWER_CONTENT, 0, text, byte_count);
    parse->is_behind_call = parse->is_behind_call && byte_count == 0;
}

static void begin_call(struct chat_parse *parse, const struct chat_head *head)
{
    buf_reset(&parse->name);
    buf_append(&parse->name, head->name, head->name_bytes);
    chat_args_fini(&parse->args);
    chat_args_init(&parse->args, chat_heads_schema(parse->tools, buf_text(&parse->name)));
    parse->state = CHAT_PARSE_CALL_ARGS;
    parse->is_at_head = false;
    parse->has_begun = false;
}

/* What has become of the arguments; the call itself goes out with their first byte. */
static void put_arguments(struct chat_parse *parse, struct answer *answer)
{
    const struct buf *json = &parse->json;
    if (json->used_bytes > 0 && !parse->has_begun) {
        answer_put(answer, ANSWER_CALL, parse->call_count, buf_text(&parse->name),
                   parse->name.used_bytes);
        parse->has_begun = true;
        parse->call_count++;
    }
    if (json->used_bytes > 0) {
        answer_put(answer, ANSWER_ARGUMENTS, parse->call_count - 1, json->at, json->used_bytes);
    }
    buf_reset(&parse->json);
}

static void end_call(struct chat_parse *parse, struct answer *answer)
{
    assert(parse->has_begun);
    answer_put(answer, ANSWER_CALL_END, parse->call_count - 1, NULL, 0);
    parse->whole_count++;
    parse->is_behind_call = true;
    parse->state = CHAT_PARSE_CALL_TAIL;
}

/* Each step takes what it can of the held text and says how much; a change of state or of
 * is_at_head is progress, too. */

static size_t step_head(struct chat_parse *parse)
{
    struct chat_head head = {0};
    bool has_channel = parse->state == CHAT_PARSE_REASONING || parse->can_open_channel;
    bool has_calls = parse->state == CHAT_PARSE_CONTENT && parse->tools;
    switch (chat_heads_match(&parse->held, has_channel, has_calls ? parse->tools : NULL, &head)) {
    case CHAT_HEAD_OPEN: return 0;
    case CHAT_HEAD_CHANNEL:
        parse->state = CHAT_PARSE_REASONING;
        parse->is_at_head = false;
        break;
    case CHAT_HEAD_CALL: begin_call(parse, &head); break;
    case CHAT_HEAD_NONE: parse->is_at_head = false; break;
    }
    parse->can_open_channel = false;
    return head.byte_count;
}

static size_t step_content(struct chat_parse *parse, struct answer *answer)
{
    const struct buf *held = &parse->held;
    size_t count = held->used_bytes;
    while (parse->tools && count > 0 && is_space(held->at[count - 1])) {
        count--;
    }
    if (held->used_bytes - count > MAX_SPACE_BYTES) {
        count = held->used_bytes;
    }
    put_content(parse, held->at, count, answer);
    return count;
}

/* The newline before the closing marker belongs to the marker. */
static size_t step_reasoning(const struct chat_parse *parse, struct answer *answer)
{
    const struct buf *held = &parse->held;
    size_t count = held->used_bytes;
    count -= count > 0 && held->at[count - 1] == '\n';
    answer_put(answer, ANSWER_REASONING, 0, held->at, count);
    return count;
}

static size_t step_call_head(struct chat_parse *parse)
{
    struct chat_head head = {0};
    switch (chat_heads_match_call(&parse->held, &head)) {
    case CHAT_HEAD_CALL: begin_call(parse, &head); break;
    case CHAT_HEAD_CHANNEL:
    case CHAT_HEAD_NONE: parse->state = CHAT_PARSE_CONTENT; break; /* text behind a stray marker */
    case CHAT_HEAD_OPEN: break;
    }
    return head.byte_count;
}

static size_t step_args(struct chat_parse *parse, struct answer *answer)
{
    const struct buf *held = &parse->held;
    size_t count = chat_args_push(&parse->args, held->at, held->used_bytes, &parse->json);
    put_arguments(parse, answer);
    if (parse->args.state == CHAT_ARGS_CLOSED) {
        end_call(parse, answer);
    }
    return count;
}

static size_t step(struct chat_parse *parse, struct answer *answer)
{
    switch (parse->state) {
    case CHAT_PARSE_CONTENT:
        return parse->is_at_head ? step_head(parse) : step_content(parse, answer);
    case CHAT_PARSE_REASONING:
        return parse->is_at_head ? step_head(parse) : step_reasoning(parse, answer);
    case CHAT_PARSE_CALL_HEAD: return step_call_head(parse);
    case CHAT_PARSE_CALL_ARGS: return step_args(parse, answer);
    case CHAT_PARSE_CALL_TAIL:
        if (parse->held.used_bytes > MAX_TAIL_BYTES) {
            parse->state = CHAT_PARSE_CONTENT;
            parse->is_at_head = true;
        }
        return 0;
    }
    return 0;
}

static void drop_held(struct chat_parse *parse, size_t byte_count)
{
    struct buf *held = &parse->held;
    memmove(held->at, held->at + byte_count, held->used_bytes - byte_count);
    buf_truncate(held, held->used_bytes - byte_count);
}

static void take_held(struct chat_parse *parse, struct answer *answer)
{
    bool has_progress = true;
    while (has_progress && parse->held.used_bytes > 0) {
        enum chat_parse_state state = parse->state;
        bool was_at_head = parse->is_at_head;
        size_t count = step(parse, answer);
        if (count > 0) {
            drop_held(parse, count);
        }
        has_progress = count > 0 || parse->state != state || parse->is_at_head != was_at_head;
    }
}

static void take_piece(struct chat_parse *parse, struct answer *answer)
{
    if (parse->piece.used_bytes > 0) {
        buf_append(&parse->held, parse->piece.at, parse->piece.used_bytes);
        buf_reset(&parse->piece);
        take_held(parse, answer);
    }
}

/* What ends a run of text. */
enum boundary {
    BOUNDARY_CHANNEL,
    BOUNDARY_CALL,
    BOUNDARY_CALL_CLOSE,
    BOUNDARY_END, /* of the output */
};

static bool is_only_brackets(const struct buf *text)
{
    return strspn(buf_text(text), " \n\t\r{}[](),") == text->used_bytes;
}

static void end_content(struct chat_parse *parse, enum boundary boundary, struct answer *answer)
{
    const struct buf *held = &parse->held;
    bool is_name = parse->is_at_head && parse->can_open_channel && chat_heads_is_name(held);
    bool is_separator = !parse->is_at_head && (boundary == BOUNDARY_CALL ||
                                               (boundary == BOUNDARY_END && parse->is_behind_call));
    if (!is_name && !is_separator) {
        put_content(parse, buf_text(held), held->used_bytes, answer);
    }
}

static void end_reasoning(struct chat_parse *parse, enum boundary boundary, struct answer *answer)
{
    const struct buf *held = &parse->held;
    bool is_name = parse->is_at_head && chat_heads_is_name(held);
    bool is_newline = !parse->is_at_head && boundary != BOUNDARY_END;
    if (!is_name && !is_newline) {
        answer_put(answer, ANSWER_REASONING, 0, buf_text(held), held->used_bytes);
    }
}

/* What is held back belongs to the state that ends here. */
static void end_run(struct chat_parse *parse, enum boundary boundary, struct answer *answer)
{
    detok_finish(&parse->detok, &parse->piece);
    take_piece(parse, answer);
    if (parse->state == CHAT_PARSE_CALL_TAIL && boundary != BOUNDARY_CALL_CLOSE &&
        !is_only_brackets(&parse->held)) {
        parse->state = CHAT_PARSE_CONTENT;
        parse->is_at_head = true;
        take_held(parse, answer);
    }
    switch (parse->state) {
    case CHAT_PARSE_CONTENT: end_content(parse, boundary, answer); break;
    case CHAT_PARSE_REASONING: end_reasoning(parse, boundary, answer); break;
    case CHAT_PARSE_CALL_ARGS:
        if (boundary != BOUNDARY_END) { /* the model is done with it, brackets or not */
            chat_args_close(&parse->args, &parse->json);
            put_arguments(parse, answer);
            end_call(parse, answer);
        }
        break;
    case CHAT_PARSE_CALL_HEAD:
    case CHAT_PARSE_CALL_TAIL: break;
    }
    buf_reset(&parse->held);
}

static void push_quote(struct chat_parse *parse, struct answer *answer)
{
    static const char quote = CHAT_ARGS_QUOTE;
    detok_finish(&parse->detok, &parse->piece);
    take_piece(parse, answer);
    if (parse->state == CHAT_PARSE_CALL_HEAD) {
        parse->state = CHAT_PARSE_CONTENT;
        take_held(parse, answer);
    } else if (parse->state == CHAT_PARSE_CALL_ARGS) {
        (void)chat_args_push(&parse->args, &quote, 1, &parse->json); /* closes nothing */
        put_arguments(parse, answer);
    }
}

static bool push_marker(struct chat_parse *parse, uint32_t token, struct answer *answer)
{
    const struct chat_markers *markers = parse->markers;
    if (token == markers->channel_open) {
        end_run(parse, BOUNDARY_CHANNEL, answer);
        parse->state = CHAT_PARSE_REASONING;
        parse->is_at_head = true;
    } else if (token == markers->channel_close) {
        end_run(parse, BOUNDARY_CHANNEL, answer);
        parse->state = CHAT_PARSE_CONTENT;
        parse->is_at_head = true;
    } else if (token == markers->call_open) {
        end_run(parse, parse->tools ? BOUNDARY_CALL : BOUNDARY_CHANNEL, answer);
        parse->state = parse->tools ? CHAT_PARSE_CALL_HEAD : CHAT_PARSE_CONTENT;
        parse->is_at_head = false;
    } else if (token == markers->call_close) {
        end_run(parse, BOUNDARY_CALL_CLOSE, answer);
        parse->state = CHAT_PARSE_CONTENT;
        parse->is_at_head = true;
    } else if (token == markers->quote) {
        push_quote(parse, answer);
        return true;
    } else {
        return false;
    }
    parse->can_open_channel = false;
    return true;
}

bool chat_parse_push(struct chat_parse *parse, uint32_t token, struct answer *answer)
{
    if (push_marker(parse, token, answer)) {
        return false;
    }
    bool is_text = !tok_is_special(parse->detok.tokenizer, token);
    detok_push(&parse->detok, token, &parse->piece);
    take_piece(parse, answer);
    return is_text && parse->state == CHAT_PARSE_CONTENT;
}

void chat_parse_finish(struct chat_parse *parse, struct answer *answer)
{
    end_run(parse, BOUNDARY_END, answer);
}
