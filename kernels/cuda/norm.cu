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

/* h of a residual, which may lie in slices still. */
struct finished_product {
    const uint16_t *h; /* [rows, hidden] */
    k_partial partial; /* out null: h is as stored */
    uint32_t rows;
    uint32_t hidden_elems;
};

/* Eight elements of h: as stored, or the slices of a product added in order and rounded. */
static __device__ __forceinline__ k_f32x8 load_h(const finished_product &product, uint64_t row,
                                                 uint32_t piece)
{
    const k_partial &partial = product.partial;
    uint64_t at = row * product.hidden_elems + (uint64_t)piece * PIECE_ELEMS;
    if (partial.out == nullptr) {
        return k_unpack(k_load_fresh16(product.h + at));
    }
    k_f32x8 sum = {};
    for (uint32_t slice = 0; slice < partial.slices; slice++) {
        const float4 *from = reinterpret_cast<const float4 *>(
            partial.sums + (uint64_t)slice * product.rows * product.hidden_elems + at);
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
    residual_norm_kernel(k_residual_norm_args args, finished_product product)
{
    __shared__ float partial[2 * WARPS];
    uint32_t pieces = args.hidden_elems / PIECE_ELEMS;
    uint4 post[MAX_PIECES];
    uint4 next[MAX_PIECES];
    k_begin();
    load_weight(args.post_weight, pieces, post);
    load_weight(args.next_weight, args.next_weight == nullptr ? 0 : pieces, next);
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
            h[p] = load_h(product, row, piece);
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
    if (args.next_weight == nullptr) {
        return;
    }
    norm_row(x, next, pieces, args.hidden_elems, args.eps, partial + WARPS,
             reinterpret_cast<uint4 *>(args.normed) + row * pieces);
}

/* Eight elements of the experts' sum: a token's pairs, the best first. */
static __device__ __forceinline__ k_f32x8 load_experts(const k_join_norm_args &args, uint64_t row,
                                                       uint32_t piece)
{
    k_f32x8 sum = {};
#pragma unroll 4
    for (uint32_t k = 0; k < args.top_experts; k++) {
        uint64_t pair = row * args.top_experts + k;
        bool is_there = __ldcg(args.ids + pair) != K_EXPERT_NONE;
        float weight = __ldcg(args.weights + pair);
        uint64_t at = pair * args.hidden_elems + (uint64_t)piece * PIECE_ELEMS;
        k_f32x8 y =
            k_unpack(is_there ? k_load_fresh16(args.experts_out + at) : make_uint4(0, 0, 0, 0));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum.at[i] += y.at[i] * weight;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum.at[i] = k_rounded(sum.at[i]);
    }
    return sum;
}

static __global__ void __launch_bounds__(THREADS)
    join_norm_kernel(k_join_norm_args args, finished_product product)
{
    __shared__ float partial[4 * WARPS];
    uint32_t pieces = args.hidden_elems / PIECE_ELEMS;
    uint4 dense_weight[MAX_PIECES];
    uint4 expert_weight[MAX_PIECES];
    uint4 post[MAX_PIECES];
    uint4 next[MAX_PIECES];
    k_begin();
    load_weight(args.dense_weight, pieces, dense_weight);
    load_weight(args.expert_weight, pieces, expert_weight);
    load_weight(args.post_weight, pieces, post);
    load_weight(args.next_weight, pieces, next);
    float scalar = args.layer_scalar == nullptr ? 1.0F : k_f32(__ldg(args.layer_scalar));
    k_wait_for_predecessors();
    uint64_t row = blockIdx.x;
    float hidden = (float)args.hidden_elems;
    uint4 *x_at = reinterpret_cast<uint4 *>(args.x) + row * pieces;
    k_f32x8 h[MAX_PIECES];
    k_f32x8 experts[MAX_PIECES];
    float dense_sum = 0.0F;
    float expert_sum = 0.0F;
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        if (piece < pieces) {
            h[p] = load_h(product, row, piece);
            experts[p] = load_experts(args, row, piece);
            dense_sum += squares(h[p]);
            expert_sum += squares(experts[p]);
        }
    }
    dense_sum = k_block_sum<WARPS>(dense_sum, partial);
    expert_sum = k_block_sum<WARPS>(expert_sum, partial + WARPS);
    float dense_factor = rsqrtf(dense_sum / hidden + args.eps);
    float expert_factor = rsqrtf(expert_sum / hidden + args.eps);
    float sum = 0.0F;
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        if (threadIdx.x + p * THREADS < pieces) {
            k_f32x8 dense = scaled(h[p], dense_factor, k_unpack(dense_weight[p]));
            k_f32x8 expert = scaled(experts[p], expert_factor, k_unpack(expert_weight[p]));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                h[p].at[i] = k_rounded(k_rounded(dense.at[i]) + k_rounded(expert.at[i]));
            }
            sum += squares(h[p]);
        }
    }
    sum = k_block_sum<WARPS>(sum, partial + 2 * WARPS);
    float factor = rsqrtf(sum / hidden + args.eps);
    k_f32x8 x[MAX_PIECES];
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = threadIdx.x + p * THREADS;
        if (piece < pieces) {
            k_f32x8 y = scaled(h[p], factor, k_unpack(post[p]));
            x[p] = k_unpack(k_load_fresh16(x_at + piece));
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
    norm_row(x, next, pieces, args.hidden_elems, args.eps, partial + 3 * WARPS,
             reinterpret_cast<uint4 *>(args.normed) + row * pieces);
}

/* h as the next kernel is to read it; whatever was left unfinished is spoken for. */
static finished_product take_product(struct k_stream *stream, const uint16_t *h, uint32_t rows,
                                     uint32_t hidden_elems)
{
    finished_product product = {};
    product.h = h;
    product.rows = rows;
    product.hidden_elems = hidden_elems;
    if (stream->partial.out == h) {
        product.partial = stream->partial;
    }
    stream->partial = {};
    return product;
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
    finished_product product = take_product(stream, args->h, args->rows, args->hidden_elems);
    return k_launched(
        k_launch(stream, residual_norm_kernel, args->rows, THREADS, 0, *args, product),
        "residual_norm", err);
}

extern "C" enum err_code k_cuda_join_norm(struct k_stream *stream,
                                          const struct k_join_norm_args *args, struct err *err)
{
    enum err_code code = check_hidden("join_norm", args->hidden_elems, err);
    code = code == ERR_OK ? k_check_aligned("join_norm",
                                            {{args->dense, "dense"},
                                             {args->experts_out, "experts_out"},
                                             {args->dense_weight, "dense_weight"},
                                             {args->expert_weight, "expert_weight"},
                                             {args->post_weight, "post_weight"},
                                             {args->next_weight, "next_weight"},
                                             {args->x, "x"},
                                             {args->normed, "normed"}},
                                            err)
                          : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    if (args->x == args->dense || args->x == args->normed) {
        return err_set(err, ERR_SHAPE, "join_norm: x must not be dense nor normed");
    }
    finished_product product = take_product(stream, args->dense, args->rows, args->hidden_elems);
    return k_launched(k_launch(stream, join_norm_kernel, args->rows, THREADS, 0, *args, product),
                      "join_norm", err);
}
