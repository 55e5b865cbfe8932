/* From options to a runner: checkpoint, weights, pool sizes, backend.
 *
 * Main thread, once.  Progress goes to a callback and, as lines, to the log: one redrawn line where
 * standard error is a terminal. */
#ifndef WORKER_LOADER_H
#define WORKER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "worker/capacity.h"
#include "worker/inject.h"
#include "worker/model_config.h"
#include "worker/options.h"
#include "worker/runner.h"
#include "worker/session.h"
#include "worker/weights.h"

struct loader_progress {
    void (*on_progress)(void *owner, uint64_t done_bytes, uint64_t total_bytes); /* or null */
    void *owner;
};

/* Zeroed, then filled by loader_open; everything lives until loader_close. */
struct loaded {
    struct model_config config;
    struct weights weights;
    struct runner *runner; /* owned */
    struct session_limits limits;
    uint64_t config_hash;
    uint64_t tokenizer_hash;
    uint64_t watchdog_ns; /* the shortest step that is taken for frozen */
    char backend[16];     /* cpu | cuda:N */
};

/* Settles what options leave open (0 or auto): the backend, and limits that depend on it.
 * Errors: ERR_UNSUPPORTED (a CUDA device asked of a build without the backend). */
ERR_NODISCARD enum err_code loader_settle(struct options *options, struct loaded *loaded,
                                          struct err *err);

/* options are settled.  inject is borrowed until loader_close.  Errors: those of model_config_load,
 * weights_open_host and the backend's runner; ERR_CONFIG (pools too small, context too long; names
 * value and limit). */
ERR_NODISCARD enum err_code loader_open(const struct options *options, struct inject *inject,
                                        const struct loader_progress *progress,
                                        struct loaded *loaded, struct err *err);

/* Half-built objects are fine. */
void loader_close(struct loaded *loaded);

/* ---- what decides without a device, for `bezel check` ---- */

/* Limits and wish for so much context, but for what depends on memory: pages and available bytes.
 * options are settled. */
void loader_first_limits(const struct options *options, const struct model_config *config,
                         uint32_t context_tokens, struct runner_limits *out_limits,
                         struct capacity_wish *out_wish);

/* Limits that depend on the backend, which is settled. */
void loader_settle_limits(struct options *options);

/* Memory that can be had without swapping; 0 where the system does not say. */
uint64_t loader_host_bytes(void);

bool loader_has_cuda(void);
uint32_t loader_cuda_device_count(void);

/* Free memory of the first GPU; 0 where there is none. */
uint64_t loader_cuda_free_bytes(void);

/* Beside weights and pools; 0 in a build without CUDA, which cannot tell. */
uint64_t loader_cuda_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits);

#endif
