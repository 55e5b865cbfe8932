/* The whole product as a user starts it: `bezel serve deploy/demo-model` with the real programs on a
 * free port, and its children by name.  Every call fails the running test on what it does not
 * expect; no call waits without a deadline. */
#ifndef TESTS_TESTLIB_SYSTEM_H
#define TESTS_TESTLIB_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/testlib/http_client.h"

struct system_process {
    char dir[64]; /* owned: programs, logs, run directory */
    char run_dir[80];
    char log_path[80]; /* standard error of all three */
    pid_t launcher;
    uint16_t port;
};

/* args: options of `bezel serve`, null-terminated.  Returns when it says that it is ready. */
void system_start(struct system_process *process, const char *const *args);

/* The same with another checkpoint. */
void system_start_model(struct system_process *process, const char *model_dir,
                        const char *const *args);

/* SIGTERM; the launcher must exit 0.  Removes dir. */
void system_stop(struct system_process *process);

/* SIGKILL to the launcher alone; system_forget afterwards. */
void system_kill_launcher(struct system_process *process);
void system_forget(struct system_process *process);

/* Process id of a child of the launcher, "bezel-worker" or "bezel-frontend"; 0 where there is none. */
pid_t system_child(const struct system_process *process, const char *name);

/* All of that name; at most `most` ids, returns how many there are. */
uint32_t system_children(const struct system_process *process, const char *name, pid_t *out_pids,
                         uint32_t most);

/* Starts `bezel reload`, and waits for it: what it wrote, without the end of the line, and its exit
 * code. */
struct system_reload {
    pid_t pid;
    int out_fd;
};
void system_reload_start(const struct system_process *process, struct system_reload *reload);
int system_reload_wait(struct system_reload *reload, char out_text[512]);

/* One that must work: afterwards the new frontend serves.  Its process id. */
pid_t system_reload_now(const struct system_process *process);

/* Replaces a program by another file, which the next start of it takes. */
void system_replace(const struct system_process *process, const char *name, const char *target);

/* Wait until a process is gone; false after wait_ms. */
bool system_wait_gone(pid_t pid, uint32_t wait_ms);

/* Status of GET path on a new connection, which must be accepted.  0: closed without an answer. */
int system_get(const struct system_process *process, const char *path);

/* Poll /ready until it answers status; milliseconds it took, fails the test after wait_ms. */
uint32_t system_await_ready(const struct system_process *process, int status, uint32_t wait_ms);

/* Waits until both pools are all free, seen by the worker. */
void system_expect_all_free(const struct system_process *process);

/* Greedy streaming completion of so many tokens that runs to its length. */
void system_open_stream(const struct system_process *process, struct http_client *client,
                        const char *prompt, uint32_t output_tokens);

/* Reads the answer, which must be 200, and closes: from "choices" on, without its id and time, to
 * "prompt_tokens_details", since how much of a prompt is reused depends on who came before. */
void system_take_choices(struct http_client *client, struct buf *out);

/* The text of a greedy completion of 24 tokens; free it. */
char *system_complete(const struct system_process *process, const char *prompt);

#endif
