#include "worker/rope.h"

#include <math.h>

#include "kernels/dtype.h"

static float inv_freq_of(const struct model_rope *rope, uint32_t pair)
{
    double exponent = 2.0 * pair / rope->exponent_dim;
    /* Power and reciprocal are f32 operations in the reference; f64 rounded once differs from them
     * by one unit in the last place at most. */
    float power = (float)pow(rope->theta, exponent);
    return (float)(1.0 / (double)power / rope->factor);
}

void rope_fill(const struct model_rope *rope, uint32_t positions, uint16_t *out)
{
    uint32_t pairs = rope->rotated_pairs;
    for (uint32_t i = 0; i < pairs; i++) {
        float inv_freq = inv_freq_of(rope, i);
        for (uint32_t position = 0; position < positions; position++) {
            float angle = inv_freq * (float)position;
            uint16_t *row = out + (uint64_t)position * 2 * pairs;
            row[i] = k_bf16_from_f32((float)cos((double)angle));
            row[pairs + i] = k_bf16_from_f32((float)sin((double)angle));
        }
    }
}
