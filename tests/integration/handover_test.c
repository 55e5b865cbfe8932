/* One frontend hands over to the next under load, with real processes: clients that never try again see
 * no refused, reset or failed request, and the right text each time. */
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/http2_client.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"

enum {
    RELOADS = 10,
    KEPT_CLIENTS = 24, /* one connection for many requests */
    NEW_CLIENTS = 24,  /* a connection for each */
    HTTP2_CLIENTS = 15,
    GAP_CLIENTS = 1, /* one long stream after another, of which the gaps are measured */
    CLIENTS = KEPT_CLIENTS + NEW_CLIENTS + HTTP2_CLIENTS + GAP_CLIENTS,
    PROMPTS = 6,
    TEXT_BYTES = 512,
    OUTPUT_TOKENS = 12,
    GAP_TOKENS = 200,
};

static const char *const prompts[PROMPTS] = {
    "The capital of France is", "Once upon a time",     "Spell the word rocket:",
    "What is 17 + 25?",         "The sea was calm and", "A list of colours: red,",
};

/* What the clients, processes of their own, share with the test. */
struct load {
    char texts[PROMPTS][TEXT_BYTES]; /* as they are without load */
    atomic_bool is_over;
    atomic_uint requests[CLIENTS];
    atomic_uint closes; /* connections that were to be closed after an answer */
    _Atomic uint64_t longest_gap_ns;
    uint16_t port;
};

/* Of a client's process: test cases take no argument. */
static struct load *load;
static uint32_t client_index;

static void put_body(char body[TEXT_BYTES], uint32_t prompt, uint32_t tokens, bool is_stream)
{
    (void)snprintf(body, TEXT_BYTES,
                   "{\"model\":\"demo-model\",\"prompt\":\"%s\",\"max_tokens\":%u,"
                   "\"temperature\":0,\"ignore_eos\":true,\"stream\":%s}",
                   prompts[prompt], tokens, is_stream ? "true" : "false"); /* fits */
}

/* All values of "text" in an answer, as they are escaped there, one behind the other. */
static void join_texts(const char *answer, char out_text[TEXT_BYTES])
{
    static const char key[] = "\"text\":\"";
    size_t used = 0;
    for (const char *at = strstr(answer, key); at != NULL; at = strstr(at, key)) {
        at += strlen(key);
        while (*at != '"' && *at != '\0') {
            size_t bytes = *at == '\\' ? 2 : 1;
            test_true(used + bytes < TEXT_BYTES);
            memcpy(out_text + used, at, bytes);
            used += bytes;
            at += bytes;
        }
    }
    out_text[used] = '\0';
}

static void check_answer(const char *answer, uint32_t prompt)
{
    char text[TEXT_BYTES];
    if (strstr(answer, "\"error\"") != NULL) {
        test_fail(__FILE__, __LINE__, "client %u: %s", client_index, answer);
    }
    join_texts(answer, text);
    test_eq_str(text, load->texts[prompt]);
    atomic_fetch_add(&load->requests[client_index], 1);
}

/* True while the connection may be used again. */
static bool exchange(struct http_client *client, uint32_t turn)
{
    char body[TEXT_BYTES];
    struct http_answer answer;
    uint32_t prompt = (client_index + turn) % PROMPTS;
    put_body(body, prompt, OUTPUT_TOKENS, turn % 2 == 0);
    http_client_request(client, "POST", "/v1/completions", "", body);
    http_client_read(client, &answer);
    if (answer.status != 200) {
        test_fail(__FILE__, __LINE__, "client %u, request %u: status %d%s: %s", client_index, turn,
                  answer.status, answer.has_closed ? ", closed" : "", buf_text(&answer.body));
    }
    check_answer(buf_text(&answer.body), prompt);
    const char *connection = http_answer_header(&answer, "connection");
    bool is_last = answer.has_closed || (connection != NULL && strcmp(connection, "close") == 0);
    http_answer_fini(&answer);
    return !is_last;
}

static void run_kept(void)
{
    struct http_client client;
    bool is_open = false;
    for (uint32_t turn = 0; !atomic_load(&load->is_over); turn++) {
        if (!is_open) {
            http_client_open(&client, load->port);
        }
        is_open = exchange(&client, turn);
        if (!is_open) {
            atomic_fetch_add(&load->closes, 1);
            http_client_close(&client);
        }
    }
}

static void run_new(void)
{
    for (uint32_t turn = 0; !atomic_load(&load->is_over); turn++) {
        struct http_client client;
        http_client_open(&client, load->port);
        (void)exchange(&client, turn);
        http_client_close(&client);
    }
}

static void run_http2(void)
{
    struct http2_client client;
    bool is_open = false;
    uint32_t ends = 0;
    for (uint32_t turn = 0; !atomic_load(&load->is_over); turn++) {
        char body[TEXT_BYTES];
        uint32_t prompt = (client_index + turn) % PROMPTS;
        if (!is_open) {
            http2_client_open(&client, load->port);
            ends = 0;
        }
        put_body(body, prompt, OUTPUT_TOKENS, turn % 2 == 0);
        (void)http2_client_post(&client, "/v1/completions", body);
        test_true(http2_client_await_ends(&client, ++ends));
        test_eq_u64(client.reset_streams, 0);
        check_answer(buf_text(&client.data), prompt);
        buf_reset(&client.data);
        is_open = !client.has_goaway;
        if (!is_open) {
            atomic_fetch_add(&load->closes, 1);
            http2_client_close(&client);
        }
    }
}

/* Reads a stream to its end; the longest time between two events, from the first token on. */
static uint64_t measure_gaps(int fd, struct buf *out)
{
    uint64_t longest_ns = 0;
    uint64_t last_ns = 0;
    char bytes[4096];
    while (strstr(buf_text(out), "data: [DONE]") == NULL) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        test_true(poll(&readable, 1, (int)test_patience(60000)) == 1);
        ssize_t got = recv(fd, bytes, sizeof(bytes), 0);
        test_true(got > 0);
        buf_append(out, bytes, (size_t)got);
        uint64_t now_ns = clock_now_ns();
        if (last_ns != 0 && now_ns - last_ns > longest_ns) {
            longest_ns = now_ns - last_ns;
        }
        if (strstr(buf_text(out), "data: {") != NULL) {
            last_ns = now_ns;
        }
    }
    return longest_ns;
}

static void run_gaps(void)
{
    while (!atomic_load(&load->is_over)) {
        char body[TEXT_BYTES];
        struct http_client client;
        struct buf answer;
        buf_init(&answer);
        http_client_open(&client, load->port);
        put_body(body, 0, GAP_TOKENS, true);
        http_client_request(&client, "POST", "/v1/completions", "", body);
        uint64_t gap_ns = measure_gaps(client.fd, &answer);
        test_true(strstr(buf_text(&answer), "\"error\"") == NULL);
        if (gap_ns > atomic_load(&load->longest_gap_ns)) {
            atomic_store(&load->longest_gap_ns, gap_ns); /* the one client that does */
        }
        atomic_fetch_add(&load->requests[client_index], 1);
        http_client_close(&client);
        buf_fini(&answer);
    }
}

/* Fewer of each kind, and fewer reloads, where code runs many times slower. */
static uint32_t client_step(void)
{
    return test_is_sanitized() ? 9 : 1;
}

static uint32_t reload_count(void)
{
    return test_is_sanitized() ? 2 : RELOADS;
}

static pid_t start_client(uint32_t index)
{
    pid_t pid = fork();
    test_true(pid >= 0);
    if (pid > 0) {
        return pid;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nothing behind */
    client_index = index;
    struct test_case client = {.name = "client", .run = run_gaps};
    if (index < KEPT_CLIENTS) {
        client.run = run_kept;
    } else if (index < KEPT_CLIENTS + NEW_CLIENTS) {
        client.run = run_new;
    } else if (index < KEPT_CLIENTS + NEW_CLIENTS + HTTP2_CLIENTS) {
        client.run = run_http2;
    }
    char name[] = "client";
    char *argv[] = {name, NULL};
    _exit(test_main(1, argv, &client, 1));
}

/* Each client has finished `more` further requests. */
static void await_requests(const pid_t *clients, uint32_t more)
{
    uint32_t before[CLIENTS];
    uint64_t end_ns = clock_now_ns() + test_patience(60000) * CLOCK_NS_PER_MS;
    for (uint32_t i = 0; i < CLIENTS; i += client_step()) {
        before[i] = atomic_load(&load->requests[i]);
    }
    for (uint32_t i = 0; i < CLIENTS; i += client_step()) {
        while (atomic_load(&load->requests[i]) - before[i] < more) {
            int status = 0;
            if (waitpid(clients[i], &status, WNOHANG) != 0) {
                test_fail(__FILE__, __LINE__, "client %u has ended, status %d", i, status);
            }
            test_true(clock_now_ns() < end_ns);
            (void)poll(NULL, 0, 2); /* between two looks at counters */
        }
    }
}

static void learn_texts(const struct system_process *process)
{
    for (uint32_t i = 0; i < PROMPTS; i++) {
        char body[TEXT_BYTES];
        struct http_answer answer;
        put_body(body, i, OUTPUT_TOKENS, false);
        http_client_once(process->port, "POST", "/v1/completions", body, &answer);
        test_eq_u64((uint64_t)answer.status, 200);
        join_texts(buf_text(&answer.body), load->texts[i]);
        test_true(strlen(load->texts[i]) > 0);
        http_answer_fini(&answer);
    }
}

static struct load *open_load(const struct system_process *process)
{
    struct load *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_true(shared != MAP_FAILED);
    shared->port = process->port;
    return shared;
}

static uint32_t count_files(const char *dir, const char *part)
{
    DIR *stream = opendir(dir);
    uint32_t count = 0;
    test_true(stream != NULL);
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        count += strstr(entry->d_name, part) != NULL;
    }
    (void)closedir(stream);
    return count;
}

/* One session's socket is left, and no name of a segment. */
static void expect_one_session(const struct system_process *process)
{
    char segments[64];
    (void)snprintf(segments, sizeof(segments), "bezel-%d-",
                   (int)system_child(process, "bezel-worker"));
    uint64_t end_ns = clock_now_ns() + test_patience(5000) * CLOCK_NS_PER_MS;
    while (count_files(process->run_dir, "plan-") != 1 || count_files("/dev/shm", segments) != 0) {
        test_true(clock_now_ns() < end_ns);
        (void)poll(NULL, 0, 5); /* between two looks at a directory */
    }
}

static void test_reloads_under_load(void)
{
    static const char *const args[] = {"--drain-timeout-s", "300", NULL};
    struct system_process process;
    pid_t clients[CLIENTS];
    system_start(&process, args);
    load = open_load(&process);
    learn_texts(&process);
    pid_t worker = system_child(&process, "bezel-worker");
    pid_t frontend = system_child(&process, "bezel-frontend");
    for (uint32_t i = 0; i < CLIENTS; i += client_step()) {
        clients[i] = start_client(i);
    }
    await_requests(clients, 2);
    uint64_t calm_gap_ns = atomic_load(&load->longest_gap_ns);
    for (uint32_t i = 0; i < reload_count(); i++) {
        pid_t next = system_reload_now(&process);
        test_true(next != frontend);
        await_requests(clients, 2);
        test_true(system_wait_gone(frontend, 20000));
        frontend = next;
    }
    atomic_store(&load->is_over, true);
    uint32_t requests = 0;
    for (uint32_t i = 0; i < CLIENTS; i += client_step()) {
        int status = 0;
        test_true(waitpid(clients[i], &status, 0) == clients[i]);
        test_eq_u64((uint64_t)status, 0);
        requests += atomic_load(&load->requests[i]);
    }
    uint64_t gap_ns = atomic_load(&load->longest_gap_ns);
    (void)fprintf(
        stderr,
        "%u reloads: %u requests, %u connections closed by an answer; longest gap %llu ms, "
        "%llu before\n",
        reload_count(), requests, atomic_load(&load->closes),
        (unsigned long long)(gap_ns / CLOCK_NS_PER_MS),
        (unsigned long long)(calm_gap_ns / CLOCK_NS_PER_MS));
    test_true(atomic_load(&load->closes) >= KEPT_CLIENTS / client_step()); /* told to leave */
    test_true(!test_times_count() || gap_ns < 2 * calm_gap_ns + 50 * CLOCK_NS_PER_MS);
    test_eq_u64((uint64_t)system_child(&process, "bezel-worker"), (uint64_t)worker);
    expect_one_session(&process);
    system_expect_all_free(&process);
    system_stop(&process);
    (void)munmap(load, sizeof(*load));
}

static void expect_status(struct http_client *client, const char *path, int status,
                          const char *connection)
{
    struct http_answer answer;
    http_client_request(client, "GET", path, "", NULL);
    http_client_read(client, &answer);
    test_eq_u64((uint64_t)answer.status, (uint64_t)status);
    const char *got = http_answer_header(&answer, "connection");
    test_eq_str(got == NULL ? "" : got, connection);
    http_answer_fini(&answer);
}

/* A kept connection stays until it has answered once more, however long it was idle. */
static void test_idle_connections_get_one_more_answer(void)
{
    static const char *const args[] = {"--drain-timeout-s", "60", NULL};
    struct system_process process;
    struct http_client clients[4];
    system_start(&process, args);
    pid_t frontend = system_child(&process, "bezel-frontend");
    for (uint32_t i = 0; i < 4; i++) {
        http_client_open(&clients[i], process.port);
        if (i < 3) { /* the last has not asked anything yet */
            expect_status(&clients[i], "/ready", 200, "keep-alive");
        }
    }
    (void)system_reload_now(&process);
    for (uint32_t i = 0; i < 4; i++) {
        (void)poll(NULL, 0, 300); /* idle beyond the grace of an ordinary drain */
        test_true(!system_wait_gone(frontend, 0));
        expect_status(&clients[i], "/ready", 200, "close");
        http_client_close(&clients[i]);
    }
    test_true(system_wait_gone(frontend, 2000));
    system_stop(&process);
}

/* At the deadline idle connections are closed, in order, and the old frontend is gone. */
static void test_idle_connections_end_at_the_deadline(void)
{
    static const char *const args[] = {"--drain-timeout-s", "1", NULL};
    struct system_process process;
    struct http_client client;
    char byte;
    system_start(&process, args);
    pid_t frontend = system_child(&process, "bezel-frontend");
    http_client_open(&client, process.port);
    expect_status(&client, "/health", 200, "keep-alive");
    (void)system_reload_now(&process);
    test_true(system_wait_gone(frontend, 4000));
    test_true(recv(client.fd, &byte, 1, 0) == 0); /* an end, not a reset */
    http_client_close(&client);
    system_stop(&process);
}

static void test_failing_reload_keeps_the_old_frontend(void)
{
    static const char *const args[] = {"--reload-timeout-s", "20", NULL};
    static const struct {
        const char *program;
        const char *text;
    } rows[] = {
        {"/bin/false", "ended with exit status 1 before it was ready; the old one goes on"},
        {TEST_OTHER_FRONTEND, "frontend has message tables"},
        {"/nowhere", "No such file or directory"},
    };
    struct system_process process;
    struct http_client client;
    system_start(&process, args);
    pid_t frontend = system_child(&process, "bezel-frontend");
    system_open_stream(&process, &client, prompts[0], 400);
    test_true(http_client_await(&client, "data: "));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct system_reload reload;
        char text[512];
        system_replace(&process, "bezel-frontend", rows[i].program);
        system_reload_start(&process, &reload);
        test_eq_u64((uint64_t)system_reload_wait(&reload, text), 1);
        if (strstr(text, rows[i].text) == NULL) {
            test_fail(__FILE__, __LINE__, "reload says '%s', not '%s'", text, rows[i].text);
        }
    }
    pid_t pids[2];
    test_eq_u64(system_children(&process, "bezel-frontend", pids, 2), 1);
    test_eq_u64((uint64_t)pids[0], (uint64_t)frontend);
    test_true(http_client_await(&client, "data: [DONE]"));
    test_true(memmem(client.input.at, client.input.used_bytes, "\"error\"", 7) == NULL);
    http_client_close(&client);
    free(system_complete(&process, prompts[1]));
    expect_one_session(&process);
    system_expect_all_free(&process);
    system_stop(&process);
}

static const struct test_case cases[] = {
    TEST(test_reloads_under_load),
    TEST(test_idle_connections_get_one_more_answer),
    TEST(test_idle_connections_end_at_the_deadline),
    TEST(test_failing_reload_keeps_the_old_frontend),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
