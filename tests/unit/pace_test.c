/* The cost of a step, learned from steps of known cost. */
#include "frontend/pace.h"

#include "tests/testlib/test.h"

struct truth {
    double fixed_ns;
    double token_ns;
    double pair_ns;
};

static uint64_t took(const struct truth *truth, const struct pace_load *load)
{
    return (uint64_t)(truth->fixed_ns + truth->token_ns * (double)load->tokens +
                      truth->pair_ns * (double)load->pairs);
}

/* A step that was planned for target_ns takes this. */
static double planned_ns(const struct pace *pace, const struct truth *truth, uint32_t start,
                         uint64_t target_ns)
{
    struct pace_load load = {0};
    pace_add(&load, start, pace_fit(pace, start, pace_room_ns(pace, target_ns)));
    return (double)took(truth, &load);
}

static bool is_near(double value, double wanted, double part)
{
    return value > wanted * (1.0 - part) && value < wanted * (1.0 + part);
}

static void test_nothing_fits_while_nothing_is_known(void)
{
    struct pace pace = {0};
    test_eq_u64(pace_fit(&pace, 0, 1e9), 0);
}

static void test_one_prompt_step_is_enough_to_begin_with(void)
{
    static const struct truth truth = {7e6, 40e3, 0};
    struct pace pace = {0};
    struct pace_load load = {0};
    pace_add(&load, 0, 1000);
    pace_observe(&pace, &load, took(&truth, &load));
    test_true(is_near(planned_ns(&pace, &truth, 0, 50000000), 50e6, 0.25));
}

/* Decode steps, steps of both, prompts that reach far. */
static void test_every_term_is_found(void)
{
    static const struct truth truth = {7e6, 40e3, 2.5};
    struct pace pace = {0};
    uint64_t random = 5;
    for (uint32_t i = 0; i < 3000; i++) {
        struct pace_load load = {0};
        if (test_random(&random) % 3 > 0) {
            pace_add(&load, (uint32_t)(test_random(&random) % 60000),
                     (uint32_t)(test_random(&random) % 1000));
        }
        /* a fifth more or less, at random */
        uint64_t noisy_ns = took(&truth, &load) * (80 + test_random(&random) % 41) / 100;
        pace_observe(&pace, &load, noisy_ns);
    }
    for (uint32_t start = 0; start <= 60000; start += 20000) {
        test_true(is_near(planned_ns(&pace, &truth, start, 50000000), 50e6, 0.3));
    }
}

/* Nothing but steps of both: the three cannot be told apart, what is planned is right still. */
static void test_what_is_planned_converges_without_pure_steps(void)
{
    static const struct truth truth = {12e6, 500e3, 30.0};
    struct pace pace = {0};
    struct pace_load first = {0};
    pace_add(&first, 0, 300);
    pace_observe(&pace, &first, took(&truth, &first));
    uint32_t start = 0;
    for (uint32_t i = 0; i < 200; i++) {
        struct pace_load load = {0};
        uint32_t count = pace_fit(&pace, start, pace_room_ns(&pace, 50000000));
        test_true(count > 0);
        pace_add(&load, start, count);
        start += count;
        test_true(i < 5 || took(&truth, &load) < 75000000);
        test_true(i < 5 || took(&truth, &load) > 30000000);
        pace_observe(&pace, &load, took(&truth, &load));
    }
}

static void test_one_slow_step_changes_little_and_a_slow_worker_all(void)
{
    static const struct truth truth = {7e6, 40e3, 0};
    static const struct truth slow = {21e6, 120e3, 0};
    struct pace pace = {0};
    struct pace_load none = {0};
    struct pace_load load = {0};
    pace_add(&load, 0, 800);
    for (uint32_t i = 0; i < 100; i++) {
        pace_observe(&pace, &none, took(&truth, &none));
        pace_observe(&pace, &load, took(&truth, &load));
    }
    pace_observe(&pace, &load, 5000000000);
    test_true(is_near(planned_ns(&pace, &truth, 0, 50000000), 50e6, 0.35));
    for (uint32_t i = 0; i < 20; i++) {
        pace_observe(&pace, &none, took(&slow, &none));
        pace_observe(&pace, &load, took(&slow, &load));
    }
    test_true(is_near(planned_ns(&pace, &slow, 0, 50000000), 50e6, 0.1));
}

/* A clock that said almost nothing at first is got over. */
static void test_what_was_learned_too_small_grows(void)
{
    static const struct truth truth = {7e6, 40e3, 0};
    struct pace pace = {0};
    struct pace_load load = {0};
    pace_add(&load, 0, 500);
    for (uint32_t i = 0; i < 10; i++) {
        pace_observe(&pace, &load, 1);
    }
    for (uint32_t i = 0; i < 40; i++) {
        pace_observe(&pace, &load, took(&truth, &load));
    }
    test_true(is_near(planned_ns(&pace, &truth, 0, 30000000), 30e6, 0.3));
}

static void test_prompts_have_a_quarter_at_least(void)
{
    struct pace pace = {.fixed_ns = 90e6, .token_ns = 100e3, .observed_steps = 4};
    test_true(is_near(pace_room_ns(&pace, 40000000), 10e6, 0.001));
    test_eq_u64(pace_fit(&pace, 0, pace_room_ns(&pace, 40000000)), 100);
}

static const struct test_case cases[] = {
    TEST(test_nothing_fits_while_nothing_is_known),
    TEST(test_one_prompt_step_is_enough_to_begin_with),
    TEST(test_every_term_is_found),
    TEST(test_what_is_planned_converges_without_pure_steps),
    TEST(test_one_slow_step_changes_little_and_a_slow_worker_all),
    TEST(test_what_was_learned_too_small_grows),
    TEST(test_prompts_have_a_quarter_at_least),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
