/* Which tokens may come next in a state of an automaton.
 *
 * A state's places are looked at apart: a body takes the ready sets of its kind and walks only what
 * remains of the other tokens behind their plain characters; everything else walks the whole trie,
 * where it is turned away early.  One thread at a time per automaton. */
#ifndef FRONTEND_GRAMMAR_MASK_H
#define FRONTEND_GRAMMAR_MASK_H

#include <stdint.h>

#include "frontend/grammar_auto.h"
#include "frontend/grammar_vocab.h"

/* out_words [vocab->words] becomes the set of tokens behind which the state is not dead; special tokens
 * are not in it.  scratch_words likewise, overwritten. */
void grammar_mask_fill(struct automaton *automaton, const struct vocab *vocab, uint32_t state,
                       uint32_t *out_words, uint32_t *scratch_words);

#endif
