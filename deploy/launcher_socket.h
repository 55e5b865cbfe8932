/* RUN_DIR/launcher.sock: `bezel reload` asks the launcher there.
 *
 * A request and its answer are one packet each, text without an end: "reload" is answered by "ok "
 * or "error ", and a line for people.  One connection, one request.  Whoever may enter the run
 * directory (its owner) may ask. */
#ifndef DEPLOY_LAUNCHER_SOCKET_H
#define DEPLOY_LAUNCHER_SOCKET_H

#include <stddef.h>

#include "common/err.h"

enum {
    LAUNCHER_TEXT_BYTES = 512 /* of a packet */
};

/* Listens; a socket that a dead launcher left is replaced, so hold the directory's lock.  *out_fd
 * does not block.  Errors: ERR_ARGUMENT (the path is too long for a socket), ERR_SYSTEM. */
ERR_NODISCARD enum err_code launcher_socket_open(const char *run_dir, int *out_fd, struct err *err);

/* Closes and removes it; *fd is -1 then.  -1 is fine. */
void launcher_socket_close(const char *run_dir, int *fd);

/* Asks and waits for the answer, however long the launcher takes.  out_text: the line for people.
 * Errors: ERR_ARGUMENT (as above), ERR_NOT_FOUND (no launcher has that run directory), ERR_BUSY (it
 * said error), ERR_CLOSED (it ended before it answered), ERR_SYSTEM. */
ERR_NODISCARD enum err_code launcher_socket_ask(const char *run_dir, const char *request,
                                                char out_text[LAUNCHER_TEXT_BYTES],
                                                struct err *err);

#endif
