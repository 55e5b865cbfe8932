#include "worker/segment.h"

#include <assert.h>

#include "common/num.h"

enum {
    PAGE_BYTES = 4096
};

enum err_code segment_open(struct segment *segment, const struct segment_options *options,
                           struct err *err)
{
    *segment = (struct segment){0};
    size_t ring_bytes = ring_segment_bytes(RESULT_RECORD_BYTES, options->ring_records);
    size_t mask_bytes = mask_area_bytes(&options->masks);
    size_t offset_bytes = num_align_up(ring_bytes, PAGE_BYTES);
    size_t segment_bytes = 0;
    if (ring_bytes == 0 || mask_bytes == 0 || !num_add(offset_bytes, mask_bytes, &segment_bytes)) {
        return err_set(err, ERR_LIMIT, "segment of %u records and %u masks of %u words",
                       options->ring_records, options->masks.lanes * MASK_ENTRIES_PER_LANE,
                       options->masks.words);
    }
    enum err_code code = shm_create(&segment->shm, options->name, segment_bytes, err);
    if (code != ERR_OK) {
        return code;
    }
    segment->mask_offset_bytes = offset_bytes;
    code = ring_producer_init(&segment->ring, segment->shm.at, ring_bytes, RESULT_RECORD_BYTES,
                              options->ring_records, options->epoch, err);
    if (code == ERR_OK) {
        code = mask_area_init(&segment->masks, segment->shm.at, segment_bytes, offset_bytes,
                              &options->masks, err);
    }
    if (code != ERR_OK) {
        segment_close(segment);
    }
    return code;
}

void segment_close(struct segment *segment)
{
    shm_close(&segment->shm);
}

uint32_t segment_room(void *context, void *owner, uint32_t wanted)
{
    struct segment *segment = owner;
    return ring_producer_room(&segment->ring, wanted);
}

void segment_push(void *context, void *owner, const struct result_record *record)
{
    struct segment *segment = owner;
    bool pushed = ring_producer_try_push(&segment->ring, record);
    assert(pushed); /* the core asks for room first, and only this thread takes any */
    (void)pushed;
}

void segment_flush(void *context, void *owner)
{
    struct segment *segment = owner;
    ring_producer_publish(&segment->ring);
}

const uint32_t *segment_mask(void *context, void *owner, uint64_t seq_id, uint32_t position)
{
    struct segment *segment = owner;
    return mask_find(&segment->masks, seq_id, position, &segment->lane_hint);
}
