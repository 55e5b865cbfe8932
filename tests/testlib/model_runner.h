/* A deterministic model of a device behind worker/runner.h, for tests of the bookkeeping.
 *
 * It keeps what a device keeps: per slot a length, the last pick, a stop flag and two page tables;
 * per page the tokens written there, each with a hash of its salt and all tokens before it, which is
 * what real keys and values depend on.  A row reads its whole past back through the tables, so a
 * page granted wrongly, shared wrongly or let go too early is seen at once: as
 * model_runner_violation, and as a wrong token.  The next token is a hash of seed, positions and
 * tokens before it (model_fold).
 *
 * Steps run when the test says so (model_runner_complete), or by a virtual clock when step_ns is
 * set.  One thread. */
#ifndef TESTS_TESTLIB_MODEL_RUNNER_H
#define TESTS_TESTLIB_MODEL_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/inject.h"
#include "worker/runner.h"

struct model_runner_options {
    struct runner_limits limits;
    uint64_t step_ns;      /* 0: steps wait for model_runner_complete */
    struct inject *inject; /* borrowed, may be null: FORWARD and SAMPLE fail the step */
};

/* How a launched step ends. */
enum model_fault {
    MODEL_FAULT_NONE,
    MODEL_FAULT_LAUNCH, /* launch itself says ERR_STEP */
    MODEL_FAULT_STEP,   /* completes with ERR_STEP; steps behind it claim success */
    MODEL_FAULT_ROW,    /* its first row is BAD */
    MODEL_FAULT_LOST,   /* completes with ERR_DEVICE */
    MODEL_FAULT_HOLD,   /* its constrained rows are HELD although they have a mask */
};

/* Aborts when memory is gone.  Destroyed through the table. */
struct runner *model_runner_create(const struct model_runner_options *options);

/* Run up to step_count launched steps; how many ran. */
uint32_t model_runner_complete(struct runner *runner, uint32_t step_count);

/* The virtual clock of step_ns. */
void model_runner_set_now(struct runner *runner, uint64_t now_ns);

/* When the newest launched step will be done, by the virtual clock. */
uint64_t model_runner_idle_at(const struct runner *runner);

/* The next launch gets fault, once. */
void model_runner_fault_next(struct runner *runner, enum model_fault fault);

/* The first rule that was broken, null while none was. */
const char *model_runner_violation(const struct runner *runner);

/* Rows that ran with a token computed, MASKED and HELD ones not counted. */
uint64_t model_runner_rows_run(const struct runner *runner);

/* Patches that reached the tables. */
uint64_t model_runner_patches(const struct runner *runner);

/* The hash behind the tokens: start, add every token so far, then take the next.  Stop ids before
 * min_tokens outputs are passed over, as is what mask (may be null) does not allow. */
uint64_t model_fold_start(uint64_t seed);
uint64_t model_fold_add(uint64_t fold, uint32_t position, uint32_t token);
uint32_t model_fold_next(uint64_t fold, uint32_t vocab_tokens, const struct plan_admit *admit,
                         uint32_t token_count, const uint32_t *mask);

#endif
