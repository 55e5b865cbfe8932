#include "tests/sim/sim.h"

#include <stddef.h>

#include "common/mem.h"
#include "tests/sim/device.h"

static void init(struct sim *sim, const struct world *world, struct report *report)
{
    *sim = (struct sim){
        .world = *world,
        .report = report,
        .now_ns = 1000 * SIM_MS,
        .next_epoch = 100,
        .next_number = 1,
        .next_request_id = 1,
    };
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        sim->fronts[i].sim = sim;
        sim->fronts[i].index = i;
    }
    sim->fronts[0].is_wanted = true;
}

static void make_whole(struct sim *sim)
{
    const struct event attach = {.kind = EVENT_ATTACH};
    for (uint32_t i = 0; i < INJECT_STAGE_COUNT; i++) {
        sim->inject.at[i] = 0;
    }
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        sim->fronts[i].stalled_reads = 0;
        sim->fronts[i].stalled_sends = 0;
        sim->fronts[i].spoil = 0;
    }
    act(sim, &attach);
    sim->is_draining = true;
    sim->drain_steps = 0;
}

/* STEPs that are enough for everything alive: each computes a token or ends a sequence, but for
 * those that were planned before an end was known. */
static uint32_t most_steps(const struct sim *sim)
{
    uint32_t steps = 100;
    for (uint32_t i = 0; i < sim->alive_count; i++) {
        steps += sim->alive[i]->admit.max_total + 2 * SCHED_MAX_DEPTH;
    }
    return steps;
}

static bool is_idle(const struct sim *sim)
{
    bool is_idle = sim->alive_count == 0 && sim_device_in_flight(sim->device) == 0;
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        const struct front *front = &sim->fronts[i];
        if (front->sched == NULL) {
            is_idle = is_idle && front->session == NULL;
            continue;
        }
        struct sched_gate gate;
        sched_get_gate(front->sched, &gate);
        is_idle = is_idle && gate.running == 0 && gate.waiting == 0 && front->sent_count == 0 &&
                  front->read == front->pushed;
    }
    return is_idle;
}

/* With no more trouble everything that was asked for ends, in as many steps as it takes. */
static void drain(struct sim *sim)
{
    make_whole(sim);
    uint32_t most = most_steps(sim);
    uint32_t most_turns = 4 * most;
    for (uint32_t turn = 0; !is_idle(sim); turn++) {
        if (turn >= most_turns || sim->drain_steps > most) {
            report_fail(sim->report, "%u requests alive after %u undisturbed turns of %u steps",
                        sim->alive_count, turn, sim->drain_steps);
        }
        uint32_t steps = sim->drain_steps;
        act_turn(sim);
        sim->now_ns += steps == sim->drain_steps ? 50 * SIM_MS : SIM_MS;
        if (sim->core == NULL) { /* lost by a step that was launched before */
            make_whole(sim);
        }
    }
}

static void finish(struct sim *sim)
{
    drain(sim);
    worker_advance(sim);
    worker_check_empty(sim);
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        struct front *front = &sim->fronts[i];
        if (front->sched != NULL) {
            front_kill(front);
        }
        session_close(front->session);
        front_fini(front);
    }
    session_core_destroy(sim->core);
    sim->device->table->destroy(sim->device);
    client_free_all(sim);
}

void run_world(const struct world *world, struct report *report, bool is_replay)
{
    struct sim *sim = mem_zalloc(1, sizeof(*sim));
    struct random random = {world->seed ^ 0x5deece66dULL};
    init(sim, world, report);
    act(sim, &(const struct event){.kind = EVENT_ATTACH});
    uint32_t count = is_replay ? report->event_count : world->event_count;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_replay) {
            report->events[i] = world_draw(world, &random);
            report->event_count = i + 1;
        }
        report_trace(report, "event %u: kind %u", i, report->events[i].kind);
        act(sim, &report->events[i]);
    }
    finish(sim);
    mem_free(sim);
}
