/* The insides of the core, shared by its source files and by nothing else.
 *
 *   session.c          create, open, close, deliver, advance, counters
 *   session_tell.c     room in the ring, figures, what is told outside of steps
 *   session_apply.c    what each message does when its turn comes
 *   session_collect.c  what becomes of a finished step
 *   session_quota.c    how two sessions share pages and slots
 *   session_check.c    everything recomputed */
#ifndef WORKER_SESSION_INTERNAL_H
#define WORKER_SESSION_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/inbox.h"
#include "worker/plan_check.h"
#include "worker/publish.h"
#include "worker/seq_index.h"
#include "worker/sequence.h"
#include "worker/session.h"
#include "worker/step.h"

/* Open ones, and closed ones that still have a step in flight. */
#define SESSION_MAX_KEPT (SESSION_MAX_COUNT + STEP_MAX_DEPTH)

/* Pages and slots that a session may have. */
struct session_share {
    uint32_t pages[RUNNER_FAMILY_COUNT];
    uint32_t slots;
};

struct session {
    struct session_core *core;
    uint64_t epoch;
    void *owner;   /* borrowed by the sink's callbacks while is_open */
    bool is_open;  /* false: kept until its last step is collected */
    uint32_t lane; /* of the pools' counts; POOL_NO_LANE once it is closed */
    bool has_own_quota;
    struct session_quota quota;   /* where it has its own */
    struct session_share granted; /* as the younger of two that share; never falls meanwhile */
    struct session_share spare;   /* least that the elder did not need since spare_since_ns */
    uint64_t spare_since_ns;
    uint32_t most_steps; /* that its frontend has outstanding */
    bool is_leaving;     /* its frontend has handed over */
    bool is_held_off;    /* as the younger: the elder lacks pages for one request */
    uint32_t waiting_pages[RUNNER_FAMILY_COUNT]; /* of who is next in its frontend's queue */
    uint32_t held_pages[RUNNER_FAMILY_COUNT];    /* as the pools count its lane */
    struct inbox inbox;
    struct seq_index index;
    uint64_t due_msg_seq;       /* of the next message to come */
    uint32_t unnumbered_count;  /* malformed messages since then, which may have had a number */
    uint64_t applied;           /* highest msg_seq whose turn has come */
    uint64_t refused_msg_seq;   /* refusal that a STEP must name in `after`; 0 none */
    uint32_t reserved_records;  /* most records of its steps in flight */
    uint32_t sequence_count;    /* alive */
    uint32_t owed_finished;     /* sequences with an owed_msg_seq */
    struct result_figures told; /* figures of the last record that had any */
    bool needs_flush;
};

struct session_core {
    struct runner *runner; /* borrowed */
    struct session_sink sink;
    struct plan_limits limits; /* its modality_ids are these */
    uint32_t *modality_ids;    /* owned */
    uint32_t slots;            /* sequences alive at once */
    struct step_line line;
    struct sequence *sequences; /* owned, [runner slots] */
    uint32_t *free_slots;       /* owned, [runner slots], a stack */
    uint32_t free_slot_count;
    uint32_t alive_count;
    uint32_t most_local_pages;                  /* of one sequence */
    struct session *sessions[SESSION_MAX_KEPT]; /* owned */
    uint32_t session_count;
    uint32_t turn;              /* index of the session that launches next */
    struct plan_row *plan_rows; /* owned scratch, [max_step_rows] */
    uint64_t plan_mark;
    uint64_t writer; /* last given */
    uint64_t now_ns;
    uint64_t last_done_ns;
    bool wants_room;
    struct session_stats counted; /* only its counters */
    struct err lost;              /* code ERR_DEVICE once the device is lost */
};

struct publish_to session_to(struct session *session);

/* True when count records beyond those of the steps in flight have room; notes that somebody waits
 * otherwise. */
bool session_has_room(struct session *session, uint32_t count);

/* Settles the shares first. */
struct result_figures session_figures(struct session *session);
void session_note_told(struct session *session, const struct result_figures *figures);
uint32_t session_steps_in_flight(const struct session *session);

/* Grant the younger of two sessions what the elder does not need. */
void session_settle_shares(struct session_core *core);

/* Whether a reused prefix may take so many pages: they are in the quota, and leave a session whose
 * share was cut what the STEPs need that were sent before its frontend knew. */
bool session_can_pin(struct session *session, const uint32_t pages[RUNNER_FAMILY_COUNT]);

/* As last settled; everything for a session alone. */
struct session_share session_share_of(const struct session *session);

/* The device is lost; returns ERR_DEVICE. */
enum err_code session_lose_device(struct session_core *core, const struct err *why);

/* Stop a sequence that is not stopped, on the device too. */
void session_stop_sequence(struct session_core *core, struct sequence *seq);

/* Pages of a stopped sequence return when no launched row names it, and its slot if released. */
void session_retire_sequence(struct session_core *core, struct sequence *seq);

/* CANCEL: stops the sequence and owes its FINISHED; nothing for others. */
void session_cancel(struct session *session, uint64_t seq_id, uint64_t msg_seq);

/* FINISHED records owed, as far as there is room. */
void session_pay_finished(struct session *session);

/* Figures that changed are told by the next STEP_DONE, or by STATE here when none is to come. */
void session_tell_state(struct session *session);

/* Take the turn of the oldest message if it can be taken now; out_moved says whether it was. */
enum err_code session_apply_next(struct session *session, bool *out_moved, struct err *err);

/* The same for a STEP. */
enum err_code session_apply_step(struct session *session, const struct inbox_entry *entry,
                                 bool *out_moved, struct err *err);

/* Settle the oldest step, which is done. */
enum err_code session_collect(struct session_core *core, struct err *err);

#endif
