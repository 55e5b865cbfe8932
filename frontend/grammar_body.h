/* A run of characters as one step of a grammar: the inside of a string, or a free key.
 *
 * Its place is packed into 64 bits, so that a run of any length takes one node.  Characters are well
 * formed UTF-8; an escape counts as the one character that it stands for, and half surrogate pairs
 * cannot be written.  A body may exclude names: it cannot end where all of it is one of them.
 * Read-only once built: any thread. */
#ifndef FRONTEND_GRAMMAR_BODY_H
#define FRONTEND_GRAMMAR_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BODY_ANY   UINT32_MAX /* max_chars: no bound */
#define BODY_LIMIT 0x0fffffffU

enum body_kind {
    BODY_JSON,  /* between a JSON string's quotes; escapes allowed unless names are excluded */
    BODY_PLAIN, /* between a tool call's quote markers: no escapes; of controls \n and \t */
    BODY_NAME,  /* letters, digits, '_' */
    BODY_KINDS
};

/* Names as a trie; node 0 is no node. */
struct body_name {
    uint8_t byte;
    bool is_whole;
    uint32_t child;
    uint32_t sibling;
};

struct body_names {
    struct body_name *nodes; /* owned */
    uint32_t count;
    uint32_t cap;
};

struct body {
    enum body_kind kind;
    uint32_t min_chars;
    uint32_t max_chars; /* BODY_ANY: no bound */
    uint32_t names;     /* root of the excluded ones; 0: none */
};

#define BODY_DEAD UINT64_MAX

void body_names_fini(struct body_names *names);
/* A new, empty root. */
uint32_t body_names_root(struct body_names *names);
void body_names_add(struct body_names *names, uint32_t root, const char *text, size_t byte_count);
uint32_t body_name_child(const struct body_names *names, uint32_t node, uint8_t byte);

uint64_t body_start(const struct body *body);

/* Behind one more byte; BODY_DEAD where it cannot follow. */
uint64_t body_next(const struct body *body, const struct body_names *names, uint64_t place,
                   uint8_t byte);
bool body_can_end(const struct body *body, const struct body_names *names, uint64_t place);

/* Parts of a place. */
bool body_is_at_char(uint64_t place);  /* not inside a character */
uint32_t body_chars(uint64_t place);   /* counted so far; stops at min_chars without a max */
uint32_t body_name_at(uint64_t place); /* node of the excluded names; 0: it is none of them */
uint64_t body_skip(const struct body *body, uint64_t place, uint32_t char_count);

/* Whether text is whole characters that the kind takes without an escape; *out_chars is then their
 * number, else *out_chars and *out_bytes say how far that holds. */
bool body_is_plain(enum body_kind kind, const char *text, size_t byte_count, uint32_t *out_chars,
                   size_t *out_bytes);

#endif
