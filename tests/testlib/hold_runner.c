#include "tests/testlib/hold_runner.h"

static struct hold_runner *hold_of(struct runner *runner)
{
    return (struct hold_runner *)runner;
}

static enum err_code slot_open(struct runner *runner, uint32_t slot, const struct plan_admit *admit,
                               struct err *err)
{
    struct runner *inner = hold_of(runner)->inner;
    return inner->table->slot_open(inner, slot, admit, err);
}

static void slot_stop(struct runner *runner, uint32_t slot)
{
    struct runner *inner = hold_of(runner)->inner;
    inner->table->slot_stop(inner, slot);
}

static enum err_code launch(struct runner *runner, const struct runner_step *step, struct err *err)
{
    struct runner *inner = hold_of(runner)->inner;
    return inner->table->launch(inner, step, err);
}

static bool awaits_masks(struct runner *runner, bool *out_is_due)
{
    struct runner *inner = hold_of(runner)->inner;
    return inner->table->awaits_masks(inner, out_is_due);
}

static enum err_code give_masks(struct runner *runner, const uint32_t *const *masks,
                                struct err *err)
{
    struct runner *inner = hold_of(runner)->inner;
    return inner->table->give_masks(inner, masks, err);
}

static bool is_done(struct runner *runner)
{
    struct runner *inner = hold_of(runner)->inner;
    return !hold_of(runner)->is_holding && inner->table->is_done(inner);
}

static bool wait_done(struct runner *runner, uint64_t deadline_ns)
{
    struct runner *inner = hold_of(runner)->inner;
    return inner->table->wait(inner, deadline_ns);
}

static void wake(struct runner *runner)
{
    struct runner *inner = hold_of(runner)->inner;
    inner->table->wake(inner);
}

static void collect(struct runner *runner, struct runner_result *out_result)
{
    struct runner *inner = hold_of(runner)->inner;
    inner->table->collect(inner, out_result);
}

static void destroy(struct runner *runner)
{
    (void)runner; /* the caller's storage */
}

static const struct runner_table hold_table = {
    .slot_open = slot_open,
    .slot_stop = slot_stop,
    .launch = launch,
    .awaits_masks = awaits_masks,
    .give_masks = give_masks,
    .is_done = is_done,
    .wait = wait_done,
    .wake = wake,
    .collect = collect,
    .destroy = destroy,
};

void hold_runner_init(struct hold_runner *runner, struct runner *inner)
{
    *runner = (struct hold_runner){
        .super = {.table = &hold_table, .limits = inner->limits},
        .inner = inner,
    };
}
