/* Who asks: the API key of a request, as "Authorization: Bearer KEY" or "x-api-key: KEY", and what
 * it allows.  Loop thread only. */
#ifndef FRONTEND_HTTP_AUTH_H
#define FRONTEND_HTTP_AUTH_H

#include <stdbool.h>
#include <stdint.h>

struct app;
struct st_h2o_req_t;

enum http_access {
    HTTP_ACCESS_OPEN,  /* everybody */
    HTTP_ACCESS_KEY,   /* any key; everybody where there is no key file */
    HTTP_ACCESS_ADMIN, /* a key marked admin; nobody where there is no key file */
};

/* False where it was answered with 401 or 403. */
bool http_auth_allow(struct app *app, struct st_h2o_req_t *request, enum http_access access);

/* Tells the requests of one key from those of another, and nothing that could be told on; 0 without
 * a key.  Where there is a key file, of the key that is in it. */
uint64_t http_auth_key_hash(const struct app *app, const struct st_h2o_req_t *request);

#endif
