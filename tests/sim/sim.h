/* One simulated world: frontends with the real scheduler, a worker with the real session core, and
 * models of what lies around them: device (device.h), clients, links, rings and the clock.
 *
 *   client.c   what clients ask for, and that each gets exactly what an undisturbed run gives
 *   front.c    a frontend process: scheduler, its end of the plan socket and of the ring
 *   worker.c   the worker process: core, records into rings, checks after every pass
 *   act.c      what each event does
 *   run.c      a world from its first event to the checks at its end
 *
 * One process, one thread, no time but now_ns: the same seed or list of events is the same run. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "frontend/scheduler.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/sim/world.h"
#include "worker/inject.h"
#include "worker/session.h"

#define SIM_MAX_ALIVE     96
#define SIM_KEPT_CLIENTS  64 /* that have ended: for events that come too late */
#define SIM_CONVERSATIONS 8
#define SIM_MS            1000000ULL

struct sim;

/* One request and its owner. */
struct client {
    struct sim *sim;
    uint64_t request_id;
    uint64_t number;     /* unique, also its seed: finds the client of an ADMIT */
    uint64_t front_life; /* of the frontend that serves it */
    uint32_t front_index;
    int32_t priority;
    uint64_t deadline_ns;
    struct plan_admit admit;
    uint32_t stop_ids[2];
    uint32_t *tokens; /* owned, [max_total]: prompt, then the output so far */
    uint64_t *sums;   /* owned, [max_total + 1]: of entries of an undisturbed run */
    uint32_t token_count;
    uint32_t entry_count;
    uint64_t output_sum;
    uint32_t prompt_logprob_count;
    uint32_t passed;        /* times somebody behind it was admitted while it headed the queue */
    uint64_t faults_before; /* faults injected before it came */
    uint64_t seq_id;        /* of its last ADMIT */
    uint32_t quiet_steps;   /* done since its last token, while it decodes */
    bool is_decoding;       /* has had a token since its last ADMIT, and was not preempted */
    bool is_sent;           /* its ADMIT was sent */
    bool was_preempted;     /* since its last ADMIT */
    bool is_admitted;
    bool is_cancelled;
    bool is_lost;        /* its frontend was killed: whatever it is told is not heard */
    bool has_last_token; /* FINISHED is due, with reason */
    enum result_finish reason;
    bool has_ended;
};

/* What was said in a conversation so far: the next turn's prompt begins with it. */
struct conversation {
    uint32_t *tokens; /* owned */
    uint32_t token_count;
    uint64_t cache_salt;
};

/* A message on its way to the worker. */
struct transit {
    struct transit *next;
    struct plan_message message; /* arrays are owned, behind the struct */
};

/* What is known of a sequence's number within its session, from outside. */
struct front_slot {
    uint64_t closed_id;     /* last sequence that FINISHED or FAILED here */
    uint64_t last_step_seq; /* last STEP sent that names the slot */
};

struct front_counts {
    uint64_t arrived;
    uint64_t rejected;
    uint64_t failed;
    uint64_t finished[RESULT_FINISH_CANCEL + 1];
    uint64_t output_tokens;
};

struct front {
    struct sim *sim;
    uint32_t index;
    uint64_t life;           /* number of the process */
    struct sched *sched;     /* owned; null: killed */
    struct session *session; /* borrowed from the core; null: none */
    bool is_wanted;          /* what it lacks of a scheduler and a session comes with ATTACH */
    bool is_leaving;         /* goes after its last request */
    bool is_orphan;          /* the session outlives its frontend, for now */
    uint64_t epoch;
    struct transit *sent_first; /* owned */
    struct transit *sent_last;
    uint32_t sent_count;
    struct result_record *ring; /* owned, [ring_records] */
    uint64_t pushed;            /* indices run free */
    uint64_t seen;              /* flushed */
    uint64_t read;
    uint32_t stalled_reads; /* so many times it reads nothing */
    uint32_t stalled_sends; /* so many times nothing of it arrives */
    uint32_t spoil;         /* 0, or 1 + how to spoil the next STEP or ADMIT */
    uint64_t spoiled[64];   /* msg_seq of those that were, a ring */
    uint32_t spoiled_count;
    bool has_refusal;           /* a refusal, and no STEP launched since */
    uint64_t answered_seq;      /* last STEP whose answer was read */
    struct front_slot *slots;   /* owned, [world.slots] */
    struct front_counts counts; /* of this life, as clients saw it */
};

struct sim {
    struct world world;
    struct report *report;
    uint64_t now_ns;

    struct runner *device;     /* owned; null: no worker */
    struct session_core *core; /* owned */
    struct inject inject;
    bool is_closing;  /* sessions are being ended: ERR_CLOSED is due */
    bool is_draining; /* no faults any more */
    uint64_t next_epoch;
    uint64_t passes;
    uint32_t queued_steps; /* in the worker's inboxes after the last pass */

    struct front fronts[WORLD_MAX_FRONTS];
    uint64_t next_life;

    struct client *alive[SIM_MAX_ALIVE]; /* owned */
    uint32_t alive_count;
    struct client *ended[SIM_KEPT_CLIENTS]; /* owned, a ring */
    uint64_t ended_count;
    uint64_t next_number;
    uint64_t next_request_id;
    struct conversation conversations[SIM_CONVERSATIONS]; /* a ring */
    uint32_t conversation_count;
    uint32_t drain_steps; /* STEPs answered since is_draining */
};

/* client.c, client_hear.c, client_turn.c */

/* engine_event_fn of a client. */
void client_on_event(void *owner, const struct engine_event *event);

/* A new request to a frontend that has a scheduler. */
void client_submit(struct sim *sim, struct front *front, struct random *random);
void client_cancel(struct sim *sim, struct client *client);
/* The ADMIT of a client leaves a frontend. */
void client_note_admit(struct sim *sim, const struct front *front, const struct plan_admit *admit);
/* The RELEASE of a sequence; that of a living client is a preemption. */
void client_note_release(struct sim *sim, const struct front *front, uint64_t seq_id);
/* What was planned has to be planned again, or has to wait for pages. */
void client_note_delay(struct sim *sim, const struct front *front);
/* A STEP was done: those that decode go on soon enough. */
void client_note_step(struct sim *sim, const struct front *front);
/* Moves those that have ended out of the living. */
void client_sweep(struct sim *sim);
/* No client of the frontend lives beyond its deadline. */
void client_check_deadlines(const struct sim *sim, const struct front *front);
/* Those of a frontend that dies hear nothing more. */
void client_lose(struct sim *sim, const struct front *front);
void client_free_all(struct sim *sim);

/* front.c */

void front_start(struct front *front);
/* Session and frontend are separate: either may end first. */
void front_attach(struct front *front);
/* The frontend learns that its session is over. */
void front_detach(struct front *front);
void front_kill(struct front *front);
/* A leaving one that has nothing left goes. */
void front_try_leave(struct front *front);
/* Read up to count records, then plan. */
void front_read(struct front *front, uint32_t count);
void front_tick(struct front *front);
/* Deliver up to count messages. */
void front_deliver(struct front *front, uint32_t count);
void front_drop_sent(struct front *front);
/* Its counts are those of its scheduler. */
void front_check_counts(const struct front *front);
void front_fini(struct front *front);

/* worker.c */

void worker_start(struct sim *sim);
/* The process is gone, and with it every session. */
void worker_kill(struct sim *sim);
void worker_advance(struct sim *sim);
void worker_open_session(struct sim *sim, struct front *front);
void worker_close_session(struct front *front);
/* Everything came back. */
void worker_check_empty(const struct sim *sim);

/* act.c */

void act(struct sim *sim, const struct event *event);
/* One undisturbed turn of everything. */
void act_turn(struct sim *sim);

/* run.c */

/* Runs a world: its own events, or, with is_replay, those in the report. */
void run_world(const struct world *world, struct report *report, bool is_replay);

#endif
