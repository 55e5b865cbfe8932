/* A worker without a device: keeps the plan protocol's rules on virtual time.
 *
 * Messages go in with the time, records come out when their time has come.  It counts pages with
 * its own arithmetic, not with proto/account.h, so that it can tell a plan that should never have
 * been sent; model_violation names the first one.  Steps take programmed times on one serial device
 * and start when fewer than pipeline_depth are in flight.  Both ways can be delayed.  Sampled tokens
 * are a function of seed and position.  One thread; used by unit tests and by fake_worker. */
#ifndef TESTS_TESTLIB_MODEL_WORKER_H
#define TESTS_TESTLIB_MODEL_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/hello.h"
#include "proto/plan.h"
#include "proto/result.h"

enum model_fault_kind {
    MODEL_FAULT_REFUSE_STEP,  /* ERR_PAGES for the at-th STEP; those behind it AFTER_REFUSAL */
    MODEL_FAULT_REFUSE_ADMIT, /* ERR_SEQUENCE for the at-th ADMIT */
    MODEL_FAULT_FAIL_ROW,     /* the first running row of the at-th step fails */
    MODEL_FAULT_FAIL_STEP,    /* every row of the at-th step, and of those launched behind it */
    MODEL_FAULT_STALL,        /* nothing happens from the at-th message on */
    MODEL_FAULT_DIE,          /* model_is_dead from the at-th message on */
};

struct model_fault {
    enum model_fault_kind kind;
    uint64_t at;    /* 1-based; 0: unused */
    uint64_t count; /* so many in a row; 0 is 1 */
};

#define MODEL_MAX_FAULTS 8

struct model_options {
    struct hello_welcome limits; /* slots, pages, depth and so on */
    uint64_t step_ns;            /* a step takes this, */
    uint64_t row_ns;             /* and this per row, */
    uint64_t token_ns;           /* and this per token */
    uint64_t down_ns;            /* a message takes this to arrive */
    uint64_t up_ns;              /* a record likewise */
    uint32_t token_first;        /* sampled ids: [token_first, token_first + token_span) */
    uint32_t token_span;         /* 0: the vocabulary */
    const uint32_t *script;      /* borrowed; output tokens in order, over and over; null: none */
    uint32_t script_count;
    uint32_t stop_per_mille; /* of output tokens are the first stop id, where there is one */
    struct model_fault faults[MODEL_MAX_FAULTS];
};

struct model_stats {
    uint64_t messages;
    uint64_t steps;
    uint64_t tokens;
    uint64_t masked_rows; /* of sequences that had stopped */
    uint64_t busy_ns;     /* device time of all steps */
    uint64_t first_start_ns;
    uint64_t last_end_ns;
    uint64_t refused;
    uint32_t sequences;
    uint32_t local_held_pages;
    uint32_t global_held_pages;
};

struct model_worker;

struct model_worker *model_create(const struct model_options *options);
void model_destroy(struct model_worker *model);

/* A session begins or ends; ending frees its sequences. */
void model_open(struct model_worker *model, uint64_t epoch);
void model_close(struct model_worker *model);

/* A message sent now; copied. */
void model_deliver(struct model_worker *model, const struct plan_message *message, uint64_t now_ns);

/* Everything up to now_ns happens. */
void model_advance(struct model_worker *model, uint64_t now_ns);

/* When something happens next; UINT64_MAX never. */
uint64_t model_next_ns(const struct model_worker *model);

/* The next record whose time has come. */
bool model_try_pop(struct model_worker *model, uint64_t now_ns, struct result_record *out_record);

/* The session's quota becomes a share of the pools, as at a hand-over; a STATE record says so. */
void model_set_quota(struct model_worker *model, uint32_t local_pages, uint32_t global_pages,
                     uint64_t now_ns);

bool model_is_dead(const struct model_worker *model);
/* The first thing that no correct frontend sends; "" none. */
const char *model_violation(const struct model_worker *model);
void model_get_stats(const struct model_worker *model, struct model_stats *out_stats);

/* The seed of a sequence that is there. */
bool model_find_seed(const struct model_worker *model, uint64_t seq_id, uint64_t *out_seed);

/* The token that a sequence with this seed samples at a position. */
uint32_t model_token(const struct model_options *options, uint64_t seed, uint32_t position);

/* A worker of moderate size: 32 slots, 256-token steps, pages of 16, window 64, depth 2. */
struct hello_welcome model_small_limits(void);

#endif
