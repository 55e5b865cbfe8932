/* The forward pass of the cpu backend over paged pools, driven directly: tests see the logits of
 * every token.  Physical pages are shuffled, and every page holds NaN before its first write and
 * again before its entry of the page table turns to a new logical page. */
#ifndef TESTS_TESTLIB_PAGED_FORWARD_H
#define TESTS_TESTLIB_PAGED_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/device_cpu.h"
#include "worker/forward.h"

struct paged_options {
    const char *model_dir;
    uint32_t threads;
    uint32_t slots;
    uint32_t page_tokens;
    uint32_t max_step_tokens;
    uint32_t max_context_tokens;
    uint32_t pad_tokens_multiple; /* padding tokens behind each step; 1: none */
    bool is_plain;                /* the plain inner loops */
    uint64_t seed;
};

struct paged {
    struct paged_options options;
    struct model_config config;
    struct weights weights;
    struct device_cpu *device;
    struct stage_tables tables;
    struct stage_upload upload;
    struct k_pick *picks;
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

struct paged_rows {
    const uint16_t *logits; /* [rows, vocab_tokens] */
    uint32_t rows;
    uint32_t vocab_tokens;
};

/* Logprobs at ids [rows, per_row], and the best token of each row (or null). */
void paged_logprobs(const struct paged_rows *at, const uint32_t *ids, uint32_t per_row,
                    float *out_logprobs, uint32_t *out_best);

#endif
