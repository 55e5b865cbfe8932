/* A real bezel-worker as a child process, in a run directory of its own. */
#ifndef TESTS_TESTLIB_WORKER_PROCESS_H
#define TESTS_TESTLIB_WORKER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define WORKER_PROCESS_MAX_ARGS 24

struct worker_process {
    pid_t pid;       /* 0: not running */
    int lifeline_fd; /* our end of the worker's lifeline; -1: none */
    char run_dir[64];
    char log_path[96]; /* standard error and output */
    int status;        /* of waitpid, once it has ended */
};

/* Makes the run directory and starts `bezel-worker --run-dir DIR args... deploy/demo-model`.
 * args: null-terminated.  Fails the test when it cannot be started; does not wait until it is
 * ready. */
void worker_process_start(struct worker_process *process, const char *const *args);

/* The same with another checkpoint. */
void worker_process_start_model(struct worker_process *process, const char *model_dir,
                                const char *const *args);

/* Waits for the end.  Exit code; 128 + signal; fails the test after deadline_ms. */
int worker_process_wait(struct worker_process *process, uint32_t deadline_ms);

/* SIGTERM, wait, and fail the test unless it exits 0 and leaves no socket or segment behind; then
 * removes the run directory. */
void worker_process_stop(struct worker_process *process);

/* Removes the run directory of a worker that has ended otherwise. */
void worker_process_forget(const struct worker_process *process);

/* SIGKILL if it runs still. */
void worker_process_kill(struct worker_process *process);

/* True when the log holds text. */
bool worker_process_logged(const struct worker_process *process, const char *text);

/* Lines of the log. */
uint32_t worker_process_log_lines(const struct worker_process *process);

/* The last line of the log, without its end, into text. */
void worker_process_last_line(const struct worker_process *process, char *text, size_t cap_bytes);

/* The value after "name=" in the last line that holds it, as a number of the base; fails the test
 * where there is none. */
uint64_t worker_process_logged_u64(const struct worker_process *process, const char *name,
                                   int base);

/* CPU time used so far. */
uint64_t worker_process_cpu_ns(const struct worker_process *process);

/* How a worker is started, beyond its arguments. */
struct worker_process_options {
    const char *const *args; /* null-terminated */
    const char *model_dir;   /* null: deploy/demo-model */
    const char *run_dir;     /* null: a fresh one */
    bool lifeline;           /* gets a pipe; close it with worker_process_drop_lifeline */
    uint64_t max_file_bytes; /* RLIMIT_FSIZE: larger segments cannot be made; 0: none */
};
void worker_process_start_with(struct worker_process *process,
                               const struct worker_process_options *options);
void worker_process_drop_lifeline(struct worker_process *process);

/* Another program of the build whose standard output is read line by line. */
struct child_process {
    pid_t pid; /* 0: not running */
    int out_fd;
    char line[256]; /* the last line read */
    size_t buffered_bytes;
    char buffer[256];
};
void child_process_start(struct child_process *child, const char *const *argv);
/* Reads lines until one begins with prefix (child->line); fails the test after deadline_ms or at
 * the end of the output. */
void child_process_expect(struct child_process *child, const char *prefix, uint32_t deadline_ms);
/* Exit code; 128 + signal; fails the test after deadline_ms. */
int child_process_wait(struct child_process *child, uint32_t deadline_ms);
void child_process_kill(struct child_process *child);

#endif
