#include "tests/sim/sim.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"

#define U64(value) (unsigned long long)(value)

static const struct sched_options *sched_options_of(const struct front *front,
                                                    struct sched_options *out)
{
    const struct world *world = &front->sim->world;
    *out = (struct sched_options){
        .max_queue = world->max_queue,
        .max_step_tokens = world->budget_tokens,
        .itl_target_ns = world->seed % 3 * 700, /* a step of the device takes 1000 */
        .pipeline_depth = world->frontend_depth,
        .detached_wait_ns = world->detached_wait_ns,
    };
    return out;
}

/* Copies byte_count bytes behind *tail and moves it on. */
static const void *copy_behind(unsigned char **tail, const void *from, size_t byte_count)
{
    void *to = *tail;
    if (byte_count > 0) {
        memcpy(to, from, byte_count);
    }
    *tail += byte_count;
    return to;
}

static struct transit *copy_message(const struct plan_message *message)
{
    const struct plan_admit *admit = &message->as.admit;
    size_t array_bytes = 0;
    if (message->type == PLAN_ADMIT) {
        assert(admit->logit_bias.count == 0 && admit->suppress_ids.count == 0);
        array_bytes = (admit->prompt.count + admit->stop_ids.count) * sizeof(uint32_t);
    } else if (message->type == PLAN_STEP) {
        array_bytes = message->as.step.rows.count * sizeof(struct wire_row);
    }
    struct transit *transit = mem_zalloc(1, sizeof(*transit) + array_bytes);
    unsigned char *tail = (unsigned char *)(transit + 1);
    transit->message = *message;
    if (message->type == PLAN_ADMIT) {
        struct plan_admit *copy = &transit->message.as.admit;
        copy->prompt.at =
            copy_behind(&tail, admit->prompt.at, admit->prompt.count * sizeof(uint32_t));
        copy->stop_ids.at =
            copy_behind(&tail, admit->stop_ids.at, admit->stop_ids.count * sizeof(uint32_t));
    } else if (message->type == PLAN_STEP) {
        transit->message.as.step.rows.at =
            copy_behind(&tail, message->as.step.rows.at, array_bytes);
    }
    return transit;
}

static void trace_message(const struct front *front, const struct plan_message *message)
{
    const struct report *report = front->sim->report;
    if (!report->is_traced) {
        return;
    }
    struct buf text;
    buf_init(&text);
    plan_dump(message, &text);
    report_trace(report, "front %u sends %.300s", front->index, buf_text(&text));
    buf_fini(&text);
}

static void note_sent(struct front *front, const struct plan_message *message)
{
    uint32_t slots = front->sim->world.slots;
    if (message->type == PLAN_ADMIT) {
        client_note_admit(front->sim, front, &message->as.admit);
    } else if (message->type == PLAN_STEP) {
        for (uint32_t i = 0; i < message->as.step.rows.count; i++) {
            uint64_t slot = message->as.step.rows.at[i].seq_id % SCHED_MAX_SLOTS;
            front->slots[slot % slots].last_step_seq = message->msg_seq;
        }
    } else if (message->type == PLAN_RELEASE) {
        uint64_t slot = message->as.release.seq_id % SCHED_MAX_SLOTS;
        if (front->slots[slot % slots].last_step_seq > front->answered_seq) {
            report_fail(front->sim->report, "RELEASE of %llu before the answer of STEP %llu",
                        (unsigned long long)message->as.release.seq_id,
                        (unsigned long long)front->slots[slot % slots].last_step_seq);
        }
        client_note_release(front->sim, front, message->as.release.seq_id);
    } else if (message->type == PLAN_PING) {
        const struct front *other = &front->sim->fronts[1 - front->index];
        if (message->as.ping.is_leaving && other->session != NULL && other->epoch < front->epoch) {
            report_cover(front->sim->report, COVER_LEAVES_ANEW);
        }
    }
}

static void on_send(void *owner, const struct plan_message *message)
{
    struct front *front = owner;
    trace_message(front, message);
    note_sent(front, message);
    struct transit *transit = copy_message(message);
    if (front->sent_last == NULL) {
        front->sent_first = transit;
    } else {
        front->sent_last->next = transit;
    }
    front->sent_last = transit;
    front->sent_count++;
}

static struct transit *take_sent(struct front *front)
{
    struct transit *transit = front->sent_first;
    front->sent_first = transit->next;
    if (front->sent_first == NULL) {
        front->sent_last = NULL;
    }
    front->sent_count--;
    return transit;
}

void front_drop_sent(struct front *front)
{
    while (front->sent_first != NULL) {
        mem_free(take_sent(front));
    }
}

void front_start(struct front *front)
{
    struct sched_options options;
    front->life = ++front->sim->next_life;
    front->sched = sched_create(sched_options_of(front, &options), on_send, front);
    front->counts = (struct front_counts){0};
}

void front_attach(struct front *front)
{
    struct sim *sim = front->sim;
    const struct world *world = &sim->world;
    const struct runner_limits *limits = &world->limits;
    const struct hello_welcome welcome = {
        .vocab_tokens = limits->vocab_tokens,
        .max_context_tokens = limits->max_context_tokens,
        .window_tokens = limits->window_tokens,
        .page_tokens = limits->page_tokens,
        .local_pages = limits->pages[RUNNER_FAMILY_LOCAL],
        .global_pages = limits->pages[RUNNER_FAMILY_GLOBAL],
        .slots = world->slots,
        .max_step_rows = limits->max_step_rows,
        .max_step_tokens = limits->max_step_tokens,
        .pipeline_depth = limits->pipeline_depth,
        .ring_records = world->ring_records,
        .session_timeout_ms = 10000,
        .segment_tokens = limits->segment_tokens,
        .prefix_cache = sim->world.keeps_prefixes,
    };
    struct err err;
    if (sched_attach(front->sched, &welcome, front->epoch, sim->now_ns, &err) != ERR_OK) {
        report_fail(sim->report, "attach: %s", err.message);
    }
    struct sched_gate gate;
    sched_get_gate(front->sched, &gate);
    if (gate.waiting > 0) {
        report_cover(sim->report, COVER_SERVED_AGAIN);
    }
}

void front_detach(struct front *front)
{
    struct sim *sim = front->sim;
    if (front->sched != NULL && sched_is_attached(front->sched)) {
        sim->is_closing = true;
        sched_detach(front->sched, "the session ended", sim->now_ns);
        sim->is_closing = false;
    }
    front_drop_sent(front);
    front->read = front->pushed; /* nobody looks into the ring any more */
    front->seen = front->pushed;
    client_sweep(sim);
}

void front_check_counts(const struct front *front)
{
    struct sched_stats stats;
    sched_get_stats(front->sched, &stats);
    const struct front_counts *counts = &front->counts;
    bool are_same = stats.arrived == counts->arrived && stats.rejected == counts->rejected &&
                    stats.failed == counts->failed && stats.output_tokens == counts->output_tokens;
    for (uint32_t i = 0; i <= RESULT_FINISH_CANCEL; i++) {
        are_same = are_same && stats.finished[i] == counts->finished[i];
    }
    if (!are_same) {
        report_fail(front->sim->report,
                    "counted %llu arrived, %llu rejected, %llu failed, %llu+%llu+%llu finished, "
                    "%llu tokens; clients saw %llu, %llu, %llu, %llu+%llu+%llu, %llu",
                    U64(stats.arrived), U64(stats.rejected), U64(stats.failed),
                    U64(stats.finished[1]), U64(stats.finished[2]), U64(stats.finished[3]),
                    U64(stats.output_tokens), U64(counts->arrived), U64(counts->rejected),
                    U64(counts->failed), U64(counts->finished[1]), U64(counts->finished[2]),
                    U64(counts->finished[3]), U64(counts->output_tokens));
    }
    if (!sched_check(front->sched)) {
        report_fail(front->sim->report, "the scheduler's books are wrong");
    }
}

void front_kill(struct front *front)
{
    struct sim *sim = front->sim;
    client_lose(sim, front);
    front_check_counts(front);
    sched_destroy(front->sched, sim->now_ns);
    front->sched = NULL;
    front->is_orphan = front->session != NULL;
    front->is_leaving = false;
    front->spoil = 0;
    client_sweep(sim);
}

void front_try_leave(struct front *front)
{
    struct sched_gate gate;
    if (!front->is_leaving || front->sched == NULL) {
        return;
    }
    sched_get_gate(front->sched, &gate);
    if (gate.waiting > 0 || gate.running > 0 || front->sent_count > 0) {
        return;
    }
    front_kill(front);
    if (front->session != NULL) {
        worker_close_session(front);
    }
    report_cover(front->sim->report, COVER_HAND_OVER_END);
}

void front_tick(struct front *front)
{
    struct sim *sim = front->sim;
    if (front->sched == NULL) {
        return;
    }
    sched_tick(front->sched, sim->now_ns);
    client_check_deadlines(sim, front);
    client_sweep(sim);
    if (!sched_check(front->sched)) {
        report_fail(sim->report, "the scheduler's books are wrong");
    }
}

void front_read(struct front *front, uint32_t count)
{
    struct sim *sim = front->sim;
    if (front->sched == NULL) {
        return;
    }
    if (front->stalled_reads > 0) {
        front->stalled_reads--;
        return;
    }
    while (count-- > 0 && front->read < front->seen) {
        struct result_record record = front->ring[front->read % sim->world.ring_records];
        front->read++;
        struct err err;
        if (record.kind == RESULT_STEP_DONE || record.kind == RESULT_REFUSED) {
            front->answered_seq = record.msg_seq;
        }
        if (record.kind == RESULT_REFUSED) {
            client_note_delay(sim, front);
        }
        if (sched_record(front->sched, &record, sim->now_ns, &err) != ERR_OK) {
            report_fail(sim->report, "record of kind %u: %s", record.kind, err.message);
        }
        if (record.kind == RESULT_STEP_DONE) {
            client_note_step(sim, front);
        }
    }
    struct result_figures figures;
    sched_get_figures(front->sched, &figures);
    if (figures.slots_withheld == sim->world.slots && sim->world.slots > 1) {
        report_cover(sim->report, COVER_HELD_OFF);
    }
    front_tick(front);
}

static void spoil_rows(const struct front *front, struct plan_message *message,
                       struct wire_row *rows)
{
    struct plan_step *step = &message->as.step;
    memcpy(rows, step->rows.at, step->rows.count * sizeof(*rows));
    if (front->spoil == 5) {
        step->after--; /* not the refusal that it should know of */
        report_cover(front->sim->report, COVER_WRONG_AFTER);
    } else if (front->spoil == 2) {
        rows[0].seq_id += 1ULL << 40; /* never admitted */
    } else if (front->spoil == 3) {
        rows[step->rows.count++] = rows[0]; /* two rows of one sequence */
    } else {
        rows[0].count = front->sim->world.limits.max_step_tokens + 1;
    }
    step->rows.at = rows;
}

/* Delivers a message not as it was sent; the worker must refuse it. */
static void deliver_spoiled(struct front *front, struct plan_message *message)
{
    struct sim *sim = front->sim;
    struct wire_row rows[PLAN_MAX_ROWS + 1];
    struct err err;
    front->spoiled[front->spoiled_count++ % 64] = message->msg_seq;
    sim->report->faults++;
    if (front->spoil == 1 || message->type == PLAN_ADMIT) {
        (void)err_set(&err, ERR_FORMAT, "step.rows: not an array");
        session_deliver_malformed(front->session, &err);
    } else {
        spoil_rows(front, message, rows);
        if (session_deliver(front->session, message, &err) != ERR_OK) {
            report_fail(sim->report, "message: %s", err.message);
        }
    }
    front->spoil = 0;
}

static bool can_spoil(const struct front *front, const struct plan_message *message)
{
    if (front->spoil == 5) {
        return message->type == PLAN_STEP && message->as.step.after > 0;
    }
    return front->spoil != 0 && (message->type == PLAN_STEP || message->type == PLAN_ADMIT);
}

void front_deliver(struct front *front, uint32_t count)
{
    struct sim *sim = front->sim;
    if (front->stalled_sends > 0) {
        front->stalled_sends--;
        return;
    }
    while (count-- > 0 && front->sent_first != NULL && front->session != NULL &&
           session_can_receive(front->session)) {
        struct transit *transit = take_sent(front);
        struct plan_message *message = &transit->message;
        struct err err;
        if (can_spoil(front, message)) {
            deliver_spoiled(front, message);
        } else if (session_deliver(front->session, message, &err) != ERR_OK) {
            report_fail(sim->report, "message: %s", err.message);
        }
        mem_free(transit);
    }
}

void front_fini(struct front *front)
{
    front_drop_sent(front);
    mem_free(front->ring);
    mem_free(front->slots);
}
