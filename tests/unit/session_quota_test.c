/* How two sessions share pages and slots: every figure by hand. */
#include "tests/testlib/core_bench.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

enum {
    CONTEXT = 256 /* a full request: 16 global pages, 13 local ones while its prompt runs, then 6 */
};

/* Pools of 40 and 80 pages, page 16, window 64, steps of 128 tokens, 6 slots. */
static void setup(struct core_bench *bench)
{
    struct runner_limits limits = bench_limits();
    limits.max_context_tokens = CONTEXT;
    bench_setup_limits(bench, &limits, 1024);
}

static struct result_figures ask(struct rig_session *session)
{
    rig_ping(session, 1);
    rig_advance(session->rig);
    return rig_last(session, RESULT_PONG, 0)->as.pong.figures;
}

static void expect(struct rig_session *session, uint32_t local_pages, uint32_t global_pages,
                   uint32_t slots)
{
    struct result_figures figures = ask(session);
    test_eq_u64(figures.local_quota_left_pages, local_pages);
    test_eq_u64(figures.global_quota_left_pages, global_pages);
    test_eq_u64(BENCH_SLOTS - figures.slots_withheld, slots);
}

/* Long enough for what the elder gave back to move over. */
static void wait_a_while(struct core_bench *bench, struct rig_session *younger)
{
    for (uint32_t i = 0; i < 2; i++) {
        bench->rig.now_ns += 100 * 1000000ULL;
        (void)ask(younger);
    }
}

static void admit_full(struct core_bench *bench, struct rig_session *session, uint64_t seq_id)
{
    struct plan_admit admit = rig_plain_admit(seq_id, bench->prompt, 60, CONTEXT);
    rig_admit(session, &admit);
}

static void end_sequence(struct rig_session *session, uint64_t seq_id)
{
    rig_cancel(session, seq_id);
    rig_release(session, seq_id);
    rig_advance(session->rig);
}

static void test_idle_elder_keeps_room_for_one_request(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup(&bench);
    expect(&bench.session, 40, 80, 6);
    rig_open(&bench.rig, &younger, NULL);
    expect(&bench.session, 13, 16, 3);
    expect(&younger, 27, 64, 3);
    rig_close(&younger);
    expect(&bench.session, 40, 80, 6);
    bench_teardown(&bench);
}

/* What waits in the elder's queue needs pages and a slot, however few there are. */
static void test_idle_elder_keeps_half_of_a_small_pool(void)
{
    struct core_bench bench;
    struct rig_session younger;
    struct runner_limits limits = bench_limits();
    limits.max_context_tokens = 80 * limits.page_tokens; /* a full request: all global pages */
    limits.pages[RUNNER_FAMILY_LOCAL] = 9;               /* less than its prompt would take */
    bench_setup_limits(&bench, &limits, 1024);
    rig_open(&bench.rig, &younger, NULL);
    expect(&bench.session, 6, 40, 3); /* ceil((64 + 16 + 15) / 16) */
    expect(&younger, 3, 40, 3);
    rig_close(&younger);
    bench_teardown(&bench);
}

/* 40 and 80 pages, of which a full request takes all global ones. */
static void setup_tight(struct core_bench *bench)
{
    struct runner_limits limits = bench_limits();
    limits.max_context_tokens = 80 * limits.page_tokens;
    bench_setup_limits(bench, &limits, 1024);
}

static void wait_for(struct rig_session *session, uint32_t local_pages, uint32_t global_pages,
                     bool is_leaving)
{
    const uint32_t pages[RUNNER_FAMILY_COUNT] = {
        [RUNNER_FAMILY_LOCAL] = local_pages, [RUNNER_FAMILY_GLOBAL] = global_pages};
    (void)rig_ping_waiting(session, pages, is_leaving);
    rig_advance(session->rig);
}

/* Figures as last told: by an answer to a PING, or by themselves. */
static void expect_told(const struct rig_session *session, enum result_kind kind,
                        uint32_t global_pages, uint32_t slots)
{
    const struct result_record *record = rig_last(session, kind, 0);
    test_true(record != NULL);
    const struct result_figures *figures =
        kind == RESULT_PONG ? &record->as.pong.figures : &record->as.state.figures;
    test_eq_u64(figures->global_quota_left_pages, global_pages);
    test_eq_u64(BENCH_SLOTS - figures->slots_withheld, slots);
}

static void test_what_waits_at_the_elder_is_kept(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup_tight(&bench);
    wait_for(&bench.session, 6, 60, false);
    rig_open(&bench.rig, &younger, NULL);
    expect(&younger, 27, 20, 3);
    rig_close(&younger);
    wait_for(&bench.session, 6, 4000000000U, false); /* more than there is */
    rig_open(&bench.rig, &younger, NULL);
    expect(&younger, 27, 0, 3);
    rig_close(&younger);
    bench_teardown(&bench);
}

/* It comes when the younger one has half of the pages, and holds some of them. */
static void test_what_waits_at_the_elder_is_taken_back(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup_tight(&bench);
    rig_open(&bench.rig, &younger, NULL);
    expect(&younger, 27, 40, 3);
    struct plan_admit admit = rig_plain_admit(1, bench.prompt, 60, 100); /* 4 pages, 7 at its end */
    rig_admit(&younger, &admit);
    const struct wire_row row = {.seq_id = 1, .start = 0, .count = 60};
    rig_step(&younger, 0, &row, 1);
    bench_run(&bench);
    wait_for(&bench.session, 6, 70, false);
    expect_told(&younger, RESULT_STATE, 10 - 4, 3); /* all but the 70 */
    expect_told(&bench.session, RESULT_PONG, 70, 3);
    wait_for(&bench.session, 6, 80, false);
    expect_told(&younger, RESULT_STATE, 7 - 4, 0); /* it may reach its end, and begin nothing */
    expect_told(&bench.session, RESULT_PONG, 73, 3);
    end_sequence(&younger, 1);
    expect_told(&younger, RESULT_STATE, 0, 3);
    expect_told(&bench.session, RESULT_STATE, 80, 3);
    wait_for(&bench.session, 0, 0, false);
    wait_a_while(&bench, &younger);
    expect(&younger, 27, 40, 3);
    rig_close(&younger);
    bench_teardown(&bench);
}

/* Its own session ended, so that it is the younger one now: nobody can serve what waits there. */
static void test_one_that_leaves_goes_before_an_elder(void)
{
    struct core_bench bench;
    struct rig_session leaving;
    setup_tight(&bench);
    rig_open(&bench.rig, &leaving, NULL);
    expect(&leaving, 27, 40, 3);
    wait_for(&leaving, 6, 60, true);
    expect_told(&leaving, RESULT_PONG, 60, 3);
    expect_told(&bench.session, RESULT_STATE, 20, 3);
    wait_for(&leaving, 0, 0, true);
    wait_a_while(&bench, &bench.session);
    expect(&bench.session, 27, 40, 3);
    rig_close(&leaving);
    expect(&bench.session, 40, 80, 6);
    bench_teardown(&bench);
}

static void test_an_only_slot_stays_with_the_elder(void)
{
    struct core_bench bench;
    struct rig_session younger;
    struct runner_limits limits = bench_limits();
    limits.slots = 1;
    bench_setup_limits(&bench, &limits, 1024);
    rig_open(&bench.rig, &younger, NULL);
    test_eq_u64(ask(&bench.session).slots_withheld, 0);
    test_eq_u64(ask(&younger).slots_withheld, 1);
    rig_close(&bench.session);
    test_eq_u64(ask(&younger).slots_withheld, 0);
    rig_close(&younger);
    rig_open(&bench.rig, &bench.session, NULL);
    bench_teardown(&bench);
}

static void test_admitted_requests_keep_what_they_need(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup(&bench);
    for (uint64_t id = 1; id <= 2; id++) {
        admit_full(&bench, &bench.session, id);
        bench_row(&bench, id, 0, 60);
    }
    bench_run(&bench); /* both decode: 4 pages held of each family, 6 and 16 at most */
    rig_open(&bench.rig, &younger, NULL);
    expect(&bench.session, 12 + 13 - 8, 32 + 16 - 8, 3); /* and room for a full request more */
    expect(&younger, 15, 32, 3);
    admit_full(&bench, &younger, 1);
    expect(&younger, 15, 32, 3); /* nothing is taken before it runs */
    end_sequence(&bench.session, 1);
    expect(&younger, 15, 32, 3); /* the elder may be about to start another */
    expect(&bench.session, 25 - 4, 48 - 4, 3);
    wait_a_while(&bench, &younger);
    expect(&bench.session, 6 + 13 - 4, 16 + 16 - 4, 3);
    expect(&younger, 21, 48, 3); /* what is given back moves over */
    end_sequence(&bench.session, 2);
    wait_a_while(&bench, &younger);
    expect(&bench.session, 13, 16, 3);
    rig_close(&bench.session);
    expect(&younger, 40, 80, 6);
    rig_close(&younger);
    rig_open(&bench.rig, &bench.session, NULL);
    bench_teardown(&bench);
}

static void test_elder_is_cut_to_the_pool_less_a_full_request(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup(&bench);
    for (uint64_t id = 1; id <= 5; id++) {
        admit_full(&bench, &bench.session, id);
    }
    bench_row(&bench, 1, 0, 60);
    bench_run(&bench);
    rig_open(&bench.rig, &younger, NULL);
    /* owed: 6 + 4 x 13 local, 5 x 16 global, of which 4 are held; at most 27 and 64 by the rule, but
     * STEPs on their way may take 2 x (8 + 5) */
    expect(&bench.session, 26, 64 - 4, 3);
    expect(&younger, 40 - 30, 16, 1);
    for (uint64_t id = 2; id <= 3; id++) {
        end_sequence(&bench.session, id);
    }
    wait_a_while(&bench, &younger);
    expect(&younger, 13, 16, 3);
    end_sequence(&bench.session, 4);
    wait_a_while(&bench, &younger);
    expect(&younger, 13, 32, 3); /* owed: 6 + 13 and 2 x 16 */
    rig_close(&younger);
    bench_teardown(&bench);
}

/* The most that may be cut leaves one of them what it needs to end. */
static void test_a_held_pool_leaves_one_request_its_end(void)
{
    struct core_bench bench;
    struct rig_session younger;
    struct runner_limits limits = bench_limits();
    limits.max_context_tokens = 1024; /* a full request: 64 of the 80 global pages */
    bench_setup_limits(&bench, &limits, 1024);
    for (uint64_t id = 1; id <= 5; id++) {
        struct plan_admit admit = rig_plain_admit(id, bench.prompt, 60, id == 1 ? 400 : 80);
        rig_admit(&bench.session, &admit);
        bench_row(&bench, id, 0, 60);
    }
    bench_run(&bench);
    rig_open(&bench.rig, &younger, NULL);
    /* 20 pages are held.  Local: the rule leaves 27.  Global: 21 + 4 more are owed, beyond the 16 of
     * the rule, and the STEPs on their way alone may take 26 */
    expect(&bench.session, 27 - 20, 25, 3);
    expect(&younger, 13, 80 - 45, 1);
    rig_close(&younger);
    bench_teardown(&bench);
}

static void test_what_was_granted_is_not_taken_back(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup(&bench);
    rig_open(&bench.rig, &younger, NULL);
    expect(&younger, 27, 64, 3);
    /* Sent before the elder knew of the other. */
    for (uint64_t id = 1; id <= 5; id++) {
        admit_full(&bench, &bench.session, id);
    }
    expect(&younger, 27, 64, 1); /* the elder has more than its share alive */
    expect(&bench.session, 13, 16, 3);
    struct session_stats stats;
    session_core_stats(bench.rig.core, &stats);
    test_eq_u64(stats.sequences, 5);
    rig_close(&younger);
    bench_teardown(&bench);
}

static void test_admit_without_a_slot_left_is_busy(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup(&bench);
    for (uint64_t id = 1; id <= BENCH_SLOTS; id++) {
        admit_full(&bench, &bench.session, id);
    }
    rig_advance(&bench.rig);
    rig_open(&bench.rig, &younger, NULL);
    expect(&younger, 40 - 28, 16, 0);
    admit_full(&bench, &younger, 1); /* against its figures; what is behind it does not wait */
    rig_ping(&younger, 7);
    rig_advance(&bench.rig);
    test_eq_u64(rig_last(&younger, RESULT_REFUSED, 1)->as.refused.code, ERR_BUSY);
    test_eq_u64(rig_last(&younger, RESULT_PONG, 0)->as.pong.nonce, 7);
    end_sequence(&bench.session, 4);
    wait_a_while(&bench, &younger);
    test_eq_u64(ask(&younger).slots_withheld, 5);
    admit_full(&bench, &younger, 2);
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&younger, RESULT_ADMITTED, 2), 1);
    /* Its own slots are full without the other: that is refused. */
    rig_close(&bench.session);
    for (uint64_t id = 3; id <= BENCH_SLOTS + 2; id++) {
        admit_full(&bench, &younger, id);
    }
    rig_advance(&bench.rig);
    test_eq_u64(rig_count(&younger, RESULT_REFUSED, BENCH_SLOTS + 2), 1);
    rig_close(&younger);
    rig_open(&bench.rig, &bench.session, NULL);
    bench_teardown(&bench);
}

/* Until a prompt is committed none of its pages returns, and decode rows may be on their way already. */
static void test_a_prompt_in_flight_leaves_room_to_decode(void)
{
    struct core_bench bench;
    struct rig_session younger;
    struct runner_limits limits = bench_limits();
    limits.max_context_tokens = CONTEXT;
    limits.pipeline_depth = 3;
    bench_setup_limits(&bench, &limits, 1024);
    uint32_t prompt[128];
    for (uint32_t i = 0; i < 128; i++) {
        prompt[i] = i % 80;
    }
    for (uint64_t id = 1; id <= 2; id++) {
        struct plan_admit admit = rig_plain_admit(id, prompt, 128, 200);
        rig_admit(&bench.session, &admit);
        bench_row(&bench, id, 0, 128);
    }
    rig_advance(&bench.rig);
    rig_open(&bench.rig, &younger, NULL);
    const struct wire_row rows[] = {{.seq_id = 1}, {.seq_id = 2}}; /* a page each */
    rig_step(&bench.session, 0, rows, 2);
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 0), 4);
    rig_close(&younger);
    bench_teardown(&bench);
}

/* Admissions that were on their way do not take for a reused prefix what STEPs on theirs were promised. */
static void test_a_reused_prefix_leaves_steps_their_pages(void)
{
    struct core_bench bench;
    struct rig_session younger;
    struct runner_limits limits = bench_limits();
    limits.max_context_tokens = CONTEXT;
    bench_setup_prefixes(&bench, &limits);
    uint32_t prompt[200];
    for (uint32_t i = 0; i < 200; i++) {
        prompt[i] = i % 80;
    }
    struct plan_admit admit = rig_plain_admit(1, prompt, 200, 201);
    rig_admit(&bench.session, &admit);
    bench_row(&bench, 1, 0, 128);
    bench_run(&bench);
    bench_row(&bench, 1, 128, 72);
    bench_run(&bench);
    rig_release(&bench.session, 1);
    admit = rig_plain_admit(2, bench.prompt, 60, 80);
    rig_admit(&bench.session, &admit);
    rig_advance(&bench.rig);
    rig_open(&bench.rig, &younger, NULL);
    expect(&bench.session, 5 + 13, 5 + 16, 3);
    for (uint64_t id = 3; id <= 5; id++) {
        admit = rig_plain_admit(id, prompt, 200, 216); /* each would pin 4 local pages */
        rig_admit(&bench.session, &admit);
    }
    bench_row(&bench, 2, 0, 60); /* 4 more */
    bench_run(&bench);
    test_eq_u64(rig_count(&bench.session, RESULT_ADMITTED, 0), 5);
    test_eq_u64(rig_count(&bench.session, RESULT_REFUSED, 0), 0);
    test_eq_u64(rig_count(&bench.session, RESULT_TOKEN, 2), 1);
    rig_close(&younger);
    bench_teardown(&bench);
}

/* Figures that change by the other session's doing are told without being asked for. */
static void test_moved_pages_are_told(void)
{
    struct core_bench bench;
    struct rig_session younger;
    setup(&bench);
    for (uint64_t id = 1; id <= 4; id++) {
        admit_full(&bench, &bench.session, id);
    }
    rig_advance(&bench.rig);
    rig_open(&bench.rig, &younger, NULL);
    rig_advance(&bench.rig);
    const struct result_record *state = rig_last(&younger, RESULT_STATE, 0);
    test_eq_u64(state->as.state.figures.global_quota_left_pages, 16);
    test_eq_u64(state->as.state.figures.slots_withheld, 4);
    state = rig_last(&bench.session, RESULT_STATE, 0);
    test_eq_u64(state->as.state.figures.global_quota_left_pages, 64);
    test_eq_u64(state->as.state.figures.slots_withheld, 3); /* half, at once */
    end_sequence(&bench.session, 1);
    end_sequence(&bench.session, 2);
    for (uint32_t i = 0; i < 2; i++) {
        bench.rig.now_ns += 100 * 1000000ULL;
        rig_advance(&bench.rig);
    }
    state = rig_last(&younger, RESULT_STATE, 0);
    test_eq_u64(state->as.state.figures.global_quota_left_pages, 32);
    test_eq_u64(state->as.state.figures.slots_withheld, 3);
    rig_close(&bench.session);
    rig_advance(&bench.rig);
    state = rig_last(&younger, RESULT_STATE, 0);
    test_eq_u64(state->as.state.figures.global_quota_left_pages, 80);
    test_eq_u64(state->as.state.figures.slots_withheld, 0);
    rig_close(&younger);
    rig_open(&bench.rig, &bench.session, NULL);
    bench_teardown(&bench);
}

/* A reader that stalls stops its own session's steps only. */
static void test_full_ring_stops_its_own_session(void)
{
    struct core_bench bench;
    struct rig_session younger;
    struct runner_limits limits = bench_limits();
    bench_setup_limits(&bench, &limits, 8);
    rig_open(&bench.rig, &younger, NULL);
    struct rig_session *both[] = {&bench.session, &younger};
    for (uint32_t s = 0; s < 2; s++) {
        struct plan_admit admit = rig_plain_admit(1, bench.prompt, 5, 100);
        rig_admit(both[s], &admit);
        struct wire_row row = {.seq_id = 1, .count = 5};
        rig_step(both[s], 0, &row, 1);
    }
    for (uint32_t i = 0; i < 20; i++) {
        struct wire_row row = {.seq_id = 1};
        rig_step(&bench.session, 0, &row, 1);
        rig_step(&younger, 0, &row, 1);
        rig_advance(&bench.rig);
        (void)model_runner_complete(bench.runner, 8);
        rig_advance(&bench.rig);
        rig_read_all(&younger); /* the elder's are never read */
    }
    test_eq_u64(rig_count(&younger, RESULT_STEP_DONE, 0), 21);
    test_true(rig_count(&bench.session, RESULT_STEP_DONE, 0) < 6);
    rig_read_all(&bench.session);
    for (uint32_t i = 0; i < 20; i++) {
        bench_run(&bench);
        rig_read_all(&bench.session);
    }
    test_eq_u64(rig_count(&bench.session, RESULT_STEP_DONE, 0), 21); /* nothing was lost */
    rig_close(&younger);
    bench_teardown(&bench);
}

static const struct test_case cases[] = {
    TEST(test_idle_elder_keeps_room_for_one_request),
    TEST(test_idle_elder_keeps_half_of_a_small_pool),
    TEST(test_what_waits_at_the_elder_is_kept),
    TEST(test_what_waits_at_the_elder_is_taken_back),
    TEST(test_one_that_leaves_goes_before_an_elder),
    TEST(test_an_only_slot_stays_with_the_elder),
    TEST(test_admitted_requests_keep_what_they_need),
    TEST(test_elder_is_cut_to_the_pool_less_a_full_request),
    TEST(test_a_held_pool_leaves_one_request_its_end),
    TEST(test_what_was_granted_is_not_taken_back),
    TEST(test_admit_without_a_slot_left_is_busy),
    TEST(test_a_prompt_in_flight_leaves_room_to_decode),
    TEST(test_a_reused_prefix_leaves_steps_their_pages),
    TEST(test_moved_pages_are_told),
    TEST(test_full_ring_stops_its_own_session),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
