#include "frontend/link.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/shm.h"
#include "frontend/link_ask.h"
#include "frontend/link_internal.h"

#define RECONNECT_MIN_MS 10
#define RECONNECT_MAX_MS 50
#define DIAL_TIMEOUT_NS  (5 * CLOCK_NS_PER_SEC)
#define LOADING_PAUSE_NS (100 * CLOCK_NS_PER_MS)
#define BUSY_PAUSE_NS    (20 * CLOCK_NS_PER_MS)
#define RETRY_PAUSE_NS   (20 * CLOCK_NS_PER_MS)
#define MISFIT_PAUSE_NS  (1 * CLOCK_NS_PER_SEC)
#define UNSENT_MESSAGES  8192 /* nng's bound: a worker that takes none of them is lost */

enum phase {
    PHASE_PAUSE,   /* until due_ns */
    PHASE_ASKING,  /* a control request */
    PHASE_DIALING, /* the plan socket, until due_ns */
    PHASE_ATTACHED,
    PHASE_LOST, /* reported by link_poll; until link_detach */
};

struct link {
    void (*on_wake)(void *owner);
    void *owner;
    uint64_t tokenizer_hash;
    char name[HELLO_MAX_TEXT_BYTES];

    enum phase phase;
    struct link_ask *ask; /* owned */
    bool is_attaching;    /* the request in flight is ATTACH */
    uint64_t due_ns;

    nng_socket plan;
    bool has_plan;
    atomic_uint plan_id; /* socket whose pipe events count; 0 none */
    atomic_bool pipe_up;
    atomic_bool pipe_gone;

    struct mem_arena arena; /* of the last answer */
    bool has_welcome;
    struct hello_welcome welcome;
    uint64_t nonce;
    struct shm_segment segment;
    struct link_session session;
    struct buf bytes; /* of the message being sent */
    struct link_sent sent;
    uint64_t pause_ns; /* before the next HELLO, once detached */
    char lost_text[ERR_MESSAGE_BYTES];
    char logged_text[ERR_MESSAGE_BYTES]; /* the last misfit, logged once */
    bool is_misfit;                      /* it will not pass by itself */
};

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument)
{
    struct link *link = argument;
    unsigned socket_id = (unsigned)nng_socket_id(nng_pipe_socket(pipe));
    if (socket_id != atomic_load_explicit(&link->plan_id, memory_order_acquire)) { /* L8: with L7 */
        return; /* of a session before */
    }
    if (event == NNG_PIPE_EV_ADD_POST) {
        atomic_store_explicit(&link->pipe_up, true, memory_order_release); /* L3: with L4 */
    } else {
        atomic_store_explicit(&link->pipe_gone, true, memory_order_release); /* L5: with L6 */
    }
    link->on_wake(link->owner);
}

static enum err_code nng_failed(int result, const char *what, struct err *err)
{
    return err_set(err, ERR_SYSTEM, "%s: %s", what, nng_strerror(result));
}

static int dial(nng_socket socket, const char *url, size_t max_bytes)
{
    nng_dialer dialer;
    int result = nng_dialer_create(&dialer, socket, url);
    result = result == 0 ? nng_dialer_set_size(dialer, NNG_OPT_RECVMAXSZ, max_bytes) : result;
    result = result == 0 ? nng_dialer_set_ms(dialer, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS) : result;
    result = result == 0 ? nng_dialer_set_ms(dialer, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS) : result;
    return result == 0 ? nng_dialer_start(dialer, NNG_FLAG_NONBLOCK) : result;
}

enum err_code link_create(const struct link_options *options, struct link **out_link,
                          struct err *err)
{
    struct link *link = mem_zalloc(1, sizeof(*link));
    link->on_wake = options->on_wake;
    link->owner = options->owner;
    link->tokenizer_hash = options->tokenizer_hash;
    (void)snprintf(link->name, sizeof(link->name), "%s",
                   options->name); /* cut is fine: a log name */
    buf_init(&link->bytes);
    enum err_code code =
        mem_arena_init(&link->arena, plan_decode_arena_bytes(HELLO_MAX_MESSAGE_BYTES), err);
    if (code == ERR_OK) {
        code = link_ask_create(options->run_dir, options->on_wake, options->owner, &link->ask, err);
    }
    if (code != ERR_OK) {
        link_destroy(link);
        return code;
    }
    char quoted[2 * ERR_MESSAGE_BYTES];
    log_info("link", "waiting_for_worker", "run_dir=%s",
             log_quote(options->run_dir, quoted, sizeof(quoted)));
    *out_link = link;
    return ERR_OK;
}

static void close_plan(struct link *link)
{
    atomic_store_explicit(&link->plan_id, 0, memory_order_release); /* L7: with L8 */
    if (link->has_plan) {
        (void)nng_close(link->plan); /* nothing is left to do about a failure */
        link->has_plan = false;
    }
    shm_close(&link->segment);
    link->session = (struct link_session){0};
}

static void pause_for(struct link *link, uint64_t now_ns, uint64_t pause_ns)
{
    link->phase = PHASE_PAUSE;
    link->due_ns = now_ns + pause_ns;
}

/* One line for each new reason why the worker there cannot be used. */
static void log_misfit(struct link *link, const char *text)
{
    char quoted[2 * ERR_MESSAGE_BYTES];
    if (strcmp(text, link->logged_text) == 0) {
        return;
    }
    (void)snprintf(link->logged_text, sizeof(link->logged_text), "%s", text); /* cut is fine */
    log_warn("link", "worker_unusable", "why=%s", log_quote(text, quoted, sizeof(quoted)));
}

static void send_request(struct link *link, uint64_t now_ns)
{
    struct err err;
    buf_reset(&link->bytes);
    const uint64_t *nonce = link->is_attaching ? &link->nonce : NULL;
    if (link_put_request(link->name, nonce, &link->bytes, &err) != ERR_OK) {
        log_misfit(link, err.message); /* a name over its bound */
        pause_for(link, now_ns, MISFIT_PAUSE_NS);
        return;
    }
    if (!link_ask_send(link->ask, &link->bytes)) {
        pause_for(link, now_ns, RETRY_PAUSE_NS);
        return;
    }
    link->phase = PHASE_ASKING;
}

void link_destroy(struct link *link)
{
    if (link == NULL) {
        return;
    }
    link_ask_destroy(link->ask);
    close_plan(link);
    buf_fini(&link->bytes);
    mem_arena_fini(&link->arena);
    mem_free(link);
}

static enum link_change take_welcome(struct link *link, const struct hello_welcome *welcome,
                                     uint64_t now_ns)
{
    struct err err;
    link->welcome = *welcome;
    link->has_welcome = true;
    if (welcome->state != HELLO_STATE_READY) {
        pause_for(link, now_ns, LOADING_PAUSE_NS);
        return LINK_CHANGE_WELCOME;
    }
    if (link->tokenizer_hash != 0 && welcome->tokenizer_hash != link->tokenizer_hash) {
        (void)err_set(&err, ERR_CONFIG,
                      "the worker's tokenizer is %016llx, this frontend's %016llx",
                      (unsigned long long)welcome->tokenizer_hash,
                      (unsigned long long)link->tokenizer_hash); /* logged, not returned */
        log_misfit(link, err.message);
        pause_for(link, now_ns, MISFIT_PAUSE_NS);
        return LINK_CHANGE_WELCOME;
    }
    if (link_draw_nonce(&link->nonce, &err) != ERR_OK) {
        log_misfit(link, err.message);
        pause_for(link, now_ns, MISFIT_PAUSE_NS);
        return LINK_CHANGE_WELCOME;
    }
    link->is_attaching = true;
    send_request(link, now_ns);
    return LINK_CHANGE_WELCOME;
}

static enum err_code dial_plan(struct link *link, const struct hello_attached *attached,
                               struct err *err)
{
    char url[HELLO_MAX_TEXT_BYTES + 1];
    (void)snprintf(url, sizeof(url), "%.*s", (int)attached->plan_url.byte_count,
                   attached->plan_url.at); /* it fits: the table bounds it */
    int result = nng_pair0_open(&link->plan);
    if (result != 0) {
        return nng_failed(result, "plan socket", err);
    }
    link->has_plan = true;
    atomic_store_explicit(&link->pipe_up, false, memory_order_relaxed);
    atomic_store_explicit(&link->pipe_gone, false, memory_order_relaxed);
    /* L7: with L8; the flags are cleared before an event of this socket can set them */
    atomic_store_explicit(&link->plan_id, (unsigned)nng_socket_id(link->plan),
                          memory_order_release);
    result = nng_socket_set_int(link->plan, NNG_OPT_SENDBUF, UNSENT_MESSAGES);
    result =
        result == 0 ? nng_pipe_notify(link->plan, NNG_PIPE_EV_ADD_POST, on_pipe, link) : result;
    result =
        result == 0 ? nng_pipe_notify(link->plan, NNG_PIPE_EV_REM_POST, on_pipe, link) : result;
    result = result == 0 ? dial(link->plan, url, PLAN_MAX_MESSAGE_BYTES) : result;
    return result == 0 ? ERR_OK : nng_failed(result, url, err);
}

static void take_attached(struct link *link, const struct hello_attached *attached, uint64_t now_ns)
{
    struct err err;
    if (attached->instance_id != link->welcome.instance_id) {
        pause_for(link, now_ns, 0); /* another worker answered: ask it first */
        return;
    }
    enum err_code code =
        link_open_session(&link->welcome, attached, &link->segment, &link->session, &err);
    if (code == ERR_OK) {
        code = dial_plan(link, attached, &err);
    }
    if (code != ERR_OK) {
        log_misfit(link, err.message);
        close_plan(link);
        pause_for(link, now_ns, MISFIT_PAUSE_NS);
        return;
    }
    link->phase = PHASE_DIALING;
    link->due_ns = now_ns + DIAL_TIMEOUT_NS;
}

static void take_fault(struct link *link, const struct hello_fault *fault, uint64_t now_ns)
{
    char text[ERR_MESSAGE_BYTES];
    (void)snprintf(text, sizeof(text), "%.*s", (int)fault->text.byte_count,
                   fault->text.at); /* cut is fine */
    log_misfit(link, text);
    link->is_misfit = err_is_lasting((enum err_code)fault->code) || fault->code == ERR_PROTOCOL;
    pause_for(link, now_ns, fault->code == ERR_BUSY ? BUSY_PAUSE_NS : MISFIT_PAUSE_NS);
}

static enum link_change take_answer(struct link *link, const void *bytes, size_t byte_count,
                                    uint64_t now_ns)
{
    struct hello_message message;
    struct err err;
    bool was_attaching = link->is_attaching;
    link->is_attaching = false;
    mem_arena_reset(&link->arena);
    enum err_code code = hello_decode(bytes, byte_count, &link->arena, &message, &err);
    if (code != ERR_OK) {
        log_misfit(link, err.message);
        link->is_misfit = true;
        pause_for(link, now_ns, MISFIT_PAUSE_NS);
        return LINK_CHANGE_NONE;
    }
    if (message.type == HELLO_FAULT) {
        take_fault(link, &message.as.fault, now_ns);
    } else if (message.type == HELLO_WELCOME && !was_attaching) {
        return take_welcome(link, &message.as.welcome, now_ns);
    } else if (message.type == HELLO_ATTACHED && was_attaching) {
        take_attached(link, &message.as.attached, now_ns);
    } else {
        log_misfit(link, "the worker's answer is to another question");
        pause_for(link, now_ns, MISFIT_PAUSE_NS);
    }
    return LINK_CHANGE_NONE;
}

static enum link_change step_request(struct link *link, uint64_t now_ns)
{
    const void *bytes = NULL;
    size_t byte_count = 0;
    switch (link_ask_poll(link->ask, &bytes, &byte_count)) {
    case LINK_ASK_ANSWERED: return take_answer(link, bytes, byte_count, now_ns);
    case LINK_ASK_NONE:
    case LINK_ASK_FAILED:
        link->is_attaching = false;
        pause_for(link, now_ns, RETRY_PAUSE_NS);
        break;
    case LINK_ASK_PENDING: break;
    }
    return LINK_CHANGE_NONE;
}

static enum link_change step_dialing(struct link *link, uint64_t now_ns)
{
    if (atomic_load_explicit(&link->pipe_up, memory_order_acquire)) { /* L4: with L3 */
        link->phase = PHASE_ATTACHED;
        link->logged_text[0] = '\0';
        link->is_misfit = false;
        return LINK_CHANGE_ATTACHED;
    }
    bool is_gone = atomic_load_explicit(&link->pipe_gone, memory_order_acquire); /* L6: with L5 */
    if (is_gone || now_ns >= link->due_ns) {
        log_misfit(link, "the plan socket did not answer");
        close_plan(link);
        pause_for(link, now_ns, RETRY_PAUSE_NS);
    }
    return LINK_CHANGE_NONE;
}

enum link_change link_poll(struct link *link, uint64_t now_ns)
{
    enum phase before;
    enum link_change change = LINK_CHANGE_NONE;
    do {
        before = link->phase;
        switch (link->phase) {
        case PHASE_PAUSE:
            if (now_ns >= link->due_ns) {
                send_request(link, now_ns);
            }
            break;
        case PHASE_ASKING: change = step_request(link, now_ns); break;
        case PHASE_DIALING: change = step_dialing(link, now_ns); break;
        case PHASE_ATTACHED:
            if (atomic_load_explicit(&link->pipe_gone, memory_order_acquire)) { /* L6: with L5 */
                link_drop(link, "the worker closed the session or is gone");
                link->pause_ns = RETRY_PAUSE_NS;
            }
            break;
        case PHASE_LOST: change = LINK_CHANGE_LOST; break;
        }
    } while (change == LINK_CHANGE_NONE && link->phase != before);
    return change;
}

uint64_t link_wake_ns(const struct link *link)
{
    switch (link->phase) {
    case PHASE_PAUSE:
    case PHASE_DIALING: return link->due_ns;
    case PHASE_LOST: return 0;
    case PHASE_ASKING:
    case PHASE_ATTACHED: break;
    }
    return UINT64_MAX;
}

const struct hello_welcome *link_welcome(const struct link *link)
{
    return link->has_welcome ? &link->welcome : NULL;
}

const struct link_session *link_session(const struct link *link)
{
    return &link->session;
}

void link_send(struct link *link, const struct plan_message *message)
{
    if (link->phase != PHASE_ATTACHED) {
        return; /* LOST is on its way to the caller */
    }
    struct err err;
    nng_msg *out = NULL;
    buf_reset(&link->bytes);
    if (plan_encode(message, &link->bytes, &err) != ERR_OK) {
        link_drop(link, err.message); /* a bound that req_create did not check: ours */
        return;
    }
    int result = nng_msg_alloc(&out, link->bytes.used_bytes);
    if (result == 0) {
        memcpy(nng_msg_body(out), link->bytes.at, link->bytes.used_bytes);
        result = nng_sendmsg(link->plan, out, NNG_FLAG_NONBLOCK);
        if (result != 0) {
            nng_msg_free(out);
        }
    }
    if (result != 0) {
        (void)err_set(&err, ERR_CLOSED, "a plan message cannot be sent: %s",
                      nng_strerror(result)); /* told by link_lost_text */
        link_drop(link, err.message);
        return;
    }
    link->sent.messages++;
    link->sent.bytes += link->bytes.used_bytes;
}

struct link_sent link_sent(const struct link *link)
{
    return link->sent;
}

void link_drop(struct link *link, const char *why)
{
    if (link->phase != PHASE_ATTACHED) {
        return;
    }
    (void)snprintf(link->lost_text, sizeof(link->lost_text), "%s", why); /* cut is fine */
    link->phase = PHASE_LOST;
    link->pause_ns = MISFIT_PAUSE_NS; /* a worker that did wrong may do so again */
}

const char *link_misfit_text(const struct link *link)
{
    return link->logged_text;
}

bool link_misfit_lasts(const struct link *link)
{
    return link->is_misfit;
}

const char *link_lost_text(const struct link *link)
{
    return link->lost_text;
}

void link_detach(struct link *link, uint64_t now_ns)
{
    close_plan(link);
    pause_for(link, now_ns, link->pause_ns);
}
