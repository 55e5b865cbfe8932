/* The frontend against the fake worker: added latency and CPU time per token, by streams and step.
 *
 * usage: frontend_bench [FRONTEND MODEL_DIR]   without arguments the engine alone, in this process;
 * with them through HTTP: FRONTEND is bezel-frontend, streams are server-sent events.
 *
 * Latency of a token: from just before it is visible in the ring until the owner's callback runs
 * (engine), or until its event has been read from the client's socket (HTTP).  CPU: of the engine
 * thread, or of the whole frontend process. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "frontend/engine.h"
#include "tests/testlib/engine_client.h"
#include "tests/testlib/fake_worker.h"
#include "tests/testlib/frontend_process.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

enum {
    MAX_STREAMS = 512,
    PROMPT_TOKENS = 8,
    MAX_TOKENS = 2048, /* of one stream */
    READY_NS = 1000000000,
};

/* One measurement; streams are told apart by their seed. */
struct measure {
    uint32_t streams;
    uint32_t tokens; /* of each stream */
    _Atomic uint64_t shown_ns[MAX_STREAMS][MAX_TOKENS];
    uint64_t delays_ns[MAX_STREAMS * MAX_TOKENS];
    _Atomic uint32_t delay_count;
    _Atomic uint32_t ended;
    uint64_t first_cpu_ns; /* of the engine thread, at the first token */
    uint64_t last_cpu_ns;
    uint32_t prompt_tokens; /* of each stream */
};

struct stream {
    struct measure *measure; /* borrowed */
    uint32_t index;
};

static uint64_t thread_cpu_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

/* The fake worker's executor: a token is about to be visible. */
static void on_token(void *owner, uint64_t seed, uint32_t position, uint64_t now_ns)
{
    struct measure *measure = owner;
    if (seed < MAX_STREAMS && position >= measure->prompt_tokens &&
        position - measure->prompt_tokens < MAX_TOKENS) {
        atomic_store_explicit(&measure->shown_ns[seed][position - measure->prompt_tokens], now_ns,
                              memory_order_relaxed);
    }
}

static void add_delay(struct measure *measure, uint32_t stream, uint32_t index, uint64_t now_ns)
{
    if (stream < MAX_STREAMS && index < MAX_TOKENS) {
        uint64_t shown_ns =
            atomic_load_explicit(&measure->shown_ns[stream][index], memory_order_relaxed);
        uint32_t at = atomic_fetch_add_explicit(&measure->delay_count, 1, memory_order_relaxed);
        measure->delays_ns[at] = now_ns > shown_ns ? now_ns - shown_ns : 0;
    }
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *left = a;
    const uint64_t *right = b;
    return (*left > *right) - (*left < *right);
}

static void print_result(struct measure *measure, uint64_t step_us, double seconds,
                         double cpu_ns_per_token)
{
    uint32_t count = atomic_load(&measure->delay_count);
    uint32_t middle = count / 2;
    uint32_t high = count - 1 - count / 100;
    qsort(measure->delays_ns, count, sizeof(measure->delays_ns[0]), compare_u64);
    (void)printf("%8u %8llu %12.0f %10.1f %10.1f %10.1f %12.2f\n", measure->streams,
                 (unsigned long long)step_us, (double)count / seconds,
                 (double)measure->delays_ns[middle] / 1e3, (double)measure->delays_ns[high] / 1e3,
                 (double)measure->delays_ns[count - 1] / 1e3, cpu_ns_per_token / 1e3);
    (void)fflush(stdout);
}

static void start_fake(struct fake_worker **out_fake, struct measure *measure, const char *run_dir,
                       uint64_t step_us, uint64_t tokenizer_hash)
{
    struct err err;
    struct fake_options options = {
        .run_dir = run_dir,
        .model = {.limits = model_small_limits(), .step_ns = step_us * 1000},
        .on_token = on_token,
        .owner = measure,
    };
    options.model.limits.vocab_tokens = 2048;
    options.model.limits.tokenizer_hash = tokenizer_hash;
    options.model.limits.slots = MAX_STREAMS;
    options.model.limits.max_step_rows = MAX_STREAMS;
    options.model.limits.max_step_tokens = 4096;
    options.model.limits.max_context_tokens = 4096;
    options.model.limits.local_pages = 1000000;
    options.model.limits.global_pages = 1000000;
    options.model.limits.ring_records = 16384;
    options.model.token_first = 300; /* plain pieces of the demo model's vocabulary */
    options.model.token_span = 100;
    test_ok(fake_start(&options, out_fake, &err), &err);
}

/* ---- engine alone ---- */

static void on_event(void *owner, const struct engine_event *event)
{
    struct stream *stream = owner;
    struct measure *measure = stream->measure;
    uint64_t now_ns = clock_now_ns();
    if (event->kind == ENGINE_EVENT_TOKEN) {
        if (atomic_load_explicit(&measure->delay_count, memory_order_relaxed) == 0) {
            measure->first_cpu_ns = thread_cpu_ns();
        }
        add_delay(measure, stream->index, event->position - PROMPT_TOKENS, now_ns);
    } else if (event->kind == ENGINE_EVENT_FINISHED || event->kind == ENGINE_EVENT_FAILED) {
        measure->last_cpu_ns = thread_cpu_ns();
        atomic_fetch_add(&measure->ended, 1);
    }
}

static void bench_engine(const char *run_dir, uint32_t streams, uint64_t step_us)
{
    static const uint32_t prompt[PROMPT_TOKENS];
    struct measure *measure = mem_zalloc(1, sizeof(*measure));
    struct stream *all = mem_zalloc(streams, sizeof(*all));
    struct fake_worker *fake = NULL;
    struct engine *engine = NULL;
    struct err err;
    struct timespec tick = {.tv_nsec = 5000000};
    measure->streams = streams;
    measure->prompt_tokens = PROMPT_TOKENS;
    measure->tokens = 500;
    start_fake(&fake, measure, run_dir, step_us, 0);
    struct engine_options options = {.run_dir = run_dir, .name = "bench", .max_queue = MAX_STREAMS};
    test_ok(engine_create(&options, &engine, &err), &err);
    test_true(client_wait_status(engine, client_is_ready, 5 * CLOCK_NS_PER_SEC));
    uint64_t start_ns = clock_now_ns();
    for (uint32_t i = 0; i < streams; i++) {
        all[i] = (struct stream){.measure = measure, .index = i};
        struct engine_request request = {
            .admit = {.prompt = {.at = prompt, .count = PROMPT_TOKENS},
                      .output_start = PROMPT_TOKENS,
                      .max_total = PROMPT_TOKENS + measure->tokens,
                      .seed = i,
                      .top_p = 1,
                      .repetition_penalty = 1},
            .on_event = on_event,
            .owner = &all[i],
        };
        uint64_t request_id = 0;
        test_ok(engine_submit(engine, &request, &request_id, &err), &err);
    }
    while (atomic_load(&measure->ended) < streams) {
        (void)nanosleep(&tick, NULL);
    }
    double seconds = (double)(clock_now_ns() - start_ns) / 1e9;
    double cpu_ns = (double)(measure->last_cpu_ns - measure->first_cpu_ns);
    print_result(measure, step_us, seconds, cpu_ns / (double)atomic_load(&measure->delay_count));
    engine_destroy(engine);
    fake_stop(fake);
    mem_free(all);
    mem_free(measure);
}

/* ---- through HTTP ---- */

static uint64_t process_cpu_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec now = {0};
    test_true(clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &now) == 0);
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

/* One client connection that counts tokens as they come. */
struct reader {
    struct http_client client;
    uint32_t tokens;
    uint32_t ids_matched; /* characters of the marks seen at the end of the last bytes */
    uint32_t done_matched;
    bool is_in_ids;
    bool has_digit; /* of the present id */
    bool is_done;
};

/* True where text[0..] has just been seen in whole. */
static bool match(const char *mark, uint32_t *matched, char byte)
{
    *matched = byte == mark[*matched] ? *matched + 1 : byte == mark[0];
    if (mark[*matched] == '\0') {
        *matched = 0;
        return true;
    }
    return false;
}

/* Reads what is there.  An event may hold several tokens, and their number is that of its ids. */
static void read_events(struct measure *measure, struct reader *reader, uint32_t index)
{
    char bytes[8192];
    ssize_t count = recv(reader->client.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    uint64_t now_ns = clock_now_ns();
    if (count <= 0) {
        test_true(count < 0 && (errno == EAGAIN || errno == EINTR));
        return;
    }
    for (ssize_t i = 0; i < count; i++) {
        char byte = bytes[i];
        if (reader->is_in_ids && (byte == ',' || byte == ']')) {
            if (reader->has_digit) {
                add_delay(measure, index, reader->tokens++, now_ns);
            }
            reader->has_digit = false;
            reader->is_in_ids = byte == ',';
        } else if (reader->is_in_ids) {
            reader->has_digit = true;
        }
        reader->is_in_ids |= match("\"token_ids\":[", &reader->ids_matched, byte);
        reader->is_done |= match("data: [DONE]", &reader->done_matched, byte);
    }
}

static void read_all(struct measure *measure, struct reader *readers)
{
    struct pollfd *fds = mem_zalloc(measure->streams, sizeof(*fds));
    uint32_t open_count = measure->streams;
    for (uint32_t i = 0; i < measure->streams; i++) {
        fds[i] = (struct pollfd){.fd = readers[i].client.fd, .events = POLLIN};
    }
    while (open_count > 0) {
        test_true(poll(fds, measure->streams, 10000) > 0);
        for (uint32_t i = 0; i < measure->streams; i++) {
            if ((fds[i].revents & POLLIN) == 0) {
                continue;
            }
            read_events(measure, &readers[i], i);
            if (readers[i].is_done) {
                fds[i].fd = -1;
                open_count--;
            }
        }
    }
    mem_free(fds);
}

static void bench_http(const char *run_dir, const char *const *programs, uint32_t streams,
                       uint64_t step_us)
{
    struct measure *measure = mem_zalloc(1, sizeof(*measure));
    struct reader *readers = mem_zalloc(streams, sizeof(*readers));
    struct frontend_process frontend;
    struct fake_worker *fake = NULL;
    struct err err;
    char path[512];
    uint64_t tokenizer_hash = 0;
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", programs[1]);
    test_ok(hello_hash_file(path, &tokenizer_hash, &err), &err);
    measure->streams = streams;
    measure->tokens = 500;
    measure->prompt_tokens = PROMPT_TOKENS;
    start_fake(&fake, measure, run_dir, step_us, tokenizer_hash);
    const char *arguments[] = {"--run-dir",   run_dir,       "--served-model-name",
                               "bench",       "--max-queue", "1000",
                               "--log-level", "error",       NULL};
    frontend_process_start(&frontend, programs[0], programs[1], arguments);
    frontend_process_await_ready(&frontend);
    uint64_t start_ns = clock_now_ns();
    uint64_t cpu_ns = process_cpu_ns(frontend.pid);
    for (uint32_t i = 0; i < streams; i++) {
        char body[300];
        (void)snprintf(body, sizeof(body),
                       "{\"model\":\"bench\",\"prompt\":[301,302,303,304,305,306,307,308],"
                       "\"max_tokens\":%u,\"seed\":%u,\"ignore_eos\":true,\"stream\":true,"
                       "\"return_token_ids\":true}",
                       measure->tokens, i); /* it fits */
        http_client_open(&readers[i].client, frontend.port);
        http_client_request(&readers[i].client, "POST", "/v1/completions", "", body);
    }
    read_all(measure, readers);
    double seconds = (double)(clock_now_ns() - start_ns) / 1e9;
    cpu_ns = process_cpu_ns(frontend.pid) - cpu_ns;
    print_result(measure, step_us, seconds,
                 (double)cpu_ns / (double)atomic_load(&measure->delay_count));
    for (uint32_t i = 0; i < streams; i++) {
        http_client_close(&readers[i].client);
    }
    (void)frontend_process_stop(&frontend); /* its exit status is another test's */
    fake_stop(fake);
    mem_free(readers);
    mem_free(measure);
}

static const char *const *programs; /* set once by main */

static void run_benches(void)
{
    static const struct {
        uint32_t streams;
        uint64_t step_us;
    } loads[] = {{1, 6000}, {16, 8000}, {64, 10000}, {100, 14000}, {256, 20000}, {256, 2000}};
    char run_dir[] = "/tmp/bezel-bench-XXXXXX";
    test_true(mkdtemp(run_dir) != NULL);
    (void)printf("%8s %8s %12s %10s %10s %10s %12s\n", "streams", "step_us", "tokens/s", "p50_us",
                 "p99_us", "max_us", "cpu_us/token");
    for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
        if (programs != NULL) {
            bench_http(run_dir, programs, loads[i].streams, loads[i].step_us);
        } else {
            bench_engine(run_dir, loads[i].streams, loads[i].step_us);
        }
    }
    (void)rmdir(run_dir); /* a leftover in /tmp is no failure */
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {TEST(run_benches)};
    const char *paths[2] = {argc > 2 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL};
    log_init("frontend_bench", LOG_LEVEL_ERROR);
    programs = argc > 2 ? paths : NULL;
    return test_main(1, argv, cases, 1);
}
