/* A hand-over with pools that hold less than two of the longest requests: what waits at the old frontend
 * needs more than the half that is kept for it, and is served within the drain all the same. */
#include <poll.h>
#include <string.h>

#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"

enum {
    PAGE_TOKENS = 16,
    LARGE_PROMPT = 850, /* with the output 56 of the 60 pages */
    LARGE_OUTPUT = 40,
};

static const char *const args[] = {"--page-tokens=16",
                                   "--global-pages=60",
                                   "--local-pages=400",
                                   "--max-slots=6",
                                   "--drain-timeout-s",
                                   "300",
                                   NULL};

/* A completion of so many tokens behind a prompt of token ids, on an open connection. */
static void ask(struct http_client *client, uint32_t first_id, uint32_t prompt_tokens,
                uint32_t output_tokens)
{
    struct buf body;
    buf_init(&body);
    buf_append_text(&body, "{\"prompt\":[");
    for (uint32_t i = 0; i < prompt_tokens; i++) {
        buf_printf(&body, "%s%u", i == 0 ? "" : ",", first_id + i % 90);
    }
    buf_printf(&body, "],\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":true,\"stream\":true}",
               output_tokens);
    http_client_request(client, "POST", "/v1/completions", "", buf_text(&body));
    buf_fini(&body);
}

static void expect_end(struct http_client *client)
{
    test_true(http_client_await(client, "data: [DONE]"));
    test_true(memmem(client->input.at, client->input.used_bytes, "\"error\"", 7) == NULL);
    http_client_close(client);
}

static void await_waiting(const struct system_process *process, uint64_t requests)
{
    while (http_client_metric(process->port, "vllm:num_requests_waiting") != requests) {
        (void)poll(NULL, 0, 2); /* between two looks at a counter */
    }
}

/* The large one waits for the pages of the running one, which ends only after the other frontend is
 * there. */
static void test_what_waits_needs_more_than_half(void)
{
    struct system_process process;
    struct http_client running;
    struct http_client large;
    system_start(&process, args);
    pid_t old = system_child(&process, "bezel-frontend");
    http_client_open(&running, process.port);
    ask(&running, 100, 10 * PAGE_TOKENS, 18 * PAGE_TOKENS);
    test_true(http_client_await(&running, "data: {"));
    http_client_open(&large, process.port);
    ask(&large, 200, LARGE_PROMPT, LARGE_OUTPUT);
    await_waiting(&process, 1);
    (void)system_reload_now(&process);
    expect_end(&running);
    expect_end(&large);
    test_true(system_wait_gone(old, 5000));
    test_eq_u64(http_client_metric(process.port, "bezel:plans_refused_total"), 0);
    system_expect_all_free(&process);
    system_stop(&process);
}

/* It comes on a kept connection when the new frontend has got half of the pool already, and uses it
 * all the time: what runs there ends or is computed again later. */
static void test_what_comes_late_takes_pages_back(void)
{
    enum {
        LATE_STREAMS = 3
    };
    struct system_process process;
    struct http_client large;
    struct http_client streams[LATE_STREAMS];
    struct http_answer answer;
    system_start(&process, args);
    pid_t old = system_child(&process, "bezel-frontend");
    http_client_open(&large, process.port);
    http_client_request(&large, "GET", "/health", "", NULL);
    http_client_read(&large, &answer);
    http_answer_fini(&answer);
    (void)system_reload_now(&process);
    for (uint32_t i = 0; i < LATE_STREAMS; i++) {
        http_client_open(&streams[i], process.port);
        ask(&streams[i], 300 + 100 * i, 4 * PAGE_TOKENS,
            40 * PAGE_TOKENS); /* 44 of 60 pages each */
    }
    test_true(http_client_await(&streams[0], "data: {"));
    ask(&large, 200, LARGE_PROMPT, LARGE_OUTPUT);
    expect_end(&large);
    test_true(system_wait_gone(old, 5000));
    for (uint32_t i = 0; i < LATE_STREAMS; i++) {
        expect_end(&streams[i]);
    }
    test_eq_u64(http_client_metric(process.port, "bezel:plans_refused_total"), 0);
    system_expect_all_free(&process);
    system_stop(&process);
}

static const struct test_case cases[] = {
    TEST(test_what_waits_needs_more_than_half),
    TEST(test_what_comes_late_takes_pages_back),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
