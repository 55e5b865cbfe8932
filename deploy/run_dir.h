/* The run directory: sockets, lock and caches of one pair, open to its user alone. */
#ifndef DEPLOY_RUN_DIR_H
#define DEPLOY_RUN_DIR_H

#include <stdbool.h>

#include "common/err.h"

struct run_dir {
    char path[80];
    bool is_temporary; /* ours to remove */
    int lock_fd;       /* on the directory while it is open; -1: none */
};

/* path null: the place where all programs meet by default, or a new directory beside it where
 * another pair is there already; what killed launchers left beside it is removed.  Otherwise made
 * with mode 0700, or checked: a directory of this user that no other may enter, and that no other
 * launcher uses: two pairs there would take each other's worker.
 * Errors: ERR_SYSTEM, ERR_ARGUMENT, ERR_BUSY (in use). */
ERR_NODISCARD enum err_code run_dir_open(struct run_dir *dir, const char *path, struct err *err);

/* Gives the directory free; removes a temporary one with the files in it. */
void run_dir_close(struct run_dir *dir);

#endif
