#include "frontend/tokenizer.h"

#include <string.h>

#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/tokenizer_bpe.h"
#include "frontend/tokenizer_image.h"

#define SPACE_MARK 0x2581U /* stands for U+0020 in the vocabulary */

void tok_ids_fini(struct tok_ids *ids)
{
    mem_free(ids->at);
    *ids = (struct tok_ids){0};
}

void tok_ids_push(struct tok_ids *ids, uint32_t id)
{
    if (ids->count == ids->cap) {
        ids->cap = ids->cap == 0 ? 64 : ids->cap * 2;
        ids->at = mem_realloc(ids->at, ids->cap, sizeof(*ids->at));
    }
    ids->at[ids->count++] = id;
}

void tok_destroy(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    tok_image_free(tokenizer->image, tokenizer->image_bytes);
    mem_free(tokenizer);
}

uint32_t tok_vocab_count(const struct tokenizer *tokenizer)
{
    return tokenizer->header->token_count;
}

const char *tok_bytes(const struct tokenizer *tokenizer, uint32_t id, uint32_t *out_byte_count)
{
    if (id >= tokenizer->header->token_count) {
        *out_byte_count = 0;
        return NULL;
    }
    *out_byte_count = tokenizer->decoded_start[id + 1] - tokenizer->decoded_start[id];
    return tokenizer->decoded + tokenizer->decoded_start[id];
}

static bool has_flag(const struct tokenizer *tokenizer, uint32_t id, enum tok_flag flag)
{
    return id < tokenizer->header->token_count && (tokenizer->flags[id] & flag) != 0;
}

bool tok_is_special(const struct tokenizer *tokenizer, uint32_t id)
{
    return has_flag(tokenizer, id, TOK_FLAG_SPECIAL);
}

bool tok_is_byte(const struct tokenizer *tokenizer, uint32_t id)
{
    return has_flag(tokenizer, id, TOK_FLAG_BYTE);
}

uint32_t tok_find_text(const struct tokenizer *tokenizer, const char *text, size_t byte_count)
{
    uint32_t mask = tokenizer->header->vocab_slot_count - 1;
    uint32_t index = (uint32_t)tok_hash_text(text, byte_count) & mask;
    for (;;) {
        uint32_t id = tokenizer->vocab_slots[index];
        if (id == TOK_NONE) {
            return TOK_NONE;
        }
        uint32_t start = tokenizer->text_start[id];
        if (tokenizer->text_start[id + 1] - start == byte_count &&
            memcmp(tokenizer->text + start, text, byte_count) == 0) {
            return id;
        }
        index = (index + 1) & mask;
    }
}

uint32_t tok_find(const struct tokenizer *tokenizer, const char *content)
{
    return tok_find_text(tokenizer, content, strlen(content));
}

uint64_t tok_file_hash(const struct tokenizer *tokenizer)
{
    return tokenizer->header->file_hash;
}

static uint32_t code_point_id(const struct tokenizer *tokenizer, uint32_t code_point)
{
    code_point = code_point == ' ' ? SPACE_MARK : code_point;
    return tokenizer->code_ids[tokenizer->code_pages[code_point / 256] * 256U + code_point % 256];
}

static void push_symbol(struct tok_bpe *bpe, uint32_t symbol, struct tok_ids *ids)
{
    if (bpe->symbol_count > 0 &&
        !tok_may_join(bpe->tokenizer, bpe->symbols[bpe->symbol_count - 1], symbol)) {
        tok_bpe_flush(bpe, ids);
    }
    tok_bpe_push(bpe, symbol);
}

/* Text without added tokens.  A border that no merge can span ends a segment: each is merged alone,
 * with the result of merging the whole. */
static void encode_plain(struct tok_bpe *bpe, const char *text, size_t byte_count,
                         struct tok_ids *ids)
{
    const struct tokenizer *tokenizer = bpe->tokenizer;
    size_t at = 0;
    while (at < byte_count) {
        unsigned char first = (unsigned char)text[at];
        uint32_t symbol = TOK_NONE;
        size_t symbol_bytes = 1;
        if (first < 128) {
            symbol = tokenizer->ascii_ids[first];
        } else {
            uint32_t code_point = 0;
            symbol_bytes = utf8_decode(text + at, byte_count - at, &code_point);
            if (symbol_bytes > 0) {
                symbol = code_point_id(tokenizer, code_point);
            } else {
                symbol_bytes = 1; /* malformed: each byte for itself */
            }
        }
        if (symbol != TOK_NONE) {
            push_symbol(bpe, symbol, ids);
        } else {
            /* Byte tokens take part in no merge. */
            tok_bpe_flush(bpe, ids);
            const char *bytes = first == ' ' ? "\xe2\x96\x81" : text + at;
            size_t bytes_count = first == ' ' ? 3 : symbol_bytes;
            for (size_t i = 0; i < bytes_count; i++) {
                tok_ids_push(ids, tokenizer->byte_ids[(unsigned char)bytes[i]]);
            }
        }
        at += symbol_bytes;
    }
    tok_bpe_flush(bpe, ids);
}

/* The added token that text begins with, the longest; TOK_NONE where there is none. */
static uint32_t added_at(const struct tokenizer *tokenizer, const char *text, size_t byte_count)
{
    unsigned char first = (unsigned char)text[0];
    for (uint32_t i = tokenizer->added_range[first]; i < tokenizer->added_range[first + 1]; i++) {
        uint32_t id = tokenizer->added[i];
        uint32_t start = tokenizer->text_start[id];
        uint32_t content_bytes = tokenizer->text_start[id + 1] - start;
        if (content_bytes <= byte_count &&
            memcmp(tokenizer->text + start, text, content_bytes) == 0) {
            return id;
        }
    }
    return TOK_NONE;
}

void tok_encode(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                enum tok_special special, struct tok_ids *ids)
{
    struct tok_bpe bpe;
    tok_bpe_init(&bpe, tokenizer);
    size_t plain_start = 0;
    size_t at = special == TOK_SPECIAL_PARSE ? 0 : byte_count;
    while (at < byte_count) {
        uint32_t id = added_at(tokenizer, text + at, byte_count - at);
        if (id == TOK_NONE) {
            at++;
            continue;
        }
        encode_plain(&bpe, text + plain_start, at - plain_start, ids);
        tok_ids_push(ids, id);
        at += tokenizer->text_start[id + 1] - tokenizer->text_start[id];
        plain_start = at;
    }
    encode_plain(&bpe, text + plain_start, byte_count - plain_start, ids);
    tok_bpe_fini(&bpe);
}
