/* The core over a backend's runner: however prompts are cut, rows are mixed and steps run ahead, and
 * whatever fails beside it, a request gives the tokens that it gives alone. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/core_drive.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/test.h"

enum {
    DEMO_PROMPTS = 6,
    DEMO_OUTPUT = 14,
    LONG_OUTPUT = 3000,
    COMPARED_OUTPUT = 500 /* of those, compared with a pool that keeps everything */
};

static void demo_dir(char *path, size_t path_bytes)
{
    (void)snprintf(path, path_bytes, "%s/../../deploy/demo-model", test_golden_dir());
}

static struct drive_options usual_options(uint32_t chunk_tokens, uint32_t ahead)
{
    bool is_pinned = !backend_under_test()->is_exact; /* then shapes must not differ */
    return (struct drive_options){
        .limits =
            {
                .slots = 16,
                .max_step_rows = 16,
                .max_step_tokens = 160,
                .max_context_tokens = 2048,
                .page_tokens = 16,
                .pipeline_depth = ahead,
            },
        .chunk_tokens = chunk_tokens,
        .ahead = ahead,
        .is_pinned = is_pinned,
    };
}

static struct plan_admit admit_of(const uint32_t *prompt, uint32_t prompt_count, uint32_t output,
                                  uint32_t index)
{
    struct plan_admit admit = rig_plain_admit(1, prompt, prompt_count, prompt_count + output);
    admit.seed = 100 + index;
    if (index % 3 == 1) { /* sampled rows pipeline like greedy ones */
        admit.temperature = 1.2F;
        admit.top_k = 40;
        admit.top_p = 0.95F;
        admit.presence_penalty = 0.5F;
        admit.repetition_penalty = 1.1F;
    }
    return admit;
}

/* What each request gives alone, in one piece, step by step. */
static void run_alone(const struct drive_model *model, struct drive_seq *seqs, uint32_t count)
{
    struct drive_options options = usual_options(2048, 1);
    options.limits.max_step_tokens = options.is_pinned ? 256 : 2048;
    options.limits.page_tokens = 64;
    struct drive *drive = drive_create(model, &options);
    for (uint32_t i = 0; i < count; i++) {
        drive_run(drive, &seqs[i], 1);
        test_true(!seqs[i].has_failed && seqs[i].token_count > 0);
    }
    test_eq_u64(drive->refused_count, 0);
    drive_destroy(drive);
}

static struct drive_seq *copy_admits(const struct drive_seq *seqs, uint32_t count)
{
    struct drive_seq *copies = mem_zalloc(count, sizeof(*copies));
    for (uint32_t i = 0; i < count; i++) {
        copies[i].admit = seqs[i].admit;
    }
    return copies;
}

static void check_same(const struct drive_seq *got, const struct drive_seq *want, uint32_t index)
{
    test_eq_u64(got->token_count, want->token_count);
    for (uint32_t t = 0; t < want->token_count; t++) {
        if (got->tokens[t] != want->tokens[t]) {
            test_fail(__FILE__, __LINE__, "request %u token %u is %u, alone %u", index, t,
                      got->tokens[t], want->tokens[t]);
        }
    }
}

/* All together, and each as alone. */
static void run_together(const struct drive_model *model, const struct drive_options *options,
                         const struct drive_seq *alone, uint32_t count)
{
    struct drive *drive = drive_create(model, options);
    struct drive_seq *seqs = copy_admits(alone, count);
    drive_run(drive, seqs, count);
    for (uint32_t i = 0; i < count; i++) {
        test_true(!seqs[i].has_failed);
        check_same(&seqs[i], &alone[i], i);
    }
    test_eq_u64(drive->refused_count, 0);
    mem_free(seqs);
    drive_destroy(drive);
}

/* The demo model with its first prompts, run alone. */
struct demo {
    struct drive_model model;
    struct golden_prompts prompts;
    struct drive_seq *alone; /* owned, [DEMO_PROMPTS] */
};

static void demo_setup(struct demo *demo)
{
    char path[1024];
    demo_dir(path, sizeof(path));
    drive_model_load(&demo->model, path);
    golden_prompts_load(&demo->prompts);
    /* From 14 tokens to 364, which is beyond the window. */
    static const uint32_t chosen[DEMO_PROMPTS] = {0, 1, 5, 9, 10, 14};
    test_true(demo->prompts.count > 14);
    demo->alone = mem_zalloc(DEMO_PROMPTS, sizeof(*demo->alone));
    for (uint32_t i = 0; i < DEMO_PROMPTS; i++) {
        const struct golden_prompt *prompt = &demo->prompts.at[chosen[i]];
        demo->alone[i].admit = admit_of(prompt->prompt_ids, prompt->prompt_count, DEMO_OUTPUT, i);
        if (i % 4 == 0) {
            demo->alone[i].admit.stop_ids = (struct wire_u32_array){
                .at = prompt->output_ids + prompt->output_count - 1,
                .count = 1,
            };
        }
    }
    run_alone(&demo->model, demo->alone, DEMO_PROMPTS);
    test_eq_u64(demo->alone[0].token_count, demo->prompts.at[0].output_count);
    test_true(memcmp(demo->alone[0].tokens, demo->prompts.at[0].output_ids,
                     demo->alone[0].token_count * sizeof(uint32_t)) == 0);
}

static void demo_teardown(struct demo *demo)
{
    mem_free(demo->alone);
    golden_prompts_fini(&demo->prompts);
}

static void test_mixed_and_ahead_is_as_alone(void)
{
    static const struct {
        uint32_t ahead;
        uint32_t chunk;
    } ways[] = {{1, 65}, {2, 1}, {2, 16}, {2, 63}, {2, 64}, {4, 16}};
    struct demo demo;
    demo_setup(&demo);
    for (uint32_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        struct drive_options options = usual_options(ways[w].chunk, ways[w].ahead);
        run_together(&demo.model, &options, demo.alone, DEMO_PROMPTS);
    }
    demo_teardown(&demo);
}

static void test_checkpoints_mixed_and_ahead(void)
{
    static const char *const names[] = {"dense-unified", "dense-sharded", "dense-window1024", "moe",
                                        "ple-shared"};
    static const uint32_t chunks[] = {7, 64, 65};
    for (uint32_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        struct golden *golden = golden_load(names[n]);
        struct drive_model model;
        struct drive_seq *alone = mem_zalloc(GOLDEN_MAX_CASES, sizeof(*alone));
        drive_model_load(&model, golden->dir);
        uint32_t count = 0;
        for (uint32_t i = 0; i < golden->case_count; i++) {
            const struct golden_case *one = &golden->cases[i];
            if (one->count <= 300 || one->count == 1025) {
                alone[count].admit = admit_of(one->ids, one->count, 8, count);
                count++;
            }
        }
        test_true(count >= 2);
        run_alone(&model, alone, count);
        for (uint32_t c = 0; c < 3; c++) {
            struct drive_options options = usual_options(n == 2 ? 64 + c : chunks[c], 1U << c);
            run_together(&model, &options, alone, count);
        }
        mem_free(alone);
        golden_destroy(golden);
    }
}

/* The fifth or a later passage of a stage fails; then everything once more, undisturbed. */
static void fail_once(const struct demo *demo, enum inject_stage stage, uint32_t ahead,
                      bool is_refused)
{
    struct inject inject = {0};
    inject.at[stage] = 5 + (uint32_t)stage;
    struct drive_options options = usual_options(16, ahead);
    options.step_rows = 3; /* so that some are in no step that fails */
    options.inject = &inject;
    struct drive *drive = drive_create(&demo->model, &options);
    uint32_t failed = 0;
    for (uint32_t wave = 0; wave < 2; wave++) {
        struct drive_seq *seqs = copy_admits(demo->alone, DEMO_PROMPTS);
        drive_run(drive, seqs, DEMO_PROMPTS);
        for (uint32_t i = 0; i < DEMO_PROMPTS; i++) {
            failed += seqs[i].has_failed;
            test_true(!seqs[i].has_failed || wave == 0);
            if (!seqs[i].has_failed) {
                check_same(&seqs[i], &demo->alone[i], i);
            }
        }
        mem_free(seqs);
    }
    test_eq_u64(failed > 0, !is_refused);
    test_true(failed <= 3 * ahead);
    test_eq_u64(drive->refused_count > 0, is_refused);
    drive_destroy(drive);
}

static void test_failures_spare_the_neighbours(void)
{
    static const struct {
        enum inject_stage stage;
        bool is_refused;
    } stages[] = {
        {INJECT_RESERVE_LOCAL, true}, {INJECT_RESERVE_GLOBAL, true}, {INJECT_STAGE, true},
        {INJECT_LAUNCH, true},        {INJECT_FORWARD, false},       {INJECT_SAMPLE, false},
        {INJECT_PUBLISH, false},      {INJECT_COMMIT, false},
    };
    struct demo demo;
    demo_setup(&demo);
    for (uint32_t s = 0; s < 8; s++) {
        fail_once(&demo, stages[s].stage, 1, stages[s].is_refused);
        fail_once(&demo, stages[s].stage, 4, stages[s].is_refused);
    }
    demo_teardown(&demo);
}

struct masks {
    uint32_t words[128];
    uint64_t random;
};

static const uint32_t *on_mask(void *context, struct rig_session *session, uint64_t seq_id,
                               uint32_t position)
{
    struct masks *masks = context;
    /* Every mask allows everything, when it is there; asked again with nothing new, it is as before. */
    uint64_t random = masks->random + seq_id * 1000003 + position * 1009ULL + session->pushed_count;
    return test_random(&random) % 3 == 0 ? NULL : masks->words;
}

static void test_held_rows_go_on_where_they_were(void)
{
    struct demo demo;
    demo_setup(&demo);
    struct masks masks = {.random = 9};
    memset(masks.words, 0xff, sizeof(masks.words));
    test_true(demo.model.config.info.vocab_tokens <= 32 * 128);
    for (uint32_t ahead = 1; ahead <= 4; ahead *= 2) {
        struct drive_options options = usual_options(16, ahead);
        struct drive *drive = drive_create(&demo.model, &options);
        struct drive_seq *seqs = copy_admits(demo.alone, DEMO_PROMPTS);
        drive->rig.mask = on_mask;
        drive->rig.mask_context = &masks;
        for (uint32_t i = 0; i < DEMO_PROMPTS; i += 2) {
            seqs[i].admit.constrained = true;
        }
        drive_run(drive, seqs, DEMO_PROMPTS);
        for (uint32_t i = 0; i < DEMO_PROMPTS; i++) {
            check_same(&seqs[i], &demo.alone[i], i);
        }
        test_true(drive->held_count > 4);
        mem_free(seqs);
        drive_destroy(drive);
    }
    demo_teardown(&demo);
}

static void test_3000_tokens_in_a_local_pool_of_two_windows(void)
{
    static const uint32_t prompt[5] = {2, 5, 416, 280, 464};
    struct drive_model model;
    char path[1024];
    demo_dir(path, sizeof(path));
    drive_model_load(&model, path);
    struct drive_seq *seqs = mem_zalloc(2, sizeof(*seqs));
    seqs[0].admit = admit_of(prompt, 5, LONG_OUTPUT, 1); /* sampled: greedy would soon repeat */
    seqs[1].admit = admit_of(prompt, 5, COMPARED_OUTPUT, 1);
    run_alone(&model, &seqs[1], 1);
    struct drive_options options = usual_options(64, 2);
    options.limits.slots = 1;
    options.limits.max_context_tokens = LONG_OUTPUT + 5;
    options.limits.pages[RUNNER_FAMILY_LOCAL] =
        2 * model.config.families[RUNNER_FAMILY_LOCAL].window_tokens / options.limits.page_tokens;
    options.checks_local_pages = true;
    struct drive *drive = drive_create(&model, &options);
    drive_run(drive, &seqs[0], 1);
    test_eq_u64(drive->refused_count, 0);
    drive_destroy(drive);
    test_eq_u64(seqs[0].token_count, LONG_OUTPUT);
    seqs[0].token_count = COMPARED_OUTPUT;
    check_same(&seqs[0], &seqs[1], 0);
    mem_free(seqs);
}

static const struct test_case cases[] = {
    TEST(test_mixed_and_ahead_is_as_alone),
    TEST(test_checkpoints_mixed_and_ahead),
    TEST(test_failures_spare_the_neighbours),
    TEST(test_held_rows_go_on_where_they_were),
    TEST(test_3000_tokens_in_a_local_pool_of_two_windows),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
