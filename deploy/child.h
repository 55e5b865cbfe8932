/* One program that the launcher keeps running: start, signal, reap, when to start again. */
#ifndef DEPLOY_CHILD_H
#define DEPLOY_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

/* To a frontend that was started beside another: it is the only one now.  A program with a listener
 * is started with this blocked, so that it can be sent at once. */
#define CHILD_ALONE_SIGNAL SIGUSR2

enum {
    CHILD_FIRST_FD = 3,
    CHILD_MAX_FDS = 3
};

struct child {
    const char *name;       /* borrowed, for messages */
    const char *path;       /* borrowed: the program */
    char *const *argv;      /* borrowed, null-terminated */
    bool has_listener;      /* descriptor 3 is announced by LISTEN_FDS */
    uint64_t good_pause_ns; /* before a restart after a good life */
    uint64_t min_pause_ns;  /* after the first bad one, then doubled */
    uint64_t max_pause_ns;

    pid_t pid; /* 0 while none runs */
    int pidfd; /* readable when it has ended; -1 while none runs */
    uint64_t started_ns;
    uint64_t pause_ns;      /* after the last bad life; 0 after a good one */
    uint64_t restart_at_ns; /* while none runs */
};

/* Where it ended. */
struct child_end {
    bool by_signal;
    int code; /* exit status or signal */
};

/* Start it with the fds (not closed here) as descriptors 3, 4, ... and the null device as input, in
 * a process group of its own: a Ctrl-C at the terminal reaches the launcher alone.
 * Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code child_start(struct child *child, const int *fds, uint32_t fd_count,
                                        uint64_t now_ns, struct err *err);

/* Does nothing while none runs. */
void child_signal(const struct child *child, int signal_number);

/* Waits for the end (pidfd is readable, or a kill was sent) and sets restart_at_ns: good_pause_ns
 * after a good life, else a pause that doubles from min to max. */
struct child_end child_reap(struct child *child, bool was_good, uint64_t now_ns);

/* "exit status 2", "signal 9 (Killed)". */
void child_end_text(struct child_end end, char out[64]);

#endif
