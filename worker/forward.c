/* One layer, x the residual stream:
 *
 *   x += RMSNorm(Attention(RMSNorm(x; input_norm)); post_attention_norm)
 *   x += RMSNorm(Mlp(RMSNorm(x; pre_feedforward_norm)); post_feedforward_norm)
 *   x += what per-layer embeddings give, in models that have them: forward_ple.c
 *   x *= layer_scalar
 *
 * and with experts beside the Mlp, forward_moe.c.  Each norm is the tail of the operator before it, so
 * the loop over the layers reads: products, attention, products, and a fused residual between them. */
#include "worker/forward_internal.h"

#include <math.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "worker/rope.h"

/* Elements of one token's qkv in a layer. */
static uint64_t qkv_elems(const struct model_config *config, const struct model_layer *layer)
{
    uint32_t kv_parts = layer->owns_kv ? (layer->k_eq_v ? 1 : 2) : 0;
    return (uint64_t)(config->heads + kv_parts * layer->kv_heads) * layer->head_dim;
}

/* Widest activations of one token over all layers. */
struct widths {
    uint64_t qkv;
    uint64_t attended;
    uint64_t gated;
};

static struct widths widths_of(const struct model_config *config)
{
    struct widths widths = {0};
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct model_layer *layer = &config->layers[i];
        uint64_t qkv = qkv_elems(config, layer);
        uint64_t attended = (uint64_t)config->heads * layer->head_dim;
        widths.qkv = qkv > widths.qkv ? qkv : widths.qkv;
        widths.attended = attended > widths.attended ? attended : widths.attended;
        widths.gated =
            layer->intermediate_elems > widths.gated ? layer->intermediate_elems : widths.gated;
    }
    return widths;
}

uint64_t forward_page_bytes(const struct model_config *config, enum runner_family family,
                            uint32_t page_tokens)
{
    const struct model_family *shape = &config->families[family];
    return (uint64_t)shape->kv_layers * 2 * shape->kv_heads * page_tokens * shape->head_dim *
           sizeof(uint16_t);
}

uint64_t forward_workspace_bytes(const struct model_config *config,
                                 const struct runner_limits *limits)
{
    struct widths widths = widths_of(config);
    uint64_t per_token =
        3 * (uint64_t)config->hidden_elems + widths.qkv + widths.attended + widths.gated;
    uint64_t elems = per_token * limits->max_step_tokens;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        elems += rope_elems(&config->families[family].rope, limits->max_context_tokens);
    }
    return elems * sizeof(uint16_t) + forward_moe_workspace_bytes(config, limits) +
           forward_ple_workspace_bytes(config, limits);
}

void *forward_carve(const struct forward_options *options, uint64_t count, size_t elem_bytes)
{
    return options->allocator.alloc(options->allocator.context, count, elem_bytes);
}

static uint16_t *carve(const struct forward_options *options, uint64_t count)
{
    return forward_carve(options, count, sizeof(uint16_t));
}

/* Made on the host, so that every backend rotates by the same bits. */
static enum err_code write_rope(const struct forward_options *options,
                                const struct model_family *shape, uint16_t *to, struct err *err)
{
    uint32_t positions = options->limits.max_context_tokens;
    size_t elems = rope_elems(&shape->rope, positions);
    uint16_t *table = mem_zalloc(elems, sizeof(*table));
    rope_fill(&shape->rope, positions, table);
    enum err_code code = options->allocator.write(options->allocator.context, to, table,
                                                  elems * sizeof(*table), err);
    mem_free(table);
    return code;
}

static enum err_code create_pools(struct forward *forward, struct err *err)
{
    const struct forward_options *options = &forward->options;
    const struct runner_limits *limits = &options->limits;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        const struct model_family *shape = &options->config->families[family];
        uint64_t page_bytes =
            forward_page_bytes(options->config, (enum runner_family)family, limits->page_tokens);
        uint64_t pages = (uint64_t)limits->pages[family] + 1; /* one takes padding */
        forward->pages[family] = (struct k_pages){
            .base = carve(options, pages * (page_bytes / sizeof(uint16_t))),
            .table = options->tables->page_tables[family],
            .table_pages = options->tables->table_pages[family],
            .pages = limits->pages[family],
            .page_tokens = limits->page_tokens,
            .kv_layers = shape->kv_layers,
            .kv_heads = shape->kv_heads,
            .head_dim = shape->head_dim,
        };
        forward->cos_sin[family] =
            carve(options, rope_elems(&shape->rope, limits->max_context_tokens));
        if (forward->pages[family].base == NULL || forward->cos_sin[family] == NULL) {
            return err_set(err, ERR_MEMORY, "%s pool: %u pages of %llu bytes",
                           family == RUNNER_FAMILY_LOCAL ? "local" : "global",
                           limits->pages[family], (unsigned long long)page_bytes);
        }
        enum err_code code = write_rope(options, shape, forward->cos_sin[family], err);
        if (code != ERR_OK) {
            return code;
        }
    }
    return ERR_OK;
}

enum err_code forward_create(const struct forward_options *options, struct forward *out_forward,
                             struct err *err)
{
    const struct model_config *config = options->config;
    enum err_code code = model_config_check_supported(config, err);
    if (code != ERR_OK) {
        return code;
    }
    struct forward forward = {
        .options = *options,
        .embed_scale = k_round_bf16(sqrtf((float)config->hidden_elems)),
    };
    struct widths widths = widths_of(config);
    uint64_t tokens = options->limits.max_step_tokens;
    forward.x = carve(options, tokens * config->hidden_elems);
    forward.normed = carve(options, tokens * config->hidden_elems);
    forward.projected = carve(options, tokens * config->hidden_elems);
    forward.qkv = carve(options, tokens * widths.qkv);
    forward.attended = carve(options, tokens * widths.attended);
    forward.gated = carve(options, tokens * widths.gated);
    if (forward.x == NULL || forward.normed == NULL || forward.projected == NULL ||
        forward.qkv == NULL || forward.attended == NULL || forward.gated == NULL) {
        return err_set(err, ERR_MEMORY, "activations of %llu tokens: %llu bytes",
                       (unsigned long long)tokens,
                       (unsigned long long)forward_workspace_bytes(config, &options->limits));
    }
    code = forward_moe_create(options, &forward.moe, err);
    code = code == ERR_OK ? forward_ple_create(options, &forward.ple, err) : code;
    code = code == ERR_OK ? create_pools(&forward, err) : code;
    if (code == ERR_OK) {
        *out_forward = forward;
    }
    return code;
}

/* x = embedding * sqrt(hidden); normed = RMSNorm(x; input_norm of the first layer). */
static enum err_code embed(struct forward *forward, const struct k_tokens *tokens, struct err *err)
{
    const struct model_config *config = forward->options.config;
    struct k_embed_norm_args args = {
        .tokens = *tokens,
        .table = forward->options.weights->embed_tokens,
        .scale = forward->embed_scale,
        .norm_weight = forward->options.weights->layers[0].input_norm,
        .eps = config->rms_eps,
        .vocab_tokens = config->info.vocab_tokens,
        .hidden_elems = config->hidden_elems,
        .x = forward->x,
        .normed = forward->normed,
    };
    return forward->options.ops->embed_norm(forward->options.stream, &args, err);
}

/* qkv = normed through q_proj, k_proj and v_proj, those that the layer has. */
static enum err_code project_qkv(struct forward *forward, const struct k_tokens *tokens,
                                 const struct model_layer *layer,
                                 const struct weights_layer *weights, struct err *err)
{
    const struct model_config *config = forward->options.config;
    uint32_t kv_elems = layer->kv_heads * layer->head_dim;
    struct k_linear_args args = {
        .x = forward->normed,
        .rows = tokens->count,
        .in_elems = config->hidden_elems,
        .part_count = layer->owns_kv ? (layer->k_eq_v ? 2 : 3) : 1,
        .weights = {weights->q_proj, weights->k_proj, weights->v_proj},
        .out_elems = {config->heads * layer->head_dim, kv_elems, kv_elems},
        .out = forward->qkv,
    };
    return forward->options.ops->linear(forward->options.stream, &args, err);
}

/* Norms and rotates q, writes K and V into the pages, attends: attended = heads side by side. */
static enum err_code attend(struct forward *forward, const struct k_tokens *tokens,
                            const struct model_layer *layer, const struct weights_layer *weights,
                            struct err *err)
{
    const struct model_config *config = forward->options.config;
    const struct k_ops *ops = forward->options.ops;
    struct k_qkv_norm_rope_args rope = {
        .tokens = *tokens,
        .pages = forward->pages[layer->family],
        .kv_layer = layer->kv_slot,
        .writes_kv = layer->owns_kv,
        .has_v = !layer->k_eq_v,
        .qkv = forward->qkv,
        .q_norm = weights->q_norm,
        .k_norm = weights->k_norm,
        .cos_sin = forward->cos_sin[layer->family],
        .rotated_pairs = layer->rope.rotated_pairs,
        .heads = config->heads,
        .eps = config->rms_eps,
    };
    enum err_code code = ops->qkv_norm_rope(forward->options.stream, &rope, err);
    if (code != ERR_OK) {
        return code;
    }
    struct k_attention_args attention = {
        .tokens = *tokens,
        .pages = forward->pages[layer->family],
        .kv_layer = layer->kv_slot,
        .window_tokens = layer->window_tokens,
        .q = forward->qkv,
        .q_stride_elems = qkv_elems(config, layer),
        .heads = config->heads,
        .out = forward->attended,
    };
    return ops->attention(forward->options.stream, &attention, err);
}

/* projected = from W^T. */
static enum err_code project(struct forward *forward, const struct k_tokens *tokens,
                             const uint16_t *from, uint32_t in_elems, const uint16_t *weight,
                             struct err *err)
{
    struct k_linear_args args = {
        .x = from,
        .rows = tokens->count,
        .in_elems = in_elems,
        .part_count = 1,
        .weights = {weight},
        .out_elems = {forward->options.config->hidden_elems},
        .feeds_residual_norm = true,
        .out = forward->projected,
    };
    return forward->options.ops->linear(forward->options.stream, &args, err);
}

/* x = (x + RMSNorm(projected; post_norm)) [* scalar]; normed = RMSNorm(x; next_norm). */
static enum err_code add_residual(struct forward *forward, const struct k_tokens *tokens,
                                  const uint16_t *post_norm, const uint16_t *scalar,
                                  const uint16_t *next_norm, struct err *err)
{
    struct k_residual_norm_args args = {
        .h = forward->projected,
        .post_weight = post_norm,
        .layer_scalar = scalar,
        .next_weight = next_norm,
        .eps = forward->options.config->rms_eps,
        .rows = tokens->count,
        .hidden_elems = forward->options.config->hidden_elems,
        .x = forward->x,
        .normed = forward->normed,
    };
    return forward->options.ops->residual_norm(forward->options.stream, &args, err);
}

static enum err_code attention_block(struct forward *forward, const struct k_tokens *tokens,
                                     uint32_t index, struct err *err)
{
    const struct model_layer *layer = &forward->options.config->layers[index];
    const struct weights_layer *weights = &forward->options.weights->layers[index];
    uint32_t heads_elems = forward->options.config->heads * layer->head_dim;
    enum err_code code = project_qkv(forward, tokens, layer, weights, err);
    if (code == ERR_OK) {
        code = attend(forward, tokens, layer, weights, err);
    }
    if (code == ERR_OK) {
        code = project(forward, tokens, forward->attended, heads_elems, weights->o_proj, err);
    }
    if (code == ERR_OK) {
        code = add_residual(forward, tokens, weights->post_attention_norm, NULL,
                            weights->pre_feedforward_norm, err);
    }
    return code;
}

enum err_code forward_dense_mlp(struct forward *forward, const struct k_tokens *tokens,
                                uint32_t index, struct err *err)
{
    const struct model_layer *layer = &forward->options.config->layers[index];
    const struct weights_layer *weights = &forward->options.weights->layers[index];
    struct k_gate_up_args gate_up = {
        .x = forward->normed,
        .rows = tokens->count,
        .in_elems = forward->options.config->hidden_elems,
        .gate = weights->gate_proj,
        .up = weights->up_proj,
        .intermediate_elems = layer->intermediate_elems,
        .out = forward->gated,
    };
    enum err_code code = forward->options.ops->gate_up(forward->options.stream, &gate_up, err);
    return code == ERR_OK ? project(forward, tokens, forward->gated, layer->intermediate_elems,
                                    weights->down_proj, err)
                          : code;
}

static enum err_code mlp_block(struct forward *forward, const struct k_tokens *tokens,
                               uint32_t index, const uint16_t *next_norm, struct err *err)
{
    const struct weights_layer *weights = &forward->options.weights->layers[index];
    const struct forward_end end = {weights->layer_scalar, next_norm};
    if (forward->options.config->experts > 0) {
        return forward_moe_block(forward, tokens, index, &end, err);
    }
    enum err_code code = forward_dense_mlp(forward, tokens, index, err);
    if (code == ERR_OK && forward->options.config->ple_elems > 0) {
        return forward_ple_layer(forward, tokens, index, &end, err);
    }
    return code == ERR_OK ? add_residual(forward, tokens, weights->post_feedforward_norm,
                                         end.layer_scalar, end.next_norm, err)
                          : code;
}

static enum err_code run_layer(struct forward *forward, const struct k_tokens *tokens,
                               uint32_t index, struct err *err)
{
    const struct weights *weights = forward->options.weights;
    bool is_last = index + 1 == forward->options.config->layer_count;
    const uint16_t *next_norm = is_last ? weights->norm : weights->layers[index + 1].input_norm;
    if (forward->options.begin_layer != NULL) {
        forward->options.begin_layer(index);
    }
    enum err_code code = attention_block(forward, tokens, index, err);
    if (code == ERR_OK) {
        code = mlp_block(forward, tokens, index, next_norm, err);
    }
    if (forward->options.end_layer != NULL) {
        forward->options.end_layer();
    }
    return code == ERR_OK ? code : err_wrap(err, "layer %u", index);
}

enum err_code forward_run(struct forward *forward, const struct k_tokens *tokens, struct err *err)
{
    enum err_code code = forward_ple_fetch(forward, tokens, err);
    code = code == ERR_OK ? embed(forward, tokens, err) : code;
    code = code == ERR_OK ? forward_ple_inputs(forward, tokens, err) : code;
    for (uint32_t i = 0; code == ERR_OK && i < forward->options.config->layer_count; i++) {
        code = run_layer(forward, tokens, i, err);
    }
    return code;
}

enum err_code forward_head(struct forward *forward, const uint32_t *token_index, uint32_t rows,
                           uint16_t *logits, struct err *err)
{
    const struct model_config *config = forward->options.config;
    struct k_head_args args = {
        .x = forward->normed,
        .token_index = token_index,
        .rows = rows,
        .hidden_elems = config->hidden_elems,
        .table = forward->options.weights->lm_head,
        .vocab_tokens = config->info.vocab_tokens,
        .softcap = config->softcap,
    };
    args.logits = logits;
    return forward->options.ops->head(forward->options.stream, &args, err);
}
