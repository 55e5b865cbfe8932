/* A rehearsal of the tests of the cuda operators where there is no GPU: kernels/cuda/ops_cuda.h and
 * cuda_rig.h implemented by the cpu backend's plain loops (whose sums have another order than those
 * of the twin, which uses the best loops there are).
 *
 * A program linked with cuda_stand_in_planted.c in place of cuda_stand_in_sound.c gets an error
 * planted into every operator's result: each of its tests must fail. */
#ifndef TESTS_TESTLIB_CUDA_STAND_IN_H
#define TESTS_TESTLIB_CUDA_STAND_IN_H

#include <stdbool.h>

extern const bool cuda_stand_in_is_planted;

#endif
