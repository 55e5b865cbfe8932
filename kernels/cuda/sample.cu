/* The sampler; the order of its steps is stated in kernels/sampler.h.
 *
 * adjust: blocks over (vocabulary chunk, row).  A chunk's logits go to shared memory, the row's
 * lists, mask and penalties are applied there, and the chunk's best token is kept; where the row
 * samples, the values divided by the temperature go to scratch.  2 bytes read per logit, 4 written
 * for sampled rows.
 *
 * pick: one block per row.  The best of the chunks; greedy rows end here.  Survivors of top-k and
 * top-p are those above a threshold value, and at the threshold those of lowest id.  Bins of the
 * distance to the best value, coarse then fine, find the few tokens among which it lies; there it is
 * found by descending the ordered bits of the values, then of the ids, eight at a time.  Each digit
 * is weighed by count (top-k) or by probability mass in fixed point (top-p), so that no sum depends
 * on the order of threads. */
#include <float.h>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/philox.h"

constexpr uint32_t CHUNK = 8192;
constexpr uint32_t ADJUST_THREADS = 512;
constexpr uint32_t PICK_THREADS = 1024;
constexpr uint32_t PICK_WARPS = PICK_THREADS / K_WARP_LANES;
constexpr uint32_t DIGITS = 256;
constexpr uint32_t DIGIT_BITS = 8;
constexpr float MASS_ONE = 1099511627776.0F; /* 2^40: 2^18 tokens of it fit 64 bits */

/* A mass in parts whose sums over 2^18 tokens fit 32 bits: shared memory adds no wider words at
 * once. */
constexpr uint32_t LIMBS = 3;
constexpr uint32_t LIMB_BITS = 14;

constexpr uint32_t LIST_TOKENS = 4096; /* that are looked at one by one */
constexpr float BINS_PER_LOGIT = 8.0F; /* at least half of it */
constexpr float LAST_BIN = DIGITS - 1; /* holds all that is farther away, too */

static_assert(CHUNK * sizeof(float) <= 48 * 1024, "a chunk fits static shared memory");

struct chunk_best {
    float value;
    uint32_t token;
    uint32_t is_sound; /* every logit finite, every value a number below infinity */
};

struct sample_scratch {
    chunk_best *best; /* [rows, chunks] */
    float *values;    /* [rows, vocab] of rows that sample */
    uint32_t chunks;
};

static __host__ __device__ uint32_t chunk_count(uint32_t vocab_tokens)
{
    return (vocab_tokens + CHUNK - 1) / CHUNK;
}

static sample_scratch scratch_of(const k_stream *stream)
{
    sample_scratch scratch = {};
    scratch.chunks = chunk_count(stream->shape.vocab_tokens);
    scratch.values = reinterpret_cast<float *>(stream->scratch);
    scratch.best = reinterpret_cast<chunk_best *>(
        scratch.values + (uint64_t)stream->shape.max_rows * stream->shape.vocab_tokens);
    return scratch;
}

uint64_t k_cuda_sample_scratch_bytes(const k_cuda_shape *shape)
{
    uint64_t per_row = (uint64_t)shape->vocab_tokens * sizeof(float) +
                       (uint64_t)chunk_count(shape->vocab_tokens) * sizeof(chunk_best);
    return shape->max_rows * per_row;
}

/* The larger value, the lower id on ties. */
static __device__ __forceinline__ bool is_better(float value, uint32_t token, float than,
                                                 uint32_t than_token)
{
    return value > than || (value == than && token < than_token);
}

static __device__ __forceinline__ void warp_best(float &value, uint32_t &token)
{
#pragma unroll
    for (int step = K_WARP_LANES / 2; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffU, value, step);
        uint32_t other_token = __shfl_xor_sync(0xffffffffU, token, step);
        if (is_better(other, other_token, value, token)) {
            value = other;
            token = other_token;
        }
    }
}

/* ---- adjust ---- */

/* values [count] of tokens first ..; lists of the row that fall into the chunk. */
static __device__ void apply_lists(const k_sample_args &args, const k_sample_row &row,
                                   const k_sampler &sampler, uint32_t first, uint32_t count,
                                   float *values)
{
    for (uint32_t i = threadIdx.x; i < sampler.suppress_count; i += ADJUST_THREADS) {
        uint32_t at = sampler.suppress_ids[i] - first;
        if (at < count) {
            values[at] = -INFINITY;
        }
    }
    if (row.position - sampler.output_start < sampler.min_tokens) {
        for (uint32_t i = threadIdx.x; i < sampler.stop_count; i += ADJUST_THREADS) {
            uint32_t at = sampler.stop_ids[i] - first;
            if (at < count) {
                values[at] = -INFINITY;
            }
        }
    }
    __syncthreads();
    if (row.mask_row != K_NONE) {
        const uint32_t *mask = args.masks + (uint64_t)row.mask_row * args.mask_words;
        for (uint32_t i = threadIdx.x; i < count; i += ADJUST_THREADS) {
            uint32_t token = first + i;
            if ((__ldcg(mask + token / 32) >> (token % 32) & 1U) == 0) {
                values[i] = -INFINITY;
            }
        }
    }
    if (sampler.counts_tokens) {
        const uint32_t *counts =
            args.slots.counts + (uint64_t)row.slot * args.slots.vocab_tokens + first;
        for (uint32_t i = threadIdx.x; i < count; i += ADJUST_THREADS) {
            uint32_t seen = __ldcg(counts + i);
            if (seen != 0) {
                uint32_t output_count = seen & ~K_COUNT_PROMPT;
                float l = values[i];
                /* Never contracted: each step is rounded as the cpu backend rounds it. */
                l = l > 0.0F ? __fdiv_rn(l, sampler.repetition_penalty)
                             : __fmul_rn(l, sampler.repetition_penalty);
                l = __fsub_rn(l, output_count > 0 ? sampler.presence_penalty : 0.0F);
                values[i] = __fsub_rn(l, __fmul_rn(sampler.frequency_penalty, (float)output_count));
            }
        }
    }
    __syncthreads();
    /* One thread: an id may stand twice, and the sum must not depend on order. */
    for (uint32_t i = 0; threadIdx.x == 0 && i < sampler.bias_count; i++) {
        uint32_t at = sampler.bias_ids[i] - first;
        if (at < count) {
            values[at] += sampler.bias_values[i];
        }
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(ADJUST_THREADS)
    adjust_kernel(k_sample_args args, sample_scratch scratch)
{
    __shared__ float values[CHUNK];
    __shared__ chunk_best bests[ADJUST_THREADS / K_WARP_LANES];
    k_begin();
    k_wait_for_predecessors();
    const k_sample_row row = args.rows[blockIdx.y];
    if (row.row == K_NONE) {
        return;
    }
    const k_sampler &sampler = args.slots.samplers[row.slot];
    uint32_t vocab = args.slots.vocab_tokens;
    uint32_t first = blockIdx.x * CHUNK;
    uint32_t count = vocab - first < CHUNK ? vocab - first : CHUNK;
    const uint16_t *logits = args.logits + (uint64_t)blockIdx.y * vocab + first;
    bool is_sound = true;
    for (uint32_t i = threadIdx.x; i < count; i += ADJUST_THREADS) {
        uint16_t logit = __ldcg(reinterpret_cast<const unsigned short *>(logits) + i);
        is_sound = is_sound && (logit & 0x7f80U) != 0x7f80U;
        values[i] = k_f32(logit);
    }
    __syncthreads();
    apply_lists(args, row, sampler, first, count, values);
    bool samples = sampler.temperature >= K_MIN_TEMPERATURE;
    float *kept = scratch.values + (uint64_t)blockIdx.y * vocab + first;
    float best = -INFINITY;
    uint32_t token = 0xffffffffU;
    for (uint32_t i = threadIdx.x; i < count; i += ADJUST_THREADS) {
        float value = values[i];
        is_sound = is_sound && value <= FLT_MAX;
        if (is_better(value, first + i, best, token)) {
            best = value;
            token = first + i;
        }
        if (samples) {
            kept[i] = __fdiv_rn(value, sampler.temperature);
        }
    }
    warp_best(best, token);
    bool warp_sound = __all_sync(0xffffffffU, is_sound);
    if (threadIdx.x % K_WARP_LANES == 0) {
        bests[threadIdx.x / K_WARP_LANES] = {best, token, warp_sound ? 1U : 0U};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        chunk_best all = bests[0];
        for (uint32_t warp = 1; warp < ADJUST_THREADS / K_WARP_LANES; warp++) {
            all.is_sound &= bests[warp].is_sound;
            if (is_better(bests[warp].value, bests[warp].token, all.value, all.token)) {
                all.value = bests[warp].value;
                all.token = bests[warp].token;
            }
        }
        scratch.best[blockIdx.y * scratch.chunks + blockIdx.x] = all;
    }
}

/* ---- pick ---- */

/* Larger values have smaller keys; both zeros are one value. */
static __device__ __forceinline__ uint32_t key_of(float value)
{
    uint32_t bits = value == 0.0F ? 0 : __float_as_uint(value);
    bits = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    return ~bits;
}

/* Survivors so far: key below key_limit, or equal to it and id at most id_limit. */
struct survivors {
    uint32_t key_limit;
    uint32_t id_limit;

    __device__ __forceinline__ bool has(uint32_t key, uint32_t id) const
    {
        return key < key_limit || (key == key_limit && id <= id_limit);
    }
};

struct token_list {
    uint32_t count; /* more than LIST_TOKENS: not all of them are there */
    uint32_t ids[LIST_TOKENS];
};

struct pick_shared {
    uint32_t limbs[LIMBS][DIGITS];
    unsigned long long rest; /* weight still to be found within the digit chosen */
    uint32_t digit;
    token_list boundary; /* tokens that may be the last survivor */
    token_list kept;     /* survivors of top-k */
    float best_value[PICK_WARPS];
    uint32_t best_token[PICK_WARPS];
};

enum weighing {
    WEIGH_COUNT,
    WEIGH_MASS,
};

static __device__ __forceinline__ unsigned long long weight_of(weighing kind, float value,
                                                               float best)
{
    return kind == WEIGH_COUNT ? 1ULL : (unsigned long long)(expf(value - best) * MASS_ONE);
}

struct row_values {
    const float *values; /* [vocab], by token id */
    const uint32_t *ids; /* [count]; null: all tokens below count */
    uint32_t count;
    float best;
    float bins_per_one; /* a power of two: scaling by it is exact */
};

/* visit(id, value) for every token of the row that is not excluded, by all threads. */
template <typename Visit>
static __device__ __forceinline__ void each_token(const row_values &row, Visit visit)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < row.count; i += PICK_THREADS) {
        uint32_t id = row.ids == nullptr ? i : row.ids[i];
        float value = __ldcg(row.values + id);
        if (value >= -FLT_MAX) {
            visit(id, value);
        }
    }
}

/* A better value is never in a later bin; bins of one coarse bin likewise. */
static __device__ __forceinline__ float coarse_bin(const row_values &row, float value)
{
    return fminf(floorf((row.best - value) * row.bins_per_one), LAST_BIN);
}

static __device__ __forceinline__ float fine_bin(const row_values &row, float value, float coarse)
{
    float bins = floorf((row.best - value) * row.bins_per_one * DIGITS);
    return fminf(bins - coarse * DIGITS, LAST_BIN);
}

static __device__ void clear_weights(pick_shared *shared)
{
    uint32_t *limbs = &shared->limbs[0][0];
    for (uint32_t i = threadIdx.x; i < LIMBS * DIGITS; i += PICK_THREADS) {
        limbs[i] = 0;
    }
    __syncthreads();
}

static __device__ __forceinline__ void add_weight(pick_shared *shared, uint32_t digit,
                                                  unsigned long long weight)
{
#pragma unroll
    for (uint32_t limb = 0; limb < LIMBS; limb++) {
        uint32_t part = (uint32_t)(weight >> limb * LIMB_BITS);
        part = limb + 1 < LIMBS ? part & ((1U << LIMB_BITS) - 1) : part;
        if (part != 0) {
            atomicAdd(&shared->limbs[limb][digit], part);
        }
    }
}

static __device__ unsigned long long weight_at(const pick_shared *shared, uint32_t digit)
{
    unsigned long long weight = 0;
    for (uint32_t limb = 0; limb < LIMBS; limb++) {
        weight += (unsigned long long)shared->limbs[limb][digit] << limb * LIMB_BITS;
    }
    return weight;
}

/* The first digit at which the running weight reaches `rest`; DIGITS where it never does. */
static __device__ void choose_digit(pick_shared *shared)
{
    constexpr uint32_t LANE_DIGITS = DIGITS / K_WARP_LANES;
    __syncthreads();
    if (threadIdx.x < K_WARP_LANES) {
        uint32_t first = threadIdx.x * LANE_DIGITS;
        unsigned long long rest = shared->rest;
        unsigned long long own = 0;
        for (uint32_t i = 0; i < LANE_DIGITS; i++) {
            own += weight_at(shared, first + i);
        }
        unsigned long long until = own;
        for (uint32_t step = 1; step < K_WARP_LANES; step *= 2) {
            unsigned long long left = __shfl_up_sync(0xffffffffU, until, step);
            until += threadIdx.x >= step ? left : 0;
        }
        bool is_mine = until >= rest && until - own < rest;
        __syncwarp(); /* every lane has read `rest` */
        if (is_mine) {
            unsigned long long before = until - own;
            uint32_t digit = first;
            while (before + weight_at(shared, digit) < rest) {
                before += weight_at(shared, digit++);
            }
            shared->digit = digit;
            shared->rest = rest - before;
        }
        if (!__any_sync(0xffffffffU, is_mine) && threadIdx.x == 0) {
            shared->digit = DIGITS;
        }
    }
    __syncthreads();
}

/* Descends the bits of keys, then of ids, of the row's survivors to the last of those whose weight
 * reaches `rest`; all of them where together they weigh less. */
static __device__ survivors descend(const row_values &row, survivors alive, weighing kind,
                                    pick_shared *shared)
{
    uint32_t limits[2] = {0, 0};
    for (int by_id = 0; by_id < 2; by_id++) {
        for (int shift = 32 - (int)DIGIT_BITS; shift >= 0; shift -= (int)DIGIT_BITS) {
            clear_weights(shared);
            each_token(row, [&](uint32_t id, float value) {
                uint32_t key = key_of(value);
                uint32_t bits = by_id != 0 ? id : key;
                bool is_above = shift + (int)DIGIT_BITS >= 32 ||
                                bits >> (shift + (int)DIGIT_BITS) == limits[by_id];
                if (is_above && alive.has(key, id) && (by_id == 0 || key == limits[0])) {
                    add_weight(shared, bits >> shift & (DIGITS - 1),
                               weight_of(kind, value, row.best));
                }
            });
            choose_digit(shared);
            if (shared->digit == DIGITS) {
                return alive;
            }
            limits[by_id] = limits[by_id] << DIGIT_BITS | shared->digit;
        }
    }
    return {limits[0], limits[1]};
}

/* Tokens for which is_in(id, value), in any order. */
template <typename IsIn>
static __device__ void list_tokens(const row_values &row, token_list *list, IsIn is_in)
{
    if (threadIdx.x == 0) {
        list->count = 0;
    }
    __syncthreads();
    each_token(row, [&](uint32_t id, float value) {
        if (is_in(id, value)) {
            uint32_t at = atomicAdd(&list->count, 1);
            if (at < LIST_TOKENS) {
                list->ids[at] = id;
            }
        }
    });
    __syncthreads();
}

/* Cuts the survivors to the fewest best whose weight reaches wanted. */
static __device__ survivors cut(const row_values &row, survivors alive, unsigned long long wanted,
                                weighing kind, pick_shared *shared)
{
    wanted = wanted == 0 ? 1 : wanted;
    if (threadIdx.x == 0) {
        shared->rest = wanted;
    }
    clear_weights(shared);
    each_token(row, [&](uint32_t id, float value) {
        if (alive.has(key_of(value), id)) {
            add_weight(shared, (uint32_t)coarse_bin(row, value), weight_of(kind, value, row.best));
        }
    });
    choose_digit(shared);
    if (shared->digit == DIGITS) {
        return alive; /* all of them together weigh less */
    }
    float coarse = (float)shared->digit;
    clear_weights(shared);
    each_token(row, [&](uint32_t id, float value) {
        if (coarse_bin(row, value) == coarse && alive.has(key_of(value), id)) {
            add_weight(shared, (uint32_t)fine_bin(row, value, coarse),
                       weight_of(kind, value, row.best));
        }
    });
    choose_digit(shared);
    float fine = (float)shared->digit;
    list_tokens(row, &shared->boundary, [&](uint32_t id, float value) {
        return coarse_bin(row, value) == coarse && fine_bin(row, value, coarse) == fine &&
               alive.has(key_of(value), id);
    });
    row_values among = row;
    if (shared->boundary.count <= LIST_TOKENS) {
        among.ids = shared->boundary.ids;
        among.count = shared->boundary.count;
    } else if (threadIdx.x == 0) {
        shared->rest = wanted; /* too many: among all of the row */
    }
    return descend(among, alive, kind, shared);
}

static __device__ unsigned long long total_mass(const row_values &row, const survivors &alive,
                                                pick_shared *shared)
{
    if (threadIdx.x == 0) {
        shared->rest = 0;
    }
    __syncthreads();
    unsigned long long own = 0;
    each_token(row, [&](uint32_t id, float value) {
        own += alive.has(key_of(value), id) ? weight_of(WEIGH_MASS, value, row.best) : 0;
    });
    for (int step = K_WARP_LANES / 2; step > 0; step /= 2) {
        own += __shfl_xor_sync(0xffffffffU, own, step);
    }
    if (threadIdx.x % K_WARP_LANES == 0) {
        atomicAdd(&shared->rest, own);
    }
    __syncthreads();
    unsigned long long total = shared->rest;
    __syncthreads();
    return total;
}

/* Best of all threads; every thread gets it. */
static __device__ uint32_t block_best(float value, uint32_t token, pick_shared *shared)
{
    warp_best(value, token);
    if (threadIdx.x % K_WARP_LANES == 0) {
        shared->best_value[threadIdx.x / K_WARP_LANES] = value;
        shared->best_token[threadIdx.x / K_WARP_LANES] = token;
    }
    __syncthreads();
    value = shared->best_value[threadIdx.x % PICK_WARPS];
    token = shared->best_token[threadIdx.x % PICK_WARPS];
    warp_best(value, token);
    __syncthreads();
    return token;
}

static_assert(PICK_WARPS == K_WARP_LANES, "one warp reads the bests of all");

static __device__ uint32_t draw(const k_sampler &sampler, const k_sample_row &at, row_values row,
                                pick_shared *shared)
{
    survivors alive = {0xffffffffU, 0xffffffffU};
    if (sampler.top_k != 0 && sampler.top_k < row.count) {
        alive = cut(row, alive, sampler.top_k, WEIGH_COUNT, shared);
        if (sampler.top_k <= LIST_TOKENS) {
            list_tokens(row, &shared->kept,
                        [&](uint32_t id, float value) { return alive.has(key_of(value), id); });
            row.ids = shared->kept.ids;
            row.count = shared->kept.count;
        }
    }
    if (sampler.top_p < 1.0F) {
        double wanted = (double)sampler.top_p * (double)total_mass(row, alive, shared);
        alive = cut(row, alive, (unsigned long long)ceil(wanted), WEIGH_MASS, shared);
    }
    float least = sampler.min_p > 0.0F ? row.best + logf(sampler.min_p) : -FLT_MAX;
    float best = -INFINITY;
    uint32_t token = 0xffffffffU;
    each_token(row, [&](uint32_t id, float value) {
        if (value >= least && alive.has(key_of(value), id)) {
            float noisy = value + k_philox_gumbel(sampler.seed, at.position, id);
            if (is_better(noisy, id, best, token)) {
                best = noisy;
                token = id;
            }
        }
    });
    return block_best(best, token, shared);
}

/* Bins that are as wide in logits whatever the temperature is. */
static __device__ __forceinline__ float bins_per_one(float temperature)
{
    return exp2f(floorf(log2f(BINS_PER_LOGIT * temperature)));
}

static __global__ void __launch_bounds__(PICK_THREADS)
    pick_kernel(k_sample_args args, sample_scratch scratch)
{
    __shared__ pick_shared shared;
    k_begin();
    k_wait_for_predecessors();
    const k_sample_row at = args.rows[blockIdx.x];
    if (at.row == K_NONE) {
        return;
    }
    if (at.mask_row != K_NONE && args.missing != nullptr &&
        __ldcg(args.missing + at.mask_row) != 0) {
        if (threadIdx.x == 0) {
            k_pick held = {};
            held.outcome = K_OUTCOME_HELD;
            args.picks[at.row] = held;
            args.logprobs[blockIdx.x].target = K_NONE;
        }
        return;
    }
    const k_sampler &sampler = args.slots.samplers[at.slot];
    const chunk_best *bests = scratch.best + blockIdx.x * scratch.chunks;
    float value = -INFINITY;
    uint32_t token = 0xffffffffU;
    bool is_sound = true;
    for (uint32_t chunk = threadIdx.x; chunk < scratch.chunks; chunk += PICK_THREADS) {
        is_sound = is_sound && bests[chunk].is_sound != 0;
        if (is_better(bests[chunk].value, bests[chunk].token, value, token)) {
            value = bests[chunk].value;
            token = bests[chunk].token;
        }
    }
    is_sound = __syncthreads_and(is_sound) != 0;
    token = block_best(value, token, &shared);
    bool is_excluded = __syncthreads_or(value >= -FLT_MAX) == 0;
    if (is_sound && !is_excluded && sampler.temperature >= K_MIN_TEMPERATURE) {
        const float *values = scratch.values + (uint64_t)blockIdx.x * args.slots.vocab_tokens;
        row_values row = {values, nullptr, args.slots.vocab_tokens, __ldcg(values + token),
                          bins_per_one(sampler.temperature)};
        token = draw(sampler, at, row, &shared);
    }
    if (threadIdx.x == 0) {
        bool is_bad = !is_sound || is_excluded;
        k_pick pick = {};
        pick.outcome = is_bad ? K_OUTCOME_BAD : K_OUTCOME_TOKEN;
        pick.token = is_bad ? 0 : token;
        args.picks[at.row] = pick;
        args.logprobs[blockIdx.x].target = is_bad ? K_NONE : token;
    }
}

extern "C" enum err_code k_cuda_sample(struct k_stream *stream, const struct k_sample_args *args,
                                       struct err *err)
{
    if (args->slots.vocab_tokens != stream->shape.vocab_tokens ||
        args->row_count > stream->shape.max_rows) {
        return err_set(err, ERR_SHAPE, "sample: %u rows of vocabulary %u, made for %u of %u",
                       args->row_count, args->slots.vocab_tokens, stream->shape.max_rows,
                       stream->shape.vocab_tokens);
    }
    if (args->row_count == 0) {
        return ERR_OK;
    }
    sample_scratch scratch = scratch_of(stream);
    cudaError_t error = k_launch(stream, adjust_kernel, dim3(scratch.chunks, args->row_count),
                                 ADJUST_THREADS, 0, *args, scratch);
    if (error == cudaSuccess) {
        error = k_launch(stream, pick_kernel, args->row_count, PICK_THREADS, 0, *args, scratch);
    }
    return k_launched(error, "sample", err);
}
