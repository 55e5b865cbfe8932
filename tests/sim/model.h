/* The model that is simulated: what a token does to the cache, and what is sampled from the cache.
 *
 * As in the real network, the entry that a token leaves in a page depends on the token, its position
 * and everything it attends to: all entries before it in the global family, those within the window
 * in the local one.  Attention does not know in which page an entry lies, so what is read is a sum
 * of entries.  One wrong entry, read or written at the wrong place, changes every token after it. */
#ifndef TESTS_SIM_MODEL_H
#define TESTS_SIM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/plan.h"

/* Entry of a token at position; the sums are over what it attends to, itself excluded. */
uint64_t model_entry(uint64_t cache_salt, uint32_t position, uint32_t token, uint64_t global_sum,
                     uint64_t local_sum);

/* What a sampler knows when it picks the token at position. */
struct model_state {
    const struct plan_admit *admit; /* seed, stop ids, min_tokens, output_start, penalty */
    uint32_t vocab_tokens;
    uint32_t position;
    uint64_t global_sum; /* over all entries before position */
    uint64_t local_sum;  /* over those that the token before position attends to, and its own */
    uint64_t output_sum; /* over output tokens, by model_output */
};

uint32_t model_pick(const struct model_state *state);

/* What penalties see of an output token. */
uint64_t model_output(uint32_t token);

bool model_is_stop(const struct plan_admit *admit, uint32_t token);

/* True when the token picked at position ends the sequence as a stop id. */
bool model_stops(const struct plan_admit *admit, uint32_t position, uint32_t token);

#endif
