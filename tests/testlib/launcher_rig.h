/* The real launcher with stand-ins for both programs (stand_in.c): scripts in, events out.  Every wait
 * has a deadline, after which the test fails. */
#ifndef TESTS_TESTLIB_LAUNCHER_RIG_H
#define TESTS_TESTLIB_LAUNCHER_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"

struct launcher_rig {
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

void launcher_rig_init(struct launcher_rig *rig, const char *worker_script,
                       const char *frontend_script);
/* The launcher has ended. */
void launcher_rig_fini(struct launcher_rig *rig);

/* Replaces a file of dir whole: a stand-in that still reads the old one reads that to its end. */
void launcher_rig_write(const struct launcher_rig *rig, const char *name, const char *text);

/* `bezel serve` with more options, separated by single spaces; listener -1: none is inherited. */
void launcher_rig_start(struct launcher_rig *rig, int listener, const char *more);

/* Starts both in run_dir, waits for the ready line, returns the port. */
uint16_t launcher_rig_start_ready(struct launcher_rig *rig, const char *more, pid_t *out_worker,
                                  pid_t *out_frontend);

/* Waits for the launcher's end and reads what is left; exit code, or minus the signal. */
int launcher_rig_wait(struct launcher_rig *rig);

/* Waits until text appears in the stream; removes everything up to the end of its line and returns
 * the number after "pid=" in that line, or 0. */
pid_t launcher_expect_in(int fd, struct buf *stream, const char *text);
pid_t launcher_expect_event(struct launcher_rig *rig, const char *text);

/* False when the other end is closed. */
bool launcher_read_more(int fd, struct buf *into);

/* A connection to a port of this machine; -1: refused. */
int launcher_connect(uint16_t port);
/* What a stand-in answers on one, its process id; closes it. */
pid_t launcher_read_answer(int fd);

bool launcher_is_gone(pid_t pid);

#endif
