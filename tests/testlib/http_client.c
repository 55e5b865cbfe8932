#include "tests/testlib/http_client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/testlib/test.h"

enum {
    WAIT_MS = 60000
};

void http_client_open(struct http_client *client, uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    client->is_head = false;
    buf_init(&client->input);
    test_true(client->fd >= 0);
    test_true(connect(client->fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    int on = 1;
    test_true(setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

void http_client_close(struct http_client *client)
{
    (void)close(client->fd);
    client->fd = -1;
    buf_fini(&client->input);
}

void http_client_reset(struct http_client *client)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    test_true(setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
    http_client_close(client);
}

void http_client_send(struct http_client *client, const void *bytes, size_t byte_count)
{
    const char *at = bytes;
    while (byte_count > 0) {
        ssize_t count = send(client->fd, at, byte_count, MSG_NOSIGNAL);
        if (count < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            return; /* the answer, if any, says why */
        }
        test_true(count > 0);
        at += count;
        byte_count -= (size_t)count;
    }
}

void http_client_request(struct http_client *client, const char *method, const char *path,
                         const char *extra_headers, const char *body)
{
    struct buf request;
    client->is_head = strcmp(method, "HEAD") == 0;
    buf_init(&request);
    buf_printf(&request, "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, extra_headers);
    if (body) {
        buf_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                   strlen(body));
    }
    buf_append_text(&request, "\r\n");
    buf_append_text(&request, body ? body : "");
    http_client_send(client, request.at, request.used_bytes);
    buf_fini(&request);
}

/* More bytes; false when the server has closed. */
static bool receive(struct http_client *client)
{
    char bytes[8192];
    struct pollfd poll_fd = {.fd = client->fd, .events = POLLIN};
    if (poll(&poll_fd, 1, WAIT_MS) != 1) {
        test_fail(__FILE__, __LINE__, "no bytes within %d ms; so far: %.400s", WAIT_MS,
                  buf_text(&client->input));
    }
    ssize_t count = recv(client->fd, bytes, sizeof(bytes), 0);
    if (count <= 0) {
        return false;
    }
    buf_append(&client->input, bytes, (size_t)count);
    return true;
}

static void consume(struct http_client *client, size_t byte_count)
{
    struct buf *input = &client->input;
    memmove(input->at, input->at + byte_count, input->used_bytes - byte_count);
    input->used_bytes -= byte_count;
    input->at[input->used_bytes] = '\0';
}

/* Bytes up to and including the end mark, received as needed; 0 when the server closed first. */
static size_t await_mark(struct http_client *client, const char *mark)
{
    for (;;) {
        const char *found =
            client->input.used_bytes > 0
                ? memmem(client->input.at, client->input.used_bytes, mark, strlen(mark))
                : NULL;
        if (found) {
            return (size_t)(found - client->input.at) + strlen(mark);
        }
        if (!receive(client)) {
            return 0;
        }
    }
}

bool http_client_take(struct http_client *client, size_t byte_count, struct buf *out)
{
    while (client->input.used_bytes < byte_count) {
        if (!receive(client)) {
            return false;
        }
    }
    if (out && byte_count > 0) {
        buf_append(out, client->input.at, byte_count);
    }
    consume(client, byte_count);
    return true;
}

static bool read_chunks(struct http_client *client, struct buf *out)
{
    for (;;) {
        size_t line_bytes = await_mark(client, "\r\n");
        if (line_bytes == 0) {
            return false;
        }
        size_t chunk_bytes = strtoul(client->input.at, NULL, 16);
        consume(client, line_bytes);
        if (!http_client_take(client, chunk_bytes, out) || !http_client_take(client, 2, NULL)) {
            return false;
        }
        if (chunk_bytes == 0) {
            return true;
        }
    }
}

void http_client_read(struct http_client *client, struct http_answer *out_answer)
{
    memset(out_answer, 0, sizeof(*out_answer));
    buf_init(&out_answer->head);
    buf_init(&out_answer->body);
    size_t head_bytes = await_mark(client, "\r\n\r\n");
    if (head_bytes == 0) {
        out_answer->has_closed = true; /* status 0 */
        return;
    }
    buf_append(&out_answer->head, client->input.at, head_bytes);
    consume(client, head_bytes);
    out_answer->status = atoi(buf_text(&out_answer->head) + strlen("HTTP/1.1 "));
    const char *length = http_answer_header(out_answer, "content-length");
    bool is_complete = true;
    if (client->is_head) {
        return;
    }
    if (length) {
        is_complete = http_client_take(client, strtoul(length, NULL, 10), &out_answer->body);
    } else if (http_answer_header(out_answer, "transfer-encoding")) {
        is_complete = read_chunks(client, &out_answer->body);
    }
    out_answer->has_closed = !is_complete;
}

void http_answer_fini(struct http_answer *answer)
{
    buf_fini(&answer->head);
    buf_fini(&answer->body);
}

const char *http_answer_header(const struct http_answer *answer, const char *name)
{
    static _Thread_local char value[512];
    size_t name_bytes = strlen(name);
    const char *line = strchr(buf_text(&answer->head), '\n');
    for (; line; line = strchr(line + 1, '\n')) {
        if (strncasecmp(line + 1, name, name_bytes) == 0 && line[1 + name_bytes] == ':') {
            const char *start = line + 1 + name_bytes + 1;
            start += strspn(start, " ");
            (void)snprintf(value, sizeof(value), "%.*s", (int)strcspn(start, "\r\n"), start);
            return value;
        }
    }
    return NULL;
}

bool http_client_await(struct http_client *client, const char *text)
{
    return await_mark(client, text) > 0;
}

void http_client_once(uint16_t port, const char *method, const char *path, const char *body,
                      struct http_answer *out_answer)
{
    struct http_client client;
    http_client_open(&client, port);
    http_client_request(&client, method, path, "", body);
    http_client_read(&client, out_answer);
    http_client_close(&client);
}

uint64_t http_client_metric(uint16_t port, const char *name)
{
    struct http_answer answer;
    char line[200];
    http_client_once(port, "GET", "/metrics", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    (void)snprintf(line, sizeof(line), "\n%s{", name);
    const char *found = strstr(buf_text(&answer.body), line);
    if (!found) {
        test_fail(__FILE__, __LINE__, "no metric %s", name);
    }
    uint64_t value = strtoull(strchr(found, '}') + 1, NULL, 10);
    http_answer_fini(&answer);
    return value;
}
