/* Clients that leave: the engine, and the worker, hear of it at once, whatever way they go. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/fake_engine.h"
#include "tests/testlib/fake_worker.h"
#include "tests/testlib/frontend_process.h"
#include "tests/testlib/http2_client.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

enum {
    CLIENTS_PER_WAY = 63,
    FIRST_ID = 600, /* ordinary tokens; the last prompt id tells clients apart */
    LIMIT_US = 20000,
};

enum way {
    WAY_FIN,
    WAY_RST,
    WAY_HALF_CLOSE,
    WAY_H2_CLOSE,
    WAY_H2_RESET,
    WAY_COUNT,
};

enum {
    MAX_CLIENTS = WAY_COUNT * 2 * CLIENTS_PER_WAY
};

/* The frontend on the fake engine, which writes cancels to a file, or the whole frontend on the fake
 * worker, which runs in this process. */
struct rig {
    struct frontend_process process;
    char cancels_path[64];
    char run_dir[64];
    struct fake_worker *worker; /* null: fake engine */
    uint64_t left_ns[MAX_CLIENTS];
    uint64_t cancelled_ns[MAX_CLIENTS]; /* by the worker's threads; read once all are idle */
    uint32_t left_count;
};

struct client {
    struct http_client plain;
    struct http2_client h2;
    uint32_t stream;
};

static void start(struct rig *rig)
{
    char settings[120];
    (void)snprintf(rig->cancels_path, sizeof(rig->cancels_path), "/tmp/bz%d", (int)getpid());
    (void)snprintf(settings, sizeof(settings), "&slots=999&step_us=2000&cancels=%s",
                   rig->cancels_path);
    const char *arguments[] = {"--max-queue=2000", "--log-level=warn", NULL};
    frontend_process_start_fake(&rig->process, settings, arguments);
}

static void on_cancel(void *owner, uint64_t seed, uint64_t at_ns)
{
    struct rig *rig = owner;
    if (seed >= FIRST_ID && seed < FIRST_ID + MAX_CLIENTS &&
        rig->cancelled_ns[seed - FIRST_ID] == 0) {
        rig->cancelled_ns[seed - FIRST_ID] = at_ns;
    }
}

static void start_with_worker(struct rig *rig)
{
    struct err err;
    struct fake_options options = {.run_dir = rig->run_dir, .on_cancel = on_cancel, .owner = rig};
    char argument[100];
    (void)snprintf(rig->run_dir, sizeof(rig->run_dir), "/tmp/bezel-gone-XXXXXX");
    test_true(mkdtemp(rig->run_dir) != NULL);
    options.model.limits = model_small_limits();
    options.model.limits.slots = 256;
    options.model.limits.max_step_rows = 256;
    options.model.limits.max_step_tokens = 2048;
    options.model.limits.max_context_tokens = 8192;
    options.model.limits.vocab_tokens = 2048;
    options.model.limits.local_pages = 100000;
    options.model.limits.global_pages = 100000;
    options.model.limits.tokenizer_hash = frontend_process_demo_hash();
    options.model.step_ns = 5 * CLOCK_NS_PER_MS;
    options.model.token_first = 100;
    test_ok(fake_start(&options, &rig->worker, &err), &err);
    (void)snprintf(argument, sizeof(argument), "--run-dir=%s", rig->run_dir);
    const char *argv[] = {argument, "--max-queue=2000", "--log-level=warn", NULL};
    frontend_process_start(&rig->process, TEST_FRONTEND, TEST_DEMO_MODEL_DIR, argv);
    frontend_process_await_ready(&rig->process);
}

static void finish(struct rig *rig)
{
    test_eq_u64((uint64_t)frontend_process_stop(&rig->process), 0);
    if (rig->worker) {
        struct fake_stats stats;
        fake_get_stats(rig->worker, &stats);
        test_eq_str(stats.violation, "");
        fake_stop(rig->worker);
        test_true(rmdir(rig->run_dir) == 0 || errno == ENOTEMPTY);
    } else {
        (void)unlink(rig->cancels_path);
    }
    mem_free(rig);
}

static bool is_h2(enum way way)
{
    return way == WAY_H2_CLOSE || way == WAY_H2_RESET;
}

static void begin(struct rig *rig, struct client *client, enum way way, bool is_stream, uint32_t id)
{
    char body[200];
    (void)snprintf(body, sizeof(body),
                   "{\"prompt\":[2,300,%u],\"seed\":%u,\"ignore_eos\":true,\"max_tokens\":8000,"
                   "\"stream\":%s}",
                   id, id, is_stream ? "true" : "false");
    if (is_h2(way)) {
        http2_client_open(&client->h2, rig->process.port);
        client->stream = http2_client_post(&client->h2, "/v1/completions", body);
    } else {
        http_client_open(&client->plain, rig->process.port);
        http_client_request(&client->plain, "POST", "/v1/completions", "", body);
    }
}

static void leave(struct client *client, enum way way)
{
    switch (way) {
    case WAY_FIN: http_client_close(&client->plain); break;
    case WAY_RST: http_client_reset(&client->plain); break;
    case WAY_HALF_CLOSE: test_true(shutdown(client->plain.fd, SHUT_WR) == 0); break;
    case WAY_H2_CLOSE: http2_client_close(&client->h2); break;
    case WAY_H2_RESET: http2_client_reset_stream(&client->h2, client->stream); break;
    case WAY_COUNT: break;
    }
}

/* Until the worker, where there is one, holds so many sequences: what it was told before it could
 * apply an ADMIT it cannot tell by the request's seed. */
static void await_sequences(const struct rig *rig, uint32_t count)
{
    struct fake_stats stats = {.model.sequences = count + 1};
    while (rig->worker && stats.model.sequences != count) {
        fake_get_stats(rig->worker, &stats);
    }
}

static void leave_all(struct rig *rig, enum way way, bool is_stream)
{
    struct client *clients = mem_zalloc(CLIENTS_PER_WAY, sizeof(*clients));
    uint32_t first = rig->left_count;
    for (uint32_t i = 0; i < CLIENTS_PER_WAY; i++) {
        begin(rig, &clients[i], way, is_stream, FIRST_ID + first + i);
    }
    for (uint32_t i = 0; is_stream && i < CLIENTS_PER_WAY; i++) {
        test_true(is_h2(way) ? http2_client_await(&clients[i].h2, "data: ")
                             : http_client_await(&clients[i].plain, "data: "));
    }
    while (http_client_metric(rig->process.port, "vllm:num_requests_running") < CLIENTS_PER_WAY) {
    }
    await_sequences(rig, CLIENTS_PER_WAY);
    for (uint32_t i = 0; i < CLIENTS_PER_WAY; i++) {
        rig->left_ns[first + i] = clock_now_ns();
        leave(&clients[i], way);
    }
    rig->left_count += CLIENTS_PER_WAY;
    while (http_client_metric(rig->process.port, "vllm:num_requests_running") > 0) {
    }
    await_sequences(rig, 0);
    for (uint32_t i = 0; i < CLIENTS_PER_WAY; i++) {
        if (way == WAY_HALF_CLOSE) {
            http_client_close(&clients[i].plain);
        } else if (way == WAY_H2_RESET) {
            http2_client_close(&clients[i].h2);
        }
    }
    mem_free(clients);
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *left = a;
    const uint64_t *right = b;
    return (*left > *right) - (*left < *right);
}

/* When each client's request was cancelled, from the fake engine's file. */
static void read_cancels(struct rig *rig)
{
    int fd = open(rig->cancels_path, O_RDONLY | O_CLOEXEC);
    struct fake_cancel record;
    test_true(fd >= 0);
    while (read(fd, &record, sizeof(record)) == (ssize_t)sizeof(record)) {
        uint64_t client = record.last_prompt_id - FIRST_ID;
        test_true(client < rig->left_count && rig->cancelled_ns[client] == 0);
        rig->cancelled_ns[client] = record.time_ns;
    }
    (void)close(fd);
}

static void check_delays(const struct rig *rig)
{
    static uint64_t delays_us[MAX_CLIENTS];
    uint32_t count = rig->left_count;
    for (uint32_t i = 0; i < count; i++) {
        test_true(rig->cancelled_ns[i] >= rig->left_ns[i]); /* each was */
        delays_us[i] = (rig->cancelled_ns[i] - rig->left_ns[i]) / 1000;
    }
    qsort(delays_us, count, sizeof(*delays_us), compare_u64);
    (void)printf("%u clients left: cancelled at the %s after p50 %" PRIu64 " us, p99 %" PRIu64
                 " us, at most %" PRIu64 " us\n",
                 count, rig->worker ? "worker" : "engine", delays_us[count / 2],
                 delays_us[count * 99 / 100], delays_us[count - 1]);
    /* The worker's side adds its own threads' turns, five of them on a machine of two cores. */
    uint64_t limit_us = rig->worker ? 5 * LIMIT_US : LIMIT_US;
    test_true(!test_times_count() || delays_us[count * 99 / 100] <= limit_us);
}

static void leave_in_every_way(struct rig *rig)
{
    for (int way = 0; way < WAY_COUNT; way++) {
        leave_all(rig, (enum way)way, false);
        leave_all(rig, (enum way)way, true);
    }
    test_eq_u64(http_client_metric(rig->process.port, "bezel:requests_open"), 0);
    test_eq_u64(http_client_metric(rig->process.port, "bezel:requests_cancelled_total"),
                rig->left_count);
    test_eq_u64(http_client_metric(rig->process.port, "bezel:clients_gone_total"), rig->left_count);
    test_eq_u64(http_client_metric(rig->process.port, "vllm:num_requests_waiting"), 0);
    /* The connection that asks is the only one left. */
    while (http_client_metric(rig->process.port, "bezel:http_connections") > 1) {
    }
}

static void test_the_engine_hears_of_it(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    start(rig);
    leave_in_every_way(rig);
    read_cancels(rig);
    check_delays(rig);
    finish(rig);
}

static void test_the_worker_hears_of_it(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    struct fake_stats stats = {.model.sequences = 1};
    start_with_worker(rig);
    leave_in_every_way(rig);
    while (stats.model.sequences > 0) { /* until the last RELEASE */
        fake_get_stats(rig->worker, &stats);
    }
    test_eq_u64(stats.model.local_held_pages, 0);
    test_eq_u64(stats.model.global_held_pages, 0);
    check_delays(rig);
    finish(rig);
}

/* A stream's reset leaves the other streams of its connection alone. */
static void test_reset_ends_one_stream_only(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    struct http2_client client;
    start(rig);
    http2_client_open(&client, rig->process.port);
    uint32_t first = http2_client_post(
        &client, "/v1/completions", "{\"prompt\":[2,300,700],\"ignore_eos\":true,\"stream\":true}");
    (void)http2_client_post(&client, "/v1/completions",
                            "{\"prompt\":[2,300,701],\"ignore_eos\":true,\"max_tokens\":100,"
                            "\"stream\":true}");
    test_true(http2_client_await(&client, "data: "));
    http2_client_reset_stream(&client, first);
    test_true(http2_client_await(&client, "[DONE]"));
    test_true(http2_client_await_ends(&client, 1));
    http2_client_close(&client);
    test_eq_u64(http_client_metric(rig->process.port, "bezel:requests_finished_total"), 1);
    test_eq_u64(http_client_metric(rig->process.port, "bezel:requests_cancelled_total"), 1);
    finish(rig);
}

static const struct test_case cases[] = {
    TEST(test_the_engine_hears_of_it),
    TEST(test_the_worker_hears_of_it),
    TEST(test_reset_ends_one_stream_only),
};

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* writes to closed sockets report EPIPE */
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
