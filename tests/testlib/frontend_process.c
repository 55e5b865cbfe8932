#include "tests/testlib/frontend_process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/hello.h"
#include "tests/testlib/test.h"

enum {
    LISTEN_FD = 3,
    READY_FD = 4,
    LIFELINE_FD = 5,
    MAX_ARGUMENTS = 32,
    READY_TIMEOUT_MS = 60000,
};

static int listen_anywhere(uint16_t *out_port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t address_bytes = sizeof(address);
    test_true(fd >= 0);
    test_true(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    test_true(listen(fd, 4096) == 0);
    test_true(getsockname(fd, (struct sockaddr *)&address, &address_bytes) == 0);
    *out_port = ntohs(address.sin_port);
    return fd;
}

/* In the child: descriptors to their agreed numbers, by way of numbers that are none of them. */
static void place_descriptors(int listen_fd, int ready_fd, int lifeline_fd)
{
    int fds[3] = {listen_fd, ready_fd, lifeline_fd};
    for (int i = 0; i < 3; i++) {
        fds[i] = fcntl(fds[i], F_DUPFD, 10);
    }
    for (int i = 0; i < 3; i++) {
        (void)dup2(fds[i], LISTEN_FD + i);
        (void)close(fds[i]);
    }
}

void frontend_process_start(struct frontend_process *process, const char *program,
                            const char *model_dir, const char *const *arguments)
{
    int ready[2];
    int lifeline[2];
    int listen_fd = listen_anywhere(&process->port);
    test_true(pipe2(ready, O_CLOEXEC) == 0 && pipe2(lifeline, O_CLOEXEC) == 0);
    process->pid = fork();
    test_true(process->pid >= 0);
    if (process->pid == 0) {
        place_descriptors(listen_fd, ready[1], lifeline[0]);
        char cache_dir[300];
        (void)snprintf(cache_dir, sizeof(cache_dir), "--cache-dir=%s-cache", program);
        const char *argv[MAX_ARGUMENTS] = {program, model_dir, "--ready-fd=4", "--lifeline-fd=5",
                                           cache_dir};
        for (int i = 0; arguments && arguments[i]; i++) {
            argv[5 + i] = arguments[i];
        }
        char pid_text[40];
        (void)snprintf(pid_text, sizeof(pid_text), "LISTEN_PID=%d", (int)getpid());
        char count_text[] = "LISTEN_FDS=1";
        char *environment[] = {count_text, pid_text, NULL};
        (void)syscall(SYS_close_range, LIFELINE_FD + 1, ~0U, 0U);
        char *exec_argv[MAX_ARGUMENTS];
        memcpy(exec_argv, argv,
               sizeof(argv)); /* execve takes its arguments as if it changed them */
        (void)execve(program, exec_argv, environment);
        perror(program);
        _exit(127);
    }
    (void)close(listen_fd);
    (void)close(ready[1]);
    (void)close(lifeline[0]);
    process->ready_fd = ready[0];
    process->lifeline_fd = lifeline[1];
}

uint64_t frontend_process_demo_hash(void)
{
    uint64_t hash = 0;
    struct err err;
    test_ok(hello_hash_file(TEST_DEMO_MODEL_DIR "/tokenizer.json", &hash, &err), &err);
    return hash;
}

void frontend_process_start_fake(struct frontend_process *process, const char *settings,
                                 const char *const *arguments)
{
    char run_dir[300];
    int length = snprintf(run_dir, sizeof(run_dir), "--run-dir=fake?hash=%016" PRIx64 "%s",
                          frontend_process_demo_hash(), settings);
    test_true(length > 0 && (size_t)length < sizeof(run_dir));
    const char *argv[MAX_ARGUMENTS] = {run_dir, "--served-model-name=demo", "--log-level=error"};
    for (int i = 0; arguments && arguments[i]; i++) {
        argv[3 + i] = arguments[i];
    }
    frontend_process_start(process, TEST_FAKE_FRONTEND, TEST_DEMO_MODEL_DIR, argv);
    frontend_process_await_ready(process);
}

void frontend_process_await_ready(struct frontend_process *process)
{
    struct pollfd poll_fd = {.fd = process->ready_fd, .events = POLLIN};
    char byte = 0;
    test_true(poll(&poll_fd, 1, READY_TIMEOUT_MS) == 1);
    test_true(read(process->ready_fd, &byte, 1) == 1);
    (void)close(process->ready_fd);
    process->ready_fd = -1;
}

int frontend_process_wait(struct frontend_process *process, uint32_t timeout_ms)
{
    int pid_fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    struct pollfd poll_fd = {.fd = pid_fd, .events = POLLIN};
    test_true(pid_fd >= 0);
    if (poll(&poll_fd, 1, (int)timeout_ms) != 1) {
        (void)kill(process->pid, SIGKILL);
        test_fail(__FILE__, __LINE__, "the frontend did not end within %u ms", timeout_ms);
    }
    (void)close(pid_fd);
    int status = 0;
    test_true(waitpid(process->pid, &status, 0) == process->pid);
    if (process->ready_fd >= 0) {
        (void)close(process->ready_fd);
    }
    if (process->lifeline_fd >= 0) {
        (void)close(process->lifeline_fd);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int frontend_process_stop(struct frontend_process *process)
{
    test_true(kill(process->pid, SIGTERM) == 0);
    return frontend_process_wait(process, 20000);
}
