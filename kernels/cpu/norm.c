/* RMSNorm and the elementwise work around it.
 *
 *   y = x * (mean(x^2) + eps)^(-1/2) * w     f32, one rounding; w as stored, not 1 + w */
#include <math.h>

#include "common/num.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/stream.h"
#include "kernels/dtype.h"

#define LANES 8
/* Rows of one item: enough work to be worth handing to another thread. */
#define ROWS_PER_ITEM 8

/* Sum of squares in eight interleaved chains: an order that the compiler may vectorise. */
static float sum_of_squares(const uint16_t *in, uint32_t elems)
{
    float lanes[LANES] = {0};
    uint32_t whole = elems / LANES * LANES;
    for (uint32_t i = 0; i < whole; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float x = k_f32_from_bf16(in[i + lane]);
            lanes[lane] += x * x;
        }
    }
    for (uint32_t i = whole; i < elems; i++) {
        float x = k_f32_from_bf16(in[i]);
        lanes[i - whole] += x * x;
    }
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

float k_rms_factor(const uint16_t *in, uint32_t elems, float eps)
{
    return 1.0F / sqrtf(sum_of_squares(in, elems) / (float)elems + eps);
}

void k_rmsnorm_row(const uint16_t *in, const uint16_t *weight, uint32_t elems, float eps,
                   uint16_t *out)
{
    float factor = k_rms_factor(in, elems, eps);
    for (uint32_t i = 0; i < elems; i++) {
        float y = k_f32_from_bf16(in[i]) * factor;
        out[i] = k_bf16_from_f32(weight == NULL ? y : y * k_f32_from_bf16(weight[i]));
    }
}

static void embed_rows(void *context, uint32_t item, uint32_t thread)
{
    (void)thread; /* no scratch */
    const struct k_embed_norm_args *args = context;
    uint32_t end = num_min((item + 1) * ROWS_PER_ITEM, args->tokens.count);
    for (uint32_t t = item * ROWS_PER_ITEM; t < end; t++) {
        const uint16_t *row = args->table + (uint64_t)args->tokens.ids[t] * args->hidden_elems;
        uint16_t *x = args->x + (uint64_t)t * args->hidden_elems;
        for (uint32_t i = 0; i < args->hidden_elems; i++) {
            x[i] = k_bf16_from_f32(k_f32_from_bf16(row[i]) * args->scale);
        }
        k_rmsnorm_row(x, args->norm_weight, args->hidden_elems, args->eps,
                      args->normed + (uint64_t)t * args->hidden_elems);
    }
}

enum err_code k_cpu_embed_norm(struct k_stream *stream, const struct k_embed_norm_args *args,
                               struct err *err)
{
    for (uint32_t t = 0; t < args->tokens.count; t++) {
        if (args->tokens.ids[t] >= args->vocab_tokens) {
            return err_set(err, ERR_SHAPE, "embed: token id %u of entry %u, vocabulary has %u",
                           args->tokens.ids[t], t, args->vocab_tokens);
        }
    }
    struct k_embed_norm_args copy = *args;
    k_threads_run(stream->threads, num_ceil_div(args->tokens.count, ROWS_PER_ITEM), embed_rows,
                  &copy);
    return ERR_OK;
}

void k_residual_row(const struct k_residual_row *row)
{
    float factor = k_rms_factor(row->h, row->elems, row->eps);
    for (uint32_t i = 0; i < row->elems; i++) {
        float y = k_f32_from_bf16(row->h[i]) * factor * k_f32_from_bf16(row->post_weight[i]);
        float sum = k_round_bf16(k_f32_from_bf16(row->x[i]) + k_round_bf16(y));
        sum = row->layer_scalar == NULL ? sum : sum * k_f32_from_bf16(*row->layer_scalar);
        row->x[i] = k_bf16_from_f32(sum);
    }
    if (row->next_weight != NULL) {
        k_rmsnorm_row(row->x, row->next_weight, row->elems, row->eps, row->normed);
    }
}

static void residual_rows(void *context, uint32_t item, uint32_t thread)
{
    (void)thread; /* no scratch */
    const struct k_residual_norm_args *args = context;
    uint32_t end = num_min((item + 1) * ROWS_PER_ITEM, args->rows);
    for (uint32_t r = item * ROWS_PER_ITEM; r < end; r++) {
        uint64_t at = (uint64_t)r * args->hidden_elems;
        const struct k_residual_row row = {
            .h = args->h + at,
            .post_weight = args->post_weight,
            .layer_scalar = args->layer_scalar,
            .next_weight = args->next_weight,
            .elems = args->hidden_elems,
            .eps = args->eps,
            .x = args->x + at,
            .normed = args->next_weight == NULL ? NULL : args->normed + at,
        };
        k_residual_row(&row);
    }
}

enum err_code k_cpu_residual_norm(struct k_stream *stream, const struct k_residual_norm_args *args,
                                  struct err *err)
{
    if (args->x == args->h || args->x == args->normed) {
        return err_set(err, ERR_SHAPE, "residual_norm: x must not be h nor normed");
    }
    struct k_residual_norm_args copy = *args;
    k_threads_run(stream->threads, num_ceil_div(args->rows, ROWS_PER_ITEM), residual_rows, &copy);
    return ERR_OK;
}
