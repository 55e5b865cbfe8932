#include "frontend/http_conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <h2o.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/app.h"
#include "frontend/loop.h"

enum {
    EVENTS_PER_READ = 64,
    LINGER_MAX = 256, /* connections read to their end at once */
    LINGER_SECONDS = 5,
};

struct http_conn {
    struct http_conn *next;
    struct http_conn **slot;
    struct http_conns *conns; /* borrowed */
    h2o_socket_t *socket;     /* borrowed from h2o; null once it lingers */
    int fd;                   /* h2o's, or an own duplicate once it lingers */
    struct http_conn_guest *guests;
    uint64_t header_since_ns; /* a request's header began; 0 none */
    uint64_t linger_until_ns;
    uint64_t resets_since_ns;
    uint32_t reset_count; /* within a second from then on */
    bool is_gone;
    bool must_linger;
};

struct http_conns {
    struct app *app;          /* borrowed */
    struct loop_watch *watch; /* owned; of epoll_fd */
    int epoll_fd;
    struct http_conn *first;
    struct http_conn *lingering;
    uint32_t count;
    uint32_t linger_count;
    void (*on_room)(void *owner);
    void *room_owner;
};

static void link_conn(struct http_conn **first, struct http_conn *conn)
{
    conn->next = *first;
    conn->slot = first;
    if (conn->next) {
        conn->next->slot = &conn->next;
    }
    *first = conn;
}

static void unlink_conn(struct http_conn *conn)
{
    *conn->slot = conn->next;
    if (conn->next) {
        conn->next->slot = conn->slot;
    }
}

static void end_linger(struct http_conn *conn)
{
    unlink_conn(conn);
    conn->conns->linger_count--;
    (void)close(conn->fd); /* nothing is left to lose */
    mem_free(conn);
}

/* Throw away what the client still sends. */
static void read_on(struct http_conn *conn)
{
    char scratch[8192];
    for (;;) {
        ssize_t count = read(conn->fd, scratch, sizeof(scratch));
        if (count > 0) {
            continue;
        }
        if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
            end_linger(conn);
        }
        return;
    }
}

static void tell_guests(struct http_conn *conn)
{
    conn->is_gone = true;
    struct http_conn_guest *guest;
    /* Each call takes its guest off, and may free the connection with the last. */
    while ((guest = conn->guests) != NULL) {
        bool was_last = guest->next == NULL;
        http_conn_remove_guest(guest);
        guest->on_gone(guest);
        if (was_last) {
            return;
        }
    }
}

static void on_events(void *owner, int fd)
{
    struct http_conns *conns = owner;
    struct epoll_event events[EVENTS_PER_READ];
    int count = epoll_wait(fd, events, EVENTS_PER_READ, 0);
    for (int i = 0; i < count; i++) {
        struct http_conn *conn = events[i].data.ptr;
        if (conn->linger_until_ns > 0) {
            read_on(conn);
        } else {
            tell_guests(conn);
        }
    }
    (void)conns; /* the events carry their connections */
}

enum err_code http_conns_create(struct app *app, struct http_conns **out_conns, struct err *err)
{
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) {
        return err_errno(err, errno, "creating an epoll descriptor");
    }
    struct http_conns *conns = mem_zalloc(1, sizeof(*conns));
    conns->app = app;
    conns->epoll_fd = epoll_fd;
    conns->watch = loop_watch_create(app->loop, epoll_fd, on_events, conns);
    *out_conns = conns;
    return ERR_OK;
}

void http_conns_destroy(struct http_conns *conns)
{
    if (!conns) {
        return;
    }
    while (conns->lingering) {
        end_linger(conns->lingering);
    }
    loop_watch_destroy(conns->watch); /* closes epoll_fd */
    mem_free(conns);
}

/* h2o has closed the socket; its descriptor is gone from the epoll set with it. */
static void on_closed(void *data)
{
    struct http_conn *conn = data;
    struct http_conns *conns = conn->conns;
    unlink_conn(conn);
    conns->count--;
    if (conns->on_room) {
        conns->on_room(conns->room_owner);
    }
    if (!conn->must_linger) {
        mem_free(conn);
        return;
    }
    conn->socket = NULL;
    conn->linger_until_ns = clock_now_ns() + LINGER_SECONDS * CLOCK_NS_PER_SEC;
    link_conn(&conns->lingering, conn);
    conns->linger_count++;
    (void)shutdown(conn->fd, SHUT_WR); /* fails where the client has reset: read_on sees it */
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = conn};
    if (epoll_ctl(conns->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) != 0) {
        end_linger(conn);
    }
}

void http_conns_add(struct http_conns *conns, struct st_h2o_socket_t *socket)
{
    struct http_conn *conn = mem_zalloc(1, sizeof(*conn));
    conn->conns = conns;
    conn->socket = socket;
    conn->fd = h2o_socket_get_fd(socket);
    link_conn(&conns->first, conn);
    conns->count++;
    socket->on_close.cb = on_closed;
    socket->on_close.data = conn;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = conn};
    if (epoll_ctl(conns->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) != 0) {
        conn->is_gone = true; /* cannot be watched: nothing long may run for it */
    }
}

uint32_t http_conns_count(const struct http_conns *conns)
{
    return conns->count;
}

void http_conns_set_room(struct http_conns *conns, void (*on_room)(void *owner), void *owner)
{
    conns->on_room = on_room;
    conns->room_owner = owner;
}

void http_conns_shut_all(struct http_conns *conns)
{
    for (struct http_conn *conn = conns->first; conn; conn = conn->next) {
        http_conn_shut(conn);
    }
}

/* An HTTP/1 request whose header is not complete: bytes are there, but no end of a header. */
static bool is_in_header(const struct http_conn *conn)
{
    const h2o_buffer_t *input = conn->socket->input;
    if (conn->guests || !h2o_socket_is_reading(conn->socket) || !input || input->size == 0) {
        return false;
    }
    size_t seen_bytes = input->size < H2O_MAX_REQLEN ? input->size : H2O_MAX_REQLEN;
    return memmem(input->bytes, seen_bytes, "\r\n\r\n", 4) == NULL;
}

void http_conns_sweep(struct http_conns *conns, uint64_t now_ns)
{
    uint64_t limit_ns = conns->app->options->header_timeout_s * CLOCK_NS_PER_SEC;
    for (struct http_conn *conn = conns->first; conn; conn = conn->next) {
        if (!is_in_header(conn)) {
            conn->header_since_ns = 0;
        } else if (conn->header_since_ns == 0) {
            conn->header_since_ns = now_ns;
        } else if (now_ns - conn->header_since_ns > limit_ns) {
            conns->app->metrics.header_timeouts++;
            http_conn_shut(conn);
        }
    }
    struct http_conn *next;
    for (struct http_conn *conn = conns->lingering; conn; conn = next) {
        next = conn->next;
        if (now_ns > conn->linger_until_ns) {
            end_linger(conn);
        }
    }
}

struct http_conn *http_conn_of(struct st_h2o_req_t *request)
{
    h2o_socket_t *socket = request->conn->callbacks->get_socket(request->conn);
    return socket->on_close.data;
}

bool http_conn_is_gone(const struct http_conn *conn)
{
    return conn->is_gone;
}

bool http_conn_is_dead(const struct http_conn *conn)
{
    struct pollfd state = {.fd = conn->fd};
    return poll(&state, 1, 0) == 1 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

void http_conn_add_guest(struct http_conn *conn, struct http_conn_guest *guest)
{
    guest->next = conn->guests;
    guest->slot = &conn->guests;
    if (guest->next) {
        guest->next->slot = &guest->next;
    }
    conn->guests = guest;
}

void http_conn_remove_guest(struct http_conn_guest *guest)
{
    if (!guest->slot) {
        return;
    }
    *guest->slot = guest->next;
    if (guest->next) {
        guest->next->slot = guest->slot;
    }
    guest->slot = NULL;
    guest->next = NULL;
}

void http_conn_shut(struct http_conn *conn)
{
    (void)shutdown(conn->fd, SHUT_RDWR); /* fails where the peer has reset: then h2o sees that */
}

void http_conn_count_reset(struct http_conn *conn)
{
    struct app *app = conn->conns->app;
    uint64_t now_ns = clock_now_ns();
    if (now_ns - conn->resets_since_ns > CLOCK_NS_PER_SEC) {
        conn->resets_since_ns = now_ns;
        conn->reset_count = 0;
    }
    conn->reset_count++;
    if (conn->reset_count == app->options->max_resets_per_s + 1) {
        app->metrics.reset_floods++;
        log_warn("http", "too_many_resets", "in_a_second=%u limit=%u", conn->reset_count,
                 app->options->max_resets_per_s);
        http_conn_shut(conn);
    }
}

void http_conn_linger(struct http_conn *conn)
{
    if (conn->must_linger || conn->conns->linger_count >= LINGER_MAX) {
        return;
    }
    int fd = fcntl(conn->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return; /* out of descriptors: close at once */
    }
    (void)epoll_ctl(conn->conns->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL); /* h2o closes it */
    conn->fd = fd;
    conn->must_linger = true;
}
