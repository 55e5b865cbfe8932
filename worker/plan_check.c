#include "worker/plan_check.h"

#include <math.h>
#include <stddef.h>

#include "common/num.h"
#include "proto/result.h"

static enum err_code check_id(const struct plan_limits *limits, const char *what, uint32_t index,
                              uint32_t token, struct err *err)
{
    if (token >= limits->runner.vocab_tokens) {
        return err_set(err, ERR_PLAN, "%s[%u]: token %u, vocabulary is %u", what, index, token,
                       limits->runner.vocab_tokens);
    }
    return ERR_OK;
}

static enum err_code check_ids(const struct plan_limits *limits, const char *what,
                               const struct wire_u32_array *ids, struct err *err)
{
    enum err_code code = ERR_OK;
    for (uint32_t i = 0; i < ids->count && code == ERR_OK; i++) {
        code = check_id(limits, what, i, ids->at[i], err);
    }
    return code;
}

static enum err_code check_prompt(const struct plan_limits *limits,
                                  const struct wire_u32_array *prompt, struct err *err)
{
    enum err_code code = check_ids(limits, "prompt", prompt, err);
    if (code != ERR_OK) {
        return code;
    }
    for (uint32_t m = 0; m < limits->modality_id_count; m++) {
        for (uint32_t i = 0; i < prompt->count; i++) {
            if (prompt->at[i] == limits->modality_ids[m]) {
                return err_set(err, ERR_PLAN, "prompt[%u]: token %u stands for image or sound", i,
                               prompt->at[i]);
            }
        }
    }
    return ERR_OK;
}

/* Where the tokens end: counts against context and pools. */
static enum err_code check_extent(const struct plan_limits *limits, const struct plan_admit *admit,
                                  struct err *err)
{
    const struct runner_limits *runner = &limits->runner;
    if (admit->prompt.count == 0) {
        return err_set(err, ERR_PLAN, "prompt: 0 tokens, at least 1");
    }
    if (admit->max_total > runner->max_context_tokens) {
        return err_set(err, ERR_LIMIT, "max_total: %u tokens, context is %u", admit->max_total,
                       runner->max_context_tokens);
    }
    if (admit->prompt.count >= admit->max_total) {
        return err_set(err, ERR_PLAN, "prompt: %u tokens, max_total %u leaves no output",
                       admit->prompt.count, admit->max_total);
    }
    if (admit->output_start == 0 || admit->output_start > admit->prompt.count) {
        return err_set(err, ERR_PLAN, "output_start: %u, want 1 to %u", admit->output_start,
                       admit->prompt.count);
    }
    /* The last token is sampled, never written.  In rows of one token the local family needs least. */
    const struct account_geometry geometry = {
        .page_tokens = runner->page_tokens,
        .window_tokens = runner->window_tokens,
        .max_step_tokens = runner->max_step_tokens,
    };
    struct account_need peak = account_peak(&geometry, admit->max_total - 1, 1);
    if (peak.local_pages > runner->pages[RUNNER_FAMILY_LOCAL]) {
        return err_set(err, ERR_LIMIT, "max_total: %u tokens need %u local pages, pool has %u",
                       admit->max_total, peak.local_pages, runner->pages[RUNNER_FAMILY_LOCAL]);
    }
    if (peak.global_pages > runner->pages[RUNNER_FAMILY_GLOBAL]) {
        return err_set(err, ERR_LIMIT, "max_total: %u tokens need %u global pages, pool has %u",
                       admit->max_total, peak.global_pages, runner->pages[RUNNER_FAMILY_GLOBAL]);
    }
    return ERR_OK;
}

struct bounded {
    const char *name;
    float value;
    float low;
    float high;
};

static enum err_code check_sampling(const struct plan_admit *admit, struct err *err)
{
    /* NaN fails every comparison. */
    const struct bounded values[] = {
        {"temperature", admit->temperature, 0, PLAN_MAX_TEMPERATURE},
        {"top_p", admit->top_p, PLAN_MIN_TOP_P, 1},
        {"min_p", admit->min_p, 0, 1},
        {"presence_penalty", admit->presence_penalty, -PLAN_MAX_PENALTY, PLAN_MAX_PENALTY},
        {"frequency_penalty", admit->frequency_penalty, -PLAN_MAX_PENALTY, PLAN_MAX_PENALTY},
        {"repetition_penalty", admit->repetition_penalty, PLAN_MIN_REPETITION, PLAN_MAX_REPETITION},
        {"logprobs", (float)admit->logprobs, 0, PLAN_MAX_LOGPROBS + 1},
        {"prompt_logprobs", (float)admit->prompt_logprobs, 0, PLAN_MAX_LOGPROBS + 1},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (!(values[i].value >= values[i].low && values[i].value <= values[i].high)) {
            return err_set(err, ERR_PLAN, "%s: %g, want %g to %g", values[i].name,
                           (double)values[i].value, (double)values[i].low, (double)values[i].high);
        }
    }
    return ERR_OK;
}

static enum err_code check_bias(const struct plan_limits *limits,
                                const struct wire_bias_array *biases, struct err *err)
{
    for (uint32_t i = 0; i < biases->count; i++) {
        enum err_code code = check_id(limits, "logit_bias", i, biases->at[i].token, err);
        if (code != ERR_OK) {
            return code;
        }
        if (!isfinite(biases->at[i].bias)) {
            return err_set(err, ERR_PLAN, "logit_bias[%u]: token %u, bias %g is not finite", i,
                           biases->at[i].token, (double)biases->at[i].bias);
        }
    }
    return ERR_OK;
}

enum err_code plan_check_admit(const struct plan_limits *limits, const struct plan_admit *admit,
                               struct err *err)
{
    if (admit->seq_id == 0) {
        return err_set(err, ERR_PLAN, "seq_id: 0, want 1 or more");
    }
    enum err_code code = check_extent(limits, admit, err);
    if (code == ERR_OK) {
        code = check_sampling(admit, err);
    }
    if (code == ERR_OK) {
        code = check_prompt(limits, &admit->prompt, err);
    }
    if (code == ERR_OK) {
        code = check_ids(limits, "stop_ids", &admit->stop_ids, err);
    }
    if (code == ERR_OK) {
        code = check_ids(limits, "suppress_ids", &admit->suppress_ids, err);
    }
    return code != ERR_OK ? code : check_bias(limits, &admit->logit_bias, err);
}

/* A row of a sequence that may run, against its launched frontier. */
static enum err_code check_frontier(const struct wire_row *row, const struct sequence *seq,
                                    struct err *err)
{
    unsigned long long id = row->seq_id;
    uint32_t launched = seq->account.launched_tokens;
    if (row->count == 0) {
        if (launched < seq->prompt_tokens && !seq->prompt_was_held) {
            return err_set(err, ERR_PLAN, "decode row of %llu: launched %u of %u prompt tokens", id,
                           launched, seq->prompt_tokens);
        }
        return ERR_OK;
    }
    if (row->start != launched) {
        return err_set(err, ERR_PLAN, "prompt row of %llu: starts at %u, launched is %u", id,
                       row->start, launched);
    }
    if (launched >= seq->prompt_tokens || row->count > seq->prompt_tokens - launched) {
        return err_set(err, ERR_PLAN, "prompt row of %llu: %u tokens from %u, prompt has %u", id,
                       row->count, row->start, seq->prompt_tokens);
    }
    return ERR_OK;
}

static enum err_code check_row(const struct plan_scope *scope, const struct wire_row *row,
                               struct plan_row *out_row, struct err *err)
{
    uint32_t slot;
    if (!seq_index_find(scope->index, row->seq_id, &slot)) {
        return err_set(err, ERR_NOT_FOUND, "sequence %llu: %s", (unsigned long long)row->seq_id,
                       seq_index_was_used(scope->index, row->seq_id) ? "already released"
                                                                     : "never admitted");
    }
    struct sequence *seq = &scope->sequences[slot];
    if (seq->plan_mark == scope->plan_mark) {
        return err_set(err, ERR_PLAN, "sequence %llu: two rows in one step",
                       (unsigned long long)row->seq_id);
    }
    seq->plan_mark = scope->plan_mark;
    if (seq->state == SEQ_STATE_STOPPED) {
        *out_row = (struct plan_row){.kind = PLAN_ROW_EMPTY};
        return ERR_OK;
    }
    enum err_code code = check_frontier(row, seq, err);
    if (code != ERR_OK) {
        return code;
    }
    bool is_decode = row->count == 0;
    /* The token at max_total - 1 is the last; a row in flight samples it. */
    bool has_ended = is_decode && seq->account.launched_tokens + 1 >= seq->max_total_tokens;
    if (has_ended) {
        *out_row = (struct plan_row){.kind = PLAN_ROW_EMPTY};
        return ERR_OK;
    }
    *out_row = (struct plan_row){
        .kind = is_decode ? PLAN_ROW_DECODE : PLAN_ROW_PROMPT,
        .seq = seq,
        .count = is_decode ? 1 : row->count,
        .samples = is_decode || seq->account.launched_tokens + row->count == seq->prompt_tokens,
    };
    return ERR_OK;
}

/* Most records that a row is answered with: per prompt position, for the token, and FINISHED or
 * FAILED. */
static uint32_t records_of(const struct plan_row *row)
{
    if (row->kind == PLAN_ROW_EMPTY) {
        return 0;
    }
    const struct sequence *seq = row->seq;
    uint32_t records = 1;
    if (row->samples) {
        records += result_records_per_token(seq->logprob_pairs);
    }
    if (row->kind == PLAN_ROW_PROMPT && seq->wants_prompt_logprobs) {
        uint32_t per_position =
            num_max(1, num_ceil_div(seq->prompt_logprob_pairs, RESULT_LOGPROBS_PER_RECORD));
        records += row->count * per_position;
    }
    return records;
}

enum err_code plan_check_step(const struct plan_limits *limits, const struct plan_scope *scope,
                              const struct plan_step *step, struct plan_rows *out_rows,
                              struct err *err)
{
    const struct runner_limits *runner = &limits->runner;
    if (step->rows.count > runner->max_step_rows) {
        return err_set(err, ERR_LIMIT, "step of %u rows, at most %u", step->rows.count,
                       runner->max_step_rows);
    }
    uint64_t token_count = 0;
    uint32_t record_count = 1;
    for (uint32_t i = 0; i < step->rows.count; i++) {
        const struct wire_row *row = &step->rows.at[i];
        token_count += num_max(1, row->count);
        if (token_count > runner->max_step_tokens) {
            return err_set(err, ERR_LIMIT, "step of %llu tokens or more, at most %u",
                           (unsigned long long)token_count, runner->max_step_tokens);
        }
        enum err_code code = check_row(scope, row, &out_rows->rows[i], err);
        if (code != ERR_OK) {
            return code;
        }
        record_count += records_of(&out_rows->rows[i]);
    }
    if (record_count > limits->max_step_records) {
        return err_set(err, ERR_LIMIT, "step answered by up to %u records, ring holds %u",
                       record_count, limits->max_step_records);
    }
    out_rows->row_count = step->rows.count;
    out_rows->record_count = record_count;
    return ERR_OK;
}
