/* Output tokens of a chat into the parts of an answer: content, reasoning, tool calls.
 *
 * Works on token ids for the markers of the chat format and on text for the rest, so that no marker
 * can leak and none can be forged by text.  Parts go out as soon as they are certain, and what comes
 * out piece by piece joins to what would come out at once.  What is held back is bounded.  One per
 * output; one thread at a time. */
#ifndef FRONTEND_CHAT_PARSE_H
#define FRONTEND_CHAT_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/answer.h"
#include "frontend/chat_args.h"
#include "frontend/detok.h"
#include "frontend/tokenizer.h"

struct json_t;

/* Ids of the markers, TOK_NONE where the tokenizer has none. */
struct chat_markers {
    uint32_t channel_open;
    uint32_t channel_close;
    uint32_t call_open;
    uint32_t call_close;
    uint32_t response_open;
    uint32_t quote;
    uint32_t turn_open;
    uint32_t turn_close;
};
void chat_markers_find(const struct tokenizer *tokenizer, struct chat_markers *out_markers);

enum chat_parse_state {
    CHAT_PARSE_CONTENT,
    CHAT_PARSE_REASONING,
    CHAT_PARSE_CALL_HEAD, /* "call:NAME" up to its brace */
    CHAT_PARSE_CALL_ARGS,
    CHAT_PARSE_CALL_TAIL, /* behind the arguments, up to the closing marker */
};

struct chat_parse {
    const struct chat_markers *markers; /* borrowed */
    struct json_t *tools;               /* shared, counted; null: a call's text is content */
    enum chat_parse_state state;
    bool is_at_head;       /* the channel's name, or a call without its marker, may still come */
    bool can_open_channel; /* the output may begin with a channel's name */
    bool is_behind_call;   /* no content since */
    bool has_begun;        /* the present call has gone out, in part */
    struct detok detok;
    struct buf held;       /* text not yet certain */
    struct buf piece;      /* of one token */
    struct buf name;       /* of the present call */
    struct buf json;       /* of its arguments, of one token */
    struct chat_args args; /* of the present call */
    uint32_t call_count;   /* begun in the answer */
    uint32_t whole_count;  /* of these ended */
};

/* Begins in REASONING where the prompt ends inside an open channel, in CONTENT otherwise.
 * tools: those offered, as in the request; null where none are. */
void chat_parse_init(struct chat_parse *parse, const struct chat_markers *markers,
                     const struct tokenizer *tokenizer, const uint32_t *prompt_ids,
                     size_t prompt_count, const struct json_t *tools);
void chat_parse_fini(struct chat_parse *parse);

/* Append the parts that became certain.  True where the token was part of the content: its text is
 * in the content now, or will be. */
bool chat_parse_push(struct chat_parse *parse, uint32_t token, struct answer *answer);

/* The output has ended: append what was held back.  A call that is cut off stays incomplete, and one
 * of which nothing is certain yet is dropped. */
void chat_parse_finish(struct chat_parse *parse, struct answer *answer);

#endif
