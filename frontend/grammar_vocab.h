/* The vocabulary as grammars see it: tokens sorted by their bytes, as tries walked front to back.
 *
 * Special tokens and those without bytes are left out: a grammar reaches special tokens by markers
 * alone.  For each kind of body there are the sets of tokens that are nothing but its characters, by
 * number of characters, and a trie of the rest of the other tokens from where that ends.  Built once
 * for a tokenizer, then read-only: any thread. */
#ifndef FRONTEND_GRAMMAR_VOCAB_H
#define FRONTEND_GRAMMAR_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frontend/grammar_body.h"
#include "frontend/tokenizer.h"

/* Nodes in preorder; the root is left out, so those of depth 1 come first. */
struct vocab_node {
    uint8_t byte;
    uint8_t depth;        /* 1 for a first byte */
    uint16_t token_count; /* that end here */
    uint32_t skip;        /* the first node behind all below this one */
    uint32_t first_token; /* index into tokens; those below follow those here */
};

struct vocab_token {
    uint32_t id;
    uint32_t chars; /* body tries: characters before the trie's bytes begin */
};

struct vocab_trie {
    struct vocab_node *nodes; /* owned */
    uint32_t node_count;
    struct vocab_token *tokens; /* owned */
    uint32_t token_count;
    uint32_t max_chars; /* of tokens[].chars */
    uint32_t max_depth; /* of nodes[].depth */
};

/* Longer tokens are in no trie: they are never allowed. */
#define VOCAB_MAX_TOKEN_BYTES 250U

struct vocab {
    uint32_t token_count; /* ids below it */
    uint32_t words;       /* of a mask of them */
    uint32_t *text;       /* owned, [words]: all that are no special tokens */
    struct vocab_trie all;
    struct {
        struct vocab_trie rest;
        uint32_t max_chars; /* of the plain tokens */
        uint32_t *plain; /* owned, [max_chars + 1, words]: tokens of at most so many characters */
    } bodies[BODY_KINDS];
    size_t bytes;
};

struct vocab *vocab_create(const struct tokenizer *tokenizer);
void vocab_destroy(struct vocab *vocab);

#endif
