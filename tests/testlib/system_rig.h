/* The whole system: the real launcher with both real programs on deploy/demo-model, asked over HTTP.
 *
 * Failures fail the test; the launcher is killed when the test program ends, and its children leave
 * with it. */
#ifndef TESTS_TESTLIB_SYSTEM_RIG_H
#define TESTS_TESTLIB_SYSTEM_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"

#define SYSTEM_RIG_QUESTION "What is the capital of France?"
#define SYSTEM_RIG_ANSWER   "The capital of France is Paris."

struct system_rig {
    pid_t launcher;
    uint16_t port;
    char log_path[64];
};

/* bezel serve deploy/demo-model --port 0 more...; more is null-terminated or null.  Returns when
 * the address was printed. */
void system_rig_start(struct system_rig *rig, const char *const *more);

/* SIGTERM: must end with status 0 and leave no child. */
void system_rig_stop(struct system_rig *rig);

/* The running "worker" or "frontend"; waits for one that is not `other` (0: any). */
pid_t system_rig_child(const struct system_rig *rig, const char *name, pid_t other);

/* Status of GET /ready; 0 where the server closed without an answer. */
int system_rig_ready_status(const struct system_rig *rig);
/* Waits until GET /ready answers wanted (200 or 503); returns the ns that took. */
uint64_t system_rig_await_ready(const struct system_rig *rig, int wanted);

/* Waits until nothing runs and both pools report every page free. */
void system_rig_await_all_free(const struct system_rig *rig);

/* One chat completion at temperature 0: status, and the text (or the error's body) in out. */
int system_rig_ask(const struct system_rig *rig, const char *question, struct buf *out);
/* Asks the capital; fails the test on another answer. */
void system_rig_check_answer(const struct system_rig *rig);

/* The body of a chat request; more is put behind the messages, e.g. ",\"stream\":true". */
void system_rig_body(struct buf *out, const char *question, const char *more);

/* Waits until the log of all three programs holds text. */
void system_rig_await_log(const struct system_rig *rig, const char *text);

bool system_rig_is_gone(pid_t pid);
void system_rig_await_gone(pid_t pid);

#endif
