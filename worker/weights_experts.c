/* Checkpoints that store each expert's gate, up and down projection as a tensor of its own, as
 * quantisation tools leave them: `experts.E.gate_proj.weight` and so on, in some under `moe.`. */
#include <stdio.h>
#include <string.h>

#include "common/num.h"
#include "worker/weights_internal.h"

static const char *const folders[] = {"experts", "moe.experts"};
#define FOLDER_COUNT (sizeof(folders) / sizeof(folders[0]))

uint64_t weights_experts_most_entries(const struct model_config *config)
{
    return 3ULL * config->experts;
}

bool weights_experts_are_split(const struct weights_plan *plan, uint32_t layer)
{
    char start[WEIGHTS_MAX_NAME_BYTES];
    for (size_t folder = 0; folder < FOLDER_COUNT; folder++) {
        size_t start_bytes = (size_t)snprintf(start, sizeof(start), "%slayers.%u.%s.", plan->prefix,
                                              layer, folders[folder]); /* fits */
        for (uint32_t i = 0; i < st_count(plan->set); i++) {
            const char *name = st_at(plan->set, i)->name;
            if (strncmp(name, start, start_bytes) == 0 && name[start_bytes] >= '0' &&
                name[start_bytes] <= '9') {
                return true;
            }
        }
    }
    return false;
}

/* One expert's matrix [rows, cols] at that offset. */
struct matrix {
    uint32_t layer;
    uint32_t expert;
    const char *part;
    uint64_t rows;
    uint64_t cols;
    uint64_t offset_bytes;
};

static void plan_matrix(struct weights_plan *plan, const struct matrix *matrix,
                        const uint16_t **slot)
{
    char name[WEIGHTS_MAX_NAME_BYTES / 2];
    const struct st_tensor *tensor = NULL;
    const struct st_tensor want = {.rank = 2, .dims = {matrix->rows, matrix->cols}};
    for (size_t i = 0; tensor == NULL && i < FOLDER_COUNT;
         i++) { /* a fault names the first folder */
        (void)snprintf(name, sizeof(name), "layers.%u.%s.%u.%s_proj.weight", matrix->layer,
                       folders[FOLDER_COUNT - 1 - i], matrix->expert, matrix->part); /* fits */
        tensor = weights_plan_find(plan, name);
    }
    if (tensor == NULL) {
        faults_add(&plan->faults, "%s is missing", name);
    } else if (weights_plan_check(plan, tensor, &want, name)) {
        weights_plan_add(plan, tensor, slot, matrix->offset_bytes);
    }
}

void weights_experts_plan(struct weights_plan *plan, uint32_t layer, bool is_down,
                          const uint16_t **slot)
{
    uint64_t hidden = plan->config->hidden_elems;
    uint64_t inner = plan->config->expert_intermediate_elems;
    uint64_t matrix_bytes = hidden * inner * sizeof(uint16_t);
    uint64_t expert_bytes = is_down ? matrix_bytes : 2 * matrix_bytes;
    uint64_t first_bytes = plan->block_bytes;
    for (uint32_t e = 0; e < plan->config->experts; e++) {
        struct matrix matrix = {
            .layer = layer,
            .expert = e,
            .part = is_down ? "down" : "gate",
            .rows = is_down ? hidden : inner,
            .cols = is_down ? inner : hidden,
            .offset_bytes = first_bytes + e * expert_bytes,
        };
        plan_matrix(plan, &matrix, e == 0 ? slot : NULL);
        if (!is_down) {
            matrix.part = "up";
            matrix.offset_bytes += matrix_bytes;
            plan_matrix(plan, &matrix, NULL);
        }
    }
    plan->block_bytes += num_align_up(plan->config->experts * expert_bytes, WEIGHTS_ALIGN_BYTES);
}
