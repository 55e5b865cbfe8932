/* A fork-join pool: one caller spreads numbered items of a job over itself and its helpers.
 *
 * Items are claimed one by one, so a helper that the system does not run costs nothing: the caller
 * works through the job alone and waits only for items that a helper has begun.  Which thread runs
 * an item never shows in a result.  One caller thread at a time. */
#ifndef KERNELS_CPU_THREADS_H
#define KERNELS_CPU_THREADS_H

#include <stdint.h>

#include "common/err.h"

#define K_THREADS_MAX_ITEMS (1U << 18)

struct k_threads;

/* thread: 0 is the caller, helpers count from 1; for scratch that no two threads share. */
typedef void (*k_item_fn)(void *context, uint32_t item, uint32_t thread);

/* thread_count includes the caller.  Errors: ERR_MEMORY, ERR_SYSTEM. */
ERR_NODISCARD enum err_code k_threads_create(uint32_t thread_count, struct k_threads **out_threads,
                                             struct err *err);
void k_threads_destroy(struct k_threads *threads);

/* Runs items 0 .. item_count-1, each once, in any order; returns when all are done.
 * item_count < K_THREADS_MAX_ITEMS. */
void k_threads_run(struct k_threads *threads, uint32_t item_count, k_item_fn fn, void *context);

uint32_t k_threads_count(const struct k_threads *threads);

#endif
