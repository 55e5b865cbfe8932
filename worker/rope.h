/* Tables of rotation, made on the host so that every backend rotates by the same bits. */
#ifndef WORKER_ROPE_H
#define WORKER_ROPE_H

#include <stdint.h>

#include "worker/model_config.h"

/* out [positions, 2 (cos, sin), rotated_pairs] bf16:
 *   angle = f32(inv_freq[i] * position); cos and sin of that angle in f64, each rounded to f32, then
 *   to bf16.  Source: Gemma 4 config `rope_parameters`. */
void rope_fill(const struct model_rope *rope, uint32_t positions, uint16_t *out);

static inline uint64_t rope_elems(const struct model_rope *rope, uint32_t positions)
{
    return (uint64_t)positions * 2 * rope->rotated_pairs;
}

#endif
