#include "tests/testlib/launcher_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/test.h"

enum {
    MAX_ARGS = 24,
    PATIENCE_MS = 20000
};

/* Replaces the file whole: a stand-in that still reads the old one reads that to its end. */
void launcher_rig_write(const struct launcher_rig *rig, const char *name, const char *text)
{
    char path[160];
    char new_path[170];
    (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, name);
    (void)snprintf(new_path, sizeof(new_path), "%s.new", path);
    FILE *file = fopen(new_path, "we");
    test_true(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    test_true(rename(new_path, path) == 0);
}

void launcher_rig_init(struct launcher_rig *rig, const char *worker_script,
                       const char *frontend_script)
{
    char path[160];
    *rig = (struct launcher_rig){.events_fd = -1, .out_fd = -1, .err_fd = -1};
    (void)snprintf(rig->dir, sizeof(rig->dir), "/tmp/launcher-test-XXXXXX");
    test_true(mkdtemp(rig->dir) != NULL);
    (void)snprintf(rig->run_dir, sizeof(rig->run_dir), "%s/run", rig->dir);
    (void)snprintf(path, sizeof(path), "%s/events", rig->dir);
    test_true(mkfifo(path, 0600) == 0);
    rig->events_fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    test_true(rig->events_fd >= 0);
    (void)snprintf(path, sizeof(path), "%s/bezel-worker", rig->dir);
    test_true(symlink(TEST_STAND_IN, path) == 0);
    (void)snprintf(path, sizeof(path), "%s/bezel-frontend", rig->dir);
    test_true(symlink(TEST_STAND_IN, path) == 0);
    launcher_rig_write(rig, "worker.script", worker_script);
    launcher_rig_write(rig, "frontend.script", frontend_script);
    buf_init(&rig->events);
    buf_init(&rig->out);
    buf_init(&rig->err);
}

void launcher_rig_fini(struct launcher_rig *rig)
{
    static const char *const names[] = {"events",
                                        "bezel-worker",
                                        "bezel-frontend",
                                        "worker.script",
                                        "frontend.script",
                                        "run/launcher.sock",
                                        "run"};
    char path[160];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, names[i]);
        (void)remove(path); /* not every test made each */
    }
    test_true(rmdir(rig->dir) == 0);
    (void)close(rig->events_fd);
    (void)close(rig->out_fd);
    (void)close(rig->err_fd);
    buf_fini(&rig->events);
    buf_fini(&rig->out);
    buf_fini(&rig->err);
}

/* In the child: an inherited listener becomes descriptor 3, as systemd does it. */
static void become_launcher(int listener, char **argv)
{
    if (listener >= 0) {
        char pid[16];
        (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
        int moved = dup(listener); /* not close-on-exec, whichever number it had */
        (void)dup2(moved, 3);
        (void)close(moved);
        (void)setenv("LISTEN_PID", pid, 1);
        (void)setenv("LISTEN_FDS", "1", 1);
    }
    (void)execv(TEST_BEZEL, argv);
    _exit(127);
}

void launcher_rig_start(struct launcher_rig *rig, int listener, const char *more)
{
    int out[2];
    int err[2];
    char copy[512];
    char *argv[MAX_ARGS + 1] = {0};
    (void)snprintf(copy, sizeof(copy), "bezel serve %s --program-dir %s --backoff-ms 20 %s",
                   rig->dir, rig->dir, more);
    char *rest = copy;
    for (int argc = 0; argc < MAX_ARGS && rest != NULL; argc++) {
        argv[argc] = strsep(&rest, " ");
    }
    test_true(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(err[0], F_SETFL, O_NONBLOCK);
    buf_reset(&rig->out); /* of a launcher before */
    rig->launcher = fork();
    test_true(rig->launcher >= 0);
    if (rig->launcher == 0) {
        (void)dup2(out[1], STDOUT_FILENO);
        (void)dup2(err[1], STDERR_FILENO);
        (void)dup2(err[1], 40); /* inherited by mistake: must not reach the programs */
        become_launcher(listener, argv);
    }
    (void)close(out[1]);
    (void)close(err[1]);
    rig->out_fd = out[0];
    rig->err_fd = err[0];
}

/* False when the other end is closed. */
bool launcher_read_more(int fd, struct buf *into)
{
    char bytes[4096];
    ssize_t got = read(fd, bytes, sizeof(bytes));
    if (got > 0) {
        buf_append(into, bytes, (size_t)got);
    }
    return got != 0;
}

/* Waits until text appears in the stream; removes everything up to the end of its line and returns
 * the number after "pid=" in that line, or 0. */
pid_t launcher_expect_in(int fd, struct buf *stream, const char *text)
{
    uint64_t deadline_ns = clock_now_ns() + PATIENCE_MS * CLOCK_NS_PER_MS;
    for (;;) {
        const char *found = strstr(buf_text(stream), text);
        const char *end = found == NULL ? NULL : strchr(found, '\n');
        if (end != NULL) {
            const char *pid_text = strstr(found, "pid=");
            pid_t pid = pid_text == NULL || pid_text > end ? 0 : atoi(pid_text + 4);
            size_t line_bytes = (size_t)(end + 1 - found);
            size_t before_bytes = (size_t)(found - stream->at);
            memmove(stream->at + before_bytes, end + 1,
                    stream->used_bytes - before_bytes - line_bytes + 1);
            stream->used_bytes -= line_bytes;
            return pid;
        }
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        (void)poll(&wait, 1, 100);
        if (!launcher_read_more(fd, stream) || clock_now_ns() > deadline_ns) {
            test_fail(__FILE__, __LINE__, "no '%s' in '%s'", text, buf_text(stream));
        }
    }
}

pid_t launcher_expect_event(struct launcher_rig *rig, const char *text)
{
    return launcher_expect_in(rig->events_fd, &rig->events, text);
}

int launcher_rig_wait(struct launcher_rig *rig)
{
    int status = 0;
    test_true(waitpid(rig->launcher, &status, 0) == rig->launcher);
    (void)launcher_read_more(rig->err_fd, &rig->err);
    (void)launcher_read_more(rig->out_fd, &rig->out);
    (void)launcher_read_more(rig->events_fd, &rig->events);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Starts both, waits for the ready line, returns the port. */
uint16_t launcher_rig_start_ready(struct launcher_rig *rig, const char *more, pid_t *out_worker,
                                  pid_t *out_frontend)
{
    char args[256];
    (void)snprintf(args, sizeof(args), "--port 0 --run-dir %s%s%s", rig->run_dir,
                   more[0] == '\0' ? "" : " ", more);
    launcher_rig_start(rig, -1, args);
    *out_worker = launcher_expect_event(rig, "worker start");
    *out_frontend = launcher_expect_event(rig, "frontend start");
    uint64_t deadline_ns = clock_now_ns() + PATIENCE_MS * CLOCK_NS_PER_MS;
    unsigned port = 0;
    while (sscanf(buf_text(&rig->out), "Bezel is ready: http://127.0.0.1:%u\n", &port) != 1) {
        test_true(clock_now_ns() < deadline_ns);
        struct pollfd wait = {.fd = rig->out_fd, .events = POLLIN};
        (void)poll(&wait, 1, 100);
        test_true(launcher_read_more(rig->out_fd, &rig->out));
    }
    return (uint16_t)port;
}

int launcher_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    test_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

pid_t launcher_read_answer(int fd)
{
    char text[32] = "";
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    test_true(poll(&wait, 1, PATIENCE_MS) == 1);
    test_true(read(fd, text, sizeof(text) - 1) > 0);
    (void)close(fd);
    return atoi(text);
}

bool launcher_is_gone(pid_t pid)
{
    return kill(pid, 0) != 0 && errno == ESRCH;
}
