/* Messages from the frontend to the worker: structs made from plan.def, encode, decode.
 *
 * A plan message is addressed to one session (epoch) and numbered consecutively from 1 (msg_seq);
 * a gap ends the session.  The worker applies messages in order, except that CANCEL is taken off
 * the socket at once. */
#ifndef PROTO_PLAN_H
#define PROTO_PLAN_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/mem.h"
#include "proto/limits.h"
#include "proto/wire.h"

enum plan_type {
#define MESSAGE(NAME, name, type) PLAN_##NAME = type,
#define FIELD(message, key, field, kind, max, doc)
#define END(name)
#include "proto/plan.def"
#undef MESSAGE
#undef FIELD
#undef END
};

#define MESSAGE(NAME, name, type)                  struct plan_##name {
#define FIELD(message, key, field, kind, max, doc) WIRE_TYPE_##kind field;
#define END(name) \
    }             \
    ;
#include "proto/plan.def"
#undef MESSAGE
#undef FIELD
#undef END

struct plan_message {
    enum plan_type type;
    uint64_t epoch;
    uint64_t msg_seq;
    union {
#define MESSAGE(NAME, name, type) struct plan_##name name;
#define FIELD(message, key, field, kind, max, doc)
#define END(name)
#include "proto/plan.def"
#undef MESSAGE
#undef FIELD
#undef END
    } as;
};

/* Append the message's bytes to out.  Errors: ERR_LIMIT (a field over its bound). */
ERR_NODISCARD enum err_code plan_encode(const struct plan_message *message, struct buf *out,
                                        struct err *err);

/* Arrays of *out_message live in arena.  Errors: ERR_FORMAT, ERR_LIMIT, ERR_MEMORY (arena full). */
ERR_NODISCARD enum err_code plan_decode(const void *bytes, size_t byte_count,
                                        struct mem_arena *arena, struct plan_message *out_message,
                                        struct err *err);

/* Arena bytes that are enough for any message of byte_count encoded bytes. */
size_t plan_decode_arena_bytes(size_t byte_count);

/* One line of text, for messages and golden files. */
void plan_dump(const struct plan_message *message, struct buf *out);

/* The table of one message type; null for an unknown type. */
const struct wire_message *plan_table(uint32_t type);

#endif
