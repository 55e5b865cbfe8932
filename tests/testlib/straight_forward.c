#include "tests/testlib/straight_internal.h"

#include <math.h>

#include "common/mem.h"
#include "kernels/dtype.h"

float straight_round(double value)
{
    return k_round_bf16((float)value);
}

void straight_product(const float *x, uint32_t rows, uint32_t in_elems, const uint16_t *w,
                      uint32_t out_elems, float *out)
{
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t o = 0; o < out_elems; o++) {
            double sum = 0.0;
            for (uint32_t i = 0; i < in_elems; i++) {
                sum += (double)x[(uint64_t)r * in_elems + i] *
                       (double)k_f32_from_bf16(w[(uint64_t)o * in_elems + i]);
            }
            out[(uint64_t)r * out_elems + o] = straight_round(sum);
        }
    }
}

void straight_norm(const float *in, const uint16_t *weight, uint32_t elems, float eps, float *out)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < elems; i++) {
        sum += (double)in[i] * (double)in[i];
    }
    double factor = 1.0 / sqrt(sum / elems + (double)eps);
    for (uint32_t i = 0; i < elems; i++) {
        double w = weight == NULL ? 1.0 : (double)k_f32_from_bf16(weight[i]);
        out[i] = straight_round((double)in[i] * factor * w);
    }
}

static void rotate(const struct model_rope *rope, uint32_t head_dim, uint32_t position, float *x)
{
    uint32_t half = head_dim / 2;
    for (uint32_t i = 0; i < rope->rotated_pairs; i++) {
        float inv_freq = (float)(1.0 / pow(rope->theta, 2.0 * i / rope->exponent_dim));
        float angle = inv_freq * (float)position;
        float c = straight_round(cos((double)angle));
        float s = straight_round(sin((double)angle));
        float low = x[i];
        float high = x[i + half];
        x[i] = straight_round((double)straight_round((double)low * (double)c) -
                              (double)straight_round((double)high * (double)s));
        x[i + half] = straight_round((double)straight_round((double)high * (double)c) +
                                     (double)straight_round((double)low * (double)s));
    }
}

static void attend_query(struct straight *s, const struct model_layer *layer, uint32_t query,
                         uint32_t head)
{
    uint32_t head_dim = layer->head_dim;
    uint32_t kv_head = head * layer->kv_heads / s->config->heads; /* groups are contiguous */
    const float *q = s->q + ((uint64_t)query * s->config->heads + head) * head_dim;
    float *out = s->attended + ((uint64_t)query * s->config->heads + head) * head_dim;
    double max = -HUGE_VAL;
    double sum = 0.0;
    uint32_t window = layer->window_tokens;
    uint32_t first = window != 0 && query + 1 > window ? query + 1 - window : 0;
    for (uint32_t j = first; j <= query; j++) {
        const float *k =
            s->k[layer->kv_source_layer] + ((uint64_t)j * layer->kv_heads + kv_head) * head_dim;
        s->scores[j] = 0.0;
        for (uint32_t d = 0; d < head_dim; d++) {
            s->scores[j] += (double)(q[d] * k[d]);
        }
        max = s->scores[j] > max ? s->scores[j] : max;
    }
    for (uint32_t j = first; j <= query; j++) {
        s->scores[j] = exp(s->scores[j] - max);
        sum += s->scores[j];
    }
    for (uint32_t d = 0; d < head_dim; d++) {
        double value = 0.0;
        for (uint32_t j = first; j <= query; j++) {
            const float *v =
                s->v[layer->kv_source_layer] + ((uint64_t)j * layer->kv_heads + kv_head) * head_dim;
            value += s->scores[j] * (double)v[d];
        }
        out[d] = straight_round(value / sum);
    }
}

/* K and V of a layer that owns them. */
static void keys_and_values(struct straight *s, const struct model_layer *layer,
                            const struct weights_layer *weights)
{
    uint32_t hidden = s->config->hidden_elems;
    uint32_t head_dim = layer->head_dim;
    uint32_t elems = layer->kv_heads * head_dim;
    float eps = s->config->rms_eps;
    float *keys = mem_zalloc((uint64_t)s->count * elems, sizeof(float));
    float *values = mem_zalloc((uint64_t)s->count * elems, sizeof(float));
    straight_product(s->normed, s->count, hidden, weights->k_proj, elems, keys);
    straight_product(s->normed, s->count, hidden, layer->k_eq_v ? weights->k_proj : weights->v_proj,
                     elems, values);
    for (uint32_t t = 0; t < s->count; t++) {
        for (uint32_t head = 0; head < layer->kv_heads; head++) {
            float *k = keys + ((uint64_t)t * layer->kv_heads + head) * head_dim;
            float *v = values + ((uint64_t)t * layer->kv_heads + head) * head_dim;
            straight_norm(k, weights->k_norm, head_dim, eps, k);
            rotate(&layer->rope, head_dim, t, k);
            straight_norm(v, NULL, head_dim, eps, v);
        }
    }
    s->k[layer->kv_source_layer] = keys;
    s->v[layer->kv_source_layer] = values;
}

static void attention(struct straight *s, const struct model_layer *layer,
                      const struct weights_layer *weights)
{
    uint32_t hidden = s->config->hidden_elems;
    uint32_t head_dim = layer->head_dim;
    float eps = s->config->rms_eps;
    straight_product(s->normed, s->count, hidden, weights->q_proj, s->config->heads * head_dim,
                     s->q);
    if (layer->owns_kv) {
        keys_and_values(s, layer, weights);
    }
    for (uint32_t t = 0; t < s->count; t++) {
        for (uint32_t head = 0; head < s->config->heads; head++) {
            float *q = s->q + ((uint64_t)t * s->config->heads + head) * head_dim;
            straight_norm(q, weights->q_norm, head_dim, eps, q);
            rotate(&layer->rope, head_dim, t, q);
        }
    }
    for (uint32_t t = 0; t < s->count; t++) {
        for (uint32_t head = 0; head < s->config->heads; head++) {
            attend_query(s, layer, t, head);
        }
    }
    straight_product(s->attended, s->count, s->config->heads * head_dim, weights->o_proj, hidden,
                     s->hidden);
}

void straight_geglu(float *gate, const float *up, uint64_t elems)
{
    for (uint64_t i = 0; i < elems; i++) {
        double g = (double)gate[i];
        double gelu = 0.5 * g * (1.0 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
        gate[i] = straight_round((double)straight_round(gelu) * (double)up[i]);
    }
}

static void mlp(struct straight *s, const struct model_layer *layer,
                const struct weights_layer *weights)
{
    uint32_t hidden = s->config->hidden_elems;
    uint32_t inner = layer->intermediate_elems;
    float *up = mem_zalloc((uint64_t)s->count * inner, sizeof(*up));
    straight_product(s->normed, s->count, hidden, weights->gate_proj, inner, s->gated);
    straight_product(s->normed, s->count, hidden, weights->up_proj, inner, up);
    straight_geglu(s->gated, up, (uint64_t)s->count * inner);
    straight_product(s->gated, s->count, inner, weights->down_proj, hidden, s->hidden);
    mem_free(up);
}

/* x += norm(hidden), times the scalar where there is one. */
static void add(struct straight *s, const uint16_t *post, const uint16_t *scalar)
{
    uint32_t hidden = s->config->hidden_elems;
    for (uint32_t t = 0; t < s->count; t++) {
        float *h = s->hidden + (uint64_t)t * hidden;
        float *x = s->x + (uint64_t)t * hidden;
        straight_norm(h, post, hidden, s->config->rms_eps, h);
        for (uint32_t i = 0; i < hidden; i++) {
            x[i] = straight_round((double)x[i] + (double)h[i]);
            x[i] = scalar == NULL
                       ? x[i]
                       : straight_round((double)x[i] * (double)k_f32_from_bf16(scalar[0]));
        }
    }
}

static void norm_all(struct straight *s, const uint16_t *weight)
{
    uint32_t hidden = s->config->hidden_elems;
    for (uint32_t t = 0; t < s->count; t++) {
        straight_norm(s->x + (uint64_t)t * hidden, weight, hidden, s->config->rms_eps,
                      s->normed + (uint64_t)t * hidden);
    }
}

static void head(const struct straight *s, const struct weights *weights, uint16_t *logits)
{
    uint32_t vocab_tokens = s->config->info.vocab_tokens;
    uint64_t elems = (uint64_t)s->count * vocab_tokens;
    float *raw = mem_zalloc(elems, sizeof(*raw));
    straight_product(s->normed, s->count, s->config->hidden_elems, weights->lm_head, vocab_tokens,
                     raw);
    for (uint64_t i = 0; i < elems; i++) {
        double cap = (double)s->config->softcap;
        float l = straight_round((double)raw[i] / cap);
        l = straight_round(tanh((double)l));
        logits[i] = k_bf16_from_f32((float)((double)l * cap));
    }
    mem_free(raw);
}

void straight_forward(const struct model_config *config, const struct weights *weights,
                      const uint32_t *ids, uint32_t count, uint16_t *logits)
{
    uint32_t hidden = config->hidden_elems;
    uint64_t wide = (uint64_t)count * config->heads * MODEL_MAX_HEAD_DIM;
    uint64_t inner = 0;
    for (uint32_t i = 0; i < config->layer_count; i++) {
        uint64_t elems = (uint64_t)count * config->layers[i].intermediate_elems;
        inner = elems > inner ? elems : inner;
    }
    struct straight s = {
        .config = config,
        .count = count,
        .x = mem_zalloc((uint64_t)count * hidden, sizeof(float)),
        .normed = mem_zalloc((uint64_t)count * hidden, sizeof(float)),
        .hidden = mem_zalloc((uint64_t)count * hidden, sizeof(float)),
        .q = mem_zalloc(wide, sizeof(float)),
        .attended = mem_zalloc(wide, sizeof(float)),
        .gated = mem_zalloc(inner, sizeof(float)),
        .scores = mem_zalloc(count, sizeof(double)),
    };
    float scale = straight_round(sqrt((double)hidden));
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < hidden; i++) {
            float row = k_f32_from_bf16(weights->embed_tokens[(uint64_t)ids[t] * hidden + i]);
            s.x[(uint64_t)t * hidden + i] = straight_round((double)row * (double)scale);
        }
    }
    if (config->ple_elems > 0) {
        straight_ple_inputs(&s, weights, ids);
    }
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct weights_layer *layer = &weights->layers[i];
        norm_all(&s, layer->input_norm);
        attention(&s, &config->layers[i], layer);
        add(&s, layer->post_attention_norm, NULL);
        norm_all(&s, layer->pre_feedforward_norm);
        mlp(&s, &config->layers[i], layer);
        if (config->experts > 0) {
            straight_moe(&s, layer);
        }
        if (config->ple_elems > 0) {
            add(&s, layer->post_feedforward_norm, NULL);
            straight_ple(&s, layer, i);
        }
        add(&s, config->ple_elems > 0 ? layer->ple_norm : layer->post_feedforward_norm,
            layer->layer_scalar);
    }
    norm_all(&s, weights->norm);
    head(&s, weights, logits);
    float *owned[] = {s.x, s.normed, s.hidden, s.q, s.attended, s.gated};
    for (uint32_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++) {
        mem_free(owned[i]);
    }
    for (uint32_t i = 0; i < config->layer_count; i++) {
        mem_free(s.k[i]);
        mem_free(s.v[i]);
    }
    mem_free(s.ple);
    mem_free(s.scores);
}
