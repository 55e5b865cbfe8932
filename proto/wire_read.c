/* Reads MessagePack with a cursor.
 *
 * msgpack-c decodes into a tree that it allocates from the counts in the message: a few bytes can
 * claim gigabytes.  Here each count is checked against its bound and the bytes that are left before
 * anything is allocated, and memory comes from the caller's arena only. */
#include "proto/wire.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_FIELDS = 64 /* bits of the mask of fields seen */
};

/* Fewest encoded bytes of an element: [seq_id] is two, [token, float32] is seven. */
enum {
    U32_MIN_BYTES = 1,
    ROW_MIN_BYTES = 2,
    BIAS_MIN_BYTES = 7,
};

/* Reads a whole message front to back; keeps the first error and turns later calls into no-ops. */
struct reader {
    const unsigned char *bytes; /* borrowed */
    size_t byte_count;
    size_t offset_bytes;
    struct err error; /* code ERR_OK while all is well */
};

static void fail(struct reader *reader, enum err_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct reader *reader, enum err_code code, const char *format, ...)
{
    if (reader->error.code != ERR_OK) {
        return;
    }
    char text[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args); /* truncation is fine */
    va_end(args);
    (void)err_set(&reader->error, code, "%s", text); /* returns the code just given */
}

static bool is_ok(const struct reader *reader)
{
    return reader->error.code == ERR_OK;
}

static size_t left_bytes(const struct reader *reader)
{
    return reader->byte_count - reader->offset_bytes;
}

/* The next byte_count bytes, or null with the error set. */
static const unsigned char *take_bytes(struct reader *reader, size_t byte_count)
{
    if (!is_ok(reader)) {
        return NULL;
    }
    if (byte_count > left_bytes(reader)) {
        fail(reader, ERR_FORMAT, "byte %zu: %zu bytes wanted, %zu left", reader->offset_bytes,
             byte_count, left_bytes(reader));
        return NULL;
    }
    const unsigned char *at = reader->bytes + reader->offset_bytes;
    reader->offset_bytes += byte_count;
    return at;
}

static uint64_t take_big_endian(struct reader *reader, size_t byte_count)
{
    const unsigned char *at = take_bytes(reader, byte_count);
    uint64_t value = 0;
    for (size_t i = 0; at != NULL && i < byte_count; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

static unsigned take_tag(struct reader *reader)
{
    return (unsigned)take_big_endian(reader, 1);
}

static void wrong_type(struct reader *reader, unsigned tag, const char *wanted)
{
    fail(reader, ERR_FORMAT, "byte %zu: 0x%02x does not begin %s", reader->offset_bytes - 1, tag,
         wanted);
}

/* Non-negative values of the signed forms are the same numbers and are taken. */
static uint64_t take_signed(struct reader *reader, size_t byte_count)
{
    assert(byte_count > 0);
    uint64_t value = take_big_endian(reader, byte_count);
    if (value >> (byte_count * 8 - 1) != 0) {
        fail(reader, ERR_FORMAT, "byte %zu: negative integer", reader->offset_bytes - byte_count);
        return 0;
    }
    return value;
}

static uint64_t take_u64(struct reader *reader)
{
    unsigned tag = take_tag(reader);
    if (!is_ok(reader)) {
        return 0;
    }
    if (tag <= 0x7f) {
        return tag;
    }
    if (tag >= 0xcc && tag <= 0xcf) {
        return take_big_endian(reader, (size_t)1 << (tag - 0xcc));
    }
    if (tag >= 0xd0 && tag <= 0xd3) {
        return take_signed(reader, (size_t)1 << (tag - 0xd0));
    }
    if (tag >= 0xe0) {
        fail(reader, ERR_FORMAT, "byte %zu: negative integer", reader->offset_bytes - 1);
        return 0;
    }
    wrong_type(reader, tag, "an unsigned integer");
    return 0;
}

static uint32_t take_u32(struct reader *reader)
{
    uint64_t value = take_u64(reader);
    if (value > UINT32_MAX) {
        fail(reader, ERR_FORMAT, "%llu does not fit 32 bits", (unsigned long long)value);
        return 0;
    }
    return (uint32_t)value;
}

static float take_f32(struct reader *reader)
{
    unsigned tag = take_tag(reader);
    double value = 0;
    if (tag == 0xca) {
        uint32_t bits = (uint32_t)take_big_endian(reader, sizeof(bits));
        float narrow;
        memcpy(&narrow, &bits, sizeof(narrow));
        value = (double)narrow;
    } else if (tag == 0xcb) {
        uint64_t bits = take_big_endian(reader, sizeof(bits));
        memcpy(&value, &bits, sizeof(value));
    } else if (is_ok(reader)) {
        wrong_type(reader, tag, "a float");
    }
    if (!isfinite(value) || !isfinite((float)value)) {
        fail(reader, ERR_FORMAT, "not a finite 32-bit float");
        return 0;
    }
    return is_ok(reader) ? (float)value : 0;
}

static bool take_bool(struct reader *reader)
{
    unsigned tag = take_tag(reader);
    if (is_ok(reader) && tag != 0xc2 && tag != 0xc3) {
        wrong_type(reader, tag, "a bool");
    }
    return is_ok(reader) && tag == 0xc3;
}

/* Count of an array or map: fix form, or the 16 and 32 bit forms that follow it. */
static uint32_t take_count(struct reader *reader, unsigned fix_tag, unsigned wide_tag,
                           const char *wanted)
{
    unsigned tag = take_tag(reader);
    if (!is_ok(reader)) {
        return 0;
    }
    if ((tag & 0xf0U) == fix_tag) {
        return tag & 0x0fU;
    }
    if (tag == wide_tag || tag == wide_tag + 1) {
        return (uint32_t)take_big_endian(reader, tag == wide_tag ? 2 : 4);
    }
    wrong_type(reader, tag, wanted);
    return 0;
}

static uint32_t take_array(struct reader *reader)
{
    return take_count(reader, 0x90, 0xdc, "an array");
}

static void get_text(struct reader *reader, const struct wire_field *field,
                     struct wire_text *out_text, struct mem_arena *arena)
{
    unsigned tag = take_tag(reader);
    uint32_t byte_count = 0;
    if (tag >= 0xa0 && tag <= 0xbf) {
        byte_count = tag & 0x1fU;
    } else if (tag >= 0xd9 && tag <= 0xdb) {
        byte_count = (uint32_t)take_big_endian(reader, (size_t)1 << (tag - 0xd9));
    } else if (is_ok(reader)) {
        wrong_type(reader, tag, "a text");
    }
    if (byte_count > field->max_count) {
        fail(reader, ERR_LIMIT, "%u bytes, at most %u", byte_count, field->max_count);
    }
    const unsigned char *bytes = take_bytes(reader, byte_count);
    if (bytes == NULL) {
        return;
    }
    char *copy = mem_arena_alloc(arena, (size_t)byte_count + 1, 1);
    if (copy == NULL) {
        fail(reader, ERR_MEMORY, "arena of %zu bytes is full", arena->cap_bytes);
        return;
    }
    memcpy(copy, bytes, byte_count);
    copy[byte_count] = '\0';
    *out_text = (struct wire_text){copy, byte_count};
}

/* Header of an array field and room for its elements; null for an empty array or an error. */
static void *open_array(struct reader *reader, const struct wire_field *field,
                        struct mem_arena *arena, const size_t sizes[2], uint32_t *out_count)
{
    size_t min_bytes = sizes[0];
    size_t elem_bytes = sizes[1];
    uint32_t count = take_array(reader);
    *out_count = 0;
    if (!is_ok(reader) || count == 0) {
        return NULL;
    }
    if (count > field->max_count) {
        fail(reader, ERR_LIMIT, "%u elements, at most %u", count, field->max_count);
        return NULL;
    }
    if (count > left_bytes(reader) / min_bytes) {
        fail(reader, ERR_FORMAT, "%u elements in %zu bytes", count, left_bytes(reader));
        return NULL;
    }
    void *elems = mem_arena_alloc(arena, count, elem_bytes);
    if (elems == NULL) {
        fail(reader, ERR_MEMORY, "arena of %zu bytes is full", arena->cap_bytes);
        return NULL;
    }
    *out_count = count;
    return elems;
}

static void get_u32s(struct reader *reader, const struct wire_field *field,
                     struct wire_u32_array *out_array, struct mem_arena *arena)
{
    const size_t sizes[2] = {U32_MIN_BYTES, sizeof(uint32_t)};
    uint32_t count;
    uint32_t *elems = open_array(reader, field, arena, sizes, &count);
    for (uint32_t i = 0; i < count && is_ok(reader); i++) {
        elems[i] = take_u32(reader);
    }
    *out_array = (struct wire_u32_array){elems, count};
}

static void get_biases(struct reader *reader, const struct wire_field *field,
                       struct wire_bias_array *out_array, struct mem_arena *arena)
{
    const size_t sizes[2] = {BIAS_MIN_BYTES, sizeof(struct wire_bias)};
    uint32_t count;
    struct wire_bias *elems = open_array(reader, field, arena, sizes, &count);
    for (uint32_t i = 0; i < count && is_ok(reader); i++) {
        uint32_t part_count = take_array(reader);
        if (is_ok(reader) && part_count != 2) {
            fail(reader, ERR_FORMAT, "bias %u: %u parts, want 2", i, part_count);
        }
        elems[i].token = take_u32(reader);
        elems[i].bias = take_f32(reader);
    }
    *out_array = (struct wire_bias_array){elems, count};
}

static void get_row(struct reader *reader, uint32_t index, struct wire_row *out_row)
{
    uint32_t part_count = take_array(reader);
    if (is_ok(reader) && part_count != 1 && part_count != 3) {
        fail(reader, ERR_FORMAT, "row %u: %u parts, want 1 or 3", index, part_count);
    }
    *out_row = (struct wire_row){.seq_id = take_u64(reader)};
    if (part_count == 3) {
        out_row->start = take_u32(reader);
        out_row->count = take_u32(reader);
        if (is_ok(reader) && out_row->count == 0) {
            fail(reader, ERR_FORMAT, "row %u: a segment of 0 tokens", index);
        }
    }
}

static void get_rows(struct reader *reader, const struct wire_field *field,
                     struct wire_row_array *out_array, struct mem_arena *arena)
{
    const size_t sizes[2] = {ROW_MIN_BYTES, sizeof(struct wire_row)};
    uint32_t count;
    struct wire_row *elems = open_array(reader, field, arena, sizes, &count);
    for (uint32_t i = 0; i < count && is_ok(reader); i++) {
        get_row(reader, i, &elems[i]);
    }
    *out_array = (struct wire_row_array){elems, count};
}

static void get_value(struct reader *reader, const struct wire_field *field, void *at,
                      struct mem_arena *arena)
{
    switch (field->kind) {
    case WIRE_KIND_U32: *(uint32_t *)at = take_u32(reader); break;
    case WIRE_KIND_U64: *(uint64_t *)at = take_u64(reader); break;
    case WIRE_KIND_F32: *(float *)at = take_f32(reader); break;
    case WIRE_KIND_BOOL: *(bool *)at = take_bool(reader); break;
    case WIRE_KIND_TEXT: get_text(reader, field, at, arena); break;
    case WIRE_KIND_U32_ARRAY: get_u32s(reader, field, at, arena); break;
    case WIRE_KIND_BIAS_ARRAY: get_biases(reader, field, at, arena); break;
    case WIRE_KIND_ROW_ARRAY: get_rows(reader, field, at, arena); break;
    }
}

/* Index of the field with this key; field_count where there is none. */
static uint32_t find_field(const struct wire_message *message, uint64_t key)
{
    uint32_t i = 0;
    while (i < message->field_count && message->fields[i].key != key) {
        i++;
    }
    return i;
}

static void get_field(struct reader *reader, const struct wire_message *message, void *record,
                      struct mem_arena *arena, uint64_t *seen)
{
    uint64_t key = take_u64(reader);
    if (!is_ok(reader)) {
        return;
    }
    uint32_t index = find_field(message, key);
    if (index == message->field_count) {
        fail(reader, ERR_FORMAT, "%s: unknown field %llu", message->name, (unsigned long long)key);
        return;
    }
    const struct wire_field *field = &message->fields[index];
    if ((*seen >> index & 1) != 0) {
        fail(reader, ERR_FORMAT, "%s.%s: given twice", message->name, field->name);
        return;
    }
    *seen |= 1ULL << index;
    get_value(reader, field, (unsigned char *)record + field->offset_bytes, arena);
    if (!is_ok(reader)) {
        (void)err_wrap(&reader->error, "%s.%s", message->name, field->name); /* code is kept */
    }
}

static void get_fields(struct reader *reader, const struct wire_message *message, void *record,
                       struct mem_arena *arena)
{
    assert(message->field_count <= MAX_FIELDS);
    memset(record, 0, message->struct_bytes);
    uint64_t seen = 0;
    uint32_t count = take_count(reader, 0x80, 0xde, "a map");
    for (uint32_t i = 0; i < count && is_ok(reader); i++) {
        get_field(reader, message, record, arena, &seen);
    }
    for (uint32_t i = 0; i < message->field_count && is_ok(reader); i++) {
        if ((seen >> i & 1) == 0) {
            fail(reader, ERR_FORMAT, "%s.%s: missing", message->name, message->fields[i].name);
        }
    }
}

enum err_code wire_decode(const struct wire_envelope *envelope, const struct wire_bytes *bytes,
                          struct mem_arena *arena, uint64_t *head, void *record, struct err *err)
{
    struct reader reader = {.bytes = bytes->at, .byte_count = bytes->byte_count};
    uint32_t part_count = take_array(&reader);
    for (uint32_t i = 0; i < envelope->head_count; i++) {
        head[i] = take_u64(&reader);
    }
    if (is_ok(&reader) && part_count != envelope->head_count + 1) {
        fail(&reader, ERR_FORMAT, "%s: %u parts, want %u", envelope->name, part_count,
             envelope->head_count + 1);
    }
    const struct wire_message *message = wire_find(envelope, head[0]);
    if (message == NULL) {
        fail(&reader, ERR_FORMAT, "%s: unknown message type %llu", envelope->name,
             (unsigned long long)head[0]);
    }
    if (message != NULL) {
        get_fields(&reader, message, record, arena);
    }
    if (is_ok(&reader) && left_bytes(&reader) > 0) {
        fail(&reader, ERR_FORMAT, "%zu bytes left over after the message", left_bytes(&reader));
    }
    return is_ok(&reader) ? ERR_OK : err_set(err, reader.error.code, "%s", reader.error.message);
}
