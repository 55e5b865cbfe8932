#include "worker/watchdog.h"

#include "common/clock.h"
#include "tests/testlib/test.h"
#include "worker/executor.h"

#define MS CLOCK_NS_PER_MS

/* Ticks every 250 ms from start_ns until the watchdog bites or end_ns; when it bit, else 0. */
static uint64_t run_until(struct watchdog *watchdog, const struct executor_watch *watch,
                          uint64_t floor_ns, uint64_t start_ns, uint64_t end_ns)
{
    uint64_t age_ns = 0;
    for (uint64_t now_ns = start_ns; now_ns <= end_ns; now_ns += 250 * MS) {
        if (watchdog_check(watchdog, watch, floor_ns, now_ns, &age_ns)) {
            test_true(age_ns > floor_ns);
            return now_ns;
        }
    }
    return 0;
}

static void test_an_old_step_bites_after_the_floor(void)
{
    struct watchdog watchdog = {0};
    const struct executor_watch watch = {.oldest_launch_ns = 1000 * MS};
    uint64_t bit_ns = run_until(&watchdog, &watch, 5000 * MS, 1000 * MS, 60000 * MS);
    test_true(bit_ns >= 6000 * MS && bit_ns <= 6600 * MS);
}

static void test_the_longest_step_raises_the_limit(void)
{
    struct watchdog watchdog = {0};
    const struct executor_watch watch = {.oldest_launch_ns = 1000 * MS,
                                         .longest_step_ns = 1000 * MS};
    uint64_t bit_ns = run_until(&watchdog, &watch, 5000 * MS, 1000 * MS, 60000 * MS);
    test_true(bit_ns >= 21000 * MS && bit_ns <= 21600 * MS);
}

static void test_a_call_that_does_not_return_bites_too(void)
{
    struct watchdog watchdog = {0};
    const struct executor_watch watch = {.busy_since_ns = 1000 * MS};
    test_true(run_until(&watchdog, &watch, 5000 * MS, 1000 * MS, 60000 * MS) != 0);
}

static void test_progress_never_bites(void)
{
    struct watchdog watchdog = {0};
    uint64_t age_ns = 0;
    for (uint64_t now_ns = MS; now_ns < 100000 * MS; now_ns += 250 * MS) {
        const struct executor_watch watch = {.oldest_launch_ns = now_ns - now_ns % (4000 * MS) + 1,
                                             .busy_since_ns = now_ns};
        test_true(!watchdog_check(&watchdog, &watch, 5000 * MS, now_ns, &age_ns));
    }
    const struct executor_watch idle = {0};
    test_eq_u64(run_until(&watchdog, &idle, 5000 * MS, 100000 * MS, 900000 * MS), 0);
}

/* The process was stopped for a minute in the middle of a step. */
static void test_a_stopped_process_is_no_frozen_one(void)
{
    struct watchdog watchdog = {0};
    const struct executor_watch watch = {.oldest_launch_ns = 1000 * MS};
    test_eq_u64(run_until(&watchdog, &watch, 5000 * MS, 1000 * MS, 3000 * MS), 0);
    test_eq_u64(run_until(&watchdog, &watch, 5000 * MS, 63000 * MS, 64000 * MS), 0);
    test_true(run_until(&watchdog, &watch, 5000 * MS, 64250 * MS, 70000 * MS) != 0);
}

static const struct test_case cases[] = {
    TEST(test_an_old_step_bites_after_the_floor),     TEST(test_the_longest_step_raises_the_limit),
    TEST(test_a_call_that_does_not_return_bites_too), TEST(test_progress_never_bites),
    TEST(test_a_stopped_process_is_no_frozen_one),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
