/* bf16 values, kept as uint16_t (the upper half of a float), and the one rounding to them. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stdint.h>
#include <string.h>

static inline float k_f32_from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

/* Round to nearest, ties to even; a NaN stays a NaN. */
static inline uint16_t k_bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return (uint16_t)((bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16) | 0x40U : rounded);
}

/* value as bf16 can hold it. */
static inline float k_round_bf16(float value)
{
    return k_f32_from_bf16(k_bf16_from_f32(value));
}

#endif
