#include "tests/sim/device.h"

#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/sim/model.h"
#include "worker/stage.h"

#define NO_PAGE UINT32_MAX

struct page {
    uint64_t writer; /* opening that it was granted to */
    uint32_t fill;   /* entries written since */
    uint64_t *sums;  /* [page_tokens]: of the entries up to and with each */
};

struct slot {
    uint64_t opening; /* number of the opening; 0: never opened */
    struct plan_admit admit;
    uint32_t stop_ids[PLAN_MAX_STOP_IDS];
    uint32_t prompt_tokens;
    uint32_t length;
    uint32_t step_start; /* where its row of the step being run begins */
    uint32_t last_pick;
    bool has_pick;
    bool is_stopped;
    uint64_t output_sum;
    uint32_t *tables[RUNNER_FAMILY_COUNT]; /* owned, [table_cap] */
};

struct flight {
    struct runner_row *rows; /* owned, as all here: [max_step_rows] */
    uint32_t row_count;
    uint32_t *tokens; /* [max_step_tokens] */
    struct runner_patch *patches;
    uint32_t patch_count;
    uint32_t patch_cap;
    struct runner_pick *picks;              /* [max_step_rows] */
    struct runner_logprob *logprobs;        /* [max_step_rows] */
    struct runner_logprob *prompt_logprobs; /* [max_step_tokens]; null until asked for */
    uint32_t *next_tokens;                  /* [max_step_tokens] */
    enum err_code status;
    bool is_void; /* launched before a failure was known: computes nothing */
};

struct sim_device {
    struct runner super;
    struct inject *inject;
    struct report *report;
    uint32_t table_caps[RUNNER_FAMILY_COUNT];
    struct slot *slots;                      /* owned */
    struct page *pages[RUNNER_FAMILY_COUNT]; /* owned, [pages] */
    uint64_t *sums[RUNNER_FAMILY_COUNT];     /* owned, [pages * page_tokens] */
    struct flight *flights; /* owned, [pipeline_depth + 1], a ring: what was collected last stays */
    uint32_t first_index;
    uint32_t flight_count;
    uint32_t run_count; /* of those, run */
    uint64_t openings;
    bool has_failed; /* a step failed and is not collected yet */
    uint32_t rows_to_spoil;
};

static struct sim_device *device_of(struct runner *runner)
{
    return (struct sim_device *)runner;
}

static struct flight *flight_at(struct sim_device *device, uint32_t index)
{
    uint32_t count = device->super.limits.pipeline_depth + 1;
    return &device->flights[(device->first_index + index) % count];
}

static struct page *page_at(const struct sim_device *device, const struct slot *slot,
                            uint32_t family, uint32_t position)
{
    uint32_t logical = position / device->super.limits.page_tokens;
    uint32_t page = slot->tables[family][logical % device->table_caps[family]];
    if (page == NO_PAGE) {
        report_fail(device->report, "family %u position %u of sequence %llu: no page in the table",
                    family, position, (unsigned long long)slot->admit.seq_id);
    }
    return &device->pages[family][page];
}

/* Sum of the entries of a page before offset. */
static uint64_t sum_before(const struct sim_device *device, const struct slot *slot,
                           uint32_t family, uint32_t position)
{
    uint32_t offset = position % device->super.limits.page_tokens;
    if (offset == 0) {
        return 0;
    }
    const struct page *page = page_at(device, slot, family, position);
    if (page->fill < offset) {
        report_fail(device->report,
                    "family %u position %u of sequence %llu: its page holds %u entries", family,
                    position - 1, (unsigned long long)slot->admit.seq_id, page->fill);
    }
    return page->sums[offset - 1];
}

/* Sum of the entries at [first, end). */
static uint64_t sum_range(const struct sim_device *device, const struct slot *slot, uint32_t family,
                          uint32_t first, uint32_t end)
{
    uint32_t page_tokens = device->super.limits.page_tokens;
    if (first >= end) {
        return 0;
    }
    uint64_t sum = sum_before(device, slot, family, end) - sum_before(device, slot, family, first);
    for (uint32_t at = first / page_tokens * page_tokens; at + page_tokens <= end;
         at += page_tokens) {
        const struct page *page = page_at(device, slot, family, at);
        if (page->fill < page_tokens) {
            report_fail(device->report,
                        "family %u position %u of sequence %llu: its page holds %u entries", family,
                        at, (unsigned long long)slot->admit.seq_id, page->fill);
        }
        sum += page->sums[page_tokens - 1];
    }
    return sum;
}

static uint32_t window_start(const struct sim_device *device, uint32_t position)
{
    uint32_t window = device->super.limits.window_tokens;
    return position + 1 > window ? position + 1 - window : 0;
}

static void write_entry(const struct sim_device *device, const struct slot *slot, uint32_t position,
                        uint64_t entry)
{
    uint32_t offset = position % device->super.limits.page_tokens;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        struct page *page = page_at(device, slot, f, position);
        if (page->writer != slot->opening) {
            report_fail(device->report,
                        "family %u position %u of sequence %llu: written into a page of another", f,
                        position, (unsigned long long)slot->admit.seq_id);
        }
        if (page->fill != offset) {
            report_fail(device->report,
                        "family %u position %u of sequence %llu: its page holds %u entries, written"
                        " at %u",
                        f, position, (unsigned long long)slot->admit.seq_id, page->fill, offset);
        }
        page->sums[offset] = (offset == 0 ? 0 : page->sums[offset - 1]) + entry;
        page->fill++;
    }
}

/* Computes the row's tokens; what its last token can see. */
static void forward(const struct sim_device *device, struct slot *slot,
                    const struct runner_row *row, struct model_state *out_state)
{
    uint32_t start = slot->step_start;
    uint64_t global_sum = sum_range(device, slot, RUNNER_FAMILY_GLOBAL, 0, start);
    uint64_t local_sum =
        sum_range(device, slot, RUNNER_FAMILY_LOCAL, window_start(device, start), start);
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t position = start + i;
        uint32_t token = row->tokens == NULL ? slot->last_pick : row->tokens[i];
        uint64_t entry =
            model_entry(slot->admit.cache_salt, position, token, global_sum, local_sum);
        write_entry(device, slot, position, entry);
        global_sum += entry;
        local_sum += entry;
        if (i + 1 < row->count && window_start(device, position + 1) > 0) {
            uint32_t leaves = window_start(device, position + 1) - 1;
            local_sum -= sum_range(device, slot, RUNNER_FAMILY_LOCAL, leaves, leaves + 1);
        }
    }
    slot->length = start + row->count;
    *out_state = (struct model_state){
        .admit = &slot->admit,
        .vocab_tokens = device->super.limits.vocab_tokens,
        .position = slot->length,
        .global_sum = global_sum,
        .local_sum = local_sum,
        .output_sum = slot->output_sum,
    };
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

static void sample(struct sim_device *device, struct slot *slot, const struct model_state *state,
                   struct runner_pick *pick, struct runner_logprob *logprob)
{
    if (device->rows_to_spoil > 0) {
        device->rows_to_spoil--;
        device->report->faults++;
        pick->outcome = RUNNER_OUTCOME_BAD;
        slot->is_stopped = true;
        return;
    }
    uint32_t token = model_pick(state);
    pick->token = token;
    pick->outcome = RUNNER_OUTCOME_TOKEN;
    slot->last_pick = token;
    slot->has_pick = true;
    slot->output_sum += model_output(token);
    if (state->position + 1 >= slot->admit.max_total) {
        pick->outcome = RUNNER_OUTCOME_LENGTH;
    }
    if (model_stops(&slot->admit, state->position, token)) {
        pick->outcome = RUNNER_OUTCOME_STOP;
    }
    slot->is_stopped = pick->outcome != RUNNER_OUTCOME_TOKEN;
    if (slot->admit.logprobs > 0) {
        fill_logprob(logprob, token, state->position, slot->admit.logprobs);
        pick->logprob = logprob;
    }
}

static void check_row(const struct sim_device *device, const struct slot *slot,
                      const struct runner_row *row)
{
    unsigned long long id = slot->admit.seq_id;
    if (slot->opening == 0) {
        report_fail(device->report, "slot %u: a row, never opened", row->slot);
    }
    if (row->tokens == NULL) {
        if (!slot->has_pick || slot->length < slot->prompt_tokens) {
            report_fail(device->report, "decode row of %llu: length %u of a prompt of %u", id,
                        slot->length, slot->prompt_tokens);
        }
        return;
    }
    if (slot->length != 0 && row->start != slot->length) {
        report_fail(device->report, "prompt row of %llu at %u: length is %u", id, row->start,
                    slot->length);
    }
    uint32_t end = row->start + row->count;
    uint32_t cut = device->super.limits.segment_tokens;
    if (cut != 0 && end != slot->prompt_tokens && end % cut != 0) {
        report_fail(device->report, "prompt row of %llu ends at %u: not a multiple of %u", id, end,
                    cut);
    }
    if (row->samples != (end == slot->prompt_tokens)) {
        report_fail(device->report, "prompt row of %llu ends at %u of %u: wrong about sampling", id,
                    end, slot->prompt_tokens);
    }
}

static void run_row(struct sim_device *device, struct flight *flight, uint32_t index,
                    struct runner_logprob **prompt_logprobs)
{
    const struct runner_row *row = &flight->rows[index];
    struct slot *slot = &device->slots[row->slot];
    struct runner_pick *pick = &flight->picks[index];
    if (slot->is_stopped) {
        pick->outcome = RUNNER_OUTCOME_MASKED;
        report_cover(device->report, COVER_LATE_STOP);
        return;
    }
    check_row(device, slot, row);
    if (row->tokens != NULL && !row->samples) {
        report_cover(device->report, COVER_PROMPT_CUT);
    }
    struct model_state state;
    forward(device, slot, row, &state);
    pick->outcome = RUNNER_OUTCOME_NONE;
    if (row->prompt_logprobs) {
        pick->prompt_logprobs = *prompt_logprobs;
        for (uint32_t i = 0; i < row->count; i++) {
            fill_logprob((*prompt_logprobs)++, row->next_tokens[i], row->start + i + 1,
                         slot->admit.prompt_logprobs);
        }
    }
    if (row->samples) {
        sample(device, slot, &state, pick, &flight->logprobs[index]);
    }
}

/* A page granted behind what a row finds there is empty; one before it was filled by another. */
static void apply_patches(struct sim_device *device, const struct flight *flight)
{
    for (uint32_t i = 0; i < flight->row_count; i++) {
        const struct runner_row *row = &flight->rows[i];
        struct slot *slot = &device->slots[row->slot];
        slot->step_start = row->tokens == NULL ? slot->length : row->start;
    }
    for (uint32_t i = 0; i < flight->patch_count; i++) {
        const struct runner_patch *patch = &flight->patches[i];
        struct slot *slot = &device->slots[patch->slot];
        uint32_t cap = device->table_caps[patch->family];
        slot->tables[patch->family][patch->logical_page % cap] = patch->physical_page;
        struct page *page = &device->pages[patch->family][patch->physical_page];
        if ((uint64_t)patch->logical_page * device->super.limits.page_tokens >= slot->step_start) {
            page->writer = slot->opening;
            page->fill = 0;
        }
    }
}

static bool is_hit(struct sim_device *device, enum inject_stage stage, enum cover cover)
{
    bool hits = inject_hits(device->inject, stage);
    if (hits) {
        report_cover(device->report, cover);
        device->report->faults++;
    }
    return hits;
}

static void run_flight(struct sim_device *device, struct flight *flight)
{
    bool forward_fails = is_hit(device, INJECT_FORWARD, COVER_INJECTED_FORWARD);
    bool sample_fails = is_hit(device, INJECT_SAMPLE, COVER_INJECTED_SAMPLE);
    flight->status = forward_fails || sample_fails ? ERR_STEP : ERR_OK;
    if (is_hit(device, INJECT_DEVICE_LOST, COVER_INJECTED_DEVICE_LOST)) {
        flight->status = ERR_DEVICE;
    }
    if (device->has_failed || flight->is_void) { /* whatever it claims, nothing of it counts */
        return;
    }
    if (flight->status != ERR_OK) {
        device->has_failed = true;
        return;
    }
    apply_patches(device, flight);
    struct runner_logprob *prompt_logprobs = flight->prompt_logprobs;
    for (uint32_t i = 0; i < flight->row_count; i++) {
        run_row(device, flight, i, &prompt_logprobs);
    }
}

static enum err_code on_slot_open(struct runner *runner, uint32_t slot_index,
                                  const struct plan_admit *admit, struct err *err)
{
    struct sim_device *device = device_of(runner);
    (void)err; /* cannot fail */
    for (uint32_t s = device->run_count; s < device->flight_count; s++) {
        const struct flight *flight = flight_at(device, s);
        for (uint32_t i = 0; i < flight->row_count; i++) {
            if (flight->rows[i].slot == slot_index) {
                report_fail(device->report, "slot %u: opened while a launched step names it",
                            slot_index);
            }
        }
    }
    struct slot *slot = &device->slots[slot_index];
    uint32_t *tables[RUNNER_FAMILY_COUNT] = {slot->tables[0], slot->tables[1]};
    *slot = (struct slot){
        .opening = ++device->openings,
        .admit = *admit,
        .prompt_tokens = admit->prompt.count,
        .tables = {tables[0], tables[1]},
    };
    memcpy(slot->stop_ids, admit->stop_ids.at, admit->stop_ids.count * sizeof(uint32_t));
    slot->admit.stop_ids.at = slot->stop_ids;
    for (uint32_t i = admit->output_start; i < admit->prompt.count; i++) {
        slot->output_sum += model_output(admit->prompt.at[i]);
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        memset(slot->tables[f], 0xff, device->table_caps[f] * sizeof(uint32_t));
    }
    return ERR_OK;
}

static void on_slot_stop(struct runner *runner, uint32_t slot)
{
    device_of(runner)->slots[slot].is_stopped = true;
}

static void copy_rows(struct sim_device *device, struct flight *flight,
                      const struct runner_step *from)
{
    uint32_t token_count = 0;
    uint32_t next_count = 0;
    bool has_prompt = false;
    bool has_decode = false;
    for (uint32_t i = 0; i < from->row_count; i++) {
        struct runner_row *row = &flight->rows[i];
        *row = from->rows[i];
        has_prompt = has_prompt || row->tokens != NULL;
        has_decode = has_decode || row->tokens == NULL;
        if (row->tokens != NULL) {
            memcpy(flight->tokens + token_count, row->tokens, row->count * sizeof(uint32_t));
            row->tokens = flight->tokens + token_count;
            token_count += row->count;
        }
        if (row->prompt_logprobs) {
            memcpy(flight->next_tokens + next_count, row->next_tokens,
                   row->count * sizeof(uint32_t));
            row->next_tokens = flight->next_tokens + next_count;
            next_count += row->count;
        }
    }
    if (next_count > 0 && flight->prompt_logprobs == NULL) {
        flight->prompt_logprobs =
            mem_zalloc(device->super.limits.max_step_tokens, sizeof(struct runner_logprob));
    }
    if (has_prompt && has_decode) {
        report_cover(device->report, COVER_MIXED_STEP);
    }
}

static enum err_code on_launch(struct runner *runner, const struct runner_step *from,
                               struct err *err)
{
    struct sim_device *device = device_of(runner);
    (void)err; /* cannot fail */
    if (device->flight_count >= runner->limits.pipeline_depth ||
        from->row_count > runner->limits.max_step_rows) {
        report_fail(device->report, "launch of %u rows behind %u steps", from->row_count,
                    device->flight_count);
    }
    struct flight *flight = flight_at(device, device->flight_count++);
    flight->row_count = from->row_count;
    flight->status = ERR_OK;
    flight->is_void = false;
    copy_rows(device, flight, from);
    memset(flight->picks, 0, from->row_count * sizeof(*flight->picks));
    if (from->patch_count > flight->patch_cap) {
        flight->patch_cap = 2 * from->patch_count;
        flight->patches = mem_realloc(flight->patches, flight->patch_cap, sizeof(*flight->patches));
    }
    flight->patch_count = from->patch_count;
    if (from->patch_count > 0) {
        memcpy(flight->patches, from->patches, from->patch_count * sizeof(*flight->patches));
    }
    if (device->flight_count >= 4) {
        report_cover(device->report, COVER_DEEP_PIPELINE);
    }
    return ERR_OK;
}

uint32_t sim_device_complete(struct runner *runner, uint32_t step_count)
{
    struct sim_device *device = device_of(runner);
    uint32_t ran = 0;
    while (ran < step_count && device->run_count < device->flight_count) {
        run_flight(device, flight_at(device, device->run_count));
        device->run_count++;
        ran++;
    }
    return ran;
}

uint32_t sim_device_in_flight(const struct runner *runner)
{
    return ((const struct sim_device *)runner)->flight_count;
}

void sim_device_spoil_row(struct runner *runner)
{
    device_of(runner)->rows_to_spoil = 1;
}

static bool on_is_done(struct runner *runner)
{
    return device_of(runner)->run_count > 0;
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
    struct sim_device *device = device_of(runner);
    if (device->run_count == 0) {
        report_fail(device->report, "collect with no step done");
    }
    const struct flight *flight = flight_at(device, 0);
    device->first_index = (device->first_index + 1) % (runner->limits.pipeline_depth + 1);
    device->flight_count--;
    device->run_count--;
    *out_result =
        (struct runner_result){.status = flight->status, .device_ns = 1000, .picks = flight->picks};
    if (flight->status != ERR_OK) {
        (void)err_set(&out_result->error, flight->status, "injected failure of a step");
        for (uint32_t i = 0; i < device->flight_count; i++) {
            flight_at(device, i)->is_void = true;
        }
        device->has_failed = false;
    }
}

static void on_destroy(struct runner *runner)
{
    struct sim_device *device = device_of(runner);
    for (uint32_t i = 0; i <= runner->limits.pipeline_depth; i++) {
        struct flight *flight = &device->flights[i];
        mem_free(flight->rows);
        mem_free(flight->tokens);
        mem_free(flight->patches);
        mem_free(flight->picks);
        mem_free(flight->logprobs);
        mem_free(flight->prompt_logprobs);
        mem_free(flight->next_tokens);
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        for (uint32_t i = 0; i < runner->limits.slots; i++) {
            mem_free(device->slots[i].tables[f]);
        }
        mem_free(device->pages[f]);
        mem_free(device->sums[f]);
    }
    mem_free(device->slots);
    mem_free(device->flights);
    mem_free(device);
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

static void create_pages(struct sim_device *device, uint32_t family)
{
    const struct runner_limits *limits = &device->super.limits;
    device->pages[family] = mem_zalloc(limits->pages[family], sizeof(struct page));
    device->sums[family] =
        mem_zalloc((size_t)limits->pages[family] * limits->page_tokens, sizeof(uint64_t));
    for (uint32_t i = 0; i < limits->pages[family]; i++) {
        device->pages[family][i].sums = device->sums[family] + (size_t)i * limits->page_tokens;
    }
    for (uint32_t i = 0; i < limits->slots; i++) {
        device->slots[i].tables[family] = mem_zalloc(device->table_caps[family], sizeof(uint32_t));
    }
}

struct runner *sim_device_create(const struct runner_limits *limits, struct inject *inject,
                                 struct report *report)
{
    struct sim_device *device = mem_zalloc(1, sizeof(*device));
    device->super = (struct runner){.table = &table, .limits = *limits};
    device->inject = inject;
    device->report = report;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        device->table_caps[f] = stage_table_pages(limits, (enum runner_family)f);
    }
    device->slots = mem_zalloc(limits->slots, sizeof(*device->slots));
    device->flights = mem_zalloc(limits->pipeline_depth + 1, sizeof(*device->flights));
    for (uint32_t i = 0; i <= limits->pipeline_depth; i++) {
        struct flight *flight = &device->flights[i];
        flight->rows = mem_zalloc(limits->max_step_rows, sizeof(*flight->rows));
        flight->tokens = mem_zalloc(limits->max_step_tokens, sizeof(uint32_t));
        flight->next_tokens = mem_zalloc(limits->max_step_tokens, sizeof(uint32_t));
        flight->picks = mem_zalloc(limits->max_step_rows, sizeof(*flight->picks));
        flight->logprobs = mem_zalloc(limits->max_step_rows, sizeof(*flight->logprobs));
    }
    create_pages(device, RUNNER_FAMILY_LOCAL);
    create_pages(device, RUNNER_FAMILY_GLOBAL);
    return &device->super;
}
