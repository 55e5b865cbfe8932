#include <string.h>

#include "common/json.h"
#include "frontend/api_error.h"
#include "tests/testlib/test.h"

static void test_status_of_every_code(void)
{
    static const int statuses[] = {200, 400, 404, 408, 429, 500, 503};
    for (int code = 0; code < ERR_CODE_COUNT; code++) {
        int status = api_error_status((enum err_code)code);
        bool is_known = false;
        for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
            is_known = is_known || statuses[i] == status;
        }
        test_true(is_known);
        test_true((status == 200) == (code == ERR_OK));
    }
    test_eq_u64(api_error_status(ERR_ARGUMENT), 400);
    test_eq_u64(api_error_status(ERR_LIMIT), 400);
    test_eq_u64(api_error_status(ERR_NOT_FOUND), 404);
    test_eq_u64(api_error_status(ERR_BUSY), 429);
    test_eq_u64(api_error_status(ERR_CLOSED), 503);
    test_eq_u64(api_error_status(ERR_INTERNAL), 500);
}

static void expect_body(const struct api_error *error, const char *want)
{
    struct buf out;
    buf_init(&out);
    api_error_body(error, &out);
    test_eq_str(buf_text(&out), want);
    struct json_t *value = NULL;
    struct err err;
    test_ok(json_parse(out.at, out.used_bytes, 8, &value, &err), &err);
    json_release(value);
    buf_fini(&out);
}

static void test_bodies(void)
{
    struct api_error error;
    test_true(api_error_set(&error, ERR_ARGUMENT, "top_p", "top_p is \"%s\"", "x\n") ==
              ERR_ARGUMENT);
    expect_body(&error, "{\"error\":{\"message\":\"top_p is \\\"x\\n\\\"\",\"type\":"
                        "\"invalid_request_error\",\"param\":\"top_p\",\"code\":null}}");
    test_eq_u64(error.retry_after_s, 0);
    test_true(api_error_set(&error, ERR_BUSY, NULL, "full") == ERR_BUSY);
    expect_body(&error, "{\"error\":{\"message\":\"full\",\"type\":\"rate_limit_error\","
                        "\"param\":null,\"code\":\"queue_full\"}}");
    test_true(error.retry_after_s > 0);
    api_error_http(&error, 413, "body_too_large", "body of %d", 3);
    test_eq_u64(error.status, 413);
    expect_body(&error, "{\"error\":{\"message\":\"body of 3\",\"type\":\"invalid_request_error\","
                        "\"param\":null,\"code\":\"body_too_large\"}}");
    test_true(api_error_set(&error, ERR_CLOSED, NULL, "gone") == ERR_CLOSED);
    test_true(error.retry_after_s > 0 && error.status == 503);
}

static void test_member_paths_become_param(void)
{
    struct err err;
    struct api_error error;
    test_true(err_set(&err, ERR_ARGUMENT, "messages[2].content: must be text") == ERR_ARGUMENT);
    api_error_from_err(&error, &err);
    test_eq_str(error.param, "messages[2].content");
    test_true(err_set(&err, ERR_LIMIT, "prompt of 9 tokens, at most 8") == ERR_LIMIT);
    api_error_from_err(&error, &err);
    test_eq_str(error.param, "");
    test_eq_u64(error.status, 400);
}

static void test_long_messages_are_cut(void)
{
    char text[1000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    struct api_error error;
    test_true(api_error_set(&error, ERR_ARGUMENT, text, "%s", text) == ERR_ARGUMENT);
    test_eq_u64(strlen(error.message), sizeof(error.message) - 1);
    test_eq_u64(strlen(error.param), sizeof(error.param) - 1);
}

static const struct test_case cases[] = {
    TEST(test_status_of_every_code),
    TEST(test_bodies),
    TEST(test_member_paths_become_param),
    TEST(test_long_messages_are_cut),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
