/* The runner over device_cpu.  Threads: the executor calls the table; steps and slot openings run on
 * the device's stream thread.  What they share is a step buffer, handed over by the device's queue
 * and back by its done count, and the stop requests, which are atomic.
 *
 * Failure: a step that fails leaves slots as they were, but for its page patches, which always take
 * effect because the pages stay granted.  Steps launched before that failure was collected fail
 * too: each carries the number of failures collected at its launch, and runs only while no more have
 * happened. */
#include "worker/runner_cpu.h"

#include <assert.h>
#include <stddef.h>

#include "common/mem.h"
#include "worker/runner_cpu_internal.h"
#include "worker/runner_host.h"

static struct runner_cpu *runner_of(struct runner *runner)
{
    return (struct runner_cpu *)runner;
}

static enum err_code slot_open(struct runner *super, uint32_t slot, const struct plan_admit *admit,
                               struct err *err)
{
    struct runner_cpu *runner = runner_of(super);
    enum err_code code = runner_check_admit(&super->limits, slot, admit, err);
    if (code != ERR_OK) {
        return code;
    }
    uint32_t context_count = runner_counts_tokens(admit) ? admit->prompt.count : 0;
    struct opening *opening =
        mem_zalloc(1, sizeof(*opening) + context_count * sizeof(opening->context[0]));
    opening->task.run = runner_cpu_on_open;
    opening->runner = runner;
    runner_take_sampler(admit, &opening->sampler);
    for (uint32_t i = 0; i < context_count; i++) {
        opening->context[i] = admit->prompt.at[i];
    }
    /* Generation 0 is nobody's: it is what an untouched stop request holds. */
    runner->generations[slot] += runner->generations[slot] == UINT32_MAX ? 2 : 1;
    runner->wants_logprobs[slot] = admit->logprobs > 0;
    opening->args = (struct k_open_args){
        .slots = runner->tables.slots,
        .slot = slot,
        .generation = runner->generations[slot],
        .sampler = &opening->sampler,
        .context = opening->context,
        .context_count = context_count,
    };
    (void)device_cpu_enqueue(runner->device, &opening->task);
    return ERR_OK;
}

static void slot_stop(struct runner *super, uint32_t slot)
{
    struct runner_cpu *runner = runner_of(super);
    /* relaxed: the flag carries no data with it */
    __atomic_store_n(&runner->tables.stop_request[slot], runner->generations[slot],
                     __ATOMIC_RELAXED);
}

static void inject_into(struct runner_cpu *runner, struct launched *step)
{
    static const enum inject_stage stages[] = {
        INJECT_FORWARD, INJECT_SAMPLE, INJECT_DEVICE_LOST, INJECT_FREEZE, INJECT_DELAY_STEP_10MS,
    };
    for (uint32_t i = 0; runner->inject != NULL && i < sizeof(stages) / sizeof(stages[0]); i++) {
        step->injected[stages[i]] = inject_hits(runner->inject, stages[i]);
    }
}

static enum err_code launch(struct runner *super, const struct runner_step *step, struct err *err)
{
    struct runner_cpu *runner = runner_of(super);
    if (runner->launched_count - runner->collected_count >= super->limits.pipeline_depth) {
        return err_set(err, ERR_STEP, "%u steps in flight already", super->limits.pipeline_depth);
    }
    if (device_cpu_is_lost(runner->device)) {
        return err_set(err, ERR_DEVICE, "the device is lost");
    }
    struct launched *launched = &runner->steps[runner->launched_count % runner->step_cap];
    enum err_code code =
        stage_pack(&super->limits, step, runner->generations, &launched->upload, err);
    if (code != ERR_OK) {
        return code;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        launched->has_record[i] = runner->wants_logprobs[step->rows[i].slot];
    }
    inject_into(runner, launched);
    launched->failures_seen = runner->failures_collected;
    launched->has_late_sampler = launched->upload.late_count > 0;
    launched->awaits_masks = launched->has_late_sampler;
    launched->task.run = runner_cpu_on_step;
    launched->task_number = device_cpu_enqueue(runner->device, &launched->task);
    runner->launched_count++;
    return ERR_OK;
}

static const struct launched *oldest(const struct runner_cpu *runner)
{
    return &runner->steps[runner->collected_count % runner->step_cap];
}

/* The newest step where it stands before its sampler. */
static struct launched *awaiting(struct runner_cpu *runner)
{
    struct launched *newest = &runner->steps[(runner->launched_count - 1) % runner->step_cap];
    bool is_in_flight = runner->launched_count > runner->collected_count;
    return is_in_flight && newest->awaits_masks ? newest : NULL;
}

static bool awaits_masks(struct runner *super, bool *out_is_due)
{
    struct runner_cpu *runner = runner_of(super);
    const struct launched *step = awaiting(runner);
    *out_is_due = step != NULL && device_cpu_is_done(runner->device, step->task_number);
    return step != NULL;
}

static enum err_code give_masks(struct runner *super, const uint32_t *const *masks, struct err *err)
{
    struct runner_cpu *runner = runner_of(super);
    struct launched *step = awaiting(runner);
    assert(step != NULL);
    if (device_cpu_is_lost(runner->device)) {
        return err_set(err, ERR_DEVICE, "the device is lost");
    }
    stage_take_masks(&super->limits, masks, step->upload.row_count, &step->upload);
    step->awaits_masks = false;
    step->sampler = (struct sampler_task){.task.run = runner_cpu_on_sampler, .step = step};
    step->task_number = device_cpu_enqueue(runner->device, &step->sampler.task);
    return ERR_OK;
}

static bool is_done(struct runner *super)
{
    const struct runner_cpu *runner = runner_of(super);
    return runner->collected_count < runner->launched_count && !oldest(runner)->awaits_masks &&
           device_cpu_is_done(runner->device, oldest(runner)->task_number);
}

static bool wait_done(struct runner *super, uint64_t deadline_ns)
{
    const struct runner_cpu *runner = runner_of(super);
    return runner->collected_count < runner->launched_count &&
           device_cpu_wait(runner->device, oldest(runner)->task_number, deadline_ns) &&
           !oldest(runner)->awaits_masks;
}

static void wake(struct runner *super)
{
    device_cpu_wake(runner_of(super)->device);
}

static void collect(struct runner *super, struct runner_result *out_result)
{
    struct runner_cpu *runner = runner_of(super);
    const struct launched *step = oldest(runner);
    *out_result = (struct runner_result){
        .status = step->status,
        .device_ns = step->device_ns,
        .picks = runner->picks,
    };
    if (step->status != ERR_OK) {
        out_result->error = step->error;
        /* Only the first of a chain counts: those after it were doomed when they were launched. */
        runner->failures_collected += step->failures_seen == runner->failures_collected ? 1 : 0;
    }
    for (uint32_t i = 0; i < step->upload.row_count; i++) {
        const struct runner_raw raw = {
            .row = &step->upload.rows[i],
            .pick = &step->picks[i],
            .sample_record = step->has_record[i] ? &step->sample_records[i] : NULL,
            .prompt_records = step->prompt_records,
        };
        runner_take_pick(&raw, &runner->picks[i]);
    }
    runner->collected_count++;
}

static void destroy(struct runner *super)
{
    struct runner_cpu *runner = runner_of(super);
    device_cpu_destroy(runner->device);
    mem_free(runner->generations);
    mem_free(runner->wants_logprobs);
    mem_free(runner->picks);
    mem_free(runner);
}

const struct runner_table runner_cpu_table = {
    .slot_open = slot_open,
    .slot_stop = slot_stop,
    .launch = launch,
    .awaits_masks = awaits_masks,
    .give_masks = give_masks,
    .is_done = is_done,
    .wait = wait_done,
    .wake = wake,
    .collect = collect,
    .destroy = destroy,
};
