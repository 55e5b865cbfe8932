/* Texts and stop strings over real sockets, with the fake engine: its output is its prompt, so any
 * row of tokens can be made to come.  Each text comes as the tokenizer's tokens and byte by byte,
 * streamed and whole: all four must be the same. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/tokenizer.h"
#include "tests/testlib/frontend_process.h"
#include "tests/testlib/http_client.h"
#include "tests/testlib/test.h"

struct rig {
    struct frontend_process process;
    struct tokenizer *tokenizer;
};

static void setup(struct rig *rig)
{
    struct err err;
    test_ok(tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &rig->tokenizer, &err), &err);
    frontend_process_start_fake(&rig->process, "&step_us=100", NULL);
}

static void teardown(struct rig *rig)
{
    test_eq_u64((uint64_t)frontend_process_stop(&rig->process), 0);
    tok_destroy(rig->tokenizer);
}

static void put_bytes(const struct tokenizer *tokenizer, const char *text, struct tok_ids *ids)
{
    for (const char *at = text; *at != '\0'; at++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "<0x%02X>", (unsigned char)*at);
        uint32_t id = tok_find(tokenizer, name);
        test_true(id != TOK_NONE);
        tok_ids_push(ids, id);
    }
}

static void put_body(const struct rig *rig, const char *text, bool is_bytes, const char *fields,
                     struct buf *out)
{
    struct tok_ids ids = {0};
    if (is_bytes) {
        put_bytes(rig->tokenizer, text, &ids);
    } else {
        tok_encode(rig->tokenizer, text, strlen(text), TOK_SPECIAL_AS_TEXT, &ids);
    }
    buf_append_text(out, "{\"prompt\":[2");
    for (size_t i = 0; i < ids.count; i++) {
        buf_printf(out, ",%u", ids.at[i]);
    }
    buf_printf(out, "],\"max_tokens\":512%s}", fields);
    tok_ids_fini(&ids);
}

/* Appends the first choice's text of a body or chunk, and takes its finish and stop reasons. */
static void take_choice(const char *text, size_t byte_count, struct buf *out, struct buf *reasons)
{
    struct json_t *value = NULL;
    struct err err;
    size_t piece_bytes = 0;
    test_ok(json_parse(text, byte_count, 64, &value, &err), &err);
    const struct json_t *choice = json_element(json_member(value, "choices"), 0);
    test_true(choice != NULL);
    const char *piece = json_text(json_member(choice, "text"), &piece_bytes);
    buf_append(out, piece, piece_bytes);
    if (json_kind(json_member(choice, "finish_reason")) == JSON_KIND_TEXT) {
        json_put_value(reasons, json_member(choice, "finish_reason"));
        json_put_value(reasons, json_member(choice, "stop_reason"));
    }
    json_release(value);
}

static void ask(const struct rig *rig, const struct buf *body, bool is_stream, struct buf *out,
                struct buf *reasons)
{
    struct http_answer answer;
    http_client_once(rig->process.port, "POST", "/v1/completions", buf_text(body), &answer);
    test_eq_u64((uint64_t)answer.status, 200);
    const char *at = buf_text(&answer.body);
    if (!is_stream) {
        take_choice(at, answer.body.used_bytes, out, reasons);
    }
    while (is_stream && strncmp(at, "data: {", 7) == 0) {
        const char *end = strstr(at, "\n\n");
        take_choice(at + 6, (size_t)(end - at - 6), out, reasons);
        at = end + 2;
    }
    test_true(!is_stream || strcmp(at, "data: [DONE]\n\n") == 0);
    http_answer_fini(&answer);
}

/* stop: JSON; reasons: finish_reason and stop_reason behind one another. */
static void check(const struct rig *rig, const char *text, const char *stop, const char *want,
                  const char *reasons)
{
    for (uint32_t form = 0; form < 4; form++) {
        struct buf body;
        struct buf got;
        struct buf got_reasons;
        char fields[400];
        bool is_stream = form % 2 != 0;
        buf_init(&body);
        buf_init(&got);
        buf_init(&got_reasons);
        (void)snprintf(fields, sizeof(fields), ",\"stop\":%s%s", stop,
                       is_stream ? ",\"stream\":true" : "");
        put_body(rig, text, form / 2 != 0, fields, &body);
        ask(rig, &body, is_stream, &got, &got_reasons);
        if (strcmp(buf_text(&got), want) != 0 || strcmp(buf_text(&got_reasons), reasons) != 0) {
            test_fail(__FILE__, __LINE__, "'%s' stop %s, form %u: '%s' %s, not '%s' %s", text, stop,
                      form, buf_text(&got), buf_text(&got_reasons), want, reasons);
        }
        buf_fini(&body);
        buf_fini(&got);
        buf_fini(&got_reasons);
    }
}

#define STOP     "\"stop\""
#define ALL      STOP "null" /* the model ended it */
#define INCLUDED ",\"include_stop_str_in_output\":true"

static const struct {
    const char *text;
    const char *stop;
    const char *want;
    const char *reasons;
} stops[] = {
    /* inside a token, across tokens, at either end */
    {"The capital of France", "\"apit\"", "The c", STOP "\"apit\""},
    {"The capital of France", "\"l of F\"", "The capita", STOP "\"l of F\""},
    {"The capital of France", "\"T\"", "", STOP "\"T\""},
    {"The capital of France", "\"The capital of France\"", "", STOP "\"The capital of France\""},
    {"The capital of France", "\"France\"", "The capital of ", STOP "\"France\""},
    {"The capital of France", "\"France!\"", "The capital of France", ALL},
    {"The capital of France", "[\"x\",\"y\"]", "The capital of France", ALL},
    /* with the string itself */
    {"The capital of France", "\"apit\"" INCLUDED, "The capit", STOP "\"apit\""},
    {"The capital of France", "\"T\"" INCLUDED, "T", STOP "\"T\""},
    {"The capital of France", "\"France\"" INCLUDED, "The capital of France", STOP "\"France\""},
    /* several that could match: the one that ends first, of those the one that begins first */
    {"xxabcz", "[\"abc\",\"bc\",\"ab\"]", "xx", STOP "\"ab\""},
    {"xxabcz", "[\"bc\",\"abc\"]", "xx", STOP "\"abc\""},
    {"xabcx", "[\"abcd\",\"bc\"]", "xa", STOP "\"bc\""},
    {"xababac", "[\"ababc\",\"abac\"]", "xab", STOP "\"abac\""},
    {"aaaab", "[\"aab\"]", "aa", STOP "\"aab\""},
    {"xabcx", "[\"abcd\",\"bc\"]" INCLUDED, "xabc", STOP "\"bc\""},
    /* characters of several bytes */
    {"caf\xc3\xa9 noir", "\"\xc3\xa9 n\"", "caf", STOP "\"\xc3\xa9 n\""},
    {"a \xf0\x9f\x98\x80 b", "\"\xf0\x9f\x98\x80\"", "a ", STOP "\"\xf0\x9f\x98\x80\""},
    {"a \xf0\x9f\x98\x80 b", "\"\xf0\x9f\x98\x81\"", "a \xf0\x9f\x98\x80 b", ALL},
    {"a \xf0\x9f\x98\x80 b", "\"\xf0\x9f\x98\x80\"" INCLUDED, "a \xf0\x9f\x98\x80",
     STOP "\"\xf0\x9f\x98\x80\""},
    {"\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96", "\"\xe5\xa5\xbd\"", "\xe4\xbd\xa0",
     STOP "\"\xe5\xa5\xbd\""},
};

static void test_stop_strings(void)
{
    struct rig rig;
    setup(&rig);
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
        check(&rig, stops[i].text, stops[i].stop, stops[i].want, stops[i].reasons);
    }
    teardown(&rig);
}

static const char *const texts[] = {
    "plain",
    " leading and trailing ",
    "lines\n\n\nand\ttabs\r\n",
    "\xf0\x9f\x98\x80",
    "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7", /* a family */
    "\xf0\x9f\x87\xab\xf0\x9f\x87\xb7 \xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd", /* flag, skin tone */
    "e\xcc\x81o\xcc\xa3\xcc\x82 \xe0\xb8\x81\xe0\xb8\xb3",               /* combining marks */
    "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d \xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7 \xe2\x80\x8f.",
    "\xf0\x92\x8d\x85\xf0\xa0\x9c\x8e\xf4\x8f\xbf\xbd", /* beyond the first plane */
    "\xe3\x80\x80\xc2\xa0\xe2\x80\x8b",                 /* other spaces */
    "<|turn>user <0x41> </s>",                          /* control strings as text */
};

static void test_texts_come_out_as_they_went_in(void)
{
    struct rig rig;
    setup(&rig);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        check(&rig, texts[i], "null", texts[i], ALL);
        check(&rig, texts[i], "\"never there\"", texts[i], ALL);
    }
    teardown(&rig);
}

static const struct test_case cases[] = {
    TEST(test_stop_strings),
    TEST(test_texts_come_out_as_they_went_in),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
