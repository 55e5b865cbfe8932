#include <string.h>

#include "common/num.h"
#include "tests/testlib/backend.h"
#include "tests/testlib/test.h"
#include "worker/device_cpu.h"
#include "worker/runner_cpu.h"

static void *alloc_on_device(void *context, size_t count, size_t elem_bytes)
{
    return device_cpu_alloc(context, count, elem_bytes);
}

static struct k_cpu_options cpu_options(const struct backend_device_options *options)
{
    const struct model_config *config = options->config;
    struct k_cpu_shape shape = {
        .max_in_elems = num_max(config->hidden_elems, config->expert_intermediate_elems),
        .max_context_tokens = options->limits.max_context_tokens,
        .max_group_heads = config->heads,
        .max_head_dim = MODEL_MAX_HEAD_DIM,
        .vocab_tokens = config->info.vocab_tokens,
        .max_experts = config->experts,
    };
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct model_layer *layer = &config->layers[i];
        shape.max_in_elems = num_max(shape.max_in_elems, layer->intermediate_elems);
        shape.max_in_elems = num_max(shape.max_in_elems, config->heads * layer->head_dim);
    }
    return (struct k_cpu_options){
        .threads = options->threads,
        .shape = shape,
        .softcap = config->softcap,
        .is_plain = options->is_plain,
    };
}

static void open_device(const struct backend *backend, const struct backend_device_options *options,
                        struct backend_device *out_device)
{
    struct err err = {0};
    struct device_cpu *device = NULL;
    struct k_cpu_options device_options = cpu_options(options);
    *out_device = (struct backend_device){.backend = backend, .ops = k_cpu_ops()};
    test_ok(
        weights_open_host(options->model_dir, options->config, NULL, &out_device->weights, &err),
        &err);
    test_ok(device_cpu_create(&device_options, &device, &err), &err);
    out_device->block = out_device->weights.host_block;
    out_device->stream = device_cpu_stream(device);
    out_device->allocator = (struct stage_allocator){
        .context = device, .alloc = alloc_on_device, .write = device_cpu_write};
    out_device->state = device;
}

static void close_device(struct backend_device *device)
{
    device_cpu_destroy(device->state);
    weights_fini(&device->weights);
}

static void read_back(struct backend_device *device, void *to, const void *from, size_t byte_count)
{
    (void)device; /* its memory is the host's, and operators have returned when they have run */
    memcpy(to, from, byte_count);
}

static void run(struct backend_device *device, uint64_t shape,
                enum err_code (*enqueue)(void *context, struct err *err), void *context)
{
    struct err err = {0};
    (void)device;
    (void)shape;
    test_ok(enqueue(context, &err), &err);
}

static void open_runner(const struct backend *backend, const struct backend_runner_options *options,
                        struct backend_runner *out_runner)
{
    struct err err = {0};
    const struct runner_cpu_options runner_options = {
        .limits = options->limits,
        .threads = options->threads != 0 ? options->threads : backend->threads,
        .inject = options->inject,
    };
    *out_runner = (struct backend_runner){0};
    test_ok(
        weights_open_host(options->model_dir, options->config, NULL, &out_runner->weights, &err),
        &err);
    test_ok(runner_cpu_create(options->config, &out_runner->weights, &runner_options,
                              &out_runner->runner, &err),
            &err);
}

#define CPU_TABLE                                                                                  \
    .is_exact = true, .open_device = open_device, .close_device = close_device, .read = read_back, \
    .run = run, .open_runner = open_runner

const struct backend backend_cpu = {.name = "cpu", .threads = 2, CPU_TABLE};
const struct backend backend_cpu_one_thread = {.name = "cpu, one thread", .threads = 1, CPU_TABLE};
