/* What merging is by definition, in quadratic time: the twin of frontend/tokenizer_window.h. */
#ifndef TESTS_TESTLIB_PLAIN_MERGE_H
#define TESTS_TESTLIB_PLAIN_MERGE_H

struct tok_ids;
struct tokenizer;

/* Merges ids in place: always the lowest rank, of equal ones the leftmost, over all symbols. */
void merge_plain(const struct tokenizer *tokenizer, struct tok_ids *ids);

#endif
