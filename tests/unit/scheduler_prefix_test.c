/* Which requests wait for another to compute what they begin with.  All prompts of the rig are alike;
 * its worker reuses nothing, so that only the waiting is seen. */
#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

enum {
    PROMPT = 200,
    OUTPUT = 4
};

static void setup(struct rig *rig, bool has_prefix_cache)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.prefix_cache = has_prefix_cache;
    options.max_step_tokens = 32;
    rig_init(rig, &model, &options);
}

static struct engine_request plain(struct rig_request *request)
{
    return rig_engine_request(request, PROMPT, OUTPUT, 1);
}

static void submit(struct rig *rig, struct rig_request *request,
                   const struct engine_request *engine_request)
{
    struct err err;
    test_ok(rig_submit(rig, request, engine_request, &err), &err);
}

/* As before it was submitted. */
static void renew(struct rig_request *request)
{
    *request = (struct rig_request){.seed = request->seed,
                                    .prompt_count = request->prompt_count,
                                    .max_total = request->max_total};
}

/* Two requests; whether the second is admitted while the first computes its prompt. */
static bool is_admitted_beside(bool has_prefix_cache, const struct engine_request *first_request,
                               struct rig_request *first,
                               const struct engine_request *second_request,
                               struct rig_request *second)
{
    struct rig rig;
    setup(&rig, has_prefix_cache);
    renew(first);
    renew(second);
    submit(&rig, first, first_request);
    rig_run_to(&rig, rig.now_ns + 2 * RIG_MS);
    submit(&rig, second, second_request);
    rig_run_to(&rig, rig.now_ns + 15 * RIG_MS);
    test_eq_u64(first->admitted, 1);
    test_eq_u64(first->token_count, 0);
    bool is_beside = second->admitted == 1;
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(first, OUTPUT);
    rig_check_length(second, OUTPUT);
    rig_check_all_returned(&rig);
    rig_fini(&rig);
    return is_beside;
}

static void test_a_prefix_that_is_being_computed_is_waited_for(void)
{
    struct rig_request first;
    struct rig_request second;
    const struct engine_request one = plain(&first);
    const struct engine_request two = plain(&second);
    test_true(!is_admitted_beside(true, &one, &first, &two, &second));
    test_true(second.first_token_ns > first.first_token_ns);
    test_true(is_admitted_beside(false, &one, &first, &two, &second));
}

static void test_what_cannot_be_reused_is_not_waited_for(void)
{
    struct rig_request first;
    struct rig_request second;
    const struct engine_request one = plain(&first);
    struct engine_request salted = plain(&second);
    salted.admit.cache_salt = 5;
    test_true(is_admitted_beside(true, &one, &first, &salted, &second));
    struct engine_request asking = plain(&second);
    asking.admit.prompt_logprobs = 1;
    test_true(is_admitted_beside(true, &one, &first, &asking, &second));
    uint32_t other[PROMPT] = {7};
    struct engine_request differing = plain(&second);
    differing.admit.prompt.at = other;
    test_true(is_admitted_beside(true, &one, &first, &differing, &second));
    struct engine_request brief = rig_engine_request(&second, 40, OUTPUT, 1); /* too little */
    test_true(is_admitted_beside(true, &one, &first, &brief, &second));
}

static void test_choices_wait_for_a_page(void)
{
    struct rig_request first;
    struct rig_request second;
    struct engine_request one = rig_engine_request(&first, 60, OUTPUT, 1);
    struct engine_request two = rig_engine_request(&second, 60, OUTPUT, 1);
    one.group = 7;
    two.group = 8;
    test_true(is_admitted_beside(true, &one, &first, &two, &second));
    two.group = 7;
    test_true(!is_admitted_beside(true, &one, &first, &two, &second));
}

static void test_higher_standing_does_not_wait(void)
{
    struct rig_request first;
    struct rig_request second;
    const struct engine_request one = plain(&first);
    struct engine_request urgent = plain(&second);
    urgent.priority = -1;
    test_true(is_admitted_beside(true, &one, &first, &urgent, &second));
}

/* When the first has it they all go; when it is gone the next one computes. */
static void test_all_go_on_at_once(void)
{
    for (uint32_t is_cancelled = 0; is_cancelled < 2; is_cancelled++) {
        struct rig rig;
        struct rig_request requests[4];
        setup(&rig, true);
        for (uint32_t i = 0; i < 4; i++) {
            const struct engine_request request = plain(&requests[i]);
            submit(&rig, &requests[i], &request);
        }
        rig_run_to(&rig, rig.now_ns + 15 * RIG_MS);
        test_eq_u64(requests[0].admitted, 1);
        test_eq_u64(requests[1].admitted + requests[2].admitted + requests[3].admitted, 0);
        if (is_cancelled != 0) {
            rig_cancel(&rig, &requests[0]);
            rig_run_to(&rig, rig.now_ns + 5 * RIG_MS);
            test_eq_u64(requests[1].admitted, 1);
            test_eq_u64(requests[2].admitted, 0);
        }
        uint64_t start_ns = rig.now_ns;
        while (requests[3].admitted == 0 && rig.now_ns < start_ns + RIG_LONG_NS) {
            rig_run_to(&rig, rig.now_ns + RIG_MS);
        }
        test_eq_u64(requests[2].admitted, 1);
        rig_run_idle(&rig, RIG_LONG_NS);
        for (uint32_t i = is_cancelled; i < 4; i++) {
            rig_check_length(&requests[i], OUTPUT);
        }
        rig_fini(&rig);
    }
}

/* Others pass the one that waits, no more often than they pass anybody. */
static void test_waiting_is_bounded(void)
{
    struct rig rig;
    struct rig_request first;
    struct rig_request waiting;
    struct rig_request others[SCHED_MAX_OVERTAKES + 2];
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    model.limits.prefix_cache = true;
    model.limits.max_step_tokens = 16;
    options.max_step_tokens = 8;
    rig_init(&rig, &model, &options);
    struct engine_request request = plain(&first);
    submit(&rig, &first, &request);
    rig_run_to(&rig, rig.now_ns + RIG_MS);
    request = plain(&waiting);
    submit(&rig, &waiting, &request);
    uint32_t other[2] = {3, 4};
    uint32_t passed = 0;
    for (uint32_t i = 0; i < SCHED_MAX_OVERTAKES + 2 && waiting.admitted == 0; i++) {
        request = rig_engine_request(&others[i], 2, 1, i);
        request.admit.prompt.at = other;
        submit(&rig, &others[i], &request);
        rig_run_to(&rig, rig.now_ns + 5 * RIG_MS);
        passed += others[i].admitted;
    }
    test_true(passed > 2);
    test_true(passed <= SCHED_MAX_OVERTAKES + 1);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&waiting, OUTPUT);
    rig_fini(&rig);
}

static const struct test_case cases[] = {
    TEST(test_a_prefix_that_is_being_computed_is_waited_for),
    TEST(test_what_cannot_be_reused_is_not_waited_for),
    TEST(test_choices_wait_for_a_page),
    TEST(test_higher_standing_does_not_wait),
    TEST(test_all_go_on_at_once),
    TEST(test_waiting_is_bounded),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
