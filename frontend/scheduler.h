/* Which rows run in the next step, and who is admitted: the frontend's half of the plan protocol.
 *
 * A pure state machine: no clock, no socket, no thread.  Inputs are submit, cancel, attach, detach,
 * the worker's records and the time; outputs are plan messages through a callback and events to the
 * owners of requests.  Plan k+1 is sent before the results of plan k are read; `depth` plans are
 * outstanding while there is work.  A step holds every decode row first, then prompt segments within
 * the token budget and, beside decode rows, within the time that the inter-token target leaves (at
 * least a quarter of it); decode rows that do not all fit take turns and leave a part of the step to
 * prompts.
 *
 * A waiting request is admitted when its prompt and a page more per family fit beside what the running
 * ones need next.  When pages run out, the last in turn is preempted: left out of plans, released, and
 * computed again from prompt and output once that fits; its owner notices a pause.  Plans stay within
 * quota_left less what messages after `applied` can take.  One thread. */
#ifndef FRONTEND_SCHEDULER_H
#define FRONTEND_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "frontend/request.h"
#include "proto/account.h"
#include "proto/hello.h"
#include "proto/plan.h"
#include "proto/result.h"

#define SCHED_MAX_DEPTH 16   /* plans outstanding */
#define SCHED_MAX_SLOTS 4096 /* sequences alive */

/* The head of the queue is passed by at most this many smaller requests; then it waits alone. */
#define SCHED_MAX_OVERTAKES 16
/* So many requests behind the head are looked at for one that fits. */
#define SCHED_OVERTAKE_REACH 32

#define SCHED_PING_NS (500 * 1000000ULL) /* sooner where the session ends within 4 of them */

/* A STEP refused this often in a row, with none done between, fails the requests it names. */
#define SCHED_MAX_REFUSALS 3

struct sched;

/* The mask of the token at next_position of a constrained request is wanted: before any row that
 * samples it is planned.  lane: of the mask area. */
typedef void (*sched_mask_fn)(void *owner, const struct req *req, uint32_t lane);

struct sched_options {
    sched_mask_fn mask;        /* its owner is send's; null: constrained requests never come */
    uint32_t max_queue;        /* waiting requests beyond those that could start at once */
    uint32_t max_step_tokens;  /* 0: the worker's limit */
    uint64_t itl_target_ns;    /* a step with decode rows shall take no longer; 0: no target */
    uint32_t pipeline_depth;   /* 0: the worker's */
    uint64_t detached_wait_ns; /* waiting requests outlive the loss of the worker by this */
};

/* Send one message of the session; what cannot be sent ends the session later, by detach.  The
 * message and its arrays are valid during the call. */
typedef void (*sched_send_fn)(void *owner, const struct plan_message *message);

struct sched_limits {
    struct account_geometry geometry;
    uint32_t vocab_tokens;
    uint32_t max_context_tokens;
    uint32_t
        pool_tokens; /* longest sequence that fits into both pools, at most max_context_tokens */
    uint32_t local_pages;
    uint32_t global_pages;
    uint32_t slots;
    uint32_t max_step_rows;
    uint32_t budget_tokens; /* of one step */
    uint32_t depth;
    uint32_t peak_step_tokens; /* of one sequence in all outstanding steps */
    uint32_t segment_tokens;   /* of one sequence in a step, where it needs several */
    uint32_t cut_tokens;       /* prompts are cut at multiples of this only; 0: anywhere */
    bool has_prefix_cache;
    uint64_t ping_ns; /* a sign of life when nothing else was sent for so long */
};

/* What submit is checked against; a copy may be used on any thread. */
struct sched_gate {
    struct sched_limits limits; /* of the last worker */
    uint64_t open_until_ns;     /* UINT64_MAX with a worker; 0: there never was one */
    uint32_t waiting;
    uint32_t running;
    uint32_t max_queue;
    uint32_t retry_after_s; /* when a full queue will have room again, as far as can be told */
};

/* arrived = rejected + finished + failed + waiting + running, always. */
struct sched_stats {
    uint64_t arrived;
    uint64_t rejected;
    uint64_t finished[RESULT_FINISH_CANCEL + 1]; /* by enum result_finish */
    uint64_t failed;
    uint64_t prompt_tokens;
    uint64_t output_tokens;
    uint64_t steps;
    uint64_t step_rows;
    uint64_t step_prompt_tokens; /* of the steps answered, as all below */
    uint64_t step_decode_rows;
    uint64_t step_device_ns; /* 0 where the worker does not say */
    uint64_t step_span_ns;   /* from sending a STEP to its answer */
    uint64_t plans_refused;
    uint64_t overtakes;
    uint64_t preemptions;
    uint32_t preempted_waiting; /* of the waiting, those that were at the worker before */
    uint64_t records_unowned;   /* of sequences that had ended here */
};

struct sched *sched_create(const struct sched_options *options, sched_send_fn send, void *owner);

/* Requests still here get FAILED(ERR_CLOSED). */
void sched_destroy(struct sched *sched, uint64_t now_ns);

/* Takes req, whose request_id is set and unused.  On an error the caller keeps it.
 * Errors: those of sched_gate_check. */
ERR_NODISCARD enum err_code sched_submit(struct sched *sched, struct req *req, uint64_t now_ns,
                                         struct err *err);

/* The owner gets FINISHED(CANCEL) during the call; unknown ids are ignored. */
void sched_cancel(struct sched *sched, uint64_t request_id, uint64_t now_ns);

/* A session begins.  Not attached before.  Waiting requests that this worker could never run fail.
 * Errors: ERR_PROTOCOL (a limit in welcome that cannot be). */
ERR_NODISCARD enum err_code sched_attach(struct sched *sched, const struct hello_welcome *welcome,
                                         uint64_t epoch, uint64_t now_ns, struct err *err);

/* The session has ended: requests at the worker fail with ERR_CLOSED and text; the others wait. */
void sched_detach(struct sched *sched, const char *text, uint64_t now_ns);

/* One record of this session.  Errors: ERR_PROTOCOL: the worker broke the order; detach. */
ERR_NODISCARD enum err_code sched_record(struct sched *sched, const struct result_record *record,
                                         uint64_t now_ns, struct err *err);

/* Another frontend takes what is new: the worker is told, and lets what is here end first. */
void sched_set_leaving(struct sched *sched);

/* Call after a batch of inputs, and at sched_wake_ns: deadlines, admissions, plans, PING. */
void sched_tick(struct sched *sched, uint64_t now_ns);

/* When sched_tick is due without another input; UINT64_MAX never. */
uint64_t sched_wake_ns(const struct sched *sched);

bool sched_is_attached(const struct sched *sched);
uint32_t sched_outstanding_steps(const struct sched *sched);

/* Requests at the worker whose owner still waits. */
uint32_t sched_live_running(const struct sched *sched);

/* Last record of any kind, and last STEP_DONE or PONG; 0 none in this session. */
uint64_t sched_heard_ns(const struct sched *sched);
uint64_t sched_alive_ns(const struct sched *sched);

void sched_get_gate(const struct sched *sched, struct sched_gate *out_gate);
void sched_get_stats(const struct sched *sched, struct sched_stats *out_stats);
void sched_get_figures(const struct sched *sched, struct result_figures *out_figures);

/* Errors: ERR_CLOSED (no worker), ERR_BUSY (queue full), ERR_LIMIT (could never run; names both
 * values), ERR_ARGUMENT (token id). */
ERR_NODISCARD enum err_code sched_gate_check(const struct sched_gate *gate,
                                             const struct plan_admit *admit, uint64_t now_ns,
                                             struct err *err);

/* Requests of total_tokens, prompt and output, that can decode beside each other; 0 without a
 * worker. */
uint32_t sched_requests_that_fit(const struct sched_limits *limits, uint32_t total_tokens);

/* Asserts the bookkeeping of all requests; for tests. */
bool sched_check(const struct sched *sched);

#endif
