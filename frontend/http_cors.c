#include "frontend/http_cors.h"

#include <string.h>

#include <h2o.h>

#include "frontend/app.h"
#include "frontend/http_reply.h"

enum {
    ORIGIN_MAX_BYTES = 261, /* https:// and a longest name */
    HEADERS_MAX_BYTES = 1024,
};

static const char every[] = "*";

/* The next entry of a list; 0 bytes at its end. */
static const char *next_entry(const char **at, size_t *out_bytes)
{
    while (**at == ',' || **at == ' ') {
        (*at)++;
    }
    const char *entry = *at;
    *out_bytes = strcspn(entry, ", ");
    *at += *out_bytes;
    return entry;
}

static bool is_origin(const char *entry, size_t byte_count)
{
    const char *mark = memmem(entry, byte_count, "://", 3);
    if (!mark || mark == entry || byte_count > ORIGIN_MAX_BYTES) {
        return false;
    }
    const char *host = mark + 3;
    size_t host_bytes = byte_count - (size_t)(host - entry);
    return host_bytes > 0 && !memchr(host, '/', host_bytes);
}

enum err_code http_cors_check(const char *list, struct err *err)
{
    size_t byte_count = 0;
    const char *at = list;
    const char *entry = next_entry(&at, &byte_count);
    if (byte_count == 0) {
        return err_set(err, ERR_ARGUMENT, "--cors-origin '%s' names no origin", list);
    }
    for (; byte_count > 0; entry = next_entry(&at, &byte_count)) {
        bool is_every = byte_count == 1 && *entry == *every;
        if (!is_every && !is_origin(entry, byte_count)) {
            return err_set(err, ERR_ARGUMENT,
                           "--cors-origin '%.*s' is no origin: * or scheme://host[:port], no path",
                           (int)byte_count, entry);
        }
    }
    return ERR_OK;
}

bool http_cors_allows(const char *list, const char *origin, size_t origin_bytes)
{
    size_t byte_count = 0;
    const char *at = list;
    for (;;) {
        const char *entry = next_entry(&at, &byte_count);
        if (byte_count == 0) {
            return false;
        }
        if (byte_count == 1 && *entry == *every) {
            return true;
        }
        if (byte_count == origin_bytes && memcmp(entry, origin, byte_count) == 0) {
            return true;
        }
    }
}

/* The header's value where it came and may be sent back. */
static h2o_iovec_t value_of(const h2o_req_t *request, const char *name, size_t max_bytes)
{
    ssize_t at = h2o_find_header_by_str(&request->headers, name, strlen(name), -1);
    if (at == -1 || request->headers.entries[at].value.len > max_bytes) {
        return h2o_iovec_init(NULL, 0);
    }
    h2o_iovec_t value = request->headers.entries[at].value;
    for (size_t i = 0; i < value.len; i++) {
        if (value.base[i] < ' ' || value.base[i] > '~') {
            return h2o_iovec_init(NULL, 0);
        }
    }
    return value;
}

static void add_header(h2o_req_t *request, const char *name, const char *value, size_t value_bytes)
{
    h2o_iovec_t copy = h2o_strdup(&request->pool, value, value_bytes);
    h2o_add_header_by_str(&request->pool, &request->res.headers, name, strlen(name), 0, NULL,
                          copy.base, copy.len);
}

static void add_text(h2o_req_t *request, const char *name, const char *value)
{
    add_header(request, name, value, strlen(value));
}

void http_cors_mark(const struct app *app, struct st_h2o_req_t *request)
{
    const char *list = app->options->cors_origin;
    if (!list) {
        return;
    }
    h2o_iovec_t origin = value_of(request, "origin", ORIGIN_MAX_BYTES);
    add_text(request, "vary", "Origin");
    if (origin.len == 0 || !http_cors_allows(list, origin.base, origin.len)) {
        return;
    }
    add_header(request, "access-control-allow-origin", origin.base, origin.len);
    add_text(request, "access-control-expose-headers", "x-request-id, retry-after");
}

bool http_cors_take_preflight(struct app *app, struct st_h2o_req_t *request)
{
    const char *list = app->options->cors_origin;
    if (!list || !h2o_memis(request->method.base, request->method.len, H2O_STRLIT("OPTIONS")) ||
        value_of(request, "access-control-request-method", HEADERS_MAX_BYTES).len == 0) {
        return false;
    }
    h2o_iovec_t origin = value_of(request, "origin", ORIGIN_MAX_BYTES);
    if (origin.len > 0 && http_cors_allows(list, origin.base, origin.len)) {
        h2o_iovec_t headers =
            value_of(request, "access-control-request-headers", HEADERS_MAX_BYTES);
        add_text(request, "access-control-allow-methods", "GET, HEAD, POST, OPTIONS");
        add_text(request, "access-control-max-age", "7200");
        if (headers.len > 0) {
            add_header(request, "access-control-allow-headers", headers.base, headers.len);
        }
    }
    http_reply_empty(app, request, 200);
    return true;
}
