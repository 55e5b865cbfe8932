/* Per-layer embeddings: what the table gives to every layer, and the end of a layer that takes it.
 *
 * inputs: one warp per token and layer.  Bytes: 6 per element (the product in and out, the table).
 * The table may lie in host memory, which the device reads across the bus: up to K_CUDA_SMALL_ROWS
 * rows are read where they are used, one trip for all; more are fetched before by a few blocks on a
 * stream of their own, beside the embedding and its product, which join before they are used.
 *
 * The end of a layer, few rows: residual without a norm, gate (linear.cu), projection, residual and
 * norm.  project: one warp per two weight rows, held in registers from before the wait for earlier
 * launches; every weight is read once for all rows.  A row's bits depend on that row alone. */
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"

constexpr uint32_t THREADS = 256;
constexpr uint32_t WARPS = THREADS / K_WARP_LANES;
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t WARP_ELEMS = K_WARP_LANES * PIECE_ELEMS;
constexpr uint32_t MAX_PIECES = 4; /* of one lane */
constexpr uint32_t MAX_ELEMS = MAX_PIECES * WARP_ELEMS;
constexpr uint32_t PROJECT_ROWS = 2;  /* weight rows of a warp */
constexpr uint32_t FETCH_BLOCKS = 16; /* keep some 200 KB on the way: what the bus takes */
constexpr uint32_t FETCH_LOADS = 4;   /* of one thread at once */
constexpr float HALF_ROOT = 0.70710678118654752F;

/* ---- what every layer gets ---- */

/* rows [rows, layers * elems]: those fetched, or the table itself where null. */
static __global__ void __launch_bounds__(THREADS)
    inputs_kernel(k_ple_inputs_args args, const uint16_t *rows)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint64_t warp = (uint64_t)blockIdx.x * WARPS + threadIdx.x / K_WARP_LANES;
    uint32_t pieces = args.elems / PIECE_ELEMS;
    uint64_t row = warp / args.layers;
    uint64_t layer = warp % args.layers;
    uint4 weight[MAX_PIECES];
    k_begin();
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = p * K_WARP_LANES + lane;
        weight[p] = piece < pieces
                        ? __ldg(reinterpret_cast<const uint4 *>(args.norm_weight) + piece)
                        : make_uint4(0, 0, 0, 0);
    }
    k_wait_for_predecessors();
    if (row >= args.rows) {
        return;
    }
    const uint16_t *from = rows;
    uint64_t from_row = row;
    if (rows == nullptr) {
        uint32_t id = __ldcg(args.ids + row);
        from = args.table;
        from_row = id < args.vocab_tokens ? id : 0; /* ids are checked at admission */
    }
    const uint4 *from_at =
        reinterpret_cast<const uint4 *>(from) + (from_row * args.layers + layer) * pieces;
    uint4 *at = reinterpret_cast<uint4 *>(args.inputs) + warp * pieces;
    uint4 far[MAX_PIECES];
    k_f32x8 b[MAX_PIECES];
    float sum = 0.0F;
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = p * K_WARP_LANES + lane;
        bool is_there = piece < pieces;
        far[p] = is_there ? k_load_fresh16(from_at + piece) : make_uint4(0, 0, 0, 0);
        b[p] = k_unpack(is_there ? k_load_fresh16(at + piece) : make_uint4(0, 0, 0, 0));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            b[p].at[i] = k_rounded(b[p].at[i] * args.inputs_scale);
            sum += b[p].at[i] * b[p].at[i];
        }
    }
    float factor = rsqrtf(k_warp_sum(sum) / (float)args.elems + args.eps);
#pragma unroll
    for (uint32_t p = 0; p < MAX_PIECES; p++) {
        uint32_t piece = p * K_WARP_LANES + lane;
        k_f32x8 a = k_unpack(far[p]);
        k_f32x8 w = k_unpack(weight[p]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float normed = k_rounded(b[p].at[i] * factor * w.at[i]);
            float total = k_rounded(normed + k_rounded(a.at[i] * args.table_scale));
            b[p].at[i] = total * HALF_ROOT;
        }
        if (piece < pieces) {
            at[piece] = k_pack(b[p]);
        }
    }
}

/* fetched[r] = table[ids[r]].  On its own stream: without dependent launch. */
static __global__ void __launch_bounds__(THREADS) fetch_kernel(k_ple_inputs_args args)
{
    uint32_t pieces = args.layers * (args.elems / PIECE_ELEMS);
    uint64_t total = (uint64_t)args.rows * pieces;
    uint64_t step = (uint64_t)gridDim.x * THREADS;
    uint4 *to = reinterpret_cast<uint4 *>(args.fetched);
    for (uint64_t first = (uint64_t)blockIdx.x * THREADS + threadIdx.x; first < total;
         first += step * FETCH_LOADS) {
        uint4 held[FETCH_LOADS];
#pragma unroll
        for (uint32_t i = 0; i < FETCH_LOADS; i++) {
            uint64_t at = first + i * step;
            held[i] = make_uint4(0, 0, 0, 0);
            if (at < total) {
                uint32_t id = __ldcg(args.ids + at / pieces);
                id = id < args.vocab_tokens ? id : 0; /* ids are checked at admission */
                held[i] = k_load_fresh16(reinterpret_cast<const uint4 *>(args.table) +
                                         (uint64_t)id * pieces + at % pieces);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < FETCH_LOADS; i++) {
            uint64_t at = first + i * step;
            if (at < total) {
                to[at] = held[i];
            }
        }
    }
}

static enum err_code check_inputs(const struct k_ple_inputs_args *args, struct err *err)
{
    if (args->elems == 0 || args->elems % PIECE_ELEMS != 0 || args->elems > MAX_ELEMS) {
        return err_set(err, ERR_SHAPE, "ple_inputs: %u elements of a layer, a multiple of %u to %u",
                       args->elems, PIECE_ELEMS, MAX_ELEMS);
    }
    return k_check_aligned("ple_inputs",
                           {{args->table, "table"},
                            {args->norm_weight, "norm_weight"},
                            {args->fetched, "fetched"},
                            {args->inputs, "inputs"}},
                           err);
}

/* Few rows are left to ple_inputs: a second stream takes longer than the bus does. */
extern "C" enum err_code k_cuda_ple_fetch(struct k_stream *stream,
                                          const struct k_ple_inputs_args *args, struct err *err)
{
    enum err_code code = check_inputs(args, err);
    stream->fetched = nullptr;
    if (code != ERR_OK || args->rows <= K_CUDA_SMALL_ROWS || args->fetched == nullptr) {
        return code;
    }
    cudaError_t error = cudaEventRecord(stream->fetch_begin, stream->stream);
    error = error == cudaSuccess ? cudaStreamWaitEvent(stream->fetch_stream, stream->fetch_begin, 0)
                                 : error;
    if (error == cudaSuccess) {
        fetch_kernel<<<FETCH_BLOCKS, THREADS, 0, stream->fetch_stream>>>(*args);
        stream->launches++;
        error = cudaGetLastError();
    }
    error = error == cudaSuccess ? cudaEventRecord(stream->fetch_end, stream->fetch_stream) : error;
    if (error == cudaSuccess) {
        stream->fetched = args->fetched;
    }
    return k_launched(error, "ple_fetch", err);
}

extern "C" enum err_code k_cuda_ple_inputs(struct k_stream *stream,
                                           const struct k_ple_inputs_args *args, struct err *err)
{
    enum err_code code = check_inputs(args, err);
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    uint32_t blocks = (uint32_t)(((uint64_t)args->rows * args->layers + WARPS - 1) / WARPS);
    const uint16_t *rows = args->fetched != nullptr ? stream->fetched : nullptr;
    stream->fetched = nullptr;
    if (rows == nullptr) {
        return k_launched(k_launch(stream, inputs_kernel, blocks, THREADS, 0, *args, rows),
                          "ple_inputs", err);
    }
    /* Two streams come together: not a place for a dependent launch. */
    cudaError_t error = cudaStreamWaitEvent(stream->stream, stream->fetch_end, 0);
    if (error == cudaSuccess) {
        inputs_kernel<<<blocks, THREADS, 0, stream->stream>>>(*args, rows);
        stream->launches++;
        error = cudaGetLastError();
    }
    return k_launched(error, "ple_inputs", err);
}

/* ---- the end of a layer ---- */

/* out[r, o] = bf16(gated[r] . projection[o]); elems = 256, so that a lane has 8 of each row. */
static __global__ void __launch_bounds__(THREADS) project_kernel(k_ple_layer_args args)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t first =
        (blockIdx.x * WARPS + threadIdx.x / K_WARP_LANES) * PROJECT_ROWS; /* weight row */
    k_begin();
    k_f32x8 weight[PROJECT_ROWS];
#pragma unroll
    for (uint32_t i = 0; i < PROJECT_ROWS; i++) {
        uint64_t row = first + i < args.hidden_elems ? first + i : 0;
        weight[i] = k_unpack(
            __ldg(reinterpret_cast<const uint4 *>(args.projection + row * WARP_ELEMS) + lane));
    }
    k_wait_for_predecessors();
    for (uint32_t r = 0; r < args.rows; r++) {
        k_f32x8 gated = k_unpack(k_load_fresh16(
            reinterpret_cast<const uint4 *>(args.gated + (uint64_t)r * WARP_ELEMS) + lane));
        float sums[PROJECT_ROWS] = {};
#pragma unroll
        for (uint32_t i = 0; i < PROJECT_ROWS; i++) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                sums[i] += gated.at[k] * weight[i].at[k];
            }
            sums[i] = k_warp_sum(sums[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < PROJECT_ROWS; i++) {
            if (lane == i && first + i < args.hidden_elems) {
                args.h[(uint64_t)r * args.hidden_elems + first + i] = k_bf16(sums[i]);
            }
        }
    }
}

static enum err_code project(struct k_stream *stream, const struct k_ple_layer_args *args,
                             struct err *err)
{
    if (args->elems != WARP_ELEMS) {
        struct k_linear_args linear = {};
        linear.x = args->gated;
        linear.rows = args->rows;
        linear.in_elems = args->elems;
        linear.part_count = 1;
        linear.weights[0] = args->projection;
        linear.out_elems[0] = args->hidden_elems;
        linear.feeds_residual_norm = true;
        linear.out = args->h;
        return k_cuda_linear(stream, &linear, err);
    }
    constexpr uint32_t BLOCK_ROWS = WARPS * PROJECT_ROWS;
    uint32_t blocks = (args->hidden_elems + BLOCK_ROWS - 1) / BLOCK_ROWS;
    return k_launched(k_launch(stream, project_kernel, blocks, THREADS, 0, *args), "ple_layer",
                      err);
}

extern "C" enum err_code k_cuda_ple_layer(struct k_stream *stream,
                                          const struct k_ple_layer_args *args, struct err *err)
{
    enum err_code code = k_check_aligned("ple_layer",
                                         {{args->gate, "gate"},
                                          {args->projection, "projection"},
                                          {args->h, "h"},
                                          {args->gated, "gated"},
                                          {args->x, "x"}},
                                         err);
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    const struct k_residual_norm_args first = k_ple_first_residual(args);
    const struct k_residual_norm_args last = k_ple_last_residual(args);
    code = k_cuda_residual_norm(stream, &first, err);
    code = code == ERR_OK ? k_cuda_ple_gate(stream, args, err) : code;
    code = code == ERR_OK ? project(stream, args, err) : code;
    return code == ERR_OK ? k_cuda_residual_norm(stream, &last, err) : code;
}

/* ---- around a product made elsewhere ---- */

static __global__ void __launch_bounds__(THREADS)
    gelu_inputs_kernel(uint4 *gated, const uint16_t *input, uint64_t stride_elems, uint32_t pieces,
                       uint32_t rows)
{
    k_begin();
    k_wait_for_predecessors();
    uint64_t at = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= (uint64_t)rows * pieces) {
        return;
    }
    k_f32x8 gate = k_unpack(k_load_fresh16(gated + at));
    k_f32x8 by =
        k_unpack(k_load_fresh16(input + at / pieces * stride_elems + at % pieces * PIECE_ELEMS));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        gate.at[i] = k_rounded(k_gelu_tanh(gate.at[i])) * by.at[i];
    }
    gated[at] = k_pack(gate);
}

extern "C" enum err_code k_cuda_ple_gelu(struct k_stream *stream,
                                         const struct k_ple_layer_args *args, struct err *err)
{
    enum err_code code =
        k_check_aligned("ple_gelu", {{args->gated, "gated"}, {args->input, "input"}}, err);
    if (code == ERR_OK &&
        (args->elems % PIECE_ELEMS != 0 || args->input_stride_elems % PIECE_ELEMS != 0)) {
        code = err_set(err, ERR_SHAPE, "ple_gelu: %u elements in rows of %llu, multiples of %u",
                       args->elems, (unsigned long long)args->input_stride_elems, PIECE_ELEMS);
    }
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    uint32_t pieces = args->elems / PIECE_ELEMS;
    uint32_t blocks = (uint32_t)(((uint64_t)args->rows * pieces + THREADS - 1) / THREADS);
    return k_launched(k_launch(stream, gelu_inputs_kernel, blocks, THREADS, 0,
                               reinterpret_cast<uint4 *>(args->gated), args->input,
                               args->input_stride_elems, pieces, args->rows),
                      "ple_gelu", err);
}
