/* A stream of server-sent events over one h2o response.
 *
 * Events are gathered and handed to h2o whenever its last write is done, so that a slow reader gets
 * fewer, larger writes; the owner bounds what it puts in.  Loop thread only. */
#ifndef FRONTEND_SSE_H
#define FRONTEND_SSE_H

#include <stdbool.h>

#include <h2o.h>

#include "common/buf.h"

struct sse {
    h2o_generator_t generator; /* first: h2o's callbacks recover the rest from it */
    h2o_req_t *request;        /* borrowed from h2o; null before sse_open and once it is gone */
    struct buf pending;
    struct buf in_flight;
    bool is_sending; /* h2o owns in_flight */
    bool must_end;   /* end the response after what is pending */
    bool must_abort; /* break it off after the write under way */
    bool has_ended;
    void (*on_writable)(void *owner); /* a write is done; more may be put */
    void *owner;
};

void sse_init(struct sse *sse, void (*on_writable)(void *owner), void *owner);
void sse_fini(struct sse *sse);

/* Begin the response; status and headers other than the stream's own are set by the caller. */
void sse_open(struct sse *sse, h2o_req_t *request);

/* Append "data: <json>". */
void sse_put(struct sse *sse, const struct buf *json);
void sse_put_done(struct sse *sse);
/* Append a comment, which keeps proxies from closing a silent stream. */
void sse_put_ping(struct sse *sse);

/* Hand what is pending to h2o if it can take it. */
void sse_flush(struct sse *sse);
/* End the response after what is pending.  May dispose of the request within the call. */
void sse_end(struct sse *sse);
/* End the response as soon as h2o has done its last write, so that the client sees it broken off.
 * May dispose of the request. */
void sse_abort(struct sse *sse);

#endif
