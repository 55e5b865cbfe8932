/* Both official chat formats against what the templates themselves rendered, and what is refused. */
#include "frontend/chat_render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/testlib/test.h"

#define MAX_FILE_BYTES (16UL << 20)
#define MAX_DEPTH      64

static const char *const format_names[] = {
    [CHAT_FORMAT_LARGE] = "large", [CHAT_FORMAT_SMALL] = "small"};

static struct json_t *load_json(const char *dir, const char *name)
{
    char path[4096];
    struct err err = {0};
    struct json_t *value = NULL;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name); /* fits */
    test_ok(json_parse_file(path, MAX_FILE_BYTES, &value, &err), &err);
    return value;
}

static struct tokenizer *load_tokenizer(const char *path)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    test_ok(tok_load(path, NULL, &tokenizer, &err), &err);
    return tokenizer;
}

static bool is_true(const struct json_t *value)
{
    return value != NULL && json_kind(value) == JSON_KIND_BOOL && json_bool(value);
}

static bool option(const struct json_t *one, const char *key)
{
    return is_true(json_member(json_member(one, "options"), key));
}

static struct chat_options case_options(const struct json_t *one, enum chat_format format)
{
    return (struct chat_options){
        .format = format,
        .add_generation_prompt = option(one, "add_generation_prompt"),
        .enable_thinking = option(one, "enable_thinking"),
        .preserve_thinking = option(one, "preserve_thinking"),
        .continue_final_message = option(one, "continue_final_message"),
        .as_template = true,
    };
}

/* Spans cover the text without gaps, in turns, and control spans hold special tokens only. */
static void check_spans(const struct tokenizer *tokenizer, const struct chat_prompt *prompt)
{
    size_t at = 0;
    for (size_t i = 0; i < prompt->span_count; i++) {
        const struct chat_span *span = &prompt->spans[i];
        test_eq_u64(span->start, at);
        test_true(span->byte_count > 0);
        test_true(i == 0 || span->is_control != prompt->spans[i - 1].is_control);
        at += span->byte_count;
        if (span->is_control) {
            struct tok_ids ids = {0};
            tok_encode(tokenizer, prompt->text.at + span->start, span->byte_count,
                       TOK_SPECIAL_PARSE, &ids);
            for (size_t k = 0; k < ids.count; k++) {
                test_true(tok_is_special(tokenizer, ids.at[k]));
            }
            tok_ids_fini(&ids);
        }
    }
    test_eq_u64(at, prompt->text.used_bytes);
}

static size_t count_special(const struct tokenizer *tokenizer, const struct tok_ids *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < ids->count; i++) {
        count += tok_is_special(tokenizer, ids->at[i]);
    }
    return count;
}

/* True where ordinary text holds a special string: the templates' own ids then hold forged
 * tokens. */
static bool has_forgery(const struct tokenizer *tokenizer, const struct chat_prompt *prompt)
{
    bool has_any = false;
    for (size_t i = 0; i < prompt->span_count; i++) {
        struct tok_ids ids = {0};
        tok_encode(tokenizer, prompt->text.at + prompt->spans[i].start, prompt->spans[i].byte_count,
                   TOK_SPECIAL_PARSE, &ids);
        has_any |= !prompt->spans[i].is_control && count_special(tokenizer, &ids) > 0;
        tok_ids_fini(&ids);
    }
    return has_any;
}

static size_t count_control(const struct tokenizer *tokenizer, const struct chat_prompt *prompt)
{
    size_t count = 0;
    for (size_t i = 0; i < prompt->span_count; i++) {
        struct tok_ids ids = {0};
        if (prompt->spans[i].is_control) {
            tok_encode(tokenizer, prompt->text.at + prompt->spans[i].start,
                       prompt->spans[i].byte_count, TOK_SPECIAL_PARSE, &ids);
        }
        count += ids.count;
        tok_ids_fini(&ids);
    }
    return count;
}

struct tally {
    size_t rendered;
    size_t same_ids;
    size_t forged;
};

/* Ids equal those of the whole text; where content holds special strings, only the format's own
 * control tokens are left. */
static void check_encoding(const struct tokenizer *tokenizer, const struct chat_prompt *prompt,
                           const struct json_t *want, struct tally *tally)
{
    struct tok_ids got = {0};
    struct tok_ids whole = {0};
    chat_encode(tokenizer, prompt, &got);
    tok_encode(tokenizer, prompt->text.at, prompt->text.used_bytes, TOK_SPECIAL_PARSE, &whole);
    if (want != NULL) {
        test_eq_u64(whole.count, json_count(want));
        for (size_t i = 0; i < whole.count; i++) {
            test_eq_u64(whole.at[i], (uint64_t)json_int64(json_element(want, i)));
        }
    }
    test_eq_u64(count_special(tokenizer, &got), count_control(tokenizer, prompt));
    if (has_forgery(tokenizer, prompt)) {
        test_true(count_special(tokenizer, &whole) > count_special(tokenizer, &got));
        tally->forged++;
    } else {
        test_eq_u64(got.count, whole.count);
        test_true(memcmp(got.at, whole.at, got.count * sizeof(*got.at)) == 0);
        tally->same_ids++;
    }
    tok_ids_fini(&whole);
    tok_ids_fini(&got);
}

static void check_case(const struct tokenizer *tokenizer, const struct json_t *one, size_t index,
                       enum chat_format format, struct tally *tally)
{
    const char *name = format_names[format];
    const struct json_t *want = json_member(json_member(one, "rendered"), name);
    const struct json_t *want_ids = json_member(json_member(one, "token_ids"), name);
    const struct chat_options options = case_options(one, format);
    struct err err = {0};
    struct chat_prompt prompt;
    if (want == NULL) {
        return; /* the templates raise an error: a test of its own */
    }
    chat_prompt_init(&prompt);
    test_ok(chat_render(json_member(one, "messages"), json_member(one, "tools"), &options, &prompt,
                        &err),
            &err);
    if (strcmp(buf_text(&prompt.text), json_text(want, NULL)) != 0) {
        (void)fprintf(stderr, "case %zu, %s\n", index, name);
    }
    test_eq_str(buf_text(&prompt.text), json_text(want, NULL));
    check_spans(tokenizer, &prompt);
    check_encoding(tokenizer, &prompt, want_ids, tally);
    tally->rendered++;
    chat_prompt_fini(&prompt);
}

static void check_file(const char *file_name, struct tally *tally)
{
    struct tokenizer *tokenizer = load_tokenizer(TEST_OFFICIAL_TOKENIZER);
    struct json_t *file = load_json(test_golden_dir(), file_name);
    const struct json_t *all = json_member(file, "cases");
    for (size_t i = 0; i < json_count(all); i++) {
        check_case(tokenizer, json_element(all, i), i, CHAT_FORMAT_LARGE, tally);
        check_case(tokenizer, json_element(all, i), i, CHAT_FORMAT_SMALL, tally);
    }
    json_release(file);
    tok_destroy(tokenizer);
    (void)printf("%s: %zu rendered, %zu with the ids of the whole text, %zu with special strings "
                 "in content\n",
                 file_name, tally->rendered, tally->same_ids, tally->forged);
}

static void test_template_cases(void)
{
    struct tally tally = {0};
    check_file("chat/chat_template_cases.json", &tally);
    test_eq_u64(tally.rendered, 2UL * 87); /* of 88 one is an error */
    test_true(tally.same_ids > 160 && tally.forged > 0);
}

static void test_template_fuzz(void)
{
    struct tally tally = {0};
    check_file("chat/chat_template_fuzz.json", &tally);
    test_true(tally.rendered >= 200);
}

static void test_demo_prompts(void)
{
    struct tokenizer *tokenizer = load_tokenizer(TEST_DEMO_MODEL_DIR "/tokenizer.json");
    struct json_t *file = load_json(TEST_DEMO_MODEL_DIR, "reference-greedy.json");
    struct err err = {0};
    enum chat_format format = CHAT_FORMAT_NONE;
    test_ok(chat_format_detect(TEST_DEMO_MODEL_DIR, &format, &err), &err);
    test_eq_u64(format, CHAT_FORMAT_LARGE);
    size_t rendered_count = 0;
    for (size_t i = 0; i < json_count(file); i++) {
        const struct json_t *one = json_element(file, i);
        const struct json_t *messages = json_member(one, "messages");
        const struct json_t *want_ids = json_member(one, "prompt_ids");
        if (messages == NULL) {
            continue; /* a raw prompt */
        }
        rendered_count++;
        struct chat_options options = {.format = format,
                                       .add_generation_prompt = true,
                                       .enable_thinking =
                                           is_true(json_member(one, "enable_thinking"))};
        struct chat_prompt prompt;
        struct tok_ids ids = {0};
        chat_prompt_init(&prompt);
        test_ok(chat_render(messages, json_member(one, "tools"), &options, &prompt, &err), &err);
        test_eq_str(buf_text(&prompt.text), json_text(json_member(one, "prompt"), NULL));
        chat_encode(tokenizer, &prompt, &ids);
        test_eq_u64(ids.count, json_count(want_ids));
        for (size_t k = 0; k < ids.count; k++) {
            test_eq_u64(ids.at[k], (uint64_t)json_int64(json_element(want_ids, k)));
        }
        tok_ids_fini(&ids);
        chat_prompt_fini(&prompt);
    }
    test_true(rendered_count >= 5);
    json_release(file);
    tok_destroy(tokenizer);
}

/* Renders messages written as JSON; the result is valid until prompt is released. */
static enum err_code render_text(const char *messages, const char *tools, bool as_template,
                                 struct chat_prompt *prompt, struct err *err)
{
    struct json_t *parsed = NULL;
    struct json_t *parsed_tools = NULL;
    struct err parse_err = {0};
    const struct chat_options options = {
        .format = CHAT_FORMAT_SMALL, .add_generation_prompt = true, .as_template = as_template};
    test_ok(json_parse(messages, strlen(messages), MAX_DEPTH, &parsed, &parse_err), &parse_err);
    if (tools != NULL) {
        test_ok(json_parse(tools, strlen(tools), MAX_DEPTH, &parsed_tools, &parse_err), &parse_err);
    }
    enum err_code code = chat_render(parsed, parsed_tools, &options, prompt, err);
    json_release(parsed_tools);
    json_release(parsed);
    return code;
}

struct rendering {
    const char *messages;
    const char *tools;
    const char *want; /* what follows the first user turn of "x" */
};

/* What no golden case shows. */
static const struct rendering renderings[] = {
    /* Arguments as OpenAI's clients send them. */
    {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
     "{\"name\":\"f\",\"arguments\":\"{\\\"b\\\":1,\\\"A\\\":[true]}\"}}]}]",
     NULL, "<|turn>model\n<|tool_call>call:f{A:[true],b:1}<tool_call|><|tool_response>"},
    {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
     "{\"name\":\"f\",\"arguments\":\"\"}}]}]",
     NULL, "<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_response>"},
    /* Numbers as Python prints them. */
    {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
     "{\"name\":\"f\",\"arguments\":{\"v\":[1.0,1e16,1e15,0.0001,0.00001,-0.0,1e-7,123456789.125,"
     "12345678901234567890123,-9223372036854775809,5e-324,0.1,100,1E5]}}}]}]",
     NULL,
     "<|turn>model\n<|tool_call>call:f{v:[1.0,1e+16,1000000000000000.0,0.0001,1e-05,-0.0,1e-07,"
     "123456789.125,12345678901234567890123,-9223372036854775809,5e-324,0.1,100,100000.0]}"
     "<tool_call|><|tool_response>"},
    /* Keys in the order of their lower-case forms, capitals of other scripts too. */
    {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
     "{\"name\":\"f\",\"arguments\":{\"\u0434\":1,\"\u0413\":2,\"\u00dc\":3,\"\u00fb\":4,"
     "\"b\":5,\"B\":6,\"a\":7,\"\U00010400\":8,\"\U00010429\":9}}}]}]",
     NULL,
     "<|turn>model\n<|tool_call>call:f{a:7,b:5,B:6,\u00fb:4,\u00dc:3,\u0413:2,\u0434:1,"
     "\U00010400:8,\U00010429:9}<tool_call|><|tool_response>"},
    /* All of Python's white space goes, a zero-width space stays. */
    {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"\\u001c\\u2028 "
     "\\u3000\\u0085\\t\u200by\u200b\\u00a0\\u205f\\n\"}]",
     NULL, "<|turn>user\n\u200by\u200b<turn|>\n<|turn>model\n"},
};

static void test_renderings(void)
{
    static const char start[] = "<bos><|turn>user\nx<turn|>\n";
    for (size_t i = 0; i < sizeof(renderings) / sizeof(renderings[0]); i++) {
        struct chat_prompt prompt;
        struct err err = {0};
        chat_prompt_init(&prompt);
        test_ok(render_text(renderings[i].messages, renderings[i].tools, false, &prompt, &err),
                &err);
        test_true(strncmp(buf_text(&prompt.text), start, strlen(start)) == 0);
        test_eq_str(buf_text(&prompt.text) + strlen(start), renderings[i].want);
        chat_prompt_fini(&prompt);
    }
}

struct refusal {
    const char *messages;
    const char *tools;
    enum err_code code;
    const char *message;
};

static const struct refusal refusals[] = {
    {"{}", NULL, ERR_ARGUMENT, "messages is an object, not an array"},
    {"[]", "{}", ERR_ARGUMENT, "tools is an object, not an array"},
    {"[1]", NULL, ERR_ARGUMENT, "messages[0] is an integer, not an object"},
    {"[{}]", NULL, ERR_ARGUMENT, "messages[0].role is missing, it must be a string"},
    {"[{\"role\":\"critic\"}]", NULL, ERR_ARGUMENT,
     "messages[0].role is 'critic', not system, developer, user, assistant or tool"},
    {"[{\"role\":\"user\",\"content\":5}]", NULL, ERR_ARGUMENT,
     "messages[0].content is an integer, not a string or an array"},
    {"[{\"role\":\"user\",\"content\":[\"x\"]}]", NULL, ERR_ARGUMENT,
     "messages[0].content[0] is a string, not an object"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", NULL, ERR_ARGUMENT,
     "messages[0].content[0].text is missing, it must be a string"},
    {"[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]", NULL, ERR_ARGUMENT,
     "messages[0].content[0].type is missing, it must be a string"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"file\"}]}]", NULL, ERR_ARGUMENT,
     "messages[0].content[0].type is 'file', not text"},
    {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"a\"},{\"type\":\"image_url\"}]}]",
     NULL, ERR_UNSUPPORTED,
     "messages[1].content[1].type is 'image_url': this server takes text only"},
    {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]", NULL, ERR_UNSUPPORTED,
     "messages[0].content[0].type is 'input_audio': this server takes text only"},
    {"[{\"role\":\"system\",\"content\":[{\"type\":\"video\"}]}]", NULL, ERR_UNSUPPORTED,
     "messages[0].content[0].type is 'video': this server takes text only"},
    {"[{\"role\":\"system\",\"content\":{}}]", NULL, ERR_ARGUMENT,
     "messages[0].content is an object, not a string or an array"},
    {"[{\"role\":\"assistant\",\"reasoning\":[]}]", NULL, ERR_ARGUMENT,
     "messages[0].reasoning is an array, not a string"},
    {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, ERR_ARGUMENT,
     "messages[0].tool_calls is an object, not an array"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", NULL, ERR_ARGUMENT,
     "messages[0].tool_calls[0].function is missing, it must be an object"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", NULL, ERR_ARGUMENT,
     "messages[0].tool_calls[0].function.name is missing, it must be a string"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}"
     "}]}]",
     NULL, ERR_ARGUMENT, "messages[0].tool_calls[0].function.arguments is an array, not an object"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\""
     ",\"content\":{}}]",
     NULL, ERR_ARGUMENT, "messages[1].content is an object, not a string or an array"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\""
     ",\"tool_call_id\":1}]",
     NULL, ERR_ARGUMENT, "messages[1].tool_call_id is an integer, not a string"},
    {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\""
     ",\"content\":[{\"type\":\"image\"}]}]",
     NULL, ERR_UNSUPPORTED, "messages[1].content[0].type is 'image': this server takes text only"},
    {"[{\"role\":\"assistant\",\"tool_responses\":[{\"name\":\"f\"}]}]", NULL, ERR_ARGUMENT,
     "messages[0].tool_responses[0].response is missing, it must be there"},
    {"[{\"role\":\"assistant\",\"tool_responses\":[{\"name\":1,\"response\":1}]}]", NULL,
     ERR_ARGUMENT, "messages[0].tool_responses[0].name is an integer, not a string"},
    {"[{\"role\":\"a\\nb\"}]", NULL, ERR_ARGUMENT,
     "messages[0].role is 'a?b', not system, developer, user, assistant or tool"},
    {"[]", "[5]", ERR_ARGUMENT, "tools[0].function is missing, it must be an object"},
    {"[]", "[{\"function\":{}}]", ERR_ARGUMENT,
     "tools[0].function.name is missing, it must be a string"},
    {"[]", "[{\"function\":{\"name\":\"f\",\"description\":[1]}}]", ERR_ARGUMENT,
     "tools[0].function.description is an array, not a string"},
    {"[]", "[{\"function\":{\"name\":\"f\",\"parameters\":[1]}}]", ERR_ARGUMENT,
     "tools[0].function.parameters is an array, not an object"},
    {"[]", "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":[1]}}}]", ERR_ARGUMENT,
     "tools[0].function.parameters.properties is an array, not an object"},
    {"[]", "[{\"function\":{\"name\":\"f\",\"parameters\":{\"required\":\"a\"}}}]", ERR_ARGUMENT,
     "tools[0].function.parameters.required is a string, not an array"},
    {"[]", "[{\"function\":{\"name\":\"f\",\"parameters\":{\"required\":[[]]}}}]", ERR_ARGUMENT,
     "tools[0].function.parameters.required[0] is an array, not a string"},
    {"[]", "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":{\"a\":1}}}}]", ERR_ARGUMENT,
     "tools[0].function.parameters.type is an object, not a string"},
    {"[]",
     "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"p\":{\"type\":\"array\","
     "\"items\":{\"type\":5}}}}}}]",
     ERR_ARGUMENT,
     "tools[0].function.parameters.properties.p.items.type is an integer, not a string or an "
     "array"},
    {"[]",
     "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"p\":{\"type\":[\"a'b\"]}}}}}"
     "]",
     ERR_ARGUMENT,
     "tools[0].function.parameters.properties.p.type[0] is not the name of a type: byte 1 is 0x27"},
};

static void test_refusals(void)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct chat_prompt prompt;
        struct err err = {0};
        chat_prompt_init(&prompt);
        enum err_code code =
            render_text(refusals[i].messages, refusals[i].tools, false, &prompt, &err);
        test_eq_str(err.message, refusals[i].message);
        test_eq_u64(code, refusals[i].code);
        chat_prompt_fini(&prompt);
    }
}

/* The templates refuse arguments that are a string; here the JSON of an object is one. */
static void test_arguments_that_are_no_json(void)
{
    struct chat_prompt prompt;
    struct err err = {0};
    chat_prompt_init(&prompt);
    enum err_code code = render_text("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
                                     "{\"name\":\"f\",\"arguments\":\"{a\"}}]}]",
                                     NULL, false, &prompt, &err);
    static const char start[] = "messages[0].tool_calls[0].function.arguments is not JSON: ";
    test_eq_u64(code, ERR_ARGUMENT);
    test_true(strncmp(err.message, start, strlen(start)) == 0);
    chat_prompt_fini(&prompt);
}

static void test_no_format_is_refused(void)
{
    struct json_t *messages = NULL;
    struct err err = {0};
    struct chat_prompt prompt;
    const struct chat_options options = {.format = CHAT_FORMAT_NONE};
    test_ok(json_parse("[]", 2, MAX_DEPTH, &messages, &err), &err);
    chat_prompt_init(&prompt);
    test_eq_u64(chat_render(messages, NULL, &options, &prompt, &err), ERR_UNSUPPORTED);
    test_eq_str(err.message, "this model has no chat format");
    chat_prompt_fini(&prompt);
    json_release(messages);
}

static void test_nothing_to_continue_is_refused(void)
{
    static const char *const all[] = {"[]", "[{\"role\":\"tool\",\"content\":\"x\"}]"};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct json_t *messages = NULL;
        struct err err = {0};
        struct chat_prompt prompt;
        const struct chat_options options = {.format = CHAT_FORMAT_SMALL,
                                             .continue_final_message = true};
        test_ok(json_parse(all[i], strlen(all[i]), MAX_DEPTH, &messages, &err), &err);
        chat_prompt_init(&prompt);
        test_eq_u64(chat_render(messages, NULL, &options, &prompt, &err), ERR_ARGUMENT);
        test_eq_str(err.message, "messages have no final message to continue");
        chat_prompt_fini(&prompt);
        json_release(messages);
    }
}

/* Every special string, in every place that a request can fill, stays text. */
static void test_content_cannot_forge_tokens(void)
{
    static const char *const places[] = {
        "[{\"role\":\"user\",\"content\":\"%s\"}]",
        "[{\"role\":\"system\",\"content\":\"%s\"}]",
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"}]}]",
        "[{\"role\":\"assistant\",\"reasoning\":\"%s\"}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"%s\"}}]}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
        "{\"%s\":1}}}]}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
        "{\"k\":\"%s\"}}}]}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"tool\",\"content\":\"%s\"}]",
    };
    struct tokenizer *tokenizer = load_tokenizer(TEST_OFFICIAL_TOKENIZER);
    for (uint32_t id = 0; id < tok_vocab_count(tokenizer); id++) {
        if (!tok_is_special(tokenizer, id)) {
            continue;
        }
        uint32_t byte_count = 0;
        const char *bytes = tok_bytes(tokenizer, id, &byte_count);
        struct buf special;
        buf_init(&special);
        json_put_text(&special, bytes, byte_count);
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            const char *hole = strstr(places[i], "%s");
            struct buf messages;
            struct chat_prompt prompt;
            struct tok_ids ids = {0};
            struct err err = {0};
            buf_init(&messages);
            chat_prompt_init(&prompt);
            buf_append(&messages, places[i], (size_t)(hole - places[i]));
            buf_append(&messages, special.at + 1, special.used_bytes - 2);
            buf_append_text(&messages, hole + 2);
            test_ok(render_text(buf_text(&messages), NULL, false, &prompt, &err), &err);
            check_spans(tokenizer, &prompt);
            chat_encode(tokenizer, &prompt, &ids);
            test_eq_u64(count_special(tokenizer, &ids), count_control(tokenizer, &prompt));
            /* The text itself is all there. */
            test_true(strstr(buf_text(&prompt.text), "<") != NULL);
            tok_ids_fini(&ids);
            chat_prompt_fini(&prompt);
            buf_fini(&messages);
        }
        buf_fini(&special);
    }
    tok_destroy(tokenizer);
}

static void test_format_detection(void)
{
    char dir[] = "/tmp/chat_render_test.XXXXXX";
    char path[64];
    struct err err = {0};
    enum chat_format format = CHAT_FORMAT_LARGE;
    test_true(mkdtemp(dir) != NULL);
    test_ok(chat_format_detect(dir, &format, &err), &err);
    test_eq_u64(format, CHAT_FORMAT_NONE);
    (void)snprintf(path, sizeof(path), "%s/chat_template.jinja", dir); /* fits */
    FILE *file = fopen(path, "w");
    test_true(file != NULL && fputs("{{ messages }}", file) >= 0 && fclose(file) == 0);
    test_eq_u64(chat_format_detect(dir, &format, &err), ERR_UNSUPPORTED);
    test_true(strstr(err.message,
                     "is no known chat template: its sha256 is "
                     "f24189f08c85a1eb19a737306c3a13e85462ee33d964f28108d64a2485fa") != NULL);
    test_true(unlink(path) == 0 && rmdir(dir) == 0);
}

static void test_official_templates_are_known(void)
{
    static const char *const files[] = {
        [CHAT_FORMAT_LARGE] = "chat_template.gemma4-12b-26b-31b.jinja",
        [CHAT_FORMAT_SMALL] = "chat_template.gemma4-e2b-e4b.jinja",
    };
    for (int want = CHAT_FORMAT_LARGE; want <= CHAT_FORMAT_SMALL; want++) {
        char dir[] = "/tmp/chat_render_test.XXXXXX";
        char link_path[64];
        char target[4096];
        struct err err = {0};
        enum chat_format format = CHAT_FORMAT_NONE;
        test_true(mkdtemp(dir) != NULL);
        (void)snprintf(link_path, sizeof(link_path), "%s/chat_template.jinja", dir); /* fits */
        (void)snprintf(target, sizeof(target), "%s/chat/%s", test_golden_dir(), files[want]);
        test_true(symlink(target, link_path) == 0);
        test_ok(chat_format_detect(dir, &format, &err), &err);
        test_eq_u64(format, (uint64_t)want);
        test_true(unlink(link_path) == 0 && rmdir(dir) == 0);
    }
}

static const struct test_case cases[] = {
    TEST(test_template_cases),
    TEST(test_template_fuzz),
    TEST(test_demo_prompts),
    TEST(test_renderings),
    TEST(test_refusals),
    TEST(test_arguments_that_are_no_json),
    TEST(test_no_format_is_refused),
    TEST(test_nothing_to_continue_is_refused),
    TEST(test_content_cannot_forge_tokens),
    TEST(test_format_detection),
    TEST(test_official_templates_are_known),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
