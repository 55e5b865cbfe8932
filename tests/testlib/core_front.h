/* A frontend that does everything a frontend may do, at random, and checks every answer.
 *
 * It plans within quota_left less what STEPs after `applied` need, on accounts of its own, so that
 * a refusal for pages it did not ask for shows figures that were too high.  Every token is compared
 * with an undisturbed run's, every STEP must be answered once and in order, and a sequence that
 * ended must stay silent.  A failed check ends the test. */
#ifndef TESTS_TESTLIB_CORE_FRONT_H
#define TESTS_TESTLIB_CORE_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/account.h"
#include "tests/testlib/core_rig.h"

#define FRONT_MAX_SEQS   4096
#define FRONT_MAX_STEPS  64
#define FRONT_MAX_ROWS   64
#define FRONT_MASK_WORDS 8

/* What it may do besides admitting, planning, cancelling and releasing. */
struct front_options {
    struct runner_limits limits;
    uint64_t seed;
    uint32_t most_alive;
    uint32_t most_prompt;
    uint32_t most_output;
    uint32_t most_outstanding; /* STEPs sent and not answered */
    bool allows_failures;      /* the test makes things fail: FAILED and refusals may come */
    bool sends_bad_plans;
    bool overplans; /* now and then more than there are pages for */
    bool is_constrained;
    bool never_cancels;   /* nor releases what still runs */
    bool shares_prefixes; /* prompts begin alike; the core keeps prefixes */
};

struct front_seq {
    struct plan_admit admit;
    uint32_t stop_id;
    uint32_t *tokens; /* owned, [max_total]: prompt, then what came */
    uint32_t token_count;
    uint32_t floor_tokens;     /* furthest frontier that pages were taken for */
    uint32_t committed_tokens; /* of answered STEPs */
    uint32_t next_prompt_logprob;
    uint64_t fold; /* over tokens[0 .. folded) */
    uint32_t folded;
    uint32_t pairs_due;  /* pairs of LOGPROBS still to follow the last TOKEN */
    uint64_t token_step; /* msg_seq of the last TOKEN */
    uint32_t reused_tokens;
    bool prompt_was_held;
    bool is_admitted;
    bool is_cancelled;
    bool is_released;
    bool is_closed; /* FINISHED, FAILED or refused */
};

struct front_row {
    struct front_seq *seq;
    uint32_t count;
    uint32_t end_tokens; /* frontier that the worker took pages for; 0 until known */
    bool is_prompt;
    bool samples;
};

struct front_step {
    uint64_t msg_seq;
    uint64_t after;
    struct front_row rows[FRONT_MAX_ROWS];
    uint32_t row_count;
    bool is_bad;      /* must be refused, unless another refusal comes first */
    bool is_greedy;   /* may be refused for pages */
    bool is_rejected; /* an earlier one was refused and it does not say so */
};

struct front_stats {
    uint64_t tokens;
    uint64_t finished;
    uint64_t cancelled;
    uint64_t failed;
    uint64_t steps_done;
    uint64_t refused[ERR_CODE_COUNT];
    uint64_t held_rows;
    uint64_t resumed; /* admitted again after RELEASE */
    uint64_t reused_tokens;
    uint64_t reusing; /* admissions that reused any */
};

struct front {
    struct core_rig *rig;
    struct rig_session session;
    struct front_options options;
    struct account_geometry geometry;
    uint64_t random;
    struct front_seq *seqs; /* owned, [FRONT_MAX_SEQS] */
    uint32_t seq_count;
    uint32_t first_open; /* every sequence before it is released */
    struct front_step steps[FRONT_MAX_STEPS];
    uint32_t step_first;
    uint32_t step_count;
    struct result_figures figures;
    uint64_t pending_refusal; /* as the answers so far leave the worker */
    uint64_t after;           /* to be named by the next STEP */
    uint64_t ping_nonce;
    uint64_t pong_nonce;
    struct front_stats stats;
};

void front_init(struct front *front, struct core_rig *rig, const struct front_options *options,
                const struct session_quota *quota);
void front_fini(struct front *front);

/* Abandon the session as a killed frontend does, and begin a new one. */
void front_restart(struct front *front, const struct session_quota *quota);

/* One thing at random. */
void front_act(struct front *front);

/* Send one STEP of whatever can run; false where nothing can. */
bool front_plan(struct front *front);

/* Admit one; false where most_alive are. */
bool front_admit(struct front *front);

/* Read and check up to record_count records. */
void front_read(struct front *front, uint32_t record_count);

/* Cancel and release everything that is left. */
void front_leave(struct front *front);

/* Sequences admitted or about to be, and not released. */
uint32_t front_alive(const struct front *front);

/* True when every STEP is answered and nothing runs on. */
bool front_is_quiet(const struct front *front);

/* Pages its sequences hold, by its own accounts; exact while quiet. */
struct account_need front_held(const struct front *front);

/* Shared by its two source files. */
struct account front_account(const struct front *front, const struct front_seq *seq,
                             uint64_t up_to_msg_seq);
uint32_t front_launched(const struct front *front, const struct front_seq *seq,
                        uint64_t up_to_msg_seq);
struct front_step *front_step_at(struct front *front, uint32_t index);

/* The mask of a position: about half of the vocabulary, by id and position. */
void front_mask(const struct front_options *options, uint64_t seq_id, uint32_t position,
                uint32_t out_mask[FRONT_MASK_WORDS]);

#endif
