#include "frontend/grammar_regex.h"

#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/utf8.h"
#include "frontend/grammar_regex_internal.h"

#define NO_EDGE UINT32_MAX

/* Where the text stands when a place of the expression is reached. */
enum mode {
    MODE_BEGIN, /* no character yet */
    MODE_MIDDLE,
    MODE_ENDED, /* no character may follow */
    MODES
};

/* A node of the expression, with mode and characters so far, and its node in the network. */
struct place {
    uint32_t node;
    enum mode mode;
    uint32_t chars;
    uint32_t net_node;
};

struct lowering {
    const struct regex *regex;
    struct net *net;
    struct regex_options options;
    uint32_t final;
    uint32_t to;
    struct place *places; /* owned; those from `done` on are still to be followed */
    uint32_t place_count;
    uint32_t place_cap;
    uint32_t *slots; /* owned, open addressing: index + 1 */
    uint32_t slot_count;
};

/* ---- characters into bytes ---- */

/* Sequences of byte_count bytes from lo to hi, which have the same length. */
static void put_sequences(struct net *net, uint32_t from, const unsigned char *lo,
                          const unsigned char *hi, uint32_t byte_count, uint32_t to)
{
    static const unsigned char least[3] = {0x80, 0x80, 0x80};
    static const unsigned char most[3] = {0xbf, 0xbf, 0xbf};
    if (byte_count == 1) {
        net_symbols(net, from, lo[0], hi[0], to);
        return;
    }
    uint32_t tail = byte_count - 1;
    unsigned first = lo[0];
    unsigned last = hi[0];
    if (first == last) {
        put_sequences(net, net_symbol(net, from, first), lo + 1, hi + 1, tail, to);
        return;
    }
    if (memcmp(lo + 1, least, tail) != 0) {
        put_sequences(net, net_symbol(net, from, first), lo + 1, most, tail, to);
        first++;
    }
    if (memcmp(hi + 1, most, tail) != 0) {
        put_sequences(net, net_symbol(net, from, last), least, hi + 1, tail, to);
        last--;
    }
    if (first <= last) {
        uint32_t middle = net_node(net);
        net_symbols(net, from, first, last, middle);
        put_sequences(net, middle, least, most, tail, to);
    }
}

static void put_range(struct net *net, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    static const uint32_t tops[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
    for (uint32_t i = 0; i < sizeof(tops) / sizeof(tops[0]) && lo <= hi; i++) {
        uint32_t end = hi < tops[i] ? hi : tops[i];
        if (lo > end) {
            continue;
        }
        if (tops[i] != 0xdfff) { /* not the surrogates */
            char first[4];
            char last[4];
            size_t byte_count = utf8_encode(lo, first);
            (void)utf8_encode(end, last); /* of the same length */
            put_sequences(net, from, (const unsigned char *)first, (const unsigned char *)last,
                          (uint32_t)byte_count, to);
        }
        lo = end + 1;
    }
}

/* How JSON writes a character that cannot stand for itself; "" where it can. */
static const char *json_escape(uint32_t c, char storage[8])
{
    switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break; /* foreign */
    }
    if (c >= 0x20) {
        return "";
    }
    (void)snprintf(storage, 8, "\\u%04x", (unsigned)c); /* fits */
    return storage;
}

/* The low characters of a range one by one: some are escaped, or cannot be written. */
static void put_low(struct net *net, uint32_t from, uint32_t c, enum regex_text text, uint32_t to)
{
    char storage[8];
    const char *escape = text == REGEX_TEXT_JSON ? json_escape(c, storage) : "";
    if (escape[0] != '\0') {
        uint32_t behind = net_text(net, from, escape, strlen(escape));
        net_nothing(net, behind, to);
        return;
    }
    bool is_control = c < 0x20 && text == REGEX_TEXT_PLAIN && c != '\n' && c != '\t';
    if (!is_control && c != 0) {
        net_symbols(net, from, c, c, to);
    }
}

void regex_put_chars(struct net *net, uint32_t from, uint32_t lo, uint32_t hi, enum regex_text text,
                     uint32_t to)
{
    uint32_t lows[] = {0x1f, '"', '\\'};
    for (uint32_t i = 0; i < sizeof(lows) / sizeof(lows[0]) && lo <= hi; i++) {
        uint32_t first_low = i == 0 ? 0 : lows[i];
        if (lo < first_low) {
            uint32_t end = hi < first_low - 1 ? hi : first_low - 1;
            put_range(net, from, lo, end, to);
            lo = end + 1;
        }
        for (; lo <= hi && lo <= lows[i]; lo++) {
            put_low(net, from, lo, text, to);
        }
    }
    if (lo <= hi) {
        put_range(net, from, lo, hi, to);
    }
}

/* ---- the automaton into the network ---- */

static uint64_t hash_place(uint32_t node, enum mode mode, uint32_t chars)
{
    uint64_t hash = ((uint64_t)node << 2 | (uint64_t)mode) * 0x9e3779b97f4a7c15ULL;
    hash = (hash ^ chars) * 0x94d049bb133111ebULL;
    return hash ^ (hash >> 29);
}

static void grow_slots(struct lowering *lowering)
{
    lowering->slot_count = lowering->slot_count == 0 ? 256 : lowering->slot_count * 2;
    mem_free(lowering->slots);
    lowering->slots = mem_zalloc(lowering->slot_count, sizeof(uint32_t));
    for (uint32_t i = 0; i < lowering->place_count; i++) {
        const struct place *place = &lowering->places[i];
        uint64_t at = hash_place(place->node, place->mode, place->chars);
        while (lowering->slots[at & (lowering->slot_count - 1)] != 0) {
            at++;
        }
        lowering->slots[at & (lowering->slot_count - 1)] = i + 1;
    }
}

/* The network's node of a place, made when it is first asked for. */
static uint32_t node_of(struct lowering *lowering, uint32_t node, enum mode mode, uint32_t chars)
{
    if (2 * lowering->place_count >= lowering->slot_count) {
        grow_slots(lowering);
    }
    uint64_t at = hash_place(node, mode, chars);
    uint32_t *slot;
    while (*(slot = &lowering->slots[at & (lowering->slot_count - 1)]) != 0) {
        const struct place *place = &lowering->places[*slot - 1];
        if (place->node == node && place->mode == mode && place->chars == chars) {
            return place->net_node;
        }
        at++;
    }
    if (lowering->place_count == lowering->place_cap) {
        lowering->place_cap = lowering->place_cap == 0 ? 64 : lowering->place_cap * 2;
        lowering->places =
            mem_realloc(lowering->places, lowering->place_cap, sizeof(lowering->places[0]));
    }
    lowering->places[lowering->place_count] = (struct place){
        .node = node, .mode = mode, .chars = chars, .net_node = net_node(lowering->net)};
    *slot = ++lowering->place_count;
    return lowering->places[lowering->place_count - 1].net_node;
}

static void lower_chars(struct lowering *lowering, const struct place *place,
                        const struct regex_edge *edge)
{
    const struct regex_options *options = &lowering->options;
    uint32_t chars = place->chars + 1;
    if (place->mode == MODE_ENDED ||
        (options->max_chars != BODY_ANY && chars > options->max_chars)) {
        return;
    }
    if (options->max_chars == BODY_ANY && chars > options->min_chars) {
        chars = options->min_chars;
    }
    uint32_t to = node_of(lowering, edge->to, MODE_MIDDLE, chars);
    for (uint32_t i = 0; i < edge->range_count; i++) {
        const struct regex_range *range = &lowering->regex->ranges[edge->first_range + i];
        regex_put_chars(lowering->net, place->net_node, range->lo, range->hi, options->text, to);
    }
}

static void lower_place(struct lowering *lowering, struct place place)
{
    const struct regex *regex = lowering->regex;
    if (place.node == lowering->final && place.chars >= lowering->options.min_chars) {
        net_nothing(lowering->net, place.net_node, lowering->to);
    }
    for (uint32_t e = regex->first_edge[place.node]; e != NO_EDGE; e = regex->edges[e].next) {
        const struct regex_edge *edge = &regex->edges[e];
        enum mode mode = edge->kind == REGEX_EDGE_END ? MODE_ENDED : place.mode;
        switch (edge->kind) {
        case REGEX_EDGE_CHARS: lower_chars(lowering, &place, edge); break;
        case REGEX_EDGE_BEGIN:
            if (place.chars > 0 || place.mode == MODE_MIDDLE) {
                break;
            }
            net_nothing(lowering->net, place.net_node,
                        node_of(lowering, edge->to, place.mode, place.chars));
            break;
        case REGEX_EDGE_NOTHING:
        case REGEX_EDGE_END:
            net_nothing(lowering->net, place.net_node,
                        node_of(lowering, edge->to, mode, place.chars));
            break;
        }
    }
}

/* Any characters before and behind. */
static void make_search(struct regex *regex, uint32_t *from, uint32_t *final)
{
    uint32_t first = regex->range_count;
    uint32_t ends[2] = {regex_node(regex), regex_node(regex)};
    regex_add_range(regex, 0, REGEX_LAST_CHAR);
    struct regex_edge any = {.kind = REGEX_EDGE_CHARS, .first_range = first, .range_count = 1};
    for (uint32_t i = 0; i < 2; i++) {
        any.to = ends[i];
        regex_edge(regex, ends[i], &any);
    }
    regex_edge(regex, ends[0], &(struct regex_edge){.kind = REGEX_EDGE_NOTHING, .to = *from});
    regex_edge(regex, *final, &(struct regex_edge){.kind = REGEX_EDGE_NOTHING, .to = ends[1]});
    *from = ends[0];
    *final = ends[1];
}

static enum err_code lower(struct lowering *lowering, uint32_t from, uint32_t start)
{
    net_nothing(lowering->net, from, node_of(lowering, start, MODE_BEGIN, 0));
    for (uint32_t i = 0; i < lowering->place_count; i++) {
        if (lowering->net->is_full) {
            return err_set(lowering->regex->err, ERR_LIMIT,
                           "the regular expression takes more than %u nodes: use smaller counts",
                           NET_MAX_NODES);
        }
        lower_place(lowering, lowering->places[i]);
    }
    return ERR_OK;
}

enum err_code regex_compile(struct net *net, uint32_t from, const struct regex_options *options,
                            uint32_t *out_to, struct err *err)
{
    if (options->byte_count > REGEX_MAX_BYTES) {
        return err_set(err, ERR_LIMIT, "the regular expression has %zu bytes, at most %u",
                       options->byte_count, REGEX_MAX_BYTES);
    }
    struct regex regex = {.at = options->pattern, .byte_count = options->byte_count, .err = err};
    struct lowering lowering = {.regex = &regex, .net = net, .options = *options};
    uint32_t start = 0;
    enum err_code code = regex_parse(&regex, &start, &lowering.final);
    if (!code) {
        if (options->is_search) {
            make_search(&regex, &start, &lowering.final);
        }
        lowering.to = net_node(net);
        code = lower(&lowering, from, start);
    }
    if (!code) {
        *out_to = lowering.to;
    }
    mem_free(regex.first_edge);
    mem_free(regex.edges);
    mem_free(regex.ranges);
    mem_free(lowering.places);
    mem_free(lowering.slots);
    return code;
}
