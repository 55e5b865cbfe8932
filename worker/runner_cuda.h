/* The runner over a CUDA device: steps are launched on the device's one stream, decode steps as one
 * captured graph per bucket of rows.
 *
 * While the same rows go on decoding, a launch is one graph and one small copy back: the row table
 * already lies on the device, ids, positions and pages come from the slots.  A row that turns a page
 * adds one copy of 16 bytes per turn.  Other steps (prompt segments, masks) launch operator by
 * operator with the same kernels. */
#ifndef WORKER_RUNNER_CUDA_H
#define WORKER_RUNNER_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/runner.h"

struct device_cuda;
struct inject;
struct k_cuda_shape;
struct model_config;
struct weights;

struct runner_cuda_options {
    struct runner_limits limits;
    struct device_cuda *device; /* owned by the runner from a successful create on */
    struct inject *inject;      /* as in worker/runner_cpu.h */
    bool uses_graphs;
    bool uses_dependent_launch;
};

/* config and weights (device memory) are borrowed until destroy.  Captures the graphs.  Errors:
 * ERR_ARGUMENT, ERR_MEMORY (the arena is too small; names the part), ERR_DEVICE. */
ERR_NODISCARD enum err_code runner_cuda_create(const struct model_config *config,
                                               const struct weights *weights,
                                               const struct runner_cuda_options *options,
                                               struct runner **out_runner, struct err *err);

/* What a stream of the backend is made for, for these limits of this model. */
struct k_cuda_shape runner_cuda_shape(const struct model_config *config,
                                      const struct runner_limits *limits);

/* Arena bytes that a runner of these limits takes beside weights and pages. */
uint64_t runner_cuda_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits);

#endif
