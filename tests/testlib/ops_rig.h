/* What operator tests share: a cpu stream, seeded random operands, and the one tolerance.
 *
 * An operator's output is the f64 twin's value rounded to bf16, but for the error of f32 sums:
 *   |got - want| <= half a unit of bf16 at want (|want| 2^-8 at most) + 2e-6 times the sum of the
 *   absolute terms. */
#ifndef TESTS_TESTLIB_OPS_RIG_H
#define TESTS_TESTLIB_OPS_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/ops_cpu.h"

/* Both ways of computing, for tables of cases. */
enum ops_loops {
    OPS_LOOPS_BEST,
    OPS_LOOPS_PLAIN,
    OPS_LOOPS_COUNT,
};

/* Shapes up to 1,024 inputs, 512 of a head, 4,096 of context, vocabulary 1,000; ends the test on an
 * error. */
#define OPS_VOCAB   1000
#define OPS_EXPERTS 64
#define OPS_CONTEXT 4096
struct k_stream *ops_stream(enum ops_loops loops, float softcap);

/* New array of count values from a normal-like distribution of the given width. */
uint16_t *ops_random_bf16(uint64_t *random, uint64_t count, double width);

/* Element as f64. */
double ops_f64(const uint16_t *values, uint64_t index);

/* Fails the test unless got is want rounded, within the tolerance above. */
void ops_check_bf16(uint16_t got, double want, double absolute_sum, const char *what,
                    uint64_t index);

/* want after rounding to bf16, as f64: for twins of several roundings. */
double ops_round(double value);

#endif
