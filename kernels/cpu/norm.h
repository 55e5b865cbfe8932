/* RMSNorm and residual of one row, for the operators that fuse it.  Included by kernels/cpu only. */
#ifndef KERNELS_CPU_NORM_H
#define KERNELS_CPU_NORM_H

#include <stdint.h>

/* (mean(in^2) + eps)^(-1/2), f32. */
float k_rms_factor(const uint16_t *in, uint32_t elems, float eps);

/* in, out [elems] bf16, may be the same; weight [elems] bf16 or null. */
void k_rmsnorm_row(const uint16_t *in, const uint16_t *weight, uint32_t elems, float eps,
                   uint16_t *out);

/* The end of a layer's half, as in k_residual_norm_args, of one row; normed may be h, and is left
 * alone where next_weight is null. */
struct k_residual_row {
    const uint16_t *h;
    const uint16_t *post_weight;
    const uint16_t *layer_scalar; /* or null */
    const uint16_t *next_weight;  /* or null */
    uint32_t elems;
    float eps;
    uint16_t *x;
    uint16_t *normed;
};
void k_residual_row(const struct k_residual_row *row);

#endif
