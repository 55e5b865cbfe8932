/* Tokens of strict JSON (RFC 8259), no tree: json.c builds one from them.
 *
 * Text must be UTF-8; escapes of lone surrogates and numbers beyond a double are refused.  One
 * token is current at a time; its text lives until the next call. */
#ifndef COMMON_JSON_LEX_H
#define COMMON_JSON_LEX_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum json_lex_kind {
    JSON_LEX_END,
    JSON_LEX_OBJECT_OPEN,
    JSON_LEX_OBJECT_CLOSE,
    JSON_LEX_ARRAY_OPEN,
    JSON_LEX_ARRAY_CLOSE,
    JSON_LEX_COLON,
    JSON_LEX_COMMA,
    JSON_LEX_TEXT,
    JSON_LEX_INTEGER,
    JSON_LEX_BIG_INTEGER, /* outside int64: text holds the literal */
    JSON_LEX_REAL,
    JSON_LEX_TRUE,
    JSON_LEX_FALSE,
    JSON_LEX_NULL,
};

struct json_lex {
    const char *input; /* borrowed */
    size_t input_bytes;
    size_t next_byte;  /* where the next token is looked for */
    size_t token_byte; /* where the current one starts */
    struct buf scratch;
    enum json_lex_kind kind;
    const char *text; /* TEXT, unescaped; BIG_INTEGER; not terminated */
    size_t text_bytes;
    int64_t integer;
    double real;
};

void json_lex_init(struct json_lex *lex, const char *input, size_t input_bytes);
void json_lex_fini(struct json_lex *lex);

/* Errors: ERR_FORMAT with line and column. */
ERR_NODISCARD enum err_code json_lex_next(struct json_lex *lex, struct err *err);

/* ERR_FORMAT at the current token: "line L column C: <what>, found <token>". */
enum err_code json_lex_unexpected(const struct json_lex *lex, const char *what, struct err *err);

/* ERR_FORMAT at an input position: "line L column C: <what>". */
enum err_code json_lex_fail(const struct json_lex *lex, size_t at_byte, const char *what,
                            struct err *err);

#endif
