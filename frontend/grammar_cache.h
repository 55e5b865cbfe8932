/* Grammars compiled lately, shared by all requests, and the vocabulary that they need.
 *
 * Bounded by bytes; the longest unused go first, requests that hold one keep it.  The vocabulary's
 * tables are made at the first constrained request.  Any thread; compiling happens outside the lock. */
#ifndef FRONTEND_GRAMMAR_CACHE_H
#define FRONTEND_GRAMMAR_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/grammar.h"

struct grammar_cache;

struct grammar_cache_stats {
    uint64_t hits;
    uint64_t misses;
    uint32_t grammars;
    size_t bytes;
};

/* tokenizer is borrowed until grammar_cache_destroy. */
struct grammar_cache *grammar_cache_create(const struct tokenizer *tokenizer,
                                           const struct grammar_markers *markers, size_t max_bytes);
/* No grammar of it is held any more. */
void grammar_cache_destroy(struct grammar_cache *cache);

/* *out_grammar is counted: grammar_release.  Errors: those of grammar_create. */
ERR_NODISCARD enum err_code grammar_cache_get(struct grammar_cache *cache,
                                              const struct grammar_source *source,
                                              struct grammar **out_grammar, struct err *err);

void grammar_cache_get_stats(struct grammar_cache *cache, struct grammar_cache_stats *out_stats);

#endif
