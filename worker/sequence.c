#include "worker/sequence.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"

static struct account_family *family_of(struct account *account, enum runner_family family)
{
    return family == RUNNER_FAMILY_LOCAL ? &account->local : &account->global;
}

enum err_code seq_open(struct sequence *seq, const struct seq_home *home,
                       const struct plan_admit *admit, struct err *err)
{
    assert(seq->state == SEQ_STATE_FREE);
    struct sequence opened = {
        .state = SEQ_STATE_WAITING,
        .slot = home->slot,
        .seq_id = admit->seq_id,
        .session = home->session,
        .writer = home->writer,
        .token_count = admit->prompt.count,
        .prompt_tokens = admit->prompt.count,
        .max_total_tokens = admit->max_total,
        .logprob_pairs = admit->logprobs == 0 ? 0 : admit->logprobs - 1,
        .prompt_logprob_pairs = admit->prompt_logprobs == 0 ? 0 : admit->prompt_logprobs - 1,
        .wants_logprobs = admit->logprobs != 0,
        .wants_prompt_logprobs = admit->prompt_logprobs != 0,
        .is_constrained = admit->constrained,
    };
    /* Zeroed pages of the address space cost nothing until they are written. */
    opened.tokens = mem_try_zalloc(admit->max_total, sizeof(*opened.tokens));
    uint32_t most_pages = num_ceil_div(admit->max_total, home->page_tokens);
    opened.pages[RUNNER_FAMILY_GLOBAL].cap = most_pages;
    opened.pages[RUNNER_FAMILY_LOCAL].cap = num_min(most_pages, home->most_local_pages);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        opened.pages[f].at = mem_try_zalloc(opened.pages[f].cap, sizeof(*opened.pages[f].at));
    }
    if (opened.tokens == NULL || opened.pages[0].at == NULL || opened.pages[1].at == NULL) {
        mem_free(opened.tokens);
        mem_free(opened.pages[0].at);
        mem_free(opened.pages[1].at);
        return err_set(err, ERR_MEMORY, "no memory for a sequence of %u tokens", admit->max_total);
    }
    memcpy(opened.tokens, admit->prompt.at, (size_t)admit->prompt.count * sizeof(*opened.tokens));
    *seq = opened;
    return ERR_OK;
}

void seq_close(struct sequence *seq)
{
    assert(seq->launched_rows == 0);
    assert(seq->account.local.resident_pages == 0 && seq->account.global.resident_pages == 0);
    mem_free(seq->tokens);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        mem_free(seq->pages[f].at);
    }
    *seq = (struct sequence){.state = SEQ_STATE_FREE};
}

uint32_t seq_device_position(const struct sequence *seq)
{
    assert(seq->held_tokens <= seq->account.launched_tokens);
    return seq->account.launched_tokens - seq->held_tokens;
}

enum err_code seq_need(const struct sequence *seq, const struct account_geometry *geometry,
                       uint32_t row_tokens, struct account_need *out_need, struct err *err)
{
    return account_need(&seq->account, geometry, row_tokens, out_need, err);
}

void seq_launch(struct sequence *seq, const struct account_need *need,
                const struct pool pools[RUNNER_FAMILY_COUNT],
                const uint32_t first_reserved[RUNNER_FAMILY_COUNT], uint32_t row_tokens)
{
    assert(seq->state == SEQ_STATE_WAITING || seq->state == SEQ_STATE_RUNNING);
    const uint32_t counts[RUNNER_FAMILY_COUNT] = {
        [RUNNER_FAMILY_LOCAL] = need->local_pages,
        [RUNNER_FAMILY_GLOBAL] = need->global_pages,
    };
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct account_family *held = family_of(&seq->account, (enum runner_family)f);
        struct seq_pages *pages = &seq->pages[f];
        uint32_t end = held->origin_pages + held->resident_pages;
        assert(held->resident_pages + counts[f] <= pages->cap);
        for (uint32_t i = 0; i < counts[f]; i++) {
            pages->at[(end + i) % pages->cap] =
                pool_reserved_page(&pools[f], first_reserved[f] + i);
        }
    }
    account_launch(&seq->account, need, row_tokens);
    seq->launched_rows++;
    seq->state = SEQ_STATE_RUNNING;
}

void seq_unlaunch(struct sequence *seq, uint32_t row_tokens)
{
    account_unlaunch(&seq->account, row_tokens);
}

uint32_t seq_commit(struct sequence *seq, const struct account_geometry *geometry,
                    struct pool pools[RUNNER_FAMILY_COUNT], uint32_t row_tokens)
{
    assert(seq->state == SEQ_STATE_RUNNING);
    uint32_t first = seq->account.local.origin_pages;
    uint32_t released = account_commit(&seq->account, geometry, row_tokens);
    const struct seq_pages *pages = &seq->pages[RUNNER_FAMILY_LOCAL];
    for (uint32_t i = 0; i < released; i++) {
        pool_release(&pools[RUNNER_FAMILY_LOCAL], pages->at[(first + i) % pages->cap]);
    }
    return released;
}

void seq_append(struct sequence *seq, uint32_t token)
{
    assert(seq->token_count < seq->max_total_tokens);
    seq->tokens[seq->token_count++] = token;
}

void seq_stop(struct sequence *seq)
{
    assert(seq->state == SEQ_STATE_WAITING || seq->state == SEQ_STATE_RUNNING);
    seq->state = SEQ_STATE_STOPPED;
}

void seq_drop_pages(struct sequence *seq, struct pool pools[RUNNER_FAMILY_COUNT],
                    uint32_t out_pages[RUNNER_FAMILY_COUNT])
{
    assert(seq->state == SEQ_STATE_STOPPED && seq->launched_rows == 0);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct account_family *held = family_of(&seq->account, (enum runner_family)f);
        const struct seq_pages *pages = &seq->pages[f];
        for (uint32_t i = 0; i < held->resident_pages; i++) {
            pool_release(&pools[f], pages->at[(held->origin_pages + i) % pages->cap]);
        }
        out_pages[f] = held->resident_pages;
    }
    seq->account = (struct account){0};
}

uint32_t seq_held_pages(const struct sequence *seq, enum runner_family family)
{
    return family == RUNNER_FAMILY_LOCAL ? seq->account.local.resident_pages
                                         : seq->account.global.resident_pages;
}

uint32_t seq_page_at(const struct sequence *seq, enum runner_family family,
                     const struct account_geometry *geometry, uint32_t position)
{
    const struct account_family *held =
        family == RUNNER_FAMILY_LOCAL ? &seq->account.local : &seq->account.global;
    uint32_t logical = position / geometry->page_tokens;
    assert(logical >= held->origin_pages);
    assert(logical - held->origin_pages < held->resident_pages);
    return seq->pages[family].at[logical % seq->pages[family].cap];
}

enum err_code seq_check(const struct sequence *seq, const struct account_geometry *geometry,
                        struct err *err)
{
    const struct account *account = &seq->account;
    unsigned long long id = seq->seq_id;
    if (seq->state == SEQ_STATE_STOPPED) {
        if (seq->launched_rows == 0 && account->global.resident_pages != 0) {
            return err_set(err, ERR_INTERNAL, "sequence %llu: stopped with %u pages and no row", id,
                           account->global.resident_pages);
        }
        return ERR_OK;
    }
    if (!account_check(account, geometry)) {
        return err_set(err, ERR_INTERNAL,
                       "sequence %llu: frontiers %u/%u, local %u+%u, global %u+%u do not fit", id,
                       account->committed_tokens, account->launched_tokens,
                       account->local.origin_pages, account->local.resident_pages,
                       account->global.origin_pages, account->global.resident_pages);
    }
    if (seq->launched_rows == 0 &&
        (account->committed_tokens != account->launched_tokens || seq->held_tokens != 0)) {
        return err_set(err, ERR_INTERNAL, "sequence %llu: no row, frontiers %u/%u, %u held", id,
                       account->committed_tokens, account->launched_tokens, seq->held_tokens);
    }
    /* While decoding, the last token is the one whose KV is not written yet. */
    uint32_t known = account->committed_tokens < seq->prompt_tokens ? seq->prompt_tokens
                                                                    : account->committed_tokens + 1;
    if (seq->token_count != known || seq->token_count > seq->max_total_tokens) {
        return err_set(err, ERR_INTERNAL, "sequence %llu: %u tokens at frontier %u, at most %u", id,
                       seq->token_count, account->committed_tokens, seq->max_total_tokens);
    }
    return ERR_OK;
}
