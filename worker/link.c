#include "worker/link.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/reqrep0/rep.h>

#include "common/clock.h"
#include "common/mem.h"
#include "proto/limits.h"

enum {
    URL_BYTES = 160,
    QUEUE_MESSAGES = 1024,       /* beyond it messages stay on the socket */
    QUEUE_BYTES = 2 * (8 << 20), /* likewise; two messages of the largest kind */
    ANSWER_WAIT_MS = 200,
    REST_MS = 20,    /* for two messages to arrive from a peer in this machine */
    ASKING_MS = 150, /* longer than a frontend pauses between two requests */
    NO_PIPE = 0,     /* nng's pipe ids start at 1 */
};

struct link {
    nng_socket socket;
    int fd; /* of nng, borrowed */
};

/* Fields below mutex are guarded by it: nng's threads and the executor meet here. */
struct link_plan {
    nng_socket socket;
    nng_aio *aio;
    char url[URL_BYTES];
    void (*on_event)(void *owner);
    void *owner;
    pthread_mutex_t mutex;
    uint32_t pipe_id; /* of the only pipe; NO_PIPE before it came */
    enum link_plan_state state;
    bool is_receiving; /* the aio is in flight */
    bool is_closing;
    nng_msg *messages[QUEUE_MESSAGES]; /* owned; a circle */
    uint32_t first_index;
    uint32_t message_count;
    size_t queued_bytes;
};

static enum err_code nng_error(struct err *err, int result, const char *what, const char *url)
{
    if (result == NNG_EADDRINUSE) {
        return err_set(err, ERR_BUSY, "%s '%s': %s", what, url, nng_strerror(result));
    }
    return err_set(err, ERR_SYSTEM, "%s '%s': %s", what, url, nng_strerror(result));
}

static int listen_bounded(nng_socket socket, const char *url, size_t max_bytes)
{
    nng_listener listener;
    int result = nng_listener_create(&listener, socket, url);
    result = result == 0 ? nng_listener_set_size(listener, NNG_OPT_RECVMAXSZ, max_bytes) : result;
    return result == 0 ? nng_listener_start(listener, 0) : result;
}

/* ---- control socket ---- */

enum err_code link_open(const char *run_dir, struct link **out_link, struct err *err)
{
    char url[URL_BYTES];
    (void)snprintf(url, sizeof(url), "ipc://%s/control.ipc", run_dir);
    struct link *link = mem_zalloc(1, sizeof(*link));
    int result = nng_rep0_open(&link->socket);
    if (result != 0) {
        mem_free(link);
        return nng_error(err, result, "control socket", url);
    }
    result = nng_socket_get_int(link->socket, NNG_OPT_RECVFD, &link->fd);
    result =
        result == 0 ? nng_socket_set_ms(link->socket, NNG_OPT_SENDTIMEO, ANSWER_WAIT_MS) : result;
    result = result == 0 ? listen_bounded(link->socket, url, HELLO_MAX_MESSAGE_BYTES) : result;
    if (result != 0) {
        link_close(link);
        return nng_error(err, result, "control socket", url);
    }
    *out_link = link;
    return ERR_OK;
}

void link_close(struct link *link)
{
    if (link == NULL) {
        return;
    }
    /* As in let_pipe_rest: a request that comes now waits unread, and the frontend for its answer. */
    static const struct timespec asking = {.tv_nsec = ASKING_MS * (long)CLOCK_NS_PER_MS};
    (void)nanosleep(&asking, NULL);
    (void)nng_close(link->socket); /* nothing is left to do about a failure */
    mem_free(link);
}

int link_fd(const struct link *link)
{
    return link->fd;
}

bool link_try_take_request(struct link *link, struct buf *out)
{
    nng_msg *message = NULL;
    if (nng_recvmsg(link->socket, &message, NNG_FLAG_NONBLOCK) != 0) {
        return false;
    }
    buf_append(out, nng_msg_body(message), nng_msg_len(message));
    nng_msg_free(message);
    return true;
}

void link_answer(struct link *link, const struct buf *bytes)
{
    /* Waits for the answer before this one to leave nng, at most ANSWER_WAIT_MS: a client that does
     * not read must not hold the control thread. */
    (void)nng_send(link->socket, bytes->at, bytes->used_bytes, 0);
}

/* ---- plan socket ---- */

static bool has_room(const struct link_plan *plan)
{
    return plan->message_count < QUEUE_MESSAGES && plan->queued_bytes < QUEUE_BYTES;
}

static void push(struct link_plan *plan, nng_msg *message)
{
    uint32_t index = (plan->first_index + plan->message_count) % QUEUE_MESSAGES;
    plan->messages[index] = message;
    plan->message_count++;
    plan->queued_bytes += nng_msg_len(message);
}

/* nng calls this for each message, and once when the socket closes. */
static void on_received(void *argument)
{
    struct link_plan *plan = argument;
    int result = nng_aio_result(plan->aio);
    (void)pthread_mutex_lock(&plan->mutex); /* cannot fail: a plain mutex of ours */
    plan->is_receiving = false;
    if (result == 0) {
        push(plan, nng_aio_get_msg(plan->aio));
    }
    bool again = result == 0 && !plan->is_closing && has_room(plan);
    plan->is_receiving = again;
    (void)pthread_mutex_unlock(&plan->mutex);
    if (again) {
        nng_recv_aio(plan->socket, plan->aio);
    }
    plan->on_event(plan->owner);
}

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument)
{
    struct link_plan *plan = argument;
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    bool refused = false;
    (void)pthread_mutex_lock(&plan->mutex);
    if (event == NNG_PIPE_EV_ADD_PRE) {
        refused = plan->pipe_id != NO_PIPE;
        if (!refused) {
            plan->pipe_id = id;
            plan->state = LINK_PLAN_OPEN;
        }
    } else if (event == NNG_PIPE_EV_REM_POST && plan->pipe_id == id) {
        plan->state = LINK_PLAN_CLOSED;
    }
    (void)pthread_mutex_unlock(&plan->mutex);
    if (refused) {
        (void)nng_pipe_close(pipe); /* the one pipe of this socket has been served */
    } else {
        plan->on_event(plan->owner);
    }
}

static int start_plan(struct link_plan *plan)
{
    int result = nng_pipe_notify(plan->socket, NNG_PIPE_EV_ADD_PRE, on_pipe, plan);
    result =
        result == 0 ? nng_pipe_notify(plan->socket, NNG_PIPE_EV_REM_POST, on_pipe, plan) : result;
    result = result == 0 ? nng_aio_alloc(&plan->aio, on_received, plan) : result;
    result = result == 0 ? listen_bounded(plan->socket, plan->url, PLAN_MAX_MESSAGE_BYTES) : result;
    if (result == 0) {
        plan->is_receiving = true;
        nng_recv_aio(plan->socket, plan->aio);
    }
    return result;
}

enum err_code link_plan_open(const struct link_plan_options *options, struct link_plan **out_plan,
                             struct err *err)
{
    struct link_plan *plan = mem_zalloc(1, sizeof(*plan));
    (void)pthread_mutex_init(&plan->mutex, NULL); /* default attributes: cannot fail */
    (void)snprintf(plan->url, sizeof(plan->url), "ipc://%s/plan-%" PRIu64 ".ipc", options->run_dir,
                   options->epoch);
    plan->on_event = options->on_event;
    plan->owner = options->owner;
    int result = nng_pair0_open(&plan->socket);
    if (result != 0) {
        enum err_code code = nng_error(err, result, "plan socket", plan->url);
        (void)pthread_mutex_destroy(&plan->mutex);
        mem_free(plan);
        return code;
    }
    result = start_plan(plan);
    if (result != 0) {
        enum err_code code = nng_error(err, result, "plan socket", plan->url);
        link_plan_close(plan);
        return code;
    }
    *out_plan = plan;
    return ERR_OK;
}

/* nng (seen in 1.5) waits forever for a pipe that is closed between a message's length and its body.
 * Once nothing is received here a sender gets two more messages through and then blocks, so after a
 * moment the pipe is at rest. */
static void let_pipe_rest(struct link_plan *plan)
{
    static const struct timespec step = {.tv_nsec = CLOCK_NS_PER_MS};
    for (int i = 0; i < REST_MS && link_plan_state(plan) == LINK_PLAN_OPEN; i++) {
        (void)nanosleep(&step, NULL); /* shorter is as good */
    }
}

void link_plan_close(struct link_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&plan->mutex);
    plan->is_closing = true;
    (void)pthread_mutex_unlock(&plan->mutex);
    let_pipe_rest(plan);
    (void)nng_close(plan->socket); /* nothing is left to do about a failure */
    if (plan->aio != NULL) {
        nng_aio_stop(plan->aio);
        nng_aio_free(plan->aio);
    }
    struct link_message message;
    while (link_plan_try_take(plan, &message)) {
        link_message_free(&message);
    }
    (void)pthread_mutex_destroy(&plan->mutex);
    mem_free(plan);
}

const char *link_plan_url(const struct link_plan *plan)
{
    return plan->url;
}

enum link_plan_state link_plan_state(struct link_plan *plan)
{
    (void)pthread_mutex_lock(&plan->mutex);
    enum link_plan_state state = plan->state;
    (void)pthread_mutex_unlock(&plan->mutex);
    return state;
}

bool link_plan_try_take(struct link_plan *plan, struct link_message *out_message)
{
    (void)pthread_mutex_lock(&plan->mutex);
    nng_msg *message = NULL;
    if (plan->message_count > 0) {
        message = plan->messages[plan->first_index];
        plan->first_index = (plan->first_index + 1) % QUEUE_MESSAGES;
        plan->message_count--;
        plan->queued_bytes -= nng_msg_len(message);
    }
    bool resume = message != NULL && !plan->is_receiving && !plan->is_closing &&
                  plan->state != LINK_PLAN_CLOSED && has_room(plan);
    plan->is_receiving = plan->is_receiving || resume;
    (void)pthread_mutex_unlock(&plan->mutex);
    if (resume) {
        nng_recv_aio(plan->socket, plan->aio);
    }
    if (message == NULL) {
        return false;
    }
    *out_message = (struct link_message){
        .bytes = nng_msg_body(message),
        .byte_count = nng_msg_len(message),
        .handle = message,
    };
    return true;
}

void link_message_free(struct link_message *message)
{
    nng_msg_free(message->handle);
    *message = (struct link_message){0};
}
