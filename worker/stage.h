/* What a step is on the device: state of the slots, page tables, and the tables of one step.
 *
 * stage_pack turns a step into one packed copy (rows, patches, prompt ids, masks) on the executor
 * thread; on the stream the prologue derives the token tables from it and from the slots
 * (kernels/sampler.h).  In steady decode a step is its rows, plus at most 16 bytes per row and family
 * that turns a page: ids, positions and page lookups come from the slots.
 *
 * Page tables are [slots, table_pages]; a logical page lies at its number modulo table_pages.  The
 * sliding family's table is as long as a window and one step's segment can ever span, so releasing
 * front pages moves nothing. */
#ifndef WORKER_STAGE_H
#define WORKER_STAGE_H

#include <stdint.h>

#include "common/err.h"
#include "kernels/ops.h"
#include "worker/runner.h"

/* Memory of the device that will run the steps; null when it is gone. */
struct stage_allocator {
    void *context;
    void *(*alloc)(void *context, size_t count, size_t elem_bytes);
    /* Host bytes into such memory; from may be reused after.  Errors: ERR_DEVICE. */
    enum err_code (*write)(void *context, void *to, const void *from, size_t byte_count,
                           struct err *err);
};

/* Slots and the tables of the running step.  Stream thread only, but for stop_request. */
struct stage_tables {
    struct k_slots slots;
    uint32_t *stop_request; /* [slots] written by any thread, atomically */
    uint32_t *page_tables[RUNNER_FAMILY_COUNT];
    uint32_t table_pages[RUNNER_FAMILY_COUNT];
    uint32_t *ids;                         /* [tokens] */
    uint32_t *positions;                   /* [tokens] */
    uint32_t *token_slots;                 /* [tokens] */
    struct k_sample_row *sample_rows;      /* [rows] */
    uint32_t *sample_tokens;               /* [rows] */
    struct k_logprob_row *sample_logprobs; /* [rows] */
    uint32_t *prompt_tokens;               /* [tokens] */
    struct k_logprob_row *prompt_logprobs; /* [tokens] */
    struct k_step_counts *counts;
};

/* One step as copied to the device. */
struct stage_upload {
    struct k_row *rows; /* [max_step_rows] */
    uint32_t row_count;
    struct k_patch *patches; /* [stage_max_patches] */
    uint32_t patch_count;
    uint32_t *prompt_ids; /* [max_step_tokens] */
    uint32_t *next_ids;   /* [max_step_tokens] */
    uint32_t id_count;
    uint32_t *masks; /* [max_step_rows, mask_words] */
    uint32_t mask_count;
    uint32_t token_count; /* of all rows */
};

/* Entries of a slot's page table: local ceil(window/page) + ceil(max step tokens/page) + 2, global
 * the whole context. */
uint32_t stage_table_pages(const struct runner_limits *limits, enum runner_family family);

/* Patches of one step at most: every entry of every slot. */
uint64_t stage_max_patches(const struct runner_limits *limits);

uint32_t stage_mask_words(const struct runner_limits *limits);

/* Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code stage_tables_create(const struct runner_limits *limits,
                                                const struct stage_allocator *allocator,
                                                struct stage_tables *out_tables, struct err *err);
ERR_NODISCARD enum err_code stage_upload_create(const struct runner_limits *limits,
                                                const struct stage_allocator *allocator,
                                                struct stage_upload *out_upload, struct err *err);

/* Copies a step.  generations [slots]: of the sequence that each slot holds now.  Errors: ERR_STEP
 * (a row or a patch outside the limits: the bookkeeping must not send such). */
ERR_NODISCARD enum err_code stage_pack(const struct runner_limits *limits,
                                       const struct runner_step *step, const uint32_t *generations,
                                       struct stage_upload *upload, struct err *err);

/* Arguments of the step's prologue over these tables; picks [rows] receives the outcomes. */
struct k_expand_args stage_expand_args(const struct stage_tables *tables,
                                       const struct stage_upload *upload, struct k_pick *picks);

/* The running step's tokens, after the prologue. */
struct k_tokens stage_tokens(const struct stage_tables *tables);

#endif
