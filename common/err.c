#include "common/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const code_texts[ERR_CODE_COUNT] = {
    [ERR_OK] = "ok",
#define ERR(name, text) [ERR_##name] = text,
#include "common/err.def"
#undef ERR
};

enum err_code err_set(struct err *err, enum err_code code, const char *format, ...)
{
    if (err == NULL) {
        return code;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof(err->message), format, args); /* truncation is fine */
    va_end(args);
    err->code = code;
    err->errno_value = 0;
    return code;
}

enum err_code err_errno(struct err *err, int errno_value, const char *format, ...)
{
    if (err == NULL) {
        return ERR_SYSTEM;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof(err->message), format, args); /* truncation is fine */
    va_end(args);
    char text[80];
    const char *reason = strerror_r(errno_value, text, sizeof(text));
    size_t used = strlen(err->message);
    (void)snprintf(err->message + used, sizeof(err->message) - used, ": %s", reason);
    err->code = ERR_SYSTEM;
    err->errno_value = errno_value;
    return ERR_SYSTEM;
}

enum err_code err_wrap(struct err *err, const char *format, ...)
{
    if (err == NULL) {
        return ERR_INTERNAL;
    }
    char inner[ERR_MESSAGE_BYTES];
    memcpy(inner, err->message, sizeof(inner));
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof(err->message), format, args); /* truncation is fine */
    va_end(args);
    size_t used = strlen(err->message);
    (void)snprintf(err->message + used, sizeof(err->message) - used, ": %s", inner);
    return err->code;
}

const char *err_code_text(enum err_code code)
{
    if ((unsigned)code >= ERR_CODE_COUNT) {
        return "unknown";
    }
    return code_texts[code];
}

bool err_is_lasting(enum err_code code)
{
    switch (code) {
    case ERR_ARGUMENT:
    case ERR_CONFIG:
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
    case ERR_NOT_FOUND:
    case ERR_LIMIT:
    case ERR_SHAPE:
    case ERR_ALIGN: return true;
    case ERR_OK:
    case ERR_BUSY:
    case ERR_PLAN:
    case ERR_PAGES:
    case ERR_AFTER_REFUSAL:
    case ERR_SEQUENCE:
    case ERR_STEP:
    case ERR_DEVICE:
    case ERR_PROTOCOL:
    case ERR_STALE:
    case ERR_CLOSED:
    case ERR_TIMEOUT:
    case ERR_SYSTEM:
    case ERR_MEMORY:
    case ERR_CANCELLED:
    case ERR_INTERNAL:
    case ERR_CODE_COUNT: break;
    }
    return false;
}
