/* Requests that wait for the worker: by priority (lower first), then by arrival.
 *
 * Holds at most max_requests.  A request that returns keeps its arrival_seq and so its place.
 * Inserting walks from the back: constant while priorities are equal.  Engine thread only. */
#ifndef FRONTEND_QUEUE_H
#define FRONTEND_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "frontend/request.h"

struct queue {
    struct req_list waiting; /* the scheduler owns the requests */
    uint32_t max_requests;
    uint64_t soonest_ns; /* no waiting request's deadline is before this; UINT64_MAX none */
};

void queue_init(struct queue *queue, uint32_t max_requests);

/* False when full.  req: in no list; QUEUED. */
bool queue_try_insert(struct queue *queue, struct req *req);

void queue_remove(struct queue *queue, struct req *req);

/* Takes out and returns one request whose deadline is at or before now_ns; null when there is
 * none.  Walks the list only when soonest_ns has come. */
struct req *queue_take_expired(struct queue *queue, uint64_t now_ns);

#endif
