/* The routes that take text: one exchange from body to last byte.
 *
 * The body is copied on the loop thread in slices, prepared and submitted on a work thread, and
 * answered on the loop thread from the engine's events.  Loop thread only. */
#ifndef FRONTEND_HTTP_GENERATE_H
#define FRONTEND_HTTP_GENERATE_H

#include <stdint.h>

#include "frontend/api_request.h"
#include "frontend/prepare.h"

struct app;
struct dialect;
struct http_calls;
struct st_h2o_req_t;

/* All exchanges in progress. */
struct http_calls *http_calls_create(struct app *app);
/* None is left. */
void http_calls_destroy(struct http_calls *calls);
/* Exchanges whose memory is still held: a little longer than they are open. */
uint32_t http_calls_count(const struct http_calls *calls);

/* Begin an exchange: h2o's handler of the generation routes.  The answer comes later. */
void http_generate_start(struct http_calls *calls, struct st_h2o_req_t *request,
                         enum api_route route);

/* The same for a chat in another dialect. */
void http_generate_start_dialect(struct http_calls *calls, struct st_h2o_req_t *request,
                                 const struct dialect *dialect);

/* The same for a route that runs nothing (api_text.h). */
typedef enum err_code (*http_text_fn)(const struct prepare_model *model,
                                      const struct prepare_input *input, struct buf *out,
                                      struct api_error *error);
void http_generate_start_text(struct http_calls *calls, struct st_h2o_req_t *request,
                              http_text_fn answer);

/* Once a second: comments on silent streams. */
void http_calls_sweep(struct http_calls *calls, uint64_t now_ns);

/* End every exchange: those that can still be answered get 503 or an error event. */
void http_calls_cancel_all(struct http_calls *calls);

#endif
