#include "tests/sim/sim.h"

#include <stddef.h>

#include "common/num.h"
#include "tests/sim/device.h"

static bool is_there(const struct front *front)
{
    return front->is_wanted || front->sched != NULL || front->session != NULL;
}

static struct front *any_front(struct sim *sim, struct random *random)
{
    uint32_t index = random_below(random, WORLD_MAX_FRONTS);
    return is_there(&sim->fronts[index]) ? &sim->fronts[index] : &sim->fronts[1 - index];
}

void act_turn(struct sim *sim)
{
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        front_deliver(&sim->fronts[i], UINT32_MAX);
    }
    worker_advance(sim);
    if (sim->device != NULL) {
        (void)sim_device_complete(sim->device, 1); /* none may be launched */
        worker_advance(sim);
    }
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        front_read(&sim->fronts[i], UINT32_MAX);
        front_try_leave(&sim->fronts[i]);
    }
}

static void submit(struct sim *sim, struct random *random)
{
    uint32_t count = random_one_in(random, 10) ? random_between(random, 1, 12) : 1;
    struct front *front = any_front(sim, random);
    if (front->is_leaving && !random_one_in(random, 4)) { /* on a connection that it holds */
        front = &sim->fronts[1 - front->index];
    }
    while (count-- > 0) {
        client_submit(sim, front, random);
    }
    if (!random_one_in(random, 4)) {
        front_tick(front);
    }
}

static void cancel(struct sim *sim, struct random *random)
{
    uint32_t kept =
        (uint32_t)(sim->ended_count < SIM_KEPT_CLIENTS ? sim->ended_count : SIM_KEPT_CLIENTS);
    if (sim->alive_count > 0 && !random_one_in(random, 10)) {
        client_cancel(sim, sim->alive[random_below(random, sim->alive_count)]);
    } else if (kept > 0) {
        client_cancel(sim, sim->ended[random_below(random, kept)]);
    }
    client_sweep(sim);
    if (random_one_in(random, 2)) {
        front_tick(any_front(sim, random));
    }
}

static void inject(struct sim *sim, struct random *random)
{
    static const enum inject_stage stages[] = {
        INJECT_RESERVE_LOCAL, INJECT_RESERVE_GLOBAL, INJECT_STAGE,   INJECT_LAUNCH,
        INJECT_FORWARD,       INJECT_SAMPLE,         INJECT_PUBLISH, INJECT_COMMIT,
    };
    enum inject_stage stage = stages[random_below(random, sizeof(stages) / sizeof(stages[0]))];
    if (random_one_in(random, 16)) {
        stage = INJECT_DEVICE_LOST;
    }
    sim->inject.at[stage] = sim->inject.seen[stage] + random_between(random, 1, 3);
}

static void kill_front(struct sim *sim, struct random *random)
{
    struct front *front = any_front(sim, random);
    if (front->sched == NULL) {
        return;
    }
    if (front->session != NULL && sim_device_in_flight(sim->device) > 0) {
        report_cover(sim->report, COVER_FRONT_KILLED);
    }
    if (front->session != NULL && sim->fronts[1 - front->index].session != NULL) {
        report_cover(sim->report, COVER_HAND_OVER_KILLED);
    }
    front_kill(front);
    front_deliver(front, random_below(random, 4)); /* what was in the socket already */
    front_drop_sent(front);
    if (front->session != NULL && random_one_in(random, 2)) {
        worker_close_session(front);
    }
}

static void end_session(struct sim *sim, struct random *random)
{
    struct front *front = any_front(sim, random);
    if (front->session == NULL) {
        return;
    }
    if (sim_device_in_flight(sim->device) > 0) {
        report_cover(sim->report, COVER_SESSION_ENDED);
    }
    if (sim->queued_steps > 0) {
        report_cover(sim->report, COVER_INBOX_WAITS);
    }
    worker_close_session(front);
    front_detach(front);
}

static void attach(struct sim *sim)
{
    if (sim->core == NULL) {
        worker_start(sim);
    }
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        struct front *front = &sim->fronts[i];
        if (front->is_orphan) {
            worker_close_session(front);
        }
        if (front->sched == NULL && front->is_wanted) {
            front_start(front);
        }
        if (front->sched != NULL && front->session == NULL) {
            worker_open_session(sim, front);
            front_attach(front);
            client_sweep(sim);
        }
    }
}

static void submit_many(struct sim *sim, struct front *front, struct random *random)
{
    for (uint32_t i = 0; i < sim->world.slots; i++) {
        client_submit(sim, front, random);
    }
    front_tick(front);
}

/* A second frontend attaches and gets the new requests; the first one finishes what it has. */
static void hand_over(struct sim *sim, struct random *random)
{
    struct front *elder = &sim->fronts[sim->fronts[0].is_wanted ? 0 : 1];
    struct front *younger = &sim->fronts[1 - elder->index];
    if (elder->session == NULL || elder->sched == NULL || is_there(younger)) {
        return;
    }
    struct sched_gate gate;
    sched_get_gate(elder->sched, &gate);
    if (gate.running > 0) {
        report_cover(sim->report, COVER_HAND_OVER);
        if (sim->world.slots == 1) {
            report_cover(sim->report, COVER_HAND_OVER_ONE_SLOT);
        }
    }
    if (random_one_in(random, 2)) { /* what it sends now arrives later */
        submit_many(sim, elder, random);
        elder->stalled_sends = random_between(random, 1, 6);
        elder->stalled_reads = random_between(random, 1, 40);
    }
    elder->is_wanted = false;
    elder->is_leaving = true;
    sched_set_leaving(elder->sched);
    younger->is_wanted = true;
    attach(sim);
    if (random_one_in(random, 2)) {
        submit_many(sim, younger, random);
    }
}

static void deliver_stale(struct sim *sim, struct random *random)
{
    struct front *front = any_front(sim, random);
    if (front->session == NULL || !session_can_receive(front->session)) {
        return;
    }
    struct plan_message message = {
        .type = PLAN_PING, .epoch = front->epoch - 1, .msg_seq = random_below(random, 100)};
    if (random_one_in(random, 2)) {
        message.type = PLAN_CANCEL;
        message.as.cancel.seq_id = (uint64_t)random_below(random, 8) * SCHED_MAX_SLOTS;
    }
    struct err err;
    if (session_deliver(front->session, &message, &err) != ERR_OK) {
        report_fail(sim->report, "stale message: %s", err.message);
    }
    report_cover(sim->report, COVER_STALE_MESSAGE);
}

static void pass_time(struct sim *sim, struct random *random)
{
    sim->now_ns += random_one_in(random, 8) ? random_between(random, 1, 800) * SIM_MS
                                            : random_between(random, 1, 9) * SIM_MS;
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        front_tick(&sim->fronts[i]);
    }
}

void act(struct sim *sim, const struct event *event)
{
    struct random random = {event->random};
    struct front *front = any_front(sim, &random);
    switch (event->kind) {
    case EVENT_TURN:
        sim->now_ns += random_between(&random, 1, 3000) * 1000ULL;
        act_turn(sim);
        break;
    case EVENT_SUBMIT: submit(sim, &random); break;
    case EVENT_CANCEL: cancel(sim, &random); break;
    case EVENT_READ: front_read(front, random_between(&random, 1, 20)); break;
    case EVENT_DELIVER: front_deliver(front, random_between(&random, 1, 6)); break;
    case EVENT_ADVANCE: worker_advance(sim); break;
    case EVENT_COMPLETE:
        if (sim->device != NULL) {
            (void)sim_device_complete(sim->device, random_between(&random, 1, 4)); /* or fewer */
        }
        break;
    case EVENT_TIME: pass_time(sim, &random); break;
    case EVENT_STALL:
        front->stalled_reads = random_between(&random, 0, 100);
        front->stalled_sends = random_between(&random, 0, 10);
        break;
    case EVENT_INJECT: inject(sim, &random); break;
    case EVENT_BAD_ROW:
        if (sim->device != NULL) {
            sim_device_spoil_row(sim->device);
        }
        break;
    case EVENT_SPOIL: front->spoil = random_between(&random, 1, 5); break;
    case EVENT_STALE: deliver_stale(sim, &random); break;
    case EVENT_KILL_FRONT: kill_front(sim, &random); break;
    case EVENT_END_SESSION: end_session(sim, &random); break;
    case EVENT_KILL_WORKER: worker_kill(sim); break;
    case EVENT_HAND_OVER: hand_over(sim, &random); break;
    case EVENT_ATTACH: attach(sim); break;
    case EVENT_COUNT: break;
    }
}
