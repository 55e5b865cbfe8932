/* RMSNorm of one row, for the operators that fuse it.  Included by kernels/cpu only. */
#ifndef KERNELS_CPU_NORM_H
#define KERNELS_CPU_NORM_H

#include <stdint.h>

/* (mean(in^2) + eps)^(-1/2), f32. */
float k_rms_factor(const uint16_t *in, uint32_t elems, float eps);

/* in, out [elems] bf16, may be the same; weight [elems] bf16 or null. */
void k_rmsnorm_row(const uint16_t *in, const uint16_t *weight, uint32_t elems, float eps,
                   uint16_t *out);

#endif
