/* How large a model is, from its config alone.  Pure; any thread. */
#ifndef WORKER_SIZES_H
#define WORKER_SIZES_H

#include <stdint.h>

#include "worker/model_config.h"

struct sizes {
    uint64_t tensors;
    uint64_t params;
    uint64_t weight_bytes;    /* as in a checkpoint: bf16, nothing between tensors */
    uint64_t block_bytes;     /* as in memory: every tensor padded */
    uint64_t ple_table_bytes; /* of weight_bytes: one row is read per token; 0 without */
    uint64_t ple_row_bytes;
    uint64_t expert_bytes;        /* of weight_bytes: all experts of all layers; 0 without */
    uint64_t active_expert_bytes; /* what one token reads of them */
    /* KV of one token in all layers of the family that own KV. */
    uint64_t kv_token_bytes[RUNNER_FAMILY_COUNT];
};

void sizes_measure(const struct model_config *config, struct sizes *out_sizes);

#endif
