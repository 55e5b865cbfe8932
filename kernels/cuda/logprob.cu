/* Log probabilities of soft-capped logits: of one token, its rank, and of the best ones.
 *
 * One block per row, rows that want nothing leave at once.  Sums in f32 per thread, in f64 over
 * threads in a fixed order.  The best are found one after another, each the best of what stands
 * after the one before in the order (value, lower id): 2 bytes per logit and pair, from L2. */
#include <float.h>

#include "kernels/cuda/device/bf16.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"

constexpr uint32_t THREADS = 1024;
constexpr uint32_t WARPS = THREADS / K_WARP_LANES;

static_assert(WARPS == K_WARP_LANES, "one warp reads what every warp found");

struct ranked {
    float value;
    uint32_t token;
};

/* a stands before b. */
static __device__ __forceinline__ bool is_before(ranked a, ranked b)
{
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

static __device__ __forceinline__ ranked warp_first(ranked own)
{
#pragma unroll
    for (int step = K_WARP_LANES / 2; step > 0; step /= 2) {
        ranked other = {__shfl_xor_sync(0xffffffffU, own.value, step),
                        __shfl_xor_sync(0xffffffffU, own.token, step)};
        own = is_before(other, own) ? other : own;
    }
    return own;
}

static __device__ ranked block_first(ranked own, ranked *shared)
{
    own = warp_first(own);
    if (threadIdx.x % K_WARP_LANES == 0) {
        shared[threadIdx.x / K_WARP_LANES] = own;
    }
    __syncthreads();
    own = warp_first(shared[threadIdx.x % K_WARP_LANES]);
    __syncthreads();
    return own;
}

static __device__ double block_sum(double own, double *shared)
{
#pragma unroll
    for (int step = K_WARP_LANES / 2; step > 0; step /= 2) {
        own += __shfl_xor_sync(0xffffffffU, own, step);
    }
    if (threadIdx.x % K_WARP_LANES == 0) {
        shared[threadIdx.x / K_WARP_LANES] = own;
    }
    __syncthreads();
    double sum = 0.0;
    for (uint32_t warp = 0; warp < WARPS; warp++) {
        sum += shared[warp];
    }
    __syncthreads();
    return sum;
}

static __device__ __forceinline__ float logit_at(const uint16_t *logits, uint32_t token)
{
    return k_f32(__ldcg(reinterpret_cast<const unsigned short *>(logits) + token));
}

/* Best token that stands after `after`. */
static __device__ ranked next_best(const uint16_t *logits, uint32_t vocab, ranked after,
                                   ranked *shared)
{
    ranked best = {-INFINITY, 0xffffffffU};
    for (uint32_t token = threadIdx.x; token < vocab; token += THREADS) {
        ranked candidate = {logit_at(logits, token), token};
        if (is_before(after, candidate) && is_before(candidate, best)) {
            best = candidate;
        }
    }
    return block_first(best, shared);
}

static __global__ void __launch_bounds__(THREADS) logprobs_kernel(k_logprobs_args args)
{
    __shared__ ranked shared_first[WARPS];
    __shared__ double shared_sum[WARPS];
    k_begin();
    k_wait_for_predecessors();
    const k_logprob_row row = args.rows[blockIdx.x];
    if (row.want == 0) {
        return;
    }
    k_logprob *record = args.records + row.record;
    if (row.target == K_NONE) {
        if (threadIdx.x == 0) {
            *record = {};
            record->token = K_NONE;
        }
        return;
    }
    uint32_t vocab = args.vocab_tokens;
    const uint16_t *logits = args.logits + (uint64_t)blockIdx.x * vocab;
    ranked before_all = {INFINITY, 0};
    ranked best = next_best(logits, vocab, before_all, shared_first);
    ranked target = {logit_at(logits, row.target), row.target};
    float sum = 0.0F;
    uint32_t ahead = 0;
    for (uint32_t token = threadIdx.x; token < vocab; token += THREADS) {
        ranked other = {logit_at(logits, token), token};
        sum += expf(other.value - best.value);
        ahead += is_before(other, target) ? 1 : 0;
    }
    double total = (double)best.value + log(block_sum((double)sum, shared_sum));
    double rank = 1.0 + block_sum((double)ahead, shared_sum);
    uint32_t pairs = row.want - 1 < K_MAX_LOGPROBS ? row.want - 1 : K_MAX_LOGPROBS;
    pairs = pairs < vocab ? pairs : vocab;
    if (threadIdx.x == 0) {
        record->token = row.target;
        record->logprob = (float)((double)target.value - total);
        record->rank = (uint32_t)rank;
        record->pair_count = pairs;
    }
    for (uint32_t i = 0; i < pairs; i++) {
        if (threadIdx.x == 0) {
            record->ids[i] = best.token;
            record->logprobs[i] = (float)((double)best.value - total);
        }
        best = i + 1 < pairs ? next_best(logits, vocab, best, shared_first) : best;
    }
}

extern "C" enum err_code k_cuda_logprobs(struct k_stream *stream,
                                         const struct k_logprobs_args *args, struct err *err)
{
    if (args->row_count == 0) {
        return ERR_OK;
    }
    return k_launched(k_launch(stream, logprobs_kernel, args->row_count, THREADS, 0, *args),
                      "logprobs", err);
}
