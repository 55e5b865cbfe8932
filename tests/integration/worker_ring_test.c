/* A frontend that does not read its ring: launches of its session stop, nothing is lost, it goes on
 * when records are read. */
#include <stdlib.h>

#include "common/clock.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

enum {
    RING_RECORDS = 64,
    STEPS = 120
};

static bool has_steps(const struct hello_stats_answer *stats, uint64_t wanted)
{
    return stats->steps >= wanted;
}

static void admit_one(struct worker_client *client)
{
    static const uint32_t prompt[] = {2, 300, 301};
    const struct plan_message admit = {.type = PLAN_ADMIT,
                                       .as.admit = {.seq_id = 1,
                                                    .prompt = {prompt, 3},
                                                    .output_start = 3,
                                                    .max_total = 3 + STEPS,
                                                    .top_p = 1,
                                                    .repetition_penalty = 1}};
    (void)worker_client_send(client, &admit);
    (void)worker_client_expect(client, RESULT_ADMITTED, 5000);
}

static void test_a_full_ring_stops_launches_and_resumes(void)
{
    static const char *const args[] = {
        "--ring-records", "64", "--session-timeout-ms", "120000", "--watchdog-ms", "120000", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    struct worker_client *client = &rig.client;
    test_eq_u64(client->welcome.ring_records, RING_RECORDS);
    worker_client_attach(client);
    admit_one(client);
    for (uint32_t i = 0; i < STEPS; i++) {
        const struct wire_row row = {.seq_id = 1, .start = 0, .count = i == 0 ? 3 : 0};
        const struct plan_message step = {.type = PLAN_STEP, .as.step.rows = {&row, 1}};
        (void)worker_client_send(client, &step);
    }
    /* Two records a step: about 31 steps fill the ring, and then none runs. */
    worker_rig_wait_stats(client, has_steps, 28, 60000);
    struct hello_stats_answer stats = worker_client_stats(client);
    uint64_t still_ns = clock_now_ns() + 300 * CLOCK_NS_PER_MS;
    while (clock_now_ns() < still_ns) {
        stats = worker_client_stats(client);
    }
    test_true(stats.steps < RING_RECORDS / 2 + 2);

    uint32_t tokens = 0;
    uint32_t done = 0;
    bool is_finished = false;
    while (done < STEPS) {
        struct result_record record;
        test_true(worker_client_try_pop(client, 60000, &record));
        if (record.kind == RESULT_TOKEN) {
            test_eq_u64(record.as.token.position, 3 + tokens);
            tokens++;
        } else if (record.kind == RESULT_STEP_DONE) {
            done++;
        } else {
            test_eq_u64(record.kind, RESULT_FINISHED);
            is_finished = true;
        }
    }
    test_eq_u64(tokens, STEPS);
    test_true(is_finished);
    worker_rig_close(&rig);
}

/* Sixty steps into a ring of one step's size: every record is read late, none is lost. */
static void test_a_ring_that_is_always_nearly_full(void)
{
    static const char *const args[] = {
        "--ring-records", "64", "--session-timeout-ms", "120000", "--watchdog-ms", "120000", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    worker_client_attach(&rig.client);
    struct drive_sequence *tight = worker_rig_sequences(14, 60);
    struct drive drive;
    drive_init(&drive, &rig.client);
    drive_run(&drive, tight, 14);
    test_eq_u64(drive.refused, 0);
    worker_rig_close(&rig);

    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    struct drive_sequence *wide = worker_rig_sequences(14, 60);
    drive_init(&drive, &rig.client);
    drive_run(&drive, wide, 14);
    worker_rig_expect_same(tight, wide, 14);
    free(tight);
    free(wide);
    worker_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_a_full_ring_stops_launches_and_resumes),
    TEST(test_a_ring_that_is_always_nearly_full),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
