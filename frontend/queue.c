#include "frontend/queue.h"

#include <stddef.h>

void queue_init(struct queue *queue, uint32_t max_requests)
{
    *queue = (struct queue){.max_requests = max_requests, .soonest_ns = UINT64_MAX};
}

static bool is_before(const struct req *a, const struct req *b)
{
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    return a->arrival_seq < b->arrival_seq;
}

bool queue_try_insert(struct queue *queue, struct req *req)
{
    if (queue->waiting.count >= queue->max_requests) {
        return false;
    }
    struct req *after = queue->waiting.last;
    while (after != NULL && is_before(req, after)) {
        after = after->prev;
    }
    req_list_insert(&queue->waiting, after, req);
    if (req->deadline_ns != 0 && req->deadline_ns < queue->soonest_ns) {
        queue->soonest_ns = req->deadline_ns;
    }
    return true;
}

void queue_remove(struct queue *queue, struct req *req)
{
    req_list_remove(&queue->waiting, req);
}

struct req *queue_take_expired(struct queue *queue, uint64_t now_ns)
{
    if (now_ns < queue->soonest_ns) {
        return NULL;
    }
    uint64_t soonest_ns = UINT64_MAX;
    for (struct req *req = queue->waiting.first; req != NULL; req = req->next) {
        if (req->deadline_ns == 0) {
            continue;
        }
        if (req->deadline_ns <= now_ns) {
            queue_remove(queue, req); /* soonest_ns stays due: the next call looks again */
            return req;
        }
        soonest_ns = req->deadline_ns < soonest_ns ? req->deadline_ns : soonest_ns;
    }
    queue->soonest_ns = soonest_ns;
    return NULL;
}
