/* Options of `bezel serve` and which of them are passed to which program. */
#ifndef DEPLOY_OPTIONS_H
#define DEPLOY_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/opt.h"

/* Who takes an option. */
enum options_target {
    OPTIONS_SELF = 0,
    OPTIONS_WORKER = 1,
    OPTIONS_FRONTEND = 2,
    OPTIONS_BOTH = 3,
};

struct options {
#define OPTION(to, kind, field, ...) OPT_FIELD_##kind(field)
#include "deploy/options.def"
#undef OPTION
    const char *model_dir; /* positional */
};

/* Arguments of a program that is to be started: null-terminated, owned. */
struct options_argv {
    char **argv;
    uint32_t count;
};

/* argv[1..] after the subcommand.  *out_help is set where help was asked for; model_dir may then be
 * null.  Errors: ERR_ARGUMENT in one line. */
ERR_NODISCARD enum err_code options_parse(struct options *options, struct opt_store *store,
                                          int argc, char **argv, bool *out_help, struct err *err);

/* "  --name UNIT  help" lines of serve. */
void options_help(struct buf *out);

void options_argv_add(struct options_argv *to, const char *text);
/* --name VALUE of each option for target that was given (numbers: always). */
void options_argv_add_passed(struct options_argv *to, const struct options *options,
                             enum options_target target);
void options_argv_fini(struct options_argv *argv);

#endif
