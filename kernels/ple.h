/* Operands of the operators of per-layer embeddings: what the table and the embedding give to every
 * layer, and the end of a layer that takes it.  Entries of the table in kernels/ops.h, where the
 * rounding rule stands. */
#ifndef KERNELS_PLE_H
#define KERNELS_PLE_H

#include <stdint.h>

/* What per-layer embeddings add to each layer, for every token and layer, elems values each:
 *   a = bf16(table[id] * table_scale);  b = RMSNorm(bf16(inputs * inputs_scale); norm_weight)
 *   inputs = bf16(bf16(b + a) * 2^-0.5)
 * inputs holds the product of the scaled embedding with the model projection before, layer by layer.
 * Source: Gemma 4 config `hidden_size_per_layer_input`. */
struct k_ple_inputs_args {
    const uint32_t *ids; /* [rows] */
    uint32_t rows;
    const uint16_t *table;       /* [vocab, layers * elems] bf16 */
    const uint16_t *norm_weight; /* [elems] bf16 */
    float table_scale;           /* already rounded to bf16 */
    float inputs_scale;
    float eps;
    uint32_t vocab_tokens;
    uint32_t layers;
    uint32_t elems;
    uint16_t *fetched; /* [rows, layers * elems] bf16 for ple_fetch, or null */
    uint16_t *inputs;  /* [rows, layers * elems] bf16, in and out */
};

/* The end of a layer of a model with per-layer embeddings, h its MLP's output:
 *   x = bf16(x + RMSNorm(h; post_weight))
 *   gated = bf16(bf16(gelu_tanh(bf16(x gate^T))) * input);  h = bf16(gated projection^T)
 *   x = bf16(x + RMSNorm(h; ple_weight));  x = bf16(x * layer_scalar)
 *   normed = RMSNorm(x; next_weight) */
struct k_ple_layer_args {
    const uint16_t *post_weight;  /* [hidden] bf16 */
    const uint16_t *gate;         /* [elems, hidden] bf16 */
    const uint16_t *projection;   /* [hidden, elems] bf16 */
    const uint16_t *ple_weight;   /* [hidden] bf16 */
    const uint16_t *layer_scalar; /* [1] bf16 */
    const uint16_t *next_weight;  /* [hidden] bf16 */
    const uint16_t *input;        /* [rows, input_stride_elems], elems used, bf16 */
    uint64_t input_stride_elems;
    float eps;
    uint32_t rows;
    uint32_t hidden_elems;
    uint32_t elems;
    uint16_t *h;      /* [rows, hidden] bf16, in; then undefined */
    uint16_t *gated;  /* [rows, elems] bf16, undefined after */
    uint16_t *x;      /* [rows, hidden] bf16, in and out */
    uint16_t *normed; /* [rows, hidden] bf16, out */
};

#endif
