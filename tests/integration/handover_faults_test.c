/* What must hold when a process dies while one frontend hands over to the next, on the whole product. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_client.h"

#define STREAMS 3

static const char prompt[] = "The capital of France is";

/* A hand-over in the middle: streams on the old frontend and on the new one. */
struct scene {
    struct system_process process;
    pid_t worker;
    pid_t old_frontend;
    pid_t new_frontend;
    char *expected; /* of `prompt`, without load */
    struct http_client old_streams[STREAMS];
    struct http_client new_streams[STREAMS];
};

static void open_streams(const struct system_process *process, struct http_client *clients,
                         uint32_t output_tokens)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "Stream number %u begins with", i); /* it fits */
        system_open_stream(process, &clients[i], text, output_tokens);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "data: "));
    }
}

static void set_scene(struct scene *scene, uint32_t output_tokens)
{
    static const char *const args[] = {"--drain-timeout-s", "120", NULL};
    system_start(&scene->process, args);
    scene->worker = system_child(&scene->process, "bezel-worker");
    scene->old_frontend = system_child(&scene->process, "bezel-frontend");
    scene->expected = system_complete(&scene->process, prompt);
    open_streams(&scene->process, scene->old_streams, output_tokens);
    scene->new_frontend = system_reload_now(&scene->process);
    open_streams(&scene->process, scene->new_streams, output_tokens);
}

static void close_streams(struct http_client *clients)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        http_client_close(&clients[i]);
    }
}

static void expect_whole(struct http_client *clients)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "data: [DONE]"));
        test_true(memmem(clients[i].input.at, clients[i].input.used_bytes, "\"error\"", 7) == NULL);
    }
    close_streams(clients);
}

static void expect_errors(struct http_client *clients)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        test_true(http_client_await(&clients[i], "\"error\""));
    }
    close_streams(clients);
}

/* The answer is right, nothing is held, one frontend is there, and the next reload works. */
static void end_scene(struct scene *scene)
{
    pid_t pids[3];
    char *text = system_complete(&scene->process, prompt);
    test_eq_str(text, scene->expected);
    pid_t next = system_reload_now(&scene->process);
    system_expect_all_free(&scene->process);
    for (uint32_t left = 2, i = 0; left > 1; i++) {
        left = system_children(&scene->process, "bezel-frontend", pids, 3);
        test_true(i < test_patience(3000));
        (void)usleep(10000); /* between two looks at what has no event */
    }
    test_eq_u64((uint64_t)pids[0], (uint64_t)next);
    free(text);
    free(scene->expected);
    system_stop(&scene->process);
}

static void test_old_frontend_killed(void)
{
    struct scene scene;
    set_scene(&scene, 500);
    test_true(kill(scene.old_frontend, SIGKILL) == 0);
    expect_whole(scene.new_streams); /* those of the other die with it */
    close_streams(scene.old_streams);
    test_eq_u64((uint64_t)system_child(&scene.process, "bezel-worker"), (uint64_t)scene.worker);
    test_eq_u64((uint64_t)system_child(&scene.process, "bezel-frontend"),
                (uint64_t)scene.new_frontend);
    end_scene(&scene);
}

static void test_new_frontend_killed(void)
{
    struct scene scene;
    set_scene(&scene, 500);
    test_true(kill(scene.new_frontend, SIGKILL) == 0);
    char *text = system_complete(&scene.process, prompt); /* waits for the third one */
    test_eq_str(text, scene.expected);
    free(text);
    expect_whole(scene.old_streams);
    close_streams(scene.new_streams);
    test_true(system_wait_gone(scene.old_frontend, 5000));
    test_eq_u64((uint64_t)system_child(&scene.process, "bezel-worker"), (uint64_t)scene.worker);
    end_scene(&scene);
}

static void test_new_frontend_killed_before_it_serves(void)
{
    static const char *const no_args[] = {NULL};
    struct scene scene;
    char answer[512];
    struct system_reload reload;
    system_start(&scene.process, no_args);
    scene.old_frontend = system_child(&scene.process, "bezel-frontend");
    scene.expected = system_complete(&scene.process, prompt);
    open_streams(&scene.process, scene.old_streams, 300);
    pid_t pids[2] = {0};
    system_reload_start(&scene.process, &reload);
    while (system_children(&scene.process, "bezel-", pids, 2) < 3) {
        (void)usleep(200); /* between two looks at what has no event */
    }
    /* Children are listed in order of their start; it may have become ready by now. */
    pid_t all[3];
    if (system_children(&scene.process, "bezel-", all, 3) == 3) {
        (void)kill(all[2], SIGKILL);
    }
    (void)system_reload_wait(&reload, answer); /* either is right, and tested elsewhere */
    expect_whole(scene.old_streams);
    end_scene(&scene);
}

static void test_worker_killed(void)
{
    struct scene scene;
    set_scene(&scene, 2000);
    test_true(kill(scene.worker, SIGKILL) == 0);
    expect_errors(scene.old_streams);
    expect_errors(scene.new_streams);
    test_true(system_wait_gone(scene.old_frontend, 5000)); /* it has nothing left to serve */
    (void)system_await_ready(&scene.process, 200, 20000);
    test_eq_u64((uint64_t)system_child(&scene.process, "bezel-frontend"),
                (uint64_t)scene.new_frontend);
    end_scene(&scene);
}

static uint64_t retry_after_s(const struct system_process *process)
{
    struct http_answer answer;
    http_client_once(process->port, "POST", "/v1/completions",
                     "{\"prompt\":\"Hello\",\"max_tokens\":1}", &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    const char *value = http_answer_header(&answer, "retry-after");
    test_true(value != NULL);
    uint64_t seconds = strtoull(value, NULL, 10);
    http_answer_fini(&answer);
    return seconds;
}

/* Nobody else accepts: the new frontend does, though it has not reached the worker yet. */
static void test_old_frontend_killed_while_the_worker_stands_still(void)
{
    static const char *const no_args[] = {NULL};
    struct system_process process;
    struct system_reload reload;
    char text[512];
    pid_t pids[2];
    system_start(&process, no_args);
    pid_t worker = system_child(&process, "bezel-worker");
    char *expected = system_complete(&process, prompt);
    test_true(kill(worker, SIGSTOP) == 0);
    system_reload_start(&process, &reload);
    while (system_children(&process, "bezel-frontend", pids, 2) < 2) {
        (void)usleep(200); /* between two looks at what has no event */
    }
    test_true(kill(pids[0], SIGKILL) == 0);
    test_true(system_wait_gone(pids[0], 5000));
    test_eq_u64((uint64_t)system_get(&process, "/health"), 200);
    test_eq_u64((uint64_t)system_get(&process, "/ready"), 503);
    test_true(retry_after_s(&process) > 0);
    test_true(kill(worker, SIGCONT) == 0);
    test_eq_u64((uint64_t)system_reload_wait(&reload, text), 0);
    test_eq_str(text, "the new frontend serves; the old one had ended meanwhile");
    char *again = system_complete(&process, prompt);
    test_eq_str(again, expected);
    test_eq_u64((uint64_t)system_child(&process, "bezel-worker"), (uint64_t)worker);
    test_eq_u64((uint64_t)system_child(&process, "bezel-frontend"), (uint64_t)pids[1]);
    free(expected);
    free(again);
    system_stop(&process);
}

static uint32_t count_segments(pid_t worker)
{
    char prefix[64];
    uint32_t count = 0;
    DIR *stream = opendir("/dev/shm");
    test_true(stream != NULL);
    (void)snprintf(prefix, sizeof(prefix), "bezel-%d-", (int)worker);
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    }
    (void)closedir(stream);
    return count;
}

static void test_launcher_killed(void)
{
    struct scene scene;
    set_scene(&scene, 300);
    system_kill_launcher(&scene.process);
    expect_whole(scene.old_streams); /* drained, both */
    expect_whole(scene.new_streams);
    test_true(system_wait_gone(scene.old_frontend, 10000));
    test_true(system_wait_gone(scene.new_frontend, 10000));
    test_true(system_wait_gone(scene.worker, 10000));
    test_eq_u64(count_segments(scene.worker), 0);
    free(scene.expected);
    system_forget(&scene.process);
}

static const struct test_case cases[] = {
    TEST(test_old_frontend_killed),
    TEST(test_new_frontend_killed),
    TEST(test_new_frontend_killed_before_it_serves),
    TEST(test_old_frontend_killed_while_the_worker_stands_still),
    TEST(test_worker_killed),
    TEST(test_launcher_killed),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
