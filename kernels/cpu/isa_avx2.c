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
/* Keys whose values are walked through together: they stay in the first-level cache while every
 * element of them is used, and memory is read in order. */
#define KEY_GROUP 8

/* Where a tile of accumulate lies. */
struct tile {
    uint32_t row;
    uint32_t dim;
    uint32_t key;
    uint32_t key_end;
};

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

/* sums[r][c] += x[r] * weights[c], eight lanes each. */
TILE void multiply_add(const float *x, uint64_t x_stride, uint32_t rows, uint32_t cols,
                       const __m256 *weights, __m256 sums[MAX_ROWS][MAX_COLS])
{
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        __m256 lanes = _mm256_loadu_ps(x + r * x_stride);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            sums[r][c] = _mm256_fmadd_ps(lanes, weights[c], sums[r][c]);
        }
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
        __m256 weights[MAX_COLS];
        /* First all even elements, then all odd ones: an activation is used up as soon as it is
         * loaded, so none of them takes a register away from the sums. */
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            const uint16_t *at = w + c * args->w_stride + k;
            weights[c] = even_of(load_pairs(at));
            /* Few rows wait for memory, not for arithmetic: fetch the next tile meanwhile. */
            if (rows <= 2) {
                _mm_prefetch(at + cols * args->w_stride, _MM_HINT_T0);
            }
        }
        multiply_add(x + k, args->x_stride, rows, cols, weights, sums);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < cols; c++) {
            weights[c] = odd_of(load_pairs(w + c * args->w_stride + k));
        }
        multiply_add(x + k + 8, args->x_stride, rows, cols, weights, sums);
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

/* One row: eight sums in flight hide the latency. */
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
    for (; col + 2 <= args->cols; col += 2) {
        dot_tile(args, row, col, 4, 2);
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

/* Adds keys [key, key_end) to `rows` rows and 16 * blocks elements; the sums wait in memory, so they
 * are the same however keys are grouped. */
TILE void accumulate_tile(const struct k_accumulate_args *args, const struct tile *tile,
                          uint32_t rows, uint32_t blocks)
{
    float *acc = args->acc + (uint64_t)tile->row * args->dims + tile->dim;
    const float *p = args->p + tile->row * args->p_stride;
    const uint16_t *v = args->v + tile->dim;
    __m256 even[MAX_ROWS][MAX_DIM_BLOCKS];
    __m256 odd[MAX_ROWS][MAX_DIM_BLOCKS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; b++) {
            const float *at = acc + (uint64_t)r * args->dims + (uint64_t)b * K_LANE_BLOCK;
            even[r][b] = _mm256_loadu_ps(at);
            odd[r][b] = _mm256_loadu_ps(at + 8);
        }
    }
    for (uint32_t j = tile->key; j < tile->key_end; j++) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; b++) {
            const uint16_t *at = v + (uint64_t)j * args->dims + (uint64_t)b * K_LANE_BLOCK;
            __m256i pairs = load_pairs(at);
            _mm_prefetch(at + (uint64_t)KEY_GROUP * args->dims, _MM_HINT_T0);
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
            float *at = acc + (uint64_t)r * args->dims + (uint64_t)b * K_LANE_BLOCK;
            _mm256_storeu_ps(at, even[r][b]);
            _mm256_storeu_ps(at + 8, odd[r][b]);
        }
    }
}

/* All elements of the tile's keys for its row and the rows - 1 after it. */
AVX2 static void accumulate_one_row(const struct k_accumulate_args *args, struct tile tile)
{
    for (; tile.dim + 4 * K_LANE_BLOCK <= args->dims; tile.dim += 4 * K_LANE_BLOCK) {
        accumulate_tile(args, &tile, 1, 4);
    }
    for (; tile.dim < args->dims; tile.dim += K_LANE_BLOCK) {
        accumulate_tile(args, &tile, 1, 1);
    }
}

AVX2 static void accumulate_two_rows(const struct k_accumulate_args *args, struct tile tile)
{
    for (; tile.dim + 2 * K_LANE_BLOCK <= args->dims; tile.dim += 2 * K_LANE_BLOCK) {
        accumulate_tile(args, &tile, 2, 2);
    }
    for (; tile.dim < args->dims; tile.dim += K_LANE_BLOCK) {
        accumulate_tile(args, &tile, 2, 1);
    }
}

AVX2 static void accumulate_four_rows(const struct k_accumulate_args *args, struct tile tile)
{
    for (; tile.dim < args->dims; tile.dim += K_LANE_BLOCK) {
        accumulate_tile(args, &tile, 4, 1);
    }
}

AVX2 static void accumulate(const struct k_accumulate_args *args)
{
    struct tile tile = {0};
    for (; tile.key < args->keys; tile.key = tile.key_end) {
        uint32_t left = args->keys - tile.key;
        tile.key_end = tile.key + (left < KEY_GROUP ? left : KEY_GROUP);
        for (tile.row = 0; tile.row + 4 <= args->rows; tile.row += 4) {
            accumulate_four_rows(args, tile);
        }
        for (; tile.row + 2 <= args->rows; tile.row += 2) {
            accumulate_two_rows(args, tile);
        }
        if (tile.row < args->rows) {
            accumulate_one_row(args, tile);
        }
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
