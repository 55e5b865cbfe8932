/* One thread, one poll: signals by signalfd, ends of the children by pidfd, the frontend's ready
 * byte by a pipe, requests by launcher.sock.
 *
 *   RUNNING          both are kept alive; SIGHUP or a request reloads the frontend (serve_reload.c);
 *                    the first other signal -> DRAINING [begin_drain]
 *   DRAINING         the frontends were told to finish their requests, and are killed at the
 *                    deadline; when they are gone -> STOPPING [begin_stop]
 *   STOPPING         the worker was told to stop, and is killed at the deadline; when it is gone ->
 *                    DONE
 * The lifeline pipe's write end lives here only: it closes with this process, however that ends,
 * and the children leave when their read end says so. */
#include "deploy/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/log.h"
#include "deploy/listen.h"
#include "deploy/serve_internal.h"

enum {
    EXIT_BY_SIGNAL = 128
};

enum {
    POLL_SIGNALS,
    POLL_READY,
    POLL_WORKER,
    POLL_FRONTEND,
    POLL_NEXT_READY,
    POLL_NEXT,
    POLL_LEAVING,
    POLL_CLIENT,
    POLL_REQUEST,
    POLL_COUNT
};

static const uint64_t worker_stop_ns = 10 * CLOCK_NS_PER_SEC; /* a step on a slow machine */
static const uint64_t good_worker_life_ns = 30 * CLOCK_NS_PER_SEC;

static enum err_code start_worker(struct serve *serve, uint64_t now_ns, struct err *err)
{
    return child_start(&serve->worker, &serve->lifeline_read_fd, 1, now_ns, err);
}

enum err_code serve_start_frontend(const struct serve *serve, struct child *child,
                                   int *out_ready_fd, uint64_t now_ns, struct err *err)
{
    int ready[2];
    *out_ready_fd = -1;
    if (pipe2(ready, O_CLOEXEC) != 0) {
        return err_errno(err, errno, "making a pipe");
    }
    int fds[] = {serve->listen_fd, serve->lifeline_read_fd, ready[1]};
    enum err_code code = child_start(child, fds, 3, now_ns, err);
    (void)close(ready[1]); /* the child's end */
    if (code != ERR_OK) {
        (void)close(ready[0]); /* nobody writes */
        return code;
    }
    *out_ready_fd = ready[0];
    return ERR_OK;
}

static enum err_code start_frontend(struct serve *serve, uint64_t now_ns, struct err *err)
{
    serve_close_fd(&serve->ready_fd);
    serve->frontend_is_ready = false;
    return serve_start_frontend(serve, &serve->frontend, &serve->ready_fd, now_ns, err);
}

static void signal_frontends(const struct serve *serve, int signal_number)
{
    child_signal(&serve->frontend, signal_number);
    child_signal(&serve->next, signal_number);
    child_signal(&serve->leaving, signal_number);
}

static bool has_frontend(const struct serve *serve)
{
    return serve->frontend.pid != 0 || serve->next.pid != 0 || serve->leaving.pid != 0;
}

static void kill_all(struct serve *serve)
{
    signal_frontends(serve, SIGKILL);
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
    serve->phase = serve->worker.pid == 0 ? SERVE_DONE : SERVE_STOPPING;
    serve->deadline_ns = now_ns + worker_stop_ns;
    child_signal(&serve->worker, SIGTERM);
}

static void begin_drain(struct serve *serve, uint64_t timeout_ns, uint64_t now_ns)
{
    serve_close_fd(&serve->listen_fd); /* or new connections would wait for nobody */
    serve_reload_abandon(serve, "bezel serve was told to stop");
    if (!has_frontend(serve)) {
        begin_stop(serve, now_ns);
        return;
    }
    serve->phase = SERVE_DRAINING;
    serve->deadline_ns = now_ns + timeout_ns + SERVE_KILL_GRACE_NS;
    signal_frontends(serve, SIGTERM);
}

/* SIGHUP reloads, but for a launcher whose terminal is gone. */
static bool is_reload(const struct serve *serve, uint32_t signal_number)
{
    struct pollfd terminal = {.fd = STDIN_FILENO};
    bool is_hung_up = serve->has_terminal && poll(&terminal, 1, 0) == 1 &&
                      (terminal.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    return signal_number == SIGHUP && !is_hung_up;
}

static void on_signals(struct serve *serve, uint64_t now_ns)
{
    struct signalfd_siginfo info;
    while (read(serve->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (is_reload(serve, info.ssi_signo)) {
            serve_reload_begin(serve, -1, now_ns);
        } else if (serve->phase == SERVE_RUNNING) {
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
    serve_close_fd(&serve->ready_fd);
    if (!has_spoken || serve->phase != SERVE_RUNNING) {
        return;
    }
    serve->frontend_is_ready = true;
    serve_reload_on_adopted(serve, true);
    if (serve->was_ready) {
        log_info("serve", "ready_again", "frontend_pid=%d", (int)serve->frontend.pid);
        return;
    }
    serve->was_ready = true;
    listen_address_text(serve->listen_fd, address, sizeof(address));
    (void)printf("Bezel is ready: %s://%s\n", serve->options->tls_cert ? "https" : "http", address);
    (void)fflush(stdout); /* a reader that is gone does not matter */
}

static void on_end(struct serve *serve, struct child *child, bool was_good, uint64_t now_ns)
{
    char text[64];
    struct child_end end = child_reap(child, was_good, now_ns);
    child_end_text(end, text);
    if (child == &serve->frontend) {
        serve_reload_on_adopted(serve, false);
        serve_reload_adopt(serve);
    }
    bool can_never_work = !end.by_signal && end.code == SERVE_EXIT_CANNOT_EVER_WORK;
    if (serve->phase == SERVE_RUNNING && !serve->was_ready && can_never_work) {
        log_error("serve", "cannot_run", "program=%s end=\"%s\"", child->name, text);
        serve->exit_code = end.code;
        begin_drain(serve, 0, now_ns);
    } else if (serve->phase == SERVE_RUNNING && child->pid != 0) {
        log_warn("serve", "replaced", "program=%s end=\"%s\" by_pid=%d", child->name, text,
                 (int)child->pid);
    } else if (serve->phase == SERVE_RUNNING) {
        log_warn("serve", "restarting", "program=%s end=\"%s\" pause_ms=%llu", child->name, text,
                 (unsigned long long)((child->restart_at_ns - now_ns) / CLOCK_NS_PER_MS));
    }
    if (serve->phase == SERVE_STOPPING && child == &serve->worker) {
        serve->phase = SERVE_DONE;
    }
}

static void on_deadline(struct serve *serve, uint64_t now_ns)
{
    bool is_draining = serve->phase == SERVE_DRAINING;
    log_warn("serve", "killing", "program=%s reason=\"still there at the deadline\"",
             is_draining ? serve->frontend.name : serve->worker.name);
    if (is_draining) {
        signal_frontends(serve, SIGKILL);
    } else {
        child_signal(&serve->worker, SIGKILL);
    }
    serve->deadline_ns = now_ns + worker_stop_ns; /* its end is reported by its pidfd */
}

static uint64_t next_event_ns(const struct serve *serve)
{
    uint64_t next_ns = serve->phase == SERVE_RUNNING ? UINT64_MAX : serve->deadline_ns;
    const struct child *const children[] = {&serve->worker, &serve->frontend};
    for (size_t i = 0; i < 2 && serve->phase == SERVE_RUNNING; i++) {
        if (children[i]->pid == 0 && children[i]->restart_at_ns < next_ns) {
            next_ns = children[i]->restart_at_ns;
        }
    }
    uint64_t reload_ns = serve_reload_next_ns(serve);
    return reload_ns < next_ns ? reload_ns : next_ns;
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

static void on_children(struct serve *serve, const struct pollfd *fds, uint64_t now_ns)
{
    if (fds[POLL_WORKER].revents != 0) {
        bool was_good = now_ns - serve->worker.started_ns >= good_worker_life_ns;
        on_end(serve, &serve->worker, was_good, now_ns);
    }
    /* The new one first: it may have become ready just before the old one ended. */
    if (fds[POLL_NEXT_READY].revents != 0) {
        serve_reload_on_ready(serve);
    }
    if (fds[POLL_NEXT].revents != 0 && serve->next.pidfd == fds[POLL_NEXT].fd) {
        serve_reload_on_next_end(serve, now_ns);
    }
    if (fds[POLL_FRONTEND].revents != 0 && serve->frontend.pidfd == fds[POLL_FRONTEND].fd) {
        on_end(serve, &serve->frontend, serve->frontend_is_ready, now_ns);
    }
    if (fds[POLL_LEAVING].revents != 0) {
        serve_reload_on_leaving_end(serve, now_ns);
    }
    if (serve->phase == SERVE_DRAINING && !has_frontend(serve)) {
        begin_stop(serve, now_ns);
    }
}

static void run_once(struct serve *serve)
{
    uint64_t now_ns = clock_now_ns();
    if (serve->phase == SERVE_RUNNING) {
        start_due(serve, now_ns);
    }
    struct pollfd fds[POLL_COUNT] = {
        [POLL_SIGNALS] = {.fd = serve->signal_fd, .events = POLLIN},
        [POLL_READY] = {.fd = serve->ready_fd, .events = POLLIN},
        [POLL_WORKER] = {.fd = serve->worker.pidfd, .events = POLLIN},
        [POLL_FRONTEND] = {.fd = serve->frontend.pidfd, .events = POLLIN},
        [POLL_NEXT_READY] = {.fd = serve->next_ready_fd, .events = POLLIN},
        [POLL_NEXT] = {.fd = serve->next.pidfd, .events = POLLIN},
        [POLL_LEAVING] = {.fd = serve->leaving.pidfd, .events = POLLIN},
        /* one client at a time is asked what it wants */
        [POLL_CLIENT] = {.fd = serve->asking_fd < 0 ? serve->control_fd : -1, .events = POLLIN},
        [POLL_REQUEST] = {.fd = serve->asking_fd, .events = POLLIN},
    };
    if (poll(fds, POLL_COUNT, poll_timeout_ms(serve, now_ns)) < 0) {
        return; /* interrupted by a stop of the whole process: look again */
    }
    now_ns = clock_now_ns();
    if (fds[POLL_SIGNALS].revents != 0) {
        on_signals(serve, now_ns);
    }
    if (fds[POLL_READY].revents != 0) {
        on_ready(serve);
    }
    on_children(serve, fds, now_ns);
    if (fds[POLL_CLIENT].revents != 0) {
        serve_reload_on_client(serve, now_ns);
    }
    if (fds[POLL_REQUEST].revents != 0) {
        serve_reload_on_request(serve, now_ns);
    }
    serve_reload_tick(serve, now_ns);
    bool is_ending = serve->phase == SERVE_DRAINING || serve->phase == SERVE_STOPPING;
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
        .next_ready_fd = -1,
        .control_fd = -1,
        .asking_fd = -1,
        .next = {.pidfd = -1},
        .leaving = {.pidfd = -1},
        .reload = {.client_fd = -1},
    };
    enum err_code code = serve_open_all(&serve, err);
    while (code == ERR_OK && serve.phase != SERVE_DONE) {
        run_once(&serve);
    }
    *out_exit_code = serve.exit_code;
    serve_close_all(&serve);
    return code;
}
