/* The HTTP side over real sockets, with the fake engine in place of scheduler and worker. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/mem.h"
#include "tests/testlib/frontend_process.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

static void stop(struct frontend_process *process)
{
    test_eq_u64((uint64_t)frontend_process_stop(process), 0);
}

static struct json_t *parse_body(const struct http_answer *answer)
{
    struct json_t *value = NULL;
    struct err err;
    test_ok(json_parse(buf_text(&answer->body), answer->body.used_bytes, 64, &value, &err), &err);
    return value;
}

/* Text at a path of members and indices: "choices.0.text". */
static const struct json_t *at_path(const struct json_t *value, const char *path)
{
    char copy[128];
    (void)snprintf(copy, sizeof(copy), "%s", path);
    char *rest = copy;
    char *part;
    while (value && (part = strsep(&rest, ".")) != NULL) {
        value = part[0] >= '0' && part[0] <= '9' ? json_element(value, (size_t)atoi(part))
                                                 : json_member(value, part);
    }
    if (!value) {
        test_fail(__FILE__, __LINE__, "nothing at %s", path);
    }
    return value;
}

static const char *text_at(const struct json_t *value, const char *path)
{
    const struct json_t *found = at_path(value, path);
    return json_kind(found) == JSON_KIND_TEXT ? json_text(found, NULL) : "(no text)";
}

static uint64_t number_at(const struct json_t *value, const char *path)
{
    return (uint64_t)json_int64(at_path(value, path));
}

/* Joined text of a stream's deltas; the counts of its events. */
struct stream {
    struct buf content;
    struct buf reasoning;
    uint32_t chunk_count;
    uint32_t done_count;
    uint32_t role_count;
    uint32_t error_count;
    char finish[24];
    uint64_t usage_prompt;
    uint64_t usage_output;
};

static void take_chunk(struct stream *stream, const struct json_t *chunk)
{
    stream->chunk_count++;
    if (json_member(chunk, "error")) {
        stream->error_count++;
        return;
    }
    const struct json_t *usage = json_member(chunk, "usage");
    if (usage && json_kind(usage) == JSON_KIND_OBJECT) {
        stream->usage_prompt = number_at(usage, "prompt_tokens");
        stream->usage_output = number_at(usage, "completion_tokens");
        test_eq_u64(json_count(json_member(chunk, "choices")), 0);
        return;
    }
    const struct json_t *choice = at_path(chunk, "choices.0");
    const struct json_t *delta = json_member(choice, "delta");
    const struct json_t *text = delta ? json_member(delta, "content") : json_member(choice, "text");
    const struct json_t *reasoning = delta ? json_member(delta, "reasoning_content") : NULL;
    stream->role_count += delta && json_member(delta, "role");
    if (text) {
        buf_append_text(&stream->content, json_text(text, NULL));
    }
    if (reasoning) {
        buf_append_text(&stream->reasoning, json_text(reasoning, NULL));
    }
    const struct json_t *finish = json_member(choice, "finish_reason");
    if (json_kind(finish) == JSON_KIND_TEXT) {
        (void)snprintf(stream->finish, sizeof(stream->finish), "%s", json_text(finish, NULL));
    }
}

static void read_stream(const struct buf *body, struct stream *out_stream)
{
    memset(out_stream, 0, sizeof(*out_stream));
    buf_init(&out_stream->content);
    buf_init(&out_stream->reasoning);
    const char *at = buf_text(body);
    while (*at) {
        const char *end = strstr(at, "\n\n");
        test_true(end != NULL);
        if (strncmp(at, "data: [DONE]", 12) == 0) {
            out_stream->done_count++;
        } else if (*at != ':') {
            test_true(strncmp(at, "data: ", 6) == 0);
            struct json_t *chunk = NULL;
            struct err err;
            test_ok(json_parse(at + 6, (size_t)(end - at - 6), 64, &chunk, &err), &err);
            take_chunk(out_stream, chunk);
            json_release(chunk);
        }
        at = end + 2;
    }
}

static void stream_fini(struct stream *stream)
{
    buf_fini(&stream->content);
    buf_fini(&stream->reasoning);
}

static void test_info_routes(void)
{
    struct frontend_process process;
    struct http_answer answer;
    frontend_process_start_fake(&process, "", NULL);
    http_client_once(process.port, "GET", "/health", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    http_client_once(process.port, "GET", "/ready", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    http_client_once(process.port, "GET", "/v1/models", NULL, &answer);
    struct json_t *models = parse_body(&answer);
    test_eq_str(text_at(models, "data.0.id"), "demo");
    test_eq_u64(number_at(models, "data.0.max_model_len"), 8192);
    json_release(models);
    http_answer_fini(&answer);
    http_client_once(process.port, "GET", "/v1/models/other", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 404);
    http_answer_fini(&answer);
    http_client_once(process.port, "HEAD", "/health", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    stop(&process);
}

/* Refused requests: what is sent, and the status, param and code that come back. */
static const struct {
    const char *method;
    const char *path;
    const char *body;
    int status;
    const char *param; /* null: JSON null */
    const char *code;
} refusals[] = {
    {"GET", "/nowhere", NULL, 404, NULL, "not_found"},
    {"POST", "/v1", "{}", 404, NULL, "not_found"},
    {"GET", CHAT, NULL, 405, NULL, "method_not_allowed"},
    {"POST", "/health", "{}", 405, NULL, "method_not_allowed"},
    {"POST", CHAT, "", 400, NULL, NULL},
    {"POST", CHAT, "{\"messages\":", 400, NULL, NULL},
    {"POST", CHAT, "{\"model\":\"gpt\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 404,
     "model", "model_not_found"},
    {"POST", CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", 400, "messages[0].content",
     NULL},
    {"POST", COMPLETIONS, "{\"prompt\":\"\"}", 400, "prompt", NULL},
    {"POST", COMPLETIONS, "{\"prompt\":[]}", 400, "prompt", NULL},
    {"POST", COMPLETIONS, "{\"prompt\":[2,2048]}", 400, "prompt", NULL},
    {"POST", COMPLETIONS, "{\"prompt\":[2,18]}", 400, "prompt", NULL},
    {"POST", COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":9000}", 400, "max_tokens",
     "context_length_exceeded"},
    {"POST", COMPLETIONS, "{\"prompt\":\"a\",\"stop_token_ids\":[5000]}", 400, "stop_token_ids",
     NULL},
    {"POST", COMPLETIONS, "{\"prompt\":\"a\",\"logit_bias\":{\"5000\":1}}", 400, "logit_bias",
     NULL},
    {"POST", COMPLETIONS, "{\"prompt\":\"a\",\"temperature\":3}", 400, "temperature", NULL},
};

static void test_refusals_have_status_and_shape(void)
{
    struct frontend_process process;
    frontend_process_start_fake(&process, "", NULL);
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct http_answer answer;
        http_client_once(process.port, refusals[i].method, refusals[i].path, refusals[i].body,
                         &answer);
        if (answer.status != refusals[i].status) {
            test_fail(__FILE__, __LINE__, "%s %s %s: status %d, %s", refusals[i].method,
                      refusals[i].path, refusals[i].body ? refusals[i].body : "", answer.status,
                      buf_text(&answer.body));
        }
        struct json_t *body = parse_body(&answer);
        test_true(strlen(text_at(body, "error.message")) > 5);
        const struct json_t *param = at_path(body, "error.param");
        const struct json_t *code = at_path(body, "error.code");
        test_eq_str(json_kind(param) == JSON_KIND_NULL ? "null" : json_text(param, NULL),
                    refusals[i].param ? refusals[i].param : "null");
        test_eq_str(json_kind(code) == JSON_KIND_NULL ? "null" : json_text(code, NULL),
                    refusals[i].code ? refusals[i].code : "null");
        json_release(body);
        http_answer_fini(&answer);
    }
    test_eq_u64(http_client_metric(process.port, "bezel:requests_rejected_total"), 12);
    stop(&process);
}

static void test_too_long_prompt_names_both_numbers(void)
{
    struct frontend_process process;
    frontend_process_start_fake(&process, "&context=100", NULL);
    struct buf body;
    buf_init(&body);
    buf_append_text(&body, "{\"prompt\":[2");
    for (int i = 0; i < 149; i++) {
        buf_append_text(&body, ",300");
    }
    buf_append_text(&body, "]}");
    struct http_answer answer;
    http_client_once(process.port, "POST", COMPLETIONS, buf_text(&body), &answer);
    test_eq_u64((uint64_t)answer.status, 400);
    test_true(strstr(buf_text(&answer.body), "150 tokens") != NULL);
    test_true(strstr(buf_text(&answer.body), "holds 100") != NULL);
    http_answer_fini(&answer);
    buf_fini(&body);
    stop(&process);
}

static void test_completion_echoes_prompt(void)
{
    struct frontend_process process;
    struct http_answer answer;
    frontend_process_start_fake(&process, "", NULL);
    http_client_once(process.port, "POST", COMPLETIONS,
                     "{\"model\":\"demo\",\"prompt\":\"The capital of France\",\"logprobs\":2}",
                     &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    test_true(http_answer_header(&answer, "x-request-id") != NULL);
    struct json_t *body = parse_body(&answer);
    test_eq_str(text_at(body, "choices.0.text"), "The capital of France");
    test_eq_str(text_at(body, "choices.0.finish_reason"), "stop");
    test_eq_str(text_at(body, "object"), "text_completion");
    /* The echo leaves BOS out and ends with a stop id, which counts. */
    test_eq_u64(number_at(body, "usage.completion_tokens"), number_at(body, "usage.prompt_tokens"));
    size_t shown = json_count(at_path(body, "choices.0.logprobs.tokens"));
    test_eq_u64(shown, number_at(body, "usage.completion_tokens") - 1);
    test_eq_u64(json_count(at_path(body, "choices.0.logprobs.top_logprobs.0")), 2);
    test_eq_u64(json_count(at_path(body, "choices.0.logprobs.text_offset")), shown);
    json_release(body);
    http_answer_fini(&answer);
    http_client_once(process.port, "POST", COMPLETIONS,
                     "{\"prompt\":[2,300,301,302],\"max_tokens\":2,\"return_token_ids\":true}",
                     &answer);
    body = parse_body(&answer);
    test_eq_str(text_at(body, "choices.0.finish_reason"), "length");
    test_eq_u64(number_at(body, "choices.0.token_ids.1"), 301);
    test_eq_u64(number_at(body, "usage.prompt_tokens"), 4);
    json_release(body);
    http_answer_fini(&answer);
    stop(&process);
}

static void test_completion_stream(void)
{
    struct frontend_process process;
    struct http_client client;
    struct http_answer answer;
    struct stream stream;
    frontend_process_start_fake(&process, "", NULL);
    http_client_open(&client, process.port);
    for (int i = 0; i < 3; i++) { /* on one connection */
        http_client_request(&client, "POST", COMPLETIONS, "X-Request-Id: mine-1\r\n",
                            "{\"prompt\":\"Hello, world. \xc3\xa9\xf0\x9f\x98\x80 end\","
                            "\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
        http_client_read(&client, &answer);
        test_eq_u64((uint64_t)answer.status, 200);
        test_eq_str(http_answer_header(&answer, "x-request-id"), "mine-1");
        test_eq_str(http_answer_header(&answer, "content-type"),
                    "text/event-stream; charset=utf-8");
        read_stream(&answer.body, &stream);
        test_eq_str(buf_text(&stream.content), "Hello, world. \xc3\xa9\xf0\x9f\x98\x80 end");
        test_eq_str(stream.finish, "stop");
        test_eq_u64(stream.done_count, 1);
        test_eq_u64(stream.usage_output, stream.usage_prompt);
        test_true(stream.chunk_count >= 3); /* text, finish, usage; a slow reader joins more */
        stream_fini(&stream);
        http_answer_fini(&answer);
    }
    http_client_close(&client);
    stop(&process);
}

static void test_stop_strings(void)
{
    static const struct {
        const char *stop;
        const char *text;
    } rows[] = {
        {"\"world\"", "Hello, "},
        {"[\"zzz\",\"o, w\"]", "Hell"},
        {"\"H\"", ""},
        {"\"nowhere\"", "Hello, world and more"},
    };
    struct frontend_process process;
    frontend_process_start_fake(&process, "", NULL);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        char body[256];
        struct http_answer answer;
        bool is_stream = i % 2 == 1;
        (void)snprintf(body, sizeof(body),
                       "{\"prompt\":\"Hello, world and more\",\"stop\":%s,\"stream\":%s}",
                       rows[i / 2].stop, is_stream ? "true" : "false");
        http_client_once(process.port, "POST", COMPLETIONS, body, &answer);
        if (is_stream) {
            struct stream stream;
            read_stream(&answer.body, &stream);
            test_eq_str(buf_text(&stream.content), rows[i / 2].text);
            test_eq_str(stream.finish, "stop");
            stream_fini(&stream);
        } else {
            struct json_t *whole = parse_body(&answer);
            test_eq_str(text_at(whole, "choices.0.text"), rows[i / 2].text);
            test_eq_str(text_at(whole, "choices.0.finish_reason"), "stop");
            json_release(whole);
        }
        http_answer_fini(&answer);
    }
    stop(&process);
}

static void test_chat_never_shows_markers(void)
{
    struct frontend_process process;
    struct http_answer answer;
    struct stream stream;
    frontend_process_start_fake(&process, "", NULL);
    /* The echo of a rendered chat is full of markers. */
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Say <|channel>hi\"}]}";
    http_client_once(process.port, "POST", CHAT, body, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    struct json_t *whole = parse_body(&answer);
    test_eq_str(text_at(whole, "object"), "chat.completion");
    test_eq_str(text_at(whole, "choices.0.message.role"), "assistant");
    struct buf content;
    buf_init(&content);
    buf_append_text(&content, text_at(whole, "choices.0.message.content"));
    test_true(strstr(buf_text(&content), "user") && strstr(buf_text(&content), "Say"));
    /* The user's own text is no marker. */
    test_true(strstr(buf_text(&content), "<|channel>hi") != NULL);
    test_true(strstr(buf_text(&content), "<|turn>") == NULL);
    test_true(strstr(buf_text(&content), "<turn|>") == NULL);
    json_release(whole);
    http_answer_fini(&answer);
    http_client_once(process.port, "POST", CHAT,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"Say <|channel>hi\"}],"
                     "\"stream\":true}",
                     &answer);
    read_stream(&answer.body, &stream);
    test_eq_str(buf_text(&stream.content), buf_text(&content));
    test_eq_u64(stream.role_count, 1);
    test_eq_u64(stream.done_count, 1);
    stream_fini(&stream);
    buf_fini(&content);
    http_answer_fini(&answer);
    stop(&process);
}

static void test_chat_logprobs_join_to_content(void)
{
    struct frontend_process process;
    struct http_answer answer;
    frontend_process_start_fake(&process, "", NULL);
    http_client_once(
        process.port, "POST", CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\xa9t\xc3\xa9 \xf0\x9f\x98"
        "\x80\"}],\"logprobs\":true,\"top_logprobs\":2}",
        &answer);
    struct json_t *whole = parse_body(&answer);
    const struct json_t *entries = at_path(whole, "choices.0.logprobs.content");
    struct buf joined;
    buf_init(&joined);
    for (size_t i = 0; i < json_count(entries); i++) {
        const struct json_t *entry = json_element(entries, i);
        const struct json_t *bytes = json_member(entry, "bytes");
        test_eq_u64(json_count(json_member(entry, "top_logprobs")), 2);
        for (size_t k = 0; k < json_count(bytes); k++) {
            buf_append_char(&joined, (char)json_int64(json_element(bytes, k)));
        }
    }
    test_eq_str(buf_text(&joined), text_at(whole, "choices.0.message.content"));
    buf_fini(&joined);
    json_release(whole);
    http_answer_fini(&answer);
    stop(&process);
}

static void test_failure_before_and_during_a_stream(void)
{
    struct frontend_process process;
    struct http_answer answer;
    struct stream stream;
    frontend_process_start_fake(&process, "&fail_after=3", NULL);
    http_client_once(process.port, "POST", COMPLETIONS, "{\"prompt\":\"one two three four five\"}",
                     &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    test_true(http_answer_header(&answer, "retry-after") != NULL);
    http_answer_fini(&answer);
    http_client_once(process.port, "POST", COMPLETIONS,
                     "{\"prompt\":\"one two three four five\",\"stream\":true}", &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    read_stream(&answer.body, &stream);
    test_eq_u64(stream.error_count, 1);
    test_eq_u64(stream.done_count, 0);
    stream_fini(&stream);
    http_answer_fini(&answer);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_failed_total"), 2);
    stop(&process);
}

static void test_large_bodies(void)
{
    struct frontend_process process;
    const char *arguments[] = {"--max-body-mb=2", NULL};
    frontend_process_start_fake(&process, "", arguments);
    for (size_t mb = 1; mb <= 40; mb = mb == 1 ? 3 : mb * 3) { /* 1 served; 3, 9, 27 refused */
        struct http_client client;
        struct http_answer answer;
        size_t byte_count = mb << 20;
        char *text = mem_zalloc(byte_count + 1, 1);
        memset(text, 'x', byte_count);
        /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): the end is written elsewhere */
        memcpy(text, "{\"prompt\":\"", 11);
        /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): the end is written elsewhere */
        memcpy(text + byte_count - 2, "\"}", 2);
        http_client_open(&client, process.port);
        http_client_request(&client, "POST", COMPLETIONS, "", text);
        http_client_read(&client, &answer);
        test_eq_u64((uint64_t)answer.status, mb == 1 ? 400 : 413);
        struct json_t *body = parse_body(&answer);
        test_eq_str(text_at(body, "error.code"),
                    mb == 1 ? "context_length_exceeded" : "body_too_large");
        json_release(body);
        http_answer_fini(&answer);
        http_client_close(&client);
        mem_free(text);
    }
    struct http_answer answer;
    http_client_once(process.port, "GET", "/health", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    stop(&process);
}

static void test_full_queue_is_429(void)
{
    struct frontend_process process;
    struct http_client waiting[4];
    struct http_answer answer;
    const char *arguments[] = {"--max-queue=3", NULL};
    frontend_process_start_fake(&process, "&slots=1&step_us=3000", arguments);
    for (int i = 0; i < 4; i++) {
        http_client_open(&waiting[i], process.port);
        http_client_request(&waiting[i], "POST", COMPLETIONS, "",
                            "{\"prompt\":\"a b c d e f\",\"ignore_eos\":true,\"max_tokens\":500,"
                            "\"stream\":true}");
        if (i == 0) { /* it runs, the others wait */
            test_true(http_client_await(&waiting[i], "data: "));
        }
    }
    while (http_client_metric(process.port, "vllm:num_requests_waiting") < 3) {
    }
    http_client_once(process.port, "POST", COMPLETIONS, "{\"prompt\":\"a\"}", &answer);
    test_eq_u64((uint64_t)answer.status, 429);
    test_true(http_answer_header(&answer, "retry-after") != NULL);
    http_answer_fini(&answer);
    for (int i = 0; i < 4; i++) {
        http_client_close(&waiting[i]);
    }
    stop(&process);
}

/* A whole answer becomes 408, a stream ends with an error event; both say why. */
static void test_a_timeout_ends_the_request(void)
{
    static const char body[] = "{\"prompt\":\"a b c d e f\",\"ignore_eos\":true,"
                               "\"max_tokens\":5000,\"timeout\":0.25,\"stream\":%s}";
    struct frontend_process process;
    struct http_client client;
    struct http_answer answer;
    char text[256];
    frontend_process_start_fake(&process, "&step_us=3000", NULL);
    (void)snprintf(text, sizeof(text), body, "false");
    uint64_t begin_ns = clock_now_ns();
    http_client_once(process.port, "POST", COMPLETIONS, text, &answer);
    test_true(clock_now_ns() - begin_ns >= 250 * CLOCK_NS_PER_MS);
    test_eq_u64((uint64_t)answer.status, 408);
    struct json_t *json = parse_body(&answer);
    test_eq_str(text_at(json, "error.code"), "timeout");
    test_eq_str(text_at(json, "error.type"), "invalid_request_error");
    json_release(json);
    http_answer_fini(&answer);
    (void)snprintf(text, sizeof(text), body, "true");
    http_client_open(&client, process.port);
    http_client_request(&client, "POST", COMPLETIONS, "", text);
    http_client_read(&client, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    test_true(strstr(buf_text(&answer.body), "\"choices\"") != NULL);
    test_true(strstr(buf_text(&answer.body), "\"code\":\"timeout\"") != NULL);
    http_answer_fini(&answer);
    http_client_close(&client);
    stop(&process);
}

/* A checkpoint without tokenizer.json: ids in, ids out, and text routes say why not. */
static void test_without_tokenizer(void)
{
    static const char *const files[] = {"config.json", "generation_config.json"};
    static const struct {
        const char *path;
        const char *body;
    } refused[] = {
        {COMPLETIONS, "{\"prompt\":\"text\"}"},
        {COMPLETIONS, "{\"prompt\":[2,300],\"stop\":\"x\"}"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
    };
    struct frontend_process process;
    struct http_answer answer;
    char dir[] = "/tmp/bezel-ids-XXXXXX";
    char path[2][200];
    test_true(mkdtemp(dir) != NULL);
    for (int i = 0; i < 2; i++) {
        char target[400];
        (void)snprintf(target, sizeof(target), TEST_DEMO_MODEL_DIR "/%s", files[i]);
        (void)snprintf(path[i], sizeof(path[i]), "%s/%s", dir, files[i]);
        test_true(symlink(target, path[i]) == 0);
    }
    const char *arguments[] = {"--run-dir=fake?hash=0", NULL};
    frontend_process_start(&process, TEST_FAKE_FRONTEND, dir, arguments);
    frontend_process_await_ready(&process);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        http_client_once(process.port, "POST", refused[i].path, refused[i].body, &answer);
        test_eq_u64((uint64_t)answer.status, 400);
        test_true(strstr(buf_text(&answer.body), "no tokenizer.json") != NULL);
        http_answer_fini(&answer);
    }
    http_client_once(process.port, "POST", COMPLETIONS, "{\"prompt\":[2,300,301],\"stream\":true}",
                     &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    test_true(strstr(buf_text(&answer.body), "\"token_ids\":[300") != NULL);
    test_true(strstr(buf_text(&answer.body), "[DONE]") != NULL);
    http_answer_fini(&answer);
    stop(&process);
    for (int i = 0; i < 2; i++) {
        (void)unlink(path[i]);
    }
    (void)rmdir(dir);
}

static void test_not_ready_until_attached(void)
{
    struct frontend_process process;
    struct http_answer answer;
    const char *arguments[] = {"--run-dir=fake?ready_ms=600&hash=0", NULL};
    frontend_process_start(&process, TEST_FAKE_FRONTEND, TEST_DEMO_MODEL_DIR, arguments);
    http_client_once(process.port, "GET", "/health", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    http_client_once(process.port, "GET", "/ready", NULL, &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    http_answer_fini(&answer);
    http_client_once(process.port, "POST", COMPLETIONS, "{\"prompt\":\"a\"}", &answer);
    test_eq_u64((uint64_t)answer.status, 503);
    http_answer_fini(&answer);
    /* The worker that comes serves another tokenizer: the process ends with an error. */
    test_eq_u64((uint64_t)frontend_process_wait(&process, 5000), 2);
}

static void test_drain_finishes_streams(void)
{
    for (int by_lifeline = 0; by_lifeline < 2; by_lifeline++) {
        struct frontend_process process;
        struct http_client client;
        struct http_answer answer;
        struct stream stream;
        frontend_process_start_fake(&process, "&step_us=5000", NULL);
        http_client_open(&client, process.port);
        http_client_request(&client, "POST", COMPLETIONS, "",
                            "{\"prompt\":\"a b c d\",\"ignore_eos\":true,\"max_tokens\":60,"
                            "\"stream\":true}");
        test_true(http_client_await(&client, "data: "));
        if (by_lifeline) {
            (void)close(process.lifeline_fd);
            process.lifeline_fd = -1;
        } else {
            test_true(kill(process.pid, SIGTERM) == 0);
        }
        http_client_read(&client, &answer);
        read_stream(&answer.body, &stream);
        test_eq_str(stream.finish, "length");
        test_eq_u64(stream.done_count, 1);
        stream_fini(&stream);
        http_answer_fini(&answer);
        test_eq_u64((uint64_t)frontend_process_wait(&process, 5000), 0);
        http_client_close(&client);
    }
}

static void test_drain_timeout_ends_streams(void)
{
    struct frontend_process process;
    struct http_client client;
    const char *arguments[] = {"--drain-timeout-s=1", NULL};
    frontend_process_start_fake(&process, "&step_us=5000", arguments);
    http_client_open(&client, process.port);
    http_client_request(&client, "POST", COMPLETIONS, "",
                        "{\"prompt\":\"a b c d\",\"ignore_eos\":true,\"stream\":true}");
    test_true(http_client_await(&client, "data: "));
    test_true(kill(process.pid, SIGTERM) == 0);
    test_true(http_client_await(&client, "shutting_down"));
    test_eq_u64((uint64_t)frontend_process_wait(&process, 5000), 0);
    http_client_close(&client);
}

static void test_counters_add_up(void)
{
    struct frontend_process process;
    struct http_answer answer;
    frontend_process_start_fake(&process, "", NULL);
    for (int i = 0; i < 10; i++) {
        http_client_once(process.port, "POST", COMPLETIONS,
                         i % 3 == 0 ? "{\"prompt\":7}" : "{\"prompt\":\"a b\"}", &answer);
        http_answer_fini(&answer);
    }
    struct http_client client;
    http_client_open(&client, process.port);
    http_client_request(&client, "POST", COMPLETIONS, "",
                        "{\"prompt\":\"a b c d\",\"ignore_eos\":true,\"stream\":true}");
    test_true(http_client_await(&client, "data: "));
    test_eq_u64(http_client_metric(process.port, "bezel:requests_open"), 1);
    http_client_close(&client);
    while (http_client_metric(process.port, "bezel:requests_cancelled_total") == 0) {
    }
    test_eq_u64(http_client_metric(process.port, "bezel:requests_arrived_total"), 11);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_finished_total"), 6);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_rejected_total"), 4);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_cancelled_total"), 1);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_failed_total"), 0);
    test_eq_u64(http_client_metric(process.port, "bezel:requests_open"), 0);
    test_eq_u64(http_client_metric(process.port, "vllm:num_requests_waiting"), 0);
    stop(&process);
}

static const struct test_case cases[] = {
    TEST(test_info_routes),
    TEST(test_refusals_have_status_and_shape),
    TEST(test_too_long_prompt_names_both_numbers),
    TEST(test_completion_echoes_prompt),
    TEST(test_completion_stream),
    TEST(test_stop_strings),
    TEST(test_chat_never_shows_markers),
    TEST(test_chat_logprobs_join_to_content),
    TEST(test_failure_before_and_during_a_stream),
    TEST(test_large_bodies),
    TEST(test_full_queue_is_429),
    TEST(test_a_timeout_ends_the_request),
    TEST(test_without_tokenizer),
    TEST(test_not_ready_until_attached),
    TEST(test_drain_finishes_streams),
    TEST(test_drain_timeout_ends_streams),
    TEST(test_counters_add_up),
};

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN); /* writes to closed sockets report EPIPE */
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
