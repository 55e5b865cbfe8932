/* Byte-pair merging of one segment at a time.  One per call of tok_encode; one thread. */
#ifndef FRONTEND_TOKENIZER_BPE_H
#define FRONTEND_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "frontend/tokenizer.h"

struct tok_window;

struct tok_bpe {
    const struct tokenizer *tokenizer; /* borrowed */
    uint32_t *symbols;                 /* owned; [symbol_count]: the segment being gathered */
    size_t symbol_count;
    size_t symbol_cap;
    size_t window_symbols;     /* a long segment is merged by so many; any number gives the same */
    struct tok_window *window; /* owned; null until a long segment came */
};
void tok_bpe_init(struct tok_bpe *bpe, const struct tokenizer *tokenizer);
void tok_bpe_fini(struct tok_bpe *bpe);
void tok_bpe_push(struct tok_bpe *bpe, uint32_t symbol);
/* Merges the segment, appends what it became, begins another. */
void tok_bpe_flush(struct tok_bpe *bpe, struct tok_ids *ids);

#endif
