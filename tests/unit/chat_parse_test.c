/* Outputs are written with their markers as text and encoded with special strings parsed, which
 * gives the ids a model would emit. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "frontend/chat_parse.h"
#include "tests/testlib/test.h"

struct rig {
    struct tokenizer *tokenizer;
    struct chat_markers markers;
    struct json_t *tools;
};

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"zip\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"at\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\"}}}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}]";

static void open_rig(struct rig *rig)
{
    struct err err;
    test_ok(tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &rig->tokenizer, &err), &err);
    test_ok(json_parse(tools_text, strlen(tools_text), 20, &rig->tools, &err), &err);
    chat_markers_find(rig->tokenizer, &rig->markers);
}

static void close_rig(struct rig *rig)
{
    tok_destroy(rig->tokenizer);
    json_release(rig->tools);
}

struct parsing {
    const char *prompt;
    const char *output;
    bool has_tools;
    bool by_piece; /* else all parts gather in one answer */
};

static void append(const struct answer *piece, struct answer *whole)
{
    for (uint32_t i = 0; i < piece->part_count; i++) {
        const struct answer_part *part = &piece->parts[i];
        answer_put(whole, part->kind, part->call_index, answer_part_text(piece, part),
                   part->byte_count);
    }
}

static void parse_output(const struct rig *rig, const struct parsing *parsing, struct answer *whole)
{
    struct tok_ids prompt = {0};
    struct tok_ids ids = {0};
    struct chat_parse parse;
    struct answer piece;
    answer_init(&piece);
    tok_encode(rig->tokenizer, parsing->prompt, strlen(parsing->prompt), TOK_SPECIAL_PARSE,
               &prompt);
    tok_encode(rig->tokenizer, parsing->output, strlen(parsing->output), TOK_SPECIAL_PARSE, &ids);
    chat_parse_init(&parse, &rig->markers, rig->tokenizer, prompt.at, prompt.count,
                    parsing->has_tools ? rig->tools : NULL);
    for (size_t i = 0; i <= ids.count; i++) {
        if (i < ids.count) {
            chat_parse_push(&parse, ids.at[i], &piece);
        } else {
            chat_parse_finish(&parse, &piece);
        }
        if (parsing->by_piece || i == ids.count) {
            append(&piece, whole);
            answer_reset(&piece);
        }
    }
    chat_parse_fini(&parse);
    answer_fini(&piece);
    tok_ids_fini(&prompt);
    tok_ids_fini(&ids);
}

/* R[reasoning] C[content] name(arguments), with a "!" behind those of a call that never ended. */
static void show(const struct answer *answer, struct buf *out)
{
    for (uint32_t i = 0; i < answer->part_count; i++) {
        const struct answer_part *part = &answer->parts[i];
        const struct answer_part *next = i + 1 < answer->part_count ? part + 1 : NULL;
        test_true(answer->parts != NULL);
        bool is_next_of_call = next && next->kind >= ANSWER_ARGUMENTS;
        switch (part->kind) {
        case ANSWER_CONTENT: buf_append_text(out, "C["); break;
        case ANSWER_REASONING: buf_append_text(out, "R["); break;
        case ANSWER_CALL:
        case ANSWER_ARGUMENTS:
        case ANSWER_CALL_END: break;
        }
        buf_append(out, answer_part_text(answer, part), part->byte_count);
        switch (part->kind) {
        case ANSWER_CONTENT:
        case ANSWER_REASONING: buf_append_char(out, ']'); break;
        case ANSWER_CALL: buf_append_char(out, '('); break;
        case ANSWER_ARGUMENTS: buf_append_text(out, is_next_of_call ? ")" : ")!"); break;
        case ANSWER_CALL_END: break;
        }
    }
}

static void check(const struct rig *rig, struct parsing parsing, const char *want)
{
    for (int by_piece = 0; by_piece < 2; by_piece++) {
        struct answer answer;
        struct buf got;
        answer_init(&answer);
        buf_init(&got);
        parsing.by_piece = by_piece;
        parse_output(rig, &parsing, &answer);
        show(&answer, &got);
        if (strcmp(buf_text(&got), want) != 0) {
            test_fail(__FILE__, __LINE__, "'%s': got %s, want %s", parsing.output, buf_text(&got),
                      want);
        }
        answer_fini(&answer);
        buf_fini(&got);
    }
}

static const char ask[] = "<bos><|turn>user\nhi<turn|>\n<|turn>model\n";
static const char ask_open[] =
    "<bos><|turn>model\n<|tool_response>x<tool_response|><|channel>thought\n";
static const char ask_closed[] = "<|turn>model\n<|channel>thought\n<channel|>";

static const struct {
    const char *prompt;
    const char *output;
    const char *want;
} rows[] = {
    {ask, "<|channel>thought\nActual reasoning here<channel|>Final answer",
     "R[Actual reasoning here]C[Final answer]"},
    {ask, "<|channel>thought\n<channel|>", ""},
    {ask, "<|channel>thousand reasons<channel|>Done", "R[thousand reasons]C[Done]"},
    {ask, "<|channel>This is a reasoning section", "R[This is a reasoning section]"},
    {ask, "This is content", "C[This is content]"},
    {ask, "A<channel|>B", "C[AB]"},
    {ask, "Before\n<|channel>R<channel|>\nrest", "C[Before\n]R[R]C[\nrest]"},
    {ask, "thought\nhidden<channel|>seen", "R[hidden]C[seen]"},
    {ask, "thought<channel|>seen", "C[seen]"},
    {ask, "thoughtful answer", "C[thoughtful answer]"},
    {ask, "thoug", "C[thoug]"},
    {ask, "thought", ""},
    {ask, "<|channel>thought", ""},
    {ask, "<|channel>tho", "R[tho]"},
    {ask, "<|channel><|channel>thought\nR<channel|>C", "R[R]C[C]"},
    {ask, "a thought\nb", "C[a thought\nb]"},
    {ask, "C<turn|>", "C[C]"},
    {ask, "<|channel>thought\none<channel|>A<|channel>thought\ntwo<channel|>B",
     "R[one]C[A]R[two]C[B]"},
    /* The newline before the closing marker is the marker's. */
    {ask, "<|channel>thought\none\n\ntwo\n<channel|>A", "R[one\n\ntwo]C[A]"},
    {ask, "<|channel>thought\none\n\n<channel|>A", "R[one\n]C[A]"},
    {ask, "<|channel>thought\none\n", "R[one\n]"},
    {ask_open, "still thinking<channel|>answer", "R[still thinking]C[answer]"},
    {ask_open, "thought\nx<channel|>answer", "R[thought\nx]C[answer]"},
    {ask_closed, "answer", "C[answer]"},
    {ask_closed, "thought\nis a word", "C[thought\nis a word]"}, /* the channel is closed */
    {ask, "caf\xc3\xa9 \xf0\x9f\x98\x80<turn|>", "C[caf\xc3\xa9 \xf0\x9f\x98\x80]"},
    {ask, "", ""},
    {ask, "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", "C[call:f{a:x}]"}, /* no tools */
};

static void test_outputs(void)
{
    struct rig rig;
    open_rig(&rig);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check(&rig, (struct parsing){.prompt = rows[i].prompt, .output = rows[i].output},
              rows[i].want);
    }
    close_rig(&rig);
}

static const struct {
    const char *output;
    const char *want;
} call_rows[] = {
    {"<|tool_call>call:get_weather{city:<|\"|>Tokyo<|\"|>}<tool_call|>",
     "get_weather({\"city\": \"Tokyo\"})"},
    {"text before <|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g.h-2{b:[1,2]}<tool_call|>",
     "C[text before]f({\"a\": 1})g.h-2({\"b\": [1, 2]})"},
    {"<|tool_call>call:now{}<tool_call|><|tool_response>", "now({})"},
    {"<|tool_call>call:f{o:{a:<|\"|>}<|\"|>}}<tool_call|>", "f({\"o\": {\"a\": \"}\"}})"},
    {"no call here <|\"|>", "C[no call here ]"},
    {"<|tool_call>call:f{s:<|\"|>\xc3\xbcn\xc3\xaf \xf0\x9f\x99\x82\n\"q\"<|\"|>}<tool_call|>",
     "f({\"s\": \"\xc3\xbcn\xc3\xaf \xf0\x9f\x99\x82\\n\\\"q\\\"\"})"},
    /* Thoughts, calls and content in turns. */
    {"<|channel>thought\nhm\n<channel|>\n<|tool_call>call:f{}<tool_call|>", "R[hm]f({})"},
    {"<|channel>thought\nhm<|tool_call>call:f{}<tool_call|>x", "R[hm]f({})C[x]"},
    {"<|tool_call>call:f{}<tool_call|>\n<|tool_call>call:f{}<tool_call|>\n", "f({})f({})"},
    {"<|tool_call>call:f{}<tool_call|>\nand text", "f({})C[\nand text]"},
    {"<|tool_call>call:f{}<tool_call|><|channel>thought\n<channel|>", "f({})"},
    {"blank  \n", "C[blank  \n]"},
    /* Cut off: what is certain has gone out, and the call never ends. */
    {"<|tool_call>call:f{a:1", ""},
    {"<|tool_call>call:f", ""},
    {"<|tool_call>call:f{a:1,b:<|\"|>x", "f({\"a\": 1, \"b\": \"x)!"},
    {"<|tool_call>call:f{a:<|\"|>}", "f({\"a\": \"})!"},
    /* Only the marker is missing, or its neighbours are. */
    {"<|tool_call>call:f{a:1}", "f({\"a\": 1})"},
    {"<|tool_call>call:f{a:1}<|tool_call>call:f{}", "f({\"a\": 1})f({})"},
    {"<|tool_call>call:f{a:1<tool_call|>", "f({\"a\": 1})"},
    {"<|tool_call>call:f{a:<|\"|>x<tool_call|>y", "f({\"a\": \"x\"})C[y]"},
    {"<|tool_call>call:f{a:{b:[1<|tool_call>call:f{}<tool_call|>", "f({\"a\": {\"b\": [1]}})f({})"},
    {"<|tool_call>call:f{a:1}}<tool_call|>", "f({\"a\": 1})"},
    {"<|tool_call>call:f{a:1} Now some text.", "f({\"a\": 1})C[ Now some text.]"},
    {"<|tool_call>f{a:1}<tool_call|>x", "f({\"a\": 1})C[x]"},
    {"<|tool_call>:f{a:1}<tool_call|>", "f({\"a\": 1})"},
    {"<|tool_call> call:f{a:1}<tool_call|>", "f({\"a\": 1})"},
    {"<|tool_call>call{a:1}<tool_call|>", "call({\"a\": 1})"},
    /* No call at all: text is kept, a bare name is not. */
    {"<|tool_call>call:f g{a:1}<tool_call|>x", "C[call:f g{a:1}x]"},
    {"<|tool_call>I would call it<turn|>", "C[I would call it]"},
    {"<|tool_call>call:f<tool_call|>x", "C[x]"},
    {"<|tool_call><tool_call|>x", "C[x]"},
    {"<|tool_call>call:<|\"|>x", "C[call:x]"},
    {"<tool_call|>x", "C[x]"},
    /* Calls without their opening marker: of tools that were offered, where a run begins. */
    {"call:f{a:1}", "f({\"a\": 1})"},
    {"call:f{a:1}<tool_call|>call:get_weather{}<tool_call|>", "f({\"a\": 1})get_weather({})"},
    {"<|channel>thought\nhm<channel|>call:get_weather{city:<|\"|>Oslo<|\"|>}<tool_call|>",
     "R[hm]get_weather({\"city\": \"Oslo\"})"},
    {"call:get_w", "C[call:get_w]"},
    {"call:unknown{a:1}", "C[call:unknown{a:1}]"},
    {"call: me", "C[call: me]"},
    {"so call:f{a:1}", "C[so call:f{a:1}]"},
    /* The schema decides where a value may be read in two ways. */
    {"<|tool_call>call:f{zip:02134,days:<|\"|>3<|\"|>,at:{id:7}}<tool_call|>",
     "f({\"zip\": \"02134\", \"days\": 3, \"at\": {\"id\": \"7\"}})"},
    {"<|tool_call>call:f{days:<|\"|>three<|\"|>}<tool_call|>", "f({\"days\": \"three\"})"},
};

static void test_calls(void)
{
    struct rig rig;
    open_rig(&rig);
    for (size_t i = 0; i < sizeof(call_rows) / sizeof(call_rows[0]); i++) {
        check(&rig,
              (struct parsing){.prompt = ask, .output = call_rows[i].output, .has_tools = true},
              call_rows[i].want);
    }
    close_rig(&rig);
}

/* The calls of whole outputs, as the reference extracts them. */
static void check_reference(const struct rig *rig, const struct json_t *item)
{
    struct answer answer;
    const struct json_t *calls = json_member(item, "calls");
    const struct parsing parsing = {
        .prompt = ask, .output = json_text(json_member(item, "text"), NULL), .has_tools = true};
    size_t call_count = 0;
    answer_init(&answer);
    parse_output(rig, &parsing, &answer);
    for (uint32_t i = 0; i + 1 < answer.part_count; i++) {
        const struct answer_part *part = &answer.parts[i];
        if (part->kind != ANSWER_CALL) {
            continue;
        }
        const struct json_t *call = json_element(calls, call_count++);
        size_t name_bytes = 0;
        size_t json_bytes = 0;
        const char *name = json_text(json_member(call, "name"), &name_bytes);
        const char *json = json_text(json_member(call, "arguments"), &json_bytes);
        test_eq_u64(part[0].byte_count, name_bytes);
        test_true(memcmp(answer_part_text(&answer, part), name, name_bytes) == 0);
        test_eq_u64(part[1].byte_count, json_bytes);
        test_true(memcmp(answer_part_text(&answer, part + 1), json, json_bytes) == 0);
        test_true(part[2].kind == ANSWER_CALL_END);
    }
    test_eq_u64(call_count, json_count(calls));
    answer_fini(&answer);
}

static void test_reference_outputs(void)
{
    struct rig rig;
    struct err err;
    struct json_t *file = NULL;
    char path[512];
    open_rig(&rig);
    (void)snprintf(path, sizeof(path), "%s/chat/tool_args_cases.json", test_golden_dir());
    test_ok(json_parse_file(path, 1 << 20, &file, &err), &err);
    const struct json_t *list = json_member(file, "output_cases");
    test_true(json_count(list) >= 6);
    for (size_t i = 0; i < json_count(list); i++) {
        check_reference(&rig, json_element(list, i));
    }
    json_release(file);
    close_rig(&rig);
}

/* Every output above without one of its tokens, and up to each of them: pieces join to the whole,
 * nothing leaks, and what a whole call says is JSON. */
static void check_damaged(const struct rig *rig, const char *output, bool has_tools)
{
    struct tok_ids ids = {0};
    tok_encode(rig->tokenizer, output, strlen(output), TOK_SPECIAL_PARSE, &ids);
    for (size_t i = 0; i < 2 * ids.count; i++) {
        struct buf text;
        struct buf shown[2];
        buf_init(&text);
        for (size_t k = 0; k < (i % 2 ? i / 2 : ids.count); k++) {
            uint32_t byte_count = 0;
            const char *bytes = tok_bytes(rig->tokenizer, ids.at[k], &byte_count);
            if (k != i / 2 || i % 2) {
                buf_append(&text, bytes, byte_count);
            }
        }
        for (int by_piece = 0; by_piece < 2; by_piece++) {
            struct answer answer;
            const struct parsing parsing = {.prompt = ask,
                                            .output = buf_text(&text),
                                            .has_tools = has_tools,
                                            .by_piece = by_piece};
            answer_init(&answer);
            buf_init(&shown[by_piece]);
            parse_output(rig, &parsing, &answer);
            show(&answer, &shown[by_piece]);
            answer_fini(&answer);
        }
        test_eq_str(buf_text(&shown[1]), buf_text(&shown[0]));
        test_true(!strstr(buf_text(&shown[0]), "<|") && !strstr(buf_text(&shown[0]), "|>"));
        buf_fini(&shown[0]);
        buf_fini(&shown[1]);
        buf_fini(&text);
    }
    tok_ids_fini(&ids);
}

static void test_damaged_outputs(void)
{
    struct rig rig;
    open_rig(&rig);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_damaged(&rig, rows[i].output, false);
    }
    for (size_t i = 0; i < sizeof(call_rows) / sizeof(call_rows[0]); i++) {
        check_damaged(&rig, call_rows[i].output, true);
    }
    close_rig(&rig);
}

static const struct test_case cases[] = {
    TEST(test_outputs),
    TEST(test_calls),
    TEST(test_reference_outputs),
    TEST(test_damaged_outputs),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
