#include "proto/plan.h"

enum {
    HEAD_COUNT = 3,         /* type, epoch, msg_seq */
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

static const struct wire_envelope envelope = {
    .name = "plan",
    .messages = tables,
    .message_count = sizeof(tables) / sizeof(tables[0]),
    .head_count = HEAD_COUNT,
    .max_bytes = PLAN_MAX_MESSAGE_BYTES,
};

const struct wire_message *plan_table(uint32_t type)
{
    return wire_find(&envelope, type);
}

size_t plan_decode_arena_bytes(size_t byte_count)
{
    return byte_count * ARENA_PER_BYTE + ARENA_FIXED_BYTES;
}

enum err_code plan_encode(const struct plan_message *message, struct buf *out, struct err *err)
{
    const uint64_t head[HEAD_COUNT] = {message->type, message->epoch, message->msg_seq};
    return wire_encode(&envelope, head, &message->as, out, err);
}

enum err_code plan_decode(const void *bytes, size_t byte_count, struct mem_arena *arena,
                          struct plan_message *out_message, struct err *err)
{
    struct plan_message message = {0};
    struct wire_bytes whole = {bytes, byte_count};
    uint64_t head[HEAD_COUNT];
    enum err_code code = wire_decode(&envelope, &whole, arena, head, &message.as, err);
    if (code != ERR_OK) {
        return code;
    }
    message.type = (enum plan_type)head[0];
    message.epoch = head[1];
    message.msg_seq = head[2];
    *out_message = message;
    return ERR_OK;
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
