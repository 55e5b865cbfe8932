/* Which experts each token goes to: the formula is above k_route_args.  Sums in f32.
 *
 * Few rows: logits_kernel has a block for each expert and a warp for each row; a warp norms its row
 * for itself, so that no launch stands between norm and product, and one of the blocks stores the
 * experts' input.  Bytes: the router's matrix once (2 * experts * hidden), fetched before the wait,
 * and 2 * rows * hidden in each block, from L2.  Then one block chooses and sorts.
 *
 * Many rows: norm_kernel, the product of experts.cu with the router's matrix as the only expert,
 * choose_kernel with a warp for each row, sort_kernel with a block for each expert.
 *
 * The sort counts: an expert's first place is the number of pairs that go to experts before it, found
 * by each block for itself, so that nothing is added up between blocks and the order is fixed. */
#include <math.h>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/experts.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t THREADS = WARPS * K_WARP_LANES;
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t MAX_HIDDEN = 6144;
constexpr uint32_t MAX_PIECES = MAX_HIDDEN / PIECE_ELEMS / THREADS; /* of a thread, row per block */
constexpr uint32_t MAX_EXPERTS = 1024;
constexpr uint32_t FEW_THREADS = K_CUDA_SMALL_ROWS * K_WARP_LANES;
constexpr uint32_t FEW_PAIRS = 1024; /* that one block sorts */
constexpr uint32_t PRODUCT_COLUMNS = 32;
constexpr uint32_t ALIGN_BYTES = 256;
constexpr uint32_t FULL_MASK = 0xffffffffU;

static_assert(MAX_PIECES * THREADS * PIECE_ELEMS == MAX_HIDDEN, "whole pieces");

struct route_kernel_args {
    k_route_args route;
    float root;             /* hidden^(-1/2) */
    uint32_t logits_stride; /* experts, as a multiple of 8 */
    uint16_t *scaled;       /* [rows, hidden] bf16, many rows only */
    uint16_t *logits;       /* [rows, logits_stride] bf16 */
};

static __device__ __forceinline__ float squares(const k_f32x8 &values)
{
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum += values.at[i] * values.at[i];
    }
    return sum;
}

/* The experts' input. */
static __device__ __forceinline__ uint4 normed_piece(const k_f32x8 &x, float factor, uint4 weight)
{
    k_f32x8 w = k_unpack(weight);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w.at[i] = x.at[i] * factor * w.at[i];
    }
    return k_pack(w);
}

/* The router's input, three roundings. */
static __device__ __forceinline__ k_f32x8 scaled_piece(const k_f32x8 &x, float factor, uint4 scale,
                                                       float root)
{
    k_f32x8 n = k_unpack(scale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        n.at[i] = k_rounded(k_rounded(x.at[i] * factor) * n.at[i]);
        n.at[i] = k_rounded(n.at[i] * root);
    }
    return n;
}

/* ---- few rows: logits ---- */

/* PIECES: of a lane, at most. */
template <uint32_t PIECES>
static __global__ void __launch_bounds__(THREADS) logits_kernel(route_kernel_args args)
{
    const k_route_args &route = args.route;
    __shared__ uint4 proj[MAX_HIDDEN / PIECE_ELEMS];
    __shared__ uint4 scale[MAX_HIDDEN / PIECE_ELEMS];
    uint32_t pieces = route.hidden_elems / PIECE_ELEMS;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t expert = blockIdx.x;
    const uint4 *proj_row = reinterpret_cast<const uint4 *>(route.proj) + (uint64_t)expert * pieces;
    k_begin();
    for (uint32_t piece = threadIdx.x; piece < pieces; piece += THREADS) {
        proj[piece] = __ldg(proj_row + piece);
        scale[piece] = __ldg(reinterpret_cast<const uint4 *>(route.scale) + piece);
    }
    __syncthreads();
    k_wait_for_predecessors();
    for (uint32_t row = threadIdx.x / K_WARP_LANES; row < route.rows; row += WARPS) {
        const uint4 *x_row = reinterpret_cast<const uint4 *>(route.x) + (uint64_t)row * pieces;
        uint4 x[PIECES];
        float sum = 0.0F;
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) {
            uint32_t piece = lane + i * K_WARP_LANES;
            x[i] = piece < pieces ? k_load_fresh16(x_row + piece) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) {
            sum += squares(k_unpack(x[i]));
        }
        float factor = rsqrtf(k_warp_sum(sum) / (float)route.hidden_elems + route.eps);
        bool stores_normed = row % gridDim.x == expert;
        float logit = 0.0F;
#pragma unroll
        for (uint32_t i = 0; i < PIECES; i++) {
            uint32_t piece = lane + i * K_WARP_LANES;
            if (piece < pieces) {
                k_f32x8 n = scaled_piece(k_unpack(x[i]), factor, scale[piece], args.root);
                k_f32x8 w = k_unpack(proj[piece]);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    logit += n.at[j] * w.at[j];
                }
                if (stores_normed) {
                    uint4 weight =
                        __ldg(reinterpret_cast<const uint4 *>(route.norm_weight) + piece);
                    reinterpret_cast<uint4 *>(route.normed)[(uint64_t)row * pieces + piece] =
                        normed_piece(k_unpack(x[i]), factor, weight);
                }
            }
        }
        logit = k_warp_sum(logit);
        if (lane == 0) {
            args.logits[(uint64_t)row * args.logits_stride + expert] = k_bf16(logit);
        }
    }
}

/* ---- many rows: norms ---- */

/* One block per row. */
static __global__ void __launch_bounds__(THREADS) norm_kernel(route_kernel_args args)
{
    const k_route_args &route = args.route;
    __shared__ float partial[WARPS];
    uint32_t pieces = route.hidden_elems / PIECE_ELEMS;
    uint4 weight[MAX_PIECES];
    uint4 scale[MAX_PIECES];
    k_begin();
#pragma unroll
    for (uint32_t i = 0; i < MAX_PIECES; i++) {
        uint32_t piece = threadIdx.x + i * THREADS;
        bool is_there = piece < pieces;
        weight[i] = is_there ? __ldg(reinterpret_cast<const uint4 *>(route.norm_weight) + piece)
                             : make_uint4(0, 0, 0, 0);
        scale[i] = is_there ? __ldg(reinterpret_cast<const uint4 *>(route.scale) + piece)
                            : make_uint4(0, 0, 0, 0);
    }
    k_wait_for_predecessors();
    uint64_t first = (uint64_t)blockIdx.x * pieces;
    k_f32x8 x[MAX_PIECES];
    float sum = 0.0F;
#pragma unroll
    for (uint32_t i = 0; i < MAX_PIECES; i++) {
        uint32_t piece = threadIdx.x + i * THREADS;
        if (piece < pieces) {
            x[i] =
                k_unpack(k_load_fresh16(reinterpret_cast<const uint4 *>(route.x) + first + piece));
            sum += squares(x[i]);
        }
    }
    sum = k_block_sum<WARPS>(sum, partial);
    float factor = rsqrtf(sum / (float)route.hidden_elems + route.eps);
#pragma unroll
    for (uint32_t i = 0; i < MAX_PIECES; i++) {
        uint32_t piece = threadIdx.x + i * THREADS;
        if (piece < pieces) {
            reinterpret_cast<uint4 *>(route.normed)[first + piece] =
                normed_piece(x[i], factor, weight[i]);
            reinterpret_cast<uint4 *>(args.scaled)[first + piece] =
                k_pack(scaled_piece(x[i], factor, scale[i], args.root));
        }
    }
}

/* ---- the choice ---- */

/* A number that orders as the logit does, above 0; a NaN as the smallest, zeroes alike. */
static __device__ __forceinline__ uint32_t key_of(float logit)
{
    float value = isnan(logit) ? -INFINITY : logit + 0.0F;
    uint32_t bits = __float_as_uint(value);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/* One row, by one warp.  PER_LANE: experts of a lane, at most; lane l has l, l + 32, .. */
template <uint32_t PER_LANE>
static __device__ __forceinline__ void choose_row(const route_kernel_args &args, uint32_t row)
{
    const k_route_args &route = args.route;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t *ids = route.routing.ids + (uint64_t)row * route.top_experts;
    float *weights = route.routing.weights + (uint64_t)row * route.top_experts;
    if (__ldcg(route.slots + row) == K_SLOT_NONE) {
        for (uint32_t k = lane; k < route.top_experts; k += K_WARP_LANES) {
            ids[k] = K_EXPERT_NONE;
            weights[k] = 0.0F;
        }
        return;
    }
    float logits[PER_LANE];
    uint32_t keys[PER_LANE]; /* 0: taken, or no such expert */
#pragma unroll
    for (uint32_t i = 0; i < PER_LANE; i++) {
        uint32_t expert = lane + i * K_WARP_LANES;
        bool is_there = expert < route.experts;
        const uint16_t *at = args.logits + (uint64_t)row * args.logits_stride + expert;
        logits[i] = is_there ? k_f32(__ldcg(at)) : -INFINITY;
        keys[i] = is_there ? key_of(logits[i]) : 0;
    }
    float most = 0.0F;
    float total = 0.0F;
    float chosen = 0.0F;
    for (uint32_t k = 0; k < route.top_experts; k++) {
        uint32_t key = 0;
        uint32_t id = 0xffffffffU;
#pragma unroll
        for (uint32_t i = 0; i < PER_LANE; i++) {
            bool is_better = keys[i] > key; /* ids ascend: the first of equals stays */
            key = is_better ? keys[i] : key;
            id = is_better ? lane + i * K_WARP_LANES : id;
        }
        uint32_t best = __reduce_max_sync(FULL_MASK, key);
        id = __reduce_min_sync(FULL_MASK, key == best ? id : 0xffffffffU);
        float logit = 0.0F;
#pragma unroll
        for (uint32_t i = 0; i < PER_LANE; i++) {
            bool is_it = lane + i * K_WARP_LANES == id;
            logit = is_it ? logits[i] : logit;
            keys[i] = is_it ? 0 : keys[i];
        }
        logit = __shfl_sync(FULL_MASK, logit, id % K_WARP_LANES);
        if (k == 0) {
            most = logit;
#pragma unroll
            for (uint32_t i = 0; i < PER_LANE; i++) {
                total += lane + i * K_WARP_LANES < route.experts ? expf(logits[i] - most) : 0.0F;
            }
            total = k_warp_sum(total);
        }
        float p = expf(logit - most) / total;
        chosen += p;
        if (lane == k % K_WARP_LANES) { /* the lane that reads them below */
            ids[k] = id;
            weights[k] = p;
        }
    }
    for (uint32_t k = lane; k < route.top_experts; k += K_WARP_LANES) {
        weights[k] = weights[k] / chosen * k_f32(__ldg(route.expert_scale + ids[k]));
    }
}

template <uint32_t PER_LANE>
static __global__ void __launch_bounds__(THREADS) choose_kernel(route_kernel_args args)
{
    k_begin();
    k_wait_for_predecessors();
    uint32_t row = blockIdx.x * WARPS + threadIdx.x / K_WARP_LANES;
    if (row < args.route.rows) {
        choose_row<PER_LANE>(args, row);
    }
}

/* Few rows: the choice of all of them, then the sort, a thread for each expert. */
template <uint32_t PER_LANE>
static __global__ void __launch_bounds__(FEW_THREADS) choose_and_sort_kernel(route_kernel_args args)
{
    const k_route_args &route = args.route;
    __shared__ uint32_t ids[FEW_PAIRS];
    k_begin();
    k_wait_for_predecessors();
    if (threadIdx.x / K_WARP_LANES < route.rows) {
        choose_row<PER_LANE>(args, threadIdx.x / K_WARP_LANES);
    }
    __syncthreads();
    uint32_t pairs = route.rows * route.top_experts;
    for (uint32_t p = threadIdx.x; p < pairs; p += FEW_THREADS) {
        ids[p] = route.routing.ids[p];
    }
    __syncthreads();
    for (uint32_t expert = threadIdx.x; expert <= route.experts; expert += FEW_THREADS) {
        uint32_t at = 0; /* padding tokens' id is above every expert's */
        for (uint32_t p = 0; p < pairs; p++) {
            at += ids[p] < expert ? 1 : 0;
        }
        route.routing.starts[expert] = at;
        for (uint32_t p = 0; expert < route.experts && p < pairs; p++) {
            if (ids[p] == expert) {
                route.routing.pairs[at++] = p;
            }
        }
    }
}

/* ---- the sort ---- */

static __device__ __forceinline__ uint32_t warp_count(uint32_t value)
{
    return __reduce_add_sync(FULL_MASK, value);
}

/* Block e places the pairs of expert e; block `experts` stores where the last one's end. */
static __global__ void __launch_bounds__(THREADS) sort_kernel(k_routing routing, uint32_t pairs)
{
    __shared__ uint32_t counts[WARPS];
    uint32_t expert = blockIdx.x;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
    k_begin();
    k_wait_for_predecessors();
    uint32_t before = 0;
    for (uint32_t p = threadIdx.x; p < pairs; p += THREADS) {
        before += __ldcg(routing.ids + p) < expert ? 1 : 0;
    }
    before = warp_count(before);
    if (lane == 0) {
        counts[warp] = before;
    }
    __syncthreads();
    uint32_t at = 0;
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        at += counts[w];
    }
    if (threadIdx.x == 0) {
        routing.starts[expert] = at;
    }
    for (uint32_t first = 0; first < pairs && expert + 1 < gridDim.x; first += THREADS) {
        uint32_t p = first + threadIdx.x;
        bool is_mine = p < pairs && __ldcg(routing.ids + p) == expert;
        uint32_t mine = __ballot_sync(FULL_MASK, is_mine);
        __syncthreads(); /* the counts before these are read */
        if (lane == 0) {
            counts[warp] = __popc(mine);
        }
        __syncthreads();
        uint32_t to = at + __popc(mine & ((1U << lane) - 1));
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            to += w < warp ? counts[w] : 0;
            at += counts[w];
        }
        if (is_mine) {
            routing.pairs[to] = p;
        }
    }
}

/* ---- launches ---- */

static uint32_t stride_of(uint32_t experts)
{
    return (experts + PIECE_ELEMS - 1) / PIECE_ELEMS * PIECE_ELEMS;
}

static uint64_t scaled_bytes(uint32_t rows, uint32_t hidden_elems)
{
    uint64_t bytes = (uint64_t)rows * hidden_elems * sizeof(uint16_t);
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

uint64_t k_cuda_route_scratch_bytes(const k_cuda_shape *shape)
{
    return shape->experts == 0
               ? 0
               : scaled_bytes(shape->max_tokens, shape->hidden_elems) +
                     (uint64_t)shape->max_tokens * stride_of(shape->experts) * sizeof(uint16_t);
}

static cudaError_t launch_few(struct k_stream *stream, const route_kernel_args &args)
{
    uint32_t experts = args.route.experts;
    cudaError_t error =
        args.route.hidden_elems <= MAX_HIDDEN / 2
            ? k_launch(stream, logits_kernel<MAX_HIDDEN / 2 / PIECE_ELEMS / K_WARP_LANES>, experts,
                       THREADS, 0, args)
            : k_launch(stream, logits_kernel<MAX_HIDDEN / PIECE_ELEMS / K_WARP_LANES>, experts,
                       THREADS, 0, args);
    if (error != cudaSuccess) {
        return error;
    }
    return experts <= 4 * K_WARP_LANES
               ? k_launch(stream, choose_and_sort_kernel<4>, 1, FEW_THREADS, 0, args)
               : k_launch(stream, choose_and_sort_kernel<MAX_EXPERTS / K_WARP_LANES>, 1,
                          FEW_THREADS, 0, args);
}

static enum err_code launch_many(struct k_stream *stream, const route_kernel_args &args,
                                 struct err *err)
{
    const k_route_args &route = args.route;
    enum err_code code = k_launched(k_launch(stream, norm_kernel, route.rows, THREADS, 0, args),
                                    "route, norms", err);
    struct k_expert_product product = {};
    product.x = args.scaled;
    product.pair_count = route.rows;
    product.experts = 1;
    product.pairs_per_x = 1;
    product.in_elems = route.hidden_elems;
    product.out_elems = route.experts;
    product.out_stride_elems = args.logits_stride;
    product.weights = route.proj;
    product.out = args.logits;
    code = code == ERR_OK ? k_cuda_expert_multiply(stream, &product, false, PRODUCT_COLUMNS, err)
                          : code;
    if (code != ERR_OK) {
        return code;
    }
    uint32_t blocks = (route.rows + WARPS - 1) / WARPS;
    cudaError_t error =
        route.experts <= 4 * K_WARP_LANES
            ? k_launch(stream, choose_kernel<4>, blocks, THREADS, 0, args)
            : k_launch(stream, choose_kernel<MAX_EXPERTS / K_WARP_LANES>, blocks, THREADS, 0, args);
    error = error == cudaSuccess ? k_launch(stream, sort_kernel, route.experts + 1, THREADS, 0,
                                            route.routing, route.rows * route.top_experts)
                                 : error;
    return k_launched(error, "route", err);
}

static enum err_code check_shape(const struct k_stream *stream, const struct k_route_args *args,
                                 struct err *err)
{
    const k_cuda_shape &shape = stream->shape;
    if (args->hidden_elems == 0 || args->hidden_elems % PIECE_ELEMS != 0 ||
        args->hidden_elems > MAX_HIDDEN) {
        return err_set(err, ERR_SHAPE, "route: hidden size %u, a multiple of %u and at most %u",
                       args->hidden_elems, PIECE_ELEMS, MAX_HIDDEN);
    }
    if (args->experts == 0 || args->experts > MAX_EXPERTS || args->experts > shape.experts) {
        return err_set(err, ERR_SHAPE, "route: %u experts, the stream was made for 1 to %u",
                       args->experts, shape.experts < MAX_EXPERTS ? shape.experts : MAX_EXPERTS);
    }
    if (args->top_experts == 0 || args->top_experts > args->experts) {
        return err_set(err, ERR_SHAPE, "route: %u experts of a token, there are %u",
                       args->top_experts, args->experts);
    }
    if (args->rows > shape.max_tokens || args->hidden_elems > shape.hidden_elems) {
        return err_set(err, ERR_SHAPE, "route: %u rows of %u, the stream was made for %u of %u",
                       args->rows, args->hidden_elems, shape.max_tokens, shape.hidden_elems);
    }
    return ERR_OK;
}

extern "C" enum err_code k_cuda_route(struct k_stream *stream, const struct k_route_args *args,
                                      struct err *err)
{
    enum err_code code = check_shape(stream, args, err);
    code = code == ERR_OK ? k_check_aligned("route",
                                            {{args->x, "x"},
                                             {args->norm_weight, "norm_weight"},
                                             {args->scale, "scale"},
                                             {args->proj, "proj"},
                                             {args->normed, "normed"}},
                                            err)
                          : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    stream->partial = {}; /* the scratch it lies in is overwritten */
    route_kernel_args kernel_args = {};
    kernel_args.route = *args;
    kernel_args.root = (float)(1.0 / sqrt((double)args->hidden_elems));
    kernel_args.logits_stride = stride_of(args->experts);
    kernel_args.scaled = reinterpret_cast<uint16_t *>(stream->scratch);
    kernel_args.logits = reinterpret_cast<uint16_t *>(stream->scratch +
                                                      scaled_bytes(args->rows, args->hidden_elems));
    if (args->rows <= K_CUDA_SMALL_ROWS && args->rows * args->top_experts <= FEW_PAIRS) {
        return k_launched(launch_few(stream, kernel_args), "route", err);
    }
    return launch_many(stream, kernel_args, err);
}
