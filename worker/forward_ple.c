/* Per-layer embeddings, D elements for each of L layers, x the residual stream:
 *
 *   inputs = (RMSNorm(x P^T / sqrt(hidden)) + table[id] * sqrt(D)) / sqrt(2)      once, [L, D]
 *   x += RMSNorm((gelu(x G^T) * inputs[l]) W^T)                                   in each layer l
 */
#include <math.h>

#include "kernels/dtype.h"
#include "worker/forward_internal.h"

static uint64_t row_elems(const struct model_config *config)
{
    return (uint64_t)config->ple_elems * config->layer_count;
}

uint64_t forward_ple_fetched_bytes(const struct model_config *config,
                                   const struct runner_limits *limits)
{
    return row_elems(config) * limits->max_step_tokens * sizeof(uint16_t);
}

uint64_t forward_ple_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits)
{
    return (row_elems(config) + config->ple_elems) * limits->max_step_tokens * sizeof(uint16_t);
}

enum err_code forward_ple_create(const struct forward_options *options, struct forward_ple *out_ple,
                                 struct err *err)
{
    const struct model_config *config = options->config;
    uint64_t tokens = options->limits.max_step_tokens;
    if (config->ple_elems == 0) {
        return ERR_OK;
    }
    if (options->ops->ple_layer == NULL) {
        return err_set(err, ERR_UNSUPPORTED, "this backend has no per-layer embeddings");
    }
    bool is_far = options->weights->ple_is_far && options->ops->ple_fetch != NULL;
    struct forward_ple ple = {
        .layers = config->layer_count,
        .table_scale = k_round_bf16(sqrtf((float)config->ple_elems)),
        .inputs_scale = (float)(1.0 / sqrt((double)config->hidden_elems)),
        .inputs = forward_carve(options, tokens * row_elems(config), sizeof(uint16_t)),
        .gated = forward_carve(options, tokens * config->ple_elems, sizeof(uint16_t)),
        .fetched =
            is_far ? forward_carve(options, tokens * row_elems(config), sizeof(uint16_t)) : NULL,
    };
    if (ple.inputs == NULL || ple.gated == NULL || (is_far && ple.fetched == NULL)) {
        return err_set(err, ERR_MEMORY, "per-layer embeddings of %u tokens of %llu elements",
                       options->limits.max_step_tokens, (unsigned long long)row_elems(config));
    }
    *out_ple = ple;
    return ERR_OK;
}

static struct k_ple_inputs_args inputs_args(const struct forward *forward,
                                            const struct k_tokens *tokens)
{
    const struct model_config *config = forward->options.config;
    const struct forward_ple *ple = &forward->ple;
    return (struct k_ple_inputs_args){
        .ids = tokens->ids,
        .rows = tokens->count,
        .table = forward->options.weights->ple_embed_tokens,
        .norm_weight = forward->options.weights->ple_projection_norm,
        .table_scale = ple->table_scale,
        .inputs_scale = ple->inputs_scale,
        .eps = config->rms_eps,
        .vocab_tokens = config->ple_vocab_tokens,
        .layers = ple->layers,
        .elems = config->ple_elems,
        .fetched = ple->fetched,
        .inputs = ple->inputs,
    };
}

enum err_code forward_ple_fetch(struct forward *forward, const struct k_tokens *tokens,
                                struct err *err)
{
    if (forward->ple.fetched == NULL) {
        return ERR_OK;
    }
    const struct k_ple_inputs_args args = inputs_args(forward, tokens);
    return forward->options.ops->ple_fetch(forward->options.stream, &args, err);
}

enum err_code forward_ple_inputs(struct forward *forward, const struct k_tokens *tokens,
                                 struct err *err)
{
    const struct k_ops *ops = forward->options.ops;
    const struct forward_ple *ple = &forward->ple;
    if (ple->inputs == NULL) {
        return ERR_OK;
    }
    const struct k_linear_args projection = {
        .x = forward->x,
        .rows = tokens->count,
        .in_elems = forward->options.config->hidden_elems,
        .part_count = 1,
        .weights = {forward->options.weights->ple_model_projection},
        .out_elems = {ple->layers * forward->options.config->ple_elems},
        .out = ple->inputs,
    };
    const struct k_ple_inputs_args args = inputs_args(forward, tokens);
    enum err_code code = ops->linear(forward->options.stream, &projection, err);
    return code == ERR_OK ? ops->ple_inputs(forward->options.stream, &args, err) : code;
}

enum err_code forward_ple_layer(struct forward *forward, const struct k_tokens *tokens,
                                uint32_t index, const struct forward_end *end, struct err *err)
{
    const struct model_config *config = forward->options.config;
    const struct weights_layer *weights = &forward->options.weights->layers[index];
    const struct forward_ple *ple = &forward->ple;
    const struct k_ple_layer_args args = {
        .post_weight = weights->post_feedforward_norm,
        .gate = weights->ple_gate,
        .projection = weights->ple_projection,
        .ple_weight = weights->ple_norm,
        .layer_scalar = end->layer_scalar,
        .next_weight = end->next_norm,
        .input = ple->inputs + (uint64_t)index * config->ple_elems,
        .input_stride_elems = (uint64_t)ple->layers * config->ple_elems,
        .eps = config->rms_eps,
        .rows = tokens->count,
        .hidden_elems = config->hidden_elems,
        .elems = config->ple_elems,
        .h = forward->projected,
        .gated = ple->gated,
        .x = forward->x,
        .normed = forward->normed,
    };
    return forward->options.ops->ple_layer(forward->options.stream, &args, err);
}
