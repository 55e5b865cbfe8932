#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_BYTES = 1024, /* at most PIPE_BUF: a pipe that can be written to takes it whole */
    PATIENCE_MS = 20   /* for a reader that is late; once, then lines are lost until it reads */
};

static struct {
    const char *program;
    enum log_level most_verbose;
    _Atomic uint32_t lost_lines; /* not told of yet */
} sink = {"bezel", LOG_LEVEL_INFO, 0};

static const char *const level_texts[] = {
    [LOG_LEVEL_ERROR] = "error",
    [LOG_LEVEL_WARN] = "warn",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_DEBUG] = "debug",
};

void log_init(const char *program, enum log_level most_verbose)
{
    sink.program = program;
    sink.most_verbose = most_verbose;
}

static size_t put_head(char line[LINE_BYTES], enum log_level level, const char *module,
                       const char *event)
{
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    (void)gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    used +=
        (size_t)snprintf(line + used, LINE_BYTES - used, ".%03ldZ %s %s %s %s",
                         now.tv_nsec / 1000000, level_texts[level], sink.program, module, event);
    return used;
}

static void put_line(const char *line, size_t byte_count)
{
    ssize_t written = write(STDERR_FILENO, line, byte_count);
    (void)written; /* a log that cannot be written has nowhere to be reported */
}

/* A reader that stands still must not stop the caller.  One that is gone is for write to find. */
static bool has_room(void)
{
    struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
    int patience_ms = atomic_load(&sink.lost_lines) == 0 ? PATIENCE_MS : 0;
    int count;
    do {
        count = poll(&fd, 1, patience_ms);
    } while (count < 0 && errno == EINTR);
    return count != 0;
}

static void tell_lost(void)
{
    char line[LINE_BYTES];
    uint32_t count = atomic_exchange(&sink.lost_lines, 0);
    if (count == 0) {
        return;
    }
    size_t used = put_head(line, LOG_LEVEL_WARN, "log", "lines_lost");
    used += (size_t)snprintf(line + used, sizeof(line) - used, " count=%u\n", count); /* fits */
    put_line(line, used);
}

void log_line(enum log_level level, const char *module, const char *event, const char *format, ...)
{
    if (level > sink.most_verbose) {
        return;
    }
    if (!has_room()) {
        (void)atomic_fetch_add(&sink.lost_lines, 1);
        return;
    }
    tell_lost();
    char line[LINE_BYTES];
    size_t used = put_head(line, level, module, event);
    if (format[0] != '\0' && used < sizeof(line) - 2) {
        line[used++] = ' ';
        va_list args;
        va_start(args, format);
        int length = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
        va_end(args);
        size_t room = sizeof(line) - used - 2;
        used += length < 0 ? 0 : ((size_t)length < room ? (size_t)length : room);
    }
    line[used++] = '\n';
    put_line(line, used);
}

const char *log_quote(const char *text, char *out, unsigned out_bytes)
{
    if (out_bytes < 8) {
        return "";
    }
    unsigned used = 0;
    out[used++] = '"';
    for (const unsigned char *at = (const unsigned char *)text; *at != 0 && used + 6 < out_bytes;
         at++) {
        if (*at == '"' || *at == '\\') {
            out[used++] = '\\';
            out[used++] = (char)*at;
        } else if (*at < 0x20 || *at == 0x7f) {
            used += (unsigned)snprintf(out + used, out_bytes - used, "\\x%02x", *at);
        } else {
            out[used++] = (char)*at;
        }
    }
    out[used++] = '"';
    out[used] = '\0';
    return out;
}
