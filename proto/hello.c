#include "proto/hello.h"

#include <errno.h>
#include <unistd.h>

#include "common/file.h"
#include "proto/plan.h"
#include "proto/result.h"

enum {
    ENVELOPE_PARTS = 2, /* type, fields */
    CHUNK_BYTES = 8192,
};

#define MESSAGE(NAME, name, type) static const struct wire_field name##_fields[] = {
#define FIELD(message, key, field, kind, max, doc) \
    {#field, key, WIRE_KIND_##kind, max, offsetof(struct hello_##message, field)},
#define END(name) \
    }             \
    ;
#include "proto/hello.def"
#undef MESSAGE
#undef FIELD
#undef END

static const struct wire_message tables[] = {
#define MESSAGE(NAME, name, type)                                                           \
    [type] = {#name, name##_fields, type, sizeof(name##_fields) / sizeof(name##_fields[0]), \
              sizeof(struct hello_##name)},
#define FIELD(message, key, field, kind, max, doc)
#define END(name)
#include "proto/hello.def"
#undef MESSAGE
#undef FIELD
#undef END
};

enum {
    TABLE_COUNT = sizeof(tables) / sizeof(tables[0])
};

static const struct {
    const char *name;
    uint64_t value;
} limits[] = {
#define LIMIT(name) \
    {               \
#name, name \
    }
/* In units of 1e-12. */
#define LIMIT_F32(name)                        \
    {                                          \
#name, (uint64_t)((double)(name)*1e12) \
    }
    LIMIT(PROTO_VERSION),
    LIMIT(PLAN_MAX_ROWS),
    LIMIT(PLAN_MAX_STEP_TOKENS),
    LIMIT(PLAN_MAX_PROMPT_TOKENS),
    LIMIT(PLAN_MAX_LOGIT_BIAS),
    LIMIT(PLAN_MAX_STOP_IDS),
    LIMIT(PLAN_MAX_LOGPROBS),
    LIMIT(PLAN_MAX_MESSAGE_BYTES),
    LIMIT(HELLO_MAX_MESSAGE_BYTES),
    LIMIT(HELLO_MAX_TEXT_BYTES),
    LIMIT(SESSION_MAX_COUNT),
    LIMIT(RESULT_RECORD_BYTES),
    LIMIT(ERR_CODE_COUNT), /* codes travel as numbers */
    LIMIT_F32(PLAN_MAX_TEMPERATURE),
    LIMIT_F32(PLAN_MIN_TOP_P),
    LIMIT_F32(PLAN_MAX_PENALTY),
    LIMIT_F32(PLAN_MIN_REPETITION),
    LIMIT_F32(PLAN_MAX_REPETITION),
#undef LIMIT
#undef LIMIT_F32
};

const struct wire_message *hello_table(uint32_t type)
{
    if (type >= TABLE_COUNT || tables[type].name == NULL) {
        return NULL;
    }
    return &tables[type];
}

enum err_code hello_encode(const struct hello_message *message, struct buf *out, struct err *err)
{
    const struct wire_message *table = hello_table((uint32_t)message->type);
    if (table == NULL) {
        return err_set(err, ERR_INTERNAL, "hello: no message type %u", (uint32_t)message->type);
    }
    size_t start_bytes = out->used_bytes;
    wire_put_array(out, ENVELOPE_PARTS);
    wire_put_u64(out, message->type);
    enum err_code code = wire_encode_fields(table, &message->as, out, err);
    if (code != ERR_OK) {
        buf_truncate(out, start_bytes);
    }
    return code;
}

enum err_code hello_decode(const void *bytes, size_t byte_count, struct mem_arena *arena,
                           struct hello_message *out_message, struct err *err)
{
    struct wire_reader reader;
    wire_reader_init(&reader, bytes, byte_count);
    struct hello_message message = {0};
    uint32_t part_count = wire_get_array(&reader);
    uint64_t type = wire_get_u64(&reader);
    if (reader.error.code == ERR_OK && part_count != ENVELOPE_PARTS) {
        return err_set(err, ERR_FORMAT, "hello: %u parts, want %u", part_count, ENVELOPE_PARTS);
    }
    const struct wire_message *table = type > UINT32_MAX ? NULL : hello_table((uint32_t)type);
    if (reader.error.code == ERR_OK && table == NULL) {
        return err_set(err, ERR_FORMAT, "hello: unknown message type %llu",
                       (unsigned long long)type);
    }
    if (table != NULL) {
        message.type = (enum hello_type)type;
        wire_get_fields(&reader, table, &message.as, arena);
    }
    enum err_code code = wire_reader_finish(&reader, err);
    if (code == ERR_OK) {
        *out_message = message;
    }
    return code;
}

void hello_dump(const struct hello_message *message, struct buf *out)
{
    const struct wire_message *table = hello_table((uint32_t)message->type);
    if (table == NULL) {
        buf_printf(out, "type %u", (uint32_t)message->type);
        return;
    }
    wire_dump(table, &message->as, out);
}

uint64_t hello_table_hash(void)
{
    uint64_t hash = WIRE_HASH_SEED;
    for (uint32_t type = 1; plan_table(type) != NULL; type++) {
        hash = wire_hash_message(hash, plan_table(type));
    }
    for (uint32_t type = 1; hello_table(type) != NULL; type++) {
        hash = wire_hash_message(hash, hello_table(type));
    }
    hash = result_hash_layout(hash);
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        hash = wire_hash_text(hash, limits[i].name);
        hash = wire_hash_u64(hash, limits[i].value);
    }
    return hash;
}

enum err_code hello_hash_file(const char *path, uint64_t *out_hash, struct err *err)
{
    int fd = -1;
    uint64_t file_bytes = 0;
    enum err_code code = file_open(path, &fd, &file_bytes, err);
    if (code == ERR_NOT_FOUND) {
        *out_hash = 0;
        return ERR_OK;
    }
    if (code != ERR_OK) {
        return code;
    }
    uint64_t hash = WIRE_HASH_SEED;
    unsigned char chunk[CHUNK_BYTES];
    ssize_t got = 0;
    while ((got = read(fd, chunk, sizeof(chunk))) > 0 || (got < 0 && errno == EINTR)) {
        hash = wire_hash_bytes(hash, chunk, got > 0 ? (size_t)got : 0);
    }
    int failure = errno;
    (void)close(fd); /* only read from */
    if (got < 0) {
        return err_errno(err, failure, "reading '%s'", path);
    }
    *out_hash = hash == 0 ? 1 : hash;
    return ERR_OK;
}
