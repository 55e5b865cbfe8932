#include "tests/testlib/model_runner.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "worker/stage.h"

#define NO_PAGE UINT32_MAX

/* What a page holds at one offset. */
struct cell {
    uint64_t context; /* of the token: everything that came before it; 0: never written */
    uint32_t position;
    uint32_t token;
};

struct model_slot {
    uint64_t opening; /* number of the opening; 0: never opened */
    struct plan_admit admit;
    uint32_t *prompt;   /* owned */
    uint32_t *stop_ids; /* owned */
    uint32_t length;
    uint32_t last_pick;
    bool has_begun; /* its first row ran */
    bool has_pick;
    bool is_stopped;
    uint64_t *contexts;                    /* owned, [max_total]: what its past must read as */
    uint32_t *tables[RUNNER_FAMILY_COUNT]; /* owned, [table_cap] */
};

/* Arrays of a row, owned. */
struct model_kept {
    uint32_t *tokens;
    uint32_t *next_tokens;
    uint32_t *mask;
    struct runner_logprob *prompt_logprobs;
};

struct model_step {
    struct runner_row *rows; /* owned, as all here */
    struct model_kept *kept; /* [row_count] */
    uint32_t row_count;
    struct runner_patch *patches;
    uint32_t patch_count;
    enum model_fault fault;
    bool is_behind_failure;
    uint64_t done_at_ns;
    struct runner_pick *picks;
    struct runner_logprob *logprobs; /* [row_count] */
    enum err_code status;
};

struct model_runner {
    struct runner super;
    struct model_runner_options options;
    uint32_t table_caps[RUNNER_FAMILY_COUNT];
    struct model_slot *slots;                   /* owned */
    struct cell *cells[RUNNER_FAMILY_COUNT];    /* owned, [pages * page_tokens] */
    uint64_t *page_owners[RUNNER_FAMILY_COUNT]; /* owned, [pages]: opening it was given to last */
    struct model_step *steps;                   /* owned, [pipeline_depth], oldest first */
    uint32_t step_count;
    uint32_t run_count; /* of those, run */
    struct model_step collected;
    uint64_t openings;
    uint64_t rows_run;
    uint64_t patches;
    uint64_t now_ns;
    enum model_fault next_fault;
    char violation[200];
};

static struct model_runner *model_of(struct runner *runner)
{
    return (struct model_runner *)runner;
}

static const struct model_runner *model_seen(const struct runner *runner)
{
    return (const struct model_runner *)runner;
}

static void violate(struct model_runner *model, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void violate(struct model_runner *model, const char *format, ...)
{
    if (model->violation[0] == '\0') {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(model->violation, sizeof(model->violation), format, args);
        va_end(args);
    }
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

uint64_t model_fold_start(uint64_t seed)
{
    return mix(seed + 0x9e3779b97f4a7c15ULL);
}

uint64_t model_fold_add(uint64_t fold, uint32_t position, uint32_t token)
{
    return mix(fold ^ ((uint64_t)position << 32 | token)) + 0x9e3779b97f4a7c15ULL;
}

static bool is_stop_id(const struct plan_admit *admit, uint32_t token)
{
    for (uint32_t i = 0; i < admit->stop_ids.count; i++) {
        if (admit->stop_ids.at[i] == token) {
            return true;
        }
    }
    return false;
}

uint32_t model_fold_next(uint64_t fold, uint32_t vocab_tokens, const struct plan_admit *admit,
                         uint32_t token_count, const uint32_t *mask)
{
    uint32_t first = (uint32_t)(mix(fold) % vocab_tokens);
    bool no_stop = token_count - admit->output_start < admit->min_tokens;
    for (uint32_t i = 0; i < vocab_tokens; i++) {
        uint32_t token = (first + i) % vocab_tokens;
        bool is_allowed = mask == NULL || (mask[token / 32] >> (token % 32) & 1U) != 0;
        if (is_allowed && !(no_stop && is_stop_id(admit, token))) {
            return token;
        }
    }
    return first;
}

/* The cell of a position as the slot's tables say, null where they say nothing sound. */
static struct cell *cell_at(struct model_runner *model, const struct model_slot *slot,
                            uint32_t family, uint32_t position)
{
    uint32_t logical = position / model->super.limits.page_tokens;
    uint32_t page = slot->tables[family][logical % model->table_caps[family]];
    if (page == NO_PAGE) {
        violate(model, "family %u position %u: no page in the table", family, position);
        return NULL;
    }
    return &model->cells[family][(size_t)page * model->super.limits.page_tokens +
                                 position % model->super.limits.page_tokens];
}

static void write_token(struct model_runner *model, const struct model_slot *slot,
                        uint32_t position, uint32_t token)
{
    uint64_t before =
        position == 0 ? model_fold_start(slot->admit.cache_salt) : slot->contexts[position - 1];
    slot->contexts[position] = model_fold_add(before, position, token);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        struct cell *cell = cell_at(model, slot, f, position);
        uint32_t logical = position / model->super.limits.page_tokens;
        uint32_t page = slot->tables[f][logical % model->table_caps[f]];
        if (cell != NULL && model->page_owners[f][page] != slot->opening) {
            violate(model, "family %u position %u: opening %llu writes page %u of opening %llu", f,
                    position, (unsigned long long)slot->opening, page,
                    (unsigned long long)model->page_owners[f][page]);
        } else if (cell != NULL) {
            *cell = (struct cell){
                .context = slot->contexts[position], .position = position, .token = token};
        }
    }
}

/* Read positions first .. last back from a family; the fold over them when fold is not null. */
static void read_back(struct model_runner *model, const struct model_slot *slot, uint32_t family,
                      uint32_t first, uint32_t last, uint64_t *fold)
{
    for (uint32_t position = first; position <= last; position++) {
        const struct cell *cell = cell_at(model, slot, family, position);
        if (cell == NULL) {
            return;
        }
        if (cell->context != slot->contexts[position] || cell->position != position) {
            violate(model, "family %u position %u of opening %llu: holds position %u of another",
                    family, position, (unsigned long long)slot->opening, cell->position);
            return;
        }
        if (fold != NULL) {
            *fold = model_fold_add(*fold, position, cell->token);
        }
    }
}

/* The prompt before its first row is in pages that were there: what they must hold. */
static void begin_behind(struct model_slot *slot, uint32_t length)
{
    uint64_t context = model_fold_start(slot->admit.cache_salt);
    for (uint32_t position = 0; position < length; position++) {
        context = model_fold_add(context, position, slot->prompt[position]);
        slot->contexts[position] = context;
    }
    slot->length = length;
}

static void fill_logprob(struct runner_logprob *out, uint32_t token, uint32_t position,
                         uint32_t wanted)
{
    *out = (struct runner_logprob){
        .token = token,
        .logprob = -0.5F - (float)(position % 7),
        .rank = 1 + position % 3,
        .pair_count = wanted == 0 ? 0 : wanted - 1,
    };
    for (uint32_t i = 0; i < out->pair_count; i++) {
        out->ids[i] = token + i;
        out->logprobs[i] = -(float)i - (float)(position % 5);
    }
}

static bool check_row(struct model_runner *model, const struct model_step *step, uint32_t index)
{
    const struct runner_row *row = &step->rows[index];
    struct model_slot *slot = &model->slots[row->slot];
    for (uint32_t i = 0; i < index; i++) {
        if (step->rows[i].slot == row->slot) {
            violate(model, "slot %u: two rows in one step", row->slot);
        }
    }
    if (slot->opening == 0) {
        violate(model, "slot %u: never opened", row->slot);
        return false;
    }
    if (row->tokens == NULL) {
        return true;
    }
    if (!slot->has_begun && !step->is_behind_failure && row->start < slot->admit.prompt.count) {
        begin_behind(slot, row->start);
    }
    slot->has_begun = slot->has_begun || !step->is_behind_failure;
    if (row->start != slot->length && !step->is_behind_failure) {
        violate(model, "slot %u: prompt row at %u, length is %u", row->slot, row->start,
                slot->length);
    }
    for (uint32_t i = 0; i < row->count; i++) {
        if (row->start + i >= slot->admit.prompt.count ||
            row->tokens[i] != slot->prompt[row->start + i]) {
            violate(model, "slot %u: wrong prompt token at %u", row->slot, row->start + i);
            return false;
        }
    }
    return row->start == slot->length;
}

static void sample(struct model_runner *model, struct model_slot *slot,
                   const struct runner_row *row, uint64_t fold, struct runner_pick *pick)
{
    uint32_t vocab = model->super.limits.vocab_tokens;
    uint32_t token = model_fold_next(fold, vocab, &slot->admit, slot->length, row->mask);
    pick->token = token;
    slot->last_pick = token;
    slot->has_pick = true;
    pick->outcome = RUNNER_OUTCOME_TOKEN;
    if (slot->length + 1 >= slot->admit.max_total) {
        pick->outcome = RUNNER_OUTCOME_LENGTH;
    }
    bool may_stop = slot->length - slot->admit.output_start >= slot->admit.min_tokens;
    if (!slot->admit.ignore_eos && may_stop && is_stop_id(&slot->admit, token)) {
        pick->outcome = RUNNER_OUTCOME_STOP;
    }
    slot->is_stopped = slot->is_stopped || pick->outcome != RUNNER_OUTCOME_TOKEN;
}

/* Write the row's tokens, then read the past back. */
static void forward(struct model_runner *model, struct model_slot *slot,
                    const struct runner_row *row, uint64_t *out_fold)
{
    uint32_t start = slot->length;
    for (uint32_t i = 0; i < row->count; i++) {
        write_token(model, slot, start + i, row->tokens == NULL ? slot->last_pick : row->tokens[i]);
    }
    uint32_t last = start + row->count - 1;
    uint32_t window = model->super.limits.window_tokens;
    uint32_t first_local = start + 1 > window ? start + 1 - window : 0;
    *out_fold = model_fold_start(slot->admit.seed);
    read_back(model, slot, RUNNER_FAMILY_GLOBAL, 0, last, out_fold);
    read_back(model, slot, RUNNER_FAMILY_LOCAL, first_local, last, NULL);
    model->rows_run++;
}

static void run_row(struct model_runner *model, struct model_step *step, uint32_t index)
{
    const struct runner_row *row = &step->rows[index];
    struct model_slot *slot = &model->slots[row->slot];
    struct runner_pick *pick = &step->picks[index];
    if (slot->is_stopped) {
        pick->outcome = RUNNER_OUTCOME_MASKED;
        return;
    }
    if (!check_row(model, step, index)) {
        pick->outcome = row->samples ? RUNNER_OUTCOME_BAD : RUNNER_OUTCOME_NONE;
        return;
    }
    bool is_held = row->constrained && (row->mask == NULL || step->fault == MODEL_FAULT_HOLD);
    if (row->tokens == NULL && !slot->has_pick) {
        /* Behind a held prompt row there is nothing to go on from. */
        if (!is_held && !step->is_behind_failure) {
            violate(model, "slot %u: decode row before a token", row->slot);
        }
        pick->outcome = RUNNER_OUTCOME_HELD;
        return;
    }
    uint64_t fold;
    forward(model, slot, row, &fold);
    if (is_held) {
        pick->outcome = RUNNER_OUTCOME_HELD;
        return;
    }
    if (step->fault == MODEL_FAULT_ROW && index == 0) {
        pick->outcome = RUNNER_OUTCOME_BAD;
        slot->is_stopped = true;
        return;
    }
    if (row->prompt_logprobs) {
        struct runner_logprob *logprobs = mem_zalloc(row->count, sizeof(*logprobs));
        for (uint32_t i = 0; i < row->count; i++) {
            fill_logprob(&logprobs[i], row->next_tokens[i], row->start + i + 1,
                         slot->admit.prompt_logprobs);
        }
        step->kept[index].prompt_logprobs = logprobs;
        pick->prompt_logprobs = logprobs;
    }
    slot->length += row->count;
    pick->outcome = RUNNER_OUTCOME_NONE;
    if (row->samples) {
        sample(model, slot, row, fold, pick);
        if (slot->admit.logprobs > 0) {
            fill_logprob(&step->logprobs[index], pick->token, slot->length, slot->admit.logprobs);
            pick->logprob = &step->logprobs[index];
        }
    }
}

static void apply_patches(struct model_runner *model, const struct model_step *step)
{
    model->patches += step->patch_count;
    for (uint32_t i = 0; i < step->patch_count; i++) {
        const struct runner_patch *patch = &step->patches[i];
        struct model_slot *slot = &model->slots[patch->slot];
        uint32_t cap = model->table_caps[patch->family];
        slot->tables[patch->family][patch->logical_page % cap] = patch->physical_page;
        model->page_owners[patch->family][patch->physical_page] = slot->opening;
    }
}

static void run_step(struct model_runner *model, struct model_step *step)
{
    apply_patches(model, step);
    step->status = ERR_OK;
    if (step->fault == MODEL_FAULT_STEP || step->fault == MODEL_FAULT_LOST) {
        step->status = step->fault == MODEL_FAULT_STEP ? ERR_STEP : ERR_DEVICE;
        for (uint32_t i = 1; i < model->step_count; i++) {
            model->steps[i].is_behind_failure = true;
        }
        return;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        run_row(model, step, i);
    }
}

static void free_step(struct model_step *step)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        mem_free(step->kept[i].tokens);
        mem_free(step->kept[i].next_tokens);
        mem_free(step->kept[i].mask);
        mem_free(step->kept[i].prompt_logprobs);
    }
    mem_free(step->kept);
    mem_free(step->rows);
    mem_free(step->patches);
    mem_free(step->picks);
    mem_free(step->logprobs);
    *step = (struct model_step){0};
}

static uint32_t *copy_words(const uint32_t *words, size_t count)
{
    if (words == NULL || count == 0) {
        return NULL;
    }
    uint32_t *copy = mem_zalloc(count, sizeof(*copy));
    memcpy(copy, words, count * sizeof(*copy));
    return copy;
}

static enum err_code on_slot_open(struct runner *runner, uint32_t slot_index,
                                  const struct plan_admit *admit, struct err *err)
{
    struct model_runner *model = model_of(runner);
    if (slot_index >= runner->limits.slots) {
        return err_set(err, ERR_INTERNAL, "slot %u of %u", slot_index, runner->limits.slots);
    }
    for (uint32_t s = model->run_count; s < model->step_count; s++) {
        for (uint32_t i = 0; i < model->steps[s].row_count; i++) {
            if (model->steps[s].rows[i].slot == slot_index) {
                violate(model, "slot %u: opened while a launched step names it", slot_index);
            }
        }
    }
    struct model_slot *slot = &model->slots[slot_index];
    mem_free(slot->prompt);
    mem_free(slot->stop_ids);
    slot->opening = ++model->openings;
    slot->admit = *admit;
    slot->prompt = copy_words(admit->prompt.at, admit->prompt.count);
    slot->stop_ids = copy_words(admit->stop_ids.at, admit->stop_ids.count);
    slot->admit.prompt.at = slot->prompt;
    slot->admit.stop_ids.at = slot->stop_ids;
    mem_free(slot->contexts);
    slot->contexts = mem_zalloc(admit->max_total, sizeof(*slot->contexts));
    slot->length = 0;
    slot->has_begun = false;
    slot->has_pick = false;
    slot->is_stopped = false;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        for (uint32_t i = 0; i < model->table_caps[f]; i++) {
            slot->tables[f][i] = NO_PAGE;
        }
    }
    return ERR_OK;
}

static void on_slot_stop(struct runner *runner, uint32_t slot)
{
    model_of(runner)->slots[slot].is_stopped = true;
}

static enum model_fault take_fault(struct model_runner *model)
{
    enum model_fault fault = model->next_fault;
    model->next_fault = MODEL_FAULT_NONE;
    struct inject *inject = model->options.inject;
    if (inject != NULL && fault == MODEL_FAULT_NONE) {
        bool forward_hit = inject_hits(inject, INJECT_FORWARD);
        bool sample_hit = inject_hits(inject, INJECT_SAMPLE);
        bool lost_hit = inject_hits(inject, INJECT_DEVICE_LOST);
        fault = forward_hit || sample_hit ? MODEL_FAULT_STEP : MODEL_FAULT_NONE;
        fault = lost_hit ? MODEL_FAULT_LOST : fault;
    }
    return fault;
}

static enum err_code on_launch(struct runner *runner, const struct runner_step *from,
                               struct err *err)
{
    struct model_runner *model = model_of(runner);
    if (model->step_count >= runner->limits.pipeline_depth) {
        violate(model, "launch of step %u in flight, depth is %u", model->step_count + 1,
                runner->limits.pipeline_depth);
        return err_set(err, ERR_STEP, "pipeline full");
    }
    enum model_fault fault = take_fault(model);
    if (fault == MODEL_FAULT_LAUNCH) {
        return err_set(err, ERR_STEP, "launch failed as asked");
    }
    struct model_step *step = &model->steps[model->step_count];
    *step = (struct model_step){
        .row_count = from->row_count,
        .patch_count = from->patch_count,
        .fault = fault,
        .rows = mem_zalloc(from->row_count + 1, sizeof(*step->rows)),
        .kept = mem_zalloc(from->row_count + 1, sizeof(*step->kept)),
        .picks = mem_zalloc(from->row_count + 1, sizeof(*step->picks)),
        .logprobs = mem_zalloc(from->row_count + 1, sizeof(*step->logprobs)),
        .patches = mem_zalloc(from->patch_count + 1, sizeof(*step->patches)),
    };
    uint32_t mask_words = num_ceil_div(runner->limits.vocab_tokens, 32);
    for (uint32_t i = 0; i < from->row_count; i++) {
        const struct runner_row *row = &from->rows[i];
        step->rows[i] = *row;
        struct model_kept *kept = &step->kept[i];
        kept->tokens = copy_words(row->tokens, row->count);
        kept->next_tokens = copy_words(row->next_tokens, row->count);
        kept->mask = copy_words(row->mask, mask_words);
        step->rows[i].tokens = kept->tokens;
        step->rows[i].next_tokens = kept->next_tokens;
        step->rows[i].mask = kept->mask;
    }
    if (from->patch_count > 0) {
        memcpy(step->patches, from->patches, from->patch_count * sizeof(*step->patches));
    }
    uint64_t idle_at_ns = model_runner_idle_at(runner);
    step->done_at_ns =
        (idle_at_ns > model->now_ns ? idle_at_ns : model->now_ns) + model->options.step_ns;
    for (uint32_t i = 0; i < model->run_count; i++) {
        step->is_behind_failure = step->is_behind_failure || model->steps[i].status != ERR_OK;
    }
    model->step_count++;
    return ERR_OK;
}

uint32_t model_runner_complete(struct runner *runner, uint32_t step_count)
{
    struct model_runner *model = model_of(runner);
    uint32_t ran = 0;
    while (ran < step_count && model->run_count < model->step_count) {
        run_step(model, &model->steps[model->run_count++]);
        ran++;
    }
    return ran;
}

static bool on_is_done(struct runner *runner)
{
    struct model_runner *model = model_of(runner);
    while (model->options.step_ns > 0 && model->run_count < model->step_count &&
           model->steps[model->run_count].done_at_ns <= model->now_ns) {
        (void)model_runner_complete(runner, 1); /* one is waiting */
    }
    return model->run_count > 0;
}

static bool on_wait(struct runner *runner, uint64_t deadline_ns)
{
    (void)deadline_ns; /* time does not pass by itself */
    return on_is_done(runner);
}

static void on_wake(struct runner *runner)
{
    (void)runner; /* nothing ever waits */
}

static void on_collect(struct runner *runner, struct runner_result *out_result)
{
    struct model_runner *model = model_of(runner);
    if (model->run_count == 0) {
        violate(model, "collect with no step done");
        assert(false);
    }
    free_step(&model->collected);
    model->collected = model->steps[0];
    model->step_count--;
    model->run_count--;
    memmove(&model->steps[0], &model->steps[1], model->step_count * sizeof(model->steps[0]));
    const struct model_step *step = &model->collected;
    *out_result = (struct runner_result){
        .status = step->status,
        .device_ns = model->options.step_ns == 0 ? 1000 : model->options.step_ns,
        .picks = step->picks,
    };
    if (step->status != ERR_OK) {
        (void)err_set(&out_result->error, step->status, "step failed as asked");
    }
}

static void on_destroy(struct runner *runner)
{
    struct model_runner *model = model_of(runner);
    for (uint32_t i = 0; i < model->step_count; i++) {
        free_step(&model->steps[i]);
    }
    free_step(&model->collected);
    for (uint32_t i = 0; i < runner->limits.slots; i++) {
        struct model_slot *slot = &model->slots[i];
        mem_free(slot->prompt);
        mem_free(slot->stop_ids);
        mem_free(slot->contexts);
        mem_free(slot->tables[RUNNER_FAMILY_LOCAL]);
        mem_free(slot->tables[RUNNER_FAMILY_GLOBAL]);
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        mem_free(model->cells[f]);
        mem_free(model->page_owners[f]);
    }
    mem_free(model->slots);
    mem_free(model->steps);
    mem_free(model);
}

static const struct runner_table table = {
    .slot_open = on_slot_open,
    .slot_stop = on_slot_stop,
    .launch = on_launch,
    .is_done = on_is_done,
    .wait = on_wait,
    .wake = on_wake,
    .collect = on_collect,
    .destroy = on_destroy,
};

struct runner *model_runner_create(const struct model_runner_options *options)
{
    const struct runner_limits *limits = &options->limits;
    struct model_runner *model = mem_zalloc(1, sizeof(*model));
    model->super = (struct runner){.table = &table, .limits = *limits};
    model->options = *options;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        model->table_caps[f] = stage_table_pages(limits, (enum runner_family)f);
    }
    model->slots = mem_zalloc(limits->slots, sizeof(*model->slots));
    model->steps = mem_zalloc(limits->pipeline_depth, sizeof(*model->steps));
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        size_t cells = (size_t)limits->pages[f] * limits->page_tokens;
        model->cells[f] = mem_zalloc(cells, sizeof(*model->cells[f]));
        model->page_owners[f] = mem_zalloc(limits->pages[f], sizeof(*model->page_owners[f]));
        for (uint32_t i = 0; i < limits->slots; i++) {
            model->slots[i].tables[f] = mem_zalloc(model->table_caps[f], sizeof(uint32_t));
        }
    }
    return &model->super;
}

void model_runner_set_now(struct runner *runner, uint64_t now_ns)
{
    model_of(runner)->now_ns = now_ns;
}

uint64_t model_runner_idle_at(const struct runner *runner)
{
    const struct model_runner *model = model_seen(runner);
    return model->step_count == 0 ? model->now_ns : model->steps[model->step_count - 1].done_at_ns;
}

void model_runner_fault_next(struct runner *runner, enum model_fault fault)
{
    model_of(runner)->next_fault = fault;
}

const char *model_runner_violation(const struct runner *runner)
{
    const struct model_runner *model = model_seen(runner);
    return model->violation[0] == '\0' ? NULL : model->violation;
}

uint64_t model_runner_rows_run(const struct runner *runner)
{
    return model_seen(runner)->rows_run;
}

uint64_t model_runner_patches(const struct runner *runner)
{
    return model_seen(runner)->patches;
}
