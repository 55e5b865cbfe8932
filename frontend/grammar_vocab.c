#include "frontend/grammar_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

/* One token while tries are made. */
struct entry {
    const char *at; /* borrowed from the tokenizer */
    uint32_t byte_count;
    uint32_t id;
    uint32_t chars;
};

static int compare_entries(const void *a, const void *b)
{
    const struct entry *left = a;
    const struct entry *right = b;
    uint32_t shared = left->byte_count < right->byte_count ? left->byte_count : right->byte_count;
    int order = memcmp(left->at, right->at, shared);
    if (order == 0 && left->byte_count != right->byte_count) {
        order = left->byte_count < right->byte_count ? -1 : 1;
    }
    if (order == 0 && left->chars != right->chars) {
        order = left->chars < right->chars ? -1 : 1;
    }
    return order != 0 ? order : (left->id > right->id) - (left->id < right->id);
}

static uint32_t shared_bytes(const struct entry *a, const struct entry *b)
{
    uint32_t count = 0;
    while (count < a->byte_count && count < b->byte_count && a->at[count] == b->at[count]) {
        count++;
    }
    return count;
}

static uint32_t count_nodes(const struct entry *entries, uint32_t count)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < count; i++) {
        nodes += entries[i].byte_count - (i > 0 ? shared_bytes(&entries[i - 1], &entries[i]) : 0);
    }
    return nodes;
}

/* Sorts entries; each has at least one byte. */
static void make_trie(struct entry *entries, uint32_t count, struct vocab_trie *trie)
{
    uint32_t open[VOCAB_MAX_TOKEN_BYTES + 1] = {0}; /* nodes of the present path */
    uint32_t depth = 0;
    qsort(entries, count, sizeof(entries[0]), compare_entries);
    trie->nodes = mem_zalloc((size_t)count_nodes(entries, count) + 1, sizeof(trie->nodes[0]));
    trie->tokens = mem_zalloc((size_t)count + 1, sizeof(trie->tokens[0]));
    for (uint32_t i = 0; i < count; i++) {
        const struct entry *entry = &entries[i];
        uint32_t shared = i > 0 ? shared_bytes(&entries[i - 1], entry) : 0;
        for (; depth > shared; depth--) {
            trie->nodes[open[depth - 1]].skip = trie->node_count;
        }
        for (; depth < entry->byte_count; depth++) {
            open[depth] = trie->node_count;
            trie->nodes[trie->node_count++] = (struct vocab_node){
                .byte = (uint8_t)entry->at[depth], .depth = (uint8_t)(depth + 1), .first_token = i};
        }
        trie->max_depth = depth > trie->max_depth ? depth : trie->max_depth;
        trie->nodes[open[depth - 1]].token_count++;
        trie->tokens[trie->token_count++] =
            (struct vocab_token){.id = entry->id, .chars = entry->chars};
        trie->max_chars = entry->chars > trie->max_chars ? entry->chars : trie->max_chars;
    }
    for (; depth > 0; depth--) {
        trie->nodes[open[depth - 1]].skip = trie->node_count;
    }
}

/* "<unused12>" and "[multimodal]" are entries like any other, but no text. */
static bool is_reserved(const char *text, uint32_t byte_count)
{
    static const char unused[] = "<unused";
    static const char modal[] = "[multimodal]";
    return (byte_count > sizeof(unused) && memcmp(text, unused, sizeof(unused) - 1) == 0 &&
            text[byte_count - 1] == '>') ||
           (byte_count == sizeof(modal) - 1 && memcmp(text, modal, byte_count) == 0);
}

static uint32_t list_tokens(const struct tokenizer *tokenizer, struct entry *out_entries)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < tok_vocab_count(tokenizer); id++) {
        struct entry entry = {.id = id};
        entry.at = tok_bytes(tokenizer, id, &entry.byte_count);
        if (entry.at != NULL && entry.byte_count > 0 && !tok_is_special(tokenizer, id) &&
            entry.byte_count <= VOCAB_MAX_TOKEN_BYTES && !is_reserved(entry.at, entry.byte_count)) {
            out_entries[count++] = entry;
        }
    }
    return count;
}

static void set_bit(uint32_t *words, uint32_t id)
{
    words[id / 32] |= 1U << id % 32;
}

static void make_body(struct vocab *vocab, enum body_kind kind, const struct entry *all,
                      uint32_t count, struct entry *scratch)
{
    uint32_t rest_count = 0;
    uint32_t max_chars = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t chars;
        size_t plain_bytes;
        if (body_is_plain(kind, all[i].at, all[i].byte_count, &chars, &plain_bytes)) {
            max_chars = chars > max_chars ? chars : max_chars;
            continue;
        }
        scratch[rest_count++] =
            (struct entry){.at = all[i].at + plain_bytes,
                           .byte_count = all[i].byte_count - (uint32_t)plain_bytes,
                           .id = all[i].id,
                           .chars = chars};
    }
    uint32_t words = vocab->words;
    uint32_t *plain = mem_zalloc((size_t)(max_chars + 1) * words, sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t chars;
        size_t plain_bytes;
        if (body_is_plain(kind, all[i].at, all[i].byte_count, &chars, &plain_bytes)) {
            set_bit(plain + (size_t)chars * words, all[i].id);
        }
    }
    for (size_t i = words; i < (size_t)(max_chars + 1) * words; i++) {
        plain[i] |= plain[i - words];
    }
    vocab->bodies[kind].plain = plain;
    vocab->bodies[kind].max_chars = max_chars;
    make_trie(scratch, rest_count, &vocab->bodies[kind].rest);
    vocab->bytes += (size_t)(max_chars + 1) * words * sizeof(uint32_t);
}

static size_t trie_bytes(const struct vocab_trie *trie)
{
    return trie->node_count * sizeof(trie->nodes[0]) + trie->token_count * sizeof(trie->tokens[0]);
}

struct vocab *vocab_create(const struct tokenizer *tokenizer)
{
    struct vocab *vocab = mem_zalloc(1, sizeof(*vocab));
    vocab->token_count = tok_vocab_count(tokenizer);
    vocab->words = (vocab->token_count + 31) / 32;
    struct entry *entries = mem_zalloc((size_t)vocab->token_count + 1, sizeof(entries[0]));
    struct entry *scratch = mem_zalloc((size_t)vocab->token_count + 1, sizeof(scratch[0]));
    uint32_t count = list_tokens(tokenizer, entries);
    vocab->text = mem_zalloc(vocab->words, sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        set_bit(vocab->text, entries[i].id);
    }
    make_trie(entries, count, &vocab->all);
    vocab->bytes = trie_bytes(&vocab->all);
    for (uint32_t kind = 0; kind < BODY_KINDS; kind++) {
        make_body(vocab, (enum body_kind)kind, entries, count, scratch);
        vocab->bytes += trie_bytes(&vocab->bodies[kind].rest);
    }
    mem_free(entries);
    mem_free(scratch);
    return vocab;
}

static void trie_fini(struct vocab_trie *trie)
{
    mem_free(trie->nodes);
    mem_free(trie->tokens);
}

void vocab_destroy(struct vocab *vocab)
{
    if (vocab == NULL) {
        return;
    }
    mem_free(vocab->text);
    trie_fini(&vocab->all);
    for (uint32_t kind = 0; kind < BODY_KINDS; kind++) {
        trie_fini(&vocab->bodies[kind].rest);
        mem_free(vocab->bodies[kind].plain);
    }
    mem_free(vocab);
}
