/* The ring between two threads and between two processes. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/ring.h"
#include "common/shm.h"
#include "tests/testlib/test.h"

enum {
    EPOCH = 5,
    STREAM_RECORDS = 300000,
    ROUND_TRIPS = 20000
};

static const uint64_t patience_ns = 30 * CLOCK_NS_PER_SEC; /* a lost wake shows as this deadline */

struct record {
    uint64_t words[8];
};

static struct record make_record(uint64_t number)
{
    struct record record;
    for (size_t i = 0; i < 8; i++) {
        record.words[i] = number * 0x9e3779b97f4a7c15ULL + i;
    }
    return record;
}

/* Pushes in random batches.  Yields when full: the consumer does not ring back for room. */
static bool produce(struct ring_producer *producer, uint64_t record_count)
{
    uint64_t seed = 99;
    uint64_t deadline_ns = clock_now_ns() + patience_ns;
    uint64_t number = 0;
    while (number < record_count) {
        uint64_t batch = 1 + test_random(&seed) % 5;
        for (; batch > 0 && number < record_count; batch--) {
            struct record record = make_record(number);
            if (!ring_producer_try_push(producer, &record)) {
                break;
            }
            number++;
        }
        ring_producer_publish(producer);
        if (ring_producer_room(producer, 1) == 0) {
            if (clock_now_ns() > deadline_ns) {
                return false;
            }
            (void)usleep(0); /* gives the processor away, synchronises nothing */
        }
    }
    return true;
}

static bool consume(struct ring_consumer *consumer, uint64_t record_count, uint64_t spin_ns)
{
    uint64_t number = 0;
    uint64_t deadline_ns = clock_now_ns() + patience_ns;
    while (number < record_count) {
        struct record record;
        struct record want = make_record(number);
        if (ring_consumer_try_pop(consumer, &record)) {
            if (memcmp(&record, &want, sizeof(want)) != 0) {
                return false;
            }
            number++;
        } else if (!ring_consumer_wait(consumer, spin_ns, deadline_ns) &&
                   clock_now_ns() >= deadline_ns) {
            return false;
        }
    }
    return true;
}

struct endpoint {
    void *segment; /* owned */
    struct ring_producer producer;
    struct ring_consumer consumer;
    struct ring_consumer *other; /* echo: where records come from */
    bool is_good;
};

static void endpoint_init(struct endpoint *endpoint, uint32_t record_count)
{
    struct err err;
    size_t bytes = ring_segment_bytes(sizeof(struct record), record_count);
    endpoint->segment = mem_zalloc(bytes, 1);
    test_ok(ring_producer_init(&endpoint->producer, endpoint->segment, bytes, sizeof(struct record),
                               record_count, EPOCH, &err),
            &err);
    test_ok(ring_consumer_init(&endpoint->consumer, endpoint->segment, bytes, sizeof(struct record),
                               EPOCH, &err),
            &err);
}

static void *run_producer(void *at)
{
    struct endpoint *endpoint = at;
    endpoint->is_good = produce(&endpoint->producer, STREAM_RECORDS);
    return NULL;
}

static void check_threads(uint32_t record_count, uint64_t spin_ns)
{
    struct endpoint endpoint = {0};
    pthread_t thread;
    endpoint_init(&endpoint, record_count);
    test_true(pthread_create(&thread, NULL, run_producer, &endpoint) == 0);
    bool is_good = consume(&endpoint.consumer, STREAM_RECORDS, spin_ns);
    test_true(pthread_join(thread, NULL) == 0);
    test_true(is_good && endpoint.is_good);
    mem_free(endpoint.segment);
}

static void test_two_threads_stream(void)
{
    check_threads(1024, 0);
    check_threads(1024, 20000);
    check_threads(4, 0);
}

static void *run_echo(void *at)
{
    struct endpoint *endpoint = at;
    uint64_t deadline_ns = clock_now_ns() + patience_ns;
    for (uint64_t i = 0; i < ROUND_TRIPS;) {
        struct record record;
        if (ring_consumer_try_pop(endpoint->other, &record)) {
            if (!ring_producer_try_push(&endpoint->producer, &record)) {
                return NULL;
            }
            ring_producer_publish(&endpoint->producer);
            i++;
        } else if (!ring_consumer_wait(endpoint->other, 0, deadline_ns) &&
                   clock_now_ns() >= deadline_ns) {
            return NULL;
        }
    }
    endpoint->is_good = true;
    return NULL;
}

/* Every record crosses a sleep of the other side, so one lost wake stops the game. */
static void test_ping_pong_loses_no_wake(void)
{
    struct endpoint ping = {0};
    struct endpoint pong = {.other = &ping.consumer};
    pthread_t thread;
    endpoint_init(&ping, 4);
    endpoint_init(&pong, 4);
    test_true(pthread_create(&thread, NULL, run_echo, &pong) == 0);
    bool is_good = true;
    for (uint64_t i = 0; i < ROUND_TRIPS && is_good; i++) {
        struct record record = make_record(i);
        struct record echoed;
        uint64_t deadline_ns = clock_now_ns() + patience_ns;
        is_good = ring_producer_try_push(&ping.producer, &record);
        ring_producer_publish(&ping.producer);
        bool is_back = false;
        while (is_good && !is_back) {
            is_back = ring_consumer_try_pop(&pong.consumer, &echoed);
            is_good = is_back || ring_consumer_wait(&pong.consumer, 0, deadline_ns) ||
                      clock_now_ns() < deadline_ns;
        }
        is_good = is_good && memcmp(&record, &echoed, sizeof(record)) == 0;
    }
    test_true(pthread_join(thread, NULL) == 0);
    test_true(is_good && pong.is_good);
    mem_free(ping.segment);
    mem_free(pong.segment);
}

struct waker {
    struct ring_shared *shared;
    _Atomic uint64_t submitted;
    _Atomic uint64_t taken;
};

static void *run_waker(void *at)
{
    struct waker *waker = at;
    for (uint64_t i = 1; i <= ROUND_TRIPS; i++) {
        atomic_store_explicit(&waker->submitted, i, memory_order_relaxed); /* the bell orders it */
        ring_wake(waker->shared);
        uint64_t deadline_ns = clock_now_ns() + patience_ns;
        while (atomic_load_explicit(&waker->taken, memory_order_acquire) != i) {
            if (clock_now_ns() > deadline_ns) {
                return NULL;
            }
        }
    }
    return NULL;
}

/* What was written before ring_wake is seen after the wait, each time, while no record ever comes. */
static void test_wake_carries_submissions(void)
{
    struct endpoint endpoint = {0};
    pthread_t thread;
    endpoint_init(&endpoint, 4);
    struct waker waker = {.shared = endpoint.producer.shared};
    test_true(pthread_create(&thread, NULL, run_waker, &waker) == 0);
    uint64_t deadline_ns = clock_now_ns() + patience_ns;
    uint64_t seen = 0;
    while (seen < ROUND_TRIPS && clock_now_ns() < deadline_ns) {
        (void)ring_consumer_wait(&endpoint.consumer, 0, deadline_ns); /* no record: always false */
        seen = atomic_load_explicit(&waker.submitted, memory_order_relaxed);
        atomic_store_explicit(&waker.taken, seen, memory_order_release);
    }
    test_true(pthread_join(thread, NULL) == 0);
    test_eq_u64(seen, ROUND_TRIPS);
    mem_free(endpoint.segment);
}

static void shared_init(struct shm_segment *segment, struct ring_producer *producer,
                        uint32_t record_count)
{
    struct err err;
    char name[64];
    (void)snprintf(name, sizeof(name), "/bezel-ring-test-%d", (int)getpid());
    size_t bytes = ring_segment_bytes(sizeof(struct record), record_count);
    test_ok(shm_create(segment, name, bytes, &err), &err);
    test_ok(ring_producer_init(producer, segment->at, bytes, sizeof(struct record), record_count,
                               EPOCH, &err),
            &err);
}

/* In the child: attach by name as a stranger would. */
static bool child_attach(const char *name, size_t bytes, struct ring_consumer *consumer)
{
    struct shm_segment segment;
    return shm_open_existing(&segment, name, bytes, NULL) == ERR_OK &&
           ring_consumer_init(consumer, segment.at, bytes, sizeof(struct record), EPOCH, NULL) ==
               ERR_OK;
}

static void test_two_processes_stream(void)
{
    struct shm_segment segment;
    struct ring_producer producer;
    shared_init(&segment, &producer, 256);
    pid_t child = fork();
    test_true(child >= 0);
    if (child == 0) {
        struct ring_consumer consumer;
        bool is_good = child_attach(segment.name, segment.byte_count, &consumer) &&
                       consume(&consumer, STREAM_RECORDS, 10000);
        _exit(is_good ? 0 : 1);
    }
    bool is_good = produce(&producer, STREAM_RECORDS);
    int status = -1;
    test_true(waitpid(child, &status, 0) == child);
    test_true(is_good && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    shm_close(&segment);
}

static void test_dead_producer_leaves_what_it_published(void)
{
    struct shm_segment segment;
    struct ring_producer producer;
    struct ring_consumer consumer;
    struct err err;
    shared_init(&segment, &producer, 8);
    test_ok(ring_consumer_init(&consumer, segment.at, segment.byte_count, sizeof(struct record),
                               EPOCH, &err),
            &err);
    pid_t child = fork();
    test_true(child >= 0);
    if (child == 0) {
        for (uint64_t i = 0; i < 5; i++) {
            struct record record = make_record(i);
            (void)ring_producer_try_push(&producer, &record); /* has room */
            if (i == 2) {
                ring_producer_publish(&producer);
            }
        }
        (void)raise(SIGKILL);
    }
    int status = 0;
    test_true(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    for (uint64_t i = 0; i < 3; i++) {
        struct record record;
        struct record want = make_record(i);
        test_true(ring_consumer_try_pop(&consumer, &record));
        test_true(memcmp(&record, &want, sizeof(want)) == 0);
    }
    uint64_t deadline_ns = clock_now_ns() + 10 * CLOCK_NS_PER_MS;
    test_true(!ring_consumer_wait(&consumer, 0, deadline_ns));
    test_ok(ring_check(segment.at, segment.byte_count, &err), &err);
    shm_close(&segment);
}

static bool is_sleeping(const struct shm_segment *segment)
{
    const unsigned char *at = (unsigned char *)segment->at + RING_DOORBELL_OFFSET_BYTES + 4;
    return __atomic_load_n(at, __ATOMIC_ACQUIRE) == 1;
}

static void test_dead_sleeper_does_not_hold_the_producer(void)
{
    struct shm_segment segment;
    struct ring_producer producer;
    struct err err;
    shared_init(&segment, &producer, 8);
    pid_t child = fork();
    test_true(child >= 0);
    if (child == 0) {
        struct ring_consumer consumer;
        if (child_attach(segment.name, segment.byte_count, &consumer)) {
            (void)ring_consumer_wait(&consumer, 0, UINT64_MAX); /* killed here */
        }
        _exit(1);
    }
    uint64_t deadline_ns = clock_now_ns() + patience_ns;
    while (!is_sleeping(&segment) && clock_now_ns() < deadline_ns) {
    }
    test_true(is_sleeping(&segment));
    test_true(kill(child, SIGKILL) == 0);
    int status = 0;
    test_true(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    for (uint64_t i = 0; i < 8; i++) {
        struct record record = make_record(i);
        test_true(ring_producer_try_push(&producer, &record));
        ring_producer_publish(&producer);
    }
    test_true(ring_producer_room(&producer, 1) == 0);
    test_ok(ring_check(segment.at, segment.byte_count, &err), &err);
    shm_close(&segment);
}

static const struct test_case cases[] = {
    TEST(test_two_threads_stream),
    TEST(test_ping_pong_loses_no_wake),
    TEST(test_wake_carries_submissions),
    TEST(test_two_processes_stream),
    TEST(test_dead_producer_leaves_what_it_published),
    TEST(test_dead_sleeper_does_not_hold_the_producer),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
