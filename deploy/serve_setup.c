/* What the launcher is made of, in order, and its end. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "deploy/listen.h"
#include "deploy/serve.h"
#include "deploy/serve_internal.h"

enum err_code serve_program_dir(char *out, size_t out_bytes, struct err *err)
{
    ssize_t used = readlink("/proc/self/exe", out, out_bytes - 1);
    if (used < 0) {
        return err_errno(err, errno, "reading /proc/self/exe");
    }
    out[used] = '\0';
    char *slash = strrchr(out, '/');
    *(slash == NULL ? out : slash) = '\0';
    return ERR_OK;
}

enum err_code serve_find_program(const char *dir, const char *folder, const char *name, char *out,
                                 size_t out_bytes, struct err *err)
{
    (void)snprintf(out, out_bytes, "%s/%s", dir, name); /* a cut path is not executable */
    if (access(out, X_OK) == 0) {
        return ERR_OK;
    }
    (void)snprintf(out, out_bytes, "%s/../%s/%s", dir, folder, name); /* in a build folder */
    if (access(out, X_OK) == 0) {
        return ERR_OK;
    }
    return err_set(err, ERR_NOT_FOUND, "no program %s in '%s'", name, dir);
}

static enum err_code check_model_dir(const char *path, struct err *err)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return errno == ENOENT ? err_set(err, ERR_NOT_FOUND, "no model directory '%s'", path)
                               : err_errno(err, errno, "model directory '%s'", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        return err_set(err, ERR_ARGUMENT, "model '%s' is not a directory", path);
    }
    return ERR_OK;
}

static enum err_code open_signals(struct serve *serve, struct err *err)
{
    sigset_t signals;
    (void)sigemptyset(&signals); /* none of these fails with valid signals */
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    serve->has_terminal = isatty(STDIN_FILENO);
    (void)signal(SIGPIPE, SIG_IGN); /* standard output may be a pipe that is gone */
    (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond a limit fails, and says so */
    serve->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return serve->signal_fd >= 0 ? ERR_OK : err_errno(err, errno, "opening a signal descriptor");
}

static enum err_code open_listener(struct serve *serve, struct err *err)
{
    enum err_code code = listen_inherited(&serve->listen_fd, err);
    if (code == ERR_OK && serve->listen_fd < 0) {
        code = listen_open(serve->options->host, serve->options->port, &serve->listen_fd, err);
    }
    return code;
}

static enum err_code find_programs(struct serve *serve, struct err *err)
{
    char dir[SERVE_PATH_BYTES / 2];
    enum err_code code = ERR_OK;
    if (serve->options->program_dir != NULL) {
        (void)snprintf(dir, sizeof(dir), "%s", serve->options->program_dir); /* cut: not found */
    } else {
        code = serve_program_dir(dir, sizeof(dir), err);
    }
    if (code == ERR_OK) {
        code = serve_find_program(dir, "worker", "bezel-worker", serve->worker_path,
                                  SERVE_PATH_BYTES, err);
    }
    if (code == ERR_OK) {
        code = serve_find_program(dir, "frontend", "bezel-frontend", serve->frontend_path,
                                  SERVE_PATH_BYTES, err);
    }
    return code;
}

static void add_common(struct options_argv *argv, const struct serve *serve, const char *name,
                       enum options_target target)
{
    options_argv_add(argv, name);
    options_argv_add(argv, serve->options->model_dir);
    options_argv_add(argv, "--run-dir");
    options_argv_add(argv, serve->run_dir.path);
    options_argv_add_passed(argv, serve->options, target);
}

/* Descriptors 3, 4, 5 of the frontend: listener, lifeline, ready.  3 of the worker: lifeline. */
static void describe_children(struct serve *serve)
{
    add_common(&serve->worker_argv, serve, "bezel-worker", OPTIONS_WORKER);
    options_argv_add(&serve->worker_argv, "--lifeline-fd");
    options_argv_add(&serve->worker_argv, "3");
    add_common(&serve->frontend_argv, serve, "bezel-frontend", OPTIONS_FRONTEND);
    options_argv_add(&serve->frontend_argv, "--lifeline-fd");
    options_argv_add(&serve->frontend_argv, "4");
    options_argv_add(&serve->frontend_argv, "--ready-fd");
    options_argv_add(&serve->frontend_argv, "5");
    for (uint32_t i = 0; i < serve->frontend_argv.count; i++) {
        options_argv_add(&serve->successor_argv, serve->frontend_argv.argv[i]);
    }
    options_argv_add(&serve->successor_argv, "--successor");

    uint64_t backoff_ns = serve->options->backoff_ms * CLOCK_NS_PER_MS;
    serve->worker = (struct child){
        .name = "worker",
        .path = serve->worker_path,
        .argv = serve->worker_argv.argv,
        .good_pause_ns = backoff_ns,
        .min_pause_ns = backoff_ns,
        .max_pause_ns = 30 * backoff_ns,
        .pidfd = -1,
    };
    serve->frontend = (struct child){
        .name = "frontend",
        .path = serve->frontend_path,
        .argv = serve->frontend_argv.argv,
        .has_listener = true,
        .good_pause_ns = 0,
        .min_pause_ns = backoff_ns / 10,
        .max_pause_ns = 5 * backoff_ns,
        .pidfd = -1,
    };
}

enum err_code serve_open_all(struct serve *serve, struct err *err)
{
    int lifeline[2];
    enum err_code code = check_model_dir(serve->options->model_dir, err);
    if (code == ERR_OK) {
        code = find_programs(serve, err);
    }
    if (code == ERR_OK) {
        code = open_signals(serve, err);
    }
    if (code == ERR_OK) {
        code = open_listener(serve, err);
    }
    if (code == ERR_OK) {
        code = run_dir_open(&serve->run_dir, serve->options->run_dir, err);
        if (code == ERR_OK) {
            log_info("serve", "run_dir", "path=%s temporary=%d", serve->run_dir.path,
                     serve->run_dir.is_temporary);
        }
    }
    if (code == ERR_OK) {
        code = launcher_socket_open(serve->run_dir.path, &serve->control_fd, err);
    }
    if (code == ERR_OK && pipe2(lifeline, O_CLOEXEC) != 0) {
        code = err_errno(err, errno, "making a pipe");
    }
    if (code == ERR_OK) {
        serve->lifeline_read_fd = lifeline[0];
        serve->lifeline_write_fd = lifeline[1];
        describe_children(serve);
    }
    return code;
}

void serve_close_fd(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); /* a handle only */
        *fd = -1;
    }
}

void serve_close_all(struct serve *serve)
{
    serve_close_fd(&serve->asking_fd);
    launcher_socket_close(serve->run_dir.path, &serve->control_fd);
    serve_close_fd(&serve->next_ready_fd);
    serve_close_fd(&serve->ready_fd);
    options_argv_fini(&serve->successor_argv);
    options_argv_fini(&serve->frontend_argv);
    options_argv_fini(&serve->worker_argv);
    serve_close_fd(&serve->lifeline_write_fd);
    serve_close_fd(&serve->lifeline_read_fd);
    run_dir_close(&serve->run_dir);
    serve_close_fd(&serve->listen_fd);
    serve_close_fd(&serve->signal_fd);
}
