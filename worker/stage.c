#include "worker/stage.h"

#include <string.h>

#include "common/num.h"
#include "proto/account.h"

uint32_t stage_table_pages(const struct runner_limits *limits, enum runner_family family)
{
    const struct account_geometry geometry = {
        .page_tokens = limits->page_tokens,
        .window_tokens = limits->window_tokens,
        .max_step_tokens = limits->max_step_tokens,
    };
    return family == RUNNER_FAMILY_LOCAL
               ? account_local_table_pages(&geometry)
               : num_ceil_div(limits->max_context_tokens, limits->page_tokens);
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

uint32_t stage_row_cap(const struct runner_limits *limits)
{
    uint32_t pieces =
        limits->segment_tokens == 0
            ? 0
            : limits->max_step_rows + limits->max_step_tokens / limits->segment_tokens;
    return limits->max_step_rows + pieces;
}

struct k_row stage_nobody(void)
{
    return (struct k_row){
        .count = 1, .first_id = K_NONE, .mask_row = K_NONE, .flags = K_ROW_SAMPLES};
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

static size_t tail_offset(const struct runner_limits *limits)
{
    return num_align_up(stage_row_cap(limits) * sizeof(struct k_row), sizeof(struct k_patch));
}

/* Points to the parts of the tail, for so many patches and ids. */
static void lay_out_tail(struct stage_upload *upload, uint64_t patch_count, uint64_t id_count,
                         bool has_next_ids)
{
    unsigned char *at = upload->block + upload->tail_offset_bytes;
    upload->patches = (struct k_patch *)(void *)at;
    at += patch_count * sizeof(struct k_patch);
    upload->prompt_ids = (uint32_t *)(void *)at;
    at += id_count * sizeof(uint32_t);
    upload->next_ids = (uint32_t *)(void *)at;
    at += has_next_ids ? id_count * sizeof(uint32_t) : 0;
    upload->tail_bytes = (size_t)(at - (upload->block + upload->tail_offset_bytes));
}

enum err_code stage_upload_create(const struct runner_limits *limits,
                                  const struct stage_allocator *allocator,
                                  struct stage_upload *out_upload, struct err *err)
{
    struct carver carver = {.allocator = allocator};
    uint64_t mask_words = (uint64_t)limits->max_step_rows * (stage_mask_words(limits) + 1);
    struct stage_upload upload = {.tail_offset_bytes = tail_offset(limits)};
    upload.block =
        carve(&carver,
              upload.tail_offset_bytes + stage_max_patches(limits) * sizeof(struct k_patch) +
                  2 * (uint64_t)limits->max_step_tokens * sizeof(uint32_t),
              1);
    upload.missing = carve(&carver, mask_words, sizeof(uint32_t));
    upload.spans = carve(&carver, limits->max_step_rows, sizeof(*upload.spans));
    if (carver.has_failed) {
        return err_set(err, ERR_MEMORY, "step buffer: %u rows, %u tokens", limits->max_step_rows,
                       limits->max_step_tokens);
    }
    upload.rows = (struct k_row *)(void *)upload.block;
    upload.masks = upload.missing + limits->max_step_rows;
    lay_out_tail(&upload, stage_max_patches(limits), limits->max_step_tokens, true);
    *out_upload = upload;
    return ERR_OK;
}

void stage_upload_mirror(const struct stage_upload *upload, struct stage_upload *mirror)
{
    bool has_next_ids = (unsigned char *)upload->next_ids <
                        upload->block + upload->tail_offset_bytes + upload->tail_bytes;
    lay_out_tail(mirror, upload->patch_count, upload->id_count, has_next_ids);
    mirror->row_count = upload->row_count;
    mirror->patch_count = upload->patch_count;
    mirror->id_count = upload->id_count;
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
    uint32_t segment_tokens = is_decode ? 0 : limits->segment_tokens;
    if (segment_tokens != 0 &&
        (row->start % segment_tokens != 0 ||
         (!row->samples && (row->start + row->count) % segment_tokens != 0))) {
        return err_set(err, ERR_STEP, "row %u: tokens %u + %u of a prompt, cut at multiples of %u",
                       index, row->start, row->count, segment_tokens);
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

static void pack_mask(const struct runner_limits *limits, const struct runner_row *row,
                      struct k_row *out, struct stage_upload *upload)
{
    uint32_t words = stage_mask_words(limits);
    bool is_late = row->mask == NULL && row->mask_follows && limits->segment_tokens == 0;
    if (row->mask == NULL && !is_late) {
        out->flags |= K_ROW_HELD;
        return;
    }
    out->mask_row = upload->mask_count++;
    upload->missing[out->mask_row] = is_late;
    upload->late_count += is_late;
    if (!is_late) {
        memcpy(upload->masks + (uint64_t)out->mask_row * words, row->mask,
               words * sizeof(uint32_t));
    }
}

/* A decode row's start is left out: the device has it, and the packed row shall stay as it is from
 * step to step. */
static void pack_row(const struct runner_limits *limits, const struct runner_row *row,
                     uint32_t generation, struct stage_upload *upload)
{
    struct k_row *out = &upload->rows[upload->row_count++];
    bool is_decode = row->tokens == NULL;
    *out = (struct k_row){
        .slot = row->slot,
        .generation = generation,
        .start = is_decode ? 0 : row->start,
        .count = row->count,
        .first_id = is_decode ? K_NONE : upload->id_count,
        .mask_row = K_NONE,
        .flags = row->samples ? K_ROW_SAMPLES : 0,
    };
    upload->token_count += row->count;
    if (!is_decode) {
        size_t byte_count = row->count * sizeof(uint32_t);
        memcpy(upload->prompt_ids + upload->id_count, row->tokens, byte_count);
        if (row->prompt_logprobs) {
            out->flags |= K_ROW_PROMPT_LOGPROBS;
            memcpy(upload->next_ids + upload->id_count, row->next_tokens, byte_count);
        }
        upload->id_count += row->count;
    }
    if (row->constrained && row->samples) {
        pack_mask(limits, row, out, upload);
    }
}

/* Pieces of a prompt row that end at multiples of segment_tokens; the last one samples. */
static void pack_pieces(const struct runner_limits *limits, const struct runner_row *row,
                        uint32_t generation, struct stage_upload *upload)
{
    for (uint32_t done = 0; done < row->count;) {
        uint32_t start = row->start + done;
        uint32_t most = limits->segment_tokens - start % limits->segment_tokens;
        struct runner_row piece = *row;
        piece.start = start;
        piece.count = num_min(row->count - done, most);
        piece.tokens = row->tokens + done;
        piece.next_tokens = row->prompt_logprobs ? row->next_tokens + done : NULL;
        done += piece.count;
        piece.samples = row->samples && done == row->count;
        pack_row(limits, &piece, generation, upload);
    }
}

static void pack_rows(const struct runner_limits *limits, const struct runner_step *step,
                      const uint32_t *generations, struct stage_upload *upload)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        upload->spans[i] = (struct stage_span){i, i};
        pack_row(limits, &step->rows[i], generations[step->rows[i].slot], upload);
    }
}

static void pack_rows_apart(const struct runner_limits *limits, const struct runner_step *step,
                            const uint32_t *generations, struct stage_upload *upload)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct runner_row *row = &step->rows[i];
        if (row->tokens == NULL) {
            upload->spans[i] = (struct stage_span){upload->row_count, upload->row_count};
            pack_row(limits, row, generations[row->slot], upload);
        }
    }
    upload->decode_count = upload->row_count;
    while (upload->row_count < limits->max_step_rows) {
        upload->rows[upload->row_count++] = stage_nobody();
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct runner_row *row = &step->rows[i];
        if (row->tokens != NULL) {
            upload->spans[i].first = upload->row_count;
            pack_pieces(limits, row, generations[row->slot], upload);
            upload->spans[i].last = upload->row_count - 1;
        }
    }
}

static enum err_code check_step(const struct runner_limits *limits, const struct runner_step *step,
                                struct err *err)
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
    if (code == ERR_OK && tokens > limits->max_step_tokens) {
        code = err_set(err, ERR_STEP, "%llu tokens, at most %u", (unsigned long long)tokens,
                       limits->max_step_tokens);
    }
    return code;
}

enum err_code stage_pack(const struct runner_limits *limits, const struct runner_step *step,
                         const uint32_t *generations, struct stage_upload *upload, struct err *err)
{
    enum err_code code = check_step(limits, step, err);
    if (code != ERR_OK) {
        return code;
    }
    uint64_t id_count = 0;
    bool has_next_ids = false;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct runner_row *row = &step->rows[i];
        id_count += row->tokens != NULL ? row->count : 0;
        has_next_ids = has_next_ids || row->prompt_logprobs;
    }
    lay_out_tail(upload, step->patch_count, id_count, has_next_ids);
    upload->row_count = 0;
    upload->decode_count = 0;
    upload->id_count = 0;
    upload->mask_count = 0;
    upload->late_count = 0;
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
    if (limits->segment_tokens == 0) {
        pack_rows(limits, step, generations, upload);
    } else {
        pack_rows_apart(limits, step, generations, upload);
    }
    return ERR_OK;
}

void stage_take_masks(const struct runner_limits *limits, const uint32_t *const *masks,
                      uint32_t row_count, struct stage_upload *upload)
{
    uint32_t words = stage_mask_words(limits);
    for (uint32_t i = 0; i < row_count; i++) {
        uint32_t mask_row = upload->rows[upload->spans[i].last].mask_row;
        if (mask_row != K_NONE && upload->missing[mask_row] != 0 && masks[i] != NULL) {
            memcpy(upload->masks + (uint64_t)mask_row * words, masks[i], words * sizeof(uint32_t));
            upload->missing[mask_row] = 0;
            upload->late_count--;
        }
    }
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
