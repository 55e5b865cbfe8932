/* Attention of few tokens: the keys of each are split into chunks spread over the device.
 *
 *   scores = q k^T, f32; p = exp(scores - max), f32, rounded to bf16 for p v; sums f32
 *
 * Bytes: 2 (K, V) * 2 * head_dim per key and kv head, once; partial outputs 4 * head_dim per chunk
 * and query head, written and read once in L2 (16 rows, head_dim 256, group 2: 1% of K and V).
 * Operations: 4 * head_dim per key and query head: at group 16 8 a byte, far below the tensor rate.
 *
 * A row's chunks depend on its own length and on the count of rows, padding included: at one count,
 * its bits do not depend on what runs beside it.
 * Items are (row, chunk, kv head), taken in turns by workers: a warp where head_dim is 256; four
 * warps where it is 512, each with its 128 columns of Q, K and V, which add up their scores through
 * shared memory in warp order.  A worker copies tiles of K and V into a ring that only its own warp
 * reads and that runs on from item to item.
 * Keys are the 16 rows of an mma, query heads its 8 columns: s^T = K q^T, o^T = V^T p^T.
 * combine: one block per row and query head adds the chunks in order. */
#include <math.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/page.cuh"
#include "kernels/cuda/device/reduce.cuh"

constexpr uint32_t MAX_ROWS = K_SPLIT_KV_MAX_ROWS;
constexpr uint32_t CHUNK_GRAIN = 32;  /* keys; chunks are multiples */
constexpr uint32_t CHUNK_KEYS = 1024; /* at most, of rows up to CHUNK_KEYS * MAX_SPLITS */
constexpr uint32_t MAX_SPLITS = 64;
constexpr uint32_t MAX_WORKERS = 640; /* that a step is planned for */
constexpr uint32_t STAGES = 3;
constexpr uint32_t STAGE_BYTES = 16384; /* K and V of a tile, of one warp */
constexpr uint32_t WARP_RING_BYTES = STAGES * STAGE_BYTES;
constexpr uint32_t MAX_WARPS = 4;
constexpr uint32_t MMA_KEYS = 16;
constexpr uint32_t MMA_HEADS = 8;
constexpr uint32_t COMBINE_LOADS = 16; /* chunks in flight */
constexpr uint32_t PIECE_BYTES = 16;
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t FULL_MASK = 0xffffffffU;
constexpr float LOG2E = 1.4426950408889634F;

static_assert(MAX_SPLITS == 2 * K_WARP_LANES, "combine: two splits a lane");
static_assert(MAX_ROWS % K_WARP_LANES == 0, "rows are planned by one warp");

/* How many chunks a row is cut into. */
struct split_rule {
    uint32_t wanted; /* what occupies the device if all rows are alike */
    uint32_t most;   /* places in scratch */
};

/* Scratch: outputs [rows, rule.most, heads, head_dim] f32, then their maxima and sums
 * [rows, heads, rule.most] of two f32. */
struct partials {
    split_rule rule;
    float *out;
    float2 *stats;
};

/* Keys of a row and how they are split. */
struct row_keys {
    uint32_t begin;
    uint32_t end;
    uint32_t chunk;
    uint32_t splits; /* 0: a padding token */
};

/* Chunks stay short enough to spread one long row among short ones. */
static __device__ __forceinline__ row_keys keys_of_row(const k_attention_args &args,
                                                       const split_rule &rule, uint32_t row)
{
    uint32_t end = __ldcg(args.tokens.positions + row) + 1;
    bool is_padding = __ldcg(args.tokens.slots + row) == K_SLOT_NONE;
    row_keys keys;
    keys.begin = args.window_tokens != 0 && end > args.window_tokens ? end - args.window_tokens : 0;
    keys.end = end;
    uint32_t length = end - keys.begin;
    uint32_t wanted = min((length + rule.wanted - 1) / rule.wanted, CHUNK_KEYS);
    uint32_t least = (length + rule.most - 1) / rule.most;
    keys.chunk = (max(wanted, least) + CHUNK_GRAIN - 1) / CHUNK_GRAIN * CHUNK_GRAIN;
    keys.splits = is_padding ? 0 : (length + keys.chunk - 1) / keys.chunk;
    return keys;
}

/* What a block knows of the step; in shared memory. */
struct plan {
    uint32_t first_chunk[MAX_ROWS + 1]; /* chunks of all rows before */
    uint32_t begin[MAX_ROWS];
    uint32_t end[MAX_ROWS];
    uint32_t chunk[MAX_ROWS];
    uint32_t slot[MAX_ROWS];
};

/* By one warp. */
static __device__ __forceinline__ void plan_rows(const k_attention_args &args,
                                                 const split_rule &rule, plan *plan)
{
    constexpr uint32_t LANE_ROWS = MAX_ROWS / K_WARP_LANES;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < LANE_ROWS; i++) {
        uint32_t row = i * K_WARP_LANES + lane;
        uint32_t splits = 0;
        if (row < args.tokens.count) {
            row_keys keys = keys_of_row(args, rule, row);
            plan->begin[row] = keys.begin;
            plan->end[row] = keys.end;
            plan->chunk[row] = keys.chunk;
            plan->slot[row] = __ldcg(args.tokens.slots + row);
            splits = keys.splits;
        }
        uint32_t sum = splits;
#pragma unroll
        for (uint32_t step = 1; step < K_WARP_LANES; step *= 2) {
            uint32_t other = __shfl_up_sync(FULL_MASK, sum, step);
            sum += lane >= step ? other : 0;
        }
        plan->first_chunk[row + 1] = before + sum;
        before += __shfl_sync(FULL_MASK, sum, K_WARP_LANES - 1);
    }
    if (lane == 0) {
        plan->first_chunk[0] = 0;
    }
}

/* One (row, chunk, kv head). */
struct item {
    uint32_t row;
    uint32_t split;
    uint32_t head;
    uint32_t begin; /* first key */
    uint32_t end;
};

static __device__ __forceinline__ item item_at(const plan *plan, uint32_t kv_heads, uint32_t index)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t chunk = index / kv_heads;
    uint32_t row = 0;
#pragma unroll
    for (uint32_t i = 0; i < MAX_ROWS; i += K_WARP_LANES) {
        row += __popc(__ballot_sync(FULL_MASK, plan->first_chunk[i + lane + 1] <= chunk));
    }
    item item;
    item.row = row;
    item.split = chunk - plan->first_chunk[row];
    item.head = index % kv_heads;
    item.begin = plan->begin[row] + item.split * plan->chunk[row];
    item.end = min(item.begin + plan->chunk[row], plan->end[row]);
    return item;
}

/* HEAD_DIM columns over WARPS warps; query heads in HEAD_TILES groups of 8. */
template <uint32_t HEAD_DIM, uint32_t WARPS, uint32_t HEAD_TILES>
struct geometry {
    static constexpr uint32_t COLUMNS = HEAD_DIM / WARPS; /* of one warp */
    static constexpr uint32_t ROW_BYTES = COLUMNS * 2;
    static constexpr uint32_t ROW_PIECES = COLUMNS / PIECE_ELEMS;
    static constexpr uint32_t TILE_KEYS = STAGE_BYTES / 2 / ROW_BYTES;
    static constexpr uint32_t KEY_TILES = TILE_KEYS / MMA_KEYS;
    static constexpr uint32_t K_STEPS = COLUMNS / 16;
    /* Scores handed to other warps: [2 (turns), WARPS, KEY_TILES * HEAD_TILES, 32] float4 */
    static constexpr uint32_t EXCHANGE_BYTES =
        WARPS == 1 ? 0 : 2 * WARPS * KEY_TILES * HEAD_TILES * K_WARP_LANES * 16;
    static_assert(ROW_PIECES <= K_WARP_LANES && CHUNK_GRAIN % TILE_KEYS == 0);
};

/* Copies tiles of a worker's items, one after the other, into the ring. */
template <typename G>
struct feeder {
    item at;
    uint32_t index;    /* of at */
    uint32_t next_key; /* first key of the next tile */
    uint32_t page;     /* of key next_key + lane % TILE_KEYS */

    __device__ __forceinline__ void fetch_page(const k_attention_args &args, const plan *plan)
    {
        uint32_t key = min(next_key + threadIdx.x % G::TILE_KEYS, at.end - 1);
        page = k_page_at(args.pages, plan->slot[at.row], key);
    }

    __device__ __forceinline__ void start(const k_attention_args &args, const plan *plan,
                                          uint32_t first, uint32_t items)
    {
        index = first;
        if (index < items) {
            at = item_at(plan, args.pages.kv_heads, index);
            next_key = at.begin;
            fetch_page(args, plan);
        }
    }

    /* The next tile into a stage; commits a group in any case. */
    __device__ __forceinline__ void feed(const k_attention_args &args, const plan *plan,
                                         uint32_t stage, uint32_t column, uint32_t items,
                                         uint32_t workers)
    {
        constexpr uint32_t ROWS_AT_ONCE = K_WARP_LANES / G::ROW_PIECES;
        if (index < items) {
            uint32_t lane = threadIdx.x % K_WARP_LANES;
            uint32_t piece = lane % G::ROW_PIECES;
            uint32_t key = min(next_key + lane % G::TILE_KEYS, at.end - 1);
            uint64_t mine = reinterpret_cast<uint64_t>(
                k_page_row(args.pages, page, args.kv_layer, 0, at.head, key) + column);
            uint64_t value_bytes = k_page_value_offset(args.pages) * sizeof(uint16_t);
#pragma unroll
            for (uint32_t i = 0; i < G::TILE_KEYS; i += ROWS_AT_ONCE) {
                uint32_t row = i + lane / G::ROW_PIECES;
                uint64_t from = __shfl_sync(FULL_MASK, mine, row) + piece * PIECE_BYTES;
                uint32_t to = stage + row * G::ROW_BYTES + (piece ^ row % 8) * PIECE_BYTES;
                bool is_there = next_key + row < at.end;
                k_copy16(to, reinterpret_cast<const void *>(from), is_there);
                k_copy16(to + STAGE_BYTES / 2, reinterpret_cast<const void *>(from + value_bytes),
                         is_there);
            }
            next_key += G::TILE_KEYS;
            if (next_key >= at.end) {
                start(args, plan, index + workers, items);
            } else {
                fetch_page(args, plan);
            }
        }
        k_copy_commit();
    }
};

/* One item's state in a warp. */
template <typename G, uint32_t HEAD_TILES>
struct attention_state {
    static constexpr uint32_t CHAINS = G::KEY_TILES * HEAD_TILES == 1 ? 4 : 1;
    uint32_t q[G::K_STEPS][HEAD_TILES][2];
    float out[G::K_STEPS][HEAD_TILES][4];
    float max[HEAD_TILES][2]; /* of scores times log2(e) */
    float sum[HEAD_TILES][2]; /* over this lane's keys */

    __device__ __forceinline__ void reset(const k_attention_args &args, const item &item,
                                          uint32_t column)
    {
        uint32_t lane = threadIdx.x % K_WARP_LANES;
        uint32_t group = args.heads / args.pages.kv_heads;
#pragma unroll
        for (uint32_t n = 0; n < HEAD_TILES; n++) {
            /* Columns past the group repeat its heads; nobody reads them. */
            uint32_t head = item.head * group + (n * MMA_HEADS + lane / 4) % group;
            const uint32_t *q_row = reinterpret_cast<const uint32_t *>(
                args.q + item.row * args.q_stride_elems + (uint64_t)head * args.pages.head_dim +
                column + lane % 4 * 2);
#pragma unroll
            for (uint32_t k = 0; k < G::K_STEPS; k++) {
                q[k][n][0] = __ldcg(q_row + k * 8);
                q[k][n][1] = __ldcg(q_row + k * 8 + 4);
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    out[k][n][i] = 0.0F;
                }
            }
            max[n][0] = max[n][1] = -INFINITY;
            sum[n][0] = sum[n][1] = 0.0F;
        }
    }

    /* scores = K q^T over this warp's columns; sums in CHAINS, not to wait for each product. */
    __device__ __forceinline__ void score(float (&scores)[G::KEY_TILES][HEAD_TILES][4],
                                          uint32_t stage) const
    {
        uint32_t lane = threadIdx.x % K_WARP_LANES;
        uint32_t row = lane % 16;
        uint32_t at = stage + row * G::ROW_BYTES + (lane / 16 ^ row % 8) * PIECE_BYTES;
#pragma unroll
        for (uint32_t m = 0; m < G::KEY_TILES; m++) {
            float sums[CHAINS][HEAD_TILES][4] = {};
#pragma unroll
            for (uint32_t k = 0; k < G::K_STEPS; k++) {
                uint4 keys =
                    k_load_matrices((at + m * MMA_KEYS * G::ROW_BYTES) ^ (k * 2 * PIECE_BYTES));
#pragma unroll
                for (uint32_t n = 0; n < HEAD_TILES; n++) {
                    k_mma(sums[k % CHAINS][n], keys, q[k][n][0], q[k][n][1]);
                }
            }
#pragma unroll
            for (uint32_t n = 0; n < HEAD_TILES; n++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    scores[m][n][i] = sums[0][n][i];
#pragma unroll
                    for (uint32_t c = 1; c < CHAINS; c++) {
                        scores[m][n][i] += sums[c][n][i];
                    }
                }
            }
        }
    }

    /* From scores to weights, in bf16 as the columns of the second product; keys from `valid` on
     * have none.  Scales what was summed before. */
    __device__ __forceinline__ void weigh(float (&scores)[G::KEY_TILES][HEAD_TILES][4],
                                          uint32_t (&weights)[G::KEY_TILES][HEAD_TILES][2],
                                          uint32_t valid)
    {
        uint32_t first = threadIdx.x % K_WARP_LANES / 4;
        float scale[HEAD_TILES][2];
        bool is_same = true;
#pragma unroll
        for (uint32_t n = 0; n < HEAD_TILES; n++) {
            float top[2] = {max[n][0], max[n][1]};
#pragma unroll
            for (uint32_t m = 0; m < G::KEY_TILES; m++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    bool is_there = first + m * MMA_KEYS + i / 2 * 8 < valid;
                    scores[m][n][i] = is_there ? scores[m][n][i] * LOG2E : -INFINITY;
                    top[i % 2] = fmaxf(top[i % 2], scores[m][n][i]);
                }
            }
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
#pragma unroll
                for (uint32_t step = 4; step < K_WARP_LANES; step *= 2) {
                    top[c] = fmaxf(top[c], __shfl_xor_sync(FULL_MASK, top[c], step));
                }
                scale[n][c] = k_exp2(max[n][c] - top[c]);
                is_same = is_same && scale[n][c] == 1.0F;
                max[n][c] = top[c];
                sum[n][c] *= scale[n][c];
            }
#pragma unroll
            for (uint32_t m = 0; m < G::KEY_TILES; m++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    scores[m][n][i] = k_exp2(scores[m][n][i] - top[i % 2]);
                    sum[n][i % 2] += scores[m][n][i];
                }
                weights[m][n][0] = k_transposed(k_bf16_pair(scores[m][n][0], scores[m][n][1]));
                weights[m][n][1] = k_transposed(k_bf16_pair(scores[m][n][2], scores[m][n][3]));
            }
        }
        if (!__all_sync(FULL_MASK, is_same)) {
#pragma unroll
            for (uint32_t k = 0; k < G::K_STEPS; k++) {
#pragma unroll
                for (uint32_t n = 0; n < HEAD_TILES; n++) {
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        out[k][n][i] *= scale[n][i % 2];
                    }
                }
            }
        }
    }

    /* out += V^T weights^T over this warp's columns. */
    __device__ __forceinline__ void add_values(
        const uint32_t (&weights)[G::KEY_TILES][HEAD_TILES][2], uint32_t stage)
    {
        uint32_t lane = threadIdx.x % K_WARP_LANES;
        uint32_t row = lane / 16 * 8 + lane % 8;
        uint32_t at =
            stage + STAGE_BYTES / 2 + row * G::ROW_BYTES + (lane / 8 % 2 ^ row % 8) * PIECE_BYTES;
#pragma unroll
        for (uint32_t k = 0; k < G::K_STEPS; k++) {
#pragma unroll
            for (uint32_t m = 0; m < G::KEY_TILES; m++) {
                uint4 values = k_load_matrices_transposed((at + m * MMA_KEYS * G::ROW_BYTES) ^
                                                          (k * 2 * PIECE_BYTES));
#pragma unroll
                for (uint32_t n = 0; n < HEAD_TILES; n++) {
                    k_mma(out[k][n], values, weights[m][n][0], weights[m][n][1]);
                }
            }
        }
    }

    /* This warp's columns of the item's partial outputs; the maxima and sums by the first warp. */
    __device__ __forceinline__ void store(const k_attention_args &args, const partials &partials,
                                          const item &item, uint32_t column)
    {
        uint32_t lane = threadIdx.x % K_WARP_LANES;
        uint32_t group = args.heads / args.pages.kv_heads;
#pragma unroll
        for (uint32_t n = 0; n < HEAD_TILES; n++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
#pragma unroll
                for (uint32_t step = 4; step < K_WARP_LANES; step *= 2) {
                    sum[n][c] += __shfl_xor_sync(FULL_MASK, sum[n][c], step);
                }
                uint32_t in_group = n * MMA_HEADS + lane % 4 * 2 + c;
                if (in_group >= group) {
                    continue;
                }
                uint32_t head = item.head * group + in_group;
                if (column == 0 && lane / 4 == 0) {
                    uint64_t to = ((uint64_t)item.row * args.heads + head) * partials.rule.most;
                    partials.stats[to + item.split] = make_float2(max[n][c], sum[n][c]);
                }
                uint64_t row =
                    ((uint64_t)item.row * partials.rule.most + item.split) * args.heads + head;
                float *to = partials.out + row * args.pages.head_dim + column + lane / 4;
#pragma unroll
                for (uint32_t k = 0; k < G::K_STEPS; k++) {
                    to[k * 16] = out[k][n][c];
                    to[k * 16 + 8] = out[k][n][c + 2];
                }
            }
        }
    }
};

/* Sum over the warps of an item, in warp order; everyone gets it. */
template <typename G, uint32_t WARPS, uint32_t HEAD_TILES>
static __device__ __forceinline__ void add_scores(float (&scores)[G::KEY_TILES][HEAD_TILES][4],
                                                  float4 *exchange, uint32_t turn)
{
    constexpr uint32_t FRAGMENTS = G::KEY_TILES * HEAD_TILES;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
    float4 *at = exchange + turn * WARPS * FRAGMENTS * K_WARP_LANES + lane;
#pragma unroll
    for (uint32_t f = 0; f < FRAGMENTS; f++) {
        const float *s = scores[f / HEAD_TILES][f % HEAD_TILES];
        at[(warp * FRAGMENTS + f) * K_WARP_LANES] = make_float4(s[0], s[1], s[2], s[3]);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t f = 0; f < FRAGMENTS; f++) {
        float4 sum = at[f * K_WARP_LANES];
#pragma unroll
        for (uint32_t w = 1; w < WARPS; w++) {
            float4 more = at[(w * FRAGMENTS + f) * K_WARP_LANES];
            sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
        }
        float *s = scores[f / HEAD_TILES][f % HEAD_TILES];
        s[0] = sum.x;
        s[1] = sum.y;
        s[2] = sum.z;
        s[3] = sum.w;
    }
}

/* Dynamic shared memory: rings [warps, STAGES, STAGE_BYTES], then the exchange. */
template <uint32_t HEAD_DIM, uint32_t WARPS, uint32_t HEAD_TILES>
static __global__ void __launch_bounds__(MAX_WARPS *K_WARP_LANES, 1)
    split_kv_kernel(k_attention_args args, partials partials)
{
    using G = geometry<HEAD_DIM, WARPS, HEAD_TILES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ plan plan;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
    uint32_t ring = k_shared_address(shared) + warp * WARP_RING_BYTES;
    float4 *exchange = reinterpret_cast<float4 *>(shared + WARPS * WARP_RING_BYTES);
    uint32_t column = WARPS == 1 ? 0 : warp * G::COLUMNS;
    uint32_t worker = WARPS == 1 ? warp * gridDim.x + blockIdx.x : blockIdx.x;
    uint32_t workers = WARPS == 1 ? blockDim.x / K_WARP_LANES * gridDim.x : gridDim.x;

    k_begin();
    k_wait_for_predecessors();
    if (warp == 0) {
        plan_rows(args, partials.rule, &plan);
    }
    __syncthreads();
    uint32_t items = plan.first_chunk[MAX_ROWS] * args.pages.kv_heads;

    feeder<G> feeder;
    feeder.start(args, &plan, worker, items);
#pragma unroll
    for (uint32_t stage = 0; stage < STAGES; stage++) {
        feeder.feed(args, &plan, ring + stage * STAGE_BYTES, column, items, workers);
    }
    uint32_t stage = ring;
    uint32_t turn = 0;
    for (uint32_t index = worker; index < items; index += workers) {
        item item = item_at(&plan, args.pages.kv_heads, index);
        attention_state<G, HEAD_TILES> state;
        state.reset(args, item, column);
        for (uint32_t key = item.begin; key < item.end; key += G::TILE_KEYS) {
            float scores[G::KEY_TILES][HEAD_TILES][4];
            uint32_t weights[G::KEY_TILES][HEAD_TILES][2];
            k_copy_wait<STAGES - 1>();
            __syncwarp();
            state.score(scores, stage);
            if constexpr (WARPS > 1) {
                add_scores<G, WARPS, HEAD_TILES>(scores, exchange, turn);
                turn ^= 1;
            }
            state.weigh(scores, weights, item.end - key);
            state.add_values(weights, stage);
            __syncwarp();
            feeder.feed(args, &plan, stage, column, items, workers);
            stage += STAGE_BYTES;
            stage = stage == ring + WARP_RING_BYTES ? ring : stage;
        }
        state.store(args, partials, item, column);
    }
    k_copy_wait<0>();
}

/* What a lane's splits, lane and lane + 32, weigh by their maxima and sums; over the warp, weights
 * times sums add up to 1. */
static __device__ __forceinline__ void weigh_splits(const float2 (&stats)[2], float (&weights)[2])
{
    float max = fmaxf(stats[0].x, stats[1].x);
#pragma unroll
    for (uint32_t step = K_WARP_LANES / 2; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(FULL_MASK, max, step));
    }
    float first = k_exp2(stats[0].x - max);
    float second = k_exp2(stats[1].x - max);
    float factor = __fdiv_rn(1.0F, k_warp_sum(first * stats[0].y + second * stats[1].y));
    weights[0] = first * factor;
    weights[1] = second * factor;
}

/* Block (row, query head), four columns a thread. */
template <uint32_t HEAD_DIM>
static __global__ void __launch_bounds__(HEAD_DIM / 4)
    combine_kernel(k_attention_args args, partials partials)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t row = blockIdx.x / args.heads;
    uint32_t head = blockIdx.x % args.heads;
    k_begin();
    k_wait_for_predecessors();
    uint32_t splits = keys_of_row(args, partials.rule, row).splits;
    uint32_t most = partials.rule.most;
    const float4 *from = reinterpret_cast<const float4 *>(
                             partials.out + ((uint64_t)row * most * args.heads + head) * HEAD_DIM) +
                         threadIdx.x;
    uint64_t split_stride = (uint64_t)args.heads * (HEAD_DIM / 4);
    const float2 *row_stats = partials.stats + ((uint64_t)row * args.heads + head) * most;
    float2 stats[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t split = i * K_WARP_LANES + lane;
        stats[i] = split < splits ? __ldcg(row_stats + split) : make_float2(-INFINITY, 0.0F);
    }
    float4 out = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    float weights[2] = {};
    for (uint32_t first = 0; first < splits; first += COMBINE_LOADS) {
        float4 parts[COMBINE_LOADS];
#pragma unroll
        for (uint32_t i = 0; i < COMBINE_LOADS; i++) {
            parts[i] = __ldcg(from + min(first + i, splits - 1) * split_stride);
        }
        if (first == 0) {
            weigh_splits(stats, weights);
        }
        float weight = first < K_WARP_LANES ? weights[0] : weights[1];
#pragma unroll
        for (uint32_t i = 0; i < COMBINE_LOADS; i++) {
            /* Past the last split: the last one, weight zero. */
            float factor = __shfl_sync(FULL_MASK, weight, (first + i) % K_WARP_LANES);
            out.x += parts[i].x * factor;
            out.y += parts[i].y * factor;
            out.z += parts[i].z * factor;
            out.w += parts[i].w * factor;
        }
    }
    uint2 *to = reinterpret_cast<uint2 *>(args.out + (uint64_t)blockIdx.x * HEAD_DIM);
    to[threadIdx.x] = make_uint2(k_bf16_pair(out.x, out.y), k_bf16_pair(out.z, out.w));
}

/* Places that rows of the longest context take where the device is occupied without splitting. */
static uint32_t context_splits(const k_cuda_shape *shape)
{
    uint32_t splits = (shape->max_context_tokens + CHUNK_KEYS - 1) / CHUNK_KEYS;
    return splits < 1 ? 1 : splits > MAX_SPLITS ? MAX_SPLITS : splits;
}

/* Of one kv head's share of the device: row count times rule.most is at most this. */
static uint64_t scratch_places(const k_cuda_shape *shape)
{
    uint64_t rows = shape->max_tokens < MAX_ROWS ? shape->max_tokens : MAX_ROWS;
    uint64_t by_context = rows * context_splits(shape);
    return by_context > MAX_WORKERS ? by_context : MAX_WORKERS;
}

uint64_t k_attention_split_kv_scratch_bytes(const k_cuda_shape *shape)
{
    return scratch_places(shape) * shape->heads *
           (shape->max_head_dim * sizeof(float) + sizeof(float2));
}

static split_rule rule_of(const k_stream *stream, const k_attention_args *args, uint32_t workers)
{
    uint32_t least = context_splits(&stream->shape);
    split_rule rule;
    rule.wanted = (workers < MAX_WORKERS ? workers : MAX_WORKERS) /
                  (args->tokens.count * args->pages.kv_heads);
    rule.wanted = rule.wanted < 1 ? 1 : rule.wanted > MAX_SPLITS ? MAX_SPLITS : rule.wanted;
    rule.most = rule.wanted > least ? rule.wanted : least;
    return rule;
}

template <uint32_t HEAD_DIM, uint32_t WARPS, uint32_t HEAD_TILES>
static constexpr uint32_t shared_bytes(uint32_t warps)
{
    return warps * WARP_RING_BYTES + geometry<HEAD_DIM, WARPS, HEAD_TILES>::EXCHANGE_BYTES;
}

template <uint32_t HEAD_DIM, uint32_t WARPS, uint32_t HEAD_TILES>
static cudaError_t prepare(void)
{
    constexpr uint32_t BYTES = shared_bytes<HEAD_DIM, WARPS, HEAD_TILES>(MAX_WARPS);
    static_assert(BYTES + sizeof(plan) <= 227 * 1024);
    return cudaFuncSetAttribute(split_kv_kernel<HEAD_DIM, WARPS, HEAD_TILES>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, (int)BYTES);
}

cudaError_t k_attention_split_kv_prepare(void)
{
    cudaError_t error = prepare<256, 1, 1>();
    error = error == cudaSuccess ? prepare<256, 1, 2>() : error;
    error = error == cudaSuccess ? prepare<512, 4, 1>() : error;
    return error == cudaSuccess ? prepare<512, 4, 2>() : error;
}

template <uint32_t HEAD_DIM, uint32_t WARPS, uint32_t HEAD_TILES>
static cudaError_t launch(const k_stream *stream, const k_attention_args *args)
{
    uint32_t count = args->tokens.count;
    uint32_t items_per_split = count * args->pages.kv_heads;
    partials partials;
    partials.rule = rule_of(stream, args, stream->sm_count * (MAX_WARPS / WARPS));
    partials.out = reinterpret_cast<float *>(stream->scratch);
    partials.stats = reinterpret_cast<float2 *>(partials.out + scratch_places(&stream->shape) *
                                                                   stream->shape.heads *
                                                                   stream->shape.max_head_dim);
    /* Where there is no more than two warps' work for each SM, leave room for other blocks. */
    uint32_t splits = partials.rule.wanted;
    if (args->window_tokens != 0 && args->window_tokens / CHUNK_GRAIN < splits) {
        splits = args->window_tokens / CHUNK_GRAIN;
    }
    bool is_light = splits * items_per_split <= 2 * stream->sm_count;
    uint32_t warps = WARPS > 1 || !is_light ? MAX_WARPS : 2;
    cudaError_t error = k_launch(stream, split_kv_kernel<HEAD_DIM, WARPS, HEAD_TILES>,
                                 stream->sm_count, warps * K_WARP_LANES,
                                 shared_bytes<HEAD_DIM, WARPS, HEAD_TILES>(warps), *args, partials);
    if (error != cudaSuccess) {
        return error;
    }
    return k_launch(stream, combine_kernel<HEAD_DIM>, count * args->heads, HEAD_DIM / 4, 0, *args,
                    partials);
}

cudaError_t k_attention_split_kv(const k_stream *stream, const k_attention_args *args)
{
    bool is_wide = args->heads / args->pages.kv_heads > MMA_HEADS;
    if (args->pages.head_dim == 256) {
        return is_wide ? launch<256, 1, 2>(stream, args) : launch<256, 1, 1>(stream, args);
    }
    return is_wide ? launch<512, 4, 2>(stream, args) : launch<512, 4, 1>(stream, args);
}
