/* The inner loops in plain C: what the AVX2 ones are read and tested against. */
#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

/* Index within a row -> index in lane order. */
static uint32_t lane_index(uint32_t index, uint32_t elems)
{
    uint32_t block = index / K_LANE_BLOCK * K_LANE_BLOCK;
    uint32_t within = index % K_LANE_BLOCK;
    bool is_whole = elems - block >= K_LANE_BLOCK;
    return is_whole ? block + within / 2 + (within % 2) * (K_LANE_BLOCK / 2) : index;
}

static void widen(const uint16_t *in, uint32_t elems, float *out)
{
    for (uint32_t i = 0; i < elems; i++) {
        out[lane_index(i, elems)] = k_f32_from_bf16(in[i]);
    }
}

static void dot(const struct k_dot_args *args)
{
    for (uint32_t r = 0; r < args->rows; r++) {
        const float *x = args->x + r * args->x_stride;
        for (uint32_t c = 0; c < args->cols; c++) {
            const uint16_t *w = args->w + c * args->w_stride;
            float sum = 0.0F;
            for (uint32_t k = 0; k < args->elems; k++) {
                sum += x[lane_index(k, args->elems)] * k_f32_from_bf16(w[k]);
            }
            args->out[r * args->out_stride + c] = sum;
        }
    }
}

static void accumulate(const struct k_accumulate_args *args)
{
    for (uint32_t r = 0; r < args->rows; r++) {
        float *acc = args->acc + (uint64_t)r * args->dims;
        for (uint32_t j = 0; j < args->keys; j++) {
            float p = args->p[r * args->p_stride + j];
            const uint16_t *v = args->v + (uint64_t)j * args->dims;
            for (uint32_t d = 0; d < args->dims; d++) {
                acc[lane_index(d, args->dims)] += p * k_f32_from_bf16(v[d]);
            }
        }
    }
}

static float exp_sum(float *values, uint32_t count, float max)
{
    float sum = 0.0F;
    for (uint32_t i = 0; i < count; i++) {
        values[i] = expf(values[i] - max);
        sum += values[i];
    }
    return sum;
}

static float max_of(const float *values, uint32_t count)
{
    float max = values[0];
    for (uint32_t i = 1; i < count; i++) {
        max = values[i] > max ? values[i] : max;
    }
    return max;
}

const struct k_cpu_isa k_cpu_isa_plain = {
    .name = "plain",
    .widen = widen,
    .dot = dot,
    .accumulate = accumulate,
    .exp_sum = exp_sum,
    .max = max_of,
};

const struct k_cpu_isa *k_cpu_isa_choose(void)
{
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_avx2 ? &k_cpu_isa_avx2 : &k_cpu_isa_plain;
}
