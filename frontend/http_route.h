/* Which handler a request gets, and what is asked of it before.  Loop thread only. */
#ifndef FRONTEND_HTTP_ROUTE_H
#define FRONTEND_HTTP_ROUTE_H

struct app;
struct http_calls;
struct st_h2o_pathconf_t;

/* Serve all routes under pathconf, which lives as long as app and calls. */
void http_route_install(struct app *app, struct http_calls *calls,
                        struct st_h2o_pathconf_t *pathconf);

#endif
