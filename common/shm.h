/* Shared-memory segments.  Space is reserved before use (posix_fallocate), so that a full /dev/shm
 * is an error here and never a SIGBUS later. */
#ifndef COMMON_SHM_H
#define COMMON_SHM_H

#include <stddef.h>

#include "common/err.h"

struct shm_segment {
    void *at; /* owned mapping; null when closed */
    size_t byte_count;
    char name[64]; /* "" once unlinked */
};

/* Create exclusively, mode 0600, zeroed.  Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code shm_create(struct shm_segment *segment, const char *name,
                                       size_t byte_count, struct err *err);

/* Map an existing one.  Errors: ERR_SYSTEM, ERR_PROTOCOL (size differs from byte_count). */
ERR_NODISCARD enum err_code shm_open_existing(struct shm_segment *segment, const char *name,
                                              size_t byte_count, struct err *err);

/* Remove the name; mappings live on.  Does nothing the second time. */
void shm_unlink_name(struct shm_segment *segment);

/* Unmap, and unlink where the name is still ours. */
void shm_close(struct shm_segment *segment);

#endif
