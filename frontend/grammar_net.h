/* The network that a grammar is compiled into: nodes, edges over symbols, calls of sub-networks.
 *
 * Symbols are bytes 0..255 and, behind them, markers that stand for one special token each.  A call
 * runs the callee from its start node to an end node, then goes on at the edge's target; calls may
 * recurse.  A body edge is a run of characters with counts (see grammar_body.h).  Built by the
 * compilers, then sealed; a sealed network is read-only: any thread.
 *
 * Building never fails on the spot: past NET_MAX_NODES or NET_MAX_EDGES the network is marked full
 * and net_seal reports it. */
#ifndef FRONTEND_GRAMMAR_NET_H
#define FRONTEND_GRAMMAR_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/grammar_body.h"

#define NET_MAX_NODES  120000U
#define NET_MAX_EDGES  400000U
#define NET_NEVER      UINT32_MAX /* height of what cannot end */
#define NET_MARKER     256U       /* first symbol that is no byte */
#define NET_MARKERS    8U
#define NET_SYMBOLS    (NET_MARKER + NET_MARKERS)
#define NET_MAX_BODIES 65536U

enum net_edge_kind {
    NET_EDGE_NOTHING, /* to */
    NET_EDGE_SYMBOLS, /* any of lo..hi, then to */
    NET_EDGE_CALL,    /* the network at argument, then to */
    NET_EDGE_BODY,    /* body argument, then to; the only edge of its node */
};

struct net_edge {
    uint8_t kind;
    uint16_t lo;
    uint16_t hi;
    uint32_t to;
    uint32_t argument;
    uint32_t next; /* edge of the same node; UINT32_MAX none */
};

struct net_node {
    uint32_t first_edge;
    uint32_t height; /* nested calls needed to reach the end from here */
    bool is_end;
};

struct net {
    struct net_node *nodes; /* owned */
    uint32_t node_count;
    uint32_t node_cap;
    struct net_edge *edges; /* owned */
    uint32_t edge_count;
    uint32_t edge_cap;
    struct body *bodies; /* owned */
    uint32_t body_count;
    uint32_t body_cap;
    struct body_names names; /* of all bodies that exclude some */
    bool is_full;
    uint32_t start;
    uint16_t class_of[NET_SYMBOLS]; /* symbols that no edge tells apart share a class */
    uint16_t class_count;
};

void net_init(struct net *net);
void net_fini(struct net *net);

uint32_t net_node(struct net *net);
void net_end(struct net *net, uint32_t node);
void net_nothing(struct net *net, uint32_t from, uint32_t to);
void net_symbols(struct net *net, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);
void net_call(struct net *net, uint32_t from, uint32_t callee, uint32_t to);

/* Appends to `from`; each returns the node behind. */
uint32_t net_text(struct net *net, uint32_t from, const char *text, size_t byte_count);
uint32_t net_symbol(struct net *net, uint32_t from, uint32_t symbol);
/* Behind symbol, on the path of texts written before where there is one. */
uint32_t net_share(struct net *net, uint32_t from, uint32_t symbol);
uint32_t net_body(struct net *net, uint32_t from, const struct body *body);

/* Heights, classes; edges into what can never end go.  start: the whole grammar's.
 * Errors: ERR_LIMIT (full), ERR_ARGUMENT (nothing matches). */
ERR_NODISCARD enum err_code net_seal(struct net *net, uint32_t start, struct err *err);

size_t net_bytes(const struct net *net);

#endif
