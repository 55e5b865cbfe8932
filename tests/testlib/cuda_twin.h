/* What tests of the cuda operators share: operands on both sides, the cpu twin's stream, and the
 * one rule by which results are compared.
 *
 * The rule.  An element whose bits equal the twin's is right.  One that differs must lie in the
 * interval that the operator's definition permits it: the test computes the exact value in f64,
 * widens it by the error of f32 sums in any order, and takes both ends through every rounding to
 * bf16 that kernels/ops.h names.  A rounding point left out or added, or a term of a sum lost, leaves
 * that interval.  A sample of the twin's own elements is held to the same interval, so that an
 * interval computed wrongly shows without a GPU.  Operators of integers and copies have no
 * interval: their bits are equal.
 *
 * One thread.  A failed check ends the test with the first element, its shape and both values. */
#ifndef TESTS_TESTLIB_CUDA_TWIN_H
#define TESTS_TESTLIB_CUDA_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/testlib/cuda_rig.h"

#define TWIN_COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

/* A stream of the cpu backend with up to 16 threads; shapes as of the largest model. */
struct k_stream *twin_stream(uint32_t vocab_tokens, float softcap);

/* The same bytes here and on the device, with bytes around the device's that must stay. */
struct twin_buffer {
    void *host;   /* owned */
    void *device; /* 256-byte aligned, between two guards */
    size_t bytes;
};

/* Takes host over; the device gets a copy. */
struct twin_buffer twin_in(void *host, size_t bytes);

/* Every byte 0xff on both sides. */
struct twin_buffer twin_out(size_t bytes);

/* Copies what the host has to the device once more. */
void twin_write(const struct twin_buffer *buffer);

/* Every byte of the device's 0xff again. */
void twin_poison(const struct twin_buffer *buffer);

/* What the device has, to be freed; fails the test where a guard has changed.  Where used_bytes is
 * less than the buffer's, the rest must still hold 0xff. */
void *twin_read(const struct twin_buffer *buffer, size_t used_bytes, const char *label);

void twin_free(struct twin_buffer *buffer);

/* count values of a bell shape with that deviation; to be freed. */
uint16_t *twin_random_bf16(uint64_t count, double deviation, uint64_t *random);

/* Uniform in [0, limit). */
uint32_t twin_random_below(uint64_t *random, uint32_t limit);

/* Both ends inclusive. */
struct twin_interval {
    float low;
    float high;
};

/* [value - slack, value + slack] with both ends rounded to bf16. */
struct twin_interval twin_rounded(double value, double slack);

/* Bounds of products and sums of two rounded values, rounded once more. */
struct twin_interval twin_product(struct twin_interval a, struct twin_interval b);
struct twin_interval twin_sum(struct twin_interval a, struct twin_interval b);

/* Relative error of an RMS factor whose squares were added in f32 in any order. */
#define TWIN_NORM_ERROR 0x1p-18

/* bf16(value * factor * weight) for an exact factor. */
struct twin_interval twin_normed(struct twin_interval value, double factor, double weight);

/* (mean(values^2) + eps)^(-1/2) */
double twin_rms_factor(const uint16_t *values, uint32_t elems, float eps);

/* bf16(gelu_tanh(gate)) of a gate that is one bf16 value.  f32 leaves 1 + tanh(...) up to 2^-21 off,
 * whatever is left of it. */
struct twin_interval twin_gelu(float gate);

/* The soft-cap of a rounded logit, three roundings. */
struct twin_interval twin_softcapped(float logit, float cap);

struct twin_compare {
    const char *label;
    const uint16_t *got;  /* [rows, columns] bf16 */
    const uint16_t *want; /* [rows, columns] bf16 */
    uint32_t rows;
    uint32_t columns;
    /* Null: bits must be equal. */
    struct twin_interval (*permitted)(void *context, uint32_t row, uint32_t column);
    void *context;
};

/* What a comparison found. */
struct twin_report {
    uint64_t differing; /* elements whose bits are not the twin's */
    uint64_t refused;   /* of those, outside their interval */
    uint32_t row;       /* of the first refused */
    uint32_t column;
    bool is_twin_wrong; /* the twin's own element is outside the interval */
    struct twin_interval permitted;
};

/* False where an element is refused. */
bool twin_agrees(const struct twin_compare *compare, struct twin_report *report);

/* Fails the test where an element is refused; adds to totals (may be null). */
struct twin_totals {
    uint64_t elements;
    uint64_t differing;
};
void twin_check(const struct twin_compare *compare, struct twin_totals *totals);

/* One line of what was compared. */
void twin_print(const char *label, const struct twin_totals *totals);

/* Equal bytes, or the test fails with the first that differs, counted in elements. */
void twin_check_equal(const char *label, const void *got, const void *want, size_t count,
                      size_t elem_bytes);

/* Row counts that every operator is run at: each of 1 to 16, and more. */
#define TWIN_ROW_COUNTS                                                        \
    {                                                                          \
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64, 200 \
    }
#define TWIN_MAX_ROWS 200

#endif
