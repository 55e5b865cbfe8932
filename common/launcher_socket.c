#include "common/launcher_socket.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static enum err_code fill_address(const char *run_dir, struct sockaddr_un *address, struct err *err)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length =
        snprintf(address->sun_path, sizeof(address->sun_path), "%s/launcher.sock", run_dir);
    if (length < 0 || (size_t)length >= sizeof(address->sun_path)) {
        return err_set(err, ERR_ARGUMENT, "run directory has a path of %zu bytes, at most %d",
                       strlen(run_dir), 79);
    }
    return ERR_OK;
}

enum err_code launcher_socket_open(const char *run_dir, int *out_fd, struct err *err)
{
    struct sockaddr_un address;
    enum err_code code = fill_address(run_dir, &address, err);
    if (code != ERR_OK) {
        return code;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlink(address.sun_path); /* binding says where it stays */
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(fd, 8) != 0) {
        code = err_errno(err, errno, "listening on '%s'", address.sun_path);
        if (fd >= 0) {
            (void)close(fd); /* unused */
        }
        return code;
    }
    *out_fd = fd;
    return ERR_OK;
}

void launcher_socket_close(const char *run_dir, int *fd)
{
    struct sockaddr_un address;
    if (*fd < 0) {
        return;
    }
    (void)close(*fd); /* a handle only */
    *fd = -1;
    if (fill_address(run_dir, &address, NULL) == ERR_OK) {
        (void)unlink(address.sun_path); /* the next launcher replaces it anyway */
    }
}

enum err_code launcher_socket_begin(const char *run_dir, const char *request, int *out_fd,
                                    struct err *err)
{
    struct sockaddr_un address;
    enum err_code code = fill_address(run_dir, &address, err);
    if (code != ERR_OK) {
        return code;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return err_errno(err, errno, "opening a socket");
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        code = errno == ENOENT || errno == ECONNREFUSED
                   ? err_set(err, ERR_NOT_FOUND, "no bezel serve runs with run directory '%s'",
                             run_dir)
                   : err_errno(err, errno, "connecting to '%s'", address.sun_path);
    } else if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request)) {
        code = err_set(err, ERR_CLOSED, "bezel serve ended before it was asked");
    }
    if (code != ERR_OK) {
        (void)close(fd); /* a handle only */
        return code;
    }
    *out_fd = fd;
    return ERR_OK;
}

enum err_code launcher_socket_finish(int fd, char out_text[LAUNCHER_TEXT_BYTES], struct err *err)
{
    static const char ok[] = "ok ";
    static const char error[] = "error ";
    char answer[LAUNCHER_TEXT_BYTES];
    ssize_t got;
    do {
        got = recv(fd, answer, sizeof(answer) - 1, 0);
    } while (got < 0 && errno == EINTR);
    (void)close(fd); /* a handle only */
    if (got <= 0) {
        return err_set(err, ERR_CLOSED, "bezel serve ended before it answered");
    }
    answer[got] = '\0';
    if (strncmp(answer, ok, strlen(ok)) == 0) {
        (void)snprintf(out_text, LAUNCHER_TEXT_BYTES, "%s", answer + strlen(ok)); /* fits */
        return ERR_OK;
    }
    bool is_error = strncmp(answer, error, strlen(error)) == 0;
    return err_set(err, ERR_BUSY, "%s", answer + (is_error ? strlen(error) : 0));
}

enum err_code launcher_socket_ask(const char *run_dir, const char *request,
                                  char out_text[LAUNCHER_TEXT_BYTES], struct err *err)
{
    int fd = -1;
    enum err_code code = launcher_socket_begin(run_dir, request, &fd, err);
    return code != ERR_OK ? code : launcher_socket_finish(fd, out_text, err);
}
