/* The mask area of a session's segment: which tokens a constrained row may sample.
 *
 * `slots` lanes of two entries.  The frontend gives each constrained sequence a lane and writes the
 * mask of the token at `position` into the lane's entry position % 2, so that one can be read while
 * the next is written.  The worker finds an entry by its tag.
 *
 * Entry: tag (a cache line), then mask_words uint32 words, bit t % 32 of word t / 32 is token t; set:
 * allowed.  The tag is cleared before the words change and set after (release); the reader sees the
 * tag (acquire), then the words.  The writer may take an entry again only for position + 2, which it
 * knows after TOKEN of `position`: the reader is done by then.
 * Frontend: one writing thread per lane.  Worker: executor thread. */
#ifndef PROTO_MASK_H
#define PROTO_MASK_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#define MASK_ENTRIES_PER_LANE 2

struct mask_geometry {
    uint32_t lanes;
    uint32_t words; /* of one mask: ceil(vocab / 32) */
};

struct mask_area {
    unsigned char *at; /* borrowed from the mapping; 64-byte aligned */
    struct mask_geometry geometry;
};

/* Bytes of an area; 0 where it does not fit size_t. */
size_t mask_area_bytes(const struct mask_geometry *geometry);

/* Errors: ERR_PROTOCOL (segment too small or offset not aligned; names the values). */
ERR_NODISCARD enum err_code mask_area_init(struct mask_area *area, void *segment,
                                           size_t segment_bytes, size_t offset_bytes,
                                           const struct mask_geometry *geometry, struct err *err);

/* Frontend: copy words[geometry.words] in as the mask of that sequence's token at position. */
void mask_write(const struct mask_area *area, uint32_t lane, uint64_t seq_id, uint32_t position,
                const uint32_t *words);

/* Worker: the mask's words, null where it is not there.  *lane_hint is where to look first and is
 * set to where it was found. */
const uint32_t *mask_find(const struct mask_area *area, uint64_t seq_id, uint32_t position,
                          uint32_t *lane_hint);

#endif
