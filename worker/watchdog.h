/* Decides whether the executor is frozen.
 *
 * Age is summed from ticks that each count half a second at most: a process that was stopped and
 * goes on is not taken for a frozen one.  Pure; the caller's thread. */
#ifndef WORKER_WATCHDOG_H
#define WORKER_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct executor_watch;

struct watchdog {
    uint64_t launch_ns; /* what was seen at the last tick */
    uint64_t busy_ns;
    uint64_t tick_ns;
    uint64_t launch_age_ns; /* as far as ticks saw it */
    uint64_t busy_age_ns;
};

/* True when a step in flight, or the call into the core, is the same for longer than
 * max(floor_ns, 20 * longest step); *out_age_ns is then its age. */
bool watchdog_check(struct watchdog *watchdog, const struct executor_watch *watch,
                    uint64_t floor_ns, uint64_t now_ns, uint64_t *out_age_ns);

#endif
