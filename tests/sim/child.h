/* Runs a world in a child process, so that an assertion or an endless loop ends the child alone. */
#ifndef TESTS_SIM_CHILD_H
#define TESTS_SIM_CHILD_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/report.h"
#include "tests/sim/world.h"

struct child_runner {
    struct report *report; /* shared with the children */
    int error_fd;          /* what a child wrote to its standard error */
};

/* Aborts when there is no memory. */
void child_runner_init(struct child_runner *runner);
void child_runner_fini(struct child_runner *runner);

/* True when the world held; otherwise report->failure says why. */
bool child_run(struct child_runner *runner, const struct world *world, bool is_replay);

/* Leaves in the report a shorter list of events that fails too, by removing pieces of it for at
 * most limit_ns. */
void child_shrink(struct child_runner *runner, const struct world *world, uint64_t limit_ns);

#endif
