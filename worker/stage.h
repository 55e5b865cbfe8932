/* What a step is on the device: state of the slots, page tables, and the tables of one step.
 *
 * stage_pack turns a step into one packed block (rows, patches, prompt ids) and its masks on the
 * executor thread; on the stream the prologue derives the token tables from it and from the slots
 * (kernels/sampler.h).  In steady decode the rows do not change from step to step, and what is new is
 * at most 16 bytes per row and family that turns a page: ids, positions and page lookups come from
 * the slots.
 *
 * With limits->segment_tokens the decode rows come first, filled up to max_step_rows with rows of
 * nobody, and behind them the prompt rows in pieces that end at multiples of segment_tokens: the
 * shapes of a sequence's computation then do not depend on what else is in the step.
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

/* Where a row of the step lies among the packed rows: last has its outcome. */
struct stage_span {
    uint32_t first;
    uint32_t last;
};

/* One step as copied to the device: a block [room for stage_row_cap rows | tail], the tail being
 * patches, prompt ids and next ids without room between, and the masks. */
struct stage_upload {
    unsigned char *block;
    size_t tail_offset_bytes;
    size_t tail_bytes;
    struct k_row *rows;      /* [stage_row_cap] */
    uint32_t row_count;      /* of nobody included */
    uint32_t decode_count;   /* packed in front; only with segment_tokens */
    struct k_patch *patches; /* [patch_count] */
    uint32_t patch_count;
    uint32_t *prompt_ids; /* [id_count] */
    uint32_t *next_ids;   /* [id_count] where a row wants prompt logprobs */
    uint32_t id_count;
    uint32_t *missing; /* [max_step_rows] of each mask: not 0, it is not there; the masks follow */
    uint32_t *masks;   /* [max_step_rows, mask_words] */
    uint32_t mask_count;
    uint32_t late_count;      /* of the masks, those that are not there yet */
    uint32_t token_count;     /* of all rows */
    struct stage_span *spans; /* host only, [max_step_rows] */
};

/* Entries of a slot's page table: local ceil(window/page) + ceil(max step tokens/page) + 2, global
 * the whole context. */
uint32_t stage_table_pages(const struct runner_limits *limits, enum runner_family family);

/* Patches of one step at most: every entry of every slot. */
uint64_t stage_max_patches(const struct runner_limits *limits);

uint32_t stage_mask_words(const struct runner_limits *limits);

/* Packed rows of one step at most. */
uint32_t stage_row_cap(const struct runner_limits *limits);

/* A row that is always masked. */
struct k_row stage_nobody(void);

/* Errors: ERR_MEMORY. */
ERR_NODISCARD enum err_code stage_tables_create(const struct runner_limits *limits,
                                                const struct stage_allocator *allocator,
                                                struct stage_tables *out_tables, struct err *err);
ERR_NODISCARD enum err_code stage_upload_create(const struct runner_limits *limits,
                                                const struct stage_allocator *allocator,
                                                struct stage_upload *out_upload, struct err *err);

/* Copies a step.  generations [slots]: of the sequence that each slot holds now.  Errors: ERR_STEP
 * (a row or a patch outside the limits: the bookkeeping must not send such; with segment_tokens a
 * prompt row that begins, or ends before the prompt does, elsewhere than at a multiple of it). */
ERR_NODISCARD enum err_code stage_pack(const struct runner_limits *limits,
                                       const struct runner_step *step, const uint32_t *generations,
                                       struct stage_upload *upload, struct err *err);

/* Masks that were not there when the step was packed, by row of the step; null: still not. */
void stage_take_masks(const struct runner_limits *limits, const uint32_t *const *masks,
                      uint32_t row_count, struct stage_upload *upload);

/* Points the parts of mirror, an upload in device memory, to where those of upload lie in its block. */
void stage_upload_mirror(const struct stage_upload *upload, struct stage_upload *mirror);

/* Arguments of the step's prologue over these tables; picks [rows] receives the outcomes. */
struct k_expand_args stage_expand_args(const struct stage_tables *tables,
                                       const struct stage_upload *upload, struct k_pick *picks);

/* The running step's tokens, after the prologue. */
struct k_tokens stage_tokens(const struct stage_tables *tables);

#endif
