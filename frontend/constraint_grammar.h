/* A constraint by a grammar, and where its output stands in it.
 *
 * Thoughts are free: where the output may think, or the prompt ends inside an open channel, any text may
 * come until the channel is closed, and the grammar begins behind it.  A mask is empty where the output
 * left the grammar, or nothing is left to come, which fails the request. */
#ifndef FRONTEND_CONSTRAINT_GRAMMAR_H
#define FRONTEND_CONSTRAINT_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "frontend/constraint.h"
#include "frontend/grammar.h"

#define CONSTRAINT_MAX_ENDS 16U

struct constraint_grammar {
    struct grammar *grammar; /* the constraint takes a count of its own */
    const uint32_t *end_ids; /* [end_count]: allowed where the grammar may end; copied */
    uint32_t end_count;      /* 1 to CONSTRAINT_MAX_ENDS */
    bool may_think;          /* the output may open a channel first */
    bool is_thinking;        /* the prompt ends in an open one */
    uint32_t channel_open;   /* ids */
    uint32_t channel_close;
};

struct constraint *constraint_grammar_create(const struct constraint_grammar *options);

#endif
