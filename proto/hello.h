/* Messages of the control socket: structs made from hello.def, encode, decode.
 *
 * Requests: HELLO -> WELCOME, ATTACH -> ATTACHED, STATS -> STATS_ANSWER, PROFILE -> PROFILE_ANSWER;
 * FAULT may answer any.  WELCOME is answered while weights still load. */
#ifndef PROTO_HELLO_H
#define PROTO_HELLO_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/mem.h"
#include "proto/limits.h"
#include "proto/wire.h"

enum hello_state {
    HELLO_STATE_LOADING = 1,
    HELLO_STATE_READY = 2,
    HELLO_STATE_FAILED = 3, /* the process is about to exit */
};

enum hello_type {
#define MESSAGE(NAME, name, type) HELLO_##NAME = type,
#define FIELD(message, key, field, kind, max, doc)
#define END(name)
#include "proto/hello.def"
#undef MESSAGE
#undef FIELD
#undef END
};

#define MESSAGE(NAME, name, type)                  struct hello_##name {
#define FIELD(message, key, field, kind, max, doc) WIRE_TYPE_##kind field;
#define END(name) \
    }             \
    ;
#include "proto/hello.def"
#undef MESSAGE
#undef FIELD
#undef END

struct hello_message {
    enum hello_type type;
    union {
#define MESSAGE(NAME, name, type) struct hello_##name name;
#define FIELD(message, key, field, kind, max, doc)
#define END(name)
#include "proto/hello.def"
#undef MESSAGE
#undef FIELD
#undef END
    } as;
};

/* Append the message's bytes to out.  Errors: ERR_LIMIT (a field over its bound). */
ERR_NODISCARD enum err_code hello_encode(const struct hello_message *message, struct buf *out,
                                         struct err *err);

/* Texts of *out_message live in arena (plan_decode_arena_bytes is enough).  Errors: ERR_FORMAT,
 * ERR_LIMIT, ERR_MEMORY (arena full). */
ERR_NODISCARD enum err_code hello_decode(const void *bytes, size_t byte_count,
                                         struct mem_arena *arena, struct hello_message *out_message,
                                         struct err *err);

/* One line of text, for messages and golden files. */
void hello_dump(const struct hello_message *message, struct buf *out);

/* The table of one message type; null for an unknown type. */
const struct wire_message *hello_table(uint32_t type);

/* Hash of every message table (plan.def, hello.def), the result layout and proto/limits.h. */
uint64_t hello_table_hash(void);

/* What WELCOME's config_hash and tokenizer_hash are: FNV-1a of a file's bytes, never 0; 0 where the
 * file does not exist.  Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code hello_hash_file(const char *path, uint64_t *out_hash, struct err *err);

#endif
