/* A plain frontend that runs requests to their end, a fixed set or one that others join and leave, over a core and a backend's runner: decode
 * rows first, then prompt segments, a number of STEPs ahead; plans again what was refused.  A failed
 * check, or no progress for a minute, ends the test. */
#ifndef TESTS_TESTLIB_CORE_DRIVE_H
#define TESTS_TESTLIB_CORE_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/testlib/backend.h"
#include "tests/testlib/core_rig.h"
#include "tests/testlib/hold_runner.h"
#include "worker/inject.h"
#include "worker/model_config.h"

#define DRIVE_MAX_SEQS   160
#define DRIVE_MAX_AHEAD  8
#define DRIVE_MAX_TOKENS 4096

struct drive_model {
    char dir[1024];
    struct model_config config;
};

struct drive_options {
    const struct backend *backend; /* null: the backend under test */
    struct runner_limits limits; /* vocabulary and window are the model's; pages 0: for all slots */
    struct inject *inject;       /* borrowed, may be null */
    uint32_t chunk_tokens;       /* of one prompt in one step */
    uint32_t ahead;              /* STEPs outstanding */
    uint32_t step_rows;          /* of a STEP at most; 0: what the limits allow */
    uint32_t sequences;          /* alive at once; 0: as many as the runner has slots */
    bool is_pinned;              /* prompt segments alone in a STEP, cut at multiples of 256 tokens:
                                    a row's shapes depend on the request alone */
    bool keeps_prefixes;         /* with a prefix cache */
    bool checks_local_pages;     /* never more resident than a window, a page and what is ahead */
};

struct drive_seq {
    struct plan_admit admit;
    uint32_t tokens[DRIVE_MAX_TOKENS]; /* output only */
    uint32_t token_count;
    uint64_t digest; /* of tokens and their logprobs, every bit */
    uint32_t reused; /* prompt tokens that were there when it was admitted */
    uint32_t finish; /* enum result_finish; 0 while it runs, after a failure, and once dropped */
    uint32_t launched;
    uint32_t committed;
    bool has_token; /* in the step being read */
    bool is_admitted;
    bool is_over;
    bool is_released;
    bool has_failed;
};

struct drive_step {
    uint64_t msg_seq;
    uint64_t after;
    uint32_t seqs[DRIVE_MAX_SEQS];
    uint64_t ids[DRIVE_MAX_SEQS];
    uint32_t counts[DRIVE_MAX_SEQS];
    bool samples[DRIVE_MAX_SEQS];
    uint32_t row_count;
};

struct drive {
    struct drive_options options;
    struct backend_runner held; /* owned */
    struct hold_runner runner;  /* before held's */
    struct core_rig rig;
    struct rig_session session;
    uint64_t next_id;
    struct drive_seq *seqs; /* the caller's, while it runs */
    uint32_t seq_count;
    struct drive_step steps[DRIVE_MAX_AHEAD];
    uint32_t step_count;
    uint64_t after;
    uint32_t seen;
    uint32_t refused_count;
    uint32_t held_count;
    uint32_t drained_count; /* turns in which a STEP waited although the pipeline had room */
    bool was_prompt;        /* the last pinned STEP was a prompt segment */

    /* Both null, or set before drive_run.  on_turn may cancel and drop.  next fills the admit of a
     * sequence that is over for another request, or says no. */
    void (*on_turn)(void *context, struct drive *drive);
    bool (*next)(void *context, struct drive *drive, uint32_t index);
    void *context;
};

void drive_model_load(struct drive_model *model, const char *model_dir);

/* model is borrowed until drive_destroy. */
struct drive *drive_create(const struct drive_model *model, const struct drive_options *options);

/* Checks that every page came back. */
void drive_destroy(struct drive *drive);

/* Runs seqs, whose admits are set but for the id, together to the end and releases them; as many as
 * there are slots.  Results are in seqs. */
void drive_run(struct drive *drive, struct drive_seq *seqs, uint32_t seq_count);

/* While drive_run runs: CANCEL, which FINISHED answers; or RELEASE at once, which nothing answers. */
void drive_cancel(struct drive *drive, uint32_t index);
void drive_drop(struct drive *drive, uint32_t index);

#endif
