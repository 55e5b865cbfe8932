/* Single-producer single-consumer ring of fixed-size records in shared memory.
 *
 * Segment layout: header (magic, layout version, record bytes, capacity, epoch), the producer's line
 * (tail_seq), the consumer's line (head_seq), the doorbell line, then capacity records.  64-bit
 * indices run free; capacity is a power of two.  The doorbell (futex) is a hint, the indices are
 * the truth.  Nothing is repaired in place: a new producer gets a new segment and epoch.  A peer
 * that writes nonsense into its index can stop the ring, never make this side read outside it. */
#ifndef COMMON_RING_H
#define COMMON_RING_H

#ifdef __cplusplus
#error "ring.h is C only"
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct ring_shared; /* the segment; layout and asserts in ring.c */

/* Offsets in the segment, for tools and tests that look at one. */
enum {
    RING_LINE_BYTES = 128, /* two cache lines: the adjacent one is prefetched with its neighbour */
    RING_TAIL_SEQ_OFFSET_BYTES = 1 * RING_LINE_BYTES,
    RING_HEAD_SEQ_OFFSET_BYTES = 2 * RING_LINE_BYTES,
    RING_DOORBELL_OFFSET_BYTES = 3 * RING_LINE_BYTES,
    RING_RECORDS_OFFSET_BYTES = 4 * RING_LINE_BYTES,
    RING_MAX_RECORD_COUNT = 1 << 24,
    RING_MAX_RECORD_BYTES = 1 << 16
};

/* Private to the producing thread. */
struct ring_producer {
    struct ring_shared *shared; /* borrowed: the mapping outlives it */
    unsigned char *records;
    uint64_t tail_seq;      /* own index */
    uint64_t head_seen_seq; /* last seen index of the consumer */
    uint32_t record_bytes;
    uint32_t record_count; /* capacity */
};

/* Private to the consuming thread. */
struct ring_consumer {
    struct ring_shared *shared; /* borrowed */
    const unsigned char *records;
    uint64_t head_seq;
    uint64_t tail_seen_seq;
    uint32_t record_bytes;
    uint32_t record_count;
    uint32_t bell_seen; /* doorbell count at the last look */
};

/* Bytes of a segment; record_count a power of two, record_bytes a multiple of 64, both at most the
 * limits above.  0 if not. */
size_t ring_segment_bytes(uint32_t record_bytes, uint32_t record_count);

/* Lay out a fresh zeroed segment and become its producer.  Errors: ERR_ARGUMENT. */
ERR_NODISCARD enum err_code ring_producer_init(struct ring_producer *producer, void *segment,
                                               size_t segment_bytes, uint32_t record_bytes,
                                               uint32_t record_count, uint64_t epoch,
                                               struct err *err);

/* Free records as last seen; looks at the peer's line only when fewer than wanted are known. */
uint32_t ring_producer_room(struct ring_producer *producer, uint32_t wanted);

/* Copy one record in; false when full.  Not visible before ring_producer_publish. */
bool ring_producer_try_push(struct ring_producer *producer, const void *record);

/* Make pushed records visible and ring the doorbell if the consumer sleeps. */
void ring_producer_publish(struct ring_producer *producer);

/* Errors: ERR_PROTOCOL names both values of a field that differs. */
ERR_NODISCARD enum err_code ring_consumer_init(struct ring_consumer *consumer, void *segment,
                                               size_t segment_bytes, uint32_t record_bytes,
                                               uint64_t epoch, struct err *err);

/* Copy the next record out and free its slot; false when empty. */
bool ring_consumer_try_pop(struct ring_consumer *consumer, void *out_record);

/* True when a record is there.  Spins for spin_ns, then sleeps on the doorbell until a record
 * comes, ring_wake is called or deadline_ns (monotonic; UINT64_MAX never) passes.  A wake before the
 * call is seen: what the waker wrote before ring_wake is visible after the return.  May return
 * false early: callers loop. */
bool ring_consumer_wait(struct ring_consumer *consumer, uint64_t spin_ns, uint64_t deadline_ns);

/* Wake the consumer from any thread or process that maps the segment (producer->shared). */
void ring_wake(struct ring_shared *shared);

/* Validates header and indices; exact while both peers are quiet.  Errors: ERR_FORMAT. */
ERR_NODISCARD enum err_code ring_check(const void *segment, size_t segment_bytes, struct err *err);

#endif
