/* From options to a runner: checkpoint, weights, pool sizes, backend.
 *
 * Main thread, once.  Progress goes to a callback and, as lines, to the log: one redrawn line where
 * standard error is a terminal. */
#ifndef WORKER_LOADER_H
#define WORKER_LOADER_H

#include <stdint.h>

#include "common/err.h"
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

#endif
