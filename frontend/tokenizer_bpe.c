/* Byte-pair merging of one segment: lowest rank first, leftmost first.
 *
 * Words are short: a scan for the lowest rank beats any queue.  A segment of any length is merged
 * through a queue ordered by (rank, position).  Most pairs of one rank arrive from left to right,
 * so each rank keeps such arrivals in a list of which only the front is in the heap; the rest enter
 * the heap themselves.  Text of one character then costs a constant per symbol. */
#include "frontend/tokenizer_bpe.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/tokenizer_image.h"

enum {
    SHORT_MAX_SYMBOLS = 48,
    HEAP_ARITY = 4,
    CHUNK_POSITIONS = 15,
    PREFETCH_DISTANCE = 6,
};

#define END UINT32_MAX

struct symbol {
    uint32_t id;
    uint32_t prev;
    uint32_t next;
    uint32_t rank; /* of the pair that begins here; TOK_NONE: none */
};

/* One cache line of a lane's positions, in ascending order. */
struct chunk {
    uint32_t next; /* END: the last */
    uint32_t positions[CHUNK_POSITIONS];
};

struct lane {
    uint32_t rank;
    uint32_t front; /* position in the heap on behalf of this lane */
    uint32_t last;
    uint32_t head; /* chunk with what is behind front; END: nothing */
    uint32_t tail;
    uint32_t head_used; /* positions taken from the head chunk */
    uint32_t tail_count;
    bool is_live;
};

struct tok_bpe_long {
    struct symbol *symbols; /* [symbol_cap] */
    size_t symbol_cap;
    uint64_t *heap; /* rank << 32 | position */
    size_t heap_count;
    size_t heap_cap;
    uint32_t *lane_of_rank; /* [merge_count]: 1 + index; 0: none */
    struct lane *lanes;
    size_t lane_count;
    size_t lane_cap;
    struct chunk *chunks;
    size_t chunk_count;
    size_t chunk_cap;
    uint32_t free_chunk;
};

void tok_bpe_init(struct tok_bpe *bpe, const struct tokenizer *tokenizer)
{
    *bpe = (struct tok_bpe){.tokenizer = tokenizer};
}

void tok_bpe_fini(struct tok_bpe *bpe)
{
    struct tok_bpe_long *work = bpe->work;
    if (work != NULL) {
        mem_free(work->symbols);
        mem_free(work->heap);
        mem_free(work->lane_of_rank);
        mem_free(work->lanes);
        mem_free(work->chunks);
        mem_free(work);
    }
    mem_free(bpe->symbols);
    *bpe = (struct tok_bpe){0};
}

static size_t grown(size_t cap, size_t need)
{
    cap = cap < SHORT_MAX_SYMBOLS ? SHORT_MAX_SYMBOLS : cap;
    while (cap < need) {
        cap *= 2;
    }
    return cap;
}

void tok_bpe_push(struct tok_bpe *bpe, uint32_t symbol)
{
    if (bpe->symbol_count == bpe->symbol_cap) {
        bpe->symbol_cap = grown(bpe->symbol_cap, bpe->symbol_count + 1);
        bpe->symbols = mem_realloc(bpe->symbols, bpe->symbol_cap, sizeof(*bpe->symbols));
    }
    bpe->symbols[bpe->symbol_count++] = symbol;
}

static void merge_short(struct tok_bpe *bpe)
{
    const struct tok_merge_slot *pairs[SHORT_MAX_SYMBOLS];
    uint32_t *ids = bpe->symbols;
    size_t count = bpe->symbol_count;
    for (size_t i = 0; i + 1 < count; i++) {
        pairs[i] = tok_merge_find(bpe->tokenizer, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = pairs[i]->rank < pairs[best]->rank ? i : best;
        }
        if (pairs[best]->rank == TOK_NONE) {
            break;
        }
        ids[best] = pairs[best]->result;
        count--;
        memmove(&ids[best + 1], &ids[best + 2], (count - best - 1) * sizeof(*ids));
        if (best + 1 < count) {
            memmove(&pairs[best + 1], &pairs[best + 2],
                    (count - best - 2) * sizeof(const struct tok_merge_slot *));
            pairs[best] = tok_merge_find(bpe->tokenizer, ids[best], ids[best + 1]);
        }
        if (best > 0) {
            pairs[best - 1] = tok_merge_find(bpe->tokenizer, ids[best - 1], ids[best]);
        }
    }
    bpe->symbol_count = count;
}

static void heap_sift_down(struct tok_bpe_long *work, uint64_t key)
{
    uint64_t *heap = work->heap;
    size_t at = 0;
    for (;;) {
        size_t child = at * HEAP_ARITY + 1;
        if (child >= work->heap_count) {
            break;
        }
        size_t end = child + HEAP_ARITY < work->heap_count ? child + HEAP_ARITY : work->heap_count;
        size_t least = child;
        for (size_t i = child + 1; i < end; i++) {
            least = heap[i] < heap[least] ? i : least;
        }
        if (heap[least] >= key) {
            break;
        }
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = key;
}

static void heap_pop(struct tok_bpe_long *work)
{
    work->heap_count--;
    if (work->heap_count > 0) {
        heap_sift_down(work, work->heap[work->heap_count]);
    }
}

static void heap_push(struct tok_bpe_long *work, uint64_t key)
{
    if (work->heap_count == work->heap_cap) {
        work->heap_cap = grown(work->heap_cap, work->heap_count + 1);
        work->heap = mem_realloc(work->heap, work->heap_cap, sizeof(*work->heap));
    }
    size_t at = work->heap_count++;
    while (at > 0) {
        size_t parent = (at - 1) / HEAP_ARITY;
        if (work->heap[parent] <= key) {
            break;
        }
        work->heap[at] = work->heap[parent];
        at = parent;
    }
    work->heap[at] = key;
}

static uint32_t chunk_take(struct tok_bpe_long *work)
{
    uint32_t index = work->free_chunk;
    if (index != END) {
        work->free_chunk = work->chunks[index].next;
    } else {
        if (work->chunk_count == work->chunk_cap) {
            work->chunk_cap = grown(work->chunk_cap, work->chunk_count + 1);
            work->chunks = mem_realloc(work->chunks, work->chunk_cap, sizeof(*work->chunks));
        }
        index = (uint32_t)work->chunk_count++;
    }
    work->chunks[index].next = END;
    return index;
}

static void lane_append(struct tok_bpe_long *work, struct lane *lane, uint32_t position)
{
    if (lane->head == END || lane->tail_count == CHUNK_POSITIONS) {
        uint32_t index = chunk_take(work);
        if (lane->head == END) {
            lane->head = index;
            lane->head_used = 0;
        } else {
            work->chunks[lane->tail].next = index;
        }
        lane->tail = index;
        lane->tail_count = 0;
    }
    work->chunks[lane->tail].positions[lane->tail_count++] = position;
    lane->last = position;
}

/* Takes the next position behind the front; END where there is none. */
static uint32_t lane_take(struct tok_bpe_long *work, struct lane *lane)
{
    if (lane->head == END) {
        return END;
    }
    struct chunk *chunk = &work->chunks[lane->head];
    uint32_t count = lane->head == lane->tail ? lane->tail_count : CHUNK_POSITIONS;
    uint32_t position = chunk->positions[lane->head_used++];
    if (lane->head_used + PREFETCH_DISTANCE < count) {
        __builtin_prefetch(&work->symbols[chunk->positions[lane->head_used + PREFETCH_DISTANCE]]);
    }
    if (lane->head_used == count) {
        uint32_t index = lane->head;
        lane->head = chunk->next;
        lane->head_used = 0;
        chunk->next = work->free_chunk;
        work->free_chunk = index;
    }
    return position;
}

static struct lane *lane_for(struct tok_bpe_long *work, uint32_t rank)
{
    uint32_t number = work->lane_of_rank[rank];
    if (number == 0) {
        if (work->lane_count == work->lane_cap) {
            work->lane_cap = grown(work->lane_cap, work->lane_count + 1);
            work->lanes = mem_realloc(work->lanes, work->lane_cap, sizeof(*work->lanes));
        }
        work->lanes[work->lane_count++] = (struct lane){.rank = rank, .head = END, .tail = END};
        number = (uint32_t)work->lane_count;
        work->lane_of_rank[rank] = number;
    }
    return &work->lanes[number - 1];
}

static void queue_push(struct tok_bpe_long *work, uint32_t position)
{
    uint32_t rank = work->symbols[position].rank;
    struct lane *lane = lane_for(work, rank);
    if (lane->is_live && position > lane->last) {
        lane_append(work, lane, position);
        return;
    }
    if (!lane->is_live) {
        lane->is_live = true;
        lane->front = position;
        lane->last = position;
    }
    heap_push(work, ((uint64_t)rank << 32) | position);
}

/* Removes the least entry; the next valid one of its lane takes its place in the heap. */
static uint64_t queue_pop(struct tok_bpe_long *work)
{
    uint64_t key = work->heap[0];
    uint32_t rank = (uint32_t)(key >> 32);
    struct lane *lane = &work->lanes[work->lane_of_rank[rank] - 1];
    if (!lane->is_live || lane->front != (uint32_t)key) {
        heap_pop(work);
        return key;
    }
    uint32_t position = lane_take(work, lane);
    while (position != END && work->symbols[position].rank != rank) {
        position = lane_take(work, lane);
    }
    if (position == END) {
        lane->is_live = false;
        heap_pop(work);
    } else {
        lane->front = position;
        heap_sift_down(work, ((uint64_t)rank << 32) | position);
    }
    return key;
}

static void long_reserve(struct tok_bpe *bpe)
{
    if (bpe->work == NULL) {
        bpe->work = mem_zalloc(1, sizeof(*bpe->work));
        bpe->work->lane_of_rank =
            mem_zalloc(bpe->tokenizer->header->merge_count, sizeof(*bpe->work->lane_of_rank));
    }
    struct tok_bpe_long *work = bpe->work;
    if (work->symbol_cap < bpe->symbol_count) {
        work->symbol_cap = bpe->symbol_cap;
        work->symbols = mem_realloc(work->symbols, work->symbol_cap, sizeof(*work->symbols));
    }
    work->chunk_count = 0;
    work->free_chunk = END;
}

/* Sets the rank of the pair that begins at position and queues it. */
static void pair_update(struct tok_bpe *bpe, uint32_t position)
{
    struct symbol *symbols = bpe->work->symbols;
    uint32_t right = symbols[position].next;
    symbols[position].rank =
        right == END
            ? TOK_NONE
            : tok_merge_find(bpe->tokenizer, symbols[position].id, symbols[right].id)->rank;
    if (symbols[position].rank != TOK_NONE) {
        queue_push(bpe->work, position);
    }
}

static void merge_at(struct tok_bpe *bpe, uint32_t position)
{
    struct symbol *symbols = bpe->work->symbols;
    uint32_t right = symbols[position].next;
    uint32_t after = symbols[right].next;
    symbols[position].id = bpe->tokenizer->merge_result[symbols[position].rank];
    symbols[right].rank = TOK_NONE;
    symbols[position].next = after;
    if (after != END) {
        symbols[after].prev = position;
    }
    if (symbols[position].prev != END) {
        pair_update(bpe, symbols[position].prev);
    }
    pair_update(bpe, position);
}

static void merge_long(struct tok_bpe *bpe)
{
    assert(bpe->symbol_count < END);
    long_reserve(bpe);
    struct tok_bpe_long *work = bpe->work;
    uint32_t count = (uint32_t)bpe->symbol_count;
    for (uint32_t i = 0; i < count; i++) {
        work->symbols[i] = (struct symbol){.id = bpe->symbols[i],
                                           .prev = i == 0 ? END : i - 1,
                                           .next = i + 1 == count ? END : i + 1};
    }
    for (uint32_t i = 0; i < count; i++) {
        pair_update(bpe, i);
    }
    while (work->heap_count > 0) {
        uint64_t key = queue_pop(work);
        if (work->symbols[(uint32_t)key].rank == (uint32_t)(key >> 32)) {
            merge_at(bpe, (uint32_t)key);
        }
    }
    for (size_t i = 0; i < work->lane_count; i++) {
        work->lane_of_rank[work->lanes[i].rank] = 0;
    }
    work->lane_count = 0;
    bpe->symbol_count = 0;
    for (uint32_t i = 0; i != END; i = work->symbols[i].next) {
        bpe->symbols[bpe->symbol_count++] = work->symbols[i].id;
    }
}

void tok_bpe_flush(struct tok_bpe *bpe, struct tok_ids *ids)
{
    if (bpe->symbol_count > SHORT_MAX_SYMBOLS) {
        merge_long(bpe);
    } else if (bpe->symbol_count > 1) {
        merge_short(bpe);
    }
    for (size_t i = 0; i < bpe->symbol_count; i++) {
        tok_ids_push(ids, bpe->symbols[i]);
    }
    bpe->symbol_count = 0;
}
