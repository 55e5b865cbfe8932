/* Pairs of acquire and release, walked from either end:
 *   P1 publish tail_seq   -> C1 observe tail_seq: records are written before they are read
 *   C2 release head_seq   -> P2 observe head_seq: records are read before they are written again
 *   P0 publish the header -> C0 observe the magic
 *   W1 ring the bell      -> C3 observe the bell: what the waker wrote is seen after the wait
 *
 * No wake is lost.  The sleeper stores sleeping = 1 (S1), then loads tail_seq (S2) and the bell
 * (S3); a producer stores tail_seq (P1), then loads sleeping (R1); a waker adds to the bell (W1),
 * then loads sleeping (R1).  All five are seq_cst, hence in one total order.  If R1 comes after S1
 * it reads 1, and the bell is rung.  Otherwise R1 is before S1, so P1 or W1 before R1 is before S2
 * and S3, which see it.  A bell that rings between S3 and the sleep is caught by the kernel, which
 * compares the bell with what S3 read before it sleeps.  The sleeper alone writes its flag: a waker
 * that cleared it late would take the flag of the next sleep, and that sleep's wake with it. */
#include "common/ring.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"

#define RING_MAGIC 0x31474e49525a4542ULL /* "BEZRING1", little endian */

enum {
    LAYOUT_VERSION = 1,
    SPINS_PER_CLOCK_READ = 64
};

struct ring_shared {
    _Atomic uint64_t magic;
    uint32_t layout_version;
    uint32_t record_bytes;
    uint32_t record_count;
    uint32_t reserved_header;
    uint64_t epoch;
    uint64_t reserved_line0[12];

    _Atomic uint64_t tail_seq; /* written by the producer only */
    uint64_t reserved_line1[15];

    _Atomic uint64_t head_seq; /* written by the consumer only */
    uint64_t reserved_line2[15];

    _Atomic uint32_t bell;     /* count of rings; 32 bits: the kernel's futex word */
    _Atomic uint32_t sleeping; /* 1 while the consumer sleeps or is about to */
    uint64_t reserved_line3[15];
};

static_assert(offsetof(struct ring_shared, magic) == 0, "layout");
static_assert(offsetof(struct ring_shared, layout_version) == 8, "layout");
static_assert(offsetof(struct ring_shared, record_bytes) == 12, "layout");
static_assert(offsetof(struct ring_shared, record_count) == 16, "layout");
static_assert(offsetof(struct ring_shared, reserved_header) == 20, "layout");
static_assert(offsetof(struct ring_shared, epoch) == 24, "layout");
static_assert(offsetof(struct ring_shared, reserved_line0) == 32, "layout");
static_assert(offsetof(struct ring_shared, tail_seq) == RING_TAIL_SEQ_OFFSET_BYTES, "layout");
static_assert(offsetof(struct ring_shared, head_seq) == RING_HEAD_SEQ_OFFSET_BYTES, "layout");
static_assert(offsetof(struct ring_shared, bell) == RING_DOORBELL_OFFSET_BYTES, "layout");
static_assert(offsetof(struct ring_shared, sleeping) == RING_DOORBELL_OFFSET_BYTES + 4, "layout");
static_assert(sizeof(struct ring_shared) == RING_RECORDS_OFFSET_BYTES, "layout");
static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "plain words");

size_t ring_segment_bytes(uint32_t record_bytes, uint32_t record_count)
{
    bool is_power_of_two = record_count != 0 && (record_count & (record_count - 1)) == 0;
    if (!is_power_of_two || record_count > RING_MAX_RECORD_COUNT || record_bytes == 0 ||
        record_bytes % 64 != 0 || record_bytes > RING_MAX_RECORD_BYTES) {
        return 0;
    }
    return sizeof(struct ring_shared) + (size_t)record_bytes * record_count;
}

/* NOLINTNEXTLINE(readability-function-size): a memory range and a shape, called once per session */
enum err_code ring_producer_init(struct ring_producer *producer, void *segment,
                                 size_t segment_bytes, uint32_t record_bytes, uint32_t record_count,
                                 uint64_t epoch, struct err *err)
{
    size_t need_bytes = ring_segment_bytes(record_bytes, record_count);
    if (need_bytes == 0 || need_bytes != segment_bytes) {
        return err_set(err, ERR_ARGUMENT, "ring of %u records of %u bytes in %zu bytes, needs %zu",
                       record_count, record_bytes, segment_bytes, need_bytes);
    }
    struct ring_shared *shared = segment;
    shared->layout_version = LAYOUT_VERSION;
    shared->record_bytes = record_bytes;
    shared->record_count = record_count;
    shared->epoch = epoch;
    /* P0: release, pairs with C0. */
    atomic_store_explicit(&shared->magic, RING_MAGIC, memory_order_release);
    *producer = (struct ring_producer){
        .shared = shared,
        .records = (unsigned char *)segment + sizeof(struct ring_shared),
        .record_bytes = record_bytes,
        .record_count = record_count,
    };
    return ERR_OK;
}

static uint32_t known_room(const struct ring_producer *producer)
{
    uint64_t used = producer->tail_seq - producer->head_seen_seq;
    /* More than capacity is nonsense from the peer: no room, rather than a wrapped difference. */
    return used > producer->record_count ? 0 : producer->record_count - (uint32_t)used;
}

uint32_t ring_producer_room(struct ring_producer *producer, uint32_t wanted)
{
    if (known_room(producer) < wanted) {
        /* P2: acquire, pairs with C2. */
        producer->head_seen_seq =
            atomic_load_explicit(&producer->shared->head_seq, memory_order_acquire);
    }
    return known_room(producer);
}

bool ring_producer_try_push(struct ring_producer *producer, const void *record)
{
    if (ring_producer_room(producer, 1) == 0) {
        return false;
    }
    size_t slot = producer->tail_seq & (producer->record_count - 1);
    memcpy(producer->records + slot * producer->record_bytes, record, producer->record_bytes);
    producer->tail_seq++;
    return true;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value,
                  const struct timespec *deadline)
{
    return syscall(SYS_futex, word, operation, value, deadline, NULL, FUTEX_BITSET_MATCH_ANY);
}

void ring_producer_publish(struct ring_producer *producer)
{
    struct ring_shared *shared = producer->shared;
    /* P1: release, pairs with C1; seq_cst for the proof above. */
    atomic_store_explicit(&shared->tail_seq, producer->tail_seq, memory_order_seq_cst);
    /* R1: seq_cst, see the proof above. */
    if (atomic_load_explicit(&shared->sleeping, memory_order_seq_cst) != 0) {
        ring_wake(shared);
    }
}

void ring_wake(struct ring_shared *shared)
{
    /* W1: release, pairs with C3; seq_cst for the proof above. */
    (void)atomic_fetch_add_explicit(&shared->bell, 1, memory_order_seq_cst);
    /* R1: seq_cst, see the proof above. */
    if (atomic_load_explicit(&shared->sleeping, memory_order_seq_cst) != 0) {
        (void)futex(&shared->bell, FUTEX_WAKE, INT_MAX, NULL); /* nobody there is fine */
    }
}

static enum err_code differs(const char *field, uint64_t got, uint64_t want, struct err *err)
{
    return err_set(err, ERR_PROTOCOL, "ring %s is %llu, expected %llu", field,
                   (unsigned long long)got, (unsigned long long)want);
}

enum err_code ring_consumer_init(struct ring_consumer *consumer, void *segment,
                                 size_t segment_bytes, uint32_t record_bytes, uint64_t epoch,
                                 struct err *err)
{
    struct ring_shared *shared = segment;
    if (segment_bytes < sizeof(struct ring_shared)) {
        return differs("segment size", segment_bytes, sizeof(struct ring_shared), err);
    }
    /* C0: acquire, pairs with P0. */
    uint64_t magic = atomic_load_explicit(&shared->magic, memory_order_acquire);
    if (magic != RING_MAGIC) {
        return differs("magic", magic, RING_MAGIC, err);
    }
    if (shared->layout_version != LAYOUT_VERSION) {
        return differs("layout version", shared->layout_version, LAYOUT_VERSION, err);
    }
    if (shared->record_bytes != record_bytes) {
        return differs("record size", shared->record_bytes, record_bytes, err);
    }
    if (shared->epoch != epoch) {
        return differs("epoch", shared->epoch, epoch, err);
    }
    uint32_t record_count = shared->record_count;
    size_t need_bytes = ring_segment_bytes(record_bytes, record_count);
    if (need_bytes != segment_bytes) {
        return differs("segment size", segment_bytes, need_bytes, err);
    }
    *consumer = (struct ring_consumer){
        .shared = shared,
        .records = (const unsigned char *)segment + sizeof(struct ring_shared),
        .record_bytes = record_bytes,
        .record_count = record_count,
    };
    return ERR_OK;
}

static uint64_t known_records(const struct ring_consumer *consumer)
{
    uint64_t waiting = consumer->tail_seen_seq - consumer->head_seq;
    return waiting > consumer->record_count ? 0 : waiting; /* nonsense from the peer: none */
}

static bool has_record(struct ring_consumer *consumer, memory_order order)
{
    if (known_records(consumer) == 0) {
        /* C1: acquire, pairs with P1. */
        consumer->tail_seen_seq = atomic_load_explicit(&consumer->shared->tail_seq, order);
    }
    return known_records(consumer) > 0;
}

bool ring_consumer_try_pop(struct ring_consumer *consumer, void *out_record)
{
    if (!has_record(consumer, memory_order_acquire)) {
        return false;
    }
    size_t slot = consumer->head_seq & (consumer->record_count - 1);
    memcpy(out_record, consumer->records + slot * consumer->record_bytes, consumer->record_bytes);
    consumer->head_seq++;
    /* C2: release, pairs with P2. */
    atomic_store_explicit(&consumer->shared->head_seq, consumer->head_seq, memory_order_release);
    return true;
}

/* True once; the next call is true only after another ring. */
static bool take_bell(struct ring_consumer *consumer, memory_order order)
{
    /* C3: acquire, pairs with W1. */
    uint32_t bell = atomic_load_explicit(&consumer->shared->bell, order);
    bool has_rung = bell != consumer->bell_seen;
    consumer->bell_seen = bell;
    return has_rung;
}

static bool spin(struct ring_consumer *consumer, uint64_t until_ns)
{
    for (;;) {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            if (has_record(consumer, memory_order_acquire) ||
                take_bell(consumer, memory_order_acquire)) {
                return true;
            }
            __builtin_ia32_pause();
        }
        if (clock_now_ns() >= until_ns) {
            return false;
        }
    }
}

/* True when the bell has rung since the last look. */
static bool sleep_on_bell(struct ring_consumer *consumer, uint64_t deadline_ns)
{
    struct ring_shared *shared = consumer->shared;
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_SEC),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_SEC),
    };
    /* S1, S2, S3: seq_cst, see the proof above. */
    atomic_store_explicit(&shared->sleeping, 1, memory_order_seq_cst);
    bool is_empty = !has_record(consumer, memory_order_seq_cst);
    bool has_rung = take_bell(consumer, memory_order_seq_cst);
    if (is_empty && !has_rung) {
        /* Woken, out of date or interrupted: the caller looks again in every case. */
        (void)futex(&shared->bell, FUTEX_WAIT_BITSET, consumer->bell_seen,
                    deadline_ns == UINT64_MAX ? NULL : &deadline);
        has_rung = take_bell(consumer, memory_order_acquire);
    }
    atomic_store_explicit(&shared->sleeping, 0, memory_order_relaxed); /* a late wake is harmless */
    return has_rung;
}

bool ring_consumer_wait(struct ring_consumer *consumer, uint64_t spin_ns, uint64_t deadline_ns)
{
    if (has_record(consumer, memory_order_acquire)) {
        return true;
    }
    if (take_bell(consumer, memory_order_acquire)) {
        return has_record(consumer, memory_order_acquire);
    }
    if (spin_ns > 0) {
        uint64_t until_ns = clock_now_ns() + spin_ns;
        if (spin(consumer, until_ns < deadline_ns ? until_ns : deadline_ns)) {
            return has_record(consumer, memory_order_acquire);
        }
    }
    while (clock_now_ns() < deadline_ns) {
        bool has_rung = sleep_on_bell(consumer, deadline_ns);
        if (has_rung || has_record(consumer, memory_order_acquire)) {
            break;
        }
    }
    return has_record(consumer, memory_order_acquire);
}

static enum err_code check_zero(const uint64_t *words, size_t word_count, const char *what,
                                struct err *err)
{
    for (size_t i = 0; i < word_count; i++) {
        if (words[i] != 0) {
            return err_set(err, ERR_FORMAT, "ring %s line has reserved word %zu set", what, i);
        }
    }
    return ERR_OK;
}

static enum err_code check_reserved(const struct ring_shared *shared, struct err *err)
{
    enum err_code code = check_zero(shared->reserved_line0, 12, "header", err);
    if (code == ERR_OK) {
        code = check_zero(shared->reserved_line1, 15, "producer", err);
    }
    if (code == ERR_OK) {
        code = check_zero(shared->reserved_line2, 15, "consumer", err);
    }
    if (code == ERR_OK) {
        code = check_zero(shared->reserved_line3, 15, "doorbell", err);
    }
    return code;
}

enum err_code ring_check(const void *segment, size_t segment_bytes, struct err *err)
{
    const struct ring_shared *shared = segment;
    if (segment_bytes < sizeof(struct ring_shared)) {
        return err_set(err, ERR_FORMAT, "ring segment has %zu bytes, needs at least %zu",
                       segment_bytes, sizeof(struct ring_shared));
    }
    /* C0: acquire, pairs with P0. */
    uint64_t magic = atomic_load_explicit(&shared->magic, memory_order_acquire);
    if (magic != RING_MAGIC || shared->layout_version != LAYOUT_VERSION ||
        shared->reserved_header != 0) {
        return err_set(err, ERR_FORMAT, "ring magic %llx version %u, expected %llx version %d",
                       (unsigned long long)magic, shared->layout_version, RING_MAGIC,
                       LAYOUT_VERSION);
    }
    size_t need_bytes = ring_segment_bytes(shared->record_bytes, shared->record_count);
    if (need_bytes != segment_bytes) {
        return err_set(err, ERR_FORMAT, "ring of %u records of %u bytes in %zu bytes, needs %zu",
                       shared->record_count, shared->record_bytes, segment_bytes, need_bytes);
    }
    /* C2 and P1's acquire sides; the head first, so that a moving producer only adds. */
    uint64_t head_seq = atomic_load_explicit(&shared->head_seq, memory_order_acquire);
    uint64_t tail_seq = atomic_load_explicit(&shared->tail_seq, memory_order_acquire);
    if (tail_seq - head_seq > shared->record_count) {
        return err_set(err, ERR_FORMAT, "ring tail %llu and head %llu are more than %u apart",
                       (unsigned long long)tail_seq, (unsigned long long)head_seq,
                       shared->record_count);
    }
    uint32_t sleeping = atomic_load_explicit(&shared->sleeping, memory_order_relaxed);
    if (sleeping > 1) {
        return err_set(err, ERR_FORMAT, "ring sleeping flag is %u, must be 0 or 1", sleeping);
    }
    return check_reserved(shared, err);
}
