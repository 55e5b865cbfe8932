/* API keys and what the routes ask of them, over real sockets. */
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

static const struct test_case cases[] = {
    TEST(test_routes_need_a_key),
    TEST(test_refusals_have_the_api_shape),
    TEST(test_without_a_key_file),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
