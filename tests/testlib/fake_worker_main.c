/* bezel-fake-worker: the fake worker as a process, for a real frontend.  Ends at SIGTERM or SIGINT,
 * at the message that --die-at names, or when the control socket cannot be made. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/opt.h"
#include "tests/testlib/fake_worker.h"

struct settings {
    const char *run_dir;
    const char *model_dir;
    uint32_t step_us;
    uint32_t row_us;
    uint32_t down_us;
    uint32_t up_us;
    uint32_t slots;
    uint32_t step_rows;
    uint32_t step_tokens;
    uint32_t depth;
    uint32_t context;
    uint32_t vocab;
    uint32_t pages;
    uint32_t load_ms;
    uint32_t token_first;
    uint32_t token_span;
    uint32_t stop_per_mille;
    uint32_t die_at;
    uint32_t stall_at;
    uint32_t refuse_step_at;
    uint32_t fail_step_at;
};

#define NUMBER(field, name, value, max, unit, help) \
    OPT_ROW_NUMBER(struct settings, field, OPT_KIND_U32, name, value, 0, max, unit, help)
#define TEXT(field, name, unit, help) \
    {OPT_KIND_TEXT, name, offsetof(struct settings, field), 0, NULL, 1, 4095, NULL, unit, help},

static const struct opt_row rows[] = {
    /* clang-format off */
    TEXT(run_dir, "run-dir", "DIR", "where the sockets go")
    TEXT(model_dir, "model-dir", "DIR", "checkpoint whose tokenizer the frontend has")
    NUMBER(step_us, "step-us", 10000, 1e9, "US", "a step takes this")
    NUMBER(row_us, "row-us", 0, 1e9, "US", "and this per row")
    NUMBER(down_us, "down-us", 0, 1e9, "US", "a message takes this to arrive")
    NUMBER(up_us, "up-us", 0, 1e9, "US", "a record likewise")
    NUMBER(slots, "slots", 64, 4096, "N", "sequences alive at once")
    NUMBER(step_rows, "max-step-rows", 1024, 1024, "N", "rows of a step")
    NUMBER(step_tokens, "max-step-tokens", 2048, 16384, "N", "tokens of a step")
    NUMBER(depth, "pipeline-depth", 2, 16, "N", "steps in flight")
    NUMBER(context, "context", 8192, 1e9, "N", "highest prompt and output")
    NUMBER(vocab, "vocab", 2048, 1e9, "N", "vocabulary")
    NUMBER(pages, "pages", 100000, 1e9, "N", "of each pool")
    NUMBER(load_ms, "load-ms", 0, 1e9, "MS", "loading takes this")
    NUMBER(token_first, "token-first", 100, 1e9, "ID", "lowest sampled id")
    NUMBER(token_span, "token-span", 0, 1e9, "N", "sampled ids; 0: up to the vocabulary")
    NUMBER(stop_per_mille, "stop-per-mille", 0, 1000, "N", "tokens that are the first stop id")
    NUMBER(die_at, "die-at", 0, 1e9, "N", "exit at the N-th message")
    NUMBER(stall_at, "stall-at", 0, 1e9, "N", "do nothing from the N-th message on")
    NUMBER(refuse_step_at, "refuse-step-at", 0, 1e9, "N", "refuse the N-th STEP")
    NUMBER(fail_step_at, "fail-step-at", 0, 1e9, "N", "fail the N-th step")
    /* clang-format on */
};

static enum err_code read_hash(const struct settings *settings, uint64_t *out_hash, struct err *err)
{
    char path[4200];
    if (settings->model_dir == NULL) {
        *out_hash = 0;
        return ERR_OK;
    }
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", settings->model_dir); /* it fits */
    return hello_hash_file(path, out_hash, err);
}

static void fill(const struct settings *settings, struct fake_options *options)
{
    struct model_options *model = &options->model;
    options->run_dir = settings->run_dir;
    options->load_ns = settings->load_ms * CLOCK_NS_PER_MS;
    options->exits_when_dead = true;
    model->limits = model_small_limits();
    model->limits.page_tokens = 64;
    model->limits.window_tokens = 1024;
    model->limits.slots = settings->slots;
    model->limits.max_step_rows = settings->step_rows;
    model->limits.max_step_tokens = settings->step_tokens;
    model->limits.pipeline_depth = settings->depth;
    model->limits.max_context_tokens = settings->context;
    model->limits.vocab_tokens = settings->vocab;
    model->limits.local_pages = settings->pages;
    model->limits.global_pages = settings->pages;
    model->step_ns = settings->step_us * 1000ULL;
    model->row_ns = settings->row_us * 1000ULL;
    model->down_ns = settings->down_us * 1000ULL;
    model->up_ns = settings->up_us * 1000ULL;
    model->token_first = settings->token_first;
    model->token_span = settings->token_span;
    model->stop_per_mille = settings->stop_per_mille;
    model->faults[0] = (struct model_fault){MODEL_FAULT_DIE, settings->die_at, 0};
    model->faults[1] = (struct model_fault){MODEL_FAULT_STALL, settings->stall_at, 0};
    model->faults[2] = (struct model_fault){MODEL_FAULT_REFUSE_STEP, settings->refuse_step_at, 0};
    model->faults[3] = (struct model_fault){MODEL_FAULT_FAIL_STEP, settings->fail_step_at, 0};
}

static enum err_code start(const struct settings *settings, struct fake_worker **out_worker,
                           struct err *err)
{
    struct fake_options options = {0};
    if (settings->run_dir == NULL) {
        return err_set(err, ERR_ARGUMENT, "--run-dir is needed");
    }
    fill(settings, &options);
    enum err_code code = read_hash(settings, &options.model.limits.tokenizer_hash, err);
    return code == ERR_OK ? fake_start(&options, out_worker, err) : code;
}

int main(int argc, char **argv)
{
    const uint32_t row_count = sizeof(rows) / sizeof(rows[0]);
    struct settings settings;
    struct opt_store store = {0};
    struct err err;
    uint32_t positional_count = 0;
    bool wants_help = false;
    struct opt_arguments arguments = {.argc = argc,
                                      .argv = argv,
                                      .out_positional_count = &positional_count,
                                      .out_help = &wants_help};
    struct fake_worker *worker = NULL;
    sigset_t signals;
    (void)sigemptyset(&signals); /* none of these fails with valid signals */
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    opt_defaults(rows, row_count, &settings);
    enum err_code code = opt_parse(rows, row_count, &settings, &store, &arguments, &err);
    if (code == ERR_OK && wants_help) {
        struct buf help;
        buf_init(&help);
        opt_help(rows, row_count, &help);
        (void)printf("%s", buf_text(&help));
        buf_fini(&help);
    } else if (code == ERR_OK) {
        code = start(&settings, &worker, &err);
    }
    if (code != ERR_OK) {
        (void)fprintf(stderr, "bezel-fake-worker: %s\n", err.message);
    } else if (worker != NULL) {
        int received = 0;
        (void)sigwait(&signals, &received); /* cannot fail with a valid set */
        struct fake_stats stats;
        fake_get_stats(worker, &stats);
        (void)printf("sessions=%llu steps=%llu tokens=%llu violation=\"%s\"\n",
                     (unsigned long long)stats.attaches, (unsigned long long)stats.model.steps,
                     (unsigned long long)stats.model.tokens, stats.violation);
    }
    fake_stop(worker);
    opt_store_fini(&store);
    return code == ERR_OK ? 0 : 1;
}
