/* The worker's bookkeeping: sessions, their sequences and pages, and the steps in flight.
 *
 * Pure: no sockets, rings, threads or clocks.  Decoded messages and the time come in as arguments,
 * records go out through struct session_sink, computing is behind worker/runner.h.  The executor
 * thread owns a core and makes every call here, and calls the runner only through the core, but for
 * runner->wait.  The loop around it: deliver what the plan sockets hold, session_core_advance, wait
 * for the runner (steps in flight) or for a socket.
 *
 * Messages of a session take effect in order, inside session_core_advance; a STEP waits there while
 * the pipeline is full or its ring lacks room, and what follows it waits too.  CANCEL acts at once.
 * worker/README.md has the rules of answers, refusals, held rows and failures in one place. */
#ifndef WORKER_SESSION_H
#define WORKER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "worker/inject.h"
#include "worker/prefix.h"
#include "worker/runner.h"

struct session_core;
struct session; /* from session_open until session_close; the core keeps what still runs of it */

/* Where records go and masks come from.  owner is what session_open was given; none of these is
 * called for a session once it is closed. */
struct session_sink {
    void *context; /* borrowed, first argument of each */
    /* Free records of the session's ring; may stop counting at wanted. */
    uint32_t (*room)(void *context, void *owner, uint32_t wanted);
    /* Only after room said yes. */
    void (*push)(void *context, void *owner, const struct result_record *record);
    /* Records pushed so far become visible.  Called before session_core_advance goes on to launch
     * and before it returns. */
    void (*flush)(void *context, void *owner);
    /* Mask for the token that a constrained sequence samples at position; null when it is not
     * there.  Borrowed until the launch, or give_masks, returns.  Asked again and again while a
     * step awaits it.  The pointer itself may be null: never. */
    const uint32_t *(*mask)(void *context, void *owner, uint64_t seq_id, uint32_t position);
    /* Most tokens that the ADMIT of msg_seq may begin behind.  The pointer may be null: no bound. */
    uint32_t (*most_reused)(void *context, void *owner, uint64_t msg_seq);
};

/* Beyond runner->limits, which give vocabulary, context, pages, rows, tokens and depth. */
struct session_limits {
    uint32_t slots;        /* sequences alive at once; at most the runner's slots.  Fewer lets an
                              ADMIT take a slot while steps of the one before still run */
    uint32_t ring_records; /* capacity of each session's ring; a STEP that needs more is refused */
    const uint32_t *modality_ids; /* token ids refused in a prompt; copied */
    uint32_t modality_id_count;
    bool keeps_prefixes; /* full pages are kept for later prompts that begin with the same tokens */
    uint64_t hash_seed;  /* of the prefix cache: unknown to whoever writes prompts */
};

/* Pages that a session may hold. */
struct session_quota {
    uint32_t pages[RUNNER_FAMILY_COUNT];
};

/* Counters since start and figures of now. */
struct session_stats {
    uint32_t sessions;
    uint32_t sequences;                         /* alive: admitted and not released */
    uint32_t pages_free[RUNNER_FAMILY_COUNT];   /* that hold nothing */
    uint32_t pages_cached[RUNNER_FAMILY_COUNT]; /* idle: no sequence holds them, as good as free */
    uint32_t steps_in_flight;
    uint64_t steps; /* committed */
    uint64_t plans_refused;
    uint64_t messages_malformed;
    uint64_t messages_stale;
    uint64_t sequences_failed;
    uint64_t steps_failed;
    uint64_t oldest_launch_ns; /* when the oldest step in flight was launched; 0: none */
    uint64_t longest_step_ns;  /* of all steps so far, from launch or the step before it to done */
    uint64_t busy_ns;          /* in passes that moved something; set by whose passes they are */
    uint64_t prefix_query_tokens; /* of admitted prompts that were looked up in the prefix cache */
    uint64_t prefix_hit_tokens;   /* of those, reused */
    uint64_t prefix_hits;         /* prompts that reused any */
    struct prefix_stats prefix;
    struct runner_counters device;
};

struct session_progress {
    uint32_t steps_in_flight;
    bool moved;            /* something was applied, launched or collected */
    bool wants_room;       /* a session waits for room in its ring: look again soon */
    bool wants_masks;      /* a step stands before its sampler: look again soon */
    uint32_t queued_steps; /* STEPs waiting, all sessions */
};

/* runner, sink and inject are borrowed until destroy; inject may be null.  The core handles the
 * stages RESERVE_LOCAL, RESERVE_GLOBAL, STAGE, LAUNCH, PUBLISH and COMMIT.
 * Errors: ERR_ARGUMENT (slots, depth or ring out of range). */
ERR_NODISCARD enum err_code session_core_create(struct runner *runner,
                                                const struct session_limits *limits,
                                                const struct session_sink *sink,
                                                struct inject *inject,
                                                struct session_core **out_core, struct err *err);

/* Frees everything without touching runner or sink.  Null is fine. */
void session_core_destroy(struct session_core *core);

/* Collect finished steps (commit, publish, answer), apply queued messages, launch while fewer than
 * the runner's pipeline_depth are in flight; sessions take turns.  Never blocks.
 * Errors: ERR_DEVICE once the device is lost (every later call says so again): publish nothing more,
 * exit. */
ERR_NODISCARD enum err_code session_core_advance(struct session_core *core, uint64_t now_ns,
                                                 struct session_progress *out_progress,
                                                 struct err *err);

/* Forget cached prefixes that no sequence holds. */
void session_core_reset_cache(struct session_core *core);

void session_core_stats(const struct session_core *core, struct session_stats *out_stats);

/* Every page of both pools. */
struct session_quota session_core_all_pages(const struct session_core *core);

/* Recomputes what is held from scratch and compares: pools, accounts, page lists, quotas, frontiers
 * of both families.  Errors: ERR_INTERNAL names the first difference. */
ERR_NODISCARD enum err_code session_core_check(const struct session_core *core, struct err *err);

/* Begin a session.  owner is passed to the sink.  quota null: every page and slot, which two such
 * sessions share as a hand-over needs it (worker/README.md).  A session that is closed and still has
 * steps in flight does not count.  Errors: ERR_BUSY (SESSION_MAX_COUNT are open). */
ERR_NODISCARD enum err_code session_open(struct session_core *core, uint64_t epoch, void *owner,
                                         const struct session_quota *quota,
                                         struct session **out_session, struct err *err);

/* Drop queued messages, stop every sequence; pages and slots return as the steps in flight complete
 * (at once when there are none).  The handle is gone.  Null is fine. */
void session_close(struct session *session);

/* False while the session's queue is full: leave messages on the socket. */
bool session_can_receive(const struct session *session);

/* Queue a message (copied).  CANCEL acts before this returns.  A message of another epoch is
 * dropped and counted.  Errors: ERR_PROTOCOL (gap in msg_seq: close the session). */
ERR_NODISCARD enum err_code session_deliver(struct session *session,
                                            const struct plan_message *message, struct err *err);

/* Bytes that did not decode, and why: counted, and answered in order by REFUSED with the msg_seq
 * that was due.  Counts as a refused STEP, since it may have been one. */
void session_deliver_malformed(struct session *session, const struct err *why);

#endif
