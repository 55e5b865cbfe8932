/* Compiles a parsed tokenizer.json into an image. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/mem.h"
#include "common/num.h"
#include "common/utf8.h"
#include "frontend/tokenizer_source.h"

#define SPACE_MARK_TEXT "\xe2\x96\x81"

enum {
    SPACE_MARK_BYTES = 3,
    CODE_PAGE_IDS = 256,
};

uint64_t tok_hash_text(const char *text, size_t byte_count)
{
    uint64_t hash = byte_count;
    while (byte_count >= sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, text, sizeof(word));
        hash = tok_mix(hash ^ word);
        text += sizeof(word);
        byte_count -= sizeof(word);
    }
    uint64_t rest = 0;
    memcpy(&rest, text, byte_count);
    hash = tok_mix(hash ^ rest);
    return tok_mix(hash ^ (hash >> 29));
}

unsigned char *tok_image_alloc(size_t byte_count)
{
    void *at = mmap(NULL, byte_count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return NULL;
    }
    /* Encoding jumps about in the merge table: large pages spare it address lookups. */
    (void)madvise(at, byte_count, MADV_HUGEPAGE); /* a hint */
    return at;
}

void tok_image_free(unsigned char *image, size_t byte_count)
{
    if (image != NULL) {
        (void)munmap(image, byte_count); /* cannot fail for a mapping of ours */
    }
}

/* Code points that are entries of their own: page numbers by code point, ids by page. */
struct code_table {
    uint16_t pages[TOK_CODE_PAGE_COUNT];
    uint32_t *ids; /* owned */
    uint32_t page_count;
};

static void code_table_init(struct code_table *table, const struct tok_source *source)
{
    memset(table->pages, 0, sizeof(table->pages));
    table->page_count = 1; /* page 0 is empty: shared by all blocks without an entry */
    table->ids =
        mem_realloc(NULL, (size_t)(TOK_CODE_PAGE_COUNT + 1) * CODE_PAGE_IDS, sizeof(uint32_t));
    memset(table->ids, 0xff, CODE_PAGE_IDS * sizeof(uint32_t));
    for (uint32_t id = 0; id < source->token_count; id++) {
        uint32_t code_point = 0;
        size_t byte_count = utf8_decode(source->text.at + source->entries[id].start,
                                        source->entries[id].byte_count, &code_point);
        if (byte_count == 0 || byte_count != source->entries[id].byte_count ||
            (source->flags[id] & TOK_FLAG_SPECIAL) != 0) {
            continue; /* ordinary text never becomes a special token */
        }
        uint16_t *page = &table->pages[code_point / CODE_PAGE_IDS];
        if (*page == 0) {
            *page = (uint16_t)table->page_count++;
            memset(table->ids + (size_t)*page * CODE_PAGE_IDS, 0xff,
                   CODE_PAGE_IDS * sizeof(uint32_t));
        }
        table->ids[*page * CODE_PAGE_IDS + code_point % CODE_PAGE_IDS] = id;
    }
}

static uint32_t code_table_id(const struct code_table *table, uint32_t code_point)
{
    return table->ids[table->pages[code_point / CODE_PAGE_IDS] * CODE_PAGE_IDS +
                      code_point % CODE_PAGE_IDS];
}

static size_t decoded_bytes(const struct tok_source *source, uint32_t id, char *out)
{
    const char *text = source->text.at + source->entries[id].start;
    size_t byte_count = source->entries[id].byte_count;
    if ((source->flags[id] & TOK_FLAG_BYTE) != 0) {
        char hex[3] = {text[3], text[4], '\0'};
        *out = (char)strtoul(hex, NULL, 16);
        return 1;
    }
    size_t written = 0;
    for (size_t i = 0; i < byte_count; i++) {
        if (byte_count - i >= SPACE_MARK_BYTES &&
            memcmp(text + i, SPACE_MARK_TEXT, SPACE_MARK_BYTES) == 0) {
            out[written++] = ' ';
            i += SPACE_MARK_BYTES - 1;
        } else {
            out[written++] = text[i];
        }
    }
    return written;
}

size_t tok_section_bytes(const struct tok_image_header *header, enum tok_section section)
{
    size_t tokens = header->token_count;
    switch (section) {
    case TOK_SECTION_TEXT_START:
    case TOK_SECTION_DECODED_START: return (tokens + 1) * sizeof(uint32_t);
    case TOK_SECTION_TEXT:
    case TOK_SECTION_DECODED:
        return header->sections[section].byte_count; /* free: bounded by its start table */
    case TOK_SECTION_FLAGS: return tokens;
    case TOK_SECTION_VOCAB_SLOTS: return (size_t)header->vocab_slot_count * sizeof(uint32_t);
    case TOK_SECTION_MERGE_SLOTS: return (size_t)header->merge_slot_count * sizeof(uint64_t);
    case TOK_SECTION_PAIR_BITS: return header->merge_slot_count;
    case TOK_SECTION_MERGE_RESULT: return (size_t)header->merge_count * sizeof(uint32_t);
    case TOK_SECTION_CODE_PAGES: return TOK_CODE_PAGE_COUNT * sizeof(uint16_t);
    case TOK_SECTION_CODE_IDS:
        return (size_t)header->code_page_count * CODE_PAGE_IDS * sizeof(uint32_t);
    case TOK_SECTION_JOIN_BITS: return TOK_JOIN_BIT_COUNT / 8;
    case TOK_SECTION_ADDED: return (size_t)header->added_count * sizeof(uint32_t);
    case TOK_SECTION_BYTE_IDS: return 256 * sizeof(uint32_t);
    case TOK_SECTION_COUNT: break;
    }
    return 0;
}

static void *section_at(unsigned char *image, enum tok_section section)
{
    const struct tok_image_header *header = (const void *)image;
    return image + header->sections[section].offset_bytes;
}

/* Sizes and places of everything; text sections get their upper bound. */
static void plan_sections(struct tok_image_header *header, const struct tok_source *source,
                          const struct code_table *codes)
{
    memcpy(header->magic, "bezeltok", sizeof(header->magic));
    header->version = TOK_IMAGE_VERSION;
    header->file_hash = source->file_hash;
    header->token_count = source->token_count;
    header->merge_count = source->merge_count;
    header->vocab_slot_count = source->vocab_slot_count;
    header->merge_slot_count = TOK_MIN_MERGE_SLOTS;
    while (header->merge_slot_count < source->merge_count + source->merge_count / 2 + 1) {
        header->merge_slot_count *= 2;
    }
    header->code_page_count = codes->page_count;
    for (uint32_t id = 0; id < source->token_count; id++) {
        header->added_count += (source->flags[id] & TOK_FLAG_ADDED) != 0;
    }
    header->sections[TOK_SECTION_TEXT].byte_count = source->text.used_bytes;
    header->sections[TOK_SECTION_DECODED].byte_count = source->text.used_bytes;
    size_t offset = num_align_up(sizeof(*header), TOK_IMAGE_ALIGN);
    for (size_t i = 0; i < TOK_SECTION_COUNT; i++) {
        header->sections[i].offset_bytes = offset;
        header->sections[i].byte_count = tok_section_bytes(header, (enum tok_section)i);
        offset = num_align_up(offset + header->sections[i].byte_count, TOK_IMAGE_ALIGN);
    }
    header->image_bytes = offset;
}

static void fill_texts(unsigned char *image, const struct tok_source *source)
{
    struct tok_image_header *header = (void *)image;
    uint32_t *text_start = section_at(image, TOK_SECTION_TEXT_START);
    char *text = section_at(image, TOK_SECTION_TEXT);
    uint32_t *decoded_start = section_at(image, TOK_SECTION_DECODED_START);
    char *decoded = section_at(image, TOK_SECTION_DECODED);
    uint32_t text_at = 0;
    uint32_t decoded_at = 0;
    for (uint32_t id = 0; id < source->token_count; id++) {
        text_start[id] = text_at;
        decoded_start[id] = decoded_at;
        memcpy(text + text_at, source->text.at + source->entries[id].start,
               source->entries[id].byte_count);
        text_at += source->entries[id].byte_count;
        decoded_at += (uint32_t)decoded_bytes(source, id, decoded + decoded_at);
    }
    text_start[source->token_count] = text_at;
    decoded_start[source->token_count] = decoded_at;
    header->sections[TOK_SECTION_TEXT].byte_count = text_at;
    header->sections[TOK_SECTION_DECODED].byte_count = decoded_at;
    memcpy(section_at(image, TOK_SECTION_FLAGS), source->flags, source->token_count);
    uint32_t *slots = section_at(image, TOK_SECTION_VOCAB_SLOTS);
    for (uint32_t i = 0; i < source->vocab_slot_count; i++) {
        slots[i] = source->vocab_slots[i].id;
    }
}

/* First or last code point of an entry, which is valid UTF-8. */
static uint32_t edge_code_point(const struct tok_source *source, uint32_t id, bool is_last)
{
    const char *text = source->text.at + source->entries[id].start;
    size_t byte_count = source->entries[id].byte_count;
    size_t start = is_last ? byte_count - 1 : 0;
    while (start > 0 && ((unsigned char)text[start] & 0xc0) == 0x80) {
        start--;
    }
    uint32_t code_point = 0;
    (void)utf8_decode(text + start, byte_count - start, &code_point); /* valid */
    return code_point;
}

/* Fills the pair table and the borders that merges can span.  A border is told by the entries of
 * the two characters beside it; a character without one becomes bytes, which never merge. */
static enum err_code fill_merges(unsigned char *image, const struct tok_source *source,
                                 const struct code_table *codes, struct err *err)
{
    const struct tok_image_header *header = (const void *)image;
    uint64_t *slots = section_at(image, TOK_SECTION_MERGE_SLOTS);
    uint32_t *results = section_at(image, TOK_SECTION_MERGE_RESULT);
    uint64_t *pair_bits = section_at(image, TOK_SECTION_PAIR_BITS);
    uint64_t *join_bits = section_at(image, TOK_SECTION_JOIN_BITS);
    uint32_t mask = header->merge_slot_count - 1;
    for (uint32_t i = 0; i < header->merge_slot_count; i++) {
        slots[i] = TOK_SLOT_FREE;
    }
    for (uint32_t rank = 0; rank < source->merge_count; rank++) {
        const uint32_t *merge = source->merges + 3 * (size_t)rank;
        uint64_t pair = tok_pair(merge[0], merge[1]);
        uint64_t hash = tok_mix(pair);
        uint32_t pair_bit = tok_pair_bit(hash, header->merge_slot_count);
        uint32_t index = (uint32_t)hash & mask;
        while (slots[index] != TOK_SLOT_FREE) {
            if (tok_slot_pair(slots[index]) == pair) {
                return err_set(err, ERR_FORMAT, "model.merges: merge %u repeats merge %u", rank,
                               tok_slot_rank(slots[index]));
            }
            index = (index + 1) & mask;
        }
        slots[index] = tok_slot_make(pair, rank);
        results[rank] = merge[2];
        pair_bits[pair_bit / 64] |= 1ULL << (pair_bit % 64);
        uint32_t left = code_table_id(codes, edge_code_point(source, merge[0], true));
        uint32_t right = code_table_id(codes, edge_code_point(source, merge[1], false));
        uint32_t bit = tok_join_bit(left, right);
        join_bits[bit / 64] |= 1ULL << (bit % 64);
    }
    return ERR_OK;
}

static int compare_added(const void *a, const void *b, void *context)
{
    const struct tok_source *source = context;
    uint32_t left = *(const uint32_t *)a;
    uint32_t right = *(const uint32_t *)b;
    int left_first = (unsigned char)source->text.at[source->entries[left].start];
    int right_first = (unsigned char)source->text.at[source->entries[right].start];
    if (left_first != right_first) {
        return left_first - right_first;
    }
    if (source->entries[left].byte_count != source->entries[right].byte_count) {
        return source->entries[left].byte_count > source->entries[right].byte_count ? -1 : 1;
    }
    return left < right ? -1 : 1;
}

static void fill_tables(unsigned char *image, const struct tok_source *source,
                        const struct code_table *codes)
{
    const struct tok_image_header *header = (const void *)image;
    memcpy(section_at(image, TOK_SECTION_CODE_PAGES), codes->pages, sizeof(codes->pages));
    memcpy(section_at(image, TOK_SECTION_CODE_IDS), codes->ids,
           (size_t)codes->page_count * CODE_PAGE_IDS * sizeof(uint32_t));
    uint32_t *added = section_at(image, TOK_SECTION_ADDED);
    uint32_t *byte_ids = section_at(image, TOK_SECTION_BYTE_IDS);
    uint32_t added_count = 0;
    for (uint32_t id = 0; id < source->token_count; id++) {
        if ((source->flags[id] & TOK_FLAG_ADDED) != 0) {
            added[added_count++] = id;
        }
        if ((source->flags[id] & TOK_FLAG_BYTE) != 0) {
            char byte = 0;
            (void)decoded_bytes(source, id, &byte); /* one */
            byte_ids[(unsigned char)byte] = id;
        }
    }
    union {
        const struct tok_source *source;
        void *context;
    } context = {.source = source};
    qsort_r(added, header->added_count, sizeof(*added), compare_added, context.context);
}

enum err_code tok_image_build(const struct tok_source *source, unsigned char **out_image,
                              size_t *out_image_bytes, struct err *err)
{
    struct code_table codes;
    code_table_init(&codes, source);
    struct tok_image_header header = {0};
    plan_sections(&header, source, &codes);
    enum err_code code = ERR_OK;
    unsigned char *image = tok_image_alloc(header.image_bytes);
    if (image == NULL) {
        code = err_set(err, ERR_MEMORY, "%zu bytes for the tokenizer", (size_t)header.image_bytes);
        goto out;
    }
    memcpy(image, &header, sizeof(header));
    fill_texts(image, source);
    fill_tables(image, source, &codes);
    code = fill_merges(image, source, &codes, err);
    if (code != ERR_OK) {
        tok_image_free(image, header.image_bytes);
        goto out;
    }
    *out_image = image;
    *out_image_bytes = header.image_bytes;
out:
    mem_free(codes.ids);
    return code;
}

void tok_image_seal(unsigned char *image, const struct tok_source_key *key)
{
    struct tok_image_header *header = (void *)image;
    header->key = *key;
    header->checksum = tok_image_checksum(image, header->image_bytes);
}

enum err_code tok_source_compile(const char *text, size_t byte_count,
                                 const struct tok_source_key *key, struct tokenizer **out_tokenizer,
                                 struct err *err)
{
    struct tok_source source;
    unsigned char *image = NULL;
    size_t image_bytes = 0;
    enum err_code code = tok_source_parse(text, byte_count, &source, err);
    if (code != ERR_OK) {
        return code;
    }
    code = tok_image_build(&source, &image, &image_bytes, err);
    tok_source_fini(&source);
    if (code != ERR_OK) {
        return code;
    }
    assert(image != NULL);
    tok_image_seal(image, key);
    code = tok_image_open(image, image_bytes, out_tokenizer, err);
    if (code != ERR_OK) {
        tok_image_free(image, image_bytes);
    }
    return code;
}
