#include "worker/control.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "proto/plan.h"
#include "worker/attach.h"
#include "worker/executor.h"
#include "worker/link.h"
#include "worker/run_dir.h"
#include "worker/watchdog.h"

enum {
    TICK_MS = 250,
    QUOTED_BYTES = 256,
    POLL_LINK = 0,
    POLL_EVENT,
    POLL_SIGNAL,
    POLL_LIFELINE,
    POLL_COUNT
};

struct control {
    struct control_options options;
    pthread_t thread;
    int event_fd;  /* owned: something for the thread to look at */
    int signal_fd; /* owned */
    _Atomic uint64_t load_done_bytes;
    _Atomic uint64_t load_total_bytes;
    atomic_bool is_stopping;

    pthread_mutex_t mutex; /* guards is_ready and ready, written once by the main thread */
    bool is_ready;
    struct control_ready ready;

    /* the thread's own */
    struct attach_table *attaches;
    struct watchdog watchdog;
    struct mem_arena arena;
    uint64_t drain_until_ns; /* 0: the launcher lives, and nobody asked to stop */
    bool stops_when_idle;    /* asked to stop: sessions need not end, only their sequences */
};

/* ---- answers ---- */

static void answer(struct control *control, const struct hello_message *message)
{
    struct buf bytes;
    struct err err;
    buf_init(&bytes);
    if (hello_encode(message, &bytes, &err) == ERR_OK) {
        link_answer(control->options.link, &bytes);
    } else {
        log_error("control", "answer-failed", "error=\"%s\"", err.message);
    }
    buf_fini(&bytes);
}

static void answer_fault(struct control *control, const struct err *why)
{
    const struct hello_message fault = {
        .type = HELLO_FAULT,
        .as.fault = {.code = (uint32_t)why->code,
                     .text = {why->message, (uint32_t)strlen(why->message)}},
    };
    answer(control, &fault);
}

static bool get_ready(struct control *control, struct control_ready *out_ready)
{
    (void)pthread_mutex_lock(&control->mutex);
    bool is_ready = control->is_ready;
    *out_ready = control->ready;
    (void)pthread_mutex_unlock(&control->mutex);
    return is_ready;
}

static enum err_code check_version(uint32_t protocol_version, uint64_t table_hash, struct err *err)
{
    if (protocol_version != PROTO_VERSION) {
        return err_set(err, ERR_PROTOCOL, "frontend speaks protocol %u, worker %u",
                       protocol_version, PROTO_VERSION);
    }
    if (table_hash != hello_table_hash()) {
        return err_set(err, ERR_PROTOCOL,
                       "frontend has message tables %016" PRIx64 ", worker %016" PRIx64
                       ": restart the worker of this build",
                       table_hash, hello_table_hash());
    }
    return ERR_OK;
}

static enum err_code answer_hello(struct control *control, const struct hello_hello *hello,
                                  struct err *err)
{
    enum err_code code = check_version(hello->protocol_version, hello->table_hash, err);
    if (code != ERR_OK) {
        return code;
    }
    struct control_ready ready;
    struct hello_message message = {.type = HELLO_WELCOME};
    struct hello_welcome *welcome = &message.as.welcome;
    bool is_ready = get_ready(control, &ready);
    *welcome = is_ready ? ready.welcome : control->options.welcome;
    welcome->state = is_ready ? HELLO_STATE_READY : HELLO_STATE_LOADING;
    welcome->load_done_bytes = atomic_load(&control->load_done_bytes);
    welcome->load_total_bytes = atomic_load(&control->load_total_bytes);
    answer(control, &message);
    return ERR_OK;
}

static enum err_code need_ready(struct control *control, struct control_ready *out_ready,
                                struct err *err)
{
    if (!get_ready(control, out_ready)) {
        return err_set(err, ERR_BUSY, "weights are still loading");
    }
    if (control->drain_until_ns != 0) {
        return err_set(err, ERR_CLOSED, "the worker is about to exit");
    }
    return ERR_OK;
}

static enum err_code answer_attach(struct control *control, const struct hello_attach *attach,
                                   struct err *err)
{
    struct control_ready ready;
    struct hello_message message = {.type = HELLO_ATTACHED};
    enum err_code code = check_version(attach->protocol_version, attach->table_hash, err);
    code = code == ERR_OK ? need_ready(control, &ready, err) : code;
    if (code == ERR_OK) {
        const struct attach_options options = {
            .executor = ready.executor,
            .run_dir = control->options.run_dir,
            .masks = ready.masks,
            .ring_records = ready.welcome.ring_records,
            .instance_id = ready.welcome.instance_id,
        };
        code = attach_begin(control->attaches, &options, attach, &message.as.attached, err);
    }
    if (code == ERR_OK) {
        answer(control, &message);
    }
    return code;
}

static enum err_code answer_stats(struct control *control, bool is_reset, struct err *err)
{
    struct control_ready ready;
    if (!get_ready(control, &ready)) {
        return err_set(err, ERR_BUSY, "weights are still loading");
    }
    struct session_stats stats;
    const struct prefix_stats *prefix = &stats.prefix;
    enum err_code code = is_reset ? executor_reset_cache(ready.executor, &stats, err)
                                  : executor_stats(ready.executor, &stats, err);
    if (code != ERR_OK) {
        return code;
    }
    if (is_reset) {
        log_info("control", "cache_reset", "held_global_pages=%u held_local_pages=%u",
                 prefix->cached_pages[RUNNER_FAMILY_GLOBAL],
                 prefix->cached_pages[RUNNER_FAMILY_LOCAL]);
    }
    const struct hello_message message = {
        .type = HELLO_STATS_ANSWER,
        .as.stats_answer = {.instance_id = ready.welcome.instance_id,
                            .sessions = stats.sessions,
                            .sequences = stats.sequences,
                            .local_pages_free = stats.pages_free[RUNNER_FAMILY_LOCAL],
                            .global_pages_free = stats.pages_free[RUNNER_FAMILY_GLOBAL],
                            .steps = stats.steps,
                            .plans_refused = stats.plans_refused,
                            .messages_malformed = stats.messages_malformed,
                            .messages_stale = stats.messages_stale,
                            .sequences_failed = stats.sequences_failed,
                            .steps_failed = stats.steps_failed,
                            .busy_ns = stats.busy_ns,
                            .steady_steps = stats.device.steady_steps,
                            .steady_turns = stats.device.steady_turns,
                            .steady_uploads = stats.device.steady_uploads,
                            .steady_upload_bytes = stats.device.steady_upload_bytes,
                            .steady_launches = stats.device.steady_launches,
                            .steady_host_ns = stats.device.steady_host_ns,
                            .steady_device_ns = stats.device.steady_device_ns,
                            .gaps = stats.device.gaps,
                            .longest_gap_ns = stats.device.longest_gap_ns,
                            .local_pages_cached = stats.pages_cached[RUNNER_FAMILY_LOCAL],
                            .global_pages_cached = stats.pages_cached[RUNNER_FAMILY_GLOBAL],
                            .local_prefix_pages = prefix->cached_pages[RUNNER_FAMILY_LOCAL],
                            .global_prefix_pages = prefix->cached_pages[RUNNER_FAMILY_GLOBAL],
                            .local_pages_evicted = prefix->evicted_pages[RUNNER_FAMILY_LOCAL],
                            .global_pages_evicted = prefix->evicted_pages[RUNNER_FAMILY_GLOBAL],
                            .prefix_query_tokens = stats.prefix_query_tokens,
                            .prefix_hit_tokens = stats.prefix_hit_tokens,
                            .prefix_hits = stats.prefix_hits},
    };
    answer(control, &message);
    return ERR_OK;
}

static enum err_code dispatch(struct control *control, const struct hello_message *message,
                              struct err *err)
{
    switch (message->type) {
    case HELLO_HELLO: return answer_hello(control, &message->as.hello, err);
    case HELLO_ATTACH: return answer_attach(control, &message->as.attach, err);
    case HELLO_STATS: return answer_stats(control, false, err);
    case HELLO_CACHE_RESET: return answer_stats(control, true, err);
    case HELLO_PROFILE: return err_set(err, ERR_UNSUPPORTED, "this worker has no profiler range");
    case HELLO_WELCOME:
    case HELLO_ATTACHED:
    case HELLO_STATS_ANSWER:
    case HELLO_PROFILE_ANSWER:
    case HELLO_FAULT: break;
    }
    return err_set(err, ERR_PROTOCOL, "message type %u is an answer", (uint32_t)message->type);
}

static void answer_requests(struct control *control)
{
    struct buf request;
    buf_init(&request);
    while (link_try_take_request(control->options.link, &request)) {
        struct hello_message message;
        struct err err;
        mem_arena_reset(&control->arena);
        enum err_code code =
            hello_decode(request.at, request.used_bytes, &control->arena, &message, &err);
        code = code == ERR_OK ? dispatch(control, &message, &err) : code;
        if (code != ERR_OK) {
            char quoted[QUOTED_BYTES];
            log_debug("control", "fault", "error=%s",
                      log_quote(err.message, quoted, sizeof(quoted)));
            answer_fault(control, &err);
        }
        buf_reset(&request);
    }
    buf_fini(&request);
}

/* ---- the thread ---- */

/* Orderly end: the executor leaves its loop.  While weights load there is none to wait for. */
static void stop_worker(struct control *control)
{
    struct control_ready ready;
    if (get_ready(control, &ready)) {
        executor_stop(ready.executor);
        return;
    }
    run_dir_close(control->options.run_dir);
    _exit(0); /* the main thread is inside the loader: nothing of it needs an orderly end */
}

static bool has_sequences(struct control *control)
{
    struct control_ready ready;
    struct session_stats stats;
    struct err err;
    if (!get_ready(control, &ready) || attach_alive_count(control->attaches) == 0) {
        return false;
    }
    return executor_stats(ready.executor, &stats, &err) == ERR_OK && stats.sequences > 0;
}

/* What runs is finished, as far as the drain timeout goes; asked twice, it is not. */
static void on_stop(struct control *control)
{
    if (control->drain_until_ns != 0 || !has_sequences(control)) {
        stop_worker(control);
        return;
    }
    control->stops_when_idle = true;
    control->drain_until_ns = clock_now_ns() + control->options.drain_timeout_ns;
    log_info("control", "draining", "timeout_ms=%llu",
             (unsigned long long)(control->options.drain_timeout_ns / CLOCK_NS_PER_MS));
}

static void on_signal(struct control *control)
{
    struct signalfd_siginfo info;
    if (read(control->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
        return;
    }
    log_info("control", "signal", "signal=%u", info.ssi_signo);
    /* A launcher's Ctrl-C reaches its whole process group; the launcher stops us in its order. */
    bool is_launchers = info.ssi_signo == SIGINT && control->options.lifeline_fd >= 0;
    if (!is_launchers) {
        on_stop(control);
    }
}

static void on_launcher_gone(struct control *control)
{
    struct control_ready ready;
    control->drain_until_ns = clock_now_ns() + control->options.drain_timeout_ns;
    bool is_idle = !get_ready(control, &ready) || attach_alive_count(control->attaches) == 0;
    log_warn("control", "launcher-gone", "sessions=%u", attach_alive_count(control->attaches));
    if (is_idle) {
        stop_worker(control);
    }
}

static void on_event(struct control *control)
{
    struct control_ready ready;
    uint64_t count;
    ssize_t got = read(control->event_fd, &count, sizeof(count));
    (void)got; /* only a wake-up */
    if (!get_ready(control, &ready)) {
        return;
    }
    attach_close_ended(control->attaches, ready.executor);
    if (control->drain_until_ns != 0 && attach_alive_count(control->attaches) == 0) {
        stop_worker(control);
    }
}

static void tick(struct control *control)
{
    struct control_ready ready;
    uint64_t now_ns = clock_now_ns();
    if (get_ready(control, &ready)) {
        struct executor_watch watch;
        executor_watch(ready.executor, &watch);
        uint64_t frozen_ns = 0;
        if (watchdog_check(&control->watchdog, &watch, ready.watchdog_ns, now_ns, &frozen_ns)) {
            log_error("watchdog", "executor-frozen", "age_ms=%llu longest_ms=%llu",
                      frozen_ns / CLOCK_NS_PER_MS, watch.longest_step_ns / CLOCK_NS_PER_MS);
            _exit(CONTROL_EXIT_FROZEN); /* main cannot: it is what does not answer */
        }
    }
    bool is_idle = control->stops_when_idle && !has_sequences(control);
    if (control->drain_until_ns != 0 && (is_idle || now_ns > control->drain_until_ns)) {
        control->stops_when_idle = false;
        control->drain_until_ns = UINT64_MAX; /* once */
        stop_worker(control);
    }
}

static void *run(void *argument)
{
    struct control *control = argument;
    struct pollfd fds[POLL_COUNT] = {
        [POLL_LINK] = {link_fd(control->options.link), POLLIN, 0},
        [POLL_EVENT] = {control->event_fd, POLLIN, 0},
        [POLL_SIGNAL] = {control->signal_fd, POLLIN, 0},
        [POLL_LIFELINE] = {control->options.lifeline_fd, POLLIN, 0},
    };
    while (!atomic_load(&control->is_stopping)) {
        /* Without a session there is no step to watch. */
        bool is_watching =
            attach_alive_count(control->attaches) > 0 || control->drain_until_ns != 0;
        int count = poll(fds, POLL_COUNT, is_watching ? TICK_MS : -1);
        if (count < 0 && errno != EINTR) {
            log_error("control", "poll-failed", "errno=%d", errno);
            stop_worker(control);
            break;
        }
        if (count > 0 && fds[POLL_SIGNAL].revents != 0) {
            on_signal(control);
        }
        if (count > 0 && fds[POLL_EVENT].revents != 0) {
            on_event(control);
        }
        if (count > 0 && fds[POLL_LIFELINE].revents != 0) {
            fds[POLL_LIFELINE].fd = -1; /* once */
            on_launcher_gone(control);
        }
        if (count > 0 && fds[POLL_LINK].revents != 0) {
            answer_requests(control);
        }
        tick(control);
    }
    return NULL;
}

static void signal_event(struct control *control)
{
    const uint64_t one = 1;
    ssize_t put = write(control->event_fd, &one, sizeof(one));
    (void)put; /* a full counter wakes the thread as well */
}

static enum err_code open_fds(struct control *control, struct err *err)
{
    sigset_t signals;
    (void)sigemptyset(&signals); /* these cannot fail with valid signals */
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    control->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    control->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (control->event_fd < 0 || control->signal_fd < 0) {
        return err_errno(err, errno, "control thread's descriptors");
    }
    return mem_arena_init(&control->arena, plan_decode_arena_bytes(HELLO_MAX_MESSAGE_BYTES), err);
}

static void destroy(struct control *control)
{
    if (control->event_fd >= 0) {
        (void)close(control->event_fd);
    }
    if (control->signal_fd >= 0) {
        (void)close(control->signal_fd);
    }
    attach_table_destroy(control->attaches);
    mem_arena_fini(&control->arena);
    (void)pthread_mutex_destroy(&control->mutex);
    mem_free(control);
}

enum err_code control_start(const struct control_options *options, struct control **out_control,
                            struct err *err)
{
    struct control *control = mem_zalloc(1, sizeof(*control));
    control->options = *options;
    control->event_fd = -1;
    control->signal_fd = -1;
    control->attaches = attach_table_create(options->welcome.instance_id);
    (void)pthread_mutex_init(&control->mutex, NULL); /* default attributes: cannot fail */
    enum err_code code = open_fds(control, err);
    if (code == ERR_OK) {
        int failure = pthread_create(&control->thread, NULL, run, control);
        code = failure == 0 ? ERR_OK : err_errno(err, failure, "control thread");
    }
    if (code != ERR_OK) {
        destroy(control);
        return code;
    }
    *out_control = control;
    return ERR_OK;
}

void control_set_progress(struct control *control, uint64_t done_bytes, uint64_t total_bytes)
{
    atomic_store(&control->load_done_bytes, done_bytes);
    atomic_store(&control->load_total_bytes, total_bytes);
}

void control_set_ready(struct control *control, const struct control_ready *ready)
{
    (void)pthread_mutex_lock(&control->mutex);
    control->ready = *ready;
    control->is_ready = true;
    (void)pthread_mutex_unlock(&control->mutex);
}

void control_on_ended(void *context)
{
    signal_event(context);
}

void control_stop(struct control *control)
{
    if (control == NULL) {
        return;
    }
    atomic_store(&control->is_stopping, true);
    signal_event(control);
    (void)pthread_join(control->thread, NULL); /* fails only for a thread that is not ours */
    struct control_ready ready;
    if (get_ready(control, &ready)) {
        attach_close_ended(control->attaches, ready.executor);
    }
    destroy(control);
}
