/* Slot state on the device: opening a slot, the prologue and the tail of a step.
 *
 * One block each: a step has at most a few thousand tokens and 1,024 rows, and each kernel is a
 * few microseconds of integer work.  A captured step keeps its width: masked and held rows and the
 * rows beyond row_count leave tokens with K_SLOT_NONE, and sample rows with K_NONE as their row. */
#include "kernels/cuda/device/launch.cuh"

constexpr uint32_t THREADS = 512;
constexpr uint32_t COPY_THREADS = 256;

/* ---- open ---- */

/* Counts are clean unless the slot's last sequence used them. */
static __global__ void __launch_bounds__(COPY_THREADS) clear_counts_kernel(k_open_args args)
{
    k_begin();
    k_wait_for_predecessors();
    const k_slots &slots = args.slots;
    if (!slots.samplers[args.slot].counts_tokens) {
        return;
    }
    uint32_t *counts = slots.counts + (uint64_t)args.slot * slots.vocab_tokens;
    for (uint32_t i = blockIdx.x * COPY_THREADS + threadIdx.x; i < slots.vocab_tokens;
         i += gridDim.x * COPY_THREADS) {
        counts[i] = 0;
    }
}

static __global__ void __launch_bounds__(COPY_THREADS) open_kernel(k_open_args args)
{
    k_begin();
    k_wait_for_predecessors();
    const k_slots &slots = args.slots;
    const uint32_t *from = reinterpret_cast<const uint32_t *>(args.sampler);
    uint32_t *to = reinterpret_cast<uint32_t *>(slots.samplers + args.slot);
    for (uint32_t i = threadIdx.x; i < sizeof(k_sampler) / sizeof(uint32_t); i += COPY_THREADS) {
        to[i] = __ldcg(from + i);
    }
    if (threadIdx.x == 0) {
        slots.generation[args.slot] = args.generation;
        slots.stopped[args.slot] = 0;
        slots.length[args.slot] = 0;
        slots.next_token[args.slot] = 0;
    }
}

static __global__ void __launch_bounds__(COPY_THREADS) count_context_kernel(k_open_args args)
{
    k_begin();
    k_wait_for_predecessors();
    const k_sampler &sampler = args.slots.samplers[args.slot];
    uint32_t *counts = args.slots.counts + (uint64_t)args.slot * args.slots.vocab_tokens;
    for (uint32_t i = blockIdx.x * COPY_THREADS + threadIdx.x;
         sampler.counts_tokens && i < args.context_count; i += gridDim.x * COPY_THREADS) {
        uint32_t *count = counts + __ldcg(args.context + i);
        if (i < sampler.output_start) {
            atomicOr(count, K_COUNT_PROMPT);
        } else {
            atomicAdd(count, 1U);
        }
    }
}

static_assert(sizeof(k_sampler) % sizeof(uint32_t) == 0, "a sampler is copied by words");

/* ---- expand ---- */

static __device__ __forceinline__ bool is_masked(const k_slots &slots, const k_row &row)
{
    uint32_t stop = *reinterpret_cast<const volatile uint32_t *>(slots.stop_request + row.slot);
    return slots.generation[row.slot] != row.generation || slots.stopped[row.slot] != 0 ||
           stop == row.generation;
}

struct expand_sums {
    uint32_t tokens;
    uint32_t samples;
    uint32_t prompt_rows;
};

/* Exclusive sums over the rows before this thread's, THREADS rows at a time.  Shared scan. */
static __device__ expand_sums exclusive_scan(expand_sums own, expand_sums *scan,
                                             expand_sums *out_total)
{
    uint32_t thread = threadIdx.x;
    scan[thread] = own;
    __syncthreads();
    for (uint32_t step = 1; step < THREADS; step *= 2) {
        expand_sums left = {};
        if (thread >= step) {
            left = scan[thread - step];
        }
        __syncthreads();
        scan[thread].tokens += left.tokens;
        scan[thread].samples += left.samples;
        scan[thread].prompt_rows += left.prompt_rows;
        __syncthreads();
    }
    expand_sums inclusive = scan[thread];
    *out_total = scan[THREADS - 1];
    __syncthreads();
    return {inclusive.tokens - own.tokens, inclusive.samples - own.samples,
            inclusive.prompt_rows - own.prompt_rows};
}

/* Tokens of one row: a prompt row of thousands is spread over the block's warps by the caller. */
static __device__ void expand_row(const k_expand_args &args, uint32_t row_index, expand_sums at)
{
    const k_row row = args.rows[row_index];
    const k_sampler &sampler = args.slots.samplers[row.slot];
    bool is_live = args.picks[row_index].outcome == K_OUTCOME_NONE;
    bool is_decode = row.first_id == K_NONE;
    uint32_t start = is_decode ? args.slots.length[row.slot] : row.start;
    for (uint32_t i = threadIdx.x % 32; i < row.count; i += 32) {
        uint32_t token = at.tokens + i;
        uint32_t id =
            is_decode ? args.slots.next_token[row.slot] : args.prompt_ids[row.first_id + i];
        args.ids[token] = is_live ? id : 0;
        args.positions[token] = is_live ? start + i : i;
        args.token_slots[token] = is_live ? row.slot : K_SLOT_NONE;
        if ((row.flags & K_ROW_PROMPT_LOGPROBS) != 0) {
            args.prompt_tokens[at.prompt_rows + i] = token;
            k_logprob_row wanted = {};
            wanted.target = args.next_ids[row.first_id + i];
            wanted.want = is_live ? sampler.prompt_logprobs : 0;
            wanted.record = row.first_id + i;
            args.prompt_logprobs[at.prompt_rows + i] = wanted;
        }
    }
    if ((row.flags & K_ROW_SAMPLES) != 0 && threadIdx.x % 32 == 0) {
        args.sample_tokens[at.samples] = at.tokens + row.count - 1;
        k_sample_row sample = {};
        sample.row = is_live ? row_index : K_NONE;
        sample.slot = row.slot;
        sample.position = start + row.count;
        sample.mask_row = row.mask_row;
        args.sample_rows[at.samples] = sample;
        k_logprob_row wanted = {};
        wanted.target = K_NONE;
        wanted.want = is_live ? sampler.logprobs : 0;
        wanted.record = row_index;
        args.sample_logprobs[at.samples] = wanted;
    }
}

static __device__ __forceinline__ uint64_t clock_ns()
{
    uint64_t now_ns = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now_ns));
    return now_ns;
}

static __device__ void apply_patches(const k_expand_args &args)
{
    for (uint32_t i = threadIdx.x; i < args.patch_count; i += THREADS) {
        const k_patch patch = args.patches[i];
        uint64_t table = (uint64_t)patch.slot * args.table_pages[patch.family];
        args.page_tables[patch.family][table + patch.entry] = patch.physical_page;
    }
}

static __global__ void __launch_bounds__(THREADS) expand_kernel(k_expand_args args)
{
    __shared__ expand_sums scan[THREADS];
    __shared__ expand_sums starts[THREADS];
    k_begin();
    k_wait_for_predecessors();
    if (threadIdx.x == 0 && args.begin_ns != nullptr) {
        *args.begin_ns = clock_ns();
    }
    apply_patches(args);
    expand_sums base = {};
    for (uint32_t first = 0; first < args.row_count; first += THREADS) {
        uint32_t r = first + threadIdx.x;
        expand_sums own = {};
        if (r < args.row_count) {
            const k_row row = args.rows[r];
            uint32_t outcome = is_masked(args.slots, row)      ? K_OUTCOME_MASKED
                               : (row.flags & K_ROW_HELD) != 0 ? K_OUTCOME_HELD
                                                               : K_OUTCOME_NONE;
            k_pick pick = {};
            pick.outcome = outcome;
            args.picks[r] = pick;
            own.tokens = row.count;
            own.samples = (row.flags & K_ROW_SAMPLES) != 0 ? 1 : 0;
            own.prompt_rows = (row.flags & K_ROW_PROMPT_LOGPROBS) != 0 ? row.count : 0;
        }
        expand_sums total;
        expand_sums before = exclusive_scan(own, scan, &total);
        starts[threadIdx.x] = {base.tokens + before.tokens, base.samples + before.samples,
                               base.prompt_rows + before.prompt_rows};
        __syncthreads();
        for (uint32_t warp = threadIdx.x / 32; warp < THREADS && first + warp < args.row_count;
             warp += THREADS / 32) {
            expand_row(args, first + warp, starts[warp]);
        }
        __syncthreads();
        base = {base.tokens + total.tokens, base.samples + total.samples,
                base.prompt_rows + total.prompt_rows};
    }
    uint32_t multiple = args.pad_tokens_multiple > 1 ? args.pad_tokens_multiple : 1;
    uint32_t padded = (base.tokens + multiple - 1) / multiple * multiple;
    for (uint32_t token = base.tokens + threadIdx.x; token < padded; token += THREADS) {
        args.ids[token] = 0;
        args.positions[token] = token - base.tokens;
        args.token_slots[token] = K_SLOT_NONE;
    }
    if (threadIdx.x == 0) {
        *args.counts = {padded, base.samples, base.prompt_rows};
    }
}

/* ---- advance ---- */

static __device__ bool is_stop_id(const k_sampler &sampler, uint32_t token)
{
    for (uint32_t i = 0; !sampler.ignore_eos && i < sampler.stop_count; i++) {
        if (sampler.stop_ids[i] == token) {
            return true;
        }
    }
    return false;
}

static __device__ k_pick advance_row(const k_slots &slots, const k_row &row, k_pick pick)
{
    const k_sampler &sampler = slots.samplers[row.slot];
    uint32_t start = row.first_id == K_NONE ? slots.length[row.slot] : row.start;
    uint32_t length = start + row.count;
    if (pick.outcome == K_OUTCOME_TOKEN) {
        pick.outcome = length + 1 >= sampler.max_total ? K_OUTCOME_LENGTH : K_OUTCOME_TOKEN;
        pick.outcome = is_stop_id(sampler, pick.token) ? K_OUTCOME_STOP : pick.outcome;
        slots.next_token[row.slot] = pick.token;
        if (sampler.counts_tokens) {
            slots.counts[(uint64_t)row.slot * slots.vocab_tokens + pick.token] += 1;
        }
    }
    if (pick.outcome != K_OUTCOME_BAD) {
        slots.length[row.slot] = length;
    }
    slots.stopped[row.slot] = pick.outcome != K_OUTCOME_NONE && pick.outcome != K_OUTCOME_TOKEN;
    return pick;
}

static __global__ void __launch_bounds__(THREADS) advance_kernel(k_advance_args args)
{
    k_begin();
    k_wait_for_predecessors();
    uint32_t turn = args.turn == nullptr ? 0 : *args.turn;
    for (uint32_t r = threadIdx.x; r < args.row_count; r += THREADS) {
        k_pick pick = args.picks[r];
        if (pick.outcome != K_OUTCOME_MASKED && pick.outcome != K_OUTCOME_HELD) {
            const k_row row = args.rows[r];
            pick = advance_row(args.slots, row, pick);
            args.picks[r] = pick;
        }
        if (args.published != nullptr) {
            args.published[(uint64_t)turn * args.turn_rows + r] = pick;
        }
    }
    __syncthreads(); /* every thread has read the turn and published its rows */
    if (threadIdx.x == 0 && args.stamps != nullptr) {
        volatile k_stamp *stamp = args.stamps + turn;
        stamp->begin_ns = *args.begin_ns;
        __threadfence_system(); /* the host reads what was published once the end is there */
        stamp->end_ns = clock_ns();
    }
    if (threadIdx.x == 0 && args.turn != nullptr) {
        *args.turn = turn + 1 == args.turns ? 0 : turn + 1;
    }
}

/* ---- wrappers ---- */

extern "C" enum err_code k_cuda_open(struct k_stream *stream, const struct k_open_args *args,
                                     struct err *err)
{
    if (args->slot >= args->slots.slot_count) {
        return err_set(err, ERR_SHAPE, "open: slot %u of %u", args->slot, args->slots.slot_count);
    }
    uint32_t blocks = stream->sm_count;
    cudaError_t error = k_launch(stream, clear_counts_kernel, blocks, COPY_THREADS, 0, *args);
    if (error == cudaSuccess) {
        error = k_launch(stream, open_kernel, 1, COPY_THREADS, 0, *args);
    }
    if (error == cudaSuccess && args->context_count > 0) {
        error = k_launch(stream, count_context_kernel, blocks, COPY_THREADS, 0, *args);
    }
    return k_launched(error, "open", err);
}

extern "C" enum err_code k_cuda_expand(struct k_stream *stream, const struct k_expand_args *args,
                                       struct err *err)
{
    return k_launched(k_launch(stream, expand_kernel, 1, THREADS, 0, *args), "expand", err);
}

extern "C" enum err_code k_cuda_advance(struct k_stream *stream, const struct k_advance_args *args,
                                        struct err *err)
{
    return k_launched(k_launch(stream, advance_kernel, 1, THREADS, 0, *args), "advance", err);
}
