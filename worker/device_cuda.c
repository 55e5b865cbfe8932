#include "worker/device_cuda.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"

#define ALIGN_BYTES  256
#define MAX_PINNED   128
#define MAX_GRAPHS   512
#define NEEDED_MAJOR 9

/* Waiting.  The spin covers how much steps of one kind differ in length; what comes later than that
 * is looked for in turns that grow with how late it is. */
#define SPIN_BEFORE_NS (60ULL * 1000)
#define SPIN_AFTER_NS  (60ULL * 1000)
#define POLL_LEAST_NS  (40ULL * 1000)
#define POLL_MOST_NS   CLOCK_NS_PER_MS
#define POLL_SHARE     16
#define TIMER_SLACK_NS 1000UL

struct device_cuda_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

struct device_cuda {
    cudaStream_t stream;
    cudaEvent_t marks[DEVICE_CUDA_MARKS];
    unsigned char *arena;
    uint64_t arena_bytes;
    uint64_t used_bytes;
    void *pinned[MAX_PINNED];
    uint32_t pinned_count;
    struct device_cuda_graph graphs[MAX_GRAPHS];
    uint32_t graph_count;
    struct device_cuda_counters counters;
    bool is_lost;
    struct err lost_because;

    pthread_mutex_t mutex; /* for sleeping on wake */
    pthread_cond_t wake;
    atomic_bool is_woken;
};

/* Remembers the first failure. */
static enum err_code check(struct device_cuda *device, cudaError_t error, const char *what,
                           struct err *err)
{
    if (error == cudaSuccess && !device->is_lost) {
        return ERR_OK;
    }
    if (!device->is_lost) {
        device->is_lost = true;
        (void)err_set(&device->lost_because, ERR_DEVICE, "%s: %s (%s)", what,
                      cudaGetErrorString(error), cudaGetErrorName(error));
    }
    if (err != NULL) {
        *err = device->lost_because;
    }
    return ERR_DEVICE;
}

enum err_code device_cuda_status(const struct device_cuda *device, struct err *err)
{
    if (!device->is_lost) {
        return ERR_OK;
    }
    if (err != NULL) {
        *err = device->lost_because;
    }
    return ERR_DEVICE;
}

uint32_t device_cuda_count(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? (uint32_t)count : 0;
}

uint64_t device_cuda_free_bytes(void)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? free_bytes : 0;
}

static enum err_code choose_device(uint32_t ordinal, struct err *err)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        return err_set(err, ERR_CONFIG, "device cuda:%u: %s", ordinal, cudaGetErrorString(error));
    }
    if (ordinal >= (uint32_t)count) {
        return err_set(err, ERR_CONFIG, "device cuda:%u: this machine has %d", ordinal, count);
    }
    int major = 0;
    int minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)ordinal);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)ordinal);
    if (major != NEEDED_MAJOR) {
        return err_set(err, ERR_CONFIG,
                       "device cuda:%u has compute capability %d.%d, the kernels are for 9.0",
                       ordinal, major, minor);
    }
    error = cudaSetDevice((int)ordinal);
    return error == cudaSuccess
               ? ERR_OK
               : err_set(err, ERR_DEVICE, "device cuda:%u: %s", ordinal, cudaGetErrorString(error));
}

static enum err_code create_stream(struct device_cuda *device, struct err *err)
{
    enum err_code code = check(
        device, cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "stream", err);
    for (uint32_t i = 0; code == ERR_OK && i < DEVICE_CUDA_MARKS; i++) {
        code = check(device, cudaEventCreateWithFlags(&device->marks[i], cudaEventDisableTiming),
                     "event", err);
    }
    return code;
}

static enum err_code create_arena(struct device_cuda *device, double utilization, struct err *err)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    enum err_code code =
        check(device, cudaMemGetInfo(&free_bytes, &total_bytes), "device memory", err);
    if (code != ERR_OK) {
        return code;
    }
    device->arena_bytes = (uint64_t)((double)free_bytes * utilization) / ALIGN_BYTES * ALIGN_BYTES;
    void *arena = NULL;
    cudaError_t error = cudaMalloc(&arena, device->arena_bytes);
    if (error != cudaSuccess) {
        return err_set(err, ERR_MEMORY, "device memory: %llu MB of %llu free: %s",
                       (unsigned long long)(device->arena_bytes >> 20),
                       (unsigned long long)(free_bytes >> 20), cudaGetErrorString(error));
    }
    device->arena = arena;
    return check(device, cudaMemsetAsync(arena, 0, device->arena_bytes, device->stream),
                 "clearing device memory", err);
}

enum err_code device_cuda_open(uint32_t ordinal, double utilization,
                               struct device_cuda **out_device, struct err *err)
{
    enum err_code code = choose_device(ordinal, err);
    if (code != ERR_OK) {
        return code;
    }
    struct device_cuda *device = mem_zalloc(1, sizeof(*device));
    /* Sleeps of this thread are tens of microseconds long; the usual slack would double them. */
    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    (void)pthread_mutex_init(&device->mutex, NULL); /* cannot fail with default attributes */
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&device->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    code = create_stream(device, err);
    code = code == ERR_OK ? create_arena(device, utilization, err) : code;
    if (code != ERR_OK) {
        device_cuda_close(device);
        return code;
    }
    *out_device = device;
    return ERR_OK;
}

/* Nothing here can be repaired any more: results are ignored. */
void device_cuda_close(struct device_cuda *device)
{
    if (device == NULL) {
        return;
    }
    if (device->stream != NULL) {
        (void)cudaStreamSynchronize(device->stream);
    }
    for (uint32_t i = 0; i < device->graph_count; i++) {
        (void)cudaGraphExecDestroy(device->graphs[i].exec);
        (void)cudaGraphDestroy(device->graphs[i].graph);
    }
    for (uint32_t i = 0; i < device->pinned_count; i++) {
        (void)cudaFreeHost(device->pinned[i]);
    }
    for (uint32_t i = 0; i < DEVICE_CUDA_MARKS && device->marks[i] != NULL; i++) {
        (void)cudaEventDestroy(device->marks[i]);
    }
    (void)cudaFree(device->arena);
    if (device->stream != NULL) {
        (void)cudaStreamDestroy(device->stream);
    }
    (void)pthread_cond_destroy(&device->wake);
    (void)pthread_mutex_destroy(&device->mutex);
    mem_free(device);
}

struct CUstream_st *device_cuda_stream(struct device_cuda *device)
{
    return device->stream;
}

void device_cuda_check_stream(const struct device_cuda *device, struct CUstream_st *stream)
{
    assert(stream == device->stream);
    (void)stream; /* a build without assertions checks nothing */
    (void)device;
}

uint64_t device_cuda_arena_left_bytes(const struct device_cuda *device)
{
    return device->arena_bytes - device->used_bytes;
}

void *device_cuda_alloc(void *context, size_t count, size_t elem_bytes)
{
    struct device_cuda *device = context;
    size_t bytes = 0;
    if (!num_mul(count, elem_bytes, &bytes) || bytes > device_cuda_arena_left_bytes(device)) {
        return NULL;
    }
    void *at = device->arena + device->used_bytes;
    uint64_t taken = num_align_up(bytes, ALIGN_BYTES);
    uint64_t left = device_cuda_arena_left_bytes(device);
    device->used_bytes += taken < left ? taken : left;
    return at;
}

enum err_code device_cuda_write(void *context, void *to, const void *from, size_t byte_count,
                                struct err *err)
{
    struct device_cuda *device = context;
    enum err_code code =
        check(device, cudaMemcpyAsync(to, from, byte_count, cudaMemcpyHostToDevice, device->stream),
              "upload", err);
    return code == ERR_OK ? device_cuda_drain(device, err) : code;
}

void *device_cuda_alloc_pinned(struct device_cuda *device, size_t count, size_t elem_bytes)
{
    size_t bytes = 0;
    void *at = NULL;
    if (device->pinned_count == MAX_PINNED || !num_mul(count, elem_bytes, &bytes) ||
        cudaHostAlloc(&at, bytes == 0 ? 1 : bytes, cudaHostAllocMapped) != cudaSuccess) {
        return NULL;
    }
    unsigned char *bytes_at = at;
    for (size_t i = 0; i < bytes; i++) {
        bytes_at[i] = 0;
    }
    device->pinned[device->pinned_count++] = at;
    return at;
}

void *device_cuda_mapped(struct device_cuda *device, void *pinned)
{
    void *at = NULL;
    (void)check(device, cudaHostGetDevicePointer(&at, pinned, 0), "mapping pinned memory", NULL);
    return at;
}

enum err_code device_cuda_upload(struct device_cuda *device, void *to, const void *from,
                                 size_t byte_count, struct err *err)
{
    device->counters.uploads++;
    device->counters.upload_bytes += byte_count;
    return check(device,
                 cudaMemcpyAsync(to, from, byte_count, cudaMemcpyHostToDevice, device->stream),
                 "upload", err);
}

enum err_code device_cuda_download(struct device_cuda *device, void *to, const void *from,
                                   size_t byte_count, struct err *err)
{
    device->counters.downloads++;
    return check(device,
                 cudaMemcpyAsync(to, from, byte_count, cudaMemcpyDeviceToHost, device->stream),
                 "download", err);
}

enum err_code device_cuda_drain(struct device_cuda *device, struct err *err)
{
    return check(device, cudaStreamSynchronize(device->stream), "waiting for the device", err);
}

enum err_code device_cuda_mark(struct device_cuda *device, uint32_t index, struct err *err)
{
    return check(device, cudaEventRecord(device->marks[index], device->stream), "mark", err);
}

static bool has_passed(struct device_cuda *device, uint32_t index)
{
    cudaError_t error = device->is_lost ? cudaSuccess : cudaEventQuery(device->marks[index]);
    if (error == cudaErrorNotReady) {
        return false;
    }
    (void)check(device, error, "a step", NULL);
    return true;
}

bool device_cuda_has_come(struct device_cuda *device, const struct device_cuda_signal *signal)
{
    if (signal->word == NULL) {
        return signal->mark != DEVICE_CUDA_NEVER && has_passed(device, signal->mark);
    }
    /* acquire: what the device wrote before the word is there too */
    return device->is_lost || __atomic_load_n(signal->word, __ATOMIC_ACQUIRE) != 0;
}

/* A word does not come from a device that has failed. */
static void look_for_failure(struct device_cuda *device)
{
    cudaError_t error = device->is_lost ? cudaSuccess : cudaStreamQuery(device->stream);
    if (error != cudaErrorNotReady) {
        (void)check(device, error, "a step", NULL);
    }
}

static void sleep_until(struct device_cuda *device, uint64_t until_ns)
{
    const struct timespec until = {
        .tv_sec = (time_t)(until_ns / CLOCK_NS_PER_SEC),
        .tv_nsec = (long)(until_ns % CLOCK_NS_PER_SEC),
    };
    int result = 0;
    (void)pthread_mutex_lock(&device->mutex);
    while (!atomic_load(&device->is_woken) && result == 0) {
        result = pthread_cond_timedwait(&device->wake, &device->mutex, &until);
    }
    (void)pthread_mutex_unlock(&device->mutex);
}

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* The device cannot be waited for and woken from at once: hence looks in turns. */
bool device_cuda_wait(struct device_cuda *device, const struct device_cuda_signal *signal,
                      uint64_t expected_ns, uint64_t deadline_ns)
{
    bool has_come = false;
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        has_come = device_cuda_has_come(device, signal);
        if (has_come || atomic_load(&device->is_woken) || now_ns >= deadline_ns) {
            break;
        }
        if (now_ns + SPIN_BEFORE_NS < expected_ns) {
            sleep_until(device, earlier(expected_ns - SPIN_BEFORE_NS, deadline_ns));
        } else if (now_ns < expected_ns + SPIN_AFTER_NS) {
            __builtin_ia32_pause();
        } else {
            uint64_t turn_ns = (now_ns - expected_ns) / POLL_SHARE;
            turn_ns = turn_ns < POLL_LEAST_NS ? POLL_LEAST_NS : earlier(turn_ns, POLL_MOST_NS);
            sleep_until(device, earlier(now_ns + turn_ns, deadline_ns));
            look_for_failure(device);
        }
    }
    atomic_store(&device->is_woken, false);
    return has_come;
}

void device_cuda_await_mark(struct device_cuda *device, uint32_t index)
{
    const struct device_cuda_signal signal = {.mark = index};
    while (!device_cuda_has_come(device, &signal)) { /* a wake ends a wait early */
        (void)device_cuda_wait(device, &signal, clock_now_ns(), UINT64_MAX);
    }
}

void device_cuda_wake(struct device_cuda *device)
{
    (void)pthread_mutex_lock(&device->mutex);
    atomic_store(&device->is_woken, true);
    (void)pthread_cond_signal(&device->wake);
    (void)pthread_mutex_unlock(&device->mutex);
}

struct device_cuda_counters device_cuda_counters(const struct device_cuda *device)
{
    return device->counters;
}

enum err_code device_cuda_capture_begin(struct device_cuda *device, struct err *err)
{
    return check(device, cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal),
                 "beginning a capture", err);
}

enum err_code device_cuda_capture_end(struct device_cuda *device,
                                      struct device_cuda_graph **out_graph, struct err *err)
{
    if (device->graph_count == MAX_GRAPHS) {
        return err_set(err, ERR_LIMIT, "%u graphs captured already", MAX_GRAPHS);
    }
    struct device_cuda_graph *graph = &device->graphs[device->graph_count];
    enum err_code code =
        check(device, cudaStreamEndCapture(device->stream, &graph->graph), "ending a capture", err);
    if (code == ERR_OK) {
        code = check(device, cudaGraphInstantiate(&graph->exec, graph->graph, 0), "making a graph",
                     err);
    }
    if (code == ERR_OK) {
        code =
            check(device, cudaGraphUpload(graph->exec, device->stream), "uploading a graph", err);
    }
    if (code == ERR_OK) {
        device->graph_count++;
        *out_graph = graph;
    }
    return code;
}

enum err_code device_cuda_graph_launch(struct device_cuda *device, struct device_cuda_graph *graph,
                                       struct err *err)
{
    device->counters.graph_launches++;
    return check(device, cudaGraphLaunch(graph->exec, device->stream), "launching a graph", err);
}
