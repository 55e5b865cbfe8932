#include "worker/executor.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "proto/plan.h"
#include "worker/record.h"

enum {
    ENDED_MAX = 2 * SESSION_MAX_COUNT, /* the control thread takes them before it attaches more */
    QUOTED_BYTES = 256,
};

/* A stopped process finds its deadlines passed before nng's threads have run again: a session gets
 * this long to show that its messages were only late. */
#define GRACE_NS (100 * CLOCK_NS_PER_MS)

/* Sleep between looks at a full ring, whose consumer does not call. */
#define ROOM_FIRST_NS (100ULL * 1000)
#define ROOM_LAST_NS  (10 * CLOCK_NS_PER_MS)
#define MASK_LOOK_NS  (200ULL * 1000)

struct live {
    struct session *session; /* null: a free entry */
    struct executor_attach attach;
    uint64_t opened_ns;
    uint64_t heard_ns;   /* the last message, or opened_ns */
    uint64_t suspect_ns; /* when the deadline was first seen passed; 0: it is not */
    bool has_spoken;
};

enum request_kind {
    REQUEST_NONE,
    REQUEST_ATTACH,
    REQUEST_STATS,
    REQUEST_CACHE_RESET, /* then as STATS */
};

struct request {
    enum request_kind kind;
    bool is_seen; /* the executor looked and put it off */
    bool is_done;
    struct executor_attach attach;
    struct session_stats stats;
    enum err_code code;
    struct err err;
};

struct executor {
    struct executor_options options;
    struct mem_arena arena; /* of the message being decoded; executor thread */
    struct live lives[SESSION_MAX_COUNT];
    uint64_t room_wait_ns;
    uint64_t busy_ns; /* in passes that moved something */

    atomic_bool is_stopping;
    atomic_bool is_signalled; /* something to look at since the loop last began */
    _Atomic uint64_t oldest_launch_ns;
    _Atomic uint64_t busy_since_ns;
    _Atomic uint64_t longest_step_ns;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake;
    pthread_cond_t answered;
    struct request request;
    struct executor_attach ended[ENDED_MAX];
    uint32_t ended_count;
};

enum err_code executor_create(const struct executor_options *options,
                              struct executor **out_executor, struct err *err)
{
    struct executor *executor = mem_zalloc(1, sizeof(*executor));
    executor->options = *options;
    enum err_code code =
        mem_arena_init(&executor->arena, plan_decode_arena_bytes(PLAN_MAX_MESSAGE_BYTES), err);
    if (code != ERR_OK) {
        mem_free(executor);
        return code;
    }
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic); /* these cannot fail with valid arguments */
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&executor->mutex, NULL);
    (void)pthread_cond_init(&executor->wake, &monotonic);
    (void)pthread_cond_init(&executor->answered, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    *out_executor = executor;
    return ERR_OK;
}

void executor_destroy(struct executor *executor)
{
    if (executor == NULL) {
        return;
    }
    (void)pthread_cond_destroy(&executor->answered);
    (void)pthread_cond_destroy(&executor->wake);
    (void)pthread_mutex_destroy(&executor->mutex);
    mem_arena_fini(&executor->arena);
    mem_free(executor);
}

static struct timespec timespec_of(uint64_t time_ns)
{
    return (struct timespec){
        .tv_sec = (time_t)(time_ns / CLOCK_NS_PER_SEC),
        .tv_nsec = (long)(time_ns % CLOCK_NS_PER_SEC),
    };
}

/* ---- sessions ---- */

static void write_record(struct executor *executor, enum record_kind kind, uint64_t epoch,
                         const struct link_message *message)
{
    if (executor->options.record == NULL) {
        return;
    }
    struct session_stats stats;
    session_core_stats(executor->options.core, &stats);
    const struct record_entry entry = {
        .kind = kind,
        .time_ns = clock_now_ns(),
        .epoch = epoch,
        .answers = record_answers(&stats),
        .bytes = message == NULL ? NULL : message->bytes,
        .byte_count = message == NULL ? 0 : (uint32_t)message->byte_count,
    };
    record_write(executor->options.record, &entry);
    if (kind == RECORD_CLOSE) {
        record_flush(executor->options.record);
    }
}

/* What the device was given to do, where there is one to be given something. */
static void log_device(struct executor *executor)
{
    struct session_stats stats;
    session_core_stats(executor->options.core, &stats);
    const struct runner_counters *device = &stats.device;
    if (device->steps > 0) {
        log_info("device", "steps",
                 "steps=%" PRIu64 " graph_steps=%" PRIu64 " steady_steps=%" PRIu64
                 " steady_turns=%" PRIu64 " steady_uploads=%" PRIu64 " steady_upload_bytes=%" PRIu64
                 " steady_launches=%" PRIu64 " steady_host_ns=%" PRIu64 " steady_device_ns=%" PRIu64
                 " gaps=%" PRIu64 " longest_gap_ns=%" PRIu64 " uploads=%" PRIu64
                 " upload_bytes=%" PRIu64 " launches=%" PRIu64 " busy_ns=%" PRIu64,
                 device->steps, device->graph_steps, device->steady_steps, device->steady_turns,
                 device->steady_uploads, device->steady_upload_bytes, device->steady_launches,
                 device->steady_host_ns, device->steady_device_ns, device->gaps,
                 device->longest_gap_ns, device->uploads, device->upload_bytes, device->launches,
                 executor->busy_ns);
    }
}

static void end_session(struct executor *executor, struct live *live, const char *reason)
{
    session_close(live->session);
    write_record(executor, RECORD_CLOSE, live->attach.epoch, NULL);
    char quoted[QUOTED_BYTES];
    log_info("session", "ended", "epoch=%" PRIu64 " reason=%s", live->attach.epoch,
             log_quote(reason, quoted, sizeof(quoted)));
    log_device(executor);
    (void)pthread_mutex_lock(&executor->mutex);
    assert(executor->ended_count < ENDED_MAX);
    executor->ended[executor->ended_count++] = live->attach;
    (void)pthread_mutex_unlock(&executor->mutex);
    *live = (struct live){0};
    executor->options.on_ended(executor->options.owner);
}

static enum err_code deliver(struct executor *executor, struct live *live,
                             const struct link_message *message, struct err *err)
{
    write_record(executor, RECORD_MESSAGE, live->attach.epoch, message);
    mem_arena_reset(&executor->arena);
    struct plan_message plan;
    struct err why;
    if (plan_decode(message->bytes, message->byte_count, &executor->arena, &plan, &why) != ERR_OK) {
        session_deliver_malformed(live->session, &why);
        return ERR_OK;
    }
    return session_deliver(live->session, &plan, err);
}

/* False when the session has ended. */
static bool drain(struct executor *executor, struct live *live, uint64_t now_ns)
{
    struct link_message message;
    while (session_can_receive(live->session) && link_plan_try_take(live->attach.plan, &message)) {
        if (!live->has_spoken) {
            live->has_spoken = true;
            shm_unlink_name(&live->attach.segment->shm); /* the peer has mapped it */
        }
        live->heard_ns = now_ns;
        live->suspect_ns = 0;
        struct err err;
        enum err_code code = deliver(executor, live, &message, &err);
        link_message_free(&message);
        if (code != ERR_OK) {
            end_session(executor, live, err.message);
            return false;
        }
    }
    return true;
}

static uint64_t deadline_of(const struct executor *executor, const struct live *live)
{
    if (live->suspect_ns != 0) {
        return live->suspect_ns + GRACE_NS;
    }
    bool has_pipe = link_plan_state(live->attach.plan) != LINK_PLAN_WAITING;
    return has_pipe ? live->heard_ns + executor->options.session_timeout_ns
                    : live->opened_ns + executor->options.attach_timeout_ns;
}

static void look_at(struct executor *executor, struct live *live, uint64_t now_ns)
{
    enum link_plan_state state = link_plan_state(live->attach.plan);
    if (state == LINK_PLAN_CLOSED) {
        end_session(executor, live, "pipe closed");
        return;
    }
    if (!drain(executor, live, now_ns)) {
        return;
    }
    if (!session_can_receive(live->session)) {
        live->heard_ns = now_ns; /* it is we who do not listen */
        return;
    }
    if (now_ns < deadline_of(executor, live)) {
        return;
    }
    if (live->suspect_ns == 0) {
        live->suspect_ns = now_ns;
        return;
    }
    end_session(executor, live,
                state == LINK_PLAN_WAITING ? "no plan pipe came" : "no message in time");
}

static void look_at_all(struct executor *executor, uint64_t now_ns)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (executor->lives[i].session != NULL) {
            look_at(executor, &executor->lives[i], now_ns);
        }
    }
}

/* ---- requests ---- */

static struct live *find_free(struct executor *executor)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (executor->lives[i].session == NULL) {
            return &executor->lives[i];
        }
    }
    return NULL;
}

static void begin_session(struct executor *executor, struct live *live, uint64_t now_ns)
{
    struct request *request = &executor->request;
    request->code = session_open(executor->options.core, request->attach.epoch,
                                 request->attach.segment, NULL, &live->session, &request->err);
    if (request->code != ERR_OK) {
        live->session = NULL;
        return;
    }
    live->attach = request->attach;
    live->opened_ns = now_ns;
    live->heard_ns = now_ns;
    write_record(executor, RECORD_OPEN, live->attach.epoch, NULL);
}

static void answer_request(struct executor *executor, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&executor->mutex);
    struct request *request = &executor->request;
    bool is_answered = false;
    bool is_reset = request->kind == REQUEST_CACHE_RESET;
    if ((is_reset || request->kind == REQUEST_STATS) && !request->is_done) {
        if (is_reset) {
            session_core_reset_cache(executor->options.core);
        }
        session_core_stats(executor->options.core, &request->stats);
        request->stats.busy_ns = executor->busy_ns;
        request->code = ERR_OK;
        is_answered = true;
    } else if (request->kind == REQUEST_ATTACH && !request->is_done) {
        struct live *live = find_free(executor);
        if (!request->is_seen) {
            request->is_seen = true;
            (void)pthread_cond_signal(&executor->answered); /* another deadline holds now */
        }
        if (live != NULL) {
            begin_session(executor, live, now_ns);
            is_answered = true;
        }
    }
    if (is_answered) {
        request->is_done = true;
        (void)pthread_cond_signal(&executor->answered);
    }
    (void)pthread_mutex_unlock(&executor->mutex);
}

/* Posts the request that the caller has filled in, and waits: until busy_until_ns for one that the
 * executor has put off, EXECUTOR_ANSWER_WAIT_NS for one that it has not seen.  The mutex is held. */
static enum err_code wait_for_answer(struct executor *executor, uint64_t busy_until_ns,
                                     struct err *err)
{
    struct request *request = &executor->request;
    const struct timespec busy_until = timespec_of(busy_until_ns);
    const struct timespec unseen_until = timespec_of(clock_now_ns() + EXECUTOR_ANSWER_WAIT_NS);
    (void)pthread_mutex_unlock(&executor->mutex);
    executor_wake(executor);
    (void)pthread_mutex_lock(&executor->mutex);
    int result = 0;
    while (!request->is_done && result == 0) {
        result = pthread_cond_timedwait(&executor->answered, &executor->mutex,
                                        request->is_seen ? &busy_until : &unseen_until);
    }
    enum err_code code = request->code;
    if (!request->is_done) {
        code = request->is_seen ? err_set(err, ERR_BUSY, "%u sessions are alive, at most %u",
                                          SESSION_MAX_COUNT, SESSION_MAX_COUNT)
                                : err_set(err, ERR_TIMEOUT, "the executor does not answer");
    } else if (code != ERR_OK && err != NULL) {
        *err = request->err;
    }
    request->kind = REQUEST_NONE; /* withdrawn, where it was not done */
    return code;
}

enum err_code executor_attach(struct executor *executor, const struct executor_attach *attach,
                              uint64_t deadline_ns, struct err *err)
{
    (void)pthread_mutex_lock(&executor->mutex);
    executor->request = (struct request){.kind = REQUEST_ATTACH, .attach = *attach};
    enum err_code code = wait_for_answer(executor, deadline_ns, err);
    (void)pthread_mutex_unlock(&executor->mutex);
    return code;
}

static enum err_code ask_for_stats(struct executor *executor, enum request_kind kind,
                                   struct session_stats *out_stats, struct err *err)
{
    (void)pthread_mutex_lock(&executor->mutex);
    executor->request = (struct request){.kind = kind};
    enum err_code code = wait_for_answer(executor, UINT64_MAX, err);
    if (code == ERR_OK) {
        *out_stats = executor->request.stats;
    }
    (void)pthread_mutex_unlock(&executor->mutex);
    return code;
}

enum err_code executor_stats(struct executor *executor, struct session_stats *out_stats,
                             struct err *err)
{
    return ask_for_stats(executor, REQUEST_STATS, out_stats, err);
}

enum err_code executor_reset_cache(struct executor *executor, struct session_stats *out_stats,
                                   struct err *err)
{
    return ask_for_stats(executor, REQUEST_CACHE_RESET, out_stats, err);
}

bool executor_try_take_ended(struct executor *executor, struct executor_attach *out_attach)
{
    (void)pthread_mutex_lock(&executor->mutex);
    bool has_one = executor->ended_count > 0;
    if (has_one) {
        *out_attach = executor->ended[--executor->ended_count];
    }
    (void)pthread_mutex_unlock(&executor->mutex);
    return has_one;
}

void executor_watch(struct executor *executor, struct executor_watch *out_watch)
{
    *out_watch = (struct executor_watch){
        .oldest_launch_ns = atomic_load(&executor->oldest_launch_ns),
        .busy_since_ns = atomic_load(&executor->busy_since_ns),
        .longest_step_ns = atomic_load(&executor->longest_step_ns),
    };
}

/* ---- the loop ---- */

void executor_wake(void *context)
{
    struct executor *executor = context;
    struct runner *runner = executor->options.runner;
    (void)pthread_mutex_lock(&executor->mutex);
    atomic_store(&executor->is_signalled, true);
    (void)pthread_cond_signal(&executor->wake);
    (void)pthread_mutex_unlock(&executor->mutex);
    runner->table->wake(runner);
}

void executor_stop(struct executor *executor)
{
    atomic_store(&executor->is_stopping, true);
    executor_wake(executor);
}

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* When to look again at the latest though nobody calls; UINT64_MAX: never. */
static uint64_t next_look_ns(struct executor *executor, const struct session_progress *progress,
                             uint64_t now_ns)
{
    uint64_t look_ns = UINT64_MAX;
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (executor->lives[i].session != NULL) {
            look_ns = earlier(look_ns, deadline_of(executor, &executor->lives[i]));
        }
    }
    if (progress->wants_room) {
        uint64_t wait_ns = executor->room_wait_ns * 2;
        wait_ns = wait_ns < ROOM_FIRST_NS ? ROOM_FIRST_NS : wait_ns;
        executor->room_wait_ns = earlier(wait_ns, ROOM_LAST_NS);
        look_ns = earlier(look_ns, now_ns + executor->room_wait_ns);
    }
    /* Masks are written without a call, while a forward pass of milliseconds runs. */
    return progress->wants_masks ? earlier(look_ns, now_ns + MASK_LOOK_NS) : look_ns;
}

static void sleep_idle(struct executor *executor, uint64_t until_ns)
{
    if (executor->options.record != NULL) {
        record_flush(
            executor->options.record); /* a killed worker's record holds what came so far */
    }
    const struct timespec deadline = timespec_of(until_ns);
    int result = 0;
    (void)pthread_mutex_lock(&executor->mutex);
    while (!atomic_load(&executor->is_signalled) && result == 0) {
        result = until_ns == UINT64_MAX
                     ? pthread_cond_wait(&executor->wake, &executor->mutex)
                     : pthread_cond_timedwait(&executor->wake, &executor->mutex, &deadline);
    }
    (void)pthread_mutex_unlock(&executor->mutex);
}

static void sleep_for_step(struct executor *executor, uint64_t now_ns, uint64_t until_ns)
{
    struct runner *runner = executor->options.runner;
    uint64_t spin_until_ns = earlier(now_ns + executor->options.spin_ns, until_ns);
    while (clock_now_ns() < spin_until_ns) {
        if (runner->table->is_done(runner) || atomic_load(&executor->is_signalled)) {
            return;
        }
        __builtin_ia32_pause();
    }
    /* The loop looks at everything anyway. */
    (void)runner->table->wait(runner, earlier(until_ns, now_ns + CLOCK_NS_PER_SEC));
}

static enum err_code advance(struct executor *executor, uint64_t now_ns,
                             struct session_progress *out_progress, struct err *err)
{
    atomic_store(&executor->busy_since_ns, now_ns);
    enum err_code code = session_core_advance(executor->options.core, now_ns, out_progress, err);
    struct session_stats stats;
    session_core_stats(executor->options.core, &stats);
    atomic_store(&executor->oldest_launch_ns, stats.oldest_launch_ns);
    atomic_store(&executor->longest_step_ns, stats.longest_step_ns);
    atomic_store(&executor->busy_since_ns, 0);
    return code;
}

static void end_all(struct executor *executor)
{
    for (uint32_t i = 0; i < SESSION_MAX_COUNT; i++) {
        if (executor->lives[i].session != NULL) {
            end_session(executor, &executor->lives[i], "worker stops");
        }
    }
}

enum err_code executor_run(struct executor *executor, struct err *err)
{
    while (!atomic_load(&executor->is_stopping)) {
        atomic_store(&executor->is_signalled, false);
        uint64_t now_ns = clock_now_ns();
        look_at_all(executor, now_ns);
        answer_request(executor, now_ns);
        struct session_progress progress = {0};
        enum err_code code = advance(executor, now_ns, &progress, err);
        if (code != ERR_OK) {
            return code;
        }
        if (progress.moved) {
            executor->busy_ns += clock_now_ns() - now_ns;
            executor->room_wait_ns = 0;
            continue;
        }
        uint64_t until_ns = next_look_ns(executor, &progress, now_ns);
        if (progress.steps_in_flight > 0) {
            sleep_for_step(executor, now_ns, until_ns);
        } else {
            sleep_idle(executor, until_ns);
        }
    }
    end_all(executor);
    return ERR_OK;
}
