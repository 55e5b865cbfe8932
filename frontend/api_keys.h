/* Who may use the API: keys from a file, kept as digests.
 *
 * One key a line, printable characters without spaces; " admin" behind it lets its owner use the
 * admin routes, too.  Empty lines and those that begin with '#' say nothing.  The file is read once:
 * a frontend that is started anew reads it anew.  Read-only once loaded: any thread. */
#ifndef FRONTEND_API_KEYS_H
#define FRONTEND_API_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct api_keys;

enum api_key_scope {
    API_KEY_UNKNOWN,
    API_KEY_USER,
    API_KEY_ADMIN,
};

/* Errors name file, line and limit, never a key: ERR_NOT_FOUND, ERR_CONFIG, ERR_LIMIT, ERR_SYSTEM. */
ERR_NODISCARD enum err_code api_keys_load(const char *path, struct api_keys **out_keys,
                                          struct err *err);
void api_keys_destroy(struct api_keys *keys);

uint32_t api_keys_count(const struct api_keys *keys);

/* Takes the same time for every key of one length, known or not. */
enum api_key_scope api_keys_find(const struct api_keys *keys, const char *key, size_t key_bytes);

#endif
