/* Shared by weights.c and weights_experts.c only: what is to be loaded, and whether it is there. */
#ifndef WORKER_WEIGHTS_INTERNAL_H
#define WORKER_WEIGHTS_INTERNAL_H

#include <stdbool.h>

#include "worker/faults.h"
#include "worker/weights.h"

#define WEIGHTS_MAX_NAME_BYTES 256

/* One tensor to load: where from, where to, which pointer gets its address. */
struct weights_entry {
    const struct st_tensor *tensor; /* borrowed from the set */
    const uint16_t **slot; /* borrowed from the weights; null: part of the entry before it */
    uint64_t offset_bytes;
};

struct weights_plan {
    const struct model_config *config;
    const struct st_set *set;
    const char *prefix;
    struct weights *weights;
    struct weights_entry *entries; /* owned */
    uint32_t count;
    uint64_t block_bytes; /* padding of every tensor included */
    uint64_t data_bytes;
    bool *known; /* owned, [tensors of the set]: the model knows this one */
    struct faults faults;
};

/* The tensor of this name behind the prefix, known from then on; null where there is none. */
const struct st_tensor *weights_plan_find(struct weights_plan *plan, const char *short_name);

/* Compares with want, whose dims are set; adds what is wrong.  short_name is for messages. */
bool weights_plan_check(struct weights_plan *plan, const struct st_tensor *tensor,
                        const struct st_tensor *want, const char *short_name);

/* Appends an entry at that offset; the block does not grow. */
void weights_plan_add(struct weights_plan *plan, const struct st_tensor *tensor,
                      const uint16_t **slot, uint64_t offset_bytes);

/* ---- weights_experts.c: a tensor for each expert's matrix in place of one for all ---- */

/* Entries that a layer's experts can take. */
uint64_t weights_experts_most_entries(const struct model_config *config);

/* Whether the file has a layer's experts one by one. */
bool weights_experts_are_split(const struct weights_plan *plan, uint32_t layer);

/* Plans the tensors of every expert into the place that one tensor for all has:
 *   is_down: down [experts, hidden, intermediate]; else gate and up [experts, 2 intermediate, hidden] */
void weights_experts_plan(struct weights_plan *plan, uint32_t layer, bool is_down,
                          const uint16_t **slot);

#endif
