/* Arguments of a tool call, as the chat format writes them, into JSON, piece by piece.
 *
 *   city:"Paris",days:3,units:{wind:"km/h"},tags:["a","b"]      (the quotes are one token, <|"|>)
 *
 * Strings go out as they come; a bare value is held until what follows tells its end and its kind.
 * Lenient, as models are: what cannot be read otherwise is a string, nothing is an error.  Where the
 * schema of a parameter says which types it takes, values are read as one of them.  What goes out
 * piece by piece joins to what would go out at once.  One thread at a time. */
#ifndef FRONTEND_CHAT_ARGS_H
#define FRONTEND_CHAT_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

struct json_t;

/* Stands for the quote token in the text: no byte of UTF-8. */
#define CHAT_ARGS_QUOTE '\xff'

#define CHAT_ARGS_MAX_DEPTH 64 /* deeper values are strings */

enum chat_args_state {
    CHAT_ARGS_KEY,       /* an object: up to the colon */
    CHAT_ARGS_VALUE,     /* behind a colon */
    CHAT_ARGS_ELEMENT,   /* an array: before a value or its end */
    CHAT_ARGS_BARE,      /* a value without an opening quote: held */
    CHAT_ARGS_LONG_BARE, /* one too long to hold: a string */
    CHAT_ARGS_STRING,
    CHAT_ARGS_HELD_STRING, /* quoted, where the schema takes no string */
    CHAT_ARGS_RAW,         /* a value too deep: its text is a string */
    CHAT_ARGS_AFTER,       /* an object: behind a value, up to the comma */
    CHAT_ARGS_CLOSED,
};

struct chat_args_level {
    const struct json_t *schema; /* borrowed; null: unknown */
    uint32_t first_key;          /* in key_hashes */
    bool is_array;
    bool has_members;
};

struct chat_args {
    enum chat_args_state state;
    struct chat_args_level levels[CHAT_ARGS_MAX_DEPTH];
    uint32_t depth;        /* levels open; the outermost is the arguments' own object */
    bool is_key_in_string; /* KEY: between quotes */
    bool is_raw_in_string;
    uint32_t raw_depth;
    bool is_muted; /* the member repeats a key: nothing of it goes out */
    uint32_t mute_depth;
    bool has_comma;                    /* BARE: another key may have begun */
    size_t comma_at;                   /* in held */
    uint32_t types;                    /* enum chat_type bits of the present value; 0: any */
    const struct json_t *value_schema; /* borrowed */
    struct buf held;                   /* key, bare value or held string */
    struct buf key;                    /* of the member whose value comes; goes out with it */
    uint64_t *key_hashes;              /* owned; [key_count] of the open objects */
    uint32_t key_count;
    uint32_t key_cap;
};

/* schema: of the arguments' object; borrowed; null: unknown. */
void chat_args_init(struct chat_args *args, const struct json_t *schema);
void chat_args_fini(struct chat_args *args);

/* Append what became certain.  Text behind the opening brace, whole characters.  Bytes taken: fewer
 * than given where the object's closing brace was among them. */
size_t chat_args_push(struct chat_args *args, const char *text, size_t byte_count, struct buf *out);
/* Nothing follows: take what is held as complete and close what is open. */
void chat_args_close(struct chat_args *args, struct buf *out);

/* Append the JSON object of the text between the outer braces, with ", " and ": " as Python's
 * json.dumps writes them.  Of equal keys the first wins, but a bare value gives way to its
 * successor. */
void chat_args_to_json(const char *text, size_t byte_count, struct buf *out);

#endif
