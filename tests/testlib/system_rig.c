#include "tests/testlib/system_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

enum {
    MAX_ARGS = 24,
    PATIENCE_MS = 30000
};

static uint64_t deadline_ns(void)
{
    return clock_now_ns() + PATIENCE_MS * CLOCK_NS_PER_MS * (test_times_count() ? 1 : 20);
}

/* Between two looks at something that has no descriptor to wait on. */
static void pause_briefly(void)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    (void)nanosleep(&pause, NULL);
}

static void become_launcher(const struct system_rig *rig, int out_fd, const char *const *more)
{
    const char *argv[MAX_ARGS + 8] = {TEST_BEZEL, "serve", TEST_DEMO_MODEL_DIR, "--port", "0"};
    size_t count = 5;
    for (size_t i = 0; more != NULL && more[i] != NULL && i < MAX_ARGS; i++) {
        argv[count++] = more[i];
    }
    int log_fd = open(rig->log_path, O_WRONLY | O_TRUNC | O_APPEND);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nothing behind */
    (void)dup2(out_fd, STDOUT_FILENO);
    (void)dup2(log_fd, STDERR_FILENO);
    (void)execv(TEST_BEZEL, (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Everything that the three programs wrote. */
static void read_log(const struct system_rig *rig, struct buf *out)
{
    char bytes[4096];
    int fd = open(rig->log_path, O_RDONLY | O_CLOEXEC);
    test_true(fd >= 0);
    buf_init(out);
    for (ssize_t got = read(fd, bytes, sizeof(bytes)); got > 0; got = read(fd, bytes, 4096)) {
        buf_append(out, bytes, (size_t)got);
    }
    (void)close(fd);
}

_Noreturn static void fail_with_log(const struct system_rig *rig, const char *what)
{
    struct buf log;
    read_log(rig, &log);
    size_t skip = log.used_bytes > 3000 ? log.used_bytes - 3000 : 0;
    test_fail(__FILE__, __LINE__, "%s; the log ends: %s", what, buf_text(&log) + skip);
}

void system_rig_start(struct system_rig *rig, const char *const *more)
{
    int out[2];
    char line[128] = "";
    size_t used = 0;
    unsigned port = 0;
    *rig = (struct system_rig){0};
    (void)snprintf(rig->log_path, sizeof(rig->log_path), "/tmp/bezel-system-XXXXXX");
    int log_fd = mkstemp(rig->log_path);
    test_true(log_fd >= 0 && pipe2(out, O_CLOEXEC) == 0);
    (void)close(log_fd);
    rig->launcher = fork();
    test_true(rig->launcher >= 0);
    if (rig->launcher == 0) {
        become_launcher(rig, out[1], more);
    }
    (void)close(out[1]);
    uint64_t until_ns = deadline_ns();
    while (sscanf(line, "Bezel is ready: http://127.0.0.1:%u", &port) != 1 ||
           strchr(line, '\n') == NULL) {
        struct pollfd wait = {.fd = out[0], .events = POLLIN};
        (void)poll(&wait, 1, 100);
        ssize_t got = wait.revents == 0 ? -1 : read(out[0], line + used, sizeof(line) - 1 - used);
        used += got > 0 ? (size_t)got : 0;
        if (got == 0 || clock_now_ns() > until_ns) {
            fail_with_log(rig, "the system did not become ready");
        }
    }
    (void)close(out[0]);
    rig->port = (uint16_t)port;
}

bool system_rig_is_gone(pid_t pid)
{
    char path[48];
    char state = 'Z';
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) {
            state = 'Z';
        }
        (void)fclose(file);
    }
    return state == 'Z'; /* dead, whether or not somebody has waited for it */
}

void system_rig_await_gone(pid_t pid)
{
    uint64_t until_ns = deadline_ns();
    while (!system_rig_is_gone(pid)) {
        if (clock_now_ns() > until_ns) {
            test_fail(__FILE__, __LINE__, "process %d is still there", (int)pid);
        }
        pause_briefly();
    }
}

/* The launcher's running child of that name, or 0. */
static pid_t find_child(const struct system_rig *rig, const char *name)
{
    char path[64];
    char comm[32];
    int pid = 0;
    pid_t found = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)rig->launcher,
                   (int)rig->launcher);
    FILE *children = fopen(path, "re");
    test_true(children != NULL);
    while (found == 0 && fscanf(children, "%d", &pid) == 1) {
        (void)snprintf(path, sizeof(path), "/proc/%d/comm", pid);
        FILE *file = fopen(path, "re");
        if (file != NULL) {
            bool is_it = fscanf(file, "bezel-%31s", comm) == 1 && strcmp(comm, name) == 0;
            found = is_it && !system_rig_is_gone(pid) ? pid : 0;
            (void)fclose(file);
        }
    }
    (void)fclose(children);
    return found;
}

pid_t system_rig_child(const struct system_rig *rig, const char *name, pid_t other)
{
    uint64_t until_ns = deadline_ns();
    for (;;) {
        pid_t found = find_child(rig, name);
        if (found != 0 && found != other) {
            return found;
        }
        if (clock_now_ns() > until_ns) {
            fail_with_log(rig, "a program was not started again");
        }
        pause_briefly();
    }
}

void system_rig_stop(struct system_rig *rig)
{
    int status = 0;
    pid_t worker = find_child(rig, "worker");
    pid_t frontend = find_child(rig, "frontend");
    test_true(kill(rig->launcher, SIGTERM) == 0);
    test_true(waitpid(rig->launcher, &status, 0) == rig->launcher);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_with_log(rig, "the launcher did not end with status 0");
    }
    test_true((worker == 0 || system_rig_is_gone(worker)) &&
              (frontend == 0 || system_rig_is_gone(frontend)));
    (void)unlink(rig->log_path);
}

int system_rig_ready_status(const struct system_rig *rig)
{
    struct http_answer answer;
    http_client_once(rig->port, "GET", "/ready", NULL, &answer);
    int status = answer.status;
    http_answer_fini(&answer);
    return status;
}

uint64_t system_rig_await_ready(const struct system_rig *rig, int wanted)
{
    uint64_t start_ns = clock_now_ns();
    uint64_t until_ns = deadline_ns();
    while (system_rig_ready_status(rig) != wanted) {
        if (clock_now_ns() > until_ns) {
            fail_with_log(rig, "/ready never had the wanted status");
        }
        pause_briefly();
    }
    return clock_now_ns() - start_ns;
}

static double metric(const char *page, const char *name)
{
    const char *line = strstr(page, name);
    if (line == NULL) {
        test_fail(__FILE__, __LINE__, "no metric %s", name);
    }
    return strtod(line + strlen(name), NULL);
}

void system_rig_await_all_free(const struct system_rig *rig)
{
    uint64_t until_ns = deadline_ns();
    bool is_free = false;
    while (!is_free) {
        struct http_answer answer;
        http_client_once(rig->port, "GET", "/metrics", NULL, &answer);
        test_true(answer.status == 200);
        const char *page = buf_text(&answer.body);
        double local =
            metric(page, "\nbezel:pool_pages{model_name=\"demo-model\",pool=\"local\"} ");
        double global =
            metric(page, "\nbezel:pool_pages{model_name=\"demo-model\",pool=\"global\"} ");
        double local_left = metric(
            page, "\nbezel:pool_quota_left_pages{model_name=\"demo-model\",pool=\"local\"} ");
        double global_left = metric(
            page, "\nbezel:pool_quota_left_pages{model_name=\"demo-model\",pool=\"global\"} ");
        is_free = local > 0 && global > 0 && local == local_left && global == global_left;
        if (!is_free && clock_now_ns() > until_ns) {
            test_fail(__FILE__, __LINE__, "pages left: %g of %g local, %g of %g global", local_left,
                      local, global_left, global);
        }
        http_answer_fini(&answer);
        if (!is_free) {
            pause_briefly();
        }
    }
}

void system_rig_body(struct buf *out, const char *question, const char *more)
{
    buf_append_text(out, "{\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":");
    json_put_text(out, question, strlen(question));
    buf_printf(out, "}]%s}", more);
}

/* choices[0].message.content of a completion. */
static void take_content(const struct buf *body, struct buf *out)
{
    struct err err;
    struct json_t *root;
    size_t byte_count;
    test_ok(json_parse(body->at, body->used_bytes, 32, &root, &err), &err);
    const struct json_t *choice = json_element(json_member(root, "choices"), 0);
    const struct json_t *content = json_member(json_member(choice, "message"), "content");
    const char *text = json_text(content, &byte_count);
    buf_append(out, text, byte_count);
    json_release(root);
}

int system_rig_ask(const struct system_rig *rig, const char *question, struct buf *out)
{
    struct buf body;
    struct http_answer answer;
    buf_init(&body);
    system_rig_body(&body, question, "");
    http_client_once(rig->port, "POST", "/v1/chat/completions", buf_text(&body), &answer);
    int status = answer.status;
    if (status == 200) {
        take_content(&answer.body, out);
    } else {
        buf_append(out, buf_text(&answer.body), answer.body.used_bytes);
    }
    http_answer_fini(&answer);
    buf_fini(&body);
    return status;
}

void system_rig_check_answer(const struct system_rig *rig)
{
    struct buf text;
    buf_init(&text);
    int status = system_rig_ask(rig, SYSTEM_RIG_QUESTION, &text);
    if (status != 200 || strcmp(buf_text(&text), SYSTEM_RIG_ANSWER) != 0) {
        test_fail(__FILE__, __LINE__, "status %d, '%s'", status, buf_text(&text));
    }
    buf_fini(&text);
}

void system_rig_await_log(const struct system_rig *rig, const char *text)
{
    uint64_t until_ns = deadline_ns();
    bool is_there = false;
    while (!is_there) {
        struct buf log;
        read_log(rig, &log);
        is_there = strstr(buf_text(&log), text) != NULL;
        buf_fini(&log);
        if (!is_there && clock_now_ns() > until_ns) {
            fail_with_log(rig, text);
        }
        if (!is_there) {
            pause_briefly();
        }
    }
}
