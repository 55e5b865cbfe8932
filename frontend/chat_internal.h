/* Shared by the files of chat_render: where a value lies, how text and values are put. */
#ifndef FRONTEND_CHAT_INTERNAL_H
#define FRONTEND_CHAT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/json.h"
#include "frontend/chat_render.h"

/* Way from the request down to a value, for messages; lives on the stack. */
struct chat_path {
    const struct chat_path *up; /* null at the top */
    const char *key;            /* null: an element */
    size_t index;
};

/* "<path> <format>" */
enum err_code chat_refuse(struct err *err, enum err_code code, const struct chat_path *path,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ERR_ARGUMENT: "<path> is <kind>, not <wanted>". */
enum err_code chat_refuse_kind(struct err *err, const struct chat_path *path,
                               const struct json_t *value, const char *wanted);

/* chat_text.c */
void chat_put_control(struct chat_prompt *prompt, const char *control); /* one special string */
void chat_put_text(struct chat_prompt *prompt, const char *text, size_t byte_count);
void chat_put_literal(struct chat_prompt *prompt, const char *literal);
void chat_put_quoted(struct chat_prompt *prompt, const char *text, size_t byte_count);

struct chat_slice {
    const char *at;
    size_t byte_count;
};
/* Python's str.strip(): Unicode white space off both ends. */
struct chat_slice chat_trim(const char *text, size_t byte_count);
/* Python's str.lower(), but for the final sigma, which stays a medial one. */
void chat_put_lower(struct buf *out, const char *text, size_t byte_count);

/* chat_value.c: values as the templates see them.  Absent values are null pointers. */
struct json_t *chat_member(const struct json_t *value, const char *key); /* null for non-objects */
bool chat_is_null(const struct json_t *value);                           /* absent or null */
bool chat_is_text(const struct json_t *value);
bool chat_is_truthy(const struct json_t *value);
bool chat_text_equals(const struct json_t *value, const char *text); /* false for non-texts */

struct chat_entry {
    const char *key;
    const struct json_t *value;
    size_t lower_at; /* in lower */
    size_t lower_bytes;
    size_t index;
};
/* Members by lower-cased key, equal ones as written. */
struct chat_sorted {
    struct chat_entry *entries; /* owned */
    size_t count;
    struct buf lower;
};
void chat_sorted_init(struct chat_sorted *sorted, const struct json_t *object);
void chat_sorted_fini(struct chat_sorted *sorted);

/* Gemma's own notation; keys inside are wrapped in quotes or plain. */
void chat_put_value(struct chat_prompt *prompt, const struct json_t *value, bool wraps_keys);
/* "k:v,k:v" of an object, its keys plain. */
void chat_put_members(struct chat_prompt *prompt, const struct json_t *object);
/* Python's str() of a text, number, boolean or null.  Errors: ERR_ARGUMENT for others. */
ERR_NODISCARD enum err_code chat_str(struct buf *out, const struct json_t *value,
                                     const struct chat_path *path, struct err *err);

/* chat_schema.c: one tool as "declaration:...". */
ERR_NODISCARD enum err_code chat_put_declaration(struct chat_prompt *prompt,
                                                 const struct json_t *tool,
                                                 const struct chat_path *path, struct err *err);

/* What a message left open for the next one, or for the answer. */
enum chat_turn {
    CHAT_TURN_PLAIN,
    CHAT_TURN_CALLED,   /* tool calls without responses: the model waits for them */
    CHAT_TURN_RESPONDED /* tool responses: the model goes on in the same turn */
};

/* The state of one rendering. */
struct chat_rendering {
    const struct json_t *messages;
    const struct chat_options *options;
    struct chat_prompt *prompt;
    struct err *err;
    size_t first; /* messages before it belong to the system turn */
    size_t count;
    size_t last_user;                  /* SIZE_MAX: none */
    const struct json_t *speaker_role; /* of the last message that was no tool's; null: none */
    enum chat_turn state;
};

struct chat_message {
    const struct json_t *value;
    const struct chat_path *path;
    size_t index;
    bool is_model;
};

enum chat_part {
    CHAT_PART_TEXT,
    CHAT_PART_IMAGE,
    CHAT_PART_AUDIO,
    CHAT_PART_VIDEO,
    CHAT_PART_OTHER,
};

/* chat_parts.c */
bool chat_is_role(const struct chat_rendering *render, size_t index, const char *role);
enum chat_part chat_part_kind(const struct json_t *part);
/* Refuses what is no text, unless it is to be rendered as the templates do. */
ERR_NODISCARD enum err_code chat_part_check(const struct chat_rendering *render,
                                            const struct json_t *part,
                                            const struct chat_path *path);
/* *out_text is null where the part has no text and need not have one. */
ERR_NODISCARD enum err_code chat_part_text(const struct chat_rendering *render,
                                           const struct json_t *part, const struct chat_path *path,
                                           bool may_be_absent, const struct json_t **out_text);
void chat_put_media(const struct chat_rendering *render, enum chat_part kind);

/* chat_tools.c */
/* A member that must be an array or null; *out_array is null where there is nothing in it. */
ERR_NODISCARD enum err_code chat_list_member(const struct chat_rendering *render,
                                             const struct chat_message *message, const char *key,
                                             const struct json_t **out_array);
/* calls is null or not empty. */
ERR_NODISCARD enum err_code chat_put_tool_turn(struct chat_rendering *render,
                                               const struct chat_message *message,
                                               const struct json_t *calls);

#endif
