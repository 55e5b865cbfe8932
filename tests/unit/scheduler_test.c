/* The scheduler's rules, one by one, against the model worker on virtual time. */
#include <string.h>

#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

static void test_one_request_is_served_and_released(void)
{
    struct rig rig;
    struct rig_request request;
    rig_init_default(&rig);
    rig_add(&rig, &request, 600, 50);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&request, 50);
    test_eq_u64(request.admitted, 1);
    rig_check_all_returned(&rig);
    struct sched_stats stats = rig_stats(&rig);
    test_eq_u64(stats.prompt_tokens, 600);
    test_eq_u64(stats.output_tokens, 50);
    test_eq_u64(stats.finished[RESULT_FINISH_LENGTH], 1);
    /* 600 tokens in segments of at most 256, then 49 decode rows: the last token is no input */
    test_eq_u64(rig_count_sent(&rig, PLAN_RELEASE), 1);
    test_eq_u64(rig_model_stats(&rig).masked_rows, 0);
    rig_fini(&rig);
}

static void test_nothing_is_admitted_before_the_first_figures(void)
{
    struct rig rig;
    struct rig_request request;
    rig_init_default(&rig);
    rig_add(&rig, &request, 10, 5);
    test_eq_u64(rig_count_sent(&rig, PLAN_PING), 1);
    test_eq_u64(rig_count_sent(&rig, PLAN_ADMIT), 0);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&request, 5);
    rig_fini(&rig);
}

static void test_depth_plans_are_outstanding(void)
{
    for (uint32_t depth = 1; depth <= 3; depth++) {
        struct model_options model = rig_model_options();
        struct sched_options options = rig_sched_options();
        model.limits.pipeline_depth = depth;
        struct rig rig;
        struct rig_request request;
        rig_init(&rig, &model, &options);
        rig_add(&rig, &request, 8, 40);
        rig_run_idle(&rig, RIG_LONG_NS);
        uint32_t most = 0;
        for (uint32_t i = 0; i < rig_count_sent(&rig, PLAN_STEP); i++) {
            uint32_t outstanding = rig_nth_sent(&rig, PLAN_STEP, i)->outstanding;
            most = outstanding > most ? outstanding : most;
        }
        test_eq_u64(most, depth);
        rig_check_length(&request, 40);
        rig_fini(&rig);
    }
}

/* Steady decode of 16 rows: time lost beyond the device's own. */
static double lost_part(uint32_t depth)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.down_ns = 2 * RIG_MS;
    model.up_ns = 2 * RIG_MS;
    model.limits.pipeline_depth = depth;
    struct rig rig;
    struct rig_request requests[16];
    rig_init(&rig, &model, &options);
    rig.keeps_sent = false;
    for (uint32_t i = 0; i < 16; i++) {
        rig_add(&rig, &requests[i], 8, 300);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    struct model_stats stats = rig_model_stats(&rig);
    test_true(stats.steps >= 300);
    double took = (double)(stats.last_end_ns - stats.first_start_ns);
    rig_fini(&rig);
    return 1.0 - (double)stats.busy_ns / took;
}

static void test_run_ahead_hides_the_way_to_the_worker(void)
{
    test_true(lost_part(2) < 0.05);
    double lost = lost_part(1); /* 4 ms of every 14 */
    test_true(lost > 0.27 && lost < 0.30);
}

static void test_late_stop_costs_one_row_and_nobody_else(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.stop_per_mille = 50;
    struct rig rig;
    struct rig_request requests[8];
    static const uint32_t stop_id = 7;
    rig_init(&rig, &model, &options);
    rig_add(&rig, &requests[0], 8, 200); /* no stop id: runs to its length */
    for (uint32_t i = 1; i < 8; i++) {
        struct err err;
        struct engine_request request = rig_engine_request(&requests[i], 8, 200, i);
        request.admit.stop_ids = (struct wire_u32_array){.at = &stop_id, .count = 1};
        test_ok(rig_submit(&rig, &requests[i], &request, &err), &err);
        requests[i].model = NULL; /* the last token is the stop id */
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&requests[0], 200);
    uint32_t stopped = 0;
    for (uint32_t i = 1; i < 8; i++) {
        test_eq_u64(requests[i].ended, 1);
        stopped += requests[i].reason == RESULT_FINISH_STOP;
    }
    test_true(stopped >= 6);
    test_true(rig_model_stats(&rig).masked_rows <= stopped);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_slots_bound_the_sequences(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 2;
    struct rig rig;
    struct rig_request requests[7];
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 7; i++) {
        rig_add(&rig, &requests[i], 20, 10);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 7; i++) {
        rig_check_length(&requests[i], 10);
        test_true(i < 2 || requests[i].first_token_ns > requests[i - 2].first_token_ns);
    }
    rig_fini(&rig);
}

static void test_pages_run_out_and_all_finish(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    /* 320 tokens need 20 full pages each; admitted with 9 each */
    model.limits.global_pages = 45;
    struct rig rig;
    struct rig_request requests[6];
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 6; i++) {
        rig_add(&rig, &requests[i], 120, 200);
    }
    rig_run_to(&rig, rig.now_ns + 100 * RIG_MS);
    test_eq_u64(rig_model_stats(&rig).sequences, 5);
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 6; i++) {
        rig_check_length(&requests[i], 200);
        test_true(i == 0 || requests[i].ended_ns >= requests[i - 1].ended_ns);
    }
    struct sched_stats stats = rig_stats(&rig);
    test_eq_u64(stats.plans_refused, 0);
    test_true(stats.preemptions >= 3 && stats.preemptions <= 8);
    test_eq_u64(stats.prompt_tokens, 6 * UINT64_C(120));
    test_eq_u64(stats.output_tokens, 6 * UINT64_C(200));
    test_eq_u64(requests[0].admitted, 1); /* the oldest is never preempted */
    test_true(requests[4].admitted > 1);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_what_can_never_run_is_refused_at_once(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.global_pages = 40;
    struct rig rig;
    struct rig_request request;
    struct err err;
    rig_init(&rig, &model, &options);
    struct engine_request large = rig_engine_request(&request, 2000, 100, 1);
    test_eq_u64(rig_submit(&rig, &request, &large, &err), ERR_LIMIT);
    test_eq_str(err.message,
                "prompt of 2000 and output of up to 100 tokens make 2100, the context is 2048");
    large = rig_engine_request(&request, 1000, 100, 1);
    test_eq_u64(rig_submit(&rig, &request, &large, &err), ERR_LIMIT);
    test_eq_str(err.message, "1100 tokens need 69 full-attention pages, the pool has 40");
    struct sched_gate gate;
    sched_get_gate(rig.sched, &gate);
    test_eq_u64(gate.limits.pool_tokens, 40ULL * 16);
    static const uint32_t prompt[] = {1, 999, 1000};
    struct engine_request odd = rig_engine_request(&request, 3, 10, 1);
    odd.admit.prompt.at = prompt;
    test_eq_u64(rig_submit(&rig, &request, &odd, &err), ERR_ARGUMENT);
    test_eq_str(err.message, "token 2 of the prompt is 1000, the vocabulary has 1000");
    test_eq_u64(rig_stats(&rig).rejected, 3);
    test_eq_u64(rig_stats(&rig).arrived, 3);
    rig_fini(&rig);
}

static void test_the_queue_is_bounded(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 2;
    options.max_queue = 3;
    struct rig rig;
    struct rig_request requests[6];
    struct err err;
    rig_init(&rig, &model, &options);
    rig_run_to(&rig, rig.now_ns + RIG_MS);
    for (uint32_t i = 0; i < 5; i++) {
        rig_add(&rig, &requests[i], 20, 10);
    }
    struct engine_request request = rig_engine_request(&requests[5], 20, 10, 1);
    test_eq_u64(rig_submit(&rig, &requests[5], &request, &err), ERR_BUSY);
    test_eq_str(err.message, "3 requests wait already, at most 3 may");
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 5; i++) {
        rig_check_length(&requests[i], 10);
    }
    test_eq_u64(requests[5].ended, 0);
    rig_fini(&rig);
}

static void test_priority_then_arrival(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 1;
    struct rig rig;
    struct rig_request requests[5];
    static const int32_t priorities[5] = {0, 5, 0, -1, 5};
    static const uint32_t order[5] = {0, 3, 2, 1, 4};
    rig_init(&rig, &model, &options);
    rig_run_to(&rig, rig.now_ns + RIG_MS);
    for (uint32_t i = 0; i < 5; i++) {
        struct err err;
        struct engine_request request = rig_engine_request(&requests[i], 20, 10, i);
        request.priority = priorities[i];
        test_ok(rig_submit(&rig, &requests[i], &request, &err), &err);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 1; i < 5; i++) {
        test_true(requests[order[i]].first_token_ns > requests[order[i - 1]].first_token_ns);
    }
    rig_fini(&rig);
}

static void test_the_head_is_overtaken_a_bounded_number_of_times(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.global_pages = 64;
    struct rig rig;
    struct rig_request running;
    struct rig_request head;
    struct rig_request small[SCHED_MAX_OVERTAKES + 8];
    rig_init(&rig, &model, &options);
    rig_add(&rig, &running, 400, 400); /* 26 pages and more, for four seconds */
    rig_run_to(&rig, rig.now_ns + 50 * RIG_MS);
    rig_add(&rig, &head, 800, 8); /* 51 pages: waits for it */
    for (uint32_t i = 0; i < SCHED_MAX_OVERTAKES + 8; i++) {
        rig_add(&rig, &small[i], 8, 8);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&head, 8);
    test_eq_u64(rig_stats(&rig).overtakes, SCHED_MAX_OVERTAKES);
    for (uint32_t i = 0; i < SCHED_MAX_OVERTAKES + 8; i++) {
        rig_check_length(&small[i], 8);
        test_true((small[i].first_token_ns < running.ended_ns) == (i < SCHED_MAX_OVERTAKES));
    }
    rig_fini(&rig);
}

static void test_a_deadline_ends_the_wait(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 1;
    struct rig rig;
    struct rig_request running;
    struct rig_request late;
    struct err err;
    rig_init(&rig, &model, &options);
    rig_add(&rig, &running, 8, 100);
    struct engine_request request = rig_engine_request(&late, 8, 4, 1);
    request.deadline_ns = rig.now_ns + 333 * RIG_MS;
    test_ok(rig_submit(&rig, &late, &request, &err), &err);
    uint64_t deadline_ns = request.deadline_ns;
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&running, 100);
    test_eq_u64(late.ended, 1);
    test_eq_u64(late.code, ERR_TIMEOUT);
    test_eq_u64(late.ended_ns, deadline_ns);
    rig_fini(&rig);
}

static void test_ping_only_when_nothing_else_is_sent(void)
{
    struct rig rig;
    struct rig_request request;
    rig_init_default(&rig);
    rig_run_to(&rig, rig.now_ns + 5050 * RIG_MS);
    test_eq_u64(rig_count_sent(&rig, PLAN_PING), 11); /* the first, and ten */
    test_true(rig.now_ns - sched_alive_ns(rig.sched) < 501 * RIG_MS);
    rig_add(&rig, &request, 8, 300);
    rig_run_idle(&rig, RIG_LONG_NS);
    test_eq_u64(rig_count_sent(&rig, PLAN_PING), 11);
    rig_fini(&rig);
}

static void test_pings_come_well_within_the_session_timeout(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    struct rig rig;
    model.limits.session_timeout_ms = 200;
    rig_init(&rig, &model, &options);
    rig_run_to(&rig, rig.now_ns + 1010 * RIG_MS);
    test_eq_u64(rig_count_sent(&rig, PLAN_PING), 21); /* the first, and one every 50 ms */
    rig_fini(&rig);
}

static void test_decode_rows_beyond_a_step_take_turns(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.max_step_rows = 4;
    struct rig rig;
    struct rig_request requests[10];
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 10; i++) {
        rig_add(&rig, &requests[i], 8, 60);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    uint64_t first_ns = UINT64_MAX;
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < 10; i++) {
        rig_check_length(&requests[i], 60);
        first_ns = requests[i].ended_ns < first_ns ? requests[i].ended_ns : first_ns;
        last_ns = requests[i].ended_ns > last_ns ? requests[i].ended_ns : last_ns;
    }
    /* 600 tokens of 4 rows of 10 ms are 1.5 s; prompts start one by one beside 3 decode rows */
    test_true(last_ns - first_ns < 400 * RIG_MS);
    rig_fini(&rig);
}

static void test_logprobs_are_gathered_from_their_records(void)
{
    static const uint32_t asked[] = {1, 2, 10, 11, 19, 21};
    for (uint32_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        struct rig rig;
        struct rig_request requested;
        struct err err;
        rig_init_default(&rig);
        struct engine_request request = rig_engine_request(&requested, 300, 10, 1);
        request.admit.logprobs = asked[i];
        request.admit.prompt_logprobs = asked[i];
        test_ok(rig_submit(&rig, &requested, &request, &err), &err);
        rig_run_idle(&rig, RIG_LONG_NS);
        rig_check_length(&requested, 10);
        test_eq_u64(requested.pair_count, 10ULL * (asked[i] - 1));
        test_eq_u64(requested.prompt_logprob_count, 299);
        rig_fini(&rig);
    }
}

static void test_a_smaller_quota_is_kept(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    struct rig rig;
    struct rig_request requests[4];
    rig_init(&rig, &model, &options);
    rig_run_to(&rig, rig.now_ns + RIG_MS);
    model_set_quota(rig.model, 60, 40, rig.now_ns);
    rig_run_to(&rig, rig.now_ns + RIG_MS);
    for (uint32_t i = 0; i < 4; i++) {
        rig_add(&rig, &requests[i], 200, 100); /* 19 full pages each */
    }
    rig_run_to(&rig, rig.now_ns + 100 * RIG_MS);
    test_eq_u64(rig_model_stats(&rig).sequences, 2);
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 4; i++) {
        rig_check_length(&requests[i], 100);
    }
    rig_fini(&rig);
}

/* What is said to fit runs beside each other to the end without anyone preempted. */
static void test_requests_that_fit_are_never_preempted(void)
{
    static const struct {
        uint32_t local_pages;
        uint32_t global_pages;
        uint32_t slots;
        uint32_t total_tokens;
    } table[] = {{256, 100, 32, 160}, {60, 1024, 32, 400}, {256, 1024, 5, 100}, {40, 25, 32, 400}};
    for (uint32_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct model_options model = rig_model_options();
        struct sched_options options = rig_sched_options();
        model.limits.local_pages = table[i].local_pages;
        model.limits.global_pages = table[i].global_pages;
        model.limits.slots = table[i].slots;
        struct rig rig;
        struct rig_request requests[40];
        struct sched_gate gate;
        rig_init(&rig, &model, &options);
        sched_get_gate(rig.sched, &gate);
        uint32_t fit = sched_requests_that_fit(&gate.limits, table[i].total_tokens);
        test_true(fit >= 1 && fit < 40);
        uint32_t output = table[i].total_tokens / 2;
        for (uint32_t r = 0; r < fit; r++) {
            rig_add(&rig, &requests[r], table[i].total_tokens - output, output);
        }
        rig_run_idle(&rig, RIG_LONG_NS);
        for (uint32_t r = 0; r < fit; r++) {
            rig_check_length(&requests[r], output);
        }
        test_eq_u64(rig_stats(&rig).preemptions, 0);
        test_eq_u64(sched_requests_that_fit(&gate.limits, gate.limits.max_context_tokens + 1), 0);
        rig_fini(&rig);
    }
}

static const struct test_case cases[] = {
    TEST(test_one_request_is_served_and_released),
    TEST(test_nothing_is_admitted_before_the_first_figures),
    TEST(test_depth_plans_are_outstanding),
    TEST(test_run_ahead_hides_the_way_to_the_worker),
    TEST(test_late_stop_costs_one_row_and_nobody_else),
    TEST(test_slots_bound_the_sequences),
    TEST(test_pages_run_out_and_all_finish),
    TEST(test_what_can_never_run_is_refused_at_once),
    TEST(test_the_queue_is_bounded),
    TEST(test_priority_then_arrival),
    TEST(test_the_head_is_overtaken_a_bounded_number_of_times),
    TEST(test_a_deadline_ends_the_wait),
    TEST(test_ping_only_when_nothing_else_is_sent),
    TEST(test_pings_come_well_within_the_session_timeout),
    TEST(test_decode_rows_beyond_a_step_take_turns),
    TEST(test_logprobs_are_gathered_from_their_records),
    TEST(test_a_smaller_quota_is_kept),
    TEST(test_requests_that_fit_are_never_preempted),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
