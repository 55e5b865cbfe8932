/* The forward pass of a backend over paged pools, driven directly: tests see the logits of every
 * token.  Physical pages are shuffled, and every page holds NaN before its first write and again
 * before its entry of the page table turns to a new logical page. */
#ifndef TESTS_TESTLIB_PAGED_FORWARD_H
#define TESTS_TESTLIB_PAGED_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/testlib/backend.h"
#include "worker/forward.h"

#define PAGED_HOST_BLOCKS 8

struct paged_options {
    const struct backend *backend;
    const char *model_dir;
    uint32_t threads; /* cpu */
    uint32_t slots;
    uint32_t page_tokens;
    uint32_t max_step_tokens;
    uint32_t max_context_tokens;
    uint32_t pad_tokens_multiple; /* padding tokens behind each step; 1: none */
    uint32_t expert_block_rows;   /* 0: the backend's choice */
    bool is_plain;                /* cpu: the plain inner loops */
    bool poisons_padding; /* padding tokens compute with NaN; so do tokens of id 0, and their
                                     logit where embedding and head are one table */
    uint64_t seed;
};

struct paged {
    struct paged_options options;
    struct model_config config;
    struct backend_device device;
    struct stage_tables tables;           /* device memory */
    struct stage_upload upload;           /* device memory */
    struct stage_upload host;             /* twin of upload */
    void *host_blocks[PAGED_HOST_BLOCKS]; /* owned, what host lies in */
    uint32_t host_block_count;
    uint32_t *host_tables[RUNNER_FAMILY_COUNT]; /* owned twins of the page tables */
    uint32_t *lengths;                          /* owned, [slots] tokens run */
    struct k_pick *picks;                       /* device memory */
    uint32_t *token_index;                      /* device memory: 0, 1, 2, .. */
    uint16_t *logits;                           /* device memory, [max tokens, vocab] */
    struct forward forward;
};

/* Tokens of one sequence that run in a step. */
struct paged_segment {
    uint32_t slot;
    uint32_t start;
    uint32_t count;
    const uint32_t *ids; /* [count] */
};

struct paged *paged_create(const struct paged_options *options);
void paged_destroy(struct paged *paged);

/* Runs the segments as one step.  logits [all tokens in segment order, vocab] bf16. */
void paged_step(struct paged *paged, const struct paged_segment *segments, uint32_t count,
                uint16_t *logits);

/* A whole sequence in slot 0 in segments of chunk tokens.  logits [count, vocab]. */
void paged_sequence(struct paged *paged, const uint32_t *ids, uint32_t count, uint32_t chunk,
                    uint16_t *logits);

/* Every place of both pools that no token was written to still holds NaN, the padding page aside.
 * For slots whose sequences are shorter than their page tables. */
void paged_check_unwritten(struct paged *paged);

struct paged_rows {
    const uint16_t *logits; /* [rows, vocab_tokens] */
    uint32_t rows;
    uint32_t vocab_tokens;
};

/* Logprobs at ids [rows, per_row], and the best token of each row (or null). */
void paged_logprobs(const struct paged_rows *at, const uint32_t *ids, uint32_t per_row,
                    float *out_logprobs, uint32_t *out_best);

#endif
