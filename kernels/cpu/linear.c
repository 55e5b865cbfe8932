/* Products with weight matrices: bf16 operands, f32 sums, one rounding to bf16.
 *
 * An item is a block of rows times a run of columns.  Its rows are widened to f32 once, then each
 * weight is read once for all of them. */
#include "kernels/cpu/product.h"
#include "kernels/dtype.h"

size_t k_cpu_linear_scratch_bytes(const struct k_cpu_shape *shape)
{
    size_t row_elems = num_align_up(shape->max_in_elems, K_LANE_BLOCK);
    return (size_t)K_ROW_BLOCK * (row_elems + 2UL * COL_TILE) * sizeof(float);
}

struct linear_job {
    const struct k_stream *stream;
    const struct k_linear_args *args;
    struct cut cut;
    uint32_t cols;
};

/* Row `col` of the matrices side by side, and how many rows follow it in the same matrix. */
static const uint16_t *matrix_row(const struct k_linear_args *args, uint32_t col,
                                  uint32_t *out_left)
{
    uint32_t part = 0;
    while (col >= args->out_elems[part]) {
        col -= args->out_elems[part];
        part++;
    }
    *out_left = args->out_elems[part] - col;
    return args->weights[part] + (uint64_t)col * args->in_elems;
}

static void linear_item(void *context, uint32_t item, uint32_t thread)
{
    const struct linear_job *job = context;
    const struct k_linear_args *args = job->args;
    const struct k_cpu_isa *isa = job->stream->isa;
    struct scratch scratch = scratch_of(job->stream, thread);
    struct span span = span_of(&job->cut, item, args->rows, job->cols);
    for (uint32_t r = 0; r < span.rows; r++) {
        isa->widen(args->x + (uint64_t)(span.row + r) * args->in_elems, args->in_elems,
                   scratch.x + r * row_stride(args->in_elems));
    }
    uint32_t cols = 0;
    for (uint32_t col = span.col; col < span.col_end; col += cols) {
        uint32_t left = 0;
        const uint16_t *w = matrix_row(args, col, &left);
        cols = num_min(num_min(COL_TILE, left), span.col_end - col);
        struct k_dot_args dot = dot_of(&scratch, &span, args->in_elems, w, cols);
        isa->dot(&dot);
        for (uint32_t r = 0; r < span.rows; r++) {
            uint16_t *out = args->out + (uint64_t)(span.row + r) * job->cols + col;
            for (uint32_t c = 0; c < cols; c++) {
                out[c] = k_bf16_from_f32(scratch.first[r * COL_TILE + c]);
            }
        }
    }
}

enum err_code k_cpu_linear(struct k_stream *stream, const struct k_linear_args *args,
                           struct err *err)
{
    enum err_code code = check_in(stream, "linear", args->in_elems, err);
    if (code != ERR_OK) {
        return code;
    }
    if (args->part_count == 0 || args->part_count > K_MAX_LINEAR_PARTS) {
        return err_set(err, ERR_SHAPE, "linear: %u matrices, 1 to %u are taken", args->part_count,
                       K_MAX_LINEAR_PARTS);
    }
    struct linear_job job = {.stream = stream, .args = args};
    for (uint32_t part = 0; part < args->part_count; part++) {
        job.cols += args->out_elems[part];
    }
    job.cut = cut_of(args->rows, args->in_elems, job.cols, 1);
    k_threads_run(stream->threads, job.cut.row_blocks * job.cut.col_items, linear_item, &job);
    return ERR_OK;
}

struct gate_up_job {
    const struct k_stream *stream;
    const struct k_gate_up_args *args;
    struct cut cut;
};

static void gate_up_item(void *context, uint32_t item, uint32_t thread)
{
    const struct gate_up_job *job = context;
    const struct k_gate_up_args *args = job->args;
    const struct k_cpu_isa *isa = job->stream->isa;
    struct scratch scratch = scratch_of(job->stream, thread);
    struct span span = span_of(&job->cut, item, args->rows, args->intermediate_elems);
    for (uint32_t r = 0; r < span.rows; r++) {
        isa->widen(args->x + (uint64_t)(span.row + r) * args->in_elems, args->in_elems,
                   scratch.x + r * row_stride(args->in_elems));
    }
    for (uint32_t col = span.col; col < span.col_end; col += COL_TILE) {
        uint32_t cols = num_min(COL_TILE, span.col_end - col);
        uint64_t first_weight = (uint64_t)col * args->in_elems;
        struct k_dot_args dot =
            dot_of(&scratch, &span, args->in_elems, args->gate + first_weight, cols);
        isa->dot(&dot);
        dot.w = args->up + first_weight;
        dot.out = scratch.second;
        isa->dot(&dot);
        for (uint32_t r = 0; r < span.rows; r++) {
            uint16_t *out = args->out + (uint64_t)(span.row + r) * args->intermediate_elems + col;
            for (uint32_t c = 0; c < cols; c++) {
                uint16_t gate = k_bf16_from_f32(scratch.first[r * COL_TILE + c]);
                float up = k_round_bf16(scratch.second[r * COL_TILE + c]);
                out[c] = k_bf16_from_f32(k_f32_from_bf16(job->stream->gelu[gate]) * up);
            }
        }
    }
}

enum err_code k_cpu_gate_up(struct k_stream *stream, const struct k_gate_up_args *args,
                            struct err *err)
{
    enum err_code code = check_in(stream, "gate_up", args->in_elems, err);
    if (code != ERR_OK) {
        return code;
    }
    struct gate_up_job job = {.stream = stream, .args = args};
    job.cut = cut_of(args->rows, args->in_elems, args->intermediate_elems, 2);
    k_threads_run(stream->threads, job.cut.row_blocks * job.cut.col_items, gate_up_item, &job);
    return ERR_OK;
}

struct head_job {
    const struct k_stream *stream;
    const struct k_head_args *args;
    struct cut cut;
};

static void head_item(void *context, uint32_t item, uint32_t thread)
{
    const struct head_job *job = context;
    const struct k_head_args *args = job->args;
    const struct k_cpu_isa *isa = job->stream->isa;
    struct scratch scratch = scratch_of(job->stream, thread);
    struct span span = span_of(&job->cut, item, args->rows, args->vocab_tokens);
    for (uint32_t r = 0; r < span.rows; r++) {
        uint32_t token = args->token_index[span.row + r];
        isa->widen(args->x + (uint64_t)token * args->hidden_elems, args->hidden_elems,
                   scratch.x + r * row_stride(args->hidden_elems));
    }
    bool is_capped = args->softcap > 0.0F;
    for (uint32_t col = span.col; col < span.col_end; col += COL_TILE) {
        uint32_t cols = num_min(COL_TILE, span.col_end - col);
        const uint16_t *w = args->table + (uint64_t)col * args->hidden_elems;
        struct k_dot_args dot = dot_of(&scratch, &span, args->hidden_elems, w, cols);
        isa->dot(&dot);
        for (uint32_t r = 0; r < span.rows; r++) {
            uint16_t *out = args->logits + (uint64_t)(span.row + r) * args->vocab_tokens + col;
            for (uint32_t c = 0; c < cols; c++) {
                uint16_t logit = k_bf16_from_f32(scratch.first[r * COL_TILE + c]);
                out[c] = is_capped ? job->stream->softcap[logit] : logit;
            }
        }
    }
}

enum err_code k_cpu_head(struct k_stream *stream, const struct k_head_args *args, struct err *err)
{
    enum err_code code = check_in(stream, "head", args->hidden_elems, err);
    if (code != ERR_OK) {
        return code;
    }
    if (args->softcap > 0.0F && args->softcap != stream->options.softcap) {
        return err_set(err, ERR_SHAPE, "head: soft-cap %g, the stream was made for %g",
                       (double)args->softcap, (double)stream->options.softcap);
    }
    struct head_job job = {.stream = stream, .args = args};
    job.cut = cut_of(args->rows, args->hidden_elems, args->vocab_tokens, 1);
    k_threads_run(stream->threads, job.cut.row_blocks * job.cut.col_items, head_item, &job);
    return ERR_OK;
}
