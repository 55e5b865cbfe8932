/* GET routes that answer at once: /v1/models, /version, /health, /ready, /metrics.  Loop thread only. */
#ifndef FRONTEND_HTTP_INFO_H
#define FRONTEND_HTTP_INFO_H

struct app;
struct st_h2o_req_t;

void http_info_models(struct app *app, struct st_h2o_req_t *request);
void http_info_version(struct app *app, struct st_h2o_req_t *request);
void http_info_health(struct app *app, struct st_h2o_req_t *request);
void http_info_ready(struct app *app, struct st_h2o_req_t *request);
void http_info_metrics(struct app *app, struct st_h2o_req_t *request);

#endif
