/* Masks of constrained requests: asked for in order, each before a row that samples under it. */
#include <string.h>

#include "frontend/constraint.h"
#include "frontend/request.h"
#include "tests/testlib/sched_rig.h"
#include "tests/testlib/test.h"

enum {
    PROMPT = 40,
    OUTPUT = 12
};

/* Counts what the scheduler asks; the model worker samples without it. */
struct counted {
    struct constraint base;
    uint32_t asked;
    uint32_t released;
};

static void fill(struct constraint *constraint, const uint32_t *output, uint32_t count,
                 uint32_t *words, uint32_t word_count)
{
    (void)constraint;
    (void)output;
    (void)count;
    memset(words, 0xff, word_count * sizeof(*words));
}

static void release(struct constraint *constraint)
{
    ((struct counted *)constraint)->released++;
}

static void on_mask(void *owner, const struct req *req, uint32_t lane)
{
    const struct rig *rig = owner;
    struct counted *counted = (struct counted *)req->constraint;
    test_true(lane < rig->model_options.limits.slots);
    test_eq_u64(req->next_position, req->token_count);
    test_true(req->account.launched_tokens <= req->token_count);
    counted->asked++;
}

static struct engine_request constrained(struct rig_request *request, struct counted *counted)
{
    struct engine_request made = rig_engine_request(request, PROMPT, OUTPUT, 1);
    *counted = (struct counted){.base = {.fill = fill, .release = release}};
    made.admit.constrained = true;
    made.constraint = &counted->base;
    return made;
}

static void setup(struct rig *rig)
{
    struct model_options model = rig_model_options();
    struct sched_options options = rig_sched_options();
    options.mask = on_mask;
    rig_init(rig, &model, &options);
}

static void test_a_mask_for_each_token_and_no_row_ahead_of_it(void)
{
    struct rig rig;
    struct rig_request request;
    struct counted counted;
    struct err err;
    setup(&rig);
    const struct engine_request one = constrained(&request, &counted);
    test_ok(rig_submit(&rig, &request, &one, &err), &err);
    rig_run_idle(&rig, RIG_LONG_NS);
    rig_check_length(&request, OUTPUT);
    test_eq_u64(counted.asked, OUTPUT);
    test_eq_u64(counted.released, 1);
    for (uint32_t i = 0; i < rig_count_sent(&rig, PLAN_STEP); i++) {
        test_eq_u64(rig_nth_sent(&rig, PLAN_STEP, i)->outstanding, 1);
    }
    rig_check_all_returned(&rig);
    rig_fini(&rig);
}

static void test_others_run_ahead_beside_it(void)
{
    struct rig rig;
    struct rig_request request;
    struct rig_request plain;
    struct counted counted;
    struct err err;
    uint32_t most = 0;
    setup(&rig);
    const struct engine_request one = constrained(&request, &counted);
    test_ok(rig_submit(&rig, &request, &one, &err), &err);
    rig_add(&rig, &plain, PROMPT, 4 * OUTPUT);
    rig_run_idle(&rig, RIG_LONG_NS);
    for (uint32_t i = 0; i < rig_count_sent(&rig, PLAN_STEP); i++) {
        uint32_t outstanding = rig_nth_sent(&rig, PLAN_STEP, i)->outstanding;
        most = outstanding > most ? outstanding : most;
    }
    test_true(most > 1);
    rig_check_length(&request, OUTPUT);
    rig_check_length(&plain, 4 * OUTPUT);
    test_eq_u64(counted.asked, OUTPUT);
    rig_fini(&rig);
}

static void test_a_constraint_is_released_however_it_ends(void)
{
    for (uint32_t is_detached = 0; is_detached < 2; is_detached++) {
        struct rig rig;
        struct rig_request request;
        struct counted counted;
        struct err err;
        setup(&rig);
        const struct engine_request one = constrained(&request, &counted);
        test_ok(rig_submit(&rig, &request, &one, &err), &err);
        rig_run_to(&rig, rig.now_ns + 50 * RIG_MS);
        if (is_detached != 0) {
            rig_detach(&rig);
        } else {
            rig_cancel(&rig, &request);
        }
        rig_run_to(&rig, rig.now_ns + 1000 * RIG_MS);
        test_eq_u64(request.ended, 1);
        test_eq_u64(counted.released, 1);
        rig_fini(&rig);
    }
}

static const struct test_case cases[] = {
    TEST(test_a_mask_for_each_token_and_no_row_ahead_of_it),
    TEST(test_others_run_ahead_beside_it),
    TEST(test_a_constraint_is_released_however_it_ends),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
