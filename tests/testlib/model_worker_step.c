#include <assert.h>
#include <stdio.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/model_worker_internal.h"

struct result_figures model_figures(const struct model_worker *model)
{
    const struct model_stats *stats = &model->stats;
    return (struct result_figures){
        .applied = model->applied,
        .local_quota_left_pages = model->local_quota > stats->local_held_pages
                                      ? model->local_quota - stats->local_held_pages
                                      : 0,
        .global_quota_left_pages = model->global_quota > stats->global_held_pages
                                       ? model->global_quota - stats->global_held_pages
                                       : 0,
    };
}

struct model_seq *model_find(const struct model_worker *model, uint64_t seq_id)
{
    struct model_seq *seq = model->seqs;
    while (seq != NULL && seq->seq_id != seq_id) {
        seq = seq->next;
    }
    return seq;
}

void model_give_back(struct model_worker *model, struct model_seq *seq, uint32_t local_pages,
                     uint32_t global_pages)
{
    seq->local_held -= local_pages;
    seq->global_held -= global_pages;
    model->stats.local_held_pages -= local_pages;
    model->stats.global_held_pages -= global_pages;
}

void model_stop_sequence(struct model_worker *model, struct model_seq *seq,
                         enum result_finish reason, uint64_t now_ns)
{
    seq->state = MODEL_STOPPED;
    struct result_record record = {.kind = RESULT_FINISHED, .seq_id = seq->seq_id};
    record.as.finished.reason = reason;
    record.as.finished.total_tokens = seq->committed + 1;
    model_push_record(model, &record, now_ns);
}

/* Checks a row against the sequence's frontier; tokens it launches, 0 for an empty row. */
static uint32_t check_row(struct model_worker *model, const struct model_seq *seq,
                          const struct wire_row *row)
{
    if (seq == NULL) {
        model_violate(model, "a row of sequence %llu, which is not there",
                      (unsigned long long)row->seq_id);
        return 0;
    }
    uint32_t prompt = seq->admit.prompt.count;
    if (seq->state == MODEL_STOPPED) {
        return 0;
    }
    if (row->count > 0 && (row->start != seq->launched || row->start + row->count > prompt)) {
        model_violate(model, "prompt row %u+%u at frontier %u of prompt %u", row->start, row->count,
                      seq->launched, prompt);
    }
    if (row->count == 0 && (seq->launched < prompt || seq->launched + 1 >= seq->admit.max_total)) {
        model_violate(model, "decode row at frontier %u: prompt %u, max_total %u", seq->launched,
                      prompt, seq->admit.max_total);
    }
    return row->count == 0 ? 1 : row->count;
}

/* Pages that cover `launched` less those in front of the window. */
static uint32_t local_pages_at(const struct model_worker *model, uint32_t launched,
                               uint32_t committed)
{
    uint32_t page = model->options.limits.page_tokens;
    uint32_t window = model->options.limits.window_tokens;
    uint32_t front = committed > window ? (committed - window) / page : 0;
    return num_ceil_div(launched, page) - front;
}

static void launch_row(struct model_worker *model, struct model_message *step, uint32_t index)
{
    const struct hello_welcome *limits = &model->options.limits;
    const struct wire_row *row = &step->plan.as.step.rows.at[index];
    struct model_seq *seq = model_find(model, row->seq_id);
    uint32_t tokens = check_row(model, seq, row);
    step->rows[index] =
        (struct model_row){.seq_id = row->seq_id, .count = tokens, .is_decode = row->count == 0};
    if (tokens == 0) {
        return;
    }
    seq->launched += tokens;
    uint32_t local = local_pages_at(model, seq->launched, seq->committed);
    uint32_t global = num_ceil_div(seq->launched, limits->page_tokens);
    local = num_max(local, seq->local_held);
    model->stats.local_held_pages += local - seq->local_held;
    model->stats.global_held_pages += global - seq->global_held;
    seq->local_held = local;
    seq->global_held = global;
    uint32_t table_pages = num_ceil_div(limits->window_tokens, limits->page_tokens) +
                           num_ceil_div(limits->max_step_tokens, limits->page_tokens) + 2;
    if (local > table_pages) {
        model_violate(model, "%u sliding pages of one sequence, its table has %u", local,
                      table_pages);
    }
}

void model_launch_step(struct model_worker *model, struct model_message *step, uint64_t now_ns)
{
    const struct hello_welcome *limits = &model->options.limits;
    const struct wire_row_array *rows = &step->plan.as.step.rows;
    uint64_t token_count = 0;
    if (rows->count == 0 || rows->count > limits->max_step_rows) {
        model_violate(model, "a STEP of %u rows, at most %u", rows->count, limits->max_step_rows);
    }
    step->rows = mem_zalloc(rows->count, sizeof(step->rows[0]));
    for (uint32_t i = 0; i < rows->count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (rows->at[k].seq_id == rows->at[i].seq_id) {
                model_violate(model, "two rows of one sequence in a STEP");
            }
        }
        launch_row(model, step, i);
        token_count += rows->at[i].count == 0 ? 1 : rows->at[i].count;
    }
    if (token_count > limits->max_step_tokens) {
        model_violate(model, "a STEP of %llu tokens, at most %u", (unsigned long long)token_count,
                      limits->max_step_tokens);
    }
    if (model->stats.local_held_pages > model->local_quota ||
        model->stats.global_held_pages > model->global_quota) {
        model_violate(model, "pages held after a STEP: %u of %u sliding, %u of %u full",
                      model->stats.local_held_pages, model->local_quota,
                      model->stats.global_held_pages, model->global_quota);
    }
    uint64_t start_ns = now_ns > model->busy_until_ns ? now_ns : model->busy_until_ns;
    uint64_t took_ns = model->options.step_ns + model->options.row_ns * rows->count +
                       model->options.token_ns * token_count;
    step->end_ns = start_ns + took_ns;
    step->took_ns = took_ns;
    step->token_count = (uint32_t)token_count;
    step->step_index = ++model->launch_count;
    model->stats.first_start_ns =
        model->stats.first_start_ns == 0 ? start_ns : model->stats.first_start_ns;
    model->busy_until_ns = step->end_ns;
    model->stats.busy_ns += took_ns;
    model->in_flight_count++;
    model_append(&model->in_flight, step);
}

void model_refuse_step(struct model_worker *model, struct model_message *step, enum err_code code,
                       uint64_t now_ns)
{
    /* answers keep the order of the STEPs */
    step->end_ns = model->in_flight.last == NULL ? now_ns : model->in_flight.last->end_ns;
    step->refused = code;
    model_append(&model->in_flight, step);
}

uint32_t model_token(const struct model_options *options, uint64_t seed, uint32_t position)
{
    uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15ULL + position * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 29)) * 0x94d049bb133111ebULL;
    mixed ^= mixed >> 32;
    uint32_t span = options->token_span;
    span = span == 0 ? options->limits.vocab_tokens - options->token_first : span;
    return options->token_first + (uint32_t)(mixed % span);
}

static void push_logprobs(struct model_worker *model, const struct model_seq *seq,
                          struct result_record *record, uint32_t pair_count, uint64_t now_ns)
{
    record->kind = RESULT_LOGPROBS;
    record->seq_id = seq->seq_id;
    struct result_logprobs *part = &record->as.logprobs;
    part->first_index = 0;
    do {
        part->pair_count = num_min(pair_count - part->first_index, RESULT_LOGPROBS_PER_RECORD);
        for (uint32_t i = 0; i < part->pair_count; i++) {
            part->ids[i] = part->token + part->first_index + i;
            part->logprobs[i] = -0.1F * (float)(part->first_index + i + 1);
        }
        model_push_record(model, record, now_ns);
        part->first_index += part->pair_count;
    } while (part->first_index < pair_count);
}

uint32_t model_pick(const struct model_worker *model, const struct model_seq *seq,
                    uint32_t position)
{
    const struct model_options *options = &model->options;
    uint32_t output_index = position - seq->admit.output_start;
    uint32_t token = model_token(options, seq->admit.seed, position);
    if (options->script_count > 0) {
        token = options->script[output_index % options->script_count];
    }
    bool may_stop = !seq->admit.ignore_eos && seq->admit.stop_ids.count > 0 &&
                    output_index + 1 >= seq->admit.min_tokens;
    if (may_stop &&
        model_token(options, seq->admit.seed * 31 + 7, position) % 1000 < options->stop_per_mille) {
        return seq->admit.stop_ids.at[0];
    }
    return token;
}

/* Samples after the row's last token: TOKEN, its LOGPROBS, FINISHED. */
static void sample(struct model_worker *model, struct model_seq *seq, uint64_t msg_seq,
                   uint64_t now_ns)
{
    uint32_t position = seq->committed;
    uint32_t token = model_pick(model, seq, position);
    bool is_stop = false;
    for (uint32_t i = 0; i < seq->admit.stop_ids.count && !seq->admit.ignore_eos; i++) {
        is_stop = is_stop || (seq->admit.stop_ids.at[i] == token &&
                              position - seq->admit.output_start + 1 >= seq->admit.min_tokens);
    }
    bool is_full = position + 1 >= seq->admit.max_total;
    struct result_record record = {.kind = RESULT_TOKEN,
                                   .flags = is_stop || is_full ? RESULT_TOKEN_LAST : 0,
                                   .seq_id = seq->seq_id,
                                   .msg_seq = msg_seq};
    record.as.token = (struct result_token){.position = position, .token = token};
    if (seq->admit.logprobs > 0) {
        record.as.token.logprob = -0.5F;
        record.as.token.rank = 1;
    }
    model_push_record(model, &record, now_ns);
    if (seq->admit.logprobs > 1) {
        struct result_record more = {.msg_seq = msg_seq};
        more.as.logprobs.position = position;
        more.as.logprobs.token = token;
        push_logprobs(model, seq, &more, seq->admit.logprobs - 1, now_ns);
    }
    model->stats.tokens++;
    if (is_stop || is_full) {
        model_stop_sequence(model, seq, is_stop ? RESULT_FINISH_STOP : RESULT_FINISH_LENGTH,
                            now_ns);
    }
}

static void fail_sequence(struct model_worker *model, struct model_seq *seq, enum err_code code,
                          uint64_t now_ns)
{
    seq->state = MODEL_STOPPED;
    struct result_record record = {.kind = RESULT_FAILED, .seq_id = seq->seq_id};
    record.as.failed.code = code;
    (void)snprintf(record.as.failed.text, sizeof(record.as.failed.text), "failed: %s",
                   err_code_text(code)); /* cut is fine */
    model_push_record(model, &record, now_ns);
}

static void push_prompt_logprobs(struct model_worker *model, const struct model_seq *seq,
                                 uint32_t token_count, uint64_t msg_seq, uint64_t now_ns)
{
    for (uint32_t i = 0; i < token_count && seq->admit.prompt_logprobs > 0; i++) {
        uint32_t position = seq->committed + i + 1;
        if (position >= seq->admit.prompt.count) {
            return;
        }
        struct result_record record = {.flags = RESULT_LOGPROBS_PROMPT, .msg_seq = msg_seq};
        record.as.logprobs.position = position;
        record.as.logprobs.token = seq->admit.prompt.at[position];
        record.as.logprobs.rank = 1;
        push_logprobs(model, seq, &record, seq->admit.prompt_logprobs - 1, now_ns);
    }
}

static void complete_row(struct model_worker *model, const struct model_message *step,
                         const struct model_row *row, uint64_t now_ns)
{
    struct model_seq *seq = model_find(model, row->seq_id);
    if (seq == NULL || seq->state == MODEL_STOPPED || row->count == 0) {
        model->stats.masked_rows++;
        return;
    }
    if (step->fails) {
        fail_sequence(model, seq, ERR_STEP, now_ns);
        return;
    }
    uint64_t msg_seq = step->plan.msg_seq;
    push_prompt_logprobs(model, seq, row->is_decode ? 0 : row->count, msg_seq, now_ns);
    seq->committed += row->count;
    uint32_t keep = local_pages_at(model, seq->launched, seq->committed);
    model_give_back(model, seq, seq->local_held - keep, 0);
    if (row->is_decode || seq->committed == seq->admit.prompt.count) {
        sample(model, seq, msg_seq, now_ns);
    }
}

void model_complete_step(struct model_worker *model, uint64_t now_ns)
{
    struct model_message *step = model_take_first(&model->in_flight);
    if (step->refused != ERR_OK) {
        model_push_refused(model, &step->plan, step->refused, now_ns);
        model_free_message(step);
        return;
    }
    model->in_flight_count--;
    bool fails_row = model_is_hit(model, MODEL_FAULT_FAIL_ROW, step->step_index);
    if (model_is_hit(model, MODEL_FAULT_FAIL_STEP, step->step_index)) {
        step->fails = true;
        for (struct model_message *later = model->in_flight.first; later != NULL;
             later = later->next) {
            later->fails = true;
        }
    }
    for (uint32_t i = 0; i < step->plan.as.step.rows.count; i++) {
        struct model_seq *seq = model_find(model, step->rows[i].seq_id);
        if (fails_row && seq != NULL && seq->state == MODEL_RUNNING) {
            fail_sequence(model, seq, ERR_SEQUENCE, now_ns);
            fails_row = false;
            continue;
        }
        complete_row(model, step, &step->rows[i], now_ns);
    }
    model->stats.steps++;
    model->stats.last_end_ns = step->end_ns;
    struct result_record done = {.kind = RESULT_STEP_DONE,
                                 .msg_seq = step->plan.msg_seq,
                                 .as.step_done = {.figures = model_figures(model),
                                                  .device_ns = step->took_ns,
                                                  .row_count = step->plan.as.step.rows.count,
                                                  .token_count = step->token_count,
                                                  .in_flight = model->in_flight_count}};
    model_push_record(model, &done, now_ns);
    model_free_message(step);
}
