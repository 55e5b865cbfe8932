#include "frontend/grammar_auto.h"

#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define NO_EDGE     UINT32_MAX
#define UNKNOWN     (UINT32_MAX - 1)
#define MAX_STATES  40000U
#define SOFT_STATES 20000U
#define MAX_FRAMES  200000U
#define SOFT_FRAMES 100000U
#define MAX_PLACES  1500000U
#define SOFT_PLACES 750000U
#define MAX_BYTES   ((size_t)24 << 20)

enum {
    MAX_VISITED = 4096, /* places of one set, before those that only lead on are dropped */
    SEEN_SLOTS = 16384
};

struct auto_set {
    struct auto_place at[MAX_VISITED];
    uint32_t count;
    bool accepts;
    uint32_t stamp;
    uint32_t seen_stamp[SEEN_SLOTS];
    uint32_t seen_index[SEEN_SLOTS];
};

static uint64_t mix(uint64_t value)
{
    value *= 0x9e3779b97f4a7c15ULL;
    return value ^ (value >> 29);
}

static uint64_t hash_place(const struct auto_place *place)
{
    return mix(mix(((uint64_t)place->node << 32 | place->frame) + 1) ^ place->body);
}

static bool is_same(const struct auto_place *a, const struct auto_place *b)
{
    return a->node == b->node && a->frame == b->frame && a->body == b->body;
}

const struct body *auto_body(const struct automaton *automaton, const struct auto_place *place)
{
    const struct net *net = automaton->net;
    uint32_t first = net->nodes[place->node].first_edge;
    if (first == NO_EDGE || net->edges[first].kind != NET_EDGE_BODY) {
        return NULL;
    }
    return &net->bodies[net->edges[first].argument];
}

/* ---- frames ---- */

static void grow_frame_slots(struct automaton *automaton)
{
    automaton->frame_slot_count =
        automaton->frame_slot_count == 0 ? 1024 : automaton->frame_slot_count * 2;
    mem_free(automaton->frame_slots);
    automaton->frame_slots = mem_zalloc(automaton->frame_slot_count, sizeof(uint32_t));
    for (uint32_t i = 1; i < automaton->frame_count; i++) {
        const struct auto_frame *frame = &automaton->frames[i];
        uint64_t at = mix((uint64_t)frame->node << 32 | frame->parent);
        while (automaton->frame_slots[at & (automaton->frame_slot_count - 1)] != 0) {
            at++;
        }
        automaton->frame_slots[at & (automaton->frame_slot_count - 1)] = i;
    }
}

static uint32_t add_frame(struct automaton *automaton, uint32_t node, uint32_t parent)
{
    if (automaton->frame_count >= MAX_FRAMES) {
        automaton->has_overrun = true;
        return 0;
    }
    if (automaton->frame_count == automaton->frame_cap) {
        automaton->frame_cap = automaton->frame_cap == 0 ? 256 : automaton->frame_cap * 2;
        automaton->frames =
            mem_realloc(automaton->frames, automaton->frame_cap, sizeof(automaton->frames[0]));
    }
    const struct auto_frame *up = &automaton->frames[parent];
    automaton->frames[automaton->frame_count] = (struct auto_frame){
        .node = node,
        .parent = parent,
        .depth = up->depth + 1,
    };
    return automaton->frame_count++;
}

/* The one frame of node and parent; 0 where there is no room for it. */
static uint32_t frame_of(struct automaton *automaton, uint32_t node, uint32_t parent)
{
    if (2 * automaton->frame_count >= automaton->frame_slot_count) {
        grow_frame_slots(automaton);
    }
    for (uint64_t at = mix((uint64_t)node << 32 | parent);; at++) {
        uint32_t *slot = &automaton->frame_slots[at & (automaton->frame_slot_count - 1)];
        if (*slot == 0) {
            *slot = add_frame(automaton, node, parent);
            return *slot;
        }
        const struct auto_frame *frame = &automaton->frames[*slot];
        if (frame->node == node && frame->parent == parent) {
            return *slot;
        }
    }
}

/* ---- the set being closed ---- */

static void clear_set(struct automaton *automaton)
{
    struct auto_set *set = automaton->set;
    set->count = 0;
    set->accepts = false;
    if (++set->stamp == 0) {
        memset(set->seen_stamp, 0, sizeof(set->seen_stamp));
        set->stamp = 1;
    }
}

/* Takes a place as it is. */
static void visit_place(struct automaton *automaton, struct auto_place place)
{
    struct auto_set *set = automaton->set;
    const struct net_node *node = &automaton->net->nodes[place.node];
    if (node->height == NET_NEVER ||
        automaton->frames[place.frame].depth + node->height > AUTO_MAX_DEPTH) {
        return;
    }
    uint64_t at = hash_place(&place);
    while (set->seen_stamp[at % SEEN_SLOTS] == set->stamp) {
        if (is_same(&set->at[set->seen_index[at % SEEN_SLOTS]], &place)) {
            return;
        }
        at++;
    }
    if (set->count == MAX_VISITED) {
        automaton->has_overrun = true;
        return;
    }
    set->seen_stamp[at % SEEN_SLOTS] = set->stamp;
    set->seen_index[at % SEEN_SLOTS] = set->count;
    set->at[set->count++] = place;
}

/* Comes to a node by an edge: a body begins. */
static void visit(struct automaton *automaton, uint32_t node, uint32_t frame)
{
    struct auto_place place = {.node = node, .frame = frame};
    const struct body *body = auto_body(automaton, &place);
    if (body != NULL) {
        place.body = body_start(body);
    }
    visit_place(automaton, place);
}

static void visit_call(struct automaton *automaton, const struct auto_place *place,
                       const struct net_edge *edge)
{
    const struct net *net = automaton->net;
    const struct net_node *to = &net->nodes[edge->to];
    uint32_t depth = automaton->frames[place->frame].depth;
    if (to->height == NET_NEVER || depth + to->height > AUTO_MAX_DEPTH) {
        return;
    }
    uint32_t frame = place->frame;
    bool is_last = to->is_end && to->first_edge == NO_EDGE; /* the callee may return for it */
    if (!is_last) {
        frame = frame_of(automaton, edge->to, place->frame);
        if (frame == 0) {
            return;
        }
    }
    visit(automaton, edge->argument, frame);
}

static void follow(struct automaton *automaton, struct auto_place place)
{
    const struct net *net = automaton->net;
    const struct net_node *node = &net->nodes[place.node];
    for (uint32_t e = node->first_edge; e != NO_EDGE; e = net->edges[e].next) {
        const struct net_edge *edge = &net->edges[e];
        switch ((enum net_edge_kind)edge->kind) {
        case NET_EDGE_NOTHING: visit(automaton, edge->to, place.frame); break;
        case NET_EDGE_CALL: visit_call(automaton, &place, edge); break;
        case NET_EDGE_BODY:
            if (body_can_end(&net->bodies[edge->argument], &net->names, place.body)) {
                visit(automaton, edge->to, place.frame);
            }
            break;
        case NET_EDGE_SYMBOLS: break;
        }
    }
    if (node->is_end && place.frame == 0) {
        automaton->set->accepts = true;
    } else if (node->is_end) {
        const struct auto_frame *frame = &automaton->frames[place.frame];
        visit(automaton, frame->node, frame->parent);
    }
}

static bool takes_symbols(const struct net *net, uint32_t node)
{
    for (uint32_t e = net->nodes[node].first_edge; e != NO_EDGE; e = net->edges[e].next) {
        if (net->edges[e].kind == NET_EDGE_SYMBOLS || net->edges[e].kind == NET_EDGE_BODY) {
            return true;
        }
    }
    return false;
}

static int compare_places(const void *a, const void *b)
{
    const struct auto_place *left = a;
    const struct auto_place *right = b;
    if (left->node != right->node) {
        return left->node < right->node ? -1 : 1;
    }
    if (left->frame != right->frame) {
        return left->frame < right->frame ? -1 : 1;
    }
    return left->body < right->body ? -1 : left->body > right->body;
}

/* Follows all that leads on without a symbol; what is left takes symbols, sorted. */
static void close_set(struct automaton *automaton)
{
    struct auto_set *set = automaton->set;
    for (uint32_t i = 0; i < set->count; i++) {
        follow(automaton, set->at[i]);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        if (takes_symbols(automaton->net, set->at[i].node)) {
            set->at[kept++] = set->at[i];
        }
    }
    set->count = kept;
    qsort(set->at, set->count, sizeof(set->at[0]), compare_places);
}

/* ---- states ---- */

static uint64_t hash_set(const struct auto_place *places, uint32_t count, bool accepts)
{
    uint64_t hash = accepts ? 7 : 3;
    for (uint32_t i = 0; i < count; i++) {
        hash = mix(hash + hash_place(&places[i]));
    }
    return hash;
}

static void grow_state_slots(struct automaton *automaton)
{
    automaton->state_slot_count =
        automaton->state_slot_count == 0 ? 1024 : automaton->state_slot_count * 2;
    mem_free(automaton->state_slots);
    automaton->state_slots = mem_zalloc(automaton->state_slot_count, sizeof(uint32_t));
    memset(automaton->state_slots, 0xff, automaton->state_slot_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < automaton->state_count; i++) {
        const struct auto_state *state = &automaton->states[i];
        uint64_t at =
            hash_set(automaton->places + state->first_place, state->place_count, state->accepts);
        while (automaton->state_slots[at & (automaton->state_slot_count - 1)] != UINT32_MAX) {
            at++;
        }
        automaton->state_slots[at & (automaton->state_slot_count - 1)] = i;
    }
}

static void reserve_state(struct automaton *automaton, uint32_t place_count)
{
    uint32_t classes = automaton->net->class_count;
    if (automaton->state_count == automaton->state_cap) {
        automaton->state_cap = automaton->state_cap == 0 ? 64 : automaton->state_cap * 2;
        automaton->states =
            mem_realloc(automaton->states, automaton->state_cap, sizeof(automaton->states[0]));
        automaton->next =
            mem_realloc(automaton->next, (size_t)automaton->state_cap * classes, sizeof(uint32_t));
    }
    while (automaton->place_count + place_count > automaton->place_cap) {
        automaton->place_cap = automaton->place_cap == 0 ? 512 : automaton->place_cap * 2;
        automaton->places =
            mem_realloc(automaton->places, automaton->place_cap, sizeof(automaton->places[0]));
    }
}

static uint32_t add_state(struct automaton *automaton)
{
    const struct auto_set *set = automaton->set;
    uint32_t classes = automaton->net->class_count;
    if (automaton->state_count >= MAX_STATES || automaton->place_count + set->count > MAX_PLACES) {
        automaton->has_overrun = true;
        return AUTO_DEAD;
    }
    reserve_state(automaton, set->count);
    struct auto_state *state = &automaton->states[automaton->state_count];
    *state = (struct auto_state){
        .first_place = automaton->place_count, .place_count = set->count, .accepts = set->accepts};
    for (uint32_t i = 0; i < set->count; i++) {
        automaton->places[automaton->place_count++] = set->at[i];
    }
    for (uint32_t i = 0; i < classes; i++) {
        automaton->next[(size_t)automaton->state_count * classes + i] = UNKNOWN;
    }
    return automaton->state_count++;
}

/* The one state of the closed set; AUTO_DEAD where it is empty and does not accept. */
static uint32_t state_of_set(struct automaton *automaton)
{
    const struct auto_set *set = automaton->set;
    if (set->count == 0 && !set->accepts) {
        return AUTO_DEAD;
    }
    if (2 * automaton->state_count >= automaton->state_slot_count) {
        grow_state_slots(automaton);
    }
    for (uint64_t at = hash_set(set->at, set->count, set->accepts);; at++) {
        uint32_t *slot = &automaton->state_slots[at & (automaton->state_slot_count - 1)];
        if (*slot == UINT32_MAX) {
            *slot = add_state(automaton); /* stays free where there is no room */
            return *slot;
        }
        const struct auto_state *state = &automaton->states[*slot];
        bool is_equal = state->place_count == set->count && state->accepts == set->accepts;
        const struct auto_place *places = automaton->places + state->first_place;
        for (uint32_t i = 0; is_equal && i < set->count; i++) {
            is_equal = is_same(&places[i], &set->at[i]);
        }
        if (is_equal) {
            return *slot;
        }
    }
}

static uint32_t make_next(struct automaton *automaton, uint32_t state, uint32_t symbol)
{
    const struct net *net = automaton->net;
    const struct auto_state from = automaton->states[state];
    clear_set(automaton);
    for (uint32_t i = 0; i < from.place_count && symbol < NET_MARKER; i++) {
        struct auto_place place = automaton->places[from.first_place + i];
        const struct body *body = auto_body(automaton, &place);
        if (body == NULL) {
            continue;
        }
        place.body = body_next(body, &net->names, place.body, (uint8_t)symbol);
        if (place.body != BODY_DEAD) {
            visit_place(automaton, place);
        }
    }
    for (uint32_t i = 0; i < from.place_count; i++) {
        struct auto_place place = automaton->places[from.first_place + i];
        for (uint32_t e = net->nodes[place.node].first_edge; e != NO_EDGE; e = net->edges[e].next) {
            const struct net_edge *edge = &net->edges[e];
            if (edge->kind == NET_EDGE_SYMBOLS && edge->lo <= symbol && symbol <= edge->hi) {
                visit(automaton, edge->to, place.frame);
            }
        }
    }
    close_set(automaton);
    return state_of_set(automaton);
}

uint32_t auto_next(struct automaton *automaton, uint32_t state, uint32_t symbol)
{
    size_t at = (size_t)state * automaton->net->class_count + automaton->net->class_of[symbol];
    uint32_t next = automaton->next[at];
    if (next == UNKNOWN) {
        next = make_next(automaton, state, symbol);
        automaton->next[at] = next;
    }
    return next;
}

uint32_t auto_of(struct automaton *automaton, const struct auto_place *places, uint32_t count)
{
    clear_set(automaton);
    for (uint32_t i = 0; i < count; i++) {
        visit_place(automaton, places[i]);
    }
    close_set(automaton);
    return state_of_set(automaton);
}

void auto_init(struct automaton *automaton, const struct net *net)
{
    *automaton = (struct automaton){.net = net};
    automaton->set = mem_zalloc(1, sizeof(*automaton->set));
    auto_reset(automaton);
}

void auto_fini(struct automaton *automaton)
{
    mem_free(automaton->states);
    mem_free(automaton->next);
    mem_free(automaton->places);
    mem_free(automaton->frames);
    mem_free(automaton->state_slots);
    mem_free(automaton->frame_slots);
    mem_free(automaton->set);
    *automaton = (struct automaton){0};
}

void auto_reset(struct automaton *automaton)
{
    const struct net *net = automaton->net;
    struct auto_set *set = automaton->set;
    automaton->set = NULL;
    auto_fini(automaton);
    *automaton = (struct automaton){.net = net, .set = set};
    automaton->frame_cap = 256;
    automaton->frames = mem_zalloc(automaton->frame_cap, sizeof(automaton->frames[0]));
    automaton->frame_count = 1;
    clear_set(automaton);
    visit(automaton, net->start, 0);
    close_set(automaton);
    automaton->start = state_of_set(automaton);
}

bool auto_is_full(const struct automaton *automaton)
{
    return automaton->has_overrun || automaton->state_count >= SOFT_STATES ||
           automaton->frame_count >= SOFT_FRAMES || automaton->place_count >= SOFT_PLACES ||
           auto_bytes(automaton) >= MAX_BYTES;
}

size_t auto_bytes(const struct automaton *automaton)
{
    size_t row_bytes =
        sizeof(automaton->states[0]) + automaton->net->class_count * sizeof(automaton->next[0]);
    return sizeof(*automaton->set) + automaton->state_cap * row_bytes +
           automaton->place_cap * sizeof(struct auto_place) +
           automaton->frame_cap * sizeof(struct auto_frame) +
           (automaton->state_slot_count + automaton->frame_slot_count) * sizeof(uint32_t);
}
