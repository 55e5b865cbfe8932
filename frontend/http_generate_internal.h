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
#include "frontend/dialect.h"
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

/* One of the answers to a call.  Work thread until prepared_task, loop thread from then on. */
struct http_choice {
    struct http_call *call; /* borrowed: the call owns the choice */
    uint32_t index;
    struct mailbox mailbox;
    bool has_mail; /* came before prepared_task */
    uint64_t request_id;
    bool was_submitted;
    bool has_terminal; /* the engine's last event came */
    bool is_first;     /* of its prompt */
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    struct output output;
    bool has_output;
    bool has_begun; /* stream: its first chunk is written */
    bool is_done;
    enum api_finish finish;
    uint64_t admitted_ns;
    uint64_t first_ns;
    uint64_t last_ns;
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
    const struct dialect *dialect;      /* null: the API that the internal request is of */
    struct dialect_state dialect_state; /* where there is a dialect */
    http_text_fn text_answer;           /* null: choices run */
    struct buf text;                    /* its answer */
    _Atomic bool is_unwanted;           /* relaxed: a hint that saves work */

    /* Engine and output: the loop thread looks at choices from prepared_task on only */
    struct http_choice *choices; /* owned; [choice_count] */
    uint32_t choice_count;
    uint32_t submitted_count;
    uint32_t terminal_count;
    uint32_t done_count;
    bool is_prepared;
    bool has_left_engine; /* it holds no choice any more */
    bool is_admitted;
    bool is_stream;
    struct api_head head;
    uint64_t arrived_ns;
    uint64_t first_ns; /* token of any choice */
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

/* http_generate_prepare.c: body into submitted choices, on a work thread; then back on the loop. */
void http_call_start_work(struct http_call *call);

/* When a full queue will have room again.  Any thread. */
uint32_t http_call_retry_after_s(const struct app *app);

/* The call goes no further: neither work nor engine will hold it. */
void http_call_stop_early(struct http_call *call);
void http_call_refuse(struct http_call *call, enum err_code code, const char *text);

/* Of all choices so far. */
struct api_usage http_call_usage(const struct http_call *call);

/* http_generate_answer.c: mail from the engine. */
void http_choice_on_mail(struct loop_task *task);
void http_choice_read_mail(struct http_choice *choice);
/* Release the engine's hold where it has told the last of all choices. */
void http_call_leave_engine(struct http_call *call);

/* http_generate_dialect.c, where the call has a dialect: its body becomes a chat completion's (work
 * thread); the answer's bytes, in a stream's case into what is pending. */
ERR_NODISCARD enum err_code http_dialect_translate(struct http_call *call);
void http_dialect_put_piece(struct http_choice *choice);
void http_dialect_put_end(struct http_choice *choice);
void http_dialect_put_whole(struct http_choice *choice, struct buf *out);

/* http_generate_write.c: what gathered in the choices; the stream can take more; a comment is due;
 * a choice is done. */
void http_call_write(struct http_call *call);
void http_call_on_writable(void *owner);
void http_call_ping(struct http_call *call);
void http_choice_write_end(struct http_choice *choice);

#endif
