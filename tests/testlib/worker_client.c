#include "tests/testlib/worker_client.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/reqrep0/req.h>

#include "common/buf.h"
#include "common/clock.h"
#include "tests/testlib/test.h"

enum {
    ASK_DEADLINE_MS = 60000, /* ten tests at once on two cores: seconds pass */
    SEND_SLICE_MS = 100,
    READY_DEADLINE_MS = 60000,
    ARENA_BYTES = 1 << 20,
};

struct worker_client_sockets {
    nng_socket control;
    nng_socket plan;
    bool has_plan;
    pthread_mutex_t mutex; /* guards is_closed */
    pthread_cond_t changed;
    bool is_closed;
};

#define TRY(call)                                                                         \
    do {                                                                                  \
        int result_of_call = (call);                                                      \
        if (result_of_call != 0) {                                                        \
            test_fail(__FILE__, __LINE__, "%s: %s", #call, nng_strerror(result_of_call)); \
        }                                                                                 \
    } while (0)

/* ---- control ---- */

struct hello_message worker_client_ask_raw(struct worker_client *client, const void *bytes,
                                           size_t byte_count)
{
    nng_socket control = client->sockets->control;
    nng_msg *request = NULL;
    nng_msg *answer = NULL;
    TRY(nng_msg_alloc(&request, 0));
    TRY(nng_msg_append(request, bytes, byte_count));
    TRY(nng_sendmsg(control, request, 0));
    TRY(nng_recvmsg(control, &answer, 0));
    struct hello_message message;
    struct err err;
    mem_arena_reset(&client->arena);
    test_ok(hello_decode(nng_msg_body(answer), nng_msg_len(answer), &client->arena, &message, &err),
            &err);
    nng_msg_free(answer);
    return message;
}

struct hello_message worker_client_ask(struct worker_client *client,
                                       const struct hello_message *request)
{
    struct buf bytes;
    struct err err;
    buf_init(&bytes);
    test_ok(hello_encode(request, &bytes, &err), &err);
    struct hello_message answer = worker_client_ask_raw(client, bytes.at, bytes.used_bytes);
    buf_fini(&bytes);
    return answer;
}

static void pause_briefly(void)
{
    const struct timespec brief = {.tv_nsec = 2000000};
    (void)nanosleep(&brief, NULL); /* between polls of a state that has no event */
}

static void ask_hello(struct worker_client *client)
{
    const struct hello_message hello = {
        .type = HELLO_HELLO,
        .as.hello = {.protocol_version = PROTO_VERSION,
                     .table_hash = hello_table_hash(),
                     .name = {"test", 4}},
    };
    struct hello_message answer = worker_client_ask(client, &hello);
    test_eq_u64(answer.type, HELLO_WELCOME);
    client->welcome = answer.as.welcome;
}

void worker_client_open_early(struct worker_client *client, const char *run_dir)
{
    struct err err;
    *client = (struct worker_client){0};
    client->sockets = calloc(1, sizeof(*client->sockets));
    test_true(client->sockets != NULL);
    (void)pthread_mutex_init(&client->sockets->mutex, NULL);
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&client->sockets->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    test_ok(mem_arena_init(&client->arena, ARENA_BYTES, &err), &err);
    (void)snprintf(client->control_url, sizeof(client->control_url), "ipc://%s/control.ipc",
                   run_dir);
    nng_socket *control = &client->sockets->control;
    TRY(nng_req0_open(control));
    TRY(nng_socket_set_ms(*control, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE));
    TRY(nng_socket_set_ms(*control, NNG_OPT_RECVTIMEO, ASK_DEADLINE_MS));
    TRY(nng_socket_set_ms(*control, NNG_OPT_SENDTIMEO, ASK_DEADLINE_MS));
    TRY(nng_socket_set_ms(*control, NNG_OPT_RECONNMINT, 5));
    TRY(nng_socket_set_ms(*control, NNG_OPT_RECONNMAXT, 20));
    TRY(nng_dial(*control, client->control_url, NULL, NNG_FLAG_NONBLOCK));
    ask_hello(client);
}

void worker_client_open(struct worker_client *client, const char *run_dir)
{
    uint64_t deadline_ns = clock_now_ns() + READY_DEADLINE_MS * CLOCK_NS_PER_MS;
    worker_client_open_early(client, run_dir);
    while (client->welcome.state != HELLO_STATE_READY) {
        test_true(clock_now_ns() < deadline_ns);
        pause_briefly();
        ask_hello(client);
    }
}

void worker_client_close(struct worker_client *client)
{
    if (client->sockets == NULL) {
        return;
    }
    worker_client_detach(client);
    (void)nng_close(client->sockets->control);
    (void)pthread_cond_destroy(&client->sockets->changed);
    (void)pthread_mutex_destroy(&client->sockets->mutex);
    free(client->sockets);
    client->sockets = NULL;
    mem_arena_fini(&client->arena);
}

struct hello_stats_answer worker_client_stats(struct worker_client *client)
{
    const struct hello_message stats = {.type = HELLO_STATS};
    struct hello_message answer = worker_client_ask(client, &stats);
    test_eq_u64(answer.type, HELLO_STATS_ANSWER);
    return answer.as.stats_answer;
}

/* ---- session ---- */

static void keep_text(const struct wire_text *text, char *out, size_t out_bytes)
{
    test_true(text->byte_count < out_bytes);
    (void)snprintf(out, out_bytes, "%s", text->at);
}

bool worker_client_try_attach(struct worker_client *client, uint64_t nonce,
                              struct hello_fault *out_fault)
{
    const struct hello_message attach = {
        .type = HELLO_ATTACH,
        .as.attach = {.protocol_version = PROTO_VERSION,
                      .table_hash = hello_table_hash(),
                      .nonce = nonce,
                      .name = {"test", 4}},
    };
    struct hello_message answer = worker_client_ask(client, &attach);
    if (answer.type == HELLO_FAULT) {
        *out_fault = answer.as.fault;
        return false;
    }
    test_eq_u64(answer.type, HELLO_ATTACHED);
    const struct hello_attached *attached = &answer.as.attached;
    client->epoch = attached->epoch;
    client->msg_seq = 0;
    keep_text(&attached->plan_url, client->plan_url, sizeof(client->plan_url));
    keep_text(&attached->segment_name, client->segment_name, sizeof(client->segment_name));
    client->segment.byte_count = attached->segment_bytes;
    client->masks.geometry.words = attached->mask_words;
    client->mask_offset_bytes = attached->mask_offset_bytes;
    return true;
}

static void on_pipe_gone(nng_pipe pipe, nng_pipe_ev event, void *argument)
{
    struct worker_client_sockets *sockets = argument;
    (void)pthread_mutex_lock(&sockets->mutex);
    sockets->is_closed = true;
    (void)pthread_cond_broadcast(&sockets->changed);
    (void)pthread_mutex_unlock(&sockets->mutex);
}

void worker_client_dial(struct worker_client *client)
{
    struct worker_client_sockets *sockets = client->sockets;
    struct err err;
    size_t mask_offset_bytes = client->mask_offset_bytes;
    size_t segment_bytes = client->segment.byte_count;
    const struct mask_geometry masks = {client->welcome.slots, client->masks.geometry.words};
    test_ok(shm_open_existing(&client->segment, client->segment_name, segment_bytes, &err), &err);
    size_t ring_bytes = ring_segment_bytes(RESULT_RECORD_BYTES, client->welcome.ring_records);
    test_ok(ring_consumer_init(&client->ring, client->segment.at, ring_bytes, RESULT_RECORD_BYTES,
                               client->epoch, &err),
            &err);
    test_ok(mask_area_init(&client->masks, client->segment.at, segment_bytes, mask_offset_bytes,
                           &masks, &err),
            &err);
    sockets->is_closed = false;
    TRY(nng_pair0_open(&sockets->plan));
    sockets->has_plan = true;
    TRY(nng_pipe_notify(sockets->plan, NNG_PIPE_EV_REM_POST, on_pipe_gone, sockets));
    TRY(nng_socket_set_ms(sockets->plan, NNG_OPT_SENDTIMEO, SEND_SLICE_MS));
    TRY(nng_dial(sockets->plan, client->plan_url, NULL, 0));
}

void worker_client_attach(struct worker_client *client)
{
    uint64_t deadline_ns = clock_now_ns() + ASK_DEADLINE_MS * CLOCK_NS_PER_MS;
    uint64_t nonce = clock_now_ns();
    struct hello_fault fault;
    while (!worker_client_try_attach(client, ++nonce, &fault)) {
        bool may_work = fault.code == ERR_BUSY || fault.code == ERR_TIMEOUT;
        if (!may_work || clock_now_ns() > deadline_ns) {
            test_fail(__FILE__, __LINE__, "attach: code %u, %s", fault.code, fault.text.at);
        }
        pause_briefly();
    }
    worker_client_dial(client);
}

void worker_client_detach(struct worker_client *client)
{
    if (client->sockets->has_plan) {
        (void)nng_close(client->sockets->plan);
        client->sockets->has_plan = false;
    }
    if (client->segment.at != NULL) {
        shm_close(&client->segment);
    }
}

/* ---- plans ---- */

void worker_client_send_raw(struct worker_client *client, const void *bytes, size_t byte_count)
{
    nng_msg *message = NULL;
    TRY(nng_msg_alloc(&message, 0));
    TRY(nng_msg_append(message, bytes, byte_count));
    uint64_t deadline_ns = clock_now_ns() + ASK_DEADLINE_MS * CLOCK_NS_PER_MS;
    int result = 0;
    do {
        result = nng_sendmsg(client->sockets->plan, message, 0);
    } while (result == NNG_ETIMEDOUT && clock_now_ns() < deadline_ns &&
             !worker_client_wait_closed(client, 0));
    if (result != 0) {
        nng_msg_free(message);
    }
    if (!worker_client_wait_closed(client, 0)) {
        TRY(result);
    }
}

void worker_client_send_as_is(struct worker_client *client, const struct plan_message *message)
{
    struct buf bytes;
    struct err err;
    buf_init(&bytes);
    test_ok(plan_encode(message, &bytes, &err), &err);
    worker_client_send_raw(client, bytes.at, bytes.used_bytes);
    buf_fini(&bytes);
}

uint64_t worker_client_send(struct worker_client *client, const struct plan_message *message)
{
    struct plan_message numbered = *message;
    numbered.epoch = client->epoch;
    numbered.msg_seq = ++client->msg_seq;
    worker_client_send_as_is(client, &numbered);
    return numbered.msg_seq;
}

/* ---- records ---- */

bool worker_client_try_pop(struct worker_client *client, uint32_t wait_ms,
                           struct result_record *out_record)
{
    uint64_t deadline_ns = clock_now_ns() + wait_ms * CLOCK_NS_PER_MS;
    while (!ring_consumer_try_pop(&client->ring, out_record)) {
        if (clock_now_ns() >= deadline_ns) {
            return false;
        }
        (void)ring_consumer_wait(&client->ring, 0, deadline_ns); /* the pop tells */
    }
    struct err err;
    test_ok(result_check(out_record, &err), &err);
    test_eq_u64(out_record->epoch, client->epoch);
    return true;
}

struct result_record worker_client_expect(struct worker_client *client, enum result_kind kind,
                                          uint32_t wait_ms)
{
    struct result_record record;
    do {
        if (!worker_client_try_pop(client, wait_ms, &record)) {
            test_fail(__FILE__, __LINE__, "no record of kind %d within %u ms", (int)kind, wait_ms);
        }
    } while (record.kind != kind);
    return record;
}

bool worker_client_wait_closed(struct worker_client *client, uint32_t wait_ms)
{
    struct worker_client_sockets *sockets = client->sockets;
    uint64_t deadline_ns = clock_now_ns() + wait_ms * CLOCK_NS_PER_MS;
    const struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_SEC),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_SEC),
    };
    int result = 0;
    (void)pthread_mutex_lock(&sockets->mutex);
    while (!sockets->is_closed && result == 0) {
        result = pthread_cond_timedwait(&sockets->changed, &sockets->mutex, &deadline);
    }
    bool is_closed = sockets->is_closed;
    (void)pthread_mutex_unlock(&sockets->mutex);
    return is_closed;
}

bool worker_client_second_pipe_is_closed(struct worker_client *client, const char *plan_url,
                                         uint32_t wait_ms)
{
    struct worker_client_sockets *sockets = client->sockets;
    TRY(nng_pair0_open(&sockets->plan));
    sockets->has_plan = true;
    TRY(nng_pipe_notify(sockets->plan, NNG_PIPE_EV_REM_POST, on_pipe_gone, sockets));
    int result = nng_dial(sockets->plan, plan_url, NULL, 0);
    bool is_closed = result != 0 || worker_client_wait_closed(client, wait_ms);
    worker_client_detach(client);
    return is_closed;
}

void worker_client_expect_all_free(struct worker_client *client, uint32_t wait_ms)
{
    uint64_t deadline_ns = clock_now_ns() + wait_ms * CLOCK_NS_PER_MS;
    for (;;) {
        struct hello_stats_answer stats = worker_client_stats(client);
        uint32_t local_pages = stats.local_pages_free + stats.local_pages_cached;
        uint32_t global_pages = stats.global_pages_free + stats.global_pages_cached;
        if (stats.sequences == 0 && local_pages == client->welcome.local_pages &&
            global_pages == client->welcome.global_pages) {
            return;
        }
        if (clock_now_ns() > deadline_ns) {
            test_fail(__FILE__, __LINE__, "%u sequences, %u of %u local and %u of %u global free",
                      stats.sequences, local_pages, client->welcome.local_pages, global_pages,
                      client->welcome.global_pages);
        }
        pause_briefly();
    }
}
