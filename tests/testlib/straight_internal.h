/* Shared by straight_forward.c and straight_moe.c only. */
#ifndef TESTS_TESTLIB_STRAIGHT_INTERNAL_H
#define TESTS_TESTLIB_STRAIGHT_INTERNAL_H

#include "tests/testlib/straight_forward.h"

struct straight {
    const struct model_config *config;
    uint32_t count;
    float *x;        /* [count, hidden] */
    float *normed;   /* [count, hidden] */
    float *q;        /* [count, heads * head_dim] */
    float *k;        /* [count, kv_heads * head_dim] */
    float *v;        /* [count, kv_heads * head_dim] */
    float *attended; /* [count, heads * head_dim] */
    float *hidden;   /* [count, hidden] */
    float *gated;    /* [count, intermediate] */
    double *scores;  /* [count] */
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

#endif
