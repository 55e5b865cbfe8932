#include "frontend/http_auth.h"

#include <string.h>
#include <strings.h>

#include <h2o.h>

#include "frontend/api_keys.h"
#include "frontend/app.h"
#include "frontend/http_reply.h"
#include "proto/wire.h"

/* The two places of a key. */
enum place {
    PLACE_BEARER,
    PLACE_API_KEY,
    PLACE_COUNT,
};

static h2o_iovec_t key_at(const h2o_req_t *request, enum place place)
{
    static const char scheme[] = "bearer ";
    size_t scheme_bytes = sizeof(scheme) - 1;
    h2o_iovec_t none = h2o_iovec_init(NULL, 0);
    if (place == PLACE_API_KEY) {
        ssize_t at = h2o_find_header_by_str(&request->headers, H2O_STRLIT("x-api-key"), -1);
        return at == -1 ? none : request->headers.entries[at].value;
    }
    ssize_t at = h2o_find_header(&request->headers, H2O_TOKEN_AUTHORIZATION, -1);
    if (at == -1) {
        return none;
    }
    h2o_iovec_t value = request->headers.entries[at].value;
    if (value.len <= scheme_bytes || strncasecmp(value.base, scheme, scheme_bytes) != 0) {
        return none;
    }
    while (scheme_bytes < value.len && value.base[scheme_bytes] == ' ') {
        scheme_bytes++;
    }
    return h2o_iovec_init(value.base + scheme_bytes, value.len - scheme_bytes);
}

/* Some clients always fill one place with a placeholder: the better key of both counts. */
static enum api_key_scope scope_of(const struct app *app, const h2o_req_t *request,
                                   h2o_iovec_t *out_key)
{
    enum api_key_scope best = API_KEY_UNKNOWN;
    *out_key = h2o_iovec_init(NULL, 0);
    for (int i = 0; i < PLACE_COUNT; i++) {
        h2o_iovec_t key = key_at(request, (enum place)i);
        if (key.len == 0) {
            continue;
        }
        enum api_key_scope scope =
            app->keys ? api_keys_find(app->keys, key.base, key.len) : API_KEY_UNKNOWN;
        if (out_key->len == 0 || scope > best) {
            best = scope;
            *out_key = key;
        }
    }
    return best;
}

static void refuse(struct app *app, h2o_req_t *request, const struct api_error *error)
{
    char id[HTTP_REQUEST_ID_BYTES];
    app->metrics.unauthorized++;
    http_reply_request_id(app, request, id);
    http_reply_error(app, request, id, error);
}

static void refuse_key(struct app *app, h2o_req_t *request, bool has_key)
{
    struct api_error error;
    const char *challenge = "Bearer realm=\"bezel\"";
    if (has_key) {
        challenge = "Bearer realm=\"bezel\", error=\"invalid_token\"";
        api_error_http(&error, 401, "invalid_api_key", "the API key given is not known");
    } else {
        api_error_http(
            &error, 401, NULL,
            "no API key was given: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    }
    h2o_add_header_by_str(&request->pool, &request->res.headers, H2O_STRLIT("www-authenticate"), 0,
                          NULL, challenge, strlen(challenge));
    refuse(app, request, &error);
}

bool http_auth_allow(struct app *app, struct st_h2o_req_t *request, enum http_access access)
{
    struct api_error error;
    if (access == HTTP_ACCESS_OPEN || (access == HTTP_ACCESS_KEY && !app->keys)) {
        return true;
    }
    if (!app->keys) {
        api_error_http(&error, 403, "admin_key_required",
                       "only a key marked admin may, and the server has no --api-key-file");
        refuse(app, request, &error);
        return false;
    }
    h2o_iovec_t key;
    enum api_key_scope scope = scope_of(app, request, &key);
    if (scope == API_KEY_UNKNOWN) {
        refuse_key(app, request, key.len > 0);
        return false;
    }
    if (access == HTTP_ACCESS_ADMIN && scope != API_KEY_ADMIN) {
        api_error_http(&error, 403, "admin_key_required", "only a key marked admin may");
        refuse(app, request, &error);
        return false;
    }
    return true;
}

uint64_t http_auth_key_hash(const struct app *app, const struct st_h2o_req_t *request)
{
    h2o_iovec_t key;
    (void)scope_of(app, request, &key); /* refused before where it is not known */
    if (key.len == 0) {
        return 0;
    }
    uint64_t hash = wire_hash_bytes(0xcbf29ce484222325ULL, key.base, key.len);
    return hash == 0 ? 1 : hash;
}
