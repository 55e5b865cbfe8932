/* bezel-worker: parse options, take the run directory, load the checkpoint, run the executor.
 *
 * Exit codes: 0 stopped on request or replay done, 1 may work when tried again, 2 can never work
 * as configured, 3 executor frozen (watchdog), 4 device lost. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/num.h"
#include "common/run_path.h"
#include "worker/check.h"
#include "worker/control.h"
#include "worker/executor.h"
#include "worker/forward.h"
#include "worker/link.h"
#include "worker/loader.h"
#include "worker/options.h"
#include "worker/record.h"
#include "worker/replay.h"
#include "worker/run_dir.h"

enum {
    EXIT_MAY_WORK_LATER = 1,
    EXIT_CAN_NEVER_WORK = 2,
    EXIT_DEVICE_LOST = 4,
    QUOTED_BYTES = ERR_MESSAGE_BYTES + 16,
    NAME_BYTES = 257,
};

#define NS_PER_US 1e3

/* Built front to back, taken down back to front. */
struct worker {
    struct options options;
    struct opt_store store;
    struct inject inject;
    struct run_dir run_dir;
    char run_dir_path[RUN_PATH_BYTES];
    char model_id[NAME_BYTES];
    uint64_t instance_id;
    struct link *link;
    struct control *control;
    struct loaded loaded;
    struct session_core *core;
    struct record_writer *record;
    struct executor *executor;
};

static int exit_code_of(enum err_code code)
{
    if (code == ERR_OK) {
        return EXIT_SUCCESS;
    }
    if (code == ERR_DEVICE) {
        return EXIT_DEVICE_LOST;
    }
    return err_is_lasting(code) ? EXIT_CAN_NEVER_WORK : EXIT_MAY_WORK_LATER;
}

/* Signals go to the control thread's descriptor; every later thread inherits the mask. */
static void block_signals(void)
{
    sigset_t signals;
    (void)sigemptyset(&signals); /* none of these fails with valid signals */
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigaction(SIGXFSZ, &ignore, NULL); /* a write beyond a limit fails, and says so */
}

static void name_model(struct worker *worker)
{
    if (worker->options.model_id != NULL) {
        (void)snprintf(worker->model_id, sizeof(worker->model_id), "%s", worker->options.model_id);
        return;
    }
    const char *end = worker->options.model_dir + strlen(worker->options.model_dir);
    while (end > worker->options.model_dir + 1 && end[-1] == '/') {
        end--;
    }
    const char *start = end;
    while (start > worker->options.model_dir && start[-1] != '/') {
        start--;
    }
    (void)snprintf(worker->model_id, sizeof(worker->model_id), "%.*s", (int)(end - start), start);
}

static struct wire_text text_of(const char *text)
{
    return (struct wire_text){text, (uint32_t)strlen(text)};
}

static enum err_code start_control(struct worker *worker, struct err *err)
{
    const struct options *options = &worker->options;
    struct control_options control = {
        .run_dir = &worker->run_dir,
        .lifeline_fd = options->lifeline_fd == 0 ? -1 : (int)options->lifeline_fd,
        .drain_timeout_ns = options->drain_timeout_s * CLOCK_NS_PER_SEC,
    };
    if (getrandom(&worker->instance_id, sizeof(worker->instance_id), 0) !=
        (ssize_t)sizeof(worker->instance_id)) {
        return err_set(err, ERR_SYSTEM, "no random number for the instance id");
    }
    control.welcome = (struct hello_welcome){
        .instance_id = worker->instance_id,
        .model_id = text_of(worker->model_id),
        .backend = text_of(worker->loaded.backend),
    };
    run_path_default(worker->run_dir_path);
    const char *path = options->run_dir == NULL ? worker->run_dir_path : options->run_dir;
    enum err_code code = run_dir_open(&worker->run_dir, path, err);
    code = code == ERR_OK ? link_open(worker->run_dir.path, &worker->link, err) : code;
    control.link = worker->link;
    return code == ERR_OK ? control_start(&control, &worker->control, err) : code;
}

static void on_progress(void *owner, uint64_t done_bytes, uint64_t total_bytes)
{
    control_set_progress(owner, done_bytes, total_bytes);
}

static enum err_code open_record(struct worker *worker, struct err *err)
{
    if (worker->options.record == NULL) {
        return ERR_OK;
    }
    const struct runner_limits *limits = &worker->loaded.runner->limits;
    struct record_header header = {
        .table_hash = hello_table_hash(),
        .vocab_tokens = limits->vocab_tokens,
        .page_tokens = limits->page_tokens,
        .max_step_tokens = limits->max_step_tokens,
    };
    (void)snprintf(header.model, sizeof(header.model), "%s", worker->model_id);
    return record_writer_open(worker->options.record, &header, clock_now_ns(), &worker->record,
                              err);
}

static void set_ready(struct worker *worker)
{
    const struct options *options = &worker->options;
    const struct runner_limits *limits = &worker->loaded.runner->limits;
    const struct control_ready ready = {
        .executor = worker->executor,
        .masks = {.lanes = options->max_slots, .words = num_ceil_div(limits->vocab_tokens, 32)},
        .watchdog_ns = worker->loaded.watchdog_ns,
        .welcome = {.instance_id = worker->instance_id,
                    .model_id = text_of(worker->model_id),
                    .config_hash = worker->loaded.config_hash,
                    .tokenizer_hash = worker->loaded.tokenizer_hash,
                    .backend = text_of(worker->loaded.backend),
                    .vocab_tokens = limits->vocab_tokens,
                    .max_context_tokens = limits->max_context_tokens,
                    .window_tokens = limits->window_tokens,
                    .page_tokens = limits->page_tokens,
                    .local_pages = limits->pages[RUNNER_FAMILY_LOCAL],
                    .global_pages = limits->pages[RUNNER_FAMILY_GLOBAL],
                    .slots = options->max_slots,
                    .max_step_rows = limits->max_step_rows,
                    .max_step_tokens = limits->max_step_tokens,
                    .pipeline_depth = limits->pipeline_depth,
                    .ring_records = options->ring_records,
                    .session_timeout_ms = options->session_timeout_ms,
                    .segment_tokens = limits->segment_tokens,
                    .local_page_bytes = forward_page_bytes(
                        &worker->loaded.config, RUNNER_FAMILY_LOCAL, limits->page_tokens),
                    .global_page_bytes = forward_page_bytes(
                        &worker->loaded.config, RUNNER_FAMILY_GLOBAL, limits->page_tokens),
                    .prefix_cache = options->prefix_cache},
    };
    control_set_ready(worker->control, &ready);
}

static enum err_code start_executor(struct worker *worker, struct err *err)
{
    const struct options *options = &worker->options;
    static const struct session_sink sink = {
        .room = segment_room,
        .push = segment_push,
        .flush = segment_flush,
        .mask = segment_mask,
    };
    enum err_code code = session_core_create(worker->loaded.runner, &worker->loaded.limits, &sink,
                                             &worker->inject, &worker->core, err);
    code = code == ERR_OK ? open_record(worker, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    const struct executor_options executor_options = {
        .runner = worker->loaded.runner,
        .core = worker->core,
        .record = worker->record,
        .on_ended = control_on_ended,
        .owner = worker->control,
        .spin_ns = options->spin_us * 1000ULL,
        .session_timeout_ns = options->session_timeout_ms * CLOCK_NS_PER_MS,
        .attach_timeout_ns = options->attach_timeout_ms * CLOCK_NS_PER_MS,
    };
    return executor_create(&executor_options, &worker->executor, err);
}

static void take_down(struct worker *worker)
{
    control_stop(worker->control);
    executor_destroy(worker->executor);
    session_core_destroy(worker->core);
    loader_close(&worker->loaded);
    link_close(worker->link);
    run_dir_close(&worker->run_dir);
}

static enum err_code serve(struct worker *worker, struct err *err)
{
    worker->run_dir = (struct run_dir){.dir_fd = -1, .lock_fd = -1};
    uint64_t start_ns = clock_now_ns();
    enum err_code code = start_control(worker, err);
    if (code == ERR_OK) {
        const struct loader_progress progress = {on_progress, worker->control};
        code = loader_open(&worker->options, &worker->inject, &progress, &worker->loaded, err);
    }
    code = code == ERR_OK ? start_executor(worker, err) : code;
    if (code == ERR_OK) {
        set_ready(worker);
        char quoted[QUOTED_BYTES];
        char quoted_dir[2 * RUN_DIR_PATH_BYTES];
        log_info("worker", "ready", "model=%s run_dir=%s start_ms=%llu",
                 log_quote(worker->model_id, quoted, sizeof(quoted)),
                 log_quote(worker->run_dir.path, quoted_dir, sizeof(quoted_dir)),
                 (clock_now_ns() - start_ns) / CLOCK_NS_PER_MS);
        code = executor_run(worker->executor, err);
    }
    struct err record_err;
    if (record_writer_close(worker->record, &record_err) != ERR_OK) {
        log_error("worker", "record-failed", "error=\"%s\"", record_err.message);
    }
    if (code == ERR_DEVICE) {
        run_dir_close(&worker->run_dir); /* nothing that touches the device can be taken down */
        return code;
    }
    take_down(worker);
    return code;
}

/* A wrong file is told before the weights load, which may take minutes. */
static enum err_code check_replay_file(const char *path, struct err *err)
{
    struct record_header header;
    struct record_reader *reader = NULL;
    enum err_code code = record_reader_open(path, &header, &reader, err);
    record_reader_close(reader);
    return code;
}

/* What a device was given to do in steps that bring nothing new. */
static void print_steady(const struct replay_summary *summary)
{
    const struct runner_counters *device = &summary->device;
    double steady_steps = (double)device->steady_steps;
    (void)printf("steady decode: %" PRIu64 " of %" PRIu64 " steps, %" PRIu64 " with a page turn;"
                 " per step %.3f launches, %.3f uploads, %.1f bytes up, %.1f us host,"
                 " %.1f us device; %.1f us of the executor over all steps; %" PRIu64
                 " gaps above %llu us, longest %.1f us\n",
                 device->steady_steps, device->steps, device->steady_turns,
                 (double)device->steady_launches / steady_steps,
                 (double)device->steady_uploads / steady_steps,
                 (double)device->steady_upload_bytes / steady_steps,
                 (double)device->steady_host_ns / NS_PER_US / steady_steps,
                 (double)device->steady_device_ns / NS_PER_US / steady_steps,
                 (double)summary->busy_ns / NS_PER_US / (double)device->steps, device->gaps,
                 RUNNER_LATE_NS / 1000, (double)device->longest_gap_ns / NS_PER_US);
}

static void print_replay(const struct replay_summary *summary)
{
    if (summary->device.steady_steps > 0) {
        print_steady(summary);
    }
    (void)printf("replay sessions=%" PRIu64 " messages=%" PRIu64 " malformed=%" PRIu64
                 " steps=%" PRIu64 " tokens=%" PRIu64 " finished=%" PRIu64 " refused=%" PRIu64
                 " failed=%" PRIu64 " wall_ms=%" PRIu64 " digest=%016" PRIx64 "\n",
                 summary->sessions, summary->messages, summary->malformed, summary->steps,
                 summary->tokens, summary->finished, summary->refused, summary->failed,
                 (uint64_t)(summary->wall_ns / CLOCK_NS_PER_MS), summary->digest);
}

static enum err_code replay(struct worker *worker, struct err *err)
{
    const struct loader_progress progress = {0};
    enum err_code code = check_replay_file(worker->options.replay, err);
    if (code == ERR_OK) {
        code = loader_open(&worker->options, &worker->inject, &progress, &worker->loaded, err);
    }
    if (code == ERR_OK) {
        const struct replay_options options = {
            .path = worker->options.replay,
            .runner = worker->loaded.runner,
            .limits = worker->loaded.limits,
            .inject = &worker->inject,
        };
        struct replay_summary summary;
        code = replay_run(&options, &summary, err);
        if (code == ERR_OK) {
            print_replay(&summary);
        }
    }
    if (code != ERR_DEVICE) {
        loader_close(&worker->loaded);
    }
    return code;
}

static int print_help(void)
{
    struct buf text;
    buf_init(&text);
    options_help(&text);
    (void)fputs(buf_text(&text), stdout);
    buf_fini(&text);
    return EXIT_SUCCESS;
}

/* bezel-worker --check MODEL_DIR ...: what `bezel check` becomes. */
static int check(int argc, char **argv)
{
    struct buf text;
    struct err err;
    bool can_be_served = false;
    buf_init(&text);
    enum err_code code = check_run(argc, argv, &text, &can_be_served, &err);
    if (code != ERR_OK) {
        (void)fprintf(stderr, "bezel: %s\n", err.message);
    }
    (void)fputs(buf_text(&text), stdout);
    buf_fini(&text);
    return code != ERR_OK  ? EXIT_CAN_NEVER_WORK
           : can_be_served ? EXIT_SUCCESS
                           : EXIT_MAY_WORK_LATER;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--check") == 0) {
        return check(argc - 1, argv + 1);
    }
    struct worker *worker = mem_zalloc(1, sizeof(*worker));
    struct err err;
    log_init("bezel-worker", LOG_LEVEL_INFO);
    block_signals();
    enum err_code code = options_parse(&worker->options, &worker->store, argc, argv, &err);
    int exit_code = EXIT_SUCCESS;
    if (code == ERR_OK && worker->options.is_help) {
        exit_code = print_help();
        goto out;
    }
    if (code == ERR_OK) {
        log_init("bezel-worker", (enum log_level)worker->options.log_level);
        name_model(worker);
        code = inject_parse(&worker->inject, worker->options.inject, &err);
    }
    if (code == ERR_OK) {
        code = loader_settle(&worker->options, &worker->loaded, &err);
    }
    if (code == ERR_OK) {
        code = worker->options.replay != NULL ? replay(worker, &err) : serve(worker, &err);
    }
    if (code != ERR_OK) {
        char quoted[QUOTED_BYTES];
        log_error("worker", code == ERR_DEVICE ? "device-lost" : "failed", "code=%s error=%s",
                  err_code_text(code), log_quote(err.message, quoted, sizeof(quoted)));
        exit_code = exit_code_of(code);
    }
    if (code == ERR_DEVICE) {
        _exit(exit_code); /* threads of the lost device may never end */
    }
out:
    opt_store_fini(&worker->store);
    mem_free(worker);
    return exit_code;
}
