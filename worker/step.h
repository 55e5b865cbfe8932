/* The steps in flight, oldest first: from a checked plan to a launch, and back to a result.
 *
 *   reserve both pools -> stage rows and page grants -> launch      any failure: exactly as before
 *   collect the oldest                                              in launch order only
 *
 * An entry also stands for a STEP that has nothing to run or was refused, so that answers keep their
 * order.  When a step fails, every step launched after it fails with it, and nothing is launched
 * until they are all collected.  Executor thread only. */
#ifndef WORKER_STEP_H
#define WORKER_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/account.h"
#include "worker/inject.h"
#include "worker/plan_check.h"
#include "worker/pool.h"
#include "worker/prefix.h"
#include "worker/runner.h"
#include "worker/sequence.h"

#define STEP_MAX_DEPTH     8
#define STEP_NOT_ON_DEVICE UINT32_MAX

struct session;
struct session_sink;

struct step_row {
    struct sequence *seq; /* borrowed: stays while a launched row names it */
    uint32_t count;       /* tokens that the launched frontier moved by */
    uint32_t pick_index;  /* in the runner's result, or STEP_NOT_ON_DEVICE (then it is held) */
    bool is_prompt;
    bool samples;
    bool is_held; /* known at launch, or when the masks were due */
    bool awaits_mask;
    uint32_t position; /* that it samples, as the device will see it */
};

struct step {
    struct session *session; /* borrowed: outlives its steps */
    uint64_t msg_seq;
    uint32_t record_count; /* most records of its answer, kept free in the session's ring */
    uint32_t planned_rows;
    struct step_row *rows; /* owned, [max_step_rows] */
    uint32_t row_count;
    bool is_refused; /* refusal says why; no rows */
    bool is_on_device;
    bool awaits_masks; /* its sampler is not launched yet: the newest step */
    bool is_doomed;    /* a step before it failed */
    uint64_t launch_ns;
    struct err refusal;
};

struct step_line {
    struct runner *runner; /* borrowed */
    struct inject *inject; /* borrowed, may be null */
    struct pool pools[RUNNER_FAMILY_COUNT];
    struct prefix prefix; /* over those pools */
    struct account_geometry geometry;
    struct step steps[STEP_MAX_DEPTH];
    uint32_t first_index;
    uint32_t step_count;
    uint32_t doomed_count; /* of those in flight */

    struct account_need *needs;     /* owned scratch, [max_step_rows] */
    struct runner_row *runner_rows; /* owned scratch, [max_step_rows] */
    struct runner_patch *patches;   /* owned scratch, [patch_cap] */
    size_t patch_cap;
    uint32_t *next_tokens;  /* owned scratch, [max_step_tokens] */
    const uint32_t **masks; /* owned scratch, [max_step_rows] */
};

/* What to launch. */
struct step_order {
    struct session *session;
    void *owner;   /* for sink->mask */
    uint32_t lane; /* of the pools' counts */
    uint64_t epoch;
    uint64_t msg_seq;
    const struct session_sink *sink;
    const struct plan_rows *rows; /* checked */
    uint32_t quota_left[RUNNER_FAMILY_COUNT];
    uint64_t now_ns;
};

/* What became of the oldest step. */
struct step_outcome {
    enum err_code status; /* ERR_OK; ERR_STEP and what not: every row fails; ERR_DEVICE */
    struct err error;
    uint64_t device_ns;
    const struct runner_pick *picks; /* by pick_index; null unless ERR_OK */
};

struct step_options {
    struct runner *runner; /* borrowed */
    struct inject *inject; /* borrowed, may be null */
    bool keeps_prefixes;
    uint64_t hash_seed; /* of the prefix cache */
};

/* Errors: ERR_ARGUMENT, ERR_MEMORY. */
ERR_NODISCARD enum err_code step_line_init(struct step_line *line,
                                           const struct step_options *options, struct err *err);
void step_line_fini(struct step_line *line);

/* False while the pipeline is full, failed steps are still in flight, or a step awaits masks. */
bool step_can_launch(const struct step_line *line);

/* Launch.  out_pages: pages that the session's sequences were granted.  Errors: ERR_PAGES, ERR_STEP
 * and others: nothing moved; ERR_DEVICE: lost. */
ERR_NODISCARD enum err_code step_launch(struct step_line *line, const struct step_order *order,
                                        uint32_t out_pages[RUNNER_FAMILY_COUNT], struct err *err);

/* The newest step where it awaits masks, null otherwise. */
const struct step *step_awaiting_masks(const struct step_line *line);

/* Gives that step its masks once all are there or they are due; *out_given says whether.  sink null:
 * there are none.  Errors: ERR_DEVICE. */
ERR_NODISCARD enum err_code step_give_masks(struct step_line *line, const struct session_sink *sink,
                                            void *owner, bool *out_given, struct err *err);

/* Put a refusal in line; step_can_launch said yes. */
void step_refuse(struct step_line *line, struct session *session, uint64_t msg_seq,
                 const struct err *refusal);

/* The oldest step if it is done, null otherwise. */
const struct step *step_oldest_done(const struct step_line *line);

/* Take the result of that step; a failure dooms the steps behind it.  The step stays first until
 * step_retire; its rows are the caller's to settle. */
void step_collect(struct step_line *line, struct step_outcome *out_outcome);
void step_retire(struct step_line *line);

/* The index-th step in flight, 0 the oldest. */
const struct step *step_at(const struct step_line *line, uint32_t index);

#endif
