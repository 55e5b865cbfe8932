/* What must hold when a process dies, freezes or stops, on the whole product: launcher, frontend and worker as users run them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"

#define STREAMS    8
#define KILL_COUNT 20

static const char *const no_args[] = {NULL};

static void open_streams(const struct system_process *process, struct http_client *clients,
                         uint32_t output_tokens)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        char prompt[64];
        (void)snprintf(prompt, sizeof(prompt), "Stream number %u begins with", i); /* it fits */
        system_open_stream(process, &clients[i], prompt, output_tokens);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "data: "));
    }
}

static void close_streams(struct http_client *clients)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        http_client_close(&clients[i]);
    }
}

static void test_frontend_killed_again_and_again_under_load(void)
{
    struct system_process process;
    struct http_client clients[STREAMS];
    uint32_t worst_ms = 0;
    system_start(&process, no_args);
    pid_t worker = system_child(&process, "bezel-worker");
    char *expected = system_complete(&process, "The capital of France is");
    for (uint32_t i = 0; i < KILL_COUNT; i++) {
        open_streams(&process, clients, 2000);
        pid_t frontend = system_child(&process, "bezel-frontend");
        test_true(frontend > 0);
        test_true(kill(frontend, SIGKILL) == 0);
        uint32_t ready_ms = system_await_ready(&process, 200, 5000);
        worst_ms = ready_ms > worst_ms ? ready_ms : worst_ms;
        char *text = system_complete(&process, "The capital of France is");
        test_eq_str(text, expected);
        free(text);
        close_streams(clients);
    }
    (void)fprintf(stderr, "frontend killed %d times: ready again after %u ms at worst\n",
                  KILL_COUNT, worst_ms);
    test_true(worst_ms < 1000 || !test_times_count());
    test_eq_u64((uint64_t)system_child(&process, "bezel-worker"), (uint64_t)worker);
    system_expect_all_free(&process);
    free(expected);
    system_stop(&process);
}

/* While no worker is there a request is refused, and told when to come back. */
static void check_refused_for_now(const struct system_process *process)
{
    struct http_answer answer;
    http_client_once(process->port, "POST", "/v1/completions", "{\"prompt\":\"Hi\"}", &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    test_true(http_answer_header(&answer, "retry-after") != NULL);
    http_answer_fini(&answer);
}

static void test_worker_killed_under_load(void)
{
    struct system_process process;
    struct http_client clients[STREAMS];
    system_start(&process, no_args);
    pid_t frontend = system_child(&process, "bezel-frontend");
    char *expected = system_complete(&process, "The capital of France is");
    open_streams(&process, clients, 2000);
    test_true(kill(system_child(&process, "bezel-worker"), SIGKILL) == 0);
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "\"error\""));
    }
    close_streams(clients);
    test_eq_u64((uint64_t)system_get(&process, "/health"), 200);
    (void)system_await_ready(&process, 503, 1000);
    check_refused_for_now(&process);
    (void)system_await_ready(&process, 200, 20000);
    char *text = system_complete(&process, "The capital of France is");
    test_eq_str(text, expected);
    test_eq_u64((uint64_t)system_child(&process, "bezel-frontend"), (uint64_t)frontend);
    system_expect_all_free(&process);
    free(text);
    free(expected);
    system_stop(&process);
}

static void test_frozen_executor_is_ended_and_replaced(void)
{
    /* the new worker freezes too, but the answer takes fewer steps than that */
    static const char *const args[] = {"--inject", "freeze:60", "--watchdog-ms", "2000", NULL};
    struct system_process process;
    struct http_client client;
    system_start(&process, args);
    pid_t worker = system_child(&process, "bezel-worker");
    system_open_stream(&process, &client, "Once upon a time", 2000);
    test_true(http_client_await(&client, "\"error\""));
    http_client_close(&client);
    test_true(system_wait_gone(worker, 10000));
    (void)system_await_ready(&process, 200, 20000);
    char *text = system_complete(&process, "The capital of France is");
    test_true(strlen(text) > 0);
    free(text);
    system_expect_all_free(&process);
    system_stop(&process);
}

static void stop_for(pid_t pid, uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000),
                            .tv_nsec = (long)(ms % 1000 * CLOCK_NS_PER_MS)};
    test_true(kill(pid, SIGSTOP) == 0);
    (void)nanosleep(&time, NULL); /* the length of the stop is what is tested */
    test_true(kill(pid, SIGCONT) == 0);
}

static void test_frontend_stopped_under_and_over_the_timeout(void)
{
    static const char *const args[] = {"--session-timeout-ms", "2000", NULL};
    struct system_process process;
    struct http_client clients[STREAMS];
    system_start(&process, args);
    pid_t frontend = system_child(&process, "bezel-frontend");
    pid_t worker = system_child(&process, "bezel-worker");
    open_streams(&process, clients, 300);
    stop_for(frontend, 1000);
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "data: [DONE]"));
        test_true(memmem(clients[i].input.at, clients[i].input.used_bytes, "\"error\"", 7) == NULL);
    }
    close_streams(clients);
    open_streams(&process, clients, 3000);
    stop_for(frontend, 4000);
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "\"error\""));
    }
    close_streams(clients);
    (void)system_await_ready(&process, 200, 5000);
    free(system_complete(&process, "The capital of France is"));
    test_eq_u64((uint64_t)system_child(&process, "bezel-frontend"), (uint64_t)frontend);
    test_eq_u64((uint64_t)system_child(&process, "bezel-worker"), (uint64_t)worker);
    system_expect_all_free(&process);
    system_stop(&process);
}

static void test_launcher_killed_leaves_nothing(void)
{
    static const char *const args[] = {"--drain-timeout-s", "3", NULL};
    struct system_process process;
    struct http_client client;
    system_start(&process, args);
    pid_t frontend = system_child(&process, "bezel-frontend");
    pid_t worker = system_child(&process, "bezel-worker");
    system_open_stream(&process, &client, "Once upon a time", 50);
    test_true(http_client_await(&client, "data: "));
    system_kill_launcher(&process);
    test_true(http_client_await(&client, "data: [DONE]")); /* drained, not cut */
    http_client_close(&client);
    test_true(system_wait_gone(frontend, 10000));
    test_true(system_wait_gone(worker, 10000));
    system_forget(&process);
}

static const struct test_case cases[] = {
    TEST(test_frontend_killed_again_and_again_under_load),
    TEST(test_worker_killed_under_load),
    TEST(test_frozen_executor_is_ended_and_replaced),
    TEST(test_frontend_stopped_under_and_over_the_timeout),
    TEST(test_launcher_killed_leaves_nothing),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
