/* `bezel serve`: keeps a worker and a frontend running behind one listening socket. */
#ifndef DEPLOY_SERVE_H
#define DEPLOY_SERVE_H

#include "common/err.h"
#include "deploy/options.h"

enum {
    SERVE_EXIT_CANNOT_EVER_WORK = 2 /* both programs use it: starting again is useless */
};

/* Runs until a signal stops it (SIGHUP reloads the frontend instead) or a program says at the first
 * start that it can never work; the program's own line says why.  *out_exit_code: 0 after a drain,
 * 130 or 143 after a second signal, else the program's.  Errors: what kept it from starting. */
ERR_NODISCARD enum err_code serve_run(const struct options *options, int *out_exit_code,
                                      struct err *err);

/* Directory of the running program, where the other two are looked for.  Errors: ERR_SYSTEM. */
ERR_NODISCARD enum err_code serve_program_dir(char *out, size_t out_bytes, struct err *err);

/* Path of a program of the same build.  Errors: ERR_NOT_FOUND. */
ERR_NODISCARD enum err_code serve_find_program(const char *dir, const char *folder,
                                               const char *name, char *out, size_t out_bytes,
                                               struct err *err);

#endif
