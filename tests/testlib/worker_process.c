#include "tests/testlib/worker_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/test.h"

enum {
    LOG_MAX_BYTES = 1 << 20,
    STOP_DEADLINE_MS = 20000
};

static void redirect_or_die(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0) {
        _exit(126);
    }
}

/* execv takes its arguments as if it changed them.  Returns only on failure. */
static void execute(const char *const *argv)
{
    char *copies[WORKER_PROCESS_MAX_ARGS + 8] = {NULL};
    for (size_t i = 0; argv[i] != NULL && i < WORKER_PROCESS_MAX_ARGS + 7; i++) {
        copies[i] = strdup(argv[i]);
    }
    if (copies[0] != NULL) {
        (void)execv(copies[0], copies);
    }
}

static void exec_worker(const struct worker_process *process,
                        const struct worker_process_options *options, int lifeline_fd)
{
    char lifeline[16];
    const char *argv[WORKER_PROCESS_MAX_ARGS + 7] = {WORKER_EXE, "--run-dir", process->run_dir};
    size_t count = 3;
    for (size_t i = 0; options->args[i] != NULL && i < WORKER_PROCESS_MAX_ARGS; i++) {
        argv[count++] = options->args[i];
    }
    if (lifeline_fd >= 0) {
        (void)snprintf(lifeline, sizeof(lifeline), "%d", lifeline_fd);
        argv[count++] = "--lifeline-fd";
        argv[count++] = lifeline;
    }
    argv[count++] = options->model_dir == NULL ? WORKER_MODEL_DIR : options->model_dir;
    if (options->max_file_bytes != 0) {
        const struct rlimit limit = {options->max_file_bytes, options->max_file_bytes};
        (void)signal(SIGXFSZ, SIG_IGN); /* the call then fails, as it does on a full tmpfs */
        (void)setrlimit(RLIMIT_FSIZE, &limit);
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no worker behind */
    redirect_or_die(process->log_path);
    execute(argv);
    _exit(127);
}

void worker_process_start_with(struct worker_process *process,
                               const struct worker_process_options *options)
{
    static unsigned starts; /* names the log; tests are single-threaded */
    char fresh[] = "/tmp/bezel-test-XXXXXX";
    const char *run_dir = options->run_dir;
    if (run_dir == NULL) {
        run_dir = mkdtemp(fresh);
        test_true(run_dir != NULL);
    }
    *process = (struct worker_process){.lifeline_fd = -1};
    (void)snprintf(process->run_dir, sizeof(process->run_dir), "%s", run_dir);
    (void)snprintf(process->log_path, sizeof(process->log_path), "/tmp/bezel-test-log-%d-%u",
                   getpid(), starts++);
    int lifeline[2] = {-1, -1};
    if (options->lifeline) {
        test_true(pipe(lifeline) == 0 && fcntl(lifeline[1], F_SETFD, FD_CLOEXEC) == 0);
    }
    pid_t pid = fork();
    if (pid == 0) {
        exec_worker(process, options, lifeline[0]);
    }
    test_true(pid > 0);
    if (options->lifeline) {
        (void)close(lifeline[0]);
        process->lifeline_fd = lifeline[1];
    }
    process->pid = pid;
}

void worker_process_start(struct worker_process *process, const char *const *args)
{
    const struct worker_process_options options = {.args = args};
    worker_process_start_with(process, &options);
}

void worker_process_start_model(struct worker_process *process, const char *model_dir,
                                const char *const *args)
{
    const struct worker_process_options options = {.args = args, .model_dir = model_dir};
    worker_process_start_with(process, &options);
}

void worker_process_drop_lifeline(struct worker_process *process)
{
    (void)close(process->lifeline_fd);
    process->lifeline_fd = -1;
}

/* Waits for pid to end; false after deadline_ms. */
static bool wait_for(pid_t pid, uint32_t deadline_ms, int *out_status)
{
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    test_true(pid_fd >= 0);
    struct pollfd ended = {pid_fd, POLLIN, 0};
    int count = poll(&ended, 1, (int)deadline_ms);
    (void)close(pid_fd);
    return count == 1 && waitpid(pid, out_status, 0) == pid;
}

static int exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int worker_process_wait(struct worker_process *process, uint32_t deadline_ms)
{
    if (!wait_for(process->pid, deadline_ms, &process->status)) {
        worker_process_kill(process);
        test_fail(__FILE__, __LINE__, "worker runs still after %u ms", deadline_ms);
    }
    process->pid = 0;
    return exit_code(process->status);
}

void worker_process_kill(struct worker_process *process)
{
    if (process->pid > 0) {
        (void)kill(process->pid, SIGKILL);
        (void)waitpid(process->pid, &process->status, 0);
        process->pid = 0;
    }
}

/* Names in dir that start and end like that. */
static uint32_t count_names(const char *dir, const char *start, const char *end)
{
    struct dirent **entries = NULL;
    uint32_t count = 0;
    int total = scandir(dir, &entries, NULL, NULL);
    for (int i = 0; i < total; i++) {
        const char *name = entries[i]->d_name;
        size_t end_bytes = strlen(end);
        count += strncmp(name, start, strlen(start)) == 0 && strlen(name) >= end_bytes &&
                 strcmp(name + strlen(name) - end_bytes, end) == 0;
        free(entries[i]);
    }
    free(entries);
    return count;
}

void worker_process_stop(struct worker_process *process)
{
    char segments[64];
    (void)snprintf(segments, sizeof(segments), "bezel-%d-", process->pid);
    test_true(kill(process->pid, SIGTERM) == 0);
    int code = worker_process_wait(process, STOP_DEADLINE_MS);
    test_eq_u64((uint64_t)code, 0);
    test_eq_u64(count_names(process->run_dir, "", ".ipc"), 0);
    test_eq_u64(count_names(process->run_dir, "", ".segment"), 0);
    test_eq_u64(count_names("/dev/shm", segments, ""), 0);
    worker_process_forget(process);
}

void worker_process_forget(const struct worker_process *process)
{
    struct dirent **entries = NULL;
    int total = scandir(process->run_dir, &entries, NULL, NULL);
    for (int i = 0; i < total; i++) {
        char path[384];
        (void)snprintf(path, sizeof(path), "%s/%s", process->run_dir, entries[i]->d_name);
        (void)unlink(path); /* "." and ".." stay; a leftover in /tmp is no failure */
        free(entries[i]);
    }
    free(entries);
    (void)remove(process->run_dir);
    (void)remove(process->log_path);
}

/* The log's text; free it. */
static char *read_log(const struct worker_process *process)
{
    char *text = calloc(1, LOG_MAX_BYTES);
    test_true(text != NULL);
    FILE *file = fopen(process->log_path, "rb");
    if (file != NULL) {
        size_t byte_count = fread(text, 1, LOG_MAX_BYTES - 1, file);
        text[byte_count] = '\0';
        (void)fclose(file); /* read only */
    }
    return text;
}

bool worker_process_logged(const struct worker_process *process, const char *text)
{
    char *log = read_log(process);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

uint32_t worker_process_log_lines(const struct worker_process *process)
{
    char *log = read_log(process);
    uint32_t count = 0;
    for (const char *at = log; *at != '\0'; at++) {
        count += *at == '\n';
    }
    free(log);
    return count;
}

void worker_process_last_line(const struct worker_process *process, char *text, size_t cap_bytes)
{
    char *log = read_log(process);
    size_t byte_count = strlen(log);
    if (byte_count > 0 && log[byte_count - 1] == '\n') {
        log[byte_count - 1] = '\0';
    }
    const char *end = strrchr(log, '\n');
    (void)snprintf(text, cap_bytes, "%s", end == NULL ? log : end + 1);
    free(log);
}

uint64_t worker_process_logged_u64(const struct worker_process *process, const char *name, int base)
{
    char *log = read_log(process);
    char key[64];
    (void)snprintf(key, sizeof(key), " %s=", name);
    const char *last = NULL;
    for (const char *at = strstr(log, key); at != NULL; at = strstr(at + 1, key)) {
        last = at;
    }
    uint64_t value = last == NULL ? 0 : strtoull(last + strlen(key), NULL, base);
    free(log);
    if (last == NULL) {
        test_fail(__FILE__, __LINE__, "no %s= in the worker's log", name);
    }
    return value;
}

uint64_t worker_process_cpu_ns(const struct worker_process *process)
{
    clockid_t clock;
    struct timespec used;
    test_true(clock_getcpuclockid(process->pid, &clock) == 0);
    test_true(clock_gettime(clock, &used) == 0);
    return (uint64_t)used.tv_sec * CLOCK_NS_PER_SEC + (uint64_t)used.tv_nsec;
}

/* ---- other programs ---- */

void child_process_start(struct child_process *child, const char *const *argv)
{
    int out[2];
    *child = (struct child_process){.out_fd = -1};
    test_true(pipe2(out, O_CLOEXEC) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no child behind */
        if (dup2(out[1], STDOUT_FILENO) >= 0) {
            execute(argv);
        }
        _exit(127);
    }
    test_true(pid > 0);
    (void)close(out[1]);
    child->pid = pid;
    child->out_fd = out[0];
}

/* One line into child->line; false when the buffer holds none. */
static bool take_line(struct child_process *child)
{
    char *end = memchr(child->buffer, '\n', child->buffered_bytes);
    if (end == NULL) {
        return false;
    }
    size_t line_bytes = (size_t)(end - child->buffer);
    memcpy(child->line, child->buffer, line_bytes);
    child->line[line_bytes] = '\0';
    child->buffered_bytes -= line_bytes + 1;
    memmove(child->buffer, end + 1, child->buffered_bytes);
    return true;
}

void child_process_expect(struct child_process *child, const char *prefix, uint32_t deadline_ms)
{
    uint64_t deadline_ns = clock_now_ns() + deadline_ms * CLOCK_NS_PER_MS;
    for (;;) {
        while (take_line(child)) {
            if (strncmp(child->line, prefix, strlen(prefix)) == 0) {
                return;
            }
        }
        uint64_t now_ns = clock_now_ns();
        struct pollfd readable = {child->out_fd, POLLIN, 0};
        int wait_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / CLOCK_NS_PER_MS) : 0;
        size_t room_bytes = sizeof(child->buffer) - child->buffered_bytes;
        ssize_t got = poll(&readable, 1, wait_ms) == 1
                          ? read(child->out_fd, child->buffer + child->buffered_bytes, room_bytes)
                          : 0;
        if (got <= 0) {
            test_fail(__FILE__, __LINE__, "no line '%s...' from the child", prefix);
        }
        child->buffered_bytes += (size_t)got;
    }
}

int child_process_wait(struct child_process *child, uint32_t deadline_ms)
{
    int status = 0;
    if (!wait_for(child->pid, deadline_ms, &status)) {
        child_process_kill(child);
        test_fail(__FILE__, __LINE__, "child runs still after %u ms", deadline_ms);
    }
    (void)close(child->out_fd);
    child->pid = 0;
    return exit_code(status);
}

void child_process_kill(struct child_process *child)
{
    if (child->pid > 0) {
        (void)kill(child->pid, SIGKILL);
        (void)waitpid(child->pid, NULL, 0);
        (void)close(child->out_fd);
        child->pid = 0;
    }
}
