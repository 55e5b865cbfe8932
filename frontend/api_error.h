/* Errors as API clients see them: a status and a body in OpenAI's shape.
 *
 *   {"error": {"message": ..., "type": ..., "param": ... | null, "code": ... | null}}
 *
 * The HTTP status of every err_code is decided in api_error.c alone.  Pure: any thread. */
#ifndef FRONTEND_API_ERROR_H
#define FRONTEND_API_ERROR_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

#define API_ERROR_PARAM_BYTES   96
#define API_ERROR_RETRY_SECONDS 1

struct api_error {
    int status;                        /* HTTP */
    const char *slug;                  /* the body's "code", a literal; null gives JSON null */
    char param[API_ERROR_PARAM_BYTES]; /* request field at fault; "" gives JSON null */
    char message[ERR_MESSAGE_BYTES];
    uint32_t retry_after_s; /* value of Retry-After; 0: no such header */
};

/* HTTP status of a code: 200 for ERR_OK. */
int api_error_status(enum err_code code);

/* Fill error for a request field; returns code.  param may be null. */
enum err_code api_error_set(struct api_error *error, enum err_code code, const char *param,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

/* From a module's error; param is null unless the message begins with a member path, as those of
 * chat rendering do ("messages[2].content: ..."). */
void api_error_from_err(struct api_error *error, const struct err *err);

/* For what is wrong with the HTTP exchange itself (404 route, 405, 413, 408). */
void api_error_http(struct api_error *error, int status, const char *slug, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "error" value of a status: "invalid_request_error", "server_error", ... */
const char *api_error_type(int status);

/* Reason phrase of a status line. */
const char *api_error_reason(int status);

/* Append the body. */
void api_error_body(const struct api_error *error, struct buf *out);

#endif
