/* The demo model behind a runner of the backend under test, with the prompts of its reference. */
#ifndef TESTS_TESTLIB_DEMO_RIG_H
#define TESTS_TESTLIB_DEMO_RIG_H

#include "tests/testlib/golden.h"
#include "tests/testlib/runner_driver.h"

#define DEMO_OUTPUT 24 /* tokens that demo_admit asks for */

struct demo_rig {
    char path[1024];
    struct driver_options options;
    struct golden_prompts prompts;
    struct driver *driver; /* null until demo_rig_start */
    struct inject inject;
};

/* Without a driver yet: options may be changed, then demo_rig_start. */
struct demo_rig *demo_rig_create_stopped(void);
void demo_rig_start(struct demo_rig *rig);

/* With a driver.  inject: as --inject takes it, or null. */
struct demo_rig *demo_rig_create(const char *inject);
void demo_rig_destroy(struct demo_rig *rig);

/* A greedy request over one of the reference's prompts. */
struct plan_admit demo_admit(const struct demo_rig *rig, uint32_t prompt);

#endif
