#include "frontend/request.h"

#include <string.h>

#include "tests/testlib/test.h"

static void on_event(void *owner, const struct engine_event *event)
{
    (void)owner;
    (void)event;
}

static const uint32_t prompt[] = {5, 6, 7};

static struct engine_request plain(void)
{
    return (struct engine_request){
        .admit = {.prompt = {.at = prompt, .count = 3}, .output_start = 3, .max_total = 10},
        .on_event = on_event,
    };
}

/* Marks what one more event reaches from the states marked so far. */
static void spread(bool *is_reached)
{
    for (enum req_state at = REQ_STATE_QUEUED; at < REQ_STATE_COUNT; at++) {
        for (enum req_event event = 0; is_reached[at] && event < REQ_EVENT_COUNT; event++) {
            is_reached[req_next(at, event)] = true;
        }
    }
}

static void test_every_state_leads_to_gone(void)
{
    for (enum req_state from = REQ_STATE_QUEUED; from < REQ_STATE_GONE; from++) {
        bool is_reached[REQ_STATE_COUNT] = {false};
        is_reached[from] = true;
        for (uint32_t i = 0; i < REQ_STATE_COUNT; i++) {
            spread(is_reached);
        }
        test_true(is_reached[REQ_STATE_GONE]);
        /* back to the queue by preemption alone, never from the end */
        test_true(is_reached[REQ_STATE_QUEUED] == (from != REQ_STATE_ENDED));
    }
}

static void test_gone_and_ended_are_final(void)
{
    for (enum req_event event = 0; event < REQ_EVENT_COUNT; event++) {
        test_eq_u64(req_next(REQ_STATE_GONE, event), REQ_STATE_INVALID);
        enum req_state to = req_next(REQ_STATE_ENDED, event);
        test_true(to == REQ_STATE_INVALID || to == REQ_STATE_GONE);
    }
}

static void test_the_usual_life(void)
{
    struct err err;
    struct req *req = NULL;
    struct engine_request request = plain();
    test_ok(req_create(&request, &req, &err), &err);
    static const enum req_event events[] = {
        REQ_EVENT_ADMIT,   REQ_EVENT_ADMITTED, REQ_EVENT_PLANNED, REQ_EVENT_UNPLANNED,
        REQ_EVENT_PLANNED, REQ_EVENT_END,      REQ_EVENT_RELEASE};
    static const enum req_state states[] = {REQ_STATE_ADMITTING, REQ_STATE_PROMPT, REQ_STATE_DECODE,
                                            REQ_STATE_PROMPT,    REQ_STATE_DECODE, REQ_STATE_ENDED,
                                            REQ_STATE_GONE};
    test_eq_u64(req->state, REQ_STATE_QUEUED);
    for (uint32_t i = 0; i < 7; i++) {
        test_eq_u64(req_is_live(req), i < 6);
        req_step(req, events[i]);
        test_eq_u64(req->state, states[i]);
    }
    req_destroy(req);
}

static void test_output_becomes_prompt_when_preempted(void)
{
    struct err err;
    struct req *req = NULL;
    struct engine_request request = plain();
    request.admit.prompt_logprobs = 1;
    request.admit.max_total = 1000;
    test_ok(req_create(&request, &req, &err), &err);
    req_step(req, REQ_EVENT_ADMIT);
    req_step(req, REQ_EVENT_ADMITTED);
    req_step(req, REQ_EVENT_PREEMPT);
    test_true(req_is_live(req));
    req_requeue(req);
    test_eq_u64(req->state, REQ_STATE_QUEUED);
    test_eq_u64(req->admit.prompt.count, 3);
    test_eq_u64(req->admit.prompt_logprobs, 1); /* not all were told */
    req_step(req, REQ_EVENT_ADMIT);
    req_step(req, REQ_EVENT_ADMITTED);
    req_step(req, REQ_EVENT_PLANNED);
    for (uint32_t i = 0; i < 500; i++) {
        req_push_output(req, 100 + i);
        test_true(req_check(req) || req->account.launched_tokens < 3);
    }
    req_step(req, REQ_EVENT_PREEMPT);
    req_requeue(req);
    test_eq_u64(req->admit.output_start, 3);
    test_eq_u64(req->admit.prompt.count, 503);
    test_eq_u64(req->admit.prompt.at[2], 7);
    test_eq_u64(req->admit.prompt.at[3], 100);
    test_eq_u64(req->admit.prompt.at[502], 599);
    test_eq_u64(req->admit.prompt_logprobs, 0);
    test_true(req_check(req));
    req_destroy(req);
}

static void test_arrays_are_copied(void)
{
    struct err err;
    struct req *req = NULL;
    uint32_t tokens[2] = {1, 2};
    uint32_t stops[1] = {9};
    uint32_t suppressed[2] = {3, 4};
    struct wire_bias bias[1] = {{.token = 8, .bias = -1.5F}};
    struct engine_request request = plain();
    request.admit.prompt = (struct wire_u32_array){.at = tokens, .count = 2};
    request.admit.output_start = 2;
    request.admit.stop_ids = (struct wire_u32_array){.at = stops, .count = 1};
    request.admit.suppress_ids = (struct wire_u32_array){.at = suppressed, .count = 2};
    request.admit.logit_bias = (struct wire_bias_array){.at = bias, .count = 1};
    test_ok(req_create(&request, &req, &err), &err);
    memset(tokens, 0xff, sizeof(tokens));
    memset(stops, 0xff, sizeof(stops));
    memset(suppressed, 0xff, sizeof(suppressed));
    memset(bias, 0xff, sizeof(bias));
    test_eq_u64(req->admit.prompt.at[1], 2);
    test_eq_u64(req->admit.stop_ids.at[0], 9);
    test_eq_u64(req->admit.suppress_ids.at[1], 4);
    test_eq_u64(req->admit.logit_bias.at[0].token, 8);
    req_destroy(req);
}

static void expect_refused(const struct engine_request *request, enum err_code code,
                           const char *message)
{
    struct err err;
    struct req *req = NULL;
    test_eq_u64(req_create(request, &req, &err), code);
    test_eq_str(err.message, message);
    test_true(req == NULL);
}

static void test_bounds_name_value_and_limit(void)
{
    struct engine_request request = plain();
    request.admit.prompt.count = 0;
    expect_refused(&request, ERR_ARGUMENT, "the prompt is empty: at least 1 token is needed");
    request = plain();
    request.admit.max_total = 3;
    expect_refused(&request, ERR_ARGUMENT,
                   "max_total is 3 tokens: the prompt of 3 leaves no room for output");
    request = plain();
    request.admit.prompt.count = PLAN_MAX_PROMPT_TOKENS + 1;
    expect_refused(&request, ERR_LIMIT, "the prompt has 1048577 tokens, at most 1048576");
    request = plain();
    request.admit.output_start = 4;
    expect_refused(&request, ERR_ARGUMENT, "output_start is 4, the prompt has 3 tokens");
    request = plain();
    request.admit.stop_ids.count = 17;
    expect_refused(&request, ERR_LIMIT, "17 stop ids, at most 16");
    request = plain();
    request.admit.logprobs = 22;
    expect_refused(&request, ERR_LIMIT, "logprobs of 21 tokens, at most 20");
    request = plain();
    request.admit.constrained = true;
    expect_refused(&request, ERR_ARGUMENT, "constrained is 1: the constraint is missing");
    request = plain();
    request.on_event = NULL;
    expect_refused(&request, ERR_ARGUMENT, "a request needs an event callback");
}

static const struct test_case cases[] = {
    TEST(test_every_state_leads_to_gone),
    TEST(test_gone_and_ended_are_final),
    TEST(test_the_usual_life),
    TEST(test_output_becomes_prompt_when_preempted),
    TEST(test_arrays_are_copied),
    TEST(test_bounds_name_value_and_limit),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
