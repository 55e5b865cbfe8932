/* A constraint of token ids: some alone, and none that would complete a row of them. */
#ifndef FRONTEND_CONSTRAINT_TOKENS_H
#define FRONTEND_CONSTRAINT_TOKENS_H

#include <stdint.h>

#include "frontend/constraint.h"
#include "frontend/tokenizer.h"

/* All borrowed during the call. */
struct constraint_tokens {
    const uint32_t *allowed; /* [allowed_count]; null: all.  Below vocab_tokens */
    uint32_t allowed_count;
    const struct tok_ids *rows; /* [row_count], none empty, of ids below vocab_tokens */
    uint32_t row_count;
    uint32_t vocab_tokens;
};

/* Where rows would leave nothing of what is allowed, they are let be: an output always goes on. */
struct constraint *constraint_tokens_create(const struct constraint_tokens *tokens);

#endif
