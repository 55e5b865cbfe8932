/* Seeded numbers: splitmix64. */
#ifndef TESTS_SIM_RANDOM_H
#define TESTS_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

static inline uint64_t random_next(struct random *random)
{
    random->state += 0x9e3779b97f4a7c15ULL;
    return random_mix(random->state);
}

/* 0 .. bound - 1; bound at least 1. */
static inline uint32_t random_below(struct random *random, uint32_t bound)
{
    return (uint32_t)((random_next(random) >> 32) * bound >> 32);
}

static inline uint32_t random_between(struct random *random, uint32_t low, uint32_t high)
{
    return low + random_below(random, high - low + 1);
}

static inline bool random_one_in(struct random *random, uint32_t bound)
{
    return random_below(random, bound) == 0;
}

#endif
