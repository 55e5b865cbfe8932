/* Outputs are written with their markers as text and encoded with special strings parsed, which
 * gives the ids a model would emit. */
#include <string.h>

#include "frontend/chat_parse.h"
#include "tests/testlib/test.h"

static struct tokenizer *load(void)
{
    struct err err;
    struct tokenizer *tokenizer = NULL;
    test_ok(tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &tokenizer, &err), &err);
    return tokenizer;
}

struct rig {
    struct tokenizer *tokenizer;
    struct chat_markers markers;
};

static void run(const struct rig *rig, const char *prompt, const char *output, struct buf *content,
                struct buf *reasoning, bool at_once)
{
    struct tok_ids prompt_ids = {0};
    struct tok_ids ids = {0};
    tok_encode(rig->tokenizer, prompt, strlen(prompt), TOK_SPECIAL_PARSE, &prompt_ids);
    tok_encode(rig->tokenizer, output, strlen(output), TOK_SPECIAL_PARSE, &ids);
    struct chat_parse parse;
    struct buf piece_content;
    struct buf piece_reasoning;
    buf_init(&piece_content);
    buf_init(&piece_reasoning);
    chat_parse_init(&parse, &rig->markers, rig->tokenizer, prompt_ids.at, prompt_ids.count, false);
    for (size_t i = 0; i < ids.count; i++) {
        chat_parse_push(&parse, ids.at[i], &piece_content, &piece_reasoning);
        if (!at_once) {
            buf_append_text(content, buf_text(&piece_content));
            buf_append_text(reasoning, buf_text(&piece_reasoning));
            buf_reset(&piece_content);
            buf_reset(&piece_reasoning);
        }
    }
    chat_parse_finish(&parse, &piece_content, &piece_reasoning);
    buf_append_text(content, buf_text(&piece_content));
    buf_append_text(reasoning, buf_text(&piece_reasoning));
    chat_parse_fini(&parse);
    buf_fini(&piece_content);
    buf_fini(&piece_reasoning);
    tok_ids_fini(&prompt_ids);
    tok_ids_fini(&ids);
}

static const char ask[] = "<bos><|turn>user\nhi<turn|>\n<|turn>model\n";
static const char ask_open[] =
    "<bos><|turn>model\n<|tool_response>x<tool_response|><|channel>thought\n";
static const char ask_closed[] = "<|turn>model\n<|channel>thought\n<channel|>";

static const struct {
    const char *prompt;
    const char *output;
    const char *reasoning;
    const char *content;
} rows[] = {
    {ask, "<|channel>thought\nActual reasoning here<channel|>Final answer", "Actual reasoning here",
     "Final answer"},
    {ask, "<|channel>thought\n<channel|>", "", ""},
    {ask, "<|channel>thousand reasons<channel|>Done", "thousand reasons", "Done"},
    {ask, "<|channel>This is a reasoning section", "This is a reasoning section", ""},
    {ask, "This is content", "", "This is content"},
    {ask, "A<channel|>B", "", "AB"},
    {ask, "Before\n<|channel>R<channel|>\nrest", "R", "Before\n\nrest"},
    {ask, "thought\nhidden<channel|>seen", "hidden", "seen"},
    {ask, "thought<channel|>seen", "", "seen"},
    {ask, "thoughtful answer", "", "thoughtful answer"},
    {ask, "thoug", "", "thoug"},
    {ask, "thought", "", ""},
    {ask, "<|channel>thought", "", ""},
    {ask, "<|channel>tho", "tho", ""},
    {ask, "<|channel><|channel>thought\nR<channel|>C", "R", "C"},
    {ask, "a thought\nb", "", "a thought\nb"},
    {ask, "C<turn|>", "", "C"},
    {ask, "<|channel>thought\none<channel|>A<|channel>thought\ntwo<channel|>B", "onetwo", "AB"},
    {ask_open, "still thinking<channel|>answer", "still thinking", "answer"},
    {ask_closed, "answer", "", "answer"},
    {ask, "caf\xc3\xa9 \xf0\x9f\x98\x80<turn|>", "", "caf\xc3\xa9 \xf0\x9f\x98\x80"},
    {ask, "", "", ""},
    {ask, "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", "", "call:f{a:x}"}, /* no tools */
};

static void test_outputs(void)
{
    struct rig rig = {.tokenizer = load()};
    chat_markers_find(rig.tokenizer, &rig.markers);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        struct buf content;
        struct buf reasoning;
        buf_init(&content);
        buf_init(&reasoning);
        run(&rig, rows[i / 2].prompt, rows[i / 2].output, &content, &reasoning, i % 2);
        if (strcmp(buf_text(&content), rows[i / 2].content) != 0 ||
            strcmp(buf_text(&reasoning), rows[i / 2].reasoning) != 0) {
            test_fail(__FILE__, __LINE__, "'%s': content '%s', reasoning '%s'", rows[i / 2].output,
                      buf_text(&content), buf_text(&reasoning));
        }
        buf_fini(&content);
        buf_fini(&reasoning);
    }
    tok_destroy(rig.tokenizer);
}

struct call_row {
    const char *output;
    const char *content;
    uint32_t call_count;
    const char *name;      /* of the last call */
    const char *arguments; /* likewise */
};

static const struct call_row call_rows[] = {
    {"<|tool_call>call:get_weather{city:<|\"|>Tokyo<|\"|>}<tool_call|>", "", 1, "get_weather",
     "{\"city\": \"Tokyo\"}"},
    {"text before <|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g.h-2{b:[1,2]}<tool_call|>",
     "text before ", 2, "g.h-2", "{\"b\": [1, 2]}"},
    {"<|tool_call>call:now{}<tool_call|><|tool_response>", "", 1, "now", "{}"},
    {"<|tool_call>call:f{o:{a:<|\"|>}<|\"|>}}<tool_call|>", "", 1, "f", "{\"o\": {\"a\": \"}\"}}"},
    {"<|tool_call>call:f{a:1", "", 0, NULL, NULL},
    {"<|tool_call>call:f{a:<|\"|>}", "", 0, NULL, NULL},
    {"<|tool_call>call:f{a:1}", "", 1, "f", "{\"a\": 1}"}, /* only the marker is missing */
    {"<|tool_call>f{a:1}<tool_call|>x", "x", 1, "f", "{\"a\": 1}"},
    {"<|tool_call>:f{a:1}<tool_call|>", "", 1, "f", "{\"a\": 1}"},
    {"<|tool_call>call:f g{a:1}<tool_call|>x", "x", 0, NULL, NULL},
    {"<|tool_call>call:f<tool_call|>x", "x", 0, NULL, NULL},
    {"<|tool_call><tool_call|>x", "x", 0, NULL, NULL},
    {"<|channel>thought\nhm<|tool_call>call:f{}<tool_call|>x", "x", 1, "f", "{}"},
    {"no call here <|\"|>", "no call here ", 0, NULL, NULL},
    {"<|tool_call>call:f{s:<|\"|>\xc3\xbcn\xc3\xaf \xf0\x9f\x99\x82\n\"q\"<|\"|>}<tool_call|>", "",
     1, "f", "{\"s\": \"\xc3\xbcn\xc3\xaf \xf0\x9f\x99\x82\\n\\\"q\\\"\"}"},
};

static void check_calls(const struct rig *rig, const struct call_row *row)
{
    struct tok_ids ids = {0};
    struct chat_parse parse;
    struct buf content;
    struct buf reasoning;
    const uint32_t prompt = 2;
    buf_init(&content);
    buf_init(&reasoning);
    tok_encode(rig->tokenizer, row->output, strlen(row->output), TOK_SPECIAL_PARSE, &ids);
    chat_parse_init(&parse, &rig->markers, rig->tokenizer, &prompt, 1, true);
    for (size_t i = 0; i < ids.count; i++) {
        chat_parse_push(&parse, ids.at[i], &content, &reasoning);
    }
    chat_parse_finish(&parse, &content, &reasoning);
    if (parse.call_count != row->call_count || strcmp(buf_text(&content), row->content) != 0) {
        test_fail(__FILE__, __LINE__, "'%s': %u calls, content '%s'", row->output, parse.call_count,
                  buf_text(&content));
    }
    if (row->name) {
        test_eq_str(parse.calls[parse.call_count - 1].name, row->name);
        test_eq_str(parse.calls[parse.call_count - 1].arguments, row->arguments);
    }
    chat_parse_fini(&parse);
    tok_ids_fini(&ids);
    buf_fini(&content);
    buf_fini(&reasoning);
}

static void test_calls(void)
{
    struct rig rig = {.tokenizer = load()};
    chat_markers_find(rig.tokenizer, &rig.markers);
    for (size_t i = 0; i < sizeof(call_rows) / sizeof(call_rows[0]); i++) {
        check_calls(&rig, &call_rows[i]);
    }
    tok_destroy(rig.tokenizer);
}

/* Any tokens at all: no marker leaks, and pieces join to the whole. */
static void test_random_tokens_never_leak(void)
{
    struct rig rig = {.tokenizer = load()};
    chat_markers_find(rig.tokenizer, &rig.markers);
    uint64_t state = 20240611;
    for (int round = 0; round < 3000; round++) {
        struct chat_parse parse;
        struct buf content;
        struct buf reasoning;
        uint32_t special = 0;
        buf_init(&content);
        buf_init(&reasoning);
        chat_parse_init(&parse, &rig.markers, rig.tokenizer, &special, 1, round % 2);
        for (int i = 0; i < 12; i++) {
            uint64_t pick = test_random(&state);
            const uint32_t markers[] = {rig.markers.channel_open, rig.markers.channel_close,
                                        rig.markers.call_open,    rig.markers.turn_close,
                                        rig.markers.call_close,   rig.markers.quote};
            uint32_t id = pick % 3 == 0 ? markers[(pick >> 8) % 6]
                                        : (uint32_t)((pick >> 8) % tok_vocab_count(rig.tokenizer));
            chat_parse_push(&parse, id, &content, &reasoning);
        }
        chat_parse_finish(&parse, &content, &reasoning);
        test_true(!strstr(buf_text(&content), "<|channel>"));
        test_true(!strstr(buf_text(&content), "<channel|>"));
        test_true(!strstr(buf_text(&reasoning), "<turn|>"));
        chat_parse_fini(&parse);
        buf_fini(&content);
        buf_fini(&reasoning);
    }
    tok_destroy(rig.tokenizer);
}

static const struct test_case cases[] = {
    TEST(test_outputs),
    TEST(test_calls),
    TEST(test_random_tokens_never_leak),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
