/* Clients that are slow, greedy or rude: each is bounded, and others are served meanwhile. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/frontend_process.h"
#include "tests/testlib/http2_client.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

#define COMPLETIONS "/v1/completions"

static void expect_healthy(struct frontend_process *process)
{
    struct http_answer answer;
    http_client_once(process->port, "POST", COMPLETIONS, "{\"prompt\":\"a b c\"}", &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    test_eq_u64((uint64_t)frontend_process_stop(process), 0);
}

/* The stream is as wide as it gets, and nobody reads: it is cancelled, and the memory with it. */
static void test_slow_readers_are_cancelled(void)
{
    struct frontend_process process;
    const char *arguments[] = {"--stream-buffer-kb=64", NULL};
    frontend_process_start_fake(&process, "&step_us=50&context=900000", arguments);
    for (int is_h2 = 0; is_h2 < 2; is_h2++) {
        struct http_client client;
        struct http2_client h2;
        const char *body = "{\"prompt\":\"a b c d e f g h\",\"ignore_eos\":true,\"stream\":true,"
                           "\"logprobs\":20}";
        if (is_h2) {
            http2_client_open(&h2, process.port);
            (void)http2_client_post(&h2, COMPLETIONS, body);
        } else {
            http_client_open(&client, process.port);
            int small = 4096;
            test_true(setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
            http_client_request(&client, "POST", COMPLETIONS, "", body);
        }
        uint64_t deadline_ns = clock_now_ns() + 20 * CLOCK_NS_PER_SEC;
        while (http_client_metric(process.port, "bezel:slow_readers_total") < (uint64_t)is_h2 + 1) {
            test_true(clock_now_ns() < deadline_ns);
        }
        test_eq_u64(http_client_metric(process.port, "bezel:requests_open"), 0);
        if (is_h2) {
            /* Once it reads again, it learns why. */
            test_true(http2_client_await(&h2, "slow_reader"));
            test_true(http2_client_await_ends(&h2, 1));
            http2_client_close(&h2);
        } else {
            http_client_close(&client);
        }
    }
    expect_healthy(&process);
}

/* A whole answer larger than all buffers on the way, and nobody reads: the connection is dropped. */
static void test_unread_answers_time_out(void)
{
    struct frontend_process process;
    struct http_client client;
    const char *arguments[] = {"--write-timeout-s=1", NULL};
    frontend_process_start_fake(&process, "&step_us=10&context=900000", arguments);
    http_client_open(&client, process.port);
    int small = 4096;
    test_true(setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    http_client_request(&client, "POST", COMPLETIONS, "",
                        "{\"prompt\":\"a b c\",\"ignore_eos\":true,\"max_tokens\":6000,"
                        "\"logprobs\":20}");
    uint64_t deadline_ns = clock_now_ns() + 60 * CLOCK_NS_PER_SEC;
    while (http_client_metric(process.port, "bezel:requests_finished_total") < 1) {
        test_true(clock_now_ns() < deadline_ns);
    }
    /* The one that asks is left. */
    while (http_client_metric(process.port, "bezel:http_connections") > 1) {
        test_true(clock_now_ns() < deadline_ns);
    }
    http_client_close(&client);
    expect_healthy(&process);
}

static void test_resets_are_bounded(void)
{
    struct frontend_process process;
    struct http2_client quick;
    struct http2_client patient;
    const char *body = "{\"prompt\":\"a b c\",\"ignore_eos\":true,\"stream\":true,"
                       "\"max_tokens\":100000}";
    const char *arguments[] = {"--max-resets-per-s=20", NULL};
    frontend_process_start_fake(&process, "&step_us=1000&context=900000", arguments);
    http2_client_open(&patient, process.port);
    http2_client_open(&quick, process.port);
    (void)http2_client_post(&patient, COMPLETIONS, body);
    for (int i = 0; i < 20; i++) {
        http2_client_reset_stream(&quick, http2_client_post(&quick, COMPLETIONS, body));
    }
    /* As many as allowed: the connection serves on. */
    (void)http2_client_post(&quick, COMPLETIONS, body);
    test_true(http2_client_await(&quick, "text_completion"));
    for (int i = 0; i < 21; i++) {
        http2_client_reset_stream(&quick, http2_client_post(&quick, COMPLETIONS, body));
    }
    test_true(!http2_client_await(&quick, "no such text"));
    test_eq_u64(http_client_metric(process.port, "bezel:http2_reset_floods_total"), 1);
    test_true(http2_client_await(&patient, "text_completion")); /* others go on */
    test_eq_u64(http_client_metric(process.port, "bezel:requests_open"), 1);
    http2_client_close(&quick);
    http2_client_close(&patient);
    expect_healthy(&process);
}

static void test_dawdling_headers_time_out(void)
{
    struct frontend_process process;
    const char *arguments[] = {"--header-timeout-s=1", NULL};
    frontend_process_start_fake(&process, "", arguments);
    struct http_client slow;
    struct http_client idle;
    http_client_open(&slow, process.port);
    http_client_open(&idle, process.port);
    http_client_send(&slow, "GET /health HTTP/1.1\r\nX: ", 25);
    struct pollfd poll_fd = {.fd = slow.fd, .events = POLLIN};
    for (int i = 0; i < 100 && poll(&poll_fd, 1, 100) == 0; i++) {
        http_client_send(&slow, "y", 1); /* a byte now and then buys no time */
    }
    test_true(!http_client_await(&slow, "HTTP/1.1 200"));
    test_eq_u64(http_client_metric(process.port, "bezel:header_timeouts_total"), 1);
    /* A connection that has sent nothing may idle. */
    http_client_request(&idle, "GET", "/health", "", NULL);
    test_true(http_client_await(&idle, "HTTP/1.1 200"));
    http_client_close(&slow);
    http_client_close(&idle);
    expect_healthy(&process);
}

static void test_connections_are_bounded(void)
{
    struct frontend_process process;
    struct http_client clients[12];
    const char *arguments[] = {"--max-connections=8", NULL};
    frontend_process_start_fake(&process, "", arguments);
    for (int i = 0; i < 12; i++) {
        http_client_open(&clients[i], process.port); /* the last four wait in the backlog */
        http_client_request(&clients[i], "GET", "/health", "", NULL);
    }
    for (int i = 0; i < 12; i++) {
        test_true(http_client_await(&clients[i], "HTTP/1.1 200"));
        http_client_close(&clients[i]);
    }
    expect_healthy(&process);
}

static void test_pipelined_requests_are_answered_in_order(void)
{
    struct frontend_process process;
    struct http_client client;
    frontend_process_start_fake(&process, "", NULL);
    http_client_open(&client, process.port);
    for (int i = 0; i < 5; i++) {
        char headers[40];
        (void)snprintf(headers, sizeof(headers), "X-Request-Id: r%d\r\n", i);
        http_client_request(&client, "POST", COMPLETIONS, headers, "{\"prompt\":\"a b c\"}");
    }
    for (int i = 0; i < 5; i++) {
        struct http_answer answer;
        char want[8];
        (void)snprintf(want, sizeof(want), "r%d", i);
        http_client_read(&client, &answer);
        test_eq_u64((uint64_t)answer.status, 200);
        test_eq_str(http_answer_header(&answer, "x-request-id"), want);
        http_answer_fini(&answer);
    }
    http_client_close(&client);
    expect_healthy(&process);
}

static void test_malformed_http(void)
{
    static const char *const texts[] = {
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /v1/completions HTTP/1.1\r\nExpect: magic\r\nContent-Length: 2\r\n\r\n{}",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense that is no frame",
    };
    struct frontend_process process;
    frontend_process_start_fake(&process, "", NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct http_client client;
        http_client_open(&client, process.port);
        http_client_send(&client, texts[i], strlen(texts[i]));
        (void)http_client_await(&client, "never sent"); /* until the server closes */
        test_true(!strstr(buf_text(&client.input), "HTTP/1.1 200"));
        http_client_close(&client);
    }
    struct http_client client; /* a header larger than any */
    http_client_open(&client, process.port);
    char *header = mem_zalloc(1 << 20, 1);
    memset(header, 'x', (1 << 20) - 1);
    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): the end is written elsewhere */
    memcpy(header, "GET /health HTTP/1.1\r\nX: ", 25);
    http_client_send(&client, header, (1 << 20) - 1);
    test_true(!http_client_await(&client, "HTTP/1.1 200"));
    mem_free(header);
    http_client_close(&client);
    expect_healthy(&process);
}

static void test_expect_continue_and_chunked_bodies(void)
{
    struct frontend_process process;
    struct http_client client;
    struct http_answer answer;
    frontend_process_start_fake(&process, "", NULL);
    http_client_open(&client, process.port);
    const char *head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                       "Content-Length: 18\r\n\r\n";
    http_client_send(&client, head, strlen(head));
    test_true(http_client_await(&client, "100 Continue\r\n\r\n"));
    test_true(http_client_take(&client, client.input.used_bytes, NULL));
    http_client_send(&client, "{\"prompt\":\"a b c\"}", 18);
    http_client_read(&client, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    const char *chunked =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        "Transfer-Encoding: chunked\r\n\r\n9\r\n{\"prompt\"\r\n9\r\n:\"a b c\"}\r\n"
        "0\r\n\r\n";
    http_client_send(&client, chunked, strlen(chunked));
    http_client_read(&client, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    http_client_close(&client);
    expect_healthy(&process);
}

static void test_http2_serves_many_streams(void)
{
    struct frontend_process process;
    struct http2_client client;
    frontend_process_start_fake(&process, "", NULL);
    http2_client_open(&client, process.port);
    for (int i = 0; i < 40; i++) {
        (void)http2_client_post(&client, COMPLETIONS,
                                i % 2 ? "{\"prompt\":\"a b c\",\"stream\":true}"
                                      : "{\"prompt\":\"a b c\"}");
    }
    test_true(http2_client_await_ends(&client, 40));
    test_eq_u64(client.reset_streams, 0);
    http2_client_close(&client);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_finished_total"), 40);
    expect_healthy(&process);
}

static void test_http2_body_over_the_limit(void)
{
    struct frontend_process process;
    struct http2_client client;
    const char *arguments[] = {"--max-body-mb=1", NULL};
    frontend_process_start_fake(&process, "", arguments);
    char *body = mem_zalloc((2 << 20) + 1, 1);
    memset(body, ' ', 2 << 20);
    http2_client_open(&client, process.port);
    (void)http2_client_post(&client, COMPLETIONS, body);
    test_true(http2_client_await(&client, "body_too_large"));
    http2_client_close(&client);
    mem_free(body);
    expect_healthy(&process);
}

static void test_silent_streams_get_comments(void)
{
    struct frontend_process process;
    struct http_client client;
    const char *arguments[] = {"--sse-ping-s=1", NULL};
    frontend_process_start_fake(&process, "&step_us=1500000", arguments);
    http_client_open(&client, process.port);
    http_client_request(&client, "POST", COMPLETIONS, "", "{\"prompt\":\"a\",\"stream\":true}");
    test_true(http_client_await(&client, ": ping"));
    test_true(http_client_await(&client, "data: "));
    http_client_close(&client);
    test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
}

static void test_drain_closes_http2(void)
{
    struct frontend_process process;
    struct http2_client client;
    frontend_process_start_fake(&process, "&step_us=5000", NULL);
    http2_client_open(&client, process.port);
    (void)http2_client_post(&client, COMPLETIONS,
                            "{\"prompt\":\"a b c d\",\"ignore_eos\":true,\"max_tokens\":100,"
                            "\"stream\":true}");
    test_true(http2_client_await(&client, "data: "));
    test_true(kill(process.pid, SIGTERM) == 0);
    test_true(http2_client_await(&client, "[DONE]"));
    test_true(client.has_goaway);
    test_eq_u64((uint64_t)frontend_process_wait(&process, 5000), 0);
    http2_client_close(&client);
}

static const struct test_case cases[] = {
    TEST(test_slow_readers_are_cancelled),
    TEST(test_unread_answers_time_out),
    TEST(test_resets_are_bounded),
    TEST(test_dawdling_headers_time_out),
    TEST(test_connections_are_bounded),
    TEST(test_pipelined_requests_are_answered_in_order),
    TEST(test_malformed_http),
    TEST(test_expect_continue_and_chunked_bodies),
    TEST(test_http2_serves_many_streams),
    TEST(test_http2_body_over_the_limit),
    TEST(test_silent_streams_get_comments),
    TEST(test_drain_closes_http2),
};

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* writes to closed sockets report EPIPE */
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
