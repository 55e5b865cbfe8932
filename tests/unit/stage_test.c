/* Staging: page tables as long as they must be, and what a packed step holds. */
#include <string.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"
#include "tests/testlib/test.h"
#include "worker/stage.h"

static struct runner_limits limits_of(uint32_t page_tokens, uint32_t window, uint32_t step_tokens)
{
    return (struct runner_limits){
        .slots = 3,
        .max_step_rows = 8,
        .max_step_tokens = step_tokens,
        .max_context_tokens = 4096,
        .vocab_tokens = 100,
        .window_tokens = window,
        .page_tokens = page_tokens,
        .pages = {1000, 1000},
        .pipeline_depth = 1,
    };
}

static void *alloc(void *context, size_t count, size_t elem_bytes)
{
    struct mem_arena *arena = context;
    return mem_arena_alloc(arena, count, elem_bytes);
}

/* Tables, an upload, and the memory that holds them. */
struct rig {
    struct runner_limits limits;
    struct mem_arena arena;
    struct stage_tables tables;
    struct stage_upload upload;
    uint32_t generations[3];
    struct k_pick picks[8];
};

static void rig_init(struct rig *rig, const struct runner_limits *limits)
{
    struct err err = {0};
    *rig = (struct rig){.limits = *limits, .generations = {11, 12, 13}};
    test_ok(mem_arena_init(&rig->arena, 4UL << 20, &err), &err);
    memset(rig->arena.base, 0, rig->arena.cap_bytes);
    struct stage_allocator allocator = {.context = &rig->arena, .alloc = alloc};
    test_ok(stage_tables_create(limits, &allocator, &rig->tables, &err), &err);
    test_ok(stage_upload_create(limits, &allocator, &rig->upload, &err), &err);
}

static void rig_fini(struct rig *rig)
{
    mem_arena_fini(&rig->arena);
}

static void test_table_lengths(void)
{
    struct runner_limits limits = limits_of(64, 1024, 2048);
    test_eq_u64(stage_table_pages(&limits, RUNNER_FAMILY_LOCAL), 16 + 32 + 2);
    test_eq_u64(stage_table_pages(&limits, RUNNER_FAMILY_GLOBAL), 64);
    limits = limits_of(64, 1000, 65);
    test_eq_u64(stage_table_pages(&limits, RUNNER_FAMILY_LOCAL), 16 + 2 + 2);
    limits = limits_of(16, 5, 1);
    test_eq_u64(stage_table_pages(&limits, RUNNER_FAMILY_LOCAL), 1 + 1 + 2);
    test_eq_u64(stage_max_patches(&limits), 3UL * (4 + 256));
    test_eq_u64(stage_mask_words(&limits), 4);
}

/* Wherever the window is, every page within a window and a segment is found where it was put. */
static void test_patches_are_found_around_the_table(void)
{
    static const uint32_t page_sizes[] = {4, 64};
    for (uint32_t p = 0; p < 2; p++) {
        struct err err = {0};
        struct rig rig;
        uint32_t page_tokens = page_sizes[p];
        struct runner_limits limits = limits_of(page_tokens, 2 * page_tokens + 1, page_tokens + 3);
        rig_init(&rig, &limits);
        struct k_pages pages = {
            .table = rig.tables.page_tables[RUNNER_FAMILY_LOCAL],
            .table_pages = rig.tables.table_pages[RUNNER_FAMILY_LOCAL],
            .page_tokens = page_tokens,
        };
        uint32_t span = 3 + 2 + 1; /* window, segment, and their ragged ends, in pages */
        for (uint32_t page = 0; page < 60; page++) {
            struct runner_patch patch = {
                .slot = 1,
                .family = RUNNER_FAMILY_LOCAL,
                .logical_page = page,
                .physical_page = 500 + page,
            };
            struct runner_step step = {.patches = &patch, .patch_count = 1};
            test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
            struct k_expand_args expand = stage_expand_args(&rig.tables, &rig.upload, rig.picks);
            test_ok(k_cpu_ops()->expand(NULL, &expand, &err), &err);
            uint32_t oldest = page + 1 >= span ? page + 1 - span : 0;
            for (uint32_t seen = oldest; seen <= page; seen++) {
                test_eq_u64(k_page_of(&pages, 1, seen * page_tokens), 500 + seen);
                test_eq_u64(k_page_of(&pages, 1, seen * page_tokens + page_tokens - 1), 500 + seen);
            }
        }
        rig_fini(&rig);
    }
}

static void test_rows_are_packed_in_order(void)
{
    static const uint32_t tokens[] = {7, 8, 9};
    static const uint32_t next[] = {8, 9, 0xffffffff};
    static const uint32_t mask[] = {1, 2, 3, 4};
    struct err err = {0};
    struct rig rig;
    struct runner_limits limits = limits_of(64, 128, 64);
    rig_init(&rig, &limits);
    struct runner_row rows[] = {
        {.slot = 2, .start = 9, .count = 1, .samples = true},
        {.slot = 0,
         .start = 4,
         .count = 3,
         .tokens = tokens,
         .prompt_logprobs = true,
         .next_tokens = next},
        {.slot = 1, .count = 1, .samples = true, .constrained = true, .mask = mask},
        {.slot = 1, .count = 1, .samples = true, .constrained = true},
        {.slot = 1, .count = 2, .tokens = tokens, .constrained = true}, /* samples nothing */
    };
    struct runner_step step = {.rows = rows, .row_count = 5};
    test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
    const struct k_row *packed = rig.upload.rows;
    test_eq_u64(rig.upload.row_count, 5);
    test_eq_u64(rig.upload.token_count, 8);
    test_eq_u64(rig.upload.id_count, 5);
    test_eq_u64(packed[0].first_id, K_NONE);
    test_eq_u64(packed[0].generation, 13);
    test_eq_u64(packed[0].flags, K_ROW_SAMPLES);
    test_eq_u64(packed[1].first_id, 0);
    test_eq_u64(packed[1].start, 4);
    test_eq_u64(packed[1].flags, K_ROW_PROMPT_LOGPROBS);
    test_true(memcmp(rig.upload.next_ids, next, sizeof(next)) == 0);
    test_eq_u64(packed[2].mask_row, 0);
    test_true(memcmp(rig.upload.masks, mask, sizeof(mask)) == 0);
    test_eq_u64(packed[3].flags, K_ROW_SAMPLES | K_ROW_HELD);
    test_eq_u64(packed[4].first_id, 3);
    test_eq_u64(packed[4].flags, 0);
    rig_fini(&rig);
}

static void test_steps_outside_the_limits(void)
{
    static const uint32_t tokens[65] = {0};
    struct err err = {0};
    struct rig rig;
    struct runner_limits limits = limits_of(64, 128, 64);
    rig_init(&rig, &limits);
    struct runner_row rows[9] = {{.slot = 0, .count = 65, .tokens = tokens}};
    struct runner_patch patch = {.slot = 0, .logical_page = 64};
    struct runner_step step = {.rows = rows, .row_count = 1};
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    test_eq_str(err.message, "65 tokens, at most 64");
    rows[0].count = 0;
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: 0 tokens");
    step.row_count = 9;
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    test_eq_str(err.message, "9 rows, at most 8");
    step = (struct runner_step){.patches = &patch, .patch_count = 1};
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    test_eq_str(err.message, "patch 0: logical page 64, the context ends at token 4096");
    patch = (struct runner_patch){.slot = 3};
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    test_eq_str(err.message, "patch 0: slot 3 of 3, family 0");
    rig_fini(&rig);
}

static void test_a_step_of_the_same_rows_is_packed_alike(void)
{
    struct err err = {0};
    struct rig rig;
    struct runner_limits limits = limits_of(64, 128, 64);
    rig_init(&rig, &limits);
    struct runner_row rows[] = {{.slot = 2, .start = 62, .count = 1, .samples = true},
                                {.slot = 0, .start = 5, .count = 1, .samples = true}};
    const struct runner_patch patch = {.slot = 2, .logical_page = 1, .physical_page = 77};
    struct runner_step step = {.rows = rows, .row_count = 2};
    struct k_row first[2];
    test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
    test_eq_u64(rig.upload.tail_bytes, 0);
    memcpy(first, rig.upload.rows, sizeof(first));
    for (uint32_t i = 0; i < 3; i++) {
        rows[0].start++;
        rows[1].start++;
        step.patches = &patch;
        step.patch_count = i == 1 ? 1 : 0;
        test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
        test_true(memcmp(first, rig.upload.rows, sizeof(first)) == 0);
        test_eq_u64(rig.upload.tail_bytes, i == 1 ? sizeof(struct k_patch) : 0);
    }
    rig_fini(&rig);
}

/* What a copy of the used part of the block means to a device that has it elsewhere. */
static void test_a_mirror_finds_what_was_copied(void)
{
    static const uint32_t tokens[] = {7, 8, 9};
    static const uint32_t next[] = {8, 9, 0xffffffff};
    struct err err = {0};
    struct rig rig;
    struct rig device;
    struct runner_limits limits = limits_of(64, 128, 64);
    rig_init(&rig, &limits);
    rig_init(&device, &limits);
    const struct runner_row rows[] = {
        {.slot = 1, .start = 9, .count = 1, .samples = true},
        {.slot = 0, .count = 3, .tokens = tokens, .prompt_logprobs = true, .next_tokens = next}};
    const struct runner_patch patches[] = {{.slot = 0, .physical_page = 77},
                                           {.slot = 0, .family = 1, .physical_page = 78}};
    for (uint32_t patch_count = 0; patch_count <= 2; patch_count++) {
        const struct runner_step step = {
            .rows = rows, .row_count = 2, .patches = patches, .patch_count = patch_count};
        test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
        memset(device.upload.block, 0xaa, 2 * rig.upload.tail_offset_bytes);
        memcpy(device.upload.block, rig.upload.block,
               rig.upload.tail_offset_bytes + rig.upload.tail_bytes);
        stage_upload_mirror(&rig.upload, &device.upload);
        test_true(memcmp(device.upload.prompt_ids, tokens, sizeof(tokens)) == 0);
        test_true(memcmp(device.upload.next_ids, next, sizeof(next)) == 0);
        test_eq_u64(device.upload.patch_count, patch_count);
        for (uint32_t i = 0; i < patch_count; i++) {
            test_eq_u64(device.upload.patches[i].physical_page, 77 + i);
        }
    }
    rig_fini(&device);
    rig_fini(&rig);
}

static void test_pinned_rows_lie_apart(void)
{
    uint32_t tokens[40];
    struct err err = {0};
    struct rig rig;
    struct runner_limits limits = limits_of(64, 128, 64);
    for (uint32_t i = 0; i < 40; i++) {
        tokens[i] = i;
    }
    limits.segment_tokens = 16;
    test_eq_u64(stage_row_cap(&limits), 8 + 8 + 4);
    rig_init(&rig, &limits);
    struct runner_row rows[] = {
        {.slot = 1, .start = 16, .count = 37, .tokens = tokens, .samples = true},
        {.slot = 0, .start = 9, .count = 1, .samples = true},
        {.slot = 2, .start = 0, .count = 16, .tokens = tokens}};
    struct runner_step step = {.rows = rows, .row_count = 3};
    test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
    const struct k_row *packed = rig.upload.rows;
    test_eq_u64(rig.upload.row_count, 8 + 3 + 1);
    test_eq_u64(rig.upload.decode_count, 1);
    test_eq_u64(packed[0].generation, 11);
    for (uint32_t i = 1; i < 8; i++) {
        test_eq_u64(packed[i].generation, 0);
    }
    static const uint32_t counts[] = {16, 16, 5};
    for (uint32_t i = 0; i < 3; i++) {
        test_eq_u64(packed[8 + i].generation, 12);
        test_eq_u64(packed[8 + i].start, 16 + 16 * i);
        test_eq_u64(packed[8 + i].count, counts[i]);
        test_eq_u64(rig.upload.prompt_ids[packed[8 + i].first_id], 16ULL * i);
        test_eq_u64(packed[8 + i].flags, i == 2 ? K_ROW_SAMPLES : 0);
    }
    static const struct stage_span spans[] = {{8, 10}, {0, 0}, {11, 11}};
    test_true(memcmp(rig.upload.spans, spans, sizeof(spans)) == 0);
    rows[2].count = 15; /* ends neither the prompt nor a piece */
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    test_eq_str(err.message, "row 2: tokens 0 + 15 of a prompt, cut at multiples of 16");
    rows[2].start = 1;
    test_eq_u64(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), ERR_STEP);
    rig_fini(&rig);
}

static void test_masks_that_come_late(void)
{
    static const uint32_t mask[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    struct err err = {0};
    struct rig rig;
    struct runner_limits limits = limits_of(64, 128, 64);
    rig_init(&rig, &limits);
    const struct runner_row rows[] = {
        {.slot = 0, .count = 1, .samples = true},
        {.slot = 1, .count = 1, .samples = true, .constrained = true, .mask_follows = true},
        {.slot = 2, .count = 1, .samples = true, .constrained = true, .mask = mask[0]},
        {.slot = 0, .count = 1, .samples = true, .constrained = true, .mask_follows = true}};
    const struct runner_step step = {.rows = rows, .row_count = 4};
    test_ok(stage_pack(&limits, &step, rig.generations, &rig.upload, &err), &err);
    test_eq_u64(rig.upload.mask_count, 3);
    test_eq_u64(rig.upload.late_count, 2);
    test_eq_u64(rig.upload.rows[1].flags, K_ROW_SAMPLES); /* not held yet */
    static const uint32_t before[] = {1, 0, 1};
    test_true(memcmp(rig.upload.missing, before, sizeof(before)) == 0);
    const uint32_t *const late[] = {NULL, mask[1], NULL, NULL};
    stage_take_masks(&limits, late, 4, &rig.upload);
    static const uint32_t after[] = {0, 0, 1};
    test_true(memcmp(rig.upload.missing, after, sizeof(after)) == 0);
    test_eq_u64(rig.upload.late_count, 1);
    test_true(memcmp(rig.upload.masks, mask[1], sizeof(mask[1])) == 0);
    test_true(memcmp(rig.upload.masks + 4, mask[0], sizeof(mask[0])) == 0);
    rig_fini(&rig);
}

static const struct test_case cases[] = {
    TEST(test_table_lengths),
    TEST(test_patches_are_found_around_the_table),
    TEST(test_rows_are_packed_in_order),
    TEST(test_steps_outside_the_limits),
    TEST(test_a_step_of_the_same_rows_is_packed_alike),
    TEST(test_a_mirror_finds_what_was_copied),
    TEST(test_pinned_rows_lie_apart),
    TEST(test_masks_that_come_late),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
