/* Products of few rows with large matrices: out = x W^T, gate|up with GeGLU, and the head.
 *
 * Bytes: every weight once (2 * in * out), and x once per block (2 * rows * in * blocks, from L2).
 * Operations are 2 * rows per weight: far below the tensor rate, so the whole design is about keeping
 * weight bytes in flight.
 *
 * split_k_stream: one block per SM.  A block owns a range of weight rows and a slice of k; its warps
 * share the slice, blocks of 32 k interleaved over them so that neighbouring warps read
 * neighbouring bytes.  Weights are the A operand of mma.m16n8k16 (16 weight rows), activations the
 * B operand (8 activation rows).  A thread copies the 16 bytes k = 8t .. 8t+7 of its two weight rows
 * into a ring that it alone reads, so the loop has no barrier; the same permutation of k on both
 * operands makes a 16-byte piece two fragments.  The ring is filled before the wait for earlier
 * launches.  Sums over warps go through shared memory in warp order; slices of k leave f32 partial
 * sums, added in slice order by residual_norm or by sum_slices.
 *
 * warp_per_row: any k that is a multiple of 8, for shapes that the first does not take. */
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/reduce.cuh"

constexpr uint32_t K_BLOCK = 32;      /* k of one step of a warp */
constexpr uint32_t TILE_ROWS = 16;    /* weight rows of one mma */
constexpr uint32_t STEP_BYTES = 1024; /* ring bytes of one step of a warp */
constexpr uint32_t MAX_WARPS = 16;
constexpr uint32_t MIN_WARPS = 6;
constexpr uint32_t MAX_SLICES = 8;
constexpr uint32_t STAGES_FEW = 12; /* up to 8 rows: activations in registers */
constexpr uint32_t STAGES_MANY = 5; /* up to 16 rows: activations in shared memory */
constexpr uint32_t MANY_STEPS = 24; /* of fewer warps; only where registers hold no activations */
constexpr uint32_t SHARED_LIMIT = 227 * 1024;
constexpr uint32_t SHARED_FLOOR = 117 * 1024; /* more than half an SM: one block on each */
constexpr uint32_t PLAIN_THREADS = 256;
constexpr uint32_t PLAIN_ROWS = 4;

enum product {
    PRODUCT_LINEAR,
    PRODUCT_GATE_UP,
    PRODUCT_HEAD,
    PRODUCT_PLE_GATE, /* with what a layer gets of per-layer embeddings */
};

struct product_args {
    const uint16_t *x;           /* [rows or gathered from, in] */
    const uint32_t *token_index; /* head: [rows] */
    uint32_t rows;
    uint32_t in_elems;
    uint32_t out_elems; /* all parts; gate_up: intermediate */
    uint32_t part_ends[K_MAX_LINEAR_PARTS];
    const uint16_t *weights[K_MAX_LINEAR_PARTS];
    uint32_t slices;
    float softcap;
    const uint16_t *ple_input; /* [rows, ple_stride_elems], out_elems used */
    uint64_t ple_stride_elems;
    float *partial; /* [slices, rows, out] f32 where slices > 1 */
    uint16_t *out;
};

/* Weights are read once: the hint fetches the line's neighbour that another warp will want. */
static __device__ __forceinline__ void copy16_ahead(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

static __device__ __forceinline__ uint4 load_shared16(uint32_t at)
{
    uint4 out;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
                 : "r"(at)
                 : "memory");
    return out;
}

/* First k of weight row `row` of the parts side by side. */
static __device__ __forceinline__ const uint16_t *weight_row(const product_args &args, uint32_t row)
{
    /* Selected, not indexed: an index that is not a constant would copy the arguments to memory. */
    bool is_first = row < args.part_ends[0];
    bool is_second = row < args.part_ends[1];
    uint32_t first = is_first ? 0 : is_second ? args.part_ends[0] : args.part_ends[1];
    const uint16_t *part = is_first    ? args.weights[0]
                           : is_second ? args.weights[1]
                                       : args.weights[2];
    return part + (uint64_t)(row - first) * args.in_elems;
}

/* What one thread fetches: two weight rows of a tile. */
template <product PRODUCT>
struct tile_source {
    const uint16_t *low;  /* row g of the tile; gate_up: of gate */
    const uint16_t *high; /* row g + 8; gate_up: row g of up */
    bool has_low;
    bool has_high;

    __device__ __forceinline__ void point_to(const product_args &args, uint32_t first_row,
                                             uint32_t end_row, uint32_t tile, uint32_t group,
                                             uint32_t k_offset)
    {
        if constexpr (PRODUCT == PRODUCT_GATE_UP) {
            uint32_t row = first_row + tile * 8 + group;
            has_low = row < end_row;
            has_high = has_low;
            uint64_t at = (uint64_t)(has_low ? row : first_row) * args.in_elems + k_offset;
            low = args.weights[0] + at;
            high = args.weights[1] + at;
        } else {
            uint32_t row = first_row + tile * TILE_ROWS + group;
            has_low = row < end_row;
            has_high = row + 8 < end_row;
            low = weight_row(args, has_low ? row : first_row) + k_offset;
            high = weight_row(args, has_high ? row + 8 : first_row) + k_offset;
        }
    }

    __device__ __forceinline__ void fetch(uint32_t to, uint32_t k_step_elems) const
    {
        if (has_low) {
            copy16_ahead(to, low + k_step_elems);
        }
        if (has_high) {
            copy16_ahead(to + STEP_BYTES / 2, high + k_step_elems);
        }
        k_copy_commit();
    }
};

static __device__ __forceinline__ uint16_t ple_gated(const product_args &args, float sum,
                                                     uint32_t row, uint32_t out_row)
{
    float input = k_f32(__ldcg(args.ple_input + row * args.ple_stride_elems + out_row));
    return k_bf16(k_rounded(k_gelu_tanh(k_rounded(sum))) * input);
}

/* Adds the warps' sums of a tile, in warp order, and writes its outputs.
 *   sums [warps, N_TILES, 128] f32, in the order the accumulators lie */
template <product PRODUCT, int N_TILES>
static __device__ __forceinline__ void finish_tile(const product_args &args, const float *sums,
                                                   uint32_t warps, uint32_t first_row,
                                                   uint32_t end_row, uint32_t tile, uint32_t slice)
{
    constexpr uint32_t OUT_ROWS = PRODUCT == PRODUCT_GATE_UP ? 8 : TILE_ROWS;
    constexpr uint32_t WARP_SUMS = N_TILES * 128;
    for (uint32_t i = threadIdx.x; i < N_TILES * 8 * OUT_ROWS; i += blockDim.x) {
        uint32_t column = i / OUT_ROWS; /* activation row */
        uint32_t row = i % OUT_ROWS;
        uint32_t out_row = first_row + tile * OUT_ROWS + row;
        if (column >= args.rows || out_row >= end_row) {
            continue;
        }
        /* Lane 4 * (row % 8) + column % 8 / 2 holds {row, row + 8} x {even, odd column}. */
        uint32_t at =
            column / 8 * 128 + ((row % 8) * 4 + column % 8 / 2) * 4 + column % 2 + row / 8 * 2;
        float sum = 0.0F;
        float up = 0.0F;
        for (uint32_t warp = 0; warp < warps; warp++) {
            sum += sums[warp * WARP_SUMS + at];
            up += PRODUCT == PRODUCT_GATE_UP ? sums[warp * WARP_SUMS + at + 2] : 0.0F;
        }
        uint64_t to = (uint64_t)column * args.out_elems + out_row;
        if (PRODUCT == PRODUCT_GATE_UP) {
            args.out[to] = k_geglu(sum, up);
        } else if (PRODUCT == PRODUCT_HEAD) {
            args.out[to] = k_bf16(k_softcapped(sum, args.softcap));
        } else if (PRODUCT == PRODUCT_PLE_GATE) {
            args.out[to] = ple_gated(args, sum, column, out_row);
        } else if (args.slices > 1) {
            args.partial[(uint64_t)slice * args.rows * args.out_elems + to] = sum;
        } else {
            args.out[to] = k_bf16(sum);
        }
    }
}

static __device__ __forceinline__ const uint16_t *activation_row(const product_args &args,
                                                                 uint32_t row)
{
    uint64_t from = args.token_index == nullptr ? row : __ldcg(args.token_index + row);
    return args.x + from * args.in_elems;
}

/* N_TILES: groups of 8 activation rows.  STEPS: blocks of 32 k of a warp.  Dynamic shared memory:
 * ring [warps, STAGES, 1024 B], sums [2, warps, N_TILES * 128] f32, and for N_TILES 2 the
 * activations [warps, N_TILES, STEPS, 32 lanes, 16 B] in fragment order. */
template <product PRODUCT, int N_TILES, int STEPS, int STAGES>
static __global__ void __launch_bounds__(MAX_WARPS *K_WARP_LANES, 1)
    split_k_stream_kernel(product_args args)
{
    constexpr bool IN_REGISTERS = N_TILES == 1;
    constexpr uint32_t OUT_ROWS = PRODUCT == PRODUCT_GATE_UP ? 8 : TILE_ROWS;
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t warps = blockDim.x / K_WARP_LANES;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t group = lane / 4;
    uint32_t step_elems = warps * K_BLOCK;
    uint32_t slice = blockIdx.x % args.slices;
    uint32_t range = blockIdx.x / args.slices;
    uint32_t ranges = gridDim.x / args.slices;
    uint32_t first_row = (uint32_t)((uint64_t)args.out_elems * range / ranges);
    uint32_t end_row = (uint32_t)((uint64_t)args.out_elems * (range + 1) / ranges);
    uint32_t tiles = (end_row - first_row + OUT_ROWS - 1) / OUT_ROWS;
    uint32_t k_offset = slice * step_elems * STEPS + warp * K_BLOCK + lane % 4 * 8;
    uint32_t ring = k_shared_address(shared) + warp * (STAGES * STEP_BYTES) + lane * 16;
    float *sums = reinterpret_cast<float *>(shared + warps * STAGES * STEP_BYTES);
    uint32_t activations = k_shared_address(sums + 2 * warps * N_TILES * 128) +
                           warp * (N_TILES * STEPS * 512) + lane * 16;

    k_begin();
    tile_source<PRODUCT> source;
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        if (stage % STEPS == 0) {
            source.point_to(args, first_row, end_row, stage / STEPS, group, k_offset);
        }
        source.fetch(ring + stage * STEP_BYTES, stage % STEPS * step_elems);
    }
    k_wait_for_predecessors();

    uint4 held[IN_REGISTERS ? STEPS : 1];
    if constexpr (IN_REGISTERS) {
        const uint16_t *row = activation_row(args, group < args.rows ? group : 0) + k_offset;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            held[step] = group < args.rows ? k_load_fresh16(row + step * step_elems)
                                           : make_uint4(0, 0, 0, 0);
        }
    } else {
        const uint16_t *rows[N_TILES];
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            uint32_t row = n * 8 + group;
            rows[n] = activation_row(args, row < args.rows ? row : 0) + k_offset;
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                k_copy16(activations + (n * STEPS + step) * 512, rows[n] + step * step_elems,
                         n * 8 + group < args.rows);
            }
            k_copy_commit();
        }
    }

    uint32_t stage_at = ring;
    const uint32_t ring_end = ring + STAGES * STEP_BYTES;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        float sum[N_TILES][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            /* Groups complete in order.  In the first tile the activations of this step, which were
             * committed after the whole ring, must be there too. */
            if (!IN_REGISTERS && tile == 0 && step < STAGES) {
                k_copy_wait<STEPS - 1>();
            } else {
                k_copy_wait<STAGES - 1>();
            }
            uint4 low = load_shared16(stage_at);
            uint4 high = load_shared16(stage_at + STEP_BYTES / 2);
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                uint4 b = IN_REGISTERS ? held[IN_REGISTERS ? step : 0]
                                       : load_shared16(activations + (n * STEPS + step) * 512);
                k_mma(sum[n], make_uint4(low.x, high.x, low.y, high.y), b.x, b.y);
                k_mma(sum[n], make_uint4(low.z, high.z, low.w, high.w), b.z, b.w);
            }
            if ((step + STAGES) % STEPS == 0) {
                source.point_to(args, first_row, end_row, tile + (step + STAGES) / STEPS, group,
                                k_offset);
            }
            source.fetch(stage_at, (step + STAGES) % STEPS * step_elems);
            stage_at += STEP_BYTES;
            stage_at = stage_at == ring_end ? ring : stage_at;
        }
        float *tile_sums = sums + tile % 2 * warps * N_TILES * 128;
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            reinterpret_cast<float4 *>(tile_sums)[(warp * N_TILES + n) * 32 + lane] =
                make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]);
        }
        __syncthreads();
        finish_tile<PRODUCT, N_TILES>(args, tile_sums, warps, first_row, end_row, tile, slice);
    }
    k_copy_wait<0>();
}

/* One warp per weight row, up to PLAIN_ROWS activation rows at a time. */
template <product PRODUCT>
static __global__ void __launch_bounds__(PLAIN_THREADS) warp_per_row_kernel(product_args args)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t out_row = blockIdx.x * (PLAIN_THREADS / K_WARP_LANES) + threadIdx.x / K_WARP_LANES;
    k_begin();
    k_wait_for_predecessors();
    if (out_row >= args.out_elems) {
        return;
    }
    const uint16_t *gate = PRODUCT == PRODUCT_GATE_UP
                               ? args.weights[0] + (uint64_t)out_row * args.in_elems
                               : weight_row(args, out_row);
    const uint16_t *up = args.weights[1] + (uint64_t)out_row * args.in_elems;
    uint32_t first = blockIdx.y * PLAIN_ROWS;
    uint32_t count = args.rows - first < PLAIN_ROWS ? args.rows - first : PLAIN_ROWS;
    float sums[PLAIN_ROWS] = {};
    float up_sums[PLAIN_ROWS] = {};
    for (uint32_t k = lane * 8; k < args.in_elems; k += K_WARP_LANES * 8) {
        k_f32x8 w = k_unpack(__ldg(reinterpret_cast<const uint4 *>(gate + k)));
        k_f32x8 w_up = {};
        if (PRODUCT == PRODUCT_GATE_UP) {
            w_up = k_unpack(__ldg(reinterpret_cast<const uint4 *>(up + k)));
        }
#pragma unroll
        for (uint32_t r = 0; r < PLAIN_ROWS; r++) {
            if (r < count) {
                k_f32x8 x = k_unpack(k_load_fresh16(activation_row(args, first + r) + k));
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sums[r] += w.at[i] * x.at[i];
                    up_sums[r] += PRODUCT == PRODUCT_GATE_UP ? w_up.at[i] * x.at[i] : 0.0F;
                }
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < PLAIN_ROWS; r++) {
        float sum = k_warp_sum(sums[r]);
        float up_sum = PRODUCT == PRODUCT_GATE_UP ? k_warp_sum(up_sums[r]) : 0.0F;
        if (lane == 0 && r < count) {
            uint16_t *to = args.out + (uint64_t)(first + r) * args.out_elems + out_row;
            *to = PRODUCT == PRODUCT_GATE_UP    ? k_geglu(sum, up_sum)
                  : PRODUCT == PRODUCT_HEAD     ? k_bf16(k_softcapped(sum, args.softcap))
                  : PRODUCT == PRODUCT_PLE_GATE ? ple_gated(args, sum, first + r, out_row)
                                                : k_bf16(sum);
        }
    }
}

/* out = bf16(sum of the slices, in order). */
static __global__ void __launch_bounds__(PLAIN_THREADS)
    sum_slices_kernel(const float *partial, uint32_t slices, uint64_t elems, uint16_t *out)
{
    k_begin();
    k_wait_for_predecessors();
    for (uint64_t i = (uint64_t)blockIdx.x * PLAIN_THREADS + threadIdx.x; i < elems;
         i += (uint64_t)gridDim.x * PLAIN_THREADS) {
        float sum = 0.0F;
        for (uint32_t slice = 0; slice < slices; slice++) {
            sum += __ldcg(partial + slice * elems + i);
        }
        out[i] = k_bf16(sum);
    }
}

/* ---- launches ---- */

struct split {
    uint32_t slices; /* 0: no split fits */
    uint32_t warps;
    uint32_t steps;
    uint32_t shared_bytes;
};

static uint32_t shared_bytes_of(uint32_t warps, uint32_t steps, uint32_t n_tiles)
{
    uint32_t stages = n_tiles == 1 ? STAGES_FEW : STAGES_MANY;
    uint32_t held = n_tiles == 1 ? 0 : n_tiles * steps * 512;
    return warps * (stages * STEP_BYTES + 2 * n_tiles * 512 + held);
}

template <int N_TILES>
static constexpr int most_steps(void)
{
    return N_TILES == 1 ? 12 : (int)MANY_STEPS;
}

/* The fewest slices, then the most warps. */
static struct split choose_split(uint32_t in_elems, uint32_t n_tiles, uint32_t max_slices)
{
    static const uint32_t step_choices[] = {4, 8, 12, MANY_STEPS, 6};
    for (uint32_t slices = 1; slices <= max_slices; slices *= 2) {
        for (uint32_t steps : step_choices) {
            uint32_t warp_elems = steps * K_BLOCK * slices;
            uint32_t warps = in_elems / warp_elems;
            uint32_t bytes = shared_bytes_of(warps, steps, n_tiles);
            if (steps == MANY_STEPS && n_tiles == 1) {
                continue;
            }
            if (in_elems % warp_elems == 0 && warps >= MIN_WARPS && warps <= MAX_WARPS &&
                bytes <= SHARED_LIMIT) {
                return {slices, warps, steps, bytes > SHARED_FLOOR ? bytes : SHARED_FLOOR};
            }
        }
    }
    return {};
}

template <product PRODUCT, int N_TILES, int STEPS>
static cudaError_t launch_stream(struct k_stream *stream, const product_args &args,
                                 const struct split &split)
{
    constexpr int STAGES = N_TILES == 1 ? STAGES_FEW : STAGES_MANY;
    uint32_t blocks = stream->sm_count / split.slices * split.slices;
    return k_launch(stream, split_k_stream_kernel<PRODUCT, N_TILES, STEPS, STAGES>, blocks,
                    split.warps * K_WARP_LANES, split.shared_bytes, args);
}

template <product PRODUCT, int N_TILES>
static cudaError_t launch_steps(struct k_stream *stream, const product_args &args,
                                const struct split &split)
{
    switch (split.steps) {
    case 4: return launch_stream<PRODUCT, N_TILES, 4>(stream, args, split);
    case 6: return launch_stream<PRODUCT, N_TILES, 6>(stream, args, split);
    case 8: return launch_stream<PRODUCT, N_TILES, 8>(stream, args, split);
    case 12: return launch_stream<PRODUCT, N_TILES, 12>(stream, args, split);
    default: /* foreign */
        return launch_stream<PRODUCT, N_TILES, most_steps<N_TILES>()>(stream, args, split);
    }
}

template <product PRODUCT>
static cudaError_t launch_plain(struct k_stream *stream, const product_args &args)
{
    constexpr uint32_t BLOCK_ROWS = PLAIN_THREADS / K_WARP_LANES;
    dim3 grid((args.out_elems + BLOCK_ROWS - 1) / BLOCK_ROWS,
              (args.rows + PLAIN_ROWS - 1) / PLAIN_ROWS);
    return k_launch(stream, warp_per_row_kernel<PRODUCT>, grid, PLAIN_THREADS, 0, args);
}

static cudaError_t sum_slices(struct k_stream *stream, const product_args &args)
{
    uint64_t elems = (uint64_t)args.rows * args.out_elems;
    uint64_t blocks = (elems + PLAIN_THREADS - 1) / PLAIN_THREADS;
    blocks = blocks < stream->sm_count * 4 ? blocks : stream->sm_count * 4;
    return k_launch(stream, sum_slices_kernel, (uint32_t)blocks, PLAIN_THREADS, 0, args.partial,
                    args.slices, elems, args.out);
}

template <product PRODUCT>
static cudaError_t launch_product(struct k_stream *stream, product_args args,
                                  bool may_leave_partial)
{
    stream->partial = {}; /* this product may overwrite the scratch it lies in */
    uint32_t n_tiles = args.rows <= 8 ? 1 : 2;
    uint32_t max_slices = PRODUCT == PRODUCT_LINEAR ? MAX_SLICES : 1;
    struct split split = {};
    if (args.rows <= K_CUDA_SMALL_ROWS) {
        split = choose_split(args.in_elems, n_tiles, max_slices);
    }
    if (split.slices == 0) {
        return launch_plain<PRODUCT>(stream, args);
    }
    args.slices = split.slices;
    args.partial = reinterpret_cast<float *>(stream->scratch);
    cudaError_t error = n_tiles == 1 ? launch_steps<PRODUCT, 1>(stream, args, split)
                                     : launch_steps<PRODUCT, 2>(stream, args, split);
    if (error != cudaSuccess || split.slices == 1) {
        return error;
    }
    if (may_leave_partial) {
        stream->partial = {args.out, args.partial, split.slices};
        return cudaSuccess;
    }
    return sum_slices(stream, args);
}

static enum err_code check_in(const char *what, uint32_t in_elems, struct err *err)
{
    if (in_elems == 0 || in_elems % 8 != 0) {
        return err_set(err, ERR_SHAPE, "%s: %u input elements, a multiple of 8", what, in_elems);
    }
    return ERR_OK;
}

extern "C" enum err_code k_cuda_linear(struct k_stream *stream, const struct k_linear_args *args,
                                       struct err *err)
{
    enum err_code code = check_in("linear", args->in_elems, err);
    code = code == ERR_OK ? k_check_aligned("linear",
                                            {{args->x, "x"},
                                             {args->weights[0], "weights"},
                                             {args->weights[1], "weights"},
                                             {args->weights[2], "weights"}},
                                            err)
                          : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    if (args->part_count == 0 || args->part_count > K_MAX_LINEAR_PARTS) {
        return err_set(err, ERR_SHAPE, "linear: %u matrices, 1 to %u are taken", args->part_count,
                       K_MAX_LINEAR_PARTS);
    }
    product_args product = {};
    product.x = args->x;
    product.rows = args->rows;
    product.in_elems = args->in_elems;
    for (uint32_t part = 0; part < K_MAX_LINEAR_PARTS; part++) {
        bool is_there = part < args->part_count;
        product.out_elems += is_there ? args->out_elems[part] : 0;
        product.part_ends[part] = product.out_elems;
        product.weights[part] = is_there ? args->weights[part] : nullptr;
    }
    if (product.out_elems > stream->shape.max_linear_out_elems) {
        return err_set(err, ERR_SHAPE, "linear: %u outputs, the stream was made for %u",
                       product.out_elems, stream->shape.max_linear_out_elems);
    }
    product.out = args->out;
    return k_launched(launch_product<PRODUCT_LINEAR>(stream, product, args->feeds_residual_norm),
                      "linear", err);
}

extern "C" enum err_code k_cuda_gate_up(struct k_stream *stream, const struct k_gate_up_args *args,
                                        struct err *err)
{
    enum err_code code = check_in("gate_up", args->in_elems, err);
    code = code == ERR_OK
               ? k_check_aligned("gate_up",
                                 {{args->x, "x"}, {args->gate, "gate"}, {args->up, "up"}}, err)
               : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    product_args product = {};
    product.x = args->x;
    product.rows = args->rows;
    product.in_elems = args->in_elems;
    product.out_elems = args->intermediate_elems;
    product.weights[0] = args->gate;
    product.weights[1] = args->up;
    product.out = args->out;
    return k_launched(launch_product<PRODUCT_GATE_UP>(stream, product, false), "gate_up", err);
}

extern "C" enum err_code k_cuda_head(struct k_stream *stream, const struct k_head_args *args,
                                     struct err *err)
{
    enum err_code code = check_in("head", args->hidden_elems, err);
    code = code == ERR_OK ? k_check_aligned("head", {{args->x, "x"}, {args->table, "table"}}, err)
                          : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    product_args product = {};
    product.x = args->x;
    product.token_index = args->token_index;
    product.rows = args->rows;
    product.in_elems = args->hidden_elems;
    product.out_elems = args->vocab_tokens;
    product.part_ends[0] = args->vocab_tokens;
    product.part_ends[1] = args->vocab_tokens;
    product.weights[0] = args->table;
    product.softcap = args->softcap;
    product.out = args->logits;
    return k_launched(launch_product<PRODUCT_HEAD>(stream, product, false), "head", err);
}

extern "C" enum err_code k_cuda_ple_gate(struct k_stream *stream,
                                         const struct k_ple_layer_args *args, struct err *err)
{
    enum err_code code = check_in("ple_gate", args->hidden_elems, err);
    code = code == ERR_OK ? k_check_aligned("ple_gate", {{args->x, "x"}, {args->gate, "gate"}}, err)
                          : code;
    if (code != ERR_OK || args->rows == 0) {
        return code;
    }
    product_args product = {};
    product.x = args->x;
    product.rows = args->rows;
    product.in_elems = args->hidden_elems;
    product.out_elems = args->elems;
    product.part_ends[0] = args->elems;
    product.part_ends[1] = args->elems;
    product.weights[0] = args->gate;
    product.ple_input = args->input;
    product.ple_stride_elems = args->input_stride_elems;
    product.out = args->gated;
    return k_launched(launch_product<PRODUCT_PLE_GATE>(stream, product, false), "ple_gate", err);
}

uint64_t k_cuda_linear_scratch_bytes(const k_cuda_shape *shape)
{
    return (uint64_t)MAX_SLICES * K_CUDA_SMALL_ROWS * shape->max_linear_out_elems * sizeof(float);
}

template <product PRODUCT, int N_TILES>
static cudaError_t allow_shared(cudaError_t error)
{
    constexpr int STAGES = N_TILES == 1 ? STAGES_FEW : STAGES_MANY;
    const void *kernels[] = {
        reinterpret_cast<const void *>(split_k_stream_kernel<PRODUCT, N_TILES, 4, STAGES>),
        reinterpret_cast<const void *>(split_k_stream_kernel<PRODUCT, N_TILES, 6, STAGES>),
        reinterpret_cast<const void *>(split_k_stream_kernel<PRODUCT, N_TILES, 8, STAGES>),
        reinterpret_cast<const void *>(split_k_stream_kernel<PRODUCT, N_TILES, 12, STAGES>),
        reinterpret_cast<const void *>(
            split_k_stream_kernel<PRODUCT, N_TILES, most_steps<N_TILES>(), STAGES>),
    };
    for (const void *kernel : kernels) {
        if (error == cudaSuccess) {
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         SHARED_LIMIT);
        }
    }
    return error;
}

cudaError_t k_cuda_linear_prepare(void)
{
    cudaError_t error = cudaSuccess;
    error = allow_shared<PRODUCT_LINEAR, 1>(error);
    error = allow_shared<PRODUCT_LINEAR, 2>(error);
    error = allow_shared<PRODUCT_GATE_UP, 1>(error);
    error = allow_shared<PRODUCT_GATE_UP, 2>(error);
    error = allow_shared<PRODUCT_PLE_GATE, 1>(error);
    error = allow_shared<PRODUCT_PLE_GATE, 2>(error);
    error = allow_shared<PRODUCT_HEAD, 1>(error);
    return allow_shared<PRODUCT_HEAD, 2>(error);
}
