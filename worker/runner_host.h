/* What every runner does on the host: limits and admissions checked, sampler parameters taken from a
 * message, a row's results handed out.  Pure. */
#ifndef WORKER_RUNNER_HOST_H
#define WORKER_RUNNER_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/sampler.h"
#include "worker/model_config.h"
#include "worker/runner.h"

#define RUNNER_MAX_DEPTH 8

/* Errors: ERR_ARGUMENT names the limit, its value and its bounds. */
ERR_NODISCARD enum err_code runner_check_limits(const struct model_config *config,
                                                const struct runner_limits *limits,
                                                struct err *err);

/* Ids below the vocabulary, lists within the sampler's bounds.  Errors: ERR_ARGUMENT. */
ERR_NODISCARD enum err_code runner_check_admit(const struct runner_limits *limits, uint32_t slot,
                                               const struct plan_admit *admit, struct err *err);

/* A penalty is on: the slot's token counts are kept. */
bool runner_counts_tokens(const struct plan_admit *admit);
void runner_take_sampler(const struct plan_admit *admit, struct k_sampler *sampler);

/* Results of one row as they lie in host memory, borrowed until the next collect. */
struct runner_raw {
    const struct k_row *row;
    const struct k_pick *pick;
    const struct k_logprob *sample_record;  /* null where none was asked for */
    const struct k_logprob *prompt_records; /* by prompt id of the step */
};
void runner_take_pick(const struct runner_raw *raw, struct runner_pick *out_pick);

#endif
