/* JSON schema as part of a grammar.
 *
 * What is produced is always valid under the schema; not everything valid can be produced: members
 * come in the schema's order, optional ones may be left out, and an object that names `properties` has
 * no others unless `additionalProperties` says so.  White space is at most one space, or one newline
 * and up to 24 spaces, where JSON allows it.  A keyword that is not served is refused by name and
 * path; annotations pass.  Pure: any thread. */
#ifndef FRONTEND_GRAMMAR_SCHEMA_H
#define FRONTEND_GRAMMAR_SCHEMA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/grammar_net.h"

struct json_t;

/* Markers of tool call syntax, as symbols. */
#define GRAMMAR_QUOTE      (NET_MARKER + 0)
#define GRAMMAR_CALL_OPEN  (NET_MARKER + 1)
#define GRAMMAR_CALL_CLOSE (NET_MARKER + 2)

#define SCHEMA_MAX_RULES 4096U

enum schema_style {
    SCHEMA_STYLE_JSON,
    SCHEMA_STYLE_CALL, /* bare keys, strings between quote markers, no white space */
};

struct schema;

/* net is borrowed until schema_destroy. */
struct schema *schema_create(struct net *net, enum schema_style style);
void schema_destroy(struct schema *schema);

/* Appends one value of the schema `root` to `from`; *out_to is behind it.  schema_finish has still to
 * be called.  root is borrowed until then; references are looked up in it.
 * Errors: ERR_ARGUMENT, ERR_UNSUPPORTED, ERR_LIMIT; the message begins with the place in root. */
ERR_NODISCARD enum err_code schema_put(struct schema *schema, uint32_t from,
                                       const struct json_t *root, uint32_t *out_to,
                                       struct err *err);

/* The same for an object of any members. */
ERR_NODISCARD enum err_code schema_put_object(struct schema *schema, uint32_t from,
                                              uint32_t *out_to, struct err *err);

/* Compiles what was referred to so far.  Errors: as schema_put. */
ERR_NODISCARD enum err_code schema_finish(struct schema *schema, struct err *err);

#endif
