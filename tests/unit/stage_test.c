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

static const struct test_case cases[] = {
    TEST(test_table_lengths),
    TEST(test_patches_are_found_around_the_table),
    TEST(test_rows_are_packed_in_order),
    TEST(test_steps_outside_the_limits),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
