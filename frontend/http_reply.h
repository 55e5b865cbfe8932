/* Whole answers, and what every answer carries.  Loop thread only. */
#ifndef FRONTEND_HTTP_REPLY_H
#define FRONTEND_HTTP_REPLY_H

#include "common/buf.h"
#include "frontend/api_error.h"

#define HTTP_REQUEST_ID_BYTES 136

struct app;
struct st_h2o_pathconf_t;
struct st_h2o_req_t;

/* The client's X-Request-Id where it is short and printable, a fresh one otherwise. */
void http_reply_request_id(struct app *app, struct st_h2o_req_t *request,
                           char out_id[HTTP_REQUEST_ID_BYTES]);

/* Headers of any answer that is about to start: request id, those that browsers ask for, Connection
 * while draining.  Counts it by status. */
void http_reply_prepare(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                        int status);

/* Send body (taken: it is empty afterwards) with a content type.  Status 200 unless said. */
void http_reply_body(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                     const char *content_type, struct buf *body);
void http_reply_error(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                      const struct api_error *error);

/* Likewise with a body of the caller's own (taken). */
void http_reply_error_body(struct app *app, struct st_h2o_req_t *request, const char *request_id,
                           const struct api_error *error, struct buf *body);

/* Send an answer without a body. */
void http_reply_empty(struct app *app, struct st_h2o_req_t *request, int status);

/* Give the errors that h2o itself answers with (body too large, malformed request) the API's shape.
 * pathconf lives as long as app. */
void http_reply_reshape_errors(struct app *app, struct st_h2o_pathconf_t *pathconf);

#endif
