/* Beginnings of an output's runs: a channel's name, the head of a tool call.  Pure. */
#ifndef FRONTEND_CHAT_HEADS_H
#define FRONTEND_CHAT_HEADS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"

struct json_t;

enum chat_head_kind {
    CHAT_HEAD_NONE,    /* ordinary text */
    CHAT_HEAD_OPEN,    /* may become one of the others */
    CHAT_HEAD_CHANNEL, /* "thought\n" */
    CHAT_HEAD_CALL,    /* up to its opening brace */
};

struct chat_head {
    size_t byte_count; /* of the head; what follows is no part of it */
    const char *name;  /* of the tool; borrowed from the text */
    size_t name_bytes;
};

/* What a text begins with that no marker announced.  tools: those whose calls count; null: none. */
enum chat_head_kind chat_heads_match(const struct buf *text, bool has_channel,
                                     const struct json_t *tools, struct chat_head *out_head);
/* Behind a call's marker: call:NAME{ with or without the word, for any name. */
enum chat_head_kind chat_heads_match_call(const struct buf *text, struct chat_head *out_head);

/* The channel's name alone. */
bool chat_heads_is_name(const struct buf *text);

/* Schema of the arguments of the tool of that name, null where there is none. */
const struct json_t *chat_heads_schema(const struct json_t *tools, const char *name);

#endif
