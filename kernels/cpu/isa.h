/* Inner loops of the cpu backend, once in plain C and once for AVX2 with FMA; chosen at start.
 *
 * Lane order: blocks of 16 elements are kept as their 8 even, then their 8 odd elements, because two
 * neighbouring bf16 widen to f32 without moving across lanes.  A last block of fewer than 16 keeps
 * its order.  Every sum has an order that depends on its own operands alone: tiles over rows and
 * columns change which values are at hand, never how one value is summed. */
#ifndef KERNELS_CPU_ISA_H
#define KERNELS_CPU_ISA_H

#include <stdint.h>

#define K_LANE_BLOCK 16

/* out[r, c] = sum over k of x[r, k] w[c, k]. */
struct k_dot_args {
    const float *x; /* [rows, x_stride] f32, lane order */
    uint64_t x_stride;
    uint32_t rows;
    const uint16_t *w; /* [cols, w_stride] bf16 */
    uint64_t w_stride;
    uint32_t cols;
    uint32_t elems;
    float *out; /* [rows, out_stride] */
    uint64_t out_stride;
};

/* acc[r, d] += sum over j, ascending, of p[r, j] v[j, d]. */
struct k_accumulate_args {
    const float *p; /* [rows, p_stride] */
    uint64_t p_stride;
    uint32_t rows;
    const uint16_t *v; /* [keys, dims] bf16 */
    uint32_t keys;
    uint32_t dims; /* a multiple of K_LANE_BLOCK */
    float *acc;    /* [rows, dims] f32, lane order */
};

struct k_cpu_isa {
    const char *name;
    /* out = f32 of in, in lane order. */
    void (*widen)(const uint16_t *in, uint32_t elems, float *out);
    void (*dot)(const struct k_dot_args *args);
    void (*accumulate)(const struct k_accumulate_args *args);
    /* values[i] = exp(values[i] - max) for values <= max; returns their sum, f32.
     * Relative error of exp below 3e-7; results under 1e-37 may be replaced by values that small. */
    float (*exp_sum)(float *values, uint32_t count, float max);
    float (*max)(const float *values, uint32_t count); /* count >= 1 */
};

extern const struct k_cpu_isa k_cpu_isa_plain;
extern const struct k_cpu_isa k_cpu_isa_avx2;

/* The best that this processor runs. */
const struct k_cpu_isa *k_cpu_isa_choose(void);

#endif
