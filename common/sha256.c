#include "common/sha256.h"

#include <stdio.h>

#include <openssl/evp.h>

enum {
    DIGEST_BYTES = 32
};

enum err_code sha256_hex(const void *bytes, size_t byte_count, char out_hex[SHA256_HEX_BYTES],
                         struct err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned digest_bytes = 0;
    int ok = EVP_Digest(bytes, byte_count, digest, &digest_bytes, EVP_sha256(), NULL);
    if (ok != 1 || digest_bytes != DIGEST_BYTES) {
        return err_set(err, ERR_SYSTEM, "OpenSSL has no SHA-256");
    }
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        (void)snprintf(out_hex + 2 * i, 3, "%02x", digest[i]); /* fits */
    }
    return ERR_OK;
}
