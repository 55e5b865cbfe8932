#include "frontend/grammar_net.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"

#define NO_EDGE UINT32_MAX

void net_init(struct net *net)
{
    *net = (struct net){0};
}

void net_fini(struct net *net)
{
    mem_free(net->nodes);
    mem_free(net->edges);
    mem_free(net->bodies);
    body_names_fini(&net->names);
    *net = (struct net){0};
}

uint32_t net_node(struct net *net)
{
    if (net->node_count >= NET_MAX_NODES) {
        net->is_full = true;
        return 0;
    }
    if (net->node_count == net->node_cap) {
        net->node_cap = net->node_cap == 0 ? 256 : net->node_cap * 2;
        net->nodes = mem_realloc(net->nodes, net->node_cap, sizeof(net->nodes[0]));
    }
    net->nodes[net->node_count] = (struct net_node){.first_edge = NO_EDGE, .height = NET_NEVER};
    return net->node_count++;
}

static void add_edge(struct net *net, uint32_t from, struct net_edge edge)
{
    if (net->edge_count >= NET_MAX_EDGES || net->is_full) {
        net->is_full = true;
        return;
    }
    if (net->edge_count == net->edge_cap) {
        net->edge_cap = net->edge_cap == 0 ? 512 : net->edge_cap * 2;
        net->edges = mem_realloc(net->edges, net->edge_cap, sizeof(net->edges[0]));
    }
    edge.next = net->nodes[from].first_edge;
    net->edges[net->edge_count] = edge;
    net->nodes[from].first_edge = net->edge_count++;
}

void net_end(struct net *net, uint32_t node)
{
    if (node < net->node_count) {
        net->nodes[node].is_end = true;
    }
}

void net_nothing(struct net *net, uint32_t from, uint32_t to)
{
    add_edge(net, from, (struct net_edge){.kind = NET_EDGE_NOTHING, .to = to});
}

void net_symbols(struct net *net, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    add_edge(net, from,
             (struct net_edge){
                 .kind = NET_EDGE_SYMBOLS, .lo = (uint16_t)lo, .hi = (uint16_t)hi, .to = to});
}

void net_call(struct net *net, uint32_t from, uint32_t callee, uint32_t to)
{
    add_edge(net, from, (struct net_edge){.kind = NET_EDGE_CALL, .argument = callee, .to = to});
}

uint32_t net_symbol(struct net *net, uint32_t from, uint32_t symbol)
{
    uint32_t to = net_node(net);
    net_symbols(net, from, symbol, symbol, to);
    return to;
}

uint32_t net_text(struct net *net, uint32_t from, const char *text, size_t byte_count)
{
    for (size_t i = 0; i < byte_count; i++) {
        from = net_symbol(net, from, (unsigned char)text[i]);
    }
    return from;
}

uint32_t net_body(struct net *net, uint32_t from, const struct body *body)
{
    if (net->body_count >= NET_MAX_BODIES) {
        net->is_full = true;
        return from;
    }
    if (net->body_count == net->body_cap) {
        net->body_cap = net->body_cap == 0 ? 16 : net->body_cap * 2;
        net->bodies = mem_realloc(net->bodies, net->body_cap, sizeof(net->bodies[0]));
    }
    uint32_t index = net->body_count++;
    net->bodies[index] = *body;
    uint32_t own = net_node(net);
    uint32_t to = net_node(net);
    net_nothing(net, from, own);
    add_edge(net, own, (struct net_edge){.kind = NET_EDGE_BODY, .argument = index, .to = to});
    return to;
}

/* ---- sealing ---- */

uint32_t net_share(struct net *net, uint32_t from, uint32_t symbol)
{
    for (uint32_t e = from < net->node_count ? net->nodes[from].first_edge : NO_EDGE; e != NO_EDGE;
         e = net->edges[e].next) {
        const struct net_edge *edge = &net->edges[e];
        if (edge->kind == NET_EDGE_SYMBOLS && edge->lo == symbol && edge->hi == symbol) {
            return edge->to;
        }
    }
    return net_symbol(net, from, symbol);
}

static uint32_t edge_height(const struct net *net, const struct net_edge *edge)
{
    uint32_t height = net->nodes[edge->to].height;
    if (edge->kind == NET_EDGE_CALL) {
        uint32_t called = net->nodes[edge->argument].height;
        uint32_t callee = called == NET_NEVER ? NET_NEVER : called + 1;
        height = callee > height ? callee : height;
    }
    return height;
}

/* Who has an edge into a node, as lists: by target, and by callee. */
struct reverse {
    uint32_t *first; /* owned, [node_count] */
    uint32_t *next;  /* owned, [2 * edge_count]: link 2e by edge e's target, 2e + 1 by its callee */
    uint32_t *from;  /* owned, [edge_count] */
    uint32_t *queue; /* owned, [node_count], a ring */
    bool *is_queued; /* owned, [node_count] */
    uint32_t head;
    uint32_t count;
};

static void reverse_init(struct reverse *reverse, const struct net *net)
{
    reverse->first = mem_zalloc(net->node_count, sizeof(uint32_t));
    reverse->next = mem_zalloc(2 * (size_t)net->edge_count + 1, sizeof(uint32_t));
    reverse->from = mem_zalloc((size_t)net->edge_count + 1, sizeof(uint32_t));
    reverse->queue = mem_zalloc(net->node_count, sizeof(uint32_t));
    reverse->is_queued = mem_zalloc(net->node_count, sizeof(bool));
    memset(reverse->first, 0xff, net->node_count * sizeof(uint32_t));
    for (uint32_t node = 0; node < net->node_count; node++) {
        for (uint32_t e = net->nodes[node].first_edge; e != NO_EDGE; e = net->edges[e].next) {
            const struct net_edge *edge = &net->edges[e];
            reverse->from[e] = node;
            reverse->next[2 * (size_t)e] = reverse->first[edge->to];
            reverse->first[edge->to] = 2 * e;
            if (edge->kind == NET_EDGE_CALL) {
                reverse->next[2 * (size_t)e + 1] = reverse->first[edge->argument];
                reverse->first[edge->argument] = 2 * e + 1;
            }
        }
    }
}

static void reverse_fini(struct reverse *reverse)
{
    mem_free(reverse->first);
    mem_free(reverse->next);
    mem_free(reverse->from);
    mem_free(reverse->queue);
    mem_free(reverse->is_queued);
}

static void push(struct reverse *reverse, uint32_t node, uint32_t node_count)
{
    assert(node < node_count);
    if (!reverse->is_queued[node]) {
        reverse->is_queued[node] = true;
        reverse->queue[(reverse->head + reverse->count++) % node_count] = node;
    }
}

static uint32_t pop(struct reverse *reverse, uint32_t node_count)
{
    assert(reverse->head < node_count);
    uint32_t node = reverse->queue[reverse->head];
    reverse->head = (reverse->head + 1) % node_count;
    reverse->count--;
    reverse->is_queued[node] = false;
    return node;
}

/* What a node's edges make of it; true where that is less than before. */
static bool improve(struct net *net, uint32_t node, const struct net_edge *edge)
{
    uint32_t height = edge_height(net, edge);
    bool is_better = height < net->nodes[node].height;
    if (is_better) {
        net->nodes[node].height = height;
    }
    return is_better;
}

static void measure(struct net *net)
{
    struct reverse reverse = {0};
    reverse_init(&reverse, net);
    for (uint32_t node = 0; node < net->node_count; node++) {
        if (net->nodes[node].is_end) {
            net->nodes[node].height = 0;
            push(&reverse, node, net->node_count);
        }
    }
    while (reverse.count > 0) {
        uint32_t node = pop(&reverse, net->node_count);
        for (uint32_t link = reverse.first[node]; link != UINT32_MAX; link = reverse.next[link]) {
            uint32_t from = reverse.from[link / 2];
            if (improve(net, from, &net->edges[link / 2])) {
                push(&reverse, from, net->node_count);
            }
        }
    }
    reverse_fini(&reverse);
}

static void drop_endless(struct net *net)
{
    for (uint32_t node = 0; node < net->node_count; node++) {
        uint32_t *link = &net->nodes[node].first_edge;
        while (*link != NO_EDGE) {
            const struct net_edge *edge = &net->edges[*link];
            if (edge_height(net, edge) == NET_NEVER) {
                *link = edge->next;
            } else {
                link = &net->edges[*link].next;
            }
        }
    }
}

/* A class ends where some edge or body tells a symbol from the one before it. */
static void classify(struct net *net)
{
    static const uint8_t body_cuts[] = {
        0x09, 0x0a, 0x0b, 0x20, '"',  '"' + 1, '/',  '0',  '8',  ':',  'A',  'D',
        'E',  'G',  '[',  '\\', ']',  '_',     '`',  'a',  'b',  'c',  'd',  'e',
        'f',  'g',  'n',  'o',  'r',  's',     't',  'u',  'v',  '{',  0x80, 0x90,
        0xa0, 0xc0, 0xc2, 0xe0, 0xe1, 0xed,    0xee, 0xf0, 0xf1, 0xf4, 0xf5};
    bool cuts[NET_SYMBOLS + 1] = {0};
    for (uint32_t i = 0; i < net->edge_count; i++) {
        if (net->edges[i].kind == NET_EDGE_SYMBOLS) {
            cuts[net->edges[i].lo] = true;
            cuts[net->edges[i].hi + 1] = true;
        }
    }
    for (uint32_t i = 0; net->body_count > 0 && i < sizeof(body_cuts); i++) {
        cuts[body_cuts[i]] = true;
    }
    for (uint32_t i = 1; i < net->names.count; i++) {
        cuts[net->names.nodes[i].byte] = true;
        cuts[net->names.nodes[i].byte + 1] = true;
    }
    cuts[NET_MARKER] = true;
    uint16_t class = 0;
    for (uint32_t symbol = 0; symbol < NET_SYMBOLS; symbol++) {
        class = (uint16_t)(class + (symbol > 0 && cuts[symbol]));
        net->class_of[symbol] = class;
    }
    net->class_count = (uint16_t)(class + 1);
}

enum err_code net_seal(struct net *net, uint32_t start, struct err *err)
{
    if (net->is_full) {
        return err_set(err, ERR_LIMIT,
                       "the grammar takes more than %u nodes or %u edges: use smaller counts",
                       NET_MAX_NODES, NET_MAX_EDGES);
    }
    net->start = start;
    measure(net);
    if (net->nodes[start].height == NET_NEVER) {
        return err_set(err, ERR_ARGUMENT, "nothing can match");
    }
    drop_endless(net);
    classify(net);
    return ERR_OK;
}

size_t net_bytes(const struct net *net)
{
    return net->node_cap * sizeof(net->nodes[0]) + net->edge_cap * sizeof(net->edges[0]) +
           net->body_cap * sizeof(net->bodies[0]) + net->names.cap * sizeof(net->names.nodes[0]);
}
