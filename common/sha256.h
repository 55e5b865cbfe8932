/* SHA-256 of bytes.  Only sha256.c includes OpenSSL's digests.  Pure: any thread. */
#ifndef COMMON_SHA256_H
#define COMMON_SHA256_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

#define SHA256_BYTES     32
#define SHA256_HEX_BYTES 65 /* 64 digits, lower case, and the terminator */

/* Errors: ERR_SYSTEM (OpenSSL runs with a provider that lacks it). */
ERR_NODISCARD enum err_code sha256_digest(const void *bytes, size_t byte_count,
                                          unsigned char out_digest[SHA256_BYTES], struct err *err);

/* Takes the same time wherever they differ. */
bool sha256_is_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES]);

/* The digest as the text that sha256sum prints.  Errors: as sha256_digest. */
ERR_NODISCARD enum err_code sha256_hex(const void *bytes, size_t byte_count,
                                       char out_hex[SHA256_HEX_BYTES], struct err *err);

#endif
