/* One core over a model runner with one session: what most tests of the core begin with. */
#ifndef TESTS_TESTLIB_CORE_BENCH_H
#define TESTS_TESTLIB_CORE_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/testlib/core_rig.h"
#include "worker/inject.h"

enum {
    BENCH_VOCAB = 97,
    BENCH_SLOTS = 6,
    BENCH_PROMPT = 64
};

struct core_bench {
    struct runner *runner; /* owned; a model_runner, or what wraps one */
    struct inject inject;
    bool keeps_prefixes;
    struct core_rig rig;
    struct rig_session session;
    uint32_t prompt[BENCH_PROMPT]; /* some tokens to begin with */
};

/* Page 16, window 64, pools of 40 and 80 pages, depth 2. */
struct runner_limits bench_limits(void);

/* Ring of 1024 records over bench_limits. */
void bench_setup(struct core_bench *bench);
void bench_setup_limits(struct core_bench *bench, const struct runner_limits *limits,
                        uint32_t ring_records);

/* The same with a prefix cache. */
void bench_setup_prefixes(struct core_bench *bench, const struct runner_limits *limits);

/* The same over a runner that the caller made; taken. */
void bench_setup_runner(struct core_bench *bench, struct runner *runner, bool is_model,
                        uint32_t ring_records);

/* Close, let what is launched run out, and check that every page came back. */
void bench_teardown(struct core_bench *bench);

/* Let the model run until nothing moves. */
void bench_run(struct core_bench *bench);

/* A STEP of one row; count 0 is a decode row.  Its msg_seq. */
uint64_t bench_row(struct core_bench *bench, uint64_t seq_id, uint32_t start, uint32_t count);

/* The tokens of an undisturbed run of admit over a model runner, until it stops by itself or count
 * are there; how many there are. */
uint32_t bench_reference(const struct plan_admit *admit, uint32_t *out_tokens, uint32_t count);

#endif
