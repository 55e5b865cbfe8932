/* Shared by the files of http_generate alone.
 *
 *   COPYING -> PREPARING -> RUNNING -> ENDED
 *      |          |            |
 *      +----------+------------+--> ENDED when the client leaves, or something is wrong
 *
 * ENDED is about the client: its answer is complete or will never be.  The call itself is freed when
 * the request is gone from h2o, the work item is done, and the engine has sent its last event. */
#ifndef FRONTEND_HTTP_GENERATE_INTERNAL_H
#define FRONTEND_HTTP_GENERATE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <h2o.h>

#include "common/buf.h"
#include "frontend/api_error.h"
#include "frontend/api_response.h"
#include "frontend/http_conn.h"
#include "frontend/http_generate.h"
#include "frontend/http_reply.h"
#include "frontend/loop.h"
#include "frontend/mailbox.h"
#include "frontend/output.h"
#include "frontend/sse.h"
#include "frontend/work.h"

enum http_call_outcome {
    HTTP_CALL_FINISHED,
    HTTP_CALL_CANCELLED, /* the client left or read too slowly */
    HTTP_CALL_REJECTED,  /* refused before it ran */
    HTTP_CALL_FAILED,
};

struct http_call {
    struct http_calls *calls; /* borrowed */
    struct app *app;          /* borrowed */
    struct http_call *next;
    struct http_call **slot;
    uint32_t ref_count; /* request, work item, engine, and callers on the stack */

    /* HTTP */
    h2o_req_t *request; /* borrowed from h2o; null once it is gone */
    struct http_conn_guest guest;
    char request_id_text[HTTP_REQUEST_ID_BYTES];
    struct sse sse;
    bool has_replied; /* an answer has begun */
    bool has_ended;
    uint64_t written_ns; /* last write to a stream */

    /* Body and preparation: the work thread's between submission to it and prepared_task. */
    struct loop_task copy_task;
    struct buf body;
    struct work_item work;
    struct loop_task prepared_task;
    uint64_t random_seed;
    uint64_t key_hash; /* of the client's API key; 0 none */
    enum err_code prepare_code;
    struct api_error error;
    bool was_submitted;
    _Atomic bool is_unwanted; /* relaxed: a hint that saves work */

    /* Engine and output */
    struct mailbox mailbox;
    uint64_t request_id; /* of the engine */
    bool is_running;     /* loop thread knows request_id */
    bool has_terminal;   /* the engine's last event came */
    bool is_admitted;
    struct output output;
    bool has_output;
    bool is_stream;
    struct api_head head;
    struct api_usage usage;
    uint64_t arrived_ns;
    uint64_t admitted_ns;
    uint64_t first_ns;
    uint64_t last_ns;
};

struct http_calls {
    struct app *app; /* borrowed */
    struct http_call *first;
    uint32_t count;
};

void http_call_release(struct http_call *call);

/* The client's side is over: counts the outcome once and logs it. */
void http_call_end(struct http_call *call, enum http_call_outcome outcome, const char *reason);

/* Answer with an error: a body where nothing was sent yet, an event in a stream.  Ends the call. */
void http_call_fail(struct http_call *call, enum http_call_outcome outcome,
                    const struct api_error *error);

/* It runs, or will never. */
void http_call_leave_queue(struct http_call *call);

/* Take the engine off a request that nobody waits for. */
void http_call_cancel_engine(struct http_call *call);

/* http_generate_answer.c: mail from the engine; the stream can take more; a comment is due. */
void http_call_on_mail(struct loop_task *task);
void http_call_on_writable(void *owner);
void http_call_ping(struct http_call *call);

#endif
