/* State shared by scheduler.c (inputs), scheduler_gate.c (limits), scheduler_room.c (admission,
 * preemption), scheduler_plan.c (steps), scheduler_prompt.c (their prompt segments) and
 * scheduler_answer.c (records).  Included by these alone. */
#ifndef FRONTEND_SCHEDULER_INTERNAL_H
#define FRONTEND_SCHEDULER_INTERNAL_H

#include "frontend/backlog.h"
#include "frontend/pace.h"
#include "frontend/queue.h"
#include "frontend/scheduler.h"

/* A row of an outstanding STEP. */
struct sched_row {
    uint64_t seq_id;
    uint32_t tokens;
    bool samples; /* a TOKEN is due before STEP_DONE, unless the sequence ends first */
    uint32_t reserved_before_tokens; /* what a refusal restores */
    struct account_need need;
};

/* A STEP without an answer. */
struct sched_step {
    uint64_t msg_seq;
    uint64_t sent_ns;
    struct sched_row *rows; /* owned: [max_step_rows] */
    uint32_t row_count;
    struct pace_load load; /* its prompt segments */
    bool is_rolled_back;   /* certain to be refused, behind a refused one */
};

/* A STEP while its rows are chosen. */
struct sched_builder {
    struct sched *sched;
    struct sched_step *step;
    struct account_need left;
    struct account_need taken;
    uint32_t tokens_left;
    uint32_t kept_rows;   /* for prompts, while decode rows are chosen; for the first prompt then */
    uint32_t kept_tokens; /* for prompts, while decode rows are chosen */
    bool is_timed;        /* prompts beside decode rows: room_ns counts */
    double room_ns;       /* left for prompt tokens */
    struct pace_load load;
};

/* Pages that a message may take and that the figures do not show yet. */
struct sched_claim {
    uint64_t msg_seq;
    struct account_need need;
};

/* Everything that dies with a session. */
struct sched_session {
    uint64_t epoch;
    uint64_t next_msg_seq;
    uint64_t sent_ns;
    uint64_t heard_ns;
    uint64_t alive_ns;

    struct req **by_slot;     /* owned: [slots]; null: free */
    uint32_t *free_slots;     /* owned: a stack, [slots] */
    uint32_t free_slot_count; /* RELEASE takes effect in order: free once it is sent */
    uint64_t next_serial;

    struct sched_step steps[SCHED_MAX_DEPTH]; /* a ring: answered in order */
    uint32_t step_head;
    uint32_t step_count;
    uint64_t after_seq;        /* the next STEP names it; 0 none */
    uint64_t last_refusal_seq; /* of any message; 0 none */
    uint32_t refusals_in_row;

    bool has_figures;
    struct result_figures figures;
    struct sched_claim *claims; /* owned: a ring of [claim_cap], by msg_seq */
    uint32_t claim_cap;
    uint32_t claim_head;
    uint32_t claim_count;
    struct account_need claimed; /* their sum */

    uint64_t release_seq;             /* last RELEASE of a preempted sequence; 0 none */
    uint64_t busy_seq;                /* last ADMIT that found no slot; 0 none */
    uint64_t figures_ping_seq;        /* PING sent to hear of the effect of either; 0 none */
    bool has_blocked;                 /* the last plan had no page for some row */
    struct account_need told_waiting; /* by the last PING: pages of who is next in the queue */
    bool told_leaving;                /* by it too */
    uint64_t told_ns;                 /* when that was */
    uint64_t tell_ns; /* either has changed since, and is told then; UINT64_MAX no */

    struct wire_row *wire_rows; /* owned: [max_step_rows], of the message being sent */
    uint32_t first_row_skip;    /* decode rows to pass over first: turns when not all fit */
};

struct sched {
    struct sched_options options;
    sched_send_fn send;
    void *send_owner; /* borrowed until sched_destroy */

    struct queue queue;
    struct req_list running; /* owned requests, ADMITTING to ENDED; the last is the first to go */
    uint32_t live_running;   /* those whose owner still waits */
    uint64_t soonest_ns;     /* no running request's deadline is before this; UINT64_MAX none */
    uint64_t last_arrival_seq;
    struct req **buckets;  /* owned: live requests by id, [bucket_count] chains */
    uint32_t bucket_count; /* a power of two */

    bool is_attached;
    bool was_attached;
    bool is_leaving;
    uint64_t lost_ns;
    struct sched_limits limits;
    struct sched_session session; /* valid while attached */
    struct pace pace;             /* of the last worker */
    struct backlog backlog;
    uint64_t plan_mark; /* of the plan being made */
    struct sched_stats stats;
};

/* from less amount, 0 where that is more. */
static inline uint32_t sched_less(uint32_t from, uint32_t amount)
{
    return from > amount ? from - amount : 0;
}

/* scheduler.c */

/* PING, which tells who waits too; its msg_seq. */
uint64_t sched_ping(struct sched *sched, uint64_t now_ns);

/* The running request of a sequence; null when it is not here any more. */
struct req *sched_find_sequence(const struct sched *sched, uint64_t seq_id);

/* Last event to the owner: FAILED, or FINISHED. */
void sched_fail(struct sched *sched, struct req *req, enum err_code code, const char *text,
                uint64_t now_ns);
void sched_finish(struct sched *sched, struct req *req, enum result_finish reason, uint64_t now_ns);

/* After sched_fail, sched_finish or preemption of one that runs: RELEASE as soon as that may be sent;
 * then it is gone, or waits again. */
void sched_leave(struct sched *sched, struct req *req, uint64_t now_ns);

/* Takes a request that the worker does not know, or was told to forget, back into the queue. */
void sched_requeue(struct sched *sched, struct req *req);

/* Takes a request that the worker does not know out of the running, and destroys it. */
void sched_forget(struct sched *sched, struct req *req);

/* Tells the worker to stop its sequence. */
void sched_cancel_sequence(struct sched *sched, const struct req *req, uint64_t now_ns);

/* scheduler_gate.c */

/* Errors: ERR_PROTOCOL names a limit that cannot be. */
ERR_NODISCARD enum err_code sched_read_limits(const struct sched_options *options,
                                              const struct hello_welcome *welcome,
                                              struct sched_limits *out_limits, struct err *err);

/* Waiting requests may wait until then. */
uint64_t sched_waiting_until_ns(const struct sched *sched);

/* scheduler_room.c */

/* Whether a gives its pages up before b does: a lower priority first, then those not yet preempted
 * twice, then who came last. */
bool sched_goes_before(const struct req *a, const struct req *b);

void sched_admit_waiting(struct sched *sched, uint64_t now_ns);

/* All that the request which is next in the queue may come to hold; 0 none waits. */
struct account_need sched_waiting_need(const struct sched *sched);

/* Where rows lack pages that less deserving ones hold: preempt those. */
void sched_make_room(struct sched *sched, uint64_t now_ns);

/* Pages of a row of so many tokens; of the shortest row that it can have next. */
struct account_need sched_need(const struct sched *sched, const struct req *req, uint32_t tokens);
struct account_need sched_least_need(const struct sched *sched, const struct req *req);

/* scheduler_plan.c */

/* Fills epoch and msg_seq, sends; returns msg_seq. */
uint64_t sched_send(struct sched *sched, struct plan_message *message, uint64_t now_ns);

/* Figures as last heard, less all claims. */
struct account_need sched_pages_left(const struct sched *sched);

/* How many of the wanted tokens the token budget and the pages allow. */
uint32_t sched_allowed_tokens(const struct sched_builder *builder, const struct req *req,
                              uint32_t wanted_tokens);
void sched_add_row(struct sched_builder *builder, struct req *req, uint32_t tokens);

/* A row was left out, for lack of pages or for something that passes. */
void sched_note_blocked(struct sched_builder *builder, struct req *req);

/* scheduler_prompt.c */

void sched_add_prompt_rows(struct sched_builder *builder, bool has_decode_rows);

/* scheduler_plan.c */

void sched_push_claim(struct sched *sched, uint64_t msg_seq, const struct account_need *need);

void sched_plan(struct sched *sched, uint64_t now_ns);

/* Tokens of its prompt that are still to be launched; of those, up to the next place where a prompt
 * may be cut, if it is that long. */
uint32_t sched_rest_tokens(const struct req *req);
uint32_t sched_tokens_to_cut(const struct sched_limits *limits, const struct req *req);

/* Peak of one sequence under these limits. */
struct account_need sched_peak(const struct sched_limits *limits, uint32_t max_total_tokens);

/* scheduler_prefix.c */

/* Somebody ahead of a queued request computes what it begins with as well: admitted later it reuses
 * that.  It waits no longer once it was overtaken as often as may be. */
bool sched_awaits_prefix(const struct sched *sched, struct req *req);

/* scheduler_answer.c */

/* Forget the claims of messages up to applied. */
void sched_settle_claims(struct sched *sched, uint64_t applied);

#endif
