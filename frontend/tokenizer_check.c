/* Opens an image: after these checks no lookup can leave it, whatever its bytes were. */
#include "frontend/tokenizer_image.h"

#include <string.h>

#include "common/mem.h"

enum {
    CODE_PAGE_IDS = 256,
    LANES = 4,
    SAMPLE_STRIDE = 61,
    KNOWN_FLAGS = TOK_FLAG_SPECIAL | TOK_FLAG_BYTE | TOK_FLAG_ADDED,
};

/* Four independent chains of steps that are one-to-one in each word: no change within one word goes
 * unnoticed, and the chains run side by side. */
uint64_t tok_image_checksum(const unsigned char *image, size_t image_bytes)
{
    uint64_t chain[LANES] = {1, 2, 3, 4};
    const size_t field_word = offsetof(struct tok_image_header, checksum) / sizeof(uint64_t);
    size_t word_count = image_bytes / sizeof(uint64_t);
    for (size_t i = 0; i < word_count; i += LANES) {
        uint64_t words[LANES] = {0};
        size_t count = word_count - i < LANES ? word_count - i : LANES;
        memcpy(words, image + i * sizeof(uint64_t), count * sizeof(uint64_t));
        if (field_word >= i && field_word < i + LANES) {
            words[field_word - i] = 0;
        }
        for (size_t lane = 0; lane < LANES; lane++) {
            chain[lane] += words[lane] * 0xc2b2ae3d27d4eb4fULL;
            chain[lane] = ((chain[lane] << 31) | (chain[lane] >> 33)) * 0x9e3779b185ebca87ULL;
        }
    }
    uint64_t sum = image_bytes;
    for (size_t lane = 0; lane < LANES; lane++) {
        sum = tok_mix(sum ^ chain[lane]);
    }
    return sum;
}

static enum err_code broken(const char *what, struct err *err)
{
    return err_set(err, ERR_FORMAT, "the compiled tokenizer is damaged: %s", what);
}

static enum err_code check_header(const unsigned char *image, size_t image_bytes, struct err *err)
{
    const struct tok_image_header *header = (const void *)image;
    if (image_bytes < sizeof(*header) || memcmp(header->magic, "bezeltok", 8) != 0) {
        return broken("no header", err);
    }
    if (header->version != TOK_IMAGE_VERSION) {
        return err_set(err, ERR_FORMAT, "the compiled tokenizer has version %llu, this is %u",
                       (unsigned long long)header->version, TOK_IMAGE_VERSION);
    }
    if (header->image_bytes != image_bytes || image_bytes % TOK_IMAGE_ALIGN != 0) {
        return broken("its length differs", err);
    }
    if (header->checksum != tok_image_checksum(image, image_bytes)) {
        return broken("its checksum differs", err);
    }
    bool has_powers = header->vocab_slot_count > 0 &&
                      header->merge_slot_count >= TOK_MIN_MERGE_SLOTS &&
                      (header->vocab_slot_count & (header->vocab_slot_count - 1)) == 0 &&
                      (header->merge_slot_count & (header->merge_slot_count - 1)) == 0;
    if (!has_powers || header->token_count == 0 || header->token_count > TOK_MAX_TOKENS ||
        header->merge_count > TOK_MAX_MERGES || header->added_count > TOK_MAX_ADDED ||
        header->vocab_slot_count <= header->token_count ||
        header->merge_slot_count <= header->merge_count || header->code_page_count == 0 ||
        header->code_page_count > TOK_CODE_PAGE_COUNT + 1) {
        return broken("a count is out of range", err);
    }
    for (size_t i = 0; i < TOK_SECTION_COUNT; i++) {
        uint64_t offset = header->sections[i].offset_bytes;
        uint64_t byte_count = header->sections[i].byte_count;
        if (offset % TOK_IMAGE_ALIGN != 0 || offset < sizeof(*header) || offset > image_bytes ||
            byte_count > image_bytes - offset ||
            byte_count != tok_section_bytes(header, (enum tok_section)i)) {
            return broken("a section is out of range", err);
        }
    }
    return ERR_OK;
}

static void set_views(struct tokenizer *tokenizer)
{
    const struct tok_image_header *header = (const void *)tokenizer->image;
    const unsigned char *at[TOK_SECTION_COUNT];
    for (size_t i = 0; i < TOK_SECTION_COUNT; i++) {
        at[i] = tokenizer->image + header->sections[i].offset_bytes;
    }
    tokenizer->header = header;
    tokenizer->text_start = (const void *)at[TOK_SECTION_TEXT_START];
    tokenizer->text = (const void *)at[TOK_SECTION_TEXT];
    tokenizer->decoded_start = (const void *)at[TOK_SECTION_DECODED_START];
    tokenizer->decoded = (const void *)at[TOK_SECTION_DECODED];
    tokenizer->flags = at[TOK_SECTION_FLAGS];
    tokenizer->vocab_slots = (const void *)at[TOK_SECTION_VOCAB_SLOTS];
    tokenizer->merge_slots = (const void *)at[TOK_SECTION_MERGE_SLOTS];
    tokenizer->pair_bits = (const void *)at[TOK_SECTION_PAIR_BITS];
    tokenizer->merge_result = (const void *)at[TOK_SECTION_MERGE_RESULT];
    tokenizer->code_pages = (const void *)at[TOK_SECTION_CODE_PAGES];
    tokenizer->code_ids = (const void *)at[TOK_SECTION_CODE_IDS];
    tokenizer->join_bits = (const void *)at[TOK_SECTION_JOIN_BITS];
    tokenizer->added = (const void *)at[TOK_SECTION_ADDED];
    tokenizer->byte_ids = (const void *)at[TOK_SECTION_BYTE_IDS];
}

static bool starts_are_good(const uint32_t *starts, uint32_t count, uint64_t section_bytes)
{
    bool is_good = starts[0] == 0 && starts[count] == section_bytes;
    for (uint32_t i = 0; i < count; i++) {
        is_good &= starts[i] < starts[i + 1]; /* no entry is empty */
    }
    return is_good;
}

/* Ids that ordinary text may become: known, and never special. */
static bool is_text_id(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->header->token_count && (tokenizer->flags[id] & TOK_FLAG_SPECIAL) == 0;
}

static bool slots_are_good(const struct tokenizer *tokenizer)
{
    const struct tok_image_header *header = tokenizer->header;
    uint32_t used = 0;
    for (uint32_t i = 0; i < header->vocab_slot_count; i++) {
        uint32_t id = tokenizer->vocab_slots[i];
        used += id != TOK_NONE;
        if (id != TOK_NONE && id >= header->token_count) {
            return false;
        }
    }
    if (used != header->token_count) {
        return false;
    }
    used = 0;
    for (uint32_t i = 0; i < header->merge_slot_count; i++) {
        uint64_t slot = tokenizer->merge_slots[i];
        used += slot != TOK_SLOT_FREE;
        if (slot != TOK_SLOT_FREE && tok_slot_rank(slot) >= header->merge_count) {
            return false;
        }
    }
    return used == header->merge_count;
}

static bool tables_are_good(const struct tokenizer *tokenizer)
{
    const struct tok_image_header *header = tokenizer->header;
    bool is_good = true;
    for (uint32_t i = 0; i < header->token_count; i++) {
        is_good &= (tokenizer->flags[i] & ~KNOWN_FLAGS) == 0;
    }
    for (uint32_t i = 0; i < header->merge_count; i++) {
        is_good &= is_text_id(tokenizer, tokenizer->merge_result[i]);
    }
    for (uint32_t i = 0; i < TOK_CODE_PAGE_COUNT; i++) {
        is_good &= tokenizer->code_pages[i] < header->code_page_count;
    }
    for (size_t i = 0; i < (size_t)header->code_page_count * CODE_PAGE_IDS; i++) {
        is_good &=
            tokenizer->code_ids[i] == TOK_NONE || is_text_id(tokenizer, tokenizer->code_ids[i]);
    }
    for (uint32_t i = 0; i < 256; i++) {
        is_good &= is_text_id(tokenizer, tokenizer->byte_ids[i]);
    }
    for (uint32_t i = 0; i < header->added_count; i++) {
        is_good &= tokenizer->added[i] < header->token_count;
    }
    return is_good;
}

/* The tables answer as this program asks: another program's hash would find nothing. */
static bool answers_are_good(const struct tokenizer *tokenizer)
{
    bool is_good = true;
    for (uint32_t id = 0; id < tokenizer->header->token_count; id += SAMPLE_STRIDE) {
        uint32_t start = tokenizer->text_start[id];
        is_good &= tok_find_text(tokenizer, tokenizer->text + start,
                                 tokenizer->text_start[id + 1] - start) == id;
    }
    for (uint32_t i = 0; i < tokenizer->header->merge_slot_count; i += SAMPLE_STRIDE) {
        uint64_t slot = tokenizer->merge_slots[i];
        is_good &= slot == TOK_SLOT_FREE ||
                   tok_merge_rank(tokenizer, tok_slot_left(slot), tok_slot_right(slot)) ==
                       tok_slot_rank(slot);
    }
    return is_good;
}

/* Tables that are cheaper to derive than to store.  False where the added tokens are not ordered by
 * their first byte. */
static bool derive(struct tokenizer *tokenizer)
{
    for (uint32_t i = 0; i < 128; i++) {
        uint32_t code_point = i == ' ' ? 0x2581 : i;
        tokenizer->ascii_ids[i] =
            tokenizer->code_ids[tokenizer->code_pages[code_point / CODE_PAGE_IDS] * CODE_PAGE_IDS +
                                code_point % CODE_PAGE_IDS];
    }
    for (uint32_t id = 0; id < tokenizer->header->token_count; id++) {
        uint32_t start = tokenizer->text_start[id];
        uint32_t byte_count = tokenizer->text_start[id + 1] - start;
        uint32_t *longest = &tokenizer->longest_bytes[(unsigned char)tokenizer->text[start]];
        *longest = byte_count > *longest ? byte_count : *longest;
    }
    uint32_t index = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        tokenizer->added_range[byte] = index;
        while (index < tokenizer->header->added_count &&
               (unsigned char)tokenizer->text[tokenizer->text_start[tokenizer->added[index]]] ==
                   byte) {
            index++;
        }
    }
    tokenizer->added_range[256] = index;
    return index == tokenizer->header->added_count;
}

enum err_code tok_image_open(unsigned char *image, size_t image_bytes,
                             struct tokenizer **out_tokenizer, struct err *err)
{
    enum err_code code = check_header(image, image_bytes, err);
    if (code != ERR_OK) {
        return code;
    }
    struct tokenizer *tokenizer = mem_zalloc(1, sizeof(*tokenizer));
    tokenizer->image = image;
    tokenizer->image_bytes = image_bytes;
    set_views(tokenizer);
    const struct tok_image_header *header = tokenizer->header;
    if (!starts_are_good(tokenizer->text_start, header->token_count,
                         header->sections[TOK_SECTION_TEXT].byte_count) ||
        !starts_are_good(tokenizer->decoded_start, header->token_count,
                         header->sections[TOK_SECTION_DECODED].byte_count)) {
        code = broken("a text is out of range", err);
    } else if (!slots_are_good(tokenizer) || !tables_are_good(tokenizer) || !derive(tokenizer)) {
        code = broken("an index is out of range", err);
    } else if (!answers_are_good(tokenizer)) {
        code = broken("an entry is not found", err);
    }
    if (code != ERR_OK) {
        mem_free(tokenizer);
        return code;
    }
    *out_tokenizer = tokenizer;
    return ERR_OK;
}
