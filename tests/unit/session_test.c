/* The life of sequences and steps in a core, over a model of a device. */
#include "worker/session.h"

#include <string.h>

#include "tests/testlib/core_bench.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

static void test_messages_are_answered_in_order(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 40, 100);
    rig_admit(&bench.session, &admit);
    rig_ping(&bench.session, 77);
    rig_advance(&bench.rig);
    const struct result_record *admitted = rig_last(&bench.session, RESULT_ADMITTED, 1);
    test_true(admitted != NULL);
    test_eq_u64(admitted->msg_seq, 1);
    test_eq_u64(admitted->as.admitted.figures.applied, 1);
    test_eq_u64(admitted->as.admitted.figures.local_quota_left_pages, 40);
    test_eq_u64(admitted->as.admitted.figures.global_quota_left_pages, 80);
    test_eq_u64(rig_last(&bench.session, RESULT_PONG, 0)->as.pong.nonce, 77);

    uint64_t first = bench_row(&bench, 1, 0, 40);
    uint64_t second = bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig);
    test_eq_u64(bench.rig.progress.steps_in_flight, 2);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 0);
    test_eq_u64(model_runner_complete(bench.runner, 1), 1);
    rig_advance(&bench.rig);
    const struct result_record *token = rig_last(&bench.session, RESULT_TOKEN, 1);
    test_eq_u64(token->msg_seq, first);
    test_eq_u64(token->as.token.position, 40);
    const struct result_record *done = rig_last(&bench.session, RESULT_STEP_DONE, 0);
    test_eq_u64(done->msg_seq, first);
    test_eq_u64(done->as.step_done.figures.applied, second);
    test_eq_u64(done->as.step_done.token_count, 40);
    test_eq_u64(done->as.step_done.in_flight, 1);
    test_eq_u64(done->as.step_done.figures.local_quota_left_pages, 37);
    test_eq_u64(done->as.step_done.figures.global_quota_left_pages, 77);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 2);
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 2);
    bench_teardown(&bench);
}

static void test_length_is_found_on_the_device(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 9);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 5);
    for (uint32_t i = 0; i < 6; i++) { /* three more than it can use */
        bench_row(&bench, 1, 0, 0);
    }
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 4);
    const struct result_record *finished = rig_last(&bench.session, RESULT_FINISHED, 1);
    test_eq_u64(finished->as.finished.reason, RESULT_FINISH_LENGTH);
    test_eq_u64(finished->as.finished.total_tokens, 9);
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 7);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    test_eq_u64(model_runner_rows_run(bench.runner), 4);
    const struct result_record *last = rig_last(&bench.session, RESULT_STEP_DONE, 0);
    test_eq_u64(last->as.step_done.figures.local_quota_left_pages, 40);
    bench_teardown(&bench);
}

static void test_a_late_stop_costs_less_than_depth_rows(void)
{
    for (uint32_t depth = 1; depth <= 4; depth++) {
        struct runner_limits limits = bench_limits();
        struct core_bench bench;
        limits.pipeline_depth = depth;
        bench_setup_limits(&bench, &limits, 1024);
        /* Stop where the fifth token is. */
        struct plan_admit admit = rig_plain_admit(3, bench.prompt, 5, 500);
        uint32_t want[5];
        test_eq_u64(bench_reference(&admit, want, 5), 5);
        uint32_t stop_id = want[4];
        admit.stop_ids = (struct wire_u32_array){.at = &stop_id, .count = 1};
        rig_admit(&bench.session, &admit);
        bench_row(&bench, 3, 0, 5);
        for (uint32_t i = 0; i < 20; i++) {
            bench_row(&bench, 3, 0, 0);
        }
        bench_run(&bench);
        uint32_t got[20];
        uint32_t count = rig_tokens(&bench.session, 3, got, 20);
        test_true(count >= 1 && count <= 5); /* the id may come up sooner */
        test_eq_u64(got[count - 1], stop_id);
        test_true(memcmp(got, want, count * sizeof(got[0])) == 0);
        test_eq_u64(rig_last(&bench.session, RESULT_FINISHED, 3)->as.finished.reason,
                    RESULT_FINISH_STOP);
        test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 21);
        test_eq_u64(model_runner_rows_run(bench.runner), count);
        bench_teardown(&bench);
    }
}

static void test_cancel_acts_ahead_of_queued_steps(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 5);
    for (uint32_t i = 0; i < 5; i++) {
        bench_row(&bench, 1, 0, 0);
    }
    rig_advance(&bench.rig);
    test_eq_u64(bench.rig.progress.queued_steps, 4);
    uint64_t cancel = rig_cancel(&bench.session, 1);
    rig_advance(&bench.rig);
    const struct result_record *finished = rig_last(&bench.session, RESULT_FINISHED, 1);
    test_true(finished != NULL);
    test_eq_u64(finished->msg_seq, cancel);
    test_eq_u64(finished->as.finished.reason, RESULT_FINISH_CANCEL);
    test_eq_u64(finished->as.finished.total_tokens, 5);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 1), 1);
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 6);
    test_eq_u64(model_runner_rows_run(bench.runner), 0);
    bench_teardown(&bench);
}

static void test_cancel_reaches_an_admit_that_still_waits(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 5);
    bench_row(&bench, 1, 0, 0);
    bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig);
    admit.seq_id = 2;
    rig_admit(&bench.session, &admit);
    rig_cancel(&bench.session, 2);
    rig_cancel(&bench.session, 3); /* never heard of */
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 2), 0);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 2), 1);
    test_eq_u64(rig_last(&bench.session, RESULT_FINISHED, 2)->as.finished.reason,
                RESULT_FINISH_CANCEL);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    bench_teardown(&bench);
}

static void test_refusal_refuses_steps_until_one_names_it(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    uint64_t first = bench_row(&bench, 1, 0, 5);
    uint64_t wrong = bench_row(&bench, 99, 0, 0);
    uint64_t later = bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0); /* the first step runs */
    bench_run(&bench);
    uint32_t order = 0;
    uint64_t want[] = {first, wrong, later};
    for (uint32_t i = 0; rig_record(&bench.session, i) != NULL; i++) {
        const struct result_record *record = rig_record(&bench.session, i);
        if (record->kind == RESULT_STEP_DONE || record->kind == RESULT_REFUSED) {
            test_true(order < 3);
            test_eq_u64(record->msg_seq, want[order++]);
        }
    }
    test_eq_u64(order, 3);
    test_eq_u64(rig_last(&bench.session, RESULT_REFUSED, 0)->as.refused.code, ERR_AFTER_REFUSAL);
    bench_row(&bench, 1, 0, 0);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 3);
    struct wire_row row = {.seq_id = 1};
    rig_step(&bench.session, wrong, &row, 1);
    bench_row(&bench, 1, 0, 0);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 3);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 3);
    bench_teardown(&bench);
}

static void test_release_frees_id_and_slot(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    for (uint64_t id = 1; id <= BENCH_SLOTS + 1; id++) {
        struct plan_admit admit = rig_plain_admit(id, bench.prompt, 5, 100);
        rig_admit(&bench.session, &admit);
    }
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 0), BENCH_SLOTS);
    const struct result_record *refused = rig_last(&bench.session, RESULT_REFUSED, BENCH_SLOTS + 1);
    test_eq_u64(refused->as.refused.code, ERR_BUSY);
    test_eq_str(refused->as.refused.text, "6 sequences are alive, at most 6");
    rig_release(&bench.session, 2);
    rig_release(&bench.session, 2);
    struct plan_admit admit = rig_plain_admit(2, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    admit.seq_id = 50;
    rig_admit(&bench.session, &admit);
    uint64_t step = bench_row(&bench, 2, 0, 5);
    rig_advance(&bench.rig);
    test_eq_str(rig_last(&bench.session, RESULT_REFUSED, 2)->as.refused.text,
                "seq_id: 2 was used before in this session");
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 50), 1);
    const struct result_record *unknown = rig_last(&bench.session, RESULT_REFUSED, 0);
    test_eq_u64(unknown->msg_seq, step);
    test_eq_u64(unknown->as.refused.code, ERR_NOT_FOUND);
    test_eq_str(unknown->as.refused.text, "sequence 2: already released");
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 0), 0);
    bench_teardown(&bench);
}

static void test_a_slot_waits_for_the_steps_that_name_it(void)
{
    struct runner_limits limits = bench_limits();
    struct core_bench bench;
    limits.slots = 1;
    bench_setup_limits(&bench, &limits, 1024);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 5);
    bench_row(&bench, 1, 0, 0);
    rig_advance(&bench.rig);
    rig_release(&bench.session, 1); /* running: stopped first, no FINISHED */
    admit.seq_id = 2;
    rig_admit(&bench.session, &admit);
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 2), 0);
    test_eq_u64(model_runner_complete(bench.runner, 1), 1);
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 2), 0);
    test_eq_u64(model_runner_complete(bench.runner, 1), 1);
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 2), 1);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 1), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 0);
    bench_teardown(&bench);
}

static void test_a_full_ring_stops_launches_and_loses_nothing(void)
{
    struct core_bench bench;
    struct runner_limits limits = bench_limits();
    bench_setup_limits(&bench, &limits, 8);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 5);
    for (uint32_t i = 0; i < 12; i++) {
        bench_row(&bench, 1, 0, 0);
    }
    rig_ping(&bench.session, 5);
    bench_run(&bench);
    test_true(bench.rig.progress.wants_room);
    test_true(bench.rig.progress.queued_steps > 0);
    test_true(bench.session.pushed_count <= 8);
    for (uint32_t i = 0; i < 20; i++) {
        rig_read_all(&bench.session);
        bench_run(&bench);
    }
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 13);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 1), 13);
    test_eq_u64(rig_count(&bench.session, RESULT_PONG, 0), 1);
    test_true(!bench.rig.progress.wants_room);
    bench_teardown(&bench);
}

static void test_a_cancel_without_room_is_answered_later(void)
{
    struct core_bench bench;
    struct runner_limits limits = bench_limits();
    bench_setup_limits(&bench, &limits, 4);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
    rig_admit(&bench.session, &admit);
    for (uint32_t i = 0; i < 3; i++) {
        rig_ping(&bench.session, i);
    }
    rig_advance(&bench.rig);
    test_eq_u64(bench.session.pushed_count, 4);
    rig_cancel(&bench.session, 1);
    rig_release(&bench.session, 1);
    rig_advance(&bench.rig);
    test_true(bench.rig.progress.wants_room);
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 1), 0);
    rig_read_all(&bench.session);
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&bench.session, RESULT_FINISHED, 1), 1);
    struct session_stats stats;
    session_core_stats(bench.rig.core, &stats);
    test_eq_u64(stats.sequences, 0);
    bench_teardown(&bench);
}

static void test_two_sessions_take_turns(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct rig_session other;
    rig_open(&bench.rig, &other, NULL);
    struct session *third;
    struct session_quota quota = session_core_all_pages(bench.rig.core);
    struct err err;
    test_eq_u64(session_open(bench.rig.core, 99, NULL, &quota, &third, &err), ERR_BUSY);
    test_eq_str(err.message, "2 sessions are open, at most 2");
    struct rig_session *both[] = {&bench.session, &other};
    for (uint32_t s = 0; s < 2; s++) {
        struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
        rig_admit(both[s], &admit);
        struct wire_row row = {.seq_id = 1, .count = 5};
        rig_step(both[s], 0, &row, 1);
        row.count = 0;
        for (uint32_t i = 0; i < 9; i++) {
            rig_step(both[s], 0, &row, 1);
        }
    }
    for (uint32_t i = 1; i <= 10; i++) {
        rig_advance(&bench.rig);
        test_eq_u64(model_runner_complete(bench.runner, 2), 2);
        rig_advance(&bench.rig);
        test_eq_u64(rig_count(both[0], RESULT_STEP_DONE, 0), i);
        test_eq_u64(rig_count(both[1], RESULT_STEP_DONE, 0), i);
    }
    rig_close(&other);
    bench_teardown(&bench);
}

static void test_closing_frees_all_after_the_steps_in_flight(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    for (uint64_t id = 1; id <= 3; id++) {
        struct plan_admit admit = rig_plain_admit(id, bench.prompt, 30, 100);
        rig_admit(&bench.session, &admit);
    }
    bench_row(&bench, 1, 0, 30);
    bench_row(&bench, 2, 0, 30);
    bench_row(&bench, 3, 0, 30);
    rig_advance(&bench.rig);
    rig_close(&bench.session);
    rig_open(&bench.rig, &bench.session, NULL); /* a new frontend comes at once */
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 10);
    rig_admit(&bench.session, &admit);
    rig_advance(&bench.rig);
    const struct result_record *admitted = rig_last(&bench.session, RESULT_ADMITTED, 1);
    test_eq_u64(admitted->as.admitted.figures.local_quota_left_pages, 36);
    test_eq_u64(model_runner_complete(bench.runner, 2), 2);
    rig_advance(&bench.rig);
    const struct result_record *state = rig_last(&bench.session, RESULT_STATE, 0);
    test_eq_u64(state->as.state.figures.local_quota_left_pages, 40);
    test_eq_u64(state->as.state.sequences, 1);
    struct session_stats stats;
    session_core_stats(bench.rig.core, &stats);
    test_eq_u64(stats.sessions, 1);
    test_eq_u64(stats.sequences, 1);
    bench_teardown(&bench);
}

static struct result_figures ask_figures(struct core_bench *bench, struct rig_session *session)
{
    rig_ping(session, 1);
    rig_advance(&bench->rig);
    return rig_last(session, RESULT_PONG, 0)->as.pong.figures;
}

static void test_no_session_is_promised_the_pages_of_another(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    rig_close(&bench.session);
    const struct session_quota half = {.pages = {20, 40}};
    struct rig_session other;
    rig_open(&bench.rig, &bench.session, &half);
    rig_open(&bench.rig, &other, &half);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 60, 100);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 60);
    struct result_figures figures = ask_figures(&bench, &other);
    test_eq_u64(figures.local_quota_left_pages, 20);
    test_eq_u64(figures.global_quota_left_pages, 40);
    figures = ask_figures(&bench, &bench.session);
    test_eq_u64(figures.local_quota_left_pages, 16); /* not the 36 that are free */
    test_eq_u64(figures.global_quota_left_pages, 36);
    /* Killed with 4 pages in a step that still runs: its successor waits for them, not the other. */
    rig_close(&bench.session);
    rig_open(&bench.rig, &bench.session, &half);
    figures = ask_figures(&bench, &bench.session);
    test_eq_u64(figures.local_quota_left_pages, 16);
    test_eq_u64(figures.global_quota_left_pages, 36);
    figures = ask_figures(&bench, &other);
    test_eq_u64(figures.local_quota_left_pages, 20);
    test_eq_u64(figures.global_quota_left_pages, 40);
    bench_run(&bench);
    figures = ask_figures(&bench, &bench.session);
    test_eq_u64(figures.local_quota_left_pages, 20);
    rig_close(&other);
    bench_teardown(&bench);
}

static void test_numbers_and_epochs_are_checked(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_message message = {.type = PLAN_PING, .epoch = 3, .msg_seq = 1};
    struct err err;
    test_ok(session_deliver(bench.session.session, &message, &err), &err);
    message.epoch = bench.session.epoch;
    message.msg_seq = 2;
    test_eq_u64(session_deliver(bench.session.session, &message, &err), ERR_PROTOCOL);
    test_eq_str(err.message, "message 2 of epoch 7, want 1");
    message.msg_seq = 1;
    test_ok(session_deliver(bench.session.session, &message, &err), &err);
    test_eq_u64(session_deliver(bench.session.session, &message, &err), ERR_PROTOCOL);
    bench.session.next_msg_seq = 2;
    uint64_t malformed = rig_malformed(&bench.session);
    rig_ping(&bench.session, 1);
    rig_advance(&bench.rig);
    const struct result_record *refused = rig_last(&bench.session, RESULT_REFUSED, 0);
    test_eq_u64(refused->msg_seq, malformed);
    test_eq_u64(refused->as.refused.code, ERR_FORMAT);
    test_eq_u64(rig_count(&bench.session, RESULT_PONG, 0), 2);
    struct session_stats stats;
    session_core_stats(bench.rig.core, &stats);
    test_eq_u64(stats.messages_stale, 1);
    test_eq_u64(stats.messages_malformed, 1);
    bench_teardown(&bench);
}

static void test_logprobs_continue_over_records(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 6, 20);
    admit.logprobs = 21;
    admit.prompt_logprobs = 11;
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 4);
    bench_row(&bench, 1, 4, 2);
    bench_run(&bench);
    /* Positions 1 to 5 of the prompt in two records each, then the token's 9 + 9 + 2. */
    test_eq_u64(rig_count(&bench.session, RESULT_LOGPROBS, 1), 13);
    uint32_t prompt_records = 0;
    uint32_t token_pairs = 0;
    for (uint32_t i = 0; rig_record(&bench.session, i) != NULL; i++) {
        const struct result_record *record = rig_record(&bench.session, i);
        if (record->kind != RESULT_LOGPROBS) {
            continue;
        }
        const struct result_logprobs *logprobs = &record->as.logprobs;
        if (record->flags == RESULT_LOGPROBS_PROMPT) {
            test_eq_u64(logprobs->position, 1 + prompt_records / 2);
            test_eq_u64(logprobs->token, bench.prompt[logprobs->position]);
            test_eq_u64(logprobs->first_index, prompt_records % 2 == 0 ? 0 : 9);
            test_eq_u64(logprobs->pair_count, prompt_records % 2 == 0 ? 9 : 1);
            prompt_records++;
        } else {
            test_eq_u64(logprobs->position, 6);
            test_eq_u64(logprobs->first_index, token_pairs);
            test_eq_u64(logprobs->ids[0], logprobs->token + token_pairs);
            token_pairs += logprobs->pair_count;
        }
    }
    test_eq_u64(prompt_records, 10);
    test_eq_u64(token_pairs, 20);
    test_true(rig_last(&bench.session, RESULT_TOKEN, 1)->as.token.rank > 0);
    bench_teardown(&bench);
}

static void test_admitted_again_with_its_output(void)
{
    struct core_bench bench;
    bench_setup(&bench);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 20, 60);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 20);
    for (uint32_t i = 0; i < 39; i++) {
        bench_row(&bench, 1, 0, 0);
    }
    bench_run(&bench);
    uint32_t tokens[60];
    memcpy(tokens, bench.prompt, 20 * sizeof(tokens[0]));
    test_eq_u64(rig_tokens(&bench.session, 1, tokens + 20, 40), 40);
    rig_release(&bench.session, 1);

    struct plan_admit again = rig_plain_admit(2, tokens, 33, 60);
    again.seed = 1;
    again.output_start = 20;
    rig_admit(&bench.session, &again);
    bench_row(&bench, 2, 0, 33);
    for (uint32_t i = 0; i < 26; i++) {
        bench_row(&bench, 2, 0, 0);
    }
    bench_run(&bench);
    uint32_t rest[40];
    test_eq_u64(rig_tokens(&bench.session, 2, rest, 40), 27);
    test_true(memcmp(rest, tokens + 33, 27 * sizeof(rest[0])) == 0);
    bench_teardown(&bench);
}

static const struct test_case cases[] = {
    TEST(test_messages_are_answered_in_order),
    TEST(test_length_is_found_on_the_device),
    TEST(test_a_late_stop_costs_less_than_depth_rows),
    TEST(test_cancel_acts_ahead_of_queued_steps),
    TEST(test_cancel_reaches_an_admit_that_still_waits),
    TEST(test_refusal_refuses_steps_until_one_names_it),
    TEST(test_release_frees_id_and_slot),
    TEST(test_a_slot_waits_for_the_steps_that_name_it),
    TEST(test_a_full_ring_stops_launches_and_loses_nothing),
    TEST(test_a_cancel_without_room_is_answered_later),
    TEST(test_two_sessions_take_turns),
    TEST(test_closing_frees_all_after_the_steps_in_flight),
    TEST(test_no_session_is_promised_the_pages_of_another),
    TEST(test_numbers_and_epochs_are_checked),
    TEST(test_logprobs_continue_over_records),
    TEST(test_admitted_again_with_its_output),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
