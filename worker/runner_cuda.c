/* The table of the cuda runner.
 *
 * Failure: a device error is sticky and ends the process.  Failures on purpose (tests) are known at
 * launch: such a step enqueues its page patches only, and so does every step launched before that
 * failure was collected. */
#include "worker/runner_cuda.h"

#include "common/clock.h"
#include "common/mem.h"
#include "worker/runner_cuda_internal.h"

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
    uint64_t index = runner->opening_count % 2;
    struct opening_buffer *buffer = &runner->openings[index];
    if (runner->opening_count >= 2) {
        while (!device_cuda_has_passed(runner->device, runner_cuda_opening_mark(index))) {
            (void)device_cuda_wait(runner->device, runner_cuda_opening_mark(index), UINT64_MAX);
        }
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
    return gemm_ops(runner->gemm)->open(runner->stream, &args, err);
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

static enum err_code launch(struct runner *super, const struct runner_step *step, struct err *err)
{
    struct runner_cuda *runner = runner_of(super);
    if (runner->launched_count - runner->collected_count >= super->limits.pipeline_depth) {
        return err_set(err, ERR_STEP, "%u steps in flight already", super->limits.pipeline_depth);
    }
    uint64_t index = runner->launched_count % runner->flight_cap;
    struct flight *flight = flight_at(runner, runner->launched_count);
    enum err_code code = device_cuda_status(runner->device, err);
    code = code == ERR_OK ? pack(runner, step, flight, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    flight->failures_seen = runner->failures_collected;
    code = device_cuda_mark(runner->device, runner_cuda_begin_mark(index), err);
    code = code == ERR_OK ? inject_into(runner, flight, err) : code;
    code = code == ERR_OK ? runner_cuda_run(runner, flight, err) : code;
    code =
        code == ERR_OK ? device_cuda_mark(runner->device, runner_cuda_end_mark(index), err) : code;
    if (code != ERR_OK) {
        /* Half a step may be on the stream: there is no way back from that. */
        (void)err_set(err, ERR_DEVICE, "%s", err->message);
        return ERR_DEVICE;
    }
    runner->launched_count++;
    return ERR_OK;
}

static bool is_done(struct runner *super)
{
    struct runner_cuda *runner = runner_of(super);
    uint64_t index = runner->collected_count % runner->flight_cap;
    return runner->collected_count < runner->launched_count && !runner->is_frozen &&
           device_cuda_has_passed(runner->device, runner_cuda_end_mark(index));
}

static bool wait_done(struct runner *super, uint64_t deadline_ns)
{
    struct runner_cuda *runner = runner_of(super);
    uint64_t index = runner->collected_count % runner->flight_cap;
    if (runner->is_frozen) {
        (void)device_cuda_wait(runner->device, DEVICE_CUDA_NEVER, deadline_ns);
        return false;
    }
    return runner->collected_count < runner->launched_count &&
           device_cuda_wait(runner->device, runner_cuda_end_mark(index), deadline_ns);
}

static void wake(struct runner *super)
{
    device_cuda_wake(runner_of(super)->device);
}

static void collect(struct runner *super, struct runner_result *out_result)
{
    struct runner_cuda *runner = runner_of(super);
    uint64_t index = runner->collected_count % runner->flight_cap;
    const struct flight *flight = flight_at(runner, runner->collected_count);
    struct err lost = {0};
    *out_result = (struct runner_result){
        .status = device_cuda_status(runner->device, &lost),
        .device_ns = device_cuda_between_ns(runner->device, runner_cuda_begin_mark(index),
                                            runner_cuda_end_mark(index)),
        .picks = runner->host_picks,
    };
    if (out_result->status != ERR_OK) {
        out_result->error = lost;
    } else if (flight->has_failed) {
        out_result->status =
            err_set(&out_result->error, ERR_STEP, "injected failure of this step or one before it");
        /* Only the first of a chain counts: those after it were doomed when they were launched. */
        runner->failures_collected += flight->failures_seen == runner->failures_collected ? 1 : 0;
    }
    for (uint32_t i = 0; i < flight->upload.row_count; i++) {
        const struct runner_raw raw = {
            .row = &flight->upload.rows[i],
            .pick = &flight->picks[i],
            .sample_record = flight->has_record[i] ? &flight->sample_records[i] : NULL,
            .prompt_records = flight->prompt_records,
        };
        runner_take_pick(&raw, &runner->host_picks[i]);
    }
    runner->collected_count++;
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
    .is_done = is_done,
    .wait = wait_done,
    .wake = wake,
    .collect = collect,
    .destroy = destroy,
};
