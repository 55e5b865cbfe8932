#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cuda/ops_cuda.h"
#include "tests/testlib/backend.h"
#include "tests/testlib/test.h"
#include "worker/device_cuda.h"
#include "worker/gemm.h"
#include "worker/runner_cuda.h"

/* Several programs share a device: none takes more of it than tiny checkpoints need. */
#define MEMORY_SHARE 0.04
#define BOUNCE_BYTES (8U << 20)
#define MAX_SHAPES   200

struct captured {
    uint64_t shape;
    struct device_cuda_graph *graph;
};

struct cuda_state {
    struct device_cuda *device; /* owned */
    struct gemm *gemm;          /* owned */
    struct k_stream *stream;    /* owned */
    unsigned char *bounce;      /* pinned */
    struct captured captured[MAX_SHAPES];
    uint32_t captured_count;
};

static struct device_cuda *open_cuda(void)
{
    struct err err = {0};
    struct device_cuda *device = NULL;
    if (device_cuda_count() == 0) {
        test_skip("no GPU");
    }
    test_ok(device_cuda_open(0, MEMORY_SHARE, &device, &err), &err);
    return device;
}

/* ---- weights ---- */

struct upload {
    struct device_cuda *device;
    unsigned char *base;
};

static enum err_code write_weights(void *owner, uint64_t offset_bytes, const void *bytes,
                                   size_t byte_count, struct err *err)
{
    const struct upload *upload = owner;
    return device_cuda_write(upload->device, upload->base + offset_bytes, bytes, byte_count, err);
}

/* Returns the block that holds them. */
static unsigned char *load_weights(struct device_cuda *device, const char *model_dir,
                                   const struct model_config *config, struct weights *out_weights)
{
    struct err err = {0};
    struct st_set *set = NULL;
    const struct weights_progress progress = {0};
    struct upload upload = {.device = device};
    struct weights_store store = {.write = write_weights, .owner = &upload};
    test_ok(st_open_folder(model_dir, &set, &err), &err);
    test_ok(weights_check(config, set, &store.cap_bytes, &err), &err);
    upload.base = device_cuda_alloc(device, store.cap_bytes, 1);
    test_true(upload.base != NULL);
    store.base = upload.base;
    test_ok(weights_load(config, set, &store, &progress, out_weights, &err), &err);
    st_close(set);
    return upload.base;
}

/* ---- a device for the forward pass ---- */

/* Products as the worker makes them: small ones by the kernels, large ones by cuBLAS. */
static void create_stream(struct cuda_state *state, const struct backend_device_options *options)
{
    struct err err = {0};
    const struct model_config *config = options->config;
    struct gemm_options gemm_options = {
        .stream = device_cuda_stream(state->device),
        .max_tokens = options->limits.max_step_tokens,
        .max_rows = options->limits.max_step_tokens, /* every token's logits are looked at */
        .hidden_elems = config->hidden_elems,
        .small_rows = K_CUDA_SMALL_ROWS,
    };
    for (uint32_t i = 0; i < config->layer_count; i++) {
        gemm_options.max_intermediate_elems =
            num_max(gemm_options.max_intermediate_elems, config->layers[i].intermediate_elems);
    }
    struct k_cuda_options stream_options = {
        .stream = gemm_options.stream,
        .shape = runner_cuda_shape(config, &options->limits),
        .uses_dependent_launch = true,
    };
    uint64_t gemm_bytes =
        gemm_workspace_bytes(gemm_options.max_tokens, gemm_options.max_rows,
                             gemm_options.hidden_elems, gemm_options.max_intermediate_elems);
    gemm_options.workspace = device_cuda_alloc(state->device, gemm_bytes, 1);
    stream_options.scratch =
        device_cuda_alloc(state->device, k_cuda_scratch_bytes(&stream_options.shape), 1);
    test_true(gemm_options.workspace != NULL && stream_options.scratch != NULL);
    test_ok(gemm_create(&gemm_options, &state->gemm, &err), &err);
    stream_options.owner = state->gemm;
    test_ok(k_cuda_stream_create(&stream_options, &state->stream, &err), &err);
}

static void open_device(const struct backend *backend, const struct backend_device_options *options,
                        struct backend_device *out_device)
{
    struct device_cuda *device = open_cuda();
    struct cuda_state *state = mem_zalloc(1, sizeof(*state));
    state->device = device;
    state->bounce = device_cuda_alloc_pinned(device, BOUNCE_BYTES, 1);
    test_true(state->bounce != NULL);
    create_stream(state, options);
    *out_device = (struct backend_device){
        .backend = backend,
        .ops = gemm_ops(state->gemm),
        .stream = state->stream,
        .allocator = {.context = device, .alloc = device_cuda_alloc, .write = device_cuda_write},
        .state = state,
    };
    out_device->block =
        load_weights(device, options->model_dir, options->config, &out_device->weights);
}

static void close_device(struct backend_device *device)
{
    struct cuda_state *state = device->state;
    gemm_destroy(state->gemm);
    k_cuda_stream_destroy(state->stream);
    device_cuda_close(state->device);
    weights_fini(&device->weights);
    mem_free(state);
}

static void read_back(struct backend_device *device, void *to, const void *from, size_t byte_count)
{
    struct err err = {0};
    struct cuda_state *state = device->state;
    for (size_t done = 0; done < byte_count; done += BOUNCE_BYTES) {
        size_t more = byte_count - done < BOUNCE_BYTES ? byte_count - done : BOUNCE_BYTES;
        test_ok(device_cuda_download(state->device, state->bounce,
                                     (const unsigned char *)from + done, more, &err),
                &err);
        test_ok(device_cuda_drain(state->device, &err), &err);
        memcpy((unsigned char *)to + done, state->bounce, more);
    }
}

/* As the worker captures: once as it is, for libraries to make their kernels ready, then recorded. */
static struct device_cuda_graph *capture(struct cuda_state *state, uint64_t shape,
                                         enum err_code (*enqueue)(void *context, struct err *err),
                                         void *context)
{
    struct err err = {0};
    struct device_cuda_graph *graph = NULL;
    test_ok(enqueue(context, &err), &err);
    test_ok(device_cuda_drain(state->device, &err), &err);
    test_ok(device_cuda_capture_begin(state->device, &err), &err);
    test_ok(enqueue(context, &err), &err);
    test_ok(device_cuda_capture_end(state->device, &graph, &err), &err);
    test_true(state->captured_count < MAX_SHAPES);
    state->captured[state->captured_count++] = (struct captured){shape, graph};
    return graph;
}

static void run(struct backend_device *device, uint64_t shape,
                enum err_code (*enqueue)(void *context, struct err *err), void *context)
{
    struct err err = {0};
    struct cuda_state *state = device->state;
    if (!device->backend->uses_graphs) {
        test_ok(enqueue(context, &err), &err);
        return;
    }
    struct device_cuda_graph *graph = NULL;
    for (uint32_t i = 0; i < state->captured_count && graph == NULL; i++) {
        graph = state->captured[i].shape == shape ? state->captured[i].graph : NULL;
    }
    graph = graph != NULL ? graph : capture(state, shape, enqueue, context);
    test_ok(device_cuda_graph_launch(state->device, graph, &err), &err);
}

/* ---- a runner ---- */

static void open_runner(const struct backend *backend, const struct backend_runner_options *options,
                        struct backend_runner *out_runner)
{
    struct err err = {0};
    struct device_cuda *device = open_cuda();
    struct runner_cuda_options runner_options = {
        .limits = options->limits,
        .device = device,
        .inject = options->inject,
        .uses_graphs = backend->uses_graphs,
        .uses_dependent_launch = true,
    };
    runner_options.limits.segment_tokens = options->is_pinned ? BACKEND_PINNED_TOKENS : 0;
    *out_runner = (struct backend_runner){0};
    (void)load_weights(device, options->model_dir, options->config, &out_runner->weights);
    test_ok(runner_cuda_create(options->config, &out_runner->weights, &runner_options,
                               &out_runner->runner, &err),
            &err);
}

#define CUDA_TABLE                                                                                \
    .is_cuda = true, .open_device = open_device, .close_device = close_device, .read = read_back, \
    .run = run, .open_runner = open_runner

const struct backend backend_cuda_graphs = {
    .name = "cuda, graphs", .uses_graphs = true, CUDA_TABLE};
const struct backend backend_cuda_eager = {.name = "cuda, eager", CUDA_TABLE};
