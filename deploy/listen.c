#include "deploy/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    FIRST_INHERITED_FD = 3, /* SD_LISTEN_FDS_START */
    BACKLOG = 4096          /* connections that wait while the frontend restarts */
};

static enum err_code open_one(const struct addrinfo *address, int *out_fd)
{
    int one = 1;
    int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    address->ai_protocol);
    if (fd < 0) {
        return ERR_SYSTEM;
    }
    bool is_open = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
                   bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    if (!is_open) {
        int failure = errno;
        (void)close(fd); /* unused */
        errno = failure;
        return ERR_SYSTEM;
    }
    *out_fd = fd;
    return ERR_OK;
}

enum err_code listen_open(const char *host, uint32_t port, int *out_fd, struct err *err)
{
    char service[16];
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    (void)snprintf(service, sizeof(service), "%u", port); /* fits */
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure != 0) {
        return err_set(err, ERR_ARGUMENT, "no address '%s' to listen on: %s", host,
                       gai_strerror(failure));
    }
    enum err_code code = ERR_SYSTEM;
    for (const struct addrinfo *at = found; at != NULL && code != ERR_OK; at = at->ai_next) {
        code = open_one(at, out_fd);
    }
    if (code != ERR_OK && errno == EADDRINUSE) {
        code = err_set(err, ERR_SYSTEM, "port %u of %s is in use; choose another with --port", port,
                       host);
    } else if (code != ERR_OK) {
        code = err_errno(err, errno, "listening on %s port %u", host, port);
    }
    freeaddrinfo(found);
    return code;
}

static bool is_listening(int fd)
{
    int accepts = 0;
    socklen_t byte_count = sizeof(accepts);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &byte_count) == 0 && accepts != 0;
}

enum err_code listen_inherited(int *out_fd, struct err *err)
{
    const char *pid = getenv("LISTEN_PID");   /* NOLINT(concurrency-mt-unsafe): one thread */
    const char *count = getenv("LISTEN_FDS"); /* NOLINT(concurrency-mt-unsafe): one thread */
    *out_fd = -1;
    if (pid == NULL || count == NULL || strtol(pid, NULL, 10) != getpid()) {
        return ERR_OK;
    }
    if (strcmp(count, "1") != 0) {
        return err_set(err, ERR_ARGUMENT, "LISTEN_FDS is '%s', must be 1 socket", count);
    }
    int flags = fcntl(FIRST_INHERITED_FD, F_GETFL);
    if (!is_listening(FIRST_INHERITED_FD) || flags < 0 ||
        fcntl(FIRST_INHERITED_FD, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(FIRST_INHERITED_FD, F_SETFD, FD_CLOEXEC) != 0) {
        return err_set(err, ERR_ARGUMENT, "descriptor %d of LISTEN_FDS is not a listening socket",
                       FIRST_INHERITED_FD);
    }
    *out_fd = FIRST_INHERITED_FD;
    return ERR_OK;
}

void listen_address_text(int fd, char *out, size_t out_bytes)
{
    struct sockaddr_storage address = {0};
    socklen_t byte_count = sizeof(address);
    char host[NI_MAXHOST];
    char service[NI_MAXSERV];
    (void)snprintf(out, out_bytes, "unknown address");
    if (getsockname(fd, (struct sockaddr *)&address, &byte_count) != 0) {
        return;
    }
    if (address.ss_family == AF_UNIX) {
        const struct sockaddr_un *local = (const struct sockaddr_un *)&address;
        (void)snprintf(out, out_bytes, "%s", local->sun_path); /* shown only */
        return;
    }
    if (getnameinfo((struct sockaddr *)&address, byte_count, host, sizeof(host), service,
                    sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        bool is_v6 = strchr(host, ':') != NULL;
        (void)snprintf(out, out_bytes, "%s%s%s:%s", is_v6 ? "[" : "", host, is_v6 ? "]" : "",
                       service); /* shown only */
    }
}
