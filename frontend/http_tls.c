#include "frontend/http_tls.h"

#include <stdbool.h>
#include <unistd.h>

#include <h2o.h>
#include <h2o/http2.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/file.h"

/* OpenSSL would ask the terminal. */
/* NOLINTNEXTLINE(readability-non-const-parameter): the signature is OpenSSL's */
static int refuse_password(char *out, int out_bytes, int is_write, void *data)
{
    (void)out; /* stays empty */
    (void)out_bytes;
    (void)is_write;
    *(bool *)data = true;
    return -1;
}

/* The first of OpenSSL's errors is the cause; later ones tell where it passed. */
static const char *take_reason(void)
{
    const char *text = ERR_reason_error_string(ERR_get_error());
    ERR_clear_error();
    return text ? text : "unknown reason";
}

/* Says better than OpenSSL what is wrong with a path. */
static enum err_code check_file(const char *path, struct err *err)
{
    int fd = -1;
    uint64_t byte_count = 0;
    enum err_code code = file_open(path, &fd, &byte_count, err);
    if (!code) {
        (void)close(fd); /* only looked at */
    }
    return code;
}

static enum err_code load_pair(SSL_CTX *tls, const char *cert_path, const char *key_path,
                               struct err *err)
{
    bool has_password = false;
    if (SSL_CTX_use_certificate_chain_file(tls, cert_path) != 1) {
        return err_set(err, ERR_CONFIG, "certificate '%s': %s", cert_path, take_reason());
    }
    SSL_CTX_set_default_passwd_cb(tls, refuse_password);
    SSL_CTX_set_default_passwd_cb_userdata(tls, &has_password);
    int is_read = SSL_CTX_use_PrivateKey_file(tls, key_path, SSL_FILETYPE_PEM);
    SSL_CTX_set_default_passwd_cb_userdata(tls, NULL);
    if (has_password) {
        ERR_clear_error();
        return err_set(err, ERR_CONFIG, "private key '%s' is locked by a password", key_path);
    }
    if (is_read != 1) {
        return err_set(err, ERR_CONFIG, "private key '%s': %s", key_path, take_reason());
    }
    if (SSL_CTX_check_private_key(tls) != 1) {
        ERR_clear_error();
        return err_set(err, ERR_CONFIG, "private key '%s' is not that of certificate '%s'",
                       key_path, cert_path);
    }
    return ERR_OK;
}

enum err_code http_tls_create(const char *cert_path, const char *key_path,
                              struct ssl_ctx_st **out_tls, struct err *err)
{
    enum err_code code = check_file(cert_path, err);
    if (!code) {
        code = check_file(key_path, err);
    }
    if (code) {
        return code;
    }
    ERR_clear_error();
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    if (!tls) {
        return err_set(err, ERR_SYSTEM, "making a TLS context: %s", take_reason());
    }
    if (SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) != 1) {
        code = err_set(err, ERR_SYSTEM, "OpenSSL has no TLS 1.2: %s", take_reason());
        goto out;
    }
    (void)SSL_CTX_set_options(tls, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE); /* the options now set */
    (void)SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);               /* the modes now set */
    code = load_pair(tls, cert_path, key_path, err);
    if (!code) {
        h2o_ssl_register_alpn_protocols(tls, h2o_http2_alpn_protocols);
        *out_tls = tls;
        tls = NULL;
    }
out:
    SSL_CTX_free(tls);
    return code;
}

void http_tls_destroy(struct ssl_ctx_st *tls)
{
    SSL_CTX_free(tls);
}
