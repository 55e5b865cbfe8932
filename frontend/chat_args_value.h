/* Values of tool arguments: which types a schema takes, and texts as JSON of such a type.  Pure. */
#ifndef FRONTEND_CHAT_ARGS_VALUE_H
#define FRONTEND_CHAT_ARGS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

struct json_t;

enum chat_type {
    CHAT_TYPE_NULL = 1,
    CHAT_TYPE_BOOL = 2,
    CHAT_TYPE_INTEGER = 4,
    CHAT_TYPE_NUMBER = 8,
    CHAT_TYPE_STRING = 16,
    CHAT_TYPE_ARRAY = 32,
    CHAT_TYPE_OBJECT = 64,
};

/* Bits of enum chat_type that the schema takes; 0: any, or not told. */
uint32_t chat_types_of(const struct json_t *schema);
/* Schema of a member, of elements; null where it tells none. */
const struct json_t *chat_schema_member(const struct json_t *schema, const char *key);
const struct json_t *chat_schema_element(const struct json_t *schema);

/* A bare value of the types (0: any): a literal where it reads as one that is taken, else a string.
 */
void chat_put_bare(const char *text, size_t byte_count, uint32_t types, struct buf *out);
/* A quoted one whose types exclude strings: what the text reads as where that is taken, else a
 * string after all. */
void chat_put_unquoted(const char *text, size_t byte_count, uint32_t types, struct buf *out);

/* The inside of a JSON string. */
void chat_put_escaped(const char *text, size_t byte_count, struct buf *out);

#endif
