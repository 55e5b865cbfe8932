#include "frontend/chat_args.h"

#include <assert.h>
#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "frontend/chat_args_value.h"
#include "proto/wire.h"

enum {
    MAX_COMPARED = 1024,  /* members of one object looked through for equal keys */
    MAX_KEY_BYTES = 1024, /* a longer one ends there */
    MAX_CHARACTER_BYTES = 4,
    MAX_HELD_BYTES = 4096, /* of a value; a longer one is a string */
};

static const uint64_t hash_seed = 0xcbf29ce484222325ULL;

void chat_args_init(struct chat_args *args, const struct json_t *schema)
{
    memset(args, 0, sizeof(*args));
    buf_init(&args->held);
    buf_init(&args->key);
    args->levels[0].schema = schema;
    args->depth = 1;
    args->state = CHAT_ARGS_KEY;
}

void chat_args_fini(struct chat_args *args)
{
    buf_fini(&args->held);
    buf_fini(&args->key);
    mem_free(args->key_hashes);
    args->key_hashes = NULL;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static struct chat_args_level *top(struct chat_args *args)
{
    assert(args->depth > 0);
    return &args->levels[args->depth - 1];
}

static bool has_open_array(const struct chat_args *args)
{
    for (uint32_t i = 0; i < args->depth; i++) {
        if (args->levels[i].is_array) {
            return true;
        }
    }
    return false;
}

/* A bracket that closes something; any other is text. */
static bool closes(const struct chat_args *args, char c)
{
    return c == '}' || (c == ']' && has_open_array(args));
}

/* What stands before a value, now that the value's own first bytes are certain. */
static void begin_value(struct chat_args *args, struct buf *out)
{
    struct chat_args_level *level = top(args);
    if (args->is_muted) {
        return;
    }
    if (level->has_members) {
        buf_append_text(out, ", ");
    } else if (args->depth == 1) {
        buf_append_char(out, '{');
    }
    level->has_members = true;
    if (!level->is_array) {
        buf_append_text(out, buf_text(&args->key));
    }
}

static void put_text(struct chat_args *args, const char *text, size_t byte_count, struct buf *out)
{
    if (!args->is_muted && byte_count > 0) {
        chat_put_escaped(text, byte_count, out);
    }
}

static void put_quote(struct chat_args *args, struct buf *out)
{
    if (!args->is_muted) {
        buf_append_char(out, '"');
    }
}

static void expect_element(struct chat_args *args)
{
    args->state = CHAT_ARGS_ELEMENT;
    args->value_schema = chat_schema_element(top(args)->schema);
    args->types = chat_types_of(args->value_schema);
}

static void end_value(struct chat_args *args)
{
    buf_reset(&args->held);
    if (args->is_muted && args->mute_depth == args->depth) {
        args->is_muted = false;
    }
    if (top(args)->is_array) {
        expect_element(args);
    } else {
        args->state = CHAT_ARGS_AFTER;
    }
}

static void close_level(struct chat_args *args, struct buf *out)
{
    const struct chat_args_level *level = top(args);
    if (!args->is_muted) {
        buf_append_text(out, args->depth == 1 && !level->has_members ? "{" : "");
        buf_append_char(out, level->is_array ? ']' : '}');
    }
    args->key_count = level->first_key;
    args->depth--;
    if (args->depth == 0) {
        args->state = CHAT_ARGS_CLOSED;
    } else {
        end_value(args);
    }
}

/* A model may leave out the brackets of what lies inside. */
static void take_bracket(struct chat_args *args, char c, struct buf *out)
{
    bool has_closed = false;
    buf_reset(&args->held);
    while (!has_closed && args->depth > 0) {
        has_closed = top(args)->is_array == (c == ']');
        close_level(args, out);
    }
}

static void open_level(struct chat_args *args, bool is_array, struct buf *out)
{
    begin_value(args, out);
    if (!args->is_muted) {
        buf_append_char(out, is_array ? '[' : '{');
    }
    args->levels[args->depth++] = (struct chat_args_level){
        .schema = args->value_schema,
        .first_key = args->key_count,
        .is_array = is_array,
    };
    if (is_array) {
        expect_element(args);
    } else {
        args->state = CHAT_ARGS_KEY;
    }
}

static bool is_known_key(struct chat_args *args, uint64_t hash)
{
    uint32_t first = top(args)->first_key;
    for (uint32_t i = first; i < args->key_count && args->key_count - first <= MAX_COMPARED; i++) {
        if (args->key_hashes[i] == hash) {
            return true;
        }
    }
    return false;
}

static void remember_key(struct chat_args *args, uint64_t hash)
{
    if (args->key_count == args->key_cap) {
        args->key_cap = args->key_cap == 0 ? 8 : args->key_cap * 2;
        args->key_hashes = mem_realloc(args->key_hashes, args->key_cap, sizeof(uint64_t));
    }
    args->key_hashes[args->key_count++] = hash;
}

struct key_text {
    char bytes[MAX_KEY_BYTES + 1];
    size_t byte_count;
    uint64_t hash;
};

/* held[from:] less the white space around it, and less zeros: readers of JSON refuse them in keys. */
static void read_key(const struct chat_args *args, size_t from, struct key_text *out_key)
{
    const char *at = buf_text(&args->held);
    size_t end = args->held.used_bytes;
    while (from < end && (is_space(at[from]) || at[from] == ',')) {
        from++;
    }
    while (end > from && is_space(at[end - 1])) {
        end--;
    }
    out_key->byte_count = 0;
    for (; from < end && out_key->byte_count < MAX_KEY_BYTES; from++) {
        if (at[from] != '\0') {
            out_key->bytes[out_key->byte_count++] = at[from];
        }
    }
    out_key->bytes[out_key->byte_count] = '\0';
    out_key->hash = wire_hash_bytes(hash_seed, out_key->bytes, out_key->byte_count);
}

static void start_member(struct chat_args *args, const struct key_text *key)
{
    if (!args->is_muted) {
        args->is_muted = is_known_key(args, key->hash);
        args->mute_depth = args->depth;
    }
    remember_key(args, key->hash);
    buf_reset(&args->key);
    json_put_text(&args->key, key->bytes, key->byte_count);
    buf_append_text(&args->key, ": ");
    args->value_schema = chat_schema_member(top(args)->schema, key->bytes);
    args->types = chat_types_of(args->value_schema);
    buf_reset(&args->held);
    args->state = CHAT_ARGS_VALUE;
}

static void take_key(struct chat_args *args)
{
    struct key_text key;
    read_key(args, 0, &key);
    args->is_key_in_string = false;
    start_member(args, &key);
}

static void step_key(struct chat_args *args, char c, struct buf *out)
{
    struct buf *held = &args->held;
    bool is_at_start = held->used_bytes == 0 && !args->is_key_in_string;
    if (c == CHAT_ARGS_QUOTE) {
        args->is_key_in_string = !args->is_key_in_string;
    } else if (is_at_start && (is_space(c) || c == ',')) {
        return;
    } else if (!args->is_key_in_string && closes(args, c)) {
        take_bracket(args, c, out);
    } else if (c == ':' && !args->is_key_in_string) {
        take_key(args);
    } else {
        buf_append_char(held, c);
    }
}

static void start_string(struct chat_args *args, struct buf *out)
{
    if (args->types != 0 && (args->types & CHAT_TYPE_STRING) == 0) {
        args->state = CHAT_ARGS_HELD_STRING;
        return;
    }
    begin_value(args, out);
    put_quote(args, out);
    args->state = CHAT_ARGS_STRING;
}

/* What was held turns out too long for anything but a string that goes on. */
static void commit_held(struct chat_args *args, enum chat_args_state state, struct buf *out)
{
    begin_value(args, out);
    put_quote(args, out);
    put_text(args, args->held.at, args->held.used_bytes, out);
    buf_reset(&args->held);
    args->state = state;
}

static void start_nested(struct chat_args *args, char c, struct buf *out)
{
    if (args->depth < CHAT_ARGS_MAX_DEPTH) {
        open_level(args, c == '[', out);
        return;
    }
    begin_value(args, out);
    put_quote(args, out);
    put_text(args, &c, 1, out);
    args->raw_depth = 1;
    args->is_raw_in_string = false;
    args->state = CHAT_ARGS_RAW;
}

/* The bare value, held[:byte_count], ends there. */
static void finish_bare(struct chat_args *args, size_t byte_count, struct buf *out)
{
    const char *text = buf_text(&args->held);
    bool is_member = !top(args)->is_array;
    while (byte_count > 0 &&
           (is_space(text[byte_count - 1]) || (is_member && text[byte_count - 1] == ','))) {
        byte_count--;
    }
    begin_value(args, out);
    if (!args->is_muted) {
        chat_put_bare(text, byte_count, args->types, out);
    }
    end_value(args);
}

/* The held text is a string: its closing quote came. */
static void finish_quoted(struct chat_args *args, struct buf *out)
{
    const struct buf *held = &args->held;
    begin_value(args, out);
    if (!args->is_muted) {
        if (args->types != 0 && (args->types & CHAT_TYPE_STRING) == 0) {
            chat_put_unquoted(buf_text(held), held->used_bytes, args->types, out);
        } else {
            json_put_text(out, buf_text(held), held->used_bytes);
        }
    }
    end_value(args);
}

static void step_value(struct chat_args *args, char c, struct buf *out)
{
    bool is_element = args->state == CHAT_ARGS_ELEMENT;
    if (is_space(c) || (is_element && c == ',')) {
        return;
    }
    if (c == CHAT_ARGS_QUOTE) {
        start_string(args, out);
    } else if (c == '{' || c == '[') {
        start_nested(args, c, out);
    } else if (closes(args, c)) {
        if (!is_element) {
            finish_bare(args, 0, out);
        }
        take_bracket(args, c, out);
    } else if (c == ',') {
        finish_bare(args, 0, out);
        args->state = CHAT_ARGS_KEY;
    } else {
        args->has_comma = false;
        args->state = CHAT_ARGS_BARE;
        buf_append_char(&args->held, c);
    }
}

/* A colon behind a comma: another member has begun. */
static void take_next_key(struct chat_args *args, struct buf *out)
{
    struct key_text key;
    read_key(args, args->comma_at, &key);
    bool is_replaced = !args->is_muted && args->key_hashes[args->key_count - 1] == key.hash;
    if (is_replaced) {
        buf_reset(&args->held);
        args->state = CHAT_ARGS_VALUE;
        return;
    }
    finish_bare(args, args->comma_at, out);
    args->held.used_bytes = 0;
    start_member(args, &key);
}

static bool is_blank(const struct buf *text, size_t from)
{
    while (from < text->used_bytes && is_space(text->at[from])) {
        from++;
    }
    return from == text->used_bytes;
}

/* A bare value of an object may hold commas: whether one ends it shows in what follows.  A closing
 * quote says that only the opening one was left out. */
static void step_bare(struct chat_args *args, char c, struct buf *out)
{
    struct buf *held = &args->held;
    bool is_element = top(args)->is_array;
    if (c == CHAT_ARGS_QUOTE) {
        bool begins_key = args->has_comma && is_blank(held, args->comma_at + 1);
        if (begins_key) {
            finish_bare(args, args->comma_at, out);
            args->state = CHAT_ARGS_KEY;
            step_key(args, c, out);
        } else {
            finish_quoted(args, out);
        }
    } else if (closes(args, c)) {
        finish_bare(args, held->used_bytes, out);
        take_bracket(args, c, out);
    } else if (c == ',' && is_element) {
        finish_bare(args, held->used_bytes, out);
    } else if (c == ':' && args->has_comma && held->used_bytes - args->comma_at < MAX_KEY_BYTES) {
        take_next_key(args, out);
    } else {
        if (c == ',') {
            args->has_comma = true;
            args->comma_at = held->used_bytes;
        }
        buf_append_char(held, c);
    }
}

static void step_after(struct chat_args *args, char c, struct buf *out)
{
    if (c == ',') {
        args->state = CHAT_ARGS_KEY;
    } else if (closes(args, c)) {
        take_bracket(args, c, out);
    }
}

static void step(struct chat_args *args, char c, struct buf *out)
{
    switch (args->state) {
    case CHAT_ARGS_KEY: step_key(args, c, out); break;
    case CHAT_ARGS_VALUE:
    case CHAT_ARGS_ELEMENT: step_value(args, c, out); break;
    case CHAT_ARGS_BARE: step_bare(args, c, out); break;
    case CHAT_ARGS_AFTER: step_after(args, c, out); break;
    case CHAT_ARGS_LONG_BARE:
    case CHAT_ARGS_STRING:
    case CHAT_ARGS_HELD_STRING:
    case CHAT_ARGS_RAW:
    case CHAT_ARGS_CLOSED: assert(false && "taken as runs"); break;
    }
}

/* Bytes before the first that means something in the state. */
static size_t plain_run(const struct chat_args *args, const char *text, size_t byte_count)
{
    size_t count = 0;
    bool has_brackets = args->state == CHAT_ARGS_LONG_BARE || args->state == CHAT_ARGS_RAW;
    while (count < byte_count && text[count] != CHAT_ARGS_QUOTE) {
        char c = text[count];
        if (has_brackets && (c == '{' || c == '[' || c == '}' || c == ']')) {
            break;
        }
        count++;
    }
    return count;
}

static void end_string(struct chat_args *args, struct buf *out)
{
    put_quote(args, out);
    end_value(args);
}

static void step_raw(struct chat_args *args, char c, struct buf *out)
{
    char shown = c == CHAT_ARGS_QUOTE ? '"' : c;
    put_text(args, &shown, 1, out);
    args->is_raw_in_string ^= c == CHAT_ARGS_QUOTE;
    if (!args->is_raw_in_string) {
        args->raw_depth += c == '{' || c == '[';
        args->raw_depth -= c == '}' || c == ']';
    }
    if (args->raw_depth == 0) {
        end_string(args, out);
    }
}

static void step_long_bare(struct chat_args *args, char c, struct buf *out)
{
    if (c == CHAT_ARGS_QUOTE) {
        end_string(args, out);
    } else if (closes(args, c)) {
        end_string(args, out);
        take_bracket(args, c, out);
    } else {
        put_text(args, &c, 1, out);
    }
}

/* The byte that ended a run. */
static void step_text(struct chat_args *args, char c, struct buf *out)
{
    if (args->state == CHAT_ARGS_RAW) {
        step_raw(args, c, out);
    } else if (args->state == CHAT_ARGS_LONG_BARE) {
        step_long_bare(args, c, out);
    } else if (args->state == CHAT_ARGS_HELD_STRING) {
        finish_quoted(args, out);
    } else {
        end_string(args, out);
    }
}

static bool is_text_state(enum chat_args_state state)
{
    return state == CHAT_ARGS_STRING || state == CHAT_ARGS_HELD_STRING || state == CHAT_ARGS_RAW ||
           state == CHAT_ARGS_LONG_BARE;
}

static bool begins_character(char c)
{
    return ((unsigned char)c & 0xC0U) != 0x80U;
}

/* Nothing is held without bound.  Between characters, so that none is cut. */
static void bound_held(struct chat_args *args, struct buf *out)
{
    size_t held_bytes = args->held.used_bytes;
    if (args->state == CHAT_ARGS_KEY && held_bytes >= MAX_KEY_BYTES - MAX_CHARACTER_BYTES) {
        take_key(args);
    } else if (args->state == CHAT_ARGS_BARE && held_bytes >= MAX_HELD_BYTES) {
        commit_held(args, CHAT_ARGS_LONG_BARE, out);
    } else if (args->state == CHAT_ARGS_HELD_STRING && held_bytes >= MAX_HELD_BYTES) {
        commit_held(args, CHAT_ARGS_STRING, out);
    }
}

/* A string's text up to what ends it; bytes taken. */
static size_t push_text(struct chat_args *args, const char *text, size_t byte_count,
                        struct buf *out)
{
    if (args->state == CHAT_ARGS_HELD_STRING && *text != CHAT_ARGS_QUOTE) {
        buf_append_char(&args->held, *text);
        return 1;
    }
    size_t run = plain_run(args, text, byte_count);
    put_text(args, text, run, out);
    if (run < byte_count) {
        step_text(args, text[run++], out);
    }
    return run;
}

size_t chat_args_push(struct chat_args *args, const char *text, size_t byte_count, struct buf *out)
{
    size_t at = 0;
    while (at < byte_count && args->state != CHAT_ARGS_CLOSED) {
        if (begins_character(text[at])) {
            bound_held(args, out);
        }
        if (is_text_state(args->state)) {
            at += push_text(args, text + at, byte_count - at, out);
        } else {
            step(args, text[at++], out);
        }
    }
    return at;
}

void chat_args_close(struct chat_args *args, struct buf *out)
{
    switch (args->state) {
    case CHAT_ARGS_VALUE: finish_bare(args, 0, out); break;
    case CHAT_ARGS_BARE: finish_bare(args, args->held.used_bytes, out); break;
    case CHAT_ARGS_HELD_STRING: finish_quoted(args, out); break;
    case CHAT_ARGS_LONG_BARE:
    case CHAT_ARGS_STRING:
    case CHAT_ARGS_RAW: end_string(args, out); break;
    case CHAT_ARGS_KEY:
    case CHAT_ARGS_ELEMENT:
    case CHAT_ARGS_AFTER:
    case CHAT_ARGS_CLOSED: break;
    }
    while (args->depth > 0) {
        close_level(args, out);
    }
}

void chat_args_to_json(const char *text, size_t byte_count, struct buf *out)
{
    struct chat_args args;
    chat_args_init(&args, NULL);
    (void)chat_args_push(&args, text, byte_count, out); /* what follows the object means nothing */
    chat_args_close(&args, out);
    chat_args_fini(&args);
}
