/* Time is uint64_t nanoseconds of the monotonic clock everywhere. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NS_PER_MS  1000000ULL
#define CLOCK_NS_PER_SEC 1000000000ULL

static inline uint64_t clock_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

#endif
