/* The server's side of TLS: certificate, versions, HTTP/2 by ALPN.  Loop thread only once made. */
#ifndef FRONTEND_HTTP_TLS_H
#define FRONTEND_HTTP_TLS_H

#include "common/err.h"

struct ssl_ctx_st;

/* TLS 1.2 and later with the chain of cert_path (PEM, the server's own first) and the key of
 * key_path (PEM, without a password).  Both are read once: a frontend started anew reads them anew.
 * Errors name the file: ERR_NOT_FOUND, ERR_CONFIG, ERR_SYSTEM. */
ERR_NODISCARD enum err_code http_tls_create(const char *cert_path, const char *key_path,
                                            struct ssl_ctx_st **out_tls, struct err *err);
/* Null is fine. */
void http_tls_destroy(struct ssl_ctx_st *tls);

#endif
