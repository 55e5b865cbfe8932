/* Shared by the parts of the cpu runner: runner_cpu.c (executor thread), runner_cpu_step.c (stream
 * thread), runner_cpu_create.c.  Included by them only. */
#ifndef WORKER_RUNNER_CPU_INTERNAL_H
#define WORKER_RUNNER_CPU_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/ops_cpu.h"
#include "worker/device_cpu.h"
#include "worker/forward.h"
#include "worker/inject.h"
#include "worker/runner_cpu.h"
#include "worker/runner_host.h"
#include "worker/stage.h"

/* Logit rows at hand at once; more rows of a step go through head and sampler in turns. */
#define RUNNER_CPU_LOGIT_ROWS 32
#define RUNNER_CPU_MAX_DEPTH  RUNNER_MAX_DEPTH

struct runner_cpu;

struct launched;

/* The sampler of a step whose masks came after its launch. */
struct sampler_task {
    struct device_cpu_task task;
    struct launched *step;
};

/* One step in flight: what was copied for it, and its results. */
struct launched {
    struct device_cpu_task task;
    struct sampler_task sampler;
    struct runner_cpu *runner;
    uint64_t task_number;   /* of its last task so far */
    bool has_late_sampler;  /* task leaves the sampler out */
    bool awaits_masks;      /* executor thread: it was not enqueued yet */
    uint64_t failures_seen; /* collected when it was launched */
    bool injected[INJECT_STAGE_COUNT];
    struct stage_upload upload;

    struct k_pick *picks;             /* [rows] */
    struct k_logprob *sample_records; /* [rows] */
    struct k_logprob *prompt_records; /* [tokens], by prompt id */
    bool *has_record;                 /* [rows] the slot asked for logprobs */
    enum err_code status;
    struct err error;
    uint64_t device_ns;
};

struct runner_cpu {
    struct runner super;
    struct device_cpu *device; /* owned */
    struct inject *inject;     /* borrowed, may be null */
    struct stage_tables tables;
    struct forward forward;
    uint16_t *logits; /* [RUNNER_CPU_LOGIT_ROWS, vocab] bf16 */

    /* Executor thread only. */
    uint32_t *generations; /* owned, [slots] of the sequence opened last */
    bool *wants_logprobs;  /* owned, [slots] */
    struct launched steps[RUNNER_CPU_MAX_DEPTH + 1];
    uint32_t step_cap;
    uint64_t launched_count;
    uint64_t collected_count;
    uint64_t failures_collected;
    struct runner_pick *picks; /* owned, [rows] of the step collected last */

    /* Stream thread only. */
    uint64_t failure_count;
};

/* A slot opening on its way to the stream. */
struct opening {
    struct device_cpu_task task;
    struct runner_cpu *runner;
    struct k_open_args args;
    struct k_sampler sampler;
    uint32_t context[]; /* [args.context_count] */
};

/* Tasks of the stream thread. */
void runner_cpu_on_step(struct device_cpu_task *task);
void runner_cpu_on_sampler(struct device_cpu_task *task);
void runner_cpu_on_open(struct device_cpu_task *task);

extern const struct runner_table runner_cpu_table;

#endif
