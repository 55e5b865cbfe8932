/* The second half of a layer with experts, x the residual stream:
 *
 *   h1 = RMSNorm(Mlp(RMSNorm(x; pre_feedforward_norm)); post_feedforward_norm_1)
 *   h2 = RMSNorm(Experts(RMSNorm(x; pre_feedforward_norm_2)); post_feedforward_norm_2)
 *   x += RMSNorm(h1 + h2; post_feedforward_norm), and the layer's scalar
 *
 * The dense branch comes last, so that what its product leaves unfinished is read right after. */
#include "common/num.h"
#include "worker/forward_internal.h"

/* Bytes of one array as allocators round it up at most. */
#define ARRAY_SLACK_BYTES 256
#define ARRAY_COUNT       7

struct moe_sizes {
    uint64_t tokens;
    uint64_t pairs;
};

static struct moe_sizes sizes_of(const struct model_config *config,
                                 const struct runner_limits *limits)
{
    return (struct moe_sizes){
        .tokens = limits->max_step_tokens,
        .pairs = (uint64_t)limits->max_step_tokens * config->top_experts,
    };
}

uint64_t forward_moe_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits)
{
    if (config->experts == 0) {
        return 0;
    }
    struct moe_sizes sizes = sizes_of(config, limits);
    uint64_t pair_bytes =
        (config->expert_intermediate_elems + (uint64_t)config->hidden_elems) * sizeof(uint16_t) +
        2 * sizeof(uint32_t) + sizeof(float);
    return sizes.tokens * config->hidden_elems * sizeof(uint16_t) + sizes.pairs * pair_bytes +
           (config->experts + 1ULL) * sizeof(uint32_t) + (uint64_t)ARRAY_COUNT * ARRAY_SLACK_BYTES;
}

enum err_code forward_moe_create(const struct forward_options *options, struct forward_moe *out_moe,
                                 struct err *err)
{
    const struct model_config *config = options->config;
    if (config->experts == 0) {
        return ERR_OK;
    }
    struct moe_sizes sizes = sizes_of(config, &options->limits);
    struct forward_moe moe = {
        .normed = forward_carve(options, sizes.tokens * config->hidden_elems, sizeof(uint16_t)),
        .gated = forward_carve(options, sizes.pairs * config->expert_intermediate_elems,
                               sizeof(uint16_t)),
        .out = forward_carve(options, sizes.pairs * config->hidden_elems, sizeof(uint16_t)),
        .routing = {
            .ids = forward_carve(options, sizes.pairs, sizeof(uint32_t)),
            .weights = forward_carve(options, sizes.pairs, sizeof(float)),
            .pairs = forward_carve(options, sizes.pairs, sizeof(uint32_t)),
            .starts = forward_carve(options, config->experts + 1ULL, sizeof(uint32_t)),
        }};
    if (moe.normed == NULL || moe.gated == NULL || moe.out == NULL || moe.routing.ids == NULL ||
        moe.routing.weights == NULL || moe.routing.pairs == NULL || moe.routing.starts == NULL) {
        return err_set(err, ERR_MEMORY, "experts of %llu tokens: %llu bytes",
                       (unsigned long long)sizes.tokens,
                       (unsigned long long)forward_moe_workspace_bytes(config, &options->limits));
    }
    *out_moe = moe;
    return ERR_OK;
}

static enum err_code route(struct forward *forward, const struct k_tokens *tokens,
                           const struct weights_layer *weights, struct err *err)
{
    const struct model_config *config = forward->options.config;
    const struct k_route_args args = {
        .x = forward->x,
        .slots = tokens->slots,
        .rows = tokens->count,
        .hidden_elems = config->hidden_elems,
        .experts = config->experts,
        .top_experts = config->top_experts,
        .norm_weight = weights->pre_feedforward_norm_2,
        .scale = weights->router_scale,
        .proj = weights->router_proj,
        .expert_scale = weights->router_expert_scale,
        .eps = config->rms_eps,
        .normed = forward->moe.normed,
        .routing = forward->moe.routing,
    };
    return forward->options.ops->route(forward->options.stream, &args, err);
}

/* moe.out = every pair's expert of moe.normed. */
static enum err_code run_experts(struct forward *forward, const struct k_tokens *tokens,
                                 const struct weights_layer *weights, struct err *err)
{
    const struct model_config *config = forward->options.config;
    const struct k_ops *ops = forward->options.ops;
    struct k_expert_args args = {
        .x = forward->moe.normed,
        .routing = forward->moe.routing,
        .rows = tokens->count,
        .experts = config->experts,
        .top_experts = config->top_experts,
        .in_elems = config->hidden_elems,
        .out_elems = config->expert_intermediate_elems,
        .block_rows = forward->options.expert_block_rows,
        .weights = weights->experts_gate_up,
        .out = forward->moe.gated,
    };
    enum err_code code = ops->expert_gate_up(forward->options.stream, &args, err);
    if (code != ERR_OK) {
        return code;
    }
    args.x = forward->moe.gated;
    args.in_elems = config->expert_intermediate_elems;
    args.out_elems = config->hidden_elems;
    args.weights = weights->experts_down;
    args.out = forward->moe.out;
    return ops->expert_down(forward->options.stream, &args, err);
}

static enum err_code join(struct forward *forward, const struct k_tokens *tokens,
                          const struct weights_layer *weights, const struct forward_end *end,
                          struct err *err)
{
    const struct model_config *config = forward->options.config;
    const struct k_join_norm_args args = {
        .dense = forward->projected,
        .experts_out = forward->moe.out,
        .ids = forward->moe.routing.ids,
        .weights = forward->moe.routing.weights,
        .top_experts = config->top_experts,
        .dense_weight = weights->post_feedforward_norm_1,
        .expert_weight = weights->post_feedforward_norm_2,
        .post_weight = weights->post_feedforward_norm,
        .layer_scalar = end->layer_scalar,
        .next_weight = end->next_norm,
        .eps = config->rms_eps,
        .rows = tokens->count,
        .hidden_elems = config->hidden_elems,
        .x = forward->x,
        .normed = forward->normed,
    };
    return forward->options.ops->join_norm(forward->options.stream, &args, err);
}

enum err_code forward_moe_block(struct forward *forward, const struct k_tokens *tokens,
                                uint32_t index, const struct forward_end *end, struct err *err)
{
    const struct weights_layer *weights = &forward->options.weights->layers[index];
    enum err_code code = route(forward, tokens, weights, err);
    if (code == ERR_OK) {
        code = run_experts(forward, tokens, weights, err);
    }
    if (code == ERR_OK) {
        code = forward_dense_mlp(forward, tokens, index, err);
    }
    return code == ERR_OK ? join(forward, tokens, weights, end, err) : code;
}
