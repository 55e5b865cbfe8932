#include "tests/testlib/paged_forward.h"

#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/test.h"

#define NAN_BYTE 0xff

static void *alloc_on_device(void *context, size_t count, size_t elem_bytes)
{
    return device_cpu_alloc(context, count, elem_bytes);
}

static struct k_cpu_options cpu_options(const struct paged_options *options,
                                        const struct model_config *config)
{
    struct k_cpu_shape shape = {
        .max_in_elems = config->hidden_elems,
        .max_context_tokens = options->max_context_tokens,
        .max_group_heads = config->heads,
        .max_head_dim = MODEL_MAX_HEAD_DIM,
        .vocab_tokens = config->info.vocab_tokens,
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

static uint64_t page_elems(const struct k_pages *pages)
{
    return k_page_offset(pages, 1, 0, 0, 0);
}

static void poison(const struct k_pages *pages, uint32_t page)
{
    memset(pages->base + page * page_elems(pages), NAN_BYTE, page_elems(pages) * sizeof(uint16_t));
}

/* Entry e of a slot's table always means the same physical page, drawn without repetition. */
static void fill_tables(struct paged *paged)
{
    uint64_t random = paged->options.seed;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        uint32_t *table = paged->tables.page_tables[family];
        uint32_t entries = paged->options.slots * paged->tables.table_pages[family];
        for (uint32_t i = 0; i < entries; i++) {
            uint32_t other = (uint32_t)(test_random(&random) % (i + 1));
            table[i] = table[other];
            table[other] = i;
        }
        for (uint32_t page = 0; page <= entries; page++) { /* the padding page too */
            poison(&paged->forward.pages[family], page);
        }
    }
}

struct paged *paged_create(const struct paged_options *options)
{
    struct err err = {0};
    struct paged *paged = mem_zalloc(1, sizeof(*paged));
    paged->options = *options;
    test_ok(model_config_load(options->model_dir, &paged->config, &err), &err);
    test_ok(weights_open_host(options->model_dir, &paged->config, NULL, &paged->weights, &err),
            &err);
    struct k_cpu_options device_options = cpu_options(options, &paged->config);
    test_ok(device_cpu_create(&device_options, &paged->device, &err), &err);
    struct runner_limits limits = {
        .slots = options->slots,
        .max_step_rows = options->slots,
        .max_step_tokens = options->max_step_tokens + options->pad_tokens_multiple,
        .max_context_tokens = options->max_context_tokens,
        .vocab_tokens = paged->config.info.vocab_tokens,
        .window_tokens = paged->config.families[RUNNER_FAMILY_LOCAL].window_tokens,
        .page_tokens = options->page_tokens,
        .pipeline_depth = 1,
    };
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        limits.pages[family] =
            options->slots * stage_table_pages(&limits, (enum runner_family)family);
    }
    struct stage_allocator allocator = {
        .context = paged->device, .alloc = alloc_on_device, .write = device_cpu_write};
    test_ok(stage_tables_create(&limits, &allocator, &paged->tables, &err), &err);
    test_ok(stage_upload_create(&limits, &allocator, &paged->upload, &err), &err);
    paged->picks = alloc_on_device(paged->device, options->slots, sizeof(*paged->picks));
    struct forward_options forward_options = {
        .config = &paged->config,
        .weights = &paged->weights,
        .ops = k_cpu_ops(),
        .stream = device_cpu_stream(paged->device),
        .allocator = allocator,
        .tables = &paged->tables,
        .limits = limits,
    };
    test_ok(forward_create(&forward_options, &paged->forward, &err), &err);
    fill_tables(paged);
    return paged;
}

void paged_destroy(struct paged *paged)
{
    device_cpu_destroy(paged->device);
    weights_fini(&paged->weights);
    mem_free(paged);
}

/* Pages that the segment enters are stale until it writes them. */
static void poison_new_pages(struct paged *paged, const struct paged_segment *segment)
{
    uint32_t page_tokens = paged->options.page_tokens;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        const struct k_pages *pages = &paged->forward.pages[family];
        uint32_t first = num_ceil_div(segment->start, page_tokens);
        uint32_t end = num_ceil_div(segment->start + segment->count, page_tokens);
        for (uint32_t page = first; page < end; page++) {
            poison(pages, k_page_of(pages, segment->slot, page * page_tokens));
        }
    }
}

void paged_step(struct paged *paged, const struct paged_segment *segments, uint32_t count,
                uint16_t *logits)
{
    struct err err = {0};
    struct stage_upload *upload = &paged->upload;
    upload->row_count = count;
    upload->id_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        poison_new_pages(paged, &segments[i]);
        upload->rows[i] = (struct k_row){
            .slot = segments[i].slot,
            .start = segments[i].start,
            .count = segments[i].count,
            .first_id = upload->id_count,
            .mask_row = K_NONE,
        };
        memcpy(upload->prompt_ids + upload->id_count, segments[i].ids,
               segments[i].count * sizeof(uint32_t));
        upload->id_count += segments[i].count;
        paged->tables.stop_request[segments[i].slot] = UINT32_MAX; /* nobody's generation */
    }
    struct k_expand_args expand = stage_expand_args(&paged->tables, upload, paged->picks);
    expand.pad_tokens_multiple = paged->options.pad_tokens_multiple;
    struct k_stream *stream = device_cpu_stream(paged->device);
    test_ok(k_cpu_ops()->expand(stream, &expand, &err), &err);
    struct k_tokens tokens = stage_tokens(&paged->tables);
    test_ok(forward_run(&paged->forward, &tokens, &err), &err);
    uint32_t *index = mem_zalloc(upload->id_count, sizeof(*index));
    for (uint32_t i = 0; i < upload->id_count; i++) {
        index[i] = i;
    }
    test_ok(forward_head(&paged->forward, index, upload->id_count, logits, &err), &err);
    mem_free(index);
}

void paged_sequence(struct paged *paged, const uint32_t *ids, uint32_t count, uint32_t chunk,
                    uint16_t *logits)
{
    for (uint32_t start = 0; start < count; start += chunk) {
        struct paged_segment segment = {
            .start = start,
            .count = num_min(chunk, count - start),
            .ids = ids + start,
        };
        paged_step(paged, &segment, 1, logits + (uint64_t)start * paged->config.info.vocab_tokens);
    }
}

/* log(sum of exp) of a row, and its best token. */
static double log_sum_exp(const uint16_t *row, uint32_t vocab_tokens, uint32_t *out_best)
{
    double sum = 0.0;
    uint32_t best = 0;
    for (uint32_t v = 0; v < vocab_tokens; v++) {
        sum += exp((double)k_f32_from_bf16(row[v]));
        best = k_f32_from_bf16(row[v]) > k_f32_from_bf16(row[best]) ? v : best;
    }
    *out_best = best;
    return log(sum);
}

void paged_logprobs(const struct paged_rows *at, const uint32_t *ids, uint32_t per_row,
                    float *out_logprobs, uint32_t *out_best)
{
    for (uint32_t r = 0; r < at->rows; r++) {
        const uint16_t *row = at->logits + (uint64_t)r * at->vocab_tokens;
        uint64_t from = (uint64_t)r * per_row;
        uint32_t best = 0;
        double total = log_sum_exp(row, at->vocab_tokens, &best);
        for (uint32_t i = 0; i < per_row; i++) {
            out_logprobs[from + i] = (float)((double)k_f32_from_bf16(row[ids[from + i]]) - total);
        }
        if (out_best != NULL) {
            out_best[r] = best;
        }
    }
}
