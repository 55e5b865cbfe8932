#include "worker/plan_check.h"

#include <math.h>
#include <string.h>

#include "tests/testlib/core_rig.h"
#include "tests/testlib/test.h"

static const uint32_t modality_ids[] = {90, 95};

static const struct plan_limits limits = {
    .runner =
        {
            .slots = 4,
            .max_step_rows = 3,
            .max_step_tokens = 32,
            .max_context_tokens = 512,
            .vocab_tokens = 100,
            .window_tokens = 64,
            .page_tokens = 16,
            .pages = {10, 20},
            .pipeline_depth = 2,
        },
    .max_step_records = 64,
    .modality_ids = modality_ids,
    .modality_id_count = 2,
};

static const uint32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const uint32_t high_ids[2] = {5, 100};
static const uint32_t image_ids[3] = {1, 2, 95};
static const struct wire_bias bad_bias[1] = {{.token = 4, .bias = INFINITY}};

static struct plan_admit good_admit(void)
{
    return rig_plain_admit(1, prompt, 8, 40);
}

static void refuse_admit(const struct plan_admit *admit, enum err_code code, const char *text)
{
    struct err err;
    enum err_code got = plan_check_admit(&limits, admit, &err);
    if (got != code) {
        test_fail(__FILE__, __LINE__, "code is %s, want %s: %s", err_code_text(got),
                  err_code_text(code), text);
    }
    test_eq_str(err.message, text);
}

static void test_a_good_admit_passes(void)
{
    struct plan_admit admit = good_admit();
    struct err err;
    admit.stop_ids = (struct wire_u32_array){.at = prompt, .count = 8};
    admit.temperature = 1.5F;
    admit.top_k = 1000000;
    admit.min_p = 0.1F;
    admit.logprobs = PLAN_MAX_LOGPROBS + 1;
    admit.output_start = 3;
    test_ok(plan_check_admit(&limits, &admit, &err), &err);
}

static void test_counts_of_an_admit(void)
{
    struct plan_admit admit = good_admit();
    admit.seq_id = 0;
    refuse_admit(&admit, ERR_PLAN, "seq_id: 0, want 1 or more");
    admit = good_admit();
    admit.prompt.count = 0;
    refuse_admit(&admit, ERR_PLAN, "prompt: 0 tokens, at least 1");
    admit = good_admit();
    admit.max_total = 513;
    refuse_admit(&admit, ERR_LIMIT, "max_total: 513 tokens, context is 512");
    admit.max_total = 8;
    refuse_admit(&admit, ERR_PLAN, "prompt: 8 tokens, max_total 8 leaves no output");
    admit = good_admit();
    admit.output_start = 0;
    refuse_admit(&admit, ERR_PLAN, "output_start: 0, want 1 to 8");
    admit.output_start = 9;
    refuse_admit(&admit, ERR_PLAN, "output_start: 9, want 1 to 8");
}

static void test_an_admit_that_could_never_fit(void)
{
    struct plan_admit admit = good_admit();
    struct err err;
    admit.max_total = 321; /* 320 tokens are written: 20 pages */
    test_ok(plan_check_admit(&limits, &admit, &err), &err);
    admit.max_total = 322;
    refuse_admit(&admit, ERR_LIMIT, "max_total: 322 tokens need 21 global pages, pool has 20");
    struct plan_limits small = limits;
    small.runner.pages[RUNNER_FAMILY_LOCAL] = 4;
    test_eq_u64(plan_check_admit(&small, &admit, &err), ERR_LIMIT);
    test_eq_str(err.message, "max_total: 322 tokens need 5 local pages, pool has 4");
}

static void test_token_ids_of_an_admit(void)
{
    struct plan_admit admit = good_admit();
    admit.prompt.at = high_ids;
    admit.prompt.count = 2;
    admit.output_start = 2;
    refuse_admit(&admit, ERR_PLAN, "prompt[1]: token 100, vocabulary is 100");
    admit = good_admit();
    admit.prompt.at = image_ids;
    admit.prompt.count = 3;
    admit.output_start = 3;
    refuse_admit(&admit, ERR_PLAN, "prompt[2]: token 95 stands for image or sound");
    admit = good_admit();
    admit.stop_ids = (struct wire_u32_array){.at = high_ids, .count = 2};
    refuse_admit(&admit, ERR_PLAN, "stop_ids[1]: token 100, vocabulary is 100");
    admit = good_admit();
    admit.suppress_ids = (struct wire_u32_array){.at = high_ids, .count = 2};
    refuse_admit(&admit, ERR_PLAN, "suppress_ids[1]: token 100, vocabulary is 100");
    admit = good_admit();
    admit.logit_bias = (struct wire_bias_array){.at = bad_bias, .count = 1};
    refuse_admit(&admit, ERR_PLAN, "logit_bias[0]: token 4, bias inf is not finite");
}

static void test_sampling_of_an_admit(void)
{
    static const struct {
        size_t offset_bytes;
        float value;
        const char *text;
    } bad[] = {
        {offsetof(struct plan_admit, temperature), -0.5F, "temperature: -0.5, want 0 to 100"},
        {offsetof(struct plan_admit, temperature), NAN, "temperature: nan, want 0 to 100"},
        {offsetof(struct plan_admit, top_p), 0.0F, "top_p: 0, want 1e-09 to 1"},
        {offsetof(struct plan_admit, top_p), 1.5F, "top_p: 1.5, want 1e-09 to 1"},
        {offsetof(struct plan_admit, min_p), -1.0F, "min_p: -1, want 0 to 1"},
        {offsetof(struct plan_admit, presence_penalty), INFINITY,
         "presence_penalty: inf, want -100 to 100"},
        {offsetof(struct plan_admit, frequency_penalty), -101.0F,
         "frequency_penalty: -101, want -100 to 100"},
        {offsetof(struct plan_admit, repetition_penalty), 0.0F,
         "repetition_penalty: 0, want 0.001 to 1000"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct plan_admit admit = good_admit();
        memcpy((char *)&admit + bad[i].offset_bytes, &bad[i].value, sizeof(float));
        refuse_admit(&admit, ERR_PLAN, bad[i].text);
    }
    struct plan_admit admit = good_admit();
    admit.logprobs = 22;
    refuse_admit(&admit, ERR_PLAN, "logprobs: 22, want 0 to 21");
    admit = good_admit();
    admit.prompt_logprobs = 30;
    refuse_admit(&admit, ERR_PLAN, "prompt_logprobs: 30, want 0 to 21");
}

/* Three sequences: 1 has launched 4 of its 8 prompt tokens, 2 decodes at 10 of 40, 3 is stopped. */
struct scene {
    struct sequence sequences[4];
    struct seq_index index;
    uint64_t plan_mark;
    struct plan_row rows[3];
};

static void setup(struct scene *scene)
{
    memset(scene, 0, sizeof(*scene));
    seq_index_init(&scene->index, 4);
    for (uint32_t i = 0; i < 3; i++) {
        scene->sequences[i] = (struct sequence){
            .state = SEQ_STATE_RUNNING,
            .seq_id = i + 1,
            .slot = i,
            .prompt_tokens = 8,
            .max_total_tokens = 40,
        };
        seq_index_add(&scene->index, i + 1, i);
    }
    scene->sequences[0].account.launched_tokens = 4;
    scene->sequences[1].account.launched_tokens = 10;
    scene->sequences[2].state = SEQ_STATE_STOPPED;
    seq_index_add(&scene->index, 4, 3);
    seq_index_remove(&scene->index, 4);
}

static enum err_code check(struct scene *scene, const struct wire_row *rows, uint32_t row_count,
                           struct plan_rows *out_rows, struct err *err)
{
    const struct plan_scope scope = {
        .index = &scene->index,
        .sequences = scene->sequences,
        .plan_mark = ++scene->plan_mark,
    };
    const struct plan_step step = {.rows = {.at = rows, .count = row_count}};
    out_rows->rows = scene->rows;
    return plan_check_step(&limits, &scope, &step, out_rows, err);
}

static void test_a_good_step_is_sorted_out(void)
{
    struct scene scene;
    struct plan_rows rows;
    struct err err;
    setup(&scene);
    scene.sequences[0].wants_prompt_logprobs = true;
    scene.sequences[0].prompt_logprob_pairs = 12;
    scene.sequences[1].logprob_pairs = 20;
    const struct wire_row step[] = {
        {.seq_id = 1, .start = 4, .count = 3},
        {.seq_id = 3, .start = 77, .count = 9},
        {.seq_id = 2},
    };
    test_ok(check(&scene, step, 3, &rows, &err), &err);
    test_eq_u64(rows.row_count, 3);
    test_eq_u64(rows.rows[0].kind, PLAN_ROW_PROMPT);
    test_true(!rows.rows[0].samples);
    test_eq_u64(rows.rows[1].kind, PLAN_ROW_EMPTY);
    test_eq_u64(rows.rows[2].kind, PLAN_ROW_DECODE);
    test_true(rows.rows[2].samples);
    /* STEP_DONE, 3 positions in 2 records and FAILED, TOKEN with 3 continuations and FINISHED. */
    test_eq_u64(rows.record_count, 1 + 7 + 5);
    const struct wire_row end[] = {{.seq_id = 1, .start = 4, .count = 4}};
    test_ok(check(&scene, end, 1, &rows, &err), &err);
    test_true(rows.rows[0].samples);
    test_ok(check(&scene, NULL, 0, &rows, &err), &err);
    test_eq_u64(rows.record_count, 1);
    seq_index_fini(&scene.index);
}

static void test_a_row_behind_the_last_token_is_empty(void)
{
    struct scene scene;
    struct plan_rows rows;
    struct err err;
    setup(&scene);
    const struct wire_row step[] = {{.seq_id = 2}};
    scene.sequences[1].account.launched_tokens = 38;
    test_ok(check(&scene, step, 1, &rows, &err), &err);
    test_eq_u64(rows.rows[0].kind, PLAN_ROW_DECODE);
    scene.sequences[1].account.launched_tokens = 39;
    test_ok(check(&scene, step, 1, &rows, &err), &err);
    test_eq_u64(rows.rows[0].kind, PLAN_ROW_EMPTY);
    seq_index_fini(&scene.index);
}

static void test_steps_that_are_refused(void)
{
    static const struct {
        struct wire_row rows[4];
        uint32_t row_count;
        enum err_code code;
        const char *text;
    } bad[] = {
        {{{.seq_id = 9}}, 1, ERR_NOT_FOUND, "sequence 9: never admitted"},
        {{{.seq_id = 4}}, 1, ERR_NOT_FOUND, "sequence 4: already released"},
        {{{.seq_id = 2}, {.seq_id = 2}}, 2, ERR_PLAN, "sequence 2: two rows in one step"},
        {{{.seq_id = 3}, {.seq_id = 3}}, 2, ERR_PLAN, "sequence 3: two rows in one step"},
        {{{.seq_id = 1}}, 1, ERR_PLAN, "decode row of 1: launched 4 of 8 prompt tokens"},
        {{{.seq_id = 1, .start = 3, .count = 1}},
         1,
         ERR_PLAN,
         "prompt row of 1: starts at 3, launched is 4"},
        {{{.seq_id = 1, .start = 4, .count = 5}},
         1,
         ERR_PLAN,
         "prompt row of 1: 5 tokens from 4, prompt has 8"},
        {{{.seq_id = 2, .start = 10, .count = 1}},
         1,
         ERR_PLAN,
         "prompt row of 2: 1 tokens from 10, prompt has 8"},
        {{{.seq_id = 1, .start = 4, .count = 33}},
         1,
         ERR_LIMIT,
         "step of 33 tokens or more, at most 32"},
        {{{.seq_id = 3, .count = UINT32_MAX}, {.seq_id = 1, .start = 4, .count = UINT32_MAX}},
         2,
         ERR_LIMIT,
         "step of 4294967295 tokens or more, at most 32"},
        {{{.seq_id = 1}, {.seq_id = 2}, {.seq_id = 3}, {.seq_id = 4}},
         4,
         ERR_LIMIT,
         "step of 4 rows, at most 3"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct scene scene;
        struct plan_rows rows;
        struct err err;
        setup(&scene);
        test_eq_u64(check(&scene, bad[i].rows, bad[i].row_count, &rows, &err), bad[i].code);
        test_eq_str(err.message, bad[i].text);
        seq_index_fini(&scene.index);
    }
}

static void test_a_step_with_more_records_than_a_ring_holds(void)
{
    struct scene scene;
    struct plan_rows rows;
    struct err err;
    setup(&scene);
    scene.sequences[0].prompt_tokens = 60;
    scene.sequences[0].wants_prompt_logprobs = true;
    scene.sequences[0].prompt_logprob_pairs = 20;
    const struct wire_row fits[] = {{.seq_id = 1, .start = 4, .count = 20}};
    const struct wire_row fails[] = {{.seq_id = 1, .start = 4, .count = 21}};
    test_ok(check(&scene, fits, 1, &rows, &err), &err);
    test_eq_u64(check(&scene, fails, 1, &rows, &err), ERR_LIMIT);
    test_eq_str(err.message, "step answered by up to 65 records, ring holds 64");
    seq_index_fini(&scene.index);
}

static const struct test_case cases[] = {
    TEST(test_a_good_admit_passes),
    TEST(test_counts_of_an_admit),
    TEST(test_an_admit_that_could_never_fit),
    TEST(test_token_ids_of_an_admit),
    TEST(test_sampling_of_an_admit),
    TEST(test_a_good_step_is_sorted_out),
    TEST(test_a_row_behind_the_last_token_is_empty),
    TEST(test_steps_that_are_refused),
    TEST(test_a_step_with_more_records_than_a_ring_holds),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
