/* Output tokens of a chat into content, reasoning and tool calls.
 *
 * Works on token ids for the markers of the chat format and on text for the rest, so that no marker
 * can leak and none can be forged by text.  What comes out piece by piece joins to what would come
 * out at once.  One per output; any one thread. */
#ifndef FRONTEND_CHAT_PARSE_H
#define FRONTEND_CHAT_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "frontend/detok.h"
#include "frontend/tokenizer.h"

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
    CHAT_PARSE_CALL, /* between a call's markers */
};

/* A complete call. */
struct chat_call {
    char *name;      /* owned; letters, digits, '_', '-', '.' */
    char *arguments; /* owned; a JSON object */
};

struct chat_parse {
    const struct chat_markers *markers; /* borrowed */
    enum chat_parse_state state;
    bool takes_calls;
    bool is_at_head; /* a channel's name may still come */
    struct detok detok;
    struct buf head;         /* text held back while it may be a channel's name */
    struct buf piece;        /* of one push */
    struct buf call;         /* text of the present call, CHAT_ARGS_QUOTE for each quote token */
    struct chat_call *calls; /* owned; [call_count], in order */
    uint32_t call_count;
    uint32_t call_cap;
};

/* Begins in REASONING where the prompt ends inside an open channel, in CONTENT otherwise.
 * takes_calls: tools were offered; without them a call's text is content. */
void chat_parse_init(struct chat_parse *parse, const struct chat_markers *markers,
                     const struct tokenizer *tokenizer, const uint32_t *prompt_ids,
                     size_t prompt_count, bool takes_calls);
void chat_parse_fini(struct chat_parse *parse);

/* Append the text that became certain, and take up calls that became complete.  True where the token
 * was part of the content: its text is in content now, or will be. */
bool chat_parse_push(struct chat_parse *parse, uint32_t token, struct buf *content,
                     struct buf *reasoning);

/* The output has ended: append what was held back.  A call that lacks its closing marker but is
 * otherwise whole counts; any other unfinished one is dropped. */
void chat_parse_finish(struct chat_parse *parse, struct buf *content, struct buf *reasoning);

#endif
