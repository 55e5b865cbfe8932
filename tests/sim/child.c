#include "tests/sim/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/sim/sim.h"

#define CHILD_MOST_SECONDS 120 /* of processor time: a world takes well under one */

void child_runner_init(struct child_runner *runner)
{
    runner->report = mmap(NULL, sizeof(struct report), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    runner->error_fd = memfd_create("sim-stderr", MFD_CLOEXEC);
    if (runner->report == MAP_FAILED || runner->error_fd < 0) {
        (void)fprintf(stderr, "no shared memory\n");
        abort();
    }
}

void child_runner_fini(struct child_runner *runner)
{
    (void)munmap(runner->report, sizeof(struct report)); /* the process ends anyway */
    (void)close(runner->error_fd);
}

/* The last words of a child that did not end by report_fail. */
static void note_death(const struct child_runner *runner, int status)
{
    struct report *report = runner->report;
    if (report->failure[0] != '\0') {
        return;
    }
    char text[REPORT_TEXT_BYTES / 2];
    ssize_t length = pread(runner->error_fd, text, sizeof(text) - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    (void)snprintf(report->failure, sizeof(report->failure), "%s %d: %s",
                   WIFSIGNALED(status) ? "signal" : "exit",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), text);
}

bool child_run(struct child_runner *runner, const struct world *world, bool is_replay)
{
    runner->report->failure[0] = '\0';
    (void)fflush(stdout);
    if (ftruncate(runner->error_fd, 0) != 0) {
        abort();
    }
    pid_t pid = fork();
    if (pid < 0) {
        (void)fprintf(stderr, "fork failed\n");
        abort();
    }
    if (pid == 0) {
        const struct rlimit limit = {CHILD_MOST_SECONDS, CHILD_MOST_SECONDS};
        (void)setrlimit(RLIMIT_CPU,
                        &limit); /* without it a loop goes on until the test's timeout */
        (void)lseek(runner->error_fd, 0, SEEK_SET);
        (void)dup2(runner->error_fd, STDERR_FILENO);
        run_world(world, runner->report, is_replay);
        exit(0); /* not _exit: a leak checker looks now */
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) {
        abort();
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    note_death(runner, status);
    return false;
}

/* The list without count events from first. */
static void leave_out(struct report *report, const struct event *events, uint32_t event_count,
                      uint32_t first, uint32_t count)
{
    memcpy(report->events, events, first * sizeof(*events));
    memcpy(report->events + first, events + first + count,
           (event_count - first - count) * sizeof(*events));
    report->event_count = event_count - count;
}

void child_shrink(struct child_runner *runner, const struct world *world, uint64_t limit_ns)
{
    struct report *report = runner->report;
    uint64_t end_ns = clock_now_ns() + limit_ns;
    struct event *best = mem_zalloc(REPORT_MAX_EVENTS, sizeof(*best));
    uint32_t best_count = report->event_count;
    char failure[REPORT_TEXT_BYTES];
    memcpy(failure, report->failure, sizeof(failure));
    memcpy(best, report->events, best_count * sizeof(*best));
    for (uint32_t piece = best_count; piece > 0 && clock_now_ns() < end_ns; piece /= 2) {
        uint32_t at = 0;
        while (at < best_count && clock_now_ns() < end_ns) {
            uint32_t count = piece < best_count - at ? piece : best_count - at;
            leave_out(report, best, best_count, at, count);
            if (child_run(runner, world, true)) {
                at += count;
                continue;
            }
            best_count = report->event_count;
            memcpy(best, report->events, best_count * sizeof(*best));
            memcpy(failure, report->failure, sizeof(failure));
        }
    }
    memcpy(report->events, best, best_count * sizeof(*best));
    report->event_count = best_count;
    memcpy(report->failure, failure, sizeof(failure));
    mem_free(best);
}
