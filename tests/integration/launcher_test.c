/* The real launcher with stand-ins for both programs. */
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/launcher_rig.h"
#include "tests/testlib/test.h"

static void test_starts_passes_options_drains_in_order(void)
{
    struct launcher_rig rig;
    char want[400];
    launcher_rig_init(&rig, "", "ready\n");
    (void)snprintf(
        want, sizeof(want),
        "leads=1 fds=0,1,2,3 listens=0 announced=0 args=%s --run-dir %s "
        "--drain-timeout-s 7 --device cpu --no-ple-on-device --graphs --no-deterministic "
        "--max-step-tokens 64 --prefix-cache --lifeline-fd 3",
        rig.dir, rig.run_dir);
    launcher_rig_start(&rig, -1, "--port 0 --run-dir");
    (void)launcher_rig_wait(&rig); /* an option without its value: refused in one line */
    test_eq_str(buf_text(&rig.err), "bezel: --run-dir needs a value\n");
    buf_reset(&rig.err);

    char args[256];
    (void)snprintf(args, sizeof(args),
                   "--port 0 --run-dir %s --drain-timeout-s 7 --device cpu --max-step-tokens=64 "
                   "--max-queue 9",
                   rig.run_dir);
    launcher_rig_start(&rig, -1, args);
    (void)launcher_expect_event(&rig, want);
    (void)snprintf(want, sizeof(want),
                   "leads=1 fds=0,1,2,3,4,5 listens=1 announced=1 args=%s --run-dir %s "
                   "--drain-timeout-s 7 --max-step-tokens 64 --max-queue 9 --lifeline-fd 4 "
                   "--ready-fd 5",
                   rig.dir, rig.run_dir);
    (void)launcher_expect_event(&rig, want);
    (void)launcher_expect_in(rig.out_fd, &rig.out, "Bezel is ready: http://127.0.0.1:");
    struct stat info;
    test_true(stat(rig.run_dir, &info) == 0);
    test_eq_u64(info.st_mode & 0777, 0700);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    const char *frontend_end = strstr(buf_text(&rig.events), "frontend term\n");
    const char *worker_end = strstr(buf_text(&rig.events), "worker term\n");
    test_true(frontend_end != NULL && worker_end != NULL && frontend_end < worker_end);
    launcher_rig_fini(&rig);
}

/* Starts without --run-dir; the directory that it took. */
static void start_anywhere(struct launcher_rig *rig, char run_dir[80])
{
    run_dir[0] = '\0';
    launcher_rig_init(rig, "", "ready\n");
    launcher_rig_start(rig, -1, "--port 0");
    (void)launcher_expect_in(rig->out_fd, &rig->out, "Bezel is ready: http://127.0.0.1:");
    (void)launcher_read_more(rig->events_fd, &rig->events);
    const char *at = strstr(buf_text(&rig->events), "--run-dir ");
    test_true(at != NULL && sscanf(at, "--run-dir %79s", run_dir) == 1);
    test_true(access(run_dir, F_OK) == 0);
}

/* The first launcher of a user takes the place where all programs meet by default, unless somebody
 * else runs this test; another gets a directory of its own, which goes with it. */
static void test_second_launcher_gets_a_temporary_run_dir(void)
{
    struct launcher_rig first;
    struct launcher_rig second;
    char first_dir[80];
    char second_dir[80];
    char prefix[80];
    start_anywhere(&first, first_dir);
    start_anywhere(&second, second_dir);
    (void)snprintf(prefix, sizeof(prefix), "/tmp/bezel-%u-", geteuid());
    test_true(strcmp(first_dir, second_dir) != 0);
    test_true(strncmp(second_dir, prefix, strlen(prefix)) == 0);
    test_true(kill(second.launcher, SIGINT) == 0);
    test_true(launcher_rig_wait(&second) == 0);
    test_true(access(second_dir, F_OK) != 0);
    launcher_rig_fini(&second);

    start_anywhere(&second, second_dir);
    test_true(strncmp(second_dir, prefix, strlen(prefix)) == 0);
    test_true(kill(second.launcher, SIGKILL) == 0);
    test_true(launcher_rig_wait(&second) == -SIGKILL);
    launcher_rig_fini(&second);
    test_true(access(second_dir, F_OK) == 0); /* left behind, until the next one starts */
    char third_dir[80];
    start_anywhere(&second, third_dir);
    test_true(access(second_dir, F_OK) != 0);
    struct launcher_rig *const both[] = {&first, &second};
    for (size_t i = 0; i < 2; i++) {
        test_true(kill(both[i]->launcher, SIGINT) == 0);
        test_true(launcher_rig_wait(both[i]) == 0);
        launcher_rig_fini(both[i]);
    }
}

static void test_dead_frontend_is_replaced_behind_the_same_socket(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ready\n");
    uint16_t port = launcher_rig_start_ready(&rig, "", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "answer\nready\n");
    for (int i = 0; i < 5; i++) {
        int early = launcher_connect(port); /* nobody accepts: it waits for the next frontend */
        test_true(early >= 0);
        test_true(kill(frontend, SIGKILL) == 0);
        pid_t next = launcher_expect_event(&rig, "frontend start");
        test_true(next != frontend);
        test_true(launcher_read_answer(early) == next);
        (void)launcher_expect_event(&rig, "frontend answered");
        (void)launcher_expect_in(rig.err_fd, &rig.err, " ready_again");
        frontend = next;
    }
    test_true(strstr(buf_text(&rig.events), "worker") == NULL);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    launcher_rig_fini(&rig);
}

static void test_dead_worker_is_replaced_with_growing_pauses(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ready\n");
    (void)launcher_rig_start_ready(&rig, "", &worker, &frontend);
    for (unsigned pause_ms = 20; pause_ms <= 160; pause_ms *= 2) {
        char want[160];
        test_true(kill(worker, SIGKILL) == 0);
        uint64_t killed_ns = clock_now_ns();
        worker = launcher_expect_event(&rig, "worker start");
        test_true(clock_now_ns() - killed_ns >= (pause_ms - 1) * CLOCK_NS_PER_MS);
        (void)snprintf(want, sizeof(want), "program=worker end=\"signal 9 (Killed)\" pause_ms=%u",
                       pause_ms);
        (void)launcher_expect_in(rig.err_fd, &rig.err, want);
    }
    launcher_rig_write(&rig, "worker.script", "exit 2\n");
    test_true(kill(worker, SIGKILL) == 0);
    (void)launcher_expect_in(rig.err_fd, &rig.err,
                             "program=worker end=\"exit status 2\" pause_ms=600");
    launcher_rig_write(&rig, "worker.script", ""); /* it was served before: it may come back */
    (void)launcher_expect_event(&rig, "worker start");
    test_true(kill(frontend, 0) == 0); /* the same one all along */
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    launcher_rig_fini(&rig);
}

static void check_cannot_ever_work(const char *worker_script, const char *frontend_script)
{
    struct launcher_rig rig;
    launcher_rig_init(&rig, worker_script, frontend_script);
    launcher_rig_start(&rig, -1, "--port 0");
    test_true(launcher_rig_wait(&rig) == 2);
    test_true(strstr(buf_text(&rig.err), " cannot_run") != NULL);
    test_true(strstr(buf_text(&rig.err), " restarting") == NULL);
    launcher_rig_fini(&rig);
}

static void test_permanent_error_at_first_start_ends_all(void)
{
    check_cannot_ever_work("exit 2\n", "");
    check_cannot_ever_work("", "exit 2\n");
}

static void test_passing_error_at_first_start_is_tried_again(void)
{
    struct launcher_rig rig;
    launcher_rig_init(&rig, "exit 1\n", "ready\n");
    launcher_rig_start(&rig, -1, "--port 0");
    (void)launcher_expect_event(&rig, "worker start");
    (void)launcher_expect_event(&rig, "worker start");
    launcher_rig_write(&rig, "worker.script", "");
    (void)launcher_expect_in(rig.out_fd, &rig.out, "Bezel is ready");
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    launcher_rig_fini(&rig);
}

static void test_second_signal_stops_at_once(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "ignore-term\n", "ignore-term\nready\n");
    uint16_t port = launcher_rig_start_ready(&rig, "--drain-timeout-s 3600", &worker, &frontend);
    test_true(kill(rig.launcher, SIGINT) == 0);
    (void)launcher_expect_in(rig.err_fd, &rig.err, " stopping");
    test_true(kill(frontend, 0) == 0);
    test_true(kill(rig.launcher, SIGINT) == 0);
    test_true(launcher_rig_wait(&rig) == 130);
    test_true(launcher_is_gone(worker) && launcher_is_gone(frontend));
    test_true(launcher_connect(port) < 0);
    launcher_rig_fini(&rig);
}

static void test_drain_deadline_kills(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ignore-term\nready\n");
    (void)launcher_rig_start_ready(&rig, "--drain-timeout-s 0", &worker, &frontend);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    test_true(strstr(buf_text(&rig.err), " killing program=frontend") != NULL);
    test_true(launcher_is_gone(frontend) && launcher_is_gone(worker));
    launcher_rig_fini(&rig);
}

static void test_killed_launcher_leaves_no_orphans(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ready\n");
    (void)launcher_rig_start_ready(&rig, "", &worker, &frontend);
    test_true(kill(rig.launcher, SIGKILL) == 0);
    test_true(launcher_rig_wait(&rig) == -SIGKILL);
    (void)launcher_expect_event(&rig, "worker lifeline");
    (void)launcher_expect_event(&rig, "frontend lifeline");
    launcher_rig_fini(&rig);
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
    struct launcher_rig rig;
    uint16_t port;
    int listener = open_listener(&port);
    launcher_rig_init(&rig, "", "ready\nanswer\n");
    launcher_rig_start(&rig, listener, "--port 1");
    (void)close(listener);
    char want[80];
    (void)snprintf(want, sizeof(want), "Bezel is ready: http://127.0.0.1:%u", port);
    (void)launcher_expect_in(rig.out_fd, &rig.out, want);
    pid_t frontend = launcher_expect_event(&rig, "frontend start");
    test_true(launcher_read_answer(launcher_connect(port)) == frontend);
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    launcher_rig_fini(&rig);
}

static void check_refused(const char *more, int exit_code, const char *message)
{
    struct launcher_rig rig;
    launcher_rig_init(&rig, "", "");
    launcher_rig_start(&rig, -1, more);
    test_true(launcher_rig_wait(&rig) == exit_code);
    test_eq_str(buf_text(&rig.err), message);
    test_eq_u64(rig.events.used_bytes, 0);
    launcher_rig_fini(&rig);
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
    TEST(test_second_launcher_gets_a_temporary_run_dir),
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
