/* Order of merges: the lowest rank first, then the leftmost.
 *
 * The pairs that a window begins with are known at once and sorted once; only those that merging
 * makes go through a heap, which stays small.  One thread. */
#ifndef FRONTEND_TOKENIZER_QUEUE_H
#define FRONTEND_TOKENIZER_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#define TOK_QUEUE_EMPTY UINT64_MAX /* above every key */

struct tok_queue {
    uint64_t *sorted; /* owned; [sorted_count], then one TOK_QUEUE_EMPTY */
    uint64_t *spare;  /* owned; [sorted_cap]: the other side of sorting */
    size_t sorted_at;
    size_t sorted_count;
    size_t sorted_cap;
    uint64_t *heap; /* owned; [heap_count], then TOK_QUEUE_EMPTY up to heap_cap */
    size_t heap_count;
    size_t heap_cap;
};

/* Key of the pair whose left symbol is at position; rank is below TOK_MAX_MERGES. */
static inline uint64_t tok_queue_key(uint32_t rank, uint32_t position)
{
    return ((uint64_t)rank << 32) | position;
}

void tok_queue_init(struct tok_queue *queue);
void tok_queue_fini(struct tok_queue *queue);

/* Forgets everything; room for pair_cap calls of tok_queue_add. */
void tok_queue_reset(struct tok_queue *queue, size_t pair_cap);

/* Before tok_queue_start, by ascending position. */
static inline void tok_queue_add(struct tok_queue *queue, uint64_t key)
{
    queue->sorted[queue->sorted_count++] = key;
}
void tok_queue_start(struct tok_queue *queue);

void tok_queue_push(struct tok_queue *queue, uint64_t key);

/* The least key, TOK_QUEUE_EMPTY where there is none; it stays. */
static inline uint64_t tok_queue_least(const struct tok_queue *queue)
{
    uint64_t first = queue->sorted[queue->sorted_at];
    return first < queue->heap[0] ? first : queue->heap[0];
}

/* Removes the least key; the queue is not empty. */
void tok_queue_pop(struct tok_queue *queue);

#endif
