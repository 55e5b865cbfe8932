/* State that lives on the device per slot, the step's prologue and tail that derive from it and
 * advance it, and the sampler.
 *
 * While the same rows go on decoding nothing here needs the host: ids come from next_token,
 * positions from length, and a row stops by its own flag.
 *
 * Order of the sampler (logits are the soft-capped bf16 ones, taken as f32):
 *   1. suppress_ids, and stop ids while fewer than min_tokens were output, become minus infinity
 *   2. tokens outside the constraint mask become minus infinity
 *   3. repetition penalty, prompt and output: l > 0 ? l / p : l * p
 *   4. presence and frequency penalty, output only
 *   5. logit bias
 *   6. temperature 0 (below K_MIN_TEMPERATURE): the largest, lowest id on ties; else
 *      l / temperature, then top-k, then top-p of what is left, then min-p relative to the best;
 *      exactly k survive top-k (lower ids on ties)
 *   7. the largest of l + Gumbel noise: Philox4x32-10, key = seed, counter = (position, id / 4)
 * vLLM adds the bias before the penalties, applies min-p before top-k and top-p, and keeps all ties
 * at the k-th value.  Noise per token (not one number per step) keeps the choice stable: it changes
 * only where two perturbed logits are closer than the noise of the logits themselves. */
#ifndef KERNELS_SAMPLER_H
#define KERNELS_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#define K_NONE            0xffffffffU
#define K_MIN_TEMPERATURE 1e-5F
#define K_MAX_BIAS        1024
#define K_MAX_STOP_IDS    16
#define K_MAX_LOGPROBS    20
#define K_COUNT_PROMPT    0x80000000U /* of a token's count word: it occurs in the prompt */
#define K_FAMILY_COUNT    2

struct k_pages;

/* Parameters of one slot's sequence. */
struct k_sampler {
    uint64_t seed;
    uint32_t output_start; /* position of the first output token */
    uint32_t max_total;    /* tokens, prompt included */
    uint32_t min_tokens;
    uint32_t top_k;    /* 0: off */
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float presence_penalty;
    float frequency_penalty;
    float repetition_penalty;
    uint32_t logprobs;        /* pairs beside the chosen token, plus one; 0: none */
    uint32_t prompt_logprobs; /* same, of prompt tokens */
    bool counts_tokens;       /* a penalty is on: the slot's counts are kept */
    bool ignore_eos;
    uint32_t stop_count;
    uint32_t stop_ids[K_MAX_STOP_IDS];
    uint32_t suppress_count;
    uint32_t suppress_ids[K_MAX_BIAS];
    uint32_t bias_count;
    uint32_t bias_ids[K_MAX_BIAS];
    float bias_values[K_MAX_BIAS];
};

/* Arrays over slots. */
struct k_slots {
    uint32_t slot_count;
    uint32_t vocab_tokens;
    uint32_t *next_token;         /* [slots] input of the next decode row */
    uint32_t *length;             /* [slots] tokens whose KV is written: position of the next row */
    uint32_t *generation;         /* [slots] of the sequence that holds the slot */
    uint32_t *stopped;            /* [slots] flag */
    const uint32_t *stop_request; /* [slots] generation that is to stop; written by the host at any
                                     time, read atomically */
    struct k_sampler *samplers;   /* [slots] */
    uint32_t *counts;             /* [slots, vocab] output occurrences | K_COUNT_PROMPT */
};

/* A slot for a new sequence: length 0, not stopped, counts of the context where a penalty needs
 * them (prompt before output_start, output from there on). */
struct k_open_args {
    struct k_slots slots;
    uint32_t slot;
    uint32_t generation;
    const struct k_sampler *sampler; /* copied */
    const uint32_t *context;         /* [context_count] token ids so far; unused without counts */
    uint32_t context_count;
};

enum k_row_flag {
    K_ROW_SAMPLES = 1,
    K_ROW_HELD = 2, /* constrained and without a mask: nothing is computed */
    K_ROW_PROMPT_LOGPROBS = 4,
};

/* A row as uploaded. */
struct k_row {
    uint32_t slot;
    uint32_t generation; /* a row of an earlier sequence of the slot is masked */
    uint32_t start;
    uint32_t count;
    uint32_t first_id; /* index of its tokens in prompt_ids; K_NONE: a decode row */
    uint32_t mask_row; /* of the masks; K_NONE: not constrained */
    uint32_t flags;    /* enum k_row_flag */
};

/* One entry of a page table. */
struct k_patch {
    uint32_t slot;
    uint32_t family;
    uint32_t entry; /* logical page modulo the table's length */
    uint32_t physical_page;
};

enum k_outcome {
    K_OUTCOME_NONE = 1, /* computed, nothing sampled */
    K_OUTCOME_TOKEN,
    K_OUTCOME_STOP,
    K_OUTCOME_LENGTH,
    K_OUTCOME_MASKED,
    K_OUTCOME_HELD,
    K_OUTCOME_BAD,
};

struct k_pick {
    uint32_t outcome; /* enum k_outcome */
    uint32_t token;
};

/* When a step ran, by the backend's clock. */
struct k_stamp {
    uint64_t begin_ns;
    uint64_t end_ns; /* not 0: all that the step published lies there */
};

/* One row of logits to sample. */
struct k_sample_row {
    uint32_t row; /* of the step */
    uint32_t slot;
    uint32_t position; /* of the token to be picked */
    uint32_t mask_row; /* K_NONE: none */
};

/* One row of logits to report on. */
struct k_logprob_row {
    uint32_t target; /* token; K_NONE: the record says K_NONE and no more */
    uint32_t want;   /* 0: nothing; else pairs + 1 */
    uint32_t record; /* index of the record to write */
};

struct k_logprob {
    uint32_t token;
    float logprob;
    uint32_t rank; /* 1 is best; ties rank by id */
    uint32_t pair_count;
    uint32_t ids[K_MAX_LOGPROBS];
    float logprobs[K_MAX_LOGPROBS];
};

struct k_step_counts {
    uint32_t tokens;
    uint32_t sample_rows;
    uint32_t prompt_logprob_rows;
};

/* Step prologue: applies the patches, masks rows of stopped or reopened slots, derives the token
 * tables.  On cpu masked and held rows leave no token behind; a captured device step keeps its
 * width and gives them K_SLOT_NONE. */
struct k_expand_args {
    struct k_slots slots;
    const struct k_patch *patches; /* [patch_count] */
    uint32_t patch_count;
    uint32_t *page_tables[K_FAMILY_COUNT]; /* [slots, table_pages[family]] */
    uint32_t table_pages[K_FAMILY_COUNT];
    const struct k_row *rows; /* [row_count] */
    uint32_t row_count;
    uint32_t pad_tokens_multiple;          /* tokens are padded to a multiple of this, at least 1 */
    const uint32_t *prompt_ids;            /* uploaded tokens of prompt rows */
    const uint32_t *next_ids;              /* same indices: the token after each; K_NONE: none */
    uint32_t *ids;                         /* [tokens] out, as all below */
    uint32_t *positions;                   /* [tokens] */
    uint32_t *token_slots;                 /* [tokens] */
    struct k_pick *picks;                  /* [row_count] outcomes NONE, MASKED, HELD */
    struct k_sample_row *sample_rows;      /* [row_count at most] */
    uint32_t *sample_tokens;               /* [row_count at most] token index of each */
    struct k_logprob_row *sample_logprobs; /* [row_count at most]; target filled by sample */
    uint32_t *prompt_tokens;               /* [prompt ids at most] token index of each */
    struct k_logprob_row *prompt_logprobs; /* [prompt ids at most]; record is the id's index */
    struct k_step_counts *counts;
    uint64_t *begin_ns; /* out, by the backend's clock; null: not told */
};

struct k_sample_args {
    struct k_slots slots;
    const uint16_t *logits; /* [row_count, vocab] bf16 */
    uint32_t row_count;
    const struct k_sample_row *rows; /* [row_count] */
    const uint32_t *masks;           /* [mask rows, mask_words] bit set: allowed */
    uint32_t mask_words;             /* ceil(vocab / 32) */
    const uint32_t *missing;         /* [mask rows] not 0: the mask did not come, the row becomes
                                        HELD; null: all came */
    struct k_pick *picks;            /* by step row, out: TOKEN, BAD or HELD */
    struct k_logprob_row *logprobs;  /* [row_count] target, out */
};

/* Logprobs of soft-capped logits, before suppression, penalties and temperature. */
struct k_logprobs_args {
    const uint16_t *logits; /* [row_count, vocab] bf16 */
    uint32_t row_count;
    uint32_t vocab_tokens;
    const struct k_logprob_row *rows; /* [row_count] */
    struct k_logprob *records;        /* by rows[i].record, out */
};

/* Step tail: stop ids and max_total turn TOKEN into STOP or LENGTH; lengths, next tokens, counts
 * and stop flags of the slots advance.  Rows NONE .. LENGTH move to start + count. */
struct k_advance_args {
    struct k_slots slots;
    const struct k_row *rows; /* [row_count] */
    uint32_t row_count;
    struct k_pick *picks; /* [row_count] in and out */
    /* The picks once more where the host reads them, [turns, turn_rows]: in the row of *turn, which
     * then moves on by one; null turn: in row 0.  Null: nowhere. */
    struct k_pick *published;
    uint32_t *turn;
    uint32_t turns;
    uint32_t turn_rows;
    /* The step's stamp, [turns] as above, written behind its picks; null: nowhere. */
    struct k_stamp *stamps;
    const uint64_t *begin_ns; /* of the step; not null with stamps */
};

#endif
