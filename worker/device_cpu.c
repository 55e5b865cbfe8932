#include "worker/device_cpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"

#define HUGE_FROM_BYTES (8U << 20)

struct block {
    struct block *next;
    void *at; /* owned mapping */
    size_t byte_count;
};

struct device_cpu {
    struct k_stream *stream; /* owned; stream thread only once it runs */
    struct block *blocks;    /* owned */
    _Atomic uint64_t done_count;
    _Atomic bool is_lost;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t has_task;
    pthread_cond_t has_news; /* a task is done, or a wake */
    struct device_cpu_task *first;
    struct device_cpu_task *last;
    uint64_t enqueued_count;
    bool is_woken;
    bool is_closing;

    pthread_t thread;
    bool has_thread;
};

static void *stream_main(void *context)
{
    struct device_cpu *device = context;
    (void)pthread_mutex_lock(&device->lock);
    while (device->first != NULL || !device->is_closing) {
        struct device_cpu_task *task = device->first;
        if (task == NULL) {
            (void)pthread_cond_wait(&device->has_task, &device->lock);
            continue;
        }
        device->first = task->next;
        device->last = device->first == NULL ? NULL : device->last;
        (void)pthread_mutex_unlock(&device->lock);
        task->run(task);
        (void)pthread_mutex_lock(&device->lock);
        /* release: pairs with the acquire in device_cpu_is_done */
        atomic_fetch_add_explicit(&device->done_count, 1, memory_order_release);
        (void)pthread_cond_broadcast(&device->has_news);
    }
    (void)pthread_mutex_unlock(&device->lock);
    return NULL;
}

static void init_sync(struct device_cpu *device)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr); /* none of these can fail on Linux */
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&device->lock, NULL);
    (void)pthread_cond_init(&device->has_task, NULL);
    (void)pthread_cond_init(&device->has_news, &attr);
    (void)pthread_condattr_destroy(&attr);
}

enum err_code device_cpu_create(const struct k_cpu_options *options, struct device_cpu **out_device,
                                struct err *err)
{
    struct device_cpu *device = mem_zalloc(1, sizeof(*device));
    init_sync(device);
    enum err_code code = k_cpu_stream_create(options, &device->stream, err);
    if (code == ERR_OK) {
        int failed = pthread_create(&device->thread, NULL, stream_main, device);
        device->has_thread = failed == 0;
        code = failed == 0 ? ERR_OK : err_errno(err, failed, "cpu device: stream thread");
    }
    if (code != ERR_OK) {
        device_cpu_destroy(device);
        return code;
    }
    *out_device = device;
    return ERR_OK;
}

void device_cpu_destroy(struct device_cpu *device)
{
    if (device == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&device->lock);
    device->is_closing = true;
    (void)pthread_cond_broadcast(&device->has_task);
    (void)pthread_cond_broadcast(&device->has_news);
    (void)pthread_mutex_unlock(&device->lock);
    if (device->has_thread) {
        (void)pthread_join(device->thread, NULL); /* our own joinable thread */
    }
    k_cpu_stream_destroy(device->stream);
    while (device->blocks != NULL) {
        struct block *block = device->blocks;
        device->blocks = block->next;
        (void)munmap(block->at, block->byte_count); /* a whole mapping of ours */
        mem_free(block);
    }
    (void)pthread_cond_destroy(&device->has_news);
    (void)pthread_cond_destroy(&device->has_task);
    (void)pthread_mutex_destroy(&device->lock);
    mem_free(device);
}

void *device_cpu_alloc(struct device_cpu *device, size_t count, size_t elem_bytes)
{
    size_t byte_count = 0;
    if (!num_mul(count, elem_bytes, &byte_count)) {
        return NULL;
    }
    byte_count += byte_count == 0 ? 1 : 0; /* mmap refuses an empty mapping */
    void *at = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return NULL;
    }
    if (byte_count >= HUGE_FROM_BYTES) {
        (void)madvise(at, byte_count, MADV_HUGEPAGE); /* a wish: pools are walked all over */
    }
    struct block *block = mem_zalloc(1, sizeof(*block));
    *block = (struct block){.next = device->blocks, .at = at, .byte_count = byte_count};
    device->blocks = block;
    return at;
}

enum err_code device_cpu_write(void *context, void *to, const void *from, size_t byte_count,
                               struct err *err)
{
    (void)context; /* the device's memory is ours */
    (void)err;
    memcpy(to, from, byte_count);
    return ERR_OK;
}

struct k_stream *device_cpu_stream(struct device_cpu *device)
{
    return device->stream;
}

uint64_t device_cpu_enqueue(struct device_cpu *device, struct device_cpu_task *task)
{
    task->next = NULL;
    (void)pthread_mutex_lock(&device->lock);
    if (device->last == NULL) {
        device->first = task;
    } else {
        device->last->next = task;
    }
    device->last = task;
    uint64_t number = ++device->enqueued_count;
    (void)pthread_cond_signal(&device->has_task);
    (void)pthread_mutex_unlock(&device->lock);
    return number;
}

bool device_cpu_is_done(const struct device_cpu *device, uint64_t task)
{
    /* acquire: pairs with the release after a task ran */
    return atomic_load_explicit(&device->done_count, memory_order_acquire) >= task;
}

bool device_cpu_wait(struct device_cpu *device, uint64_t task, uint64_t deadline_ns)
{
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_SEC),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_SEC),
    };
    (void)pthread_mutex_lock(&device->lock);
    int waited = 0;
    while (!device_cpu_is_done(device, task) && !device->is_woken && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&device->has_news, &device->lock, &deadline);
    }
    device->is_woken = false;
    (void)pthread_mutex_unlock(&device->lock);
    return device_cpu_is_done(device, task);
}

void device_cpu_wake(struct device_cpu *device)
{
    (void)pthread_mutex_lock(&device->lock);
    device->is_woken = true;
    (void)pthread_cond_broadcast(&device->has_news);
    (void)pthread_mutex_unlock(&device->lock);
}

void device_cpu_hang(struct device_cpu *device)
{
    (void)pthread_mutex_lock(&device->lock);
    while (!device->is_closing) {
        (void)pthread_cond_wait(&device->has_news, &device->lock);
    }
    (void)pthread_mutex_unlock(&device->lock);
}

void device_cpu_lose(struct device_cpu *device)
{
    atomic_store_explicit(&device->is_lost, true, memory_order_relaxed);
}

bool device_cpu_is_lost(const struct device_cpu *device)
{
    return atomic_load_explicit(&device->is_lost, memory_order_relaxed);
}
