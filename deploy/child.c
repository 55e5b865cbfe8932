#include "deploy/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    EXEC_FAILED = 127,
    OUT_OF_THE_WAY_FD = 16 /* above every target descriptor */
};

static bool place_fds(const int *fds, uint32_t fd_count, int *error_fd)
{
    int moved[CHILD_MAX_FDS];
    int moved_error_fd = fcntl(*error_fd, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY_FD);
    if (moved_error_fd < 0) {
        errno = errno == EINVAL ? EMFILE : errno; /* the limit lies below that descriptor */
        return false;                             /* told through the old one */
    }
    *error_fd = moved_error_fd;
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input < 0 || dup2(input, STDIN_FILENO) < 0) {
        return false;
    }
    for (uint32_t i = 0; i < fd_count; i++) {
        moved[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, OUT_OF_THE_WAY_FD);
        if (moved[i] < 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < fd_count; i++) {
        if (dup2(moved[i], CHILD_FIRST_FD + (int)i) < 0) {
            return false;
        }
    }
    /* Whatever the launcher inherited without close-on-exec stays with it. */
    return close_range(CHILD_FIRST_FD + fd_count, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
}

static void announce_listener(bool has_listener)
{
    char pid[16];
    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid()); /* fits */
    /* One thread between fork and exec: the environment is ours. */
    if (has_listener) {
        (void)setenv("LISTEN_PID", pid, 1); /* NOLINT(concurrency-mt-unsafe) */
        (void)setenv("LISTEN_FDS", "1", 1); /* NOLINT(concurrency-mt-unsafe) */
    } else {
        (void)unsetenv("LISTEN_PID"); /* NOLINT(concurrency-mt-unsafe) */
        (void)unsetenv("LISTEN_FDS"); /* NOLINT(concurrency-mt-unsafe) */
    }
    (void)unsetenv("LISTEN_FDNAMES"); /* NOLINT(concurrency-mt-unsafe) */
}

/* In the new process; returns only to say that it could not become the program. */
static void become(const struct child *child, const int *fds, uint32_t fd_count, int error_fd)
{
    sigset_t mask;
    (void)sigemptyset(&mask); /* cannot fail, nor does the next */
    if (child->has_listener) {
        (void)sigaddset(&mask, CHILD_ALONE_SIGNAL);
    }
    (void)setpgid(0, 0); /* cannot fail for itself before exec */
    if (place_fds(fds, fd_count, &error_fd)) {
        announce_listener(child->has_listener);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)pthread_sigmask(SIG_SETMASK, &mask, NULL);
        (void)execv(child->path, child->argv);
    }
    int failure = errno;
    (void)!write(error_fd, &failure, sizeof(failure)); /* the exit status says it too */
    _exit(EXEC_FAILED);
}

enum err_code child_start(struct child *child, const int *fds, uint32_t fd_count, uint64_t now_ns,
                          struct err *err)
{
    int error_pipe[2];
    if (pipe2(error_pipe, O_CLOEXEC) != 0) {
        return err_errno(err, errno, "starting %s", child->name);
    }
    pid_t pid = fork();
    if (pid == 0) {
        become(child, fds, fd_count, error_pipe[1]);
    }
    int fork_failure = errno;
    (void)close(error_pipe[1]); /* the child's end */
    if (pid < 0) {
        (void)close(error_pipe[0]); /* nobody writes */
        return err_errno(err, fork_failure, "starting %s", child->name);
    }
    int failure = 0;
    ssize_t got = read(error_pipe[0], &failure, sizeof(failure)); /* ends when exec succeeds */
    (void)close(error_pipe[0]);                                   /* only read from */
    int pidfd = got == 0 ? pidfd_open(pid, 0) : -1;
    if (pidfd < 0) {
        failure = got > 0 ? failure : errno;
        (void)kill(pid, SIGKILL); /* it may have ended already */
        (void)waitpid(pid, NULL, 0);
        return err_errno(err, failure, "starting '%s'", child->path);
    }
    child->pid = pid;
    child->pidfd = pidfd;
    child->started_ns = now_ns;
    return ERR_OK;
}

void child_signal(const struct child *child, int signal_number)
{
    if (child->pid != 0) {
        (void)kill(child->pid, signal_number); /* not reaped yet, so the pid is its own */
    }
}

struct child_end child_reap(struct child *child, bool was_good, uint64_t now_ns)
{
    int status = 0;
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
    }
    (void)close(child->pidfd); /* a handle only */
    child->pid = 0;
    child->pidfd = -1;
    if (was_good) {
        child->pause_ns = 0;
        child->restart_at_ns = now_ns + child->good_pause_ns;
    } else {
        uint64_t doubled_ns = child->pause_ns == 0 ? child->min_pause_ns : child->pause_ns * 2;
        child->pause_ns = doubled_ns < child->max_pause_ns ? doubled_ns : child->max_pause_ns;
        child->restart_at_ns = now_ns + child->pause_ns;
    }
    return (struct child_end){
        .by_signal = WIFSIGNALED(status),
        .code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
    };
}

void child_end_text(struct child_end end, char out[64])
{
    if (end.by_signal) {
        const char *name = sigdescr_np(end.code);
        (void)snprintf(out, 64, "signal %d (%s)", end.code, name == NULL ? "?" : name); /* cut */
    } else {
        (void)snprintf(out, 64, "exit status %d", end.code); /* fits */
    }
}
