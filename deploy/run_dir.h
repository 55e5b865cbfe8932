/* The run directory: sockets, lock and caches of one pair, open to its user alone. */
#ifndef DEPLOY_RUN_DIR_H
#define DEPLOY_RUN_DIR_H

#include <stdbool.h>

#include "common/err.h"

struct run_dir {
    char path[80];
    bool is_temporary; /* ours to remove */
};

/* path null: a new one in /tmp.  Otherwise made with mode 0700, or checked: a directory of this user
 * that no other may enter.  Errors: ERR_SYSTEM, ERR_ARGUMENT. */
ERR_NODISCARD enum err_code run_dir_open(struct run_dir *dir, const char *path, struct err *err);

/* Removes a temporary directory with the files in it. */
void run_dir_close(struct run_dir *dir);

#endif
