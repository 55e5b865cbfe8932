/* One CUDA device: one stream, one arena of its memory, pinned host memory, events, sticky failure.
 *
 * Everything that touches the device after opening is ordered on the one stream.  The first failed
 * call loses the device for good: every later call says so with the first call's text.  Executor
 * thread only, but for device_cuda_wake. */
#ifndef WORKER_DEVICE_CUDA_H
#define WORKER_DEVICE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct CUstream_st;
struct device_cuda;

uint32_t device_cuda_count(void); /* 0 also where the driver is missing */

uint64_t device_cuda_free_bytes(void); /* of device 0; 0 where it cannot be told */

/* Opens device `ordinal` and takes `utilization` (0 to 1) of its free memory as the arena, zeroed.
 * Errors: ERR_CONFIG (no such device, not compute capability 9.0; names both), ERR_MEMORY,
 * ERR_DEVICE. */
ERR_NODISCARD enum err_code device_cuda_open(uint32_t ordinal, double utilization,
                                             struct device_cuda **out_device, struct err *err);
void device_cuda_close(struct device_cuda *device); /* null is fine */

struct CUstream_st *device_cuda_stream(struct device_cuda *device);
/* Asserts that it is this device's stream. */
void device_cuda_check_stream(const struct device_cuda *device, struct CUstream_st *stream);
uint64_t device_cuda_arena_left_bytes(const struct device_cuda *device);

/* Zeroed device memory, 256-byte aligned, freed with the device; null when the arena is full.  The
 * form of a stage_allocator, as device_cuda_write. */
void *device_cuda_alloc(void *context, size_t count, size_t elem_bytes);
ERR_NODISCARD enum err_code device_cuda_write(void *context, void *to, const void *from,
                                              size_t byte_count, struct err *err);

/* Zeroed pinned host memory, freed with the device; null when there is none. */
void *device_cuda_alloc_pinned(struct device_cuda *device, size_t count, size_t elem_bytes);
/* Where the device sees pinned memory. */
void *device_cuda_mapped(struct device_cuda *device, void *pinned);

/* Enqueue a copy; host memory must be pinned and stays untouched until the stream passed it. */
ERR_NODISCARD enum err_code device_cuda_upload(struct device_cuda *device, void *to,
                                               const void *from, size_t byte_count,
                                               struct err *err);
ERR_NODISCARD enum err_code device_cuda_download(struct device_cuda *device, void *to,
                                                 const void *from, size_t byte_count,
                                                 struct err *err);
/* Waits until the stream is empty. */
ERR_NODISCARD enum err_code device_cuda_drain(struct device_cuda *device, struct err *err);

/* Marks on the stream; index below DEVICE_CUDA_MARKS. */
#define DEVICE_CUDA_MARKS 64
#define DEVICE_CUDA_NEVER 0xffffffffU /* a mark that is never passed */
ERR_NODISCARD enum err_code device_cuda_mark(struct device_cuda *device, uint32_t index,
                                             struct err *err);
/* Until the stream has passed the mark, or the device is lost. */
void device_cuda_await_mark(struct device_cuda *device, uint32_t index);

/* What to wait for: a word of pinned memory that the device makes other than 0 at the end of what it
 * does, which costs the host nothing to enqueue, or a mark. */
struct device_cuda_signal {
    const uint64_t *word; /* null: the mark */
    uint32_t mark;
};
/* True when it has come, or the device is lost. */
bool device_cuda_has_come(struct device_cuda *device, const struct device_cuda_signal *signal);
/* Until it has come, deadline_ns, or a wake; true when it has.  Sleeps until shortly before
 * expected_ns, then spins for a bounded time, then looks in ever longer turns. */
bool device_cuda_wait(struct device_cuda *device, const struct device_cuda_signal *signal,
                      uint64_t expected_ns, uint64_t deadline_ns);
void device_cuda_wake(struct device_cuda *device); /* any thread */

/* ERR_DEVICE with the first failure's text, ERR_OK while there is none. */
ERR_NODISCARD enum err_code device_cuda_status(const struct device_cuda *device, struct err *err);

/* Counters of the stream since opening. */
struct device_cuda_counters {
    uint64_t uploads;
    uint64_t upload_bytes;
    uint64_t downloads;
    uint64_t graph_launches;
};
struct device_cuda_counters device_cuda_counters(const struct device_cuda *device);

/* Captured launches.  Between begin and end the stream records instead of running. */
struct device_cuda_graph; /* freed with the device */
ERR_NODISCARD enum err_code device_cuda_capture_begin(struct device_cuda *device, struct err *err);
ERR_NODISCARD enum err_code device_cuda_capture_end(struct device_cuda *device,
                                                    struct device_cuda_graph **out_graph,
                                                    struct err *err);
ERR_NODISCARD enum err_code device_cuda_graph_launch(struct device_cuda *device,
                                                     struct device_cuda_graph *graph,
                                                     struct err *err);

#endif
