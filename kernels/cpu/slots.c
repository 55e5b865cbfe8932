/* Slot state: opening a slot, the step's prologue and its tail. */
#include <string.h>

#include "common/clock.h"
#include "common/num.h"
#include "kernels/cpu/stream.h"

static uint32_t *counts_of(const struct k_slots *slots, uint32_t slot)
{
    return slots->counts + (uint64_t)slot * slots->vocab_tokens;
}

enum err_code k_cpu_open(struct k_stream *stream, const struct k_open_args *args, struct err *err)
{
    (void)stream;
    const struct k_slots *slots = &args->slots;
    if (args->slot >= slots->slot_count) {
        return err_set(err, ERR_SHAPE, "open: slot %u of %u", args->slot, slots->slot_count);
    }
    uint32_t *counts = counts_of(slots, args->slot);
    /* Counts are clean unless the slot's last sequence used them. */
    if (slots->samplers[args->slot].counts_tokens) {
        memset(counts, 0, (size_t)slots->vocab_tokens * sizeof(*counts));
    }
    slots->samplers[args->slot] = *args->sampler;
    slots->generation[args->slot] = args->generation;
    slots->stopped[args->slot] = 0;
    slots->length[args->slot] = 0;
    slots->next_token[args->slot] = 0;
    for (uint32_t i = 0; args->sampler->counts_tokens && i < args->context_count; i++) {
        uint32_t *count = &counts[args->context[i]];
        *count = i < args->sampler->output_start ? *count | K_COUNT_PROMPT : *count + 1;
    }
    return ERR_OK;
}

static bool is_masked(const struct k_slots *slots, const struct k_row *row)
{
    /* relaxed: the flag carries no data with it */
    uint32_t stop = __atomic_load_n(&slots->stop_request[row->slot], __ATOMIC_RELAXED);
    return slots->generation[row->slot] != row->generation || slots->stopped[row->slot] != 0 ||
           stop == row->generation;
}

static void expand_row(const struct k_expand_args *args, uint32_t row_index)
{
    const struct k_row *row = &args->rows[row_index];
    const struct k_sampler *sampler = &args->slots.samplers[row->slot];
    struct k_step_counts *counts = args->counts;
    bool is_decode = row->first_id == K_NONE;
    uint32_t start = is_decode ? args->slots.length[row->slot] : row->start;
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t token = counts->tokens + i;
        args->ids[token] =
            is_decode ? args->slots.next_token[row->slot] : args->prompt_ids[row->first_id + i];
        args->positions[token] = start + i;
        args->token_slots[token] = row->slot;
        if ((row->flags & K_ROW_PROMPT_LOGPROBS) != 0) {
            args->prompt_tokens[counts->prompt_logprob_rows] = token;
            args->prompt_logprobs[counts->prompt_logprob_rows] = (struct k_logprob_row){
                .target = args->next_ids[row->first_id + i],
                .want = sampler->prompt_logprobs,
                .record = row->first_id + i,
            };
            counts->prompt_logprob_rows++;
        }
    }
    counts->tokens += row->count;
    if ((row->flags & K_ROW_SAMPLES) != 0) {
        args->sample_tokens[counts->sample_rows] = counts->tokens - 1;
        args->sample_rows[counts->sample_rows] = (struct k_sample_row){
            .row = row_index,
            .slot = row->slot,
            .position = start + row->count,
            .mask_row = row->mask_row,
        };
        args->sample_logprobs[counts->sample_rows] = (struct k_logprob_row){
            .target = K_NONE,
            .want = sampler->logprobs,
            .record = row_index,
        };
        counts->sample_rows++;
    }
}

enum err_code k_cpu_expand(struct k_stream *stream, const struct k_expand_args *args,
                           struct err *err)
{
    (void)stream;
    (void)err;
    if (args->begin_ns != NULL) {
        *args->begin_ns = clock_now_ns();
    }
    for (uint32_t i = 0; i < args->patch_count; i++) {
        const struct k_patch *patch = &args->patches[i];
        uint64_t table = (uint64_t)patch->slot * args->table_pages[patch->family];
        args->page_tables[patch->family][table + patch->entry] = patch->physical_page;
    }
    *args->counts = (struct k_step_counts){0};
    for (uint32_t r = 0; r < args->row_count; r++) {
        const struct k_row *row = &args->rows[r];
        args->picks[r] = (struct k_pick){.outcome = K_OUTCOME_NONE};
        if (is_masked(&args->slots, row)) {
            args->picks[r].outcome = K_OUTCOME_MASKED;
        } else if ((row->flags & K_ROW_HELD) != 0) {
            args->picks[r].outcome = K_OUTCOME_HELD;
        } else {
            expand_row(args, r);
        }
    }
    uint32_t multiple = num_max(1, args->pad_tokens_multiple);
    for (uint32_t pad = 0; args->counts->tokens % multiple != 0; pad++) {
        uint32_t token = args->counts->tokens++;
        args->ids[token] = 0;
        args->positions[token] = pad;
        args->token_slots[token] = K_SLOT_NONE;
    }
    return ERR_OK;
}

static bool is_stop_id(const struct k_sampler *sampler, uint32_t token)
{
    for (uint32_t i = 0; !sampler->ignore_eos && i < sampler->stop_count; i++) {
        if (sampler->stop_ids[i] == token) {
            return true;
        }
    }
    return false;
}

static void advance_row(const struct k_slots *slots, const struct k_row *row, struct k_pick *pick)
{
    const struct k_sampler *sampler = &slots->samplers[row->slot];
    uint32_t start = row->first_id == K_NONE ? slots->length[row->slot] : row->start;
    uint32_t length = start + row->count;
    if (pick->outcome == K_OUTCOME_TOKEN) {
        bool is_full = length + 1 >= sampler->max_total;
        pick->outcome = is_full ? K_OUTCOME_LENGTH : K_OUTCOME_TOKEN;
        pick->outcome = is_stop_id(sampler, pick->token) ? K_OUTCOME_STOP : pick->outcome;
        slots->next_token[row->slot] = pick->token;
        counts_of(slots, row->slot)[pick->token] += sampler->counts_tokens ? 1 : 0;
    }
    if (pick->outcome != K_OUTCOME_BAD) {
        slots->length[row->slot] = length;
    }
    slots->stopped[row->slot] = pick->outcome != K_OUTCOME_NONE && pick->outcome != K_OUTCOME_TOKEN;
}

static void publish(const struct k_advance_args *args)
{
    uint32_t turn = args->turn == NULL ? 0 : *args->turn;
    if (args->published != NULL) {
        memcpy(args->published + (uint64_t)turn * args->turn_rows, args->picks,
               args->row_count * sizeof(*args->picks));
    }
    if (args->stamps != NULL) {
        args->stamps[turn] =
            (struct k_stamp){.begin_ns = *args->begin_ns, .end_ns = clock_now_ns()};
    }
    if (args->turn != NULL) {
        *args->turn = (turn + 1) % args->turns;
    }
}

enum err_code k_cpu_advance(struct k_stream *stream, const struct k_advance_args *args,
                            struct err *err)
{
    (void)stream;
    (void)err;
    for (uint32_t r = 0; r < args->row_count; r++) {
        struct k_pick *pick = &args->picks[r];
        if (pick->outcome != K_OUTCOME_MASKED && pick->outcome != K_OUTCOME_HELD) {
            advance_row(&args->slots, &args->rows[r], pick);
        }
    }
    publish(args);
    return ERR_OK;
}
