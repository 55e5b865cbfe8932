/* The real engine and the real worker: many at once equal alone, faults at every stage of a step,
 * workers that die or freeze. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "frontend/engine.h"
#include "tests/testlib/engine_client.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_client.h"
#include "tests/testlib/worker_drive.h"
#include "tests/testlib/worker_process.h"

#define MS           CLOCK_NS_PER_MS
#define SECOND       CLOCK_NS_PER_SEC
#define MANY         64
#define FIRST_ID     64 /* special and modality ids lie below */
#define MAX_PROMPT   2000
#define FAULT_COUNT  6
#define FAULT_OUTPUT 40

struct bench {
    struct worker_process worker;
    struct engine *engine;
};

/* A request and the output it should have. */
struct work {
    uint32_t prompt[MAX_PROMPT];
    uint32_t prompt_count;
    uint32_t output_count;
    float temperature;
    uint64_t seed;
    uint32_t expected[CLIENT_MAX_TOKENS];
    uint32_t expected_count;
};

/* Sanitizer builds run the worker's arithmetic many times slower: fewer requests show the same. */
static uint32_t scaled(uint32_t count)
{
    return test_is_sanitized() ? (count + 5) / 6 : count;
}

static void start_engine(struct bench *bench)
{
    struct err err;
    struct engine_options options = {
        .run_dir = bench->worker.run_dir, .name = "system test", .max_queue = 1000};
    test_ok(engine_create(&options, &bench->engine, &err), &err);
    test_true(client_wait_status(bench->engine, client_is_ready, 20 * SECOND));
}

static void start(struct bench *bench, const char *const *args)
{
    worker_process_start(&bench->worker, args);
    start_engine(bench);
}

static void finish(struct bench *bench)
{
    struct engine_status status;
    engine_get_status(bench->engine, &status);
    test_true(client_adds_up(&status));
    engine_destroy(bench->engine);
    worker_process_stop(&bench->worker);
}

static void expect_all_free(const struct bench *bench)
{
    struct worker_client control;
    worker_client_open(&control, bench->worker.run_dir);
    worker_client_expect_all_free(&control, 5000);
    worker_client_close(&control);
}

static struct work *make_work(uint32_t count, uint64_t seed)
{
    struct work *works = calloc(count, sizeof(*works));
    test_true(works != NULL);
    for (uint32_t i = 0; i < count; i++) {
        struct work *work = &works[i];
        work->prompt_count = i % 8 == 0 ? 300 + (uint32_t)(test_random(&seed) % 400)
                                        : 1 + (uint32_t)(test_random(&seed) % 120);
        work->output_count = 1 + (uint32_t)(test_random(&seed) % 48);
        work->temperature = i % 2 == 0 ? 0.0F : 0.9F;
        work->seed = i;
        for (uint32_t k = 0; k < work->prompt_count; k++) {
            work->prompt[k] = FIRST_ID + (uint32_t)(test_random(&seed) % 1000);
        }
    }
    return works;
}

static void submit(struct bench *bench, struct client *client, const struct work *work)
{
    struct err err;
    struct engine_request request =
        client_request(client, work->prompt, work->prompt_count, work->output_count, work->seed);
    request.admit.temperature = work->temperature;
    test_ok(client_submit(client, bench->engine, &request, &err), &err);
}

/* Runs each by itself and keeps its output. */
static void run_alone(struct bench *bench, struct work *works, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct client *client = client_create();
        struct client_view view;
        submit(bench, client, &works[i]);
        test_true(client_wait_end(client, 60 * SECOND));
        client_get(client, &view);
        test_eq_str(view.text, "");
        test_eq_u64(view.token_count, works[i].output_count);
        works[i].expected_count = view.token_count;
        for (uint32_t k = 0; k < view.token_count; k++) {
            works[i].expected[k] = client_token(client, k);
        }
        client_destroy(client);
    }
}

/* Tokens so far are the first of what the request gives alone. */
static void check_tokens(struct client *client, const struct work *work, uint32_t token_count)
{
    test_true(token_count <= work->expected_count);
    for (uint32_t k = 0; k < token_count; k++) {
        test_eq_u64(client_token(client, k), work->expected[k]);
    }
}

static void check_whole(struct client *client, const struct work *work)
{
    struct client_view view;
    test_true(client_wait_end(client, 120 * SECOND));
    client_get(client, &view);
    test_eq_str(view.text, "");
    test_eq_u64(view.ended, 1);
    test_eq_u64(view.token_count, work->expected_count);
    check_tokens(client, work, view.token_count);
}

/* All at once, at most MANY: each gives what it gave alone, no plan is refused, no page stays. */
static void run_together(struct bench *bench, const struct work *works, uint32_t count)
{
    struct client *clients[MANY];
    for (uint32_t i = 0; i < count; i++) {
        clients[i] = client_create();
        submit(bench, clients[i], &works[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        check_whole(clients[i], &works[i]);
        client_destroy(clients[i]);
    }
    expect_all_free(bench);
    test_true(client_wait_status(bench->engine, client_is_idle, 5 * SECOND));
    struct engine_status status;
    engine_get_status(bench->engine, &status);
    test_eq_u64(status.plans_refused, 0);
}

static void test_many_at_once_equal_each_alone(void)
{
    static const char *const args[] = {"--max-step-tokens", "256", NULL};
    struct bench bench;
    struct engine_status status;
    const uint32_t count = scaled(MANY);
    start(&bench, args);
    struct work *works = make_work(count, 1);
    run_alone(&bench, works, count);
    run_together(&bench, works, count);
    engine_get_status(bench.engine, &status);
    test_eq_u64(status.requests_finished[RESULT_FINISH_LENGTH], (uint64_t)2 * count);
    finish(&bench);
    free(works);
}

static void test_small_pools_make_requests_wait_not_fail(void)
{
    static const char *const args[] = {
        "--max-step-tokens", "64", "--local-pages", "14", "--global-pages", "16", NULL};
    struct bench bench;
    const uint32_t count = scaled(24);
    start(&bench, args);
    struct work *works = make_work(count, 2);
    run_alone(&bench, works, count);
    run_together(&bench, works, count);
    finish(&bench);
    free(works);
}

static void test_cancelled_requests_disturb_nobody(void)
{
    static const char *const args[] = {NULL};
    struct bench bench;
    struct client *clients[32];
    const uint32_t count = scaled(32);
    start(&bench, args);
    struct work *works = make_work(count, 3);
    run_alone(&bench, works, count);
    for (uint32_t i = 0; i < count; i++) {
        clients[i] = client_create();
        submit(&bench, clients[i], &works[i]);
    }
    for (uint32_t i = 0; i < count; i += 2) {
        struct client_view view;
        test_true(client_wait_tokens(clients[i], i % 5, 60 * SECOND));
        client_get(clients[i], &view);
        engine_cancel(bench.engine, view.request_id);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct client_view view;
        test_true(client_wait_end(clients[i], 60 * SECOND));
        client_get(clients[i], &view);
        test_eq_u64(view.ended, 1);
        test_eq_u64(view.code, ERR_OK);
        test_true(i % 2 == 0 || view.token_count == works[i].expected_count);
        check_tokens(clients[i], &works[i], view.token_count);
        client_destroy(clients[i]);
    }
    expect_all_free(&bench);
    finish(&bench);
    free(works);
}

/* One failure in the middle of six requests: what does not fail is as if nothing had happened. */
static void inject_once(const char *stage, uint32_t at, struct work *works)
{
    char inject[64];
    const char *args[] = {"--inject", inject, "--max-step-tokens", "128", NULL};
    struct bench bench;
    struct client *clients[FAULT_COUNT];
    uint32_t failed = 0;
    (void)snprintf(inject, sizeof(inject), "%s:%u", stage, at); /* it fits */
    start(&bench, args);
    for (uint32_t i = 0; i < FAULT_COUNT; i++) {
        clients[i] = client_create();
        submit(&bench, clients[i], &works[i]);
    }
    for (uint32_t i = 0; i < FAULT_COUNT; i++) {
        struct client_view view;
        test_true(client_wait_end(clients[i], 60 * SECOND));
        client_get(clients[i], &view);
        test_eq_u64(view.ended, 1);
        failed += view.code != ERR_OK;
        test_true(view.code != ERR_OK || view.token_count == works[i].expected_count);
        check_tokens(clients[i], &works[i], view.token_count);
        client_destroy(clients[i]);
    }
    expect_all_free(&bench);
    test_true(client_wait_status(bench.engine, client_is_idle, 5 * SECOND));
    struct engine_status status;
    engine_get_status(bench.engine, &status);
    (void)fprintf(stderr, "%s: %u failed, %llu refused\n", inject, failed,
                  (unsigned long long)status.plans_refused);
    test_true(failed > 0 || status.plans_refused > 0);
    finish(&bench);
}

static void test_a_failure_at_every_stage(void)
{
    static const char *const stages[] = {"reserve-local", "reserve-global", "stage",   "launch",
                                         "forward",       "sample",         "publish", "commit"};
    static const char *const args[] = {"--max-step-tokens", "128", NULL};
    struct bench bench;
    struct work *works = make_work(FAULT_COUNT, 4);
    for (uint32_t i = 0; i < FAULT_COUNT; i++) {
        works[i].output_count = FAULT_OUTPUT;
    }
    start(&bench, args);
    run_alone(&bench, works, FAULT_COUNT);
    finish(&bench);
    for (uint32_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++) {
        if (!test_is_sanitized()) {
            inject_once(stages[i], 2, works);
        }
        inject_once(stages[i], 17, works);
    }
    free(works);
}

static void start_again(struct bench *bench, const char *const *args)
{
    char run_dir[sizeof(bench->worker.run_dir)];
    memcpy(run_dir, bench->worker.run_dir, sizeof(run_dir));
    const struct worker_process_options options = {.args = args, .run_dir = run_dir};
    worker_process_start_with(&bench->worker, &options);
}

static void run_all(struct bench *bench, const struct work *works, uint32_t count)
{
    struct client *clients[MANY];
    for (uint32_t i = 0; i < count; i++) {
        clients[i] = client_create();
        submit(bench, clients[i], &works[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        check_whole(clients[i], &works[i]);
        client_destroy(clients[i]);
    }
}

static void test_a_killed_worker_is_replaced(void)
{
    static const char *const args[] = {NULL};
    struct bench bench;
    struct client *clients[8];
    start(&bench, args);
    struct work *works = make_work(8, 5);
    for (uint32_t i = 0; i < 8; i++) {
        works[i].output_count = 200;
    }
    run_alone(&bench, works, 8);
    for (uint32_t round = 0; round < scaled(3); round++) {
        for (uint32_t i = 0; i < 8; i++) {
            clients[i] = client_create();
            submit(&bench, clients[i], &works[i]);
        }
        test_true(client_wait_tokens(clients[7], 3, 60 * SECOND));
        uint64_t killed_ns = clock_now_ns();
        worker_process_kill(&bench.worker);
        for (uint32_t i = 0; i < 8; i++) {
            struct client_view view;
            test_true(client_wait_end(clients[i], 5 * SECOND));
            client_get(clients[i], &view);
            test_eq_u64(view.ended, 1);
            test_true(view.code == ERR_CLOSED || view.token_count == 200);
            test_true(!test_times_count() || view.ended_ns < killed_ns + 500 * MS);
            check_tokens(clients[i], &works[i], view.token_count);
            client_destroy(clients[i]);
        }
        test_true(client_wait_status(bench.engine, client_is_detached, SECOND));
        start_again(&bench, args);
        test_true(client_wait_status(bench.engine, client_is_ready, 20 * SECOND));
        run_all(&bench, works, 8);
    }
    expect_all_free(&bench);
    finish(&bench);
    free(works);
}

static void test_a_frozen_executor_ends_its_process(void)
{
    static const char *const frozen_args[] = {"--inject", "freeze:20", "--watchdog-ms", "500",
                                              NULL};
    static const char *const args[] = {NULL};
    struct bench bench;
    struct client_view view;
    struct client *client = client_create();
    struct work *works = make_work(1, 6);
    works[0].output_count = 200;
    start(&bench, frozen_args);
    submit(&bench, client, &works[0]);
    test_true(client_wait_end(client, 20 * SECOND));
    client_get(client, &view);
    test_eq_u64(view.code, ERR_CLOSED);
    test_eq_u64((uint64_t)worker_process_wait(&bench.worker, 20000), 3);
    start_again(&bench, args);
    test_true(client_wait_status(bench.engine, client_is_ready, 20 * SECOND));
    run_alone(&bench, works, 1);
    check_tokens(client, &works[0], view.token_count);
    finish(&bench);
    client_destroy(client);
    free(works);
}

static void test_a_stopped_worker_resumes_or_is_given_up(void)
{
    static const char *const args[] = {"--session-timeout-ms", "1500", NULL};
    struct bench bench;
    struct client_view view;
    struct timespec short_stop = {.tv_nsec = 600 * (long)MS};
    struct work *works = make_work(1, 7);
    works[0].output_count = 300;
    start(&bench, args);
    run_alone(&bench, works, 1);
    struct client *client = client_create();
    submit(&bench, client, &works[0]);
    test_true(client_wait_tokens(client, 20, 20 * SECOND));
    test_true(kill(bench.worker.pid, SIGSTOP) == 0);
    (void)nanosleep(&short_stop, NULL); /* under the timeout: what is tested */
    test_true(kill(bench.worker.pid, SIGCONT) == 0);
    check_whole(client, &works[0]);
    submit(&bench, client, &works[0]);
    test_true(client_wait_tokens(client, 20, 20 * SECOND));
    test_true(kill(bench.worker.pid, SIGSTOP) == 0);
    test_true(client_wait_end(client, 5 * SECOND));
    client_get(client, &view);
    test_eq_str(view.text, "the worker has not answered within the session timeout");
    test_true(kill(bench.worker.pid, SIGCONT) == 0);
    test_true(client_wait_status(bench.engine, client_is_ready, 10 * SECOND));
    run_all(&bench, works, 1);
    expect_all_free(&bench);
    finish(&bench);
    client_destroy(client);
    free(works);
}

static const struct test_case cases[] = {
    TEST(test_many_at_once_equal_each_alone),
    TEST(test_small_pools_make_requests_wait_not_fail),
    TEST(test_cancelled_requests_disturb_nobody),
    TEST(test_a_failure_at_every_stage),
    TEST(test_a_killed_worker_is_replaced),
    TEST(test_a_frozen_executor_ends_its_process),
    TEST(test_a_stopped_worker_resumes_or_is_given_up),
};

int main(int argc, char **argv)
{
    log_init("system_engine_test", LOG_LEVEL_WARN);
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
