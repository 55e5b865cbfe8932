#include "tests/sim/sim.h"

#include <stddef.h>

#include "common/num.h"
#include "tests/sim/device.h"

static struct front *any_front(struct sim *sim, struct random *random)
{
    return &sim->fronts[random_below(random, sim->front_count)];
}

void act_turn(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->front_count; i++) {
        front_deliver(&sim->fronts[i], UINT32_MAX);
    }
    worker_advance(sim);
    if (sim->device != NULL) {
        (void)sim_device_complete(sim->device, 1); /* none may be launched */
        worker_advance(sim);
    }
    for (uint32_t i = 0; i < sim->front_count; i++) {
        front_read(&sim->fronts[i], UINT32_MAX);
    }
}

static void submit(struct sim *sim, struct random *random)
{
    uint32_t count = random_one_in(random, 10) ? random_between(random, 1, 12) : 1;
    struct front *front = any_front(sim, random);
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
    for (uint32_t i = 0; i < sim->front_count; i++) {
        struct front *front = &sim->fronts[i];
        if (front->is_orphan) {
            worker_close_session(front);
        }
        if (front->sched == NULL) {
            front_start(front);
        }
        if (front->session == NULL) {
            worker_open_session(sim, front);
            front_attach(front);
            client_sweep(sim);
        }
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
        message.as.cancel.seq_id = random_below(random, 8) * SCHED_MAX_SLOTS;
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
    for (uint32_t i = 0; i < sim->front_count; i++) {
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
    case EVENT_STALL: front->stalled_events = random_between(&random, 1, 100); break;
    case EVENT_INJECT: inject(sim, &random); break;
    case EVENT_BAD_ROW:
        if (sim->device != NULL) {
            sim_device_spoil_row(sim->device);
        }
        break;
    case EVENT_SPOIL: front->spoil = random_between(&random, 1, 4); break;
    case EVENT_STALE: deliver_stale(sim, &random); break;
    case EVENT_KILL_FRONT: kill_front(sim, &random); break;
    case EVENT_END_SESSION: end_session(sim, &random); break;
    case EVENT_KILL_WORKER: worker_kill(sim); break;
    case EVENT_ATTACH: attach(sim); break;
    case EVENT_COUNT: break;
    }
}
