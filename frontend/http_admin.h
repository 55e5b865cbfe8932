/* POST /admin/...: what changes the server itself.  Only keys marked admin come here.
 * Loop thread only. */
#ifndef FRONTEND_HTTP_ADMIN_H
#define FRONTEND_HTTP_ADMIN_H

#include <stdint.h>

struct app;
struct st_h2o_req_t;

/* As `bezel reload`: answered once the new frontend serves, or with 409 and why it does not. */
void http_admin_reload(struct app *app, struct st_h2o_req_t *request);

/* The worker forgets cached prefixes that nothing running holds; answered once it has, with how many
 * pages are left. */
void http_admin_reset_cache(struct app *app, struct st_h2o_req_t *request);

/* Once a second: answers resets that are done, or take too long. */
void http_admin_sweep(struct app *app, uint64_t now_ns);

#endif
