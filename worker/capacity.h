/* How many pages each pool gets, and what fits into them.  Pure. */
#ifndef WORKER_CAPACITY_H
#define WORKER_CAPACITY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/runner.h"

struct capacity_wish {
    uint32_t slots;
    uint32_t max_context_tokens;
    uint32_t max_step_tokens;
    uint32_t pipeline_depth;
    uint32_t page_tokens;
    uint32_t window_tokens;
    uint64_t page_bytes[RUNNER_FAMILY_COUNT];
    uint32_t pages[RUNNER_FAMILY_COUNT]; /* asked for explicitly; 0: to be found */
    uint64_t memory_bytes;               /* for both pools; 0: what the slots need, */
    uint64_t available_bytes;            /* at most this, */
    bool takes_all; /* or all of it: prefixes are kept where no slot needs it */
};

/* The wished context of one slot where no memory is stated. */
#define CAPACITY_DEFAULT_CONTEXT_TOKENS 8192

/* Splits memory so that the same number of sequences of min(context, CAPACITY_DEFAULT_CONTEXT_TOKENS)
 * fits in both.  Errors: ERR_CONFIG (not one fits; names what it takes). */
ERR_NODISCARD enum err_code capacity_plan(const struct capacity_wish *wish,
                                          uint32_t out_pages[RUNNER_FAMILY_COUNT], struct err *err);

/* Pages of one sequence of total_tokens at its largest, and of prompt segments in flight. */
void capacity_one_request(const struct capacity_wish *wish, uint32_t total_tokens,
                          uint32_t out_pages[RUNNER_FAMILY_COUNT], uint32_t *out_segment_pages);

/* Requests of total_tokens that fit beside each other. */
uint32_t capacity_requests(const struct capacity_wish *wish,
                           const uint32_t pages[RUNNER_FAMILY_COUNT], uint32_t total_tokens);

#endif
