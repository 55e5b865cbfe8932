/* API keys, origins and headers: what the routes ask of them, over real sockets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "tests/testlib/frontend_process.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

#define COMPLETIONS "/v1/completions"
#define BODY        "{\"prompt\":\"a b c\"}"

static void write_keys(char path[64])
{
    static const char text[] = "user-key-1\nuser-key-2\nadmin-key-1 admin\n";
    (void)snprintf(path, 64, "/tmp/http-security-XXXXXX");
    int fd = mkstemp(path);
    test_true(fd >= 0 && write(fd, text, sizeof(text) - 1) == (ssize_t)sizeof(text) - 1);
    test_true(close(fd) == 0);
}

static void start(struct frontend_process *process, char path[64])
{
    char argument[96];
    write_keys(path);
    (void)snprintf(argument, sizeof(argument), "--api-key-file=%s", path);
    const char *arguments[] = {argument, NULL};
    frontend_process_start_fake(process, "", arguments);
}

static void ask(uint16_t port, const char *method, const char *path, const char *headers,
                struct http_answer *out_answer)
{
    struct http_client client;
    bool is_post = strcmp(method, "POST") == 0;
    http_client_open(&client, port);
    http_client_request(&client, method, path, headers, is_post ? BODY : NULL);
    http_client_read(&client, out_answer);
    http_client_close(&client);
}

static void expect_status(uint16_t port, const char *path, const char *headers, int status)
{
    struct http_answer answer;
    bool is_post = strstr(path, "completions") || strstr(path, "admin");
    ask(port, is_post ? "POST" : "GET", path, headers, &answer);
    if (answer.status != status) {
        test_fail(__FILE__, __LINE__, "%s with '%s' answers %d, not %d", path, headers,
                  answer.status, status);
    }
    http_answer_fini(&answer);
}

static void test_routes_need_a_key(void)
{
    struct frontend_process process;
    char path[64];
    start(&process, path);
    static const char *const guarded[] = {COMPLETIONS,  "/v1/chat/completions",
                                          "/v1/models", "/v1/models/demo",
                                          "/metrics",   "/no/such/route"};
    for (size_t i = 0; i < sizeof(guarded) / sizeof(guarded[0]); i++) {
        expect_status(process.port, guarded[i], "", 401);
        expect_status(process.port, guarded[i], "Authorization: Bearer user-key-3\r\n", 401);
    }
    static const char *const open[] = {"/health", "/ready"};
    for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++) {
        expect_status(process.port, open[i], "", 200);
        expect_status(process.port, open[i], "Authorization: Bearer user-key-3\r\n", 200);
    }
    static const struct {
        const char *headers;
        int status;
    } rows[] = {
        {"Authorization: Bearer user-key-1\r\n", 200},
        {"authorization: bearer   user-key-2\r\n", 200},
        {"x-api-key: user-key-1\r\n", 200},
        {"Authorization: Bearer admin-key-1\r\n", 200},
        /* One of the two is enough. */
        {"Authorization: Bearer placeholder\r\nx-api-key: user-key-1\r\n", 200},
        {"Authorization: Bearer user-key-1\r\nx-api-key: placeholder\r\n", 200},
        {"Authorization: Basic user-key-1\r\n", 401},
        {"Authorization: user-key-1\r\n", 401},
        {"Authorization: Bearer\r\n", 401},
        {"Authorization: Bearer user-key-1 user-key-1\r\n", 401},
        {"x-api-key: \r\n", 401},
        {"x-api-key: user-key-12\r\n", 401},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        expect_status(process.port, COMPLETIONS, rows[i].headers, rows[i].status);
    }
    /* Who may not ask does not learn which routes there are. */
    expect_status(process.port, "/no/such/route", "x-api-key: user-key-1\r\n", 404);
    test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
    test_true(unlink(path) == 0);
}

static void expect_refusal(uint16_t port, const char *headers, const char *code,
                           const char *challenge)
{
    struct http_answer answer;
    struct json_t *body = NULL;
    struct err err;
    ask(port, "POST", COMPLETIONS, headers, &answer);
    test_eq_u64((uint64_t)answer.status, 401);
    test_eq_str(http_answer_header(&answer, "www-authenticate"), challenge);
    test_true(http_answer_header(&answer, "x-request-id") != NULL);
    test_ok(json_parse(buf_text(&answer.body), answer.body.used_bytes, 8, &body, &err), &err);
    const struct json_t *error = json_member(body, "error");
    test_eq_str(json_text(json_member(error, "type"), NULL), "invalid_request_error");
    test_true(json_kind(json_member(error, "param")) == JSON_KIND_NULL);
    const struct json_t *its_code = json_member(error, "code");
    if (code) {
        test_eq_str(json_text(its_code, NULL), code);
    } else {
        test_true(json_kind(its_code) == JSON_KIND_NULL);
    }
    test_true(strstr(buf_text(&answer.body), "user-key") == NULL);
    json_release(body);
    http_answer_fini(&answer);
}

static void test_refusals_have_the_api_shape(void)
{
    struct frontend_process process;
    char path[64];
    start(&process, path);
    expect_refusal(process.port, "", NULL, "Bearer realm=\"bezel\"");
    expect_refusal(process.port, "x-api-key: user-key-9\r\n", "invalid_api_key",
                   "Bearer realm=\"bezel\", error=\"invalid_token\"");
    test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
    test_true(unlink(path) == 0);
}

/* Keys are there for the routes that exist; without a file everybody may ask. */
static void test_without_a_key_file(void)
{
    struct frontend_process process;
    frontend_process_start_fake(&process, "", NULL);
    expect_status(process.port, COMPLETIONS, "", 200);
    expect_status(process.port, COMPLETIONS, "Authorization: Bearer any\r\n", 200);
    expect_status(process.port, "/metrics", "", 200);
    test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
}

static void expect_header(const struct http_answer *answer, const char *name, const char *want)
{
    const char *value = http_answer_header(answer, name);
    if (want == NULL || value == NULL) {
        test_true(want == value);
        return;
    }
    test_eq_str(value, want);
}

/* Who asks with which Origin, and the Access-Control-Allow-Origin that comes back. */
static const struct {
    const char *list;
    const char *origin;
    const char *allowed;
} origins[] = {
    {"https://a.example", "https://a.example", "https://a.example"},
    {"https://b.example, https://a.example", "https://a.example", "https://a.example"},
    {"https://a.example", "https://a.example.evil", NULL},
    {"https://a.example", "http://a.example", NULL},
    {"https://a.example", "https://a.exampl", NULL},
    {"http://localhost:3000", "http://localhost:3001", NULL},
    {"*", "null", "null"},
    {NULL, "https://a.example", NULL},
};

static void test_origins(void)
{
    static const char *const asked[] = {"GET", "POST", "OPTIONS"};
    for (size_t i = 0; i < sizeof(origins) / sizeof(origins[0]); i++) {
        struct frontend_process process;
        char option[128];
        char headers[256];
        (void)snprintf(option, sizeof(option), "--cors-origin=%s", origins[i].list);
        const char *arguments[] = {origins[i].list ? option : NULL, NULL};
        frontend_process_start_fake(&process, "", arguments);
        for (size_t k = 0; k < sizeof(asked) / sizeof(asked[0]); k++) {
            struct http_answer answer;
            bool is_preflight = strcmp(asked[k], "OPTIONS") == 0;
            (void)snprintf(headers, sizeof(headers), "Origin: %s\r\n%s", origins[i].origin,
                           is_preflight ? "Access-Control-Request-Method: POST\r\n"
                                          "Access-Control-Request-Headers: authorization, x-b\r\n"
                                        : "");
            const char *path = strcmp(asked[k], "GET") == 0 ? "/v1/models" : COMPLETIONS;
            ask(process.port, asked[k], path, headers, &answer);
            bool is_refused = is_preflight && !origins[i].list;
            test_eq_u64((uint64_t)answer.status, is_refused ? 405 : 200);
            expect_header(&answer, "access-control-allow-origin", origins[i].allowed);
            expect_header(&answer, "vary", origins[i].list ? "Origin" : NULL);
            bool is_granted = is_preflight && origins[i].allowed;
            expect_header(&answer, "access-control-allow-headers",
                          is_granted ? "authorization, x-b" : NULL);
            expect_header(&answer, "access-control-allow-methods",
                          is_granted ? "GET, HEAD, POST, OPTIONS" : NULL);
            http_answer_fini(&answer);
        }
        test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
    }
}

/* A script can read why it was refused; the preflight itself carries no key. */
static void test_origins_and_keys(void)
{
    struct frontend_process process;
    char path[64];
    char option[96];
    struct http_answer answer;
    write_keys(path);
    (void)snprintf(option, sizeof(option), "--api-key-file=%s", path);
    const char *arguments[] = {option, "--cors-origin=https://a.example", NULL};
    frontend_process_start_fake(&process, "", arguments);
    ask(process.port, "OPTIONS", COMPLETIONS,
        "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n", &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    http_answer_fini(&answer);
    ask(process.port, "POST", COMPLETIONS, "Origin: https://a.example\r\n", &answer);
    test_eq_u64((uint64_t)answer.status, 401);
    expect_header(&answer, "access-control-allow-origin", "https://a.example");
    http_answer_fini(&answer);
    test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
    test_true(unlink(path) == 0);
}

static void test_headers_are_bounded(void)
{
    struct frontend_process process;
    const char *arguments[] = {"--max-header-kb=4", NULL};
    frontend_process_start_fake(&process, "", arguments);
    static const int sizes[] = {3500, 4200, 11000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct http_answer answer;
        static char text[12288];
        int status = sizes[i] < 4096 ? 200 : 431;
        (void)snprintf(text, sizeof(text), "X-Long: %0*d\r\n", sizes[i], 0);
        ask(process.port, "POST", COMPLETIONS, text, &answer);
        test_eq_u64((uint64_t)answer.status, (uint64_t)status);
        http_answer_fini(&answer);
        (void)snprintf(text, sizeof(text), "/health?%0*d", sizes[i], 0); /* the path counts */
        ask(process.port, "GET", text, "", &answer);
        test_eq_u64((uint64_t)answer.status, (uint64_t)status);
        http_answer_fini(&answer);
    }
    test_eq_u64((uint64_t)frontend_process_stop(&process), 0);
}

static const struct test_case cases[] = {
    TEST(test_routes_need_a_key),  TEST(test_refusals_have_the_api_shape),
    TEST(test_without_a_key_file), TEST(test_origins),
    TEST(test_origins_and_keys),   TEST(test_headers_are_bounded),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
