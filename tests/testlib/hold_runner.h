/* A runner before another one that can hold results back: while it holds, no step is done, so what
 * the bookkeeping launches does not depend on how fast the device is. */
#ifndef TESTS_TESTLIB_HOLD_RUNNER_H
#define TESTS_TESTLIB_HOLD_RUNNER_H

#include <stdbool.h>

#include "worker/runner.h"

struct hold_runner {
    struct runner super;
    struct runner *inner; /* borrowed */
    bool is_holding;
};

/* Is not destroyed itself. */
void hold_runner_init(struct hold_runner *runner, struct runner *inner);

#endif
