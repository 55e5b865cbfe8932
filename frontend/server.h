/* The HTTP server: listening socket, protocol limits, routes, drain.  Loop thread only. */
#ifndef FRONTEND_SERVER_H
#define FRONTEND_SERVER_H

#include <stdint.h>

#include "common/err.h"

struct app;
struct server;

/* A listening socket on options' host and port.  *out_port is the one in use.
 * Errors: ERR_ARGUMENT (host unknown), ERR_SYSTEM (names address and reason). */
ERR_NODISCARD enum err_code server_listen(const char *host, uint32_t port, int *out_fd,
                                          uint32_t *out_port, struct err *err);

/* Will serve app on listen_fd (taken), a listening socket.  Errors: ERR_ARGUMENT (it is none),
 * ERR_SYSTEM, those of http_tls_create. */
ERR_NODISCARD enum err_code server_create(struct app *app, int listen_fd,
                                          struct server **out_server, struct err *err);
/* Accept from now on; until then connections wait in the backlog.  Does nothing the second time. */
void server_open(struct server *server);

/* After server_end, and once work threads and engine have ended. */
void server_destroy(struct server *server);

/* Stop accepting; stop the loop once the last request is answered, at the latest after
 * --drain-timeout-s.  Does nothing the second time. */
void server_drain(struct server *server);

/* As server_drain where another process accepts on the same socket: kept connections stay open until
 * each has answered one more request, since closing one may cross with the next request on it.
 * server_drain afterwards waits for running requests only. */
void server_hand_over(struct server *server);

/* As server_drain, but end running requests at once. */
void server_hurry(struct server *server);

/* End every exchange and close all connections.  Null is fine. */
void server_end(struct server *server);

#endif
