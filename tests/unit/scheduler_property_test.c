/* Random lives of requests under random limits and faults.  Whatever happens: each request ends
 * exactly once, counters add up, the worker never sees a plan that should not be, and what is held
 * returns.  The rig checks bookkeeping and violations after every exchange. */
#include <stdio.h>
#include <stdlib.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

#define REQUEST_COUNT 120
#define ROUND_COUNT   1000

struct world {
    struct rig rig;
    struct rig_request requests[REQUEST_COUNT];
    bool is_accepted[REQUEST_COUNT];
    uint32_t submitted;
    bool has_faults;
    uint64_t random;
};

static uint32_t below(struct world *world, uint32_t bound)
{
    return (uint32_t)(test_random(&world->random) % bound);
}

static uint32_t between(struct world *world, uint32_t low, uint32_t high)
{
    return low + below(world, high - low + 1);
}

static void random_options(struct world *world, struct model_options *model,
                           struct sched_options *sched)
{
    *model = (struct model_options){.limits = model_small_limits()};
    struct hello_welcome *limits = &model->limits;
    limits->page_tokens = 8U << below(world, 3);
    limits->window_tokens = between(world, 1, 10) * 16;
    limits->slots = between(world, 1, 32);
    limits->max_step_rows = between(world, 1, 32);
    limits->max_step_tokens = between(world, 1, 8) * 32;
    limits->pipeline_depth = between(world, 1, 4);
    bool is_tight = below(world, 2) == 0; /* two requests fill the pools */
    limits->local_pages = is_tight ? between(world, 12, 40) : between(world, 30, 200);
    limits->global_pages = is_tight ? between(world, 8, 60) : between(world, 40, 300);
    model->step_ns = between(world, 1, 20) * RIG_MS;
    model->row_ns = below(world, 100000);
    model->token_ns = below(world, 20000);
    model->down_ns = below(world, 3) * RIG_MS + 1000;
    model->up_ns = below(world, 3) * RIG_MS + 1000;
    model->stop_per_mille = below(world, 60);
    world->has_faults = below(world, 2) == 0;
    for (uint32_t i = 0; i < MODEL_MAX_FAULTS && world->has_faults; i++) {
        model->faults[i] = (struct model_fault){
            .kind = below(world, 4), .at = between(world, 1, 200), .count = between(world, 1, 3)};
    }
    *sched = (struct sched_options){
        .max_queue = between(world, 1, 64),
        .max_step_tokens = below(world, 3) == 0 ? between(world, 1, 100) : 0,
        .itl_target_ns = below(world, 3) == 0 ? 0 : between(world, 1, 60) * RIG_MS,
        .pipeline_depth = below(world, 3) == 0 ? 1 : 0,
        .detached_wait_ns = 500 * RIG_MS,
    };
}

static void submit_one(struct world *world)
{
    static const uint32_t stop_id = 999;
    uint32_t index = world->submitted++;
    struct rig_request *request = &world->requests[index];
    uint32_t prompt_count = below(world, 4) == 0 ? between(world, 1, 900) : between(world, 1, 60);
    struct engine_request wanted =
        rig_engine_request(request, prompt_count, between(world, 1, 80), index);
    wanted.priority = (int32_t)below(world, 3) - 1;
    wanted.key_hash = below(world, 4);
    wanted.admit.logprobs = below(world, 4) == 0 ? between(world, 0, 21) : 0;
    wanted.admit.prompt_logprobs = below(world, 8) == 0 ? between(world, 0, 21) : 0;
    if (below(world, 2) == 0) {
        wanted.admit.stop_ids = (struct wire_u32_array){.at = &stop_id, .count = 1};
    }
    if (below(world, 4) == 0) {
        wanted.deadline_ns = world->rig.now_ns + between(world, 1, 1000) * RIG_MS;
    }
    struct err err;
    world->is_accepted[index] = rig_submit(&world->rig, request, &wanted, &err) == ERR_OK;
    if (wanted.admit.stop_ids.count > 0) {
        request->model = NULL; /* a stop id is not what model_token says */
    }
}

static void act(struct world *world)
{
    switch (below(world, 12)) {
    case 0: /* a burst */
        for (uint32_t i = below(world, 12); i > 0 && world->submitted < REQUEST_COUNT; i--) {
            submit_one(world);
        }
        break;
    case 1:
    case 2:
    case 3: submit_one(world); break;
    case 4:
        if (world->submitted > 0) {
            rig_cancel(&world->rig, &world->requests[below(world, world->submitted)]);
        }
        break;
    case 5: /* the worker is gone, and may be back */
        if (world->rig.model != NULL && below(world, 6) == 0) {
            rig_detach(&world->rig);
        }
        break;
    case 6:
        if (world->rig.model == NULL) {
            rig_attach(&world->rig);
        }
        break;
    default: /* foreign */
        rig_run_to(&world->rig, world->rig.now_ns + between(world, 1, 60000) * 1000ULL);
    }
}

static void check_end(struct world *world)
{
    struct rig *rig = &world->rig;
    if (rig->model == NULL) {
        rig_attach(rig);
    }
    rig_run_idle(rig, 3600000ULL * RIG_MS);
    uint32_t accepted = 0;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < world->submitted; i++) {
        const struct rig_request *request = &world->requests[i];
        test_eq_u64(request->ended, world->is_accepted[i] ? 1 : 0);
        test_true(!request->has_wrong_token);
        test_true(request->prompt_count + request->token_count <= request->max_total);
        if (request->ended == 1 && request->code == ERR_OK &&
            request->reason == RESULT_FINISH_LENGTH) {
            test_eq_u64(request->prompt_count + request->token_count, request->max_total);
        }
        accepted += world->is_accepted[i];
        tokens += request->token_count;
    }
    struct sched_stats stats = rig_stats(rig);
    test_eq_u64(stats.arrived, world->submitted);
    test_eq_u64(stats.rejected, world->submitted - accepted);
    test_eq_u64(stats.output_tokens, tokens);
    test_true(world->has_faults || stats.plans_refused == 0);
    struct model_stats held = rig_model_stats(rig);
    test_eq_u64(held.sequences, 0);
    test_eq_u64(held.local_held_pages + held.global_held_pages, 0);
}

static void test_every_request_ends_once_and_everything_returns(void)
{
    struct world *world = mem_zalloc(1, sizeof(*world));
    for (uint64_t round = 1; round <= ROUND_COUNT; round++) {
        *world = (struct world){.random = round};
        (void)fprintf(stderr, "seed %llu\r", (unsigned long long)round);
        struct model_options model;
        struct sched_options sched;
        random_options(world, &model, &sched);
        rig_init(&world->rig, &model, &sched);
        world->rig.keeps_sent = false;
        while (world->submitted < REQUEST_COUNT) {
            act(world);
        }
        check_end(world);
        rig_fini(&world->rig);
    }
    mem_free(world);
}

static const struct test_case cases[] = {
    TEST(test_every_request_ends_once_and_everything_returns),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
