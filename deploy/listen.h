/* The listening socket, made once by the launcher so that a restart refuses no connection. */
#ifndef DEPLOY_LISTEN_H
#define DEPLOY_LISTEN_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Bind and listen; the first address of host that works.  Errors: ERR_SYSTEM, ERR_ARGUMENT (no such
 * host). */
ERR_NODISCARD enum err_code listen_open(const char *host, uint32_t port, int *out_fd,
                                        struct err *err);

/* The socket that systemd passed (sd_listen_fds protocol), marked close-on-exec; *out_fd is -1 where
 * it passed none.  Errors: ERR_ARGUMENT (more than one, or not a listening socket). */
ERR_NODISCARD enum err_code listen_inherited(int *out_fd, struct err *err);

/* "127.0.0.1:8000", "[::1]:8000" or the path of a unix socket. */
void listen_address_text(int fd, char *out, size_t out_bytes);

#endif
