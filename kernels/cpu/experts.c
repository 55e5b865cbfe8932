/* Products of pairs with their experts' matrices, and the sum of both branches of a layer.
 *
 * An item is a block of one expert's pairs times a run of columns: each weight is read once for the
 * block.  Experts without pairs have no item. */
#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"
#include "kernels/dtype.h"

/* Rows of one item of join_norm: enough work to be worth handing to another thread. */
#define ROWS_PER_ITEM 8

struct expert_job {
    const struct k_stream *stream;
    const struct k_expert_args *args;
    struct cut cut;
    uint32_t block_rows;
    bool is_gate_up;
};

/* Pairs of one expert that an item computes together. */
struct pair_block {
    uint32_t expert;
    uint32_t count;
    const uint32_t *pairs;
};

static struct pair_block block_of(const struct expert_job *job, uint32_t block)
{
    const struct k_routing *routing = &job->args->routing;
    uint32_t expert = 0;
    for (;; expert++) {
        uint32_t count = routing->starts[expert + 1] - routing->starts[expert];
        uint32_t blocks = num_ceil_div(count, job->block_rows);
        if (block < blocks) {
            break;
        }
        block -= blocks;
    }
    uint32_t first = routing->starts[expert] + block * job->block_rows;
    return (struct pair_block){
        .expert = expert,
        .count = num_min(job->block_rows, routing->starts[expert + 1] - first),
        .pairs = routing->pairs + first,
    };
}

static uint32_t count_blocks(const struct expert_job *job)
{
    const uint32_t *starts = job->args->routing.starts;
    uint32_t blocks = 0;
    for (uint32_t e = 0; e < job->args->experts; e++) {
        blocks += num_ceil_div(starts[e + 1] - starts[e], job->block_rows);
    }
    return blocks;
}

static void expert_item(void *context, uint32_t item, uint32_t thread)
{
    const struct expert_job *job = context;
    const struct k_expert_args *args = job->args;
    const struct k_cpu_isa *isa = job->stream->isa;
    const uint16_t *gelu = job->stream->gelu;
    struct scratch scratch = scratch_of(job->stream, thread);
    struct pair_block block = block_of(job, item / job->cut.col_items);
    struct span span = {.rows = block.count};
    span.col = item % job->cut.col_items * job->cut.cols_per_item;
    span.col_end = num_min(span.col + job->cut.cols_per_item, args->out_elems);
    for (uint32_t r = 0; r < span.rows; r++) {
        uint32_t row = job->is_gate_up ? block.pairs[r] / args->top_experts : block.pairs[r];
        isa->widen(args->x + (uint64_t)row * args->in_elems, args->in_elems,
                   scratch.x + r * row_stride(args->in_elems));
    }
    uint64_t matrix_rows = (uint64_t)args->out_elems * (job->is_gate_up ? 2 : 1);
    const uint16_t *matrix = args->weights + block.expert * matrix_rows * args->in_elems;
    const uint16_t *up = matrix + (uint64_t)args->out_elems * args->in_elems;
    for (uint32_t col = span.col; col < span.col_end; col += COL_TILE) {
        uint32_t cols = num_min(COL_TILE, span.col_end - col);
        uint64_t first_weight = (uint64_t)col * args->in_elems;
        struct k_dot_args dot =
            dot_of(&scratch, &span, args->in_elems, matrix + first_weight, cols);
        isa->dot(&dot);
        if (job->is_gate_up) {
            dot.w = up + first_weight;
            dot.out = scratch.second;
            isa->dot(&dot);
        }
        for (uint32_t i = 0; i < span.rows * cols; i++) {
            uint32_t r = i / cols;
            uint32_t c = i % cols;
            uint16_t value = k_bf16_from_f32(scratch.first[r * COL_TILE + c]);
            if (job->is_gate_up) {
                float factor = k_round_bf16(scratch.second[r * COL_TILE + c]);
                value = k_bf16_from_f32(k_f32_from_bf16(gelu[value]) * factor);
            }
            args->out[(uint64_t)block.pairs[r] * args->out_elems + col + c] = value;
        }
    }
}

static enum err_code multiply(struct k_stream *stream, const struct k_expert_args *args,
                              bool is_gate_up, struct err *err)
{
    enum err_code code = check_in(stream, "experts", args->in_elems, err);
    if (code != ERR_OK) {
        return code;
    }
    struct expert_job job = {.stream = stream, .args = args, .is_gate_up = is_gate_up};
    job.block_rows = args->block_rows == 0 ? K_ROW_BLOCK : num_min(args->block_rows, K_ROW_BLOCK);
    uint32_t blocks = count_blocks(&job);
    if (blocks == 0) {
        return ERR_OK; /* nothing but padding */
    }
    job.cut = cut_of(blocks * K_ROW_BLOCK, args->in_elems, args->out_elems, is_gate_up ? 2 : 1);
    k_threads_run(stream->threads, blocks * job.cut.col_items, expert_item, &job);
    return ERR_OK;
}

enum err_code k_cpu_expert_gate_up(struct k_stream *stream, const struct k_expert_args *args,
                                   struct err *err)
{
    return multiply(stream, args, true, err);
}

enum err_code k_cpu_expert_down(struct k_stream *stream, const struct k_expert_args *args,
                                struct err *err)
{
    return multiply(stream, args, false, err);
}

/* ---- both branches ---- */

/* out = bf16(sum of weight * y), the best expert first. */
static void combine_row(const struct k_join_norm_args *args, uint32_t row, uint16_t *out)
{
    uint64_t first = (uint64_t)row * args->top_experts;
    for (uint32_t i = 0; i < args->hidden_elems; i++) {
        float sum = 0.0F;
        for (uint64_t p = first; p < first + args->top_experts; p++) {
            if (args->ids[p] != K_EXPERT_NONE) {
                sum += k_f32_from_bf16(args->experts_out[p * args->hidden_elems + i]) *
                       args->weights[p];
            }
        }
        out[i] = k_bf16_from_f32(sum);
    }
}

struct join_job {
    const struct k_stream *stream;
    const struct k_join_norm_args *args;
};

static void join_rows(void *context, uint32_t item, uint32_t thread)
{
    const struct join_job *job = context;
    const struct k_join_norm_args *args = job->args;
    uint32_t elems = args->hidden_elems;
    uint16_t *h = k_stream_scratch(job->stream, thread); /* [hidden] */
    uint16_t *experts = h + elems;                       /* [hidden] */
    uint32_t end = num_min((item + 1) * ROWS_PER_ITEM, args->rows);
    for (uint32_t r = item * ROWS_PER_ITEM; r < end; r++) {
        uint64_t at = (uint64_t)r * elems;
        k_rmsnorm_row(args->dense + at, args->dense_weight, elems, args->eps, h);
        combine_row(args, r, experts);
        k_rmsnorm_row(experts, args->expert_weight, elems, args->eps, experts);
        for (uint32_t i = 0; i < elems; i++) {
            h[i] = k_bf16_from_f32(k_f32_from_bf16(h[i]) + k_f32_from_bf16(experts[i]));
        }
        const struct k_residual_row row = {
            .h = h,
            .post_weight = args->post_weight,
            .layer_scalar = args->layer_scalar,
            .next_weight = args->next_weight,
            .elems = elems,
            .eps = args->eps,
            .x = args->x + at,
            .normed = args->normed + at,
        };
        k_residual_row(&row);
    }
}

enum err_code k_cpu_join_norm(struct k_stream *stream, const struct k_join_norm_args *args,
                              struct err *err)
{
    if (args->hidden_elems == 0 || args->hidden_elems > stream->options.shape.max_in_elems) {
        return err_set(err, ERR_SHAPE, "join_norm: hidden size %u, the stream was made for 1 to %u",
                       args->hidden_elems, stream->options.shape.max_in_elems);
    }
    if (args->x == args->dense || args->x == args->normed) {
        return err_set(err, ERR_SHAPE, "join_norm: x must not be dense nor normed");
    }
    struct join_job job = {.stream = stream, .args = args};
    k_threads_run(stream->threads, num_ceil_div(args->rows, ROWS_PER_ITEM), join_rows, &job);
    return ERR_OK;
}
