/* Tables of message fields, and the encoder and decoder that interpret them (wire.c writes,
 * wire_read.c reads, wire_table.c dumps and hashes).
 *
 * A .def file describes each message once; structs, descriptors, bounds checks, text dump and the
 * table hash come from it.  Decoding is strict: an unknown, missing, duplicate or oversized field is
 * an error, and so is an integer that is negative or too wide, or a float that is not finite.
 * Integers and floats may be of any width that holds the value.  Arrays and texts of a decoded
 * message live in the caller's arena: at most 8 bytes per byte received. */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/mem.h"

enum wire_kind {
    WIRE_KIND_U32,
    WIRE_KIND_U64,
    WIRE_KIND_F32,
    WIRE_KIND_BOOL,
    WIRE_KIND_TEXT,
    WIRE_KIND_U32_ARRAY,
    WIRE_KIND_BIAS_ARRAY,
    WIRE_KIND_ROW_ARRAY,
};

/* UTF-8 not required; zero-terminated after byte_count bytes. */
struct wire_text {
    const char *at; /* borrowed from the arena, or from the caller when encoding */
    uint32_t byte_count;
};

struct wire_u32_array {
    const uint32_t *at; /* borrowed likewise */
    uint32_t count;
};

struct wire_bias {
    uint32_t token;
    float bias;
};

struct wire_bias_array {
    const struct wire_bias *at; /* borrowed likewise */
    uint32_t count;
};

/* A prompt segment has count >= 1; a decode row has count 0 and start 0 and travels as [seq_id]. */
struct wire_row {
    uint64_t seq_id;
    uint32_t start; /* position of the first token; must equal the launched frontier */
    uint32_t count; /* tokens */
};

struct wire_row_array {
    const struct wire_row *at; /* borrowed likewise */
    uint32_t count;
};

/* C types of the kinds, for the structs made from .def files. */
#define WIRE_TYPE_U32        uint32_t
#define WIRE_TYPE_U64        uint64_t
#define WIRE_TYPE_F32        float
#define WIRE_TYPE_BOOL       bool
#define WIRE_TYPE_TEXT       struct wire_text
#define WIRE_TYPE_U32_ARRAY  struct wire_u32_array
#define WIRE_TYPE_BIAS_ARRAY struct wire_bias_array
#define WIRE_TYPE_ROW_ARRAY  struct wire_row_array

struct wire_field {
    const char *name;
    uint32_t key;
    enum wire_kind kind;
    uint32_t max_count;
    size_t offset_bytes;
};

struct wire_message {
    const char *name;
    const struct wire_field *fields;
    uint32_t type;
    uint32_t field_count;
    size_t struct_bytes;
};

/* How the messages of one .def file travel: [type, further head numbers, {key: value, ...}]. */
struct wire_envelope {
    const char *name;                    /* for errors: "plan" */
    const struct wire_message *messages; /* [message_count] by type; null name: no such type */
    uint32_t message_count;
    uint32_t head_count; /* numbers before the fields, the type first */
    size_t max_bytes;    /* of an encoded message */
};

/* Null for an unknown type. */
const struct wire_message *wire_find(const struct wire_envelope *envelope, uint64_t type);

/* Append a message: head [head_count], record is the struct of type head[0].  On an error out is as
 * before.  Errors: ERR_LIMIT (a field over its bound, a float that is not finite, more than
 * max_bytes), ERR_INTERNAL (no such type). */
ERR_NODISCARD enum err_code wire_encode(const struct wire_envelope *envelope, const uint64_t *head,
                                        const void *record, struct buf *out, struct err *err);

struct wire_bytes {
    const void *at; /* borrowed during the call */
    size_t byte_count;
};

/* The reverse: head [head_count], record with room for the largest struct; both are scratch after
 * an error.  Arrays lie in arena.  Errors: ERR_FORMAT, ERR_LIMIT, ERR_MEMORY (arena full). */
ERR_NODISCARD enum err_code wire_decode(const struct wire_envelope *envelope,
                                        const struct wire_bytes *bytes, struct mem_arena *arena,
                                        uint64_t *head, void *record, struct err *err);

/* One line: name field=value ...; long arrays are cut.  For messages, and for golden files. */
void wire_dump(const struct wire_message *message, const void *record, struct buf *out);

/* FNV-1a over names, keys, kinds and bounds; and its parts, for facts that stand in no table. */
uint64_t wire_hash_message(uint64_t hash, const struct wire_message *message);
uint64_t wire_hash_bytes(uint64_t hash, const void *bytes, size_t byte_count);
uint64_t wire_hash_text(uint64_t hash, const char *text);
uint64_t wire_hash_u64(uint64_t hash, uint64_t value);
#define WIRE_HASH_SEED 0xcbf29ce484222325ULL

#endif
