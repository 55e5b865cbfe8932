/* Gemma 4's tokenizer: byte-fallback BPE over the whole text between added tokens.
 *
 * Loaded once, then read-only: any thread may encode.  Source: tokenizer.json. */
#ifndef FRONTEND_TOKENIZER_H
#define FRONTEND_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#define TOK_NONE 0xffffffffU

struct tokenizer;

struct tok_ids {
    uint32_t *at; /* owned; grown by tok_encode */
    size_t count;
    size_t cap;
};
void tok_ids_fini(struct tok_ids *ids);
void tok_ids_push(struct tok_ids *ids, uint32_t id);

/* Reads path, a tokenizer.json, or its verified compiled cache in cache_dir (null: no cache; a
 * cache that cannot be written is not an error).  Errors: ERR_NOT_FOUND (no file), ERR_FORMAT,
 * ERR_UNSUPPORTED (another model than Gemma's BPE). */
ERR_NODISCARD enum err_code tok_load(const char *path, const char *cache_dir,
                                     struct tokenizer **out_tokenizer, struct err *err);
void tok_destroy(struct tokenizer *tokenizer);

enum tok_special {
    TOK_SPECIAL_AS_TEXT, /* added tokens' strings are ordinary text: user content */
    TOK_SPECIAL_PARSE, /* they become their ids: whole rendered prompts of tests and raw callers */
};

/* Appends ids of text to *ids.  text need not be zero-terminated; bytes that are not UTF-8 become
 * byte tokens.  Near-linear in byte_count; a run that no border of words ends takes some 8 bytes of
 * memory per character, 60 where merging finds no border in it either.  Nothing is prepended.  With AS_TEXT no special id comes out, whatever the text. */
void tok_encode(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                enum tok_special special, struct tok_ids *ids);

uint32_t tok_vocab_count(const struct tokenizer *tokenizer);

/* Bytes a token stands for after decoding (U+2581 is a space, <0xNN> one byte); special tokens give
 * their own string.  Null for an unknown id. */
const char *tok_bytes(const struct tokenizer *tokenizer, uint32_t id, uint32_t *out_byte_count);
bool tok_is_special(const struct tokenizer *tokenizer, uint32_t id);

/* True for <0xNN>: a run of them that is not UTF-8 decodes to one U+FFFD per token. */
bool tok_is_byte(const struct tokenizer *tokenizer, uint32_t id);

/* Id of an exact vocabulary entry ("<bos>", "<|turn>"), TOK_NONE where there is none. */
uint32_t tok_find(const struct tokenizer *tokenizer, const char *content);

/* FNV-1a of the file's bytes; equals the worker's tokenizer_hash. */
uint64_t tok_file_hash(const struct tokenizer *tokenizer);

#endif
