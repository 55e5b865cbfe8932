#include "frontend/link_ask.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

#include "common/mem.h"
#include "proto/limits.h"

#define URL_BYTES 256

/* Resend is off: a day is never reached, while "infinite" is read as "at once" by some versions. */
#define NEVER_RESEND_MS 86400000

#define RECONNECT_MIN_MS 10
#define RECONNECT_MAX_MS 50

enum phase {
    PHASE_IDLE,
    PHASE_SENDING,
    PHASE_WAITING, /* for the answer */
};

struct link_ask {
    void (*on_wake)(void *owner);
    void *owner; /* borrowed until link_ask_destroy returns */
    enum phase phase;
    nng_socket socket;
    nng_aio *aio;         /* owned */
    atomic_bool aio_done; /* set by nng's thread */
    nng_msg *answer;      /* owned: the last; null after the next request */
};

static void on_aio(void *argument)
{
    struct link_ask *ask = argument;
    atomic_store_explicit(&ask->aio_done, true, memory_order_release); /* A1: with A2 */
    ask->on_wake(ask->owner);
}

static int open_socket(struct link_ask *ask, const char *url)
{
    nng_dialer dialer;
    int result = nng_req0_open(&ask->socket);
    if (result != 0) {
        return result;
    }
    result = nng_socket_set_ms(ask->socket, NNG_OPT_REQ_RESENDTIME, NEVER_RESEND_MS);
    result = result == 0 ? nng_dialer_create(&dialer, ask->socket, url) : result;
    result = result == 0 ? nng_dialer_set_size(dialer, NNG_OPT_RECVMAXSZ, HELLO_MAX_MESSAGE_BYTES)
                         : result;
    result = result == 0 ? nng_dialer_set_ms(dialer, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS) : result;
    result = result == 0 ? nng_dialer_set_ms(dialer, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS) : result;
    result = result == 0 ? nng_dialer_start(dialer, NNG_FLAG_NONBLOCK) : result;
    if (result != 0) {
        (void)nng_close(ask->socket); /* the first failure is the one to tell */
    }
    return result;
}

enum err_code link_ask_create(const char *run_dir, void (*on_wake)(void *owner), void *owner,
                              struct link_ask **out_ask, struct err *err)
{
    char url[URL_BYTES];
    int length = snprintf(url, sizeof(url), "ipc://%s/control.ipc", run_dir);
    if (length < 0 || (size_t)length >= NNG_MAXADDRLEN) {
        return err_set(err, ERR_ARGUMENT, "the run directory's path has %zu bytes, at most %d",
                       strlen(run_dir), NNG_MAXADDRLEN - 20);
    }
    struct link_ask *ask = mem_zalloc(1, sizeof(*ask));
    ask->on_wake = on_wake;
    ask->owner = owner;
    int result = nng_aio_alloc(&ask->aio, on_aio, ask);
    result = result == 0 ? open_socket(ask, url) : result;
    if (result != 0) {
        nng_aio_free(ask->aio);
        mem_free(ask);
        return err_set(err, ERR_SYSTEM, "%s: %s", url, nng_strerror(result));
    }
    nng_aio_set_timeout(ask->aio, LINK_ASK_TIMEOUT_MS);
    *out_ask = ask;
    return ERR_OK;
}

static void receive(struct link_ask *ask)
{
    atomic_store_explicit(&ask->aio_done, false, memory_order_relaxed);
    nng_recv_aio(ask->socket, ask->aio);
    ask->phase = PHASE_WAITING;
}

static bool is_aio_done(struct link_ask *ask)
{
    return atomic_load_explicit(&ask->aio_done, memory_order_acquire); /* A2: with A1 */
}

void link_ask_destroy(struct link_ask *ask)
{
    if (ask == NULL) {
        return;
    }
    if (ask->phase == PHASE_SENDING && is_aio_done(ask) && nng_aio_result(ask->aio) == 0) {
        receive(ask);
    }
    if (ask->phase == PHASE_WAITING) {
        /* nng (seen in 1.5) waits forever for a pipe that is closed between a message's length and its
         * body. */
        nng_aio_wait(ask->aio);
    }
    nng_aio_stop(ask->aio); /* no callback runs after this */
    bool has_failed = nng_aio_result(ask->aio) != 0;
    if ((ask->phase == PHASE_SENDING && has_failed) ||
        (ask->phase == PHASE_WAITING && !has_failed)) {
        nng_msg_free(nng_aio_get_msg(ask->aio)); /* not sent, or answered and not looked at */
    }
    (void)nng_close(ask->socket); /* nothing is left to do about a failure */
    nng_aio_free(ask->aio);
    nng_msg_free(ask->answer);
    mem_free(ask);
}

bool link_ask_send(struct link_ask *ask, const struct buf *request)
{
    nng_msg *message = NULL;
    nng_msg_free(ask->answer);
    ask->answer = NULL;
    if (nng_msg_alloc(&message, request->used_bytes) != 0) {
        return false;
    }
    memcpy(nng_msg_body(message), request->at, request->used_bytes);
    atomic_store_explicit(&ask->aio_done, false, memory_order_relaxed);
    nng_aio_set_msg(ask->aio, message);
    nng_send_aio(ask->socket, ask->aio);
    ask->phase = PHASE_SENDING;
    return true;
}

enum link_ask_state link_ask_poll(struct link_ask *ask, const void **out_bytes,
                                  size_t *out_byte_count)
{
    if (ask->phase == PHASE_IDLE) {
        return LINK_ASK_NONE;
    }
    if (!is_aio_done(ask)) {
        return LINK_ASK_PENDING;
    }
    nng_aio_wait(ask->aio); /* the callback has set the flag and is about to return */
    int result = nng_aio_result(ask->aio);
    if (result == 0 && ask->phase == PHASE_SENDING) {
        receive(ask);
        return LINK_ASK_PENDING;
    }
    if (result != 0 && ask->phase == PHASE_SENDING) {
        nng_msg_free(nng_aio_get_msg(ask->aio)); /* a request that was not sent stays ours */
    }
    ask->phase = PHASE_IDLE;
    if (result != 0) {
        return LINK_ASK_FAILED; /* nobody there, or no answer in time */
    }
    ask->answer = nng_aio_get_msg(ask->aio);
    *out_bytes = nng_msg_body(ask->answer);
    *out_byte_count = nng_msg_len(ask->answer);
    return LINK_ASK_ANSWERED;
}
