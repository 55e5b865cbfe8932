#include "common/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/test.h"

enum {
    DEPTH = 8
};

/* Text that must parse comes out as want. */
static void check_round(const char *text, const char *want)
{
    struct err err;
    struct json_t *value;
    test_ok(json_parse(text, strlen(text), DEPTH, &value, &err), &err);
    struct buf out;
    buf_init(&out);
    json_put_value(&out, value);
    json_release(value);
    test_eq_str(buf_text(&out), want);
    buf_fini(&out);
}

static void check_refused(const char *text, size_t byte_count, enum err_code code,
                          const char *message)
{
    struct err err = {0};
    struct json_t *value = NULL;
    enum err_code got = json_parse(text, byte_count, DEPTH, &value, &err);
    if (got != code || strcmp(err.message, message) != 0) {
        test_fail(__FILE__, __LINE__, "'%s' gives %s '%s', want '%s'", text, err_code_text(got),
                  err.message, message);
    }
    test_true(value == NULL);
}

static void test_values_round(void)
{
    static const char *const rows[][2] = {
        {"null", "null"},
        {" [ true , false ] ", "[true,false]"},
        {"{}", "{}"},
        {"[]", "[]"},
        {"{\"b\":1,\"a\":[{},[]]}", "{\"b\":1,\"a\":[{},[]]}"},
        {"\"\"", "\"\""},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u001f\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u001f\""},
        {"\"\\u20ac\\ud83d\\uDE00\"", "\"\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\"a\\u0000b\"", "\"a\\u0000b\""},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"9223372036854775808", "9223372036854775808"},
        {"-9223372036854775809", "-9223372036854775809"},
        {"123456789012345678901234567890", "123456789012345678901234567890"},
        {"1e-400", "0.0"},
        {"1E5", "100000.0"},
        {"[1,[[[[[[[2]]]]]]]]", "[1,[[[[[[[2]]]]]]]]"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_round(rows[i][0], rows[i][1]);
    }
}

static void test_refusals_say_where(void)
{
    static const struct {
        const char *text;
        const char *message;
    } rows[] = {
        {"", "line 1 column 1: expected a value, found the end"},
        {"[1,\n  }", "line 2 column 3: expected a value, found }"},
        {"[1 2]", "line 1 column 4: expected ',' or ']', found 2"},
        {"{\"a\":1,}", "line 1 column 8: expected a key in double quotes, found }"},
        {"{\"a\" 1}", "line 1 column 6: expected ':' after a key, found 1"},
        {"{\"a\":1 \"b\":2}", "line 1 column 8: expected ',' or '}', found \"b\""},
        {"{\"a\":1,\"a\":2}", "line 1 column 8: duplicate key"},
        {"{\"a\\u0000\":1}", "line 1 column 2: zero byte in a key"},
        {"[1] x", "line 1 column 5: not a JSON value"},
        {"[1] 2", "line 1 column 5: expected the end, found 2"},
        {"nul", "line 1 column 1: not a JSON value"},
        {"NaN", "line 1 column 1: not a JSON value"},
        {"-Infinity", "line 1 column 1: malformed number"},
        {"01", "line 1 column 1: malformed number"},
        {"1.", "line 1 column 1: malformed number"},
        {".5", "line 1 column 1: not a JSON value"},
        {"1e+", "line 1 column 1: malformed number"},
        {"+1", "line 1 column 1: not a JSON value"},
        {"[1e400]", "line 1 column 2: number beyond the range of a double"},
        {"\"abc", "line 1 column 1: unterminated string"},
        {"\"a\\", "line 1 column 3: unknown escape in a string"},
        {"\"a\tb\"", "line 1 column 3: control character in a string"},
        {"\"\\x41\"", "line 1 column 2: unknown escape in a string"},
        {"\"\\u12g4\"", "line 1 column 2: \\u needs four hex digits"},
        {"\"\\ud83d\"", "line 1 column 2: \\u escape of half a surrogate pair"},
        {"\"\\ude00\"", "line 1 column 2: \\u escape of half a surrogate pair"},
        {"\"\\ud83d\\u0041\"", "line 1 column 2: \\u escape of half a surrogate pair"},
        {"\"\xff\"", "line 1 column 2: malformed UTF-8 in a string"},
        {"\"\xed\xa0\x80\"", "line 1 column 2: malformed UTF-8 in a string"},
        {"'a'", "line 1 column 1: not a JSON value"},
        {"/* */ 1", "line 1 column 1: not a JSON value"},
        {"\xef\xbb\xbf{}", "line 1 column 1: not a JSON value"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_refused(rows[i].text, strlen(rows[i].text), ERR_FORMAT, rows[i].message);
    }
    check_refused("1\0", 2, ERR_FORMAT, "line 1 column 2: not a JSON value");
    check_refused("[[[[[[[[[1]]]]]]]]]", 19, ERR_LIMIT, "JSON nested deeper than 8");
}

static void test_infinite_integer_is_refused(void)
{
    char digits[400];
    memset(digits, '9', sizeof(digits));
    check_refused(digits, 309, ERR_FORMAT, "line 1 column 1: number beyond the range of a double");
    struct err err;
    struct json_t *value;
    test_ok(json_parse(digits, 308, DEPTH, &value, &err), &err);
    test_true(json_kind(value) == JSON_KIND_BIG_INTEGER);
    test_eq_u64(strlen(json_number_text(value)), 308);
    test_true(json_number(value) == 1e308);
    json_release(value);
}

static void test_depth_is_capped_for_any_caller(void)
{
    size_t depth = 1000000;
    char *text = mem_zalloc(depth, 1);
    memset(text, '[', depth);
    struct err err;
    struct json_t *value;
    test_true(json_parse(text, depth, UINT32_MAX, &value, &err) == ERR_LIMIT);
    test_eq_str(err.message, "JSON nested deeper than 512");
    mem_free(text);
}

static void test_containers_are_capped(void)
{
    size_t count = JSON_MAX_CONTAINERS; /* and the array around them */
    struct buf text;
    buf_init(&text);
    buf_append_text(&text, "[[]");
    for (size_t i = 1; i < count; i++) {
        buf_append_text(&text, ",[]");
    }
    buf_append_char(&text, ']');
    struct err err;
    struct json_t *value;
    test_true(json_parse(text.at, text.used_bytes, DEPTH, &value, &err) == ERR_LIMIT);
    test_eq_str(err.message, "JSON with more than 1048576 arrays and objects");
    buf_fini(&text);
}

static void test_big_integer_cannot_be_forged(void)
{
    static const char *const texts[] = {"\"\\u00ff123\"", "\"\xc3\xbf\x31\x32\x33\"",
                                        "\"123456789012345678901234567890\""};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct err err;
        struct json_t *value;
        test_ok(json_parse(texts[i], strlen(texts[i]), DEPTH, &value, &err), &err);
        test_true(json_kind(value) == JSON_KIND_TEXT);
        json_release(value);
    }
    check_refused("\"\xff\x31\x32\x33\"", 6, ERR_FORMAT,
                  "line 1 column 2: malformed UTF-8 in a string");
}

static void test_members_keep_their_order(void)
{
    const char *text = "{\"z\":1,\"a\":2,\"m\":3,\"b\":4,\"y\":5,\"c\":6,\"x\":7,\"d\":8,\"w\":9}";
    struct err err;
    struct json_t *value;
    test_ok(json_parse(text, strlen(text), DEPTH, &value, &err), &err);
    char keys[16] = "";
    size_t key_count = 0;
    struct json_iter iter;
    json_iter_start(&iter, value);
    while (json_iter_next(&iter)) {
        test_true(strlen(iter.key) == 1 && key_count < sizeof(keys) - 1);
        keys[key_count++] = iter.key[0];
        test_eq_u64(json_int64(iter.value), key_count);
    }
    test_eq_str(keys, "zambycxdw");
    test_eq_u64(json_count(value), 9);
    test_true(json_member(value, "q") == NULL);
    test_true(json_element(value, 0) == NULL);
    test_eq_u64(json_count(json_member(value, "z")), 0);
    json_release(value);
}

static void check_config(enum err_code code, const struct err *err, const char *message)
{
    test_true(code == ERR_CONFIG);
    test_eq_str(err->message, message);
}

static void test_typed_access_names_the_path(void)
{
    const char *text =
        "{\"n\":12,\"neg\":-1,\"f\":1.5,\"t\":\"abc\",\"nul\":null,\"z\":\"a\\u0000\","
        "\"o\":{\"x\":1},\"yes\":true,\"big\":99999999999999999999}";
    struct err err;
    struct json_t *root;
    uint32_t u32;
    double f64;
    bool flag;
    const char *shown;
    test_ok(json_parse(text, strlen(text), DEPTH, &root, &err), &err);
    test_ok(json_get_u32(root, "", "n", 12, &u32, &err), &err);
    test_eq_u64(u32, 12);
    check_config(json_get_u32(root, "text_config", "n", 11, &u32, &err), &err,
                 "text_config.n is 12, needs an integer from 0 to 11");
    check_config(json_get_u32(root, "", "neg", 11, &u32, &err), &err,
                 "neg is -1, needs an integer from 0 to 11");
    check_config(json_get_u32(root, "", "big", UINT32_MAX, &u32, &err), &err,
                 "big is 99999999999999999999, needs an integer from 0 to 4294967295");
    check_config(json_get_u32(root, "a.b", "gone", 11, &u32, &err), &err,
                 "a.b.gone is missing, needs an integer from 0 to 11");
    check_config(json_get_u32_or(root, "", "o", 11, 5, &u32, &err), &err,
                 "o is an object, needs an integer from 0 to 11");
    test_ok(json_get_u32_or(root, "", "nul", 11, 5, &u32, &err), &err);
    test_eq_u64(u32, 5);
    test_ok(json_get_f64_or(root, "", "f", 0, &f64, &err), &err);
    test_true(f64 == 1.5);
    test_ok(json_get_f64_or(root, "", "big", 0, &f64, &err), &err);
    test_true(f64 == 1e20);
    check_config(json_get_f64_or(root, "", "t", 0, &f64, &err), &err,
                 "t is \"abc\", needs a number");
    test_ok(json_get_bool_or(root, "", "yes", false, &flag, &err), &err);
    test_true(flag);
    check_config(json_get_bool_or(root, "", "n", false, &flag, &err), &err,
                 "n is 12, needs true or false");
    test_ok(json_get_text_or(root, "", "t", NULL, &shown, &err), &err);
    test_eq_str(shown, "abc");
    check_config(json_get_text_or(root, "", "z", NULL, &shown, &err), &err,
                 "z is \"a\\u0000\", needs a string without zero bytes");
    json_release(root);
}

static void check_f64(double value, const char *want)
{
    struct buf out;
    buf_init(&out);
    json_put_f64(&out, value);
    test_eq_str(buf_text(&out), want);
    buf_fini(&out);
}

static void test_f64_prints_as_python_does(void)
{
    check_f64(1.0, "1.0");
    check_f64(-1.5, "-1.5");
    check_f64(0.0, "0.0");
    check_f64(1e15, "1000000000000000.0");
    check_f64(123456789012345680.0, "1.2345678901234568e+17");
    check_f64(1e16, "1e+16");
    check_f64(1e20, "1e+20");
    check_f64(0.0001, "0.0001");
    check_f64(0.00012, "0.00012");
    check_f64(0.00001, "1e-05");
    check_f64(1.25e-7, "1.25e-07");
    check_f64(0.1, "0.1");
    check_f64(1.0 / 3.0, "0.3333333333333333");
    check_f64(0.1 + 0.2, "0.30000000000000004");
    check_f64(100.25, "100.25");
    check_f64(5e-324, "5e-324");
    check_f64(2.2250738585072014e-308, "2.2250738585072014e-308");
    check_f64(1.7976931348623157e308, "1.7976931348623157e+308");
    check_f64(9007199254740993.0, "9007199254740992.0");
    check_f64(0x1p-1017,
              "7.120236347223045e-307"); /* not the nearest 16 digits, yet it reads back */
    check_f64(HUGE_VAL, "null");
    check_f64(nan(""), "null");
}

static void test_f64_reads_back(void)
{
    uint64_t seed = 7;
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = test_random(&seed);
        double value;
        memcpy(&value, &bits, sizeof(value));
        if (!isfinite(value)) {
            continue;
        }
        struct buf out;
        buf_init(&out);
        json_put_f64(&out, value);
        test_true(strtod(buf_text(&out), NULL) == value);
        buf_fini(&out);
    }
}

static void test_put_text_mends_malformed_bytes(void)
{
    struct buf out;
    buf_init(&out);
    json_put_text(&out, "a\xff\xe2\x82\x7f\0b", 7);
    test_eq_str(buf_text(&out), "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x7f\\u0000b\"");
    buf_fini(&out);
}

static void test_files_are_bounded_and_named(void)
{
    char path[] = "/tmp/json-test-XXXXXX";
    int fd = mkstemp(path);
    test_true(fd >= 0);
    test_true(write(fd, "{\"a\":[1,]}", 10) == 10);
    struct err err;
    struct json_t *value;
    char want[200];
    test_true(json_parse_file(path, 9, &value, &err) == ERR_LIMIT);
    (void)snprintf(want, sizeof(want), "'%s' has 10 bytes, at most 9", path);
    test_eq_str(err.message, want);
    test_true(json_parse_file(path, 10, &value, &err) == ERR_FORMAT);
    (void)snprintf(want, sizeof(want), "'%s': line 1 column 9: expected a value, found ]", path);
    test_eq_str(err.message, want);
    test_true(pwrite(fd, "2", 1, 8) == 1 && pwrite(fd, "]}", 2, 9) == 2);
    test_ok(json_parse_file(path, 100, &value, &err), &err);
    test_eq_u64(json_int64(json_element(json_member(value, "a"), 0)), 1);
    json_release(value);
    (void)close(fd);
    (void)unlink(path);
    test_true(json_parse_file(path, 100, &value, &err) == ERR_NOT_FOUND);
    test_true(json_parse_file("/tmp", 100, &value, &err) == ERR_CONFIG);
}

/* Every prefix and every one-byte change of a document must be refused or parse, never read outside:
 * exact-size heap copies let the address sanitizer see it. */
static void test_damaged_documents_are_harmless(void)
{
    static const char whole[] =
        "{\"k\":[1,-2.5e3,12345678901234567890,\"\\ud83d\\ude00\\n\xe2\x82\xac\",true,null,{}]}";
    size_t whole_bytes = sizeof(whole) - 1;
    uint64_t seed = 3;
    for (int round = 0; round < 20000; round++) {
        size_t byte_count = test_random(&seed) % (whole_bytes + 1);
        char *text = mem_zalloc(byte_count + (byte_count == 0), 1);
        memcpy(text, whole, byte_count);
        if (byte_count > 0 && round % 2 == 0) {
            text[test_random(&seed) % byte_count] = (char)test_random(&seed);
        }
        struct err err;
        struct json_t *value;
        if (json_parse(text, byte_count, DEPTH, &value, &err) == ERR_OK) {
            json_release(value);
        }
        mem_free(text);
    }
}

/* Doubling a document doubles its time, not more: generous, but a quadratic step fails it. */
static void test_time_grows_with_size(void)
{
    uint64_t ns[2];
    for (int i = 0; i < 2; i++) {
        size_t count = 100000u << (4 * i);
        struct buf text;
        buf_init(&text);
        buf_append_text(&text, "{\"prompt\":[");
        for (size_t token = 0; token < count; token++) {
            buf_printf(&text, "%zu,", token % 262144);
        }
        buf_append_text(&text, "\"\\n");
        for (size_t at = 0; at < count; at++) {
            buf_append_text(&text, "\\\"x");
        }
        buf_append_text(&text, "\"]}");
        struct err err;
        struct json_t *value;
        uint64_t start_ns = clock_now_ns();
        test_ok(json_parse(text.at, text.used_bytes, DEPTH, &value, &err), &err);
        ns[i] = clock_now_ns() - start_ns;
        json_release(value);
        (void)printf("json: %zu bytes in %.1f ms\n", text.used_bytes, (double)ns[i] / 1e6);
        buf_fini(&text);
    }
    test_true(ns[1] < ns[0] * 16 * 6 + 100 * CLOCK_NS_PER_MS);
}

static const struct test_case cases[] = {
    TEST(test_values_round),
    TEST(test_refusals_say_where),
    TEST(test_infinite_integer_is_refused),
    TEST(test_depth_is_capped_for_any_caller),
    TEST(test_containers_are_capped),
    TEST(test_big_integer_cannot_be_forged),
    TEST(test_members_keep_their_order),
    TEST(test_typed_access_names_the_path),
    TEST(test_f64_prints_as_python_does),
    TEST(test_f64_reads_back),
    TEST(test_put_text_mends_malformed_bytes),
    TEST(test_files_are_bounded_and_named),
    TEST(test_damaged_documents_are_harmless),
    TEST(test_time_grows_with_size),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
