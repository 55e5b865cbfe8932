/* The Gemma 4 forward pass over an operator table.
 *
 * It sees the staged tokens and the paged pools, never a sequence: which tokens belong together is
 * in the slots of the tokens and the page tables.  Stream thread only, after creation. */
#ifndef WORKER_FORWARD_H
#define WORKER_FORWARD_H

#include <stdint.h>

#include "common/err.h"
#include "kernels/ops.h"
#include "worker/model_config.h"
#include "worker/runner.h"
#include "worker/stage.h"
#include "worker/weights.h"

struct forward_options {
    const struct model_config *config; /* borrowed, as all below, until the forward is gone */
    const struct weights *weights;
    const struct k_ops *ops;
    struct k_stream *stream;
    struct stage_allocator allocator;  /* owns all memory of the forward */
    const struct stage_tables *tables; /* page tables */
    struct runner_limits limits;
    uint32_t expert_block_rows; /* 0: the backend's choice; no result depends on it */
    /* Called around what each layer enqueues, for profilers; both may be null. */
    void (*begin_layer)(uint32_t layer);
    void (*end_layer)(void);
};

/* Activations of the experts of a step; all null in a model without experts. */
struct forward_moe {
    struct k_routing routing;
    uint16_t *normed; /* [T, hidden] the experts' input */
    uint16_t *gated;  /* [T * top_experts, expert intermediate] by pair */
    uint16_t *out;    /* [T * top_experts, hidden] by pair */
};

/* Per-layer embeddings of a step; all zero in a model without. */
struct forward_ple {
    uint32_t layers;    /* of the model, also where fewer are run */
    float table_scale;  /* bf16(sqrt(elements of a layer)) */
    float inputs_scale; /* hidden^-0.5 */
    uint16_t *inputs;   /* [T, layers, elements of a layer] */
    uint16_t *gated;    /* [T, elements of a layer] */
    uint16_t *fetched;  /* [T, layers, elements of a layer] rows of a far table; else null */
};

struct forward {
    struct forward_options options;
    struct k_pages pages[RUNNER_FAMILY_COUNT];
    uint16_t *cos_sin[RUNNER_FAMILY_COUNT]; /* [max_context, 2, rotated_pairs] bf16 */
    float embed_scale;                      /* bf16(sqrt(hidden)) */

    /* Activations of a step; T is max_step_tokens. */
    uint16_t *x;         /* [T, hidden] residual stream */
    uint16_t *normed;    /* [T, hidden] input of the next product; final hidden state at the end */
    uint16_t *qkv;       /* [T, most qkv elements of a layer] */
    uint16_t *attended;  /* [T, heads * largest head_dim] */
    uint16_t *projected; /* [T, hidden] output of o_proj and down_proj */
    uint16_t *gated;     /* [T, largest intermediate] */
    struct forward_moe moe;
    struct forward_ple ple;
};

/* Errors: ERR_MEMORY, ERR_UNSUPPORTED (parts of Gemma 4 that this build does not run). */
ERR_NODISCARD enum err_code forward_create(const struct forward_options *options,
                                           struct forward *out_forward, struct err *err);

/* Runs every layer over the tokens, writes their K and V, and leaves the final normed hidden states
 * of all of them.  Errors: those of the operators. */
ERR_NODISCARD enum err_code forward_run(struct forward *forward, const struct k_tokens *tokens,
                                        struct err *err);

/* Soft-capped logits of the tokens token_index[0 .. rows) of the last run.
 *   logits [rows, vocab] bf16 */
ERR_NODISCARD enum err_code forward_head(struct forward *forward, const uint32_t *token_index,
                                         uint32_t rows, uint16_t *logits, struct err *err);

/* Bytes of one page of a family: K and V of page_tokens tokens in every layer that owns KV. */
uint64_t forward_page_bytes(const struct model_config *config, enum runner_family family,
                            uint32_t page_tokens);

/* Bytes that forward_create takes beside the pages, and more where the table of per-layer
 * embeddings is far. */
uint64_t forward_workspace_bytes(const struct model_config *config,
                                 const struct runner_limits *limits);
uint64_t forward_ple_fetched_bytes(const struct model_config *config,
                                   const struct runner_limits *limits);

#endif
