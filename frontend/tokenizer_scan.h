/* A pull scanner for the two large members of tokenizer.json: a quarter of a million vocabulary
 * entries and twice as many merges, read straight from the file's bytes without a value tree.
 *
 * Strict JSON, UTF-8 checked.  Messages carry the byte offset.  One thread. */
#ifndef FRONTEND_TOKENIZER_SCAN_H
#define FRONTEND_TOKENIZER_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

#define TOK_SCAN_MAX_DEPTH 32

struct tok_scan {
    const char *text; /* borrowed */
    size_t byte_count;
    size_t at;
};

struct tok_scan_span {
    const char *at; /* borrowed from the scanned text; null where absent */
    size_t byte_count;
};

void tok_scan_init(struct tok_scan *scan, const char *text, size_t byte_count);

/* First byte of the next value or mark after white space; 0 at the end. */
char tok_scan_peek(struct tok_scan *scan);

/* Consumes '[' or '{'. */
ERR_NODISCARD enum err_code tok_scan_open(struct tok_scan *scan, char mark, struct err *err);

/* Between elements: consumes ',' or the closing mark.  *is_first is true before the first call and
 * is kept by the scanner; *out_more is false once the mark is consumed. */
ERR_NODISCARD enum err_code tok_scan_next(struct tok_scan *scan, char closing_mark, bool *is_first,
                                          bool *out_more, struct err *err);

/* Replaces *out by the string's bytes, escapes resolved. */
ERR_NODISCARD enum err_code tok_scan_text(struct tok_scan *scan, struct buf *out, struct err *err);

/* A member's name and its colon. */
ERR_NODISCARD enum err_code tok_scan_key(struct tok_scan *scan, struct buf *out, struct err *err);

/* A non-negative integer of at most max_value. */
ERR_NODISCARD enum err_code tok_scan_u32(struct tok_scan *scan, uint32_t max_value,
                                         uint32_t *out_value, struct err *err);

/* Passes over a value of any kind and gives its extent.  Only the nesting and the strings are
 * checked: whoever reads the extent parses it. */
ERR_NODISCARD enum err_code tok_scan_skip(struct tok_scan *scan, struct tok_scan_span *out_span,
                                          struct err *err);

/* Nothing but white space may follow. */
ERR_NODISCARD enum err_code tok_scan_end(struct tok_scan *scan, struct err *err);

#endif
