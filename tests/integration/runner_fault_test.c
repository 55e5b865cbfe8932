/* A backend's runner when things fail: failed, doomed, lost, frozen and refused steps. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/demo_rig.h"
#include "tests/testlib/test.h"

/* Step `failing` fails and so does the one launched after it; both are launched again. */
static void check_failure(const char *inject, const uint32_t *expected)
{
    struct demo_rig *rig = demo_rig_create(inject);
    struct plan_admit admit = demo_admit(rig, 0);
    struct runner_result result;
    uint32_t tokens[8];
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    result = driver_step(rig->driver, &row, 1);
    tokens[0] = result.picks[0].token;
    struct driver_row decode = {.slot = 0};
    for (uint32_t i = 1; i < 8;) {
        driver_launch(rig->driver, &decode, 1);
        driver_launch(rig->driver, &decode, 1);
        driver_collect(rig->driver, &decode, 1, &result);
        bool has_failed = result.status != ERR_OK;
        if (has_failed) {
            test_eq_u64(result.status, ERR_STEP);
            test_true(strstr(result.error.message, "injected") != NULL);
        } else {
            tokens[i++] = result.picks[0].token;
        }
        driver_collect(rig->driver, &decode, 1, &result);
        test_eq_u64(result.status, has_failed ? ERR_STEP : ERR_OK);
        if (!has_failed && i < 8) {
            tokens[i++] = result.picks[0].token;
        }
    }
    test_true(memcmp(tokens, expected, sizeof(tokens)) == 0);
    demo_rig_destroy(rig);
}

static void test_failed_steps_move_nothing(void)
{
    struct demo_rig *rig = demo_rig_create(NULL);
    struct plan_admit admit = demo_admit(rig, 0);
    uint32_t expected[8];
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 256, expected, 8), 8);
    demo_rig_destroy(rig);
    check_failure("forward:4", expected);
    check_failure("sample:2", expected);
}

/* The pages of a failed prompt step stay granted: the step that runs it again sends no patch. */
static void test_patches_of_a_failed_step_hold(void)
{
    struct demo_rig *rig = demo_rig_create("forward:1");
    struct plan_admit admit = demo_admit(rig, 0);
    struct runner_result result;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    driver_launch(rig->driver, &row, 1);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.status, ERR_STEP);
    result = driver_step(rig->driver, &row, 1);
    test_eq_u64(rig->driver->patch_count, 0);
    test_eq_u64(result.picks[0].token, rig->prompts.at[0].output_ids[0]);
    demo_rig_destroy(rig);
}

/* So do those of a step that failed because the one before it did. */
static void test_patches_of_a_doomed_step_hold(void)
{
    struct demo_rig *rig = demo_rig_create("forward:1");
    struct plan_admit first = demo_admit(rig, 0);
    struct plan_admit second = demo_admit(rig, 1);
    struct runner_result result;
    driver_open(rig->driver, 0, &first);
    driver_open(rig->driver, 1, &second);
    struct driver_row rows[2] = {
        {.slot = 0, .count = first.prompt.count},
        {.slot = 1, .count = second.prompt.count},
    };
    for (uint32_t i = 0; i < 2; i++) {
        driver_launch(rig->driver, &rows[i], 1);
    }
    for (uint32_t i = 0; i < 2; i++) {
        driver_collect(rig->driver, &rows[i], 1, &result);
        test_eq_u64(result.status, ERR_STEP);
    }
    /* Had slot 1's pages not been set, it would share the first page with slot 0. */
    driver_launch(rig->driver, &rows[1], 1);
    test_eq_u64(rig->driver->patch_count, 0);
    driver_launch(rig->driver, &rows[0], 1);
    for (uint32_t i = 0; i < 2; i++) {
        driver_collect(rig->driver, &rows[1 - i], 1, &result);
        test_eq_u64(result.picks[0].token, rig->prompts.at[1 - i].output_ids[0]);
    }
    for (uint32_t i = 1; i < 5; i++) {
        struct driver_row decode[2] = {{.slot = 0}, {.slot = 1}};
        result = driver_step(rig->driver, decode, 2);
        test_eq_u64(result.picks[0].token, rig->prompts.at[0].output_ids[i]);
        test_eq_u64(result.picks[1].token, rig->prompts.at[1].output_ids[i]);
    }
    demo_rig_destroy(rig);
}

static void test_a_lost_device_stays_lost(void)
{
    struct err err = {0};
    struct demo_rig *rig = demo_rig_create("device-lost:2");
    struct runner *runner = rig->driver->runner;
    struct plan_admit admit = demo_admit(rig, 0);
    struct runner_result result;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    (void)driver_step(rig->driver, &row, 1);
    row.count = 0;
    driver_launch(rig->driver, &row, 1);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.status, ERR_DEVICE);
    struct runner_step step = {0};
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_DEVICE);
    demo_rig_destroy(rig);
}

static void *wake_runner(void *context)
{
    struct runner *runner = context;
    runner->table->wake(runner);
    return NULL;
}

static void test_a_frozen_step_is_waited_for_no_longer_than_asked(void)
{
    struct demo_rig *rig = demo_rig_create("freeze:1");
    struct runner *runner = rig->driver->runner;
    struct plan_admit admit = demo_admit(rig, 0);
    pthread_t waker;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    driver_launch(rig->driver, &row, 1);
    test_true(!runner->table->wait(runner, clock_now_ns() + 5 * CLOCK_NS_PER_MS));
    test_true(!runner->table->is_done(runner));
    /* A wake ends a wait that would last an hour. */
    test_eq_u64((uint64_t)pthread_create(&waker, NULL, wake_runner, runner), 0);
    test_true(!runner->table->wait(runner, clock_now_ns() + 3600 * CLOCK_NS_PER_SEC));
    (void)pthread_join(waker, NULL);
    demo_rig_destroy(rig); /* ends the frozen step */
}

static void test_a_delayed_step_takes_its_time(void)
{
    struct demo_rig *rig = demo_rig_create("delay-step-10ms:1");
    struct plan_admit admit = demo_admit(rig, 0);
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    uint64_t begin_ns = clock_now_ns();
    (void)driver_step(rig->driver, &row, 1);
    test_true(clock_now_ns() - begin_ns >= 10 * CLOCK_NS_PER_MS);
    demo_rig_destroy(rig);
}

/* Opens, a stop and a launch while the step before them takes its 10 ms; how long they took. */
static uint64_t time_calls(void)
{
    enum {
        OTHERS = 16
    };
    struct err err = {0};
    struct demo_rig *rig = demo_rig_create_stopped();
    test_ok(inject_parse(&rig->inject, "delay-step-10ms:1", &err), &err);
    rig->options.inject = &rig->inject;
    rig->options.slots = 1 + OTHERS;
    demo_rig_start(rig);
    struct plan_admit admit = demo_admit(rig, 0);
    struct runner *runner = rig->driver->runner;
    struct driver_row first = {.slot = 0, .count = admit.prompt.count};
    struct driver_row second = {.slot = 1, .count = admit.prompt.count};
    admit.presence_penalty = 0.1F; /* counted tokens travel with the sampler */
    driver_open(rig->driver, 0, &admit);
    uint64_t launch_ns = clock_now_ns();
    driver_launch(rig->driver, &first, 1);
    uint64_t begin_ns = clock_now_ns();
    for (uint32_t slot = 1; slot <= OTHERS; slot++) {
        driver_open(rig->driver, slot, &admit);
    }
    runner->table->slot_stop(runner, OTHERS);
    driver_launch(rig->driver, &second, 1);
    uint64_t took_ns = clock_now_ns() - begin_ns;
    struct runner_result result;
    driver_collect(rig->driver, &first, 1, &result);
    test_true(clock_now_ns() - launch_ns >= 10 * CLOCK_NS_PER_MS);
    driver_collect(rig->driver, &second, 1, &result);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_TOKEN);
    demo_rig_destroy(rig);
    return took_ns;
}

/* Nothing that the executor calls while a step runs waits for it: the pipeline would run dry. */
static void test_calls_do_not_wait_for_the_device(void)
{
    uint64_t least_ns = UINT64_MAX;
    for (uint32_t attempt = 0; attempt < 5 && least_ns > 8 * CLOCK_NS_PER_MS; attempt++) {
        uint64_t took_ns = time_calls();
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    printf("16 opens, a stop and a launch behind a running step: %llu us\n",
           (unsigned long long)(least_ns / 1000));
    test_true(!test_times_count() || least_ns <= 8 * CLOCK_NS_PER_MS);
}

static void test_steps_outside_the_limits_are_refused(void)
{
    struct err err = {0};
    struct demo_rig *rig = demo_rig_create(NULL);
    struct runner *runner = rig->driver->runner;
    uint32_t token = 2048;
    struct runner_row row = {.slot = 0, .count = 1, .tokens = &token};
    struct runner_step step = {.rows = &row, .row_count = 1};
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: token id 2048, the vocabulary has 2048");
    token = 1;
    row.start = 2048;
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: tokens 2048 + 1, the context ends at 2048");
    row.start = 0;
    row.slot = 4;
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: slot 4 of 4");
    row.slot = 0;
    struct runner_patch patch = {.physical_page = 1U << 20};
    step.patches = &patch;
    step.patch_count = 1;
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    struct plan_admit admit = demo_admit(rig, 0);
    admit.stop_ids = (struct wire_u32_array){.at = &token, .count = 1};
    token = 5000;
    test_eq_u64(runner->table->slot_open(runner, 0, &admit, &err), ERR_ARGUMENT);
    test_eq_str(err.message, "stop_ids: token id 5000, the vocabulary has 2048");
    demo_rig_destroy(rig);
}

static const struct test_case cases[] = {
    TEST(test_failed_steps_move_nothing),
    TEST(test_patches_of_a_failed_step_hold),
    TEST(test_patches_of_a_doomed_step_hold),
    TEST(test_a_frozen_step_is_waited_for_no_longer_than_asked),
    TEST(test_a_delayed_step_takes_its_time),
    TEST(test_calls_do_not_wait_for_the_device),
    TEST(test_steps_outside_the_limits_are_refused),
    TEST(test_a_lost_device_stays_lost), /* the last: a real device is lost for the whole process */
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
