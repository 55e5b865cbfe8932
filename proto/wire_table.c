/* What a message table is used for beside bytes: the text dump and the hash of the handshake. */
#include "proto/wire.h"

#include <string.h>

#include "common/num.h"

enum {
    DUMP_MAX_ELEMS = 8
};

const struct wire_message *wire_find(const struct wire_envelope *envelope, uint64_t type)
{
    if (type >= envelope->message_count || envelope->messages[type].name == NULL) {
        return NULL;
    }
    return &envelope->messages[type];
}

static void dump_text(const struct wire_text *text, struct buf *out)
{
    buf_append_char(out, '"');
    for (uint32_t i = 0; i < text->byte_count; i++) {
        unsigned char c = (unsigned char)text->at[i];
        if (c < 0x20 || c == '"' || c == '\\' || c >= 0x7f) {
            buf_printf(out, "\\x%02x", c);
        } else {
            buf_append_char(out, (char)c);
        }
    }
    buf_append_char(out, '"');
}

static void dump_row(const struct wire_row *row, struct buf *out)
{
    buf_printf(out, "%llu", (unsigned long long)row->seq_id);
    if (row->count > 0) {
        buf_printf(out, ":%u+%u", row->start, row->count);
    }
}

static void dump_element(const struct wire_field *field, const void *at, uint32_t index,
                         struct buf *out)
{
    if (field->kind == WIRE_KIND_U32_ARRAY) {
        buf_printf(out, "%u", ((const struct wire_u32_array *)at)->at[index]);
    } else if (field->kind == WIRE_KIND_BIAS_ARRAY) {
        const struct wire_bias *bias = &((const struct wire_bias_array *)at)->at[index];
        buf_printf(out, "%u:%g", bias->token, (double)bias->bias);
    } else {
        dump_row(&((const struct wire_row_array *)at)->at[index], out);
    }
}

static void dump_array(const struct wire_field *field, const void *at, uint32_t count,
                       struct buf *out)
{
    buf_append_char(out, '[');
    for (uint32_t i = 0; i < num_min(count, DUMP_MAX_ELEMS); i++) {
        if (i > 0) {
            buf_append_char(out, ',');
        }
        dump_element(field, at, i, out);
    }
    if (count > DUMP_MAX_ELEMS) {
        buf_printf(out, ",+%u", count - DUMP_MAX_ELEMS);
    }
    buf_append_char(out, ']');
}

static void dump_value(const struct wire_field *field, const void *at, struct buf *out)
{
    switch (field->kind) {
    case WIRE_KIND_U32: buf_printf(out, "%u", *(const uint32_t *)at); break;
    case WIRE_KIND_U64: buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at); break;
    case WIRE_KIND_F32: buf_printf(out, "%.9g", (double)*(const float *)at); break;
    case WIRE_KIND_BOOL: buf_append_text(out, *(const bool *)at ? "true" : "false"); break;
    case WIRE_KIND_TEXT: dump_text(at, out); break;
    case WIRE_KIND_U32_ARRAY:
        dump_array(field, at, ((const struct wire_u32_array *)at)->count, out);
        break;
    case WIRE_KIND_BIAS_ARRAY:
        dump_array(field, at, ((const struct wire_bias_array *)at)->count, out);
        break;
    case WIRE_KIND_ROW_ARRAY:
        dump_array(field, at, ((const struct wire_row_array *)at)->count, out);
        break;
    }
}

void wire_dump(const struct wire_message *message, const void *record, struct buf *out)
{
    buf_append_text(out, message->name);
    for (uint32_t i = 0; i < message->field_count; i++) {
        const struct wire_field *field = &message->fields[i];
        buf_printf(out, " %s=", field->name);
        dump_value(field, (const unsigned char *)record + field->offset_bytes, out);
    }
}

static uint64_t hash_byte(uint64_t hash, unsigned byte)
{
    return (hash ^ byte) * 0x100000001b3ULL;
}

uint64_t wire_hash_bytes(uint64_t hash, const void *bytes, size_t byte_count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < byte_count; i++) {
        hash = hash_byte(hash, at[i]);
    }
    return hash;
}

uint64_t wire_hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = hash_byte(hash, (unsigned char)*text);
    }
    return hash_byte(hash, 0);
}

uint64_t wire_hash_u64(uint64_t hash, uint64_t value)
{
    for (unsigned shift = 0; shift < 64; shift += 8) {
        hash = hash_byte(hash, (unsigned)(value >> shift & 0xff));
    }
    return hash;
}

uint64_t wire_hash_message(uint64_t hash, const struct wire_message *message)
{
    hash = wire_hash_text(hash, message->name);
    hash = wire_hash_u64(hash, message->type);
    for (uint32_t i = 0; i < message->field_count; i++) {
        const struct wire_field *field = &message->fields[i];
        hash = wire_hash_text(hash, field->name);
        hash = wire_hash_u64(hash, field->key);
        hash = wire_hash_u64(hash, (uint64_t)field->kind);
        hash = wire_hash_u64(hash, field->max_count);
    }
    return wire_hash_u64(hash, message->field_count);
}
