#include "worker/step.h"

#include <assert.h>
#include <stddef.h>

#include "common/mem.h"
#include "common/num.h"
#include "worker/session.h"

#define NO_TOKEN UINT32_MAX

static enum err_code init_pools(struct step_line *line, const struct step_options *options,
                                struct err *err)
{
    const struct runner_limits *limits = &options->runner->limits;
    const struct prefix_options prefix = {
        .page_tokens = limits->page_tokens,
        .window_tokens = limits->window_tokens,
        .cut_tokens = limits->segment_tokens,
        .hash_seed = options->hash_seed,
        .is_on = options->keeps_prefixes,
    };
    enum err_code code = ERR_OK;
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT && code == ERR_OK; f++) {
        code = pool_init(&line->pools[f], limits->pages[f], err);
    }
    /* A sequence keeps a shared global page to its end, but needs a local page of its own for every
     * shared one that its window leaves while others still hold it. */
    line->pools[RUNNER_FAMILY_LOCAL].counts_holders = true;
    return code == ERR_OK ? prefix_init(&line->prefix, line->pools, &prefix, err) : code;
}

enum err_code step_line_init(struct step_line *line, const struct step_options *options,
                             struct err *err)
{
    const struct runner_limits *limits = &options->runner->limits;
    *line = (struct step_line){.runner = options->runner, .inject = options->inject};
    if (limits->pipeline_depth == 0 || limits->pipeline_depth > STEP_MAX_DEPTH) {
        return err_set(err, ERR_ARGUMENT, "pipeline depth %u, want 1 to %u", limits->pipeline_depth,
                       STEP_MAX_DEPTH);
    }
    line->geometry = (struct account_geometry){
        .page_tokens = limits->page_tokens,
        .window_tokens = limits->window_tokens,
        .max_step_tokens = limits->max_step_tokens,
    };
    enum err_code code = init_pools(line, options, err);
    if (code != ERR_OK) {
        step_line_fini(line);
        return code;
    }
    for (uint32_t i = 0; i < limits->pipeline_depth; i++) {
        line->steps[i].rows = mem_zalloc(limits->max_step_rows, sizeof(struct step_row));
    }
    /* A row of n tokens is granted at most ceil(n / page) + 1 pages of a family, one that was held
     * before no more than that either; with a reused prefix it names every page of its sequence. */
    size_t table_pages = num_ceil_div(limits->max_context_tokens, limits->page_tokens);
    size_t unplaced = options->keeps_prefixes ? limits->max_step_rows * table_pages : 0;
    line->patch_cap = RUNNER_FAMILY_COUNT * (limits->max_step_tokens / limits->page_tokens +
                                             2 * (size_t)limits->max_step_rows + unplaced);
    line->needs = mem_zalloc(limits->max_step_rows, sizeof(*line->needs));
    line->runner_rows = mem_zalloc(limits->max_step_rows, sizeof(*line->runner_rows));
    line->patches = mem_zalloc(line->patch_cap, sizeof(*line->patches));
    line->next_tokens = mem_zalloc(limits->max_step_tokens, sizeof(*line->next_tokens));
    line->masks = mem_zalloc(limits->max_step_rows, sizeof(const uint32_t *));
    return ERR_OK;
}

void step_line_fini(struct step_line *line)
{
    prefix_fini(&line->prefix);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        pool_fini(&line->pools[f]);
    }
    for (uint32_t i = 0; i < STEP_MAX_DEPTH; i++) {
        mem_free(line->steps[i].rows);
    }
    mem_free(line->needs);
    mem_free(line->runner_rows);
    mem_free(line->patches);
    mem_free(line->next_tokens);
    mem_free(line->masks);
    *line = (struct step_line){0};
}

static struct step *entry_at(struct step_line *line, uint32_t index)
{
    return &line->steps[(line->first_index + index) % line->runner->limits.pipeline_depth];
}

const struct step *step_at(const struct step_line *line, uint32_t index)
{
    assert(index < line->step_count);
    return &line->steps[(line->first_index + index) % line->runner->limits.pipeline_depth];
}

const struct step *step_awaiting_masks(const struct step_line *line)
{
    const struct step *newest = line->step_count == 0 ? NULL : step_at(line, line->step_count - 1);
    return newest != NULL && newest->awaits_masks ? newest : NULL;
}

bool step_can_launch(const struct step_line *line)
{
    return line->step_count < line->runner->limits.pipeline_depth && line->doomed_count == 0 &&
           step_awaiting_masks(line) == NULL;
}

/* The next free entry, its row storage kept. */
static struct step *fresh_entry(struct step_line *line, struct session *session, uint64_t msg_seq)
{
    struct step *step = entry_at(line, line->step_count);
    *step = (struct step){.session = session, .msg_seq = msg_seq, .rows = step->rows};
    return step;
}

static bool hits(struct step_line *line, enum inject_stage stage)
{
    return line->inject != NULL && inject_hits(line->inject, stage);
}

/* Pages of each row and of all together. */
static enum err_code count_needs(struct step_line *line, const struct plan_rows *rows,
                                 uint32_t out_pages[RUNNER_FAMILY_COUNT], struct err *err)
{
    uint32_t pages[RUNNER_FAMILY_COUNT] = {0};
    for (uint32_t i = 0; i < rows->row_count; i++) {
        const struct plan_row *row = &rows->rows[i];
        if (row->kind == PLAN_ROW_EMPTY) {
            continue;
        }
        enum err_code code = seq_need(row->seq, &line->geometry, row->count, &line->needs[i], err);
        if (code != ERR_OK) {
            return code;
        }
        pages[RUNNER_FAMILY_LOCAL] += line->needs[i].local_pages;
        pages[RUNNER_FAMILY_GLOBAL] += line->needs[i].global_pages;
    }
    out_pages[RUNNER_FAMILY_LOCAL] = pages[RUNNER_FAMILY_LOCAL];
    out_pages[RUNNER_FAMILY_GLOBAL] = pages[RUNNER_FAMILY_GLOBAL];
    return ERR_OK;
}

static enum err_code reserve(struct step_line *line, const struct step_order *order,
                             const uint32_t pages[RUNNER_FAMILY_COUNT], struct err *err)
{
    static const struct {
        enum inject_stage stage;
        const char *name;
    } families[RUNNER_FAMILY_COUNT] = {
        [RUNNER_FAMILY_LOCAL] = {INJECT_RESERVE_LOCAL, "local"},
        [RUNNER_FAMILY_GLOBAL] = {INJECT_RESERVE_GLOBAL, "global"},
    };
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        if (hits(line, families[f].stage)) {
            return err_set(err, ERR_PAGES, "injected failure reserving %u %s pages", pages[f],
                           families[f].name);
        }
        if (pages[f] > order->quota_left[f] || !pool_try_reserve(&line->pools[f], pages[f])) {
            return err_set(err, ERR_PAGES, "step needs %u %s pages, %u left of the quota, %u free",
                           pages[f], families[f].name, order->quota_left[f],
                           pool_available(&line->pools[f]));
        }
    }
    return ERR_OK;
}

static void stage_patch(struct step_line *line, struct runner_step *staged,
                        const struct runner_patch *patch)
{
    assert(staged->patch_count < line->patch_cap);
    line->patches[staged->patch_count++] = *patch;
}

/* Pages that the device does not know yet, and grants of one row, become patches; granted counts the
 * pages given out before it. */
static void stage_patches(struct step_line *line, struct runner_step *staged,
                          const struct sequence *seq, const struct account_need *need,
                          uint32_t granted[RUNNER_FAMILY_COUNT])
{
    const struct account_family *held[RUNNER_FAMILY_COUNT] = {
        [RUNNER_FAMILY_LOCAL] = &seq->account.local,
        [RUNNER_FAMILY_GLOBAL] = &seq->account.global,
    };
    const uint32_t counts[RUNNER_FAMILY_COUNT] = {
        [RUNNER_FAMILY_LOCAL] = need->local_pages,
        [RUNNER_FAMILY_GLOBAL] = need->global_pages,
    };
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        const struct seq_pages *pages = &seq->pages[f];
        struct runner_patch patch = {.slot = seq->slot, .family = (enum runner_family)f};
        for (uint32_t i = num_max(pages->unplaced_first, held[f]->origin_pages);
             i < pages->unplaced_end; i++) {
            patch.logical_page = i;
            patch.physical_page = pages->at[i % pages->cap];
            stage_patch(line, staged, &patch);
        }
        for (uint32_t i = 0; i < counts[f]; i++) {
            patch.logical_page = held[f]->origin_pages + held[f]->resident_pages + i;
            patch.physical_page = pool_reserved_page(&line->pools[f], granted[f]++);
            stage_patch(line, staged, &patch);
        }
    }
}

/* Where a row cannot run: behind a held row that it would have to follow. */
static bool must_wait(const struct plan_row *row)
{
    if (row->kind == PLAN_ROW_PROMPT) {
        return row->seq->held_tokens > 0;
    }
    return seq_device_position(row->seq) < row->seq->prompt_tokens;
}

static const uint32_t *find_mask(const struct session_sink *sink, void *owner,
                                 const struct step_row *row)
{
    return sink == NULL || sink->mask == NULL
               ? NULL
               : sink->mask(sink->context, owner, row->seq->seq_id, row->position);
}

static void stage_row(struct step_line *line, const struct step_order *order,
                      const struct plan_row *row, struct step *step, struct runner_step *staged,
                      uint32_t *next_count)
{
    const struct sequence *seq = row->seq;
    struct step_row *entry = &step->rows[step->row_count++];
    *entry = (struct step_row){
        .seq = row->seq,
        .count = row->count,
        .pick_index = STEP_NOT_ON_DEVICE,
        .is_prompt = row->kind == PLAN_ROW_PROMPT,
        .samples = row->samples,
    };
    if (must_wait(row)) {
        entry->is_held = true;
        return;
    }
    uint32_t start = seq_device_position(seq);
    const uint32_t *mask = NULL;
    bool is_masked = seq->is_constrained && row->samples;
    entry->position = start + row->count;
    if (is_masked) {
        mask = find_mask(order->sink, order->owner, entry);
    }
    entry->is_held = is_masked && mask == NULL; /* unless the runner waits for it */
    bool has_prompt_logprobs = entry->is_prompt && seq->wants_prompt_logprobs;
    uint32_t *next_tokens = has_prompt_logprobs ? line->next_tokens + *next_count : NULL;
    for (uint32_t i = 0; has_prompt_logprobs && i < row->count; i++) {
        uint32_t position = start + i + 1;
        next_tokens[i] = position < seq->prompt_tokens ? seq->tokens[position] : NO_TOKEN;
    }
    *next_count += has_prompt_logprobs ? row->count : 0;
    entry->pick_index = staged->row_count;
    line->runner_rows[staged->row_count++] = (struct runner_row){
        .slot = seq->slot,
        .start = start,
        .count = row->count,
        .tokens = entry->is_prompt ? seq->tokens + start : NULL,
        .samples = row->samples,
        .prompt_logprobs = has_prompt_logprobs,
        .next_tokens = next_tokens,
        .mask = mask,
        .constrained = is_masked,
        .mask_follows = entry->is_held && line->runner->table->awaits_masks != NULL,
    };
}

static void stage(struct step_line *line, const struct step_order *order, struct step *step,
                  struct runner_step *staged)
{
    uint32_t granted[RUNNER_FAMILY_COUNT] = {0};
    uint32_t next_count = 0;
    *staged = (struct runner_step){.rows = line->runner_rows, .patches = line->patches};
    for (uint32_t i = 0; i < order->rows->row_count; i++) {
        const struct plan_row *row = &order->rows->rows[i];
        if (row->kind != PLAN_ROW_EMPTY) {
            stage_patches(line, staged, row->seq, &line->needs[i], granted);
            stage_row(line, order, row, step, staged, &next_count);
        }
    }
}

static enum err_code send(struct step_line *line, const struct runner_step *staged, struct err *err)
{
    if (hits(line, INJECT_STAGE)) {
        return err_set(err, ERR_STEP, "injected failure staging %u rows", staged->row_count);
    }
    if (hits(line, INJECT_LAUNCH)) {
        return err_set(err, ERR_STEP, "injected failure launching %u rows", staged->row_count);
    }
    /* Grants of held rows reach the device even when no row does. */
    if (staged->row_count == 0 && staged->patch_count == 0) {
        return ERR_OK;
    }
    return line->runner->table->launch(line->runner, staged, err);
}

/* The launched rows write their pages; the pool asserts that they may. */
static void note_writes(struct step_line *line, const struct step_row *row, uint32_t start)
{
    const struct sequence *seq = row->seq;
    uint32_t page_tokens = line->geometry.page_tokens;
    uint32_t last = (start + row->count - 1) / page_tokens;
    for (uint32_t logical = start / page_tokens; logical <= last; logical++) {
        for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
            uint32_t page =
                seq_page_at(seq, (enum runner_family)f, &line->geometry, logical * page_tokens);
            pool_note_write(&line->pools[f], page, seq->writer);
        }
    }
}

/* Rows without a mask are not held yet where the runner stops before its sampler. */
static void note_awaited(const struct step_line *line, struct step *step)
{
    const struct runner_table *table = line->runner->table;
    bool is_due = false;
    if (table->awaits_masks == NULL || !table->awaits_masks(line->runner, &is_due)) {
        return;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct step_row *row = &step->rows[i];
        row->awaits_mask = row->is_held && row->pick_index != STEP_NOT_ON_DEVICE;
        row->is_held = row->is_held && !row->awaits_mask;
    }
    step->awaits_masks = true;
}

/* From here on nothing fails: grant the pages and move the launched frontiers. */
static void settle_launch(struct step_line *line, const struct step_order *order, struct step *step)
{
    const struct plan_rows *rows = order->rows;
    uint32_t granted[RUNNER_FAMILY_COUNT] = {0};
    uint32_t at = 0;
    for (uint32_t i = 0; i < rows->row_count; i++) {
        if (rows->rows[i].kind != PLAN_ROW_EMPTY) {
            struct step_row *row = &step->rows[at++];
            seq_place(row->seq);
            seq_launch(row->seq, &line->needs[i], line->pools, granted, row->count);
            granted[RUNNER_FAMILY_LOCAL] += line->needs[i].local_pages;
            granted[RUNNER_FAMILY_GLOBAL] += line->needs[i].global_pages;
        }
    }
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        assert(granted[f] == line->pools[f].reserved_count);
    }
    prefix_commit_pools(&line->prefix, order->lane);
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct step_row *row = &step->rows[i];
        if (row->pick_index != STEP_NOT_ON_DEVICE) {
            note_writes(line, row, line->runner_rows[row->pick_index].start);
        }
        row->seq->held_tokens += row->is_held ? row->count : 0;
        row->seq->prompt_was_held = row->seq->prompt_was_held && !row->is_prompt;
    }
}

enum err_code step_launch(struct step_line *line, const struct step_order *order,
                          uint32_t out_pages[RUNNER_FAMILY_COUNT], struct err *err)
{
    assert(step_can_launch(line));
    struct step *step = fresh_entry(line, order->session, order->msg_seq);
    uint32_t pages[RUNNER_FAMILY_COUNT];
    struct runner_step staged;
    enum err_code code = count_needs(line, order->rows, pages, err);
    if (code == ERR_OK) {
        code = reserve(line, order, pages, err);
    }
    if (code == ERR_OK) {
        stage(line, order, step, &staged);
        code = send(line, &staged, err);
    }
    if (code != ERR_OK) {
        pool_rollback(&line->pools[RUNNER_FAMILY_LOCAL]);
        pool_rollback(&line->pools[RUNNER_FAMILY_GLOBAL]);
        return code;
    }
    note_awaited(line, step);
    settle_launch(line, order, step);
    step->record_count = order->rows->record_count;
    step->planned_rows = order->rows->row_count;
    step->is_on_device = staged.row_count > 0 || staged.patch_count > 0;
    step->launch_ns = order->now_ns;
    line->step_count++;
    out_pages[RUNNER_FAMILY_LOCAL] = pages[RUNNER_FAMILY_LOCAL];
    out_pages[RUNNER_FAMILY_GLOBAL] = pages[RUNNER_FAMILY_GLOBAL];
    return ERR_OK;
}

enum err_code step_give_masks(struct step_line *line, const struct session_sink *sink, void *owner,
                              bool *out_given, struct err *err)
{
    struct step *step = entry_at(line, line->step_count - 1);
    assert(step->awaits_masks);
    const struct runner_table *table = line->runner->table;
    bool is_due = false;
    (void)table->awaits_masks(line->runner, &is_due); /* asked before the masks are looked for */
    uint32_t missing_count = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->rows[i];
        if (row->pick_index != STEP_NOT_ON_DEVICE) {
            line->masks[row->pick_index] = row->awaits_mask ? find_mask(sink, owner, row) : NULL;
            missing_count += row->awaits_mask && line->masks[row->pick_index] == NULL;
        }
    }
    *out_given = is_due || missing_count == 0;
    if (!*out_given) {
        return ERR_OK;
    }
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct step_row *row = &step->rows[i];
        if (row->awaits_mask && line->masks[row->pick_index] == NULL) {
            row->is_held = true;
            row->seq->held_tokens += row->count;
        }
        row->awaits_mask = false;
    }
    step->awaits_masks = false;
    return table->give_masks(line->runner, line->masks, err);
}

void step_refuse(struct step_line *line, struct session *session, uint64_t msg_seq,
                 const struct err *refusal)
{
    assert(step_can_launch(line));
    struct step *step = fresh_entry(line, session, msg_seq);
    step->is_refused = true;
    step->record_count = 1;
    step->refusal = *refusal;
    line->step_count++;
}

const struct step *step_oldest_done(const struct step_line *line)
{
    if (line->step_count == 0) {
        return NULL;
    }
    const struct step *step = step_at(line, 0);
    bool is_done = !step->is_on_device || line->runner->table->is_done(line->runner);
    return is_done ? step : NULL;
}

static void doom_followers(struct step_line *line)
{
    for (uint32_t i = 1; i < line->step_count; i++) {
        struct step *step = entry_at(line, i);
        if (!step->is_refused && !step->is_doomed) {
            step->is_doomed = true;
            line->doomed_count++;
        }
    }
}

/* Failures between the device and the frontiers. */
static enum err_code check_after_device(struct step_line *line, struct err *err)
{
    if (hits(line, INJECT_PUBLISH)) {
        return err_set(err, ERR_STEP, "injected failure publishing a step");
    }
    if (hits(line, INJECT_COMMIT)) {
        return err_set(err, ERR_STEP, "injected failure committing a step");
    }
    return ERR_OK;
}

void step_collect(struct step_line *line, struct step_outcome *out_outcome)
{
    struct step *step = entry_at(line, 0);
    struct runner_result result = {.status = ERR_OK};
    if (step->is_on_device) {
        line->runner->table->collect(line->runner, &result);
    }
    *out_outcome = (struct step_outcome){
        .status = result.status,
        .error = result.error,
        .device_ns = result.device_ns,
    };
    if (step->is_refused || result.status == ERR_DEVICE) {
        return;
    }
    if (step->is_doomed) {
        line->doomed_count--;
        out_outcome->status = err_set(&out_outcome->error, ERR_STEP, "a step before it failed");
        return;
    }
    if (out_outcome->status == ERR_OK) {
        out_outcome->status = check_after_device(line, &out_outcome->error);
    }
    if (out_outcome->status != ERR_OK) {
        doom_followers(line);
    } else {
        out_outcome->picks = result.picks;
    }
}

void step_retire(struct step_line *line)
{
    assert(line->step_count > 0);
    line->first_index = (line->first_index + 1) % line->runner->limits.pipeline_depth;
    line->step_count--;
}
