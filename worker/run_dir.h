/* The directory where one worker and its frontends meet: control socket, plan sockets, a lock file,
 * and one empty file per segment name that a crash could leave behind.
 *
 * Main thread at start and end; run_dir_note_segment and run_dir_forget_segment: control thread. */
#ifndef WORKER_RUN_DIR_H
#define WORKER_RUN_DIR_H

#include <stdint.h>

#include "common/err.h"
#include "common/run_path.h"

#define RUN_DIR_PATH_BYTES RUN_PATH_BYTES

struct run_dir {
    char path[RUN_DIR_PATH_BYTES];
    int dir_fd;  /* owned; -1 when closed */
    int lock_fd; /* owned; holds the lock as long as it is open */
};

/* Creates the directory (0700) where it does not exist and takes its lock; removes sockets and
 * segments that a dead worker left.  Errors: ERR_CONFIG (path too long, not a directory, not ours,
 * open to others), ERR_BUSY (a living worker has it; names its pid), ERR_SYSTEM. */
ERR_NODISCARD enum err_code run_dir_open(struct run_dir *dir, const char *path, struct err *err);

/* Remember a segment by its shm name ("/bezel-..."), and forget it once it is unlinked.
 * Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code run_dir_note_segment(const struct run_dir *dir, const char *name,
                                                 struct err *err);
void run_dir_forget_segment(const struct run_dir *dir, const char *name);

/* Removes the sockets and gives the lock back. */
void run_dir_close(struct run_dir *dir);

#endif
