/* Making a cpu runner: limits checked, every buffer of every step in flight allocated. */
#include <sched.h>

#include "common/mem.h"
#include "common/num.h"
#include "worker/runner_cpu_internal.h"
#include "worker/runner_host.h"

static struct k_cpu_options cpu_options(const struct model_config *config,
                                        const struct runner_limits *limits, uint32_t threads)
{
    struct k_cpu_shape shape = {
        .max_in_elems = num_max(num_max(config->hidden_elems, config->expert_intermediate_elems),
                                config->ple_elems),
        .max_context_tokens = limits->max_context_tokens,
        .vocab_tokens = limits->vocab_tokens,
        .max_experts = config->experts,
    };
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct model_layer *layer = &config->layers[i];
        shape.max_in_elems = num_max(shape.max_in_elems, layer->intermediate_elems);
        shape.max_in_elems = num_max(shape.max_in_elems, config->heads * layer->head_dim);
        shape.max_head_dim = num_max(shape.max_head_dim, layer->head_dim);
        shape.max_group_heads = num_max(shape.max_group_heads, config->heads / layer->kv_heads);
    }
    return (struct k_cpu_options){.threads = threads, .shape = shape, .softcap = config->softcap};
}

static uint32_t usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int failed = sched_getaffinity(0, sizeof(set), &set);
    return failed == 0 ? num_max(1, (uint32_t)CPU_COUNT(&set)) : 1;
}

static void *alloc_on_device(void *context, size_t count, size_t elem_bytes)
{
    return device_cpu_alloc(context, count, elem_bytes);
}

/* Everything that a step writes, for each step in flight and the one collected last. */
static enum err_code create_steps(struct runner_cpu *runner,
                                  const struct stage_allocator *allocator, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    runner->step_cap = limits->pipeline_depth + 1;
    for (uint32_t i = 0; i < runner->step_cap; i++) {
        struct launched *step = &runner->steps[i];
        enum err_code code = stage_upload_create(limits, allocator, &step->upload, err);
        if (code != ERR_OK) {
            return code;
        }
        step->runner = runner;
        step->picks = alloc_on_device(runner->device, limits->max_step_rows, sizeof(*step->picks));
        step->sample_records =
            alloc_on_device(runner->device, limits->max_step_rows, sizeof(*step->sample_records));
        step->prompt_records =
            alloc_on_device(runner->device, limits->max_step_tokens, sizeof(*step->prompt_records));
        step->has_record = alloc_on_device(runner->device, limits->max_step_rows, sizeof(bool));
        if (step->picks == NULL || step->sample_records == NULL || step->prompt_records == NULL ||
            step->has_record == NULL) {
            return err_set(err, ERR_MEMORY, "results of %u rows", limits->max_step_rows);
        }
    }
    return ERR_OK;
}

static enum err_code create_parts(struct runner_cpu *runner, const struct model_config *config,
                                  const struct weights *weights, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    struct stage_allocator allocator = {
        .context = runner->device, .alloc = alloc_on_device, .write = device_cpu_write};
    enum err_code code = stage_tables_create(limits, &allocator, &runner->tables, err);
    if (code == ERR_OK) {
        code = create_steps(runner, &allocator, err);
    }
    if (code == ERR_OK) {
        runner->logits = alloc_on_device(
            runner->device, (size_t)RUNNER_CPU_LOGIT_ROWS * limits->vocab_tokens, sizeof(uint16_t));
        code = runner->logits != NULL
                   ? ERR_OK
                   : err_set(err, ERR_MEMORY, "logits of %u rows", RUNNER_CPU_LOGIT_ROWS);
    }
    if (code == ERR_OK) {
        struct forward_options options = {
            .config = config,
            .weights = weights,
            .ops = k_cpu_ops(),
            .stream = device_cpu_stream(runner->device),
            .allocator = allocator,
            .tables = &runner->tables,
            .limits = *limits,
        };
        code = forward_create(&options, &runner->forward, err);
    }
    return code;
}

/* An allocator that gives nothing: what is asked for lands in one place that nobody writes. */
struct counter {
    uint64_t bytes;
    uint64_t place[2];
};

static void *count_bytes(void *context, size_t count, size_t elem_bytes)
{
    struct counter *counter = context;
    counter->bytes += (uint64_t)count * elem_bytes;
    return counter->place;
}

uint64_t runner_cpu_workspace_bytes(const struct model_config *config,
                                    const struct runner_limits *limits)
{
    struct counter counter = {0};
    const struct stage_allocator allocator = {.context = &counter, .alloc = count_bytes};
    struct stage_tables tables;
    struct stage_upload upload;
    struct err unused;
    (void)stage_tables_create(limits, &allocator, &tables,
                              &unused); /* cannot fail: it is given all */
    uint64_t tables_bytes = counter.bytes;
    counter.bytes = 0;
    (void)stage_upload_create(limits, &allocator, &upload, &unused); /* the same */
    uint64_t step_bytes =
        counter.bytes +
        limits->max_step_rows * (sizeof(struct k_pick) + sizeof(struct k_logprob) + sizeof(bool)) +
        limits->max_step_tokens * sizeof(struct k_logprob);
    uint64_t padding_bytes = 0;
    for (int i = 0; i < RUNNER_FAMILY_COUNT; i++) {
        padding_bytes += forward_page_bytes(config, (enum runner_family)i, limits->page_tokens);
    }
    return tables_bytes + (limits->pipeline_depth + 1) * step_bytes + padding_bytes +
           (uint64_t)RUNNER_CPU_LOGIT_ROWS * limits->vocab_tokens * sizeof(uint16_t) +
           forward_workspace_bytes(config, limits);
}

enum err_code runner_cpu_create(const struct model_config *config, const struct weights *weights,
                                const struct runner_cpu_options *options,
                                struct runner **out_runner, struct err *err)
{
    const struct runner_limits *limits = &options->limits;
    enum err_code code = runner_check_limits(config, limits, err);
    if (code != ERR_OK) {
        return code;
    }
    struct runner_cpu *runner = mem_zalloc(1, sizeof(*runner));
    runner->super = (struct runner){.table = &runner_cpu_table, .limits = *limits};
    runner->inject = options->inject;
    runner->generations = mem_zalloc(limits->slots, sizeof(uint32_t));
    runner->wants_logprobs = mem_zalloc(limits->slots, sizeof(bool));
    runner->picks = mem_zalloc(limits->max_step_rows, sizeof(*runner->picks));
    uint32_t threads = options->threads == 0 ? usable_cores() : options->threads;
    struct k_cpu_options device_options = cpu_options(config, limits, threads);
    code = device_cpu_create(&device_options, &runner->device, err);
    if (code == ERR_OK) {
        code = create_parts(runner, config, weights, err);
    }
    if (code != ERR_OK) {
        runner_cpu_table.destroy(&runner->super);
        return err_wrap(err, "cpu runner");
    }
    *out_runner = &runner->super;
    return ERR_OK;
}
