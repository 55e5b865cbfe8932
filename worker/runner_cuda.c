/* The table of the cuda runner.
 *
 * Failure: a device error is sticky and ends the process.  Failures on purpose (tests) are known at
 * launch: such a step enqueues its page patches only, and so does every step launched before that
 * failure was collected. */
#include "worker/runner_cuda.h"

#include <assert.h>

#include "common/clock.h"
#include "common/mem.h"
#include "worker/ranges.h"
#include "worker/runner_cuda_internal.h"

#define PS_PER_NS 1000

/* A shorter prompt step takes as long as its weights do: nothing about the time of a token. */
#define TELLING_TOKENS 256

static struct runner_cuda *runner_of(struct runner *runner)
{
    return (struct runner_cuda *)runner;
}

static struct flight *flight_at(struct runner_cuda *runner, uint64_t number)
{
    return &runner->flights[number % runner->flight_cap];
}

/* Waits, if it must, until the buffer's last opening has been copied. */
static enum err_code take_opening(struct runner_cuda *runner, const struct plan_admit *admit,
                                  struct k_open_args *args, struct err *err)
{
    uint64_t index = runner->opening_count % RUNNER_CUDA_OPENINGS;
    struct opening_buffer *buffer = &runner->openings[index];
    if (runner->opening_count >= RUNNER_CUDA_OPENINGS) {
        device_cuda_await_mark(runner->device, runner_cuda_opening_mark(index));
    }
    runner->opening_count++;
    runner_take_sampler(admit, buffer->sampler);
    args->context_count = runner_counts_tokens(admit) ? admit->prompt.count : 0;
    enum err_code code = device_cuda_upload(runner->device, runner->sampler, buffer->sampler,
                                            sizeof(*buffer->sampler), err);
    if (code == ERR_OK && args->context_count > 0) {
        for (uint32_t i = 0; i < args->context_count; i++) {
            buffer->context[i] = admit->prompt.at[i];
        }
        code = device_cuda_upload(runner->device, runner->context, buffer->context,
                                  args->context_count * sizeof(uint32_t), err);
    }
    return code == ERR_OK ? device_cuda_mark(runner->device, runner_cuda_opening_mark(index), err)
                          : code;
}

static enum err_code slot_open(struct runner *super, uint32_t slot, const struct plan_admit *admit,
                               struct err *err)
{
    struct runner_cuda *runner = runner_of(super);
    enum err_code code = runner_check_admit(&super->limits, slot, admit, err);
    if (code != ERR_OK) {
        return code;
    }
    struct k_open_args args = {
        .slots = runner->tables.slots,
        .slot = slot,
        .sampler = runner->sampler,
        .context = runner->context,
    };
    code = take_opening(runner, admit, &args, err);
    if (code != ERR_OK) {
        return code;
    }
    /* Generation 0 is nobody's: it is what an untouched stop request holds. */
    runner->generations[slot] += runner->generations[slot] == UINT32_MAX ? 2 : 1;
    runner->wants_logprobs[slot] = admit->logprobs > 0;
    args.generation = runner->generations[slot];
    return ranges_ops()->open(runner->stream, &args, err);
}

static void slot_stop(struct runner *super, uint32_t slot)
{
    struct runner_cuda *runner = runner_of(super);
    /* relaxed: the flag carries no data with it; the device reads it from host memory */
    __atomic_store_n(&runner->tables.stop_request[slot], runner->generations[slot],
                     __ATOMIC_RELAXED);
}

/* Failures on purpose that this launch passes. */
static enum err_code inject_into(struct runner_cuda *runner, struct flight *flight, struct err *err)
{
    flight->has_failed = runner->failure_count != runner->failures_collected;
    if (runner->inject == NULL) {
        return ERR_OK;
    }
    bool fails_forward = inject_hits(runner->inject, INJECT_FORWARD);
    bool fails_sample = inject_hits(runner->inject, INJECT_SAMPLE);
    if ((fails_forward || fails_sample) && !flight->has_failed) {
        flight->has_failed = true;
        runner->failure_count++;
    }
    runner->is_frozen = inject_hits(runner->inject, INJECT_FREEZE) || runner->is_frozen;
    enum err_code code = ERR_OK;
    if (inject_hits(runner->inject, INJECT_DELAY_STEP_10MS)) {
        code = k_cuda_delay(runner->stream, 10 * CLOCK_NS_PER_MS, err);
    }
    if (code == ERR_OK && inject_hits(runner->inject, INJECT_DEVICE_LOST)) {
        code = k_cuda_fault(runner->stream, err);
    }
    return code;
}

static enum err_code pack(struct runner_cuda *runner, const struct runner_step *step,
                          struct flight *flight, struct err *err)
{
    enum err_code code =
        stage_pack(&runner->super.limits, step, runner->generations, &flight->upload, err);
    flight->row_count = step->row_count;
    flight->wants_records = false;
    flight->wants_prompt = false;
    for (uint32_t i = 0; code == ERR_OK && i < step->row_count; i++) {
        const struct runner_row *row = &step->rows[i];
        flight->has_record[i] = runner->wants_logprobs[row->slot];
        flight->wants_records = flight->wants_records || flight->has_record[i];
        flight->wants_prompt = flight->wants_prompt || row->prompt_logprobs;
    }
    return code;
}

static uint64_t index_of(const struct runner_cuda *runner, uint64_t number)
{
    return number % runner->flight_cap;
}

/* Half a step may be on the stream: there is no way back from that. */
static enum err_code lose(struct err *err)
{
    const struct err why = *err;
    return err_set(err, ERR_DEVICE, "%s", why.message);
}

/* Adds what was sent to the device since `before`, and the time since start_ns. */
static void count(struct runner_cuda *runner, struct flight *flight,
                  const struct runner_cuda_traffic *before, uint64_t start_ns)
{
    struct runner_cuda_traffic now = runner_cuda_traffic(runner);
    struct runner_counters *counters = &runner->counters;
    flight->host_ns += clock_now_ns() - start_ns;
    if (flight->is_steady) {
        counters->steady_uploads += now.uploads - before->uploads;
        counters->steady_upload_bytes += now.upload_bytes - before->upload_bytes;
        counters->steady_launches += now.launches - before->launches;
    }
}

/* By when the host can tell that the flight is over, or stands before its sampler. */
static struct device_cuda_signal signal_of(const struct runner_cuda *runner, uint64_t number)
{
    uint64_t index = index_of(runner, number);
    const struct flight *flight = &runner->flights[index];
    return (struct device_cuda_signal){
        .word = !flight->awaits_masks && runner_cuda_ends_by_stamp(flight) ? &flight->stamp->end_ns
                                                                           : NULL,
        .mark =
            flight->awaits_masks ? runner_cuda_forward_mark(index) : runner_cuda_end_mark(index),
    };
}

static enum err_code mark_end(struct runner_cuda *runner, uint64_t number, struct err *err)
{
    const struct device_cuda_signal signal = signal_of(runner, number);
    return signal.word != NULL ? ERR_OK : device_cuda_mark(runner->device, signal.mark, err);
}

static enum err_code launch(struct runner *super, const struct runner_step *step, struct err *err)
{
    struct runner_cuda *runner = runner_of(super);
    uint64_t start_ns = clock_now_ns();
    if (runner->launched_count - runner->collected_count >= super->limits.pipeline_depth) {
        return err_set(err, ERR_STEP, "%u steps in flight already", super->limits.pipeline_depth);
    }
    struct flight *flight = flight_at(runner, runner->launched_count);
    enum err_code code = device_cuda_status(runner->device, err);
    code = code == ERR_OK ? pack(runner, step, flight, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    device_cuda_check_stream(runner->device, k_cuda_stream_handle(runner->stream));
    gemm_check_stream(runner->gemm, k_cuda_stream_handle(runner->stream));
    struct runner_cuda_traffic before = runner_cuda_traffic(runner);
    flight->failures_seen = runner->failures_collected;
    flight->awaits_masks = false;
    flight->is_behind = runner->launched_count > runner->collected_count;
    flight->host_ns = 0;
    flight->launched_ns = start_ns;
    ranges_begin_plan(runner->launched_count);
    code = inject_into(runner, flight, err);
    code = code == ERR_OK ? runner_cuda_run(runner, flight, err) : code;
    code = code == ERR_OK ? mark_end(runner, runner->launched_count, err) : code;
    ranges_end();
    if (code != ERR_OK) {
        return lose(err);
    }
    runner->launched_count++;
    runner->counters.steps++;
    runner->counters.graph_steps += flight->bucket != NULL && runner->has_graphs;
    runner->counters.steady_steps += flight->is_steady;
    runner->counters.steady_turns += flight->is_steady && flight->upload.patch_count > 0;
    count(runner, flight, &before, start_ns);
    return ERR_OK;
}

/* The newest step where it stands before its sampler. */
static struct flight *awaiting(struct runner_cuda *runner)
{
    struct flight *newest = flight_at(runner, runner->launched_count - 1);
    bool is_in_flight = runner->launched_count > runner->collected_count;
    return is_in_flight && newest->awaits_masks ? newest : NULL;
}

static bool has_ended_forward(struct runner_cuda *runner)
{
    const struct device_cuda_signal signal = signal_of(runner, runner->launched_count - 1);
    return !runner->is_frozen && device_cuda_has_come(runner->device, &signal);
}

static bool awaits_masks(struct runner *super, bool *out_is_due)
{
    struct runner_cuda *runner = runner_of(super);
    bool is_awaiting = awaiting(runner) != NULL;
    *out_is_due = is_awaiting && has_ended_forward(runner);
    return is_awaiting;
}

static enum err_code give_masks(struct runner *super, const uint32_t *const *masks, struct err *err)
{
    struct runner_cuda *runner = runner_of(super);
    struct flight *flight = awaiting(runner);
    assert(flight != NULL);
    uint64_t start_ns = clock_now_ns();
    struct runner_cuda_traffic before = runner_cuda_traffic(runner);
    stage_take_masks(&super->limits, masks, flight->row_count, &flight->upload);
    enum err_code code = device_cuda_status(runner->device, err);
    code = code == ERR_OK ? runner_cuda_run_sampler(runner, flight, err) : code;
    code = code == ERR_OK ? mark_end(runner, runner->launched_count - 1, err) : code;
    if (code != ERR_OK) {
        return lose(err);
    }
    count(runner, flight, &before, start_ns);
    return ERR_OK;
}

static bool is_done(struct runner *super)
{
    struct runner_cuda *runner = runner_of(super);
    const struct device_cuda_signal signal = signal_of(runner, runner->collected_count);
    return runner->collected_count < runner->launched_count && !runner->is_frozen &&
           !flight_at(runner, runner->collected_count)->awaits_masks &&
           device_cuda_has_come(runner->device, &signal);
}

/* When the oldest step should be done: its kind's last time after its launch, or after the step
 * before it was seen done.  A prompt's is half that: attention makes tokens cost more or less than the
 * last ones, and to sleep too long would keep a finished step waiting. */
static uint64_t expected_ns(const struct runner_cuda *runner, const struct flight *flight)
{
    uint64_t tokens = flight->upload.token_count;
    uint64_t begin_ns =
        flight->launched_ns > runner->collected_ns ? flight->launched_ns : runner->collected_ns;
    return begin_ns + (flight->upload.id_count == 0 && flight->bucket != NULL
                           ? flight->bucket->step_ns
                           : tokens * runner->token_ps / PS_PER_NS / 2);
}

static bool wait_done(struct runner *super, uint64_t deadline_ns)
{
    struct runner_cuda *runner = runner_of(super);
    const struct flight *flight = flight_at(runner, runner->collected_count);
    if (runner->is_frozen) {
        const struct device_cuda_signal never = {.mark = DEVICE_CUDA_NEVER};
        (void)device_cuda_wait(runner->device, &never, UINT64_MAX, deadline_ns);
        return false;
    }
    if (runner->collected_count == runner->launched_count) {
        return false;
    }
    const struct device_cuda_signal signal = signal_of(runner, runner->collected_count);
    return device_cuda_wait(runner->device, &signal, expected_ns(runner, flight), deadline_ns) &&
           !flight->awaits_masks;
}

static void wake(struct runner *super)
{
    device_cuda_wake(runner_of(super)->device);
}

/* How long the step took, for the next of its kind, and whether it began late. */
static void note_times(struct runner_cuda *runner, struct flight *flight, uint64_t device_ns)
{
    struct runner_counters *counters = &runner->counters;
    if (flight->upload.id_count == 0 && flight->bucket != NULL) {
        flight->bucket->step_ns = device_ns;
    } else if (flight->upload.token_count >= TELLING_TOKENS) {
        runner->token_ps = device_ns * PS_PER_NS / flight->upload.token_count;
    }
    counters->steady_device_ns += flight->is_steady ? device_ns : 0;
    counters->steady_host_ns += flight->is_steady ? flight->host_ns : 0;
    if (flight->is_behind && runner->ended_ns != 0 && flight->stamp->begin_ns > runner->ended_ns) {
        uint64_t gap_ns = flight->stamp->begin_ns - runner->ended_ns;
        counters->gaps += gap_ns > RUNNER_LATE_NS;
        counters->longest_gap_ns =
            gap_ns > counters->longest_gap_ns ? gap_ns : counters->longest_gap_ns;
    }
    runner->ended_ns = flight->stamp->end_ns;
}

/* The row of a step that its results go by: it begins where the step's row does. */
static struct runner_raw raw_of(const struct runner_cuda *runner, const struct flight *flight,
                                uint32_t row)
{
    struct stage_span span = flight->upload.spans[row];
    const struct k_pick *picks = span.last < flight->turn_rows
                                     ? runner->turns + (uint64_t)flight->turn * runner->row_cap
                                     : flight->picks;
    return (struct runner_raw){
        .row = &flight->upload.rows[span.first],
        .pick = &picks[span.last],
        .sample_record = flight->has_record[row] ? &flight->sample_records[span.last] : NULL,
        .prompt_records = flight->prompt_records,
    };
}

static void collect(struct runner *super, struct runner_result *out_result)
{
    struct runner_cuda *runner = runner_of(super);
    uint64_t start_ns = clock_now_ns();
    struct flight *flight = flight_at(runner, runner->collected_count);
    struct err lost = {0};
    *out_result = (struct runner_result){
        .status = device_cuda_status(runner->device, &lost),
        .picks = runner->host_picks,
    };
    if (out_result->status != ERR_OK) {
        out_result->error = lost;
        return; /* nothing of it can be read any more */
    }
    if (flight->has_failed) {
        out_result->status =
            err_set(&out_result->error, ERR_STEP, "injected failure of this step or one before it");
        /* Only the first of a chain counts: those after it were doomed when they were launched. */
        runner->failures_collected += flight->failures_seen == runner->failures_collected ? 1 : 0;
    }
    if (flight->stamp != NULL) {
        out_result->device_ns = flight->stamp->end_ns - flight->stamp->begin_ns;
    }
    for (uint32_t i = 0; !flight->has_failed && i < flight->row_count; i++) {
        const struct runner_raw raw = raw_of(runner, flight, i);
        runner_take_pick(&raw, &runner->host_picks[i]);
    }
    flight->host_ns += clock_now_ns() - start_ns;
    if (flight->stamp != NULL) {
        note_times(runner, flight, out_result->device_ns);
    }
    runner->collected_ns = start_ns;
    runner->collected_count++;
}

static void counters(const struct runner *super, struct runner_counters *out_counters)
{
    const struct runner_cuda *runner = (const struct runner_cuda *)super;
    struct runner_cuda_traffic traffic = runner_cuda_traffic(runner);
    *out_counters = runner->counters;
    out_counters->uploads = traffic.uploads;
    out_counters->upload_bytes = traffic.upload_bytes;
    out_counters->launches = traffic.launches;
}

static void destroy(struct runner *super)
{
    struct runner_cuda *runner = runner_of(super);
    gemm_destroy(runner->gemm);
    k_cuda_stream_destroy(runner->stream);
    device_cuda_close(runner->device);
    mem_free(runner->generations);
    mem_free(runner->wants_logprobs);
    mem_free(runner->resident);
    for (uint32_t i = 0; i <= RUNNER_MAX_DEPTH; i++) {
        mem_free(runner->flights[i].has_record);
    }
    mem_free(runner->host_picks);
    mem_free(runner);
}

const struct runner_table runner_cuda_table = {
    .slot_open = slot_open,
    .slot_stop = slot_stop,
    .launch = launch,
    .awaits_masks = awaits_masks,
    .give_masks = give_masks,
    .is_done = is_done,
    .wait = wait_done,
    .wake = wake,
    .collect = collect,
    .counters = counters,
    .destroy = destroy,
};
