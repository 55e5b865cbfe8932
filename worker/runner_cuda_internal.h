/* Shared by the parts of the cuda runner: runner_cuda.c (the table), runner_cuda_step.c (what a step
 * enqueues), runner_cuda_create.c.  Included by them only.  Executor thread only. */
#ifndef WORKER_RUNNER_CUDA_INTERNAL_H
#define WORKER_RUNNER_CUDA_INTERNAL_H

#include <assert.h>
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

/* Openings on their way to the device: so many can stand behind running steps before one has to wait
 * for them. */
#define RUNNER_CUDA_OPENINGS 32

/* What a launch covers: everything up to the logits, and what needs masks. */
enum step_part {
    STEP_PART_FORWARD,
    STEP_PART_SAMPLER,
    STEP_PART_WHOLE,
    STEP_PART_COUNT,
};

/* Packed rows that run together, with the tokens and logits they have; fixed when it is captured. */
struct step_shape {
    uint32_t first_row;
    uint32_t rows;
    uint32_t tokens;       /* padding included */
    uint32_t pad_multiple; /* they are a multiple of this; 0: no padding */
    uint32_t sample_rows;
    uint32_t prompt_rows; /* tokens of rows with prompt logprobs */
    bool has_records;
    bool begins;              /* nothing of the step runs before it */
    bool ends;                /* nothing of the step runs after it */
    struct k_pick *published; /* where the host reads the picks, as the device sees it; null: in the
                                 runner's block, by turns that the device counts */
    struct k_stamp *stamp;    /* likewise, and null with it */
};

/* A width of decode steps. */
struct bucket {
    uint32_t rows;
    uint64_t step_ns;                                  /* of the last such step, on the device */
    struct device_cuda_graph *graphs[STEP_PART_COUNT]; /* borrowed from the device; null without */
};

/* One step in flight, in pinned memory: what is copied to the device, and what comes back. */
struct flight {
    struct stage_upload upload;
    uint32_t row_count;               /* of the step, as all its results are indexed */
    struct k_pick *picks;             /* [packed rows] of those launched operator by operator */
    struct k_pick *device_picks;      /* the same, as the device sees them */
    struct k_stamp *own_stamp;        /* for a step whose last part is not a graph */
    struct k_stamp *device_stamp;     /* the same, as the device sees it */
    const struct k_stamp *stamp;      /* where this step's is; null: it has none */
    unsigned char *device_block;      /* the upload block, as the device sees it */
    struct k_logprob *sample_records; /* [packed rows] */
    struct k_logprob *prompt_records; /* [tokens], by prompt id */
    bool *has_record;                 /* [rows] the slot asked for logprobs */
    bool wants_records;               /* some row did */
    bool wants_prompt;                /* some prompt row did */
    bool has_failed;                  /* on purpose; nothing but its patches was enqueued */
    bool awaits_masks;                /* the sampler is not launched */
    uint64_t failures_seen;           /* collected when it was launched */

    struct bucket
        *bucket; /* of its decode rows, which lie in front; null: none run by themselves */
    struct step_shape shape; /* of those, or of all rows */
    uint32_t turn_rows;      /* picks of the first so many packed rows lie in the runner's block */
    uint32_t turn;

    bool is_steady;
    bool is_behind; /* another step was in flight when it was launched */
    uint64_t launched_ns;
    uint64_t host_ns; /* spent on it so far */
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
    struct stage_upload upload; /* in device memory; its parts lie as in the step copied last */
    struct forward forward;
    uint16_t *logits;                 /* [max_step_rows or RUNNER_CUDA_PROMPT_ROWS, vocab] bf16 */
    struct k_pick *picks;             /* device, [packed rows] */
    struct k_logprob *sample_records; /* device, [packed rows] */
    struct k_logprob *prompt_records; /* device, [tokens] */
    struct k_sampler *sampler;        /* device, of the slot being opened */
    uint32_t *context;                /* device, of the slot being opened */

    struct k_pick *turns;        /* pinned, [flight_cap, row_cap] picks of graphs */
    struct k_pick *device_turns; /* the same, as the device sees it */
    struct k_stamp *stamps;      /* pinned, [flight_cap] beside the picks */
    struct k_stamp *device_stamps;
    uint32_t *device_turn; /* device, which of them comes next; */
    uint32_t next_turn;    /* as the host counts it */
    uint64_t *begin_ns;    /* device, when the step on it began */
    uint64_t ended_ns;     /* the last step collected, by the device's clock; 0: none */
    uint32_t row_cap;      /* packed rows */

    struct bucket buckets[RUNNER_CUDA_MAX_BUCKETS]; /* ascending */
    uint32_t bucket_count;
    bool has_graphs;
    uint64_t token_ps; /* device time of the last long step with prompt rows, per token */

    uint32_t *generations;  /* owned, [slots] of the sequence opened last */
    bool *wants_logprobs;   /* owned, [slots] */
    struct k_row *resident; /* owned, [packed rows] as they lie on the device */
    uint32_t resident_count;
    struct opening_buffer openings[RUNNER_CUDA_OPENINGS];
    uint64_t opening_count;
    struct flight flights[RUNNER_MAX_DEPTH + 1];
    uint32_t flight_cap;
    uint64_t launched_count;
    uint64_t collected_count;
    uint64_t collected_ns; /* when the last one was */
    uint64_t failures_collected;
    uint64_t failure_count;
    bool is_frozen;                 /* injected: nothing completes any more */
    struct runner_pick *host_picks; /* owned, [rows] of the step collected last */
    struct runner_counters counters;
};

/* Marks of the device: end of the forward pass and end of each flight, where its stamp does not tell,
 * then one for each opening buffer. */
static inline uint32_t runner_cuda_forward_mark(uint64_t flight)
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

static_assert(2 * (RUNNER_MAX_DEPTH + 1) + RUNNER_CUDA_OPENINGS <= DEVICE_CUDA_MARKS,
              "a mark for everything");

/* Rounds the tokens up to one of few counts: cuBLAS takes as long as a step to choose a product that it
 * has not met. */
void runner_cuda_pad(const struct runner_limits *limits, struct step_shape *shape);

/* Part of a step of that shape over the resident rows: prologue, forward pass, logits; then sampler
 * and tail. */
ERR_NODISCARD enum err_code runner_cuda_enqueue(struct runner_cuda *runner,
                                                const struct step_shape *shape, enum step_part part,
                                                struct err *err);

/* Copies what the device does not have yet and runs the step, as a graph where one fits; up to its
 * sampler where masks are to come. */
ERR_NODISCARD enum err_code runner_cuda_run(struct runner_cuda *runner, struct flight *flight,
                                            struct err *err);

/* The rest of a step whose masks are all there or due. */
ERR_NODISCARD enum err_code runner_cuda_run_sampler(struct runner_cuda *runner,
                                                    struct flight *flight, struct err *err);

/* The stamp tells the end of a step unless something is copied back behind it, or nothing ran. */
bool runner_cuda_ends_by_stamp(const struct flight *flight);

/* Uploads, launches of graphs and of single kernels so far. */
struct runner_cuda_traffic {
    uint64_t uploads;
    uint64_t upload_bytes;
    uint64_t launches;
};
struct runner_cuda_traffic runner_cuda_traffic(const struct runner_cuda *runner);

extern const struct runner_table runner_cuda_table;

#endif
