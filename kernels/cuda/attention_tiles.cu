/* Attention of prompt segments on tensor cores: tiles of consecutive tokens of one slot, whose rows
 * (token, query head of a group) share the reading of K and V.
 *
 *   scores = q k^T, f32; p = exp(scores - max), f32, rounded to bf16 for p v; sums f32
 *
 * Operations: 4 * head_dim per key and row.  Bytes from L2: 4 * head_dim per key, tile and kv head,
 * where a tile is 128 rows of 256 or 64 rows of 512; q and out once.
 *
 * plan_tiles, one block, cuts the tokens at the ends of segments and lists the tiles.  tiles_kernel
 * runs one block per SM, which takes (tile, kv head) items in turns, later tiles first.  A warpgroup
 * has 64 rows by 256 columns, 128 sums a thread; where head_dim is 512, both have the same rows, each
 * half of the columns, and add up their scores through shared memory.  K and V come in tiles of keys
 * at multiples of the tile, two stages deep.  Keys that a row may not see weigh zero, and a tile of
 * keys without any it may see changes nothing, so its bits do not depend on the tile's other rows.
 * Keys that no row of a tile may see are zeroed, not read. */
#include <math.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/page.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/wgmma.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t THREADS = WARPS * K_WARP_LANES;
constexpr uint32_t GROUP_WARPS = 4; /* of a warpgroup */
constexpr uint32_t GROUPS = WARPS / GROUP_WARPS;
constexpr uint32_t GROUP_ROWS = 64;
constexpr uint32_t GROUP_COLUMNS = 256;
constexpr uint32_t K_STEPS = GROUP_COLUMNS / 16;
constexpr uint32_t BLOCK_STEPS = 4;    /* k steps in a block of 64 columns */
constexpr uint32_t STEP_BYTES = 32;    /* of a row */
constexpr uint32_t TILE_BYTES = 32768; /* K, or V, of a tile of keys */
constexpr uint32_t STAGES = 2;
constexpr uint32_t QUERY_BYTES = 65536;
constexpr uint32_t PAGE_GRAIN = 16; /* keys that surely share a page */
constexpr uint32_t PLAN_THREADS = 1024;
constexpr uint32_t PLAN_WARPS = PLAN_THREADS / K_WARP_LANES;
constexpr uint32_t PIECE_ELEMS = 8;
constexpr uint32_t FULL_MASK = 0xffffffffU;
constexpr float LOG2E = 1.4426950408889634F;

static_assert(PLAN_WARPS == K_WARP_LANES, "a warp adds up the warps");

/* SIDES: warpgroups that share rows. */
template <uint32_t HEAD_DIM>
struct geometry {
    static constexpr uint32_t SIDES = HEAD_DIM / GROUP_COLUMNS;
    static constexpr uint32_t ROWS = GROUPS / SIDES * GROUP_ROWS;
    static constexpr uint32_t ROW_BYTES = HEAD_DIM * 2;
    static constexpr uint32_t ROW_PIECES = HEAD_DIM / PIECE_ELEMS;
    static constexpr uint32_t KEYS = TILE_BYTES / ROW_BYTES;
    static constexpr uint32_t KEY_TILES = KEYS / 8;
    static constexpr uint32_t KEY_BLOCK_BYTES = KEYS * K_BLOCK_ROW_BYTES;
    static constexpr uint32_t QUERY_BLOCK_BYTES = ROWS * K_BLOCK_ROW_BYTES;
    /* [2 (turns), WARPS, KEY_TILES, 32] float4 */
    static constexpr uint32_t EXCHANGE_BYTES =
        SIDES == 1 ? 0 : 2 * WARPS * KEY_TILES * K_WARP_LANES * 16;
    static constexpr uint32_t SHARED_BYTES = QUERY_BYTES + STAGES * 2 * TILE_BYTES + EXCHANGE_BYTES;
    static_assert(ROWS * ROW_BYTES == QUERY_BYTES);
    static_assert(SHARED_BYTES <= 227 * 1024 - 64);
};

/* In scratch.  Tile i has the tokens first[i] .. first[i + 1] - 1. */
struct tile_list {
    uint32_t *next;  /* item to be taken */
    uint32_t *count; /* of tiles */
    uint32_t *first; /* [tiles + 1] */
};

/* True where a token does not continue the one before. */
static __device__ __forceinline__ bool begins_segment(const k_tokens &tokens, uint32_t token)
{
    if (token == 0) {
        return true;
    }
    uint32_t slot = __ldcg(tokens.slots + token);
    return slot == K_SLOT_NONE || slot != __ldcg(tokens.slots + token - 1) ||
           __ldcg(tokens.positions + token) != __ldcg(tokens.positions + token - 1) + 1;
}

/* Inclusive over the block: the largest (IS_SUM false) or the sum of the values up to this
 * thread's.  partial [PLAN_WARPS] shared. */
template <bool IS_SUM>
static __device__ __forceinline__ uint32_t block_scan(uint32_t value, uint32_t *partial)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
#pragma unroll
    for (int round = 0; round < 2; round++) {
        uint32_t scanned = round == 0 ? value : partial[lane];
#pragma unroll
        for (uint32_t step = 1; step < K_WARP_LANES; step *= 2) {
            uint32_t other = __shfl_up_sync(FULL_MASK, scanned, step);
            other = lane >= step ? other : 0;
            scanned = IS_SUM ? scanned + other : max(scanned, other);
        }
        if (round == 0) {
            value = scanned;
            if (lane == K_WARP_LANES - 1) {
                partial[warp] = scanned;
            }
            __syncthreads();
        } else {
            uint32_t before = __shfl_sync(FULL_MASK, scanned, warp == 0 ? 0 : warp - 1);
            before = warp == 0 ? 0 : before;
            value = IS_SUM ? value + before : max(value, before);
        }
    }
    __syncthreads();
    return value;
}

static __global__ void __launch_bounds__(PLAN_THREADS)
    plan_tiles_kernel(k_tokens tokens, uint32_t tile_tokens, tile_list list)
{
    __shared__ uint32_t partial[PLAN_WARPS];
    k_begin();
    k_wait_for_predecessors();
    uint32_t share = (tokens.count + PLAN_THREADS - 1) / PLAN_THREADS;
    uint32_t begin = min(threadIdx.x * share, tokens.count);
    uint32_t end = min(begin + share, tokens.count);

    /* First token of the segment that this thread's tokens begin in: token 0 begins one. */
    uint32_t last_begin = 0;
    for (uint32_t token = begin; token < end; token++) {
        last_begin = begins_segment(tokens, token) ? token : last_begin;
    }
    uint32_t segment = block_scan<false>(last_begin, partial);
    __shared__ uint32_t segments[PLAN_THREADS];
    segments[threadIdx.x] = segment;
    __syncthreads();
    segment = threadIdx.x == 0 ? 0 : segments[threadIdx.x - 1];

    uint32_t tiles = 0;
    uint32_t at = segment;
    for (uint32_t token = begin; token < end; token++) {
        at = begins_segment(tokens, token) ? token : at;
        tiles += (token - at) % tile_tokens == 0 ? 1 : 0;
    }
    uint32_t after = block_scan<true>(tiles, partial);
    uint32_t to = after - tiles;
    at = segment;
    for (uint32_t token = begin; token < end; token++) {
        at = begins_segment(tokens, token) ? token : at;
        if ((token - at) % tile_tokens == 0) {
            list.first[to++] = token;
        }
    }
    if (threadIdx.x == PLAN_THREADS - 1) {
        list.first[after] = tokens.count;
        *list.count = after;
        *list.next = 0;
    }
}

/* One (tile, kv head). */
struct item {
    uint32_t token; /* first */
    uint32_t tokens;
    uint32_t head;
    uint32_t slot;
    uint32_t position; /* of the first token */
    uint32_t begin;    /* first key that any row sees */
    uint32_t end;      /* one past the last */
};

static __device__ __forceinline__ item item_at(const k_attention_args &args, const tile_list &list,
                                               uint32_t index, uint32_t tiles)
{
    uint32_t tile = tiles - 1 - index / args.pages.kv_heads;
    item item;
    item.token = __ldcg(list.first + tile);
    item.tokens = __ldcg(list.first + tile + 1) - item.token;
    item.head = index % args.pages.kv_heads;
    item.slot = __ldcg(args.tokens.slots + item.token);
    item.position = __ldcg(args.tokens.positions + item.token);
    uint32_t window = args.window_tokens;
    item.begin = window != 0 && item.position + 1 > window ? item.position + 1 - window : 0;
    item.end = item.position + item.tokens;
    return item;
}

/* Rows of q into shared memory, zeroes after the last; row r is token r / group, head r % group. */
template <uint32_t HEAD_DIM>
static __device__ __forceinline__ void copy_queries(const k_attention_args &args, const item &item,
                                                    uint32_t group, uint32_t queries)
{
    using G = geometry<HEAD_DIM>;
    uint32_t piece = threadIdx.x % G::ROW_PIECES;
#pragma unroll 4
    for (uint32_t row = threadIdx.x / G::ROW_PIECES; row < G::ROWS;
         row += THREADS / G::ROW_PIECES) {
        bool is_there = row < item.tokens * group;
        uint32_t token = item.token + (is_there ? row / group : 0);
        const uint16_t *from = args.q + token * args.q_stride_elems +
                               (uint64_t)(item.head * group + row % group) * HEAD_DIM +
                               piece * PIECE_ELEMS;
        k_copy16(queries + k_block_offset(G::ROWS, row, piece), from, is_there);
    }
}

/* Page of the keys next + lane * PAGE_GRAIN; of a key in use for every lane. */
static __device__ __forceinline__ uint32_t page_for_lane(const k_attention_args &args,
                                                         const item &item, uint32_t next)
{
    uint32_t key = next + threadIdx.x % K_WARP_LANES * PAGE_GRAIN;
    key = min(max(key, item.begin), item.end - 1);
    return k_page_at(args.pages, item.slot, key);
}

/* Keys next .. next + KEYS - 1 and their values into a stage; lane_page: page_for_lane(next). */
template <uint32_t HEAD_DIM>
static __device__ __forceinline__ void copy_keys(const k_attention_args &args, const item &item,
                                                 uint32_t next, uint32_t lane_page, uint32_t stage)
{
    using G = geometry<HEAD_DIM>;
    uint32_t piece = threadIdx.x % G::ROW_PIECES;
    uint64_t value_offset = k_page_value_offset(args.pages);
#pragma unroll
    for (uint32_t i = 0; i < G::KEYS; i += THREADS / G::ROW_PIECES) {
        uint32_t row = i + threadIdx.x / G::ROW_PIECES;
        /* A grain's lane may have looked up a key in use of the same grain, or none is in use. */
        uint32_t page = __shfl_sync(FULL_MASK, lane_page, row / PAGE_GRAIN);
        uint32_t key = next + row;
        bool is_there = key >= item.begin && key < item.end;
        const uint16_t *from =
            k_page_row(args.pages, page, args.kv_layer, 0, item.head, key) + piece * PIECE_ELEMS;
        uint32_t to = stage + k_block_offset(G::KEYS, row, piece);
        k_copy16(to, from, is_there);
        k_copy16(to + TILE_BYTES, from + value_offset, is_there);
    }
}

/* A lane's rows g and g + 8 of its warp, over GROUP_COLUMNS of head_dim. */
template <uint32_t HEAD_DIM>
struct row_state {
    using G = geometry<HEAD_DIM>;
    float out[2 * K_STEPS][4];
    float max[2]; /* of scores times log2(e) */
    float sum[2]; /* over this lane's columns */

    __device__ __forceinline__ void reset(void)
    {
#pragma unroll
        for (uint32_t n = 0; n < 2 * K_STEPS; n++) {
            out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.0F;
        }
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0.0F;
    }

    /* scores = q K^T over the warpgroup's columns; queries and stage point to its first ones. */
    __device__ __forceinline__ void score(float (&scores)[G::KEY_TILES][4], uint32_t queries,
                                          uint32_t stage) const
    {
#pragma unroll
        for (uint32_t n = 0; n < G::KEY_TILES; n++) {
            scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0F;
        }
        k_wgmma_begin(scores);
#pragma unroll
        for (uint32_t k = 0; k < K_STEPS; k++) {
            uint32_t block = k / BLOCK_STEPS;
            uint32_t step = k % BLOCK_STEPS * STEP_BYTES;
            uint64_t q = k_wgmma_matrix(queries + block * G::QUERY_BLOCK_BYTES + step, 16);
            uint64_t keys = k_wgmma_matrix(stage + block * G::KEY_BLOCK_BYTES + step, 16);
            if constexpr (G::KEYS == 64) {
                k_wgmma_64(scores, q, keys);
            } else {
                k_wgmma_32(scores, q, keys);
            }
        }
        k_wgmma_finish(scores);
    }

    /* From scores to weights in bf16, rows of the second product.  Keys [low[r], high[r]) relative
     * to the tile are seen by row r.  Scales what was summed before. */
    __device__ __forceinline__ void weigh(float (&scores)[G::KEY_TILES][4],
                                          uint32_t (&weights)[G::KEY_TILES][2],
                                          const int32_t (&low)[2], const int32_t (&high)[2])
    {
        int32_t column = (int32_t)(threadIdx.x % 4 * 2);
        float scale[2];
        float base[2];
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float top = max[r];
#pragma unroll
            for (uint32_t n = 0; n < G::KEY_TILES; n++) {
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    int32_t key = (int32_t)(n * 8 + c) + column;
                    float score = scores[n][2 * r + c] * LOG2E;
                    score = key >= low[r] && key < high[r] ? score : -INFINITY;
                    scores[n][2 * r + c] = score;
                    top = fmaxf(top, score);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, 1));
            top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, 2));
            base[r] = top == -INFINITY ? 0.0F : top; /* nothing seen yet: weights of exactly 0 */
            scale[r] = k_exp2(max[r] - base[r]);
            max[r] = top;
            sum[r] *= scale[r];
        }
#pragma unroll
        for (uint32_t n = 0; n < G::KEY_TILES; n++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                scores[n][i] = k_exp2(scores[n][i] - base[i / 2]);
                sum[i / 2] += scores[n][i];
            }
            weights[n][0] = k_bf16_pair(scores[n][0], scores[n][1]);
            weights[n][1] = k_bf16_pair(scores[n][2], scores[n][3]);
        }
        if (!__all_sync(FULL_MASK, scale[0] == 1.0F && scale[1] == 1.0F)) {
#pragma unroll
            for (uint32_t n = 0; n < 2 * K_STEPS; n++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    out[n][i] *= scale[i / 2];
                }
            }
        }
    }

    /* out += weights V; values points to the warpgroup's first columns. */
    __device__ __forceinline__ void add_values(const uint32_t (&weights)[G::KEY_TILES][2],
                                               uint32_t values)
    {
        k_wgmma_begin(out);
#pragma unroll
        for (uint32_t m = 0; m < G::KEY_TILES / 2; m++) {
            uint4 p = make_uint4(weights[2 * m][0], weights[2 * m][1], weights[2 * m + 1][0],
                                 weights[2 * m + 1][1]);
            k_wgmma_256(out, p,
                        k_wgmma_matrix(values + m * 16 * K_BLOCK_ROW_BYTES, G::KEY_BLOCK_BYTES));
        }
        k_wgmma_finish(out);
    }

    __device__ __forceinline__ void store(const k_attention_args &args, const item &item,
                                          uint32_t group, uint32_t first_row, uint32_t first_column)
    {
        uint32_t lane = threadIdx.x % K_WARP_LANES;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 1);
            sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 2);
            uint32_t row = first_row + r * 8 + lane / 4;
            if (row >= item.tokens * group) {
                continue;
            }
            float factor = item.slot == K_SLOT_NONE ? 0.0F : __fdiv_rn(1.0F, sum[r]);
            uint64_t token = item.token + row / group;
            uint32_t head = item.head * group + row % group;
            uint32_t *to = reinterpret_cast<uint32_t *>(
                               args.out + (token * args.heads + head) * HEAD_DIM + first_column) +
                           lane % 4;
#pragma unroll
            for (uint32_t n = 0; n < 2 * K_STEPS; n++) {
                to[n * 4] = k_bf16_pair(out[n][2 * r] * factor, out[n][2 * r + 1] * factor);
            }
        }
    }
};

/* Adds the scores of the two warpgroups of a row; both get the sum. */
template <uint32_t KEY_TILES>
static __device__ __forceinline__ void add_scores(float (&scores)[KEY_TILES][4], float4 *exchange,
                                                  uint32_t turn)
{
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
    float4 *at = exchange + turn * WARPS * KEY_TILES * K_WARP_LANES + lane;
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
        at[(warp * KEY_TILES + n) * K_WARP_LANES] =
            make_float4(scores[n][0], scores[n][1], scores[n][2], scores[n][3]);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t n = 0; n < KEY_TILES; n++) {
        float4 other = at[((warp ^ GROUP_WARPS) * KEY_TILES + n) * K_WARP_LANES];
        /* Addition commutes: both get the same bits. */
        scores[n][0] += other.x;
        scores[n][1] += other.y;
        scores[n][2] += other.z;
        scores[n][3] += other.w;
    }
}

/* One item by the whole block. */
template <uint32_t HEAD_DIM>
static __device__ __forceinline__ void attend(const k_attention_args &args, const item &item,
                                              uint32_t queries, float4 *exchange)
{
    using G = geometry<HEAD_DIM>;
    uint32_t lane = threadIdx.x % K_WARP_LANES;
    uint32_t warp = threadIdx.x / K_WARP_LANES;
    uint32_t group = args.heads / args.pages.kv_heads;
    uint32_t warpgroup = warp / GROUP_WARPS;
    uint32_t group_row = warpgroup / G::SIDES * GROUP_ROWS;
    uint32_t first_row = group_row + warp % GROUP_WARPS * 16;
    uint32_t side = warpgroup % G::SIDES;
    uint32_t first_block = side * (GROUP_COLUMNS / 64);
    uint32_t ring = queries + QUERY_BYTES;
    uint32_t group_queries =
        queries + first_block * G::QUERY_BLOCK_BYTES + group_row * K_BLOCK_ROW_BYTES;
    bool has_rows = group_row < item.tokens * group; /* of the warpgroup */
    uint32_t first_key = item.begin / G::KEYS * G::KEYS;
    uint32_t end = item.slot == K_SLOT_NONE ? first_key : item.end;

    /* Keys that rows g and g + 8 see, as positions. */
    int32_t row_low[2];
    int32_t row_high[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        int32_t position = (int32_t)(item.position + (first_row + r * 8 + lane / 4) / group);
        int32_t window = (int32_t)args.window_tokens;
        row_high[r] = position + 1;
        row_low[r] = window != 0 && position >= window ? position + 1 - window : 0;
    }
    row_state<HEAD_DIM> state;
    state.reset();
    if (first_key < end) {
        copy_queries<HEAD_DIM>(args, item, group, queries);
        copy_keys<HEAD_DIM>(args, item, first_key, page_for_lane(args, item, first_key), ring);
    }
    k_copy_commit();
    uint32_t turn = 0;
    uint32_t lane_page = 0;
    if (first_key + G::KEYS < end) {
        lane_page = page_for_lane(args, item, first_key + G::KEYS);
    }
    for (uint32_t key = first_key; key < end; key += G::KEYS) {
        uint32_t stage = ring + turn * 2 * TILE_BYTES;
        k_copy_wait<0>();
        k_wgmma_publish();
        __syncthreads();
        uint32_t next = key + G::KEYS;
        if (next < end) {
            copy_keys<HEAD_DIM>(args, item, next, lane_page, ring + (turn ^ 1) * 2 * TILE_BYTES);
            k_copy_commit();
            if (next + G::KEYS < end) {
                lane_page = page_for_lane(args, item, next + G::KEYS);
            }
        }
        if (has_rows) {
            float scores[G::KEY_TILES][4];
            uint32_t weights[G::KEY_TILES][2];
            int32_t low[2] = {row_low[0] - (int32_t)key, row_low[1] - (int32_t)key};
            int32_t high[2] = {row_high[0] - (int32_t)key, row_high[1] - (int32_t)key};
            state.score(scores, group_queries, stage + first_block * G::KEY_BLOCK_BYTES);
            if constexpr (G::SIDES > 1) {
                add_scores<G::KEY_TILES>(scores, exchange, turn);
            }
            state.weigh(scores, weights, low, high);
            state.add_values(weights, stage + TILE_BYTES + first_block * G::KEY_BLOCK_BYTES);
        }
        turn ^= 1;
    }
    if (has_rows) {
        state.store(args, item, group, first_row, side * GROUP_COLUMNS);
    }
}

/* Dynamic shared memory: queries, [STAGES, 2 (K, V)] tiles of keys, exchange. */
template <uint32_t HEAD_DIM>
static __global__ void __launch_bounds__(THREADS, 1)
    tiles_kernel(k_attention_args args, tile_list list)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint32_t taken;
    uint32_t queries = k_shared_address(shared);
    float4 *exchange = reinterpret_cast<float4 *>(shared + QUERY_BYTES + STAGES * 2 * TILE_BYTES);
    k_begin();
    k_wait_for_predecessors();
    uint32_t tiles = __ldcg(list.count);
    uint32_t items = tiles * args.pages.kv_heads;
    for (;;) {
        if (threadIdx.x == 0) {
            taken = atomicAdd(list.next, 1U);
        }
        __syncthreads();
        uint32_t index = taken;
        if (index >= items) {
            break;
        }
        attend<HEAD_DIM>(args, item_at(args, list, index, tiles), queries, exchange);
        __syncthreads(); /* everyone has read `taken`, the queries and the ring */
    }
}

uint64_t k_attention_tiles_scratch_bytes(const k_cuda_shape *shape)
{
    return (shape->max_tokens + 3ULL) * sizeof(uint32_t);
}

cudaError_t k_attention_tiles_prepare(void)
{
    cudaError_t error =
        cudaFuncSetAttribute(tiles_kernel<256>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)geometry<256>::SHARED_BYTES);
    return error != cudaSuccess ? error
                                : cudaFuncSetAttribute(tiles_kernel<512>,
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       (int)geometry<512>::SHARED_BYTES);
}

template <uint32_t HEAD_DIM>
static cudaError_t launch(const k_stream *stream, const k_attention_args *args,
                          const tile_list &list)
{
    uint32_t group = args->heads / args->pages.kv_heads;
    cudaError_t error = k_launch(stream, plan_tiles_kernel, 1, PLAN_THREADS, 0, args->tokens,
                                 geometry<HEAD_DIM>::ROWS / group, list);
    if (error != cudaSuccess) {
        return error;
    }
    return k_launch(stream, tiles_kernel<HEAD_DIM>, stream->sm_count, THREADS,
                    geometry<HEAD_DIM>::SHARED_BYTES, *args, list);
}

cudaError_t k_attention_tiles(const k_stream *stream, const k_attention_args *args)
{
    tile_list list;
    list.next = reinterpret_cast<uint32_t *>(stream->scratch);
    list.count = list.next + 1;
    list.first = list.next + 2;
    return args->pages.head_dim == 256 ? launch<256>(stream, args, list)
                                       : launch<512>(stream, args, list);
}
