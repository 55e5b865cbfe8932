/* The runner over the cpu backend: one stream thread executes slot openings and launched steps in
 * order (forward pass, sampler, slot state), spread over a pool of threads.
 *
 * The limits given at creation are final: everything a step needs is allocated here, so a launch
 * copies into buffers that exist.  A row's bits do not depend on the other rows of its step, on
 * segment cuts or on the thread count. */
#ifndef WORKER_RUNNER_CPU_H
#define WORKER_RUNNER_CPU_H

#include <stdint.h>

#include "common/err.h"
#include "worker/runner.h"

struct inject;
struct model_config;
struct weights;

struct runner_cpu_options {
    struct runner_limits limits;
    uint32_t threads; /* that compute, the stream thread included; 0: one per usable core */
    /* FORWARD, SAMPLE, DELAY_STEP_10MS, FREEZE, DEVICE_LOST take effect on the step whose launch
     * passed them.  Counted in launch, on the executor thread; borrowed, may be null. */
    struct inject *inject;
};

/* config and weights are borrowed until destroy.  Errors: ERR_ARGUMENT (a limit out of range, named
 * with its bound), ERR_MEMORY, ERR_SYSTEM (a thread). */
ERR_NODISCARD enum err_code runner_cpu_create(const struct model_config *config,
                                              const struct weights *weights,
                                              const struct runner_cpu_options *options,
                                              struct runner **out_runner, struct err *err);

/* Bytes that a runner of these limits takes beside weights and pages, but for the scratch of its
 * threads, which is small. */
uint64_t runner_cpu_workspace_bytes(const struct model_config *config,
                                    const struct runner_limits *limits);

#endif
