#include "proto/plan.h"

enum {
    ENVELOPE_PARTS = 4,     /* type, epoch, msg_seq, fields */
    ARENA_PER_BYTE = 8,     /* a 2-byte row becomes 16 bytes */
    ARENA_FIXED_BYTES = 512 /* alignment and text terminators, one per field */
};

#define MESSAGE(NAME, name, type) static const struct wire_field name##_fields[] = {
#define FIELD(message, key, field, kind, max, doc) \
    {#field, key, WIRE_KIND_##kind, max, offsetof(struct plan_##message, field)},
#define END(name) \
    }             \
    ;
#include "proto/plan.def"
#undef MESSAGE
#undef FIELD
#undef END

static const struct wire_message tables[] = {
#define MESSAGE(NAME, name, type)                                                           \
    [type] = {#name, name##_fields, type, sizeof(name##_fields) / sizeof(name##_fields[0]), \
              sizeof(struct plan_##name)},
#define FIELD(message, key, field, kind, max, doc)
#define END(name)
#include "proto/plan.def"
#undef MESSAGE
#undef FIELD
#undef END
};

const struct wire_message *plan_table(uint32_t type)
{
    if (type >= sizeof(tables) / sizeof(tables[0]) || tables[type].name == NULL) {
        return NULL;
    }
    return &tables[type];
}

size_t plan_decode_arena_bytes(size_t byte_count)
{
    return byte_count * ARENA_PER_BYTE + ARENA_FIXED_BYTES;
}

enum err_code plan_encode(const struct plan_message *message, struct buf *out, struct err *err)
{
    const struct wire_message *table = plan_table((uint32_t)message->type);
    if (table == NULL) {
        return err_set(err, ERR_INTERNAL, "plan: no message type %u", (uint32_t)message->type);
    }
    size_t start_bytes = out->used_bytes;
    wire_put_array(out, ENVELOPE_PARTS);
    wire_put_u64(out, message->type);
    wire_put_u64(out, message->epoch);
    wire_put_u64(out, message->msg_seq);
    enum err_code code = wire_encode_fields(table, &message->as, out, err);
    if (code == ERR_OK && out->used_bytes - start_bytes > PLAN_MAX_MESSAGE_BYTES) {
        code = err_set(err, ERR_LIMIT, "%s: %zu bytes, at most %u", table->name,
                       out->used_bytes - start_bytes, PLAN_MAX_MESSAGE_BYTES);
    }
    if (code != ERR_OK) {
        buf_truncate(out, start_bytes);
    }
    return code;
}

enum err_code plan_decode(const void *bytes, size_t byte_count, struct mem_arena *arena,
                          struct plan_message *out_message, struct err *err)
{
    struct wire_reader reader;
    wire_reader_init(&reader, bytes, byte_count);
    struct plan_message message = {0};
    uint32_t part_count = wire_get_array(&reader);
    uint64_t type = wire_get_u64(&reader);
    message.epoch = wire_get_u64(&reader);
    message.msg_seq = wire_get_u64(&reader);
    if (reader.error.code == ERR_OK && part_count != ENVELOPE_PARTS) {
        return err_set(err, ERR_FORMAT, "plan: %u parts, want %u", part_count, ENVELOPE_PARTS);
    }
    const struct wire_message *table = type > UINT32_MAX ? NULL : plan_table((uint32_t)type);
    if (reader.error.code == ERR_OK && table == NULL) {
        return err_set(err, ERR_FORMAT, "plan: unknown message type %llu",
                       (unsigned long long)type);
    }
    if (table != NULL) {
        message.type = (enum plan_type)type;
        wire_get_fields(&reader, table, &message.as, arena);
    }
    enum err_code code = wire_reader_finish(&reader, err);
    if (code == ERR_OK) {
        *out_message = message;
    }
    return code;
}

void plan_dump(const struct plan_message *message, struct buf *out)
{
    const struct wire_message *table = plan_table((uint32_t)message->type);
    if (table == NULL) {
        buf_printf(out, "type %u", (uint32_t)message->type);
        return;
    }
    buf_printf(out, "epoch=%llu msg_seq=%llu ", (unsigned long long)message->epoch,
               (unsigned long long)message->msg_seq);
    wire_dump(table, &message->as, out);
}
