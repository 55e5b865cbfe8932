/* Typed access to members: configuration files name their fields in every message. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"

enum {
    SHOWN_BYTES = 40
};

/* A present value, or null where it is absent or a JSON null. */
static const struct json_t *present(const struct json_t *object, const char *key)
{
    const struct json_t *value = json_member(object, key);
    return value == NULL || json_kind(value) == JSON_KIND_NULL ? NULL : value;
}

static enum err_code wrong(const struct json_t *value, const char *path, const char *key,
                           const char *wanted, struct err *err)
{
    const char *dot = path[0] == '\0' ? "" : ".";
    if (value == NULL) {
        return err_set(err, ERR_CONFIG, "%s%s%s is missing, needs %s", path, dot, key, wanted);
    }
    if (json_count(value) > 0) {
        return err_set(err, ERR_CONFIG, "%s%s%s is %s, needs %s", path, dot, key,
                       json_kind_text(json_kind(value)), wanted);
    }
    struct buf shown;
    buf_init(&shown);
    json_put_value(&shown, value);
    size_t shown_bytes = shown.used_bytes;
    if (shown_bytes > SHOWN_BYTES) {
        shown_bytes = utf8_complete_prefix(shown.at, SHOWN_BYTES);
    }
    enum err_code code =
        err_set(err, ERR_CONFIG, "%s%s%s is %.*s%s, needs %s", path, dot, key, (int)shown_bytes,
                buf_text(&shown), shown_bytes < shown.used_bytes ? "..." : "", wanted);
    buf_fini(&shown);
    return code;
}

enum err_code json_get_u32(const struct json_t *object, const char *path, const char *key,
                           uint32_t max_value, uint32_t *out_value, struct err *err)
{
    const struct json_t *value = present(object, key);
    if (value != NULL && json_kind(value) == JSON_KIND_INTEGER) {
        int64_t integer = json_int64(value);
        if (integer >= 0 && integer <= (int64_t)max_value) {
            *out_value = (uint32_t)integer;
            return ERR_OK;
        }
    }
    char wanted[64];
    (void)snprintf(wanted, sizeof(wanted), "an integer from 0 to %u", max_value); /* fits */
    return wrong(value, path, key, wanted, err);
}

/* NOLINTNEXTLINE(readability-function-size): one parameter more beats a struct at each call */
enum err_code json_get_u32_or(const struct json_t *object, const char *path, const char *key,
                              uint32_t max_value, uint32_t default_value, uint32_t *out_value,
                              struct err *err)
{
    if (present(object, key) == NULL) {
        *out_value = default_value;
        return ERR_OK;
    }
    return json_get_u32(object, path, key, max_value, out_value, err);
}

enum err_code json_get_f64_or(const struct json_t *object, const char *path, const char *key,
                              double default_value, double *out_value, struct err *err)
{
    const struct json_t *value = present(object, key);
    if (value == NULL) {
        *out_value = default_value;
        return ERR_OK;
    }
    enum json_kind kind = json_kind(value);
    if (kind != JSON_KIND_INTEGER && kind != JSON_KIND_BIG_INTEGER && kind != JSON_KIND_REAL) {
        return wrong(value, path, key, "a number", err);
    }
    *out_value = json_number(value);
    return ERR_OK;
}

enum err_code json_get_bool_or(const struct json_t *object, const char *path, const char *key,
                               bool default_value, bool *out_value, struct err *err)
{
    const struct json_t *value = present(object, key);
    if (value != NULL && json_kind(value) != JSON_KIND_BOOL) {
        return wrong(value, path, key, "true or false", err);
    }
    *out_value = value == NULL ? default_value : json_bool(value);
    return ERR_OK;
}

enum err_code json_get_text_or(const struct json_t *object, const char *path, const char *key,
                               const char *default_value, const char **out_value, struct err *err)
{
    const struct json_t *value = present(object, key);
    if (value == NULL) {
        *out_value = default_value;
        return ERR_OK;
    }
    if (json_kind(value) != JSON_KIND_TEXT) {
        return wrong(value, path, key, "a string", err);
    }
    size_t byte_count;
    const char *text = json_text(value, &byte_count);
    if (strlen(text) != byte_count) {
        return wrong(value, path, key, "a string without zero bytes", err);
    }
    *out_value = text;
    return ERR_OK;
}
