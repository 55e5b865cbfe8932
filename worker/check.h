/* `bezel check`: can this checkpoint be served, what does it take at which context, and if not, why.
 *
 * Reads config files and headers of weights, never a weight; needs no GPU, also to tell what one
 * would have to have.  Tokenizer and chat format are the frontend's: where the hidden option
 * --frontend names its program, that is asked.  Main thread. */
#ifndef WORKER_CHECK_H
#define WORKER_CHECK_H

#include <stdbool.h>

#include "common/buf.h"
#include "common/err.h"

/* argv[0] is the command, check.def the options.  The report goes to out, also when the answer is no;
 * with --help its text, and the answer is yes.  Errors: ERR_ARGUMENT. */
ERR_NODISCARD enum err_code check_run(int argc, char **argv, struct buf *out,
                                      bool *out_can_be_served, struct err *err);

#endif
