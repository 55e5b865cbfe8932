/* The cuda part of the loader: device memory first, weights through pinned buffers, then the runner
 * with what is left for the page pools. */
#include <math.h>
#include <string.h>

#include "common/log.h"
#include "common/num.h"
#include "kernels/cuda/ops_cuda.h"
#include "worker/device_cuda.h"
#include "worker/loader_internal.h"
#include "worker/runner_cuda.h"

enum {
    BOUNCE_COUNT = 4
};

/* Where the weights go.  The table of per-layer embeddings, the end of their block, may lie in host
 * memory: a step reads one row of it per token. */
struct place {
    struct device_cuda *device;
    unsigned char *base;      /* device memory */
    uint64_t near_bytes;      /* of the block that lie there, */
    unsigned char *ple_table; /* and the rest, pinned; null: all lies there */
};

/* Pinned pieces in turn: while one is on its way to the device the next is read from the file. */
struct upload {
    struct place place;
    unsigned char *bounce[BOUNCE_COUNT];
    uint64_t count;
};

bool loader_has_cuda(void)
{
    return true;
}

uint32_t loader_cuda_device_count(void)
{
    return device_cuda_count();
}

uint64_t loader_cuda_free_bytes(void)
{
    return device_cuda_free_bytes();
}

uint64_t loader_cuda_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits)
{
    return runner_cuda_workspace_bytes(config, limits);
}

static enum err_code take_place(const struct options *options, const struct model_config *config,
                                uint64_t block_bytes, struct place *place, struct err *err)
{
    uint64_t table_bytes = options->ple_on_device ? 0 : weights_ple_table_bytes(config);
    place->near_bytes = block_bytes - table_bytes;
    place->base = device_cuda_alloc(place->device, place->near_bytes, 1);
    if (place->base == NULL) {
        return err_set(err, ERR_MEMORY, "the weights need %llu MB of device memory, %llu are left",
                       (unsigned long long)(place->near_bytes >> 20),
                       (unsigned long long)(device_cuda_arena_left_bytes(place->device) >> 20));
    }
    if (table_bytes > 0) {
        place->ple_table = device_cuda_alloc_pinned(place->device, table_bytes, 1);
        if (place->ple_table == NULL) {
            return err_set(err, ERR_MEMORY,
                           "the table of per-layer embeddings needs %llu MB of pinned host memory: "
                           "free some, or --ple-on-device",
                           (unsigned long long)(table_bytes >> 20));
        }
    }
    log_info("weights", "place", "device_mb=%llu host_mb=%llu ple_table=%s",
             (unsigned long long)(place->near_bytes >> 20), (unsigned long long)(table_bytes >> 20),
             config->ple_elems == 0 ? "none"
             : table_bytes > 0      ? "host"
                                    : "device");
    return ERR_OK;
}

/* What the slot of the table holds is an address on the device: of mapped memory here. */
static void point_to_table(const struct place *place, struct weights *weights)
{
    if (place->ple_table != NULL) {
        weights->ple_embed_tokens = device_cuda_mapped(place->device, place->ple_table);
        weights->ple_is_far = true;
    }
}

static unsigned char *next_bounce(void *owner)
{
    struct upload *upload = owner;
    uint32_t index = (uint32_t)(upload->count % BOUNCE_COUNT);
    if (upload->count >= BOUNCE_COUNT) {
        device_cuda_await_mark(upload->place.device, index);
    }
    return upload->bounce[index];
}

static enum err_code write_weights(void *owner, uint64_t offset_bytes, const void *bytes,
                                   size_t byte_count, struct err *err)
{
    struct upload *upload = owner;
    const struct place *place = &upload->place;
    if (offset_bytes >= place->near_bytes) {
        memcpy(place->ple_table + (offset_bytes - place->near_bytes), bytes, byte_count);
        return ERR_OK;
    }
    uint32_t index = (uint32_t)(upload->count++ % BOUNCE_COUNT);
    enum err_code code =
        device_cuda_upload(place->device, place->base + offset_bytes, bytes, byte_count, err);
    return code == ERR_OK ? device_cuda_mark(place->device, index, err) : code;
}

static enum err_code load_weights(const struct options *options, struct device_cuda *device,
                                  const struct weights_progress *progress, struct loaded *loaded,
                                  struct err *err)
{
    struct upload upload = {.place = {.device = device}};
    struct weights_store store = {.write = write_weights, .buffer = next_bounce, .owner = &upload};
    struct st_set *set = NULL;
    enum err_code code = st_open_folder(options->model_dir, &set, err);
    code = code == ERR_OK ? weights_check(&loaded->config, set, &store.cap_bytes, err) : code;
    code = code == ERR_OK
               ? take_place(options, &loaded->config, store.cap_bytes, &upload.place, err)
               : code;
    store.base = upload.place.base;
    for (uint32_t i = 0; code == ERR_OK && i < BOUNCE_COUNT; i++) {
        upload.bounce[i] = device_cuda_alloc_pinned(device, WEIGHTS_PROGRESS_BYTES, 1);
        code = upload.bounce[i] != NULL ? ERR_OK
                                        : err_set(err, ERR_MEMORY, "pinned memory for loading");
    }
    code = code == ERR_OK
               ? weights_load(&loaded->config, set, &store, progress, &loaded->weights, err)
               : code;
    if (code == ERR_OK) {
        point_to_table(&upload.place, &loaded->weights);
        code = device_cuda_drain(device, err);
    }
    st_close(set);
    return code == ERR_OK ? code : err_wrap(err, "weights of '%.80s'", options->model_dir);
}

/* ---- made-up weights ---- */

/* sigma 1 / sqrt(in) keeps activations of the size that real ones have; norms lie near 1. */
#define DUMMY_SEED         20260401ULL
#define DUMMY_VECTOR_SIGMA 0.05F

struct dummy {
    struct place place;
    uint64_t count;
    enum err_code code;
    struct err err;
};

static void fill_tensor(void *owner, const struct weights_tensor *tensor)
{
    struct dummy *dummy = owner;
    const struct place *place = &dummy->place;
    bool is_vector = tensor->in_elems == 0;
    unsigned char *at = place->base + tensor->offset_bytes;
    if (tensor->offset_bytes >= place->near_bytes) { /* the device writes across the bus */
        at = device_cuda_mapped(place->device, place->ple_table);
    }
    const struct k_cuda_normal normal = {
        .out = (uint16_t *)(void *)at,
        .elems = tensor->elems,
        .seed = DUMMY_SEED + dummy->count++,
        .mean = is_vector ? 1.0F : 0.0F,
        .sigma = is_vector ? DUMMY_VECTOR_SIGMA : 1.0F / sqrtf((float)tensor->in_elems),
    };
    if (dummy->code == ERR_OK) {
        dummy->code = k_cuda_fill_normal(device_cuda_stream(place->device), &normal, &dummy->err);
    }
}

static enum err_code make_weights(const struct options *options, struct device_cuda *device,
                                  const struct weights_progress *progress, struct loaded *loaded,
                                  struct err *err)
{
    struct dummy dummy = {.place = {.device = device}};
    uint64_t block_bytes = weights_block_bytes(&loaded->config);
    enum err_code code = take_place(options, &loaded->config, block_bytes, &dummy.place, err);
    if (code != ERR_OK) {
        return code;
    }
    weights_lay_out(&loaded->config, dummy.place.base, fill_tensor, &dummy, &loaded->weights);
    point_to_table(&dummy.place, &loaded->weights);
    if (dummy.code != ERR_OK) {
        *err = dummy.err;
        return dummy.code;
    }
    code = device_cuda_drain(device, err);
    progress->on_progress(progress->owner, block_bytes, block_bytes);
    return code;
}

struct arena {
    const struct device_cuda *device;
    const struct model_config *config;
};

static uint64_t left_for_pools(void *context, const struct runner_limits *limits)
{
    const struct arena *arena = context;
    uint64_t left_bytes = device_cuda_arena_left_bytes(arena->device);
    uint64_t taken_bytes = runner_cuda_workspace_bytes(arena->config, limits);
    return left_bytes > taken_bytes ? left_bytes - taken_bytes : 0;
}

/* A piece of a prompt must fit beside every decode row, and one of each step in flight into the
 * sliding page table. */
static enum err_code check_pinned(const struct runner_limits *limits, struct err *err)
{
    uint32_t pieces = limits->segment_tokens * limits->pipeline_depth;
    uint32_t least_tokens = num_max(limits->segment_tokens + limits->max_step_rows, pieces);
    return limits->segment_tokens == 0 || limits->max_step_tokens >= least_tokens
               ? ERR_OK
               : err_set(err, ERR_CONFIG,
                         "--deterministic with %u slots and %u steps in flight needs steps of %u "
                         "tokens, --max-step-tokens is %u",
                         limits->max_step_rows, limits->pipeline_depth, least_tokens,
                         limits->max_step_tokens);
}

enum err_code loader_open_cuda(const struct options *options, struct inject *inject,
                               const struct weights_progress *progress, struct loaded *loaded,
                               struct err *err)
{
    struct runner_cuda_options runner_options = {
        .inject = inject,
        .uses_graphs = options->graphs,
        .uses_dependent_launch = true,
    };
    enum err_code code =
        device_cuda_open(options->device_index, (double)options->gpu_memory_utilization,
                         &runner_options.device, err);
    if (code != ERR_OK) {
        return code;
    }
    struct arena arena = {.device = runner_options.device, .config = &loaded->config};
    const struct loader_memory memory = {.context = &arena, .available_bytes = left_for_pools};
    code = options->load_format == OPTIONS_LOAD_DUMMY
               ? make_weights(options, runner_options.device, progress, loaded, err)
               : load_weights(options, runner_options.device, progress, loaded, err);
    code = code == ERR_OK ? loader_choose_limits(options, &loaded->config, &memory,
                                                 &runner_options.limits, err)
                          : code;
    code = code == ERR_OK ? check_pinned(&runner_options.limits, err) : code;
    code = code == ERR_OK ? runner_cuda_create(&loaded->config, &loaded->weights, &runner_options,
                                               &loaded->runner, err)
                          : code;
    if (code != ERR_OK) {
        device_cuda_close(runner_options.device);
    }
    return code;
}
