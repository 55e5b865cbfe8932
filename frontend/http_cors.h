/* Cross-origin requests of browsers: which origins may ask, and the answer to a preflight.
 *
 * A list is "*" or origins between commas, as browsers write them: scheme://host or
 * scheme://host:port.  Loop thread only, but for the two that take texts alone: those are pure. */
#ifndef FRONTEND_HTTP_CORS_H
#define FRONTEND_HTTP_CORS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

struct app;
struct st_h2o_req_t;

/* Errors: ERR_ARGUMENT, names the entry. */
ERR_NODISCARD enum err_code http_cors_check(const char *list, struct err *err);
bool http_cors_allows(const char *list, const char *origin, size_t origin_bytes);

/* True where request was a preflight, which is answered then. */
bool http_cors_take_preflight(struct app *app, struct st_h2o_req_t *request);

/* Headers of any answer: those that let the asking origin's script read it. */
void http_cors_mark(const struct app *app, struct st_h2o_req_t *request);

#endif
