#include "frontend/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"

int api_error_status(enum err_code code)
{
    switch (code) {
    case ERR_OK: return 200;
    case ERR_ARGUMENT:
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
    case ERR_LIMIT: return 400;
    case ERR_NOT_FOUND: return 404;
    case ERR_TIMEOUT: return 408;
    case ERR_BUSY: return 429;
    case ERR_CLOSED:
    case ERR_DEVICE:
    case ERR_CANCELLED:
    case ERR_STALE: return 503;
    case ERR_CONFIG:
    case ERR_PLAN:
    case ERR_PAGES:
    case ERR_AFTER_REFUSAL:
    case ERR_SEQUENCE:
    case ERR_STEP:
    case ERR_PROTOCOL:
    case ERR_SYSTEM:
    case ERR_MEMORY:
    case ERR_SHAPE:
    case ERR_ALIGN:
    case ERR_INTERNAL:
    case ERR_CODE_COUNT: return 500;
    }
    return 500;
}

static const char *slug_of_status(int status)
{
    switch (status) {
    case 404: return "not_found";
    case 408: return "timeout";
    case 429: return "queue_full";
    case 503: return "unavailable";
    default: /* foreign */ return NULL;
    }
}

__attribute__((format(printf, 2, 0))) static void fill_message(struct api_error *error,
                                                               const char *format, va_list args)
{
    (void)vsnprintf(error->message, sizeof(error->message), format, args); /* cut to fit */
}

static void fill_status(struct api_error *error, int status, const char *slug)
{
    memset(error, 0, sizeof(*error));
    error->status = status;
    error->slug = slug;
    error->retry_after_s = status == 429 || status == 503 ? API_ERROR_RETRY_SECONDS : 0;
}

enum err_code api_error_set(struct api_error *error, enum err_code code, const char *param,
                            const char *format, ...)
{
    int status = api_error_status(code);
    fill_status(error, status, slug_of_status(status));
    if (param) {
        (void)snprintf(error->param, sizeof(error->param), "%s", param); /* cut to fit */
    }
    va_list args;
    va_start(args, format);
    fill_message(error, format, args);
    va_end(args);
    return code;
}

void api_error_from_err(struct api_error *error, const struct err *err)
{
    int status = api_error_status(err->code);
    fill_status(error, status, slug_of_status(status));
    memcpy(error->message, err->message, sizeof(error->message));
    if (strncmp(err->message, "messages", 8) == 0 || strncmp(err->message, "tools", 5) == 0) {
        size_t path_bytes = strcspn(err->message, ": ");
        if (path_bytes < sizeof(error->param)) {
            memcpy(error->param, err->message, path_bytes);
            error->param[path_bytes] = '\0';
        }
    }
}

void api_error_http(struct api_error *error, int status, const char *slug, const char *format, ...)
{
    fill_status(error, status, slug);
    va_list args;
    va_start(args, format);
    fill_message(error, format, args);
    va_end(args);
}

const char *api_error_type(int status)
{
    switch (status) {
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: /* foreign */ return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

const char *api_error_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (reasons[i].status == status) {
            return reasons[i].text;
        }
    }
    return status >= 500 ? "Server Error" : "Error";
}

void api_error_body(const struct api_error *error, struct buf *out)
{
    buf_append_text(out, "{\"error\":{\"message\":");
    json_put_text(out, error->message, strlen(error->message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", api_error_type(error->status));
    if (error->param[0]) {
        json_put_text(out, error->param, strlen(error->param));
    } else {
        buf_append_text(out, "null");
    }
    if (error->slug) {
        buf_printf(out, ",\"code\":\"%s\"}}", error->slug);
    } else {
        buf_append_text(out, ",\"code\":null}}");
    }
}
