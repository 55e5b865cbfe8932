/* --inject STAGE:N: makes the N-th passage (1-based) of a stage fail on purpose, for tests.
 *
 * STAGE:N, STAGE:N+ (from the N-th on).  One hidden option; nothing else switches behaviour for
 * tests.  Executor thread only. */
#ifndef WORKER_INJECT_H
#define WORKER_INJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

enum inject_stage {
#define STAGE(NAME, text) INJECT_##NAME,
#include "worker/inject.def"
#undef STAGE
    INJECT_STAGE_COUNT
};

struct inject {
    uint64_t at[INJECT_STAGE_COUNT]; /* passage that fails; 0 never */
    bool from_then_on[INJECT_STAGE_COUNT];
    uint64_t seen[INJECT_STAGE_COUNT]; /* passages so far */
};

/* text: comma-separated STAGE:N; null or "" is nothing.  Errors: ERR_ARGUMENT. */
ERR_NODISCARD enum err_code inject_parse(struct inject *inject, const char *text, struct err *err);

/* Counts a passage; true when it is to fail. */
bool inject_hits(struct inject *inject, enum inject_stage stage);

#endif
