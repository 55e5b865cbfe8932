#include "kernels/cpu/candidates.h"

#include <stdbool.h>

static bool is_better(const struct k_candidate *a, const struct k_candidate *b)
{
    return a->value > b->value || (a->value == b->value && a->id < b->id);
}

static void swap(struct k_candidate *a, struct k_candidate *b)
{
    struct k_candidate kept = *a;
    *a = *b;
    *b = kept;
}

/* heap[0 .. count): every parent is worse than its children; restores it below `at`. */
static void sift_down(struct k_candidate *heap, uint32_t at, uint32_t count)
{
    for (;;) {
        uint32_t worst = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++) {
            worst = is_better(&heap[worst], &heap[child]) ? child : worst;
        }
        if (worst == at) {
            return;
        }
        swap(&heap[at], &heap[worst]);
        at = worst;
    }
}

void k_candidates_order(struct k_candidate *candidates, uint32_t count, uint32_t want)
{
    if (want == 0) {
        return;
    }
    for (uint32_t at = want / 2; at-- > 0;) {
        sift_down(candidates, at, want);
    }
    for (uint32_t i = want; i < count; i++) {
        if (is_better(&candidates[i], &candidates[0])) {
            swap(&candidates[i], &candidates[0]);
            sift_down(candidates, 0, want);
        }
    }
    for (uint32_t left = want; left-- > 1;) {
        swap(&candidates[0], &candidates[left]);
        sift_down(candidates, 0, left);
    }
}
