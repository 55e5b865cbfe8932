/* A device behind worker/runner.h that keeps what a device keeps and checks how it is used.
 *
 * Per slot: a length, the last pick, a stop flag, two page tables.  Per page: the entries written
 * there.  Rows read their whole past back through the tables (tests/sim/model.h), so a wrong, stale
 * or overwritten page gives wrong tokens; what is wrong by itself fails at once: an entry written
 * twice or by a sequence that the page was not granted to, a read of an entry that nobody wrote, a
 * slot opened while a launched step names it.  Steps run when sim_device_complete says so. */
#ifndef TESTS_SIM_DEVICE_H
#define TESTS_SIM_DEVICE_H

#include <stdint.h>

#include "tests/sim/report.h"
#include "worker/inject.h"
#include "worker/runner.h"

/* inject, report: borrowed.  Destroyed through the table. */
struct runner *sim_device_create(const struct runner_limits *limits, struct inject *inject,
                                 struct report *report);

/* Run up to step_count launched steps; how many ran. */
uint32_t sim_device_complete(struct runner *runner, uint32_t step_count);

/* Launched and not collected. */
uint32_t sim_device_in_flight(const struct runner *runner);

/* The next row that samples has no usable logits. */
void sim_device_spoil_row(struct runner *runner);

#endif
