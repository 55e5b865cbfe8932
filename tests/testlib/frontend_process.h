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

/* The build with the fake engine, whose worker has the demo model's tokenizer; waits until it is
 * ready.  Called "demo" and logs errors only, unless arguments say otherwise.
 * settings: further ones of fake_engine.h, "" or "&name=value...". */
void frontend_process_start_fake(struct frontend_process *process, const char *settings,
                                 const char *const *arguments);

/* tokenizer_hash of a worker that serves the demo model. */
uint64_t frontend_process_demo_hash(void);

/* Wait for the ready byte; fails the test after ten seconds. */
void frontend_process_await_ready(struct frontend_process *process);

/* Wait for the end; returns its exit status, or 128 + the signal.  Fails the test after
 * timeout_ms. */
int frontend_process_wait(struct frontend_process *process, uint32_t timeout_ms);

/* SIGTERM and frontend_process_wait. */
int frontend_process_stop(struct frontend_process *process);

#endif
