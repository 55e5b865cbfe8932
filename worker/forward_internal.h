/* Shared by forward.c and the files of its layers' parts only. */
#ifndef WORKER_FORWARD_INTERNAL_H
#define WORKER_FORWARD_INTERNAL_H

#include "worker/forward.h"

/* Memory from the options' allocator; null where there is none left. */
void *forward_carve(const struct forward_options *options, uint64_t count, size_t elem_bytes);

/* projected = Mlp(normed). */
ERR_NODISCARD enum err_code forward_dense_mlp(struct forward *forward,
                                              const struct k_tokens *tokens, uint32_t index,
                                              struct err *err);

/* How a layer's last residual ends. */
struct forward_end {
    const uint16_t *layer_scalar; /* null: not here */
    const uint16_t *next_norm;    /* of the input of what follows */
};

/* ---- forward_moe.c ---- */

/* Bytes that forward_moe_create takes; 0 for a model without experts. */
uint64_t forward_moe_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits);

/* Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code forward_moe_create(const struct forward_options *options,
                                               struct forward_moe *out_moe, struct err *err);

/* The second half of a layer with experts: from x and its pre_feedforward norm to x and the next
 * norm. */
ERR_NODISCARD enum err_code forward_moe_block(struct forward *forward,
                                              const struct k_tokens *tokens, uint32_t index,
                                              const struct forward_end *end, struct err *err);

/* ---- forward_ple.c; the first three do nothing for a model without per-layer embeddings ---- */

uint64_t forward_ple_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits);

/* Errors: ERR_MEMORY, ERR_UNSUPPORTED (the backend has no such operators). */
ERR_NODISCARD enum err_code forward_ple_create(const struct forward_options *options,
                                               struct forward_ple *out_ple, struct err *err);

/* Before the embedding: begins to fetch the tokens' rows where the table is far. */
ERR_NODISCARD enum err_code forward_ple_fetch(struct forward *forward,
                                              const struct k_tokens *tokens, struct err *err);

/* After it: what every layer will add, from the tokens and their embeddings in x. */
ERR_NODISCARD enum err_code forward_ple_inputs(struct forward *forward,
                                               const struct k_tokens *tokens, struct err *err);

/* The end of a layer, whose MLP's output is in projected: its residual, what the layer gets of
 * per-layer embeddings, and the norm of what follows. */
ERR_NODISCARD enum err_code forward_ple_layer(struct forward *forward,
                                              const struct k_tokens *tokens, uint32_t index,
                                              const struct forward_end *end, struct err *err);

#endif
