/* One word, the ticket, holds the job's number, its item count and the next unclaimed item; claiming
 * is a compare-and-swap on it.  A job's fields change only when all of its items were claimed, and
 * they are read before the claim: a claim that succeeds has read the fields of its own job, and a
 * late helper finds nothing left to claim. */
#include "kernels/cpu/threads.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Rounds of looking for the next job before a helper sleeps: about the time between two operators
 * of one step, so that helpers stay awake within a step and use no processor between steps. */
#define SPIN_ROUNDS 4000
/* The join spins this long for items that helpers still compute, then yields to them. */
#define JOIN_ROUNDS 2000

/* Ticket: job << 36 | item count << 18 | next item. */
#define ITEM_BITS 18
#define ITEM_MASK ((1U << ITEM_BITS) - 1)

struct k_threads {
    alignas(128) _Atomic uint64_t ticket;
    _Atomic(k_item_fn) fn;
    _Atomic(void *) context;
    alignas(128) _Atomic uint32_t done_count;
    alignas(128) _Atomic uint32_t job; /* futex word: number of the newest job */
    _Atomic uint32_t sleepers;
    _Atomic bool stopping;
    uint32_t thread_count;
    uint32_t started_count;
    struct helper *helpers; /* owned, [thread_count - 1] */
};

struct helper {
    struct k_threads *threads;
    pthread_t handle;
    uint32_t index;
};

static void pause_briefly(void)
{
    __builtin_ia32_pause();
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); /* woken or not: the
                                                                                  caller looks */
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); /* cannot fail */
}

/* Claims and runs items until none is left. */
static void work(struct k_threads *threads, uint32_t thread)
{
    /* acquire: pairs with the release that published the job, for its fields */
    uint64_t ticket = atomic_load_explicit(&threads->ticket, memory_order_acquire);
    while ((ticket & ITEM_MASK) < ((ticket >> ITEM_BITS) & ITEM_MASK)) {
        k_item_fn fn = atomic_load_explicit(&threads->fn, memory_order_relaxed);
        void *context = atomic_load_explicit(&threads->context, memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&threads->ticket, &ticket, ticket + 1,
                                                  memory_order_acq_rel, memory_order_acquire)) {
            fn(context, (uint32_t)(ticket & ITEM_MASK), thread);
            /* release: what the item wrote is visible to the join's acquire */
            atomic_fetch_add_explicit(&threads->done_count, 1, memory_order_release);
            ticket = atomic_load_explicit(&threads->ticket, memory_order_acquire);
        }
    }
}

/* Newest job other than `seen`; sleeps when none comes soon. */
static uint32_t next_job(struct k_threads *threads, uint32_t seen)
{
    for (uint32_t round = 0; round < SPIN_ROUNDS; round++) {
        uint32_t job = atomic_load_explicit(&threads->job, memory_order_acquire);
        if (job != seen) {
            return job;
        }
        pause_briefly();
    }
    /* A wake missed here costs this helper one job, never the job itself. */
    atomic_fetch_add_explicit(&threads->sleepers, 1, memory_order_relaxed);
    futex_wait(&threads->job, seen);
    atomic_fetch_sub_explicit(&threads->sleepers, 1, memory_order_relaxed);
    return atomic_load_explicit(&threads->job, memory_order_acquire);
}

static void *helper_main(void *context)
{
    struct helper *helper = context;
    struct k_threads *threads = helper->threads;
    uint32_t seen = 0;
    while (!atomic_load_explicit(&threads->stopping, memory_order_acquire)) {
        uint32_t job = next_job(threads, seen);
        if (job != seen) {
            work(threads, helper->index);
            seen = job;
        }
    }
    return NULL;
}

enum err_code k_threads_create(uint32_t thread_count, struct k_threads **out_threads,
                               struct err *err)
{
    struct k_threads *threads = aligned_alloc(128, sizeof(*threads));
    if (threads == NULL) {
        return err_set(err, ERR_MEMORY, "thread pool: out of memory");
    }
    *threads = (struct k_threads){.thread_count = thread_count};
    threads->helpers = calloc(thread_count, sizeof(*threads->helpers));
    if (threads->helpers == NULL) {
        free(threads);
        return err_set(err, ERR_MEMORY, "thread pool: out of memory");
    }
    for (uint32_t i = 0; i + 1 < thread_count; i++) {
        struct helper *helper = &threads->helpers[i];
        *helper = (struct helper){.threads = threads, .index = i + 1};
        int failed = pthread_create(&helper->handle, NULL, helper_main, helper);
        if (failed != 0) {
            k_threads_destroy(threads);
            return err_errno(err, failed, "thread pool: thread %u of %u", i + 1, thread_count);
        }
        threads->started_count++;
    }
    *out_threads = threads;
    return ERR_OK;
}

void k_threads_destroy(struct k_threads *threads)
{
    if (threads == NULL) {
        return;
    }
    atomic_store_explicit(&threads->stopping, true, memory_order_release);
    /* The futex word changes, so a helper about to sleep does not. */
    atomic_fetch_add_explicit(&threads->job, 1, memory_order_release);
    futex_wake_all(&threads->job);
    for (uint32_t i = 0; i < threads->started_count; i++) {
        (void)pthread_join(threads->helpers[i].handle, NULL); /* our own joinable thread */
    }
    free(threads->helpers);
    free(threads);
}

void k_threads_run(struct k_threads *threads, uint32_t item_count, k_item_fn fn, void *context)
{
    if (item_count <= 1 || threads->thread_count == 1) {
        for (uint32_t item = 0; item < item_count; item++) {
            fn(context, item, 0);
        }
        return;
    }
    assert(item_count <= ITEM_MASK);
    uint32_t job = atomic_load_explicit(&threads->job, memory_order_relaxed) + 1;
    atomic_store_explicit(&threads->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&threads->context, context, memory_order_relaxed);
    atomic_store_explicit(&threads->done_count, 0, memory_order_relaxed);
    /* release: pairs with work()'s acquire of the ticket */
    uint64_t ticket = (uint64_t)job << (2 * ITEM_BITS) | (uint64_t)item_count << ITEM_BITS;
    atomic_store_explicit(&threads->ticket, ticket, memory_order_release);
    atomic_store_explicit(&threads->job, job, memory_order_release);
    if (atomic_load_explicit(&threads->sleepers, memory_order_relaxed) > 0) {
        futex_wake_all(&threads->job);
    }
    work(threads, 0);
    /* acquire: pairs with the release after each item */
    for (uint32_t round = 0;
         atomic_load_explicit(&threads->done_count, memory_order_acquire) < item_count; round++) {
        if (round < JOIN_ROUNDS) {
            pause_briefly();
        } else {
            (void)sched_yield(); /* a helper was taken off its core in the middle of an item */
        }
    }
}

uint32_t k_threads_count(const struct k_threads *threads)
{
    return threads->thread_count;
}
