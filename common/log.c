#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_BYTES = 1024
};

static struct {
    const char *program;
    enum log_level most_verbose;
} sink = {"bezel", LOG_LEVEL_INFO};

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

void log_line(enum log_level level, const char *module, const char *event, const char *format, ...)
{
    if (level > sink.most_verbose) {
        return;
    }
    char line[LINE_BYTES];
    struct timespec now;
    struct tm utc;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    (void)gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    used +=
        (size_t)snprintf(line + used, sizeof(line) - used, ".%03ldZ %s %s %s %s",
                         now.tv_nsec / 1000000, level_texts[level], sink.program, module, event);
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
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* a log that cannot be written has nowhere to be reported */
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
