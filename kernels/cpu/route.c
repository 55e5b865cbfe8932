/* Which experts each token goes to: norms, the router's product, softmax, the largest, and the pairs
 * of each expert. */
#include <math.h>

#include "kernels/cpu/norm.h"
#include "kernels/cpu/product.h"
#include "kernels/dtype.h"

struct route_scratch {
    struct scratch product;
    float *logits; /* [K_ROW_BLOCK, experts] */
    uint16_t *row; /* [hidden] bf16 */
};

size_t k_cpu_route_scratch_bytes(const struct k_cpu_shape *shape)
{
    return k_cpu_linear_scratch_bytes(shape) +
           (size_t)K_ROW_BLOCK * shape->max_experts * sizeof(float) +
           shape->max_in_elems * sizeof(uint16_t);
}

static struct route_scratch route_scratch_of(const struct k_stream *stream, uint32_t thread)
{
    const struct k_cpu_shape *shape = &stream->options.shape;
    unsigned char *at = k_stream_scratch(stream, thread);
    float *logits = (float *)(void *)(at + k_cpu_linear_scratch_bytes(shape));
    return (struct route_scratch){
        .product = scratch_of(stream, thread),
        .logits = logits,
        .row = (uint16_t *)(void *)(logits + (size_t)K_ROW_BLOCK * shape->max_experts),
    };
}

/* The router's input of one token, three roundings. */
static void scale_row(const struct k_route_args *args, const uint16_t *x, uint16_t *out)
{
    float root = (float)(1.0 / sqrt((double)args->hidden_elems));
    k_rmsnorm_row(x, NULL, args->hidden_elems, args->eps, out);
    for (uint32_t i = 0; i < args->hidden_elems; i++) {
        float n = k_round_bf16(k_f32_from_bf16(out[i]) * k_f32_from_bf16(args->scale[i]));
        out[i] = k_bf16_from_f32(n * root);
    }
}

/* A NaN ranks last. */
static float rank_of(float logit)
{
    return isnan(logit) ? -INFINITY : logit;
}

/* Largest first, the lower id among equals: an order without ties, so each choice is the first one
 * behind the choice before it. */
static bool is_behind(const float *logits, uint32_t expert, uint32_t before)
{
    float value = rank_of(logits[expert]);
    float limit = rank_of(logits[before]);
    return value < limit || (value == limit && expert > before);
}

static void choose(const struct k_route_args *args, const float *logits, uint32_t *ids)
{
    for (uint32_t k = 0; k < args->top_experts; k++) {
        uint32_t best = K_EXPERT_NONE;
        for (uint32_t e = 0; e < args->experts; e++) {
            bool is_left = k == 0 || is_behind(logits, e, ids[k - 1]);
            if (is_left && (best == K_EXPERT_NONE || is_behind(logits, best, e))) {
                best = e;
            }
        }
        ids[k] = best;
    }
}

static void weigh(const struct k_route_args *args, const float *logits, const uint32_t *ids,
                  float *weights)
{
    float max = logits[ids[0]];
    float total = 0.0F;
    float chosen = 0.0F;
    for (uint32_t e = 0; e < args->experts; e++) {
        total += expf(logits[e] - max);
    }
    for (uint32_t k = 0; k < args->top_experts; k++) {
        weights[k] = expf(logits[ids[k]] - max) / total;
        chosen += weights[k];
    }
    for (uint32_t k = 0; k < args->top_experts; k++) {
        weights[k] = weights[k] / chosen * k_f32_from_bf16(args->expert_scale[ids[k]]);
    }
}

static void finish_row(const struct k_route_args *args, uint32_t row, const float *logits)
{
    uint32_t *ids = args->routing.ids + (uint64_t)row * args->top_experts;
    float *weights = args->routing.weights + (uint64_t)row * args->top_experts;
    if (args->slots[row] != K_SLOT_NONE) {
        choose(args, logits, ids);
        weigh(args, logits, ids, weights);
        return;
    }
    for (uint32_t k = 0; k < args->top_experts; k++) {
        ids[k] = K_EXPERT_NONE;
        weights[k] = 0.0F;
    }
}

struct route_job {
    const struct k_stream *stream;
    const struct k_route_args *args;
};

static void route_item(void *context, uint32_t item, uint32_t thread)
{
    const struct route_job *job = context;
    const struct k_route_args *args = job->args;
    uint32_t hidden = args->hidden_elems;
    struct route_scratch scratch = route_scratch_of(job->stream, thread);
    struct span span = {.row = item * K_ROW_BLOCK, .col_end = args->experts};
    span.rows = num_min(K_ROW_BLOCK, args->rows - span.row);
    for (uint32_t r = 0; r < span.rows; r++) {
        uint64_t from = (uint64_t)(span.row + r) * hidden;
        k_rmsnorm_row(args->x + from, args->norm_weight, hidden, args->eps, args->normed + from);
        scale_row(args, args->x + from, scratch.row);
        job->stream->isa->widen(scratch.row, hidden, scratch.product.x + r * row_stride(hidden));
    }
    for (uint32_t col = 0; col < args->experts; col += COL_TILE) {
        uint32_t cols = num_min(COL_TILE, args->experts - col);
        struct k_dot_args dot =
            dot_of(&scratch.product, &span, hidden, args->proj + (uint64_t)col * hidden, cols);
        job->stream->isa->dot(&dot);
        for (uint32_t r = 0; r < span.rows; r++) {
            for (uint32_t c = 0; c < cols; c++) {
                scratch.logits[(uint64_t)r * args->experts + col + c] =
                    k_round_bf16(scratch.product.first[r * COL_TILE + c]);
            }
        }
    }
    for (uint32_t r = 0; r < span.rows; r++) {
        finish_row(args, span.row + r, scratch.logits + (uint64_t)r * args->experts);
    }
}

/* Pairs by expert: counted, then placed in their own order. */
static void sort_pairs(const struct k_route_args *args)
{
    const struct k_routing *routing = &args->routing;
    uint32_t pair_count = args->rows * args->top_experts;
    for (uint32_t e = 0; e <= args->experts; e++) {
        routing->starts[e] = 0;
    }
    for (uint32_t p = 0; p < pair_count; p++) {
        if (routing->ids[p] != K_EXPERT_NONE) {
            routing->starts[routing->ids[p] + 1]++;
        }
    }
    for (uint32_t e = 0; e < args->experts; e++) {
        routing->starts[e + 1] += routing->starts[e];
    }
    for (uint32_t p = 0; p < pair_count; p++) {
        if (routing->ids[p] != K_EXPERT_NONE) {
            routing->pairs[routing->starts[routing->ids[p]]++] = p;
        }
    }
    /* Each start has moved to the next one's place. */
    for (uint32_t e = args->experts; e > 0; e--) {
        routing->starts[e] = routing->starts[e - 1];
    }
    routing->starts[0] = 0;
}

enum err_code k_cpu_route(struct k_stream *stream, const struct k_route_args *args, struct err *err)
{
    const struct k_cpu_shape *shape = &stream->options.shape;
    if (args->experts == 0 || args->experts > shape->max_experts) {
        return err_set(err, ERR_SHAPE, "route: %u experts, the stream was made for 1 to %u",
                       args->experts, shape->max_experts);
    }
    if (args->top_experts == 0 || args->top_experts > args->experts) {
        return err_set(err, ERR_SHAPE, "route: %u experts of a token, there are %u",
                       args->top_experts, args->experts);
    }
    enum err_code code = check_in(stream, "route", args->hidden_elems, err);
    if (code != ERR_OK) {
        return code;
    }
    struct route_job job = {.stream = stream, .args = args};
    k_threads_run(stream->threads, num_ceil_div(args->rows, K_ROW_BLOCK), route_item, &job);
    sort_pairs(args);
    return ERR_OK;
}
