#include "frontend/constraint_tokens.h"

#include <stdbool.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"

struct token_rules {
    struct constraint base; /* first: fill and release recover the rest from it */
    uint32_t *allowed;      /* owned; [word_count] */
    uint32_t word_count;
    struct tok_ids *rows; /* owned; [row_count] */
    uint32_t row_count;
};

static void set_bit(uint32_t *words, uint32_t token)
{
    words[token / 32] |= 1U << token % 32;
}

static bool completes(const struct tok_ids *row, const uint32_t *output, uint32_t count)
{
    size_t head = row->count - 1;
    return head <= count &&
           (head == 0 || memcmp(output + count - head, row->at, head * sizeof(*output)) == 0);
}

static bool has_bit(const uint32_t *words, uint32_t word_count)
{
    uint32_t i = 0;
    while (i < word_count && words[i] == 0) {
        i++;
    }
    return i < word_count;
}

static void fill(struct constraint *constraint, const uint32_t *output, uint32_t count,
                 uint32_t *words, uint32_t word_count)
{
    const struct token_rules *rules = (const struct token_rules *)constraint;
    uint32_t own_count = num_min(word_count, rules->word_count);
    memcpy(words, rules->allowed, own_count * sizeof(*words));
    memset(words + own_count, 0, (word_count - own_count) * sizeof(*words));
    bool is_changed = false;
    for (uint32_t i = 0; i < rules->row_count; i++) {
        const struct tok_ids *row = &rules->rows[i];
        uint32_t last = row->at[row->count - 1];
        if (last / 32 < own_count && completes(row, output, count)) {
            words[last / 32] &= ~(1U << last % 32);
            is_changed = true;
        }
    }
    if (is_changed && !has_bit(words, own_count)) {
        memcpy(words, rules->allowed, own_count * sizeof(*words));
    }
}

static void release(struct constraint *constraint)
{
    struct token_rules *rules = (struct token_rules *)constraint;
    for (uint32_t i = 0; i < rules->row_count; i++) {
        tok_ids_fini(&rules->rows[i]);
    }
    mem_free(rules->rows);
    mem_free(rules->allowed);
    mem_free(rules);
}

struct constraint *constraint_tokens_create(const struct constraint_tokens *tokens)
{
    struct token_rules *rules = mem_zalloc(1, sizeof(*rules));
    rules->base = (struct constraint){.fill = fill, .release = release};
    rules->word_count = (tokens->vocab_tokens + 31) / 32;
    rules->allowed = mem_zalloc(rules->word_count, sizeof(*rules->allowed));
    for (uint32_t i = 0; tokens->allowed && i < tokens->allowed_count; i++) {
        set_bit(rules->allowed, tokens->allowed[i]);
    }
    for (uint32_t token = 0; !tokens->allowed && token < tokens->vocab_tokens; token++) {
        set_bit(rules->allowed, token);
    }
    rules->rows = mem_zalloc(tokens->row_count + 1, sizeof(*rules->rows));
    rules->row_count = tokens->row_count;
    for (uint32_t i = 0; i < tokens->row_count; i++) {
        for (size_t at = 0; at < tokens->rows[i].count; at++) {
            tok_ids_push(&rules->rows[i], tokens->rows[i].at[at]);
        }
    }
    return &rules->base;
}
