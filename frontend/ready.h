/* Watches for the moment the worker answers, and that it serves the same checkpoint; lets the server
 * accept then.
 *
 * Loop thread only. */
#ifndef FRONTEND_READY_H
#define FRONTEND_READY_H

#include "common/err.h"

struct app;
struct ready;
struct server;

/* ready_fd: a byte is written to it and it is closed when the worker first answers; -1 none.
 *
 * The server begins to accept when ready.  It does so before, to answer 503, where a worker is there
 * and loads, cannot be used, or is not there half a second after the start; but a --successor waits,
 * and stops the loop when it meets a worker that it cannot use, until it stands alone.
 *
 * Every attached worker's tokenizer hash is compared with the frontend's; where they differ the
 * loop is stopped and ready_check names both. */
struct ready *ready_create(struct app *app, struct server *server, int ready_fd);
void ready_destroy(struct ready *ready);

/* The frontend that a --successor was started beside has ended: nobody else accepts. */
void ready_stand_alone(struct ready *ready);

/* ERR_CONFIG once a worker of another checkpoint was met; ERR_PROTOCOL where a --successor met one that
 * refused it. */
ERR_NODISCARD enum err_code ready_check(const struct ready *ready, struct err *err);

#endif
