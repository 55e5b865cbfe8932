/* The frontend's sockets: finds a worker, attaches, sends plan messages, notices when it is gone.
 *
 *   SEARCHING --WELCOME(ready)--> ATTACHING --ATTACHED, pipe up--> ATTACHED
 *       ^                            |                               |
 *       +------- fault, no answer ---+------ pipe gone, dropped -----+
 *
 * Nothing here blocks: answers and pipe events arrive on nng's threads, which set a flag and call
 * on_wake; link_poll then takes the next step.  Every wait has a deadline.  A worker that loads is
 * asked again every 100 ms; one that cannot be used (other protocol, other tokenizer) once a second,
 * with one log line; a busy one every 20 ms.  Engine thread only. */
#ifndef FRONTEND_LINK_H
#define FRONTEND_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "proto/hello.h"
#include "proto/mask.h"
#include "proto/plan.h"

struct link;

struct link_options {
    const char *run_dir;          /* borrowed during link_create */
    const char *name;             /* borrowed likewise */
    uint64_t tokenizer_hash;      /* the worker's must be this; 0: any */
    void (*on_wake)(void *owner); /* link_poll is due; from nng's threads */
    void *owner;                  /* borrowed until link_destroy returns */
};

enum link_change {
    LINK_CHANGE_NONE,
    LINK_CHANGE_WELCOME,  /* link_welcome is new */
    LINK_CHANGE_ATTACHED, /* link_session is there */
    LINK_CHANGE_LOST,     /* link_lost_text says why; link_detach is due */
};

/* Of an attached link; borrowed until link_detach. */
struct link_session {
    uint64_t epoch;
    void *segment;
    size_t ring_bytes;     /* of the ring at its start */
    struct mask_area mask; /* for constrained sequences; see proto/mask.h */
};

/* Errors: ERR_ARGUMENT (run directory too long), ERR_SYSTEM. */
ERR_NODISCARD enum err_code link_create(const struct link_options *options, struct link **out_link,
                                        struct err *err);
void link_destroy(struct link *link); /* null is fine */

/* Does what is due; call again until NONE. */
enum link_change link_poll(struct link *link, uint64_t now_ns);

/* When link_poll is due without on_wake; UINT64_MAX never. */
uint64_t link_wake_ns(const struct link *link);

/* Last heard; texts are valid until the next link_poll.  Null before the first. */
const struct hello_welcome *link_welcome(const struct link *link);

const struct link_session *link_session(const struct link *link);

/* Send on the plan socket.  What cannot be sent makes the link LOST at the next link_poll. */
void link_send(struct link *link, const struct plan_message *message);

/* Since link_create. */
struct link_sent {
    uint64_t messages;
    uint64_t bytes;
};
struct link_sent link_sent(const struct link *link);

/* End an attached session for a reason of ours: LOST at the next link_poll. */
void link_drop(struct link *link, const char *why);

/* Why the worker that is there does not let this frontend attach, "" where it does or none is; and
 * whether that will not pass by itself. */
const char *link_misfit_text(const struct link *link);
bool link_misfit_lasts(const struct link *link);

const char *link_lost_text(const struct link *link);

/* After LOST, when nobody uses the segment any more: unmaps, searches again. */
void link_detach(struct link *link, uint64_t now_ns);

#endif
