/* What the cpu runner does on its stream thread: one step, or the opening of one slot. */
#include <time.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"
#include "worker/runner_cpu_internal.h"

#define DELAY_STEP_NS (10 * CLOCK_NS_PER_MS)

static enum err_code report_prompt(struct runner_cpu *runner, struct launched *step,
                                   struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    uint32_t rows = tables->counts->prompt_logprob_rows;
    enum err_code code = ERR_OK;
    for (uint32_t first = 0; code == ERR_OK && first < rows; first += RUNNER_CPU_LOGIT_ROWS) {
        uint32_t count = num_min(RUNNER_CPU_LOGIT_ROWS, rows - first);
        code = forward_head(&runner->forward, tables->prompt_tokens + first, count, runner->logits,
                            err);
        struct k_logprobs_args args = {
            .logits = runner->logits,
            .row_count = count,
            .vocab_tokens = runner->super.limits.vocab_tokens,
            .rows = tables->prompt_logprobs + first,
            .records = step->prompt_records,
        };
        if (code == ERR_OK) {
            code = k_cpu_ops()->logprobs(device_cpu_stream(runner->device), &args, err);
        }
    }
    return code;
}

static enum err_code sample(struct runner_cpu *runner, struct launched *step, struct err *err)
{
    const struct stage_tables *tables = &runner->tables;
    struct k_stream *stream = device_cpu_stream(runner->device);
    uint32_t rows = tables->counts->sample_rows;
    enum err_code code = ERR_OK;
    for (uint32_t first = 0; code == ERR_OK && first < rows; first += RUNNER_CPU_LOGIT_ROWS) {
        uint32_t count = num_min(RUNNER_CPU_LOGIT_ROWS, rows - first);
        struct k_sample_args args = {
            .slots = tables->slots,
            .logits = runner->logits,
            .row_count = count,
            .rows = tables->sample_rows + first,
            .masks = step->upload.masks,
            .mask_words = stage_mask_words(&runner->super.limits),
            .missing = step->upload.missing,
            .picks = step->picks,
            .logprobs = tables->sample_logprobs + first,
        };
        struct k_logprobs_args logprobs = {
            .logits = runner->logits,
            .row_count = count,
            .vocab_tokens = runner->super.limits.vocab_tokens,
            .rows = tables->sample_logprobs + first,
            .records = step->sample_records,
        };
        code = forward_head(&runner->forward, tables->sample_tokens + first, count, runner->logits,
                            err);
        if (code == ERR_OK) {
            code = k_cpu_ops()->sample(stream, &args, err);
        }
        if (code == ERR_OK) {
            code = k_cpu_ops()->logprobs(stream, &logprobs, err);
        }
    }
    return code;
}

static enum err_code compute_forward(struct runner_cpu *runner, struct launched *step,
                                     struct err *err)
{
    struct k_stream *stream = device_cpu_stream(runner->device);
    struct k_expand_args expand = stage_expand_args(&runner->tables, &step->upload, step->picks);
    enum err_code code = k_cpu_ops()->expand(stream, &expand, err);
    if (code == ERR_OK && step->injected[INJECT_FORWARD]) {
        code = err_set(err, ERR_STEP, "injected failure of the forward pass");
    }
    struct k_tokens tokens = stage_tokens(&runner->tables);
    if (code == ERR_OK && tokens.count > 0) {
        code = forward_run(&runner->forward, &tokens, err);
    }
    return code == ERR_OK ? report_prompt(runner, step, err) : code;
}

/* The slots move on last: up to there a failure changes none. */
static enum err_code compute_sampler(struct runner_cpu *runner, struct launched *step,
                                     struct err *err)
{
    const struct k_advance_args advance = {
        .slots = runner->tables.slots,
        .rows = step->upload.rows,
        .row_count = step->upload.row_count,
        .picks = step->picks,
    };
    enum err_code code = step->injected[INJECT_SAMPLE]
                             ? err_set(err, ERR_STEP, "injected failure of the sampler")
                             : sample(runner, step, err);
    return code == ERR_OK ? k_cpu_ops()->advance(device_cpu_stream(runner->device), &advance, err)
                          : code;
}

static void apply_patches(struct runner_cpu *runner, struct launched *step)
{
    struct k_expand_args expand = stage_expand_args(&runner->tables, &step->upload, step->picks);
    expand.row_count = 0;
    /* Without rows the prologue only writes the page tables and cannot fail. */
    (void)k_cpu_ops()->expand(device_cpu_stream(runner->device), &expand, NULL);
}

static void delay(uint64_t delay_ns)
{
    struct timespec time = {.tv_nsec = (long)delay_ns};
    (void)nanosleep(&time, NULL); /* a signal may cut it short */
}

static void settle(struct launched *step, enum err_code code)
{
    if (code != ERR_OK) {
        step->runner->failure_count++;
        step->status = ERR_STEP;
        step->error.code = ERR_STEP;
    }
}

void runner_cpu_on_step(struct device_cpu_task *task)
{
    struct launched *step = (struct launched *)task;
    struct runner_cpu *runner = step->runner;
    uint64_t begin_ns = clock_now_ns();
    step->status = ERR_OK;
    if (step->injected[INJECT_DELAY_STEP_10MS]) {
        delay(DELAY_STEP_NS);
    }
    if (step->injected[INJECT_FREEZE]) {
        device_cpu_hang(runner->device);
    }
    if (step->injected[INJECT_DEVICE_LOST]) {
        device_cpu_lose(runner->device);
    }
    if (device_cpu_is_lost(runner->device)) {
        step->status = err_set(&step->error, ERR_DEVICE, "injected loss of the device");
    } else if (step->failures_seen != runner->failure_count) {
        apply_patches(runner, step);
        step->status = err_set(&step->error, ERR_STEP, "a step launched before it failed");
    } else {
        enum err_code code = compute_forward(runner, step, &step->error);
        if (code == ERR_OK && !step->has_late_sampler) {
            code = compute_sampler(runner, step, &step->error);
        }
        settle(step, code);
    }
    step->device_ns = clock_now_ns() - begin_ns;
}

void runner_cpu_on_sampler(struct device_cpu_task *task)
{
    struct launched *step = ((struct sampler_task *)task)->step;
    uint64_t begin_ns = clock_now_ns();
    if (step->status == ERR_OK) {
        settle(step, compute_sampler(step->runner, step, &step->error));
    }
    step->device_ns += clock_now_ns() - begin_ns;
}

void runner_cpu_on_open(struct device_cpu_task *task)
{
    struct opening *opening = (struct opening *)task;
    /* The slot was checked when the opening was made; nothing else can fail. */
    (void)k_cpu_ops()->open(device_cpu_stream(opening->runner->device), &opening->args, NULL);
    mem_free(opening);
}
