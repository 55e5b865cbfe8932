/* bezel-frontend: constructs its parts in order, runs the loop, and takes them down in reverse. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "common/checkpoint.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/run_path.h"
#include "frontend/api_keys.h"
#include "frontend/app.h"
#include "frontend/chat_render.h"
#include "frontend/engine.h"
#include "frontend/loop.h"
#include "frontend/options.h"
#include "frontend/ready.h"
#include "frontend/server.h"
#include "frontend/tokenizer.h"
#include "frontend/work.h"

enum {
    LISTEN_FDS_START = 3, /* of the socket activation protocol */
    HEAP_KEPT_BYTES = 256 << 20,
    EXIT_MAY_WORK_LATER = 1,
    EXIT_CAN_NEVER_WORK = 2,
};

#define GRAMMAR_CACHE_BYTES ((size_t)256 << 20)

/* Everything main owns, in the order of construction. */
struct process {
    struct options options;
    char run_dir[RUN_PATH_BYTES]; /* the default */
    struct checkpoint_info checkpoint;
    char *model_name;
    struct tokenizer *tokenizer;
    int listen_fd; /* -1 once the server has it */
    struct app app;
    struct server *server;
    struct ready *ready;
    struct loop_watch *signals;
    struct loop_watch *lifeline;
};

/* The socket activation protocol speaks through the environment, and nothing else does. */
static const char *find_variable(char **environment, const char *name)
{
    size_t name_bytes = strlen(name);
    for (; *environment; environment++) {
        if (strncmp(*environment, name, name_bytes) == 0 && (*environment)[name_bytes] == '=') {
            return *environment + name_bytes + 1;
        }
    }
    return NULL;
}

/* True where a listening socket was passed to this very process. */
static bool has_inherited_socket(char **environment)
{
    const char *count = find_variable(environment, "LISTEN_FDS");
    const char *pid = find_variable(environment, "LISTEN_PID");
    if (!count || strtol(count, NULL, 10) < 1) {
        return false;
    }
    return !pid || strtol(pid, NULL, 10) == (long)getpid();
}

static enum err_code open_listener(struct process *process, char **environment, struct err *err)
{
    const struct options *options = &process->options;
    if (has_inherited_socket(environment)) {
        process->listen_fd = LISTEN_FDS_START;
        log_info("main", "listening", "inherited_fd=%d", process->listen_fd);
        return ERR_OK;
    }
    uint32_t port = 0;
    enum err_code code =
        server_listen(options->host, options->port, &process->listen_fd, &port, err);
    if (!code) {
        log_info("main", "listening", "host=%s port=%u", options->host, port);
    }
    return code;
}

static enum err_code load_keys(struct process *process, struct err *err)
{
    struct app *app = &process->app;
    if (!process->options.api_key_file) {
        return ERR_OK;
    }
    enum err_code code = api_keys_load(process->options.api_key_file, &app->keys, err);
    if (code) {
        return err_wrap(err, "reading the keys of --api-key-file");
    }
    log_info("main", "api_keys", "count=%u", api_keys_count(app->keys));
    return ERR_OK;
}

static char *name_of_model(const struct options *options)
{
    if (options->model_name) {
        return mem_strdup(options->model_name);
    }
    char *path = realpath(options->model_dir, NULL);
    const char *slash = path ? strrchr(path, '/') : NULL;
    char *name = mem_strdup(slash && slash[1] ? slash + 1 : options->model_dir);
    free(path); /* realpath's */
    return name;
}

static enum err_code load_tokenizer(struct process *process, struct err *err)
{
    const struct options *options = &process->options;
    char path[4200];
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", options->model_dir);
    const char *cache_dir = options->cache_dir ? options->cache_dir : options->run_dir;
    enum err_code code =
        tok_load(path, options->check_text ? NULL : cache_dir, &process->tokenizer, err);
    if (code == ERR_NOT_FOUND) {
        if (!options->check_text) {
            log_warn("main", "no_tokenizer", "text_routes=off");
        }
        return ERR_OK;
    }
    return code;
}

static enum err_code choose_chat_format(struct process *process, enum chat_format *out_format,
                                        struct err *err)
{
    enum err_code code = ERR_OK;
    switch ((enum options_chat_format)process->options.chat_format) {
    case OPTIONS_CHAT_AUTO:
        code = chat_format_detect(process->options.model_dir, out_format, err);
        break;
    case OPTIONS_CHAT_LARGE: *out_format = CHAT_FORMAT_LARGE; break;
    case OPTIONS_CHAT_SMALL: *out_format = CHAT_FORMAT_SMALL; break;
    case OPTIONS_CHAT_NONE: *out_format = CHAT_FORMAT_NONE; break;
    }
    return code ? err_wrap(err, "choosing the chat format (--chat-format forces one)") : ERR_OK;
}

static enum err_code load_model(struct process *process, struct err *err)
{
    const char *model_dir = process->options.model_dir;
    struct prepare_model *model = &process->app.model;
    enum err_code code = checkpoint_load_info(model_dir, &process->checkpoint, err);
    if (!code) {
        code = load_tokenizer(process, err);
    }
    if (!code) {
        code = choose_chat_format(process, &model->chat_format, err);
    }
    if (code) {
        return err_wrap(err, "loading '%s'", model_dir);
    }
    process->model_name = name_of_model(&process->options);
    model->name = process->model_name;
    model->checkpoint = &process->checkpoint;
    model->tokenizer = process->tokenizer;
    if (process->tokenizer) {
        chat_markers_find(process->tokenizer, &model->markers);
        struct grammar_markers markers = {.quote = model->markers.quote,
                                          .call_open = model->markers.call_open,
                                          .call_close = model->markers.call_close};
        model->grammars = grammar_cache_create(process->tokenizer, &markers, GRAMMAR_CACHE_BYTES);
    }
    return ERR_OK;
}

/* For `bezel check`: one line that says how text is served, or a line for each reason why not. */
static int check_text(struct process *process)
{
    static const char *const formats[] = {
        [CHAT_FORMAT_NONE] = "no chat format",
        [CHAT_FORMAT_LARGE] = "chat format large",
        [CHAT_FORMAT_SMALL] = "chat format small",
    };
    struct err tokenizer_err;
    struct err format_err;
    enum chat_format format = CHAT_FORMAT_NONE;
    enum err_code tokenizer_code = load_tokenizer(process, &tokenizer_err);
    enum err_code format_code = choose_chat_format(process, &format, &format_err);
    if (tokenizer_code) {
        (void)printf("%s\n", tokenizer_err.message);
    }
    if (format_code) {
        (void)printf("%s\n", format_err.message);
    }
    if (tokenizer_code || format_code) {
        return EXIT_MAY_WORK_LATER;
    }
    if (process->tokenizer) {
        (void)printf("tokenizer.json is there, %s\n", formats[format]);
    } else {
        (void)printf("no tokenizer.json: prompts and answers are token ids only\n");
    }
    return EXIT_SUCCESS;
}

static void on_signal(void *owner, int fd)
{
    struct process *process = owner;
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        log_info("main", "signal", "number=%u", info.ssi_signo);
        if (info.ssi_signo == SIGUSR1) {
            server_hand_over(process->server);
        } else if (info.ssi_signo == SIGUSR2) {
            ready_stand_alone(process->ready);
        } else if (process->app.is_draining && !process->app.has_successor) {
            server_hurry(process->server); /* asked twice */
        } else {
            server_drain(process->server);
        }
    }
}

static void on_lifeline(void *owner, int fd)
{
    struct process *process = owner;
    char scratch[16];
    ssize_t count = read(fd, scratch, sizeof(scratch));
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
        log_info("main", "lifeline_closed", "fd=%d", fd);
        server_drain(process->server);
        loop_watch_destroy(process->lifeline);
        process->lifeline = NULL;
    }
}

/* Before any thread: all of them inherit the mask, so that signals arrive at the descriptor only. */
static enum err_code block_signals(int *out_fd, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    int status = pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (status) {
        return err_errno(err, status, "blocking signals");
    }
    (void)signal(SIGPIPE, SIG_IGN); /* cannot fail: writes report EPIPE instead */
    (void)signal(SIGXFSZ, SIG_IGN); /* nor can this: EFBIG */
    *out_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return *out_fd < 0 ? err_errno(err, errno, "creating a signal descriptor") : ERR_OK;
}

/* Large buffers come from the heap and go back to it: mapping and unmapping them would stop every
 * thread that touches new memory meanwhile, the loop above all. */
static void keep_memory_mapped(void)
{
    /* One thread so far; refusal costs latency only. */
    (void)mallopt(M_MMAP_THRESHOLD, HEAP_KEPT_BYTES); /* NOLINT(concurrency-mt-unsafe) */
    (void)mallopt(M_TRIM_THRESHOLD, HEAP_KEPT_BYTES); /* NOLINT(concurrency-mt-unsafe) */
}

/* As many descriptors as allowed: each connection takes one. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* the old limit serves fewer, and says so later */
    }
}

static enum err_code start_engine(struct process *process, struct err *err)
{
    const struct options *options = &process->options;
    struct engine_options engine_options = {
        .run_dir = options->run_dir,
        .name = "bezel-frontend",
        .max_queue = options->max_queue,
        .max_step_tokens = options->max_step_tokens,
        .itl_target_ms = options->itl_target_ms,
        .pipeline_depth = options->pipeline_depth,
        .detached_wait_ms = options->worker_wait_s * 1000,
    };
    return engine_create(&engine_options, &process->app.engine, err);
}

static enum err_code construct(struct process *process, char **environment, struct err *err)
{
    struct app *app = &process->app;
    const struct options *options = &process->options;
    int signal_fd = -1;
    app->options = options;
    app->created_s = (uint64_t)time(NULL);
    if (getrandom(&app->random_state, sizeof(app->random_state), 0) !=
        (ssize_t)sizeof(app->random_state)) {
        return err_errno(err, errno, "reading random bytes");
    }
    keep_memory_mapped();
    raise_descriptor_limit();
    enum err_code code = block_signals(&signal_fd, err);
    if (!code) {
        code = load_model(process, err);
    }
    if (!code) {
        code = load_keys(process, err);
    }
    if (!code) {
        code = open_listener(process, environment, err);
    }
    if (!code) {
        code = loop_create(&app->loop, err);
    }
    if (!code) {
        code = work_create(options->work_threads, options->max_queue, &app->work, err);
    }
    if (!code) {
        code = start_engine(process, err);
    }
    if (!code) {
        code = server_create(app, process->listen_fd, &process->server, err);
    }
    if (code) {
        return code;
    }
    process->listen_fd = -1;
    process->signals = loop_watch_create(app->loop, signal_fd, on_signal, process);
    if (options->lifeline_fd > 0) {
        process->lifeline =
            loop_watch_create(app->loop, (int)options->lifeline_fd, on_lifeline, process);
    }
    process->ready =
        ready_create(app, process->server, options->ready_fd > 0 ? (int)options->ready_fd : -1);
    return ERR_OK;
}

/* The engine and the work threads end while the loop still takes their last messages. */
static void take_down(struct process *process)
{
    struct app *app = &process->app;
    ready_destroy(process->ready);
    loop_watch_destroy(process->lifeline);
    loop_watch_destroy(process->signals);
    server_end(process->server);
    work_destroy(app->work);
    engine_destroy(app->engine);
    server_destroy(process->server);
    loop_destroy(app->loop);
    if (process->listen_fd >= 0) {
        (void)close(process->listen_fd); /* never served */
    }
    api_keys_destroy(app->keys);
    grammar_cache_destroy(process->app.model.grammars);
    tok_destroy(process->tokenizer);
    mem_free(process->model_name);
}

static enum err_code run(struct process *process, char **environment, struct err *err)
{
    enum err_code code = construct(process, environment, err);
    if (!code) {
        code = loop_run(process->app.loop, err);
    }
    if (!code) {
        code = ready_check(process->ready, err);
    }
    return code;
}

static int fail(const struct options *options, const struct err *err)
{
    (void)fprintf(stderr, "bezel-frontend: %s\n", err->message);
    if (options->successor && options->ready_fd > 0) {
        (void)dprintf((int)options->ready_fd, "!%s\n", err->message); /* the launcher may be gone */
    }
    return err_is_lasting(err->code) ? EXIT_CAN_NEVER_WORK : EXIT_MAY_WORK_LATER;
}

int main(int argc, char **argv, char **environment)
{
    struct process *process = mem_zalloc(1, sizeof(*process));
    struct opt_store store = {0};
    struct err err = {0};
    bool wants_help = false;
    process->listen_fd = -1;
    enum err_code code = options_parse(argc, argv, &process->options, &store, &wants_help, &err);
    if (code) {
        int status = fail(&process->options, &err);
        mem_free(process);
        opt_store_fini(&store);
        return status;
    }
    if (wants_help) {
        struct buf help;
        buf_init(&help);
        options_help(&help);
        (void)fputs(buf_text(&help), stdout); /* a closed stdout shows nothing */
        buf_fini(&help);
        mem_free(process);
        opt_store_fini(&store);
        return EXIT_SUCCESS;
    }
    log_init("bezel-frontend", (enum log_level)process->options.log_level);
    run_path_default(process->run_dir);
    if (!process->options.run_dir) {
        process->options.run_dir = process->run_dir;
    }
    int status = EXIT_SUCCESS;
    if (process->options.check_text) {
        status = check_text(process);
    } else {
        code = run(process, environment, &err);
        status = code ? fail(&process->options, &err) : EXIT_SUCCESS;
    }
    take_down(process);
    mem_free(process);
    opt_store_fini(&store);
    return status;
}
