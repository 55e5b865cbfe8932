#include "common/sha256.h"

#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

enum err_code sha256_digest(const void *bytes, size_t byte_count,
                            unsigned char out_digest[SHA256_BYTES], struct err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned digest_bytes = 0;
    int ok = EVP_Digest(bytes, byte_count, digest, &digest_bytes, EVP_sha256(), NULL);
    if (ok != 1 || digest_bytes != SHA256_BYTES) {
        return err_set(err, ERR_SYSTEM, "OpenSSL has no SHA-256");
    }
    memcpy(out_digest, digest, SHA256_BYTES);
    return ERR_OK;
}

bool sha256_is_equal(const unsigned char a[SHA256_BYTES], const unsigned char b[SHA256_BYTES])
{
    return CRYPTO_memcmp(a, b, SHA256_BYTES) == 0;
}

enum err_code sha256_hex(const void *bytes, size_t byte_count, char out_hex[SHA256_HEX_BYTES],
                         struct err *err)
{
    unsigned char digest[SHA256_BYTES] = {0};
    enum err_code code = sha256_digest(bytes, byte_count, digest, err);
    if (code != ERR_OK) {
        return code;
    }
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        (void)snprintf(out_hex + 2 * i, 3, "%02x", digest[i]); /* fits */
    }
    return ERR_OK;
}
