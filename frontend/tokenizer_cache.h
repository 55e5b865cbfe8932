/* The compiled cache of one tokenizer.json: an image in a file that only this user can write. */
#ifndef FRONTEND_TOKENIZER_CACHE_H
#define FRONTEND_TOKENIZER_CACHE_H

#include <stddef.h>

#include "common/err.h"
#include "frontend/tokenizer.h"

struct tok_cache {
    int dir_fd; /* owned; -1: closed */
    char name[32];
};
/* Makes dir where it is missing.  Errors: ERR_CONFIG (others could write it), ERR_SYSTEM. */
ERR_NODISCARD enum err_code tok_cache_open(struct tok_cache *cache, const char *dir,
                                           const char *source_path, struct err *err);
void tok_cache_close(struct tok_cache *cache);
/* Errors: ERR_NOT_FOUND, ERR_CONFIG (as above), ERR_FORMAT (damaged), ERR_SYSTEM. */
ERR_NODISCARD enum err_code tok_cache_read(const struct tok_cache *cache,
                                           struct tokenizer **out_tokenizer, struct err *err);
/* ERR_OK too where another process is just writing it. */
ERR_NODISCARD enum err_code tok_cache_write(const struct tok_cache *cache,
                                            const struct tokenizer *tokenizer, struct err *err);
/* byte_count bytes of fd.  Errors: ERR_FORMAT where it ends before, ERR_SYSTEM. */
ERR_NODISCARD enum err_code tok_read_all(int fd, void *bytes, size_t byte_count, struct err *err);

#endif
