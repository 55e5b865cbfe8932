/* A growable byte buffer.  Always terminated by a zero byte that is not counted. */
#ifndef COMMON_BUF_H
#define COMMON_BUF_H

#include <stddef.h>

struct buf {
    char *at; /* owned; null while nothing was ever appended */
    size_t used_bytes;
    size_t cap_bytes;
};

void buf_init(struct buf *buf);
void buf_fini(struct buf *buf);
void buf_reset(struct buf *buf);

/* Aborts when memory is gone: callers bound what they append. */
void buf_append(struct buf *buf, const void *bytes, size_t byte_count);
void buf_append_text(struct buf *buf, const char *text);
void buf_append_char(struct buf *buf, char c);
void buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Drop what was appended after the first byte_count bytes; longer is our own bug. */
void buf_truncate(struct buf *buf, size_t byte_count);

/* Room for byte_count more bytes. */
void buf_reserve(struct buf *buf, size_t byte_count);

/* Content as a zero-terminated string, "" when empty; borrowed until the next append. */
const char *buf_text(const struct buf *buf);

#endif
