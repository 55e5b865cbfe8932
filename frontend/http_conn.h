/* Open connections: who has left, who dawdles, and closing without cutting off an answer.
 *
 * h2o does not look at an HTTP/1 socket while a response is pending, so each socket is watched here,
 * too.  A client that shuts down its sending side counts as gone, as one that closes or resets does:
 * the three cannot be told apart in time, and answering a reader that may not exist would cost the
 * others.  Loop thread only. */
#ifndef FRONTEND_HTTP_CONN_H
#define FRONTEND_HTTP_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct app;
struct http_conn;
struct http_conns;
struct st_h2o_req_t;
struct st_h2o_socket_t;

/* Embedded in whatever wants to know that the client of a connection has gone. */
struct http_conn_guest {
    struct http_conn_guest *next;
    struct http_conn_guest **slot; /* null while not added */
    void (*on_gone)(struct http_conn_guest *guest);
};

/* Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code http_conns_create(struct app *app, struct http_conns **out_conns,
                                              struct err *err);
/* All sockets are closed. */
void http_conns_destroy(struct http_conns *conns);

/* Follow a freshly accepted socket until h2o closes it. */
void http_conns_add(struct http_conns *conns, struct st_h2o_socket_t *socket);
uint32_t http_conns_count(const struct http_conns *conns);

/* Call on_room whenever a connection has closed. */
void http_conns_set_room(struct http_conns *conns, void (*on_room)(void *owner), void *owner);

/* Make every connection fail, so that h2o closes them in the next turns of the loop. */
void http_conns_shut_all(struct http_conns *conns);

/* Once a second: close connections whose request header takes too long. */
void http_conns_sweep(struct http_conns *conns, uint64_t now_ns);

/* The connection of a request. */
struct http_conn *http_conn_of(struct st_h2o_req_t *request);
bool http_conn_is_gone(const struct http_conn *conn);
/* Asks the system: true where nothing can be sent any more. */
bool http_conn_is_dead(const struct http_conn *conn);

/* on_gone is called at most once, and not from within this call. */
void http_conn_add_guest(struct http_conn *conn, struct http_conn_guest *guest);
void http_conn_remove_guest(struct http_conn_guest *guest);

/* Make reads and writes on the socket fail, so that h2o drops it. */
void http_conn_shut(struct http_conn *conn);

/* An HTTP/2 client took a request back.  A connection with more than --max-resets-per-s is shut. */
void http_conn_count_reset(struct http_conn *conn);

/* The answer closes the connection while the client is still sending: read on for a while after h2o
 * has closed its side, so that a reset does not overtake the answer. */
void http_conn_linger(struct http_conn *conn);

#endif
