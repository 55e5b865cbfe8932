#include "tests/testlib/worker_drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/num.h"
#include "tests/testlib/test.h"
#include "worker/replay.h"

/* Of deploy/demo-model's generation_config.json. */
static const uint32_t stop_ids[] = {1, 6, 14};
static const uint32_t suppress_ids[] = {19, 22};

enum {
    SLICE_MS = 50
};

#define PING_EVERY_NS (500 * CLOCK_NS_PER_MS)

struct step {
    uint64_t msg_seq;
    uint32_t row_count;
    struct {
        uint32_t index; /* of the sequence */
        uint32_t tokens;
    } rows[DRIVE_MAX_SEQUENCES];
};

struct run {
    struct drive *drive;
    struct drive_sequence *sequences;
    uint32_t count;
    uint64_t seq_ids[DRIVE_MAX_SEQUENCES];
    struct step steps[DRIVE_MAX_STEPS];
    uint32_t step_count;
    uint64_t after;   /* msg_seq of a refusal to name in the next STEP */
    uint64_t ping_ns; /* of the last sign of life that was not a plan */
    bool is_refused;  /* wait until every step is answered */
};

void drive_init(struct drive *drive, struct worker_client *client)
{
    *drive = (struct drive){
        .client = client,
        .next_seq_id = 1,
        .depth = client->welcome.pipeline_depth,
        .step_tokens = client->welcome.max_step_tokens,
        .max_tries = 1,
    };
}

void drive_greedy(struct drive_sequence *sequence, const uint32_t *prompt, uint32_t prompt_count,
                  uint32_t output_tokens)
{
    test_true(prompt_count + output_tokens <= DRIVE_MAX_TOKENS);
    *sequence = (struct drive_sequence){
        .admit = {.max_total = prompt_count + output_tokens,
                  .output_start = prompt_count,
                  .top_p = 1,
                  .repetition_penalty = 1,
                  .stop_ids = {stop_ids, 3},
                  .suppress_ids = {suppress_ids, 2}},
    };
    memcpy(sequence->prompt, prompt, prompt_count * sizeof(prompt[0]));
    sequence->admit.prompt = (struct wire_u32_array){sequence->prompt, prompt_count};
}

static void admit(struct run *run, uint32_t index)
{
    struct drive_sequence *sequence = &run->sequences[index];
    struct plan_message message = {.type = PLAN_ADMIT, .as.admit = sequence->admit};
    run->seq_ids[index] = run->drive->next_seq_id++;
    message.as.admit.seq_id = run->seq_ids[index];
    message.as.admit.prompt.at = sequence->prompt;
    sequence->state = DRIVE_NEW;
    sequence->sent_tokens = 0;
    sequence->tries++;
    (void)worker_client_send(run->drive->client, &message);
}

static void release(struct run *run, uint32_t index)
{
    const struct plan_message message = {.type = PLAN_RELEASE,
                                         .as.release = {.seq_id = run->seq_ids[index]}};
    (void)worker_client_send(run->drive->client, &message);
}

static uint32_t index_of(const struct run *run, uint64_t seq_id)
{
    uint32_t index = 0;
    while (index < run->count && run->seq_ids[index] != seq_id) {
        index++;
    }
    return index;
}

/* ---- planning ---- */

/* Tokens left to send of a sequence that has its whole prompt out are decode rows: one each. */
static uint32_t add_row(struct run *run, uint32_t index, uint32_t budget, struct wire_row *row,
                        struct step *step)
{
    struct drive_sequence *sequence = &run->sequences[index];
    uint32_t prompt_count = sequence->admit.prompt.count;
    uint32_t tokens = 1;
    *row = (struct wire_row){.seq_id = run->seq_ids[index]};
    if (sequence->sent_tokens < prompt_count) {
        tokens = num_min(prompt_count - sequence->sent_tokens, budget);
        row->start = sequence->sent_tokens;
        row->count = tokens;
    }
    step->rows[step->row_count].index = index;
    step->rows[step->row_count].tokens = tokens;
    step->row_count++;
    sequence->sent_tokens += tokens;
    return tokens;
}

static bool can_go_on(const struct drive_sequence *sequence)
{
    /* The last token is never an input. */
    return sequence->state == DRIVE_ADMITTED &&
           sequence->sent_tokens < sequence->admit.max_total - 1;
}

/* The sequences that go on with a decode row, or those that go on with a prompt row. */
static void fill_step(struct run *run, bool decodes, uint32_t *budget, struct wire_row *rows,
                      struct step *step)
{
    uint32_t max_rows = run->drive->client->welcome.max_step_rows;
    for (uint32_t i = 0; i<run->count && * budget> 0 && step->row_count < max_rows; i++) {
        const struct drive_sequence *sequence = &run->sequences[i];
        if (can_go_on(sequence) &&
            decodes == (sequence->sent_tokens >= sequence->admit.prompt.count)) {
            *budget -= add_row(run, i, *budget, &rows[step->row_count], step);
        }
    }
}

static bool send_step(struct run *run)
{
    struct wire_row rows[DRIVE_MAX_SEQUENCES];
    struct step *step = &run->steps[run->step_count];
    uint32_t budget = run->drive->step_tokens;
    *step = (struct step){0};
    fill_step(run, true, &budget, rows, step);
    fill_step(run, false, &budget, rows, step); /* a decode row stays one: none comes twice */
    if (step->row_count == 0) {
        return false;
    }
    const struct plan_message message = {
        .type = PLAN_STEP, .as.step = {.after = run->after, .rows = {rows, step->row_count}}};
    step->msg_seq = worker_client_send(run->drive->client, &message);
    run->after = 0;
    run->step_count++;
    return true;
}

/* ---- records ---- */

static void take_step(struct run *run, const struct result_record *record)
{
    test_true(run->step_count > 0);
    test_eq_u64(record->msg_seq, run->steps[0].msg_seq);
    if (record->kind == RESULT_REFUSED) {
        const struct step *step = &run->steps[0];
        for (uint32_t r = 0; r < step->row_count; r++) {
            run->sequences[step->rows[r].index].sent_tokens -= step->rows[r].tokens;
        }
        if (record->as.refused.code != ERR_AFTER_REFUSAL) {
            run->after = record->msg_seq;
        }
        run->is_refused = true;
        run->drive->refused++;
    } else {
        run->drive->steps_done++;
    }
    run->step_count--;
    memmove(run->steps, run->steps + 1, run->step_count * sizeof(run->steps[0]));
    run->is_refused = run->is_refused && run->step_count > 0;
}

static void take_token(struct run *run, const struct result_record *record)
{
    uint32_t index = index_of(run, record->seq_id);
    test_true(index < run->count);
    struct drive_sequence *sequence = &run->sequences[index];
    test_true(sequence->token_count < DRIVE_MAX_TOKENS);
    test_eq_u64(record->as.token.position, sequence->admit.output_start + sequence->token_count);
    sequence->tokens[sequence->token_count++] = record->as.token.token;
    run->drive->digest = replay_digest_add(run->drive->digest, record->seq_id,
                                           record->as.token.position, record->as.token.token);
}

/* Prompt and output so far become the prompt of the next try. */
static void take_failed(struct run *run, const struct result_record *record)
{
    uint32_t index = index_of(run, record->seq_id);
    test_true(index < run->count);
    struct drive_sequence *sequence = &run->sequences[index];
    sequence->state = DRIVE_FAILED;
    sequence->failed_code = record->as.failed.code;
}

static void take(struct run *run, const struct result_record *record)
{
    uint32_t index = index_of(run, record->seq_id);
    switch ((enum result_kind)record->kind) {
    case RESULT_TOKEN: take_token(run, record); break;
    case RESULT_FINISHED:
        test_true(index < run->count);
        run->sequences[index].state = DRIVE_FINISHED;
        run->sequences[index].reason = (enum result_finish)record->as.finished.reason;
        break;
    case RESULT_ADMITTED:
        test_true(index < run->count);
        run->sequences[index].state = DRIVE_ADMITTED;
        run->sequences[index].sent_tokens = record->as.admitted.reused_tokens;
        break;
    case RESULT_REFUSED:
    case RESULT_STEP_DONE: take_step(run, record); break;
    case RESULT_FAILED: take_failed(run, record); break;
    case RESULT_LOGPROBS:
    case RESULT_STATE:
    case RESULT_PONG: break;
    }
    if (run->drive->on_record != NULL) {
        run->drive->on_record(run->drive->owner, record);
    }
}

/* ---- running ---- */

static bool is_over(const struct drive_sequence *sequence)
{
    return sequence->state == DRIVE_FINISHED || sequence->state == DRIVE_FAILED;
}

/* Once no step names it any more. */
static void try_again(struct run *run, uint32_t index)
{
    struct drive_sequence *sequence = &run->sequences[index];
    if (sequence->state != DRIVE_FAILED || sequence->tries >= run->drive->max_tries ||
        run->step_count > 0) {
        return;
    }
    release(run, index);
    memcpy(sequence->prompt + sequence->admit.output_start, sequence->tokens,
           sequence->token_count * sizeof(uint32_t));
    sequence->admit.prompt.count = sequence->admit.output_start + sequence->token_count;
    admit(run, index);
}

static void pop(struct run *run, struct result_record *out_record)
{
    struct drive *drive = run->drive;
    uint64_t deadline_ns = clock_now_ns() + DRIVE_WAIT_MS * CLOCK_NS_PER_MS;
    while (!worker_client_try_pop(drive->client, SLICE_MS, out_record)) {
        bool is_closed = worker_client_wait_closed(drive->client, 0);
        if (!is_closed && clock_now_ns() - run->ping_ns > PING_EVERY_NS) {
            const struct plan_message ping = {.type = PLAN_PING};
            run->ping_ns = clock_now_ns();
            (void)worker_client_send(drive->client, &ping);
        }
        if (is_closed && drive->on_closed != NULL) {
            drive->on_closed(drive->owner);
        }
        if (is_closed || clock_now_ns() > deadline_ns) {
            test_fail(__FILE__, __LINE__, "no record, %u steps in flight, pipe %s", run->step_count,
                      is_closed ? "closed" : "open");
        }
    }
}

static bool all_over(const struct run *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        const struct drive_sequence *sequence = &run->sequences[i];
        bool again = sequence->state == DRIVE_FAILED && sequence->tries < run->drive->max_tries;
        if (!is_over(sequence) || again) {
            return false;
        }
    }
    return run->step_count == 0;
}

void drive_run(struct drive *drive, struct drive_sequence *sequences, uint32_t count)
{
    test_true(count <= DRIVE_MAX_SEQUENCES && drive->depth <= DRIVE_MAX_STEPS);
    struct run run = {.drive = drive, .sequences = sequences, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        admit(&run, i);
    }
    while (!all_over(&run)) {
        for (uint32_t i = 0; i < count; i++) {
            try_again(&run, i);
        }
        while (!run.is_refused && run.step_count < drive->depth && send_step(&run)) {
        }
        struct result_record record;
        pop(&run, &record);
        take(&run, &record);
    }
    for (uint32_t i = 0; i < count; i++) {
        release(&run, i);
    }
}

/* ---- prompts ---- */

static uint32_t read_ids(const struct json_t *array, uint32_t *out)
{
    size_t count = json_count(array);
    test_true(count > 0 && count <= DRIVE_MAX_TOKENS);
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint32_t)json_int64(json_element(array, i));
    }
    return (uint32_t)count;
}

uint32_t drive_load_prompts(struct drive_prompt **out_prompts)
{
    struct json_t *root = NULL;
    struct err err;
    test_ok(json_parse_file(WORKER_MODEL_DIR "/reference-greedy.json", 1 << 24, &root, &err), &err);
    size_t count = json_count(root);
    test_true(count > 0 && count <= DRIVE_MAX_PROMPTS);
    struct drive_prompt *prompts = calloc(count, sizeof(*prompts));
    test_true(prompts != NULL);
    for (size_t i = 0; i < count; i++) {
        const struct json_t *prompt = json_element(root, i);
        prompts[i].count = read_ids(json_member(prompt, "prompt_ids"), prompts[i].ids);
        prompts[i].output_count = read_ids(json_member(prompt, "output_ids"), prompts[i].output);
    }
    json_release(root);
    *out_prompts = prompts;
    return (uint32_t)count;
}
