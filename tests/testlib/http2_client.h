/* An HTTP/2 client for tests, with prior knowledge (no TLS) and nothing it does not need: requests
 * with a body, RST_STREAM, and the DATA that comes back.  Waits end as http_client's do. */
#ifndef TESTS_TESTLIB_HTTP2_CLIENT_H
#define TESTS_TESTLIB_HTTP2_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "tests/testlib/http_client.h"

struct http2_client {
    struct http_client wire;
    uint32_t last_stream;
    struct buf data;        /* payload of all DATA frames */
    uint32_t ended_streams; /* END_STREAM seen */
    uint32_t reset_streams; /* RST_STREAM seen */
    bool has_goaway;
};

void http2_client_open(struct http2_client *client, uint16_t port);
void http2_client_close(struct http2_client *client);

/* POST body to path; returns the stream's number. */
uint32_t http2_client_post(struct http2_client *client, const char *path, const char *body);

void http2_client_reset_stream(struct http2_client *client, uint32_t stream);

/* Read frames until text is somewhere in data; false when the server closed first. */
bool http2_client_await(struct http2_client *client, const char *text);
/* Read frames until count streams have ended or were reset. */
bool http2_client_await_ends(struct http2_client *client, uint32_t count);

#endif
