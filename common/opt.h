/* Option tables: a file and a command line into a struct, and --help.
 *
 * A program's options.def has rows
 *   OPTION(kind, field, "name", default, min, max, "UNIT", "help")
 * with kind U32 | U64 | F32 | BOOL | TEXT | ENUM; for TEXT min and max bound its length, for ENUM
 * the default is an enumerator and `min` names the table of texts.  options.h expands it into
 * `struct options` and a `const struct opt_row[]`.  --config FILE holds name = value lines; the
 * command line wins.  No environment variables. */
#ifndef COMMON_OPT_H
#define COMMON_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum opt_kind {
    OPT_KIND_U32,
    OPT_KIND_U64,
    OPT_KIND_F32,
    OPT_KIND_BOOL, /* --name or --no-name */
    OPT_KIND_TEXT, /* const char *, owned by struct opt_store */
    OPT_KIND_ENUM, /* uint32_t, the index in texts */
};

struct opt_row {
    enum opt_kind kind;
    const char *name; /* without dashes */
    size_t offset_bytes;
    double default_value;     /* U32, U64, F32, BOOL, ENUM */
    const char *default_text; /* TEXT; may be null */
    double min_value;
    double max_value;
    const char *const *texts; /* ENUM: null-terminated */
    const char *unit;         /* shown in help: "PORT", "MS"; "" for BOOL */
    const char *help;         /* null: hidden from --help */
};

/* Owns texts parsed from files and arguments. */
struct opt_store {
    char **texts; /* owned */
    uint32_t text_count;
};

void opt_store_fini(struct opt_store *store);

/* Set every field to its default. */
void opt_defaults(const struct opt_row *rows, uint32_t row_count, void *options);

/* Parse argv[1..].  Options may be --name value or --name=value.  Positional arguments are written
 * to positional[0..positional_max) in order.  Errors: ERR_ARGUMENT, one line that names the option,
 * the value and the limit. */
struct opt_arguments {
    int argc;
    char **argv;
    const char **positional;
    uint32_t positional_max;
    uint32_t *out_positional_count;
    bool *out_help; /* set when --help or -h was seen */
};
ERR_NODISCARD enum err_code opt_parse(const struct opt_row *rows, uint32_t row_count, void *options,
                                      struct opt_store *store,
                                      const struct opt_arguments *arguments, struct err *err);

/* name = value lines, # comments.  Errors name file and line. */
ERR_NODISCARD enum err_code opt_parse_file(const struct opt_row *rows, uint32_t row_count,
                                           void *options, struct opt_store *store, const char *path,
                                           struct err *err);

/* The options part of --help, one line per option, at most 100 columns. */
void opt_help(const struct opt_row *rows, uint32_t row_count, struct buf *out);

#endif
