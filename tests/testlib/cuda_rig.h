/* What tests and benchmarks of the cuda backend share: device memory, a stream of the backend,
 * graphs and their time.  An error of the runtime ends the test (or the program) with its text.
 *
 * One thread.  Where no GPU is there, cuda_rig_open skips the test. */
#ifndef TESTS_TESTLIB_CUDA_RIG_H
#define TESTS_TESTLIB_CUDA_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/ops_cuda.h"

struct cuda_rig {
    struct CUstream_st *stream; /* owned */
    struct k_stream *k;         /* owned */
    void *scratch;              /* owned, device */
};

bool cuda_rig_is_there(void);

/* Whether the cpu backend stands in for the device (cuda_stand_in.c): a rehearsal of the tests. */
bool cuda_rig_is_stand_in(void);

/* A stream of the backend for these shapes, with scratch of its own. */
void cuda_rig_open(struct cuda_rig *rig, const struct k_cuda_shape *shape,
                   bool uses_dependent_launch);
void cuda_rig_close(struct cuda_rig *rig);

/* Device memory; not cleared.  Freed by cuda_rig_free. */
void *cuda_rig_alloc(size_t bytes);
void cuda_rig_free(void *at);

/* New device memory with these bytes. */
void *cuda_rig_upload(const void *from, size_t bytes);

/* Into device memory that is there, and back; each waits for everything before it. */
void cuda_rig_write(void *to, const void *from, size_t bytes);
void cuda_rig_read(void *to, const void *from, size_t bytes);

/* Every byte 0xff: bf16 and f32 NaN, K_SLOT_NONE. */
void cuda_rig_poison(void *at, size_t bytes);

/* Device to device: the first seed_bytes again and again over the rest. */
void cuda_rig_repeat(void *at, size_t seed_bytes, size_t bytes);

/* Waits for the stream; an error of a launch shows here. */
void cuda_rig_wait(struct cuda_rig *rig);

/* Captures what record enqueues on rig's stream and replays it; returns the median time of a replay
 * in microseconds.  replays 0: one replay, no time. */
double cuda_rig_replay(struct cuda_rig *rig, void (*record)(void *context), void *context,
                       uint32_t replays);

/* What record enqueues on rig's stream, captured once, to be launched again and again.  context must
 * outlive the graph. */
struct cuda_rig_graph;
struct cuda_rig_graph *cuda_rig_capture(struct cuda_rig *rig, void (*record)(void *context),
                                        void *context);
void cuda_rig_launch(struct cuda_rig *rig, struct cuda_rig_graph *graph);
void cuda_rig_graph_free(struct cuda_rig_graph *graph);

#endif
