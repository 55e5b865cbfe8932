/* Threads for work that would hold up the event loop: JSON, templates, tokenizing.
 *
 * They run at a lower priority than the threads that move tokens.  Large items never occupy all of
 * them, so that small requests pass a queue of huge prompts. */
#ifndef FRONTEND_WORK_H
#define FRONTEND_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct work;

/* Embedded in the thing to work on; run is called once on one of the threads. */
struct work_item {
    struct work_item *next; /* the queue's */
    void (*run)(struct work_item *item);
    bool is_large;
};

/* item_max bounds those queued and running.  Errors: ERR_SYSTEM (no thread). */
ERR_NODISCARD enum err_code work_create(uint32_t thread_count, uint32_t item_max,
                                        struct work **out_work, struct err *err);
/* Runs what is queued, then ends the threads. */
void work_destroy(struct work *work);

/* Any thread.  False when item_max items are queued or running. */
bool work_try_submit(struct work *work, struct work_item *item);

#endif
