/* Requests that wait for the worker, and who of them is next.
 *
 * By priority (lower first).  Within one priority: those that were preempted, oldest first, since
 * their owners have had tokens already; then the keys take turns.  Each key has a counter of the
 * tokens it was served; the key with the lowest has the next turn, with its oldest request.  A key
 * that comes after a pause starts no lower than those that kept on asking: time not used is not
 * saved up.  The oldest of all is passed at most QUEUE_MAX_PASSES times, whatever its key was served.
 *
 * Holds at most max_requests.  Keys exist while they have requests here or running, and at most
 * QUEUE_MAX_IDLE_KEYS beyond those are remembered.  Inserting walks from the back: constant while
 * priorities are equal.  Engine thread only. */
#ifndef FRONTEND_QUEUE_H
#define FRONTEND_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "frontend/request.h"

#define QUEUE_MAX_PASSES    256
#define QUEUE_MAX_IDLE_KEYS 256

/* Whom requests are for: one API key, or everybody without one. */
struct queue_key {
    uint64_t hash; /* 0: without a key */
    uint64_t served_tokens;
    struct req_list
        waiting;            /* not those preempted; by priority, then arrival; linked by key_link */
    uint32_t request_count; /* here or running */
    struct queue_key *bucket_next;
    struct queue_key *prev; /* among those with waiting requests, or among the idle */
    struct queue_key *next;
};

struct queue_key_list {
    struct queue_key *first;
    struct queue_key *last;
    uint32_t count;
};

struct queue {
    struct req_list waiting;  /* all; the scheduler owns the requests */
    struct req_list returned; /* of these, the preempted; linked by key_link */
    uint32_t max_requests;
    uint64_t soonest_ns; /* no waiting request's deadline is before this; UINT64_MAX none */
    uint64_t waiting_tokens;
    struct queue_key **buckets;   /* owned, [QUEUE_KEY_BUCKETS] chains */
    struct queue_key_list asking; /* owned: keys with requests in their waiting */
    struct queue_key_list idle;   /* owned: keys without any request, longest idle first */
    uint64_t turn_tokens;         /* counter of the key that had the last turn; never falls */
};

void queue_init(struct queue *queue, uint32_t max_requests);
/* No request is left, here or running. */
void queue_fini(struct queue *queue);

/* A new request: finds its key by key_hash.  False when full.  req: in no list; QUEUED. */
bool queue_try_insert(struct queue *queue, struct req *req);

/* A preempted one keeps its arrival_seq and so its place.  Never full: it was counted before. */
void queue_return(struct queue *queue, struct req *req);

void queue_remove(struct queue *queue, struct req *req);

/* Whose turn it is; null when nobody waits. */
struct req *queue_head(const struct queue *queue);

/* The same among those never admitted. */
struct req *queue_new_head(const struct queue *queue);

/* Takes req out since it is admitted: notes the turn, charges a new one's prompt to its key. */
void queue_take(struct queue *queue, struct req *req);

/* An output token for the key of a running request. */
void queue_charge_output(struct req *req);

/* The request ends: its key may go.  Before req_destroy of every request that was ever inserted. */
void queue_forget(struct queue *queue, struct req *req);

/* Takes out and returns one request whose deadline is at or before now_ns; null when there is
 * none.  Walks the list only when soonest_ns has come. */
struct req *queue_take_expired(struct queue *queue, uint64_t now_ns);

/* True when lists, counts and sums fit together; for tests. */
bool queue_check(const struct queue *queue);

#endif
