#include "frontend/grammar_mask.h"

#include <stdbool.h>
#include <string.h>

/* Every token that is accepted, whatever stands before it. */
#define ANY_CHARS UINT32_MAX

struct filler {
    struct automaton *automaton;
    const struct vocab *vocab;
    uint32_t *words;
};

static void set_bit(uint32_t *words, uint32_t id)
{
    words[id / 32] |= 1U << id % 32;
}

static void take_tokens(uint32_t *words, const struct vocab_trie *trie,
                        const struct vocab_node *node, uint32_t chars)
{
    const struct vocab_token *tokens = trie->tokens + node->first_token;
    for (uint32_t i = 0; i < node->token_count; i++) {
        if (chars == ANY_CHARS || tokens[i].chars == chars) {
            set_bit(words, tokens[i].id);
        }
    }
}

/* Nodes [first, end) from a state before the byte of depth base + 1. */
static void walk(const struct filler *filler, const struct vocab_trie *trie, uint32_t first,
                 uint32_t end, uint32_t state, uint32_t chars)
{
    uint32_t states[VOCAB_MAX_TOKEN_BYTES + 2];
    if (first >= end || state == AUTO_DEAD) {
        return;
    }
    uint32_t base = trie->nodes[first].depth - 1U;
    states[0] = state;
    for (uint32_t i = first; i < end;) {
        const struct vocab_node *node = &trie->nodes[i];
        uint32_t depth = node->depth - base;
        uint32_t next = auto_next(filler->automaton, states[depth - 1], node->byte);
        if (next == AUTO_DEAD) {
            i = node->skip;
            continue;
        }
        states[depth] = next;
        take_tokens(filler->words, trie, node, chars);
        i++;
    }
}

static void walk_all(const struct filler *filler, uint32_t state)
{
    const struct vocab_trie *trie = &filler->vocab->all;
    walk(filler, trie, 0, trie->node_count, state, ANY_CHARS);
}

static void clear_below(const struct filler *filler, uint32_t first, uint32_t end)
{
    const struct vocab_trie *trie = &filler->vocab->all;
    for (uint32_t i = first; i < end; i++) {
        const struct vocab_node *node = &trie->nodes[i];
        for (uint32_t t = 0; t < node->token_count; t++) {
            uint32_t id = trie->tokens[node->first_token + t].id;
            filler->words[id / 32] &= ~(1U << id % 32);
        }
    }
}

/* Of nodes [first, end), all of one parent and below, the one with this byte; end where there is
 * none. */
static uint32_t find_child(const struct vocab_trie *trie, uint32_t first, uint32_t end,
                           uint8_t byte)
{
    while (first < end && trie->nodes[first].byte < byte) {
        first = trie->nodes[first].skip;
    }
    return first < end && trie->nodes[first].byte == byte ? first : end;
}

/* Where an excluded name would be whole, what follows is judged exactly; nodes [first, end) are those
 * behind the part of it that is here. */
static void correct_names(const struct filler *filler, uint32_t name, uint32_t first, uint32_t end,
                          uint32_t state)
{
    const struct body_names *names = &filler->automaton->net->names;
    const struct vocab_trie *trie = &filler->vocab->all;
    if (first >= end || state == AUTO_DEAD) {
        return;
    }
    if (names->nodes[name].is_whole) {
        clear_below(filler, first, end);
        walk(filler, trie, first, end, state, ANY_CHARS);
        return;
    }
    for (uint32_t child = names->nodes[name].child; child != 0;
         child = names->nodes[child].sibling) {
        uint8_t byte = names->nodes[child].byte;
        uint32_t node = find_child(trie, first, end, byte);
        if (node != end) {
            correct_names(filler, child, node + 1, trie->nodes[node].skip,
                          auto_next(filler->automaton, state, byte));
        }
    }
}

/* The rest of tokens that begin with plain characters. */
static void walk_rest(const struct filler *filler, const struct body *body,
                      const struct auto_place *place)
{
    const struct vocab_trie *rest = &filler->vocab->bodies[body->kind].rest;
    uint32_t chars = body_chars(place->body);
    bool is_steady =
        chars >= body->min_chars && (body->max_chars == BODY_ANY ||
                                     body->max_chars - chars >= rest->max_chars + rest->max_depth);
    if (is_steady) { /* the count makes no difference, nor do names once one character has come */
        struct auto_place free = *place;
        free.body = body_skip(body, place->body, body->names != 0);
        uint32_t state = auto_of(filler->automaton, &free, 1);
        walk(filler, rest, 0, rest->node_count, state, ANY_CHARS);
        return;
    }
    for (uint32_t more = 0; more <= rest->max_chars; more++) {
        struct auto_place later = *place;
        later.body = body_skip(body, place->body, more);
        if (later.body == BODY_DEAD) {
            return;
        }
        walk(filler, rest, 0, rest->node_count, auto_of(filler->automaton, &later, 1), more);
    }
}

static void fill_body(const struct filler *filler, const struct body *body,
                      const struct auto_place *place)
{
    uint32_t words = filler->vocab->words;
    memset(filler->words, 0, words * sizeof(uint32_t));
    uint32_t state = auto_of(filler->automaton, place, 1);
    if (!body_is_at_char(place->body)) {
        walk_all(filler, state);
        return;
    }
    uint32_t left =
        body->max_chars == BODY_ANY ? BODY_ANY : body->max_chars - body_chars(place->body);
    uint32_t most = filler->vocab->bodies[body->kind].max_chars;
    memcpy(filler->words,
           filler->vocab->bodies[body->kind].plain + (size_t)(left < most ? left : most) * words,
           words * sizeof(uint32_t));
    walk_rest(filler, body, place);
    uint32_t name = body_name_at(place->body);
    if (name != 0) {
        correct_names(filler, name, 0, filler->vocab->all.node_count, state);
    }
}

void grammar_mask_fill(struct automaton *automaton, const struct vocab *vocab, uint32_t state,
                       uint32_t *out_words,
                       /* NOLINTNEXTLINE(readability-non-const-parameter): fill_body writes them */
                       uint32_t *scratch_words)
{
    struct filler filler = {.automaton = automaton, .vocab = vocab, .words = out_words};
    struct auto_place others[64]; /* more at once are walked in turns */
    uint32_t other_count = 0;
    memset(out_words, 0, vocab->words * sizeof(uint32_t));
    uint32_t place_count = automaton->states[state].place_count;
    for (uint32_t i = 0; i < place_count; i++) {
        /* walking makes states: places may move */
        struct auto_place place = automaton->places[automaton->states[state].first_place + i];
        const struct body *body = auto_body(automaton, &place);
        if (body == NULL) {
            others[other_count++] = place;
        } else {
            struct filler apart = {.automaton = automaton, .vocab = vocab, .words = scratch_words};
            fill_body(&apart, body, &place);
            for (uint32_t w = 0; w < vocab->words; w++) {
                out_words[w] |= scratch_words[w];
            }
        }
        if (other_count == sizeof(others) / sizeof(others[0]) ||
            (i + 1 == place_count && other_count > 0)) {
            walk_all(&filler, auto_of(automaton, others, other_count));
            other_count = 0;
        }
    }
}
