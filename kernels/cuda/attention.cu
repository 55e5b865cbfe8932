/* Attention over paged keys and values: checks, and the choice between its two kernels.
 *
 * Few tokens are read-bound, each with its own K and V: attention_split_kv.cu.  Many are prompt
 * segments whose tokens share theirs: attention_tiles.cu.  At one count of tokens, a token's bits
 * depend on its own keys alone.  A padding token's output is zero. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/device/launch.cuh"

constexpr uint32_t MIN_PAGE_TOKENS = 16;
constexpr uint32_t MAX_GROUP = 16;

uint64_t k_cuda_attention_scratch_bytes(const k_cuda_shape *shape)
{
    uint64_t split_kv = k_attention_split_kv_scratch_bytes(shape);
    uint64_t tiles = k_attention_tiles_scratch_bytes(shape);
    return split_kv > tiles ? split_kv : tiles;
}

cudaError_t k_cuda_attention_prepare(void)
{
    cudaError_t error = k_attention_split_kv_prepare();
    return error == cudaSuccess ? k_attention_tiles_prepare() : error;
}

static bool is_power_of_two(uint32_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

static enum err_code check(const struct k_stream *stream, const struct k_attention_args *args,
                           struct err *err)
{
    const k_pages *pages = &args->pages;
    if (pages->head_dim != 256 && pages->head_dim != 512) {
        return err_set(err, ERR_SHAPE, "attention: head_dim %u, 256 or 512", pages->head_dim);
    }
    if (pages->kv_heads == 0 || args->heads % pages->kv_heads != 0 ||
        !is_power_of_two(args->heads / pages->kv_heads) ||
        args->heads / pages->kv_heads > MAX_GROUP) {
        return err_set(err, ERR_SHAPE, "attention: %u heads over %u kv heads, groups of 1 to %u",
                       args->heads, pages->kv_heads, MAX_GROUP);
    }
    if (!is_power_of_two(pages->page_tokens) || pages->page_tokens < MIN_PAGE_TOKENS) {
        return err_set(err, ERR_SHAPE, "attention: pages of %u tokens, a power of two from %u",
                       pages->page_tokens, MIN_PAGE_TOKENS);
    }
    if (args->heads > stream->shape.heads || pages->head_dim > stream->shape.max_head_dim ||
        args->tokens.count > stream->shape.max_tokens) {
        return err_set(err, ERR_SHAPE,
                       "attention: %u tokens, %u heads of %u, the stream was made for %u, %u of %u",
                       args->tokens.count, args->heads, pages->head_dim, stream->shape.max_tokens,
                       stream->shape.heads, stream->shape.max_head_dim);
    }
    if (args->q_stride_elems % (K_ALIGN_BYTES / sizeof(uint16_t)) != 0) {
        return err_set(err, ERR_ALIGN, "attention: q rows of %llu elements, a multiple of 8",
                       (unsigned long long)args->q_stride_elems);
    }
    return k_check_aligned("attention",
                           {{args->q, "q"}, {pages->base, "pages"}, {args->out, "out"}}, err);
}

extern "C" enum err_code k_cuda_attention(struct k_stream *stream,
                                          const struct k_attention_args *args, struct err *err)
{
    enum err_code code = check(stream, args, err);
    if (code != ERR_OK || args->tokens.count == 0) {
        return code;
    }
    cudaError_t error = args->tokens.count <= K_SPLIT_KV_MAX_ROWS
                            ? k_attention_split_kv(stream, args)
                            : k_attention_tiles(stream, args);
    return k_launched(error, "attention", err);
}
