/* Watches for the moment the worker answers, and that it serves the same checkpoint.
 *
 * Loop thread only. */
#ifndef FRONTEND_READY_H
#define FRONTEND_READY_H

#include "common/err.h"

struct app;
struct ready;

/* ready_fd: a byte is written to it and it is closed when the worker first answers; -1 none.
 * Every attached worker's tokenizer hash is compared with the frontend's; where they differ the
 * loop is stopped and ready_check names both. */
struct ready *ready_create(struct app *app, int ready_fd);
void ready_destroy(struct ready *ready);

/* ERR_CONFIG once a worker of another checkpoint was met. */
ERR_NODISCARD enum err_code ready_check(const struct ready *ready, struct err *err);

#endif
