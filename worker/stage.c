#include "worker/stage.h"

#include <string.h>

#include "common/num.h"

uint32_t stage_table_pages(const struct runner_limits *limits, enum runner_family family)
{
    uint32_t page_tokens = limits->page_tokens;
    return family == RUNNER_FAMILY_LOCAL
               ? num_ceil_div(limits->window_tokens, page_tokens) +
                     num_ceil_div(limits->max_step_tokens, page_tokens) + 2
               : num_ceil_div(limits->max_context_tokens, page_tokens);
}

uint64_t stage_max_patches(const struct runner_limits *limits)
{
    uint64_t per_slot = (uint64_t)stage_table_pages(limits, RUNNER_FAMILY_LOCAL) +
                        stage_table_pages(limits, RUNNER_FAMILY_GLOBAL);
    return limits->slots * per_slot;
}

uint32_t stage_mask_words(const struct runner_limits *limits)
{
    return num_ceil_div(limits->vocab_tokens, 32);
}

/* Carves arrays until one fails. */
struct carver {
    const struct stage_allocator *allocator;
    bool has_failed;
};

static void *carve(struct carver *carver, uint64_t count, size_t elem_bytes)
{
    void *at = carver->has_failed
                   ? NULL
                   : carver->allocator->alloc(carver->allocator->context, count, elem_bytes);
    carver->has_failed = at == NULL;
    return at;
}

enum err_code stage_tables_create(const struct runner_limits *limits,
                                  const struct stage_allocator *allocator,
                                  struct stage_tables *out_tables, struct err *err)
{
    struct carver carver = {.allocator = allocator};
    struct stage_tables tables = {
        .slots = {.slot_count = limits->slots, .vocab_tokens = limits->vocab_tokens},
    };
    uint32_t slots = limits->slots;
    uint64_t tokens = limits->max_step_tokens;
    tables.slots.next_token = carve(&carver, slots, sizeof(uint32_t));
    tables.slots.length = carve(&carver, slots, sizeof(uint32_t));
    tables.slots.generation = carve(&carver, slots, sizeof(uint32_t));
    tables.slots.stopped = carve(&carver, slots, sizeof(uint32_t));
    tables.stop_request = carve(&carver, slots, sizeof(uint32_t));
    tables.slots.stop_request = tables.stop_request;
    tables.slots.samplers = carve(&carver, slots, sizeof(struct k_sampler));
    tables.slots.counts = carve(&carver, (uint64_t)slots * limits->vocab_tokens, sizeof(uint32_t));
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        tables.table_pages[family] = stage_table_pages(limits, (enum runner_family)family);
        tables.page_tables[family] =
            carve(&carver, (uint64_t)slots * tables.table_pages[family], sizeof(uint32_t));
    }
    tables.ids = carve(&carver, tokens, sizeof(uint32_t));
    tables.positions = carve(&carver, tokens, sizeof(uint32_t));
    tables.token_slots = carve(&carver, tokens, sizeof(uint32_t));
    tables.sample_rows = carve(&carver, limits->max_step_rows, sizeof(*tables.sample_rows));
    tables.sample_tokens = carve(&carver, limits->max_step_rows, sizeof(uint32_t));
    tables.sample_logprobs = carve(&carver, limits->max_step_rows, sizeof(*tables.sample_logprobs));
    tables.prompt_tokens = carve(&carver, tokens, sizeof(uint32_t));
    tables.prompt_logprobs = carve(&carver, tokens, sizeof(*tables.prompt_logprobs));
    tables.counts = carve(&carver, 1, sizeof(*tables.counts));
    if (carver.has_failed) {
        return err_set(err, ERR_MEMORY, "slot state: %u slots of vocabulary %u and context %u",
                       slots, limits->vocab_tokens, limits->max_context_tokens);
    }
    *out_tables = tables;
    return ERR_OK;
}

enum err_code stage_upload_create(const struct runner_limits *limits,
                                  const struct stage_allocator *allocator,
                                  struct stage_upload *out_upload, struct err *err)
{
    struct carver carver = {.allocator = allocator};
    uint64_t mask_words = (uint64_t)limits->max_step_rows * stage_mask_words(limits);
    struct stage_upload upload = {0};
    upload.rows = carve(&carver, limits->max_step_rows, sizeof(*upload.rows));
    upload.patches = carve(&carver, stage_max_patches(limits), sizeof(*upload.patches));
    upload.prompt_ids = carve(&carver, limits->max_step_tokens, sizeof(uint32_t));
    upload.next_ids = carve(&carver, limits->max_step_tokens, sizeof(uint32_t));
    upload.masks = carve(&carver, mask_words, sizeof(uint32_t));
    if (carver.has_failed) {
        return err_set(err, ERR_MEMORY, "step buffer: %u rows, %u tokens", limits->max_step_rows,
                       limits->max_step_tokens);
    }
    *out_upload = upload;
    return ERR_OK;
}

static enum err_code check_row(const struct runner_limits *limits, const struct runner_row *row,
                               uint32_t index, struct err *err)
{
    bool is_decode = row->tokens == NULL;
    if (row->slot >= limits->slots) {
        return err_set(err, ERR_STEP, "row %u: slot %u of %u", index, row->slot, limits->slots);
    }
    if (row->count == 0 || (is_decode && row->count != 1)) {
        return err_set(err, ERR_STEP, "row %u: %u tokens", index, row->count);
    }
    if ((uint64_t)row->start + row->count > limits->max_context_tokens) {
        return err_set(err, ERR_STEP, "row %u: tokens %u + %u, the context ends at %u", index,
                       row->start, row->count, limits->max_context_tokens);
    }
    for (uint32_t i = 0; !is_decode && i < row->count; i++) {
        if (row->tokens[i] >= limits->vocab_tokens) {
            return err_set(err, ERR_STEP, "row %u: token id %u, the vocabulary has %u", index,
                           row->tokens[i], limits->vocab_tokens);
        }
    }
    return ERR_OK;
}

static enum err_code check_patch(const struct runner_limits *limits,
                                 const struct runner_patch *patch, uint32_t index, struct err *err)
{
    if (patch->slot >= limits->slots || (uint32_t)patch->family >= RUNNER_FAMILY_COUNT) {
        return err_set(err, ERR_STEP, "patch %u: slot %u of %u, family %u", index, patch->slot,
                       limits->slots, (uint32_t)patch->family);
    }
    if (patch->physical_page >= limits->pages[patch->family]) {
        return err_set(err, ERR_STEP, "patch %u: page %u of %u", index, patch->physical_page,
                       limits->pages[patch->family]);
    }
    if ((uint64_t)patch->logical_page * limits->page_tokens >= limits->max_context_tokens) {
        return err_set(err, ERR_STEP, "patch %u: logical page %u, the context ends at token %u",
                       index, patch->logical_page, limits->max_context_tokens);
    }
    return ERR_OK;
}

static void pack_row(const struct runner_limits *limits, const struct runner_row *row,
                     uint32_t generation, struct stage_upload *upload)
{
    struct k_row *out = &upload->rows[upload->row_count++];
    *out = (struct k_row){
        .slot = row->slot,
        .generation = generation,
        .start = row->start,
        .count = row->count,
        .first_id = row->tokens == NULL ? K_NONE : upload->id_count,
        .mask_row = K_NONE,
        .flags = row->samples ? K_ROW_SAMPLES : 0,
    };
    upload->token_count += row->count;
    if (row->tokens != NULL) {
        size_t byte_count = row->count * sizeof(uint32_t);
        memcpy(upload->prompt_ids + upload->id_count, row->tokens, byte_count);
        if (row->prompt_logprobs) {
            out->flags |= K_ROW_PROMPT_LOGPROBS;
            memcpy(upload->next_ids + upload->id_count, row->next_tokens, byte_count);
        }
        upload->id_count += row->count;
    }
    if (row->constrained && row->samples) {
        uint32_t words = stage_mask_words(limits);
        if (row->mask == NULL) {
            out->flags |= K_ROW_HELD;
            return;
        }
        out->mask_row = upload->mask_count++;
        memcpy(upload->masks + (uint64_t)out->mask_row * words, row->mask,
               words * sizeof(uint32_t));
    }
}

enum err_code stage_pack(const struct runner_limits *limits, const struct runner_step *step,
                         const uint32_t *generations, struct stage_upload *upload, struct err *err)
{
    enum err_code code = ERR_OK;
    uint64_t tokens = 0;
    if (step->row_count > limits->max_step_rows) {
        return err_set(err, ERR_STEP, "%u rows, at most %u", step->row_count,
                       limits->max_step_rows);
    }
    if (step->patch_count > stage_max_patches(limits)) {
        return err_set(err, ERR_STEP, "%u patches, at most %llu", step->patch_count,
                       (unsigned long long)stage_max_patches(limits));
    }
    for (uint32_t i = 0; code == ERR_OK && i < step->row_count; i++) {
        code = check_row(limits, &step->rows[i], i, err);
        tokens += step->rows[i].count;
    }
    for (uint32_t i = 0; code == ERR_OK && i < step->patch_count; i++) {
        code = check_patch(limits, &step->patches[i], i, err);
    }
    if (code != ERR_OK) {
        return code;
    }
    if (tokens > limits->max_step_tokens) {
        return err_set(err, ERR_STEP, "%llu tokens, at most %u", (unsigned long long)tokens,
                       limits->max_step_tokens);
    }
    upload->row_count = 0;
    upload->id_count = 0;
    upload->mask_count = 0;
    upload->token_count = 0;
    upload->patch_count = step->patch_count;
    for (uint32_t i = 0; i < step->patch_count; i++) {
        const struct runner_patch *patch = &step->patches[i];
        upload->patches[i] = (struct k_patch){
            .slot = patch->slot,
            .family = (uint32_t)patch->family,
            .entry = patch->logical_page % stage_table_pages(limits, patch->family),
            .physical_page = patch->physical_page,
        };
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        pack_row(limits, &step->rows[i], generations[step->rows[i].slot], upload);
    }
    return ERR_OK;
}

struct k_expand_args stage_expand_args(const struct stage_tables *tables,
                                       const struct stage_upload *upload, struct k_pick *picks)
{
    return (struct k_expand_args){
        .slots = tables->slots,
        .patches = upload->patches,
        .patch_count = upload->patch_count,
        .page_tables = {tables->page_tables[RUNNER_FAMILY_LOCAL],
                        tables->page_tables[RUNNER_FAMILY_GLOBAL]},
        .table_pages = {tables->table_pages[RUNNER_FAMILY_LOCAL],
                        tables->table_pages[RUNNER_FAMILY_GLOBAL]},
        .rows = upload->rows,
        .row_count = upload->row_count,
        .pad_tokens_multiple = 1,
        .prompt_ids = upload->prompt_ids,
        .next_ids = upload->next_ids,
        .ids = tables->ids,
        .positions = tables->positions,
        .token_slots = tables->token_slots,
        .picks = picks,
        .sample_rows = tables->sample_rows,
        .sample_tokens = tables->sample_tokens,
        .sample_logprobs = tables->sample_logprobs,
        .prompt_tokens = tables->prompt_tokens,
        .prompt_logprobs = tables->prompt_logprobs,
        .counts = tables->counts,
    };
}

struct k_tokens stage_tokens(const struct stage_tables *tables)
{
    return (struct k_tokens){
        .count = tables->counts->tokens,
        .ids = tables->ids,
        .positions = tables->positions,
        .slots = tables->token_slots,
    };
}
