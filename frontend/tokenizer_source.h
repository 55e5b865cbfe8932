/* What a tokenizer.json says, on its way from the file's bytes to an image. */
#ifndef FRONTEND_TOKENIZER_SOURCE_H
#define FRONTEND_TOKENIZER_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "frontend/tokenizer_image.h"
#include "frontend/tokenizer_scan.h"

struct tok_entry {
    uint32_t start; /* of its content in the text of all */
    uint32_t byte_count;
};

struct tok_vocab_slot {
    uint32_t tag; /* upper half of the content's hash: spares a look at most other entries */
    uint32_t id;  /* TOK_NONE: free */
};

/* What tokenizer.json says, resolved to ids. */
struct tok_source {
    struct buf text;
    struct tok_entry *entries; /* [token_cap] */
    uint8_t *flags;            /* [token_cap], enum tok_flag */
    uint32_t token_count;
    uint32_t token_cap;
    struct tok_vocab_slot *vocab_slots; /* [vocab_slot_count] by hash of the content */
    uint32_t vocab_slot_count;
    uint32_t *merges; /* [merge_count][3]: left, right, result; the index is the rank */
    uint32_t merge_count;
    uint32_t merge_cap;
    uint64_t file_hash;
};

/* tokenizer_load.c: parses the bytes of a tokenizer.json.  *source is filled or left empty. */
ERR_NODISCARD enum err_code tok_source_parse(const char *text, size_t byte_count,
                                             struct tok_source *source, struct err *err);
void tok_source_fini(struct tok_source *source);
uint32_t tok_source_find(const struct tok_source *source, const char *text, size_t byte_count);

/* tokenizer_rules.c: refuses descriptions of another algorithm, naming what was found. */
enum tok_rule {
    TOK_RULE_NORMALIZER,
    TOK_RULE_PRE_TOKENIZER,
    TOK_RULE_DECODER,
    TOK_RULE_MODEL_TYPE,
    TOK_RULE_DROPOUT,
    TOK_RULE_PREFIX,
    TOK_RULE_SUFFIX,
    TOK_RULE_BYTE_FALLBACK,
    TOK_RULE_IGNORE_MERGES,
    TOK_RULE_COUNT
};
ERR_NODISCARD enum err_code tok_rules_check(const struct tok_scan_span values[TOK_RULE_COUNT],
                                            struct err *err);
struct tok_added {
    uint32_t id;
    const char *content; /* borrowed from the entry */
    size_t content_bytes;
    bool is_special;
};
/* One entry of added_tokens. */
struct json_t;
ERR_NODISCARD enum err_code tok_rules_added(const struct json_t *entry, size_t index,
                                            struct tok_added *out_added, struct err *err);

/* tokenizer_image.c.  The image lacks its key; seal it with tok_image_seal. */
ERR_NODISCARD enum err_code tok_image_build(const struct tok_source *source,
                                            unsigned char **out_image, size_t *out_image_bytes,
                                            struct err *err);

/* Parse, build, seal, open.  key is kept for tok_cache_read. */
ERR_NODISCARD enum err_code tok_source_compile(const char *text, size_t byte_count,
                                               const struct tok_source_key *key,
                                               struct tokenizer **out_tokenizer, struct err *err);

#endif
