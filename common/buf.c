#include "common/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"

enum {
    MIN_CAP_BYTES = 64
};

void buf_init(struct buf *buf)
{
    *buf = (struct buf){0};
}

void buf_fini(struct buf *buf)
{
    mem_free(buf->at);
    *buf = (struct buf){0};
}

void buf_reset(struct buf *buf)
{
    buf->used_bytes = 0;
    if (buf->at != NULL) {
        buf->at[0] = '\0';
    }
}

void buf_truncate(struct buf *buf, size_t byte_count)
{
    assert(byte_count <= buf->used_bytes);
    buf->used_bytes = byte_count;
    if (buf->at != NULL) {
        buf->at[byte_count] = '\0';
    }
}

void buf_reserve(struct buf *buf, size_t byte_count)
{
    size_t need = buf->used_bytes + byte_count + 1;
    if (need <= buf->cap_bytes) {
        return;
    }
    size_t cap = buf->cap_bytes < MIN_CAP_BYTES ? MIN_CAP_BYTES : buf->cap_bytes;
    while (cap < need) {
        cap *= 2;
    }
    buf->at = mem_realloc(buf->at, cap, 1);
    buf->cap_bytes = cap;
    buf->at[buf->used_bytes] = '\0';
}

void buf_append(struct buf *buf, const void *bytes, size_t byte_count)
{
    buf_reserve(buf, byte_count);
    if (byte_count > 0) {
        memcpy(buf->at + buf->used_bytes, bytes, byte_count);
    }
    buf->used_bytes += byte_count;
    buf->at[buf->used_bytes] = '\0';
}

void buf_append_text(struct buf *buf, const char *text)
{
    buf_append(buf, text, strlen(text));
}

void buf_append_char(struct buf *buf, char c)
{
    buf_append(buf, &c, 1);
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    assert(length >= 0);
    buf_reserve(buf, (size_t)length);
    va_start(args, format);
    (void)vsnprintf(buf->at + buf->used_bytes, (size_t)length + 1, format, args); /* measured */
    va_end(args);
    buf->used_bytes += (size_t)length;
}

const char *buf_text(const struct buf *buf)
{
    return buf->at == NULL ? "" : buf->at;
}
