/* Slot state for sampler tests: a few slots over the vocabulary of ops_rig.h. */
#ifndef TESTS_TESTLIB_SLOTS_RIG_H
#define TESTS_TESTLIB_SLOTS_RIG_H

#include "kernels/ops.h"

#define SLOTS_RIG_SLOTS 4

struct slots_rig {
    struct k_slots slots;
    uint32_t *stop_request;
};

void slots_rig_init(struct slots_rig *rig);
void slots_rig_fini(struct slots_rig *rig);

/* Greedy, nothing switched on, unbounded. */
struct k_sampler *slots_rig_sampler(void);

#endif
