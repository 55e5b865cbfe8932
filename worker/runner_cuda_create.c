/* Making a cuda runner: memory carved from the arena and from pinned memory, graphs captured. */
#include "common/mem.h"
#include "common/num.h"
#include "worker/ranges.h"
#include "worker/runner_cuda_internal.h"

#define MANY_ROWS   8            /* buckets are powers of two up to here, */
#define BUCKET_STEP 8            /* then multiples of this */
#define WARM_TOKENS 64           /* the shortest prompt that is tried at start */
#define CARVE_SLACK (1ULL << 20) /* alignment of every carved array */

static uint32_t largest_intermediate(const struct model_config *config)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < config->layer_count; i++) {
        most = num_max(most, config->layers[i].intermediate_elems);
    }
    return most;
}

struct k_cuda_shape runner_cuda_shape(const struct model_config *config,
                                      const struct runner_limits *limits)
{
    struct k_cuda_shape shape = {
        .max_tokens = limits->max_step_tokens,
        .max_rows = limits->max_step_rows,
        .slots = limits->slots,
        .max_context_tokens = limits->max_context_tokens,
        .hidden_elems = config->hidden_elems,
        .max_linear_out_elems =
            num_max(config->hidden_elems, config->ple_elems * config->layer_count),
        .heads = config->heads,
        .vocab_tokens = config->info.vocab_tokens,
        .experts = config->experts,
    };
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct model_layer *layer = &config->layers[i];
        uint32_t qkv = (config->heads + 2 * layer->kv_heads) * layer->head_dim;
        shape.max_head_dim = num_max(shape.max_head_dim, layer->head_dim);
        shape.max_kv_heads = num_max(shape.max_kv_heads, layer->kv_heads);
        shape.max_linear_out_elems = num_max(shape.max_linear_out_elems, qkv);
    }
    return shape;
}

static uint32_t logit_rows(const struct runner_limits *limits)
{
    return num_max(limits->max_step_rows, RUNNER_CUDA_PROMPT_ROWS);
}

uint64_t runner_cuda_workspace_bytes(const struct model_config *config,
                                     const struct runner_limits *limits)
{
    struct k_cuda_shape shape = runner_cuda_shape(config, limits);
    uint64_t table_pages = (uint64_t)stage_table_pages(limits, RUNNER_FAMILY_LOCAL) +
                           stage_table_pages(limits, RUNNER_FAMILY_GLOBAL);
    uint64_t per_slot = sizeof(struct k_sampler) +
                        ((uint64_t)limits->vocab_tokens + table_pages + 8) * sizeof(uint32_t);
    uint64_t per_packed_row =
        sizeof(struct k_row) + sizeof(struct k_pick) + sizeof(struct k_logprob);
    uint64_t per_row = sizeof(struct k_sample_row) + sizeof(struct k_logprob_row) +
                       sizeof(struct stage_span) +
                       (uint64_t)(stage_mask_words(limits) + 2) * sizeof(uint32_t);
    uint64_t per_token =
        sizeof(struct k_logprob) + sizeof(struct k_logprob_row) + 8 * sizeof(uint32_t);
    uint64_t page_bytes = forward_page_bytes(config, RUNNER_FAMILY_LOCAL, limits->page_tokens) +
                          forward_page_bytes(config, RUNNER_FAMILY_GLOBAL, limits->page_tokens);
    return CARVE_SLACK + page_bytes /* the padding pages */ +
           forward_workspace_bytes(config, limits) + forward_ple_fetched_bytes(config, limits) +
           k_cuda_scratch_bytes(&shape) +
           gemm_workspace_bytes(limits->max_step_tokens, logit_rows(limits), config->hidden_elems,
                                largest_intermediate(config)) +
           limits->slots * per_slot + limits->max_step_rows * per_row +
           stage_row_cap(limits) * per_packed_row + limits->max_step_tokens * per_token +
           stage_max_patches(limits) * sizeof(struct k_patch) +
           (uint64_t)logit_rows(limits) * limits->vocab_tokens * sizeof(uint16_t) +
           sizeof(struct k_sampler) + (uint64_t)limits->max_context_tokens * sizeof(uint32_t);
}

static void *alloc_pinned(void *context, size_t count, size_t elem_bytes)
{
    return device_cuda_alloc_pinned(context, count, elem_bytes);
}

static enum err_code create_stream(struct runner_cuda *runner, const struct model_config *config,
                                   bool uses_dependent_launch, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    struct gemm_options gemm_options = {
        .stream = device_cuda_stream(runner->device),
        .max_tokens = limits->max_step_tokens,
        .max_rows = logit_rows(limits),
        .hidden_elems = config->hidden_elems,
        .max_intermediate_elems = largest_intermediate(config),
        .small_rows = K_CUDA_SMALL_ROWS,
    };
    struct k_cuda_options options = {
        .stream = gemm_options.stream,
        .shape = runner_cuda_shape(config, limits),
        .uses_dependent_launch = uses_dependent_launch,
    };
    uint64_t gemm_bytes =
        gemm_workspace_bytes(gemm_options.max_tokens, gemm_options.max_rows,
                             gemm_options.hidden_elems, gemm_options.max_intermediate_elems);
    uint64_t scratch_bytes = k_cuda_scratch_bytes(&options.shape);
    gemm_options.workspace = device_cuda_alloc(runner->device, gemm_bytes, 1);
    options.scratch = device_cuda_alloc(runner->device, scratch_bytes, 1);
    if (gemm_options.workspace == NULL || options.scratch == NULL) {
        return err_set(err, ERR_MEMORY, "workspaces: %llu bytes of device memory",
                       (unsigned long long)gemm_bytes + (unsigned long long)scratch_bytes);
    }
    enum err_code code = gemm_create(&gemm_options, &runner->gemm, err);
    options.owner = runner->gemm;
    return code == ERR_OK ? k_cuda_stream_create(&options, &runner->stream, err) : code;
}

/* Stop requests are written by the host at any time: they lie in its memory. */
static enum err_code create_tables(struct runner_cuda *runner,
                                   const struct stage_allocator *allocator, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    enum err_code code = stage_tables_create(limits, allocator, &runner->tables, err);
    code = code == ERR_OK ? stage_upload_create(limits, allocator, &runner->upload, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    runner->tables.stop_request =
        device_cuda_alloc_pinned(runner->device, limits->slots, sizeof(uint32_t));
    if (runner->tables.stop_request == NULL) {
        return err_set(err, ERR_MEMORY, "pinned memory for %u slots", limits->slots);
    }
    runner->tables.slots.stop_request =
        device_cuda_mapped(runner->device, runner->tables.stop_request);
    return device_cuda_status(runner->device, err);
}

static enum err_code create_results(struct runner_cuda *runner, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    struct device_cuda *device = runner->device;
    uint64_t logits = (uint64_t)logit_rows(limits) * limits->vocab_tokens;
    runner->logits = device_cuda_alloc(device, logits, sizeof(uint16_t));
    runner->picks = device_cuda_alloc(device, runner->row_cap, sizeof(*runner->picks));
    runner->device_turn = device_cuda_alloc(device, 1, sizeof(*runner->device_turn));
    runner->begin_ns = device_cuda_alloc(device, 1, sizeof(*runner->begin_ns));
    runner->sample_records =
        device_cuda_alloc(device, runner->row_cap, sizeof(*runner->sample_records));
    runner->prompt_records =
        device_cuda_alloc(device, limits->max_step_tokens, sizeof(*runner->prompt_records));
    runner->sampler = device_cuda_alloc(device, 1, sizeof(*runner->sampler));
    runner->context = device_cuda_alloc(device, limits->max_context_tokens, sizeof(uint32_t));
    bool is_whole = runner->logits != NULL && runner->picks != NULL &&
                    runner->device_turn != NULL && runner->begin_ns != NULL &&
                    runner->sample_records != NULL && runner->prompt_records != NULL &&
                    runner->sampler != NULL && runner->context != NULL;
    return is_whole ? ERR_OK
                    : err_set(err, ERR_MEMORY, "logits and results: %u rows of vocabulary %u",
                              logit_rows(limits), limits->vocab_tokens);
}

static enum err_code create_flight(struct runner_cuda *runner, struct flight *flight,
                                   struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    struct device_cuda *device = runner->device;
    const struct stage_allocator pinned = {.context = device, .alloc = alloc_pinned};
    enum err_code code = stage_upload_create(limits, &pinned, &flight->upload, err);
    if (code != ERR_OK) {
        return code;
    }
    flight->picks = device_cuda_alloc_pinned(device, runner->row_cap, sizeof(struct k_pick));
    flight->own_stamp = device_cuda_alloc_pinned(device, 1, sizeof(*flight->own_stamp));
    flight->sample_records =
        device_cuda_alloc_pinned(device, runner->row_cap, sizeof(struct k_logprob));
    flight->prompt_records =
        device_cuda_alloc_pinned(device, limits->max_step_tokens, sizeof(struct k_logprob));
    flight->has_record = mem_zalloc(limits->max_step_rows, sizeof(bool));
    if (flight->picks == NULL || flight->own_stamp == NULL || flight->sample_records == NULL ||
        flight->prompt_records == NULL) {
        return err_set(err, ERR_MEMORY, "pinned memory for the results of %u rows",
                       runner->row_cap);
    }
    flight->device_picks = device_cuda_mapped(device, flight->picks);
    flight->device_stamp = device_cuda_mapped(device, flight->own_stamp);
    flight->device_block = device_cuda_mapped(device, flight->upload.block);
    return device_cuda_status(device, err);
}

static enum err_code create_openings(struct runner_cuda *runner, struct err *err)
{
    uint32_t context_tokens = runner->super.limits.max_context_tokens;
    struct k_sampler *samplers =
        device_cuda_alloc_pinned(runner->device, RUNNER_CUDA_OPENINGS, sizeof(*samplers));
    uint32_t *contexts = device_cuda_alloc_pinned(
        runner->device, (size_t)RUNNER_CUDA_OPENINGS * context_tokens, sizeof(*contexts));
    if (samplers == NULL || contexts == NULL) {
        return err_set(err, ERR_MEMORY, "pinned memory for %u contexts of %u tokens",
                       RUNNER_CUDA_OPENINGS, context_tokens);
    }
    for (uint32_t i = 0; i < RUNNER_CUDA_OPENINGS; i++) {
        runner->openings[i] = (struct opening_buffer){
            .sampler = &samplers[i],
            .context = contexts + (size_t)i * context_tokens,
        };
    }
    return ERR_OK;
}

static enum err_code create_host_buffers(struct runner_cuda *runner, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    enum err_code code = ERR_OK;
    runner->flight_cap = limits->pipeline_depth + 1;
    runner->turns = device_cuda_alloc_pinned(
        runner->device, (size_t)runner->flight_cap * runner->row_cap, sizeof(*runner->turns));
    runner->stamps =
        device_cuda_alloc_pinned(runner->device, runner->flight_cap, sizeof(*runner->stamps));
    if (runner->turns == NULL || runner->stamps == NULL) {
        return err_set(err, ERR_MEMORY, "pinned memory for the picks of %u rows", runner->row_cap);
    }
    runner->device_turns = device_cuda_mapped(runner->device, runner->turns);
    runner->device_stamps = device_cuda_mapped(runner->device, runner->stamps);
    for (uint32_t i = 0; code == ERR_OK && i < runner->flight_cap; i++) {
        code = create_flight(runner, &runner->flights[i], err);
    }
    return code == ERR_OK ? create_openings(runner, err) : code;
}

/* ---- what is made ready before the first step ---- */

static enum err_code write_nobody(struct runner_cuda *runner, const struct k_row *row,
                                  uint32_t row_count, struct err *err)
{
    for (uint32_t i = 0; i < row_count; i++) {
        runner->resident[i] = *row;
    }
    return device_cuda_write(runner->device, runner->upload.rows, runner->resident,
                             row_count * sizeof(*row), err);
}

/* Rows of nobody, whose results nobody reads. */
static struct step_shape nobodys_shape(const struct runner_cuda *runner, uint32_t rows,
                                       uint32_t tokens)
{
    return (struct step_shape){
        .rows = rows,
        .tokens = tokens,
        .sample_rows = rows,
        .has_records = true,
        .begins = true,
        .ends = true,
        .published = runner->flights[0].device_picks,
        .stamp = runner->flights[0].device_stamp,
    };
}

/* Records a part of a step over rows of nobody. */
static enum err_code capture(struct runner_cuda *runner, struct bucket *bucket, enum step_part part,
                             struct err *err)
{
    struct step_shape shape = nobodys_shape(runner, bucket->rows, bucket->rows);
    shape.published = NULL; /* by turns */
    shape.stamp = NULL;
    enum err_code code = device_cuda_capture_begin(runner->device, err);
    code = code == ERR_OK ? runner_cuda_enqueue(runner, &shape, part, err) : code;
    return code == ERR_OK ? device_cuda_capture_end(runner->device, &bucket->graphs[part], err)
                          : code;
}

/* Libraries make their kernels ready when they first run: that is now. */
static enum err_code capture_bucket(struct runner_cuda *runner, struct bucket *bucket,
                                    struct err *err)
{
    const struct step_shape shape = nobodys_shape(runner, bucket->rows, bucket->rows);
    enum err_code code = runner_cuda_enqueue(runner, &shape, STEP_PART_WHOLE, err);
    code = code == ERR_OK ? device_cuda_drain(runner->device, err) : code;
    for (uint32_t part = 0; code == ERR_OK && part < STEP_PART_COUNT; part++) {
        code = capture(runner, bucket, (enum step_part)part, err);
    }
    return code == ERR_OK ? code : err_wrap(err, "capturing a step of %u rows", bucket->rows);
}

/* 1, 2, 4, 8, then multiples of 8, and the most rows. */
static uint32_t next_bucket(uint32_t rows, uint32_t most)
{
    uint32_t next = rows < MANY_ROWS ? rows * 2 : rows + BUCKET_STEP;
    return rows == 0 ? 1 : rows < most ? num_min(next, most) : most + 1;
}

/* With pinned shapes there is one width. */
static enum err_code choose_buckets(struct runner_cuda *runner, struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    uint32_t most = limits->max_step_rows;
    uint32_t first = limits->segment_tokens != 0 ? most : next_bucket(0, most);
    for (uint32_t rows = first; rows <= most; rows = next_bucket(rows, most)) {
        if (runner->bucket_count == RUNNER_CUDA_MAX_BUCKETS) {
            return err_set(err, ERR_LIMIT, "%u rows of a step: at most %u widths", most,
                           RUNNER_CUDA_MAX_BUCKETS);
        }
        runner->buckets[runner->bucket_count++].rows = rows;
    }
    return ERR_OK;
}

static enum err_code capture_all(struct runner_cuda *runner, struct err *err)
{
    const struct k_row nobody = stage_nobody();
    enum err_code code = write_nobody(runner, &nobody, runner->super.limits.max_step_rows, err);
    for (uint32_t i = 0; code == ERR_OK && i < runner->bucket_count; i++) {
        code = capture_bucket(runner, &runner->buckets[i], err);
    }
    runner->has_graphs = code == ERR_OK;
    return code;
}

/* A prompt of so many tokens by nobody.  shape->tokens is the count with its padding. */
static enum err_code warm_prompt(struct runner_cuda *runner, uint32_t tokens, enum step_part part,
                                 struct step_shape *shape, struct err *err)
{
    struct k_row row = stage_nobody();
    row.count = tokens;
    row.first_id = 0;
    *shape = nobodys_shape(runner, 1, tokens);
    shape->sample_rows = part == STEP_PART_FORWARD ? 0 : 1;
    runner_cuda_pad(&runner->super.limits, shape);
    enum err_code code = write_nobody(runner, &row, 1, err);
    return code == ERR_OK ? runner_cuda_enqueue(runner, shape, part, err) : code;
}

/* Do the products of both layers have the same shapes? */
static bool is_alike(const struct model_layer *a, const struct model_layer *b)
{
    return a->family == b->family && a->owns_kv == b->owns_kv &&
           a->intermediate_elems == b->intermediate_elems;
}

/* So few layers that there is one of each kind among them. */
static uint32_t telling_layers(const struct model_config *config)
{
    uint32_t count = 1;
    for (uint32_t i = 1; i < config->layer_count; i++) {
        uint32_t first = 0;
        while (!is_alike(&config->layers[first], &config->layers[i])) {
            first++;
        }
        count = first == i ? i + 1 : count;
    }
    return count;
}

/* Every count of tokens that a step with prompts has, in few layers: products are chosen by shape.
 * Then whole steps of growing length, whose kernels are loaded when they first run. */
static enum err_code warm_prompts(struct runner_cuda *runner, const struct model_config *config,
                                  struct err *err)
{
    const struct runner_limits *limits = &runner->super.limits;
    uint32_t most = num_min(limits->max_step_tokens, limits->max_context_tokens);
    struct model_config few = *config;
    few.layer_count = telling_layers(config);
    runner->forward.options.config = &few;
    struct step_shape shape = {0};
    enum err_code code = ERR_OK;
    for (uint32_t tokens = K_CUDA_SMALL_ROWS + 1; code == ERR_OK && tokens <= most;
         tokens = shape.tokens + 1) {
        code = warm_prompt(runner, tokens, STEP_PART_FORWARD, &shape, err);
    }
    runner->forward.options.config = config;
    for (uint32_t tokens = WARM_TOKENS; code == ERR_OK && tokens / 2 < most; tokens *= 2) {
        code = warm_prompt(runner, num_min(tokens, most), STEP_PART_WHOLE, &shape, err);
    }
    return code == ERR_OK ? device_cuda_drain(runner->device, err) : code;
}

static enum err_code create_parts(struct runner_cuda *runner, const struct model_config *config,
                                  const struct weights *weights,
                                  const struct runner_cuda_options *options, struct err *err)
{
    const struct stage_allocator allocator = {
        .context = runner->device, .alloc = device_cuda_alloc, .write = device_cuda_write};
    enum err_code code = create_stream(runner, config, options->uses_dependent_launch, err);
    code = code == ERR_OK ? create_tables(runner, &allocator, err) : code;
    code = code == ERR_OK ? create_results(runner, err) : code;
    code = code == ERR_OK ? create_host_buffers(runner, err) : code;
    if (code == ERR_OK) {
        const struct forward_options forward_options = {
            .config = config,
            .weights = weights,
            .ops = ranges_ops(),
            .stream = runner->stream,
            .allocator = allocator,
            .tables = &runner->tables,
            .limits = runner->super.limits,
            .begin_layer = ranges_begin_layer,
            .end_layer = ranges_end,
        };
        code = forward_create(&forward_options, &runner->forward, err);
    }
    code = code == ERR_OK ? choose_buckets(runner, err) : code;
    code = code == ERR_OK ? warm_prompts(runner, config, err) : code;
    code = code == ERR_OK && options->uses_graphs ? capture_all(runner, err) : code;
    return code == ERR_OK ? device_cuda_drain(runner->device, err) : code;
}

enum err_code runner_cuda_create(const struct model_config *config, const struct weights *weights,
                                 const struct runner_cuda_options *options,
                                 struct runner **out_runner, struct err *err)
{
    const struct runner_limits *limits = &options->limits;
    enum err_code code = runner_check_limits(config, limits, err);
    if (code != ERR_OK) {
        return code;
    }
    struct runner_cuda *runner = mem_zalloc(1, sizeof(*runner));
    runner->super = (struct runner){.table = &runner_cuda_table, .limits = *limits};
    runner->device = options->device;
    runner->inject = options->inject;
    runner->generations = mem_zalloc(limits->slots, sizeof(uint32_t));
    runner->wants_logprobs = mem_zalloc(limits->slots, sizeof(bool));
    runner->row_cap = stage_row_cap(limits);
    runner->resident = mem_zalloc(runner->row_cap, sizeof(*runner->resident));
    runner->host_picks = mem_zalloc(limits->max_step_rows, sizeof(*runner->host_picks));
    code = create_parts(runner, config, weights, options, err);
    if (code != ERR_OK) {
        runner->device = NULL; /* stays the caller's */
        runner_cuda_table.destroy(&runner->super);
        return err_wrap(err, "cuda runner");
    }
    *out_runner = &runner->super;
    return ERR_OK;
}
