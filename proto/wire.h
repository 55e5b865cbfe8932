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

/* Append {key: value, ...} of record to out; on an error out is as before.  ERR_LIMIT names a field
 * over its bound or a float that is not finite. */
ERR_NODISCARD enum err_code wire_encode_fields(const struct wire_message *message,
                                               const void *record, struct buf *out,
                                               struct err *err);

/* Append an array header and an unsigned integer: the parts around the fields. */
void wire_put_array(struct buf *out, uint32_t count);
void wire_put_u64(struct buf *out, uint64_t value);

/* Reads a whole message front to back; keeps the first error and turns later calls into no-ops. */
struct wire_reader {
    const unsigned char *bytes; /* borrowed */
    size_t byte_count;
    size_t offset_bytes;
    struct err error; /* code ERR_OK while all is well */
};

void wire_reader_init(struct wire_reader *reader, const void *bytes, size_t byte_count);
uint32_t wire_get_array(struct wire_reader *reader); /* 0 after an error */
uint64_t wire_get_u64(struct wire_reader *reader);   /* 0 after an error */
void wire_get_fields(struct wire_reader *reader, const struct wire_message *message, void *record,
                     struct mem_arena *arena);

/* The reader's first error, or ERR_FORMAT where bytes are left over. */
ERR_NODISCARD enum err_code wire_reader_finish(const struct wire_reader *reader, struct err *err);

/* One line: name field=value ...; long arrays are cut.  For --record dumps and logs. */
void wire_dump(const struct wire_message *message, const void *record, struct buf *out);

/* FNV-1a over names, keys, kinds and bounds; and its parts, for facts that stand in no table. */
uint64_t wire_hash_message(uint64_t hash, const struct wire_message *message);
uint64_t wire_hash_bytes(uint64_t hash, const void *bytes, size_t byte_count);
uint64_t wire_hash_text(uint64_t hash, const char *text);
uint64_t wire_hash_u64(uint64_t hash, uint64_t value);
#define WIRE_HASH_SEED 0xcbf29ce484222325ULL

#endif
