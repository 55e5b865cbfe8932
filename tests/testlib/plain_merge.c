#include "tests/testlib/plain_merge.h"

#include <string.h>

#include "frontend/tokenizer_image.h"

void merge_plain(const struct tokenizer *tokenizer, struct tok_ids *ids)
{
    for (;;) {
        uint32_t best = TOK_NONE;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < ids->count; i++) {
            uint32_t rank = tok_merge_rank(tokenizer, ids->at[i], ids->at[i + 1]);
            best_at = rank < best ? i : best_at;
            best = rank < best ? rank : best;
        }
        if (best == TOK_NONE) {
            return;
        }
        ids->at[best_at] = tokenizer->merge_result[best];
        ids->count--;
        memmove(&ids->at[best_at + 1], &ids->at[best_at + 2],
                (ids->count - best_at - 1) * sizeof(*ids->at));
    }
}
