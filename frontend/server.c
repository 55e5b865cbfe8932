#include "frontend/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <h2o.h>
#include <h2o/http1.h>
#include <h2o/http2.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/app.h"
#include "frontend/engine.h"
#include "frontend/http_admin.h"
#include "frontend/http_conn.h"
#include "frontend/http_generate.h"
#include "frontend/http_reply.h"
#include "frontend/http_route.h"
#include "frontend/http_tls.h"
#include "frontend/loop.h"

enum {
    ACCEPTS_PER_EVENT = 32,
    TICK_MS = 1000,
    DRAIN_TICK_MS = 20,
    DRAIN_GRACE_MS = 100,   /* for a request that crosses with the end on a kept connection */
    DRAIN_CANCEL_MS = 2000, /* for the last answers after the timeout */
    CLOSE_TURNS = 64,       /* of the loop, for connections to close at the end */
    RECEIVE_BUFFER_BYTES = 128 << 10, /* the kernel doubles both for its own bookkeeping */
    SEND_BUFFER_BYTES = 256 << 10,    /* else it would keep megabytes for each slow reader */
    KEEPALIVE_IDLE_S = 60,            /* probes find peers that vanished without a word */
    KEEPALIVE_INTERVAL_S = 15,
    KEEPALIVE_PROBES = 4,
    BODY_SLACK_BYTES = 4 << 20, /* read beyond the limit, so that HTTP/2 clients get a 413, too */
};

struct server {
    struct app *app;          /* borrowed */
    struct http_calls *calls; /* owned */
    h2o_globalconf_t config;
    h2o_context_t context;
    h2o_accept_ctx_t accept;
    struct ssl_ctx_st *tls; /* owned; null: plain */
    h2o_socket_t *listener; /* owned; null once draining */
    bool is_open;
    bool is_paused; /* not accepting: too many connections or descriptors */
    struct loop_timer *tick;
    struct loop_timer *drain_tick;
    uint64_t drain_deadline_ns;
    uint64_t idle_since_ns; /* draining: nothing was open from then on */
    bool was_cancelled;
};

static void on_accept(h2o_socket_t *listener, const char *err);

static void pause_accepting(struct server *server, const char *reason)
{
    if (!server->is_paused) {
        server->is_paused = true;
        h2o_socket_read_stop(server->listener);
        log_warn("server", "accept_paused", "reason=%s connections=%u", reason,
                 http_conns_count(server->app->conns));
    }
}

static void resume_accepting(struct server *server)
{
    if (server->is_paused && server->listener) { /* it was open, then */
        server->is_paused = false;
        h2o_socket_read_start(server->listener, on_accept);
    }
}

static void on_room(void *owner)
{
    resume_accepting(owner);
}

static void on_accept(h2o_socket_t *listener, const char *err)
{
    struct server *server = listener->data;
    if (err) {
        return; /* the next event tells again */
    }
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        if (http_conns_count(server->app->conns) >= server->app->options->max_connections) {
            pause_accepting(server, "max_connections");
            return;
        }
        errno = 0;
        h2o_socket_t *socket = h2o_evloop_socket_accept(listener);
        if (!socket) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                pause_accepting(server, "no_descriptor");
            }
            return;
        }
        http_conns_add(server->app->conns, socket);
        h2o_accept(&server->accept, socket);
    }
}

/* Nothing runs, and no client can be about to send on a connection that would be closed. */
static bool is_drained(const struct server *server, uint64_t now_ns)
{
    if (http_calls_count(server->calls) > 0) {
        return false;
    }
    bool keeps_idle = server->app->has_successor && !server->was_cancelled;
    return http_conns_count(server->app->conns) == 0 ||
           (!keeps_idle && now_ns - server->idle_since_ns > DRAIN_GRACE_MS * CLOCK_NS_PER_MS);
}

static void end_when_drained(struct server *server, uint64_t now_ns)
{
    bool is_idle = http_calls_count(server->calls) == 0;
    if (!is_idle) {
        server->idle_since_ns = 0;
    } else if (server->idle_since_ns == 0) {
        server->idle_since_ns = now_ns;
    }
    bool is_over = is_drained(server, now_ns);
    if (!is_over && now_ns > server->drain_deadline_ns && !server->was_cancelled) {
        log_warn("server", "drain_timeout", "open_requests=%u connections=%u",
                 server->app->open_count, http_conns_count(server->app->conns));
        server->was_cancelled = true;
        server->drain_deadline_ns = now_ns + DRAIN_CANCEL_MS * CLOCK_NS_PER_MS;
        http_calls_cancel_all(server->calls);
    }
    if (is_over || (server->was_cancelled && now_ns > server->drain_deadline_ns)) {
        loop_stop(server->app->loop);
    }
}

static void on_drain_tick(void *owner)
{
    end_when_drained(owner, clock_now_ns());
}

static void on_tick(void *owner)
{
    struct server *server = owner;
    uint64_t now_ns = clock_now_ns();
    http_conns_sweep(server->app->conns, now_ns);
    http_calls_sweep(server->calls, now_ns);
    http_admin_sweep(server->app, now_ns);
    resume_accepting(server);
}

static bool is_listening(int fd)
{
    int flag = 0;
    socklen_t flag_bytes = sizeof(flag);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &flag, &flag_bytes) == 0 && flag;
}

/* Accepted sockets inherit these.  h2o reads until a socket is drained: a bounded receive buffer
 * bounds what one upload takes of the loop at a time. */
static void set_socket_options(int fd, const struct options *options)
{
    const struct {
        int level;
        int name;
        int value;
    } rows[] = {
        {SOL_SOCKET, SO_RCVBUF, RECEIVE_BUFFER_BYTES},
        {SOL_SOCKET, SO_SNDBUF, SEND_BUFFER_BYTES},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
        {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
        {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES},
        /* Bytes that nobody takes or acknowledges: a peer without room counts, too. */
        {IPPROTO_TCP, TCP_USER_TIMEOUT, (int)options->write_timeout_s * 1000},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        /* A Unix socket has no probes and needs none. */
        (void)setsockopt(fd, rows[i].level, rows[i].name, &rows[i].value, sizeof(rows[i].value));
    }
}

static void configure(struct server *server)
{
    const struct options *options = server->app->options;
    h2o_globalconf_t *config = &server->config;
    h2o_config_init(config);
    config->server_name = h2o_iovec_init(H2O_STRLIT("bezel"));
    config->max_request_entity_size = ((size_t)options->max_body_mb << 20) + BODY_SLACK_BYTES;
    config->http1.req_timeout = options->keep_alive_s * 1000ULL;
    config->http2.idle_timeout = options->keep_alive_s * 1000ULL;
    config->handshake_timeout = options->header_timeout_s * 1000ULL;
    h2o_hostconf_t *host =
        h2o_config_register_host(config, h2o_iovec_init(H2O_STRLIT("default")), 65535);
    h2o_pathconf_t *path = h2o_config_register_path(host, "/", 0);
    path->error_log.emit_request_errors = 0;
    host->fallback_path.error_log.emit_request_errors = 0;
    http_reply_reshape_errors(server->app, path);
    http_reply_reshape_errors(server->app, &host->fallback_path);
    http_route_install(server->app, server->calls, path);
}

enum err_code server_create(struct app *app, int listen_fd, struct server **out_server,
                            struct err *err)
{
    if (!is_listening(listen_fd)) {
        return err_set(err, ERR_ARGUMENT, "descriptor %d is not a listening socket", listen_fd);
    }
    struct http_conns *conns = NULL;
    struct ssl_ctx_st *tls = NULL;
    const struct options *options = app->options;
    enum err_code code = ERR_OK;
    if (options->tls_cert) {
        code = http_tls_create(options->tls_cert, options->tls_key, &tls, err);
    }
    if (!code) {
        code = http_conns_create(app, &conns, err);
    }
    if (code) {
        http_tls_destroy(tls);
        return code;
    }
    struct server *server = mem_zalloc(1, sizeof(*server));
    server->app = app;
    server->tls = tls;
    app->conns = conns;
    server->calls = http_calls_create(app);
    configure(server);
    h2o_context_init(&server->context, loop_h2o(app->loop), &server->config);
    server->accept.ctx = &server->context;
    server->accept.hosts = server->config.hosts;
    server->accept.ssl_ctx = tls;
    set_socket_options(listen_fd, options);
    server->listener =
        h2o_evloop_socket_create(loop_h2o(app->loop), listen_fd, H2O_SOCKET_FLAG_DONT_READ);
    server->listener->data = server;
    http_conns_set_room(conns, on_room, server);
    server->tick = loop_timer_create(app->loop, TICK_MS, on_tick, server);
    *out_server = server;
    return ERR_OK;
}

void server_open(struct server *server)
{
    if (server->listener && !server->is_open) {
        server->is_open = true;
        h2o_socket_read_start(server->listener, on_accept);
    }
}

static void close_listener(struct server *server)
{
    if (server->listener) {
        h2o_socket_read_stop(server->listener);
        h2o_socket_close(server->listener);
        server->listener = NULL;
    }
}

static void drain(struct server *server, bool has_successor)
{
    struct app *app = server->app;
    bool was_draining = app->is_draining;
    if (was_draining && app->has_successor == has_successor) {
        return;
    }
    app->is_draining = true;
    app->has_successor = has_successor;
    server->drain_deadline_ns = clock_now_ns() + app->options->drain_timeout_s * CLOCK_NS_PER_SEC;
    log_info("server", has_successor ? "handing_over" : "draining",
             "open_requests=%u connections=%u timeout_s=%u", app->open_count,
             http_conns_count(app->conns), app->options->drain_timeout_s);
    if (was_draining) {
        return;
    }
    close_listener(server);
    h2o_context_request_shutdown(&server->context);
    server->drain_tick = loop_timer_create(server->app->loop, DRAIN_TICK_MS, on_drain_tick, server);
}

void server_drain(struct server *server)
{
    drain(server, false);
}

void server_hand_over(struct server *server)
{
    if (!server->app->is_draining) {
        drain(server, true);
        engine_leave(server->app->engine);
    }
}

void server_hurry(struct server *server)
{
    server_drain(server);
    server->drain_deadline_ns = clock_now_ns();
}

void server_destroy(struct server *server)
{
    if (!server) {
        return;
    }
    struct app *app = server->app;
    for (int i = 0; i < CLOSE_TURNS && http_calls_count(server->calls) > 0; i++) {
        loop_turn(app->loop);
    }
    loop_timer_destroy(server->drain_tick);
    loop_timer_destroy(server->tick);
    h2o_timeout_unlink(&server->context.http2._graceful_shutdown_timeout);
    h2o_multithread_queue_t *queue = server->context.queue;
    h2o_context_dispose(&server->context);
    free(queue); /* left behind by the evloop build of h2o 2.2.5 */
    h2o_config_dispose(&server->config);
    http_conns_destroy(app->conns);
    app->conns = NULL;
    http_calls_destroy(server->calls);
    http_tls_destroy(server->tls);
    mem_free(server);
}

enum err_code server_listen(const char *host, uint32_t port, int *out_fd, uint32_t *out_port,
                            struct err *err)
{
    char service[16];
    (void)snprintf(service, sizeof(service), "%u", port); /* fits */
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *addresses = NULL;
    int status = getaddrinfo(host, service, &hints, &addresses);
    if (status) {
        return err_set(err, ERR_ARGUMENT, "host '%s' cannot be resolved: %s", host,
                       gai_strerror(status));
    }
    int fd = -1;
    enum err_code code = ERR_OK;
    fd = socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
        code = err_errno(err, errno, "listening on %s port %u", host, port);
        goto out;
    }
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } bound = {0};
    socklen_t bound_bytes = sizeof(bound);
    if (getsockname(fd, &bound.any, &bound_bytes) != 0) {
        code = err_errno(err, errno, "asking for the port of %s", host);
        goto out;
    }
    *out_port = ntohs(bound.any.sa_family == AF_INET6 ? bound.six.sin6_port : bound.four.sin_port);
    *out_fd = fd;
    fd = -1;
out:
    if (fd >= 0) {
        (void)close(fd);
    }
    freeaddrinfo(addresses);
    return code;
}

void server_end(struct server *server)
{
    if (!server) {
        return;
    }
    struct app *app = server->app;
    close_listener(server);
    http_calls_cancel_all(server->calls);
    for (int i = 0; i < CLOSE_TURNS && http_conns_count(app->conns) > 0; i++) {
        http_conns_shut_all(app->conns);
        loop_turn(app->loop);
    }
}
