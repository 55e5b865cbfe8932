/* RMSNorm and what stands beside it.
 *
 *   y = x * (mean(x^2) + eps)^(-1/2) * w     f32, one rounding; w as stored, not 1 + w
 *
 * One block per row; a thread holds its pieces of eight elements in registers between the two
 * passes, so every input byte is read once.  Bytes per row: embed_norm 6 * hidden (table, x, normed)
 * + 2 * hidden of weights from cache; residual_norm 8 * hidden (h, x twice, normed). */
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / K_WARP_LANES;
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t MAX_PIECES = 3; /* of one thread */
constexpr uint32_t MAX_HIDDEN = THREADS * PIECE_ELEMS * MAX_PIECES;

static_assert(MAX_HIDDEN >= 5376, "hidden size of the largest model");

static __device__ __forceinline__ float squares(const k_f32x8 &values)
{
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum += values.at[i] * values.at[i];
    }
    return sum;
}

/* out = pieces * factor * weight, rounded. */
static __device__ __forceinline__ k_f32x8 scaled(const k_f32x8 &values, float factor,
                                                 const k_f32x8 &weight)
{
    k_f32x8 out;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out.at[i] = values.at[i] * factor * weight.at[i];
    }
    return out;
}

/* normed = RMSNorm(x held in registers). */
static __device__ __forceinline__ void norm_row(const k_f32x8 (&x)[MAX_PIECES],
                                                const uint4 (&weight)[MAX_PIECES], uint32_t pieces,
                                                uint32_t hidden, float eps, float *partial,
                                                uint4 *normed)
{
    float sum = 0.0F;
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        sum += threadIdx.x + p * THREADS < pieces ? squares(x[p]) : 0.0F;
    }
    sum = k_block_sum<WARPS>(sum, partial);
    float factor = rsqrtf(sum / (float)hidden + eps);
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        if (piece < pieces) {
            normed[piece] = k_pack(scaled(x[p], factor, k_unpack(weight[p])));
        }
    }
}

static __device__ __forceinline__ void load_weight(const uint16_t *weight, uint32_t pieces,
                                                   uint4 (&out)[MAX_PIECES])
{
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        out[p] = piece < pieces ? __ldg(reinterpret_cast<const uint4 *>(weight) + piece)
                                : make_uint4(0, 0, 0, 0);
    }
}

static __global__ void __launch_bounds__(THREADS) embed_norm_kernel(k_embed_norm_args args)
{
    __shared__ float partial[WARPS];
    uint32_t pieces = args.hidden_elems / PIECE_ELEMS;
    uint4 weight[MAX_PIECES];
    k_begin();
    load_weight(args.norm_weight, pieces, weight);
    k_wait_for_predecessors();
    uint64_t token = blockIdx.x;
    uint32_t id = __ldcg(args.tokens.ids + token);
    id = id < args.vocab_tokens ? id : 0; /* ids are checked at admission */
    const uint4 *row = reinterpret_cast<const uint4 *>(args.table) + (uint64_t)id * pieces;
    uint4 *x_out = reinterpret_cast<uint4 *>(args.x) + token * pieces;
    k_f32x8 x[MAX_PIECES];
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        if (piece < pieces) {
            k_f32x8 values = k_unpack(__ldg(row + piece));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                values.at[i] *= args.scale;
            }
            uint4 packed = k_pack(values);
            x_out[piece] = packed;
            x[p] = k_unpack(packed);
        }
    }
    norm_row(x, weight, pieces, args.hidden_elems, args.eps, partial,
             reinterpret_cast<uint4 *>(args.normed) + token * pieces);
}

/* Eight elements of h: as stored, or the slices of a product added in order and rounded. */
static __device__ __forceinline__ k_f32x8 load_h(const k_residual_norm_args &args,
                                                 const k_partial &partial, uint64_t row,
                                                 uint32_t piece)
{
    uint64_t at = row * args.hidden_elems + (uint64_t)piece * PIECE_ELEMS;
    if (partial.out == nullptr) {
        return k_unpack(k_load_fresh16(args.h + at));
    }
    k_f32x8 sum = {};
    for (uint32_t slice = 0; slice < partial.slices; slice++) {
        const float4 *from = reinterpret_cast<const float4 *>(
            partial.sums + (uint64_t)slice * args.rows * args.hidden_elems + at);
        float4 low = __ldcg(from);
        float4 high = __ldcg(from + 1);
        const float more[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum.at[i] += more[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum.at[i] = k_rounded(sum.at[i]);
    }
    return sum;
}

static __global__ void __launch_bounds__(THREADS)
    residual_norm_kernel(k_residual_norm_args args, k_partial partial_h)
{
    __shared__ float partial[2 * WARPS];
    uint32_t pieces = args.hidden_elems / PIECE_ELEMS;
    uint4 post[MAX_PIECES];
    uint4 next[MAX_PIECES];
    k_begin();
    load_weight(args.post_weight, pieces, post);
    load_weight(args.next_weight, pieces, next);
    float scalar = args.layer_scalar == nullptr ? 1.0F : k_f32(__ldg(args.layer_scalar));
    k_wait_for_predecessors();
    uint64_t row = blockIdx.x;
    uint4 *x_at = reinterpret_cast<uint4 *>(args.x) + row * pieces;
    k_f32x8 h[MAX_PIECES];
    k_f32x8 x[MAX_PIECES];
    float sum = 0.0F;
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        if (piece < pieces) {
            h[p] = load_h(args, partial_h, row, piece);
            x[p] = k_unpack(k_load_fresh16(x_at + piece));
            sum += squares(h[p]);
        }
    }
    sum = k_block_sum<WARPS>(sum, partial);
    float factor = rsqrtf(sum / (float)args.hidden_elems + args.eps);
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        if (piece < pieces) {
            k_f32x8 y = scaled(h[p], factor, k_unpack(post[p]));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float total = k_rounded(x[p].at[i] + k_rounded(y.at[i]));
                x[p].at[i] = args.layer_scalar == nullptr ? total : total * scalar;
            }
            uint4 packed = k_pack(x[p]);
            x_at[piece] = packed;
            x[p] = k_unpack(packed);
        }
    }
    norm_row(x, next, pieces, args.hidden_elems, args.eps, partial + WARPS,
             reinterpret_cast<uint4 *>(args.normed) + row * pieces);
}

static enum err_code check_hidden(const char *what, uint32_t hidden_elems, struct err *err)
{
    if (hidden_elems == 0 || hidden_elems % PIECE_ELEMS != 0 || hidden_elems > MAX_HIDDEN) {
        return err_set(err, ERR_SHAPE, "%s: hidden size %u, a multiple of %u and at most %u", what,
                       hidden_elems, PIECE_ELEMS, MAX_HIDDEN);
    }
    return ERR_OK;
}

extern "C" enum err_code k_cuda_embed_norm(struct k_stream *stream,
                                           const struct k_embed_norm_args *args, struct err *err)
{
    enum err_code code = check_hidden("embed_norm", args->hidden_elems, err);
    code = code == ERR_OK ? k_check_aligned("embed_norm",
                                            {{args->table, "table"},
                                             {args->norm_weight, "norm_weight"},
                                             {args->x, "x"},
                                             {args->normed, "normed"}},
                                            err)
                          : code;
    if (code != ERR_OK || args->tokens.count == 0) {
        return code;
    }
    return k_launched(k_launch(stream, embed_norm_kernel, args->tokens.count, THREADS, 0, *args),
                      "embed_norm", err);
}

extern "C" enum err_code k_cuda_residual_norm(struct k_stream *stream,
                                              const struct k_residual_norm_args *args,
                                              struct err *err)
{
    enum err_code code = check_hidden("residual_norm", args->hidden_elems, err);
    code = code == ERR_OK ? k_check_aligned("residual_norm",
                                            {{args->h, "h"},
                                             {args->post_weight, "post_weight"},
                                             {args->next_weight, "next_weight"},
                                             {args->x, "x"},
                                             {args->normed, "normed"}},
                                            err)
                          : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    if (args->x == args->h || args->x == args->normed) {
        return err_set(err, ERR_SHAPE, "residual_norm: x must not be h nor normed");
    }
    struct k_partial partial = {};
    if (stream->partial.out == args->h) {
        partial = stream->partial;
    }
    stream->partial = {};
    return k_launched(
        k_launch(stream, residual_norm_kernel, args->rows, THREADS, 0, *args, partial),
        "residual_norm", err);
}
