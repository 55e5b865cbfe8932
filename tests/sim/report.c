#include "tests/sim/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void report_fail(struct report *report, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(report->failure, sizeof(report->failure), format, args); /* cut is fine */
    va_end(args);
    if (report->stays) {
        (void)fprintf(stderr, "%s\n", report->failure);
        abort();
    }
    (void)fflush(stdout);
    _exit(1);
}

void report_trace(const struct report *report, const char *format, ...)
{
    if (report->is_traced) {
        va_list args;
        va_start(args, format);
        (void)vfprintf(stdout, format, args);
        va_end(args);
        (void)fputc('\n', stdout);
    }
}
