/* Products of pairs (a token and one of its experts) with the experts' matrices.
 *
 *   gate and up: out = bf16(bf16(gelu_tanh(bf16(x gate^T))) * bf16(x up^T));  down: out = bf16(x w^T)
 *
 * Bytes: weights of every expert that has a pair once per block of its pairs, those of the others
 * never; x of a block once per tile of weight rows, from L2.  Operations 2 per weight and pair.
 *
 * A block of threads has one expert, up to COLUMNS of its pairs and a tile of weight rows.  Weights are
 * the A operand of mma.m16n8k16, pairs the columns of B; both come in stages of 64 k through a ring of
 * copies.  Each sum is one chain over k in ascending order, in every geometry: a pair's bits depend
 * on its x and its expert alone, not on the block's width nor on the pairs beside it.  Of gate and up a
 * tile of 16 rows is 8 of each, so that both sums of an output are in one thread.
 *
 * The grid is the most blocks that so many pairs can need; which expert a block has it finds in
 * `starts`, and blocks beyond the last end at once. */
#include "kernels/cuda/experts.cuh"

#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/wgmma.cuh"

constexpr uint32_t WARPS = 4;
constexpr uint32_t THREADS = WARPS * K_WARP_LANES;
constexpr uint32_t STAGE_ELEMS = 64; /* k of a stage: one row is 128 bytes */
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t ROW_PIECES = STAGE_ELEMS / PIECE_ELEMS;
constexpr uint32_t COPY_ROWS = THREADS / ROW_PIECES; /* rows that the block copies at once */
constexpr uint32_t MAX_EXPERTS = 1024;
constexpr uint32_t MAX_GRID_Y = 65535;
constexpr uint32_t SM_SHARED_BYTES = 228 * 1024;
constexpr uint32_t BLOCK_RESERVED_BYTES = 1024; /* that the system takes of each block's share */
constexpr uint32_t FULL_MASK = 0xffffffffU;

static_assert(STAGE_ELEMS * sizeof(uint16_t) == K_BLOCK_ROW_BYTES, "one swizzled row");
static_assert(COPY_ROWS == 16, "row r of a copy is row r % 16 of a tile");

/* M_TILES: tiles of 16 weight rows of a warp.  N_TILES: groups of 8 columns. */
template <bool GATE_UP, uint32_t M_TILES, uint32_t N_TILES, uint32_t STAGES, uint32_t BLOCKS>
struct geometry {
    static constexpr uint32_t TILE_ROWS = WARPS * M_TILES * 16; /* weight rows of a block */
    static constexpr uint32_t OUT_ROWS = GATE_UP ? TILE_ROWS / 2 : TILE_ROWS;
    static constexpr uint32_t COLUMNS = N_TILES * 8;
    static constexpr uint32_t A_BYTES = TILE_ROWS * K_BLOCK_ROW_BYTES;
    static constexpr uint32_t STAGE_BYTES = A_BYTES + COLUMNS * K_BLOCK_ROW_BYTES;
    static constexpr uint32_t SHARED_BYTES = STAGES * STAGE_BYTES;
    static constexpr uint32_t A_COPIES = TILE_ROWS / COPY_ROWS;
    static constexpr uint32_t B_COPIES = (COLUMNS + COPY_ROWS - 1) / COPY_ROWS;
    static constexpr uint32_t RESULT_STRIDE = OUT_ROWS + PIECE_ELEMS; /* of a column, elements */
    static constexpr uint32_t PAIR_BYTES = 1024; /* of pair_of, as the ring behind it is aligned */
    static_assert(STAGE_BYTES % 1024 == 0, "swizzled blocks begin at 1,024 bytes");
    static_assert(STAGE_BYTES >= (MAX_EXPERTS + 1) * sizeof(uint32_t), "starts fit into a stage");
    static_assert(COLUMNS * RESULT_STRIDE * sizeof(uint16_t) <= SHARED_BYTES, "results fit");
    static_assert((SHARED_BYTES + PAIR_BYTES + BLOCK_RESERVED_BYTES) * BLOCKS <= SM_SHARED_BYTES,
                  "so many blocks share an SM");
};

/* Zeroes where is_there is false (from must still be an address).  Weights are read once: the hint
 * fetches the line's neighbour, which is the next stage's. */
static __device__ __forceinline__ void copy16_ahead(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

/* The pairs of a block: pairs[first .. first + count) of one expert. */
struct pair_block {
    uint32_t expert;
    uint32_t first;
    uint32_t count; /* 0: there is no such block */
};

/* Block `index` of those that the experts' pairs are cut into, expert by expert.  Every warp finds it
 * by itself; starts [experts + 1] shared.  A lane sums the blocks of `share` experts side by side. */
static __device__ __forceinline__ pair_block find_block(const uint32_t *starts, uint32_t experts,
                                                        uint32_t columns, uint32_t index)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t share = (experts + K_WARP_LANES - 1) / K_WARP_LANES;
    uint32_t begin = min(lane * share, experts);
    uint32_t end = min(begin + share, experts);
    uint32_t blocks = 0;
    for (uint32_t e = begin; e < end; e++) {
        blocks += (starts[e + 1] - starts[e] + columns - 1) / columns;
    }
    uint32_t after = blocks; /* of this lane and those before it */
#pragma unroll
    for (uint32_t step = 1; step < K_WARP_LANES; step *= 2) {
        uint32_t other = __shfl_up_sync(FULL_MASK, after, step);
        after += lane >= step ? other : 0;
    }
    uint32_t holders = __ballot_sync(FULL_MASK, after > index);
    if (holders == 0) {
        return {0, 0, 0};
    }
    uint32_t holder = __ffs((int)holders) - 1;
    uint32_t left = index - __shfl_sync(FULL_MASK, after - blocks, holder);
    uint32_t expert = holder * share;
    for (;; expert++) {
        uint32_t of_expert = (starts[expert + 1] - starts[expert] + columns - 1) / columns;
        if (left < of_expert) {
            break;
        }
        left -= of_expert;
    }
    uint32_t first = starts[expert] + left * columns;
    return {expert, first, min(columns, starts[expert + 1] - first)};
}

/* What one thread copies of each stage: piece `piece` of its rows of weights and of x. */
template <typename G, bool GATE_UP>
struct stage_source {
    const uint16_t *weights; /* first row's piece; the others lie row_step apart */
    uint64_t row_step_elems;
    uint32_t rows_there;             /* of A_COPIES */
    uint32_t x_offsets[G::B_COPIES]; /* pieces from args.x, of row r / 16, r / 16 + 16, .. */
    uint32_t columns_there;          /* of B_COPIES */
    uint32_t to;                     /* within a stage; rows 16 apart are 2,048 bytes apart */
    uint32_t piece;

    __device__ __forceinline__ void point_to(const k_expert_product &args, const pair_block &block)
    {
        constexpr uint32_t STEP_ROWS = GATE_UP ? 8 : 16;
        uint32_t row = threadIdx.x / ROW_PIECES;
        piece = threadIdx.x % ROW_PIECES;
        to = k_block_offset(0, row, piece);

        /* x first: its rows are looked up while weights are on their way. */
        columns_there = 0;
#pragma unroll
        for (uint32_t i = 0; i < G::B_COPIES; i++) {
            uint32_t column = row + i * COPY_ROWS;
            bool is_there = column < block.count;
            uint32_t at = block.first + (is_there ? column : 0);
            uint32_t pair = args.pairs == nullptr ? at : __ldcg(args.pairs + at);
            x_offsets[i] = pair / args.pairs_per_x * (args.in_elems / PIECE_ELEMS) + piece;
            columns_there += is_there ? 1 : 0;
        }

        uint32_t out_row = blockIdx.x * G::OUT_ROWS + (GATE_UP ? row % 8 : row);
        uint32_t matrix_row = out_row + (GATE_UP && row >= 8 ? args.out_elems : 0);
        uint64_t matrix_rows = (uint64_t)args.out_elems * (GATE_UP ? 2 : 1);
        bool has_any = out_row < args.out_elems;
        uint32_t behind = has_any ? args.out_elems - 1 - out_row : 0;
        rows_there = has_any ? min(behind / STEP_ROWS + 1, G::A_COPIES) : 0;
        weights = args.weights +
                  (block.expert * matrix_rows + (has_any ? matrix_row : 0)) * args.in_elems +
                  piece * PIECE_ELEMS;
        row_step_elems = (uint64_t)STEP_ROWS * args.in_elems;
    }

    /* k `k_elems` .. + 63 into the stage at that shared address. */
    __device__ __forceinline__ void fetch(const k_expert_product &args, uint32_t stage,
                                          uint32_t k_elems) const
    {
        bool has_k = k_elems + piece * PIECE_ELEMS < args.in_elems;
        const uint16_t *from = has_k ? weights + k_elems : args.weights;
#pragma unroll
        for (uint32_t i = 0; i < G::A_COPIES; i++) {
            bool is_there = has_k && i < rows_there;
            copy16_ahead(stage + to + i * COPY_ROWS * K_BLOCK_ROW_BYTES,
                         is_there ? from + i * row_step_elems : args.weights, is_there);
        }
        const uint4 *x = reinterpret_cast<const uint4 *>(args.x);
#pragma unroll
        for (uint32_t i = 0; i < G::B_COPIES; i++) {
            bool is_there = has_k && i < columns_there;
            /* Fewer columns than rows of a copy: the other threads have nothing to write. */
            if (G::COLUMNS >= COPY_ROWS || threadIdx.x / ROW_PIECES < G::COLUMNS) {
                k_copy16(stage + G::A_BYTES + to + i * COPY_ROWS * K_BLOCK_ROW_BYTES,
                         is_there ? x + x_offsets[i] + k_elems / PIECE_ELEMS : x, is_there);
            }
        }
    }
};

/* sum += the stage's 64 k, 16 at a time. */
template <typename G, uint32_t M_TILES, uint32_t N_TILES>
static __device__ __forceinline__ void multiply_stage(uint32_t stage,
                                                      float (&sum)[M_TILES][N_TILES][4])
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t first_row = threadIdx.x / K_WARP_LANES * (M_TILES * 16);
    uint32_t x = stage + G::A_BYTES;
    uint4 both = {}; /* N_TILES 1: columns of two steps */
#pragma unroll
    for (uint32_t step = 0; step < STAGE_ELEMS / 16; step++) {
        uint4 a[M_TILES];
#pragma unroll
        for (uint32_t m = 0; m < M_TILES; m++) {
            uint32_t row = first_row + m * 16 + lane % 16;
            a[m] = k_load_matrices(stage + k_block_offset(0, row, step * 2 + lane / 16));
        }
        if constexpr (N_TILES == 1) {
            if (step % 2 == 0) {
                both = k_load_matrices(x + k_block_offset(0, lane % 8, step * 2 + lane / 8));
            }
#pragma unroll
            for (uint32_t m = 0; m < M_TILES; m++) {
                k_mma(sum[m][0], a[m], step % 2 == 0 ? both.x : both.z,
                      step % 2 == 0 ? both.y : both.w);
            }
        } else {
#pragma unroll
            for (uint32_t n = 0; n < N_TILES; n += 2) {
                uint32_t column = n * 8 + lane / 16 * 8 + lane % 8;
                uint4 b = k_load_matrices(x + k_block_offset(0, column, step * 2 + lane / 8 % 2));
#pragma unroll
                for (uint32_t m = 0; m < M_TILES; m++) {
                    k_mma(sum[m][n], a[m], b.x, b.y);
                    k_mma(sum[m][n + 1], a[m], b.z, b.w);
                }
            }
        }
    }
}

/* Rounded results into shared memory, [columns, RESULT_STRIDE]. */
template <typename G, bool GATE_UP, uint32_t M_TILES, uint32_t N_TILES>
static __device__ __forceinline__ void keep_results(const float (&sum)[M_TILES][N_TILES][4],
                                                    uint16_t *results)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t first_tile = threadIdx.x / K_WARP_LANES * M_TILES;
#pragma unroll
    for (uint32_t m = 0; m < M_TILES; m++) {
#pragma unroll
        for (uint32_t n = 0; n < N_TILES; n++) {
            const float *at = sum[m][n]; /* rows {g, g + 8} x columns {2t, 2t + 1} */
            uint16_t *to = results + (n * 8 + lane % 4 * 2) * G::RESULT_STRIDE +
                           (first_tile + m) * (GATE_UP ? 8 : 16) + lane / 4;
            if (GATE_UP) {
                to[0] = k_geglu(at[0], at[2]);
                to[G::RESULT_STRIDE] = k_geglu(at[1], at[3]);
            } else {
                to[0] = k_bf16(at[0]);
                to[G::RESULT_STRIDE] = k_bf16(at[1]);
                to[8] = k_bf16(at[2]);
                to[G::RESULT_STRIDE + 8] = k_bf16(at[3]);
            }
        }
    }
}

/* blockIdx.x: tile of weight rows; blockIdx.y: block of pairs. */
template <bool GATE_UP, uint32_t M_TILES, uint32_t N_TILES, uint32_t STAGES, uint32_t BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    expert_product_kernel(k_expert_product args)
{
    using G = geometry<GATE_UP, M_TILES, N_TILES, STAGES, BLOCKS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint32_t pair_of[G::COLUMNS];
    uint32_t ring = k_shared_address(shared);
    k_begin();
    k_wait_for_predecessors();

    pair_block block;
    if (args.starts == nullptr) {
        uint32_t first = blockIdx.y * G::COLUMNS;
        block = {0, first, min(G::COLUMNS, args.pair_count - first)};
    } else {
        /* In the last stage, which is not filled before the first barrier of the loop. */
        uint32_t *starts = reinterpret_cast<uint32_t *>(shared + (STAGES - 1) * G::STAGE_BYTES);
        for (uint32_t i = threadIdx.x; i <= args.experts; i += THREADS) {
            starts[i] = __ldcg(args.starts + i);
        }
        __syncthreads();
        block = find_block(starts, args.experts, G::COLUMNS, blockIdx.y);
    }
    if (block.count == 0) {
        return;
    }
    stage_source<G, GATE_UP> source;
    source.point_to(args, block);
    if (threadIdx.x < block.count) {
        uint32_t at = block.first + threadIdx.x;
        pair_of[threadIdx.x] = args.pairs == nullptr ? at : __ldcg(args.pairs + at);
    }

    float sum[M_TILES][N_TILES][4] = {};
    uint32_t steps = (args.in_elems + STAGE_ELEMS - 1) / STAGE_ELEMS;
#pragma unroll 1
    for (uint32_t step = 0; step < STAGES - 1; step++) {
        if (step < steps) {
            source.fetch(args, ring + step * G::STAGE_BYTES, step * STAGE_ELEMS);
        }
        k_copy_commit();
    }
    uint32_t stage = 0;
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        k_copy_wait<STAGES - 2>();
        __syncthreads(); /* all have copied this stage and are done with the one before it */
        uint32_t ahead = step + STAGES - 1;
        if (ahead < steps) {
            uint32_t freed = stage == 0 ? STAGES - 1 : stage - 1;
            source.fetch(args, ring + freed * G::STAGE_BYTES, ahead * STAGE_ELEMS);
        }
        k_copy_commit();
        multiply_stage<G, M_TILES, N_TILES>(ring + stage * G::STAGE_BYTES, sum);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    k_copy_wait<0>();
    __syncthreads();

    uint16_t *results = reinterpret_cast<uint16_t *>(shared);
    keep_results<G, GATE_UP, M_TILES, N_TILES>(sum, results);
    __syncthreads();
    constexpr uint32_t RESULT_PIECES = G::OUT_ROWS / PIECE_ELEMS;
    uint32_t first_out = blockIdx.x * G::OUT_ROWS;
    for (uint32_t i = threadIdx.x; i < block.count * RESULT_PIECES; i += THREADS) {
        uint32_t column = i / RESULT_PIECES;
        uint32_t row = i % RESULT_PIECES * PIECE_ELEMS;
        if (first_out + row < args.out_stride_elems) {
            uint16_t *to =
                args.out + (uint64_t)pair_of[column] * args.out_stride_elems + first_out + row;
            *reinterpret_cast<uint4 *>(to) =
                *reinterpret_cast<const uint4 *>(results + column * G::RESULT_STRIDE + row);
        }
    }
}

/* ---- launches ---- */

/* Blocks of pairs at most: an expert's last block may hold a single pair. */
static uint32_t most_blocks(const k_expert_product &product, uint32_t columns)
{
    uint64_t pairs = product.pair_count;
    uint64_t experts = pairs < product.experts ? pairs : product.experts;
    return (uint32_t)((pairs + experts * (columns - 1)) / columns);
}

/* Of few rows an expert has no more pairs than rows; of many, twice their mean mostly suffices. */
static uint32_t choose_columns(const struct k_expert_args *args)
{
    uint32_t mean = (args->rows * args->top_experts + args->experts - 1) / args->experts;
    uint32_t columns = args->rows <= 8 ? 8 : 16;
    while (args->rows > 16 && columns < 2 * mean && columns < 128) {
        columns *= 2;
    }
    return columns;
}

template <bool GATE_UP, uint32_t M_TILES, uint32_t N_TILES, uint32_t STAGES, uint32_t BLOCKS>
struct variant {
    using G = geometry<GATE_UP, M_TILES, N_TILES, STAGES, BLOCKS>;

    static cudaError_t launch(k_stream *stream, const k_expert_product &product)
    {
        dim3 grid((product.out_stride_elems + G::OUT_ROWS - 1) / G::OUT_ROWS,
                  most_blocks(product, G::COLUMNS));
        return k_launch(stream, expert_product_kernel<GATE_UP, M_TILES, N_TILES, STAGES, BLOCKS>,
                        grid, THREADS, G::SHARED_BYTES, product);
    }

    static cudaError_t prepare(cudaError_t error)
    {
        const void *kernel = reinterpret_cast<const void *>(
            expert_product_kernel<GATE_UP, M_TILES, N_TILES, STAGES, BLOCKS>);
        if (error == cudaSuccess) {
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         G::SHARED_BYTES);
        }
        /* All of it: else the system may leave room for fewer blocks than are meant to share an SM. */
        return error == cudaSuccess
                   ? cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                          cudaSharedmemCarveoutMaxShared)
                   : error;
    }
};

/* Few columns: many copies in flight, three blocks on an SM; many: weights shared by more of them. */
template <bool GATE_UP>
struct variants {
    using of_8 = variant<GATE_UP, 1, 1, 8, 3>;
    using of_16 = variant<GATE_UP, 1, 2, 7, 3>;
    using of_32 = variant<GATE_UP, 1, 4, 6, 3>;
    using of_64 = variant<GATE_UP, 2, 8, 4, 2>;
    using of_128 = variant<GATE_UP, 2, 16, 3, 2>;

    static cudaError_t launch(k_stream *stream, const k_expert_product &product, uint32_t columns)
    {
        return columns == 8    ? of_8::launch(stream, product)
               : columns == 16 ? of_16::launch(stream, product)
               : columns == 32 ? of_32::launch(stream, product)
               : columns == 64 ? of_64::launch(stream, product)
                               : of_128::launch(stream, product);
    }

    static cudaError_t prepare(cudaError_t error)
    {
        error = of_8::prepare(error);
        error = of_16::prepare(error);
        error = of_32::prepare(error);
        error = of_64::prepare(error);
        return of_128::prepare(error);
    }
};

cudaError_t k_cuda_experts_prepare(void)
{
    return variants<false>::prepare(variants<true>::prepare(cudaSuccess));
}

static enum err_code check_sizes(const struct k_expert_product *product, uint32_t columns,
                                 struct err *err)
{
    if (product->in_elems == 0 || product->in_elems % PIECE_ELEMS != 0 ||
        product->out_stride_elems % PIECE_ELEMS != 0) {
        return err_set(err, ERR_SHAPE, "experts: %u inputs, %u outputs, multiples of %u",
                       product->in_elems, product->out_stride_elems, PIECE_ELEMS);
    }
    if (product->experts == 0 || product->experts > MAX_EXPERTS) {
        return err_set(err, ERR_SHAPE, "experts: %u of them, 1 to %u are taken", product->experts,
                       MAX_EXPERTS);
    }
    bool is_width =
        columns == 8 || columns == 16 || columns == 32 || columns == 64 || columns == 128;
    if (!is_width) {
        return err_set(err, ERR_SHAPE, "experts: blocks of %u pairs, must be 8, 16, 32, 64 or 128",
                       columns);
    }
    if (most_blocks(*product, columns) > MAX_GRID_Y) {
        return err_set(err, ERR_SHAPE, "experts: %u pairs in blocks of %u, at most %u blocks",
                       product->pair_count, columns, MAX_GRID_Y);
    }
    return ERR_OK;
}

enum err_code k_cuda_expert_multiply(struct k_stream *stream,
                                     const struct k_expert_product *product, bool is_gate_up,
                                     uint32_t columns, struct err *err)
{
    enum err_code code = check_sizes(product, columns, err);
    code = code == ERR_OK
               ? k_check_aligned(
                     "experts",
                     {{product->x, "x"}, {product->weights, "weights"}, {product->out, "out"}}, err)
               : code;
    if (code != ERR_OK || product->pair_count == 0) {
        return code;
    }
    return k_launched(is_gate_up ? variants<true>::launch(stream, *product, columns)
                                 : variants<false>::launch(stream, *product, columns),
                      "experts", err);
}

static enum err_code multiply(struct k_stream *stream, const struct k_expert_args *args,
                              bool is_gate_up, struct err *err)
{
    struct k_expert_product product = {};
    product.x = args->x;
    product.pairs = args->routing.pairs;
    product.starts = args->routing.starts;
    product.pair_count = args->rows * args->top_experts;
    product.experts = args->experts;
    product.pairs_per_x = is_gate_up ? args->top_experts : 1;
    product.in_elems = args->in_elems;
    product.out_elems = args->out_elems;
    product.out_stride_elems = args->out_elems;
    product.weights = args->weights;
    product.out = args->out;
    if (args->experts == 0) {
        return err_set(err, ERR_SHAPE, "experts: none of them");
    }
    uint32_t columns = args->block_rows == 0 ? choose_columns(args) : args->block_rows;
    return k_cuda_expert_multiply(stream, &product, is_gate_up, columns, err);
}

extern "C" enum err_code k_cuda_expert_gate_up(struct k_stream *stream,
                                               const struct k_expert_args *args, struct err *err)
{
    return multiply(stream, args, true, err);
}

extern "C" enum err_code k_cuda_expert_down(struct k_stream *stream,
                                            const struct k_expert_args *args, struct err *err)
{
    return multiply(stream, args, false, err);
}
