/* One session's segment: the result ring, written here, and the mask area, read here.
 *
 * segment_room, _push, _flush and _mask fit struct session_sink with a struct segment as owner.
 * Created and closed by the control thread, used by the executor between. */
#ifndef WORKER_SEGMENT_H
#define WORKER_SEGMENT_H

#include <stdint.h>

#include "common/err.h"
#include "common/ring.h"
#include "common/shm.h"
#include "proto/mask.h"
#include "proto/result.h"

struct segment_options {
    const char *name; /* of the segment, shm_open's form */
    uint64_t epoch;
    uint32_t ring_records; /* a power of two */
    struct mask_geometry masks;
};

struct segment {
    struct shm_segment shm;
    struct ring_producer ring;
    struct mask_area masks;
    size_t mask_offset_bytes;
    uint32_t lane_hint;
};

/* Errors: ERR_SYSTEM (no room in /dev/shm), ERR_LIMIT. */
ERR_NODISCARD enum err_code segment_open(struct segment *segment,
                                         const struct segment_options *options, struct err *err);
void segment_close(struct segment *segment);

uint32_t segment_room(void *context, void *owner, uint32_t wanted);
void segment_push(void *context, void *owner, const struct result_record *record);
void segment_flush(void *context, void *owner);
const uint32_t *segment_mask(void *context, void *owner, uint64_t seq_id, uint32_t position);

#endif
