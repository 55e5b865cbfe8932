/* The image that encoding reads, and a tokenizer as a view of one.
 *
 * An image is one block of bytes with offsets instead of pointers, compiled from tokenizer.json.
 * The cache file holds exactly these bytes; they are checked whole before use, so that encoding
 * needs no bounds checks of its own. */
#ifndef FRONTEND_TOKENIZER_IMAGE_H
#define FRONTEND_TOKENIZER_IMAGE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/tokenizer.h"

#define TOK_MAX_FILE_BYTES  (256UL << 20)
#define TOK_ID_BITS         20
#define TOK_RANK_BITS       22
#define TOK_MAX_TOKENS      (1U << TOK_ID_BITS)
#define TOK_MAX_MERGES      (1U << TOK_RANK_BITS)
#define TOK_MAX_ADDED       1024U
#define TOK_MIN_MERGE_SLOTS 8U
#define TOK_IMAGE_VERSION   3U
#define TOK_IMAGE_ALIGN     64U
#define TOK_CODE_PAGE_COUNT 0x1100U    /* pages of 256 code points up to U+10FFFF */
#define TOK_JOIN_BIT_COUNT  (1U << 20) /* 128 KiB: stays in the second cache level */

enum tok_flag {
    TOK_FLAG_SPECIAL = 1,
    TOK_FLAG_BYTE = 2,
    TOK_FLAG_ADDED = 4,
};

enum tok_section {
    TOK_SECTION_TEXT_START,    /* u32 [token_count + 1] */
    TOK_SECTION_TEXT,          /* contents as written in the file */
    TOK_SECTION_DECODED_START, /* u32 [token_count + 1] */
    TOK_SECTION_DECODED,       /* what each token stands for in text */
    TOK_SECTION_FLAGS,         /* u8 [token_count] */
    TOK_SECTION_VOCAB_SLOTS,   /* u32 [vocab_slot_count], TOK_NONE where free */
    TOK_SECTION_MERGE_SLOTS,   /* u64 [merge_slot_count], TOK_SLOT_FREE or tok_slot_make */
    TOK_SECTION_PAIR_BITS,     /* u64 [merge_slot_count / 8]: pairs that may be in the slots */
    TOK_SECTION_MERGE_RESULT,  /* u32 [merge_count], by rank */
    TOK_SECTION_CODE_PAGES,    /* u16 [TOK_CODE_PAGE_COUNT], index of a page of code_ids */
    TOK_SECTION_CODE_IDS,  /* u32 [code_page_count][256], TOK_NONE where not in the vocabulary */
    TOK_SECTION_JOIN_BITS, /* u64 [TOK_JOIN_BIT_COUNT / 64] */
    TOK_SECTION_ADDED,     /* u32 [added_count], by first byte, then longest first */
    TOK_SECTION_BYTE_IDS,  /* u32 [256] */
    TOK_SECTION_COUNT
};

/* Which file an image was compiled from. */
struct tok_source_key {
    uint64_t device;
    uint64_t inode;
    uint64_t byte_count;
    uint64_t mtime_ns;
    uint64_t ctime_ns; /* 0: changed too recently for the times to be trusted */
};

struct tok_image_header {
    char magic[8];
    uint64_t version;
    uint64_t image_bytes;
    uint64_t checksum; /* of the image with this field zero */
    struct tok_source_key key;
    uint64_t file_hash;
    uint32_t token_count;
    uint32_t merge_count;
    uint32_t added_count;
    uint32_t vocab_slot_count; /* a power of two, as below */
    uint32_t merge_slot_count;
    uint32_t code_page_count;
    struct {
        uint64_t offset_bytes;
        uint64_t byte_count;
    } sections[TOK_SECTION_COUNT];
};

struct tokenizer {
    unsigned char *image; /* owned, from tok_image_alloc; the rest points into it */
    size_t image_bytes;
    const struct tok_image_header *header;
    const uint32_t *text_start;
    const char *text;
    const uint32_t *decoded_start;
    const char *decoded;
    const uint8_t *flags;
    const uint32_t *vocab_slots;
    const uint64_t *merge_slots;
    const uint64_t *pair_bits;
    const uint32_t *merge_result;
    const uint16_t *code_pages;
    const uint32_t *code_ids;
    const uint64_t *join_bits;
    const uint32_t *added;
    const uint32_t *byte_ids;
    uint32_t ascii_ids[128];     /* code points below 128 as encoding sees them */
    uint32_t longest_bytes[256]; /* of the entries whose text begins with this byte */
    uint32_t
        added_range[257]; /* added tokens that begin with byte b: added[range[b]..range[b+1]) */
};

static inline uint64_t tok_mix(uint64_t value)
{
    value *= 0x9e3779b97f4a7c15ULL;
    return value ^ (value >> 32);
}

/* Id of an exact entry, TOK_NONE where there is none. */
uint32_t tok_find_text(const struct tokenizer *tokenizer, const char *text, size_t byte_count);

uint64_t tok_hash_text(const char *text, size_t byte_count);

static inline uint32_t tok_join_bit(uint32_t left, uint32_t right)
{
    return (uint32_t)(tok_mix(((uint64_t)left << 32) | right) >> 8) % TOK_JOIN_BIT_COUNT;
}

/* Whether some merge could ever span the border between these two characters' tokens: false is
 * certain, true may be wrong. */
static inline bool tok_may_join(const struct tokenizer *tokenizer, uint32_t left, uint32_t right)
{
    uint32_t bit = tok_join_bit(left, right);
    return (tokenizer->join_bits[bit / 64] >> (bit % 64)) & 1;
}

#define TOK_SLOT_FREE UINT64_MAX
static_assert(2 * TOK_ID_BITS + TOK_RANK_BITS < 64,
              "a merge fits into one word, which is never TOK_SLOT_FREE");

static inline uint64_t tok_pair(uint32_t left, uint32_t right)
{
    return ((uint64_t)left << TOK_ID_BITS) | right;
}

static inline uint64_t tok_slot_make(uint64_t pair, uint32_t rank)
{
    return (pair << TOK_RANK_BITS) | rank;
}

static inline uint64_t tok_slot_pair(uint64_t slot)
{
    return slot >> TOK_RANK_BITS;
}

static inline uint32_t tok_slot_left(uint64_t slot)
{
    return (uint32_t)(slot >> (TOK_RANK_BITS + TOK_ID_BITS));
}

static inline uint32_t tok_slot_right(uint64_t slot)
{
    return (uint32_t)(slot >> TOK_RANK_BITS) & ((1U << TOK_ID_BITS) - 1);
}

static inline uint32_t tok_slot_rank(uint64_t slot)
{
    return (uint32_t)slot & ((1U << TOK_RANK_BITS) - 1);
}

/* Eight bits per slot, told by the half of the hash that does not choose the slot. */
static inline uint32_t tok_pair_bit(uint64_t hash, uint32_t merge_slot_count)
{
    return (uint32_t)(hash >> 32) & (merge_slot_count * 8 - 1);
}

/* Rank of the pair's merge; TOK_NONE where there is none.  Most pairs that are asked for have none,
 * and the bits that tell so stay in a near cache. */
static inline uint32_t tok_merge_rank(const struct tokenizer *tokenizer, uint32_t left,
                                      uint32_t right)
{
    uint32_t slot_count = tokenizer->header->merge_slot_count;
    uint64_t pair = tok_pair(left, right);
    uint64_t hash = tok_mix(pair);
    uint32_t bit = tok_pair_bit(hash, slot_count);
    if (((tokenizer->pair_bits[bit / 64] >> (bit % 64)) & 1) == 0) {
        return TOK_NONE;
    }
    uint32_t index = (uint32_t)hash & (slot_count - 1);
    uint64_t slot = tokenizer->merge_slots[index];
    while (slot != TOK_SLOT_FREE && tok_slot_pair(slot) != pair) {
        index = (index + 1) & (slot_count - 1);
        slot = tokenizer->merge_slots[index];
    }
    return slot == TOK_SLOT_FREE ? TOK_NONE : tok_slot_rank(slot);
}

/* Writes key and checksum into the header. */
void tok_image_seal(unsigned char *image, const struct tok_source_key *key);
unsigned char *tok_image_alloc(size_t byte_count); /* null when memory is gone */
void tok_image_free(unsigned char *image, size_t byte_count);

/* Checks every length, offset and index; takes ownership of the image on success only.  Errors:
 * ERR_FORMAT. */
ERR_NODISCARD enum err_code tok_image_open(unsigned char *image, size_t image_bytes,
                                           struct tokenizer **out_tokenizer, struct err *err);
uint64_t tok_image_checksum(const unsigned char *image, size_t image_bytes);
size_t tok_section_bytes(const struct tok_image_header *header, enum tok_section section);

#endif
