/* bezel: the command line.  serve keeps a pair of programs running, reload has it replace its
 * frontend, check and replay become a worker. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/launcher_socket.h"
#include "common/log.h"
#include "common/run_path.h"
#include "deploy/options.h"
#include "deploy/serve.h"

enum {
    PATH_BYTES = 4096
};

static const char usage[] =
    "Bezel serves Gemma 4 models over an OpenAI-compatible HTTP API.\n"
    "\n"
    "  bezel serve MODEL_DIR [OPTIONS]         start worker and frontend, keep both running\n"
    "  bezel serve --help                      the options\n"
    "  bezel reload [--run-dir DIR]            replace the frontend of bezel serve, without a cut\n"
    "  bezel check MODEL_DIR [OPTIONS]         can it be served, what does it take; --help: the options\n"
    "  bezel replay FILE MODEL_DIR [OPTIONS]   run what serve --record FILE wrote; --help: the options\n"
    "  bezel version                           the version\n"
    "\n"
    "Example:\n"
    "  bezel serve ./gemma-4-12b --port 8000\n"
    "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
    "\n"
    "Ctrl-C finishes running requests and stops; a second one stops at once.\n";

static int fail(const struct err *err)
{
    (void)fprintf(stderr, "bezel: %s\n", err->message);
    bool can_never_work = err->code == ERR_ARGUMENT || err->code == ERR_NOT_FOUND ||
                          err->code == ERR_CONFIG || err->code == ERR_LIMIT;
    return can_never_work ? SERVE_EXIT_CANNOT_EVER_WORK : EXIT_FAILURE;
}

static int print_serve_help(void)
{
    struct buf text;
    buf_init(&text);
    buf_append_text(&text, "bezel serve MODEL_DIR [OPTIONS]\n");
    options_help(&text);
    (void)fputs(buf_text(&text), stdout);
    buf_fini(&text);
    return EXIT_SUCCESS;
}

static int serve(int argc, char **argv)
{
    struct err err;
    struct options options;
    struct opt_store store = {0};
    bool wants_help = false;
    int exit_code = EXIT_SUCCESS;
    enum err_code code = options_parse(&options, &store, argc, argv, &wants_help, &err);
    if (code == ERR_OK && wants_help) {
        exit_code = print_serve_help();
    } else if (code == ERR_OK) {
        code = serve_run(&options, &exit_code, &err);
    }
    if (code != ERR_OK) {
        exit_code = fail(&err);
    }
    opt_store_fini(&store);
    return exit_code;
}

static bool is_help(const char *text)
{
    return strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0;
}

static const char reload_usage[] =
    "bezel reload [--run-dir DIR]\n"
    "Starts a new frontend beside the one of `bezel serve` in DIR (/tmp/bezel-UID) and returns when it\n"
    "serves.  The old one finishes what it has and ends.  Says why in one line where that fails; the old\n"
    "one goes on then.\n";

static int reload(int argc, char **argv)
{
    struct err err;
    char run_dir[RUN_PATH_BYTES];
    char text[LAUNCHER_TEXT_BYTES];
    run_path_default(run_dir);
    if (argc == 2 && is_help(argv[1])) {
        (void)fputs(reload_usage, stdout);
        return EXIT_SUCCESS;
    }
    bool is_named = argc == 3 && strcmp(argv[1], "--run-dir") == 0;
    if (argc != 1 && !is_named) {
        (void)err_set(&err, ERR_ARGUMENT, "reload takes --run-dir DIR, see bezel reload --help");
        return fail(&err);
    }
    if (launcher_socket_ask(is_named ? argv[2] : run_dir, "reload", text, &err) != ERR_OK) {
        (void)fprintf(stderr, "bezel: reload: %s\n", err.message);
        return EXIT_FAILURE;
    }
    (void)printf("%s\n", text);
    return EXIT_SUCCESS;
}

static enum err_code find_program(const char *folder, const char *name, char path[PATH_BYTES],
                                  struct err *err)
{
    char dir[PATH_BYTES / 2];
    enum err_code code = serve_program_dir(dir, sizeof(dir), err);
    return code != ERR_OK ? code : serve_find_program(dir, folder, name, path, PATH_BYTES, err);
}

/* Becomes a worker of the same build; argv is the caller's.  Returns when that fails. */
static int become_worker(const struct options_argv *worker)
{
    struct err err;
    char path[PATH_BYTES];
    if (find_program("worker", "bezel-worker", path, &err) == ERR_OK) {
        (void)fflush(stdout); /* before the worker writes */
        (void)execv(path, worker->argv);
        (void)err_errno(&err, errno, "starting '%s'", path);
    }
    return fail(&err);
}

/* bezel check ... -> bezel-worker --check --frontend PATH ...; the worker asks that about text. */
static int check(int argc, char **argv)
{
    struct err err;
    char frontend[PATH_BYTES];
    struct options_argv worker = {0};
    if (find_program("frontend", "bezel-frontend", frontend, &err) != ERR_OK) {
        return fail(&err);
    }
    options_argv_add(&worker, "bezel-worker");
    options_argv_add(&worker, "--check");
    options_argv_add(&worker, "--frontend");
    options_argv_add(&worker, frontend);
    for (int i = 1; i < argc; i++) {
        options_argv_add(&worker, argv[i]);
    }
    int exit_code = become_worker(&worker);
    options_argv_fini(&worker);
    return exit_code;
}

/* bezel replay FILE MODEL_DIR ... -> bezel-worker --replay FILE MODEL_DIR ... */
static int replay(int argc, char **argv)
{
    struct err err;
    bool wants_help = argc == 2 && is_help(argv[1]);
    if (argc < 3 && !wants_help) {
        (void)err_set(&err, ERR_ARGUMENT,
                      "replay needs a file and a model directory, see bezel --help");
        return fail(&err);
    }
    struct options_argv worker = {0};
    options_argv_add(&worker, "bezel-worker");
    if (wants_help) {
        (void)fputs(
            "bezel replay FILE MODEL_DIR [OPTIONS] is bezel-worker --replay FILE MODEL_DIR\n\n",
            stdout);
    } else {
        options_argv_add(&worker, "--replay");
    }
    for (int i = 1; i < argc; i++) {
        options_argv_add(&worker, argv[i]);
    }
    int exit_code = become_worker(&worker);
    options_argv_fini(&worker);
    return exit_code;
}

int main(int argc, char **argv)
{
    struct err err;
    const char *command = argc > 1 ? argv[1] : "--help";
    log_init("bezel", LOG_LEVEL_INFO);
    if (strcmp(command, "serve") == 0) {
        return serve(argc - 1, argv + 1);
    }
    if (strcmp(command, "reload") == 0) {
        return reload(argc - 1, argv + 1);
    }
    if (strcmp(command, "check") == 0) {
        return check(argc - 1, argv + 1);
    }
    if (strcmp(command, "replay") == 0) {
        return replay(argc - 1, argv + 1);
    }
    if (strcmp(command, "version") == 0 || strcmp(command, "--version") == 0) {
        (void)printf("bezel %s\n", BEZEL_VERSION);
        return EXIT_SUCCESS;
    }
    if (strcmp(command, "help") == 0 || is_help(command)) {
        (void)fputs(usage, stdout);
        return EXIT_SUCCESS;
    }
    (void)err_set(&err, ERR_ARGUMENT, "unknown command '%s', see bezel --help", command);
    return fail(&err);
}
