/* Byte-pair merging of a long segment, a window of symbols at a time, as if merged whole.
 *
 * What a window's last symbols become depends on what follows it.  So a window keeps a border: the
 * symbols before it are in the state that merging the whole segment would have reached, those behind
 * it are left to the next window.  At first the border is the window's end.  The symbol before it
 * could be merged with any entry of the vocabulary that the text behind the border begins with; when
 * the lowest rank of such merges comes up in the order of merges, the border goes back before that
 * symbol, and merging goes on in front of it.  Where no such merge is left, no merge of the whole
 * segment spans the border. */
#ifndef FRONTEND_TOKENIZER_WINDOW_H
#define FRONTEND_TOKENIZER_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "frontend/tokenizer.h"

struct tok_window; /* working memory; one thread at a time */

/* tokenizer is borrowed. */
struct tok_window *tok_window_create(const struct tokenizer *tokenizer);
void tok_window_destroy(struct tok_window *window);

/* Appends to *ids what symbols[symbol_count] become.  window_symbols, at least 1, is the length of a
 * first attempt: a window whose border goes back too far is tried again, many times as long. */
void tok_window_merge(struct tok_window *window, const uint32_t *symbols, size_t symbol_count,
                      size_t window_symbols, struct tok_ids *ids);

#endif
