/* Tool calls as part of a grammar: the calls of a turn, each under its function's schema. */
#ifndef FRONTEND_GRAMMAR_CALLS_H
#define FRONTEND_GRAMMAR_CALLS_H

#include "frontend/grammar.h"
#include "frontend/grammar_net.h"

/* Appends one or more calls to `from`; *out_to is behind them.
 * Errors: ERR_ARGUMENT (no such function, a tool of another shape), those of schema_put. */
ERR_NODISCARD enum err_code grammar_put_calls(struct net *net, const struct grammar_source *source,
                                              uint32_t from, uint32_t *out_to, struct err *err);

#endif
