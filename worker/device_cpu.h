/* The cpu as a device: memory that lives as long as it, one stream thread that runs tasks in the
 * order they were enqueued, and the compute stream of the operators, which that thread alone uses.
 *
 * Tasks are numbered from 1 as they are enqueued; a number stands for "this task and all before it".
 * A failure reported by a task is sticky: later tasks see it and decide for themselves. */
#ifndef WORKER_DEVICE_CPU_H
#define WORKER_DEVICE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/cpu/ops_cpu.h"

struct device_cpu;

/* Begins the caller's struct, which stays valid until `run` is called; run may free it. */
struct device_cpu_task {
    struct device_cpu_task *next;
    void (*run)(struct device_cpu_task *task); /* stream thread */
};

/* Errors: ERR_MEMORY, ERR_SYSTEM (a thread). */
ERR_NODISCARD enum err_code device_cpu_create(const struct k_cpu_options *options,
                                              struct device_cpu **out_device, struct err *err);
/* Runs what is enqueued, ends the stream thread, frees all memory.  Null is fine. */
void device_cpu_destroy(struct device_cpu *device);

/* Zeroed, aligned to 128 bytes, freed with the device; null when memory is gone.  Physical memory is
 * taken as it is touched.  One thread at a time. */
void *device_cpu_alloc(struct device_cpu *device, size_t count, size_t elem_bytes);

/* memcpy, in the form that a stage_allocator takes. */
enum err_code device_cpu_write(void *context, void *to, const void *from, size_t byte_count,
                               struct err *err);

struct k_stream *device_cpu_stream(struct device_cpu *device);

/* One enqueuing thread.  Returns the task's number. */
uint64_t device_cpu_enqueue(struct device_cpu *device, struct device_cpu_task *task);

/* What task wrote before it returned is visible after true.  Any thread. */
bool device_cpu_is_done(const struct device_cpu *device, uint64_t task);

/* Until the task is done, the deadline (clock_now_ns) has passed, or a wake; true when done. */
bool device_cpu_wait(struct device_cpu *device, uint64_t task, uint64_t deadline_ns);

/* Makes a wait in progress, or the next one, return early.  Any thread. */
void device_cpu_wake(struct device_cpu *device);

/* Within a task: blocks until destroy, as a hung device would. */
void device_cpu_hang(struct device_cpu *device);

/* Within a task: the device is lost from here on. */
void device_cpu_lose(struct device_cpu *device);
bool device_cpu_is_lost(const struct device_cpu *device);

#endif
