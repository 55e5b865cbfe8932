/* The order of merges against a sort of everything that was put in. */
#include "frontend/tokenizer_queue.h"

#include <stdlib.h>

#include "common/mem.h"
#include "frontend/tokenizer_image.h"
#include "tests/testlib/test.h"

static void test_empty(void)
{
    struct tok_queue queue;
    tok_queue_init(&queue);
    test_true(tok_queue_least(&queue) == TOK_QUEUE_EMPTY);
    tok_queue_reset(&queue, 0);
    tok_queue_start(&queue);
    test_true(tok_queue_least(&queue) == TOK_QUEUE_EMPTY);
    tok_queue_push(&queue, tok_queue_key(TOK_MAX_MERGES - 1, UINT32_MAX));
    test_eq_u64(tok_queue_least(&queue), tok_queue_key(TOK_MAX_MERGES - 1, UINT32_MAX));
    tok_queue_pop(&queue);
    test_true(tok_queue_least(&queue) == TOK_QUEUE_EMPTY);
    tok_queue_fini(&queue);
}

/* Keys in the plainest order: an array without one. */
struct plain {
    uint64_t *keys;
    size_t count;
};

static void plain_pop(struct plain *plain, uint64_t key)
{
    size_t least = 0;
    for (size_t i = 1; i < plain->count; i++) {
        least = plain->keys[i] < plain->keys[least] ? i : least;
    }
    test_eq_u64(key, plain->count == 0 ? TOK_QUEUE_EMPTY : plain->keys[least]);
    if (plain->count > 0) {
        plain->keys[least] = plain->keys[--plain->count];
    }
}

static uint64_t random_key(uint64_t *state, uint32_t rank_count, uint32_t position)
{
    return tok_queue_key((uint32_t)(test_random(state) % rank_count), position);
}

/* Pops and pushes between each other, keys below those popped before among them. */
static void check_round(struct tok_queue *queue, uint64_t *state, uint32_t pair_count)
{
    const uint32_t rank_counts[] = {1, 5, 300, 70000, TOK_MAX_MERGES};
    uint32_t rank_count = rank_counts[test_random(state) % 5];
    struct plain plain = {.keys = mem_zalloc(2 * (size_t)pair_count + 1, sizeof(uint64_t))};
    tok_queue_reset(queue, pair_count);
    for (uint32_t i = 0; i < pair_count; i++) {
        uint64_t key = random_key(state, rank_count, i);
        tok_queue_add(queue, key);
        plain.keys[plain.count++] = key;
    }
    tok_queue_start(queue);
    for (uint32_t i = 0; i < pair_count; i++) {
        if (test_random(state) % 2 == 0) {
            uint64_t key = random_key(state, rank_count, pair_count + i);
            tok_queue_push(queue, key);
            plain.keys[plain.count++] = key;
        } else if (plain.count > 0) {
            plain_pop(&plain, tok_queue_least(queue));
            tok_queue_pop(queue);
        }
    }
    bool is_left_full = test_random(state) % 4 == 0; /* the next reset forgets what is left */
    while (plain.count > 0 && !is_left_full) {
        plain_pop(&plain, tok_queue_least(queue));
        tok_queue_pop(queue);
    }
    if (!is_left_full) {
        test_true(tok_queue_least(queue) == TOK_QUEUE_EMPTY);
    }
    mem_free(plain.keys);
}

static void test_order(void)
{
    struct tok_queue queue;
    uint64_t state = 31;
    tok_queue_init(&queue);
    for (int round = 0; round < 400; round++) {
        check_round(&queue, &state, (uint32_t)(test_random(&state) % (round % 8 == 0 ? 900 : 80)));
    }
    tok_queue_fini(&queue);
}

static const struct test_case cases[] = {
    TEST(test_empty),
    TEST(test_order),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
