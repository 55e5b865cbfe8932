/* The first bytes of a result ring's segment, as a broken peer could leave them.  Where the check
 * accepts them, the consumer must attach and find no more records than fit; where it does not, the
 * consumer may still attach to an intact header, and must then stay inside the segment. */
#include <stdlib.h>
#include <string.h>

#include "common/ring.h"
#include "tests/fuzz/fuzz.h"

enum {
    RECORD_BYTES = 64,
    RECORD_COUNT = 8,
    SEGMENT_BYTES = RING_RECORDS_OFFSET_BYTES + RECORD_BYTES * RECORD_COUNT,
    EPOCH = 3
};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct err err;
    struct ring_producer producer;
    struct ring_consumer consumer;
    unsigned char record[RECORD_BYTES];
    unsigned char *segment = calloc(1, SEGMENT_BYTES);
    if (segment == NULL ||
        ring_producer_init(&producer, segment, SEGMENT_BYTES, RECORD_BYTES, RECORD_COUNT, EPOCH,
                           &err) != ERR_OK ||
        ring_check(segment, SEGMENT_BYTES, &err) != ERR_OK) {
        abort();
    }
    for (size_t i = 0; i < byte_count && i < SEGMENT_BYTES; i++) {
        segment[i] ^= bytes[i]; /* no bytes: an intact ring */
    }
    bool is_good = ring_check(segment, SEGMENT_BYTES, &err) == ERR_OK;
    uint64_t epoch;
    memcpy(&epoch, segment + 24, sizeof(epoch));
    if (ring_consumer_init(&consumer, segment, SEGMENT_BYTES, RECORD_BYTES, epoch, &err) ==
        ERR_OK) {
        memcpy(&consumer.head_seq, segment + RING_HEAD_SEQ_OFFSET_BYTES, sizeof(uint64_t));
        consumer.tail_seen_seq = consumer.head_seq;
        unsigned popped = 0;
        while (ring_consumer_try_pop(&consumer, record)) {
            popped++;
        }
        (void)ring_consumer_wait(&consumer, 0, 0); /* returns at once */
        if (popped > RECORD_COUNT) {
            abort();
        }
    } else if (is_good) {
        abort();
    }
    free(segment);
    return 0;
}
