#include "tests/testlib/http2_client.h"

#include <string.h>

#include "tests/testlib/test.h"

enum {
    FRAME_HEAD_BYTES = 9,
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW_UPDATE = 8,
    FLAG_END_STREAM = 1,
    FLAG_ACK = 1,
    FLAG_END_HEADERS = 4,
    DATA_MAX_BYTES = 16384,
};

static void put_frame(struct buf *out, int type, int flags, uint32_t stream, const void *payload,
                      uint32_t payload_bytes)
{
    const unsigned char head[FRAME_HEAD_BYTES] = {
        (unsigned char)(payload_bytes >> 16),
        (unsigned char)(payload_bytes >> 8),
        (unsigned char)payload_bytes,
        (unsigned char)type,
        (unsigned char)flags,
        (unsigned char)(stream >> 24),
        (unsigned char)(stream >> 16),
        (unsigned char)(stream >> 8),
        (unsigned char)stream,
    };
    buf_append(out, head, sizeof(head));
    if (payload_bytes > 0) {
        buf_append(out, payload, payload_bytes);
    }
}

static void send_frame(struct http2_client *client, int type, int flags, uint32_t stream,
                       const void *payload, uint32_t payload_bytes)
{
    struct buf frame;
    buf_init(&frame);
    put_frame(&frame, type, flags, stream, payload, payload_bytes);
    http_client_send(&client->wire, frame.at, frame.used_bytes);
    buf_fini(&frame);
}

void http2_client_open(struct http2_client *client, uint16_t port)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    memset(client, 0, sizeof(*client));
    buf_init(&client->data);
    http_client_open(&client->wire, port);
    http_client_send(&client->wire, preface, sizeof(preface) - 1);
    send_frame(client, FRAME_SETTINGS, 0, 0, NULL, 0);
}

void http2_client_close(struct http2_client *client)
{
    http_client_close(&client->wire);
    buf_fini(&client->data);
}

/* Literal with an indexed name, not added to any table; values below 127 bytes. */
static void put_header(struct buf *out, unsigned char name_index, const char *value)
{
    size_t value_bytes = strlen(value);
    test_true(name_index < 15 && value_bytes < 127);
    buf_append_char(out, (char)name_index);
    buf_append_char(out, (char)value_bytes);
    buf_append(out, value, value_bytes);
}

uint32_t http2_client_post(struct http2_client *client, const char *path, const char *body)
{
    uint32_t stream = client->last_stream == 0 ? 1 : client->last_stream + 2;
    client->last_stream = stream;
    struct buf out;
    struct buf headers;
    buf_init(&out);
    buf_init(&headers);
    buf_append_char(&headers, (char)0x83); /* :method POST */
    buf_append_char(&headers, (char)0x86); /* :scheme http */
    put_header(&headers, 4, path);         /* :path */
    put_header(&headers, 1, "test");       /* :authority */
    put_frame(&out, FRAME_HEADERS, FLAG_END_HEADERS, stream, headers.at,
              (uint32_t)headers.used_bytes);
    size_t left_bytes = strlen(body);
    do {
        uint32_t part_bytes =
            left_bytes < DATA_MAX_BYTES ? (uint32_t)left_bytes : (uint32_t)DATA_MAX_BYTES;
        left_bytes -= part_bytes;
        put_frame(&out, FRAME_DATA, left_bytes == 0 ? FLAG_END_STREAM : 0, stream, body,
                  part_bytes);
        body += part_bytes;
    } while (left_bytes > 0);
    http_client_send(&client->wire, out.at, out.used_bytes);
    buf_fini(&headers);
    buf_fini(&out);
    return stream;
}

void http2_client_reset_stream(struct http2_client *client, uint32_t stream)
{
    static const unsigned char cancel[4] = {0, 0, 0, 8};
    send_frame(client, FRAME_RST_STREAM, 0, stream, cancel, sizeof(cancel));
}

static void give_window(struct http2_client *client, uint32_t stream, uint32_t byte_count)
{
    const unsigned char increment[4] = {
        (unsigned char)(byte_count >> 24), (unsigned char)(byte_count >> 16),
        (unsigned char)(byte_count >> 8), (unsigned char)byte_count};
    if (byte_count > 0) {
        send_frame(client, FRAME_WINDOW_UPDATE, 0, 0, increment, sizeof(increment));
        send_frame(client, FRAME_WINDOW_UPDATE, 0, stream, increment, sizeof(increment));
    }
}

static bool read_frame(struct http2_client *client)
{
    struct buf frame;
    buf_init(&frame);
    if (!http_client_take(&client->wire, FRAME_HEAD_BYTES, &frame)) {
        buf_fini(&frame);
        return false;
    }
    const unsigned char *head = (const unsigned char *)frame.at;
    uint32_t payload_bytes = (uint32_t)head[0] << 16 | (uint32_t)head[1] << 8 | head[2];
    int type = head[3];
    int flags = head[4];
    uint32_t stream =
        ((uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]) &
        0x7fffffffU;
    buf_reset(&frame);
    bool is_whole = http_client_take(&client->wire, payload_bytes, &frame);
    if (type == FRAME_DATA && payload_bytes > 0) {
        buf_append(&client->data, frame.at, payload_bytes);
        give_window(client, stream, payload_bytes);
    }
    if ((type == FRAME_DATA || type == FRAME_HEADERS) && (flags & FLAG_END_STREAM) != 0) {
        client->ended_streams++;
    }
    if (type == FRAME_RST_STREAM) {
        client->reset_streams++;
    }
    if (type == FRAME_SETTINGS && (flags & FLAG_ACK) == 0) {
        send_frame(client, FRAME_SETTINGS, FLAG_ACK, 0, NULL, 0);
    }
    if (type == FRAME_PING && (flags & FLAG_ACK) == 0) {
        send_frame(client, FRAME_PING, FLAG_ACK, 0, frame.at, payload_bytes);
    }
    client->has_goaway = client->has_goaway || type == FRAME_GOAWAY;
    buf_fini(&frame);
    return is_whole;
}

bool http2_client_await(struct http2_client *client, const char *text)
{
    while (!strstr(buf_text(&client->data), text)) {
        if (!read_frame(client)) {
            return false;
        }
    }
    return true;
}

bool http2_client_await_ends(struct http2_client *client, uint32_t count)
{
    while (client->ended_streams + client->reset_streams < count) {
        if (!read_frame(client)) {
            return false;
        }
    }
    return true;
}
