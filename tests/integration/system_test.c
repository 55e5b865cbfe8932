/* Launcher, worker and frontend together, over HTTP, on the demo model. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"

#define QUESTION "What is the capital of France?"
#define ANSWER   "The capital of France is Paris."

enum {
    CONCURRENT_COUNT = 64,
    START_FAILS_MS = 10000,
};

/* As much as it says, or an eighth where code is instrumented and many times slower. */
static unsigned scaled(unsigned count)
{
    return test_is_sanitized() ? count / 8 : count;
}

static const char *const no_args[] = {NULL};

/* A chat request; more is put behind the messages. */
static void chat_body(struct buf *out, const char *question, const char *more)
{
    buf_append_text(out, "{\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":");
    json_put_text(out, question, strlen(question));
    buf_printf(out, "}]%s}", more);
}

/* choices[0].message.content of a completion must be want. */
static void check_content(const struct buf *body, const char *want)
{
    struct err err;
    struct json_t *root;
    test_ok(json_parse(body->at, body->used_bytes, 32, &root, &err), &err);
    const struct json_t *choice = json_element(json_member(root, "choices"), 0);
    test_eq_str(json_text(json_member(json_member(choice, "message"), "content"), NULL), want);
    json_release(root);
}

static void check_asked(const struct system_process *system, const char *question, const char *want)
{
    struct buf body;
    struct http_answer answer;
    buf_init(&body);
    chat_body(&body, question, "");
    http_client_once(system->port, "POST", "/v1/chat/completions", buf_text(&body), &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    check_content(&answer.body, want);
    http_answer_fini(&answer);
    buf_fini(&body);
}

static void test_knows_what_it_was_taught(void)
{
    struct system_process system;
    system_start(&system, no_args);
    check_asked(&system, QUESTION, ANSWER);
    check_asked(&system, "What is 17 + 25?", "17 + 25 = 42.");
    check_asked(&system, "Spell the word \"rocket\".", "r-o-c-k-e-t.");
    check_asked(&system, "Give me a JSON object with the name Ada and the age 36.",
                "{\"name\": \"Ada\", \"age\": 36}");
    system_expect_all_free(&system);
    system_stop(&system);
}

/* Prompts from a few to some 700 tokens, answers from 1 to 64. */
static void make_body(struct buf *out, unsigned index)
{
    static const char *const questions[] = {"What is the capital of Japan?", "What is 40 + 2?",
                                            "Who are you?", "Hello!"};
    struct buf question;
    char more[96];
    buf_init(&question);
    for (unsigned i = 0; i < index * 2 % 96; i++) {
        buf_printf(&question, "It was day %u. ", i * index);
    }
    buf_append_text(&question, questions[index % 4]);
    (void)snprintf(more, sizeof(more), ",\"max_tokens\":%u,\"ignore_eos\":%s", 1 + index * 7 % 64,
                   index % 3 == 0 ? "true" : "false");
    chat_body(out, buf_text(&question), more);
    buf_fini(&question);
}

static void send_one(const struct system_process *system, unsigned index,
                     struct http_client *client)
{
    struct buf body;
    buf_init(&body);
    make_body(&body, index);
    http_client_open(client, system->port);
    http_client_request(client, "POST", "/v1/chat/completions", "", buf_text(&body));
    buf_fini(&body);
}

static void test_many_at_once_get_what_each_gets_alone(void)
{
    struct system_process system;
    struct http_client clients[CONCURRENT_COUNT];
    struct buf alone[CONCURRENT_COUNT];
    system_start(&system, no_args);
    for (unsigned i = 0; i < scaled(CONCURRENT_COUNT); i++) {
        struct http_client client;
        buf_init(&alone[i]);
        send_one(&system, i, &client);
        system_take_choices(&client, &alone[i]);
    }
    for (unsigned i = 0; i < scaled(CONCURRENT_COUNT); i++) {
        send_one(&system, i, &clients[i]);
    }
    for (unsigned i = 0; i < scaled(CONCURRENT_COUNT); i++) {
        struct buf together;
        buf_init(&together);
        system_take_choices(&clients[i], &together);
        test_eq_str(buf_text(&together), buf_text(&alone[i]));
        buf_fini(&together);
        buf_fini(&alone[i]);
    }
    system_expect_all_free(&system);
    system_stop(&system);
}

static void check_refused(const struct system_process *system, const char *path, const char *body,
                          int status)
{
    struct http_answer answer;
    http_client_once(system->port, "POST", path, body, &answer);
    if (answer.status != status || strstr(buf_text(&answer.body), "\"error\"") == NULL) {
        test_fail(__FILE__, __LINE__, "%.80s: status %d, body %s", body, answer.status,
                  buf_text(&answer.body));
    }
    http_answer_fini(&answer);
    check_asked(system, QUESTION, ANSWER); /* the server goes on */
}

static void test_bad_requests_are_refused_and_forgotten(void)
{
    struct system_process system;
    struct buf body;
    system_start(&system, no_args);
    check_refused(&system, "/v1/chat/completions", "{\"messages\":[", 400);
    check_refused(&system, "/v1/chat/completions", "{\"messages\":\"Hello\"}", 400);
    check_refused(&system, "/v1/chat/completions", "{\"messages\":[]}", 400);
    check_refused(&system, "/v1/completions", "{\"prompt\":\"Hi\",\"model\":\"other\"}", 404);
    check_refused(&system, "/v1/completions", "{\"prompt\":\"\"}", 400);
    check_refused(&system, "/v1/completions", "{\"prompt\":[2,1000000]}", 400);
    check_refused(&system, "/v1/completions", "{\"prompt\":[2,-1]}", 400);
    check_refused(&system, "/v1/completions", "{\"prompt\":[2,5],\"max_tokens\":0}", 400);
    check_refused(&system, "/v1/completions", "{\"prompt\":[2,5],\"top_p\":1e-45}", 400);
    check_refused(&system, "/v1/completions", "{\"prompt\":[2,5],\"repetition_penalty\":1e-45}",
                  400);
    buf_init(&body);
    buf_append_text(&body, "{\"prompt\":\"");
    for (int i = 0; i < (int)scaled(2000000); i++) {
        buf_append_text(&body, "Hi. ");
    }
    buf_append_text(&body, "\"}"); /* 8 MB: under the body limit, past every context */
    check_refused(&system, "/v1/completions", buf_text(&body), 400);
    buf_reset(&body);
    buf_append_text(&body, "{\"prompt\":[");
    for (int i = 0; i < (int)scaled(5000000); i++) {
        buf_append_text(&body, "5,");
    }
    buf_append_text(&body, "5]}");
    check_refused(&system, "/v1/completions", buf_text(&body), 400);
    buf_fini(&body);
    system_expect_all_free(&system);
    system_stop(&system);
}

static void copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    char from[256];
    char to[256];
    char bytes[8192];
    (void)snprintf(from, sizeof(from), "%s/%s", from_dir, name);
    (void)snprintf(to, sizeof(to), "%s/%s", to_dir, name);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    test_true(in >= 0 && out >= 0);
    for (ssize_t got = read(in, bytes, sizeof(bytes)); got > 0;
         got = read(in, bytes, sizeof(bytes))) {
        test_true(write(out, bytes, (size_t)got) == got);
    }
    (void)close(in);
    (void)close(out);
}

struct start {
    const char *model_dir;
    const char *const *options; /* null-terminated; null: none */
    rlim_t descriptors;         /* RLIMIT_NOFILE; 0: as it is */
    const char *reason;         /* what it must say on standard error */
    int status;                 /* and how it must end; -1: it goes on and is stopped */
};

static void exec_start(const struct start *start, int log_fd)
{
    const char *argv[16] = {"bezel", "serve", start->model_dir, "--port=0", "--drain-timeout-s=0"};
    size_t count = 5;
    for (size_t i = 0; start->options != NULL && start->options[i] != NULL && count < 15; i++) {
        argv[count++] = start->options[i];
    }
    char *exec_argv[16];
    memcpy(exec_argv, argv, sizeof(argv)); /* execv takes its arguments as if it changed them */
    const struct rlimit limit = {start->descriptors, start->descriptors};
    (void)dup2(log_fd, STDERR_FILENO);
    (void)syscall(SYS_close_range, 3, ~0U, 0U);
    if (start->descriptors == 0 || setrlimit(RLIMIT_NOFILE, &limit) == 0) {
        (void)execv(TEST_BEZEL_EXE, exec_argv); /* returns only on failure */
    }
    _exit(127);
}

/* True once the log holds the reason; text is what it holds. */
static bool has_said(int log_fd, const char *reason, char *text, size_t text_bytes)
{
    ssize_t got = pread(log_fd, text, text_bytes - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    return strstr(text, reason) != NULL;
}

static void check_start(const struct start *start)
{
    char path[] = "/tmp/bezel-start-XXXXXX";
    char text[8192];
    int status = 0;
    int fd = mkstemp(path);
    test_true(fd >= 0);
    pid_t pid = fork();
    test_true(pid >= 0);
    if (pid == 0) {
        exec_start(start, fd);
    }
    bool is_gone = false;
    for (uint32_t waited_ms = 0; waited_ms < START_FAILS_MS && !is_gone; waited_ms += 10) {
        is_gone = system_wait_gone(pid, 10);
        if (start->status < 0 && has_said(fd, start->reason, text, sizeof(text))) {
            break;
        }
    }
    if (!is_gone) {
        (void)kill(pid, SIGTERM); /* it takes its children along */
    }
    test_true(waitpid(pid, &status, 0) == pid);
    bool has_reason = has_said(fd, start->reason, text, sizeof(text));
    bool has_ended = is_gone && WIFEXITED(status) && WEXITSTATUS(status) == start->status;
    if (!has_reason || (start->status < 0 ? is_gone : !has_ended)) {
        test_fail(__FILE__, __LINE__, "status %x, %s, '%s' lacks '%s'", (unsigned)status,
                  is_gone ? "ended" : "runs on", text, start->reason);
    }
    (void)close(fd);
    (void)unlink(path);
}

/* Starts the launcher on a directory, with an option or none; it must end by itself with status 2 and
 * say why. */
static void check_start_fails(const char *model_dir, const char *option, const char *reason)
{
    const char *const options[] = {option, NULL};
    const struct start start = {
        .model_dir = model_dir, .options = options, .reason = reason, .status = 2};
    check_start(&start);
}

static const char *const model_files[] = {
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "chat_template.jinja",
};

enum damage {
    DAMAGE_CUT,    /* to 1000 bytes */
    DAMAGE_FOLDER, /* a folder of that name */
    DAMAGE_FIFO,   /* a pipe that nobody writes */
};

/* A copy of the demo model with one file damaged. */
static void check_damage(const char *name, enum damage damage, const char *reason)
{
    char dir[] = "/tmp/bezel-model-XXXXXX";
    char path[64];
    test_true(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < sizeof(model_files) / sizeof(model_files[0]); i++) {
        copy_file(TEST_SYSTEM_MODEL_DIR, dir, model_files[i]);
    }
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (damage == DAMAGE_CUT) {
        test_true(truncate(path, 1000) == 0);
    } else {
        test_true(unlink(path) == 0);
        test_true((damage == DAMAGE_FIFO ? mkfifo(path, 0600) : mkdir(path, 0700)) == 0);
    }
    check_start_fails(dir, NULL, reason);
    for (size_t i = 0; i < sizeof(model_files) / sizeof(model_files[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, model_files[i]);
        test_true(remove(path) == 0);
    }
    test_true(rmdir(dir) == 0); /* nothing was left in it */
}

static void test_unusable_models_end_the_start(void)
{
    static const struct {
        const char *name;
        enum damage damage;
        const char *reason;
    } rows[] = {
        {"config.json", DAMAGE_CUT, "config.json': line "},
        {"config.json", DAMAGE_FOLDER, "config.json' is not a regular file"},
        {"config.json", DAMAGE_FIFO, "config.json' is not a regular file"},
        {"model.safetensors", DAMAGE_CUT, "model.safetensors' declares a header"},
        {"model.safetensors", DAMAGE_FOLDER, "model.safetensors' is not a regular file"},
        {"model.safetensors", DAMAGE_FIFO, "model.safetensors' is not a regular file"},
        {"tokenizer.json", DAMAGE_CUT, "tokenizer.json: the text ends at byte 1000"},
        {"tokenizer.json", DAMAGE_FOLDER, "tokenizer.json"},
        {"tokenizer.json", DAMAGE_FIFO, "tokenizer.json"},
        {"chat_template.jinja", DAMAGE_CUT, "is no known chat template"},
        {"chat_template.jinja", DAMAGE_FOLDER, "chat_template.jinja' is not a regular file"},
        {"chat_template.jinja", DAMAGE_FIFO, "chat_template.jinja' is not a regular file"},
    };
    char dir[] = "/tmp/bezel-model-XXXXXX";
    check_start_fails("/nowhere/at/all", NULL, "no model directory '/nowhere/at/all'");
    test_true(mkdtemp(dir) != NULL);
    check_start_fails(dir, NULL, "config.json");
    test_true(rmdir(dir) == 0); /* nothing was left in it */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_damage(rows[i].name, rows[i].damage, rows[i].reason);
    }
}

/* The launcher does not know the options of its programs: their refusal ends the start as well. */
static void test_unusable_options_end_the_start(void)
{
    check_start_fails(TEST_SYSTEM_MODEL_DIR, "--max-queue=none", "--max-queue");
    check_start_fails(TEST_SYSTEM_MODEL_DIR, "--max-slots=none", "--max-slots");
    check_start_fails(TEST_SYSTEM_MODEL_DIR, "--record=/nowhere/at/all",
                      "record '/nowhere/at/all'");
}

/* The stream fails, who waits behind it gets its 503 after a second, who comes now at once. */
static void test_a_lost_worker_is_waited_for_so_long(void)
{
    static const char *const args[] = {"--backoff-ms",    "30000", "--max-slots", "1",
                                       "--worker-wait-s", "1",     NULL};
    struct system_process system;
    struct http_client stream;
    struct http_client waiting;
    struct http_answer answer;
    system_start(&system, args);
    system_open_stream(&system, &stream, "Hi", 8000);
    test_true(http_client_await(&stream, "data: "));
    uint64_t start_ns = clock_now_ns();
    http_client_open(&waiting, system.port);
    http_client_request(&waiting, "POST", "/v1/completions", "", "{\"prompt\":\"Hi\"}");
    /* in the queue, not still on its way there from a work thread */
    while (http_client_metric(system.port, "bezel:prepare_time_seconds_count") < 2) {
        test_true(clock_now_ns() - start_ns < test_patience(10) * CLOCK_NS_PER_SEC);
    }
    test_eq_u64(http_client_metric(system.port, "vllm:num_requests_waiting"), 1);
    uint64_t kill_ns = clock_now_ns();
    test_true(kill(system_child(&system, "bezel-worker"), SIGKILL) == 0);
    test_true(http_client_await(&stream, "\"error\""));
    http_client_once(system.port, "POST", "/v1/completions", "{\"prompt\":\"Hi\"}", &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    http_answer_fini(&answer);
    http_client_read(&waiting, &answer);
    uint64_t waited_ns = clock_now_ns() - kill_ns;
    test_eq_u64((uint64_t)answer.status, 503);
    test_true(http_answer_header(&answer, "retry-after") != NULL);
    test_true(waited_ns >= CLOCK_NS_PER_SEC);
    test_true(waited_ns < test_patience(10) * CLOCK_NS_PER_SEC);
    http_answer_fini(&answer);
    http_client_close(&waiting);
    http_client_close(&stream);
    system_stop(&system);
}

/* Two pairs in one run directory would take each other's worker. */
static void test_a_run_directory_has_one_launcher(void)
{
    struct system_process system;
    char option[128];
    char reason[160];
    system_start(&system, no_args);
    (void)snprintf(option, sizeof(option), "--run-dir=%s", system.run_dir);
    (void)snprintf(reason, sizeof(reason), "run directory '%s' is in use by another bezel serve",
                   system.run_dir);
    const char *const options[] = {option, NULL};
    const struct start start = {
        .model_dir = TEST_SYSTEM_MODEL_DIR, .options = options, .reason = reason, .status = 1};
    check_start(&start);
    check_asked(&system, QUESTION, ANSWER); /* the first goes on */
    system_stop(&system);
}

/* Too few descriptors even to say so over the descriptor that is moved out of the way. */
static void test_a_program_that_cannot_be_started_is_told(void)
{
    const struct start start = {
        .model_dir = TEST_SYSTEM_MODEL_DIR,
        .descriptors = 14,
        .reason = "start_failed program=worker",
        .status = -1,
    };
    check_start(&start);
}

static const struct test_case cases[] = {
    TEST(test_knows_what_it_was_taught),
    TEST(test_many_at_once_get_what_each_gets_alone),
    TEST(test_bad_requests_are_refused_and_forgotten),
    TEST(test_unusable_models_end_the_start),
    TEST(test_unusable_options_end_the_start),
    TEST(test_a_lost_worker_is_waited_for_so_long),
    TEST(test_a_run_directory_has_one_launcher),
    TEST(test_a_program_that_cannot_be_started_is_told),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
