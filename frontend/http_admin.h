/* POST /admin/...: what changes the server itself.  Only keys marked admin come here.
 * Loop thread only. */
#ifndef FRONTEND_HTTP_ADMIN_H
#define FRONTEND_HTTP_ADMIN_H

struct app;
struct st_h2o_req_t;

/* As `bezel reload`: answered once the new frontend serves, or with 409 and why it does not. */
void http_admin_reload(struct app *app, struct st_h2o_req_t *request);

#endif
