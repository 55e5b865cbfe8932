/* The ways of computing that a test program is linked for: the cpu backend, or the cuda backend with
 * captured graphs or operator by operator.  One set of test bodies runs over any of them.
 *
 * A device is what the forward pass sees: memory, operators, a stream.  A runner is what the
 * bookkeeping sees.  Each holds its own copy of the weights.  One thread.  An error ends the running
 * test; where a backend's device is not there, opening it skips the test. */
#ifndef TESTS_TESTLIB_BACKEND_H
#define TESTS_TESTLIB_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "worker/inject.h"
#include "worker/model_config.h"
#include "worker/runner.h"
#include "worker/stage.h"
#include "worker/weights.h"

struct backend;

struct backend_device_options {
    const char *model_dir;
    const struct model_config *config; /* borrowed until close */
    struct runner_limits limits;       /* the largest shapes */
    uint32_t threads;                  /* cpu: that compute */
    bool is_plain;                     /* cpu: the plain inner loops */
};

struct backend_device {
    const struct backend *backend;
    struct weights weights; /* owned, in device memory */
    unsigned char *block;   /* what the weights point into */
    const struct k_ops *ops;
    struct k_stream *stream;
    struct stage_allocator allocator; /* device memory, freed with the device */
    void *state;                      /* owned */
};

struct backend_runner_options {
    const char *model_dir;
    const struct model_config *config; /* borrowed until close */
    struct runner_limits limits;
    struct inject *inject; /* borrowed, may be null */
    uint32_t threads;      /* cpu: that compute, 0: the backend's own choice */
    bool is_pinned;        /* one width for decode rows: bits depend on the request alone */
};

struct backend_runner {
    struct runner *runner;  /* owned */
    struct weights weights; /* owned, in device memory */
};

struct backend {
    const char *name;
    bool is_cuda;
    bool is_exact; /* a row's bits depend on the row alone, whatever its step looks like */
    bool uses_graphs;
    uint32_t threads; /* cpu: of a runner that names none */

    void (*open_device)(const struct backend *backend, const struct backend_device_options *options,
                        struct backend_device *out_device);
    void (*close_device)(struct backend_device *device);
    /* Device memory to the host; waits for the stream. */
    void (*read)(struct backend_device *device, void *to, const void *from, size_t byte_count);
    /* Runs what enqueue puts on the stream.  With graphs it is captured when a shape comes first and
     * replayed from then on: the same shape must mean the same calls with the same addresses. */
    void (*run)(struct backend_device *device, uint64_t shape,
                enum err_code (*enqueue)(void *context, struct err *err), void *context);

    void (*open_runner)(const struct backend *backend, const struct backend_runner_options *options,
                        struct backend_runner *out_runner);
};

extern const struct backend backend_cpu; /* two threads */
extern const struct backend backend_cpu_one_thread;
extern const struct backend backend_cuda_graphs;
extern const struct backend backend_cuda_eager;

/* Host memory or a device's, by whole bytes of one value. */
void backend_fill(struct backend_device *device, void *at, int byte, size_t byte_count);

#define BACKEND_PINNED_TOKENS \
    256 /* pieces of a prompt with pinned shapes, as the worker cuts them */

/* Room in a step for what pinned shapes need: a piece beside every decode row, and one of each step
 * in flight in the sliding page table. */
void backend_pin_limits(struct runner_limits *limits);

void backend_close_runner(struct backend_runner *runner);

/* What the program was linked for: all are to give the same.  The first is the one that a test of a
 * single backend takes. */
const struct backend *const *backends_under_test(uint32_t *out_count);
const struct backend *backend_under_test(void);

#endif
