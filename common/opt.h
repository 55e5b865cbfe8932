/* Option tables: a file and a command line into a struct, and --help.
 *
 * A program's options.def has rows
 *   OPTION(kind, field, "name", default, min, max, "UNIT", "help")
 * with kind U32 | U64 | F32 | BOOL | TEXT | ENUM; for TEXT min and max bound its length, for ENUM
 * the default is an enumerator and `min` names the table of texts.  options.h expands it into
 * `struct options` by OPT_FIELD_<kind> and options.c into a `const struct opt_row[]` by
 * OPT_ROW_<kind>.  --config FILE holds name = value lines; the command line wins.  No environment
 * variables. */
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

/* Expansions of a row:
 *   struct options {
 *   #define OPTION(kind, field, ...) OPT_FIELD_##kind(field)
 *   static const struct opt_row rows[] = {
 *   #define OPTION(kind, field, ...) OPT_ROW_##kind(struct options, field, __VA_ARGS__) */
#define OPT_FIELD_U32(field)  uint32_t field;
#define OPT_FIELD_U64(field)  uint64_t field;
#define OPT_FIELD_F32(field)  float field;
#define OPT_FIELD_BOOL(field) bool field;
#define OPT_FIELD_TEXT(field) const char *field;
#define OPT_FIELD_ENUM(field) uint32_t field;

#define OPT_ROW_NUMBER(type, field, kind, name, def, min, max, unit, help) \
    {kind, name, offsetof(type, field), def, NULL, min, max, NULL, unit, help},
#define OPT_ROW_U32(type, field, ...)  OPT_ROW_NUMBER(type, field, OPT_KIND_U32, __VA_ARGS__)
#define OPT_ROW_U64(type, field, ...)  OPT_ROW_NUMBER(type, field, OPT_KIND_U64, __VA_ARGS__)
#define OPT_ROW_F32(type, field, ...)  OPT_ROW_NUMBER(type, field, OPT_KIND_F32, __VA_ARGS__)
#define OPT_ROW_BOOL(type, field, ...) OPT_ROW_NUMBER(type, field, OPT_KIND_BOOL, __VA_ARGS__)
#define OPT_ROW_TEXT(type, field, name, def, min, max, unit, help) \
    {OPT_KIND_TEXT, name, offsetof(type, field), 0, def, min, max, NULL, unit, help},
#define OPT_ROW_ENUM(type, field, name, def, names, max, unit, help) \
    {OPT_KIND_ENUM, name, offsetof(type, field), def, NULL, 0, 0, names, unit, help},

/* Owns texts parsed from files and arguments. */
struct opt_store {
    char **texts; /* owned */
    uint32_t text_count;
};

void opt_store_fini(struct opt_store *store);

/* Set every field to its default. */
void opt_defaults(const struct opt_row *rows, uint32_t row_count, void *options);

struct opt_arguments {
    int argc;
    char **argv;             /* borrowed: positional points into it */
    const char **positional; /* [positional_max] filled in order */
    uint32_t positional_max;
    uint32_t *out_positional_count;
    bool *out_help; /* set when --help or -h was seen */
};

/* Parse argv[1..].  Options may be --name value or --name=value; "--" ends them.  Where the table has
 * a TEXT row "config" and the command line gives it, that file is read first.  A repeated option:
 * the last one wins.  Errors: ERR_ARGUMENT, one line that names the option, the value and the
 * limit. */
ERR_NODISCARD enum err_code opt_parse(const struct opt_row *rows, uint32_t row_count, void *options,
                                      struct opt_store *store,
                                      const struct opt_arguments *arguments, struct err *err);

/* name = value lines, # comments.  Errors name file and line. */
ERR_NODISCARD enum err_code opt_parse_file(const struct opt_row *rows, uint32_t row_count,
                                           void *options, struct opt_store *store, const char *path,
                                           struct err *err);

/* The options part of --help, one line per option; 100 columns where each help text is short enough
 * (the program's table test says so). */
void opt_help(const struct opt_row *rows, uint32_t row_count, struct buf *out);

#endif
