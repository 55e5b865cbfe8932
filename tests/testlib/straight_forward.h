/* The Gemma 4 forward pass without cache, pages, threads or operators: plain loops over the
 * whole sequence, f64 sums, the same rounding points.  Slow; what the backend is compared with. */
#ifndef TESTS_TESTLIB_STRAIGHT_FORWARD_H
#define TESTS_TESTLIB_STRAIGHT_FORWARD_H

#include <stdint.h>

#include "worker/model_config.h"
#include "worker/weights.h"

/* logits [count, vocab] bf16, soft-capped. */
void straight_forward(const struct model_config *config, const struct weights *weights,
                      const uint32_t *ids, uint32_t count, uint16_t *logits);

#endif
