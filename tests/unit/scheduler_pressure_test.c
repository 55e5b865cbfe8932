/* More requests than pages: who is preempted, who returns, and that nobody notices but by a pause. */
#include <stdio.h>

#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

/* Pages of 16, window 64; steps of 10 ms.  The full pool is what runs out. */
static void init_small(struct rig *rig, uint32_t global_pages)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.global_pages = global_pages;
    rig_init(rig, &model, &options);
    rig_run_to(rig, rig->now_ns + RIG_MS);
}

static void add(struct rig *rig, struct rig_request *request, const struct engine_request *wanted)
{
    struct err err;
    test_ok(rig_submit(rig, request, wanted, &err), &err);
}

static void add_with_priority(struct rig *rig, struct rig_request *request, int32_t priority)
{
    struct engine_request wanted = rig_engine_request(request, 100, 300, rig->next_request_id);
    wanted.priority = priority;
    add(rig, request, &wanted);
}

static void test_the_victim_is_the_lowest_priority_then_the_newest(void)
{
    static const int32_t priorities[5] = {0, 3, -1, 3, 0};
    static const uint32_t order[5] = {2, 0, 4, 1, 3}; /* who keeps its pages longest */
    struct rig rig;
    struct rig_request requests[5];
    init_small(&rig, 60);
    for (uint32_t i = 0; i < 5; i++) {
        add_with_priority(&rig, &requests[i], priorities[i]);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 5; i++) {
        rig_check_length(&requests[i], 300);
        test_true(i == 0 || requests[order[i]].ended_ns >= requests[order[i - 1]].ended_ns);
    }
    test_eq_u64(requests[2].admitted, 1);
    test_true(requests[3].admitted > 1);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_logprobs_go_on_where_they_were(void)
{
    struct rig rig;
    struct rig_request requests[4];
    init_small(&rig, 48);
    for (uint32_t i = 0; i < 4; i++) {
        struct engine_request wanted = rig_engine_request(&requests[i], 150, 250, i);
        wanted.admit.logprobs = 12;
        wanted.admit.prompt_logprobs = 3;
        add(&rig, &requests[i], &wanted);
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 4; i++) {
        rig_check_length(&requests[i], 250);
        test_eq_u64(requests[i].pair_count, 250ULL * 11);
        test_eq_u64(requests[i].prompt_logprob_count, 149);
    }
    test_true(rig_stats(&rig).preemptions > 0);
    rig_fini(&rig);
}

/* A long prompt is preempted in the middle: its prompt's logprobs are told once. */
static void test_a_prompt_preempted_half_way_begins_again(void)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    struct rig rig;
    struct rig_request old[3];
    struct rig_request late;
    model.limits.global_pages = 100;
    options.max_step_tokens = 16; /* 40 steps for the long prompt */
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 3; i++) {
        rig_add(&rig, &old[i], 60, 400); /* 4 pages each, growing to 29 */
    }
    rig_run_to(&rig, rig.now_ns + 500 * RIG_MS);
    struct engine_request wanted = rig_engine_request(&late, 1000, 20, 9);
    wanted.admit.prompt_logprobs = 1;
    add(&rig, &late, &wanted);
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < 3; i++) {
        rig_check_length(&old[i], 400);
        test_eq_u64(old[i].admitted, 1);
    }
    rig_check_length(&late, 20);
    test_true(late.admitted > 1);
    test_eq_u64(late.prompt_logprob_count, 999);
    test_eq_u64(rig_stats(&rig).prompt_tokens, 3 * 60 + 1000);
    rig_fini(&rig);
}

static void test_as_large_as_the_pool_runs_alone_and_one_page_more_is_refused(void)
{
    struct rig rig;
    struct rig_request large;
    struct rig_request larger;
    struct rig_request small[4];
    struct err err;
    init_small(&rig, 40);
    rig_add(&rig, &large, 300, 340); /* 640 tokens, 40 pages */
    struct engine_request wanted = rig_engine_request(&larger, 300, 341, 2);
    test_eq_u64(rig_submit(&rig, &larger, &wanted, &err), ERR_LIMIT);
    test_eq_str(err.message, "641 tokens need 41 full-attention pages, the pool has 40");
    for (uint32_t i = 0; i < 4; i++) {
        rig_add(&rig, &small[i], 30, 20); /* 4 pages: flow past it while it has room */
    }
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&large, 340);
    test_eq_u64(large.admitted, 1);
    for (uint32_t i = 0; i < 4; i++) {
        rig_check_length(&small[i], 20);
        test_true(small[i].ended_ns < large.ended_ns);
    }
    /* and behind small ones it waits for all of them, not for ever */
    for (uint32_t i = 0; i < 4; i++) {
        rig_add(&rig, &small[i], 30, 200);
    }
    rig_run_to(&rig, rig.now_ns + 100 * RIG_MS);
    rig_add(&rig, &large, 620, 20);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&large, 20);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_cancel_and_deadline_of_the_preempted(void)
{
    for (uint32_t after_ms = 0; after_ms < 60; after_ms += 3) {
        struct rig rig;
        struct rig_request requests[6];
        init_small(&rig, 45);
        for (uint32_t i = 0; i < 6; i++) {
            struct engine_request wanted = rig_engine_request(&requests[i], 120, 200, i);
            wanted.deadline_ns = i == 3 ? rig.now_ns + (200 + after_ms * 20ULL) * RIG_MS : 0;
            add(&rig, &requests[i], &wanted);
        }
        while (rig_stats(&rig).preemptions == 0) {
            rig_run_to(&rig, rig.now_ns + RIG_MS);
        }
        rig_run_to(&rig, rig.now_ns + after_ms * RIG_MS);
        rig_cancel(&rig, &requests[4]); /* the first to be preempted */
        test_eq_u64(requests[4].ended, 1);
        rig_run_idle(&rig, RIG_LONG_NS);
        for (uint32_t i = 0; i < 6; i++) {
            test_eq_u64(requests[i].ended, 1);
            test_true(!requests[i].has_wrong_token);
        }
        test_eq_u64(requests[3].code, ERR_TIMEOUT);
        rig_check_length(&requests[0], 200);
        rig_check_length(&requests[5], 200);
        rig_check_all_returned(&rig);
        rig_fini(&rig);
    }
}

static void test_a_deadline_ends_what_runs(void)
{
    struct rig rig;
    struct rig_request late;
    struct rig_request other;
    init_small(&rig, 100);
    struct engine_request wanted = rig_engine_request(&late, 20, 900, 1);
    wanted.deadline_ns = rig.now_ns + 2345 * RIG_MS;
    uint64_t deadline_ns = wanted.deadline_ns;
    add(&rig, &late, &wanted);
    rig_add(&rig, &other, 20, 300);
    rig_run_idle(&rig, RIG_LONG_NS);
    test_eq_u64(late.ended, 1);
    test_eq_u64(late.code, ERR_TIMEOUT);
    test_eq_str(late.text, "the deadline passed while the request ran");
    test_eq_u64(late.ended_ns, deadline_ns);
    test_true(late.token_count > 200);
    rig_check_length(&other, 300);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_the_preempted_outlive_the_worker(void)
{
    struct rig rig;
    struct rig_request requests[6];
    init_small(&rig, 45);
    for (uint32_t i = 0; i < 6; i++) {
        rig_add(&rig, &requests[i], 120, 200);
    }
    while (rig_stats(&rig).preempted_waiting == 0) {
        rig_run_to(&rig, rig.now_ns + RIG_MS);
    }
    uint32_t told = requests[4].token_count;
    test_true(told > 0);
    rig_detach(&rig);
    test_eq_u64(requests[0].code, ERR_CLOSED);
    test_eq_u64(requests[4].ended, 0);
    rig_attach(&rig);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&requests[4], 200);
    rig_check_length(&requests[5], 200);
    rig_fini(&rig);
}

static void test_refused_steps_and_preemption_together(void)
{
    for (uint64_t at = 20; at <= 200; at += 7) {
        struct model_options model = rig_model_options();
        struct sched_options options = rig_sched_options();
        model.limits.global_pages = 30;
        model.faults[0] =
            (struct model_fault){.kind = MODEL_FAULT_REFUSE_STEP, .at = at, .count = 2};
        struct rig rig;
        struct rig_request requests[4];
        rig_init(&rig, &model, &options);
        for (uint32_t i = 0; i < 4; i++) {
            rig_add(&rig, &requests[i], 60, 200);
        }
        rig_run_idle(&rig, RIG_LONG_NS);
        for (uint32_t i = 0; i < 4; i++) {
            rig_check_length(&requests[i], 200);
        }
        test_true(rig_stats(&rig).preemptions > 0);
        rig_check_all_returned(&rig);
        rig_fini(&rig);
    }
}

/* One key has a hundred requests waiting; another's first is the next to start. */
static void test_a_flood_of_one_key_delays_another_by_its_turn(void)
{
    static struct rig_request flood[100];
    struct rig_request others[4];
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 4;
    options.max_queue = 200;
    struct rig rig;
    rig_init(&rig, &model, &options);
    for (uint32_t i = 0; i < 100; i++) {
        struct engine_request wanted = rig_engine_request(&flood[i], 100, 40 + i % 7, i);
        wanted.key_hash = 1;
        add(&rig, &flood[i], &wanted);
    }
    rig_run_to(&rig, rig.now_ns + 2000 * RIG_MS);
    uint64_t asked_ns = rig.now_ns;
    for (uint32_t i = 0; i < 4; i++) {
        struct engine_request wanted = rig_engine_request(&others[i], 100, 40, 1000 + i);
        wanted.key_hash = 2;
        add(&rig, &others[i], &wanted);
    }
    rig_run_idle(&rig, 10 * RIG_LONG_NS);
    /* as soon as one of the four running ends (0.5 s); the next ones alternate with the flood */
    test_true(others[0].first_token_ns - asked_ns < 600 * RIG_MS);
    test_true(others[3].first_token_ns - asked_ns < 2500 * RIG_MS);
    test_true(flood[99].first_token_ns - asked_ns > 8000 * RIG_MS);
    rig_fini(&rig);
}

/* A full queue says when it will have room, and then it has. */
static void test_retry_after_is_honest(void)
{
    static struct rig_request requests[64];
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.slots = 4;
    options.max_queue = 40;
    struct rig rig;
    struct rig_request late;
    struct err err;
    rig_init(&rig, &model, &options);
    rig_run_to(&rig, rig.now_ns + RIG_MS);
    for (uint32_t i = 0; i < 44; i++) {
        rig_add(&rig, &requests[i], 200, 100); /* 1 s for four of them */
    }
    rig_run_to(&rig, rig.now_ns + 3000 * RIG_MS);
    for (uint32_t i = 44; i < 52; i++) {
        rig_add(&rig, &requests[i], 200, 100);
    }
    struct engine_request wanted = rig_engine_request(&late, 200, 100, 1);
    test_eq_u64(rig_submit(&rig, &late, &wanted, &err), ERR_BUSY);
    struct sched_gate gate;
    sched_get_gate(rig.sched, &gate);
    test_true(gate.retry_after_s >= 2 && gate.retry_after_s <= 4); /* ten of forty: 2.6 s */
    rig_run_to(&rig, rig.now_ns + (uint64_t)gate.retry_after_s * 1000 * RIG_MS);
    sched_get_gate(rig.sched, &gate);
    test_true(gate.waiting >= 24 && gate.waiting <= 32);
    test_ok(rig_submit(&rig, &late, &wanted, &err), &err);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_fini(&rig);
}

#define FLOOD_COUNT 600

/* Twice what the worker can do arrives for half a minute, in a pool for three requests. */
static void test_progress_in_a_flood(void)
{
    static struct rig_request requests[FLOOD_COUNT];
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.global_pages = 60;
    options.max_queue = FLOOD_COUNT;
    struct rig rig;
    rig_init(&rig, &model, &options);
    rig.keeps_sent = false;
    struct rig_request oldest;
    rig_add(&rig, &oldest, 500, 440); /* 59 of the 60 pages at its end, the first to come */
    uint64_t finished = 0;
    for (uint32_t i = 0; i < FLOOD_COUNT; i++) {
        rig_add(&rig, &requests[i], 100 + i * 37 % 150, 50 + i * 53 % 100);
        rig_run_to(&rig, rig.now_ns + 50 * RIG_MS);
        if (i % 100 == 99) { /* five seconds */
            struct sched_stats stats = rig_stats(&rig);
            test_true(stats.finished[RESULT_FINISH_LENGTH] > finished);
            finished = stats.finished[RESULT_FINISH_LENGTH];
        }
    }
    rig_check_length(&oldest, 440);
    test_true(oldest.ended_ns - oldest.first_token_ns < 440ULL * 12 * RIG_MS); /* steps of 10 ms */
    rig_run_idle(&rig, 100 * RIG_LONG_NS);
    for (uint32_t i = 0; i < FLOOD_COUNT; i++) {
        test_eq_u64(requests[i].ended, 1);
        test_true(!requests[i].has_wrong_token);
    }
    /* most of the work is done once */
    struct sched_stats stats = rig_stats(&rig);
    (void)fprintf(stderr, "%llu preemptions, %u requests\n", (unsigned long long)stats.preemptions,
                  FLOOD_COUNT);
    test_true(stats.preemptions > 0 && stats.preemptions < FLOOD_COUNT);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static const struct test_case cases[] = {
    TEST(test_the_victim_is_the_lowest_priority_then_the_newest),
    TEST(test_logprobs_go_on_where_they_were),
    TEST(test_a_prompt_preempted_half_way_begins_again),
    TEST(test_as_large_as_the_pool_runs_alone_and_one_page_more_is_refused),
    TEST(test_cancel_and_deadline_of_the_preempted),
    TEST(test_a_deadline_ends_what_runs),
    TEST(test_the_preempted_outlive_the_worker),
    TEST(test_refused_steps_and_preemption_together),
    TEST(test_a_flood_of_one_key_delays_another_by_its_turn),
    TEST(test_retry_after_is_honest),
    TEST(test_progress_in_a_flood),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
