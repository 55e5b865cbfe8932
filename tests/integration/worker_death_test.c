/* Clients that are killed or stopped, launchers that vanish, workers that are killed: what each must
 * leave behind is nothing. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

enum {
    KILLS = 20,
    START_DEADLINE_MS = 120000,
    DONE_DEADLINE_MS = 240000, /* instrumented builds are slow */
    ATTACH_LIMIT_US = 2000000, /* milliseconds where nothing else runs */
};

static bool has_no_session(const struct hello_stats_answer *stats, uint64_t wanted)
{
    return stats->sessions == wanted;
}

static void start_tool(struct child_process *tool, const struct worker_process *worker,
                       const char *sequences, const char *tokens)
{
    const char *const argv[] = {WORKER_CLIENT_TOOL, worker->run_dir, sequences, tokens, NULL};
    child_process_start(tool, argv);
}

static uint64_t finish_tool(struct child_process *tool)
{
    child_process_expect(tool, "done ", DONE_DEADLINE_MS);
    uint64_t digest = strtoull(tool->line + strlen("done "), NULL, 16);
    test_eq_u64((uint64_t)child_process_wait(tool, 10000), 0);
    return digest;
}

static void test_killed_clients_leave_nothing(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct child_process tool;
    uint64_t slowest_us = 0;
    for (uint32_t i = 0; i < KILLS; i++) {
        start_tool(&tool, &rig.process, "8", "2000");
        child_process_expect(&tool, "attached ", START_DEADLINE_MS);
        uint64_t attach_us = strtoull(tool.line + strlen("attached "), NULL, 10);
        slowest_us = attach_us > slowest_us ? attach_us : slowest_us;
        if (i % 4 != 0) {
            child_process_expect(&tool, "running",
                                 START_DEADLINE_MS); /* else in the middle of admission */
        }
        child_process_kill(&tool);
    }
    worker_client_expect_all_free(&rig.client, 5000);
    (void)printf("slowest attach %llu us\n", (unsigned long long)slowest_us);
    test_true(slowest_us < ATTACH_LIMIT_US);
    test_eq_u64(worker_client_stats(&rig.client).sequences_failed, 0);
    worker_client_attach(&rig.client);
    struct drive_prompt *prompts = NULL;
    (void)drive_load_prompts(&prompts);
    struct drive_sequence *sequence = calloc(1, sizeof(*sequence));
    test_true(sequence != NULL);
    drive_greedy(sequence, prompts[0].ids, prompts[0].count, prompts[0].output_count);
    struct drive drive;
    drive_init(&drive, &rig.client);
    drive_run(&drive, sequence, 1);
    test_true(memcmp(sequence->tokens, prompts[0].output,
                     prompts[0].output_count * sizeof(uint32_t)) == 0);
    free(sequence);
    free(prompts);
    worker_rig_close(&rig);
}

static void test_a_short_stop_costs_nothing(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct child_process tool;
    start_tool(&tool, &rig.process, "2", "100");
    uint64_t undisturbed = finish_tool(&tool);
    start_tool(&tool, &rig.process, "2", "100");
    child_process_expect(&tool, "running", START_DEADLINE_MS);
    test_true(kill(tool.pid, SIGSTOP) == 0);
    uint64_t until_ns = clock_now_ns() + 700 * CLOCK_NS_PER_MS;
    while (clock_now_ns() < until_ns) {
        test_eq_u64(worker_client_stats(&rig.client).sessions, 1);
    }
    test_true(kill(tool.pid, SIGCONT) == 0);
    test_eq_u64(finish_tool(&tool), undisturbed);
    worker_client_expect_all_free(&rig.client, 5000);
    worker_rig_close(&rig);
}

static void test_a_long_stop_ends_the_session(void)
{
    static const char *const args[] = {"--session-timeout-ms", "2000", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    struct child_process tool;
    start_tool(&tool, &rig.process, "2", "2000");
    child_process_expect(&tool, "running", START_DEADLINE_MS);
    test_true(kill(tool.pid, SIGSTOP) == 0);
    worker_rig_wait_stats(&rig.client, has_no_session, 0, 20000);
    worker_client_expect_all_free(&rig.client, 5000);
    test_true(worker_process_logged(&rig.process, "reason=\"no message in time\""));
    worker_client_attach(&rig.client); /* its successor need not wait for it */
    test_true(kill(tool.pid, SIGCONT) == 0);
    test_eq_u64((uint64_t)child_process_wait(&tool, START_DEADLINE_MS), 3);
    worker_rig_close(&rig);
}

/* A worker that was stopped itself must not blame its clients, nor its own executor. */
static void test_a_stopped_worker_goes_on(void)
{
    static const char *const args[] = {"--session-timeout-ms", "2000", "--watchdog-ms", "5000",
                                       NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    struct child_process tool;
    start_tool(&tool, &rig.process, "2", "100");
    child_process_expect(&tool, "running", START_DEADLINE_MS);
    test_true(kill(rig.process.pid, SIGSTOP) == 0);
    uint64_t until_ns = clock_now_ns() + 6000 * CLOCK_NS_PER_MS;
    while (clock_now_ns() < until_ns) {
        (void)usleep(20000); /* time passes; nothing is waited for */
    }
    test_true(kill(rig.process.pid, SIGCONT) == 0);
    (void)finish_tool(&tool);
    worker_rig_close(&rig);
}

static bool has_segment(const char *name)
{
    int fd = shm_open(name, O_RDONLY, 0);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

static void test_a_session_without_a_pipe_ends(void)
{
    static const char *const args[] = {"--attach-timeout-ms", "200", NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    struct hello_fault fault;
    test_true(worker_client_try_attach(&rig.client, 7, &fault));
    test_true(has_segment(rig.client.segment_name));
    worker_rig_wait_stats(&rig.client, has_no_session, 0, 5000);
    worker_client_attach(&rig.client); /* closes the old one's ends first */
    test_true(worker_process_logged(&rig.process, "reason=\"no plan pipe came\""));
    worker_rig_close(&rig);
}

static void test_the_segment_loses_its_name_at_the_first_message(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    worker_client_attach(&rig.client);
    test_true(has_segment(rig.client.segment_name));
    const struct plan_message ping = {.type = PLAN_PING};
    (void)worker_client_send(&rig.client, &ping);
    (void)worker_client_expect(&rig.client, RESULT_PONG, 5000);
    test_true(!has_segment(rig.client.segment_name));
    worker_rig_close(&rig);
}

static void start_with_lifeline(struct worker_rig *rig, const char *const *args)
{
    const struct worker_process_options options = {.args = args, .lifeline = true};
    worker_process_start_with(&rig->process, &options);
    worker_client_open(&rig->client, rig->process.run_dir);
}

static void test_an_idle_worker_goes_with_its_launcher(void)
{
    static const char *const args[] = {NULL};
    struct worker_rig rig;
    start_with_lifeline(&rig, args);
    worker_process_drop_lifeline(&rig.process);
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 5000), 0);
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);
}

static void test_streams_drain_after_the_launcher(void)
{
    static const char *const args[] = {NULL};
    struct worker_rig rig;
    start_with_lifeline(&rig, args);
    struct child_process tool;
    start_tool(&tool, &rig.process, "2", "100");
    child_process_expect(&tool, "running", START_DEADLINE_MS);
    worker_process_drop_lifeline(&rig.process);
    (void)finish_tool(&tool); /* its session goes on */
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 5000), 0);
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);
}

static void test_draining_has_a_deadline(void)
{
    static const char *const args[] = {"--drain-timeout-s", "1", NULL};
    struct worker_rig rig;
    start_with_lifeline(&rig, args);
    worker_client_attach(&rig.client); /* and never leaves */
    worker_process_drop_lifeline(&rig.process);
    struct hello_fault fault;
    uint64_t nonce = 12345; /* the first may come before the worker has seen its launcher go */
    while (worker_client_try_attach(&rig.client, nonce, &fault)) {
        test_true(++nonce < 12345 + 3);
    }
    test_true(fault.code == ERR_CLOSED || fault.code == ERR_BUSY);
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 5000), 0);
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);
}

/* A worker that is asked to stop finishes what runs; asked twice, it does not. */
static void test_a_stop_lets_streams_end(void)
{
    struct worker_rig rig;
    struct child_process tool;
    worker_rig_open(&rig, NULL);
    start_tool(&tool, &rig.process, "2", "100");
    child_process_expect(&tool, "running", START_DEADLINE_MS);
    test_true(kill(rig.process.pid, SIGTERM) == 0);
    (void)finish_tool(&tool);
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 5000), 0);
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);

    worker_rig_open(&rig, NULL);
    start_tool(&tool, &rig.process, "2", "2000");
    child_process_expect(&tool, "running", START_DEADLINE_MS);
    test_true(kill(rig.process.pid, SIGTERM) == 0);
    while (!worker_process_logged(&rig.process, " draining")) {
        (void)usleep(2000); /* between two looks at a log: the second signal must not be merged */
    }
    test_true(kill(rig.process.pid, SIGTERM) == 0);
    test_eq_u64((uint64_t)worker_process_wait(&rig.process, 5000), 0);
    test_eq_u64((uint64_t)child_process_wait(&tool, START_DEADLINE_MS), 3);
    worker_client_close(&rig.client);
    worker_process_forget(&rig.process);
}

static void test_a_killed_worker_is_cleaned_up_after(void)
{
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    struct hello_fault fault;
    test_true(worker_client_try_attach(&rig.client, 1, &fault));
    char segment_name[64];
    (void)snprintf(segment_name, sizeof(segment_name), "%s", rig.client.segment_name);
    char run_dir[64];
    (void)snprintf(run_dir, sizeof(run_dir), "%s", rig.process.run_dir);
    worker_process_kill(&rig.process);
    worker_client_close(&rig.client);
    test_true(has_segment(segment_name));

    static const char *const args[] = {NULL};
    const struct worker_process_options options = {.args = args, .run_dir = run_dir};
    worker_process_start_with(&rig.process, &options);
    worker_client_open(&rig.client, run_dir);
    test_true(!has_segment(segment_name));
    worker_client_attach(&rig.client);
    worker_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_killed_clients_leave_nothing),
    TEST(test_a_short_stop_costs_nothing),
    TEST(test_a_long_stop_ends_the_session),
    TEST(test_a_stopped_worker_goes_on),
    TEST(test_a_session_without_a_pipe_ends),
    TEST(test_the_segment_loses_its_name_at_the_first_message),
    TEST(test_an_idle_worker_goes_with_its_launcher),
    TEST(test_streams_drain_after_the_launcher),
    TEST(test_draining_has_a_deadline),
    TEST(test_a_stop_lets_streams_end),
    TEST(test_a_killed_worker_is_cleaned_up_after),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
