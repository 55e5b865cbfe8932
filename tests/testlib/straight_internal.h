/* Shared by straight_forward.c and the files of its parts, straight_*.c, only. */
#ifndef TESTS_TESTLIB_STRAIGHT_INTERNAL_H
#define TESTS_TESTLIB_STRAIGHT_INTERNAL_H

#include "tests/testlib/straight_forward.h"

struct straight {
    const struct model_config *config;
    uint32_t count;
    float *x;                   /* [count, hidden] */
    float *normed;              /* [count, hidden] */
    float *q;                   /* [count, heads * head_dim] */
    float *k[MODEL_MAX_LAYERS]; /* of layers that own KV: [count, kv_heads * head_dim] */
    float *v[MODEL_MAX_LAYERS]; /* likewise */
    float *attended;            /* [count, heads * head_dim] */
    float *hidden;              /* [count, hidden] */
    float *gated;               /* [count, intermediate] */
    float *ple;     /* [count, layers, elements of a layer], null without per-layer embeddings */
    double *scores; /* [count] */
};

float straight_round(double value);

/* out [rows, out] = x [rows, in] W^T, rounded. */
void straight_product(const float *x, uint32_t rows, uint32_t in_elems, const uint16_t *w,
                      uint32_t out_elems, float *out);

/* One row; weight may be null, out may be in. */
void straight_norm(const float *in, const uint16_t *weight, uint32_t elems, float eps, float *out);

/* gate [elems] = gelu_tanh(gate) * up. */
void straight_geglu(float *gate, const float *up, uint64_t elems);

/* hidden, the dense MLP's result, becomes the sum of both branches; reads x. */
void straight_moe(struct straight *s, const struct weights_layer *weights);

/* ple, from the tokens and their embeddings in x. */
void straight_ple_inputs(struct straight *s, const struct weights *weights, const uint32_t *ids);

/* hidden = what layer `index` gets of ple, before its norm; reads x. */
void straight_ple(struct straight *s, const struct weights_layer *weights, uint32_t index);

#endif
