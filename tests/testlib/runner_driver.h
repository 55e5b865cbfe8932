/* Drives a backend's runner the way step.c does, for tests: pages of both families from free lists,
 * patches as rows turn pages, sliding pages released behind the window.  One step at a time, unless
 * a test launches by itself.  A call that fails ends the running test. */
#ifndef TESTS_TESTLIB_RUNNER_DRIVER_H
#define TESTS_TESTLIB_RUNNER_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/plan.h"
#include "tests/testlib/backend.h"
#include "worker/inject.h"
#include "worker/model_config.h"
#include "worker/runner.h"
#include "worker/weights.h"

struct driver_options {
    const struct backend *backend;
    const char *model_dir;
    uint32_t threads; /* cpu; 0: the backend's */
    uint32_t slots;
    uint32_t page_tokens;
    uint32_t pages[RUNNER_FAMILY_COUNT]; /* 0: as many as all slots can need */
    uint32_t max_step_rows;
    uint32_t max_step_tokens;
    uint32_t max_context_tokens;
    uint32_t pipeline_depth;
    bool is_pinned;        /* as backend_runner_options */
    struct inject *inject; /* borrowed, may be null */
};

struct driver_slot {
    uint32_t *prompt; /* owned copy */
    uint32_t prompt_count;
    bool is_constrained;
    uint32_t frontier;                           /* tokens run */
    uint32_t origin_pages[RUNNER_FAMILY_COUNT];  /* released from the front */
    uint32_t mapped_pages[RUNNER_FAMILY_COUNT];  /* granted, released ones included */
    uint32_t *physical[RUNNER_FAMILY_COUNT];     /* [logical pages] */
    uint32_t most_resident[RUNNER_FAMILY_COUNT]; /* seen so far */
};

struct driver {
    struct model_config config;
    struct backend_runner held;                /* owned */
    struct runner *runner;                     /* held's */
    uint32_t *free_pages[RUNNER_FAMILY_COUNT]; /* owned stacks */
    uint32_t free_counts[RUNNER_FAMILY_COUNT];
    struct driver_slot *slots;    /* owned */
    struct runner_patch *patches; /* owned, of the step being built */
    uint32_t patch_cap;
    uint32_t patch_count;
};

/* What runs in a step: count prompt tokens of a slot from its frontier on; 0: a decode row. */
struct driver_row {
    uint32_t slot;
    uint32_t count;
    const uint32_t *mask;
    bool no_sample; /* even where the prompt ends in this row */
    bool prompt_logprobs;
};

/* The backend under test. */
void driver_options_default(struct driver_options *options, const char *model_dir);
struct driver *driver_create(const struct driver_options *options);
void driver_destroy(struct driver *driver);

/* A greedy request without stop ids over a borrowed prompt. */
struct plan_admit driver_admit_greedy(const uint32_t *prompt, uint32_t prompt_count,
                                      uint32_t max_total);
void driver_open(struct driver *driver, uint32_t slot, const struct plan_admit *admit);
/* Stops the slot and takes its pages back. */
void driver_release(struct driver *driver, uint32_t slot);

/* Grants pages and launches; frontiers move when driver_collect sees the outcome. */
void driver_launch(struct driver *driver, const struct driver_row *rows, uint32_t row_count);
/* Waits for the oldest step.  rows: as launched.  Moves frontiers and releases sliding pages. */
void driver_collect(struct driver *driver, const struct driver_row *rows, uint32_t row_count,
                    struct runner_result *out_result);
/* Both; the step must succeed. */
struct runner_result driver_step(struct driver *driver, const struct driver_row *rows,
                                 uint32_t row_count);

/* Equal in every bit that a record holds. */
bool driver_is_same_logprob(const struct runner_logprob *a, const struct runner_logprob *b);

/* Prompt in segments of chunk tokens, then one token per step, into tokens [cap]; returns how many,
 * the stop token included. */
uint32_t driver_generate(struct driver *driver, uint32_t slot, const struct plan_admit *admit,
                         uint32_t chunk, uint32_t *tokens, uint32_t cap);

#endif
