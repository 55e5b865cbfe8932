#include "tests/testlib/core_drive.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"
#include "proto/account.h"
#include "tests/testlib/test.h"

#define PATIENCE_NS   (60 * CLOCK_NS_PER_SEC)
#define PINNED_TOKENS 256

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
    complete_limits(&drive->options.limits, model);
    const struct backend_runner_options runner_options = {
        .model_dir = model->dir,
        .config = &model->config,
        .limits = drive->options.limits,
        .inject = options->inject,
        .is_pinned = options->is_pinned,
    };
    backend->open_runner(backend, &runner_options, &drive->held);
    drive->runner = drive->held.runner;
    const struct session_limits session_limits = {
        .slots = options->limits.slots,
        .ring_records = 4096,
    };
    rig_init(&drive->rig, drive->runner, false, &session_limits, options->inject);
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
        test_eq_u64(stats.pages_free[f], drive->options.limits.pages[f]);
    }
    rig_close(&drive->session);
    rig_fini(&drive->rig);
    backend_close_runner(&drive->held);
    mem_free(drive);
}

static struct drive_seq *seq_of(struct drive *drive, uint64_t seq_id)
{
    test_true(seq_id >= drive->first_id && seq_id - drive->first_id < drive->seq_count);
    return &drive->seqs[seq_id - drive->first_id];
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
            drive->seqs[step->seqs[r]].launched += step->counts[r];
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
        struct drive_seq *seq = &drive->seqs[step.seqs[r]];
        seq->committed += step.samples[r] && !seq->has_token ? 0 : step.counts[r];
        seq->has_token = false;
    }
    drive->held_count += record->as.step_done.held_rows;
    recount(drive, 0);
}

static void on_refused(struct drive *drive, const struct result_record *record)
{
    drive->refused_count++;
    pop_step(drive, record->msg_seq);
    if (record->as.refused.code != ERR_AFTER_REFUSAL) {
        drive->after = record->msg_seq;
        recount(drive, record->msg_seq);
    }
}

static void on_token(struct drive *drive, const struct result_record *record)
{
    struct drive_seq *seq = seq_of(drive, record->seq_id);
    test_true(!seq->is_over && seq->token_count < DRIVE_MAX_TOKENS);
    test_eq_u64(record->as.token.position, seq->admit.prompt.count + seq->token_count);
    seq->tokens[seq->token_count++] = record->as.token.token;
    seq->has_token = true;
}

static void read_records(struct drive *drive)
{
    for (; rig_record(&drive->session, drive->seen) != NULL; drive->seen++) {
        const struct result_record record = *rig_record(&drive->session, drive->seen);
        switch ((enum result_kind)record.kind) {
        case RESULT_TOKEN: on_token(drive, &record); break;
        case RESULT_FINISHED: seq_of(drive, record.seq_id)->is_over = true; break;
        case RESULT_FAILED:
            seq_of(drive, record.seq_id)->is_over = true;
            seq_of(drive, record.seq_id)->has_failed = true;
            break;
        case RESULT_STEP_DONE: on_step_done(drive, &record); break;
        case RESULT_REFUSED: on_refused(drive, &record); break;
        case RESULT_LOGPROBS:
        case RESULT_ADMITTED:
        case RESULT_STATE:
        case RESULT_PONG: break;
        }
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
    uint32_t most = drive->options.is_pinned ? PINNED_TOKENS - seq->launched % PINNED_TOKENS
                                             : drive->options.chunk_tokens;
    return num_min(num_min(most, budget), left);
}

/* One row: the next token, or the next segment of the prompt within budget; false where none. */
static bool plan_row(struct drive *drive, uint32_t index, uint32_t budget, struct wire_row *out_row)
{
    const struct drive_seq *seq = &drive->seqs[index];
    *out_row = (struct wire_row){.seq_id = drive->first_id + index};
    if (seq->is_over || budget == 0 || seq->launched + 1 >= seq->admit.max_total) {
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

void drive_run(struct drive *drive, struct drive_seq *seqs, uint32_t seq_count)
{
    test_true(seq_count <= DRIVE_MAX_SEQS && drive->options.ahead <= DRIVE_MAX_AHEAD);
    drive->seqs = seqs;
    drive->seq_count = seq_count;
    drive->first_id = drive->next_id;
    drive->next_id += seq_count;
    for (uint32_t i = 0; i < seq_count; i++) {
        seqs[i].admit.seq_id = drive->first_id + i;
        rig_admit(&drive->session, &seqs[i].admit);
    }
    while (!is_over(drive)) {
        drive->rig.now_ns = clock_now_ns();
        rig_advance(&drive->rig);
        read_records(drive);
        while (drive->step_count < drive->options.ahead && !is_over(drive)) {
            uint32_t before = drive->step_count;
            plan_step(drive);
            if (drive->step_count == before) {
                break;
            }
        }
        if (drive->options.checks_local_pages) {
            check_local_pages(drive);
        }
        rig_advance(&drive->rig);
        if (drive->rig.progress.steps_in_flight > 0 &&
            rig_record(&drive->session, drive->seen) == NULL) {
            const struct runner_table *table = drive->runner->table;
            test_true(table->wait(drive->runner, clock_now_ns() + PATIENCE_NS));
        }
    }
    for (uint32_t i = 0; i < seq_count; i++) {
        rig_release(&drive->session, drive->first_id + i);
    }
    rig_advance(&drive->rig);
    read_records(drive);
}
