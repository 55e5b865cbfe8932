/* One thread, one poll: signals by signalfd, ends of the children by pidfd, the frontend's ready
 * byte by a pipe.
 *
 *   RUNNING          both are kept alive; the first signal -> DRAINING [begin_drain]
 *   DRAINING         the frontend was told to finish its requests, and is killed at the deadline;
 *                    when it is gone -> STOPPING [begin_stop]
 *   STOPPING         the worker was told to stop, and is killed at the deadline; when it is gone ->
 *                    DONE
 * The lifeline pipe's write end lives here only: it closes with this process, however that ends,
 * and both children leave when their read end says so. */
#include "deploy/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "deploy/child.h"
#include "deploy/listen.h"
#include "deploy/run_dir.h"

enum {
    PATH_BYTES = 4096,
    EXIT_BY_SIGNAL = 128
};

static const uint64_t kill_grace_ns = 2 * CLOCK_NS_PER_SEC;   /* beyond the drain timeout */
static const uint64_t worker_stop_ns = 10 * CLOCK_NS_PER_SEC; /* a step on a slow machine */
static const uint64_t good_worker_life_ns = 30 * CLOCK_NS_PER_SEC;

enum phase {
    PHASE_RUNNING,
    PHASE_DRAINING,
    PHASE_STOPPING,
    PHASE_DONE,
};

struct serve {
    const struct options *options; /* borrowed */
    struct run_dir run_dir;
    int listen_fd; /* owned; closed when a drain begins */
    int signal_fd;
    int lifeline_read_fd;
    int lifeline_write_fd;
    int ready_fd; /* read end of the running frontend's pipe; -1 once it has spoken */
    char worker_path[PATH_BYTES];
    char frontend_path[PATH_BYTES];
    struct options_argv worker_argv;
    struct options_argv frontend_argv;
    struct child worker;
    struct child frontend;
    bool frontend_is_ready;
    bool was_ready; /* once, by any frontend */
    enum phase phase;
    uint64_t deadline_ns; /* of DRAINING and STOPPING */
    int exit_code;
};

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
    char dir[PATH_BYTES / 2];
    enum err_code code = ERR_OK;
    if (serve->options->program_dir != NULL) {
        (void)snprintf(dir, sizeof(dir), "%s", serve->options->program_dir); /* cut: not found */
    } else {
        code = serve_program_dir(dir, sizeof(dir), err);
    }
    if (code == ERR_OK) {
        code =
            serve_find_program(dir, "worker", "bezel-worker", serve->worker_path, PATH_BYTES, err);
    }
    if (code == ERR_OK) {
        code = serve_find_program(dir, "frontend", "bezel-frontend", serve->frontend_path,
                                  PATH_BYTES, err);
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

static enum err_code open_all(struct serve *serve, struct err *err)
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

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); /* a handle only */
        *fd = -1;
    }
}

static void close_all(struct serve *serve)
{
    close_fd(&serve->ready_fd);
    options_argv_fini(&serve->frontend_argv);
    options_argv_fini(&serve->worker_argv);
    close_fd(&serve->lifeline_write_fd);
    close_fd(&serve->lifeline_read_fd);
    run_dir_close(&serve->run_dir);
    close_fd(&serve->listen_fd);
    close_fd(&serve->signal_fd);
}

static enum err_code start_worker(struct serve *serve, uint64_t now_ns, struct err *err)
{
    return child_start(&serve->worker, &serve->lifeline_read_fd, 1, now_ns, err);
}

static enum err_code start_frontend(struct serve *serve, uint64_t now_ns, struct err *err)
{
    int ready[2];
    close_fd(&serve->ready_fd);
    if (pipe2(ready, O_CLOEXEC) != 0) {
        return err_errno(err, errno, "making a pipe");
    }
    int fds[] = {serve->listen_fd, serve->lifeline_read_fd, ready[1]};
    enum err_code code = child_start(&serve->frontend, fds, 3, now_ns, err);
    (void)close(ready[1]); /* the child's end */
    serve->ready_fd = ready[0];
    serve->frontend_is_ready = false;
    return code;
}

static void kill_all(struct serve *serve)
{
    child_signal(&serve->frontend, SIGKILL);
    child_signal(&serve->worker, SIGKILL);
}

/* Starts whichever is due.  Only the first start may fail for good. */
static void start_due(struct serve *serve, uint64_t now_ns)
{
    struct err err;
    struct child *const children[] = {&serve->worker, &serve->frontend};
    for (size_t i = 0; i < 2; i++) {
        struct child *child = children[i];
        if (child->pid != 0 || now_ns < child->restart_at_ns) {
            continue;
        }
        enum err_code code = child == &serve->worker ? start_worker(serve, now_ns, &err)
                                                     : start_frontend(serve, now_ns, &err);
        if (code != ERR_OK) {
            char quoted[ERR_MESSAGE_BYTES + 16];
            child->restart_at_ns = now_ns + child->max_pause_ns;
            log_error("serve", "start_failed", "program=%s error=%s", child->name,
                      log_quote(err.message, quoted, sizeof(quoted)));
        }
    }
}

static void begin_stop(struct serve *serve, uint64_t now_ns)
{
    serve->phase = serve->worker.pid == 0 ? PHASE_DONE : PHASE_STOPPING;
    serve->deadline_ns = now_ns + worker_stop_ns;
    child_signal(&serve->worker, SIGTERM);
}

static void begin_drain(struct serve *serve, uint64_t timeout_ns, uint64_t now_ns)
{
    close_fd(&serve->listen_fd); /* or new connections would wait for nobody */
    if (serve->frontend.pid == 0) {
        begin_stop(serve, now_ns);
        return;
    }
    serve->phase = PHASE_DRAINING;
    serve->deadline_ns = now_ns + timeout_ns + kill_grace_ns;
    child_signal(&serve->frontend, SIGTERM);
}

static void on_signals(struct serve *serve, uint64_t now_ns)
{
    struct signalfd_siginfo info;
    while (read(serve->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (serve->phase == PHASE_RUNNING) {
            log_info("serve", "stopping", "signal=%u drain_timeout_s=%u", info.ssi_signo,
                     serve->options->drain_timeout_s);
            begin_drain(serve, serve->options->drain_timeout_s * CLOCK_NS_PER_SEC, now_ns);
        } else {
            serve->exit_code = EXIT_BY_SIGNAL + (int)info.ssi_signo;
            kill_all(serve);
        }
    }
}

static void on_ready(struct serve *serve)
{
    char byte;
    char address[128];
    bool has_spoken = read(serve->ready_fd, &byte, 1) == 1; /* else it has ended */
    close_fd(&serve->ready_fd);
    if (!has_spoken || serve->phase != PHASE_RUNNING) {
        return;
    }
    serve->frontend_is_ready = true;
    if (serve->was_ready) {
        log_info("serve", "ready_again", "frontend_pid=%d", (int)serve->frontend.pid);
        return;
    }
    serve->was_ready = true;
    listen_address_text(serve->listen_fd, address, sizeof(address));
    (void)printf("Bezel is ready: http://%s\n", address);
    (void)fflush(stdout); /* a reader that is gone does not matter */
}

static void on_end(struct serve *serve, struct child *child, bool was_good, uint64_t now_ns)
{
    char text[64];
    struct child_end end = child_reap(child, was_good, now_ns);
    child_end_text(end, text);
    bool can_never_work = !end.by_signal && end.code == SERVE_EXIT_CANNOT_EVER_WORK;
    if (serve->phase == PHASE_RUNNING && !serve->was_ready && can_never_work) {
        log_error("serve", "cannot_run", "program=%s end=\"%s\"", child->name, text);
        serve->exit_code = end.code;
        begin_drain(serve, 0, now_ns);
    } else if (serve->phase == PHASE_RUNNING) {
        log_warn("serve", "restarting", "program=%s end=\"%s\" pause_ms=%llu", child->name, text,
                 (unsigned long long)((child->restart_at_ns - now_ns) / CLOCK_NS_PER_MS));
    }
    if (serve->phase == PHASE_DRAINING && child == &serve->frontend) {
        begin_stop(serve, now_ns);
    } else if (serve->phase == PHASE_STOPPING && child == &serve->worker) {
        serve->phase = PHASE_DONE;
    }
}

static void on_deadline(struct serve *serve, uint64_t now_ns)
{
    struct child *late = serve->phase == PHASE_DRAINING ? &serve->frontend : &serve->worker;
    log_warn("serve", "killing", "program=%s reason=\"still there at the deadline\"", late->name);
    child_signal(late, SIGKILL);
    serve->deadline_ns = now_ns + worker_stop_ns; /* its end is reported by its pidfd */
}

static uint64_t next_event_ns(const struct serve *serve)
{
    uint64_t next_ns = serve->phase == PHASE_RUNNING ? UINT64_MAX : serve->deadline_ns;
    const struct child *const children[] = {&serve->worker, &serve->frontend};
    for (size_t i = 0; i < 2 && serve->phase == PHASE_RUNNING; i++) {
        if (children[i]->pid == 0 && children[i]->restart_at_ns < next_ns) {
            next_ns = children[i]->restart_at_ns;
        }
    }
    return next_ns;
}

static int poll_timeout_ms(const struct serve *serve, uint64_t now_ns)
{
    uint64_t next_ns = next_event_ns(serve);
    if (next_ns == UINT64_MAX) {
        return -1;
    }
    uint64_t left_ms = next_ns <= now_ns ? 0 : (next_ns - now_ns) / CLOCK_NS_PER_MS + 1;
    return left_ms > 3600000 ? 3600000 : (int)left_ms;
}

static void run_once(struct serve *serve)
{
    uint64_t now_ns = clock_now_ns();
    if (serve->phase == PHASE_RUNNING) {
        start_due(serve, now_ns);
    }
    struct pollfd fds[] = {
        {.fd = serve->signal_fd, .events = POLLIN},
        {.fd = serve->ready_fd, .events = POLLIN},
        {.fd = serve->worker.pidfd, .events = POLLIN},
        {.fd = serve->frontend.pidfd, .events = POLLIN},
    };
    if (poll(fds, 4, poll_timeout_ms(serve, now_ns)) < 0) {
        return; /* interrupted by a stop of the whole process: look again */
    }
    now_ns = clock_now_ns();
    if (fds[0].revents != 0) {
        on_signals(serve, now_ns);
    }
    if (fds[1].revents != 0) {
        on_ready(serve);
    }
    if (fds[2].revents != 0) {
        bool was_good = now_ns - serve->worker.started_ns >= good_worker_life_ns;
        on_end(serve, &serve->worker, was_good, now_ns);
    }
    if (fds[3].revents != 0) {
        on_end(serve, &serve->frontend, serve->frontend_is_ready, now_ns);
    }
    bool is_ending = serve->phase == PHASE_DRAINING || serve->phase == PHASE_STOPPING;
    if (is_ending && now_ns >= serve->deadline_ns) {
        on_deadline(serve, now_ns);
    }
}

enum err_code serve_run(const struct options *options, int *out_exit_code, struct err *err)
{
    struct serve serve = {
        .options = options,
        .run_dir = {.lock_fd = -1},
        .listen_fd = -1,
        .signal_fd = -1,
        .lifeline_read_fd = -1,
        .lifeline_write_fd = -1,
        .ready_fd = -1,
    };
    enum err_code code = open_all(&serve, err);
    while (code == ERR_OK && serve.phase != PHASE_DONE) {
        run_once(&serve);
    }
    *out_exit_code = serve.exit_code;
    close_all(&serve);
    return code;
}
