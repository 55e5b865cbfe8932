/* Configuration of bezel-frontend, from the command line and --config. */
#ifndef FRONTEND_OPTIONS_H
#define FRONTEND_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "common/opt.h"

enum options_chat_format {
    OPTIONS_CHAT_AUTO,
    OPTIONS_CHAT_LARGE,
    OPTIONS_CHAT_SMALL,
    OPTIONS_CHAT_NONE,
};

enum options_log_level {
    OPTIONS_LOG_ERROR,
    OPTIONS_LOG_WARN,
    OPTIONS_LOG_INFO,
    OPTIONS_LOG_DEBUG,
};

struct options {
#define OPTION(kind, field, ...) OPT_FIELD_##kind(field)
#include "frontend/options.def"
#undef OPTION
    const char *model_dir; /* positional; borrowed from argv */
};

/* *out_help: --help was asked for, out_options is not complete.  store owns texts.
 * Errors: ERR_ARGUMENT, one line that names the option, the value and the limit. */
ERR_NODISCARD enum err_code options_parse(int argc, char **argv, struct options *out_options,
                                          struct opt_store *store, bool *out_help, struct err *err);

void options_help(struct buf *out);

#endif
