/* The engine thread: scheduler, link to the worker, drain of its results.
 *
 * HTTP code submits requests and gets events; it never sees plans, pages or the worker.  All public
 * functions may be called from any thread; events are delivered on the engine thread and must not
 * block (they push to a loop's queue). */
#ifndef FRONTEND_ENGINE_H
#define FRONTEND_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/hello.h"
#include "proto/plan.h"
#include "proto/result.h"

struct constraint;
struct engine;

enum engine_event_kind {
    ENGINE_EVENT_ADMITTED,        /* prompt accepted by the worker: reused_tokens */
    ENGINE_EVENT_TOKEN,           /* one output token, with logprobs if asked for */
    ENGINE_EVENT_PROMPT_LOGPROBS, /* of one prompt position, in order */
    ENGINE_EVENT_FINISHED,        /* last event: reason */
    ENGINE_EVENT_FAILED,          /* last event: code and text */
};

struct engine_event {
    enum engine_event_kind kind;
    uint64_t request_id;
    uint64_t time_ns;
    uint32_t token;
    uint32_t position;
    float logprob; /* rank 0: not asked for */
    uint32_t rank;
    uint32_t pair_count;
    const uint32_t *ids;   /* [pair_count], borrowed during the call */
    const float *logprobs; /* [pair_count] */
    uint32_t reused_tokens;
    uint32_t queried_tokens; /* looked up for reuse */
    enum result_finish reason;
    enum err_code code;
    const char *text; /* borrowed during the call */
};

/* Engine thread.  Exactly one FINISHED or FAILED ends each submitted request. */
typedef void (*engine_event_fn)(void *owner, const struct engine_event *event);

struct engine_request {
    struct plan_admit admit; /* seq_id is set by the scheduler; arrays are copied by submit */
    int32_t priority;        /* lower runs first; 0 default */
    uint64_t group;          /* of choices of one prompt, which share all pages they can; 0: none */
    uint64_t key_hash;       /* whose share of the server this is; 0: those without an API key */
    uint64_t deadline_ns;    /* monotonic; not finished then: FAILED(ERR_TIMEOUT); 0 none */
    struct constraint *constraint; /* submit takes it, whatever comes of that; null exactly where
                                      admit.constrained is false */
    engine_event_fn on_event;
    void *owner;
};

struct engine_options {
    const char *run_dir; /* borrowed */
    const char *name;
    uint32_t max_queue;       /* waiting requests */
    uint32_t max_step_tokens; /* token budget of a step; 0: the worker's limit */
    uint32_t itl_target_ms;   /* between two tokens while prompts are computed; 0: no target */
    uint32_t pipeline_depth;  /* 0: the worker's */
    uint64_t tokenizer_hash;  /* a worker with another is not used; 0: any */
    uint32_t
        detached_wait_ms; /* so long after losing the worker requests wait for another; 0: 30 s */
};

ERR_NODISCARD enum err_code engine_create(const struct engine_options *options,
                                          struct engine **out_engine, struct err *err);
/* Cancels what runs, stops the thread. */
void engine_destroy(struct engine *engine);

/* While the worker is gone for less than detached_wait_ms, requests queue.
 * Errors: ERR_BUSY (queue full), ERR_CLOSED (no worker), ERR_LIMIT (can never fit; names both
 * values), ERR_ARGUMENT.  No event is delivered after an error.  *out_request_id is set before the
 * first event. */
ERR_NODISCARD enum err_code engine_submit(struct engine *engine,
                                          const struct engine_request *request,
                                          uint64_t *out_request_id, struct err *err);

/* FINISHED(CANCEL) follows unless the request has ended already; unknown ids are ignored. */
void engine_cancel(struct engine *engine, uint64_t request_id);

/* Another frontend accepts what is new: the worker lets what is here end first. */
void engine_leave(struct engine *engine);

/* A snapshot for /metrics, /ready and validation.
 * requests_arrived = rejected + finished + failed + waiting + running. */
struct engine_status {
    bool is_attached;
    bool is_ready; /* a STEP_DONE or PONG younger than 2 s */
    struct hello_welcome
        welcome;          /* texts borrowed from the engine until engine_destroy; last known */
    uint32_t pool_tokens; /* as many as the worker's pools hold of one sequence */
    uint32_t waiting_requests;
    uint32_t running_requests;
    struct result_figures figures;
    uint64_t requests_arrived;
    uint64_t requests_finished[4]; /* by enum result_finish */
    uint64_t requests_failed;
    uint64_t requests_rejected;
    uint64_t prompt_tokens;
    uint64_t output_tokens;
    uint64_t steps;
    uint64_t step_prompt_tokens; /* of the steps answered */
    uint64_t step_decode_rows;
    uint64_t step_device_ns; /* 0 where the worker does not say */
    uint64_t step_span_ns;   /* from sending a STEP to its answer */
    uint64_t plan_messages;  /* sent, of every kind */
    uint64_t plan_bytes;
    uint64_t records; /* received */
    uint64_t plans_refused;
    uint32_t retry_after_s; /* when a full queue will have room again */
    uint64_t preemptions;
    uint32_t preempted_waiting; /* of waiting_requests, those that had been running */
    uint64_t records_stale;
    uint64_t worker_attaches;
    uint64_t cache_resets_done;       /* the highest ticket of engine_reset_cache that is done */
    struct hello_stats_answer worker; /* its own counters, at most a second old while attached */
    uint64_t worker_heard_ns;         /* when they came; 0 never */
    /* why the worker that is there does not let this frontend attach, "" where it does or none is */
    char misfit[ERR_MESSAGE_BYTES];
    bool misfit_lasts; /* and will not */
};
void engine_get_status(struct engine *engine, struct engine_status *out_status);

/* Have the worker forget cached prefixes that no sequence holds.  Done once the status says so of the
 * ticket returned; never where the worker goes meanwhile. */
uint64_t engine_reset_cache(struct engine *engine);

/* Requests of total_tokens that fit beside each other into the last worker's pools and slots. */
uint32_t engine_requests_that_fit(struct engine *engine, uint32_t total_tokens);

#endif
