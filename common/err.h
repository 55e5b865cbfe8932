/* Errors: one enum, and a struct that carries code, errno and a message up to where it is logged. */
#ifndef COMMON_ERR_H
#define COMMON_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ERR_NODISCARD     [[nodiscard]]
#define ERR_MESSAGE_BYTES 240

enum ERR_NODISCARD err_code {
    ERR_OK = 0,
#define ERR(name, text) ERR_##name,
#include "common/err.def"
#undef ERR
    ERR_CODE_COUNT
};

struct err {
    enum err_code code;
    int errno_value; /* 0 where no system call failed */
    char message[ERR_MESSAGE_BYTES];
};

/* Fill err and return code.  Names the thing, the value and the limit.  err may be null. */
enum err_code err_set(struct err *err, enum err_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As err_set with ERR_SYSTEM; appends the text of errno_value. */
enum err_code err_errno(struct err *err, int errno_value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "<format>: " before err's message and return its code. */
enum err_code err_wrap(struct err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* True where the cause stays until a person changes a file or an option: starting again is useless. */
bool err_is_lasting(enum err_code code);

/* Slug of a code: "ok", "argument", ...; "unknown" for a value outside the enum. */
const char *err_code_text(enum err_code code);

#ifdef __cplusplus
}
#endif

#endif
