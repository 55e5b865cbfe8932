/* Norms of query, key and value heads, rotation, and the write of K and V into their page.
 *
 * One warp per token and head: query heads in place, then key and value heads from the projection
 * into the page.  A lane holds HEAD_DIM / 32 elements as pieces of eight; for head_dim 512 the two
 * elements of a rotated pair lie in one lane, for 256 in lanes 16 apart.  f32 sums; roundings as
 * kernels/ops.h says.  Bytes per token: 2 * 2 * qkv row, of which query comes back. */
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/page.cuh"
#include "kernels/cuda/device/reduce.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t THREADS = WARPS * K_WARP_LANES;
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t LANE_PIECE_ELEMS = K_WARP_LANES * PIECE_ELEMS; /* 256: elements of one round */

static_assert(LANE_PIECE_ELEMS == 256, "head_dim 256 is one piece a lane, 512 two");

template <uint32_t PIECES>
struct head_values {
    k_f32x8 piece[PIECES];
};

/* values = RMSNorm(values) * weight, rounded to bf16; weight null: none. */
template <uint32_t PIECES>
static __device__ __forceinline__ void norm_head(head_values<PIECES> &values,
                                                 const uint16_t *weight, float eps)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    float sum = 0.0F;
#pragma unroll
    for (uint32_t p = 0; p < PIECES; p++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum += values.piece[p].at[i] * values.piece[p].at[i];
        }
    }
    float factor = rsqrtf(k_warp_sum(sum) / (float)(PIECES * LANE_PIECE_ELEMS) + eps);
#pragma unroll
    for (uint32_t p = 0; p < PIECES; p++) {
        k_f32x8 w;
        if (weight != nullptr) {
            w = k_unpack(__ldg(reinterpret_cast<const uint4 *>(weight) + p * K_WARP_LANES + lane));
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float y = values.piece[p].at[i] * factor;
            values.piece[p].at[i] = k_rounded(weight == nullptr ? y : y * w.at[i]);
        }
    }
}

/* One half of a pair: x c + (low ? -other : other) s, three roundings. */
static __device__ __forceinline__ float rotated(float x, float other, float c, float s, bool is_low)
{
    float turned = is_low ? -other : other;
    return k_rounded(__fadd_rn(k_rounded(__fmul_rn(x, c)), k_rounded(__fmul_rn(turned, s))));
}

/* cos_sin [2, pairs] bf16 of the token's position. */
template <uint32_t PIECES>
static __device__ __forceinline__ void rotate_head(head_values<PIECES> &values,
                                                   const uint16_t *cos_sin, uint32_t pairs)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if constexpr (PIECES == 2) {
            uint32_t pair = lane * PIECE_ELEMS + i;
            if (pair < pairs) {
                float c = k_f32(__ldg(cos_sin + pair));
                float s = k_f32(__ldg(cos_sin + pairs + pair));
                float low = values.piece[0].at[i];
                float high = values.piece[1].at[i];
                values.piece[0].at[i] = rotated(low, high, c, s, true);
                values.piece[1].at[i] = rotated(high, low, c, s, false);
            }
        } else {
            bool is_low = lane < K_WARP_LANES / 2;
            uint32_t pair = lane % (K_WARP_LANES / 2) * PIECE_ELEMS + i;
            float other = __shfl_xor_sync(0xffffffffU, values.piece[0].at[i], K_WARP_LANES / 2);
            if (pair < pairs) {
                float c = k_f32(__ldg(cos_sin + pair));
                float s = k_f32(__ldg(cos_sin + pairs + pair));
                values.piece[0].at[i] = rotated(values.piece[0].at[i], other, c, s, is_low);
            }
        }
    }
}

template <uint32_t PIECES>
static __global__ void __launch_bounds__(THREADS) qkv_norm_rope_kernel(k_qkv_norm_rope_args args)
{
    constexpr uint32_t HEAD_DIM = PIECES * LANE_PIECE_ELEMS;
    uint32_t kv_heads = args.pages.kv_heads;
    uint32_t work_heads = args.heads + (args.writes_kv ? 2 * kv_heads : 0);
    uint32_t row_heads = args.heads + (args.writes_kv ? kv_heads * (args.has_v ? 2U : 1U) : 0U);
    uint32_t warp = blockIdx.x * WARPS + threadIdx.x / K_WARP_LANES;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t token = warp / work_heads;
    uint32_t head = warp % work_heads;
    k_begin();
    k_wait_for_predecessors();
    if (token >= args.tokens.count) {
        return;
    }
    bool is_query = head < args.heads;
    uint32_t kv_head = is_query ? 0 : (head - args.heads) % kv_heads;
    bool is_value = !is_query && head - args.heads >= kv_heads;
    uint32_t source =
        is_query ? head : args.heads + kv_head + (is_value && args.has_v ? kv_heads : 0);
    uint16_t *from = args.qkv + ((uint64_t)token * row_heads + source) * HEAD_DIM;
    uint32_t position = __ldcg(args.tokens.positions + token);
    head_values<PIECES> values;
#pragma unroll
    for (uint32_t p = 0; p < PIECES; p++) {
        values.piece[p] =
            k_unpack(k_load_fresh16(reinterpret_cast<uint4 *>(from) + p * K_WARP_LANES + lane));
    }
    norm_head<PIECES>(values, is_query ? args.q_norm : is_value ? nullptr : args.k_norm, args.eps);
    if (!is_value) {
        const uint16_t *cos_sin = args.cos_sin + (uint64_t)position * 2 * args.rotated_pairs;
        rotate_head<PIECES>(values, cos_sin, args.rotated_pairs);
    }
    uint16_t *to = from;
    if (!is_query) {
        uint32_t page = k_page_at(args.pages, __ldcg(args.tokens.slots + token), position);
        to = k_page_row(args.pages, page, args.kv_layer, is_value ? 1 : 0, kv_head, position);
    }
#pragma unroll
    for (uint32_t p = 0; p < PIECES; p++) {
        reinterpret_cast<uint4 *>(to)[p * K_WARP_LANES + lane] = k_pack(values.piece[p]);
    }
}

extern "C" enum err_code k_cuda_qkv_norm_rope(struct k_stream *stream,
                                              const struct k_qkv_norm_rope_args *args,
                                              struct err *err)
{
    uint32_t head_dim = args->pages.head_dim;
    if (head_dim != 256 && head_dim != 512) {
        return err_set(err, ERR_SHAPE, "qkv_norm_rope: head_dim %u, 256 or 512", head_dim);
    }
    if (args->rotated_pairs > head_dim / 2) {
        return err_set(err, ERR_SHAPE, "qkv_norm_rope: %u rotated pairs in %u elements of a head",
                       args->rotated_pairs, head_dim);
    }
    enum err_code code = k_check_aligned("qkv_norm_rope",
                                         {{args->qkv, "qkv"},
                                          {args->q_norm, "q_norm"},
                                          {args->k_norm, "k_norm"},
                                          {args->pages.base, "pages"}},
                                         err);
    if (code != ERR_OK || args->tokens.count == 0) {
        return code;
    }
    uint32_t work_heads = args->heads + (args->writes_kv ? 2 * args->pages.kv_heads : 0);
    uint32_t blocks = (uint32_t)(((uint64_t)args->tokens.count * work_heads + WARPS - 1) / WARPS);
    cudaError_t error = head_dim == 256
                            ? k_launch(stream, qkv_norm_rope_kernel<1>, blocks, THREADS, 0, *args)
                            : k_launch(stream, qkv_norm_rope_kernel<2>, blocks, THREADS, 0, *args);
    return k_launched(error, "qkv_norm_rope", err);
}
