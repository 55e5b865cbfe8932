#include "tests/testlib/system.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_client.h"

enum {
    MAX_ARGS = 32,
    START_MS = 120000,
    STOP_MS = 40000,
    FREE_MS = 60000,
    LINE_BYTES = 4096
};

static void pause_ms(long ms)
{
    struct timespec time = {.tv_nsec = ms * (long)CLOCK_NS_PER_MS};
    (void)nanosleep(&time, NULL); /* between two looks at what has no event */
}

static void link_program(const struct system_process *process, const char *name, const char *target)
{
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/%s", process->dir, name); /* it fits */
    test_true(symlink(target, path) == 0);
}

static void exec_launcher(const struct system_process *process, const char *model_dir,
                          const char *const *args, int out_fd)
{
    const char *argv[MAX_ARGS + 10] = {
        TEST_BEZEL_EXE, "serve",          model_dir,       "--port",    "0",
        "--run-dir",    process->run_dir, "--program-dir", process->dir};
    size_t count = 9;
    for (size_t i = 0; args[i] != NULL && i < MAX_ARGS; i++) {
        argv[count++] = args[i];
    }
    int log_fd = open(process->log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nothing behind */
    if (log_fd < 0 || dup2(log_fd, STDERR_FILENO) < 0 || dup2(out_fd, STDOUT_FILENO) < 0) {
        _exit(126);
    }
    (void)syscall(SYS_close_range, 3, ~0U, 0U);
    char *exec_argv[MAX_ARGS + 10];
    memcpy(exec_argv, argv, sizeof(argv));  /* execv takes its arguments as if it changed them */
    (void)execv(TEST_BEZEL_EXE, exec_argv); /* returns only on failure */
    _exit(127);
}

/* Reads the launcher's output up to the address it prints. */
static uint16_t read_port(int fd)
{
    char line[LINE_BYTES];
    size_t used_bytes = 0;
    const uint64_t wait_ms = test_patience(START_MS);
    uint64_t end_ns = clock_now_ns() + wait_ms * CLOCK_NS_PER_MS;
    for (;;) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (clock_now_ns() > end_ns || poll(&readable, 1, (int)wait_ms) != 1) {
            test_fail(__FILE__, __LINE__, "the launcher is not ready after %u ms",
                      (unsigned)wait_ms);
        }
        ssize_t count = read(fd, line + used_bytes, sizeof(line) - 1 - used_bytes);
        test_true(count > 0);
        used_bytes += (size_t)count;
        line[used_bytes] = '\0';
        const char *at = strstr(line, "http://127.0.0.1:");
        if (at != NULL && strchr(at, '\n') != NULL) {
            return (uint16_t)strtoul(at + strlen("http://127.0.0.1:"), NULL, 10);
        }
    }
}

void system_start(struct system_process *process, const char *const *args)
{
    system_start_model(process, TEST_SYSTEM_MODEL_DIR, args);
}

void system_start_model(struct system_process *process, const char *model_dir,
                        const char *const *args)
{
    int out[2];
    *process = (struct system_process){.dir = "/tmp/bezel-system-XXXXXX"};
    test_true(mkdtemp(process->dir) != NULL);
    (void)snprintf(process->run_dir, sizeof(process->run_dir), "%s/run", process->dir);
    (void)snprintf(process->log_path, sizeof(process->log_path), "%s/log", process->dir);
    link_program(process, "bezel-worker", TEST_WORKER_EXE);
    link_program(process, "bezel-frontend", TEST_FRONTEND_EXE);
    test_true(pipe2(out, O_CLOEXEC) == 0);
    process->launcher = fork();
    test_true(process->launcher >= 0);
    if (process->launcher == 0) {
        exec_launcher(process, model_dir, args, out[1]);
    }
    (void)close(out[1]);
    process->port = read_port(out[0]);
    (void)close(out[0]);
}

bool system_wait_gone(pid_t pid, uint32_t wait_ms)
{
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pid_fd < 0) {
        return true;
    }
    struct pollfd ended = {.fd = pid_fd, .events = POLLIN};
    int count = poll(&ended, 1, (int)test_patience(wait_ms));
    (void)close(pid_fd);
    return count == 1;
}

static void remove_dir(const struct system_process *process)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", process->dir); /* it fits */
    (void)system(command); /* NOLINT(cert-env33-c): fixed text; a leftover in /tmp is no failure */
}

void system_stop(struct system_process *process)
{
    int status = 0;
    test_true(kill(process->launcher, SIGTERM) == 0);
    if (!system_wait_gone(process->launcher, STOP_MS)) {
        (void)kill(process->launcher, SIGKILL);
        test_fail(__FILE__, __LINE__, "the launcher runs still after %d ms", STOP_MS);
    }
    test_true(waitpid(process->launcher, &status, 0) == process->launcher);
    test_eq_u64((uint64_t)status, 0);
    remove_dir(process);
}

void system_kill_launcher(struct system_process *process)
{
    test_true(kill(process->launcher, SIGKILL) == 0);
    test_true(waitpid(process->launcher, NULL, 0) == process->launcher);
}

void system_forget(struct system_process *process)
{
    remove_dir(process);
}

uint32_t system_children(const struct system_process *process, const char *name, pid_t *out_pids,
                         uint32_t most)
{
    char path[128];
    char comm[64];
    uint32_t found = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)process->launcher,
                   (int)process->launcher);
    FILE *children = fopen(path, "re");
    test_true(children != NULL);
    char list[256] = "";
    (void)fgets(list, sizeof(list), children); /* none is an empty list */
    (void)fclose(children);
    for (char *at = list; *at >= '0' && *at <= '9';) {
        pid_t pid = (pid_t)strtoul(at, &at, 10);
        at += *at == ' ';
        (void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
        FILE *file = fopen(path, "re");
        if (file == NULL) {
            continue; /* gone meanwhile */
        }
        bool has_name = fgets(comm, sizeof(comm), file) != NULL;
        (void)fclose(file);
        if (has_name && strncmp(comm, name, strlen(name)) == 0) {
            if (found < most) {
                out_pids[found] = pid;
            }
            found++;
        }
    }
    return found;
}

pid_t system_child(const struct system_process *process, const char *name)
{
    pid_t pid = 0;
    return system_children(process, name, &pid, 1) > 0 ? pid : 0;
}

void system_reload_start(const struct system_process *process, struct system_reload *reload)
{
    int out[2];
    test_true(pipe2(out, O_CLOEXEC) == 0);
    reload->pid = fork();
    test_true(reload->pid >= 0);
    if (reload->pid == 0) {
        if (dup2(out[1], STDOUT_FILENO) >= 0 && dup2(out[1], STDERR_FILENO) >= 0) {
            (void)execl(TEST_BEZEL_EXE, "bezel", "reload", "--run-dir", process->run_dir,
                        (char *)NULL); /* returns only on failure */
        }
        _exit(127);
    }
    (void)close(out[1]);
    reload->out_fd = out[0];
}

int system_reload_wait(struct system_reload *reload, char out_text[512])
{
    size_t used_bytes = 0;
    ssize_t got = 1;
    while (got > 0) {
        struct pollfd readable = {.fd = reload->out_fd, .events = POLLIN};
        test_true(poll(&readable, 1, (int)test_patience(STOP_MS)) == 1);
        got = read(reload->out_fd, out_text + used_bytes, 511 - used_bytes);
        used_bytes += got > 0 ? (size_t)got : 0;
    }
    out_text[used_bytes] = '\0';
    out_text[strcspn(out_text, "\n")] = '\0';
    (void)close(reload->out_fd);
    int status = 0;
    test_true(waitpid(reload->pid, &status, 0) == reload->pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

pid_t system_reload_now(const struct system_process *process)
{
    struct system_reload reload;
    char text[512];
    int pid = 0;
    system_reload_start(process, &reload);
    int status = system_reload_wait(&reload, text);
    if (status != 0 || sscanf(text, "frontend %d serves", &pid) != 1) {
        test_fail(__FILE__, __LINE__, "reload: exit status %d, '%s'", status, text);
    }
    return pid;
}

void system_replace(const struct system_process *process, const char *name, const char *target)
{
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/%s", process->dir, name); /* it fits */
    test_true(unlink(path) == 0);
    link_program(process, name, target);
}

int system_get(const struct system_process *process, const char *path)
{
    struct http_client client;
    int status = 0;
    http_client_open(&client, process->port);
    http_client_request(&client, "GET", path, "Connection: close\r\n", NULL);
    struct buf head;
    buf_init(&head);
    if (http_client_take(&client, strlen("HTTP/1.1 200"), &head)) {
        status = (int)strtol(buf_text(&head) + strlen("HTTP/1.1 "), NULL, 10);
    }
    buf_fini(&head);
    http_client_close(&client);
    return status;
}

uint32_t system_await_ready(const struct system_process *process, int status, uint32_t wait_ms)
{
    uint64_t start_ns = clock_now_ns();
    int got = system_get(process, "/ready");
    while (got != status) {
        if (clock_now_ns() - start_ns > test_patience(wait_ms) * CLOCK_NS_PER_MS) {
            test_fail(__FILE__, __LINE__, "/ready answers %d, not %d, after %u ms", got, status,
                      wait_ms);
        }
        pause_ms(2);
        got = system_get(process, "/ready");
    }
    return (uint32_t)((clock_now_ns() - start_ns) / CLOCK_NS_PER_MS);
}

void system_expect_all_free(const struct system_process *process)
{
    struct worker_client control;
    worker_client_open(&control, process->run_dir);
    worker_client_expect_all_free(&control, FREE_MS);
    worker_client_close(&control);
}

void system_open_stream(const struct system_process *process, struct http_client *client,
                        const char *prompt, uint32_t output_tokens)
{
    char body[512];
    (void)snprintf(body, sizeof(body),
                   "{\"model\":\"demo-model\",\"prompt\":\"%s\",\"max_tokens\":%u,"
                   "\"temperature\":0,\"ignore_eos\":true,\"stream\":true}",
                   prompt, output_tokens); /* prompts of tests are short */
    http_client_open(client, process->port);
    http_client_request(client, "POST", "/v1/completions", "", body);
}

void system_take_choices(struct http_client *client, struct buf *out)
{
    struct http_answer answer;
    http_client_read(client, &answer);
    if (answer.status != 200) {
        test_fail(__FILE__, __LINE__, "status %d, body %s", answer.status, buf_text(&answer.body));
    }
    const char *choices = strstr(buf_text(&answer.body), "\"choices\"");
    test_true(choices != NULL);
    const char *details = strstr(choices, "\"prompt_tokens_details\"");
    test_true(details != NULL);
    buf_append(out, choices, (size_t)(details - choices));
    http_answer_fini(&answer);
    http_client_close(client);
}

char *system_complete(const struct system_process *process, const char *prompt)
{
    char body[512];
    struct http_answer answer;
    (void)snprintf(body, sizeof(body),
                   "{\"model\":\"demo-model\",\"prompt\":\"%s\",\"max_tokens\":24,"
                   "\"temperature\":0,\"ignore_eos\":true}",
                   prompt); /* prompts of tests are short */
    http_client_once(process->port, "POST", "/v1/completions", body, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    const char *from = strstr(buf_text(&answer.body), "\"text\":\"");
    test_true(from != NULL);
    const char *to = strstr(from, "\",\"");
    test_true(to != NULL);
    char *text = strndup(from, (size_t)(to - from));
    http_answer_fini(&answer);
    return text;
}
