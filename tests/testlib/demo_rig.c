#include "tests/testlib/demo_rig.h"

#include <stdio.h>

#include "common/mem.h"
#include "tests/testlib/test.h"

struct demo_rig *demo_rig_create_stopped(void)
{
    struct demo_rig *rig = mem_zalloc(1, sizeof(*rig));
    (void)snprintf(rig->path, sizeof(rig->path), "%s/../../deploy/demo-model", test_golden_dir());
    driver_options_default(&rig->options, rig->path);
    golden_prompts_load(&rig->prompts);
    return rig;
}

void demo_rig_start(struct demo_rig *rig)
{
    rig->driver = driver_create(&rig->options);
}

struct demo_rig *demo_rig_create(const char *inject)
{
    struct err err = {0};
    struct demo_rig *rig = demo_rig_create_stopped();
    test_ok(inject_parse(&rig->inject, inject, &err), &err);
    rig->options.inject = &rig->inject;
    demo_rig_start(rig);
    return rig;
}

void demo_rig_destroy(struct demo_rig *rig)
{
    driver_destroy(rig->driver);
    golden_prompts_fini(&rig->prompts);
    mem_free(rig);
}

struct plan_admit demo_admit(const struct demo_rig *rig, uint32_t prompt)
{
    const struct golden_prompt *at = &rig->prompts.at[prompt];
    return driver_admit_greedy(at->prompt_ids, at->prompt_count, at->prompt_count + DEMO_OUTPUT);
}
