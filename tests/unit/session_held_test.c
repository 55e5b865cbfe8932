/* Constrained rows whose mask is not there. */
#include <string.h>

#include "tests/testlib/core_bench.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"
#include "worker/session.h"

/* Masks up to a position are there; all allow everything. */
struct masks {
    uint32_t words[4];
    uint32_t there_up_to;
    uint32_t asked_count;
    uint32_t last_asked;
};

static const uint32_t *on_mask(void *context, struct rig_session *session, uint64_t seq_id,
                               uint32_t position)
{
    struct masks *masks = context;
    (void)session; /* one session only */
    test_eq_u64(seq_id, 1);
    masks->asked_count++;
    masks->last_asked = position;
    return position <= masks->there_up_to ? masks->words : NULL;
}

static void setup(struct core_bench *bench, struct masks *masks, uint32_t prompt_count)
{
    bench_setup(bench);
    *masks = (struct masks){.words = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    bench->rig.mask = on_mask;
    bench->rig.mask_context = masks;
    struct plan_admit admit = rig_plain_admit(1, bench->prompt, prompt_count, 60);
    admit.constrained = true;
    rig_admit(&bench->session, &admit);
    admit = rig_plain_admit(2, bench->prompt, prompt_count, 60);
    rig_admit(&bench->session, &admit);
    rig_advance(&bench->rig);
}

static void send_both(struct core_bench *bench, uint32_t count)
{
    const struct wire_row rows[2] = {{.seq_id = 1, .count = count}, {.seq_id = 2, .count = count}};
    rig_step(&bench->session, 0, rows, 2);
}

static void check_tokens(const struct core_bench *bench, uint64_t seq_id, uint32_t prompt_count,
                         uint32_t count)
{
    uint32_t want[60];
    uint32_t got[60];
    struct plan_admit admit = rig_plain_admit(seq_id, bench->prompt, prompt_count, 60);
    test_eq_u64(bench_reference(&admit, want, count), count);
    test_eq_u64(rig_tokens(&bench->session, seq_id, got, 60), count);
    test_true(memcmp(got, want, count * sizeof(got[0])) == 0);
}

static void test_only_the_row_without_a_mask_is_held(void)
{
    struct core_bench bench;
    struct masks masks;
    setup(&bench, &masks, 5);
    masks.there_up_to = 6;
    send_both(&bench, 5);
    for (uint32_t i = 0; i < 4; i++) {
        send_both(&bench, 0);
    }
    bench_run(&bench);
    check_tokens(&bench, 1, 5, 2);
    check_tokens(&bench, 2, 5, 5);
    test_eq_u64(rig_last(&bench.session, RESULT_STEP_DONE, 0)->as.step_done.held_rows, 1);
    test_eq_u64(masks.last_asked, 7); /* the same position again and again */
    masks.there_up_to = 59;
    for (uint32_t i = 0; i < 4; i++) {
        send_both(&bench, 0);
    }
    bench_run(&bench);
    check_tokens(&bench, 1, 5, 6);
    check_tokens(&bench, 2, 5, 9);
    test_eq_u64(rig_last(&bench.session, RESULT_STEP_DONE, 0)->as.step_done.held_rows, 0);
    bench_teardown(&bench);
}

static void test_a_row_behind_a_held_one_takes_its_position(void)
{
    struct core_bench bench;
    struct masks masks;
    setup(&bench, &masks, 5);
    masks.there_up_to = 5;
    bench_row(&bench, 1, 0, 5);
    bench_run(&bench);
    bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig); /* in flight without a mask for position 6 */
    test_eq_u64(masks.last_asked, 6);
    masks.there_up_to = 6;
    bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig); /* in flight with it */
    test_eq_u64(masks.last_asked, 6);
    test_eq_u64(bench.rig.progress.steps_in_flight, 2);
    bench_run(&bench);
    check_tokens(&bench, 1, 5, 2);
    bench_teardown(&bench);
}

static void test_a_held_row_keeps_the_page_it_was_given(void)
{
    struct core_bench bench;
    struct masks masks;
    setup(&bench, &masks, 16);
    masks.there_up_to = 16;
    bench_row(&bench, 1, 0, 16);
    bench_run(&bench);
    bench_row(&bench, 1, 0, 0); /* turns a page, held */
    bench_row(&bench, 1, 0, 0);
    bench_run(&bench);
    const struct result_record *done = rig_last(&bench.session, RESULT_STEP_DONE, 0);
    test_eq_u64(done->as.step_done.held_rows, 1);
    test_eq_u64(done->as.step_done.figures.local_quota_left_pages, 38);
    test_eq_u64(done->as.step_done.figures.global_quota_left_pages, 78);
    masks.there_up_to = 59;
    bench_row(&bench, 1, 0, 0);
    bench_run(&bench);
    done = rig_last(&bench.session, RESULT_STEP_DONE, 0);
    test_eq_u64(done->as.step_done.figures.local_quota_left_pages, 38);
    check_tokens(&bench, 1, 16, 2);
    bench_teardown(&bench);
}

static void test_rows_behind_a_held_prompt_are_held(void)
{
    struct core_bench bench;
    struct masks masks;
    setup(&bench, &masks, 20);
    bench_row(&bench, 1, 0, 12);
    bench_row(&bench, 1, 12, 8); /* held: nothing to decode from */
    bench_row(&bench, 1, 0, 0);  /* sent before that was known */
    bench_row(&bench, 1, 0, 0);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 4);
    test_eq_u64(rig_last(&bench.session, RESULT_STEP_DONE, 0)->as.step_done.held_rows, 1);
    masks.there_up_to = 59;
    bench_row(&bench, 1, 12, 8);
    bench_row(&bench, 1, 0, 0);
    bench_run(&bench);
    check_tokens(&bench, 1, 20, 2);
    bench_row(&bench, 1, 12, 8); /* not a second time */
    bench_run(&bench);
    test_eq_u64(rig_last(&bench.session, RESULT_REFUSED, 0)->as.refused.code, ERR_PLAN);
    bench_teardown(&bench);
}

/* A device that misses a mask which was there: the rows behind go by its length, not ours. */
static void test_rows_that_the_device_holds(void)
{
    for (uint32_t depth = 1; depth <= 4; depth++) {
        struct core_bench bench;
        struct masks masks;
        setup(&bench, &masks, 14);
        masks.there_up_to = 59;
        bench_row(&bench, 1, 0, 14);
        bench_run(&bench);
        uint32_t held = 0;
        for (uint32_t i = 0; i < 20; i++) {
            if (i % 3 == 0) {
                model_runner_fault_next(bench.runner, MODEL_FAULT_HOLD);
            }
            bench_row(&bench, 1, 0, 0);
            rig_advance(&bench.rig);
            if (i % depth == depth - 1) {
                (void)model_runner_complete(bench.runner, 1); /* or none is left */
                rig_advance(&bench.rig);
            }
        }
        bench_run(&bench);
        for (uint32_t i = 0; rig_record(&bench.session, i) != NULL; i++) {
            const struct result_record *record = rig_record(&bench.session, i);
            held += record->kind == RESULT_STEP_DONE ? record->as.step_done.held_rows : 0;
        }
        test_true(held > 0);
        check_tokens(&bench, 1, 14, 21 - held);
        bench_teardown(&bench);
    }
}

static void test_a_held_sequence_can_be_cancelled(void)
{
    struct core_bench bench;
    struct masks masks;
    setup(&bench, &masks, 5);
    send_both(&bench, 5);
    send_both(&bench, 0);
    rig_advance(&bench.rig);
    rig_cancel(&bench.session, 1);
    send_both(&bench, 0);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 1), 1);
    check_tokens(&bench, 2, 5, 3);
    bench_teardown(&bench);
}

static const struct test_case cases[] = {
    TEST(test_only_the_row_without_a_mask_is_held),
    TEST(test_a_row_behind_a_held_one_takes_its_position),
    TEST(test_a_held_row_keeps_the_page_it_was_given),
    TEST(test_rows_behind_a_held_prompt_are_held),
    TEST(test_rows_that_the_device_holds),
    TEST(test_a_held_sequence_can_be_cancelled),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
