#include <math.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/straight_internal.h"

/* ple = (norm(x P^T / sqrt(hidden)) + row * sqrt(elems)) / sqrt(2), every step rounded. */
void straight_ple_inputs(struct straight *s, const struct weights *weights, const uint32_t *ids)
{
    const struct model_config *config = s->config;
    uint32_t row_elems = config->layer_count * config->ple_elems;
    uint64_t elems = (uint64_t)s->count * row_elems;
    double table_scale = (double)straight_round(sqrt((double)config->ple_elems));
    double projection_scale = (double)(float)(1.0 / sqrt((double)config->hidden_elems));
    s->ple = mem_zalloc(elems, sizeof(float));
    straight_product(s->x, s->count, config->hidden_elems, weights->ple_model_projection, row_elems,
                     s->ple);
    for (uint64_t i = 0; i < elems; i++) {
        s->ple[i] = straight_round((double)s->ple[i] * projection_scale);
    }
    for (uint64_t i = 0; i < elems; i += config->ple_elems) {
        straight_norm(s->ple + i, weights->ple_projection_norm, config->ple_elems, config->rms_eps,
                      s->ple + i);
    }
    for (uint64_t i = 0; i < elems; i++) {
        uint64_t from = (uint64_t)ids[i / row_elems] * row_elems + i % row_elems;
        double row = (double)k_f32_from_bf16(weights->ple_embed_tokens[from]);
        double a = (double)straight_round(row * table_scale);
        double sum = (double)straight_round((double)s->ple[i] + a);
        s->ple[i] = straight_round(sum * (double)(float)M_SQRT1_2);
    }
}

void straight_ple(struct straight *s, const struct weights_layer *weights, uint32_t index)
{
    uint32_t elems = s->config->ple_elems;
    uint32_t hidden = s->config->hidden_elems;
    float *gated = mem_zalloc((uint64_t)s->count * elems, sizeof(*gated));
    straight_product(s->x, s->count, hidden, weights->ple_gate, elems, gated);
    for (uint32_t t = 0; t < s->count; t++) {
        uint64_t row = (uint64_t)t * s->config->layer_count + index;
        straight_geglu(gated + (uint64_t)t * elems, s->ple + row * elems, elems);
    }
    straight_product(gated, s->count, elems, weights->ple_projection, hidden, s->hidden);
    mem_free(gated);
}
