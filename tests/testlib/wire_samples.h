/* One filled-in message of every type: golden bytes, round trips, fuzz corpus. */
#ifndef TESTS_TESTLIB_WIRE_SAMPLES_H
#define TESTS_TESTLIB_WIRE_SAMPLES_H

#include <stdint.h>

#include "proto/hello.h"
#include "proto/plan.h"

#define WIRE_SAMPLES_PLAN_COUNT  6
#define WIRE_SAMPLES_HELLO_COUNT 10

struct wire_samples_plan {
    const char *name;
    struct plan_message message; /* arrays are static */
};

struct wire_samples_hello {
    const char *name;
    struct hello_message message;
};

const struct wire_samples_plan *wire_samples_plan(uint32_t index);
const struct wire_samples_hello *wire_samples_hello(uint32_t index);

#endif
