/* A worker with one client, for the integration tests of the worker. */
#ifndef TESTS_TESTLIB_WORKER_RIG_H
#define TESTS_TESTLIB_WORKER_RIG_H

#include "tests/testlib/worker_client.h"
#include "tests/testlib/worker_drive.h"
#include "tests/testlib/worker_process.h"

struct worker_rig {
    struct worker_process process;
    struct worker_client client;
};

/* Starts the worker and waits until it is ready; args: null-terminated, null for none. */
void worker_rig_open(struct worker_rig *rig, const char *const *args);

/* Closes the client and stops the worker in order. */
void worker_rig_close(struct worker_rig *rig);

/* Sequences 0 .. count-1 of the demo prompts, output_tokens each, stop ids ignored; free them. */
struct drive_sequence *worker_rig_sequences(uint32_t count, uint32_t output_tokens);

/* Fails the test where the tokens of any sequence differ. */
void worker_rig_expect_same(const struct drive_sequence *got, const struct drive_sequence *want,
                            uint32_t count);

/* Asks STATS until pred holds; fails the test after wait_ms. */
typedef bool (*worker_rig_stats_fn)(const struct hello_stats_answer *stats, uint64_t wanted);
void worker_rig_wait_stats(struct worker_client *client, worker_rig_stats_fn pred, uint64_t wanted,
                           uint32_t wait_ms);

#endif
