/* Other APIs over the one internal request: their bodies into that of chat completions, the parts of
 * an answer into their bodies and events.
 *
 * A dialect is a table of functions.  What it writes to a stream is framed already.  Pure but for
 * the state of one stream: one thread at a time. */
#ifndef FRONTEND_DIALECT_H
#define FRONTEND_DIALECT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "frontend/answer.h"
#include "frontend/api_error.h"
#include "frontend/api_response.h"

struct json_t;

/* One answer on its way out; zeroes before. */
struct dialect_state {
    bool has_begun;
    bool is_open;            /* a block is */
    struct answer_part open; /* its first part's kind and call */
    uint32_t block_index;    /* of the open one, or of the next */
};

struct dialect_end {
    enum api_finish finish;
    const struct api_usage *usage;
    const struct api_stop_reason *stop_reason; /* null: none known */
};

struct dialect {
    const char *id_prefix; /* of the answer's id */
    const char *route_name;
    /* Append the body of the chat completion that the body asks for.  Errors: ERR_ARGUMENT,
     * ERR_UNSUPPORTED; error names the field. */
    enum err_code (*to_chat)(const struct json_t *body, struct buf *out, struct api_error *error);
    /* Append events: before the first piece, for a piece, behind the last. */
    void (*begin)(struct dialect_state *state, const struct api_head *head,
                  const struct api_usage *usage, struct buf *out);
    void (*piece)(struct dialect_state *state, const struct api_head *head,
                  const struct api_piece *piece, struct buf *out);
    void (*end)(struct dialect_state *state, const struct api_head *head,
                const struct dialect_end *end, struct buf *out);
    /* Append the body of an answer that is not streamed. */
    void (*whole)(const struct api_head *head, const struct api_piece *piece,
                  const struct dialect_end *end, struct buf *out);
    void (*error_body)(const struct api_error *error, struct buf *out);
    void (*error_event)(const struct api_error *error, struct buf *out);
};
extern const struct dialect dialect_messages; /* Anthropic's */

/* Parts that make one block: a run of text or a call. */
struct dialect_block {
    enum answer_kind kind; /* CONTENT, REASONING or CALL */
    uint32_t call_index;
    const char *text; /* borrowed: the text, or the call's arguments; not terminated */
    size_t byte_count;
    const char *name; /* CALL; borrowed, not terminated */
    size_t name_bytes;
    bool is_whole; /* CALL: its arguments are complete */
};
/* The block from part *at on, which moves behind it; false at the end. */
bool dialect_next_block(const struct answer *answer, uint32_t *at, struct dialect_block *out_block);

/* Whether the part goes on with the open block. */
bool dialect_continues(const struct dialect_state *state, const struct answer_part *part);

/* "event: <name>\ndata: <json>\n\n" */
void dialect_put_event(const char *name, const struct buf *json, struct buf *out);

/* object[name], null where it is absent or a JSON null. */
const struct json_t *dialect_given(const struct json_t *object, const char *name);
/* Its text, null where it is none. */
const char *dialect_text(const struct json_t *object, const char *name);
/* Append ,"as":<value> where the object has the member. */
void dialect_copy(const struct json_t *object, const char *name, const char *as, struct buf *out);
void dialect_put_string(const char *text, struct buf *out);

/* Append the texts of content, a string or a list of parts with a "text", to out.
 * Errors: ERR_UNSUPPORTED names the type of a part without text. */
ERR_NODISCARD enum err_code dialect_join_text(const struct json_t *content, const char *param,
                                              struct buf *out, struct api_error *error);

/* An assistant's turn that gathers until another's begins. */
struct dialect_turn {
    struct buf content;
    struct buf reasoning;
    struct buf calls; /* elements of tool_calls */
    bool is_open;
};
void dialect_turn_init(struct dialect_turn *turn);
void dialect_turn_fini(struct dialect_turn *turn);
/* arguments: an object, or the JSON text of one. */
void dialect_turn_add_call(struct dialect_turn *turn, const char *id, const char *name,
                           const struct json_t *arguments);
/* Append the message, if one is open, and be empty. */
void dialect_turn_flush(struct dialect_turn *turn, struct buf *messages);
/* Append a message of the role with that text; id: of the call it answers, or null. */
void dialect_put_message(const char *role, const struct buf *text, const char *call_id,
                         struct buf *messages);

#endif
