/* Random frontends against a core over a model of a device: whatever happens, the books balance and
 * every token is that of an undisturbed run.  The checks are in testlib/core_front_read.c,
 * testlib/core_rig.c and testlib/model_runner.c. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/core_front.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

#define VOCAB_TOKENS 97

/* One world: a device, a core, two frontends. */
struct world {
    uint64_t random;
    struct inject inject;
    struct runner *runner;
    struct core_rig rig;
    struct front *fronts[2]; /* owned */
    struct session_quota quotas[2];
    uint32_t mask_percent;                            /* how often a mask is there in time */
    uint32_t masks[FRONT_MAX_ROWS][FRONT_MASK_WORDS]; /* each is borrowed until the launch ends */
    uint32_t mask_count;
    struct front_options options;
};

struct plan_of_world {
    uint64_t seed;
    uint32_t page_tokens;
    uint32_t window_tokens;
    uint32_t depth;
    bool has_faults;
    bool is_constrained;
    bool shares_prefixes;
};

static uint32_t pick(struct world *world, uint32_t bound)
{
    return (uint32_t)(test_random(&world->random) % bound);
}

static const uint32_t *on_mask(void *context, struct rig_session *session, uint64_t seq_id,
                               uint32_t position)
{
    struct world *world = context;
    (void)session; /* masks go by id and position */
    if (pick(world, 100) >= world->mask_percent) {
        return NULL;
    }
    uint32_t *mask = world->masks[world->mask_count++ % FRONT_MAX_ROWS];
    front_mask(&world->options, seq_id, position, mask);
    return mask;
}

static struct runner_limits random_limits(struct world *world, const struct plan_of_world *plan)
{
    struct runner_limits limits = {
        .slots = 10,
        .max_step_rows = 1 + pick(world, 12),
        .max_context_tokens = 2048,
        .vocab_tokens = VOCAB_TOKENS,
        .window_tokens = plan->window_tokens,
        .page_tokens = plan->page_tokens,
        .pipeline_depth = plan->depth,
    };
    limits.max_step_tokens = limits.max_step_rows + pick(world, 200);
    return limits;
}

/* A step of rows that ask for all the logprobs that a frontend here ever asks for. */
static uint32_t most_records(const struct runner_limits *limits)
{
    return 1 + 2 * limits->max_step_tokens + 5 * limits->max_step_rows;
}

static void build(struct world *world, const struct plan_of_world *plan)
{
    memset(world, 0, sizeof(*world));
    world->random = plan->seed;
    struct runner_limits limits = random_limits(world, plan);
    world->options = (struct front_options){
        .most_alive = 1 + pick(world, 5),
        .most_prompt = 1 + pick(world, 4 * plan->window_tokens < 300 ? 300 : 700),
        .most_output = 1 + pick(world, 150),
        .most_outstanding = 1 + pick(world, plan->depth + 2),
        .allows_failures = plan->has_faults,
        .sends_bad_plans = plan->has_faults,
        .overplans = plan->has_faults,
        .is_constrained = plan->is_constrained,
        .shares_prefixes = plan->shares_prefixes,
    };
    /* Room for two of the largest requests in each session at least, or for many. */
    const struct account_geometry geometry = {
        .page_tokens = limits.page_tokens,
        .window_tokens = limits.window_tokens,
        .max_step_tokens = limits.max_step_tokens,
    };
    uint32_t total = world->options.most_prompt + world->options.most_output;
    struct account_need peak = account_peak(&geometry, total, plan->depth * limits.max_step_tokens);
    uint32_t requests = 2 + pick(world, 4);
    /* Sometimes more pages than the quotas promise. */
    uint32_t spare_pages = pick(world, 2) * pick(world, 20);
    limits.pages[RUNNER_FAMILY_LOCAL] = 2 * requests * peak.local_pages + spare_pages;
    limits.pages[RUNNER_FAMILY_GLOBAL] = 2 * requests * peak.global_pages + spare_pages;
    world->options.limits = limits;
    for (uint32_t i = 0; i < 2; i++) {
        world->quotas[i].pages[RUNNER_FAMILY_LOCAL] = requests * peak.local_pages;
        world->quotas[i].pages[RUNNER_FAMILY_GLOBAL] = requests * peak.global_pages;
    }
    world->mask_percent = 50 + pick(world, 50);
    const struct model_runner_options options = {.limits = limits, .inject = &world->inject};
    world->runner = model_runner_create(&options);
    const struct session_limits session_limits = {
        .slots = limits.slots,
        .ring_records = most_records(&limits) + pick(world, 200),
        .keeps_prefixes = plan->shares_prefixes,
        .hash_seed = plan->seed,
    };
    rig_init(&world->rig, world->runner, true, &session_limits, &world->inject);
    world->rig.mask = on_mask;
    world->rig.mask_context = world;
    for (uint32_t i = 0; i < 2; i++) {
        struct front_options front_options = world->options;
        front_options.seed = plan->seed * 2 + i;
        world->fronts[i] = mem_zalloc(1, sizeof(*world->fronts[i]));
        front_init(world->fronts[i], &world->rig, &front_options, &world->quotas[i]);
    }
}

/* The next passage of some stage fails, or the device does something. */
static void make_fault(struct world *world)
{
    static const enum inject_stage stages[] = {
        INJECT_RESERVE_LOCAL, INJECT_RESERVE_GLOBAL, INJECT_STAGE,   INJECT_LAUNCH,
        INJECT_FORWARD,       INJECT_SAMPLE,         INJECT_PUBLISH, INJECT_COMMIT,
    };
    static const enum model_fault faults[] = {
        MODEL_FAULT_LAUNCH,
        MODEL_FAULT_STEP,
        MODEL_FAULT_ROW,
    };
    uint32_t which = pick(world, 11);
    if (which < 8) {
        enum inject_stage stage = stages[which];
        world->inject.at[stage] = world->inject.seen[stage] + 1;
    } else {
        model_runner_fault_next(world->runner, faults[which - 8]);
    }
}

static uint32_t unheld(const struct session_stats *stats, enum runner_family family)
{
    return stats->pages_free[family] + stats->pages_cached[family];
}

static void check_quiet(struct world *world)
{
    struct session_stats stats;
    session_core_stats(world->rig.core, &stats);
    if (stats.steps_in_flight > 0) {
        return; /* perhaps of a session that is gone */
    }
    struct account_need held = {0};
    for (uint32_t i = 0; i < 2; i++) {
        const struct front *front = world->fronts[i];
        if (!front_is_quiet(front) || front->session.read_count < front->session.pushed_count) {
            return;
        }
        struct account_need one = front_held(front);
        held.local_pages += one.local_pages;
        held.global_pages += one.global_pages;
    }
    uint32_t local_pages = unheld(&stats, RUNNER_FAMILY_LOCAL) + held.local_pages;
    uint32_t global_pages = unheld(&stats, RUNNER_FAMILY_GLOBAL) + held.global_pages;
    const uint32_t *all = world->options.limits.pages;
    test_true(local_pages >= all[RUNNER_FAMILY_LOCAL]);
    test_true(global_pages >= all[RUNNER_FAMILY_GLOBAL]);
    if (!world->options.shares_prefixes) {
        test_eq_u64(local_pages, all[RUNNER_FAMILY_LOCAL]);
        test_eq_u64(global_pages, all[RUNNER_FAMILY_GLOBAL]);
    }
}

static void act(struct world *world, bool has_faults)
{
    struct front *front = world->fronts[pick(world, 2)];
    uint32_t what = pick(world, 1000);
    if (what < 500) {
        front_act(front);
    } else if (what < 650) {
        (void)model_runner_complete(world->runner, 1 + pick(world, 3)); /* or there is none */
    } else if (what < 985) {
        front_read(front, 1 + pick(world, 40));
    } else if (what < 998) {
        if (has_faults && pick(world, 3) == 0) {
            make_fault(world);
        }
    } else if (pick(world, 4) == 0) {
        front_restart(front, &world->quotas[front == world->fronts[1]]);
    }
    rig_advance(&world->rig);
    check_quiet(world);
}

static void settle(struct world *world)
{
    uint32_t idle_rounds = 0;
    while (idle_rounds < 3) {
        rig_advance(&world->rig);
        bool moved = model_runner_complete(world->runner, 8) > 0;
        for (uint32_t i = 0; i < 2; i++) {
            struct rig_session *session = &world->fronts[i]->session;
            moved = moved || session->read_count < session->seen_count;
            front_read(world->fronts[i], UINT32_MAX);
        }
        idle_rounds = moved ? 0 : idle_rounds + 1;
    }
}

static void add_stats(struct front_stats *sum, const struct front_stats *stats)
{
    sum->tokens += stats->tokens;
    sum->finished += stats->finished;
    sum->cancelled += stats->cancelled;
    sum->failed += stats->failed;
    sum->steps_done += stats->steps_done;
    sum->held_rows += stats->held_rows;
    sum->resumed += stats->resumed;
    sum->reused_tokens += stats->reused_tokens;
    sum->reusing += stats->reusing;
    for (uint32_t i = 0; i < ERR_CODE_COUNT; i++) {
        sum->refused[i] += stats->refused[i];
    }
}

static void finish(struct world *world, struct front_stats *sum)
{
    memset(&world->inject, 0, sizeof(world->inject));
    model_runner_fault_next(world->runner, MODEL_FAULT_NONE);
    settle(world);
    for (uint32_t i = 0; i < 2; i++) {
        test_true(front_is_quiet(world->fronts[i]));
        front_leave(world->fronts[i]);
    }
    settle(world);
    struct session_stats stats;
    session_core_stats(world->rig.core, &stats);
    test_eq_u64(stats.sequences, 0);
    test_eq_u64(unheld(&stats, RUNNER_FAMILY_LOCAL),
                world->options.limits.pages[RUNNER_FAMILY_LOCAL]);
    test_eq_u64(unheld(&stats, RUNNER_FAMILY_GLOBAL),
                world->options.limits.pages[RUNNER_FAMILY_GLOBAL]);
    for (uint32_t i = 0; i < 2; i++) {
        add_stats(sum, &world->fronts[i]->stats);
        front_fini(world->fronts[i]);
        mem_free(world->fronts[i]);
    }
    rig_fini(&world->rig);
    world->runner->table->destroy(world->runner);
}

static void run_worlds(const struct plan_of_world *like, struct front_stats *sum)
{
    static const uint32_t pages[] = {16, 64};
    static const uint32_t windows[] = {64, 128, 256, 512, 1024};
    memset(sum, 0, sizeof(*sum));
    for (uint32_t i = 0; i < 40; i++) {
        const struct plan_of_world plan = {
            .seed = like->seed + i,
            .page_tokens = pages[i % 2],
            .window_tokens = windows[i % 5],
            .depth = 1 + i % 4,
            .has_faults = like->has_faults,
            .is_constrained = like->is_constrained,
            .shares_prefixes = like->shares_prefixes,
        };
        (void)fprintf(stderr, "world %llu\n", (unsigned long long)plan.seed);
        struct world world;
        build(&world, &plan);
        for (uint32_t op = 0; op < 2500; op++) {
            act(&world, like->has_faults);
        }
        finish(&world, sum);
    }
}

static void test_undisturbed_worlds(void)
{
    struct front_stats sum;
    run_worlds(&(struct plan_of_world){.seed = 1000}, &sum);
    test_eq_u64(sum.failed, 0);
    test_eq_u64(sum.held_rows, 0);
    for (uint32_t code = 0; code < ERR_CODE_COUNT; code++) {
        test_eq_u64(sum.refused[code], 0);
    }
    test_true(sum.tokens > 5000);
    test_true(sum.finished > 50);
    test_true(sum.cancelled > 50);
    test_true(sum.resumed > 20);
}

static void test_worlds_with_held_rows(void)
{
    struct front_stats sum;
    run_worlds(&(struct plan_of_world){.seed = 2000, .is_constrained = true}, &sum);
    test_eq_u64(sum.failed, 0);
    for (uint32_t code = 0; code < ERR_CODE_COUNT; code++) {
        test_eq_u64(sum.refused[code], 0);
    }
    test_true(sum.held_rows > 500);
    test_true(sum.finished > 50);
}

static void test_worlds_with_failures(void)
{
    struct front_stats sum;
    run_worlds(&(struct plan_of_world){.seed = 3000, .has_faults = true}, &sum);
    test_true(sum.failed > 50);
    test_true(sum.refused[ERR_PAGES] > 20);
    test_true(sum.refused[ERR_STEP] > 20);
    test_true(sum.refused[ERR_AFTER_REFUSAL] > 50);
    test_true(sum.refused[ERR_FORMAT] > 20);
    test_true(sum.refused[ERR_NOT_FOUND] > 10);
    test_true(sum.refused[ERR_PLAN] > 5);
    test_true(sum.refused[ERR_LIMIT] > 10);
    test_true(sum.finished > 50);
}

static void test_worlds_with_held_rows_and_failures(void)
{
    struct front_stats sum;
    run_worlds(&(struct plan_of_world){.seed = 4000, .has_faults = true, .is_constrained = true},
               &sum);
    test_true(sum.failed > 50);
    test_true(sum.held_rows > 200);
    test_true(sum.finished > 50);
}

static void test_worlds_with_shared_prefixes(void)
{
    struct front_stats sum;
    run_worlds(&(struct plan_of_world){.seed = 5000, .shares_prefixes = true}, &sum);
    test_eq_u64(sum.failed, 0);
    for (uint32_t code = 0; code < ERR_CODE_COUNT; code++) {
        test_eq_u64(sum.refused[code], 0);
    }
    test_true(sum.reusing > 1000);
    test_true(sum.reused_tokens > 100000);
    test_true(sum.finished > 50);
}

static void test_worlds_with_shared_prefixes_and_failures(void)
{
    struct front_stats sum;
    run_worlds(
        &(struct plan_of_world){
            .seed = 6000, .has_faults = true, .is_constrained = true, .shares_prefixes = true},
        &sum);
    test_true(sum.reusing > 1000);
    test_true(sum.failed > 50);
    test_true(sum.held_rows > 200);
    test_true(sum.refused[ERR_PAGES] > 20);
    test_true(sum.finished > 50);
}

static const struct test_case cases[] = {
    TEST(test_undisturbed_worlds),          TEST(test_worlds_with_held_rows),
    TEST(test_worlds_with_failures),        TEST(test_worlds_with_held_rows_and_failures),
    TEST(test_worlds_with_shared_prefixes), TEST(test_worlds_with_shared_prefixes_and_failures),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
