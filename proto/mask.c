#include "proto/mask.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "common/num.h"

enum {
    LINE_BYTES = 64
};

/* Shared: fixed-width members only. */
struct tag {
    _Atomic uint64_t seq_id; /* 0: the entry holds no mask; published last */
    _Atomic uint64_t position;
    uint64_t reserved[6];
};

_Static_assert(sizeof(struct tag) == LINE_BYTES, "a tag fills a cache line");
_Static_assert(offsetof(struct tag, position) == 8, "layout is shared");

static size_t entry_bytes(const struct mask_geometry *geometry)
{
    return sizeof(struct tag) + num_align_up((size_t)geometry->words * 4, LINE_BYTES);
}

size_t mask_area_bytes(const struct mask_geometry *geometry)
{
    size_t bytes = 0;
    if (!num_mul((size_t)geometry->lanes * MASK_ENTRIES_PER_LANE, entry_bytes(geometry), &bytes)) {
        return 0;
    }
    return bytes;
}

enum err_code mask_area_init(struct mask_area *area, void *segment, size_t segment_bytes,
                             size_t offset_bytes, const struct mask_geometry *geometry,
                             struct err *err)
{
    size_t area_bytes = mask_area_bytes(geometry);
    size_t end_bytes = 0;
    if (offset_bytes % LINE_BYTES != 0) {
        return err_set(err, ERR_PROTOCOL, "mask area at byte %zu, want a multiple of %d",
                       offset_bytes, LINE_BYTES);
    }
    if (!num_add(offset_bytes, area_bytes, &end_bytes) || end_bytes > segment_bytes) {
        return err_set(err, ERR_PROTOCOL, "mask area of %zu bytes at %zu in a segment of %zu bytes",
                       area_bytes, offset_bytes, segment_bytes);
    }
    *area = (struct mask_area){
        .at = (unsigned char *)segment + offset_bytes,
        .geometry = *geometry,
    };
    return ERR_OK;
}

static struct tag *tag_of(const struct mask_area *area, uint32_t lane, uint32_t position)
{
    size_t index = (size_t)lane * MASK_ENTRIES_PER_LANE + position % MASK_ENTRIES_PER_LANE;
    void *at = area->at + index * entry_bytes(&area->geometry);
    return at;
}

void mask_write(const struct mask_area *area, uint32_t lane, uint64_t seq_id, uint32_t position,
                const uint32_t *words)
{
    assert(lane < area->geometry.lanes && seq_id != 0);
    struct tag *tag = tag_of(area, lane, position);
    atomic_store_explicit(&tag->seq_id, 0, memory_order_relaxed); /* nobody reads it now */
    memcpy(tag + 1, words, (size_t)area->geometry.words * 4);
    atomic_store_explicit(&tag->position, position, memory_order_relaxed);
    atomic_store_explicit(&tag->seq_id, seq_id, memory_order_release); /* M1: pairs with M2 */
}

static const uint32_t *find_in_lane(const struct mask_area *area, uint32_t lane, uint64_t seq_id,
                                    uint32_t position)
{
    struct tag *tag = tag_of(area, lane, position);
    uint64_t seen = atomic_load_explicit(&tag->seq_id, memory_order_acquire); /* M2: with M1 */
    if (seen != seq_id || atomic_load_explicit(&tag->position, memory_order_relaxed) != position) {
        return NULL;
    }
    return (const uint32_t *)(tag + 1);
}

const uint32_t *mask_find(const struct mask_area *area, uint64_t seq_id, uint32_t position,
                          uint32_t *lane_hint)
{
    if (*lane_hint < area->geometry.lanes) {
        const uint32_t *words = find_in_lane(area, *lane_hint, seq_id, position);
        if (words != NULL) {
            return words;
        }
    }
    for (uint32_t lane = 0; lane < area->geometry.lanes; lane++) {
        const uint32_t *words = find_in_lane(area, lane, seq_id, position);
        if (words != NULL) {
            *lane_hint = lane;
            return words;
        }
    }
    return NULL;
}
