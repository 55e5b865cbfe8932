/* Attention over paged keys and values, one pass per (block of query tokens, kv head).
 *
 * Scores, probabilities and sums stay f32: nearer to the exact result than either of the reference's
 * own kernels, which round scores or probabilities to bf16.  A query's sums run over its own keys
 * in ascending order, whatever shares its block: neighbouring queries of one sequence and the heads
 * of one group only share the reading of K and V.  Keys outside a query's range are never weighed:
 * zero times a stale NaN would not be zero. */
#include "common/num.h"
#include "kernels/cpu/stream.h"
#include "kernels/dtype.h"

/* From this many tokens on, blocks of queries; below, more items to spread. */
#define BLOCKS_FROM_TOKENS 32

struct job {
    const struct k_stream *stream;
    const struct k_attention_args *args;
    uint32_t tokens_per_item;
    uint32_t heads_per_item; /* query heads of one kv head */
};

/* Consecutive queries of one sequence that are worked on together, for one kv head. */
struct block {
    const struct k_stream *stream;
    const struct k_attention_args *args;
    uint32_t token; /* first */
    uint32_t tokens;
    uint32_t kv_head;
    uint32_t first_head; /* of the query heads worked on, all of this kv head */
    uint32_t group;      /* how many */
    uint32_t first_key;  /* of the first query */
    float *q;            /* [tokens * group, head_dim] lane order */
    float *acc;          /* [tokens * group, head_dim] lane order */
    float *scores;       /* [tokens * group, score_stride], column key - first_key */
    uint64_t score_stride;
};

static uint32_t block_rows(const struct k_cpu_shape *shape)
{
    return num_max(K_QUERY_ROWS, shape->max_group_heads);
}

size_t k_cpu_attention_scratch_bytes(const struct k_cpu_shape *shape)
{
    size_t row_elems = 2 * (size_t)shape->max_head_dim + shape->max_context_tokens;
    return block_rows(shape) * row_elems * sizeof(float);
}

static uint32_t position_of(const struct block *block, uint32_t token)
{
    return block->args->tokens.positions[block->token + token];
}

/* First key that a query sees. */
static uint32_t first_key_of(const struct block *block, uint32_t token)
{
    uint32_t position = position_of(block, token);
    uint32_t window = block->args->window_tokens;
    if (block->args->tokens.slots[block->token + token] == K_SLOT_NONE) {
        return position;
    }
    return window != 0 && position >= window ? position - window + 1 : 0;
}

/* K (part 0) or V (part 1) from `key` on, and how many keys of [key, end) follow in that page. */
static const uint16_t *keys_at(const struct block *block, uint32_t part, uint32_t key, uint32_t end,
                               uint32_t *out_keys)
{
    const struct k_pages *pages = &block->args->pages;
    uint32_t slot = block->args->tokens.slots[block->token];
    uint32_t page = slot == K_SLOT_NONE ? pages->pages : k_page_of(pages, slot, key);
    uint32_t within = key % pages->page_tokens;
    *out_keys = num_min(pages->page_tokens - within, end - key);
    return pages->base + k_page_offset(pages, page, block->args->kv_layer, part, block->kv_head) +
           (uint64_t)within * pages->head_dim;
}

static void widen_queries(const struct block *block)
{
    const struct k_attention_args *args = block->args;
    uint32_t head_dim = args->pages.head_dim;
    for (uint32_t t = 0; t < block->tokens; t++) {
        const uint16_t *q = args->q + (block->token + t) * args->q_stride_elems +
                            (uint64_t)block->first_head * head_dim;
        for (uint32_t g = 0; g < block->group; g++) {
            block->stream->isa->widen(q + (uint64_t)g * head_dim, head_dim,
                                      block->q + (uint64_t)(t * block->group + g) * head_dim);
        }
    }
}

static void score_keys(const struct block *block, uint32_t end)
{
    uint32_t keys = 0;
    for (uint32_t key = block->first_key; key < end; key += keys) {
        struct k_dot_args dot = {
            .x = block->q,
            .x_stride = block->args->pages.head_dim,
            .rows = block->tokens * block->group,
            .w_stride = block->args->pages.head_dim,
            .elems = block->args->pages.head_dim,
            .out = block->scores + (key - block->first_key),
            .out_stride = block->score_stride,
        };
        dot.w = keys_at(block, 0, key, end, &keys);
        dot.cols = keys;
        block->stream->isa->dot(&dot);
    }
}

/* Adds the weighed values of keys [begin, end) to `rows` rows from `row` on. */
static void add_values(const struct block *block, uint32_t row, uint32_t rows, uint32_t begin,
                       uint32_t end)
{
    uint32_t keys = 0;
    for (uint32_t key = begin; key < end; key += keys) {
        struct k_accumulate_args accumulate = {
            .p = block->scores + row * block->score_stride + (key - block->first_key),
            .p_stride = block->score_stride,
            .rows = rows,
            .dims = block->args->pages.head_dim,
            .acc = block->acc + (uint64_t)row * block->args->pages.head_dim,
        };
        accumulate.v = keys_at(block, 1, key, end, &keys);
        accumulate.keys = keys;
        block->stream->isa->accumulate(&accumulate);
    }
}

/* Each query's keys in three parts: before, within and after those that all queries see. */
static void add_all_values(const struct block *block)
{
    uint32_t last = block->tokens - 1;
    uint32_t shared_begin = first_key_of(block, last);
    uint32_t shared_end = num_max(shared_begin, position_of(block, 0) + 1);
    for (uint32_t t = 0; t < block->tokens; t++) {
        uint32_t end = num_min(shared_begin, position_of(block, t) + 1);
        add_values(block, t * block->group, block->group, first_key_of(block, t), end);
    }
    if (position_of(block, 0) >= shared_begin) {
        add_values(block, 0, block->tokens * block->group, shared_begin, shared_end);
    }
    for (uint32_t t = 0; t < block->tokens; t++) {
        add_values(block, t * block->group, block->group, shared_end, position_of(block, t) + 1);
    }
}

/* Row `row` of acc over its probabilities' sum, from lane order, rounded. */
static void write_out(const struct block *block, uint32_t token, uint32_t head, float sum)
{
    uint32_t head_dim = block->args->pages.head_dim;
    uint32_t query_head = block->first_head + head;
    const float *acc = block->acc + (uint64_t)(token * block->group + head) * head_dim;
    uint16_t *out = block->args->out +
                    ((uint64_t)(block->token + token) * block->args->heads + query_head) * head_dim;
    for (uint32_t i = 0; i < head_dim; i += K_LANE_BLOCK) {
        for (uint32_t lane = 0; lane < K_LANE_BLOCK / 2; lane++) {
            out[i + 2 * lane] = k_bf16_from_f32(acc[i + lane] / sum);
            out[i + 2 * lane + 1] = k_bf16_from_f32(acc[i + K_LANE_BLOCK / 2 + lane] / sum);
        }
    }
}

static void attend(struct block *block)
{
    uint32_t rows = block->tokens * block->group;
    uint32_t head_dim = block->args->pages.head_dim;
    float sums[K_MAX_GROUP_ROWS];
    widen_queries(block);
    block->first_key = first_key_of(block, 0);
    score_keys(block, position_of(block, block->tokens - 1) + 1);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t token = row / block->group;
        uint32_t begin = first_key_of(block, token);
        uint32_t keys = position_of(block, token) + 1 - begin;
        float *scores = block->scores + row * block->score_stride + (begin - block->first_key);
        sums[row] =
            block->stream->isa->exp_sum(scores, keys, block->stream->isa->max(scores, keys));
        for (uint32_t i = 0; i < head_dim; i++) {
            block->acc[(uint64_t)row * head_dim + i] = 0.0F;
        }
    }
    add_all_values(block);
    for (uint32_t row = 0; row < rows; row++) {
        write_out(block, row / block->group, row % block->group, sums[row]);
    }
}

/* Tokens from `token` on that continue its sequence, at most to `end`. */
static uint32_t run_length(const struct k_tokens *tokens, uint32_t token, uint32_t end)
{
    uint32_t next = token + 1;
    while (next < end && tokens->slots[token] != K_SLOT_NONE &&
           tokens->slots[next] == tokens->slots[token] &&
           tokens->positions[next] == tokens->positions[next - 1] + 1) {
        next++;
    }
    return next - token;
}

static void attention_item(void *context, uint32_t item, uint32_t thread)
{
    const struct job *job = context;
    const struct k_attention_args *args = job->args;
    const struct k_cpu_shape *shape = &job->stream->options.shape;
    uint32_t group = args->heads / args->pages.kv_heads;
    uint32_t parts = args->heads / job->heads_per_item;
    uint32_t begin = item / parts * job->tokens_per_item;
    uint32_t end = num_min(begin + job->tokens_per_item, args->tokens.count);
    float *scratch = k_stream_scratch(job->stream, thread);
    struct block block = {
        .stream = job->stream,
        .args = args,
        .kv_head = item % parts * job->heads_per_item / group,
        .first_head = item % parts * job->heads_per_item,
        .group = job->heads_per_item,
        .q = scratch,
        .acc = scratch + (uint64_t)block_rows(shape) * shape->max_head_dim,
        .scores = scratch + 2 * (uint64_t)block_rows(shape) * shape->max_head_dim,
        .score_stride = shape->max_context_tokens,
    };
    uint32_t most_tokens = num_max(1, K_QUERY_ROWS / block.group);
    for (block.token = begin; block.token < end; block.token += block.tokens) {
        block.tokens = num_min(run_length(&args->tokens, block.token, end), most_tokens);
        attend(&block);
    }
}

static enum err_code check_shape(const struct k_stream *stream, const struct k_attention_args *args,
                                 struct err *err)
{
    const struct k_cpu_shape *shape = &stream->options.shape;
    uint32_t head_dim = args->pages.head_dim;
    if (head_dim % K_LANE_BLOCK != 0 || head_dim > shape->max_head_dim) {
        return err_set(err, ERR_SHAPE, "attention: head_dim %u, a multiple of %u up to %u is taken",
                       head_dim, K_LANE_BLOCK, shape->max_head_dim);
    }
    if (args->heads % args->pages.kv_heads != 0 ||
        args->heads / args->pages.kv_heads > num_min(shape->max_group_heads, K_MAX_GROUP_ROWS)) {
        return err_set(err, ERR_SHAPE, "attention: %u heads over %u kv heads, groups of up to %u",
                       args->heads, args->pages.kv_heads,
                       num_min(shape->max_group_heads, K_MAX_GROUP_ROWS));
    }
    return ERR_OK;
}

enum err_code k_cpu_attention(struct k_stream *stream, const struct k_attention_args *args,
                              struct err *err)
{
    enum err_code code = check_shape(stream, args, err);
    for (uint32_t t = 0; code == ERR_OK && t < args->tokens.count; t++) {
        if (args->tokens.positions[t] >= stream->options.shape.max_context_tokens) {
            code = err_set(err, ERR_SHAPE, "attention: position %u, the stream was made for %u",
                           args->tokens.positions[t], stream->options.shape.max_context_tokens);
        }
    }
    if (code != ERR_OK) {
        return code;
    }
    struct job job = {
        .stream = stream,
        .args = args,
        .tokens_per_item = args->tokens.count >= BLOCKS_FROM_TOKENS ? K_QUERY_BLOCK : 1,
        .heads_per_item = args->heads / args->pages.kv_heads,
    };
    uint32_t blocks = num_ceil_div(args->tokens.count, job.tokens_per_item);
    /* A few long sequences: the heads of a group go to different threads, which read K and V at
     * about the same time. */
    while (job.heads_per_item % 2 == 0 &&
           blocks * args->heads / job.heads_per_item < k_threads_count(stream->threads)) {
        job.heads_per_item /= 2;
    }
    k_threads_run(stream->threads, blocks * (args->heads / job.heads_per_item), attention_item,
                  &job);
    return ERR_OK;
}
