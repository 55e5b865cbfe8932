/* A network run as an automaton whose states are made when they are first met.
 *
 * A state is a set of places in the network, each with the calls that led there; calls are kept as
 * linked frames, each kept once.  Nesting is bounded by AUTO_MAX_DEPTH: a place is never entered from
 * which the end could not be reached within it, so every state that is not dead can end.  States die
 * together at auto_reset, which the owner calls when auto_is_full.  One thread at a time. */
#ifndef FRONTEND_GRAMMAR_AUTO_H
#define FRONTEND_GRAMMAR_AUTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frontend/grammar_net.h"

#define AUTO_DEAD      UINT32_MAX
#define AUTO_MAX_DEPTH 96U

struct auto_place {
    uint32_t node;
    uint32_t frame; /* where its call returns to; 0: nowhere, the grammar ends */
    uint64_t body;  /* place in the node's body, 0 for others */
};

struct auto_state {
    uint32_t first_place;
    uint32_t place_count;
    bool accepts;
};

struct auto_frame {
    uint32_t node;   /* to go on at */
    uint32_t parent; /* frame */
    uint32_t depth;
};

struct auto_set;

struct automaton {
    const struct net *net;     /* borrowed */
    struct auto_state *states; /* owned */
    uint32_t state_count;
    uint32_t state_cap;
    uint32_t *next;            /* owned, [state_cap, class_count] */
    struct auto_place *places; /* owned */
    uint32_t place_count;
    uint32_t place_cap;
    struct auto_frame *frames; /* owned; the first is no frame */
    uint32_t frame_count;
    uint32_t frame_cap;
    uint32_t *state_slots; /* owned, open addressing, by hash of places */
    uint32_t state_slot_count;
    uint32_t *frame_slots; /* owned */
    uint32_t frame_slot_count;
    struct auto_set *set; /* owned: the set being closed */
    uint32_t start;
    bool has_overrun; /* something was left out for lack of room since the last reset */
};

void auto_init(struct automaton *automaton, const struct net *net);
void auto_fini(struct automaton *automaton);
void auto_reset(struct automaton *automaton);

/* Soon out of room: reset before long. */
bool auto_is_full(const struct automaton *automaton);
size_t auto_bytes(const struct automaton *automaton);

/* Behind one symbol; AUTO_DEAD where it cannot follow. */
uint32_t auto_next(struct automaton *automaton, uint32_t state, uint32_t symbol);

/* The state of some places of another, and what follows from them. */
uint32_t auto_of(struct automaton *automaton, const struct auto_place *places, uint32_t count);

const struct body *auto_body(const struct automaton *automaton, const struct auto_place *place);

#endif
