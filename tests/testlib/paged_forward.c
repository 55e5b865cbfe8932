#include "tests/testlib/paged_forward.h"

#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/test.h"

#define NAN_BYTE 0xff

/* What lies in device memory is written as a whole and from here only. */
static void write_device(struct paged *paged, void *to, const void *from, size_t byte_count)
{
    struct err err = {0};
    const struct stage_allocator *allocator = &paged->device.allocator;
    if (byte_count > 0) {
        test_ok(allocator->write(allocator->context, to, from, byte_count, &err), &err);
    }
}

static void *alloc_device(struct paged *paged, size_t count, size_t elem_bytes)
{
    const struct stage_allocator *allocator = &paged->device.allocator;
    void *at = allocator->alloc(allocator->context, count, elem_bytes);
    test_true(at != NULL);
    return at;
}

static void *alloc_on_host(void *context, size_t count, size_t elem_bytes)
{
    struct paged *paged = context;
    test_true(paged->host_block_count < PAGED_HOST_BLOCKS);
    void *block = mem_zalloc(count, elem_bytes);
    paged->host_blocks[paged->host_block_count++] = block;
    return block;
}

static uint64_t page_elems(const struct k_pages *pages)
{
    return k_page_offset(pages, 1, 0, 0, 0);
}

static void poison(struct paged *paged, uint32_t family, uint32_t page, uint32_t count)
{
    const struct k_pages *pages = &paged->forward.pages[family];
    backend_fill(&paged->device, pages->base + page * page_elems(pages), NAN_BYTE,
                 count * page_elems(pages) * sizeof(uint16_t));
}

/* Entry e of a slot's table always means the same physical page, drawn without repetition. */
static void fill_tables(struct paged *paged)
{
    uint64_t random = paged->options.seed;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        uint32_t entries = paged->options.slots * paged->tables.table_pages[family];
        uint32_t *table = mem_zalloc(entries, sizeof(*table));
        for (uint32_t i = 0; i < entries; i++) {
            uint32_t other = (uint32_t)(test_random(&random) % (i + 1));
            table[i] = table[other];
            table[other] = i;
        }
        write_device(paged, paged->tables.page_tables[family], table, entries * sizeof(*table));
        paged->host_tables[family] = table;
        poison(paged, family, 0, entries + 1); /* the padding page too */
    }
}

/* Nobody's generation, in every slot: no row is masked. */
static void fill_slots(struct paged *paged)
{
    uint32_t slots = paged->options.slots;
    uint32_t *nobody = mem_zalloc(slots, sizeof(*nobody));
    for (uint32_t slot = 0; slot < slots; slot++) {
        nobody[slot] = UINT32_MAX;
    }
    write_device(paged, paged->tables.stop_request, nobody, slots * sizeof(*nobody));
    mem_free(nobody);
}

static struct runner_limits limits_of(const struct paged_options *options,
                                      const struct model_config *config)
{
    struct runner_limits limits = {
        .slots = options->slots,
        .max_step_rows = options->slots,
        .max_step_tokens = options->max_step_tokens + options->pad_tokens_multiple,
        .max_context_tokens = options->max_context_tokens,
        .vocab_tokens = config->info.vocab_tokens,
        .window_tokens = config->families[RUNNER_FAMILY_LOCAL].window_tokens,
        .page_tokens = options->page_tokens,
        .pipeline_depth = 1,
    };
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        limits.pages[family] =
            options->slots * stage_table_pages(&limits, (enum runner_family)family);
    }
    return limits;
}

static void fill_token_index(struct paged *paged, uint32_t count)
{
    uint32_t *index = mem_zalloc(count, sizeof(*index));
    for (uint32_t i = 0; i < count; i++) {
        index[i] = i;
    }
    write_device(paged, paged->token_index, index, count * sizeof(*index));
    mem_free(index);
}

struct paged *paged_create(const struct paged_options *options)
{
    struct err err = {0};
    struct paged *paged = mem_zalloc(1, sizeof(*paged));
    struct backend_device *device = &paged->device;
    const struct stage_allocator host = {.context = paged, .alloc = alloc_on_host};
    paged->options = *options;
    test_ok(model_config_load(options->model_dir, &paged->config, &err), &err);
    struct runner_limits limits = limits_of(options, &paged->config);
    const struct backend_device_options device_options = {
        .model_dir = options->model_dir,
        .config = &paged->config,
        .limits = limits,
        .threads = options->threads,
        .is_plain = options->is_plain,
    };
    options->backend->open_device(options->backend, &device_options, device);
    test_ok(stage_tables_create(&limits, &device->allocator, &paged->tables, &err), &err);
    test_ok(stage_upload_create(&limits, &device->allocator, &paged->upload, &err), &err);
    test_ok(stage_upload_create(&limits, &host, &paged->host, &err), &err);
    paged->lengths = mem_zalloc(options->slots, sizeof(*paged->lengths));
    paged->picks = alloc_device(paged, options->slots, sizeof(*paged->picks));
    paged->token_index = alloc_device(paged, limits.max_step_tokens, sizeof(uint32_t));
    paged->logits =
        alloc_device(paged, (size_t)limits.max_step_tokens * limits.vocab_tokens, sizeof(uint16_t));
    const struct forward_options forward_options = {
        .config = &paged->config,
        .weights = &device->weights,
        .ops = device->ops,
        .stream = device->stream,
        .allocator = device->allocator,
        .tables = &paged->tables,
        .limits = limits,
        .expert_block_rows = options->expert_block_rows,
    };
    test_ok(forward_create(&forward_options, &paged->forward, &err), &err);
    fill_token_index(paged, limits.max_step_tokens);
    fill_tables(paged);
    fill_slots(paged);
    if (options->poisons_padding) { /* padding tokens have id 0 */
        const unsigned char *table = (const unsigned char *)device->weights.embed_tokens;
        backend_fill(device, device->block + (table - device->block), NAN_BYTE,
                     paged->config.hidden_elems * sizeof(uint16_t));
    }
    return paged;
}

void paged_destroy(struct paged *paged)
{
    for (uint32_t i = 0; i < paged->host_block_count; i++) {
        mem_free(paged->host_blocks[i]);
    }
    mem_free(paged->lengths);
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        mem_free(paged->host_tables[family]);
    }
    paged->device.backend->close_device(&paged->device);
    mem_free(paged);
}

static uint32_t page_of(const struct paged *paged, uint32_t family, uint32_t slot,
                        uint32_t position)
{
    struct k_pages pages = paged->forward.pages[family];
    pages.table = paged->host_tables[family];
    return k_page_of(&pages, slot, position);
}

/* Pages that the segment enters are stale until it writes them. */
static void poison_new_pages(struct paged *paged, const struct paged_segment *segment)
{
    uint32_t page_tokens = paged->options.page_tokens;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        uint32_t first = num_ceil_div(segment->start, page_tokens);
        uint32_t end = num_ceil_div(segment->start + segment->count, page_tokens);
        for (uint32_t page = first; page < end; page++) {
            poison(paged, family, page_of(paged, family, segment->slot, page * page_tokens), 1);
        }
    }
}

static void stage(struct paged *paged, const struct paged_segment *segments, uint32_t count)
{
    struct stage_upload *host = &paged->host;
    host->row_count = count;
    host->id_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        poison_new_pages(paged, &segments[i]);
        host->rows[i] = (struct k_row){
            .slot = segments[i].slot,
            .start = segments[i].start,
            .count = segments[i].count,
            .first_id = host->id_count,
            .mask_row = K_NONE,
        };
        memcpy(host->prompt_ids + host->id_count, segments[i].ids,
               segments[i].count * sizeof(uint32_t));
        host->id_count += segments[i].count;
        paged->lengths[segments[i].slot] = segments[i].start + segments[i].count;
    }
    write_device(paged, paged->upload.rows, host->rows, count * sizeof(*host->rows));
    write_device(paged, paged->upload.prompt_ids, host->prompt_ids,
                 host->id_count * sizeof(uint32_t));
    paged->upload.row_count = count;
    paged->upload.id_count = host->id_count;
}

static enum err_code enqueue(void *context, struct err *err)
{
    struct paged *paged = context;
    uint32_t multiple = num_max(1, paged->options.pad_tokens_multiple);
    const struct k_tokens tokens = {
        .count = num_ceil_div(paged->upload.id_count, multiple) * multiple,
        .ids = paged->tables.ids,
        .positions = paged->tables.positions,
        .slots = paged->tables.token_slots,
    };
    struct k_expand_args expand = stage_expand_args(&paged->tables, &paged->upload, paged->picks);
    expand.pad_tokens_multiple = multiple;
    enum err_code code = paged->device.ops->expand(paged->device.stream, &expand, err);
    code = code == ERR_OK ? forward_run(&paged->forward, &tokens, err) : code;
    return code == ERR_OK ? forward_head(&paged->forward, paged->token_index,
                                         paged->upload.id_count, paged->logits, err)
                          : code;
}

void paged_step(struct paged *paged, const struct paged_segment *segments, uint32_t count,
                uint16_t *logits)
{
    const struct backend *backend = paged->device.backend;
    stage(paged, segments, count);
    uint64_t shape = (uint64_t)count << 32 | paged->upload.id_count;
    backend->run(&paged->device, shape, enqueue, paged);
    backend->read(&paged->device, logits, paged->logits,
                  (size_t)paged->upload.id_count * paged->config.info.vocab_tokens *
                      sizeof(*logits));
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

/* written [pages]: how many tokens of each physical page were. */
static void count_written(const struct paged *paged, uint32_t family, uint32_t *written)
{
    uint32_t page_tokens = paged->options.page_tokens;
    for (uint32_t slot = 0; slot < paged->options.slots; slot++) {
        test_true(paged->lengths[slot] <= paged->tables.table_pages[family] * page_tokens);
        for (uint32_t start = 0; start < paged->lengths[slot]; start += page_tokens) {
            written[page_of(paged, family, slot, start)] =
                num_min(page_tokens, paged->lengths[slot] - start);
        }
    }
}

/* page [page_elems] of a pool, its first `written` tokens aside. */
static void check_page(const struct paged *paged, uint32_t family, uint32_t written,
                       const uint16_t *page)
{
    const struct k_pages *pages = &paged->forward.pages[family];
    uint64_t head_elems = (uint64_t)pages->page_tokens * pages->head_dim;
    for (uint64_t i = 0; i < page_elems(pages); i++) {
        uint64_t token = i % head_elems / pages->head_dim;
        if (token >= written && page[i] != UINT16_MAX) {
            test_fail(__FILE__, __LINE__,
                      "%s: family %u, element %llu of a page (token %llu of %u written) holds %04x",
                      paged->device.backend->name, family, (unsigned long long)i,
                      (unsigned long long)token, written, page[i]);
        }
    }
}

void paged_check_unwritten(struct paged *paged)
{
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        const struct k_pages *pages = &paged->forward.pages[family];
        uint32_t *written = mem_zalloc(pages->pages, sizeof(*written));
        uint16_t *page = mem_zalloc(page_elems(pages), sizeof(*page));
        count_written(paged, family, written);
        for (uint32_t p = 0; p < pages->pages; p++) {
            paged->device.backend->read(&paged->device, page, pages->base + p * page_elems(pages),
                                        page_elems(pages) * sizeof(*page));
            check_page(paged, family, written[p], page);
        }
        mem_free(page);
        mem_free(written);
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
