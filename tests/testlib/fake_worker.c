#include "tests/testlib/fake_worker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/protocol/reqrep0/rep.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/mem.h"
#include "common/ring.h"
#include "common/shm.h"
#include "proto/mask.h"

#define CONTROL_TICK_MS 50
#define REST_MS         20  /* for two messages to arrive from a peer in this machine */
#define ASKING_MS       150 /* longer than a frontend pauses between two requests */
#define NO_PIPE_NS      (5 * CLOCK_NS_PER_SEC)

/* A plan message as it came, and when. */
struct arrival {
    struct arrival *next;
    nng_msg *message; /* owned */
    uint64_t at_ns;
};

struct fake_worker {
    struct fake_options options;
    char run_dir[200];
    uint64_t start_ns;
    nng_socket control;
    pthread_t control_thread;
    pthread_t executor_thread;
    bool has_control_thread;
    bool has_executor_thread;

    /* guarded by mutex: everything below */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool is_stopping;
    bool is_frozen;
    uint32_t busy_left;
    uint64_t next_epoch;
    struct fake_stats stats;

    bool has_session;
    bool is_piped; /* its pipe came */
    bool is_pipe_gone;
    bool is_closing; /* takes no more messages */
    uint64_t opened_ns;
    uint64_t epoch;
    uint64_t nonce;
    char plan_url[256];
    nng_socket plan;
    nng_aio *plan_aio; /* owned */
    struct shm_segment segment;
    char segment_name[64];
    size_t mask_offset_bytes;
    struct ring_producer producer;
    struct model_worker *model;    /* owned */
    struct arrival *arrival_first; /* owned */
    struct arrival *arrival_last;
};

static void lock(struct fake_worker *worker)
{
    (void)pthread_mutex_lock(&worker->mutex); /* cannot fail */
}

static void unlock(struct fake_worker *worker)
{
    (void)pthread_mutex_unlock(&worker->mutex); /* cannot fail */
}

static void poke(struct fake_worker *worker)
{
    (void)pthread_cond_signal(&worker->cond); /* cannot fail */
}

static void on_plan_message(void *argument)
{
    struct fake_worker *worker = argument;
    if (nng_aio_result(worker->plan_aio) != 0) {
        return;
    }
    struct arrival *arrival = mem_zalloc(1, sizeof(*arrival));
    arrival->message = nng_aio_get_msg(worker->plan_aio);
    arrival->at_ns = clock_now_ns();
    lock(worker);
    *(worker->arrival_last == NULL ? &worker->arrival_first : &worker->arrival_last->next) =
        arrival;
    worker->arrival_last = arrival;
    bool again = !worker->is_closing;
    poke(worker);
    unlock(worker);
    if (again) {
        nng_recv_aio(worker->plan, worker->plan_aio);
    }
}

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *argument)
{
    struct fake_worker *worker = argument;
    (void)pipe;
    lock(worker);
    if (event == NNG_PIPE_EV_ADD_POST) {
        worker->is_piped = true;
    } else {
        worker->is_pipe_gone = true;
    }
    poke(worker);
    unlock(worker);
}

static int open_plan_socket(struct fake_worker *worker)
{
    nng_listener listener;
    int result = nng_pair0_open(&worker->plan);
    if (result != 0) {
        return result;
    }
    result = nng_pipe_notify(worker->plan, NNG_PIPE_EV_ADD_POST, on_pipe, worker);
    result =
        result == 0 ? nng_pipe_notify(worker->plan, NNG_PIPE_EV_REM_POST, on_pipe, worker) : result;
    result = result == 0 ? nng_aio_alloc(&worker->plan_aio, on_plan_message, worker) : result;
    result = result == 0 ? nng_listener_create(&listener, worker->plan, worker->plan_url) : result;
    result = result == 0
                 ? nng_listener_set_size(listener, NNG_OPT_RECVMAXSZ, PLAN_MAX_MESSAGE_BYTES)
                 : result;
    result = result == 0 ? nng_listener_start(listener, 0) : result;
    if (result == 0) {
        nng_recv_aio(worker->plan, worker->plan_aio);
    }
    return result;
}

static enum err_code open_segment(struct fake_worker *worker, struct err *err)
{
    const struct hello_welcome *limits = &worker->options.model.limits;
    size_t ring_bytes = ring_segment_bytes(RESULT_RECORD_BYTES, limits->ring_records);
    struct mask_geometry masks = {.lanes = limits->slots,
                                  .words = (limits->vocab_tokens + 31) / 32};
    worker->mask_offset_bytes = (ring_bytes + 4095) / 4096 * 4096;
    size_t byte_count = worker->mask_offset_bytes + mask_area_bytes(&masks);
    (void)snprintf(worker->segment_name, sizeof(worker->segment_name), "/bezel-fake-%d-%llx-%llu",
                   (int)getpid(), (unsigned long long)worker->start_ns,
                   (unsigned long long)worker->epoch); /* it fits */
    enum err_code code = shm_create(&worker->segment, worker->segment_name, byte_count, err);
    if (code != ERR_OK) {
        return code;
    }
    return ring_producer_init(&worker->producer, worker->segment.at, ring_bytes,
                              RESULT_RECORD_BYTES, limits->ring_records, worker->epoch, err);
}

/* Control thread; with the lock held. */
static enum err_code open_session(struct fake_worker *worker, uint64_t nonce, struct err *err)
{
    worker->epoch = worker->next_epoch++;
    worker->nonce = nonce;
    worker->is_piped = false;
    worker->is_pipe_gone = false;
    worker->is_closing = false;
    worker->opened_ns = clock_now_ns();
    (void)snprintf(worker->plan_url, sizeof(worker->plan_url), "ipc://%s/plan-%d-%llu.ipc",
                   worker->run_dir, (int)getpid(), (unsigned long long)worker->epoch); /* it fits */
    enum err_code code = open_segment(worker, err);
    if (code != ERR_OK) {
        return code;
    }
    int result = open_plan_socket(worker);
    if (result != 0) {
        return err_set(err, ERR_SYSTEM, "%s: %s", worker->plan_url, nng_strerror(result));
    }
    worker->model = model_create(&worker->options.model);
    model_open(worker->model, worker->epoch);
    worker->has_session = true;
    worker->stats.attaches++;
    return ERR_OK;
}

/* nng (seen in 1.5) hangs when a pipe is closed in the middle of a message.  What comes once nothing is
 * received any more waits unread. */
static void let_rest(long ms)
{
    const struct timespec time = {.tv_nsec = ms * (long)CLOCK_NS_PER_MS};
    (void)nanosleep(&time, NULL);
}

/* Executor thread, or after both threads have ended; without the lock: nng's callbacks take it. */
static void close_session(struct fake_worker *worker)
{
    lock(worker);
    worker->is_closing = true;
    unlock(worker);
    let_rest(REST_MS);
    (void)nng_close(worker->plan); /* nothing is left to do about a failure */
    nng_aio_stop(worker->plan_aio);
    nng_aio_free(worker->plan_aio);
    lock(worker);
    worker->plan_aio = NULL;
    while (worker->arrival_first != NULL) {
        struct arrival *arrival = worker->arrival_first;
        worker->arrival_first = arrival->next;
        nng_msg_free(arrival->message);
        mem_free(arrival);
    }
    worker->arrival_last = NULL;
    model_close(worker->model);
    model_get_stats(worker->model, &worker->stats.model);
    model_destroy(worker->model);
    worker->model = NULL;
    shm_close(&worker->segment);
    worker->has_session = false;
    unlock(worker);
}

/* ---- control ---- */

static void make_fault(struct hello_message *answer, enum err_code code, const char *text)
{
    answer->type = HELLO_FAULT;
    answer->as.fault = (struct hello_fault){
        .code = code, .text = {.at = text, .byte_count = (uint32_t)strlen(text)}};
}

static bool check_version(const struct fake_worker *worker, uint64_t table_hash,
                          struct hello_message *answer, struct err *err)
{
    uint64_t ours = hello_table_hash() ^ worker->options.table_hash_flip;
    if (table_hash == ours) {
        return true;
    }
    (void)err_set(err, ERR_PROTOCOL, "message tables are %016llx here and %016llx there",
                  (unsigned long long)ours, (unsigned long long)table_hash); /* sent as a fault */
    make_fault(answer, ERR_PROTOCOL, err->message);
    return false;
}

/* With the lock held. */
static void answer_attach(struct fake_worker *worker, const struct hello_attach *attach,
                          struct hello_message *answer, struct err *err)
{
    if (!check_version(worker, attach->table_hash, answer, err)) {
        return;
    }
    bool is_repeated = worker->has_session && worker->nonce == attach->nonce;
    if (!is_repeated && (worker->has_session || worker->busy_left > 0)) {
        worker->busy_left -= worker->busy_left > 0;
        make_fault(answer, ERR_BUSY, "1 session is open, at most 1");
        return;
    }
    if (!is_repeated && open_session(worker, attach->nonce, err) != ERR_OK) {
        make_fault(answer, err->code, err->message);
        return;
    }
    answer->type = HELLO_ATTACHED;
    answer->as.attached = (struct hello_attached){
        .instance_id = worker->options.model.limits.instance_id,
        .epoch = worker->epoch,
        .plan_url = {.at = worker->plan_url, .byte_count = (uint32_t)strlen(worker->plan_url)},
        .segment_name = {.at = worker->segment_name,
                         .byte_count = (uint32_t)strlen(worker->segment_name)},
        .segment_bytes = worker->segment.byte_count,
        .mask_offset_bytes = worker->mask_offset_bytes,
        .mask_words = (worker->options.model.limits.vocab_tokens + 31) / 32,
    };
}

/* With the lock held. */
static void answer_request(struct fake_worker *worker, const struct hello_message *request,
                           struct hello_message *answer, struct err *err)
{
    switch (request->type) {
    case HELLO_HELLO:
        worker->stats.hellos++;
        if (check_version(worker, request->as.hello.table_hash, answer, err)) {
            answer->type = HELLO_WELCOME;
            answer->as.welcome = worker->options.model.limits;
            answer->as.welcome.load_total_bytes = 1000;
            answer->as.welcome.load_done_bytes = 1000;
            if (clock_now_ns() < worker->start_ns + worker->options.load_ns) {
                answer->as.welcome.state = HELLO_STATE_LOADING;
                answer->as.welcome.load_done_bytes = 500;
            }
        }
        break;
    case HELLO_ATTACH: answer_attach(worker, &request->as.attach, answer, err); break;
    case HELLO_CACHE_RESET:
        worker->stats.resets++;
        make_fault(answer, ERR_UNSUPPORTED, "not done by the fake worker");
        break;
    case HELLO_WELCOME:
    case HELLO_ATTACHED:
    case HELLO_STATS:
    case HELLO_STATS_ANSWER:
    case HELLO_PROFILE:
    case HELLO_PROFILE_ANSWER:
    case HELLO_FAULT: make_fault(answer, ERR_UNSUPPORTED, "not answered by the fake worker");
    }
}

static void serve_request(struct fake_worker *worker, nng_msg *bytes, struct mem_arena *arena)
{
    struct hello_message request;
    struct hello_message answer = {0};
    struct err err;
    struct buf out;
    buf_init(&out);
    mem_arena_reset(arena);
    lock(worker);
    if (hello_decode(nng_msg_body(bytes), nng_msg_len(bytes), arena, &request, &err) == ERR_OK) {
        answer_request(worker, &request, &answer, &err);
    } else {
        make_fault(&answer, err.code, err.message);
    }
    struct err encode_err;
    if (hello_encode(&answer, &out, &encode_err) == ERR_OK) {
        (void)nng_send(worker->control, out.at, out.used_bytes, NNG_FLAG_NONBLOCK); /* gone: fine */
    }
    unlock(worker);
    buf_fini(&out);
}

static void *run_control(void *argument)
{
    struct fake_worker *worker = argument;
    struct mem_arena arena;
    struct err err;
    if (mem_arena_init(&arena, plan_decode_arena_bytes(HELLO_MAX_MESSAGE_BYTES), &err) != ERR_OK) {
        return NULL;
    }
    for (;;) {
        nng_msg *bytes = NULL;
        int result = nng_recvmsg(worker->control, &bytes, 0);
        if (result == 0) {
            serve_request(worker, bytes, &arena);
            nng_msg_free(bytes);
        }
        lock(worker);
        bool stops = worker->is_stopping || worker->stats.is_dead;
        unlock(worker);
        if (stops || (result != 0 && result != NNG_ETIMEDOUT)) {
            break;
        }
    }
    mem_arena_fini(&arena);
    return NULL;
}

/* ---- executor; with the lock held ---- */

static void tell_cancel(const struct fake_worker *worker, const struct plan_message *message,
                        uint64_t at_ns)
{
    uint64_t seed = 0;
    bool is_end = message->type == PLAN_CANCEL || message->type == PLAN_RELEASE;
    uint64_t seq_id =
        message->type == PLAN_CANCEL ? message->as.cancel.seq_id : message->as.release.seq_id;
    if (is_end && worker->options.on_cancel != NULL &&
        model_find_seed(worker->model, seq_id, &seed)) {
        worker->options.on_cancel(worker->options.owner, seed, at_ns);
    }
}

static void deliver_arrivals(struct fake_worker *worker)
{
    while (worker->arrival_first != NULL) {
        struct arrival *arrival = worker->arrival_first;
        size_t byte_count = nng_msg_len(arrival->message);
        struct mem_arena arena;
        struct plan_message message;
        struct err err;
        worker->arrival_first = arrival->next;
        worker->arrival_last = arrival->next == NULL ? NULL : worker->arrival_last;
        if (mem_arena_init(&arena, plan_decode_arena_bytes(byte_count), &err) == ERR_OK) {
            if (plan_decode(nng_msg_body(arrival->message), byte_count, &arena, &message, &err) ==
                ERR_OK) {
                worker->stats.pings += message.type == PLAN_PING;
                tell_cancel(worker, &message, arrival->at_ns);
                model_deliver(worker->model, &message, arrival->at_ns);
            } else {
                (void)snprintf(worker->stats.violation, sizeof(worker->stats.violation), "%s",
                               err.message); /* cut is fine */
            }
            mem_arena_fini(&arena);
        }
        nng_msg_free(arrival->message);
        mem_free(arrival);
    }
}

static void publish_records(struct fake_worker *worker, uint64_t now_ns)
{
    struct result_record record;
    bool has_pushed = false;
    while (ring_producer_room(&worker->producer, 1) > 0 &&
           model_try_pop(worker->model, now_ns, &record)) {
        uint64_t seed = 0;
        if (record.kind == RESULT_TOKEN && worker->options.on_token != NULL &&
            model_find_seed(worker->model, record.seq_id, &seed)) {
            worker->options.on_token(worker->options.owner, seed, record.as.token.position,
                                     clock_now_ns());
        }
        has_pushed |= ring_producer_try_push(&worker->producer, &record);
    }
    if (has_pushed) {
        ring_producer_publish(&worker->producer);
    }
}

/* One round; false when the session is to be closed. */
static bool advance(struct fake_worker *worker)
{
    uint64_t now_ns = clock_now_ns();
    if (worker->is_pipe_gone || (!worker->is_piped && now_ns > worker->opened_ns + NO_PIPE_NS)) {
        return false;
    }
    deliver_arrivals(worker);
    model_advance(worker->model, now_ns);
    publish_records(worker, now_ns);
    if (worker->stats.violation[0] == '\0') {
        (void)snprintf(worker->stats.violation, sizeof(worker->stats.violation), "%s",
                       model_violation(worker->model)); /* same size */
    }
    model_get_stats(worker->model, &worker->stats.model);
    if (model_is_dead(worker->model)) {
        worker->stats.is_dead = true;
        if (worker->options.exits_when_dead) {
            _exit(9);
        }
        return false;
    }
    return true;
}

static void wait_for_work(struct fake_worker *worker)
{
    uint64_t next_ns = UINT64_MAX;
    if (worker->has_session && !worker->is_frozen) {
        next_ns = model_next_ns(worker->model);
    }
    uint64_t latest_ns = clock_now_ns() + 100 * CLOCK_NS_PER_MS; /* a full ring, a missing pipe */
    next_ns = next_ns < latest_ns ? next_ns : latest_ns;
    struct timespec deadline = {.tv_sec = (time_t)(next_ns / CLOCK_NS_PER_SEC),
                                .tv_nsec = (long)(next_ns % CLOCK_NS_PER_SEC)};
    (void)pthread_cond_timedwait(&worker->cond, &worker->mutex, &deadline); /* looks again */
}

static void *run_executor(void *argument)
{
    struct fake_worker *worker = argument;
    lock(worker);
    while (!worker->is_stopping && !worker->stats.is_dead) {
        bool goes_on = !worker->has_session || worker->is_frozen || advance(worker);
        if (!goes_on) {
            unlock(worker);
            close_session(worker);
            lock(worker);
        } else if (worker->arrival_first == NULL || worker->is_frozen) {
            wait_for_work(worker);
        }
    }
    unlock(worker);
    return NULL;
}

/* ---- any thread ---- */

static enum err_code start(struct fake_worker *worker, struct err *err)
{
    char url[256];
    (void)snprintf(url, sizeof(url), "ipc://%s/control.ipc", worker->run_dir); /* it fits */
    int result = nng_rep0_open(&worker->control);
    if (result != 0) {
        return err_set(err, ERR_SYSTEM, "%s: %s", url, nng_strerror(result));
    }
    result = nng_socket_set_ms(worker->control, NNG_OPT_RECVTIMEO, CONTROL_TICK_MS);
    result = result == 0 ? nng_listen(worker->control, url, NULL, 0) : result;
    if (result != 0) {
        return err_set(err, ERR_SYSTEM, "%s: %s", url, nng_strerror(result));
    }
    result = pthread_create(&worker->control_thread, NULL, run_control, worker);
    worker->has_control_thread = result == 0;
    if (result == 0) {
        result = pthread_create(&worker->executor_thread, NULL, run_executor, worker);
        worker->has_executor_thread = result == 0;
    }
    return result == 0 ? ERR_OK : err_errno(err, result, "threads of the fake worker");
}

enum err_code fake_start(const struct fake_options *options, struct fake_worker **out_worker,
                         struct err *err)
{
    struct fake_worker *worker = mem_zalloc(1, sizeof(*worker));
    pthread_condattr_t attributes;
    worker->options = *options;
    (void)snprintf(worker->run_dir, sizeof(worker->run_dir), "%s", options->run_dir);
    worker->start_ns = clock_now_ns();
    worker->busy_left = options->busy_attaches;
    worker->next_epoch = 1;
    (void)pthread_mutex_init(&worker->mutex, NULL); /* these cannot fail on Linux */
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&worker->cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    enum err_code code = start(worker, err);
    if (code != ERR_OK) {
        fake_stop(worker);
        return code;
    }
    *out_worker = worker;
    return ERR_OK;
}

void fake_stop(struct fake_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    lock(worker);
    worker->is_stopping = true;
    poke(worker);
    unlock(worker);
    if (worker->has_control_thread) {
        (void)pthread_join(worker->control_thread, NULL);
    }
    if (worker->has_executor_thread) {
        (void)pthread_join(worker->executor_thread, NULL);
    }
    if (worker->has_session) {
        close_session(worker);
    }
    let_rest(ASKING_MS); /* it also panics when a wait of the socket has just timed out */
    (void)nng_close(worker->control);
    (void)pthread_cond_destroy(&worker->cond);
    (void)pthread_mutex_destroy(&worker->mutex);
    mem_free(worker);
}

void fake_get_stats(struct fake_worker *worker, struct fake_stats *out_stats)
{
    lock(worker);
    *out_stats = worker->stats;
    out_stats->has_session = worker->has_session;
    unlock(worker);
}

void fake_freeze(struct fake_worker *worker)
{
    lock(worker);
    worker->is_frozen = true;
    unlock(worker);
}

void fake_thaw(struct fake_worker *worker)
{
    lock(worker);
    worker->is_frozen = false;
    poke(worker);
    unlock(worker);
}
