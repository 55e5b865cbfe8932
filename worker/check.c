#include "worker/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/opt.h"
#include "worker/check_internal.h"
#include "worker/loader.h"
#include "worker/safetensors.h"
#include "worker/weights.h"

enum {
    CLAUSE_BYTES = 2 * ERR_MESSAGE_BYTES
};

/* In the order of enum options_backend. */
static const char *const check_backends[] = {"auto", "cpu", "cuda", NULL};

static const struct opt_row rows[] = {
#define OPTION(kind, field, ...) OPT_ROW_##kind(struct check_options, field, __VA_ARGS__)
#include "worker/check.def"
#undef OPTION
};

enum {
    ROW_COUNT = sizeof(rows) / sizeof(rows[0])
};

static const char usage[] =
    "bezel check MODEL_DIR [OPTIONS]\n"
    "Says whether bezel serve can serve the checkpoint, what it takes at which context, and every\n"
    "reason why not.  Loads no weights; config.json alone is enough for the sizes.  Exit status: 0 it\n"
    "can be served, 1 it cannot, 2 wrong options.\n"
    "\n";

void check_add_fault(struct check *check, const char *format, ...)
{
    char clause[CLAUSE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(clause, sizeof(clause), format, args); /* what is cut is the end of a name */
    va_end(args);
    check->fault_count++;
    buf_printf(&check->faults, "  - %s\n", clause);
}

static void on_fault(void *owner, const char *clause)
{
    check_add_fault(owner, "%s", clause);
}

const char *check_count_text(uint64_t count, char text[CHECK_TEXT_BYTES])
{
    char digits[CHECK_TEXT_BYTES];
    int digit_count = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)count);
    size_t at = 0;
    for (int i = 0; i < digit_count; i++) {
        if (i > 0 && (digit_count - i) % 3 == 0) {
            text[at++] = ',';
        }
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *check_bytes_text(uint64_t bytes, char text[CHECK_TEXT_BYTES])
{
    if (bytes < 1U << 20) {
        char digits[CHECK_TEXT_BYTES];
        (void)snprintf(text, CHECK_TEXT_BYTES, "%.16s B", check_count_text(bytes, digits));
    } else if (bytes < 1U << 30) {
        (void)snprintf(text, CHECK_TEXT_BYTES, "%.1f MiB", (double)bytes / (1U << 20));
    } else {
        (void)snprintf(text, CHECK_TEXT_BYTES, "%.2f GiB", (double)bytes / (1U << 30));
    }
    return text;
}

static void report_model(const struct check *check)
{
    const struct model_config *config = &check->config;
    const struct model_family *local = &config->families[RUNNER_FAMILY_LOCAL];
    const struct model_family *global = &config->families[RUNNER_FAMILY_GLOBAL];
    char vocab[CHECK_TEXT_BYTES];
    char context[CHECK_TEXT_BYTES];
    buf_printf(check->out, "model      %u layers: %u sliding (window %u), %u full attention",
               config->layer_count, local->layers, local->window_tokens, global->layers);
    uint32_t owners = local->kv_layers + global->kv_layers;
    if (owners < config->layer_count) {
        buf_printf(check->out, "; the last %u share KV", config->layer_count - owners);
    }
    if (config->experts > 0) {
        buf_printf(check->out, "; %u of %u experts", config->top_experts, config->experts);
    }
    buf_printf(check->out, "\n           vocabulary %s, context up to %s tokens\n",
               check_count_text(config->info.vocab_tokens, vocab),
               check_count_text(config->max_positions, context));
}

static void report_weights(const struct check *check)
{
    const struct sizes *sizes = &check->sizes;
    char bytes[CHECK_TEXT_BYTES];
    char count[CHECK_TEXT_BYTES];
    buf_printf(check->out, "weights    %s, %s parameters",
               check_bytes_text(sizes->weight_bytes, bytes),
               check_count_text(sizes->params, count));
    if (sizes->ple_table_bytes > 0) {
        buf_printf(check->out, "; the per-layer table is %s of it",
                   check_bytes_text(sizes->ple_table_bytes, bytes));
    }
    if (sizes->expert_bytes > 0) {
        uint64_t active_bytes =
            sizes->weight_bytes - sizes->expert_bytes + sizes->active_expert_bytes;
        buf_printf(check->out, "; a token reads %s of it", check_bytes_text(active_bytes, bytes));
    }
    buf_append_char(check->out, '\n');
}

static void report_kv(const struct check *check)
{
    const struct model_config *config = &check->config;
    uint64_t local_bytes = check->sizes.kv_token_bytes[RUNNER_FAMILY_LOCAL];
    uint64_t global_bytes = check->sizes.kv_token_bytes[RUNNER_FAMILY_GLOBAL];
    uint32_t window = config->families[RUNNER_FAMILY_LOCAL].window_tokens;
    char token[CHECK_TEXT_BYTES];
    char most[CHECK_TEXT_BYTES];
    buf_printf(check->out, "KV         sliding layers %s a token, %s a full window\n",
               check_bytes_text(local_bytes, token), check_bytes_text(local_bytes * window, most));
    buf_printf(check->out, "           full layers %s a token, %s a full context\n",
               check_bytes_text(global_bytes, token),
               check_bytes_text(global_bytes * config->max_positions, most));
}

/* Headers only. */
static void check_tensors(struct check *check)
{
    struct st_set *set = NULL;
    struct err err;
    enum err_code code = st_open_folder(check->options.model_dir, &set, &err);
    if (code != ERR_OK) {
        check_add_fault(check, "%s: %s",
                        code == ERR_NOT_FOUND ? "the tensors are missing"
                                              : "the tensors cannot be read",
                        err.message);
        return;
    }
    (void)weights_check_each(&check->config, set, on_fault, check); /* on_fault counts, too */
    st_close(set);
}

static void settle_backend(struct check *check)
{
    struct options *worker = &check->worker;
    options_init(worker);
    worker->model_dir = check->options.model_dir;
    worker->backend = (enum options_backend)check->options.backend;
    if (worker->backend == OPTIONS_BACKEND_AUTO) {
        worker->backend =
            loader_cuda_device_count() > 0 ? OPTIONS_BACKEND_CUDA : OPTIONS_BACKEND_CPU;
    }
    worker->max_slots = check->options.max_slots;
    worker->max_step_tokens = check->options.max_step_tokens;
    worker->page_tokens = check->options.page_tokens;
    worker->gpu_memory_utilization = check->options.gpu_memory_utilization;
    loader_settle_limits(worker);
}

static void check_folder(struct check *check)
{
    struct err err;
    if (model_config_check(check->options.model_dir, &check->config, on_fault, check) > 0) {
        return; /* without the network nothing else can be told */
    }
    bool is_supported = model_config_check_supported(&check->config, &err) == ERR_OK;
    if (!is_supported) {
        check_add_fault(check, "%s", err.message);
    }
    sizes_measure(&check->config, &check->sizes);
    report_model(check);
    report_weights(check);
    report_kv(check);
    if (is_supported || check->config.quant_method[0] == '\0') {
        check_tensors(check); /* those of a quantised file have other names and types */
    }
    check_report_text(check);
    check_report_memory(check);
}

static enum err_code parse(struct check_options *options, struct opt_store *store, int argc,
                           char **argv,
                           bool *out_help, /* NOLINT(readability-non-const-parameter): written */
                           struct err *err)
{
    uint32_t positional_count = 0;
    const struct opt_arguments arguments = {
        .argc = argc,
        .argv = argv,
        .positional = &options->model_dir,
        .positional_max = 1,
        .out_positional_count = &positional_count,
        .out_help = out_help,
    };
    opt_defaults(rows, ROW_COUNT, options);
    enum err_code code = opt_parse(rows, ROW_COUNT, options, store, &arguments, err);
    if (code == ERR_OK && !*out_help && positional_count == 0) {
        code = err_set(err, ERR_ARGUMENT, "check needs a model directory, see bezel check --help");
    }
    if (code == ERR_OK) {
        code = options_check_power_of_two("page-tokens", options->page_tokens, err);
    }
    return code;
}

static void report_verdict(const struct check *check)
{
    if (check->fault_count == 0) {
        buf_append_text(check->out, "It can be served.\n");
        return;
    }
    buf_printf(check->out, "It cannot be served, for %u reason%s:\n%s", check->fault_count,
               check->fault_count == 1 ? "" : "s", buf_text(&check->faults));
}

enum err_code check_run(int argc, char **argv, struct buf *out, bool *out_can_be_served,
                        struct err *err)
{
    struct opt_store store = {0};
    bool wants_help = false;
    struct check *check = mem_zalloc(1, sizeof(*check));
    check->out = out;
    buf_init(&check->faults);
    enum err_code code = parse(&check->options, &store, argc, argv, &wants_help, err);
    if (code == ERR_OK && wants_help) {
        buf_append_text(out, usage);
        opt_help(rows, ROW_COUNT, out);
    } else if (code == ERR_OK) {
        settle_backend(check);
        check_folder(check);
        report_verdict(check);
    }
    if (code == ERR_OK) {
        *out_can_be_served = check->fault_count == 0;
    }
    buf_fini(&check->faults);
    mem_free(check);
    opt_store_fini(&store);
    return code;
}
