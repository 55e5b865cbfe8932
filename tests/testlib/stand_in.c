/* Stands in for bezel-worker or bezel-frontend (by argv[0]) under the real launcher.
 *
 * Reads commands, one a line, from MODEL_DIR/<name>.script and reports what happens to it as lines
 * in the pipe MODEL_DIR/events.  Commands: ready, ignore-term, answer (accept one connection and
 * write this process's id), say TEXT (why it fails, where it reports that it is ready), say-long (the
 * same in 600 ones), linger (go on after being told to hand over), exit N.  After the last it waits for SIGTERM, SIGUSR1 (hand over) or
 * the lifeline. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MAX_FDS = 64
};

struct stand_in {
    const char *name; /* "worker" or "frontend" */
    const char *model_dir;
    int events_fd;
    int lifeline_fd;
    int ready_fd;
    int term_fd; /* SIGTERM and SIGUSR1 */
    bool lingers;
};

/* One write per line, so that two programs do not mix. */
static void report(const struct stand_in *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void report(const struct stand_in *self, const char *format, ...)
{
    char line[2048];
    va_list args;
    int used = snprintf(line, sizeof(line), "%s ", self->name);
    va_start(args, format);
    used += vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
    va_end(args);
    line[used] = '\n';
    if (write(self->events_fd, line, (size_t)used + 1) != used + 1) {
        _exit(99);
    }
}

static int number_option(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return (int)strtol(argv[i + 1], NULL, 10);
        }
    }
    return -1;
}

static void report_start(const struct stand_in *self, int argc, char **argv)
{
    char text[1500] = "";
    char fds[256] = "";
    int accepts = 0;
    socklen_t accepts_bytes = sizeof(accepts);
    for (int i = 1; i < argc; i++) {
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), " %s", argv[i]);
    }
    for (int fd = 0; fd < MAX_FDS; fd++) {
        if (fd != self->events_fd && fd != self->term_fd && fcntl(fd, F_GETFD) >= 0) {
            (void)snprintf(fds + strlen(fds), sizeof(fds) - strlen(fds), ",%d", fd);
        }
    }
    (void)getsockopt(3, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &accepts_bytes);
    const char *pid = getenv("LISTEN_PID");
    const char *count = getenv("LISTEN_FDS");
    bool is_announced = pid != NULL && strtol(pid, NULL, 10) == getpid() && count != NULL &&
                        strcmp(count, "1") == 0;
    report(self, "start pid=%d leads=%d fds=%s listens=%d announced=%d args=%s", (int)getpid(),
           getpgrp() == getpid(), fds + 1, accepts, is_announced, text + 1);
}

static void answer(const struct stand_in *self)
{
    struct pollfd wait = {.fd = 3, .events = POLLIN};
    (void)poll(&wait, 1, -1);
    int fd = accept(3, NULL, NULL);
    char text[32];
    int used = snprintf(text, sizeof(text), "%d", (int)getpid());
    if (fd < 0 || write(fd, text, (size_t)used) != used) {
        _exit(98);
    }
    (void)close(fd);
    report(self, "answered");
}

static void run_command(struct stand_in *self, const char *command)
{
    if (strcmp(command, "ready") == 0) {
        if (write(self->ready_fd, "1", 1) != 1) {
            _exit(97);
        }
    } else if (strcmp(command, "ignore-term") == 0) {
        (void)close(self->term_fd);
        self->term_fd = -1;
    } else if (strcmp(command, "answer") == 0) {
        answer(self);
    } else if (strcmp(command, "linger") == 0) {
        self->lingers = true;
    } else if (strncmp(command, "say ", 4) == 0) {
        if (dprintf(self->ready_fd, "!%s\n", command + 4) < 0) {
            _exit(93);
        }
    } else if (strcmp(command, "say-long") == 0) {
        char line[602];
        memset(line, '1', sizeof(line));
        line[0] = '!';
        line[sizeof(line) - 1] = '\n';
        if (write(self->ready_fd, line, sizeof(line)) != (ssize_t)sizeof(line)) {
            _exit(92);
        }
    } else if (strncmp(command, "exit ", 5) == 0) {
        _exit((int)strtol(command + 5, NULL, 10));
    } else {
        _exit(96);
    }
}

static void run_script(struct stand_in *self)
{
    char path[512];
    char line[128];
    (void)snprintf(path, sizeof(path), "%s/%s.script", self->model_dir, self->name);
    FILE *script = fopen(path, "re");
    if (script == NULL) {
        _exit(95);
    }
    while (fgets(line, sizeof(line), script) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        run_command(self, line);
    }
    (void)fclose(script);
}

int main(int argc, char **argv)
{
    struct stand_in self = {.name = argv[0] + strlen("bezel-"), .model_dir = argv[1]};
    char path[512];
    sigset_t term;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigaddset(&term, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    self.lifeline_fd = number_option(argc, argv, "--lifeline-fd");
    self.ready_fd = number_option(argc, argv, "--ready-fd");
    (void)snprintf(path, sizeof(path), "%s/events", self.model_dir);
    self.events_fd = open(path, O_WRONLY | O_CLOEXEC);
    self.term_fd = signalfd(-1, &term, SFD_CLOEXEC);
    if (self.events_fd < 0 || self.lifeline_fd < 0) {
        return 94;
    }
    report_start(&self, argc, argv);
    run_script(&self);
    struct pollfd fds[] = {{.fd = self.term_fd, .events = POLLIN},
                           {.fd = self.lifeline_fd, .events = POLLIN}};
    struct signalfd_siginfo info = {0};
    do {
        while (poll(fds, 2, -1) < 0 && errno == EINTR) {
        }
        if (fds[0].revents != 0 && read(self.term_fd, &info, sizeof(info)) != sizeof(info)) {
            return 92;
        }
        report(&self, "%s",
               fds[1].revents != 0         ? "lifeline"
               : info.ssi_signo == SIGUSR1 ? "hand-over"
                                           : "term");
    } while (self.lingers && fds[1].revents == 0 && info.ssi_signo == SIGUSR1);
    return 0;
}
