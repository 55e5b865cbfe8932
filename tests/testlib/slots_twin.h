/* Slot state and the tables of a step, on cuda and for the cpu twin beside each other.
 *
 * One thread.  Every failure ends the running test. */
#ifndef TESTS_TESTLIB_SLOTS_TWIN_H
#define TESTS_TESTLIB_SLOTS_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "tests/testlib/cuda_twin.h"

#define SLOTS_TWIN_VOCAB        1000
#define SLOTS_TWIN_SLOTS        640
#define SLOTS_TWIN_MAX_ROWS     SLOTS_TWIN_SLOTS
#define SLOTS_TWIN_MAX_IDS      4096 /* of prompts in a step */
#define SLOTS_TWIN_MAX_TOKENS   (SLOTS_TWIN_MAX_IDS + SLOTS_TWIN_MAX_ROWS + 64)
#define SLOTS_TWIN_MAX_PATCHES  1500
#define SLOTS_TWIN_LOCAL_PAGES  7
#define SLOTS_TWIN_GLOBAL_PAGES 12
#define SLOTS_TWIN_TURNS        3

enum slots_twin_publishing {
    SLOTS_TWIN_PUBLISHES_IN_TURN,
    SLOTS_TWIN_PUBLISHES_IN_ONE_ROW,
    SLOTS_TWIN_PUBLISHES_NOTHING,
    SLOTS_TWIN_PUBLISHING_COUNT,
};

enum slots_twin_array {
    SLOTS_TWIN_NEXT_TOKEN,
    SLOTS_TWIN_LENGTH,
    SLOTS_TWIN_GENERATION,
    SLOTS_TWIN_STOPPED,
    SLOTS_TWIN_STOP_REQUEST,
    SLOTS_TWIN_SAMPLERS,
    SLOTS_TWIN_COUNTS,
    SLOTS_TWIN_LOCAL_TABLE,
    SLOTS_TWIN_GLOBAL_TABLE,
    SLOTS_TWIN_TURN,
    SLOTS_TWIN_PUBLISHED,
    SLOTS_TWIN_STATE_COUNT, /* of the above: what lives from step to step */
    SLOTS_TWIN_PATCHES = SLOTS_TWIN_STATE_COUNT,
    SLOTS_TWIN_ROWS,
    SLOTS_TWIN_PROMPT_IDS,
    SLOTS_TWIN_NEXT_IDS,
    SLOTS_TWIN_IDS,
    SLOTS_TWIN_POSITIONS,
    SLOTS_TWIN_TOKEN_SLOTS,
    SLOTS_TWIN_PICKS,
    SLOTS_TWIN_SAMPLE_ROWS,
    SLOTS_TWIN_SAMPLE_TOKENS,
    SLOTS_TWIN_SAMPLE_LOGPROBS,
    SLOTS_TWIN_PROMPT_TOKENS,
    SLOTS_TWIN_PROMPT_LOGPROBS,
    SLOTS_TWIN_STEP_COUNTS,
    SLOTS_TWIN_COUNT,
};

/* Fields are the test's to set between steps, but for cuda and twin. */
struct slots_twin {
    struct cuda_rig cuda;
    struct k_stream *twin; /* owned */
    struct twin_buffer arrays[SLOTS_TWIN_COUNT];
    uint32_t row_count;
    uint32_t patch_count;
    uint32_t pad_multiple;
    enum slots_twin_publishing publishing;
    uint64_t random; /* state of the numbers that make up a step */
};

/* All state 0 on both sides. */
void slots_twin_open(struct slots_twin *rig, bool uses_dependent_launch);
void slots_twin_close(struct slots_twin *rig);

/* Arguments over the arrays of one side. */
struct k_slots slots_twin_slots(const struct slots_twin *rig, bool is_on_device);
struct k_expand_args slots_twin_expand_args(const struct slots_twin *rig, bool is_on_device);
struct k_advance_args slots_twin_advance_args(const struct slots_twin *rig, bool is_on_device);

/* The device's first elements of an array; owned by the caller. */
void *slots_twin_read(const struct slots_twin *rig, enum slots_twin_array array, uint32_t count,
                      size_t elem_bytes);

/* The state's bytes are equal on both sides. */
void slots_twin_check_state(const struct slots_twin *rig, const char *label);

#endif
