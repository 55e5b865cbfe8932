/* Rows of logits under the rules of their slots, on the device and for the cpu twin.
 *
 * Permitted.  Every step up to the temperature is one f32 operation and the order of values is
 * exact: greedy picks, top-k, masks and outcomes are equal.  Three places are not exact, and a pick
 * that is not the twin's passes only where one of them explains it:
 *   top-p   masses are added in fixed point on the device, in f64 by the twin, of exponentials off by
 *           units in the last place: a token within 2^-20 of the mass wanted is in or out
 *   min-p   the logarithm of min_p and its sum with the best value, off by units in the last place
 *   noise   two logarithms, likewise: two tokens so close may change places
 * Such picks are counted, and more than one in a hundred rows fails the test. */
#ifndef TESTS_TESTLIB_SAMPLE_RIG_H
#define TESTS_TESTLIB_SAMPLE_RIG_H

#include "tests/testlib/cuda_twin.h"

#define SAMPLE_RIG_MASKS    4
#define SAMPLE_RIG_MAX_ROWS 128

struct sample_case {
    uint32_t vocab;
    uint32_t rows;             /* and slots */
    struct twin_buffer logits; /* [rows, vocab] */
    struct twin_buffer samplers;
    struct twin_buffer counts;  /* [slots, vocab] */
    struct twin_buffer masks;   /* [SAMPLE_RIG_MASKS, words]; the last allows nothing */
    struct twin_buffer missing; /* [SAMPLE_RIG_MASKS] none is */
    struct twin_buffer sample_rows;
    struct twin_buffer picks;    /* the host's is the twin's, as is logprobs' */
    struct twin_buffer logprobs; /* [rows] struct k_logprob_row */
};

/* Logits of a bell shape, no rules: greedy rows, row i of slot rows - 1 - i. */
void sample_case_init(struct sample_case *at, uint32_t vocab, uint32_t rows, uint64_t *random);
void sample_case_fini(struct sample_case *at);

struct k_sampler *sample_case_sampler(const struct sample_case *at, uint32_t row);
uint16_t *sample_case_logits(const struct sample_case *at, uint32_t row);
struct k_sample_row *sample_case_row(const struct sample_case *at, uint32_t row);

/* Every rule on or off at random, for one row. */
void sample_case_random_rules(const struct sample_case *at, uint32_t row, uint64_t *random);

/* What was set on the host, to the device; results poisoned. */
void sample_case_write(const struct sample_case *at);

/* The operator over the first rows, on the device; enqueues. */
void sample_case_run(const struct sample_case *at, struct cuda_rig *rig, uint32_t rows);

/* The twin over the first rows; rows of nobody are left out. */
void sample_case_twin(const struct sample_case *at, uint32_t rows);

/* Runs, compares picks and targets with the twin's; returns how many picks were permitted without
 * being the twin's. */
uint32_t sample_case_check(const struct sample_case *at, struct cuda_rig *rig, uint32_t rows,
                           const char *label);

/* What the device picked, to be freed; fails the test where anything else was written. */
struct k_pick *sample_case_picks(const struct sample_case *at, const char *label);

/* Whether the rules of a row permit a token. */
bool sample_case_permits(const struct sample_case *at, uint32_t row, uint32_t token);

#endif
