/* Reads tokenizer.json: the description through the JSON tree, the two large members through the
 * scanner.  Every id is resolved and every reference checked here. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/tokenizer_source.h"
#include "proto/wire.h"

enum {
    SHOWN_MAX_BYTES = 40,
    ADDED_MAX_DEPTH = 8,
};

/* Extents of the members that matter; absent ones are null. */
struct layout {
    struct tok_scan_span rules[TOK_RULE_COUNT];
    struct tok_scan_span added_tokens;
    struct tok_scan_span model;
    struct tok_scan_span vocab;
    struct tok_scan_span merges;
};

struct layout_member {
    const char *name;
    struct tok_scan_span *span;
};

struct shown {
    char text[SHOWN_MAX_BYTES + 1];
};

/* The beginning of a text as a message can hold it: on one line, in whole characters. */
static struct shown show(const char *text, size_t byte_count)
{
    struct shown shown = {0};
    size_t count =
        byte_count <= SHOWN_MAX_BYTES ? byte_count : utf8_complete_prefix(text, SHOWN_MAX_BYTES);
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)text[i];
        shown.text[i] = c < 0x20 || c == 0x7f ? '?' : text[i];
    }
    return shown;
}

/* Walks one object and notes the extent of each listed member. */
static enum err_code walk_object(struct tok_scan *scan, const struct layout_member *members,
                                 size_t member_count, struct err *err)
{
    struct buf key;
    buf_init(&key);
    bool is_first = true;
    bool has_more = true;
    enum err_code code = tok_scan_open(scan, '{', err);
    while (code == ERR_OK) {
        code = tok_scan_next(scan, '}', &is_first, &has_more, err);
        if (code != ERR_OK || !has_more) {
            break;
        }
        struct tok_scan_span value = {0};
        code = tok_scan_key(scan, &key, err);
        code = code == ERR_OK ? tok_scan_skip(scan, &value, err) : code;
        for (size_t i = 0; i < member_count && code == ERR_OK; i++) {
            if (strlen(members[i].name) != key.used_bytes ||
                memcmp(members[i].name, key.at, key.used_bytes) != 0) {
                continue;
            }
            if (members[i].span->at != NULL) {
                code = err_set(err, ERR_FORMAT, "%s is there twice", members[i].name);
            }
            *members[i].span = value;
        }
    }
    buf_fini(&key);
    return code;
}

static enum err_code read_layout(const char *text, size_t byte_count, struct layout *layout,
                                 struct err *err)
{
    *layout = (struct layout){0};
    const struct layout_member top[] = {
        {"added_tokens", &layout->added_tokens},
        {"model", &layout->model},
        {"normalizer", &layout->rules[TOK_RULE_NORMALIZER]},
        {"pre_tokenizer", &layout->rules[TOK_RULE_PRE_TOKENIZER]},
        {"decoder", &layout->rules[TOK_RULE_DECODER]},
    };
    const struct layout_member model[] = {
        {"type", &layout->rules[TOK_RULE_MODEL_TYPE]},
        {"dropout", &layout->rules[TOK_RULE_DROPOUT]},
        {"continuing_subword_prefix", &layout->rules[TOK_RULE_PREFIX]},
        {"end_of_word_suffix", &layout->rules[TOK_RULE_SUFFIX]},
        {"byte_fallback", &layout->rules[TOK_RULE_BYTE_FALLBACK]},
        {"ignore_merges", &layout->rules[TOK_RULE_IGNORE_MERGES]},
        {"vocab", &layout->vocab},
        {"merges", &layout->merges},
    };
    struct tok_scan scan;
    tok_scan_init(&scan, text, byte_count);
    enum err_code code = walk_object(&scan, top, sizeof(top) / sizeof(top[0]), err);
    code = code == ERR_OK ? tok_scan_end(&scan, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    if (layout->model.at == NULL) {
        return err_set(err, ERR_FORMAT, "it has no member 'model'");
    }
    tok_scan_init(&scan, layout->model.at, layout->model.byte_count);
    code = walk_object(&scan, model, sizeof(model) / sizeof(model[0]), err);
    if (code != ERR_OK) {
        return err_wrap(err, "model");
    }
    return tok_rules_check(layout->rules, err);
}

/* Appends an entry; its id must be free. */
static enum err_code add_token(struct tok_source *source, uint32_t id, const char *text,
                               size_t byte_count, struct err *err)
{
    if (byte_count == 0) {
        return err_set(err, ERR_FORMAT, "token %u is empty", id);
    }
    if (id >= source->token_cap) {
        uint32_t cap = source->token_cap == 0 ? 4096 : source->token_cap;
        while (cap <= id) {
            cap *= 2;
        }
        uint32_t added = cap - source->token_cap;
        source->entries = mem_realloc(source->entries, cap, sizeof(*source->entries));
        source->flags = mem_realloc(source->flags, cap, sizeof(*source->flags));
        memset(source->entries + source->token_cap, 0, added * sizeof(*source->entries));
        memset(source->flags + source->token_cap, 0, added * sizeof(*source->flags));
        source->token_cap = cap;
    }
    if (source->entries[id].byte_count != 0) {
        const struct tok_entry *other = &source->entries[id];
        return err_set(err, ERR_FORMAT, "id %u belongs to '%s' and to '%s'", id,
                       show(source->text.at + other->start, other->byte_count).text,
                       show(text, byte_count).text);
    }
    source->entries[id].start = (uint32_t)source->text.used_bytes; /* a file is below 4 GiB */
    source->entries[id].byte_count = (uint32_t)byte_count;
    buf_append(&source->text, text, byte_count);
    source->token_count = id >= source->token_count ? id + 1 : source->token_count;
    return ERR_OK;
}

static enum err_code read_vocab(struct tok_source *source, const struct tok_scan_span *span,
                                struct err *err)
{
    if (span->at == NULL) {
        return err_set(err, ERR_FORMAT, "it is missing");
    }
    struct buf text;
    buf_init(&text);
    struct tok_scan scan;
    tok_scan_init(&scan, span->at, span->byte_count);
    bool is_first = true;
    bool has_more = true;
    enum err_code code = tok_scan_open(&scan, '{', err);
    while (code == ERR_OK) {
        code = tok_scan_next(&scan, '}', &is_first, &has_more, err);
        if (code != ERR_OK || !has_more) {
            break;
        }
        uint32_t id = 0;
        code = tok_scan_key(&scan, &text, err);
        code = code == ERR_OK ? tok_scan_u32(&scan, TOK_MAX_TOKENS - 1, &id, err) : code;
        code = code == ERR_OK ? add_token(source, id, text.at, text.used_bytes, err) : code;
    }
    buf_fini(&text);
    return code;
}

static enum err_code add_added_token(struct tok_source *source, const struct json_t *entry,
                                     size_t index, struct err *err)
{
    struct tok_added added = {0};
    enum err_code code = tok_rules_added(entry, index, &added, err);
    if (code != ERR_OK) {
        return code;
    }
    uint32_t id = added.id;
    bool is_same =
        id < source->token_count && source->entries[id].byte_count == added.content_bytes &&
        memcmp(source->text.at + source->entries[id].start, added.content, added.content_bytes) ==
            0;
    if (!is_same) {
        code = add_token(source, id, added.content, added.content_bytes, err);
        if (code != ERR_OK) {
            return code;
        }
    }
    if ((source->flags[id] & TOK_FLAG_ADDED) != 0) {
        return err_set(err, ERR_FORMAT, "added_tokens[%zu] has id %u again", index, id);
    }
    source->flags[id] |= (uint8_t)(TOK_FLAG_ADDED | (added.is_special ? TOK_FLAG_SPECIAL : 0));
    return ERR_OK;
}

static enum err_code read_added(struct tok_source *source, const struct tok_scan_span *span,
                                struct err *err)
{
    if (span->at == NULL) {
        return ERR_OK;
    }
    struct json_t *entries = NULL;
    enum err_code code = json_parse(span->at, span->byte_count, ADDED_MAX_DEPTH, &entries, err);
    if (code != ERR_OK) {
        return err_wrap(err, "added_tokens");
    }
    size_t count = json_count(entries);
    if (json_kind(entries) != JSON_KIND_ARRAY) {
        code = err_set(err, ERR_FORMAT, "added_tokens is %s, not an array",
                       json_kind_text(json_kind(entries)));
    } else if (count > TOK_MAX_ADDED) {
        code = err_set(err, ERR_LIMIT, "%zu added tokens, at most %u", count, TOK_MAX_ADDED);
    }
    for (size_t i = 0; i < count && code == ERR_OK; i++) {
        code = add_added_token(source, json_element(entries, i), i, err);
    }
    json_release(entries);
    return code;
}

/* The slot of a content, or the free one where it would go. */
static struct tok_vocab_slot *vocab_slot(const struct tok_source *source, const char *text,
                                         size_t byte_count, uint64_t hash)
{
    uint32_t mask = source->vocab_slot_count - 1;
    uint32_t tag = (uint32_t)(hash >> 32);
    for (uint32_t index = (uint32_t)hash & mask;; index = (index + 1) & mask) {
        struct tok_vocab_slot *slot = &source->vocab_slots[index];
        if (slot->id == TOK_NONE) {
            return slot;
        }
        const struct tok_entry *entry = &source->entries[slot->id];
        if (slot->tag == tag && entry->byte_count == byte_count &&
            memcmp(source->text.at + entry->start, text, byte_count) == 0) {
            return slot;
        }
    }
}

uint32_t tok_source_find(const struct tok_source *source, const char *text, size_t byte_count)
{
    return vocab_slot(source, text, byte_count, tok_hash_text(text, byte_count))->id;
}

/* No holes among the ids, no content twice; fills the hash of contents. */
static enum err_code index_vocab(struct tok_source *source, struct err *err)
{
    source->vocab_slot_count = 2;
    while (source->vocab_slot_count < 2 * source->token_count) {
        source->vocab_slot_count *= 2;
    }
    source->vocab_slots = mem_realloc(NULL, source->vocab_slot_count, sizeof(*source->vocab_slots));
    memset(source->vocab_slots, 0xff, source->vocab_slot_count * sizeof(*source->vocab_slots));
    for (uint32_t id = 0; id < source->token_count; id++) {
        const char *text = source->text.at + source->entries[id].start;
        uint32_t byte_count = source->entries[id].byte_count;
        if (byte_count == 0) {
            return err_set(err, ERR_FORMAT, "no token has id %u, the last is %u", id,
                           source->token_count - 1);
        }
        uint64_t hash = tok_hash_text(text, byte_count);
        struct tok_vocab_slot *slot = vocab_slot(source, text, byte_count, hash);
        if (slot->id != TOK_NONE) {
            return err_set(err, ERR_FORMAT, "'%s' has the ids %u and %u",
                           show(text, byte_count).text, slot->id, id);
        }
        *slot = (struct tok_vocab_slot){.tag = (uint32_t)(hash >> 32), .id = id};
    }
    return ERR_OK;
}

static enum err_code flag_byte_tokens(struct tok_source *source, struct err *err)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        char name[8] = "<0x00>";
        static const char digits[] = "0123456789ABCDEF";
        name[3] = digits[byte / 16];
        name[4] = digits[byte % 16];
        uint32_t id = tok_source_find(source, name, 6);
        if (id == TOK_NONE) {
            return err_set(err, ERR_UNSUPPORTED, "the vocabulary lacks the byte token %s", name);
        }
        if ((source->flags[id] & TOK_FLAG_ADDED) != 0) {
            return err_set(err, ERR_UNSUPPORTED, "the byte token %s is an added token", name);
        }
        source->flags[id] |= TOK_FLAG_BYTE;
    }
    return ERR_OK;
}

/* One side or the result of a merge. */
static enum err_code merge_id(const struct tok_source *source, const char *text, size_t byte_count,
                              uint8_t refused_flags, uint32_t *out_id, struct err *err)
{
    uint32_t id = tok_source_find(source, text, byte_count);
    if (id == TOK_NONE) {
        return err_set(err, ERR_FORMAT, "merge %u: '%s' is not in the vocabulary",
                       source->merge_count, show(text, byte_count).text);
    }
    if ((source->flags[id] & refused_flags) != 0) {
        return err_set(err, ERR_UNSUPPORTED, "merge %u: '%s' is a special or byte token",
                       source->merge_count, show(text, byte_count).text);
    }
    *out_id = id;
    return ERR_OK;
}

/* pair holds both sides without a border; the left one has left_bytes. */
static enum err_code add_merge(struct tok_source *source, const struct buf *pair, size_t left_bytes,
                               struct err *err)
{
    if (source->merge_count == TOK_MAX_MERGES) {
        return err_set(err, ERR_LIMIT, "more than %u merges", TOK_MAX_MERGES);
    }
    /* A special token made by merging could be forged from ordinary text; a byte token is one byte
     * and nothing else. */
    const uint8_t refused = TOK_FLAG_BYTE | TOK_FLAG_SPECIAL;
    uint32_t ids[3] = {0};
    enum err_code code = merge_id(source, pair->at, left_bytes, refused, &ids[0], err);
    code = code == ERR_OK ? merge_id(source, pair->at + left_bytes, pair->used_bytes - left_bytes,
                                     refused, &ids[1], err)
                          : code;
    code =
        code == ERR_OK ? merge_id(source, pair->at, pair->used_bytes, refused, &ids[2], err) : code;
    if (code != ERR_OK) {
        return code;
    }
    if (source->merge_count == source->merge_cap) {
        source->merge_cap = source->merge_cap == 0 ? 4096 : source->merge_cap * 2;
        source->merges = mem_realloc(source->merges, source->merge_cap, sizeof(ids));
    }
    memcpy(source->merges + 3 * (size_t)source->merge_count, ids, sizeof(ids));
    source->merge_count++;
    return ERR_OK;
}

/* "a b", or ["a", "b"] where a side holds a space; gives both sides joined. */
static enum err_code read_merge(struct tok_scan *scan, uint32_t index, struct buf *pair,
                                struct buf *right, size_t *out_left_bytes, struct err *err)
{
    if (tok_scan_peek(scan) == '"') {
        enum err_code code = tok_scan_text(scan, pair, err);
        if (code != ERR_OK) {
            return code;
        }
        char *space = pair->used_bytes == 0 ? NULL : memchr(pair->at, ' ', pair->used_bytes);
        if (space == NULL ||
            memchr(space + 1, ' ', pair->used_bytes - (size_t)(space + 1 - pair->at)) != NULL) {
            return err_set(err, ERR_FORMAT, "merge %u is not two words", index);
        }
        *out_left_bytes = (size_t)(space - pair->at);
        memmove(space, space + 1, pair->used_bytes - *out_left_bytes - 1);
        pair->used_bytes--;
        return ERR_OK;
    }
    bool is_first = true;
    bool has_left = false;
    bool has_right = false;
    bool has_more = true;
    enum err_code code = tok_scan_open(scan, '[', err);
    code = code == ERR_OK ? tok_scan_next(scan, ']', &is_first, &has_left, err) : code;
    code = code == ERR_OK && has_left ? tok_scan_text(scan, pair, err) : code;
    code = code == ERR_OK && has_left ? tok_scan_next(scan, ']', &is_first, &has_right, err) : code;
    code = code == ERR_OK && has_right ? tok_scan_text(scan, right, err) : code;
    code = code == ERR_OK && has_right ? tok_scan_next(scan, ']', &is_first, &has_more, err) : code;
    if (code != ERR_OK) {
        return code;
    }
    if (!has_right || has_more) {
        return err_set(err, ERR_FORMAT, "merge %u is not a pair", index);
    }
    *out_left_bytes = pair->used_bytes;
    buf_append(pair, buf_text(right), right->used_bytes);
    return ERR_OK;
}

static enum err_code read_merges(struct tok_source *source, const struct tok_scan_span *span,
                                 struct err *err)
{
    if (span->at == NULL) {
        return err_set(err, ERR_FORMAT, "it is missing");
    }
    struct buf pair;
    struct buf right;
    buf_init(&pair);
    buf_init(&right);
    struct tok_scan scan;
    tok_scan_init(&scan, span->at, span->byte_count);
    bool is_first = true;
    bool has_more = true;
    enum err_code code = tok_scan_open(&scan, '[', err);
    while (code == ERR_OK) {
        code = tok_scan_next(&scan, ']', &is_first, &has_more, err);
        if (code != ERR_OK || !has_more) {
            break;
        }
        size_t left_bytes = 0;
        code = read_merge(&scan, source->merge_count, &pair, &right, &left_bytes, err);
        code = code == ERR_OK ? add_merge(source, &pair, left_bytes, err) : code;
    }
    buf_fini(&right);
    buf_fini(&pair);
    return code;
}

void tok_source_fini(struct tok_source *source)
{
    buf_fini(&source->text);
    mem_free(source->entries);
    mem_free(source->flags);
    mem_free(source->vocab_slots);
    mem_free(source->merges);
    *source = (struct tok_source){0};
}

enum err_code tok_source_parse(const char *text, size_t byte_count, struct tok_source *source,
                               struct err *err)
{
    *source = (struct tok_source){.file_hash = wire_hash_bytes(WIRE_HASH_SEED, text, byte_count)};
    struct layout layout;
    enum err_code code = read_layout(text, byte_count, &layout, err);
    if (code != ERR_OK) {
        return code;
    }
    code = read_vocab(source, &layout.vocab, err);
    if (code != ERR_OK) {
        code = err_wrap(err, "model.vocab");
        goto out;
    }
    code = read_added(source, &layout.added_tokens, err);
    code = code == ERR_OK ? index_vocab(source, err) : code;
    code = code == ERR_OK ? flag_byte_tokens(source, err) : code;
    if (code != ERR_OK) {
        goto out;
    }
    code = read_merges(source, &layout.merges, err);
    if (code != ERR_OK) {
        code = err_wrap(err, "model.merges");
    }
out:
    if (code != ERR_OK) {
        tok_source_fini(source);
    }
    return code;
}
