/* Shared by loader.c and its cuda part, which a build without CUDA replaces by loader_no_cuda.c.
 * Included by them only. */
#ifndef WORKER_LOADER_INTERNAL_H
#define WORKER_LOADER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/loader.h"

/* How much both page pools may take, once the other limits are known. */
struct loader_memory {
    void *context; /* borrowed */
    uint64_t (*available_bytes)(void *context, const struct runner_limits *limits);
};

ERR_NODISCARD enum err_code loader_choose_limits(const struct options *options,
                                                 const struct model_config *config,
                                                 const struct loader_memory *memory,
                                                 struct runner_limits *out_limits, struct err *err);

/* Fills weights and runner of loaded; the rest is there.  Errors: as loader_open. */
ERR_NODISCARD enum err_code loader_open_cuda(const struct options *options, struct inject *inject,
                                             const struct weights_progress *progress,
                                             struct loaded *loaded, struct err *err);

#endif
