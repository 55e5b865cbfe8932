/* Opening files that others wrote. */
#ifndef COMMON_FILE_H
#define COMMON_FILE_H

#include <stdint.h>

#include "common/err.h"

/* Open a regular file to read, close-on-exec.  Never blocks: a FIFO is refused, not waited for.
 * Errors: ERR_NOT_FOUND; ERR_CONFIG (no regular file, or not this user's to read); ERR_SYSTEM. */
ERR_NODISCARD enum err_code file_open(const char *path, int *out_fd, uint64_t *out_bytes,
                                      struct err *err);

/* What an errno of an open says: ERR_CONFIG where the path is at fault and stays so,
 * ERR_NOT_FOUND where nothing is there, ERR_SYSTEM where the machine may do better later. */
enum err_code file_open_code(int errno_value);

#endif
