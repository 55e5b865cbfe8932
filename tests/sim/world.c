#include "tests/sim/world.h"

#include <stdio.h>

#include "common/num.h"
#include "proto/account.h"
#include "proto/result.h"

static uint32_t pick(struct random *random, const uint32_t *values, uint32_t count)
{
    return values[random_below(random, count)];
}

#define PICK(random, ...)                         \
    pick(random, (const uint32_t[]){__VA_ARGS__}, \
         sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void draw_steps(struct world *world, struct random *random)
{
    struct runner_limits *limits = &world->limits;
    limits->page_tokens = PICK(random, 16, 64);
    limits->window_tokens = random_one_in(random, 4) ? random_between(random, 64, 1024)
                                                     : PICK(random, 64, 128, 256, 512, 1024);
    limits->vocab_tokens = PICK(random, 50, 200, 1000);
    limits->pipeline_depth = random_between(random, 1, 4);
    limits->max_step_rows = PICK(random, 1, 2, 4, 8, 16, 32, 64);
    limits->max_step_tokens = PICK(random, 16, 32, 64, 128, 256, 512, 1024);
    limits->max_step_tokens = num_max(limits->max_step_tokens, limits->max_step_rows);
    world->frontend_depth = random_one_in(random, 4) ? random_between(random, 1, 4) : 0;
    if (random_one_in(random, 5)) { /* cut at fixed places */
        uint32_t depth = num_max(world->frontend_depth, limits->pipeline_depth);
        limits->segment_tokens = PICK(random, 16, 64);
        limits->max_step_tokens =
            num_max(limits->max_step_tokens, limits->segment_tokens * depth + 64);
    } else if (random_one_in(random, 4)) {
        world->budget_tokens = random_between(random, 1, limits->max_step_tokens);
    }
}

static void draw_requests(struct world *world, struct random *random)
{
    world->most_prompt_tokens = PICK(random, 40, 200, 700, 2000);
    world->most_output_tokens = PICK(random, 8, 40, 150, 400);
    world->long_prompt_one_in = PICK(random, 1, 1, 3, 10);
    world->shared_prompts = random_between(random, 1, 6);
    world->salts = random_between(random, 1, 3);
    world->has_priorities = random_one_in(random, 2);
    world->has_keys = random_one_in(random, 3);
    world->has_deadlines = random_one_in(random, 2);
    world->has_logprobs = random_one_in(random, 4);
    world->has_prompt_logprobs = random_one_in(random, 8);
    world->limits.max_context_tokens =
        world->most_prompt_tokens + world->most_output_tokens + random_below(random, 100);
}

/* From two of the longest requests, now and then less than one, to thousands of pages. */
static void draw_pools(struct world *world, struct random *random)
{
    struct runner_limits *limits = &world->limits;
    const struct account_geometry geometry = {
        .page_tokens = limits->page_tokens,
        .window_tokens = limits->window_tokens,
        .max_step_tokens = limits->max_step_tokens,
    };
    struct account_need peak =
        account_table_peak(&geometry, world->most_prompt_tokens + world->most_output_tokens,
                           limits->max_step_tokens * limits->pipeline_depth);
    uint32_t quarters = PICK(random, 4, 5, 8, 9, 12, 16, 20, 20, 40, 400);
    uint32_t local_quarters = random_one_in(random, 3) ? PICK(random, 4, 8, 20, 400) : quarters;
    uint32_t short_pages = random_one_in(random, 10) ? 1 : 0;
    uint32_t global = num_min(peak.global_pages * quarters / 4, 4000);
    uint32_t local = num_min(peak.local_pages * local_quarters / 4, 4000);
    limits->pages[RUNNER_FAMILY_GLOBAL] = num_max(global, 2) - short_pages;
    limits->pages[RUNNER_FAMILY_LOCAL] = num_max(local, 2) - (random_one_in(random, 10) ? 1 : 0);
    uint32_t pages = limits->pages[RUNNER_FAMILY_GLOBAL] + limits->pages[RUNNER_FAMILY_LOCAL];
    world->check_one_in = 1 + pages / 1000;
}

static void draw_ring(struct world *world, struct random *random)
{
    const struct runner_limits *limits = &world->limits;
    uint32_t per_row = 1 + (world->has_logprobs ? result_records_per_token(PLAN_MAX_LOGPROBS) : 1);
    uint32_t per_position = world->has_prompt_logprobs ? 3 : 0;
    uint32_t least = 1 + limits->max_step_rows * per_row + limits->max_step_tokens * per_position;
    world->ring_records = num_max(2, least * PICK(random, 1, 1, 2, 8) + random_below(random, 3));
}

static void draw_weights(struct world *world, struct random *random)
{
    static const uint32_t weights[EVENT_COUNT] = {
#define EVENT(NAME, text, weight) [EVENT_##NAME] = weight,
#include "tests/sim/events.def"
#undef EVENT
    };
    bool is_calm = random_one_in(random, 3); /* nothing but load */
    for (uint32_t i = 0; i < EVENT_COUNT; i++) {
        world->weights[i] = weights[i] * PICK(random, 1, 2, 2, 2, 4) / 2;
        bool is_trouble = i > EVENT_TIME && i != EVENT_ATTACH;
        if (is_trouble && (is_calm || random_one_in(random, 2))) {
            world->weights[i] = 0;
        }
    }
    world->weights[EVENT_TURN] = num_max(world->weights[EVENT_TURN], 1);
    world->weights[EVENT_ATTACH] = num_max(world->weights[EVENT_ATTACH], 10);
    if (random_one_in(random, 4)) { /* everything apart from everything */
        world->weights[EVENT_TURN] /= 10;
    }
}

/* Much more is asked for than there is room for, and prompts take many steps. */
static void make_tight(struct world *world, struct random *random)
{
    world->most_prompt_tokens = PICK(random, 200, 700);
    world->most_output_tokens = PICK(random, 150, 400);
    world->long_prompt_one_in = 1;
    world->has_deadlines = false;
    world->limits.max_context_tokens = world->most_prompt_tokens + world->most_output_tokens;
    world->limits.max_step_tokens = PICK(random, 16, 32, 64);
    world->limits.max_step_rows = num_min(world->limits.max_step_rows, 16);
    world->limits.segment_tokens = 0;
    world->budget_tokens = 0;
}

static void draw_load(struct world *world, struct random *random)
{
    world->slots = world->is_tight ? PICK(random, 4, 8, 16) : PICK(random, 1, 2, 3, 4, 8, 16, 40);
    world->limits.slots = world->slots + PICK(random, 0, 1, 4);
    world->max_queue = world->is_tight ? 32 : PICK(random, 1, 4, 32);
    world->most_alive = num_min(world->slots * 2 + random_below(random, 20), 64);
    world->detached_wait_ns = PICK(random, 5, 1000) * 1000000ULL;
    world->event_count = PICK(random, 300, 1000, 3000);
    world->keeps_prefixes = !random_one_in(random, 4);
}

void world_init(struct world *world, uint64_t seed)
{
    struct random random = {seed};
    *world = (struct world){.seed = seed};
    draw_requests(world, &random);
    draw_steps(world, &random);
    world->is_tight = random_one_in(&random, 4);
    if (world->is_tight) {
        make_tight(world, &random);
    }
    draw_pools(world, &random);
    draw_ring(world, &random);
    draw_load(world, &random);
    draw_weights(world, &random);
}

struct event world_draw(const struct world *world, struct random *random)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < EVENT_COUNT; i++) {
        total += world->weights[i];
    }
    uint32_t at = random_below(random, total);
    uint32_t kind = 0;
    while (at >= world->weights[kind]) {
        at -= world->weights[kind++];
    }
    return (struct event){.random = random_next(random), .kind = (enum event_kind)kind};
}

void world_describe(const struct world *world, char *text, uint32_t text_bytes)
{
    const struct runner_limits *limits = &world->limits;
    (void)snprintf(
        text, text_bytes, /* cut is fine */
        "page %u, window %u, pages %u local %u global, slots %u of %u, depth %u/%u, rows "
        "%u, tokens %u/%u, cut %u, ring %u, prompts to %u, output to %u, queue %u",
        limits->page_tokens, limits->window_tokens, limits->pages[RUNNER_FAMILY_LOCAL],
        limits->pages[RUNNER_FAMILY_GLOBAL], world->slots, limits->slots, limits->pipeline_depth,
        world->frontend_depth, limits->max_step_rows, limits->max_step_tokens, world->budget_tokens,
        limits->segment_tokens, world->ring_records, world->most_prompt_tokens,
        world->most_output_tokens, world->max_queue);
}
