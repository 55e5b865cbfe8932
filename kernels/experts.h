/* Operands of the experts' operators: which experts each token goes to, their products, and the sum
 * of both branches.  Entries of the table in kernels/ops.h, where the rounding rule stands.
 *
 * A pair is a token and one of its experts: pair p is choice p % top_experts of token p / top_experts.
 * Padding tokens (K_SLOT_NONE) have none: no expert's weights are read for them.
 * Source: Gemma 4 config `num_experts`, `top_k_experts`, `moe_intermediate_size`. */
#ifndef KERNELS_EXPERTS_H
#define KERNELS_EXPERTS_H

#include <stdint.h>

#define K_EXPERT_NONE 0xffffffffU /* the choices of a padding token */

/* Which pairs there are.  Written by route, read by the others. */
struct k_routing {
    uint32_t *ids;    /* [tokens, top_experts] each token's experts, best first, no two the same */
    float *weights;   /* [tokens, top_experts] */
    uint32_t *pairs;  /* [tokens * top_experts] by expert, ascending within one */
    uint32_t *starts; /* [experts + 1] pairs[starts[e] .. starts[e + 1]) go to expert e */
};

/* normed = RMSNorm(x; norm_weight), the experts' input, and the choice of experts:
 *   n = bf16(bf16(RMSNorm(x, no weight) * scale) * hidden^(-1/2));  l = bf16(n proj^T)
 *   p = softmax(l) over all experts, f32;  w = p / sum of the chosen p;  w *= expert_scale
 * The chosen are those of the largest l, the lower id among equals; a NaN counts as the smallest, so
 * that ids are distinct whatever the row holds (its weights are NaN then). */
struct k_route_args {
    const uint16_t *x;     /* [rows, hidden] bf16, residual stream */
    const uint32_t *slots; /* [rows] or K_SLOT_NONE */
    uint32_t rows;
    uint32_t hidden_elems;
    uint32_t experts;
    uint32_t top_experts;
    const uint16_t *norm_weight;  /* [hidden] bf16 */
    const uint16_t *scale;        /* [hidden] bf16 */
    const uint16_t *proj;         /* [experts, hidden] bf16 */
    const uint16_t *expert_scale; /* [experts] bf16 */
    float eps;
    uint16_t *normed;         /* [rows, hidden] bf16, out */
    struct k_routing routing; /* out */
};

/* A product of every pair with its expert's matrix.  block_rows: so many pairs of an expert share a
 * pass over its weights; 0 is the backend's choice, and no result depends on it.
 *   expert_gate_up  x [rows, in] by token;  weights [experts, 2 * out (gate, up), in]
 *                   out = bf16(bf16(gelu_tanh(bf16(x gate^T))) * bf16(x up^T))
 *   expert_down     x [rows * top, in] by pair;  weights [experts, out, in];  out = bf16(x w^T) */
struct k_expert_args {
    const uint16_t *x;
    struct k_routing routing;
    uint32_t rows;
    uint32_t experts;
    uint32_t top_experts;
    uint32_t in_elems;
    uint32_t out_elems;
    uint32_t block_rows;
    const uint16_t *weights;
    uint16_t *out; /* [rows * top, out] bf16 by pair; of pairs that are not there, as it was */
};

/* Both branches of a layer's second half, and its end:
 *   s = bf16(sum over a token's pairs, best first, of w * y), f32
 *   h = bf16(RMSNorm(dense; dense_weight) + RMSNorm(s; expert_weight))
 *   x = bf16(x + RMSNorm(h; post_weight)); then x = bf16(x * layer_scalar) where there is one
 *   normed = RMSNorm(x; next_weight) */
struct k_join_norm_args {
    const uint16_t *dense; /* [rows, hidden] bf16, may be what a linear product left unfinished */
    const uint16_t *experts_out; /* y: [rows * top, hidden] bf16 by pair */
    const uint32_t *ids;         /* [rows, top] as routed */
    const float *weights;        /* [rows, top] */
    uint32_t top_experts;
    const uint16_t *dense_weight;  /* [hidden] bf16 */
    const uint16_t *expert_weight; /* [hidden] bf16 */
    const uint16_t *post_weight;   /* [hidden] bf16 */
    const uint16_t *layer_scalar;  /* [1] bf16, or null */
    const uint16_t *next_weight;   /* [hidden] bf16 */
    float eps;
    uint32_t rows;
    uint32_t hidden_elems;
    uint16_t *x;      /* [rows, hidden] bf16, in and out */
    uint16_t *normed; /* [rows, hidden] bf16, out; may be dense */
};

#endif
