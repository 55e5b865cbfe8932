/* Slot state: opening, the step's prologue, the step's tail. */
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/ops_rig.h"
#include "tests/testlib/slots_rig.h"
#include "tests/testlib/test.h"

enum {
    ROWS = 6,
    TOKENS = 32,
    LOCAL_PAGES = 3,
    GLOBAL_PAGES = 8,
};

struct rig {
    struct slots_rig state;
    struct k_stream *stream;
    uint32_t local[SLOTS_RIG_SLOTS * LOCAL_PAGES];
    uint32_t global[SLOTS_RIG_SLOTS * GLOBAL_PAGES];
    struct k_row rows[ROWS];
    uint32_t row_count;
    uint32_t prompt_ids[TOKENS];
    uint32_t next_ids[TOKENS];
    uint32_t ids[TOKENS];
    uint32_t positions[TOKENS];
    uint32_t token_slots[TOKENS];
    struct k_pick picks[ROWS];
    struct k_sample_row sample_rows[ROWS];
    uint32_t sample_tokens[ROWS];
    struct k_logprob_row sample_logprobs[ROWS];
    uint32_t prompt_tokens[TOKENS];
    struct k_logprob_row prompt_logprobs[TOKENS];
    struct k_step_counts counts;
};

static struct rig *rig_create(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    slots_rig_init(&rig->state);
    rig->stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    for (uint32_t i = 0; i < TOKENS; i++) {
        rig->prompt_ids[i] = 100 + i;
        rig->next_ids[i] = 101 + i;
    }
    return rig;
}

static void rig_destroy(struct rig *rig)
{
    k_cpu_stream_destroy(rig->stream);
    slots_rig_fini(&rig->state);
    mem_free(rig);
}

static void open_slot(struct rig *rig, uint32_t slot, uint32_t generation,
                      const struct k_sampler *sampler)
{
    struct err err = {0};
    struct k_sampler *fresh = slots_rig_sampler();
    struct k_open_args args = {
        .slots = rig->state.slots,
        .slot = slot,
        .generation = generation,
        .sampler = sampler == NULL ? fresh : sampler,
    };
    test_ok(k_cpu_ops()->open(rig->stream, &args, &err), &err);
    mem_free(fresh);
}

static void expand(struct rig *rig, const struct k_patch *patches, uint32_t patch_count,
                   uint32_t multiple)
{
    struct err err = {0};
    struct k_expand_args args = {
        .slots = rig->state.slots,
        .patches = patches,
        .patch_count = patch_count,
        .page_tables = {rig->local, rig->global},
        .table_pages = {LOCAL_PAGES, GLOBAL_PAGES},
        .rows = rig->rows,
        .row_count = rig->row_count,
        .pad_tokens_multiple = multiple,
        .prompt_ids = rig->prompt_ids,
        .next_ids = rig->next_ids,
        .ids = rig->ids,
        .positions = rig->positions,
        .token_slots = rig->token_slots,
        .picks = rig->picks,
        .sample_rows = rig->sample_rows,
        .sample_tokens = rig->sample_tokens,
        .sample_logprobs = rig->sample_logprobs,
        .prompt_tokens = rig->prompt_tokens,
        .prompt_logprobs = rig->prompt_logprobs,
        .counts = &rig->counts,
    };
    test_ok(k_cpu_ops()->expand(rig->stream, &args, &err), &err);
}

/* Every row's pick is `token` where it was computed and samples. */
static void advance(struct rig *rig, uint32_t token)
{
    struct err err = {0};
    for (uint32_t i = 0; i < rig->counts.sample_rows; i++) {
        rig->picks[rig->sample_rows[i].row] =
            (struct k_pick){.outcome = K_OUTCOME_TOKEN, .token = token};
    }
    struct k_advance_args args = {
        .slots = rig->state.slots,
        .rows = rig->rows,
        .row_count = rig->row_count,
        .picks = rig->picks,
    };
    test_ok(k_cpu_ops()->advance(rig->stream, &args, &err), &err);
}

static struct k_row prompt_row(uint32_t slot, uint32_t generation, uint32_t start, uint32_t count,
                               uint32_t flags)
{
    return (struct k_row){
        .slot = slot,
        .generation = generation,
        .start = start,
        .count = count,
        .first_id = start,
        .mask_row = K_NONE,
        .flags = flags,
    };
}

static struct k_row decode_row(uint32_t slot, uint32_t generation)
{
    return (struct k_row){
        .slot = slot,
        .generation = generation,
        .start = 999, /* not looked at */
        .count = 1,
        .first_id = K_NONE,
        .mask_row = K_NONE,
        .flags = K_ROW_SAMPLES,
    };
}

static void test_prompt_then_decode_needs_nothing_from_the_host(void)
{
    struct rig *rig = rig_create();
    open_slot(rig, 2, 1, NULL);
    rig->rows[0] = prompt_row(2, 1, 0, 5, 0);
    rig->row_count = 1;
    expand(rig, NULL, 0, 1);
    test_eq_u64(rig->counts.tokens, 5);
    test_eq_u64(rig->counts.sample_rows, 0);
    test_eq_u64(rig->picks[0].outcome, K_OUTCOME_NONE);
    test_eq_u64(rig->ids[4], 104);
    test_eq_u64(rig->positions[4], 4);
    test_eq_u64(rig->token_slots[4], 2);
    advance(rig, 0);
    test_eq_u64(rig->state.slots.length[2], 5);
    rig->rows[0] = prompt_row(2, 1, 5, 2, K_ROW_SAMPLES);
    expand(rig, NULL, 0, 1);
    test_eq_u64(rig->sample_tokens[0], 1);
    test_eq_u64(rig->sample_rows[0].position, 7);
    advance(rig, 42);
    test_eq_u64(rig->picks[0].outcome, K_OUTCOME_TOKEN);
    for (uint32_t step = 0; step < 3; step++) {
        rig->rows[0] = decode_row(2, 1);
        expand(rig, NULL, 0, 1);
        test_eq_u64(rig->ids[0], 42 + step);
        test_eq_u64(rig->positions[0], 7 + step);
        test_eq_u64(rig->sample_rows[0].position, 8 + step);
        advance(rig, 43 + step);
    }
    test_eq_u64(rig->state.slots.length[2], 10);
    rig_destroy(rig);
}

static void test_stopped_reopened_and_held_rows_leave_no_token(void)
{
    struct rig *rig = rig_create();
    for (uint32_t slot = 0; slot < 4; slot++) {
        open_slot(rig, slot, 7, NULL);
    }
    rig->state.slots.stopped[0] = 1;
    rig->state.stop_request[1] = 7;
    rig->state.stop_request[3] = 6; /* of a sequence before */
    rig->rows[0] = decode_row(0, 7);
    rig->rows[1] = decode_row(1, 7);
    rig->rows[2] = decode_row(2, 6); /* the slot was opened again since */
    rig->rows[3] = decode_row(2, 7);
    rig->rows[3].flags |= K_ROW_HELD;
    rig->rows[4] = decode_row(3, 7);
    rig->row_count = 5;
    expand(rig, NULL, 0, 1);
    test_eq_u64(rig->picks[0].outcome, K_OUTCOME_MASKED);
    test_eq_u64(rig->picks[1].outcome, K_OUTCOME_MASKED);
    test_eq_u64(rig->picks[2].outcome, K_OUTCOME_MASKED);
    test_eq_u64(rig->picks[3].outcome, K_OUTCOME_HELD);
    test_eq_u64(rig->counts.tokens, 1);
    test_eq_u64(rig->counts.sample_rows, 1);
    test_eq_u64(rig->sample_rows[0].row, 4);
    advance(rig, 9);
    test_eq_u64(rig->picks[3].outcome, K_OUTCOME_HELD);
    test_eq_u64(rig->state.slots.length[2], 0);
    test_eq_u64(rig->state.slots.length[3], 1);
    test_eq_u64(rig->state.slots.stopped[2], 0);
    rig_destroy(rig);
}

static void test_stop_ids_and_length_stop_the_slot(void)
{
    struct rig *rig = rig_create();
    struct k_sampler *sampler = slots_rig_sampler();
    sampler->stop_count = 2;
    sampler->stop_ids[1] = 50;
    sampler->max_total = 4;
    for (int ignore_eos = 0; ignore_eos <= 1; ignore_eos++) {
        sampler->ignore_eos = ignore_eos != 0;
        open_slot(rig, 0, 1, sampler);
        rig->rows[0] = prompt_row(0, 1, 0, 2, K_ROW_SAMPLES);
        rig->row_count = 1;
        expand(rig, NULL, 0, 1);
        advance(rig, 50);
        test_eq_u64(rig->picks[0].outcome, ignore_eos ? K_OUTCOME_TOKEN : K_OUTCOME_STOP);
        test_eq_u64(rig->picks[0].token, 50);
        test_eq_u64(rig->state.slots.stopped[0], ignore_eos ? 0 : 1);
    }
    rig->rows[0] = decode_row(0, 1);
    expand(rig, NULL, 0, 1);
    advance(rig, 51); /* the fourth token in all */
    test_eq_u64(rig->picks[0].outcome, K_OUTCOME_LENGTH);
    expand(rig, NULL, 0, 1);
    test_eq_u64(rig->picks[0].outcome, K_OUTCOME_MASKED);
    test_eq_u64(rig->counts.tokens, 0);
    mem_free(sampler);
    rig_destroy(rig);
}

static void test_a_bad_row_stops_without_moving(void)
{
    struct err err = {0};
    struct rig *rig = rig_create();
    open_slot(rig, 0, 1, NULL);
    rig->rows[0] = prompt_row(0, 1, 0, 2, K_ROW_SAMPLES);
    rig->row_count = 1;
    expand(rig, NULL, 0, 1);
    rig->picks[0].outcome = K_OUTCOME_BAD;
    struct k_advance_args args = {
        .slots = rig->state.slots, .rows = rig->rows, .row_count = 1, .picks = rig->picks};
    test_ok(k_cpu_ops()->advance(rig->stream, &args, &err), &err);
    test_eq_u64(rig->picks[0].outcome, K_OUTCOME_BAD);
    test_eq_u64(rig->state.slots.length[0], 0);
    test_eq_u64(rig->state.slots.stopped[0], 1);
    rig_destroy(rig);
}

static void test_patches_write_page_tables(void)
{
    static const struct k_patch patches[] = {
        {.slot = 1, .family = 0, .entry = 2, .physical_page = 77},
        {.slot = 3, .family = 1, .entry = 7, .physical_page = 78},
    };
    struct rig *rig = rig_create();
    expand(rig, patches, 2, 1);
    test_eq_u64(rig->local[1 * LOCAL_PAGES + 2], 77);
    test_eq_u64(rig->global[3 * GLOBAL_PAGES + 7], 78);
    test_eq_u64(sizeof(struct k_patch), 16);
    rig_destroy(rig);
}

static void test_padding_tokens_belong_to_no_slot(void)
{
    struct rig *rig = rig_create();
    open_slot(rig, 0, 1, NULL);
    rig->rows[0] = prompt_row(0, 1, 0, 5, K_ROW_SAMPLES);
    rig->row_count = 1;
    expand(rig, NULL, 0, 8);
    test_eq_u64(rig->counts.tokens, 8);
    test_eq_u64(rig->sample_tokens[0], 4);
    for (uint32_t t = 5; t < 8; t++) {
        test_eq_u64(rig->token_slots[t], K_SLOT_NONE);
        test_eq_u64(rig->positions[t], t - 5);
    }
    rig_destroy(rig);
}

static void test_prompt_logprobs_name_the_next_token(void)
{
    struct rig *rig = rig_create();
    struct k_sampler *sampler = slots_rig_sampler();
    sampler->prompt_logprobs = 3;
    open_slot(rig, 0, 1, NULL);
    open_slot(rig, 1, 1, sampler);
    rig->rows[0] = prompt_row(0, 1, 0, 2, 0);
    rig->rows[1] = prompt_row(1, 1, 4, 3, K_ROW_PROMPT_LOGPROBS);
    rig->next_ids[6] = K_NONE;
    rig->row_count = 2;
    expand(rig, NULL, 0, 1);
    test_eq_u64(rig->counts.prompt_logprob_rows, 3);
    for (uint32_t i = 0; i < 3; i++) {
        test_eq_u64(rig->prompt_tokens[i], 2 + i);
        test_eq_u64(rig->prompt_logprobs[i].record, 4 + i);
        test_eq_u64(rig->prompt_logprobs[i].want, 3);
        test_eq_u64(rig->prompt_logprobs[i].target, i == 2 ? K_NONE : 105 + i);
    }
    mem_free(sampler);
    rig_destroy(rig);
}

static void test_counts_follow_context_and_output(void)
{
    static const uint32_t context[] = {8, 9, 9, 8, 7}; /* output begins at index 3 */
    struct err err = {0};
    struct rig *rig = rig_create();
    struct k_sampler *sampler = slots_rig_sampler();
    sampler->counts_tokens = true;
    sampler->output_start = 3;
    struct k_open_args args = {
        .slots = rig->state.slots,
        .slot = 1,
        .generation = 1,
        .sampler = sampler,
        .context = context,
        .context_count = 5,
    };
    test_ok(k_cpu_ops()->open(rig->stream, &args, &err), &err);
    const uint32_t *counts = rig->state.slots.counts + OPS_VOCAB;
    test_eq_u64(counts[7], 1);
    test_eq_u64(counts[8], K_COUNT_PROMPT | 1U);
    test_eq_u64(counts[9], K_COUNT_PROMPT);
    rig->rows[0] = prompt_row(1, 1, 0, 5, K_ROW_SAMPLES);
    rig->row_count = 1;
    expand(rig, NULL, 0, 1);
    advance(rig, 7);
    test_eq_u64(counts[7], 2);
    open_slot(rig, 1, 2, NULL); /* the next sequence starts clean */
    for (uint32_t v = 0; v < OPS_VOCAB; v++) {
        test_eq_u64(counts[v], 0);
    }
    mem_free(sampler);
    rig_destroy(rig);
}

static const struct test_case cases[] = {
    TEST(test_prompt_then_decode_needs_nothing_from_the_host),
    TEST(test_stopped_reopened_and_held_rows_leave_no_token),
    TEST(test_stop_ids_and_length_stop_the_slot),
    TEST(test_a_bad_row_stops_without_moving),
    TEST(test_patches_write_page_tables),
    TEST(test_padding_tokens_belong_to_no_slot),
    TEST(test_prompt_logprobs_name_the_next_token),
    TEST(test_counts_follow_context_and_output),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
