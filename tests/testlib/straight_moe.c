#include <math.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/straight_internal.h"

struct choice {
    bool *is_taken; /* [experts] */
    float *logits;  /* [experts] */
    float *scaled;  /* [hidden] */
};

/* The largest logit that is left; the first among equals. */
static uint32_t next_best(const struct choice *choice, uint32_t experts)
{
    uint32_t best = experts;
    for (uint32_t e = 0; e < experts; e++) {
        if (!choice->is_taken[e] && (best == experts || choice->logits[e] > choice->logits[best])) {
            best = e;
        }
    }
    return best;
}

static void choose(const struct straight *s, const struct weights_layer *weights, const float *x,
                   struct choice *choice, uint32_t *ids, double *shares)
{
    const struct model_config *config = s->config;
    uint32_t hidden = config->hidden_elems;
    double total = 0.0;
    straight_norm(x, NULL, hidden, config->rms_eps, choice->scaled);
    for (uint32_t i = 0; i < hidden; i++) {
        double scale = (double)k_f32_from_bf16(weights->router_scale[i]);
        float n = straight_round((double)choice->scaled[i] * scale);
        choice->scaled[i] = straight_round((double)n * pow(hidden, -0.5));
    }
    straight_product(choice->scaled, 1, hidden, weights->router_proj, config->experts,
                     choice->logits);
    for (uint32_t e = 0; e < config->experts; e++) {
        choice->is_taken[e] = false;
    }
    for (uint32_t k = 0; k < config->top_experts; k++) {
        ids[k] = next_best(choice, config->experts);
        choice->is_taken[ids[k]] = true;
        shares[k] = exp((double)choice->logits[ids[k]] - (double)choice->logits[ids[0]]);
        total += shares[k];
    }
    for (uint32_t k = 0; k < config->top_experts; k++) {
        shares[k] *= (double)k_f32_from_bf16(weights->router_expert_scale[ids[k]]) / total;
    }
}

/* sum [hidden] += share * expert(input). */
static void add_expert(const struct straight *s, const struct weights_layer *weights,
                       const float *input, uint32_t expert, double share, double *sum)
{
    uint32_t hidden = s->config->hidden_elems;
    uint32_t inner = s->config->expert_intermediate_elems;
    float *both = mem_zalloc(2ULL * inner, sizeof(*both));
    float *out = mem_zalloc(hidden, sizeof(*out));
    straight_product(input, 1, hidden,
                     weights->experts_gate_up + (uint64_t)expert * 2 * inner * hidden, 2 * inner,
                     both);
    straight_geglu(both, both + inner, inner);
    straight_product(both, 1, inner, weights->experts_down + (uint64_t)expert * hidden * inner,
                     hidden, out);
    for (uint32_t i = 0; i < hidden; i++) {
        sum[i] += share * (double)out[i];
    }
    mem_free(out);
    mem_free(both);
}

void straight_moe(struct straight *s, const struct weights_layer *weights)
{
    const struct model_config *config = s->config;
    uint32_t hidden = config->hidden_elems;
    struct choice choice = {
        .is_taken = mem_zalloc(config->experts, sizeof(bool)),
        .logits = mem_zalloc(config->experts, sizeof(float)),
        .scaled = mem_zalloc(hidden, sizeof(float)),
    };
    uint32_t *ids = mem_zalloc(config->top_experts, sizeof(*ids));
    double *shares = mem_zalloc(config->top_experts, sizeof(*shares));
    float *input = mem_zalloc(hidden, sizeof(*input));
    float *sparse = mem_zalloc(hidden, sizeof(*sparse));
    double *sum = mem_zalloc(hidden, sizeof(*sum));
    for (uint32_t t = 0; t < s->count; t++) {
        const float *x = s->x + (uint64_t)t * hidden;
        float *dense = s->hidden + (uint64_t)t * hidden;
        choose(s, weights, x, &choice, ids, shares);
        straight_norm(x, weights->pre_feedforward_norm_2, hidden, config->rms_eps, input);
        for (uint32_t i = 0; i < hidden; i++) {
            sum[i] = 0.0;
        }
        for (uint32_t k = 0; k < config->top_experts; k++) {
            add_expert(s, weights, input, ids[k], shares[k], sum);
        }
        for (uint32_t i = 0; i < hidden; i++) {
            sparse[i] = straight_round(sum[i]);
        }
        straight_norm(sparse, weights->post_feedforward_norm_2, hidden, config->rms_eps, sparse);
        straight_norm(dense, weights->post_feedforward_norm_1, hidden, config->rms_eps, dense);
        for (uint32_t i = 0; i < hidden; i++) {
            dense[i] = straight_round((double)dense[i] + (double)sparse[i]);
        }
    }
    mem_free(sum);
    mem_free(sparse);
    mem_free(input);
    mem_free(shares);
    mem_free(ids);
    mem_free(choice.scaled);
    mem_free(choice.logits);
    mem_free(choice.is_taken);
}
