/* Ranges that Nsight shows (NVTX): one per plan, per layer and per operator.
 *
 * Without a tool attached they cost a tenth of a microsecond each.  Ranges of layers and operators are made
 * while a step is enqueued, so they tell something only with --no-graphs. */
#ifndef WORKER_RANGES_H
#define WORKER_RANGES_H

#include <stdint.h>

struct k_ops;

void ranges_begin_plan(uint64_t step_number);
void ranges_begin_layer(uint32_t layer);
void ranges_end(void); /* of the range begun last */

/* The operators of gemm.h, each within a range of its name. */
const struct k_ops *ranges_ops(void);

#endif
