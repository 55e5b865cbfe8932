#include "tests/testlib/core_drive.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"
#include "proto/account.h"
#include "tests/testlib/test.h"

#define PATIENCE_NS (60 * CLOCK_NS_PER_SEC)

void drive_model_load(struct drive_model *model, const char *model_dir)
{
    struct err err = {0};
    (void)snprintf(model->dir, sizeof(model->dir), "%s", model_dir);
    test_ok(model_config_load(model_dir, &model->config, &err), &err);
}

static void complete_limits(struct runner_limits *limits, const struct drive_model *model)
{
    limits->vocab_tokens = model->config.info.vocab_tokens;
    limits->window_tokens = model->config.families[RUNNER_FAMILY_LOCAL].window_tokens;
    const struct account_geometry geometry = {
        .page_tokens = limits->page_tokens,
        .window_tokens = limits->window_tokens,
        .max_step_tokens = limits->max_step_tokens,
    };
    struct account_need peak = account_peak(&geometry, limits->max_context_tokens,
                                            limits->pipeline_depth * limits->max_step_tokens);
    if (limits->pages[RUNNER_FAMILY_LOCAL] == 0) {
        limits->pages[RUNNER_FAMILY_LOCAL] = limits->slots * peak.local_pages;
    }
    if (limits->pages[RUNNER_FAMILY_GLOBAL] == 0) {
        limits->pages[RUNNER_FAMILY_GLOBAL] = limits->slots * peak.global_pages;
    }
}

struct drive *drive_create(const struct drive_model *model, const struct drive_options *options)
{
    struct drive *drive = mem_zalloc(1, sizeof(*drive));
    const struct backend *backend =
        options->backend != NULL ? options->backend : backend_under_test();
    drive->options = *options;
    if (options->is_pinned) {
        backend_pin_limits(&drive->options.limits);
    }
    complete_limits(&drive->options.limits, model);
    const struct backend_runner_options runner_options = {
        .model_dir = model->dir,
        .config = &model->config,
        .limits = drive->options.limits,
        .inject = options->inject,
        .is_pinned = options->is_pinned,
    };
    backend->open_runner(backend, &runner_options, &drive->held);
    hold_runner_init(&drive->runner, drive->held.runner);
    const struct session_limits session_limits = {
        .slots = options->sequences != 0 ? options->sequences : options->limits.slots,
        .ring_records = 4096,
        .keeps_prefixes = options->keeps_prefixes,
    };
    rig_init(&drive->rig, &drive->runner.super, false, &session_limits, options->inject);
    rig_open(&drive->rig, &drive->session, NULL);
    drive->next_id = 1;
    return drive;
}

void drive_destroy(struct drive *drive)
{
    struct session_stats stats;
    rig_advance(&drive->rig);
    session_core_stats(drive->rig.core, &stats);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        test_eq_u64(stats.pages_free[f] + stats.pages_cached[f], drive->options.limits.pages[f]);
    }
    rig_close(&drive->session);
    rig_fini(&drive->rig);
    backend_close_runner(&drive->held);
    mem_free(drive);
}

/* Null once another request has its place. */
static struct drive_seq *seq_of(struct drive *drive, uint64_t seq_id)
{
    for (uint32_t i = 0; i < drive->seq_count; i++) {
        if (drive->seqs[i].admit.seq_id == seq_id) {
            return &drive->seqs[i];
        }
    }
    return NULL;
}

/* The sequence of a step's row, null once another request has its place. */
static struct drive_seq *row_seq(struct drive *drive, const struct drive_step *step, uint32_t row)
{
    struct drive_seq *seq = &drive->seqs[step->seqs[row]];
    return seq->admit.seq_id == step->ids[row] ? seq : NULL;
}

/* Launched is what is committed and what outstanding STEPs will add, those not refused. */
static void recount(struct drive *drive, uint64_t refused_seq)
{
    for (uint32_t i = 0; i < drive->seq_count; i++) {
        drive->seqs[i].launched = drive->seqs[i].committed;
    }
    for (uint32_t s = 0; s < drive->step_count; s++) {
        struct drive_step *step = &drive->steps[s];
        if (step->after < refused_seq) {
            step->row_count = 0;
        }
        for (uint32_t r = 0; r < step->row_count; r++) {
            struct drive_seq *seq = row_seq(drive, step, r);
            if (seq != NULL) {
                seq->launched += step->counts[r];
            }
        }
    }
}

static void pop_step(struct drive *drive, uint64_t msg_seq)
{
    test_true(drive->step_count > 0);
    test_eq_u64(drive->steps[0].msg_seq, msg_seq);
    drive->step_count--;
    memmove(&drive->steps[0], &drive->steps[1], drive->step_count * sizeof(drive->steps[0]));
}

static void on_step_done(struct drive *drive, const struct result_record *record)
{
    const struct drive_step step = drive->steps[0];
    pop_step(drive, record->msg_seq);
    for (uint32_t r = 0; r < step.row_count; r++) {
        struct drive_seq *seq = row_seq(drive, &step, r);
        if (seq != NULL) {
            seq->committed += step.samples[r] && !seq->has_token ? 0 : step.counts[r];
            seq->has_token = false;
        }
    }
    drive->held_count += record->as.step_done.held_rows;
    recount(drive, 0);
}

static void on_refused(struct drive *drive, const struct result_record *record)
{
    if (record->seq_id != 0) {
        test_fail(__FILE__, __LINE__, "ADMIT: %s", record->as.refused.text);
    }
    drive->refused_count++;
    pop_step(drive, record->msg_seq);
    if (record->as.refused.code != ERR_AFTER_REFUSAL) {
        drive->after = record->msg_seq;
        recount(drive, record->msg_seq);
    }
}

static uint64_t fold(uint64_t digest, const void *at, size_t byte_count)
{
    const unsigned char *bytes = at;
    for (size_t i = 0; i < byte_count; i++) {
        digest = (digest ^ bytes[i]) * 0x100000001b3ULL; /* FNV-1a */
    }
    return digest;
}

static void on_token(struct drive_seq *seq, const struct result_record *record)
{
    const struct result_token *token = &record->as.token;
    test_true(!seq->is_over && seq->token_count < DRIVE_MAX_TOKENS);
    test_eq_u64(token->position, seq->admit.prompt.count + seq->token_count);
    seq->tokens[seq->token_count++] = token->token;
    seq->digest = fold(seq->digest, token, sizeof(*token));
    seq->has_token = true;
}

static void read_record(struct drive *drive, const struct result_record *record)
{
    struct drive_seq *seq = seq_of(drive, record->seq_id);
    enum result_kind kind = (enum result_kind)record->kind;
    if (kind == RESULT_STEP_DONE) {
        on_step_done(drive, record);
    } else if (kind == RESULT_REFUSED) {
        on_refused(drive, record);
    } else if (seq == NULL || seq->is_released) {
        return; /* of one that was dropped */
    } else if (kind == RESULT_TOKEN) {
        on_token(seq, record);
    } else if (kind == RESULT_LOGPROBS) {
        seq->digest = fold(seq->digest, &record->as.logprobs, sizeof(record->as.logprobs));
    } else if (kind == RESULT_ADMITTED) {
        seq->is_admitted = true;
        seq->reused = record->as.admitted.reused_tokens;
        seq->launched = seq->reused;
        seq->committed = seq->reused;
    } else if (kind == RESULT_FINISHED) {
        seq->is_over = true;
        seq->finish = record->as.finished.reason;
    } else if (kind == RESULT_FAILED) {
        seq->is_over = true;
        seq->has_failed = true;
    }
}

static void read_records(struct drive *drive)
{
    for (; rig_record(&drive->session, drive->seen) != NULL; drive->seen++) {
        const struct result_record record = *rig_record(&drive->session, drive->seen);
        read_record(drive, &record);
    }
    rig_read_all(&drive->session);
}

static bool is_at_prompt(const struct drive_seq *seq)
{
    return seq->launched < seq->admit.prompt.count;
}

/* Tokens of the next segment of a prompt. */
static uint32_t segment_tokens(const struct drive *drive, const struct drive_seq *seq,
                               uint32_t budget)
{
    uint32_t left = seq->admit.prompt.count - seq->launched;
    uint32_t most = drive->options.is_pinned
                        ? BACKEND_PINNED_TOKENS - seq->launched % BACKEND_PINNED_TOKENS
                        : drive->options.chunk_tokens;
    return num_min(num_min(most, budget), left);
}

/* One row: the next token, or the next segment of the prompt within budget; false where none. */
static bool plan_row(struct drive *drive, uint32_t index, uint32_t budget, struct wire_row *out_row)
{
    const struct drive_seq *seq = &drive->seqs[index];
    *out_row = (struct wire_row){.seq_id = seq->admit.seq_id};
    if (seq->is_over || !seq->is_admitted || budget == 0 ||
        seq->launched + 1 >= seq->admit.max_total) {
        return false;
    }
    if (is_at_prompt(seq)) {
        if (seq->admit.constrained && seq->launched > seq->committed) {
            return false; /* it may yet turn out that a row of it is held */
        }
        out_row->start = seq->launched;
        out_row->count = segment_tokens(drive, seq, budget);
    }
    return true;
}

/* Puts rows of one kind into the step, as many as fit. */
static void plan_rows(struct drive *drive, struct drive_step *step, struct wire_row *rows,
                      bool of_prompts, uint32_t most_rows)
{
    uint32_t budget = drive->options.limits.max_step_tokens;
    for (uint32_t r = 0; r < step->row_count; r++) {
        budget -= step->counts[r];
    }
    for (uint32_t i = 0; i < drive->seq_count && step->row_count < most_rows; i++) {
        struct drive_seq *seq = &drive->seqs[i];
        bool is_planned = false;
        for (uint32_t r = 0; r < step->row_count; r++) {
            is_planned = is_planned || step->seqs[r] == i;
        }
        if (is_at_prompt(seq) != of_prompts || is_planned ||
            !plan_row(drive, i, budget, &rows[step->row_count])) {
            continue;
        }
        uint32_t count = num_max(1, rows[step->row_count].count);
        step->seqs[step->row_count] = i;
        step->ids[step->row_count] = seq->admit.seq_id;
        step->counts[step->row_count] = count;
        seq->launched += count;
        step->samples[step->row_count++] = !is_at_prompt(seq);
        budget -= count;
    }
}

/* Decode rows and prompt segments in turns. */
static void plan_pinned(struct drive *drive, struct drive_step *step, struct wire_row *rows,
                        uint32_t most_rows)
{
    for (uint32_t pass = 0; pass < 2 && step->row_count == 0; pass++) {
        drive->was_prompt = !drive->was_prompt;
        plan_rows(drive, step, rows, drive->was_prompt, drive->was_prompt ? 1 : most_rows);
    }
}

static void plan_step(struct drive *drive)
{
    struct wire_row rows[DRIVE_MAX_SEQS];
    struct drive_step *step = &drive->steps[drive->step_count];
    uint32_t most_rows = drive->options.step_rows != 0 ? drive->options.step_rows
                                                       : drive->options.limits.max_step_rows;
    *step = (struct drive_step){.after = drive->after};
    if (drive->options.is_pinned) {
        plan_pinned(drive, step, rows, most_rows);
    } else {
        plan_rows(drive, step, rows, false, most_rows);
        plan_rows(drive, step, rows, true, most_rows);
    }
    if (step->row_count > 0) {
        step->msg_seq = rig_step(&drive->session, step->after, rows, step->row_count);
        drive->step_count++;
        drive->after = 0;
    }
}

static void check_local_pages(struct drive *drive)
{
    struct session_stats stats;
    session_core_stats(drive->rig.core, &stats);
    const struct runner_limits *limits = &drive->options.limits;
    uint32_t held = limits->pages[RUNNER_FAMILY_LOCAL] - stats.pages_free[RUNNER_FAMILY_LOCAL];
    uint32_t most = 0;
    for (uint32_t i = 0; i < drive->seq_count; i++) {
        const struct drive_seq *seq = &drive->seqs[i];
        uint32_t ahead = num_max(1, seq->launched - seq->committed) - 1;
        most += num_ceil_div(limits->window_tokens, limits->page_tokens) + 1 +
                num_ceil_div(ahead, limits->page_tokens);
    }
    test_true(held <= most);
}

static bool is_over(const struct drive *drive)
{
    bool over = drive->step_count == 0;
    for (uint32_t i = 0; i < drive->seq_count; i++) {
        over = over && drive->seqs[i].is_over;
    }
    return over;
}

static void admit(struct drive *drive, struct drive_seq *seq)
{
    seq->admit.seq_id = drive->next_id++;
    seq->digest = 0xcbf29ce484222325ULL;
    rig_admit(&drive->session, &seq->admit);
}

static void release(struct drive *drive, struct drive_seq *seq)
{
    if (!seq->is_released) {
        rig_release(&drive->session, seq->admit.seq_id);
    }
    seq->is_released = true;
    seq->is_over = true;
}

void drive_cancel(struct drive *drive, uint32_t index)
{
    rig_cancel(&drive->session, drive->seqs[index].admit.seq_id);
}

void drive_drop(struct drive *drive, uint32_t index)
{
    release(drive, &drive->seqs[index]);
}

/* Requests that are over make place for others. */
static void turn_over(struct drive *drive)
{
    if (drive->on_turn != NULL) {
        drive->on_turn(drive->context, drive);
    }
    for (uint32_t i = 0; drive->next != NULL && i < drive->seq_count; i++) {
        struct drive_seq *seq = &drive->seqs[i];
        const uint64_t seq_id = seq->admit.seq_id;
        if (seq->is_over && drive->next(drive->context, drive, i)) {
            if (!seq->is_released) {
                rig_release(&drive->session, seq_id);
            }
            *seq = (struct drive_seq){.admit = seq->admit};
            admit(drive, seq);
        }
    }
}

/* STEPs until there are enough or nothing is left to plan; then the core must launch what fits. */
static void plan_ahead(struct drive *drive)
{
    bool is_planned = true;
    while (is_planned && drive->step_count < drive->options.ahead && !is_over(drive)) {
        uint32_t before = drive->step_count;
        plan_step(drive);
        is_planned = drive->step_count > before;
    }
    drive->runner.is_holding = true;
    rig_advance(&drive->rig);
    drive->runner.is_holding = false;
    const struct session_progress *progress = &drive->rig.progress;
    drive->drained_count += progress->queued_steps > 0 &&
                            progress->steps_in_flight < drive->options.limits.pipeline_depth;
}

/* Until the oldest step is done, unless something is there to be read already. */
static void wait_for_step(struct drive *drive)
{
    struct runner *runner = &drive->runner.super;
    uint64_t deadline_ns = clock_now_ns() + PATIENCE_NS;
    rig_advance(&drive->rig);
    while (drive->rig.progress.steps_in_flight > 0 &&
           rig_record(&drive->session, drive->seen) == NULL) {
        (void)runner->table->wait(runner, deadline_ns); /* may end early: the loop looks */
        rig_advance(&drive->rig);
        if (clock_now_ns() >= deadline_ns) {
            test_fail(__FILE__, __LINE__, "no step was done in %llu s: %u in flight, %u queued",
                      PATIENCE_NS / CLOCK_NS_PER_SEC, drive->rig.progress.steps_in_flight,
                      drive->rig.progress.queued_steps);
        }
    }
}

void drive_run(struct drive *drive, struct drive_seq *seqs, uint32_t seq_count)
{
    test_true(seq_count <= DRIVE_MAX_SEQS && drive->options.ahead <= DRIVE_MAX_AHEAD);
    drive->seqs = seqs;
    drive->seq_count = seq_count;
    for (uint32_t i = 0; i < seq_count; i++) {
        admit(drive, &seqs[i]);
    }
    while (!is_over(drive)) {
        drive->rig.now_ns = clock_now_ns();
        rig_advance(&drive->rig);
        read_records(drive);
        turn_over(drive);
        plan_ahead(drive);
        if (drive->options.checks_local_pages) {
            check_local_pages(drive);
        }
        wait_for_step(drive);
    }
    for (uint32_t i = 0; i < seq_count; i++) {
        release(drive, &seqs[i]);
    }
    rig_advance(&drive->rig);
    read_records(drive);
}
