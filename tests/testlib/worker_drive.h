/* Runs sequences over a worker_client the way a scheduler does: decode rows first, prompt segments
 * within a budget, plan k+1 sent before the results of plan k, PING while waiting. */
#ifndef TESTS_TESTLIB_WORKER_DRIVE_H
#define TESTS_TESTLIB_WORKER_DRIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/testlib/worker_client.h"

#define DRIVE_MAX_SEQUENCES 64
#define DRIVE_MAX_TOKENS    4096
#define DRIVE_MAX_STEPS     8 /* in flight */
#define DRIVE_WAIT_MS       120000

enum drive_state {
    DRIVE_NEW,
    DRIVE_ADMITTED,
    DRIVE_FINISHED,
    DRIVE_FAILED,
};

struct drive_sequence {
    struct plan_admit admit;           /* prompt and sampling; seq_id is given by drive_run */
    uint32_t tokens[DRIVE_MAX_TOKENS]; /* output so far */
    uint32_t token_count;
    enum drive_state state;
    enum result_finish reason;
    uint32_t failed_code;
    uint32_t sent_tokens; /* launched frontier as planned */
    uint32_t tries;       /* admissions; a failed sequence is admitted again, prompt and output */
    uint32_t prompt[DRIVE_MAX_TOKENS]; /* of the current admission */
};

struct drive {
    struct worker_client *client; /* borrowed */
    uint64_t next_seq_id;
    uint32_t depth;
    uint32_t step_tokens; /* budget of one step */
    uint32_t max_tries;   /* 1: a failed sequence stays failed */
    uint32_t refused;     /* REFUSED records seen */
    uint32_t steps_done;
    uint64_t digest; /* replay_digest_add over every TOKEN */
    /* Called between records, for what a test does in the middle; may be null. */
    void (*on_record)(void *owner, const struct result_record *record);
    /* The worker closed the pipe and no record is left; null: the test fails. */
    void (*on_closed)(void *owner);
    void *owner;
};

void drive_init(struct drive *drive, struct worker_client *client);

/* A greedy sequence: prompt ids are copied. */
void drive_greedy(struct drive_sequence *sequence, const uint32_t *prompt, uint32_t prompt_count,
                  uint32_t output_tokens);

/* Runs all to their end and releases them. */
void drive_run(struct drive *drive, struct drive_sequence *sequences, uint32_t count);

/* Prompts of deploy/demo-model with the reference's greedy output. */
#define DRIVE_MAX_PROMPTS 64
struct drive_prompt {
    uint32_t ids[DRIVE_MAX_TOKENS];
    uint32_t count;
    uint32_t output[DRIVE_MAX_TOKENS];
    uint32_t output_count;
};
/* Number of prompts read; the array is allocated, free it. */
uint32_t drive_load_prompts(struct drive_prompt **out_prompts);

#endif
