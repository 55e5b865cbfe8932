/* Byte-pair merging of one segment: lowest rank first, leftmost first.
 *
 * Words are short: a scan for the lowest rank beats any queue.  Longer segments are merged in
 * windows. */
#include "frontend/tokenizer_bpe.h"

#include <string.h>

#include "common/mem.h"
#include "frontend/tokenizer_image.h"
#include "frontend/tokenizer_window.h"

enum {
    SHORT_MAX_SYMBOLS = 48,
    WINDOW_SYMBOLS = 1024, /* a window and its queue stay in the first cache level */
};

void tok_bpe_init(struct tok_bpe *bpe, const struct tokenizer *tokenizer)
{
    *bpe = (struct tok_bpe){.tokenizer = tokenizer, .window_symbols = WINDOW_SYMBOLS};
}

void tok_bpe_fini(struct tok_bpe *bpe)
{
    tok_window_destroy(bpe->window);
    mem_free(bpe->symbols);
    *bpe = (struct tok_bpe){0};
}

void tok_bpe_push(struct tok_bpe *bpe, uint32_t symbol)
{
    if (bpe->symbol_count == bpe->symbol_cap) {
        bpe->symbol_cap = bpe->symbol_cap == 0 ? SHORT_MAX_SYMBOLS : bpe->symbol_cap * 2;
        bpe->symbols = mem_realloc(bpe->symbols, bpe->symbol_cap, sizeof(*bpe->symbols));
    }
    bpe->symbols[bpe->symbol_count++] = symbol;
}

static void merge_short(struct tok_bpe *bpe, struct tok_ids *out_ids)
{
    uint32_t ranks[SHORT_MAX_SYMBOLS];
    uint32_t *ids = bpe->symbols;
    size_t count = bpe->symbol_count;
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = tok_merge_rank(bpe->tokenizer, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = ranks[i] < ranks[best] ? i : best;
        }
        if (ranks[best] == TOK_NONE) {
            break;
        }
        ids[best] = bpe->tokenizer->merge_result[ranks[best]];
        count--;
        memmove(&ids[best + 1], &ids[best + 2], (count - best - 1) * sizeof(*ids));
        if (best + 1 < count) {
            memmove(&ranks[best + 1], &ranks[best + 2], (count - best - 2) * sizeof(*ranks));
            ranks[best] = tok_merge_rank(bpe->tokenizer, ids[best], ids[best + 1]);
        }
        if (best > 0) {
            ranks[best - 1] = tok_merge_rank(bpe->tokenizer, ids[best - 1], ids[best]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        tok_ids_push(out_ids, ids[i]);
    }
}

void tok_bpe_flush(struct tok_bpe *bpe, struct tok_ids *ids)
{
    if (bpe->symbol_count <= SHORT_MAX_SYMBOLS) {
        merge_short(bpe, ids);
    } else {
        if (bpe->window == NULL) {
            bpe->window = tok_window_create(bpe->tokenizer);
        }
        tok_window_merge(bpe->window, bpe->symbols, bpe->symbol_count, bpe->window_symbols, ids);
    }
    bpe->symbol_count = 0;
}
