#include "tests/testlib/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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

static void exec_worker(const struct worker_process *process, const char *model_dir,
                        const char *const *args)
{
    const char *argv[WORKER_PROCESS_MAX_ARGS + 5] = {WORKER_EXE, "--run-dir", process->run_dir};
    size_t count = 3;
    for (size_t i = 0; args[i] != NULL && i < WORKER_PROCESS_MAX_ARGS; i++) {
        argv[count++] = args[i];
    }
    argv[count++] = model_dir;
    int fd = open(process->log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no worker behind */
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0) {
        _exit(126);
    }
    (void)execv(WORKER_EXE, (char *const *)(uintptr_t)argv); /* returns only on failure */
    _exit(127);
}

static void start(struct worker_process *process, const char *run_dir, const char *model_dir,
                  const char *const *args)
{
    static unsigned starts; /* names the log; tests are single-threaded */
    *process = (struct worker_process){0};
    (void)snprintf(process->run_dir, sizeof(process->run_dir), "%s", run_dir);
    (void)snprintf(process->log_path, sizeof(process->log_path), "%s/worker-%u.log", run_dir,
                   starts++);
    pid_t pid = fork();
    if (pid == 0) {
        exec_worker(process, model_dir, args);
    }
    test_true(pid > 0);
    process->pid = pid;
}

void worker_process_start_in(struct worker_process *process, const char *run_dir,
                             const char *const *args)
{
    start(process, run_dir, WORKER_MODEL_DIR, args);
}

void worker_process_start_model(struct worker_process *process, const char *model_dir,
                                const char *const *args)
{
    char run_dir[] = "/tmp/bezel-test-XXXXXX";
    test_true(mkdtemp(run_dir) != NULL);
    start(process, run_dir, model_dir, args);
}

void worker_process_start(struct worker_process *process, const char *const *args)
{
    worker_process_start_model(process, WORKER_MODEL_DIR, args);
}

int worker_process_wait(struct worker_process *process, uint32_t deadline_ms)
{
    int pid_fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    test_true(pid_fd >= 0);
    struct pollfd ended = {pid_fd, POLLIN, 0};
    int count = poll(&ended, 1, (int)deadline_ms);
    (void)close(pid_fd);
    if (count != 1) {
        worker_process_kill(process);
        test_fail(__FILE__, __LINE__, "worker runs still after %u ms", deadline_ms);
    }
    test_true(waitpid(process->pid, &process->status, 0) == process->pid);
    process->pid = 0;
    return WIFSIGNALED(process->status) ? 128 + WTERMSIG(process->status)
                                        : WEXITSTATUS(process->status);
}

void worker_process_kill(struct worker_process *process)
{
    if (process->pid > 0) {
        (void)kill(process->pid, SIGKILL);
        (void)waitpid(process->pid, &process->status, 0);
        process->pid = 0;
    }
}

static bool dir_holds(const char *dir, const char *pattern)
{
    char command[256];
    (void)snprintf(command, sizeof(command), "ls %s 2>/dev/null | grep -q -- '%s'", dir, pattern);
    return system(command) == 0; /* NOLINT(cert-env33-c): fixed text */
}

void worker_process_stop(struct worker_process *process)
{
    char segments[64];
    (void)snprintf(segments, sizeof(segments), "^bezel-%d-", process->pid);
    test_true(kill(process->pid, SIGTERM) == 0);
    int code = worker_process_wait(process, STOP_DEADLINE_MS);
    test_eq_u64((uint64_t)code, 0);
    test_true(!dir_holds(process->run_dir, "\\.ipc$"));
    test_true(!dir_holds(process->run_dir, "\\.segment$"));
    test_true(!dir_holds("/dev/shm", segments));
    worker_process_forget(process);
}

void worker_process_forget(const struct worker_process *process)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", process->run_dir);
    (void)system(command); /* NOLINT(cert-env33-c): fixed text; a leftover in /tmp is no failure */
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
