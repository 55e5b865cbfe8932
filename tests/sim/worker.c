#include "tests/sim/sim.h"

#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/sim/device.h"

static uint32_t on_room(void *context, void *owner, uint32_t wanted)
{
    const struct sim *sim = context;
    const struct front *front = owner;
    uint32_t room = sim->world.ring_records - (uint32_t)(front->pushed - front->read);
    if (room < wanted) {
        report_cover(sim->report, COVER_ROOM_REFUSED);
    }
    return room;
}

/* Only what was spoiled or made to fail on purpose is refused. */
static void check_refusal(struct front *front, const struct result_record *record)
{
    struct report *report = front->sim->report;
    if (record->as.refused.code == ERR_AFTER_REFUSAL) {
        if (!front->has_refusal) {
            report_fail(report, "message %llu refused after no refusal",
                        (unsigned long long)record->msg_seq);
        }
        report_cover(report, COVER_REFUSED_AFTER);
        return;
    }
    if (record->as.refused.code == ERR_BUSY && record->seq_id != 0 &&
        front->sim->fronts[1 - front->index].session != NULL) {
        report_cover(report, COVER_REFUSED_BUSY);
        return;
    }
    front->has_refusal = true;
    for (uint32_t i = 0; i < 64 && i < front->spoiled_count; i++) {
        if (front->spoiled[i] == record->msg_seq) {
            report_cover(report, COVER_REFUSED_SPOILED);
            return;
        }
    }
    if (strncmp(record->as.refused.text, "injected", strlen("injected")) != 0) {
        report_fail(report, "message %llu refused: %s", (unsigned long long)record->msg_seq,
                    record->as.refused.text);
    }
    report_cover(report, COVER_REFUSED_INJECTED);
}

/* Nothing follows the end of a sequence. */
static void check_silence(struct front *front, const struct result_record *record)
{
    bool is_end = record->kind == RESULT_FINISHED || record->kind == RESULT_FAILED;
    if (!is_end && record->kind != RESULT_TOKEN && record->kind != RESULT_LOGPROBS) {
        return;
    }
    struct front_slot *slot =
        &front->slots[record->seq_id % SCHED_MAX_SLOTS % front->sim->world.slots];
    if (slot->closed_id == record->seq_id) {
        report_fail(front->sim->report, "record of kind %u after the end of sequence %llu",
                    record->kind, (unsigned long long)record->seq_id);
    }
    slot->closed_id = is_end ? record->seq_id : slot->closed_id;
}

static void on_push(void *context, void *owner, const struct result_record *record)
{
    struct sim *sim = context;
    struct front *front = owner;
    struct err err;
    if (result_check(record, &err) != ERR_OK) {
        report_fail(sim->report, "record: %s", err.message);
    }
    if (front->session == NULL || record->epoch != front->epoch ||
        front->pushed - front->read >= sim->world.ring_records) {
        report_fail(sim->report, "record of kind %u, epoch %llu: no room, or no such session",
                    record->kind, (unsigned long long)record->epoch);
    }
    check_silence(front, record);
    if (record->kind == RESULT_REFUSED) {
        check_refusal(front, record);
    }
    if (record->kind == RESULT_STEP_DONE || record->kind == RESULT_REFUSED) {
        sim->report->steps++;
        sim->drain_steps++;
    }
    if (sim->report->is_traced) {
        report_trace(sim->report, "worker: record kind %u of sequence %llu message %llu",
                     record->kind, (unsigned long long)record->seq_id,
                     (unsigned long long)record->msg_seq);
    }
    front->ring[front->pushed++ % sim->world.ring_records] = *record;
}

static void on_flush(void *context, void *owner)
{
    (void)context;
    struct front *front = owner;
    front->seen = front->pushed;
}

void worker_start(struct sim *sim)
{
    const struct session_sink sink = {
        .context = sim, .room = on_room, .push = on_push, .flush = on_flush};
    const struct session_limits limits = {
        .slots = sim->world.slots,
        .ring_records = sim->world.ring_records,
        .keeps_prefixes = sim->world.keeps_prefixes,
        .hash_seed = sim->world.seed,
    };
    struct err err;
    sim->device = sim_device_create(&sim->world.limits, &sim->inject, sim->report);
    if (session_core_create(sim->device, &limits, &sink, &sim->inject, &sim->core, &err) !=
        ERR_OK) {
        report_fail(sim->report, "core: %s", err.message);
    }
}

static void note_evictions(const struct sim *sim, const struct session_stats *stats)
{
    sim->report->covered[COVER_EVICTED_LOCAL] += stats->prefix.evicted_pages[RUNNER_FAMILY_LOCAL];
    sim->report->covered[COVER_EVICTED_GLOBAL] += stats->prefix.evicted_pages[RUNNER_FAMILY_GLOBAL];
}

void worker_kill(struct sim *sim)
{
    struct session_stats stats;
    if (sim->core == NULL) {
        return;
    }
    session_core_stats(sim->core, &stats);
    note_evictions(sim, &stats);
    if (sim_device_in_flight(sim->device) > 0) {
        report_cover(sim->report, COVER_WORKER_KILLED);
    }
    session_core_destroy(sim->core);
    sim->device->table->destroy(sim->device);
    sim->core = NULL;
    sim->device = NULL;
    for (uint32_t i = 0; i < WORLD_MAX_FRONTS; i++) {
        sim->fronts[i].session = NULL;
        sim->fronts[i].is_orphan = false;
        front_detach(&sim->fronts[i]);
    }
}

/* What was injected and has happened since the last call. */
static void note_injected(struct sim *sim)
{
    static const struct {
        enum inject_stage stage;
        enum cover cover;
    } stages[] = {
        {INJECT_RESERVE_LOCAL, COVER_INJECTED_RESERVE_LOCAL},
        {INJECT_RESERVE_GLOBAL, COVER_INJECTED_RESERVE_GLOBAL},
        {INJECT_STAGE, COVER_INJECTED_STAGE},
        {INJECT_LAUNCH, COVER_INJECTED_LAUNCH},
        {INJECT_PUBLISH, COVER_INJECTED_PUBLISH},
        {INJECT_COMMIT, COVER_INJECTED_COMMIT},
    };
    struct inject *inject = &sim->inject;
    for (uint32_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
        uint64_t at = inject->at[stages[i].stage];
        if (at != 0 && inject->seen[stages[i].stage] >= at) {
            report_cover(sim->report, stages[i].cover);
            sim->report->faults++;
            inject->at[stages[i].stage] = 0;
        }
    }
}

void worker_advance(struct sim *sim)
{
    if (sim->core == NULL) {
        return;
    }
    struct session_progress progress;
    struct err err;
    enum err_code code = session_core_advance(sim->core, sim->now_ns, &progress, &err);
    note_injected(sim);
    if (code == ERR_DEVICE) {
        if (strstr(err.message, "injected") == NULL) {
            report_fail(sim->report, "device lost: %s", err.message);
        }
        worker_kill(sim);
        return;
    }
    if (code != ERR_OK) {
        report_fail(sim->report, "advance: %s", err.message);
    }
    sim->queued_steps = progress.queued_steps;
    if (progress.moved && sim->passes++ % sim->world.check_one_in == 0 &&
        session_core_check(sim->core, &err) != ERR_OK) {
        report_fail(sim->report, "%s", err.message);
    }
}

void worker_open_session(struct sim *sim, struct front *front)
{
    struct err err;
    front->epoch = sim->next_epoch++;
    if (front->ring == NULL) {
        front->ring = mem_zalloc(sim->world.ring_records, sizeof(*front->ring));
        front->slots = mem_zalloc(sim->world.slots, sizeof(*front->slots));
    }
    memset(front->slots, 0, sim->world.slots * sizeof(*front->slots));
    front->answered_seq = 0;
    front->pushed = 0;
    front->seen = 0;
    front->read = 0;
    front->stalled_reads = 0;
    front->stalled_sends = 0;
    front->spoiled_count = 0;
    front->has_refusal = false;
    if (session_open(sim->core, front->epoch, front, NULL, &front->session, &err) != ERR_OK) {
        report_fail(sim->report, "session: %s", err.message);
    }
}

void worker_close_session(struct front *front)
{
    struct sim *sim = front->sim;
    session_close(front->session);
    front->session = NULL;
    front->is_orphan = false;
    struct err err;
    if (session_core_check(sim->core, &err) != ERR_OK) {
        report_fail(sim->report, "%s", err.message);
    }
}

void worker_check_empty(const struct sim *sim)
{
    struct session_stats stats;
    struct err err;
    session_core_stats(sim->core, &stats);
    const struct runner_limits *limits = &sim->world.limits;
    if (session_core_check(sim->core, &err) != ERR_OK) {
        report_fail(sim->report, "at the end: %s", err.message);
    }
    note_evictions(sim, &stats);
    if (stats.sequences != 0 || stats.steps_in_flight != 0) {
        report_fail(sim->report, "at the end: %u sequences, %u steps", stats.sequences,
                    stats.steps_in_flight);
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        uint32_t cached = stats.pages_cached[f];
        if (stats.pages_free[f] + cached != limits->pages[f] ||
            (cached > 0 && !sim->world.keeps_prefixes)) {
            report_fail(sim->report, "at the end: family %u: %u free and %u cached of %u pages", f,
                        stats.pages_free[f], cached, limits->pages[f]);
        }
    }
}
