/* What a simulated world tells: counts of what happened, the events so far, and why it failed.
 *
 * Lies in memory shared with the program that runs the world as a child, so that it is known even
 * when an assertion ended the child. */
#ifndef TESTS_SIM_REPORT_H
#define TESTS_SIM_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#define REPORT_MAX_EVENTS 65536
#define REPORT_TEXT_BYTES 512

enum cover {
#define COVER(NAME, text) COVER_##NAME,
#include "tests/sim/coverage.def"
#undef COVER
    COVER_COUNT
};

enum event_kind {
#define EVENT(NAME, text, weight) EVENT_##NAME,
#include "tests/sim/events.def"
#undef EVENT
    EVENT_COUNT
};

struct event {
    uint64_t random;
    enum event_kind kind;
};

struct report {
    uint64_t steps; /* STEPs that a worker answered */
    uint64_t covered[COVER_COUNT];
    uint64_t faults; /* made on purpose that have happened */
    bool stays;      /* a failure aborts, for a debugger, instead of ending the child */
    bool is_traced;  /* print what happens */
    char failure[REPORT_TEXT_BYTES]; /* "" while nothing failed */
    uint32_t event_count;
    struct event events[REPORT_MAX_EVENTS];
};

/* The world is wrong: keeps the text and ends the process. */
_Noreturn void report_fail(struct report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void report_cover(struct report *report, enum cover what)
{
    report->covered[what]++;
}

/* Prints a line when the run is traced. */
void report_trace(const struct report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
