#include "tests/testlib/slots_rig.h"

#include "common/mem.h"
#include "tests/testlib/ops_rig.h"

void slots_rig_init(struct slots_rig *rig)
{
    rig->stop_request = mem_zalloc(SLOTS_RIG_SLOTS, sizeof(uint32_t));
    rig->slots = (struct k_slots){
        .slot_count = SLOTS_RIG_SLOTS,
        .vocab_tokens = OPS_VOCAB,
        .next_token = mem_zalloc(SLOTS_RIG_SLOTS, sizeof(uint32_t)),
        .length = mem_zalloc(SLOTS_RIG_SLOTS, sizeof(uint32_t)),
        .generation = mem_zalloc(SLOTS_RIG_SLOTS, sizeof(uint32_t)),
        .stopped = mem_zalloc(SLOTS_RIG_SLOTS, sizeof(uint32_t)),
        .stop_request = rig->stop_request,
        .samplers = mem_zalloc(SLOTS_RIG_SLOTS, sizeof(struct k_sampler)),
        .counts = mem_zalloc((size_t)SLOTS_RIG_SLOTS * OPS_VOCAB, sizeof(uint32_t)),
    };
}

void slots_rig_fini(struct slots_rig *rig)
{
    mem_free(rig->stop_request);
    mem_free(rig->slots.next_token);
    mem_free(rig->slots.length);
    mem_free(rig->slots.generation);
    mem_free(rig->slots.stopped);
    mem_free(rig->slots.samplers);
    mem_free(rig->slots.counts);
}

struct k_sampler *slots_rig_sampler(void)
{
    struct k_sampler *sampler = mem_zalloc(1, sizeof(*sampler));
    sampler->top_p = 1.0F;
    sampler->repetition_penalty = 1.0F;
    sampler->max_total = UINT32_MAX;
    return sampler;
}
