/* Regular expressions as part of a grammar.
 *
 * The common part of Python's and ECMAScript's: literals, classes, \d \w \s and their complements,
 * groups, alternation, * + ? {m,n} (greedy or lazy is the same here), ^ and $.  \d and \w are ASCII,
 * and so are \D and \W, so that both dialects agree with what is produced.  Look-around, back
 * references, \b, flags and properties are refused by name.  Pure: any thread. */
#ifndef FRONTEND_GRAMMAR_REGEX_H
#define FRONTEND_GRAMMAR_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/grammar_net.h"

#define REGEX_MAX_BYTES 8192U
#define REGEX_MAX_NODES 40000U

/* How the characters matched are written. */
enum regex_text {
    REGEX_TEXT_RAW,   /* as they are */
    REGEX_TEXT_JSON,  /* escaped, between a JSON string's quotes */
    REGEX_TEXT_PLAIN, /* between a tool call's quote markers: no controls but \n and \t */
};

struct regex_options {
    const char *pattern;
    size_t byte_count;
    enum regex_text text;
    bool is_search;     /* matches anywhere, as JSON schema's `pattern`; else the whole text */
    uint32_t min_chars; /* of the whole text */
    uint32_t max_chars; /* BODY_ANY: no bound */
};

/* Appends the texts that match to `from`; *out_to is behind them.
 * Errors: ERR_ARGUMENT (syntax), ERR_UNSUPPORTED, ERR_LIMIT; the position in bytes is named. */
ERR_NODISCARD enum err_code regex_compile(struct net *net, uint32_t from,
                                          const struct regex_options *options, uint32_t *out_to,
                                          struct err *err);

/* Appends one character of [lo, hi] as text; characters that the text cannot hold are left out. */
void regex_put_chars(struct net *net, uint32_t from, uint32_t lo, uint32_t hi, enum regex_text text,
                     uint32_t to);

#endif
