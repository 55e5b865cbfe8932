/* One request from submit to its last event, and its mirror of what the worker holds for it.
 *
 *            ADMIT             ADMITTED           PLANNED
 *   QUEUED --------> ADMITTING ---------> PROMPT ---------> DECODE
 *    | ^                 |                 | |  <----------  | |
 *    | |                 |                 | |  UNPLANNED    | |
 *    | +--- REQUEUE --- PREEMPTED <- PREEMPT + ------------- + |
 *    |                   |  |              |                   |
 *    | DROP              +--+---- END -----+------- END -------+
 *    v                                     v
 *   GONE <------------------------------ ENDED
 *                 RELEASE, LOST
 *
 *   QUEUED     waits; no sequence, account empty
 *   ADMITTING  ADMIT is sent; account empty, the worker may pin pages of the prompt
 *   PROMPT     launched < prompt; prompt segments are planned
 *   DECODE     launched >= prompt; decode rows are planned ahead of their results
 *   PREEMPTED  left out of plans; its outstanding rows still bring tokens.  After the answer of the
 *              last STEP naming it RELEASE is sent and it is QUEUED again, its output behind its
 *              prompt: admit.output_start stays where the output begins.  (ADMITTING goes back the
 *              same way when the worker's last slot went to another frontend meanwhile.)
 *   ENDED      the owner has had its last event; pages are the worker's until RELEASE, which waits
 *              for the answer of the last STEP naming the sequence
 *   GONE       unknown to the worker; whoever holds the request destroys it
 *
 * Engine thread only, but for req_create. */
#ifndef FRONTEND_REQUEST_H
#define FRONTEND_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/engine.h"
#include "proto/account.h"
#include "proto/plan.h"

struct queue_key;

enum req_state {
    REQ_STATE_INVALID, /* no such step: never a request's state */
#define STATE(name) REQ_STATE_##name,
#define EVENT(name)
#define NEXT(from, event, to)
#include "frontend/request.def"
#undef STATE
#undef EVENT
#undef NEXT
    REQ_STATE_COUNT
};

enum req_event {
#define STATE(name)
#define EVENT(name) REQ_EVENT_##name,
#define NEXT(from, event, to)
#include "frontend/request.def"
#undef STATE
#undef EVENT
#undef NEXT
    REQ_EVENT_COUNT
};

/* A token whose logprob pairs are still coming, record by record. */
struct req_pairs {
    bool is_open;
    uint32_t position;
    uint32_t token;
    float logprob;
    uint32_t rank;
    uint32_t pair_count; /* so far */
    uint32_t ids[PLAN_MAX_LOGPROBS];
    float logprobs[PLAN_MAX_LOGPROBS];
};

struct req {
    enum req_state state; /* written by req_step alone */
    int32_t priority;
    uint64_t request_id;
    uint64_t key_hash;    /* of the API key; 0 none */
    uint64_t group;       /* of choices of one prompt; 0 none */
    uint64_t arrival_seq; /* order of arrival: its place in the queue */
    uint64_t arrival_ns;
    uint64_t deadline_ns; /* of waiting and running; 0 none */
    struct plan_admit admit;
    struct constraint *constraint; /* owned; null: none */
    void *storage;    /* owned: what the arrays of admit point to, but for the prompt */
    uint32_t *tokens; /* owned, [token_cap]: prompt and output so far; admit.prompt is its begin */
    uint32_t token_count;
    uint32_t token_cap;
    engine_event_fn on_event;
    void *owner;

    struct req *prev; /* in the queue, or among the running; each holds a request in turn */
    struct req *next;
    struct {
        struct req *prev;
        struct req *next;
    } key_link;              /* in the queue, among those of its key */
    struct queue_key *key;   /* the queue's; null: never queued */
    struct req *bucket_next; /* in the table of ids */
    uint32_t passes;         /* admitted before this one though they came later */
    uint32_t overtaken;      /* smaller requests admitted while this one headed the queue */
    uint32_t preemptions;    /* counted when it is QUEUED again */
    uint32_t leader_tokens;  /* that it and its leader both begin with */
    uint64_t leader_seq_id;  /* whose prompt it waits for, to reuse its beginning; 0 none */

    /* mirror of the worker's sequence, from ADMIT to RELEASE */
    struct account account;
    struct account_need peak;       /* never holds more than this */
    struct account_need entry;      /* its prompt and a page more per family */
    struct account_need decode_top; /* never more than this once its prompt is committed */
    struct account_need pinned;     /* what its ADMIT may take; zero once answered */
    bool was_admitted;              /* its owner knows: a second ADMITTED is about a recompute */
    uint64_t admit_msg_seq;
    uint64_t last_step_seq;    /* last STEP naming it; 0 none */
    uint64_t sampled_step_seq; /* last STEP that gave it a token; 0 none */
    uint64_t plan_mark;        /* last plan that looked at its prompt */
    uint32_t next_position;    /* of the next output token */
    uint32_t blocked_plans;    /* STEPs in a row that had no page for it */
    struct req_pairs token;
    struct req_pairs prompt;
    uint32_t prompt_position; /* of the next prompt logprobs from the worker */
    uint32_t prompt_told;     /* position of the last prompt logprobs given to the owner */
};

/* Requests in a row, each in at most one list. */
struct req_list {
    struct req *first; /* borrowed, as are all in the list */
    struct req *last;
    uint32_t count;
};

/* after: null puts it first. */
void req_list_insert(struct req_list *list, struct req *after, struct req *req);
void req_list_remove(struct req_list *list, struct req *req);

/* Copies the request's arrays, takes its constraint; state QUEUED.  Any thread.
 * Errors (nothing is taken): ERR_ARGUMENT (no prompt, no callback, output_start, constrained without a constraint),
 * ERR_LIMIT (an array over its bound), ERR_MEMORY. */
ERR_NODISCARD enum err_code req_create(const struct engine_request *request, struct req **out_req,
                                       struct err *err);
void req_destroy(struct req *req);

/* Takes the step of the table; asserts that there is one. */
void req_step(struct req *req, enum req_event event);

/* The step's target, or REQ_STATE_INVALID. */
enum req_state req_next(enum req_state state, enum req_event event);

/* Keep an output token, in case it has to be computed from again. */
void req_push_output(struct req *req, uint32_t token);

/* PREEMPTED or ADMITTING to QUEUED: the output so far becomes part of the prompt, the mirror is empty. */
void req_requeue(struct req *req);

/* The owner waits for events still. */
bool req_is_live(const struct req *req);

/* True when the invariants of the state hold. */
bool req_check(const struct req *req);

/* Pairs that come with each token: admit.logprobs less the chosen one. */
uint32_t req_pair_count(uint32_t logprobs);

/* Tokens that the worker ever computes: the last of max_total is never an input. */
uint32_t req_max_launched(const struct req *req);

/* Deliver an event to the owner. */
void req_emit(const struct req *req, const struct engine_event *event);

#endif
