#include "worker/sizes.h"

#include <string.h>

#include "worker/forward.h"
#include "worker/weights.h"

static void add_tensor(void *owner, const struct weights_tensor *tensor)
{
    struct sizes *sizes = owner;
    static const char experts[] = "experts.";
    uint64_t bytes = tensor->elems * sizeof(uint16_t);
    sizes->tensors++;
    sizes->params += tensor->elems;
    sizes->weight_bytes += bytes;
    if (strcmp(tensor->name, "embed_tokens_per_layer.weight") == 0) {
        sizes->ple_table_bytes += bytes;
        sizes->ple_row_bytes += tensor->in_elems * sizeof(uint16_t);
    } else if (strncmp(tensor->name, experts, sizeof(experts) - 1) == 0) {
        sizes->expert_bytes += bytes;
    }
}

void sizes_measure(const struct model_config *config, struct sizes *out_sizes)
{
    struct weights unused;
    *out_sizes = (struct sizes){0};
    weights_lay_out(config, NULL, add_tensor, out_sizes, &unused);
    out_sizes->block_bytes = unused.block_bytes;
    weights_fini(&unused);
    if (config->experts > 0) {
        out_sizes->active_expert_bytes =
            out_sizes->expert_bytes / config->experts * config->top_experts;
    }
    for (int i = 0; i < RUNNER_FAMILY_COUNT; i++) {
        out_sizes->kv_token_bytes[i] = forward_page_bytes(config, (enum runner_family)i, 1);
    }
}
