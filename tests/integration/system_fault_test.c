/* What clients see when a process of the whole system is killed, frozen or stalled. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/system_rig.h"
#include "tests/testlib/test.h"

enum {
    FRONTEND_KILLS = 20,
    LOAD_STREAMS = 4
};

/* A stream of many tokens that has begun: its first text has arrived. */
static void open_stream(const struct system_rig *rig, unsigned max_tokens,
                        struct http_client *client)
{
    struct buf body;
    char more[96];
    buf_init(&body);
    (void)snprintf(more, sizeof(more), ",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":%u",
                   max_tokens);
    system_rig_body(&body, "Who are you?", more);
    http_client_open(client, rig->port);
    http_client_request(client, "POST", "/v1/chat/completions", "", buf_text(&body));
    test_true(http_client_await(client, "\"content\":\"I"));
    buf_fini(&body);
}

/* Reads a stream to its end; true where it was complete. */
static bool read_stream(struct http_client *client, struct buf *out)
{
    struct http_answer answer;
    http_client_read(client, &answer);
    buf_append_text(out, buf_text(&answer.body));
    bool is_complete = !answer.has_closed && strstr(buf_text(out), "data: [DONE]") != NULL &&
                       strstr(buf_text(out), "\"error\"") == NULL;
    http_answer_fini(&answer);
    http_client_close(client);
    return is_complete;
}

static void test_killed_frontend_is_back_in_a_second(void)
{
    struct system_rig rig;
    uint64_t slowest_ns = 0;
    system_rig_start(&rig, NULL);
    pid_t worker = system_rig_child(&rig, "worker", 0);
    pid_t frontend = system_rig_child(&rig, "frontend", 0);
    for (int i = 0; i < FRONTEND_KILLS; i++) {
        struct http_client load[LOAD_STREAMS];
        for (int j = 0; j < LOAD_STREAMS; j++) {
            open_stream(&rig, 2000, &load[j]);
        }
        test_true(kill(frontend, SIGKILL) == 0);
        uint64_t back_ns = system_rig_await_ready(&rig, 200); /* a refused connection fails it */
        slowest_ns = back_ns > slowest_ns ? back_ns : slowest_ns;
        system_rig_check_answer(&rig);
        frontend = system_rig_child(&rig, "frontend", frontend);
        for (int j = 0; j < LOAD_STREAMS; j++) {
            struct buf text;
            buf_init(&text);
            test_true(!read_stream(&load[j], &text));
            buf_fini(&text);
        }
    }
    (void)printf("frontend killed %d times: ready again in %.0f ms at most\n", FRONTEND_KILLS,
                 (double)slowest_ns / 1e6);
    test_true(slowest_ns < CLOCK_NS_PER_SEC || !test_times_count());
    test_true(system_rig_child(&rig, "worker", 0) == worker);
    system_rig_await_all_free(&rig);
    system_rig_stop(&rig);
}

static void test_killed_worker_ends_streams_and_comes_back(void)
{
    static const char *const more[] = {"--backoff-ms", "2000", NULL};
    struct system_rig rig;
    struct http_client stream;
    struct http_answer answer;
    struct buf text;
    system_rig_start(&rig, more);
    pid_t worker = system_rig_child(&rig, "worker", 0);
    pid_t frontend = system_rig_child(&rig, "frontend", 0);
    open_stream(&rig, 2000, &stream);
    test_true(kill(worker, SIGKILL) == 0);
    buf_init(&text);
    test_true(!read_stream(&stream, &text));
    test_true(strstr(buf_text(&text), "\"error\"") != NULL); /* an event, not a cut */
    buf_reset(&text);
    (void)system_rig_await_ready(&rig, 503);
    system_rig_body(&text, SYSTEM_RIG_QUESTION, "");
    http_client_once(rig.port, "POST", "/v1/chat/completions", buf_text(&text), &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    test_true(http_answer_header(&answer, "retry-after") != NULL);
    http_answer_fini(&answer);
    (void)system_rig_await_ready(&rig, 200);
    system_rig_check_answer(&rig);
    test_true(system_rig_child(&rig, "frontend", 0) == frontend);
    test_true(system_rig_child(&rig, "worker", worker) != worker);
    system_rig_await_all_free(&rig);
    buf_fini(&text);
    system_rig_stop(&rig);
}

static void test_killed_launcher_lets_streams_end(void)
{
    struct system_rig rig;
    struct http_client stream;
    struct buf text;
    int status;
    system_rig_start(&rig, NULL);
    pid_t worker = system_rig_child(&rig, "worker", 0);
    pid_t frontend = system_rig_child(&rig, "frontend", 0);
    open_stream(&rig, 300, &stream);
    test_true(kill(rig.launcher, SIGKILL) == 0);
    test_true(waitpid(rig.launcher, &status, 0) == rig.launcher);
    buf_init(&text);
    test_true(read_stream(&stream, &text));
    test_true(strstr(buf_text(&text), "\"finish_reason\":\"length\"") != NULL);
    system_rig_await_gone(frontend);
    system_rig_await_gone(worker);
    buf_fini(&text);
    (void)unlink(rig.log_path);
}

static void test_frozen_executor_is_replaced(void)
{
    static const char *const more[] = {
        "--inject", "freeze:40", "--watchdog-ms", "1000", "--backoff-ms", "200", NULL};
    struct system_rig rig;
    struct http_client stream;
    struct buf text;
    system_rig_start(&rig, more);
    pid_t worker = system_rig_child(&rig, "worker", 0);
    open_stream(&rig, 2000, &stream);
    buf_init(&text);
    test_true(!read_stream(&stream, &text)); /* it met the frozen step */
    test_true(strstr(buf_text(&text), "\"error\"") != NULL);
    system_rig_await_gone(worker);
    test_true(system_rig_child(&rig, "worker", worker) != worker);
    (void)system_rig_await_ready(&rig, 200);
    system_rig_check_answer(&rig);
    system_rig_await_log(&rig, "program=worker end=\"exit status 3\"");
    buf_fini(&text);
    system_rig_stop(&rig);
}

/* Text of the stream after its beginning, without ids and times. */
static void take_texts(const struct buf *stream, struct buf *out)
{
    const char *at = buf_text(stream);
    while ((at = strstr(at, "\"delta\":{\"content\":\"")) != NULL) {
        at += strlen("\"delta\":{\"content\":\"");
        const char *end = strstr(at, "\"}");
        test_true(end != NULL);
        buf_append(out, at, (size_t)(end - at));
        at = end;
    }
}

static void read_undisturbed(const struct system_rig *rig, struct buf *out)
{
    struct http_client stream;
    struct buf text;
    buf_init(&text);
    open_stream(rig, 400, &stream);
    test_true(read_stream(&stream, &text));
    take_texts(&text, out);
    test_true(out->used_bytes > 100);
    buf_fini(&text);
}

static void test_short_stall_of_the_frontend_loses_nothing(void)
{
    const struct timespec stall = {.tv_nsec = 700000000};
    struct system_rig rig;
    struct http_client stream;
    struct buf undisturbed;
    struct buf disturbed;
    struct buf text;
    system_rig_start(&rig, NULL);
    pid_t frontend = system_rig_child(&rig, "frontend", 0);
    buf_init(&undisturbed);
    buf_init(&disturbed);
    buf_init(&text);
    read_undisturbed(&rig, &undisturbed);
    open_stream(&rig, 400, &stream);
    test_true(kill(frontend, SIGSTOP) == 0);
    (void)nanosleep(&stall, NULL); /* the fault itself: below the session timeout */
    test_true(kill(frontend, SIGCONT) == 0);
    test_true(read_stream(&stream, &text));
    take_texts(&text, &disturbed);
    test_eq_str(buf_text(&disturbed), buf_text(&undisturbed));
    system_rig_await_all_free(&rig);
    buf_fini(&undisturbed);
    buf_fini(&disturbed);
    buf_fini(&text);
    system_rig_stop(&rig);
}

static void test_long_stall_of_the_frontend_ends_its_session(void)
{
    static const char *const more[] = {"--session-timeout-ms", "1000", NULL};
    struct system_rig rig;
    struct http_client stream;
    struct buf text;
    system_rig_start(&rig, more);
    pid_t worker = system_rig_child(&rig, "worker", 0);
    pid_t frontend = system_rig_child(&rig, "frontend", 0);
    open_stream(&rig, 6000, &stream);
    test_true(kill(frontend, SIGSTOP) == 0);
    system_rig_await_log(&rig, "session ended");
    test_true(kill(frontend, SIGCONT) == 0);
    buf_init(&text);
    test_true(!read_stream(&stream, &text));
    test_true(strstr(buf_text(&text), "\"error\"") != NULL);
    (void)system_rig_await_ready(&rig, 200);
    system_rig_check_answer(&rig);
    system_rig_await_all_free(&rig);
    test_true(system_rig_child(&rig, "worker", 0) == worker);
    test_true(system_rig_child(&rig, "frontend", 0) == frontend);
    buf_fini(&text);
    system_rig_stop(&rig);
}

static const struct test_case cases[] = {
    TEST(test_killed_frontend_is_back_in_a_second),
    TEST(test_killed_worker_ends_streams_and_comes_back),
    TEST(test_killed_launcher_lets_streams_end),
    TEST(test_frozen_executor_is_replaced),
    TEST(test_short_stall_of_the_frontend_loses_nothing),
    TEST(test_long_stall_of_the_frontend_ends_its_session),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
