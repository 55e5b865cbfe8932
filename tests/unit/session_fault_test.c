/* Failures at every stage of a step, with steps in flight: who notices, and what is left as it was. */
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/core_bench.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"
#include "worker/session.h"

enum {
    TOKENS = 30
};

/* Sequences 1 and 2 run together, 3 by itself: admitted, prompts done. */
static void start_three(struct core_bench *bench, struct plan_admit admits[3])
{
    for (uint32_t i = 0; i < 3; i++) {
        admits[i] = rig_plain_admit(i + 1, bench->prompt + i, 10 + i, 10 + i + TOKENS);
        rig_admit(&bench->session, &admits[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        bench_row(bench, i + 1, 0, 10 + i);
    }
    bench_run(bench);
}

static const struct wire_row pair[2] = {{.seq_id = 1}, {.seq_id = 2}};

/* Steps of 1 and 2 together, and of 3, by turns. */
static void send_turns(struct core_bench *bench, uint64_t after, uint32_t turns)
{
    for (uint32_t i = 0; i < turns; i++) {
        rig_step(&bench->session, i == 0 ? after : 0, pair, 2);
        bench_row(bench, 3, 0, 0);
    }
}

static void check_tokens(const struct core_bench *bench, const struct plan_admit *admit,
                         uint32_t count)
{
    uint32_t want[TOKENS];
    uint32_t got[TOKENS + 1];
    test_eq_u64(bench_reference(admit, want, TOKENS), TOKENS);
    test_eq_u64(rig_tokens(&bench->session, admit->seq_id, got, TOKENS + 1), count);
    test_true(memcmp(got, want, count * sizeof(got[0])) == 0);
}

static void arm(struct core_bench *bench, enum inject_stage stage, uint32_t passages_ahead)
{
    bench->inject.at[stage] = bench->inject.seen[stage] + passages_ahead;
}

static void test_failures_before_the_launch_are_refusals(void)
{
    static const struct {
        enum inject_stage stage;
        enum err_code code;
        const char *text;
    } stages[] = {
        {INJECT_RESERVE_LOCAL, ERR_PAGES, "injected failure reserving 2 local pages"},
        {INJECT_RESERVE_GLOBAL, ERR_PAGES, "injected failure reserving 2 global pages"},
        {INJECT_STAGE, ERR_STEP, "injected failure staging 2 rows"},
        {INJECT_LAUNCH, ERR_STEP, "injected failure launching 2 rows"},
    };
    for (uint32_t s = 0; s < 4; s++) {
        struct core_bench bench;
        struct plan_admit admits[3];
        bench_setup(&bench);
        /* Both turn a page in the very step that fails: at token 16. */
        for (uint32_t i = 0; i < 2; i++) {
            admits[i] = rig_plain_admit(i + 1, bench.prompt + i, 15, 15 + TOKENS);
            rig_admit(&bench.session, &admits[i]);
        }
        admits[2] = rig_plain_admit(3, bench.prompt, 10, 10 + TOKENS);
        rig_admit(&bench.session, &admits[2]);
        struct wire_row prompts[3] = {
            {.seq_id = 1, .count = 15},
            {.seq_id = 2, .count = 15},
            {.seq_id = 3, .count = 10},
        };
        rig_step(&bench.session, 0, prompts, 3);
        rig_step(&bench.session, 0, pair, 2);
        bench_run(&bench);
        struct session_stats before;
        session_core_stats(bench.rig.core, &before);
        bench_row(&bench, 3, 0, 0); /* in flight while the next one fails */
        uint64_t refused_seq = rig_step(&bench.session, 0, pair, 2);
        bench_row(&bench, 3, 0, 0); /* sent before that is known */
        arm(&bench, stages[s].stage, 2);
        rig_advance(&bench.rig);
        struct session_stats after;
        session_core_stats(bench.rig.core, &after);
        test_true(memcmp(before.pages_free, after.pages_free, sizeof(before.pages_free)) == 0);
        bench_run(&bench);
        test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 2);
        for (uint32_t i = 0; rig_record(&bench.session, i) != NULL; i++) {
            const struct result_record *record = rig_record(&bench.session, i);
            if (record->kind == RESULT_REFUSED && record->msg_seq == refused_seq) {
                test_eq_u64(record->as.refused.code, stages[s].code);
                test_eq_str(record->as.refused.text, stages[s].text);
            }
        }
        send_turns(&bench, refused_seq, TOKENS);
        bench_run(&bench);
        for (uint32_t i = 0; i < 3; i++) {
            check_tokens(&bench, &admits[i], TOKENS);
        }
        test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 0), 0);
        bench_teardown(&bench);
    }
}

static void test_failures_after_the_launch_fail_rows_and_those_behind(void)
{
    static const enum inject_stage stages[] = {INJECT_FORWARD, INJECT_SAMPLE, INJECT_PUBLISH,
                                               INJECT_COMMIT};
    for (uint32_t s = 0; s < 4; s++) {
        struct core_bench bench;
        struct plan_admit admits[3];
        bench_setup(&bench);
        start_three(&bench, admits);
        struct session_stats before;
        session_core_stats(bench.rig.core, &before);
        arm(&bench, stages[s], 2);
        bench_row(&bench, 3, 0, 0);                 /* done before */
        rig_step(&bench.session, 0, pair, 2);       /* fails */
        rig_step(&bench.session, 0, pair, 1);       /* launched after it: fails with it */
        uint64_t last = bench_row(&bench, 3, 0, 0); /* launched when those are out of the way */
        rig_advance(&bench.rig);
        test_eq_u64(model_runner_complete(bench.runner, 1), 1);
        rig_advance(&bench.rig);
        test_eq_u64(bench.rig.progress.steps_in_flight, 2);
        bench_run(&bench);
        test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 0), 2);
        test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 1), 1);
        test_eq_u64(rig_last(&bench.session, RESULT_FAILED, 1)->as.failed.code, ERR_STEP);
        test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 2), 1);
        test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
        test_eq_u64(rig_last(&bench.session, RESULT_STEP_DONE, 0)->msg_seq, last);
        check_tokens(&bench, &admits[0], 1);
        check_tokens(&bench, &admits[1], 1);
        struct session_stats after;
        session_core_stats(bench.rig.core, &after);
        test_eq_u64(after.sequences_failed, 2);
        test_eq_u64(after.steps_failed, 2);
        test_eq_u64(after.pages_free[0], before.pages_free[0] + 2); /* of the two that failed */
        for (uint32_t i = 0; i < TOKENS; i++) {
            send_turns(&bench, 0, 1); /* stopped rows are legal and empty */
        }
        bench_run(&bench);
        check_tokens(&bench, &admits[2], TOKENS);
        test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 0), 2);
        bench_teardown(&bench);
    }
}

static void test_a_bad_row_fails_alone(void)
{
    struct core_bench bench;
    struct plan_admit admits[3];
    bench_setup(&bench);
    start_three(&bench, admits);
    model_runner_fault_next(bench.runner, MODEL_FAULT_ROW);
    send_turns(&bench, 0, TOKENS);
    bench_run(&bench);
    const struct result_record *failed = rig_last(&bench.session, RESULT_FAILED, 0);
    test_eq_u64(failed->seq_id, 1);
    test_eq_u64(failed->as.failed.code, ERR_SEQUENCE);
    test_eq_str(failed->as.failed.text, "no usable logits at position 11");
    check_tokens(&bench, &admits[0], 1);
    check_tokens(&bench, &admits[1], TOKENS);
    check_tokens(&bench, &admits[2], TOKENS);
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 1), 0);
    bench_teardown(&bench);
}

static void test_another_session_fails_only_behind(void)
{
    struct core_bench bench;
    struct plan_admit admits[3];
    struct rig_session other;
    bench_setup(&bench);
    start_three(&bench, admits);
    rig_open(&bench.rig, &other, NULL);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 10, 10 + TOKENS);
    admit.seed = 77;
    rig_admit(&other, &admit);
    struct wire_row row = {.seq_id = 1, .count = 10};
    rig_step(&other, 0, &row, 1);
    bench_run(&bench);
    model_runner_fault_next(bench.runner, MODEL_FAULT_STEP);
    rig_step(&bench.session, 0, pair, 2);
    rig_advance(&bench.rig);
    test_eq_u64(model_runner_complete(bench.runner, 1), 1);
    rig_advance(&bench.rig);
    row.count = 0;
    for (uint32_t i = 0; i < TOKENS; i++) {
        rig_step(&other, 0, &row, 1); /* launched after the failure was known */
    }
    bench_run(&bench);
    uint32_t want[TOKENS];
    uint32_t got[TOKENS];
    test_eq_u64(bench_reference(&admit, want, TOKENS), TOKENS);
    test_eq_u64(rig_tokens(&other, 1, got, TOKENS), TOKENS);
    test_true(memcmp(got, want, sizeof(got)) == 0);
    test_eq_u64(rig_count(&other, RESULT_FAILED, 0), 0);
    rig_close(&other);
    bench_teardown(&bench);
}

static void test_nothing_is_launched_behind_doomed_steps(void)
{
    struct core_bench bench;
    struct plan_admit admits[3];
    bench_setup(&bench);
    start_three(&bench, admits);
    struct plan_admit admit = rig_plain_admit(4, bench.prompt, 40, 60);
    rig_admit(&bench.session, &admit);
    model_runner_fault_next(bench.runner, MODEL_FAULT_STEP);
    bench_row(&bench, 1, 0, 0);
    bench_row(&bench, 4, 0, 20);  /* launched behind the failure */
    bench_row(&bench, 4, 20, 20); /* would find the device at position 0 */
    rig_advance(&bench.rig);
    test_eq_u64(model_runner_complete(bench.runner, 1), 1);
    rig_advance(&bench.rig);
    test_eq_u64(bench.rig.progress.steps_in_flight, 1);
    test_eq_u64(bench.rig.progress.queued_steps, 1);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_FAILED, 4), 1);
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 6);
    bench_teardown(&bench);
}

static void test_a_lost_device_is_reported_for_ever(void)
{
    struct core_bench bench;
    struct plan_admit admits[3];
    bench_setup(&bench);
    start_three(&bench, admits);
    model_runner_fault_next(bench.runner, MODEL_FAULT_LOST);
    bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig);
    test_eq_u64(model_runner_complete(bench.runner, 1), 1);
    struct err err;
    for (uint32_t i = 0; i < 3; i++) {
        test_eq_u64(rig_try_advance(&bench.rig, &err), ERR_DEVICE);
        test_eq_str(err.message, "step failed as asked");
    }
    rig_close(&bench.session);
    rig_fini(&bench.rig);
    bench.runner->table->destroy(bench.runner);
}

/* A device that breaks the contract of runner.h: it changes what the first row of a step came to. */
struct liar {
    struct runner super;
    struct runner *honest; /* owned */
    enum runner_outcome outcome;
    uint32_t token;
    struct runner_pick picks[16];
};

static struct liar *liar_of(struct runner *runner)
{
    return (struct liar *)runner;
}

static enum err_code on_slot_open(struct runner *runner, uint32_t slot,
                                  const struct plan_admit *admit, struct err *err)
{
    struct runner *honest = liar_of(runner)->honest;
    return honest->table->slot_open(honest, slot, admit, err);
}

static void on_slot_stop(struct runner *runner, uint32_t slot)
{
    struct runner *honest = liar_of(runner)->honest;
    honest->table->slot_stop(honest, slot);
}

static enum err_code on_launch(struct runner *runner, const struct runner_step *step,
                               struct err *err)
{
    struct runner *honest = liar_of(runner)->honest;
    return honest->table->launch(honest, step, err);
}

static bool on_is_done(struct runner *runner)
{
    struct runner *honest = liar_of(runner)->honest;
    (void)model_runner_complete(honest, 1); /* or none is left */
    return honest->table->is_done(honest);
}

static void on_collect(struct runner *runner, struct runner_result *out_result)
{
    struct liar *liar = liar_of(runner);
    liar->honest->table->collect(liar->honest, out_result);
    memcpy(liar->picks, out_result->picks, 2 * sizeof(liar->picks[0]));
    liar->picks[0].outcome = liar->outcome;
    liar->picks[0].token = liar->token;
    liar->picks[0].logprob = NULL;
    out_result->picks = liar->picks;
}

static void on_destroy(struct runner *runner)
{
    struct liar *liar = liar_of(runner);
    liar->honest->table->destroy(liar->honest);
    mem_free(liar);
}

static const struct runner_table liar_table = {
    .slot_open = on_slot_open,
    .slot_stop = on_slot_stop,
    .launch = on_launch,
    .is_done = on_is_done,
    .collect = on_collect,
    .destroy = on_destroy,
};

static void test_a_runner_that_lies_costs_the_sequence(void)
{
    static const struct {
        enum runner_outcome outcome;
        uint32_t token;
        uint32_t logprobs;
        uint32_t max_total;
        const char *text;
    } lies[] = {
        {RUNNER_OUTCOME_NONE, 1, 0, 20, "runner: outcome 1 of a row that samples"},
        {RUNNER_OUTCOME_MASKED, 1, 0, 20, "runner: outcome 5 of a row that samples"},
        {RUNNER_OUTCOME_HELD, 1, 0, 20, "runner: outcome 6 of a row that samples"},
        {RUNNER_OUTCOME_TOKEN, 97, 0, 20, "runner: token 97, vocabulary is 97"},
        {RUNNER_OUTCOME_TOKEN, 1, 2, 20, "runner: no logprobs"},
        {RUNNER_OUTCOME_LENGTH, 1, 0, 20, "runner: outcome 4 at token 11 of 20"},
        {RUNNER_OUTCOME_TOKEN, 1, 0, 11, "runner: outcome 2 at token 11 of 11"},
    };
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct runner_limits limits = bench_limits();
        const struct model_runner_options options = {.limits = limits};
        struct liar *liar = mem_zalloc(1, sizeof(*liar));
        liar->super = (struct runner){.table = &liar_table, .limits = limits};
        liar->honest = model_runner_create(&options);
        liar->outcome = lies[i].outcome;
        liar->token = lies[i].token;
        struct core_bench bench = {0};
        bench_setup_runner(&bench, &liar->super, false, 1024);
        struct plan_admit admit = rig_plain_admit(1, bench.prompt, 10, lies[i].max_total);
        admit.logprobs = lies[i].logprobs;
        rig_admit(&bench.session, &admit);
        bench_row(&bench, 1, 0, 10);
        rig_advance(&bench.rig);
        const struct result_record *failed = rig_last(&bench.session, RESULT_FAILED, 1);
        test_true(failed != NULL);
        test_eq_u64(failed->as.failed.code, ERR_INTERNAL);
        test_eq_str(failed->as.failed.text, lies[i].text);
        test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 0);
        rig_close(&bench.session);
        rig_fini(&bench.rig);
        bench.runner->table->destroy(bench.runner);
    }
}

static const struct test_case cases[] = {
    TEST(test_failures_before_the_launch_are_refusals),
    TEST(test_failures_after_the_launch_fail_rows_and_those_behind),
    TEST(test_a_bad_row_fails_alone),
    TEST(test_another_session_fails_only_behind),
    TEST(test_nothing_is_launched_behind_doomed_steps),
    TEST(test_a_lost_device_is_reported_for_ever),
    TEST(test_a_runner_that_lies_costs_the_sequence),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
