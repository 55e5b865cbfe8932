/* Per-layer embeddings: the rows of their table mixed with the embedding's projection, and the
 * gated product at the end of a layer. */
#include <math.h>

#include "common/num.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/stream.h"
#include "kernels/dtype.h"

/* Rows of one item: enough work to be worth handing to another thread. */
#define ROWS_PER_ITEM 4

static void mix_layer(const struct k_ple_inputs_args *args, const uint16_t *row, uint16_t *input)
{
    const float half_root = (float)M_SQRT1_2;
    for (uint32_t i = 0; i < args->elems; i++) {
        input[i] = k_bf16_from_f32(k_f32_from_bf16(input[i]) * args->inputs_scale);
    }
    k_rmsnorm_row(input, args->norm_weight, args->elems, args->eps, input);
    for (uint32_t i = 0; i < args->elems; i++) {
        float a = k_round_bf16(k_f32_from_bf16(row[i]) * args->table_scale);
        float sum = k_round_bf16(k_f32_from_bf16(input[i]) + a);
        input[i] = k_bf16_from_f32(sum * half_root);
    }
}

static void mix_rows(void *context, uint32_t item, uint32_t thread)
{
    (void)thread; /* no scratch */
    const struct k_ple_inputs_args *args = context;
    uint64_t row_elems = (uint64_t)args->layers * args->elems;
    uint32_t end = num_min((item + 1) * ROWS_PER_ITEM, args->rows);
    for (uint32_t t = item * ROWS_PER_ITEM; t < end; t++) {
        const uint16_t *row = args->table + args->ids[t] * row_elems;
        for (uint32_t layer = 0; layer < args->layers; layer++) {
            uint64_t at = (uint64_t)layer * args->elems;
            mix_layer(args, row + at, args->inputs + t * row_elems + at);
        }
    }
}

enum err_code k_cpu_ple_inputs(struct k_stream *stream, const struct k_ple_inputs_args *args,
                               struct err *err)
{
    for (uint32_t t = 0; t < args->rows; t++) {
        if (args->ids[t] >= args->vocab_tokens) {
            return err_set(err, ERR_SHAPE, "ple_inputs: token id %u of entry %u, the table has %u",
                           args->ids[t], t, args->vocab_tokens);
        }
    }
    struct k_ple_inputs_args copy = *args;
    k_threads_run(stream->threads, num_ceil_div(args->rows, ROWS_PER_ITEM), mix_rows, &copy);
    return ERR_OK;
}

/* gated = bf16(gelu_tanh(gated)) * input, some values of a row: not worth a thread. */
static void gate_rows(const struct k_stream *stream, const struct k_ple_layer_args *args)
{
    for (uint32_t r = 0; r < args->rows; r++) {
        uint16_t *gated = args->gated + (uint64_t)r * args->elems;
        const uint16_t *input = args->input + r * args->input_stride_elems;
        for (uint32_t i = 0; i < args->elems; i++) {
            gated[i] = k_bf16_from_f32(k_f32_from_bf16(stream->gelu[gated[i]]) *
                                       k_f32_from_bf16(input[i]));
        }
    }
}

enum err_code k_cpu_ple_layer(struct k_stream *stream, const struct k_ple_layer_args *args,
                              struct err *err)
{
    const struct k_residual_norm_args first = k_ple_first_residual(args);
    const struct k_residual_norm_args last = k_ple_last_residual(args);
    const struct k_linear_args gate = {
        .x = args->x,
        .rows = args->rows,
        .in_elems = args->hidden_elems,
        .part_count = 1,
        .weights = {args->gate},
        .out_elems = {args->elems},
        .out = args->gated,
    };
    const struct k_linear_args projection = {
        .x = args->gated,
        .rows = args->rows,
        .in_elems = args->elems,
        .part_count = 1,
        .weights = {args->projection},
        .out_elems = {args->hidden_elems},
        .out = args->h,
    };
    enum err_code code = k_cpu_residual_norm(stream, &first, err);
    code = code == ERR_OK ? k_cpu_linear(stream, &gate, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    gate_rows(stream, args);
    code = k_cpu_linear(stream, &projection, err);
    return code == ERR_OK ? k_cpu_residual_norm(stream, &last, err) : code;
}
