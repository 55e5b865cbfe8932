#include "tests/testlib/model_worker.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/model_worker_internal.h"

void model_violate(struct model_worker *model, const char *format, ...)
{
    if (model->violation[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(model->violation, sizeof(model->violation), format, args); /* cut is fine */
    va_end(args);
}

bool model_is_hit(const struct model_worker *model, enum model_fault_kind kind, uint64_t passage)
{
    for (uint32_t i = 0; i < MODEL_MAX_FAULTS; i++) {
        const struct model_fault *fault = &model->options.faults[i];
        uint64_t count = fault->count == 0 ? 1 : fault->count;
        if (fault->at != 0 && fault->kind == kind && passage >= fault->at &&
            passage - fault->at < count) {
            return true;
        }
    }
    return false;
}

void model_append(struct model_list *list, struct model_message *message)
{
    message->next = NULL;
    *(list->last == NULL ? &list->first : &list->last->next) = message;
    list->last = message;
}

struct model_message *model_take_first(struct model_list *list)
{
    struct model_message *message = list->first;
    list->first = message->next;
    list->last = list->first == NULL ? NULL : list->last;
    return message;
}

void model_free_message(struct model_message *message)
{
    mem_free(message->storage);
    mem_free(message->rows);
    mem_free(message);
}

static void free_list(struct model_list *list)
{
    while (list->first != NULL) {
        model_free_message(model_take_first(list));
    }
}

static void free_seq(struct model_seq *seq)
{
    mem_free(seq->storage);
    mem_free(seq);
}

static const void *copy_part(unsigned char **at, const void *from, size_t byte_count)
{
    unsigned char *to = *at;
    if (byte_count > 0) {
        memcpy(to, from, byte_count);
    }
    *at = to + byte_count;
    return to;
}

/* Copies the arrays of an ADMIT into one block. */
static void *copy_admit(const struct plan_admit *from, struct plan_admit *out)
{
    size_t prompt_bytes = from->prompt.count * sizeof(uint32_t);
    size_t stop_bytes = from->stop_ids.count * sizeof(uint32_t);
    unsigned char *storage = mem_zalloc(prompt_bytes + stop_bytes + 1, 1);
    unsigned char *at = storage;
    *out = *from;
    out->prompt.at = copy_part(&at, from->prompt.at, prompt_bytes);
    out->stop_ids.at = copy_part(&at, from->stop_ids.at, stop_bytes);
    out->suppress_ids = (struct wire_u32_array){0};
    out->logit_bias = (struct wire_bias_array){0};
    return storage;
}

struct hello_welcome model_small_limits(void)
{
    return (struct hello_welcome){
        .instance_id = 1,
        .state = HELLO_STATE_READY,
        .model_id = {.at = "model-worker", .byte_count = 12},
        .backend = {.at = "none", .byte_count = 4},
        .vocab_tokens = 1000,
        .max_context_tokens = 2048,
        .window_tokens = 64,
        .page_tokens = 16,
        .local_pages = 256,
        .global_pages = 1024,
        .slots = 32,
        .max_step_rows = 32,
        .max_step_tokens = 256,
        .pipeline_depth = 2,
        .ring_records = 4096,
        .session_timeout_ms = 10000,
    };
}

struct model_worker *model_create(const struct model_options *options)
{
    struct model_worker *model = mem_zalloc(1, sizeof(*model));
    model->options = *options;
    return model;
}

void model_destroy(struct model_worker *model)
{
    if (model != NULL) {
        model_close(model);
        mem_free(model);
    }
}

void model_open(struct model_worker *model, uint64_t epoch)
{
    assert(model->epoch == 0);
    model->epoch = epoch;
    model->next_msg_seq = 1;
    model->applied = 0;
    model->refused_seq = 0;
    model->local_quota = model->options.limits.local_pages;
    model->global_quota = model->options.limits.global_pages;
}

void model_close(struct model_worker *model)
{
    model->epoch = 0;
    free_list(&model->arriving);
    free_list(&model->queued);
    free_list(&model->in_flight);
    model->in_flight_count = 0;
    while (model->record_first != NULL) {
        struct model_record *record = model->record_first;
        model->record_first = record->next;
        mem_free(record);
    }
    model->record_last = NULL;
    while (model->seqs != NULL) {
        struct model_seq *seq = model->seqs;
        model->seqs = seq->next;
        free_seq(seq);
    }
    model->stats.sequences = 0;
    model->stats.local_held_pages = 0;
    model->stats.global_held_pages = 0;
}

void model_deliver(struct model_worker *model, const struct plan_message *message, uint64_t now_ns)
{
    struct model_message *copy = mem_zalloc(1, sizeof(*copy));
    copy->plan = *message;
    copy->due_ns = now_ns + model->options.down_ns;
    if (message->type == PLAN_ADMIT) {
        copy->storage = copy_admit(&message->as.admit, &copy->plan.as.admit);
    } else if (message->type == PLAN_STEP) {
        const struct wire_row_array *rows = &message->as.step.rows;
        unsigned char *at = mem_zalloc(rows->count, sizeof(rows->at[0]));
        copy->storage = at;
        copy->plan.as.step.rows.at = copy_part(&at, rows->at, rows->count * sizeof(rows->at[0]));
    }
    model_append(&model->arriving, copy);
}

void model_push_record(struct model_worker *model, const struct result_record *record,
                       uint64_t now_ns)
{
    struct model_record *entry = mem_zalloc(1, sizeof(*entry));
    entry->record = *record;
    entry->record.epoch = model->epoch;
    entry->due_ns = now_ns + model->options.up_ns;
    *(model->record_last == NULL ? &model->record_first : &model->record_last->next) = entry;
    model->record_last = entry;
}

bool model_try_pop(struct model_worker *model, uint64_t now_ns, struct result_record *out_record)
{
    struct model_record *entry = model->record_first;
    if (entry == NULL || entry->due_ns > now_ns) {
        return false;
    }
    *out_record = entry->record;
    model->record_first = entry->next;
    model->record_last = entry->next == NULL ? NULL : model->record_last;
    mem_free(entry);
    return true;
}

void model_set_quota(struct model_worker *model, uint32_t local_pages, uint32_t global_pages,
                     uint64_t now_ns)
{
    model->local_quota = local_pages;
    model->global_quota = global_pages;
    struct result_record record = {
        .kind = RESULT_STATE,
        .as.state = {.figures = model_figures(model), .sequences = model->stats.sequences}};
    model_push_record(model, &record, now_ns);
}

void model_push_refused(struct model_worker *model, const struct plan_message *plan,
                        enum err_code code, uint64_t now_ns)
{
    struct result_record record = {.kind = RESULT_REFUSED, .msg_seq = plan->msg_seq};
    record.seq_id = plan->type == PLAN_ADMIT ? plan->as.admit.seq_id : 0;
    record.as.refused.code = code;
    (void)snprintf(record.as.refused.text, sizeof(record.as.refused.text), "refused: %s",
                   err_code_text(code)); /* cut is fine */
    model->stats.refused++;
    model_push_record(model, &record, now_ns);
}

/* Output that comes back as a prompt is what was sampled, and was not the end. */
static void check_output(struct model_worker *model, const struct model_seq *seq)
{
    const struct plan_admit *admit = &seq->admit;
    if (admit->output_start == 0 || admit->output_start > admit->prompt.count ||
        admit->prompt.count >= admit->max_total) {
        model_violate(model, "ADMIT of %u tokens, output from %u, max_total %u",
                      admit->prompt.count, admit->output_start, admit->max_total);
    }
    for (uint32_t i = admit->output_start; i < admit->prompt.count; i++) {
        if (admit->prompt.at[i] != model_pick(model, seq, i)) {
            model_violate(model, "output token %u is %u, %u was sampled", i, admit->prompt.at[i],
                          model_pick(model, seq, i));
        }
    }
}

static void apply_admit(struct model_worker *model, const struct plan_message *plan,
                        uint64_t now_ns)
{
    const struct plan_admit *admit = &plan->as.admit;
    const struct hello_welcome *limits = &model->options.limits;
    if (model_find(model, admit->seq_id) != NULL) {
        model_violate(model, "ADMIT of sequence %llu, which is there",
                      (unsigned long long)admit->seq_id);
    }
    if (model->stats.sequences >= limits->slots) {
        model_violate(model, "ADMIT number %u with %u slots", model->stats.sequences + 1,
                      limits->slots);
    }
    if (admit->max_total > limits->max_context_tokens) {
        model_violate(model, "max_total %u in a context of %u", admit->max_total,
                      limits->max_context_tokens);
    }
    if (model_is_hit(model, MODEL_FAULT_REFUSE_ADMIT, ++model->admit_count)) {
        model_push_refused(model, plan, ERR_SEQUENCE, now_ns);
        return;
    }
    struct model_seq *seq = mem_zalloc(1, sizeof(*seq));
    seq->seq_id = admit->seq_id;
    seq->state = MODEL_RUNNING;
    seq->storage = copy_admit(admit, &seq->admit);
    check_output(model, seq);
    seq->next = model->seqs;
    model->seqs = seq;
    model->stats.sequences++;
    struct result_record record = {.kind = RESULT_ADMITTED,
                                   .seq_id = seq->seq_id,
                                   .msg_seq = plan->msg_seq,
                                   .as.admitted.figures = model_figures(model)};
    model_push_record(model, &record, now_ns);
}

static void apply_release(struct model_worker *model, uint64_t seq_id)
{
    struct model_seq **at = &model->seqs;
    while (*at != NULL && (*at)->seq_id != seq_id) {
        at = &(*at)->next;
    }
    struct model_seq *seq = *at;
    if (seq == NULL) {
        return;
    }
    for (const struct model_message *step = model->in_flight.first; step != NULL;
         step = step->next) {
        for (uint32_t i = 0; step->refused == ERR_OK && i < step->plan.as.step.rows.count; i++) {
            if (step->rows[i].seq_id == seq_id) {
                model_violate(model, "RELEASE of sequence %llu, which a running step names",
                              (unsigned long long)seq_id);
            }
        }
    }
    model_give_back(model, seq, seq->local_held, seq->global_held);
    *at = seq->next;
    free_seq(seq);
    model->stats.sequences--;
}

/* Whether the STEP may run. */
static enum err_code admit_step(struct model_worker *model, const struct plan_message *plan)
{
    model->step_count++;
    if (plan->as.step.after != 0 && plan->as.step.after == model->refused_seq) {
        model->refused_seq = 0;
    }
    if (model->refused_seq != 0) {
        return ERR_AFTER_REFUSAL;
    }
    if (model_is_hit(model, MODEL_FAULT_REFUSE_STEP, model->step_count)) {
        model->refused_seq = plan->msg_seq;
        return ERR_PAGES;
    }
    return ERR_OK;
}

static void apply_step(struct model_worker *model, struct model_message *step, uint64_t now_ns)
{
    enum err_code code = admit_step(model, &step->plan);
    if (code == ERR_OK) {
        model_launch_step(model, step, now_ns);
    } else {
        model_refuse_step(model, step, code, now_ns);
    }
}

/* Applies queued messages in order; a STEP waits for room in the pipeline. */
static void apply_queued(struct model_worker *model, uint64_t now_ns)
{
    while (model->queued.first != NULL) {
        struct model_message *message = model->queued.first;
        const struct plan_message *plan = &message->plan;
        if (plan->type == PLAN_STEP &&
            model->in_flight_count >= model->options.limits.pipeline_depth) {
            return;
        }
        (void)model_take_first(&model->queued); /* it is message */
        model->applied = plan->msg_seq;
        switch (plan->type) {
        case PLAN_ADMIT: apply_admit(model, plan, now_ns); break;
        case PLAN_STEP:
            apply_step(model, message, now_ns);
            message = NULL; /* in flight */
            break;
        case PLAN_CANCEL: break; /* acted on arrival */
        case PLAN_RELEASE: apply_release(model, plan->as.release.seq_id); break;
        case PLAN_PING: {
            struct result_record pong = {
                .kind = RESULT_PONG,
                .msg_seq = plan->msg_seq,
                .as.pong = {.figures = model_figures(model), .nonce = plan->as.ping.nonce}};
            model_push_record(model, &pong, now_ns);
            break;
        }
        }
        if (message != NULL) {
            model_free_message(message);
        }
    }
}

static void arrive(struct model_worker *model, uint64_t now_ns)
{
    struct model_message *message = model_take_first(&model->arriving);
    const struct plan_message *plan = &message->plan;
    model->stats.messages++;
    if (model_is_hit(model, MODEL_FAULT_DIE, model->stats.messages)) {
        model->is_dead = true;
    }
    if (model_is_hit(model, MODEL_FAULT_STALL, model->stats.messages)) {
        model->is_stalled = true;
    }
    if (plan->epoch != model->epoch || plan->msg_seq != model->next_msg_seq) {
        model_violate(model, "message %llu of epoch %llu, expected %llu of %llu",
                      (unsigned long long)plan->msg_seq, (unsigned long long)plan->epoch,
                      (unsigned long long)model->next_msg_seq, (unsigned long long)model->epoch);
    }
    model->next_msg_seq++;
    if (plan->type == PLAN_CANCEL) {
        struct model_seq *seq = model_find(model, plan->as.cancel.seq_id);
        if (seq != NULL && seq->state == MODEL_RUNNING) {
            model_stop_sequence(model, seq, RESULT_FINISH_CANCEL, now_ns);
        }
    }
    model_append(&model->queued, message);
    apply_queued(model, now_ns);
}

/* When the next arrival or completion is; sets which. */
static uint64_t next_happening(const struct model_worker *model, bool *out_is_arrival)
{
    uint64_t arrival_ns =
        model->arriving.first == NULL ? UINT64_MAX : model->arriving.first->due_ns;
    uint64_t end_ns = model->in_flight.first == NULL ? UINT64_MAX : model->in_flight.first->end_ns;
    *out_is_arrival = arrival_ns < end_ns;
    return *out_is_arrival ? arrival_ns : end_ns;
}

void model_advance(struct model_worker *model, uint64_t now_ns)
{
    bool is_arrival = false;
    uint64_t at_ns = next_happening(model, &is_arrival);
    while (at_ns <= now_ns && !model->is_dead && !model->is_stalled) {
        if (is_arrival) {
            arrive(model, at_ns);
        } else {
            model_complete_step(model, at_ns);
            apply_queued(model, at_ns);
        }
        at_ns = next_happening(model, &is_arrival);
    }
}

uint64_t model_next_ns(const struct model_worker *model)
{
    bool is_arrival = false;
    uint64_t next_ns =
        model->is_stalled || model->is_dead ? UINT64_MAX : next_happening(model, &is_arrival);
    if (model->record_first != NULL && model->record_first->due_ns < next_ns) {
        next_ns = model->record_first->due_ns;
    }
    return next_ns;
}

bool model_find_seed(const struct model_worker *model, uint64_t seq_id, uint64_t *out_seed)
{
    const struct model_seq *seq = model_find(model, seq_id);
    if (seq != NULL) {
        *out_seed = seq->admit.seed;
    }
    return seq != NULL;
}

bool model_is_dead(const struct model_worker *model)
{
    return model->is_dead;
}

const char *model_violation(const struct model_worker *model)
{
    return model->violation;
}

void model_get_stats(const struct model_worker *model, struct model_stats *out_stats)
{
    *out_stats = model->stats;
}
