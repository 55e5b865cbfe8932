/* The operator table that each backend fills: what the Gemma 4 forward pass, the sampler and the
 * per-slot state need of a device.
 *
 * Granularity is that of fused device kernels: one entry is one launch (or a few dependent ones),
 * intermediate values within an entry need no memory.  All pointers are device memory of the
 * backend.  An entry enqueues on the stream and returns; it never allocates, and it reads sizes
 * from its arguments alone, so a sequence of entries can be captured and replayed.
 *
 * Rounding: activations are bf16; sums are f32; every value is rounded exactly where the comments
 * say, to nearest even.  On the cpu backend the bits of one token's outputs do not depend on the
 * other tokens of the call nor on the thread count.
 * Errors of every entry: ERR_SHAPE, ERR_ALIGN (operand named), ERR_DEVICE. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/experts.h"
#include "kernels/ple.h"
#include "kernels/sampler.h"

#define K_SLOT_NONE        0xffffffffU /* a padding token: writes to the padding page, sees itself */
#define K_MAX_LINEAR_PARTS 3

struct k_stream;

/* The tokens of a step, in row order. */
struct k_tokens {
    uint32_t count;
    const uint32_t *ids;       /* [count] */
    const uint32_t *positions; /* [count] */
    const uint32_t *slots;     /* [count] or K_SLOT_NONE; a slot's positions ascend by one */
};

/* Paged KV of one family and the page tables of every slot.
 *   base   [pages + 1, kv_layers, 2 (K, V), kv_heads, page_tokens, head_dim] bf16
 * K after norm and rotation, V after norm.  Page `pages` takes the writes of padding tokens.
 * Logical page p of a slot lies at table[slot, p % table_pages]. */
struct k_pages {
    uint16_t *base;
    const uint32_t *table; /* [slots, table_pages] physical page */
    uint32_t table_pages;
    uint32_t pages;
    uint32_t page_tokens; /* a power of two */
    uint32_t kv_layers;
    uint32_t kv_heads;
    uint32_t head_dim;
};

/* Elements from base to K (part 0) or V (part 1) of token 0 of a head in a physical page. */
static inline uint64_t k_page_offset(const struct k_pages *pages, uint32_t page, uint32_t kv_layer,
                                     uint32_t part, uint32_t head)
{
    uint64_t block = ((uint64_t)page * pages->kv_layers + kv_layer) * 2 + part;
    return (block * pages->kv_heads + head) * pages->page_tokens * pages->head_dim;
}

static inline uint32_t k_page_of(const struct k_pages *pages, uint32_t slot, uint32_t position)
{
    uint32_t logical_page = position / pages->page_tokens;
    return pages->table[(uint64_t)slot * pages->table_pages + logical_page % pages->table_pages];
}

/* x = bf16(table[id] * scale); normed = RMSNorm(x; norm_weight). */
struct k_embed_norm_args {
    struct k_tokens tokens;
    const uint16_t *table;       /* [vocab, hidden] bf16 */
    float scale;                 /* already rounded to bf16 */
    const uint16_t *norm_weight; /* [hidden] bf16 */
    float eps;
    uint32_t vocab_tokens;
    uint32_t hidden_elems;
    uint16_t *x;      /* [tokens, hidden] bf16, out */
    uint16_t *normed; /* [tokens, hidden] bf16, out */
};

/* out = x W^T, f32 sums, one rounding.  Several matrices side by side are one launch: the query,
 * key and value projections read their input once. */
struct k_linear_args {
    const uint16_t *x; /* [rows, in] bf16 */
    uint32_t rows;
    uint32_t in_elems;
    uint32_t part_count;
    const uint16_t *weights[K_MAX_LINEAR_PARTS]; /* [out_elems[i], in] bf16 */
    uint32_t out_elems[K_MAX_LINEAR_PARTS];
    bool feeds_residual_norm; /* nothing but the next residual_norm reads out: the backend may
                                 leave its partial sums in its own scratch until then */
    uint16_t *out;            /* [rows, sum of out_elems] bf16 */
};

/* Per token of qkv [q heads | kv heads of k | kv heads of v or nothing]:
 *   q = RoPE(RMSNorm(q; q_norm)), in place;  k = RoPE(RMSNorm(k; k_norm)) and v = RMSNorm(v), no
 *   weight, into the token's page.  Without v in qkv, v is the raw k projection.
 * Rotation, pair (i, i + head_dim/2), i < rotated_pairs, three roundings:
 *   y[i] = bf16(bf16(x[i] c) + bf16(-x[i+h] s));  y[i+h] = bf16(bf16(x[i+h] c) + bf16(x[i] s))
 * Source: Gemma 4 config `rope_parameters`, `attention_k_eq_v`. */
struct k_qkv_norm_rope_args {
    struct k_tokens tokens;
    struct k_pages pages;
    uint32_t kv_layer; /* of the pages; ignored without writes_kv */
    bool writes_kv;    /* false: a layer that reads another's KV; qkv then holds q alone */
    bool has_v;
    uint16_t *qkv; /* [tokens, (heads + kv_heads + (has_v ? kv_heads : 0)) * head_dim] bf16 */
    const uint16_t *q_norm;  /* [head_dim] bf16 */
    const uint16_t *k_norm;  /* [head_dim] bf16 */
    const uint16_t *cos_sin; /* [positions, 2 (cos, sin), rotated_pairs] bf16 */
    uint32_t rotated_pairs;
    uint32_t heads;
    float eps;
};

/* out = softmax(q k^T over allowed keys) v per head, scale 1.  Key j of query i is allowed when
 * j <= i and, with a window, j > i - window.  Scores and probabilities stay f32; one rounding of
 * the output.  Query head h reads kv head h / (heads / kv_heads).
 * Source: Gemma 4 config `sliding_window`. */
struct k_attention_args {
    struct k_tokens tokens;
    struct k_pages pages;
    uint32_t kv_layer;
    uint32_t window_tokens; /* 0: every key up to the query */
    const uint16_t *q;      /* [tokens, q_stride_elems], heads * head_dim used, bf16 */
    uint64_t q_stride_elems;
    uint32_t heads;
    uint16_t *out; /* [tokens, heads * head_dim] bf16 */
};

/* x = bf16(x + RMSNorm(h; post_weight)); then x = bf16(x * layer_scalar) where there is one;
 * normed = RMSNorm(x; next_weight), where there is a next_weight. */
struct k_residual_norm_args {
    const uint16_t *h;            /* [rows, hidden] bf16 */
    const uint16_t *post_weight;  /* [hidden] bf16 */
    const uint16_t *layer_scalar; /* [1] bf16, or null */
    const uint16_t *next_weight;  /* [hidden] bf16, or null */
    float eps;
    uint32_t rows;
    uint32_t hidden_elems;
    uint16_t *x;      /* [rows, hidden] bf16, in and out */
    uint16_t *normed; /* [rows, hidden] bf16, out; may be h; not written without next_weight */
};

/* out = bf16(bf16(gelu_tanh(bf16(x gate^T))) * bf16(x up^T)). */
struct k_gate_up_args {
    const uint16_t *x; /* [rows, in] bf16 */
    uint32_t rows;
    uint32_t in_elems;
    const uint16_t *gate; /* [intermediate, in] bf16 */
    const uint16_t *up;   /* [intermediate, in] bf16 */
    uint32_t intermediate_elems;
    uint16_t *out; /* [rows, intermediate] bf16 */
};

/* logits[i] = softcap(bf16(x[token_index[i]] table^T)); softcap with cap c, three roundings:
 *   l = bf16(l / c); l = bf16(tanh(l)); l = bf16(l * c)
 * Source: Gemma 4 config `final_logit_softcapping`. */
struct k_head_args {
    const uint16_t *x;           /* [tokens, hidden] bf16, after the final norm */
    const uint32_t *token_index; /* [rows] */
    uint32_t rows;
    uint32_t hidden_elems;
    const uint16_t *table; /* [vocab, hidden] bf16 */
    uint32_t vocab_tokens;
    float softcap;    /* 0: none */
    uint16_t *logits; /* [rows, vocab] bf16, out */
};

/* The two residuals of ple_layer, for backends that make it of several launches: into x alone, then
 * with what the layer got. */
static inline struct k_residual_norm_args k_ple_first_residual(const struct k_ple_layer_args *args)
{
    struct k_residual_norm_args first = {
        .h = args->h,
        .post_weight = args->post_weight,
        .layer_scalar = NULL,
        .next_weight = NULL,
        .eps = args->eps,
        .rows = args->rows,
        .hidden_elems = args->hidden_elems,
        .x = args->x,
        .normed = NULL,
    };
    return first;
}

static inline struct k_residual_norm_args k_ple_last_residual(const struct k_ple_layer_args *args)
{
    struct k_residual_norm_args last = {
        .h = args->h,
        .post_weight = args->ple_weight,
        .layer_scalar = args->layer_scalar,
        .next_weight = args->next_weight,
        .eps = args->eps,
        .rows = args->rows,
        .hidden_elems = args->hidden_elems,
        .x = args->x,
        .normed = args->normed,
    };
    return last;
}

struct k_ops {
    enum err_code (*embed_norm)(struct k_stream *stream, const struct k_embed_norm_args *args,
                                struct err *err);
    enum err_code (*linear)(struct k_stream *stream, const struct k_linear_args *args,
                            struct err *err);
    enum err_code (*qkv_norm_rope)(struct k_stream *stream, const struct k_qkv_norm_rope_args *args,
                                   struct err *err);
    enum err_code (*attention)(struct k_stream *stream, const struct k_attention_args *args,
                               struct err *err);
    enum err_code (*residual_norm)(struct k_stream *stream, const struct k_residual_norm_args *args,
                                   struct err *err);
    enum err_code (*gate_up)(struct k_stream *stream, const struct k_gate_up_args *args,
                             struct err *err);
    enum err_code (*head)(struct k_stream *stream, const struct k_head_args *args, struct err *err);
    /* Mixture of experts: kernels/experts.h. */
    enum err_code (*route)(struct k_stream *stream, const struct k_route_args *args,
                           struct err *err);
    enum err_code (*expert_gate_up)(struct k_stream *stream, const struct k_expert_args *args,
                                    struct err *err);
    enum err_code (*expert_down)(struct k_stream *stream, const struct k_expert_args *args,
                                 struct err *err);
    enum err_code (*join_norm)(struct k_stream *stream, const struct k_join_norm_args *args,
                               struct err *err);

    /* Per-layer embeddings: kernels/ple.h.  ple_fetch is for a table that is slow to read: it begins
     * to bring its rows to `fetched` beside what is enqueued next, up to the ple_inputs of the same
     * args.  Null: the backend knows no such memory. */
    enum err_code (*ple_fetch)(struct k_stream *stream, const struct k_ple_inputs_args *args,
                               struct err *err);
    enum err_code (*ple_inputs)(struct k_stream *stream, const struct k_ple_inputs_args *args,
                                struct err *err);
    enum err_code (*ple_layer)(struct k_stream *stream, const struct k_ple_layer_args *args,
                               struct err *err);

    /* Slots, step prologue and tail, sampler: kernels/sampler.h. */
    enum err_code (*open)(struct k_stream *stream, const struct k_open_args *args, struct err *err);
    enum err_code (*expand)(struct k_stream *stream, const struct k_expand_args *args,
                            struct err *err);
    enum err_code (*sample)(struct k_stream *stream, const struct k_sample_args *args,
                            struct err *err);
    enum err_code (*logprobs)(struct k_stream *stream, const struct k_logprobs_args *args,
                              struct err *err);
    enum err_code (*advance)(struct k_stream *stream, const struct k_advance_args *args,
                             struct err *err);
};

#endif
