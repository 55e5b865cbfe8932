/* The real launcher with stand-ins for both programs. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "tests/testlib/test.h"

enum {
    MAX_ARGS = 24,
    PATIENCE_MS = 20000
};

struct rig {
    char dir[64];     /* programs and events */
    char run_dir[80]; /* given to the launcher */
    pid_t launcher;
    int events_fd;
    int out_fd;
    int err_fd;
    struct buf events;
    struct buf out;
    struct buf err;
};

/* Replaces the file whole: a stand-in that still reads the old one reads that to its end. */
static void write_file(const struct rig *rig, const char *name, const char *text)
{
    char path[160];
    char new_path[170];
    (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, name);
    (void)snprintf(new_path, sizeof(new_path), "%s.new", path);
    FILE *file = fopen(new_path, "we");
    test_true(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    test_true(rename(new_path, path) == 0);
}

static void rig_init(struct rig *rig, const char *worker_script, const char *frontend_script)
{
    char path[160];
    *rig = (struct rig){.events_fd = -1, .out_fd = -1, .err_fd = -1};
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
    write_file(rig, "worker.script", worker_script);
    write_file(rig, "frontend.script", frontend_script);
    buf_init(&rig->events);
    buf_init(&rig->out);
    buf_init(&rig->err);
}

static void rig_fini(struct rig *rig)
{
    static const char *const names[] = {"events",        "bezel-worker",    "bezel-frontend",
                                        "worker.script", "frontend.script", "run"};
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

static void rig_start(struct rig *rig, int listener, const char *more)
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
static bool read_more(int fd, struct buf *into)
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
static pid_t expect_in(int fd, struct buf *stream, const char *text)
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
        if (!read_more(fd, stream) || clock_now_ns() > deadline_ns) {
            test_fail(__FILE__, __LINE__, "no '%s' in '%s'", text, buf_text(stream));
        }
    }
}

static pid_t expect_event(struct rig *rig, const char *text)
{
    return expect_in(rig->events_fd, &rig->events, text);
}

static int rig_wait(struct rig *rig)
{
    int status = 0;
    test_true(waitpid(rig->launcher, &status, 0) == rig->launcher);
    (void)read_more(rig->err_fd, &rig->err);
    (void)read_more(rig->out_fd, &rig->out);
    (void)read_more(rig->events_fd, &rig->events);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Starts both, waits for the ready line, returns the port. */
static uint16_t rig_start_ready(struct rig *rig, const char *more, pid_t *out_worker,
                                pid_t *out_frontend)
{
    char args[256];
    (void)snprintf(args, sizeof(args), "--port 0 --run-dir %s%s%s", rig->run_dir,
                   more[0] == '\0' ? "" : " ", more);
    rig_start(rig, -1, args);
    *out_worker = expect_event(rig, "worker start");
    *out_frontend = expect_event(rig, "frontend start");
    uint64_t deadline_ns = clock_now_ns() + PATIENCE_MS * CLOCK_NS_PER_MS;
    unsigned port = 0;
    while (sscanf(buf_text(&rig->out), "Bezel is ready: http://127.0.0.1:%u\n", &port) != 1) {
        test_true(clock_now_ns() < deadline_ns);
        struct pollfd wait = {.fd = rig->out_fd, .events = POLLIN};
        (void)poll(&wait, 1, 100);
        test_true(read_more(rig->out_fd, &rig->out));
    }
    return (uint16_t)port;
}

static int connect_to(uint16_t port)
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

static pid_t read_answer(int fd)
{
    char text[32] = "";
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    test_true(poll(&wait, 1, PATIENCE_MS) == 1);
    test_true(read(fd, text, sizeof(text) - 1) > 0);
    (void)close(fd);
    return atoi(text);
}

static bool is_gone(pid_t pid)
{
    return kill(pid, 0) != 0 && errno == ESRCH;
}

static void test_starts_passes_options_drains_in_order(void)
{
    struct rig rig;
    char want[400];
    rig_init(&rig, "", "ready\n");
    (void)snprintf(want, sizeof(want),
                   "leads=1 fds=0,1,2,3 listens=0 announced=0 args=%s --run-dir %s "
                   "--drain-timeout-s 7 --device cpu --graphs --no-deterministic "
                   "--max-step-tokens 64 --prefix-cache --lifeline-fd 3",
                   rig.dir, rig.run_dir);
    rig_start(&rig, -1, "--port 0 --run-dir");
    (void)rig_wait(&rig); /* an option without its value: refused in one line */
    test_eq_str(buf_text(&rig.err), "bezel: --run-dir needs a value\n");
    buf_reset(&rig.err);

    char args[256];
    (void)snprintf(args, sizeof(args),
                   "--port 0 --run-dir %s --drain-timeout-s 7 --device cpu --max-step-tokens=64 "
                   "--max-queue 9",
                   rig.run_dir);
    rig_start(&rig, -1, args);
    (void)expect_event(&rig, want);
    (void)snprintf(want, sizeof(want),
                   "leads=1 fds=0,1,2,3,4,5 listens=1 announced=1 args=%s --run-dir %s "
                   "--drain-timeout-s 7 --max-step-tokens 64 --max-queue 9 --lifeline-fd 4 "
                   "--ready-fd 5",
                   rig.dir, rig.run_dir);
    (void)expect_event(&rig, want);
    (void)expect_in(rig.out_fd, &rig.out, "Bezel is ready: http://127.0.0.1:");
    struct stat info;
    test_true(stat(rig.run_dir, &info) == 0);
    test_eq_u64(info.st_mode & 0777, 0700);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(rig_wait(&rig) == 0);
    const char *frontend_end = strstr(buf_text(&rig.events), "frontend term\n");
    const char *worker_end = strstr(buf_text(&rig.events), "worker term\n");
    test_true(frontend_end != NULL && worker_end != NULL && frontend_end < worker_end);
    rig_fini(&rig);
}

static void test_temporary_run_dir_is_removed(void)
{
    struct rig rig;
    char run_dir[80] = "";
    rig_init(&rig, "", "ready\n");
    rig_start(&rig, -1, "--port 0");
    (void)expect_in(rig.out_fd, &rig.out, "Bezel is ready: http://127.0.0.1:");
    (void)read_more(rig.events_fd, &rig.events);
    const char *at = strstr(buf_text(&rig.events), "--run-dir ");
    test_true(at != NULL && sscanf(at, "--run-dir %79s", run_dir) == 1);
    test_true(access(run_dir, F_OK) == 0);
    test_true(kill(rig.launcher, SIGINT) == 0);
    test_true(rig_wait(&rig) == 0);
    test_true(access(run_dir, F_OK) != 0);
    rig_fini(&rig);
}

static void test_dead_frontend_is_replaced_behind_the_same_socket(void)
{
    struct rig rig;
    pid_t worker;
    pid_t frontend;
    rig_init(&rig, "", "ready\n");
    uint16_t port = rig_start_ready(&rig, "", &worker, &frontend);
    write_file(&rig, "frontend.script", "answer\nready\n");
    for (int i = 0; i < 5; i++) {
        int early = connect_to(port); /* nobody accepts: it waits for the next frontend */
        test_true(early >= 0);
        test_true(kill(frontend, SIGKILL) == 0);
        pid_t next = expect_event(&rig, "frontend start");
        test_true(next != frontend);
        test_true(read_answer(early) == next);
        (void)expect_event(&rig, "frontend answered");
        (void)expect_in(rig.err_fd, &rig.err, " ready_again");
        frontend = next;
    }
    test_true(strstr(buf_text(&rig.events), "worker") == NULL);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(rig_wait(&rig) == 0);
    rig_fini(&rig);
}

static void test_dead_worker_is_replaced_with_growing_pauses(void)
{
    struct rig rig;
    pid_t worker;
    pid_t frontend;
    rig_init(&rig, "", "ready\n");
    (void)rig_start_ready(&rig, "", &worker, &frontend);
    for (unsigned pause_ms = 20; pause_ms <= 160; pause_ms *= 2) {
        char want[160];
        test_true(kill(worker, SIGKILL) == 0);
        uint64_t killed_ns = clock_now_ns();
        worker = expect_event(&rig, "worker start");
        test_true(clock_now_ns() - killed_ns >= (pause_ms - 1) * CLOCK_NS_PER_MS);
        (void)snprintf(want, sizeof(want), "program=worker end=\"signal 9 (Killed)\" pause_ms=%u",
                       pause_ms);
        (void)expect_in(rig.err_fd, &rig.err, want);
    }
    write_file(&rig, "worker.script", "exit 2\n");
    test_true(kill(worker, SIGKILL) == 0);
    (void)expect_in(rig.err_fd, &rig.err, "program=worker end=\"exit status 2\" pause_ms=600");
    write_file(&rig, "worker.script", ""); /* it was served before: it may come back */
    (void)expect_event(&rig, "worker start");
    test_true(kill(frontend, 0) == 0); /* the same one all along */
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(rig_wait(&rig) == 0);
    rig_fini(&rig);
}

static void check_cannot_ever_work(const char *worker_script, const char *frontend_script)
{
    struct rig rig;
    rig_init(&rig, worker_script, frontend_script);
    rig_start(&rig, -1, "--port 0");
    test_true(rig_wait(&rig) == 2);
    test_true(strstr(buf_text(&rig.err), " cannot_run") != NULL);
    test_true(strstr(buf_text(&rig.err), " restarting") == NULL);
    rig_fini(&rig);
}

static void test_permanent_error_at_first_start_ends_all(void)
{
    check_cannot_ever_work("exit 2\n", "");
    check_cannot_ever_work("", "exit 2\n");
}

static void test_passing_error_at_first_start_is_tried_again(void)
{
    struct rig rig;
    rig_init(&rig, "exit 1\n", "ready\n");
    rig_start(&rig, -1, "--port 0");
    (void)expect_event(&rig, "worker start");
    (void)expect_event(&rig, "worker start");
    write_file(&rig, "worker.script", "");
    (void)expect_in(rig.out_fd, &rig.out, "Bezel is ready");
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(rig_wait(&rig) == 0);
    rig_fini(&rig);
}

static void test_second_signal_stops_at_once(void)
{
    struct rig rig;
    pid_t worker;
    pid_t frontend;
    rig_init(&rig, "ignore-term\n", "ignore-term\nready\n");
    uint16_t port = rig_start_ready(&rig, "--drain-timeout-s 3600", &worker, &frontend);
    test_true(kill(rig.launcher, SIGINT) == 0);
    (void)expect_in(rig.err_fd, &rig.err, " stopping");
    test_true(kill(frontend, 0) == 0);
    test_true(kill(rig.launcher, SIGINT) == 0);
    test_true(rig_wait(&rig) == 130);
    test_true(is_gone(worker) && is_gone(frontend));
    test_true(connect_to(port) < 0);
    rig_fini(&rig);
}

static void test_drain_deadline_kills(void)
{
    struct rig rig;
    pid_t worker;
    pid_t frontend;
    rig_init(&rig, "", "ignore-term\nready\n");
    (void)rig_start_ready(&rig, "--drain-timeout-s 0", &worker, &frontend);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(rig_wait(&rig) == 0);
    test_true(strstr(buf_text(&rig.err), " killing program=frontend") != NULL);
    test_true(is_gone(frontend) && is_gone(worker));
    rig_fini(&rig);
}

static void test_killed_launcher_leaves_no_orphans(void)
{
    struct rig rig;
    pid_t worker;
    pid_t frontend;
    rig_init(&rig, "", "ready\n");
    (void)rig_start_ready(&rig, "", &worker, &frontend);
    test_true(kill(rig.launcher, SIGKILL) == 0);
    test_true(rig_wait(&rig) == -SIGKILL);
    (void)expect_event(&rig, "worker lifeline");
    (void)expect_event(&rig, "frontend lifeline");
    rig_fini(&rig);
}

static int open_listener(uint16_t *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t address_bytes = sizeof(address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    test_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    test_true(listen(fd, 16) == 0);
    test_true(getsockname(fd, (struct sockaddr *)&address, &address_bytes) == 0);
    *out_port = ntohs(address.sin_port);
    return fd;
}

static void test_inherited_socket_is_used(void)
{
    struct rig rig;
    uint16_t port;
    int listener = open_listener(&port);
    rig_init(&rig, "", "ready\nanswer\n");
    rig_start(&rig, listener, "--port 1");
    (void)close(listener);
    char want[80];
    (void)snprintf(want, sizeof(want), "Bezel is ready: http://127.0.0.1:%u", port);
    (void)expect_in(rig.out_fd, &rig.out, want);
    pid_t frontend = expect_event(&rig, "frontend start");
    test_true(read_answer(connect_to(port)) == frontend);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(rig_wait(&rig) == 0);
    rig_fini(&rig);
}

static void check_refused(const char *more, int exit_code, const char *message)
{
    struct rig rig;
    rig_init(&rig, "", "");
    rig_start(&rig, -1, more);
    test_true(rig_wait(&rig) == exit_code);
    test_eq_str(buf_text(&rig.err), message);
    test_eq_u64(rig.events.used_bytes, 0);
    rig_fini(&rig);
}

static void test_bad_starts_are_told_in_one_line(void)
{
    uint16_t port;
    char args[128];
    char want[256];
    char open_dir[] = "/tmp/launcher-open-XXXXXX";
    int listener = open_listener(&port);
    (void)snprintf(args, sizeof(args), "--port %u", port);
    (void)snprintf(want, sizeof(want),
                   "bezel: port %u of 127.0.0.1 is in use; choose another with --port\n", port);
    check_refused(args, 1, want);
    (void)close(listener);

    check_refused("--port 70000", 2,
                  "bezel: --port is '70000', must be an integer from 0 to 65535\n");
    check_refused("--bogus 1", 2, "bezel: unknown option '--bogus', see --help\n");
    check_refused("--port 0 --run-dir /nowhere/at/all", 1,
                  "bezel: making run directory '/nowhere/at/all': No such file or directory\n");
    test_true(mkdtemp(open_dir) != NULL && chmod(open_dir, 0755) == 0);
    (void)snprintf(args, sizeof(args), "--port 0 --run-dir %s", open_dir);
    (void)snprintf(want, sizeof(want), "bezel: run directory '%s' has mode 0755, must be 0700\n",
                   open_dir);
    check_refused(args, 2, want);
    (void)rmdir(open_dir);
}

static const struct test_case cases[] = {
    TEST(test_starts_passes_options_drains_in_order),
    TEST(test_temporary_run_dir_is_removed),
    TEST(test_dead_frontend_is_replaced_behind_the_same_socket),
    TEST(test_dead_worker_is_replaced_with_growing_pauses),
    TEST(test_permanent_error_at_first_start_ends_all),
    TEST(test_passing_error_at_first_start_is_tried_again),
    TEST(test_second_signal_stops_at_once),
    TEST(test_drain_deadline_kills),
    TEST(test_killed_launcher_leaves_no_orphans),
    TEST(test_inherited_socket_is_used),
    TEST(test_bad_starts_are_told_in_one_line),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
