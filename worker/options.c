#include "worker/options.h"

#include <stdio.h>
#include <string.h>

#include "common/log.h"

static const char *const options_log_levels[] = {"error", "warn", "info", "debug", NULL};

static const char *const options_load_formats[] = {"safetensors", "dummy", NULL};

static const struct opt_row rows[] = {
#define OPTION(kind, field, ...) OPT_ROW_##kind(struct options, field, __VA_ARGS__)
#include "worker/options.def"
#undef OPTION
};

enum {
    ROW_COUNT = sizeof(rows) / sizeof(rows[0])
};

static enum err_code parse_device(struct options *options, struct err *err)
{
    const char *text = options->device;
    unsigned index = 0;
    char rest = '\0';
    if (strcmp(text, "auto") == 0) {
        options->backend = OPTIONS_BACKEND_AUTO;
        return ERR_OK;
    }
    if (strcmp(text, "cpu") == 0) {
        options->backend = OPTIONS_BACKEND_CPU;
        return ERR_OK;
    }
    if (sscanf(text, "cuda:%3u%c", &index, &rest) == 1) { /* NOLINT(cert-err34-c): at most 999 */
        options->backend = OPTIONS_BACKEND_CUDA;
        options->device_index = index;
        return ERR_OK;
    }
    return err_set(err, ERR_ARGUMENT, "--device '%s': want auto, cpu or cuda:N", text);
}

enum err_code options_check_power_of_two(const char *name, uint32_t value, struct err *err)
{
    if ((value & (value - 1)) != 0) {
        return err_set(err, ERR_ARGUMENT, "--%s %u: want a power of two", name, value);
    }
    return ERR_OK;
}

static enum err_code check_together(struct options *options, struct err *err)
{
    enum err_code code = options_check_power_of_two("page-tokens", options->page_tokens, err);
    code = code == ERR_OK ? options_check_power_of_two("ring-records", options->ring_records, err)
                          : code;
    code = code == ERR_OK ? parse_device(options, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    if (options->record != NULL && options->replay != NULL) {
        return err_set(err, ERR_ARGUMENT, "--record '%s' with --replay '%s': want one of them",
                       options->record, options->replay);
    }
    return ERR_OK;
}

void options_init(struct options *options)
{
    *options = (struct options){0};
    opt_defaults(rows, ROW_COUNT, options);
}

enum err_code options_parse(struct options *options, struct opt_store *store, int argc, char **argv,
                            struct err *err)
{
    options_init(options);
    const char *positional[1] = {NULL};
    uint32_t positional_count = 0;
    const struct opt_arguments arguments = {
        .argc = argc,
        .argv = argv,
        .positional = positional,
        .positional_max = 1,
        .out_positional_count = &positional_count,
        .out_help = &options->is_help,
    };
    enum err_code code = opt_parse(rows, ROW_COUNT, options, store, &arguments, err);
    if (code != ERR_OK || options->is_help) {
        return code;
    }
    if (positional_count != 1) {
        return err_set(err, ERR_ARGUMENT,
                       "no model folder given: bezel-worker [options] MODEL_DIR");
    }
    options->model_dir = positional[0];
    return check_together(options, err);
}

void options_help(struct buf *out)
{
    buf_append_text(out,
                    "usage: bezel-worker [options] MODEL_DIR\n\n"
                    "Loads a Gemma 4 checkpoint and runs the steps that a frontend plans.\n\n");
    opt_help(rows, ROW_COUNT, out);
}
