#include "worker/watchdog.h"

#include "common/clock.h"
#include "worker/executor.h"

enum {
    LONGEST_FACTOR = 20
};

#define TICK_MAX_NS (500 * CLOCK_NS_PER_MS)

/* Age of a thing that began at began_ns (0: there is none), given when it was looked at last. */
static uint64_t age_on(uint64_t began_ns, uint64_t seen_began_ns, uint64_t age_ns,
                       uint64_t passed_ns)
{
    return began_ns == 0 || began_ns != seen_began_ns ? 0 : age_ns + passed_ns;
}

bool watchdog_check(struct watchdog *watchdog, const struct executor_watch *watch,
                    uint64_t floor_ns, uint64_t now_ns, uint64_t *out_age_ns)
{
    uint64_t passed_ns = now_ns - watchdog->tick_ns;
    passed_ns = passed_ns > TICK_MAX_NS ? TICK_MAX_NS : passed_ns;
    *watchdog = (struct watchdog){
        .launch_ns = watch->oldest_launch_ns,
        .busy_ns = watch->busy_since_ns,
        .tick_ns = now_ns,
        .launch_age_ns = age_on(watch->oldest_launch_ns, watchdog->launch_ns,
                                watchdog->launch_age_ns, passed_ns),
        .busy_age_ns =
            age_on(watch->busy_since_ns, watchdog->busy_ns, watchdog->busy_age_ns, passed_ns),
    };
    uint64_t age_ns = watchdog->launch_age_ns > watchdog->busy_age_ns ? watchdog->launch_age_ns
                                                                      : watchdog->busy_age_ns;
    uint64_t limit_ns = watch->longest_step_ns * LONGEST_FACTOR;
    limit_ns = limit_ns < floor_ns ? floor_ns : limit_ns;
    if (age_ns <= limit_ns) {
        return false;
    }
    *out_age_ns = age_ns;
    return true;
}
