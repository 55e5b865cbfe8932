/* RUN_DIR/launcher.sock: `bezel reload` and the frontend's /admin/reload ask the launcher there.
 *
 * A request and its answer are one packet each, text without an end: "reload" is answered by "ok "
 * or "error ", and a line for people.  One connection, one request.  Whoever may enter the run
 * directory (its owner) may ask. */
#ifndef COMMON_LAUNCHER_SOCKET_H
#define COMMON_LAUNCHER_SOCKET_H

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

/* Asks; *out_fd is readable once the launcher has answered, however long it takes, or has ended.
 * Errors: ERR_ARGUMENT (as above), ERR_NOT_FOUND (no launcher has that run directory), ERR_CLOSED (it
 * ended meanwhile), ERR_SYSTEM. */
ERR_NODISCARD enum err_code launcher_socket_begin(const char *run_dir, const char *request,
                                                  int *out_fd, struct err *err);

/* Takes the answer and closes fd.  out_text: the line for people.  Errors: ERR_BUSY (the launcher
 * said error), ERR_CLOSED (it ended before it answered). */
ERR_NODISCARD enum err_code launcher_socket_finish(int fd, char out_text[LAUNCHER_TEXT_BYTES],
                                                   struct err *err);

/* Both, waiting. */
ERR_NODISCARD enum err_code launcher_socket_ask(const char *run_dir, const char *request,
                                                char out_text[LAUNCHER_TEXT_BYTES],
                                                struct err *err);

#endif
