/* Shared by grammar_schema.c (references, choices), grammar_schema_check.c (keywords),
 * grammar_schema_scalar.c and grammar_schema_nested.c. */
#ifndef FRONTEND_GRAMMAR_SCHEMA_INTERNAL_H
#define FRONTEND_GRAMMAR_SCHEMA_INTERNAL_H

#include <stddef.h>

#include "common/json.h"
#include "frontend/grammar_schema.h"

/* Kinds of values, as bits; a number is either of two. */
enum schema_type {
    SCHEMA_NULL = 1,
    SCHEMA_BOOL = 2,
    SCHEMA_INTEGER = 4,
    SCHEMA_FRACTION = 8,
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
    SCHEMA_NUMBER = SCHEMA_INTEGER | SCHEMA_FRACTION,
    SCHEMA_ANY = 127
};

/* Where a schema stands in its root, from the inside out. */
struct schema_path {
    const struct schema_path *up;
    const char *key;
};

/* A network of its own: what a reference, or the items of a list, stand for. */
struct schema_rule {
    const struct json_t *value; /* null: any value of these types */
    const struct json_t *root;
    uint32_t types;
    uint32_t start;
};

struct schema {
    struct net *net; /* borrowed */
    enum schema_style style;
    const struct json_t *root; /* borrowed: of what is being compiled */
    struct schema_rule *rules; /* owned; compiled up to done_count */
    uint32_t rule_count;
    uint32_t rule_cap;
    uint32_t done_count;
    uint32_t space;  /* start of the white space's network; 0 not made yet */
    uint32_t depth;  /* of schema_put_value within itself */
    struct err *err; /* borrowed during a call */
};

/* A value to append. */
struct schema_at {
    const struct json_t *value;
    const struct schema_path *path;
    uint32_t types; /* only of these */
    uint32_t from;
};

/* "<path>: <text>". */
enum err_code schema_fail(struct schema *schema, const struct schema_path *path, enum err_code code,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* grammar_schema_check.c: every keyword is served or an annotation; those that constrain beside a
 * keyword that stands alone are refused.  Types that the schema allows, of at->types. */
ERR_NODISCARD enum err_code schema_check(struct schema *schema, const struct schema_at *at,
                                         uint32_t *out_types);
ERR_NODISCARD enum err_code schema_check_alone(struct schema *schema, const struct schema_at *at,
                                               const char *name);
/* A count; *out_count is left alone where there is none. */
ERR_NODISCARD enum err_code schema_read_count(struct schema *schema, const struct schema_at *at,
                                              const char *keyword, uint32_t *out_count);

/* grammar_schema.c */
ERR_NODISCARD enum err_code schema_put_value(struct schema *schema, const struct schema_at *at,
                                             uint32_t *out_to);
ERR_NODISCARD enum err_code schema_put_rule(struct schema *schema, const struct schema_at *at,
                                            uint32_t *out_to);
ERR_NODISCARD enum err_code schema_find(struct schema *schema, const struct schema_path *path,
                                        const char *reference, const struct json_t **out_value);

/* grammar_schema_scalar.c */
ERR_NODISCARD enum err_code schema_put_string(struct schema *schema, const struct schema_at *at,
                                              uint32_t *out_to);
ERR_NODISCARD enum err_code schema_put_number(struct schema *schema, const struct schema_at *at,
                                              uint32_t *out_to);
/* A string's quote, or its marker. */
uint32_t schema_put_quote(struct schema *schema, uint32_t from);
/* The value itself, written in the schema's style: into what was written from `from` before, where
 * both begin alike. */
uint32_t schema_put_literal(struct schema *schema, uint32_t from, const struct json_t *value);
uint32_t schema_type_of(const struct json_t *value);

/* grammar_schema_nested.c */
uint32_t schema_put_space(struct schema *schema, uint32_t from);
ERR_NODISCARD enum err_code schema_put_members(struct schema *schema, const struct schema_at *at,
                                               uint32_t *out_to);
ERR_NODISCARD enum err_code schema_put_items(struct schema *schema, const struct schema_at *at,
                                             uint32_t *out_to);
/* A member's name and its colon. */
uint32_t schema_put_name(struct schema *schema, uint32_t from, const char *name);

#endif
