/* Every variant's tiny checkpoint through `bezel serve` on two cpu threads, and `bezel check`.  None has a tokenizer: ids
 * in, ids out, and one clear answer where a request needs text. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "common/json.h"
#include "common/mem.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/st_writer.h"
#include "tests/testlib/system.h"
#include "tests/testlib/test.h"

enum {
    OUTPUT = 16,
    NEIGHBOURS = 3,
    NAME_BYTES = 64,
};

static const char *const names[] = {"dense-unified", "dense-sharded", "dense-window1024", "moe",
                                    "ple-shared"};

#define NAME_COUNT (sizeof(names) / sizeof(names[0]))

struct served {
    struct system_process process;
    struct golden *golden;
};

static void start(struct served *served, const char *name)
{
    static const char *const args[] = {"--device", "cpu", "--threads", "2", NULL};
    served->golden = golden_load(name);
    system_start_model(&served->process, served->golden->dir, args);
}

static void stop(struct served *served)
{
    system_expect_all_free(&served->process);
    system_stop(&served->process);
    golden_destroy(served->golden);
}

/* A greedy request of so many tokens that continues a prompt of ids. */
static void put_request(struct buf *body, const struct golden_case *prompt, bool is_stream)
{
    buf_init(body);
    buf_append_text(body, "{\"prompt\":[");
    for (uint32_t i = 0; i < prompt->count; i++) {
        buf_printf(body, i == 0 ? "%u" : ",%u", prompt->ids[i]);
    }
    buf_printf(body, "],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true%s}", OUTPUT,
               is_stream ? ",\"stream\":true" : "");
}

static uint32_t take_ids(const struct json_t *choice, uint32_t at, uint32_t *ids)
{
    const struct json_t *array = json_member(choice, "token_ids");
    test_true(array != NULL && json_kind(array) == JSON_KIND_ARRAY);
    for (size_t i = 0; i < json_count(array); i++) {
        test_true(at < OUTPUT);
        ids[at++] = (uint32_t)json_int64(json_element(array, i));
    }
    return at;
}

static const struct json_t *first_choice(const struct json_t *answer)
{
    const struct json_t *choices = json_member(answer, "choices");
    test_true(choices != NULL && json_count(choices) == 1);
    return json_element(choices, 0);
}

static void read_whole(struct http_client *client, uint32_t ids[OUTPUT])
{
    struct http_answer answer;
    struct json_t *json = NULL;
    struct err err = {0};
    http_client_read(client, &answer);
    if (answer.status != 200) {
        test_fail(__FILE__, __LINE__, "status %d: %s", answer.status, buf_text(&answer.body));
    }
    test_ok(json_parse(answer.body.at, answer.body.used_bytes, 16, &json, &err), &err);
    const struct json_t *choice = first_choice(json);
    test_eq_u64(take_ids(choice, 0, ids), OUTPUT);
    test_eq_str(json_text(json_member(choice, "text"), NULL), "");
    test_eq_str(json_text(json_member(choice, "finish_reason"), NULL), "length");
    json_release(json);
    http_answer_fini(&answer);
}

static void complete(const struct served *served, const struct golden_case *prompt,
                     uint32_t ids[OUTPUT])
{
    struct http_client client;
    struct buf body;
    put_request(&body, prompt, false);
    http_client_open(&client, served->process.port);
    http_client_request(&client, "POST", "/v1/completions", "", buf_text(&body));
    read_whole(&client, ids);
    http_client_close(&client);
    buf_fini(&body);
}

/* The ids of all events of a stream. */
static void complete_streamed(const struct served *served, const struct golden_case *prompt,
                              uint32_t ids[OUTPUT])
{
    struct http_answer answer;
    struct err err = {0};
    struct buf body;
    uint32_t count = 0;
    static const char lead[] = "data: {";
    put_request(&body, prompt, true);
    http_client_once(served->process.port, "POST", "/v1/completions", buf_text(&body), &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    for (const char *at = strstr(buf_text(&answer.body), lead); at != NULL; at = strstr(at, lead)) {
        struct json_t *json = NULL;
        at += sizeof(lead) - 2;
        test_ok(json_parse(at, strcspn(at, "\n"), 16, &json, &err), &err);
        count = take_ids(first_choice(json), count, ids);
        json_release(json);
    }
    test_eq_u64(count, OUTPUT);
    test_true(strstr(buf_text(&answer.body), "data: [DONE]") != NULL);
    http_answer_fini(&answer);
    buf_fini(&body);
}

static void check_equal(const char *what, const uint32_t got[OUTPUT], const uint32_t want[OUTPUT])
{
    for (uint32_t i = 0; i < OUTPUT; i++) {
        if (got[i] != want[i]) {
            test_fail(__FILE__, __LINE__, "%s: token %u is %u, want %u", what, i, got[i], want[i]);
        }
    }
}

/* The reference's tokens, up to where noise may decide.  How many could be compared. */
static uint32_t check_reference(const struct golden *golden, const struct golden_greedy *greedy,
                                const uint32_t ids[OUTPUT])
{
    for (uint32_t i = 0; i < OUTPUT; i++) {
        if ((double)greedy->margins[i] <= golden->yardstick.max) {
            return i;
        }
        if (ids[i] != greedy->tokens[i]) {
            test_fail(
                __FILE__, __LINE__, "prompt of %u: token %u is %u, the reference's %u by %.3f",
                greedy->prompt->count, i, ids[i], greedy->tokens[i], (double)greedy->margins[i]);
        }
    }
    return OUTPUT;
}

/* At once, each on a connection of its own. */
static void check_together(const struct served *served, uint32_t alone[NEIGHBOURS][OUTPUT])
{
    struct http_client clients[NEIGHBOURS];
    uint32_t ids[OUTPUT] = {0};
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        struct buf body;
        put_request(&body, &served->golden->cases[2 + i], false);
        http_client_open(&clients[i], served->process.port);
        http_client_request(&clients[i], "POST", "/v1/completions", "", buf_text(&body));
        buf_fini(&body);
    }
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        read_whole(&clients[i], ids);
        http_client_close(&clients[i]);
        check_equal("beside others", ids, alone[i]);
    }
}

static void test_ids_of_every_variant(void)
{
    uint32_t compared = 0;
    for (size_t n = 0; n < NAME_COUNT; n++) {
        struct served served;
        uint32_t ids[OUTPUT] = {0};
        uint32_t alone[NEIGHBOURS][OUTPUT] = {0};
        start(&served, names[n]);
        test_true(served.golden->case_count >= 2 + NEIGHBOURS);
        for (uint32_t i = 0; i < served.golden->greedy_count; i++) {
            const struct golden_greedy *greedy = &served.golden->greedy[i];
            complete(&served, greedy->prompt, ids);
            compared += check_reference(served.golden, greedy, ids);
        }
        for (uint32_t i = 0; i < NEIGHBOURS; i++) {
            complete(&served, &served.golden->cases[2 + i], alone[i]);
            complete_streamed(&served, &served.golden->cases[2 + i], ids);
            check_equal("streamed", ids, alone[i]);
        }
        test_true(memcmp(alone[0], alone[1], sizeof(alone[0])) != 0);
        check_together(&served, alone);
        stop(&served);
    }
    test_true(compared >= 16); /* else the comparison above said nothing */
}

static const struct {
    const char *path, *body, *message;
} refused[] = {
    {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}",
     "this checkpoint has no tokenizer.json: only /v1/completions with token ids is served"},
    {"/v1/completions", "{\"prompt\":\"Hello\"}",
     "this checkpoint has no tokenizer.json: prompt must be token ids"},
    {"/v1/completions", "{\"prompt\":[2,5],\"stop\":[\"x\"]}",
     "this checkpoint has no tokenizer.json: use stop_token_ids"},
    {"/v1/completions", "{\"prompt\":[2,512]}",
     "token id 512 at position 1 is outside the vocabulary of 512"},
};

static void test_text_is_refused_in_one_line(void)
{
    struct served served;
    start(&served, names[0]);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct http_answer answer;
        http_client_once(served.process.port, "POST", refused[i].path, refused[i].body, &answer);
        test_eq_u64((uint64_t)answer.status, 400);
        if (strstr(buf_text(&answer.body), refused[i].message) == NULL) {
            test_fail(__FILE__, __LINE__, "wants: %s\n... in: %s", refused[i].message,
                      buf_text(&answer.body));
        }
        http_answer_fini(&answer);
    }
    stop(&served);
}

/* A stop id ends the answer and is not part of it; log probabilities name ids. */
static void test_stop_ids_and_logprobs(void)
{
    struct served served;
    struct http_answer answer;
    uint32_t ids[OUTPUT] = {0};
    char body[256];
    char text[NAME_BYTES];
    start(&served, names[1]);
    const struct golden_case prompt = {.count = 2, .ids = served.golden->cases[1].ids};
    complete(&served, &prompt, ids);
    (void)snprintf(body, sizeof(body),
                   "{\"prompt\":[%u,%u],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":%d,"
                   "\"stop_token_ids\":[%u],\"logprobs\":1}",
                   prompt.ids[0], prompt.ids[1], OUTPUT, ids[0]);
    http_client_once(served.process.port, "POST", "/v1/completions", body, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    test_true(strstr(buf_text(&answer.body), "\"finish_reason\":\"stop\"") != NULL);
    http_answer_fini(&answer);
    (void)snprintf(body, sizeof(body),
                   "{\"prompt\":[%u,%u],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":1,"
                   "\"logprobs\":1}",
                   prompt.ids[0], prompt.ids[1]);
    http_client_once(served.process.port, "POST", "/v1/completions", body, &answer);
    (void)snprintf(text, sizeof(text), "\"tokens\":[\"token_id:%u\"]", ids[0]);
    test_true(strstr(buf_text(&answer.body), text) != NULL);
    http_answer_fini(&answer);
    stop(&served);
}

/* `bezel check` of a folder: its exit status, and what it printed. */
static int run_check(const char *model_dir, struct buf *out)
{
    char command[2048];
    char bytes[512];
    size_t count = 0;
    (void)snprintf(command, sizeof(command), "'%s' check '%s' --backend cpu", TEST_BEZEL_EXE,
                   model_dir);
    buf_init(out);
    FILE *pipe = popen(command, "re"); /* NOLINT(cert-env33-c): paths of this build */
    test_true(pipe != NULL);
    while ((count = fread(bytes, 1, sizeof(bytes), pipe)) > 0) {
        buf_append(out, bytes, count);
    }
    int status = pclose(pipe);
    test_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_check(const char *model_dir, int want_status, const char *text)
{
    struct buf out;
    int status = run_check(model_dir, &out);
    if (status != want_status || strstr(buf_text(&out), text) == NULL) {
        test_fail(__FILE__, __LINE__, "exit %d, want %d and: %s\n... in:\n%s", status, want_status,
                  text, buf_text(&out));
    }
    buf_fini(&out);
}

static void put_file(const char *dir, const char *name, const char *from_dir, size_t most_bytes)
{
    char path[2048];
    char bytes[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", from_dir, name);
    FILE *from = fopen(path, "re");
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *to = fopen(path, "we");
    test_true(from != NULL && to != NULL);
    for (size_t count = 1; count > 0 && most_bytes > 0; most_bytes -= count) {
        size_t wanted = most_bytes < sizeof(bytes) ? most_bytes : sizeof(bytes);
        count = fread(bytes, 1, wanted, from);
        test_true(fwrite(bytes, 1, count, to) == count);
    }
    test_true(fclose(to) == 0 && fclose(from) == 0);
}

/* The three programs together: what they can serve, and a folder with a fault of each kind. */
static void test_bezel_check_agrees(void)
{
    char dir[2048];
    char broken[ST_DIR_BYTES];
    for (size_t i = 0; i < NAME_COUNT; i++) {
        (void)snprintf(dir, sizeof(dir), "%s/%s", test_checkpoints_dir(), names[i]);
        expect_check(dir, 0, "It can be served.\n");
        expect_check(dir, 0, "no tokenizer.json: prompts and answers are token ids only\n");
    }
    (void)snprintf(dir, sizeof(dir), "%s/../../deploy/demo-model", test_golden_dir());
    expect_check(dir, 0, "tokenizer.json is there, chat format large\n");
    st_dir_make(broken);
    put_file(broken, "config.json", dir, SIZE_MAX);
    put_file(broken, "tokenizer.json", dir, 1000);
    put_file(broken, "chat_template.jinja", dir, 1000);
    expect_check(broken, 1, "It cannot be served, for 3 reasons:\n");
    expect_check(broken, 1, "  - the tensors are missing: ");
    expect_check(broken, 1, "tokenizer.json: the text ends at byte 1000");
    expect_check(broken, 1, "chat_template.jinja' is no known chat template");
    st_dir_remove(broken);
    expect_check("/nowhere/model", 1, "there is no model folder '/nowhere/model'");
}

static const struct test_case cases[] = {
    TEST(test_ids_of_every_variant),
    TEST(test_text_is_refused_in_one_line),
    TEST(test_stop_ids_and_logprobs),
    TEST(test_bezel_check_agrees),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
