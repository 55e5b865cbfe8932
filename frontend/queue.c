#include "frontend/queue.h"

#include <assert.h>
#include <stddef.h>

#include "common/mem.h"
#include "frontend/backlog.h"

#define QUEUE_KEY_BUCKETS 1024

/* ---- lists linked by key_link ---- */

static struct req *next_of_key(const struct req *req)
{
    return req->key_link.next;
}

static void insert_of_key(struct req_list *list, struct req *after, struct req *req)
{
    req->key_link.prev = after;
    req->key_link.next = after == NULL ? list->first : after->key_link.next;
    *(after == NULL ? &list->first : &after->key_link.next) = req;
    *(req->key_link.next == NULL ? &list->last : &req->key_link.next->key_link.prev) = req;
    list->count++;
}

static void remove_of_key(struct req_list *list, struct req *req)
{
    struct req *prev = req->key_link.prev;
    struct req *next = req->key_link.next;
    assert(list->count > 0);
    *(prev == NULL ? &list->first : &prev->key_link.next) = next;
    *(next == NULL ? &list->last : &next->key_link.prev) = prev;
    req->key_link.prev = NULL;
    req->key_link.next = NULL;
    list->count--;
}

static bool is_before(const struct req *a, const struct req *b)
{
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    return a->arrival_seq < b->arrival_seq;
}

static void insert_by_place(struct req_list *list, struct req *req)
{
    struct req *after = list->last;
    while (after != NULL && is_before(req, after)) {
        after = after->key_link.prev;
    }
    insert_of_key(list, after, req);
}

/* ---- keys ---- */

static void append_key(struct queue_key_list *list, struct queue_key *key)
{
    key->prev = list->last;
    key->next = NULL;
    *(list->last == NULL ? &list->first : &list->last->next) = key;
    list->last = key;
    list->count++;
}

static void remove_key(struct queue_key_list *list, struct queue_key *key)
{
    *(key->prev == NULL ? &list->first : &key->prev->next) = key->next;
    *(key->next == NULL ? &list->last : &key->next->prev) = key->prev;
    key->prev = NULL;
    key->next = NULL;
    list->count--;
}

static struct queue_key **bucket_of(const struct queue *queue, uint64_t hash)
{
    return &queue->buckets[(hash * 0x9e3779b97f4a7c15ULL >> 32) % QUEUE_KEY_BUCKETS];
}

static void destroy_key(struct queue *queue, struct queue_key *key)
{
    struct queue_key **at = bucket_of(queue, key->hash);
    while (*at != key) {
        at = &(*at)->bucket_next;
    }
    *at = key->bucket_next;
    mem_free(key);
}

/* The key's account, made when there is none; not among the idle any more. */
static struct queue_key *take_key(struct queue *queue, uint64_t hash)
{
    struct queue_key **bucket = bucket_of(queue, hash);
    struct queue_key *key = *bucket;
    while (key != NULL && key->hash != hash) {
        key = key->bucket_next;
    }
    if (key == NULL) {
        key = mem_zalloc(1, sizeof(*key));
        key->hash = hash;
        key->bucket_next = *bucket;
        *bucket = key;
    } else if (key->request_count == 0) {
        remove_key(&queue->idle, key);
    }
    return key;
}

/* A key whose counter is not ahead of the turn would start at the turn anyway. */
static void idle_key(struct queue *queue, struct queue_key *key)
{
    if (key->served_tokens <= queue->turn_tokens) {
        destroy_key(queue, key);
        return;
    }
    append_key(&queue->idle, key);
    if (queue->idle.count > QUEUE_MAX_IDLE_KEYS) {
        struct queue_key *oldest = queue->idle.first;
        remove_key(&queue->idle, oldest);
        destroy_key(queue, oldest);
    }
}

/* ---- */

void queue_init(struct queue *queue, uint32_t max_requests)
{
    *queue = (struct queue){.max_requests = max_requests, .soonest_ns = UINT64_MAX};
    queue->buckets = mem_zalloc(QUEUE_KEY_BUCKETS, sizeof(struct queue_key *));
}

void queue_fini(struct queue *queue)
{
    assert(queue->waiting.count == 0 && queue->asking.count == 0);
    while (queue->idle.first != NULL) {
        struct queue_key *key = queue->idle.first;
        remove_key(&queue->idle, key);
        destroy_key(queue, key);
    }
    mem_free(queue->buckets);
    queue->buckets = NULL;
}

/* Into the list of all, by place. */
static void insert(struct queue *queue, struct req *req)
{
    struct req *after = queue->waiting.last;
    while (after != NULL && is_before(req, after)) {
        after = after->prev;
    }
    req_list_insert(&queue->waiting, after, req);
    queue->waiting_tokens += req->admit.prompt.count;
    if (req->deadline_ns != 0 && req->deadline_ns < queue->soonest_ns) {
        queue->soonest_ns = req->deadline_ns;
    }
}

bool queue_try_insert(struct queue *queue, struct req *req)
{
    if (queue->waiting.count >= queue->max_requests) {
        return false;
    }
    struct queue_key *key = take_key(queue, req->key_hash);
    if (key->request_count == 0 && key->served_tokens < queue->turn_tokens) {
        key->served_tokens = queue->turn_tokens;
    }
    key->request_count++;
    req->key = key;
    if (key->waiting.count == 0) {
        append_key(&queue->asking, key);
    }
    insert_by_place(&key->waiting, req);
    insert(queue, req);
    return true;
}

void queue_return(struct queue *queue, struct req *req)
{
    assert(req->key != NULL && req->preemptions > 0);
    insert_by_place(&queue->returned, req);
    insert(queue, req);
}

void queue_remove(struct queue *queue, struct req *req)
{
    req_list_remove(&queue->waiting, req);
    queue->waiting_tokens -= req->admit.prompt.count;
    if (req->preemptions > 0) {
        remove_of_key(&queue->returned, req);
        return;
    }
    remove_of_key(&req->key->waiting, req);
    if (req->key->waiting.count == 0) {
        remove_key(&queue->asking, req->key);
    }
}

static bool has_turn_before(const struct queue_key *a, const struct queue_key *b)
{
    if (a->waiting.first->priority != b->waiting.first->priority) {
        return a->waiting.first->priority < b->waiting.first->priority;
    }
    if (a->served_tokens != b->served_tokens) {
        return a->served_tokens < b->served_tokens;
    }
    return is_before(a->waiting.first, b->waiting.first);
}

/* The key whose turn it is; null when only preempted ones wait. */
static struct queue_key *key_in_turn(const struct queue *queue)
{
    struct queue_key *best = NULL;
    for (struct queue_key *key = queue->asking.first; key != NULL; key = key->next) {
        if (best == NULL || has_turn_before(key, best)) {
            best = key;
        }
    }
    return best;
}

/* The oldest of the highest priority among those never admitted. */
static struct req *oldest_new(const struct queue *queue)
{
    struct req *req = queue->waiting.first;
    while (req != NULL && req->preemptions > 0) {
        req = req->next;
    }
    return req;
}

struct req *queue_new_head(const struct queue *queue)
{
    struct req *oldest = oldest_new(queue);
    if (oldest == NULL || oldest->passes >= QUEUE_MAX_PASSES) {
        return oldest;
    }
    return key_in_turn(queue)->waiting.first;
}

struct req *queue_head(const struct queue *queue)
{
    struct req *head = queue_new_head(queue);
    struct req *returned = queue->returned.first;
    if (returned == NULL || (head != NULL && head->priority < returned->priority)) {
        return head;
    }
    return returned;
}

void queue_take(struct queue *queue, struct req *req)
{
    struct queue_key *key = req->key;
    if (req->preemptions == 0) {
        struct req *oldest = oldest_new(queue);
        const struct queue_key *turn = key_in_turn(queue);
        oldest->passes += oldest != req;
        if (turn->served_tokens > queue->turn_tokens) {
            queue->turn_tokens = turn->served_tokens;
        }
        key->served_tokens += (uint64_t)req->admit.prompt.count * BACKLOG_PROMPT_WORK;
    }
    queue_remove(queue, req);
}

void queue_charge_output(struct req *req)
{
    req->key->served_tokens += BACKLOG_OUTPUT_WORK;
}

void queue_forget(struct queue *queue, struct req *req)
{
    struct queue_key *key = req->key;
    req->key = NULL;
    assert(key->request_count > 0);
    if (--key->request_count == 0) {
        idle_key(queue, key);
    }
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

bool queue_check(const struct queue *queue)
{
    uint64_t tokens = 0;
    uint32_t returned = 0;
    for (const struct req *req = queue->waiting.first; req != NULL; req = req->next) {
        tokens += req->admit.prompt.count;
        returned += req->preemptions > 0;
        if (req->next != NULL && is_before(req->next, req)) {
            return false;
        }
    }
    uint32_t listed = 0;
    for (const struct queue_key *key = queue->asking.first; key != NULL; key = key->next) {
        uint32_t count = 0;
        for (const struct req *req = key->waiting.first; req != NULL; req = next_of_key(req)) {
            count += req->key == key && req->preemptions == 0;
        }
        if (count == 0 || count != key->waiting.count || count > key->request_count) {
            return false;
        }
        listed += count;
    }
    return tokens == queue->waiting_tokens && returned == queue->returned.count &&
           listed + returned == queue->waiting.count && queue->idle.count <= QUEUE_MAX_IDLE_KEYS;
}
