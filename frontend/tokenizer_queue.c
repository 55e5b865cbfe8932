#include "frontend/tokenizer_queue.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/tokenizer_image.h"

enum {
    HEAP_ARITY = 4,
    HEAP_MIN_CAP = 64,
    RANK_SHIFT = 32,
    RANK_END_SHIFT = RANK_SHIFT + TOK_RANK_BITS,
    DIGIT_BITS = 8,
    DIGIT_COUNT = 1 << DIGIT_BITS,
    SORT_MIN_COUNT = 48, /* fewer are sorted by the heap */
};

static void heap_grow(struct tok_queue *queue)
{
    size_t cap = queue->heap_cap == 0 ? HEAP_MIN_CAP : queue->heap_cap * 2;
    queue->heap = mem_realloc(queue->heap, cap, sizeof(*queue->heap));
    while (queue->heap_cap < cap) {
        queue->heap[queue->heap_cap++] = TOK_QUEUE_EMPTY;
    }
}

void tok_queue_init(struct tok_queue *queue)
{
    *queue = (struct tok_queue){0};
    heap_grow(queue);
    tok_queue_reset(queue, 0);
}

void tok_queue_fini(struct tok_queue *queue)
{
    mem_free(queue->sorted);
    mem_free(queue->spare);
    mem_free(queue->heap);
    *queue = (struct tok_queue){0};
}

void tok_queue_reset(struct tok_queue *queue, size_t pair_cap)
{
    if (queue->sorted == NULL || queue->sorted_cap < pair_cap) {
        queue->sorted_cap = pair_cap;
        queue->sorted = mem_realloc(queue->sorted, pair_cap + 1, sizeof(*queue->sorted));
        queue->spare = mem_realloc(queue->spare, pair_cap + 1, sizeof(*queue->spare));
    }
    queue->sorted_at = 0;
    queue->sorted_count = 0;
    queue->sorted[0] = TOK_QUEUE_EMPTY;
    while (queue->heap_count > 0) {
        queue->heap[--queue->heap_count] = TOK_QUEUE_EMPTY;
    }
}

/* Stable by one digit of the rank. */
static void sort_by_digit(const uint64_t *from, uint64_t *to, size_t count, unsigned shift)
{
    uint32_t starts[DIGIT_COUNT] = {0};
    for (size_t i = 0; i < count; i++) {
        starts[(from[i] >> shift) % DIGIT_COUNT]++;
    }
    uint32_t sum = 0;
    for (size_t digit = 0; digit < DIGIT_COUNT; digit++) {
        uint32_t digit_count = starts[digit];
        starts[digit] = sum;
        sum += digit_count;
    }
    for (size_t i = 0; i < count; i++) {
        to[starts[(from[i] >> shift) % DIGIT_COUNT]++] = from[i];
    }
}

void tok_queue_start(struct tok_queue *queue)
{
    size_t count = queue->sorted_count;
    if (count < SORT_MIN_COUNT) {
        queue->sorted_count = 0;
        for (size_t i = 0; i < count; i++) {
            tok_queue_push(queue, queue->sorted[i]);
        }
    }
    /* Equal ranks keep their order, which is that of the positions. */
    for (unsigned shift = RANK_SHIFT; shift < RANK_END_SHIFT && queue->sorted_count > 0;
         shift += DIGIT_BITS) {
        sort_by_digit(queue->sorted, queue->spare, count, shift);
        uint64_t *sorted = queue->spare;
        queue->spare = queue->sorted;
        queue->sorted = sorted;
    }
    queue->sorted[queue->sorted_count] = TOK_QUEUE_EMPTY;
}

/* Writes key at a free place, or at one above it where greater keys move down. */
static void sift_up(uint64_t *heap, size_t at, uint64_t key)
{
    while (at > 0) {
        size_t parent = (at - 1) / HEAP_ARITY;
        if (heap[parent] <= key) {
            break;
        }
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = key;
}

void tok_queue_push(struct tok_queue *queue, uint64_t key)
{
    if (queue->heap_count + HEAP_ARITY >= queue->heap_cap) {
        heap_grow(queue);
    }
    sift_up(queue->heap, queue->heap_count++, key);
}

/* The last key belongs near the bottom: the least ones move up until a place is free there. */
static void heap_pop(struct tok_queue *queue)
{
    uint64_t *heap = queue->heap;
    size_t count = --queue->heap_count;
    uint64_t key = heap[count];
    heap[count] = TOK_QUEUE_EMPTY;
    if (count == 0) {
        return;
    }
    size_t at = 0;
    for (size_t child = 1; child < count; child = at * HEAP_ARITY + 1) {
        size_t left = heap[child + 1] < heap[child] ? child + 1 : child;
        size_t right = heap[child + 3] < heap[child + 2] ? child + 3 : child + 2;
        size_t least = heap[right] < heap[left] ? right : left;
        heap[at] = heap[least];
        at = least;
    }
    sift_up(heap, at, key);
}

void tok_queue_pop(struct tok_queue *queue)
{
    if (queue->sorted[queue->sorted_at] < queue->heap[0]) {
        queue->sorted_at++;
    } else {
        heap_pop(queue);
    }
}
