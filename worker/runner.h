/* The runner launches staged steps on a device and gives back what was sampled.
 *
 * It is the seam between bookkeeping (step.c: plans, sequences, pages) and computing (stage,
 * forward pass, sampler over one device).  A step is launched asynchronously on the runner's one
 * stream; steps complete in launch order.  Pages and slots are plain numbers here: the runner never
 * decides about them.  Tests put a model of the device behind the same table.
 *
 * Executor thread only, once it is created; wake alone may come from any thread. */
#ifndef WORKER_RUNNER_H
#define WORKER_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/limits.h"
#include "proto/plan.h"

enum runner_family {
    RUNNER_FAMILY_LOCAL,
    RUNNER_FAMILY_GLOBAL,
    RUNNER_FAMILY_COUNT,
};

struct runner_limits {
    uint32_t slots;
    uint32_t max_step_rows;
    uint32_t max_step_tokens;
    uint32_t max_context_tokens;
    uint32_t vocab_tokens;
    uint32_t window_tokens;
    uint32_t page_tokens;
    uint32_t pages[RUNNER_FAMILY_COUNT]; /* grantable: 0 .. pages-1; the padding page is extra */
    uint32_t pipeline_depth;             /* steps in flight at most */
    uint32_t segment_tokens; /* not 0: shapes are pinned, prompts are cut at multiples of this */
};

/* One row of a step, in plan order. */
struct runner_row {
    uint32_t slot;
    uint32_t start;       /* position of the first token; a decode row's is on the device */
    uint32_t count;       /* tokens; 1 for a decode row */
    bool samples;         /* the logits after the last token are sampled */
    bool prompt_logprobs; /* logprobs of the tokens at start+1 .. start+count within the prompt */
    bool constrained;
    bool mask_follows;      /* without a mask: by give_masks, where the runner takes them */
    const uint32_t *tokens; /* [count] of a prompt row, borrowed during launch; null for a decode
                               row: its input is the slot's last pick, already on the device */
    const uint32_t *next_tokens; /* [count] prompt tokens at start+1 ..; null unless
                                    prompt_logprobs; 0xffffffff where there is none */
    const uint32_t *mask; /* [mask_words] allowed tokens of a constrained row; null: none.  With
                             constrained and no mask, now or later, the row is held */
};

/* A page granted to a slot: entry `logical_page` of its table becomes `physical_page`. */
struct runner_patch {
    uint32_t slot;
    enum runner_family family;
    uint32_t logical_page; /* position / page_tokens, not reduced modulo the table */
    uint32_t physical_page;
};

struct runner_step {
    const struct runner_row *rows; /* borrowed during launch, as all below */
    uint32_t row_count;
    const struct runner_patch *patches;
    uint32_t patch_count;
};

struct runner_logprob {
    uint32_t token;
    float logprob;
    uint32_t rank; /* 1 is best */
    uint32_t pair_count;
    uint32_t ids[PLAN_MAX_LOGPROBS];
    float logprobs[PLAN_MAX_LOGPROBS];
};

enum runner_outcome {
    RUNNER_OUTCOME_NONE = 1, /* a prompt row that samples nothing: computed */
    RUNNER_OUTCOME_TOKEN,    /* one token sampled, goes on */
    RUNNER_OUTCOME_STOP,     /* one token sampled, it is a stop id */
    RUNNER_OUTCOME_LENGTH,   /* one token sampled, max_total reached */
    RUNNER_OUTCOME_MASKED,   /* the slot had stopped before: nothing computed for it */
    RUNNER_OUTCOME_HELD,     /* constrained without a mask: not sampled, frontier unchanged */
    RUNNER_OUTCOME_BAD,      /* error word set (non-finite logits, no allowed token): row failed */
};

struct runner_pick {
    enum runner_outcome outcome;
    uint32_t token;
    const struct runner_logprob *logprob;         /* null unless asked for */
    const struct runner_logprob *prompt_logprobs; /* [count] of the row; null unless asked for */
};

struct runner_result {
    enum err_code status; /* ERR_OK, ERR_STEP (this step failed), ERR_DEVICE */
    struct err error;     /* valid unless ERR_OK */
    uint64_t device_ns;
    const struct runner_pick *picks; /* [row_count], valid until the next runner_collect */
};

/* What a device was given to do, since the runner was made.  A steady step is a decode step whose rows
 * already lay on the device.  All zero where there is no such device. */
struct runner_counters {
    uint64_t steps;
    uint64_t graph_steps;
    uint64_t steady_steps;
    uint64_t steady_turns;   /* steady steps in which a row turned a page */
    uint64_t steady_uploads; /* copies to the device in steady steps */
    uint64_t steady_upload_bytes;
    uint64_t steady_launches; /* graphs and kernels */
    uint64_t steady_host_ns;  /* inside launch, give_masks and collect */
    uint64_t steady_device_ns;
    uint64_t gaps; /* steps launched behind another that began more than RUNNER_LATE_NS after it */
    uint64_t longest_gap_ns;
    uint64_t uploads;
    uint64_t upload_bytes;
    uint64_t launches;
};
#define RUNNER_LATE_NS 50000ULL

struct runner; /* each implementation's state begins with `struct runner super` */

struct runner_table {
    /* Sampler state of a slot for a sequence admitted into it; the whole message is copied.  Ordered
     * before later launches and behind earlier ones; clears the stop flag.  Penalties count
     * prompt[output_start ..] as output.  The slot's length starts at 0; a prompt row sets it to
     * start + count, so a reused prefix needs patches only. */
    enum err_code (*slot_open)(struct runner *runner, uint32_t slot, const struct plan_admit *admit,
                               struct err *err);
    /* Set the slot's stop flag at once: steps not yet run treat its rows as MASKED. */
    void (*slot_stop)(struct runner *runner, uint32_t slot);
    /* Enqueue one step.  ERR_STEP: nothing was enqueued; ERR_DEVICE: lost. */
    enum err_code (*launch)(struct runner *runner, const struct runner_step *step, struct err *err);
    /* The newest step, launched with rows whose mask follows, stops before its sampler until
     * give_masks; until then nothing else is launched.  *out_is_due: its forward pass is over, so
     * masks that are not there now come too late.  Both null: such rows are held. */
    bool (*awaits_masks)(struct runner *runner, bool *out_is_due);
    /* masks [row_count of that step], by row; null: none, the row is held (others had theirs, or
     * need none).  ERR_DEVICE: lost. */
    enum err_code (*give_masks)(struct runner *runner, const uint32_t *const *masks,
                                struct err *err);
    /* True when the oldest launched step has completed or failed. */
    bool (*is_done)(struct runner *runner);
    /* Bounded wait for the same; returns early on a wake, and when masks are due. */
    bool (*wait)(struct runner *runner, uint64_t deadline_ns);
    /* Makes a wait in progress, or the next one, return early.  Any thread. */
    void (*wake)(struct runner *runner);
    /* Result of the oldest launched step, which must be done; removes it. */
    void (*collect)(struct runner *runner, struct runner_result *out_result);
    void (*counters)(const struct runner *runner, struct runner_counters *out_counters); /* may be
                                                                                            null */
    void (*destroy)(struct runner *runner);
};

struct runner {
    const struct runner_table *table;
    struct runner_limits limits;
};

#endif
