/* JSON over jansson: strict parsing with bounds, typed accessors that name the path, a writer.
 *
 * Only json.c includes jansson.  Values are counted; a child is borrowed from its parent.  A number
 * that is written as an integer but does not fit int64 is kept with its literal text, so that it
 * can be printed in full (json_number_text).  A tree may be read from several threads. */
#ifndef COMMON_JSON_H
#define COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct json_t; /* jansson's value */

enum json_kind {
    JSON_KIND_NULL,
    JSON_KIND_BOOL,
    JSON_KIND_INTEGER,
    JSON_KIND_BIG_INTEGER, /* an integer literal outside int64 */
    JSON_KIND_REAL,
    JSON_KIND_TEXT,
    JSON_KIND_ARRAY,
    JSON_KIND_OBJECT,
};

#define JSON_MAX_DEPTH      512
#define JSON_MAX_CONTAINERS (1u << 20) /* arrays and objects: some 300 bytes each, from 2 of text */

/* Strict RFC 8259: duplicate keys are refused, depth is bounded (max_depth, at most JSON_MAX_DEPTH;
 * a lone scalar has depth 0), the text must be UTF-8 and hold one value of any kind.  \u0000 is
 * allowed in text and refused in keys; so are half surrogate pairs anywhere and numbers that are
 * infinite as a double.  Linear in byte_count; text need not be terminated and is not kept.
 * Errors: ERR_FORMAT with line and column, ERR_LIMIT (depth, containers). */
ERR_NODISCARD enum err_code json_parse(const char *text, size_t byte_count, uint32_t max_depth,
                                       struct json_t **out_value, struct err *err);
/* max_depth is JSON_MAX_DEPTH.  Errors: also ERR_NOT_FOUND, ERR_SYSTEM, ERR_LIMIT; names path. */
ERR_NODISCARD enum err_code json_parse_file(const char *path, size_t max_bytes,
                                            struct json_t **out_value, struct err *err);
void json_release(struct json_t *value); /* null is fine */
/* Another owner of the same value, for json_release; any thread. */
struct json_t *json_retain(const struct json_t *value);

enum json_kind json_kind(const struct json_t *value);
const char *json_kind_text(enum json_kind kind); /* "a string", "an object", ... */

/* Borrowed; null where the key or index is absent. */
struct json_t *json_member(const struct json_t *object, const char *key);
struct json_t *json_element(const struct json_t *array, size_t index);
size_t json_count(const struct json_t *value); /* members or elements; 0 for others */

/* Members in the order they were written. */
struct json_iter {
    const char *key;             /* zero-terminated */
    struct json_t *value;        /* borrowed */
    const struct json_t *object; /* borrowed */
    void *position;
};
void json_iter_start(struct json_iter *iter, const struct json_t *object);
bool json_iter_next(struct json_iter *iter);

/* Values of the right kind only; the caller asked json_kind first. */
bool json_bool(const struct json_t *value);
int64_t json_int64(const struct json_t *value); /* not json_integer: jansson owns that symbol */
double json_number(const struct json_t *value); /* INTEGER, BIG_INTEGER or REAL */
const char *json_text(const struct json_t *value, size_t *out_byte_count);
const char *json_number_text(const struct json_t *value); /* BIG_INTEGER's literal */

/* Typed access to object[key]; path is a prefix for messages, e.g. "text_config".  Absent or null
 * gives the default where *_or is used, ERR_CONFIG otherwise; a wrong kind or range is ERR_CONFIG
 * that names path.key, the value and the limit. */
ERR_NODISCARD enum err_code json_get_u32(const struct json_t *object, const char *path,
                                         const char *key, uint32_t max_value, uint32_t *out_value,
                                         struct err *err);
ERR_NODISCARD enum err_code json_get_u32_or(const struct json_t *object, const char *path,
                                            const char *key, uint32_t max_value,
                                            uint32_t default_value, uint32_t *out_value,
                                            struct err *err);
ERR_NODISCARD enum err_code json_get_f64_or(const struct json_t *object, const char *path,
                                            const char *key, double default_value,
                                            double *out_value, struct err *err);
ERR_NODISCARD enum err_code json_get_bool_or(const struct json_t *object, const char *path,
                                             const char *key, bool default_value, bool *out_value,
                                             struct err *err);
/* Borrowed from object. */
ERR_NODISCARD enum err_code json_get_text_or(const struct json_t *object, const char *path,
                                             const char *key, const char *default_value,
                                             const char **out_value, struct err *err);

/* Writer: appends JSON text to a buffer; compact, non-ASCII kept.  Text must be UTF-8: bytes that
 * are not come out as U+FFFD, so that the output always is. */
void json_put_text(struct buf *out, const char *text, size_t byte_count); /* quoted, escaped */
/* Shortest text that reads back, as Python prints it: 1.0, 1e+20, 1e-05.  Not finite: null. */
void json_put_f64(struct buf *out, double value);
void json_put_value(struct buf *out, const struct json_t *value);

#endif
