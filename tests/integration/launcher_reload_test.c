/* Reloads by the real launcher, with stand-ins for both programs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/testlib/launcher_rig.h"
#include "tests/testlib/test.h"

/* `bezel reload` as a process of its own. */
struct asking {
    pid_t pid;
    int fd; /* its output, both streams */
};

static void ask(const struct launcher_rig *rig, struct asking *asking)
{
    int out[2];
    test_true(pipe(out) == 0);
    asking->pid = fork();
    test_true(asking->pid >= 0);
    if (asking->pid == 0) {
        (void)dup2(out[1], STDOUT_FILENO);
        (void)dup2(out[1], STDERR_FILENO);
        (void)close(out[0]);
        (void)close(out[1]);
        (void)execl(TEST_BEZEL, "bezel", "reload", "--run-dir", rig->run_dir, (char *)NULL);
        _exit(127);
    }
    (void)close(out[1]);
    asking->fd = out[0];
}

/* Waits for its end: the text that it wrote, its exit code returned. */
static int hear(const struct asking *asking, char out_text[1024])
{
    size_t used = 0;
    ssize_t got;
    while ((got = read(asking->fd, out_text + used, 1023 - used)) > 0) {
        used += (size_t)got;
    }
    out_text[used] = '\0';
    (void)close(asking->fd);
    int status = 0;
    test_true(waitpid(asking->pid, &status, 0) == asking->pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_refusal(const struct launcher_rig *rig, const char *line)
{
    struct asking asking;
    char text[1024];
    ask(rig, &asking);
    test_eq_u64((uint64_t)hear(&asking, text), 1);
    test_eq_str(text, line);
}

/* A reload that works; the new frontend's id. */
static pid_t reload(struct launcher_rig *rig)
{
    struct asking asking;
    char text[1024];
    char want[64];
    ask(rig, &asking);
    pid_t next = launcher_expect_event(rig, "frontend start");
    test_eq_u64((uint64_t)hear(&asking, text), 0);
    (void)snprintf(want, sizeof(want), "frontend %d serves\n", (int)next);
    test_eq_str(text, want);
    return next;
}

static void stop(struct launcher_rig *rig)
{
    test_true(kill(rig->launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(rig) == 0);
    launcher_rig_fini(rig);
}

static void test_old_frontend_leaves_when_the_new_one_serves(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ready\n");
    uint16_t port = launcher_rig_start_ready(&rig, "", &worker, &frontend);
    for (int i = 0; i < 3; i++) {
        pid_t next = reload(&rig);
        test_true(next != frontend);
        (void)launcher_expect_event(&rig, "frontend hand-over");
        (void)launcher_expect_in(rig.err_fd, &rig.err, " old_frontend_gone");
        test_true(launcher_is_gone(frontend));
        frontend = next;
    }
    /* The one that was started by a reload is restarted as any other. */
    launcher_rig_write(&rig, "frontend.script", "answer\nready\n");
    int early = launcher_connect(port);
    test_true(kill(frontend, SIGKILL) == 0);
    pid_t next = launcher_expect_event(&rig, "frontend start");
    test_true(launcher_read_answer(early) == next);
    test_true(strstr(buf_text(&rig.events), "worker") == NULL);
    stop(&rig);
}

static void test_signal_reloads_too(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ready\n");
    (void)launcher_rig_start_ready(&rig, "", &worker, &frontend);
    test_true(kill(rig.launcher, SIGHUP) == 0);
    test_true(launcher_expect_event(&rig, "frontend start") != frontend);
    (void)launcher_expect_in(rig.err_fd, &rig.err, " reloaded");
    (void)launcher_expect_in(rig.err_fd, &rig.err, " old_frontend_gone");
    test_true(launcher_is_gone(frontend));
    stop(&rig);
}

static void test_failing_reload_keeps_the_old_one(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "ready\n");
    (void)launcher_rig_start_ready(&rig, "--reload-timeout-s 4", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "say the tables differ\nexit 1\n");
    expect_refusal(&rig, "bezel: reload: the tables differ; the old frontend goes on\n");
    launcher_rig_write(&rig, "frontend.script", "exit 5\n");
    expect_refusal(&rig, "bezel: reload: the new frontend ended with exit status 5 before it was "
                         "ready; the old one goes on\n");
    launcher_rig_write(&rig, "frontend.script", "");
    expect_refusal(&rig, "bezel: reload: the new frontend was not ready within 4 s; the old one "
                         "goes on\n");
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/bezel-frontend", rig.dir);
    test_true(unlink(path) == 0);
    char want[300];
    (void)snprintf(want, sizeof(want), "bezel: reload: starting '%s': No such file or directory\n",
                   path);
    expect_refusal(&rig, want);
    test_true(strstr(buf_text(&rig.events), "hand-over") == NULL);
    test_true(symlink(TEST_STAND_IN, path) == 0); /* a program of another version, say */
    launcher_rig_write(&rig, "frontend.script", "ready\n");
    test_true(kill(frontend, 0) == 0);
    for (int i = 0; i < 3; i++) {
        (void)launcher_expect_event(&rig, "frontend start"); /* of those above */
    }
    (void)reload(&rig);
    stop(&rig);
}

/* More than the launcher reads at once: what follows is no report of its own. */
static void test_long_reason_is_not_taken_for_ready(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    struct asking asking;
    char text[1024];
    launcher_rig_init(&rig, "", "ready\n");
    (void)launcher_rig_start_ready(&rig, "", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "say-long\nexit 5\n");
    ask(&rig, &asking);
    test_eq_u64((uint64_t)hear(&asking, text), 1);
    test_true(strncmp(text, "bezel: reload: 111", 18) == 0);
    test_true(kill(frontend, 0) == 0);
    stop(&rig);
}

static void test_one_reload_at_a_time(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    struct asking asking;
    char text[1024];
    launcher_rig_init(&rig, "", "linger\nready\n");
    (void)launcher_rig_start_ready(&rig, "--drain-timeout-s 9", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "");
    ask(&rig, &asking);
    pid_t next = launcher_expect_event(&rig, "frontend start");
    expect_refusal(&rig, "bezel: reload: a reload is running\n");
    test_true(kill(next, SIGKILL) == 0);
    test_eq_u64((uint64_t)hear(&asking, text), 1);
    launcher_rig_write(&rig, "frontend.script", "ready\n");
    next = reload(&rig);
    (void)launcher_expect_event(&rig, "frontend hand-over"); /* and it goes on */
    ask(&rig, &asking);
    test_eq_u64((uint64_t)hear(&asking, text), 1);
    char want[128];
    (void)snprintf(want, sizeof(want),
                   "bezel: reload: the frontend of the last reload (pid %d) still serves",
                   (int)frontend);
    test_true(strncmp(text, want, strlen(want)) == 0);
    test_true(kill(frontend, SIGTERM) == 0);
    (void)launcher_expect_in(rig.err_fd, &rig.err, " old_frontend_gone");
    test_true(reload(&rig) != next);
    stop(&rig);
}

static void test_leaving_frontend_is_killed_at_the_deadline(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    launcher_rig_init(&rig, "", "linger\nready\n");
    (void)launcher_rig_start_ready(&rig, "--drain-timeout-s 0", &worker, &frontend);
    (void)reload(&rig);
    (void)launcher_expect_in(rig.err_fd, &rig.err, " killing program=frontend");
    (void)launcher_expect_in(rig.err_fd, &rig.err, " old_frontend_gone");
    test_true(launcher_is_gone(frontend));
    stop(&rig);
}

static void test_new_frontend_takes_the_place_of_a_dead_one(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    struct asking asking;
    char text[1024];
    launcher_rig_init(&rig, "", "ready\n");
    uint16_t port = launcher_rig_start_ready(&rig, "", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "answer\nready\n");
    ask(&rig, &asking);
    pid_t next = launcher_expect_event(&rig, "frontend start");
    test_true(kill(frontend, SIGKILL) == 0);
    (void)launcher_expect_in(rig.err_fd, &rig.err, " replaced program=frontend");
    test_true(launcher_read_answer(launcher_connect(port)) == next);
    test_eq_u64((uint64_t)hear(&asking, text), 0);
    test_eq_str(text, "the new frontend serves; the old one had ended meanwhile\n");
    test_true(strstr(buf_text(&rig.events), "frontend start") == NULL); /* no third one */
    stop(&rig);
}

static void test_stop_and_death_during_a_reload(void)
{
    struct launcher_rig rig;
    pid_t worker;
    pid_t frontend;
    struct asking asking;
    char text[1024];
    launcher_rig_init(&rig, "", "ready\n");
    (void)launcher_rig_start_ready(&rig, "", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "");
    ask(&rig, &asking);
    pid_t next = launcher_expect_event(&rig, "frontend start");
    test_true(kill(rig.launcher, SIGTERM) == 0);
    test_true(launcher_rig_wait(&rig) == 0);
    test_eq_u64((uint64_t)hear(&asking, text), 1);
    test_eq_str(text, "bezel: reload: bezel serve was told to stop\n");
    test_true(launcher_is_gone(frontend) && launcher_is_gone(next) && launcher_is_gone(worker));

    launcher_rig_write(&rig, "frontend.script", "ready\n");
    (void)launcher_rig_start_ready(&rig, "", &worker, &frontend);
    launcher_rig_write(&rig, "frontend.script", "");
    ask(&rig, &asking);
    (void)launcher_expect_event(&rig, "frontend start");
    test_true(kill(rig.launcher, SIGKILL) == 0);
    test_eq_u64((uint64_t)hear(&asking, text), 1);
    test_eq_str(text, "bezel: reload: bezel serve ended before it answered\n");
    for (int i = 0; i < 2; i++) {
        (void)launcher_expect_event(&rig, "frontend lifeline");
    }
    (void)launcher_expect_event(&rig, "worker lifeline");
    test_true(launcher_rig_wait(&rig) == -SIGKILL);
    launcher_rig_fini(&rig);
}

static void test_what_cannot_be_reloaded_is_told(void)
{
    struct launcher_rig rig;
    char want[200];
    launcher_rig_init(&rig, "", "");
    (void)snprintf(want, sizeof(want),
                   "bezel: reload: no bezel serve runs with run directory '%s'\n", rig.run_dir);
    expect_refusal(&rig, want);
    char args[160];
    (void)snprintf(args, sizeof(args), "--port 0 --run-dir %s", rig.run_dir);
    launcher_rig_start(&rig, -1, args);
    (void)launcher_expect_event(&rig, "frontend start");
    expect_refusal(&rig,
                   "bezel: reload: the frontend is not ready, so there is nothing to hand over\n");
    stop(&rig);
}

static const struct test_case cases[] = {
    TEST(test_old_frontend_leaves_when_the_new_one_serves),
    TEST(test_signal_reloads_too),
    TEST(test_failing_reload_keeps_the_old_one),
    TEST(test_long_reason_is_not_taken_for_ready),
    TEST(test_one_reload_at_a_time),
    TEST(test_leaving_frontend_is_killed_at_the_deadline),
    TEST(test_new_frontend_takes_the_place_of_a_dead_one),
    TEST(test_stop_and_death_during_a_reload),
    TEST(test_what_cannot_be_reloaded_is_told),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
