/* Checked arithmetic for sizes from outside, and the usual roundings. */
#ifndef COMMON_NUM_H
#define COMMON_NUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False when the result does not fit; *out is then untouched. */
static inline bool num_mul(size_t a, size_t b, size_t *out)
{
    size_t product;
    bool fits = !__builtin_mul_overflow(a, b, &product);
    if (fits)
        *out = product;
    return fits;
}

static inline bool num_add(size_t a, size_t b, size_t *out)
{
    size_t sum;
    bool fits = !__builtin_add_overflow(a, b, &sum);
    if (fits)
        *out = sum;
    return fits;
}

static inline uint32_t num_ceil_div(uint32_t value, uint32_t unit)
{
    return value / unit + (value % unit != 0);
}

static inline size_t num_align_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static inline uint32_t num_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t num_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

#endif
