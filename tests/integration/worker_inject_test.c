/* Failures on purpose at every stage of a step, with run-ahead: pools as before, the tokens of an
 * undisturbed run, nobody else notices.  And the two that end the process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

enum {
    SEQUENCES = 6,
    TOKENS = 20,
    EXIT_FROZEN = 3,
    EXIT_DEVICE = 4,
};

static void run_all(struct worker_client *client, struct drive *drive,
                    struct drive_sequence *sequences)
{
    drive_init(drive, client);
    drive->max_tries = 3;
    drive->step_tokens = 64; /* several steps of prompts too */
    drive_run(drive, sequences, SEQUENCES);
}

/* What one failure of a stage may cost. */
struct cost {
    const char *inject;
    bool is_refused; /* the plan is refused, nothing fails */
    uint32_t min_failed_steps;
};

static void check_stage(const struct drive_sequence *undisturbed, const struct cost *cost)
{
    const char *const args[] = {"--inject", cost->inject, "--watchdog-ms", "120000", NULL};
    struct worker_rig rig;
    struct drive drive;
    worker_rig_open(&rig, args);
    worker_client_attach(&rig.client);
    struct drive_sequence *sequences = worker_rig_sequences(SEQUENCES, TOKENS);
    run_all(&rig.client, &drive, sequences);
    worker_rig_expect_same(sequences, undisturbed, SEQUENCES);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        test_eq_u64(sequences[i].state, DRIVE_FINISHED);
    }
    struct hello_stats_answer stats = worker_client_stats(&rig.client);
    if (cost->is_refused) {
        test_true(drive.refused >= 1);
        test_eq_u64(stats.sequences_failed, 0);
        test_eq_u64(stats.steps_failed, 0);
    } else {
        test_true(stats.steps_failed >= cost->min_failed_steps);
        test_true(stats.sequences_failed >= 1);
    }
    worker_client_expect_all_free(&rig.client, 5000);
    free(sequences);
    worker_rig_close(&rig);
}

static void test_every_stage_of_a_step(void)
{
    static const struct cost costs[] = {
        {"reserve-local:4", true, 0},  {"reserve-local:12", true, 0},
        {"reserve-global:4", true, 0}, {"reserve-global:12", true, 0},
        {"stage:2", true, 0},          {"stage:12", true, 0},
        {"launch:2", true, 0},         {"launch:12", true, 0},
        {"forward:2", false, 1},       {"forward:12", false, 1},
        {"sample:5", false, 1},        {"sample:12", false, 1},
        {"publish:2", false, 1},       {"publish:12", false, 1},
        {"commit:2", false, 1},        {"commit:12", false, 1},
    };
    struct worker_rig rig;
    struct drive drive;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    struct drive_sequence *undisturbed = worker_rig_sequences(SEQUENCES, TOKENS);
    run_all(&rig.client, &drive, undisturbed);
    test_eq_u64(drive.refused, 0);
    worker_client_expect_all_free(&rig.client, 5000);
    worker_rig_close(&rig);
    for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        (void)printf("inject %s\n", costs[i].inject);
        check_stage(undisturbed, &costs[i]);
    }
    free(undisturbed);
}

/* Sends ADMIT and steps until the worker is gone. */
static void provoke(struct worker_rig *rig)
{
    static const uint32_t prompt[] = {2, 300, 301};
    struct worker_client *client = &rig->client;
    worker_client_attach(client);
    const struct plan_message admit = {.type = PLAN_ADMIT,
                                       .as.admit = {.seq_id = 1,
                                                    .prompt = {prompt, 3},
                                                    .output_start = 3,
                                                    .max_total = 100,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1}};
    (void)worker_client_send(client, &admit);
    (void)worker_client_expect(client, RESULT_ADMITTED, 5000);
    for (uint32_t i = 0; i < 4; i++) {
        const struct wire_row row = {.seq_id = 1, .start = 0, .count = i == 0 ? 3 : 0};
        const struct plan_message step = {.type = PLAN_STEP, .as.step.rows = {&row, 1}};
        (void)worker_client_send(client, &step);
    }
}

static void expect_last_line(const struct worker_process *process, const char *text)
{
    char line[1024];
    worker_process_last_line(process, line, sizeof(line));
    if (strstr(line, text) == NULL) {
        test_fail(__FILE__, __LINE__, "last line '%s', want '%s'", line, text);
    }
}

static void test_a_frozen_executor_is_ended_by_the_watchdog(void)
{
    static const char *const args[] = {"--inject", "freeze:2", "--watchdog-ms", "300", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    provoke(&rig);
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 10000), EXIT_FROZEN);
    test_true(worker_client_wait_closed(&rig.client, 5000));
    expect_last_line(&rig.process, "watchdog executor-frozen age_ms=");
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);
}

static void test_a_lost_device_ends_the_process_at_once(void)
{
    static const char *const args[] = {"--inject", "device-lost:2", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    provoke(&rig);
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 5000), EXIT_DEVICE);
    test_true(worker_client_wait_closed(&rig.client, 5000));
    expect_last_line(&rig.process, "worker device-lost code=device error=");
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);
}

static const struct test_case cases[] = {
    TEST(test_every_stage_of_a_step),
    TEST(test_a_frozen_executor_is_ended_by_the_watchdog),
    TEST(test_a_lost_device_ends_the_process_at_once),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
