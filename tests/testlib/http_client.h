/* A blocking HTTP/1.1 client for tests: raw enough to send what no well-behaved client would.
 *
 * Every wait has a deadline of a minute, after which the test fails. */
#ifndef TESTS_TESTLIB_HTTP_CLIENT_H
#define TESTS_TESTLIB_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"

struct http_client {
    int fd;
    struct buf input; /* received and not yet consumed */
    bool is_head;     /* the last request was HEAD: its answer has no body */
};

struct http_answer {
    int status;
    struct buf head; /* status line and headers */
    struct buf body; /* without chunk framing */
    bool has_closed; /* the server closed after it */
};

void http_client_open(struct http_client *client, uint16_t port);
/* Orderly: FIN. */
void http_client_close(struct http_client *client);
/* RST. */
void http_client_reset(struct http_client *client);

void http_client_send(struct http_client *client, const void *bytes, size_t byte_count);
/* method, path and body with Content-Length; extra_headers as lines ending in CRLF, or "". */
void http_client_request(struct http_client *client, const char *method, const char *path,
                         const char *extra_headers, const char *body);

/* Read one whole answer. */
void http_client_read(struct http_client *client, struct http_answer *out_answer);
void http_answer_fini(struct http_answer *answer);
/* Value of a header, lower-case name; null where absent.  Borrowed until the next call. */
const char *http_answer_header(const struct http_answer *answer, const char *name);

/* Read until text has arrived somewhere in the answer's bytes; true unless the server closed. */
bool http_client_await(struct http_client *client, const char *text);

/* Take byte_count bytes off what arrives; out may be null.  False when the server closed first. */
bool http_client_take(struct http_client *client, size_t byte_count, struct buf *out);

/* Open, request, read, close: for one-shot checks. */
void http_client_once(uint16_t port, const char *method, const char *path, const char *body,
                      struct http_answer *out_answer);

/* Value of the first sample of that name on /metrics; fails the test where there is none. */
uint64_t http_client_metric(uint16_t port, const char *name);

#endif
