/* Shared by grammar_regex.c (into the network), grammar_regex_parse.c and grammar_regex_class.c:
 * an expression as an automaton over code points. */
#ifndef FRONTEND_GRAMMAR_REGEX_INTERNAL_H
#define FRONTEND_GRAMMAR_REGEX_INTERNAL_H

#include "frontend/grammar_regex.h"

#define REGEX_LAST_CHAR 0x10ffffU

enum regex_edge_kind {
    REGEX_EDGE_NOTHING,
    REGEX_EDGE_CHARS, /* one of the ranges [first, first + count) */
    REGEX_EDGE_BEGIN, /* only before the first character */
    REGEX_EDGE_END,   /* no character follows */
};

struct regex_edge {
    enum regex_edge_kind kind;
    uint32_t to;
    uint32_t first_range;
    uint32_t range_count;
    uint32_t next; /* of the same node; UINT32_MAX none */
};

struct regex_range {
    uint32_t lo;
    uint32_t hi;
};

struct regex {
    const char *at; /* the pattern */
    size_t byte_count;
    size_t used_bytes;
    uint32_t depth;
    uint32_t *first_edge; /* owned, [node_count] */
    uint32_t node_count;
    uint32_t node_cap;
    struct regex_edge *edges; /* owned */
    uint32_t edge_count;
    uint32_t edge_cap;
    struct regex_range *ranges; /* owned */
    uint32_t range_count;
    uint32_t range_cap;
    struct err *err; /* borrowed */
};

uint32_t regex_node(struct regex *regex);
void regex_edge(struct regex *regex, uint32_t from, const struct regex_edge *edge);
void regex_add_range(struct regex *regex, uint32_t lo, uint32_t hi);

/* Everything but the ranges from first on, in their place. */
void regex_invert(struct regex *regex, uint32_t first);

enum err_code regex_fail(struct regex *regex, enum err_code code, const char *what);

/* The pattern's next character. */
ERR_NODISCARD enum err_code regex_take_char(struct regex *regex, uint32_t *out_char);

/* A class in brackets, behind its '['; or the escape behind a '\'.  Appends its ranges. */
ERR_NODISCARD enum err_code regex_parse_class(struct regex *regex);
ERR_NODISCARD enum err_code regex_parse_escape(struct regex *regex, bool is_in_class);

/* The whole pattern between *out_from and *out_to. */
ERR_NODISCARD enum err_code regex_parse(struct regex *regex, uint32_t *out_from, uint32_t *out_to);

#endif
