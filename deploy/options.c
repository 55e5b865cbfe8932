#include "deploy/options.h"

#include <stddef.h>
#include <stdio.h>

#include "common/mem.h"

static const struct opt_row rows[] = {
#define OPTION(to, kind, field, ...) OPT_ROW_##kind(struct options, field, __VA_ARGS__)
#include "deploy/options.def"
#undef OPTION
};

enum {
    ROW_COUNT = sizeof(rows) / sizeof(rows[0])
};

static const enum options_target targets[ROW_COUNT] = {
#define OPTION(to, ...) OPTIONS_##to,
#include "deploy/options.def"
#undef OPTION
};

enum err_code options_parse(struct options *options, struct opt_store *store, int argc, char **argv,
                            bool *out_help, /* NOLINT(readability-non-const-parameter): written */
                            struct err *err)
{
    uint32_t positional_count = 0;
    struct opt_arguments arguments = {
        .argc = argc,
        .argv = argv,
        .positional = &options->model_dir,
        .positional_max = 1,
        .out_positional_count = &positional_count,
        .out_help = out_help,
    };
    *options = (struct options){0};
    opt_defaults(rows, ROW_COUNT, options);
    enum err_code code = opt_parse(rows, ROW_COUNT, options, store, &arguments, err);
    if (code == ERR_OK && !*out_help && positional_count == 0) {
        code = err_set(err, ERR_ARGUMENT, "serve needs a model directory, see bezel serve --help");
    }
    return code;
}

void options_help(struct buf *out)
{
    opt_help(rows, ROW_COUNT, out);
}

void options_argv_add(struct options_argv *to, const char *text)
{
    to->argv = mem_realloc(to->argv, to->count + 2, sizeof(to->argv[0]));
    to->argv[to->count++] = mem_strdup(text);
    to->argv[to->count] = NULL;
}

static void add_row(struct options_argv *to, const struct options *options,
                    const struct opt_row *row)
{
    const void *field = (const unsigned char *)options + row->offset_bytes;
    char name[64];
    char number[24];
    const char *value = number;
    bool is_off = row->kind == OPT_KIND_BOOL && !*(const bool *)field;
    (void)snprintf(name, sizeof(name), "--%s%s", is_off ? "no-" : "", row->name); /* fits */
    switch (row->kind) {
    case OPT_KIND_TEXT: value = *(const char *const *)field; break;
    case OPT_KIND_U32:
        (void)snprintf(number, sizeof(number), "%u", *(const uint32_t *)field);
        break;
    case OPT_KIND_BOOL: value = NULL; break;
    case OPT_KIND_U64:
    case OPT_KIND_F32:
    case OPT_KIND_ENUM: return; /* no such row is passed on */
    }
    if (row->kind == OPT_KIND_TEXT && value == NULL) {
        return;
    }
    options_argv_add(to, name);
    if (value != NULL) {
        options_argv_add(to, value);
    }
}

void options_argv_add_passed(struct options_argv *to, const struct options *options,
                             enum options_target target)
{
    for (uint32_t i = 0; i < ROW_COUNT; i++) {
        if ((targets[i] & target) != 0) {
            add_row(to, options, &rows[i]);
        }
    }
}

void options_argv_fini(struct options_argv *argv)
{
    for (uint32_t i = 0; i < argv->count; i++) {
        mem_free(argv->argv[i]);
    }
    mem_free(argv->argv);
    *argv = (struct options_argv){0};
}
