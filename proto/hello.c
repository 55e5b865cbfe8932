#include "proto/hello.h"

#include <errno.h>
#include <unistd.h>

#include "common/file.h"
#include "proto/plan.h"
#include "proto/result.h"

enum {
    HEAD_COUNT = 1, /* the type */
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

static const struct wire_envelope envelope = {
    .name = "hello",
    .messages = tables,
    .message_count = sizeof(tables) / sizeof(tables[0]),
    .head_count = HEAD_COUNT,
    .max_bytes = HELLO_MAX_MESSAGE_BYTES,
};

const struct wire_message *hello_table(uint32_t type)
{
    return wire_find(&envelope, type);
}

enum err_code hello_encode(const struct hello_message *message, struct buf *out, struct err *err)
{
    const uint64_t head[HEAD_COUNT] = {message->type};
    return wire_encode(&envelope, head, &message->as, out, err);
}

enum err_code hello_decode(const void *bytes, size_t byte_count, struct mem_arena *arena,
                           struct hello_message *out_message, struct err *err)
{
    struct hello_message message = {0};
    struct wire_bytes whole = {bytes, byte_count};
    uint64_t head[HEAD_COUNT];
    enum err_code code = wire_decode(&envelope, &whole, arena, head, &message.as, err);
    if (code != ERR_OK) {
        return code;
    }
    message.type = (enum hello_type)head[0];
    *out_message = message;
    return ERR_OK;
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
