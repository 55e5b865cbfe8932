/* Shared by the parts of the cuda runner: runner_cuda.c (the table), runner_cuda_step.c (what a step
 * enqueues), runner_cuda_create.c.  Included by them only.  Executor thread only. */
#ifndef WORKER_RUNNER_CUDA_INTERNAL_H
#define WORKER_RUNNER_CUDA_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/ops_cuda.h"
#include "worker/device_cuda.h"
#include "worker/forward.h"
#include "worker/gemm.h"
#include "worker/inject.h"
#include "worker/runner_cuda.h"
#include "worker/runner_host.h"
#include "worker/stage.h"

/* Prompt positions whose logits are at hand at once, for prompt_logprobs. */
#define RUNNER_CUDA_PROMPT_ROWS 64
#define RUNNER_CUDA_MAX_BUCKETS 160

/* One step in flight, in pinned memory: what is copied to the device, and what comes back. */
struct flight {
    struct stage_upload upload;
    struct k_pick *picks;             /* [rows] */
    struct k_logprob *sample_records; /* [rows] */
    struct k_logprob *prompt_records; /* [tokens], by prompt id */
    bool *has_record;                 /* [rows] the slot asked for logprobs */
    bool wants_records;               /* some row did */
    bool wants_prompt;                /* some prompt row did */
    bool has_failed;                  /* on purpose; nothing but its patches was enqueued */
    uint64_t failures_seen;           /* collected when it was launched */
};

/* Rows, tokens and logits of a step, fixed when it is captured. */
struct step_shape {
    uint32_t rows;
    uint32_t tokens;
    uint32_t sample_rows;
    uint32_t prompt_rows; /* tokens of rows with prompt logprobs */
    bool has_records;
};

struct bucket {
    uint32_t rows;
    struct device_cuda_graph *graph; /* borrowed from the device */
};

/* A sampler on its way to the device. */
struct opening_buffer {
    struct k_sampler *sampler; /* pinned */
    uint32_t *context;         /* pinned, [max_context] */
};

struct runner_cuda {
    struct runner super;
    struct device_cuda *device; /* owned */
    struct k_stream *stream;    /* owned */
    struct gemm *gemm;          /* owned */
    struct inject *inject;      /* borrowed, may be null */
    struct stage_tables tables;
    struct stage_upload upload; /* device twin of a flight's upload */
    struct forward forward;
    uint16_t *logits;                 /* [max_step_rows or RUNNER_CUDA_PROMPT_ROWS, vocab] bf16 */
    struct k_pick *picks;             /* device, [rows] */
    struct k_logprob *sample_records; /* device, [rows] */
    struct k_logprob *prompt_records; /* device, [tokens] */
    struct k_sampler *sampler;        /* device, of the slot being opened */
    uint32_t *context;                /* device, of the slot being opened */

    struct bucket buckets[RUNNER_CUDA_MAX_BUCKETS]; /* ascending */
    uint32_t bucket_count;                          /* 0: no graphs */

    uint32_t *generations;  /* owned, [slots] of the sequence opened last */
    bool *wants_logprobs;   /* owned, [slots] */
    struct k_row *resident; /* owned, [max_step_rows] rows as they lie on the device */
    uint32_t resident_count;
    struct opening_buffer openings[2];
    uint64_t opening_count;
    struct flight flights[RUNNER_MAX_DEPTH + 1];
    uint32_t flight_cap;
    uint64_t launched_count;
    uint64_t collected_count;
    uint64_t failures_collected;
    uint64_t failure_count;
    bool is_frozen;                 /* injected: nothing completes any more */
    struct runner_pick *host_picks; /* owned, [rows] of the step collected last */
};

/* Marks of the device: begin and end of each flight, then one for each opening buffer. */
static inline uint32_t runner_cuda_begin_mark(uint64_t flight)
{
    return (uint32_t)flight * 2;
}

static inline uint32_t runner_cuda_end_mark(uint64_t flight)
{
    return (uint32_t)flight * 2 + 1;
}

static inline uint32_t runner_cuda_opening_mark(uint64_t opening)
{
    return 2 * (RUNNER_MAX_DEPTH + 1) + (uint32_t)opening;
}

/* Prologue, forward pass, sampler and tail of a step of that shape over the resident rows. */
ERR_NODISCARD enum err_code runner_cuda_enqueue(struct runner_cuda *runner,
                                                const struct step_shape *shape, struct err *err);

/* Copies what the device does not have yet and runs the step, as a graph where one fits. */
ERR_NODISCARD enum err_code runner_cuda_run(struct runner_cuda *runner, struct flight *flight,
                                            struct err *err);

extern const struct runner_table runner_cuda_table;

#endif
