#include "frontend/tokenizer_window.h"

#include <assert.h>
#include <string.h>

#include "common/mem.h"
#include "frontend/tokenizer_image.h"
#include "frontend/tokenizer_queue.h"

enum {
    GROWTH = 16,
    MIN_PROGRESS = 4, /* of a window, one part in so many must be done for good */
};

#define END UINT32_MAX

struct symbol {
    uint32_t id;
    uint32_t prev;
    uint32_t next;
    uint32_t rank; /* of the pair that begins here; TOK_NONE: none */
};

/* An entry that the text behind the border begins with. */
struct right {
    uint32_t id;
    uint64_t made_key; /* no merging makes this entry without a key as great; 0: it is there */
};

struct tok_window {
    const struct tokenizer *tokenizer; /* borrowed */
    const uint32_t *segment;           /* borrowed; [segment_count] */
    size_t segment_count;
    struct symbol *symbols; /* [symbol_cap]; positions count from the window's start */
    size_t symbol_cap;
    struct tok_queue queue;
    size_t start;         /* of the window in the segment */
    uint32_t last;        /* position of the symbol before the border */
    uint64_t reached_key; /* the greatest that came up so far */
    uint64_t border_key;  /* when the last symbol may be merged across the border, at the soonest;
                             TOK_QUEUE_EMPTY: never */
    struct right *rights; /* [right_count] */
    uint32_t right_count;
    char *right_text;
};

struct tok_window *tok_window_create(const struct tokenizer *tokenizer)
{
    struct tok_window *window = mem_zalloc(1, sizeof(*window));
    uint32_t longest_bytes = 1;
    for (size_t byte = 0; byte < 256; byte++) {
        uint32_t bytes = tokenizer->longest_bytes[byte];
        longest_bytes = bytes > longest_bytes ? bytes : longest_bytes;
    }
    window->tokenizer = tokenizer;
    window->right_text = mem_zalloc(longest_bytes, 1);
    window->rights = mem_zalloc(longest_bytes, sizeof(*window->rights));
    tok_queue_init(&window->queue);
    return window;
}

void tok_window_destroy(struct tok_window *window)
{
    if (window == NULL) {
        return;
    }
    tok_queue_fini(&window->queue);
    mem_free(window->symbols);
    mem_free(window->rights);
    mem_free(window->right_text);
    mem_free(window);
}

/* Finds what the symbol behind the border may be or become: that symbol, which is
 * segment[border..end) merged to id, and entries that go on where it ends.  Where it is still as the
 * text gave it, those begin with a merge of two symbols that are so too: the least key of such merges
 * must have come up. */
static void find_rights(struct tok_window *window, size_t border, size_t end, uint32_t id)
{
    const struct tokenizer *tokenizer = window->tokenizer;
    const uint32_t *segment = window->segment;
    const char *text = tokenizer->text + tokenizer->text_start[id];
    size_t longest_bytes = tokenizer->longest_bytes[(unsigned char)*text];
    size_t text_bytes = tokenizer->text_start[id + 1] - tokenizer->text_start[id];
    uint64_t made_key = end == border + 1 ? TOK_QUEUE_EMPTY : 0;
    memcpy(window->right_text, text, text_bytes);
    window->rights[0] = (struct right){.id = id};
    window->right_count = 1;
    for (size_t i = end; i < window->segment_count; i++) {
        text = tokenizer->text + tokenizer->text_start[segment[i]];
        size_t symbol_bytes =
            tokenizer->text_start[segment[i] + 1] - tokenizer->text_start[segment[i]];
        if (text_bytes + symbol_bytes > longest_bytes) {
            break;
        }
        memcpy(window->right_text + text_bytes, text, symbol_bytes);
        text_bytes += symbol_bytes;
        uint32_t rank = tok_merge_rank(tokenizer, segment[i - 1], segment[i]);
        uint64_t key = tok_queue_key(rank, (uint32_t)(i - 1 - window->start));
        made_key = key < made_key ? key : made_key;
        id = tok_find_text(tokenizer, window->right_text, text_bytes);
        if (id != TOK_NONE) {
            window->rights[window->right_count++] = (struct right){id, made_key};
        }
    }
}

static void update_border_key(struct tok_window *window)
{
    window->border_key = TOK_QUEUE_EMPTY;
    for (uint32_t i = 0; i < window->right_count; i++) {
        const struct right *right = &window->rights[i];
        uint32_t rank =
            tok_merge_rank(window->tokenizer, window->symbols[window->last].id, right->id);
        if (rank == TOK_NONE) {
            continue;
        }
        uint64_t key = tok_queue_key(rank, window->last);
        if (right->made_key > window->reached_key && right->made_key > key) {
            key = right->made_key;
        }
        window->border_key = key < window->border_key ? key : window->border_key;
    }
}

static void fill(struct tok_window *window, uint32_t count)
{
    const uint32_t *ids = window->segment + window->start;
    if (window->symbol_cap < count) {
        window->symbol_cap = count;
        window->symbols = mem_realloc(window->symbols, count, sizeof(*window->symbols));
    }
    tok_queue_reset(&window->queue, count);
    for (uint32_t i = 0; i < count; i++) {
        bool is_last = i + 1 == count;
        uint32_t rank = is_last ? TOK_NONE : tok_merge_rank(window->tokenizer, ids[i], ids[i + 1]);
        window->symbols[i] = (struct symbol){.id = ids[i],
                                             .prev = i == 0 ? END : i - 1,
                                             .next = is_last ? END : i + 1,
                                             .rank = rank};
        if (rank != TOK_NONE) {
            tok_queue_add(&window->queue, tok_queue_key(rank, i));
        }
    }
    tok_queue_start(&window->queue);
    window->last = count - 1;
    window->reached_key = 0;
    size_t border = window->start + count;
    window->right_count = 0;
    if (border < window->segment_count) {
        find_rights(window, border, border + 1, window->segment[border]);
    }
    update_border_key(window);
}

/* Sets the rank of the pair that begins at position and queues it. */
static void update_pair(struct tok_window *window, uint32_t position)
{
    struct symbol *left = &window->symbols[position];
    left->rank = tok_merge_rank(window->tokenizer, left->id, window->symbols[left->next].id);
    if (left->rank != TOK_NONE) {
        tok_queue_push(&window->queue, tok_queue_key(left->rank, position));
    }
}

static void merge_at(struct tok_window *window, uint32_t position)
{
    struct symbol *left = &window->symbols[position];
    struct symbol *right = &window->symbols[left->next];
    left->id = window->tokenizer->merge_result[left->rank];
    left->next = right->next;
    right->rank = TOK_NONE;
    if (left->prev != END) {
        update_pair(window, left->prev);
    }
    if (left->next != END) {
        window->symbols[left->next].prev = position;
        update_pair(window, position);
    } else {
        left->rank = TOK_NONE;
        window->last = position;
        update_border_key(window);
    }
}

/* The last symbol may be merged with what follows: it is left to the next window, and begins no pair
 * here.  Gives the new border. */
static uint32_t move_border_back(struct tok_window *window, uint32_t border)
{
    uint32_t position = window->last;
    window->last = window->symbols[position].prev;
    window->symbols[window->last].next = END;
    window->symbols[window->last].rank = TOK_NONE;
    find_rights(window, window->start + position, window->start + border,
                window->symbols[position].id);
    update_border_key(window);
    return position;
}

/* Merges a window of count symbols.  Gives the symbols of the segment that are done, whose results
 * it appends; 0 where they are too few. */
static uint32_t merge_window(struct tok_window *window, uint32_t count, struct tok_ids *ids)
{
    uint32_t border = count;
    fill(window, count);
    for (;;) {
        uint64_t key = tok_queue_least(&window->queue);
        if (key == TOK_QUEUE_EMPTY && window->border_key == TOK_QUEUE_EMPTY) {
            break;
        }
        window->reached_key = key > window->reached_key ? key : window->reached_key;
        if (window->border_key < key) {
            if (window->last <= count / MIN_PROGRESS) {
                return 0;
            }
            border = move_border_back(window, border);
            continue;
        }
        tok_queue_pop(&window->queue);
        uint32_t position = (uint32_t)key;
        if (window->symbols[position].rank == (uint32_t)(key >> 32)) {
            merge_at(window, position);
        }
    }
    for (uint32_t i = 0; i != END; i = window->symbols[i].next) {
        tok_ids_push(ids, window->symbols[i].id);
    }
    return border;
}

void tok_window_merge(struct tok_window *window, const uint32_t *symbols, size_t symbol_count,
                      size_t window_symbols, struct tok_ids *ids)
{
    assert(symbol_count < END);
    window->segment = symbols;
    window->segment_count = symbol_count;
    window->start = 0;
    size_t want = window_symbols;
    while (window->start < symbol_count) {
        size_t left = symbol_count - window->start;
        uint32_t done = merge_window(window, (uint32_t)(want < left ? want : left), ids);
        window->start += done;
        want = done == 0 ? want * GROWTH : window_symbols;
    }
}
