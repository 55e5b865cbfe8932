/* A reload: a new frontend on the same listening socket, and the old one told to leave when it serves.
 *
 *   none --request--> STARTING [next runs] --ready--> LEAVING [leaving runs] --its end--> none
 *                        |  next ends, or the deadline passes: the old one goes on
 *                        |  the old one ends: next takes its place, who waits is told when it is ready
 * While either runs another request is refused: the worker takes two sessions. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "deploy/serve_internal.h"

#define ASK_NS CLOCK_NS_PER_SEC /* a client has this long to say what it wants */

/* Takes client_fd, which may be -1. */
static void answer(int client_fd, bool is_ok, const char *text)
{
    char packet[LAUNCHER_TEXT_BYTES];
    if (client_fd < 0) {
        return;
    }
    int length = snprintf(packet, sizeof(packet), "%s %s", is_ok ? "ok" : "error", text);
    size_t byte_count = (size_t)length < sizeof(packet) ? (size_t)length : sizeof(packet) - 1;
    (void)send(client_fd, packet, byte_count, MSG_NOSIGNAL | MSG_DONTWAIT); /* it may have left */
    (void)close(client_fd);                                                 /* a handle only */
}

static void end_reload(struct serve *serve, bool is_ok, const char *text)
{
    char quoted[LAUNCHER_TEXT_BYTES * 2];
    struct reload *reload = &serve->reload;
    if (is_ok) {
        log_info("serve", "reloaded", "frontend_pid=%d", (int)serve->frontend.pid);
    } else {
        log_error("serve", "reload_failed", "reason=%s", log_quote(text, quoted, sizeof(quoted)));
    }
    answer(reload->client_fd, is_ok, text);
    *reload = (struct reload){.client_fd = -1};
}

/* Why no reload can begin; null when one can. */
static const char *objection(const struct serve *serve, char out_text[LAUNCHER_TEXT_BYTES],
                             uint64_t now_ns)
{
    if (serve->phase != SERVE_RUNNING) {
        return "bezel serve is stopping";
    }
    if (serve->reload.is_running || serve->next.pid != 0) {
        return "a reload is running";
    }
    if (serve->leaving.pid != 0) {
        uint64_t left_ns =
            serve->leave_deadline_ns > now_ns ? serve->leave_deadline_ns - now_ns : 0;
        (void)snprintf(out_text, LAUNCHER_TEXT_BYTES,
                       "the frontend of the last reload (pid %d) still serves connections that it "
                       "holds, for at most %llu s",
                       (int)serve->leaving.pid,
                       (unsigned long long)(left_ns / CLOCK_NS_PER_SEC + 1)); /* fits */
        return out_text;
    }
    if (serve->frontend.pid == 0 || !serve->frontend_is_ready) {
        return "the frontend is not ready, so there is nothing to hand over";
    }
    return NULL;
}

static enum err_code start_next(struct serve *serve, uint64_t now_ns, struct err *err)
{
    serve->next = serve->frontend;
    serve->next.argv = serve->successor_argv.argv;
    serve->next.pid = 0;
    serve->next.pidfd = -1;
    return serve_start_frontend(serve, &serve->next, &serve->next_ready_fd, now_ns, err);
}

void serve_reload_begin(struct serve *serve, int client_fd, uint64_t now_ns)
{
    char text[LAUNCHER_TEXT_BYTES];
    struct err err;
    const char *why = objection(serve, text, now_ns);
    if (why == NULL && start_next(serve, now_ns, &err) != ERR_OK) {
        why = err.message;
    }
    if (why != NULL) {
        char quoted[LAUNCHER_TEXT_BYTES * 2];
        log_warn("serve", "reload_refused", "reason=%s", log_quote(why, quoted, sizeof(quoted)));
        answer(client_fd, false, why);
        return;
    }
    serve->reload = (struct reload){
        .is_running = true,
        .client_fd = client_fd,
        .deadline_ns = now_ns + serve->options->reload_timeout_s * CLOCK_NS_PER_SEC,
    };
    log_info("serve", "reloading", "old_pid=%d new_pid=%d", (int)serve->frontend.pid,
             (int)serve->next.pid);
}

/* next is the frontend from now on. */
static void take_place(struct serve *serve)
{
    serve_close_fd(&serve->ready_fd);
    serve->frontend = serve->next;
    serve->frontend.argv = serve->frontend_argv.argv;
    serve->next.pid = 0;
    serve->next.pidfd = -1;
}

static void promote(struct serve *serve)
{
    serve_close_fd(&serve->next_ready_fd);
    serve->leaving = serve->frontend;
    take_place(serve);
    serve->frontend_is_ready = true;
    serve->leave_deadline_ns =
        clock_now_ns() + serve->options->drain_timeout_s * CLOCK_NS_PER_SEC + SERVE_KILL_GRACE_NS;
    child_signal(&serve->leaving, SIGUSR1);
    char text[64];
    (void)snprintf(text, sizeof(text), "frontend %d serves", (int)serve->frontend.pid); /* fits */
    end_reload(serve, true, text);
}

void serve_reload_on_ready(struct serve *serve)
{
    struct reload *reload = &serve->reload;
    char bytes[LAUNCHER_TEXT_BYTES];
    ssize_t got = read(serve->next_ready_fd, bytes, sizeof(bytes) - 1);
    if (got <= 0) {
        serve_close_fd(&serve->next_ready_fd); /* its end tells the rest */
    }
    /* Lines of why not yet, each behind a '!', then a '1' when it is ready. */
    for (ssize_t at = 0; at < got;) {
        bytes[got] = '\0';
        if (bytes[at] == '1' && !reload->is_within_line) {
            promote(serve);
            return;
        }
        size_t line_bytes = strcspn(bytes + at, "\n");
        if (line_bytes > 0 && !reload->is_within_line) {
            (void)snprintf(reload->reason, sizeof(reload->reason), "%.*s", (int)line_bytes - 1,
                           bytes + at + 1); /* fits */
        }
        at += (ssize_t)line_bytes + 1;
        reload->is_within_line = at > got;
    }
}

void serve_reload_on_next_end(struct serve *serve, uint64_t now_ns)
{
    char end_text[64];
    char text[2 * LAUNCHER_TEXT_BYTES];
    if (serve->next_ready_fd >= 0) {
        serve_reload_on_ready(serve); /* its last words; or it was ready, and ended since */
    }
    if (serve->next.pid == 0) {
        return;
    }
    struct child_end end = child_reap(&serve->next, false, now_ns);
    serve_close_fd(&serve->next_ready_fd);
    child_end_text(end, end_text);
    if (serve->reload.reason[0] != '\0') {
        (void)snprintf(text, sizeof(text), "%s; the old frontend goes on", serve->reload.reason);
    } else {
        (void)snprintf(text, sizeof(text),
                       "the new frontend ended with %s before it was ready; the old one goes on",
                       end_text);
    }
    if (serve->reload.is_running) {
        end_reload(serve, false, text);
    }
}

void serve_reload_on_leaving_end(struct serve *serve, uint64_t now_ns)
{
    char text[64];
    struct child_end end = child_reap(&serve->leaving, true, now_ns);
    child_end_text(end, text);
    bool is_good = !end.by_signal && end.code == 0;
    if (is_good) {
        log_info("serve", "old_frontend_gone", "end=\"%s\"", text);
    } else {
        log_warn("serve", "old_frontend_gone", "end=\"%s\"", text);
    }
}

void serve_reload_adopt(struct serve *serve)
{
    if (serve->next.pid == 0) {
        return;
    }
    take_place(serve);
    serve->ready_fd = serve->next_ready_fd;
    serve->next_ready_fd = -1;
    serve->frontend_is_ready = false;
    serve->reload.is_adopted = true;
    child_signal(&serve->frontend, CHILD_ALONE_SIGNAL);
}

void serve_reload_on_adopted(struct serve *serve, bool is_ready)
{
    if (serve->reload.is_running && serve->reload.is_adopted) {
        end_reload(serve, is_ready,
                   is_ready ? "the new frontend serves; the old one had ended meanwhile"
                            : "the old frontend ended meanwhile, and the new one too");
    }
}

void serve_reload_abandon(struct serve *serve, const char *why)
{
    if (serve->reload.is_running) {
        end_reload(serve, false, why);
    }
}

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

uint64_t serve_reload_next_ns(const struct serve *serve)
{
    uint64_t next_ns = serve->reload.is_running ? serve->reload.deadline_ns : UINT64_MAX;
    next_ns = serve->leaving.pid != 0 ? earlier(next_ns, serve->leave_deadline_ns) : next_ns;
    return serve->asking_fd >= 0 ? earlier(next_ns, serve->asking_until_ns) : next_ns;
}

static void on_reload_deadline(struct serve *serve)
{
    char text[2 * LAUNCHER_TEXT_BYTES];
    const char *reason = serve->reload.reason;
    (void)snprintf(text, sizeof(text),
                   "the new frontend was not ready within %u s%s%s; the old one %s",
                   serve->options->reload_timeout_s, reason[0] == '\0' ? "" : ": ", reason,
                   serve->reload.is_adopted ? "has ended" : "goes on"); /* fits */
    if (serve->reload.is_adopted) {
        end_reload(serve, false, text);
        return;
    }
    child_signal(&serve->next, SIGKILL); /* its end is reported by its pidfd */
    end_reload(serve, false, text);
}

void serve_reload_tick(struct serve *serve, uint64_t now_ns)
{
    if (serve->reload.is_running && now_ns >= serve->reload.deadline_ns) {
        on_reload_deadline(serve);
    }
    if (serve->leaving.pid != 0 && now_ns >= serve->leave_deadline_ns) {
        log_warn("serve", "killing",
                 "program=frontend reason=\"handed over, and still there at the deadline\"");
        child_signal(&serve->leaving, SIGKILL);
        serve->leave_deadline_ns = UINT64_MAX; /* once */
    }
    if (serve->asking_fd >= 0 && now_ns >= serve->asking_until_ns) {
        serve_close_fd(&serve->asking_fd);
    }
}

void serve_reload_on_client(struct serve *serve, uint64_t now_ns)
{
    serve->asking_fd = accept4(serve->control_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    serve->asking_until_ns = now_ns + ASK_NS;
}

void serve_reload_on_request(struct serve *serve, uint64_t now_ns)
{
    static const char reload[] = "reload";
    char request[64];
    int fd = serve->asking_fd;
    ssize_t got = recv(fd, request, sizeof(request), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    serve->asking_fd = -1;
    if (got == (ssize_t)strlen(reload) && memcmp(request, reload, strlen(reload)) == 0) {
        serve_reload_begin(serve, fd, now_ns);
    } else {
        answer(fd, false, "the launcher knows one request, reload");
    }
}
