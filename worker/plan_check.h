/* Checks a plan against limits and sequences before anything moves.
 *
 * An ADMIT or STEP that passes can only fail for want of pages or slots, or on the device.  Nothing
 * of a sequence changes here but its plan_mark.  Executor thread only. */
#ifndef WORKER_PLAN_CHECK_H
#define WORKER_PLAN_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/account.h"
#include "proto/plan.h"
#include "worker/runner.h"
#include "worker/seq_index.h"
#include "worker/sequence.h"

struct plan_limits {
    struct runner_limits runner;
    uint32_t max_step_records;    /* room of an empty ring */
    const uint32_t *modality_ids; /* borrowed */
    uint32_t modality_id_count;
};

enum plan_row_kind {
    PLAN_ROW_EMPTY, /* legal, nothing to run: stopped, or it will have reached max_total */
    PLAN_ROW_PROMPT,
    PLAN_ROW_DECODE,
};

struct plan_row {
    enum plan_row_kind kind;
    struct sequence *seq; /* borrowed; null for EMPTY */
    uint32_t count;       /* tokens; 1 for DECODE */
    bool samples;         /* DECODE, or the row that ends the prompt */
};

/* What a checked STEP asks for. */
struct plan_rows {
    struct plan_row *rows; /* caller's, room for runner.max_step_rows */
    uint32_t row_count;    /* as planned, EMPTY included */
    uint32_t record_count; /* most records it is answered with, STEP_DONE included */
};

/* Where a session's sequences are. */
struct plan_scope {
    const struct seq_index *index;
    struct sequence *sequences; /* by slot */
    uint64_t plan_mark;         /* new for each call */
};

/* Errors: ERR_PLAN (a value that is wrong), ERR_LIMIT (it could never run here): the message names
 * field, value and limit. */
ERR_NODISCARD enum err_code plan_check_admit(const struct plan_limits *limits,
                                             const struct plan_admit *admit, struct err *err);

/* Errors: ERR_PLAN, ERR_NOT_FOUND (never admitted or released), ERR_LIMIT (rows, tokens, records). */
ERR_NODISCARD enum err_code plan_check_step(const struct plan_limits *limits,
                                            const struct plan_scope *scope,
                                            const struct plan_step *step,
                                            struct plan_rows *out_rows, struct err *err);

#endif
