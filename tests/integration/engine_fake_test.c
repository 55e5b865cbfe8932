/* The engine over real sockets and a real ring, against the fake worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/engine.h"
#include "tests/testlib/engine_client.h"
#include "tests/testlib/fake_worker.h"
#include "tests/testlib/test.h"

#define MS     CLOCK_NS_PER_MS
#define SECOND CLOCK_NS_PER_SEC

static const uint32_t prompt[1024];

struct bench {
    char run_dir[64];
    struct fake_options fake_options;
    struct fake_worker *fake;
    struct engine *engine;
};

static void start_fake(struct bench *bench)
{
    struct err err;
    test_ok(fake_start(&bench->fake_options, &bench->fake, &err), &err);
}

static void stop_fake(struct bench *bench)
{
    struct fake_stats stats;
    fake_get_stats(bench->fake, &stats);
    fake_stop(bench->fake);
    bench->fake = NULL;
    test_eq_str(stats.violation, "");
}

static void start_engine(struct bench *bench, const struct engine_options *options)
{
    struct err err;
    struct engine_options all = *options;
    all.run_dir = bench->run_dir;
    all.name = "engine test";
    all.max_queue = all.max_queue == 0 ? 256 : all.max_queue;
    test_ok(engine_create(&all, &bench->engine, &err), &err);
}

static void prepare(struct bench *bench)
{
    *bench = (struct bench){.run_dir = "/tmp/bezel-engine-XXXXXX"};
    test_true(mkdtemp(bench->run_dir) != NULL);
    bench->fake_options = (struct fake_options){
        .run_dir = bench->run_dir,
        .model = {.limits = model_small_limits(), .step_ns = MS},
    };
}

static void start(struct bench *bench)
{
    struct engine_options options = {0};
    start_fake(bench);
    start_engine(bench, &options);
    test_true(client_wait_status(bench->engine, client_is_ready, 5 * SECOND));
}

static void finish(struct bench *bench)
{
    struct engine_status status;
    engine_get_status(bench->engine, &status);
    test_true(client_adds_up(&status));
    engine_destroy(bench->engine);
    if (bench->fake != NULL) {
        stop_fake(bench);
    }
    char command[128];
    (void)snprintf(command, sizeof(command), "%s/control.ipc", bench->run_dir);
    (void)unlink(command); /* left behind by a stopped listener, or not */
    (void)rmdir(bench->run_dir);
}

static void submit(struct bench *bench, struct client *client, uint32_t prompt_count,
                   uint32_t output_count, uint64_t seed)
{
    struct err err;
    struct engine_request request =
        client_request(client, prompt, prompt_count, output_count, seed);
    test_ok(client_submit(client, bench->engine, &request, &err), &err);
}

static void check_length(struct bench *bench, struct client *client, uint32_t prompt_count,
                         uint32_t output_count, uint64_t seed)
{
    struct client_view view;
    test_true(client_wait_end(client, 20 * SECOND));
    client_get(client, &view);
    test_eq_str(view.text, "");
    test_eq_u64(view.ended, 1);
    test_eq_u64(view.reason, RESULT_FINISH_LENGTH);
    test_eq_u64(view.token_count, output_count);
    for (uint32_t i = 0; i < output_count; i++) {
        test_eq_u64(client_token(client, i),
                    model_token(&bench->fake_options.model, seed, prompt_count + i));
    }
}

static bool has_nothing_left(const struct engine_status *status)
{
    const struct hello_welcome limits = model_small_limits();
    return status->figures.local_quota_left_pages == limits.local_pages &&
           status->figures.global_quota_left_pages == limits.global_pages;
}

static void test_many_requests_at_once(void)
{
    struct bench bench;
    struct client *clients[64];
    prepare(&bench);
    start(&bench);
    for (uint32_t i = 0; i < 64; i++) {
        clients[i] = client_create();
        submit(&bench, clients[i], 1 + i * 13, 20 + i, i);
    }
    for (uint32_t i = 0; i < 64; i++) {
        check_length(&bench, clients[i], 1 + i * 13, 20 + i, i);
        client_destroy(clients[i]);
    }
    test_true(client_wait_status(bench.engine, has_nothing_left, 5 * SECOND));
    struct engine_status status;
    engine_get_status(bench.engine, &status);
    test_eq_u64(status.requests_finished[RESULT_FINISH_LENGTH], 64);
    test_eq_u64(status.plans_refused, 0);
    finish(&bench);
}

static void test_run_ahead_hides_the_way_to_the_worker(void)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct bench bench;
        struct client *clients[16];
        prepare(&bench);
        struct model_options *model = &bench.fake_options.model;
        model->step_ns = 10 * MS;
        model->down_ns = 2 * MS;
        model->up_ns = 2 * MS;
        model->limits.pipeline_depth = depth;
        start(&bench);
        for (uint32_t i = 0; i < 16; i++) {
            clients[i] = client_create();
            submit(&bench, clients[i], 4, 200, i);
        }
        for (uint32_t i = 0; i < 16; i++) {
            check_length(&bench, clients[i], 4, 200, i);
            client_destroy(clients[i]);
        }
        struct fake_stats stats;
        fake_get_stats(bench.fake, &stats);
        double took = (double)(stats.model.last_end_ns - stats.model.first_start_ns);
        double lost = 1.0 - (double)stats.model.busy_ns / took;
        (void)fprintf(stderr, "depth %u: %.1f%% of the time lost\n", depth, 100 * lost);
        if (depth == 2) {
            test_true(lost < 0.05 || !test_times_count());
        } else { /* 4 ms of every 14, and what waking takes */
            test_true((lost > 0.27 && lost < 0.36) || !test_times_count());
        }
        finish(&bench);
    }
}

static void test_cancel_from_another_thread(void)
{
    struct bench bench;
    struct client *client = client_create();
    struct client_view view;
    prepare(&bench);
    start(&bench);
    submit(&bench, client, 100, 1000, 1);
    test_true(client_wait_tokens(client, 10, 5 * SECOND));
    client_get(client, &view);
    engine_cancel(bench.engine, view.request_id);
    engine_cancel(bench.engine, 12345678);
    test_true(client_wait_end(client, 5 * SECOND));
    client_get(client, &view);
    test_eq_u64(view.reason, RESULT_FINISH_CANCEL);
    test_true(view.token_count < 1000);
    test_true(client_wait_status(bench.engine, has_nothing_left, 5 * SECOND));
    client_get(client, &view);
    test_eq_u64(view.ended, 1);
    finish(&bench);
    client_destroy(client);
}

static bool is_loading(const struct engine_status *status)
{
    return status->welcome.state == HELLO_STATE_LOADING && status->welcome.load_done_bytes == 500 &&
           !status->is_attached;
}

static void test_a_loading_worker_is_waited_for(void)
{
    struct bench bench;
    struct client *client = client_create();
    struct engine_options options = {0};
    struct err err;
    prepare(&bench);
    bench.fake_options.load_ns = 400 * MS;
    bench.fake_options.busy_attaches = 3;
    start_engine(&bench, &options);
    struct engine_request request = client_request(client, prompt, 4, 10, 1);
    test_eq_u64(client_submit(client, bench.engine, &request, &err), ERR_CLOSED);
    test_eq_str(err.message, "no worker is ready yet");
    start_fake(&bench);
    test_true(client_wait_status(bench.engine, is_loading, 5 * SECOND));
    test_true(client_wait_status(bench.engine, client_is_ready, 5 * SECOND));
    struct engine_status status;
    engine_get_status(bench.engine, &status);
    test_eq_u64(status.welcome.model_id.byte_count, 12);
    test_true(memcmp(status.welcome.model_id.at, "model-worker", 12) == 0);
    submit(&bench, client, 4, 10, 1);
    check_length(&bench, client, 4, 10, 1);
    finish(&bench);
    client_destroy(client);
}

static bool has_seen_hellos(struct bench *bench, uint64_t count, uint64_t timeout_ns)
{
    uint64_t end_ns = clock_now_ns() + timeout_ns;
    struct fake_stats stats;
    do {
        struct timespec tick = {.tv_nsec = (long)MS};
        (void)nanosleep(&tick, NULL); /* the fake worker has no event to wait on */
        fake_get_stats(bench->fake, &stats);
    } while (stats.hellos < count && clock_now_ns() < end_ns);
    return stats.hellos >= count;
}

static void test_a_worker_of_another_version_is_not_used(void)
{
    struct bench bench;
    struct engine_options options = {.tokenizer_hash = 77};
    prepare(&bench);
    bench.fake_options.table_hash_flip = 1;
    start_fake(&bench);
    start_engine(&bench, &options);
    test_true(has_seen_hellos(&bench, 2, 5 * SECOND));
    struct fake_stats stats;
    fake_get_stats(bench.fake, &stats);
    test_eq_u64(stats.attaches, 0);
    stop_fake(&bench);
    bench.fake_options.table_hash_flip = 0;
    bench.fake_options.model.limits.tokenizer_hash = 78;
    start_fake(&bench);
    test_true(has_seen_hellos(&bench, 2, 5 * SECOND));
    fake_get_stats(bench.fake, &stats);
    test_eq_u64(stats.attaches, 0);
    stop_fake(&bench);
    bench.fake_options.model.limits.tokenizer_hash = 77;
    start_fake(&bench);
    test_true(client_wait_status(bench.engine, client_is_ready, 5 * SECOND));
    finish(&bench);
}

static void test_a_dead_worker_fails_what_ran_and_a_new_one_serves_the_rest(void)
{
    struct bench bench;
    struct client *clients[40];
    prepare(&bench);
    bench.fake_options.model.limits.slots = 8;
    bench.fake_options.model.step_ns = 3 * MS;
    start(&bench);
    for (uint32_t i = 0; i < 40; i++) {
        clients[i] = client_create();
        submit(&bench, clients[i], 20, 100, i);
    }
    test_true(client_wait_tokens(clients[0], 5, 5 * SECOND));
    stop_fake(&bench);
    uint64_t killed_ns = clock_now_ns();
    test_true(client_wait_status(bench.engine, client_is_detached, SECOND));
    bench.fake_options.model.limits.instance_id = 2;
    start_fake(&bench);
    test_true(client_wait_status(bench.engine, client_is_ready, 5 * SECOND));
    test_true(clock_now_ns() - killed_ns < SECOND || !test_times_count());
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 40; i++) {
        struct client_view view;
        test_true(client_wait_end(clients[i], 20 * SECOND));
        client_get(clients[i], &view);
        test_eq_u64(view.ended, 1);
        failed += view.code == ERR_CLOSED;
        test_true(!view.failed_attached);
        if (view.code == ERR_OK) {
            check_length(&bench, clients[i], 20, 100, i);
        }
        client_destroy(clients[i]);
    }
    test_eq_u64(failed, 8);
    struct engine_status status;
    engine_get_status(bench.engine, &status);
    test_eq_u64(status.worker_attaches, 2);
    finish(&bench);
}

static void test_death_at_any_message(void)
{
    for (uint64_t at = 1; at <= 40; at += 3) {
        struct bench bench;
        struct client *clients[4];
        prepare(&bench);
        bench.fake_options.model.faults[0] =
            (struct model_fault){.kind = MODEL_FAULT_DIE, .at = at};
        start_fake(&bench);
        struct engine_options options = {.detached_wait_ms = 300};
        start_engine(&bench, &options);
        test_true(at == 1 || client_wait_status(bench.engine, client_is_ready, 5 * SECOND));
        uint32_t accepted = 0;
        for (uint32_t i = 0; i < 4 && at > 1; i++) {
            struct err err;
            clients[i] = client_create();
            struct engine_request request = client_request(clients[i], prompt, 50, 100, i);
            test_ok(client_submit(clients[i], bench.engine, &request, &err), &err);
            accepted++;
        }
        for (uint32_t i = 0; i < accepted; i++) {
            struct client_view view;
            test_true(client_wait_end(clients[i], 10 * SECOND));
            client_get(clients[i], &view);
            test_eq_u64(view.ended, 1);
            test_eq_u64(view.code, ERR_CLOSED);
            client_destroy(clients[i]);
        }
        finish(&bench);
    }
}

static void test_a_frozen_worker_is_given_up(void)
{
    struct bench bench;
    struct client *client = client_create();
    struct client_view view;
    prepare(&bench);
    bench.fake_options.model.limits.session_timeout_ms = 700;
    start(&bench);
    submit(&bench, client, 20, 1000, 1);
    test_true(client_wait_tokens(client, 5, 5 * SECOND));
    fake_freeze(bench.fake);
    uint64_t frozen_ns = clock_now_ns();
    test_true(client_wait_end(client, 5 * SECOND));
    client_get(client, &view);
    test_eq_u64(view.code, ERR_CLOSED);
    test_eq_str(view.text, "the worker has not answered within the session timeout");
    test_true(view.ended_ns - frozen_ns > 600 * MS);
    test_true(view.ended_ns - frozen_ns < 1500 * MS || !test_times_count());
    fake_thaw(bench.fake);
    test_true(client_wait_status(bench.engine, client_is_ready, 5 * SECOND));
    submit(&bench, client, 20, 10, 1);
    check_length(&bench, client, 20, 10, 1);
    finish(&bench);
    client_destroy(client);
}

static void test_destroy_ends_everything(void)
{
    struct bench bench;
    struct client *clients[40];
    prepare(&bench);
    bench.fake_options.model.limits.slots = 8;
    start(&bench);
    for (uint32_t i = 0; i < 40; i++) {
        clients[i] = client_create();
        submit(&bench, clients[i], 20, 900, i);
    }
    test_true(client_wait_tokens(clients[0], 5, 5 * SECOND));
    engine_destroy(bench.engine);
    bench.engine = NULL;
    for (uint32_t i = 0; i < 40; i++) {
        struct client_view view;
        client_get(clients[i], &view);
        test_eq_u64(view.ended, 1);
        test_eq_u64(view.code, ERR_CLOSED);
        test_eq_str(view.text, "the server is stopping");
        client_destroy(clients[i]);
    }
    struct engine_options options = {0};
    start_engine(&bench, &options);
    test_true(client_wait_status(bench.engine, client_is_ready, 2 * SECOND));
    finish(&bench);
}

static uint64_t cpu_ns(void)
{
    struct timespec used;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used); /* cannot fail for this clock */
    return (uint64_t)used.tv_sec * SECOND + (uint64_t)used.tv_nsec;
}

static void test_an_idle_engine_uses_no_cpu(void)
{
    struct bench bench;
    prepare(&bench);
    start(&bench);
    struct timespec second = {.tv_sec = 2};
    uint64_t before_ns = cpu_ns();
    (void)nanosleep(&second, NULL); /* what is measured */
    uint64_t used_ns = cpu_ns() - before_ns;
    (void)fprintf(stderr, "idle: %.3f%% of a core, fake worker included\n", (double)used_ns / 2e7);
    test_true(used_ns < 40 * MS || !test_times_count());
    finish(&bench);
}

/* Pages for two of six; the tokens of each are right, one has a deadline. */
/* A worker that cannot do it is asked once, not again and again. */
static void test_a_refused_cache_reset_is_forgotten(void)
{
    struct bench bench;
    struct client *client = client_create();
    struct engine_status status;
    struct fake_stats stats;
    prepare(&bench);
    start(&bench);
    (void)engine_reset_cache(bench.engine);
    submit(&bench, client, 10, 200, 1);
    check_length(&bench, client, 10, 200, 1); /* meanwhile the engine has turned many times */
    fake_get_stats(bench.fake, &stats);
    engine_get_status(bench.engine, &status);
    test_eq_u64(stats.resets, 1);
    test_eq_u64(status.cache_resets_done, 0);
    finish(&bench);
    client_destroy(client);
}

static void test_preemption_and_deadlines(void)
{
    struct bench bench;
    struct client *clients[6];
    prepare(&bench);
    bench.fake_options.model.limits.global_pages = 45;
    start(&bench);
    for (uint32_t i = 0; i < 6; i++) {
        clients[i] = client_create();
        struct engine_request request = client_request(clients[i], prompt, 120, 200, i);
        struct err err;
        request.key_hash = i % 2;
        request.deadline_ns = i == 3 ? clock_now_ns() + 100 * MS : 0;
        test_ok(client_submit(clients[i], bench.engine, &request, &err), &err);
    }
    struct client_view late;
    test_true(client_wait_end(clients[3], 20 * SECOND));
    client_get(clients[3], &late);
    test_eq_u64(late.code, ERR_TIMEOUT);
    for (uint32_t i = 0; i < 6; i++) {
        if (i != 3) {
            check_length(&bench, clients[i], 120, 200, i);
        }
    }
    test_true(client_wait_status(bench.engine, client_is_idle, 5 * SECOND));
    struct engine_status status;
    engine_get_status(bench.engine, &status);
    test_true(status.preemptions > 0);
    test_eq_u64(status.preempted_waiting, 0);
    test_eq_u64(status.plans_refused, 0);
    for (uint32_t i = 0; i < 6; i++) {
        client_destroy(clients[i]);
    }
    finish(&bench);
}

static const struct test_case cases[] = {
    TEST(test_a_refused_cache_reset_is_forgotten),
    TEST(test_preemption_and_deadlines),
    TEST(test_many_requests_at_once),
    TEST(test_run_ahead_hides_the_way_to_the_worker),
    TEST(test_cancel_from_another_thread),
    TEST(test_a_loading_worker_is_waited_for),
    TEST(test_a_worker_of_another_version_is_not_used),
    TEST(test_a_dead_worker_fails_what_ran_and_a_new_one_serves_the_rest),
    TEST(test_death_at_any_message),
    TEST(test_a_frozen_worker_is_given_up),
    TEST(test_destroy_ends_everything),
    TEST(test_an_idle_engine_uses_no_cpu),
};

int main(int argc, char **argv)
{
    log_init("engine_fake_test", LOG_LEVEL_INFO);
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
