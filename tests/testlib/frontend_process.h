/* bezel-frontend (or its build with the fake engine) as a child process on an inherited socket. */
#ifndef TESTS_TESTLIB_FRONTEND_PROCESS_H
#define TESTS_TESTLIB_FRONTEND_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct frontend_process {
    pid_t pid;
    uint16_t port;
    int ready_fd;    /* read end; -1 once read */
    int lifeline_fd; /* write end: closing it ends the process */
};

/* arguments: null-terminated, after the program's name and MODEL_DIR.  Fails the test on error. */
void frontend_process_start(struct frontend_process *process, const char *program,
                            const char *model_dir, const char *const *arguments);

/* Wait for the ready byte; fails the test after ten seconds. */
void frontend_process_await_ready(struct frontend_process *process);

/* Wait for the end; returns its exit status, or 128 + the signal.  Fails the test after
 * timeout_ms. */
int frontend_process_wait(struct frontend_process *process, uint32_t timeout_ms);

/* SIGTERM and frontend_process_wait. */
int frontend_process_stop(struct frontend_process *process);

#endif
