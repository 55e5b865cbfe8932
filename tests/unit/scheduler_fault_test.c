/* The scheduler when things go wrong: refusals, failures, cancels, lost workers. */
#include <string.h>

#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

static void test_a_refused_step_is_planned_again(void)
{
    for (uint64_t at = 1; at <= 12; at++) {
        struct model_options model = rig_model_options();
        struct sched_options options = rig_sched_options();
        model.faults[0] = (struct model_fault){.kind = MODEL_FAULT_REFUSE_STEP, .at = at};
        struct rig rig;
        struct rig_request requests[3];
        rig_init(&rig, &model, &options);
        rig_add(&rig, &requests[0], 300, 20);
        rig_add(&rig, &requests[1], 300, 20);
        rig_add(&rig, &requests[2], 5, 20);
        rig_run_idle(&rig, RIG_LONG_NS);
        for (uint32_t i = 0; i < 3; i++) {
            rig_check_length(&requests[i], 20);
        }
        uint32_t named = 0;
        for (uint32_t i = 0; i < rig_count_sent(&rig, PLAN_STEP); i++) {
            named += rig_nth_sent(&rig, PLAN_STEP, i)->after != 0;
        }
        test_eq_u64(named, 1);
        test_true(rig_stats(&rig).plans_refused >= 1);
        rig_check_all_returned(&rig);
        rig_fini(&rig);
    }
}

static void test_a_step_refused_again_and_again_fails_its_requests(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.faults[0] = (struct model_fault){.kind = MODEL_FAULT_REFUSE_STEP, .at = 5, .count = 1000};
    struct rig rig;
    struct rig_request request;
    rig_init(&rig, &model, &options);
    rig_add(&rig, &request, 8, 100);
    rig_run_idle(&rig, RIG_LONG_NS);
    test_eq_u64(request.ended, 1);
    test_eq_u64(request.code, ERR_PAGES);
    test_eq_str(request.text, "refused: pages");
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_a_refused_admit_fails_its_request_alone(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.faults[0] = (struct model_fault){.kind = MODEL_FAULT_REFUSE_ADMIT, .at = 2};
    struct rig rig;
    struct rig_request requests[3];
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 3; i++) {
        rig_add(&rig, &requests[i], 50, 10);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&requests[0], 10);
    rig_check_length(&requests[2], 10);
    test_eq_u64(requests[1].ended, 1);
    test_eq_u64(requests[1].code, ERR_SEQUENCE);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_a_failed_row_or_step_fails_what_it_names(void)
{
    static const enum model_fault_kind kinds[2] = {MODEL_FAULT_FAIL_ROW, MODEL_FAULT_FAIL_STEP};
    for (uint32_t k = 0; k < 2; k++) {
        struct model_options model = rig_model_options();
        struct sched_options options = rig_sched_options();
        model.faults[0] = (struct model_fault){.kind = kinds[k], .at = 6};
        struct rig rig;
        struct rig_request requests[3];
        struct rig_request after;
        rig_init(&rig, &model, &options);
        for (uint32_t i = 0; i < 3; i++) {
            rig_add(&rig, &requests[i], 50, 40);
        }
        rig_run_idle(&rig, RIG_LONG_NS);
        rig_add(&rig, &after, 50, 10);
        rig_run_idle(&rig, RIG_LONG_NS);
        uint32_t failed = 0;
        for (uint32_t i = 0; i < 3; i++) {
            test_eq_u64(requests[i].ended, 1);
            failed += requests[i].code != ERR_OK;
        }
        test_eq_u64(failed, k == 0 ? 1 : 3);
        rig_check_length(&after, 10);
        rig_check_all_returned(&rig);
        rig_fini(&rig);
    }
}

static void test_cancel_in_every_state(void)
{
    static const uint64_t cancel_after_us[] = {0, 150, 250, 350, 5000, 25000, 60000, 61000};
    for (uint32_t i = 0; i < sizeof(cancel_after_us) / sizeof(cancel_after_us[0]); i++) {
        struct rig rig;
        struct rig_request request;
        struct rig_request other;
        rig_init_default(&rig);
        rig_add(&rig, &request, 600, 1000);
        rig_add(&rig, &other, 20, 30);
        rig_run_to(&rig, rig.now_ns + cancel_after_us[i] * 1000);
        rig_cancel(&rig, &request);
        test_eq_u64(request.ended, 1);
        test_eq_u64(request.reason, RESULT_FINISH_CANCEL);
        rig_cancel(&rig, &request); /* again: ignored */
        rig_run_idle(&rig, RIG_LONG_NS);
        test_eq_u64(request.ended, 1);
        rig_check_length(&other, 30);
        rig_check_all_returned(&rig);
        rig_fini(&rig);
    }
}

static void test_a_lost_session_fails_what_ran_and_keeps_what_waits(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 2;
    struct rig rig;
    struct rig_request requests[4];
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 4; i++) {
        rig_add(&rig, &requests[i], 20, 100);
    }
    rig_run_to(&rig, rig.now_ns + 100 * RIG_MS);
    rig_detach(&rig);
    for (uint32_t i = 0; i < 2; i++) {
        test_eq_u64(requests[i].ended, 1);
        test_eq_u64(requests[i].code, ERR_CLOSED);
        test_eq_str(requests[i].text, "the worker is gone");
        test_true(requests[i].token_count > 0);
        test_eq_u64(requests[i + 2].ended, 0);
    }
    struct rig_request between;
    rig_add(&rig, &between, 20, 5);
    rig_run_to(&rig, rig.now_ns + 2000 * RIG_MS);
    rig_attach(&rig);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&requests[2], 100);
    rig_check_length(&requests[3], 100);
    rig_check_length(&between, 5);
    rig_fini(&rig);
}

static void test_without_a_worker_waiting_ends_and_submit_says_so(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 1;
    struct rig rig;
    struct rig_request requests[3];
    struct err err;
    rig_init(&rig, &model, &options);
    rig_add(&rig, &requests[0], 20, 100);
    rig_add(&rig, &requests[1], 20, 100);
    rig_run_to(&rig, rig.now_ns + 100 * RIG_MS);
    rig_detach(&rig);
    uint64_t lost_ns = rig.now_ns;
    rig_run_to(&rig, lost_ns + 29999 * RIG_MS);
    test_eq_u64(requests[1].ended, 0);
    rig_run_to(&rig, lost_ns + 30001 * RIG_MS);
    test_eq_u64(requests[1].ended, 1);
    test_eq_u64(requests[1].code, ERR_CLOSED);
    struct engine_request request = rig_engine_request(&requests[2], 20, 5, 1);
    test_eq_u64(rig_submit(&rig, &requests[2], &request, &err), ERR_CLOSED);
    test_eq_str(err.message, "the worker is gone");
    rig_fini(&rig);
}

static void test_a_smaller_worker_fails_what_it_could_never_run(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 1;
    struct rig rig;
    struct rig_request requests[3];
    rig_init(&rig, &model, &options);
    rig_add(&rig, &requests[0], 20, 100);
    rig_add(&rig, &requests[1], 800, 100);
    rig_add(&rig, &requests[2], 20, 10);
    rig_run_to(&rig, rig.now_ns + 100 * RIG_MS);
    rig_detach(&rig);
    rig.model_options.limits.max_context_tokens = 512;
    rig_attach(&rig);
    test_eq_u64(requests[1].ended, 1);
    test_eq_u64(requests[1].code, ERR_LIMIT);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&requests[2], 10);
    rig_fini(&rig);
}

static void expect_protocol_error(struct rig *rig, const struct result_record *record)
{
    struct err err;
    test_eq_u64(sched_record(rig->sched, record, rig->now_ns, &err), ERR_PROTOCOL);
    test_true(err.message[0] != '\0');
}

static void test_a_worker_that_breaks_the_order_is_noticed(void)
{
    struct rig rig;
    struct rig_request request;
    rig_init_default(&rig);
    rig_add(&rig, &request, 8, 100);
    rig_run_to(&rig, rig.now_ns + 55 * RIG_MS);
    uint64_t seq_id = rig_nth_sent(&rig, PLAN_ADMIT, 0)->seq_id;
    struct result_record record = {.kind = RESULT_STEP_DONE, .msg_seq = 9999};
    expect_protocol_error(&rig, &record);
    record = (struct result_record){.kind = RESULT_TOKEN, .seq_id = seq_id};
    record.as.token.position = 5000;
    expect_protocol_error(&rig, &record);
    record = (struct result_record){.kind = RESULT_LOGPROBS, .seq_id = seq_id};
    expect_protocol_error(&rig, &record);
    record = (struct result_record){.kind = RESULT_ADMITTED, .seq_id = seq_id};
    record.as.admitted.figures.applied = 9999;
    expect_protocol_error(&rig, &record);
    record = (struct result_record){.kind = 77};
    expect_protocol_error(&rig, &record);
    /* a sequence that is not here is no fault: its owner has left */
    struct err err;
    record = (struct result_record){.kind = RESULT_TOKEN, .seq_id = seq_id + 4096};
    test_ok(sched_record(rig.sched, &record, rig.now_ns, &err), &err);
    test_eq_u64(rig_stats(&rig).records_unowned, 1);
    rig_fini(&rig);
}

/* What a scheduler without any worker sent. */
struct sent {
    uint32_t counts[PLAN_PING + 1];
    uint64_t last_seq;
    uint64_t seq_id; /* of the last ADMIT */
    uint64_t admit_seq;
    uint64_t after; /* of the last STEP */
    uint32_t start; /* of its first row */
};

static void on_send(void *owner, const struct plan_message *message)
{
    struct sent *sent = owner;
    sent->counts[message->type]++;
    sent->last_seq = message->msg_seq;
    if (message->type == PLAN_ADMIT) {
        sent->seq_id = message->as.admit.seq_id;
        sent->admit_seq = message->msg_seq;
    } else if (message->type == PLAN_STEP) {
        sent->after = message->as.step.after;
        sent->start = message->as.step.rows.at[0].start;
    }
}

static void tell(struct sched *sched, const struct result_record *record)
{
    struct err err;
    test_ok(sched_record(sched, record, 2, &err), &err);
    sched_tick(sched, 2);
    test_true(sched_check(sched));
}

/* A scheduler that has sent the ADMIT of one request, with all pages there. */
struct lone {
    struct sent sent;
    struct sched *sched; /* owned */
    struct hello_welcome welcome;
    struct rig_request request;
};

static struct result_figures all_pages(const struct lone *lone, uint64_t applied)
{
    return (struct result_figures){.applied = applied,
                                   .local_quota_left_pages = lone->welcome.local_pages,
                                   .global_quota_left_pages = lone->welcome.global_pages};
}

static void lone_open(struct lone *lone, const struct sched_options *options,
                      const struct engine_request *wanted)
{
    struct req *req;
    struct err err;
    lone->sent = (struct sent){0};
    lone->welcome = model_small_limits();
    lone->sched = sched_create(options, on_send, &lone->sent);
    test_ok(sched_attach(lone->sched, &lone->welcome, 1, 1, &err), &err);
    test_ok(req_create(wanted, &req, &err), &err);
    req->request_id = 1;
    test_ok(sched_submit(lone->sched, req, 1, &err), &err);
    struct result_record pong = {.kind = RESULT_PONG, .msg_seq = 1};
    pong.as.pong.figures = all_pages(lone, 1);
    tell(lone->sched, &pong);
    test_eq_u64(lone->sent.counts[PLAN_ADMIT], 1);
}

static void lone_admit(struct lone *lone)
{
    struct result_record record = {
        .kind = RESULT_ADMITTED, .seq_id = lone->sent.seq_id, .msg_seq = lone->sent.admit_seq};
    record.as.admitted.figures = all_pages(lone, lone->sent.admit_seq);
    tell(lone->sched, &record);
}

/* A second STEP that did not decode: what was sent since the first is refused, and planned again. */
static void test_two_refusals_behind_each_other(void)
{
    struct lone lone;
    struct sched_options options = rig_sched_options();
    options.pipeline_depth = 3;
    options.max_step_tokens = 16;
    struct engine_request wanted = rig_engine_request(&lone.request, 200, 5, 1);
    lone_open(&lone, &options, &wanted);
    lone_admit(&lone);
    uint64_t first_step = lone.sent.admit_seq + 1;
    test_eq_u64(lone.sent.counts[PLAN_STEP], 3);
    test_eq_u64(lone.sent.last_seq, first_step + 2);
    struct result_record record = {
        .kind = RESULT_REFUSED, .msg_seq = first_step, .as.refused.code = ERR_FORMAT};
    tell(lone.sched, &record);
    test_eq_u64(lone.sent.after, first_step);
    test_eq_u64(lone.sent.start, 0);
    record.msg_seq = first_step + 1;
    tell(lone.sched, &record);
    test_eq_u64(lone.sent.counts[PLAN_STEP], 5);
    test_eq_u64(lone.sent.after, first_step + 1);
    test_eq_u64(lone.sent.start, 0);
    sched_destroy(lone.sched, 2);
}

static void check_refused(struct lone *lone, const struct result_record *record)
{
    struct err err;
    test_eq_u64(sched_record(lone->sched, record, 2, &err), ERR_PROTOCOL);
    sched_destroy(lone->sched, 2);
    test_eq_u64(lone->request.ended, 1);
}

/* The answer of a STEP comes when all of its tokens are whole. */
static void test_an_answer_in_the_middle_of_logprobs_is_noticed(void)
{
    struct lone lone;
    struct sched_options options = rig_sched_options();
    struct engine_request wanted = rig_engine_request(&lone.request, 5, 5, 1);
    wanted.admit.logprobs = 3;
    lone_open(&lone, &options, &wanted);
    lone_admit(&lone);
    uint64_t first_step = lone.sent.admit_seq + 1;
    struct result_record token = {
        .kind = RESULT_TOKEN, .seq_id = lone.sent.seq_id, .msg_seq = first_step};
    token.as.token.position = 5;
    tell(lone.sched, &token);
    struct result_record answer = {
        .kind = RESULT_REFUSED, .msg_seq = first_step, .as.refused.code = ERR_PAGES};
    check_refused(&lone, &answer);

    wanted.admit.logprobs = 0;
    wanted.admit.prompt_logprobs = 3;
    lone.request.ended = 0;
    lone_open(&lone, &options, &wanted);
    lone_admit(&lone);
    struct result_record pairs = {.kind = RESULT_LOGPROBS,
                                  .flags = RESULT_LOGPROBS_PROMPT,
                                  .seq_id = lone.sent.seq_id,
                                  .msg_seq = first_step};
    pairs.as.logprobs.position = 1;
    pairs.as.logprobs.pair_count = 1;
    tell(lone.sched, &pairs);
    answer = (struct result_record){
        .kind = RESULT_REFUSED, .msg_seq = first_step, .as.refused.code = ERR_PAGES};
    check_refused(&lone, &answer);
}

/* Two frontends may both send an ADMIT for the last slot. */
static void test_an_admit_that_finds_no_slot_waits_for_one(void)
{
    struct lone lone;
    struct sched_options options = rig_sched_options();
    struct engine_request wanted = rig_engine_request(&lone.request, 5, 5, 1);
    struct sched_stats stats;
    lone_open(&lone, &options, &wanted);
    /* It does not try again before it knows how things are, and asks. */
    struct result_record refused = {.kind = RESULT_REFUSED,
                                    .seq_id = lone.sent.seq_id,
                                    .msg_seq = lone.sent.admit_seq,
                                    .as.refused.code = ERR_BUSY};
    tell(lone.sched, &refused);
    test_eq_u64(lone.sent.counts[PLAN_ADMIT], 1);
    test_eq_u64(lone.sent.counts[PLAN_PING], 2);
    sched_tick(lone.sched, 2);
    test_eq_u64(lone.sent.counts[PLAN_PING], 2);
    sched_get_stats(lone.sched, &stats);
    test_eq_u64(stats.preempted_waiting, 0);
    struct result_record record = {.kind = RESULT_PONG, .msg_seq = lone.sent.last_seq};
    record.as.pong.figures = all_pages(&lone, lone.sent.last_seq);
    record.as.pong.figures.slots_withheld = lone.welcome.slots;
    tell(lone.sched, &record);
    test_eq_u64(lone.sent.counts[PLAN_ADMIT], 1);
    record.kind = RESULT_STATE;
    record.as.state.figures = all_pages(&lone, lone.sent.last_seq);
    record.as.state.figures.slots_withheld = lone.welcome.slots - 1;
    tell(lone.sched, &record);
    test_eq_u64(lone.sent.counts[PLAN_ADMIT], 2);
    test_eq_u64(lone.request.ended, 0);
    sched_cancel(lone.sched, 1, 2);
    test_eq_u64(lone.request.reason, RESULT_FINISH_CANCEL);
    sched_destroy(lone.sched, 2);
    test_eq_u64(lone.request.ended, 1);
}

static void test_a_welcome_that_cannot_be_is_refused(void)
{
    struct sched_options options = rig_sched_options();
    struct sched *sched = sched_create(&options, NULL, NULL);
    struct hello_welcome welcome = model_small_limits();
    struct err err;
    welcome.page_tokens = 48;
    test_eq_u64(sched_attach(sched, &welcome, 1, 1, &err), ERR_PROTOCOL);
    test_eq_str(err.message, "the worker's page_tokens is 48: a power of two is needed");
    welcome = model_small_limits();
    welcome.slots = 5000;
    test_eq_u64(sched_attach(sched, &welcome, 1, 1, &err), ERR_PROTOCOL);
    sched_destroy(sched, 1);
}

static const struct test_case cases[] = {
    TEST(test_a_refused_step_is_planned_again),
    TEST(test_a_step_refused_again_and_again_fails_its_requests),
    TEST(test_a_refused_admit_fails_its_request_alone),
    TEST(test_a_failed_row_or_step_fails_what_it_names),
    TEST(test_cancel_in_every_state),
    TEST(test_a_lost_session_fails_what_ran_and_keeps_what_waits),
    TEST(test_without_a_worker_waiting_ends_and_submit_says_so),
    TEST(test_a_smaller_worker_fails_what_it_could_never_run),
    TEST(test_a_worker_that_breaks_the_order_is_noticed),
    TEST(test_two_refusals_behind_each_other),
    TEST(test_an_answer_in_the_middle_of_logprobs_is_noticed),
    TEST(test_an_admit_that_finds_no_slot_waits_for_one),
    TEST(test_a_welcome_that_cannot_be_is_refused),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
