#include "frontend/options.h"

#include <string.h>

#include "frontend/http_cors.h"

static const char *const options_chat_formats[] = {"auto", "large", "small", "none", NULL};
static const char *const options_log_levels[] = {"error", "warn", "info", "debug", NULL};

static const struct opt_row option_rows[] = {
#define OPTION(kind, field, ...) OPT_ROW_##kind(struct options, field, __VA_ARGS__)
#include "frontend/options.def"
#undef OPTION
};

enum {
    OPTION_COUNT = sizeof(option_rows) / sizeof(option_rows[0])
};

enum err_code options_parse(int argc, char **argv, struct options *out_options,
                            struct opt_store *store, bool *out_help, struct err *err)
{
    const char *positional[1] = {NULL};
    uint32_t positional_count = 0;
    bool wants_help = false;
    struct opt_arguments arguments = {
        .argc = argc,
        .argv = argv,
        .positional = positional,
        .positional_max = 1,
        .out_positional_count = &positional_count,
        .out_help = &wants_help,
    };
    memset(out_options, 0, sizeof(*out_options));
    opt_defaults(option_rows, OPTION_COUNT, out_options);
    enum err_code code = opt_parse(option_rows, OPTION_COUNT, out_options, store, &arguments, err);
    *out_help = wants_help;
    if (code || wants_help) {
        return code;
    }
    if (positional_count == 0) {
        return err_set(err, ERR_ARGUMENT,
                       "MODEL_DIR is missing: bezel-frontend MODEL_DIR [options]");
    }
    if (!out_options->tls_cert != !out_options->tls_key) {
        return err_set(err, ERR_ARGUMENT, "%s is given without %s: TLS needs both",
                       out_options->tls_cert ? "--tls-cert" : "--tls-key",
                       out_options->tls_cert ? "--tls-key" : "--tls-cert");
    }
    if (out_options->cors_origin) {
        code = http_cors_check(out_options->cors_origin, err);
    }
    out_options->model_dir = positional[0];
    return code;
}

void options_help(struct buf *out)
{
    buf_append_text(out, "usage: bezel-frontend MODEL_DIR [options]\n\n");
    opt_help(option_rows, OPTION_COUNT, out);
}
