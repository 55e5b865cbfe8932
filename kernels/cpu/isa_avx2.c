/* The inner loops for AVX2 and FMA.
 *
 * A sum is eight lanes, each a chain of fused multiply-adds over ascending k; the lanes are added at
 * the end in one fixed tree, then the odd tail in order.  Tiles hold several such sums at once: up
 * to 12 accumulators beside two widened weights and one activation fill the 16 registers. */
#include <immintrin.h>

#include "kernels/cpu/isa.h"
#include "kernels/dtype.h"

#define AVX2           __attribute__((target("avx2,fma")))
#define TILE           static inline __attribute__((always_inline, target("avx2,fma")))
#define MAX_ROWS       4
#define MAX_COLS       8
#define MAX_DIM_BLOCKS 4

/* Even elements of 16 bf16. */
TILE __m256 even_of(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

TILE __m256 odd_of(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000U)));
}

TILE __m256i load_pairs(const uint16_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

TILE float sum_lanes(__m256 lanes)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

AVX2 static void widen(const uint16_t *in, uint32_t elems, float *out)
{
    uint32_t whole = elems / K_LANE_BLOCK * K_LANE_BLOCK;
    for (uint32_t i = 0; i < whole; i += K_LANE_BLOCK) {
        __m256i pairs = load_pairs(in + i);
        _mm256_storeu_ps(out + i, even_of(pairs));
        _mm256_storeu_ps(out + i + 8, odd_of(pairs));
    }
    for (uint32_t i = whole; i < elems; i++) {
        out[i] = k_f32_from_bf16(in[i]);
    }
}

/* rows and cols are constants at every call: the loops over them disappear. */
TILE void dot_tile(const struct k_dot_args *args, uint32_t row, uint32_t col, uint32_t rows,
                   uint32_t cols)
{
    const float *x = args->x + row * args->x_stride;
    const uint16_t *w = args->w + col * args->w_stride;
    uint32_t whole = args->elems / K_LANE_BLOCK * K_LANE_BLOCK;
    __m256 sums[MAX_ROWS][MAX_COLS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            sums[r][c] = _mm256_setzero_ps();
        }
    }
    for (uint32_t k = 0; k < whole; k += K_LANE_BLOCK) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            __m256i pairs = load_pairs(w + c * args->w_stride + k);
            __m256 even = even_of(pairs);
            __m256 odd = odd_of(pairs);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++) {
                const float *at = x + r * args->x_stride + k;
                sums[r][c] = _mm256_fmadd_ps(_mm256_loadu_ps(at), even, sums[r][c]);
                sums[r][c] = _mm256_fmadd_ps(_mm256_loadu_ps(at + 8), odd, sums[r][c]);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            float sum = sum_lanes(sums[r][c]);
            for (uint32_t k = whole; k < args->elems; k++) {
                sum += x[r * args->x_stride + k] * k_f32_from_bf16(w[c * args->w_stride + k]);
            }
            args->out[(row + r) * args->out_stride + col + c] = sum;
        }
    }
}

/* All columns of up to four rows. */
AVX2 static void dot_one_row(const struct k_dot_args *args, uint32_t row)
{
    uint32_t col = 0;
    for (; col + 8 <= args->cols; col += 8) {
        dot_tile(args, row, col, 1, 8);
    }
    for (; col < args->cols; col++) {
        dot_tile(args, row, col, 1, 1);
    }
}

AVX2 static void dot_two_rows(const struct k_dot_args *args, uint32_t row)
{
    uint32_t col = 0;
    for (; col + 4 <= args->cols; col += 4) {
        dot_tile(args, row, col, 2, 4);
    }
    for (; col < args->cols; col++) {
        dot_tile(args, row, col, 2, 1);
    }
}

AVX2 static void dot_four_rows(const struct k_dot_args *args, uint32_t row)
{
    uint32_t col = 0;
    for (; col + 3 <= args->cols; col += 3) {
        dot_tile(args, row, col, 4, 3);
    }
    for (; col < args->cols; col++) {
        dot_tile(args, row, col, 4, 1);
    }
}

AVX2 static void dot(const struct k_dot_args *args)
{
    uint32_t row = 0;
    for (; row + 4 <= args->rows; row += 4) {
        dot_four_rows(args, row);
    }
    for (; row + 2 <= args->rows; row += 2) {
        dot_two_rows(args, row);
    }
    if (row < args->rows) {
        dot_one_row(args, row);
    }
}

TILE void accumulate_tile(const struct k_accumulate_args *args, uint32_t row, uint32_t dim,
                          uint32_t rows, uint32_t blocks)
{
    float *acc = args->acc + (uint64_t)row * args->dims + dim;
    const float *p = args->p + row * args->p_stride;
    const uint16_t *v = args->v + dim;
    __m256 even[MAX_ROWS][MAX_DIM_BLOCKS];
    __m256 odd[MAX_ROWS][MAX_DIM_BLOCKS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; b++) {
            const float *at = acc + (uint64_t)r * args->dims + b * K_LANE_BLOCK;
            even[r][b] = _mm256_loadu_ps(at);
            odd[r][b] = _mm256_loadu_ps(at + 8);
        }
    }
    for (uint32_t j = 0; j < args->keys; j++) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; b++) {
            __m256i pairs = load_pairs(v + (uint64_t)j * args->dims + b * K_LANE_BLOCK);
            __m256 v_even = even_of(pairs);
            __m256 v_odd = odd_of(pairs);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++) {
                __m256 weight = _mm256_broadcast_ss(p + r * args->p_stride + j);
                even[r][b] = _mm256_fmadd_ps(weight, v_even, even[r][b]);
                odd[r][b] = _mm256_fmadd_ps(weight, v_odd, odd[r][b]);
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; b++) {
            float *at = acc + (uint64_t)r * args->dims + b * K_LANE_BLOCK;
            _mm256_storeu_ps(at, even[r][b]);
            _mm256_storeu_ps(at + 8, odd[r][b]);
        }
    }
}

AVX2 static void accumulate_one_row(const struct k_accumulate_args *args, uint32_t row)
{
    uint32_t dim = 0;
    for (; dim + 4 * K_LANE_BLOCK <= args->dims; dim += 4 * K_LANE_BLOCK) {
        accumulate_tile(args, row, dim, 1, 4);
    }
    for (; dim < args->dims; dim += K_LANE_BLOCK) {
        accumulate_tile(args, row, dim, 1, 1);
    }
}

AVX2 static void accumulate(const struct k_accumulate_args *args)
{
    uint32_t row = 0;
    for (; row + 4 <= args->rows; row += 4) {
        for (uint32_t dim = 0; dim < args->dims; dim += K_LANE_BLOCK) {
            accumulate_tile(args, row, dim, 4, 1);
        }
    }
    for (; row < args->rows; row++) {
        accumulate_one_row(args, row);
    }
}

/* exp(x) for -87 <= x <= 0: x = n ln 2 + r, |r| <= ln 2 / 2, a degree 6 polynomial in r, times
 * 2^n.  Coefficients are 1/k!; the remainder r^7/7! is below 1.2e-7 relative. */
TILE __m256 exp_lanes(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-87.0F), x); /* in this order a NaN stays */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504F)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375F), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4F), r);
    __m256 y = _mm256_set1_ps(1.0F / 720.0F);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0F / 120.0F));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0F / 24.0F));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0F / 6.0F));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(0.5F));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0F));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0F));
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

AVX2 static float exp_sum(float *values, uint32_t count, float max)
{
    __m256 shift = _mm256_set1_ps(max);
    __m256 sums = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 y = exp_lanes(_mm256_sub_ps(_mm256_loadu_ps(values + i), shift));
        _mm256_storeu_ps(values + i, y);
        sums = _mm256_add_ps(sums, y);
    }
    float sum = sum_lanes(sums);
    for (; i < count; i++) {
        float lanes[8];
        _mm256_storeu_ps(lanes, exp_lanes(_mm256_set1_ps(values[i] - max)));
        values[i] = lanes[0];
        sum += lanes[0];
    }
    return sum;
}

AVX2 static float max_of(const float *values, uint32_t count)
{
    float max = values[0];
    if (count >= 8) {
        __m256 lanes = _mm256_loadu_ps(values);
        for (uint32_t i = 8; i + 8 <= count; i += 8) {
            lanes = _mm256_max_ps(lanes, _mm256_loadu_ps(values + i));
        }
        float each[8];
        _mm256_storeu_ps(each, lanes);
        for (uint32_t i = 0; i < 8; i++) {
            max = each[i] > max ? each[i] : max;
        }
    }
    for (uint32_t i = count / 8 * 8; i < count; i++) {
        max = values[i] > max ? values[i] : max;
    }
    return max;
}

const struct k_cpu_isa k_cpu_isa_avx2 = {
    .name = "avx2",
    .widen = widen,
    .dot = dot,
    .accumulate = accumulate,
    .exp_sum = exp_sum,
    .max = max_of,
};
