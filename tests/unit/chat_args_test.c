#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/chat_args.h"
#include "tests/testlib/test.h"

/* <|"|> becomes the byte that stands for its token. */
static void mark_quotes(const char *text, struct buf *out)
{
    static const char quote[] = "<|\"|>";
    while (*text) {
        if (strncmp(text, quote, sizeof(quote) - 1) == 0) {
            buf_append_char(out, CHAT_ARGS_QUOTE);
            text += sizeof(quote) - 1;
        } else {
            buf_append_char(out, *text++);
        }
    }
}

static void convert(const char *args, struct buf *out)
{
    struct buf marked;
    buf_init(&marked);
    mark_quotes(args, &marked);
    chat_args_to_json(marked.at, marked.used_bytes, out);
    buf_fini(&marked);
}

/* Where this server reads more than the reference does: any JSON number is one, and the quotes
 * around a key are no part of it. */
static const struct {
    const char *args;
    const char *json;
} own[] = {
    {"x:3.14,y:-7,z:1e10,w:1.5e10,v:0,u:-0,t:007,s:1_000",
     "{\"x\": 3.14, \"y\": -7, \"z\": 10000000000.0, \"w\": 15000000000.0, \"v\": 0, \"u\": 0, "
     "\"t\": 7, \"s\": 1000}"},
    {"<|\"|>k<|\"|>:<|\"|>v<|\"|>", "{\"k\": \"v\"}"},
    {"a:Tokyo<|\"|>,b:1", "{\"a\": \"Tokyo\", \"b\": 1}"}, /* opening quote left out */
    {"a:<|\"|>open", "{\"a\": \"open\"}"},
    {"a:[1,[2", "{\"a\": [1, [2]]}"},
    {"a:}b", "{\"a\": \"\"}"},
    {":::", "{\"\": \"::\"}"},
    {"no key", "{}"},
    {"a:1.2.3,b:--1,c:1e,d:_1,e:+5",
     "{\"a\": \"1.2.3\", \"b\": \"--1\", \"c\": \"1e\", \"d\": \"_1\", \"e\": 5}"},
};

static const char *own_json(const char *args)
{
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (strcmp(own[i].args, args) == 0) {
            return own[i].json;
        }
    }
    return NULL;
}

static void test_reference_cases(void)
{
    char path[512];
    struct json_t *file = NULL;
    struct err err;
    (void)snprintf(path, sizeof(path), "%s/chat/tool_args_cases.json", test_golden_dir());
    test_ok(json_parse_file(path, 1 << 20, &file, &err), &err);
    const struct json_t *list = json_member(file, "args_cases");
    test_true(json_count(list) > 20);
    for (size_t i = 0; i < json_count(list); i++) {
        const char *args = json_text(json_member(json_element(list, i), "args"), NULL);
        struct buf got;
        struct buf want;
        struct json_t *value = NULL;
        buf_init(&got);
        buf_init(&want);
        convert(args, &got);
        /* Compared as values: both are written by the same writer. */
        test_ok(json_parse(got.at, got.used_bytes, 80, &value, &err), &err);
        buf_reset(&got);
        json_put_value(&got, value);
        json_release(value);
        const char *own_want = own_json(args);
        if (own_want) {
            test_ok(json_parse(own_want, strlen(own_want), 80, &value, &err), &err);
            json_put_value(&want, value);
            json_release(value);
        } else {
            json_put_value(&want, json_member(json_element(list, i), "parsed"));
        }
        if (strcmp(buf_text(&got), buf_text(&want)) != 0) {
            test_fail(__FILE__, __LINE__, "%s: got %s, want %s", args, buf_text(&got),
                      buf_text(&want));
        }
        buf_fini(&got);
        buf_fini(&want);
    }
    json_release(file);
}

static void test_own_cases(void)
{
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        struct buf got;
        buf_init(&got);
        convert(own[i].args, &got);
        test_eq_str(buf_text(&got), own[i].json);
        buf_fini(&got);
    }
}

/* Whatever a model writes, the result is JSON. */
static void test_random_text_gives_json(void)
{
    static const char alphabet[] = "ab:,{}[]\xff \n1-.e\"\\";
    uint64_t state = 99;
    for (int round = 0; round < 200000; round++) {
        char text[40];
        size_t byte_count = test_random(&state) % sizeof(text);
        for (size_t i = 0; i < byte_count; i++) {
            text[i] = alphabet[test_random(&state) % (sizeof(alphabet) - 1)];
        }
        struct buf got;
        struct json_t *value = NULL;
        struct err err;
        buf_init(&got);
        chat_args_to_json(text, byte_count, &got);
        test_ok(json_parse(got.at, got.used_bytes, 200, &value, &err), &err);
        test_true(json_kind(value) == JSON_KIND_OBJECT);
        json_release(value);
        buf_fini(&got);
    }
}

static void test_deep_nesting_is_bounded(void)
{
    struct buf text;
    struct buf got;
    struct json_t *value = NULL;
    struct err err;
    buf_init(&text);
    buf_init(&got);
    buf_append_text(&text, "a:");
    for (int i = 0; i < 100000; i++) {
        buf_append_char(&text, '[');
    }
    chat_args_to_json(text.at, text.used_bytes, &got);
    test_ok(json_parse(got.at, got.used_bytes, 200, &value, &err), &err);
    json_release(value);
    buf_fini(&text);
    buf_fini(&got);
}

static const struct test_case cases[] = {
    TEST(test_reference_cases),
    TEST(test_own_cases),
    TEST(test_random_text_gives_json),
    TEST(test_deep_nesting_is_bounded),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
