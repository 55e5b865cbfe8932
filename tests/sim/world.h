/* The world of one seed: model and pools of the worker, options of the frontend, what clients ask
 * for, and how often things happen.  Everything else follows from the events. */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "worker/runner.h"

#define WORLD_MAX_FRONTS 2

struct world {
    uint64_t seed;
    struct runner_limits limits;
    uint32_t slots; /* sequences alive at once; limits.slots may be more */
    uint32_t ring_records;
    bool keeps_prefixes;
    bool is_tight;

    uint32_t max_queue;
    uint32_t budget_tokens;  /* --max-step-tokens of the frontend; 0 the worker's */
    uint32_t frontend_depth; /* 0 the worker's */
    uint64_t detached_wait_ns;

    uint32_t most_alive; /* requests that clients have open at once */
    uint32_t most_prompt_tokens;
    uint32_t most_output_tokens;
    uint32_t long_prompt_one_in; /* others are short */
    uint32_t shared_prompts;     /* system prompts that requests begin with */
    uint32_t salts;
    bool has_priorities;
    bool has_keys; /* requests come under several API keys */
    bool has_deadlines;
    bool has_logprobs;
    bool has_prompt_logprobs;

    uint32_t event_count;
    uint32_t weights[EVENT_COUNT];
    uint32_t check_one_in; /* full checks of the worker's books: large pools take long */
};

void world_init(struct world *world, uint64_t seed);

/* One event by the weights. */
struct event world_draw(const struct world *world, struct random *random);

/* One line that describes it. */
void world_describe(const struct world *world, char *text, uint32_t text_bytes);

#endif
