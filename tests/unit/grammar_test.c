/* Which texts a grammar takes, by the tokens that they are encoded to; and what is refused. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "frontend/constraint_grammar.h"
#include "frontend/grammar_cache.h"
#include "frontend/grammar_vocab.h"
#include "tests/testlib/test.h"

struct rig {
    struct tokenizer *tokenizer;
    struct grammar_cache *cache;
    uint32_t words[8192];
};

static void rig_init(struct rig *rig)
{
    struct err err;
    test_ok(tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &rig->tokenizer, &err), &err);
    struct grammar_markers markers = {.quote = tok_find(rig->tokenizer, "<|\"|>"),
                                      .call_open = tok_find(rig->tokenizer, "<|tool_call>"),
                                      .call_close = tok_find(rig->tokenizer, "<tool_call|>")};
    rig->cache = grammar_cache_create(rig->tokenizer, &markers, 64UL << 20);
}

static void rig_fini(struct rig *rig)
{
    grammar_cache_destroy(rig->cache);
    tok_destroy(rig->tokenizer);
}

enum verdict {
    TAKEN,   /* whole, and may end there */
    OPEN,    /* may come, but has to go on */
    REFUSED, /* some token of it may not come */
};

/* Every token has to be in the mask before it, and is in it exactly if the grammar takes it. */
static enum verdict judge(struct rig *rig, struct grammar *grammar, const char *text)
{
    struct tok_ids ids = {0};
    struct err err;
    bool may_end = false;
    tok_encode(rig->tokenizer, text, strlen(text), TOK_SPECIAL_PARSE, &ids);
    struct grammar_place place = grammar_begin(grammar);
    for (size_t i = 0; i < ids.count; i++) {
        test_true(grammar_mask(grammar, &place, rig->words, &may_end) == GRAMMAR_FINE);
        bool is_allowed = (rig->words[ids.at[i] / 32] >> ids.at[i] % 32 & 1) != 0;
        enum grammar_answer answer = grammar_take(grammar, &place, &ids.at[i], 1);
        test_true(is_allowed == (answer == GRAMMAR_FINE));
        if (!is_allowed) {
            tok_ids_fini(&ids);
            return REFUSED;
        }
    }
    test_true(grammar_mask(grammar, &place, rig->words, &may_end) == GRAMMAR_FINE);
    tok_ids_fini(&ids);
    (void)err;
    return may_end ? TAKEN : OPEN;
}

static struct json_t *parse(const char *text)
{
    struct json_t *value = NULL;
    struct err err;
    test_ok(json_parse(text, strlen(text), 64, &value, &err), &err);
    return value;
}

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): rows read in this order */
static const struct {
    enum grammar_kind kind;
    const char *source; /* the expression, or JSON */
    const char *text;
    enum verdict verdict;
} texts[] = {
    {GRAMMAR_OBJECT, NULL, "{}", TAKEN},
    {GRAMMAR_OBJECT, NULL, "{\"a\": [1, -2.5e3, null, true, {\"b\": \"c\\n\"}]}", TAKEN},
    {GRAMMAR_OBJECT, NULL, "{\"a\": 01}", REFUSED},
    {GRAMMAR_OBJECT, NULL, "{\"a\": 1,}", REFUSED},
    {GRAMMAR_OBJECT, NULL, "[1]", REFUSED},
    {GRAMMAR_OBJECT, NULL, "{\"a\": \"\\ud83d\"}", REFUSED},
    {GRAMMAR_OBJECT, NULL, "{\"a\": \"\xf0\x9f\x98\x80\"}", TAKEN},
    {GRAMMAR_OBJECT, NULL, "{\"a\":   1}", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"array\"}", "[1,]", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"array\",\"minItems\":2,\"maxItems\":3}", "[1,2,3]", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"array\",\"minItems\":2,\"maxItems\":3}", "[1]", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"array\",\"minItems\":2,\"maxItems\":3}", "[1,2,3,", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}", "-3", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}", "-4", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}", "120", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}", "121", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}", "1.0", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0", OPEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "0.05", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}", "1.01", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa9\\u00e9\"",
     TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"a\"", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"abcd\"", REFUSED},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a\\\\\\\"b$\"}", "\"a\\\"b\"", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b\"}", "\"abc\"", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"b\"}", "\"ac\"", REFUSED},
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":true},"
     "\"required\":[\"b\"]}",
     "{\"b\":null}", TAKEN},
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":true},"
     "\"required\":[\"b\"]}",
     "{\"a\":1}", REFUSED},
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":{\"type\":\"null\"}}",
     "{\"ab\": 1, \"abc\": null, \"a\": null}", TAKEN},
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":{\"type\":\"null\"}}",
     "{\"ab\":null", REFUSED},
    {GRAMMAR_SCHEMA, "{\"enum\":[\"a\",\"ab\",{\"x\":[1,2]}]}", "{\"x\":[1,2]}", TAKEN},
    {GRAMMAR_SCHEMA, "{\"enum\":[\"a\",\"ab\"]}", "\"ab\"", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":[\"null\",\"boolean\"]}", "true", TAKEN},
    {GRAMMAR_SCHEMA, "{\"type\":[\"null\",\"boolean\"]}", "1", REFUSED},
    {GRAMMAR_SCHEMA,
     "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\":[{\"$ref\":"
     "\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"n\"]}},\"$ref\":\"#/$defs/n\"}",
     "{\"n\":{\"n\":{\"n\":null}}}", TAKEN},
    {GRAMMAR_REGEX, "(foo|ba[rz]){2}\\d*", "foobaz12", TAKEN},
    {GRAMMAR_REGEX, "(foo|ba[rz]){2}\\d*", "foo", OPEN},
    {GRAMMAR_REGEX, "(foo|ba[rz]){2}\\d*", "foobax", REFUSED},
    {GRAMMAR_REGEX, "[^a-z]\\u00e9.", "A\xc3\xa9\xe2\x82\xac", TAKEN},
    {GRAMMAR_CHOICE, "[\"yes\",\"yes sir\",\"no\"]", "yes", TAKEN},
    {GRAMMAR_CHOICE, "[\"yes\",\"yes sir\",\"no\"]", "yes sir", TAKEN},
    {GRAMMAR_CHOICE, "[\"yes\",\"yes sir\",\"no\"]", "yes s", OPEN},
    {GRAMMAR_CHOICE, "[\"yes\",\"yes sir\",\"no\"]", "maybe", REFUSED},
};

/* Fills source from a row's text; the value is the caller's to release. */
static struct json_t *read_source(enum grammar_kind kind, const char *text,
                                  struct grammar_source *out)
{
    *out = (struct grammar_source){.kind = kind};
    if (kind == GRAMMAR_REGEX) {
        out->regex = text;
        out->regex_bytes = strlen(text);
    }
    struct json_t *value = kind == GRAMMAR_SCHEMA || kind == GRAMMAR_CHOICE ? parse(text) : NULL;
    out->value = value;
    return value;
}

static void test_texts(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_init(rig);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct grammar_source source;
        struct grammar *grammar = NULL;
        struct err err;
        struct json_t *value = read_source(texts[i].kind, texts[i].source, &source);
        test_ok(grammar_cache_get(rig->cache, &source, &grammar, &err), &err);
        enum verdict verdict = judge(rig, grammar, texts[i].text);
        if (verdict != texts[i].verdict) {
            test_fail(__FILE__, __LINE__, "%s under %s: %d", texts[i].text, texts[i].source,
                      (int)verdict);
        }
        grammar_release(grammar);
        json_release(value);
    }
    rig_fini(rig);
    mem_free(rig);
}

static const struct {
    enum grammar_kind kind;
    enum err_code code;
    const char *source;
    const char *message;
} refused[] = {
    {GRAMMAR_SCHEMA, ERR_UNSUPPORTED, "{\"not\":{}}", "schema: 'not' is not served"},
    {GRAMMAR_SCHEMA, ERR_UNSUPPORTED, "{\"properties\":{\"a\":{\"items\":{\"oneOf\":[]}}}}",
     "schema at $ref: 'oneOf' is not served"},
    {GRAMMAR_SCHEMA, ERR_UNSUPPORTED, "{\"properties\":{\"a\":{\"multipleOf\":3}}}",
     "schema at properties.a: 'multipleOf' is not served"},
    {GRAMMAR_SCHEMA, ERR_UNSUPPORTED, "{\"$ref\":\"#/x\",\"minimum\":1,\"x\":1}", "'x' is not"},
    {GRAMMAR_SCHEMA, ERR_UNSUPPORTED, "{\"$ref\":\"#\",\"minimum\":1}", "'minimum' beside '$ref'"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"$ref\":\"#/$defs/x\"}", "leads nowhere"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"$ref\":\"#\"}", "nothing can match"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"type\":\"text\"}", "type must be"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"minLength\":-1}", "minLength must be a count"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"minLength\":3,\"maxLength\":2}", "nothing can match"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"enum\":[]}", "nothing can match"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "7", "a schema must be an object"},
    {GRAMMAR_SCHEMA, ERR_LIMIT, "{\"minItems\":100000}", "more than"},
    {GRAMMAR_SCHEMA, ERR_ARGUMENT, "{\"pattern\":\"(\"}", "'pattern': regular expression, byte 1"},
    {GRAMMAR_REGEX, ERR_ARGUMENT, "a)", "closed that was not opened"},
    {GRAMMAR_REGEX, ERR_ARGUMENT, "*a", "nothing to repeat"},
    {GRAMMAR_REGEX, ERR_ARGUMENT, "[z-a]", "out of order"},
    {GRAMMAR_REGEX, ERR_UNSUPPORTED, "(?=a)", "look-around"},
    {GRAMMAR_REGEX, ERR_UNSUPPORTED, "(a)\\1", "back references"},
    {GRAMMAR_REGEX, ERR_UNSUPPORTED, "\\bx", "\\b is not served"},
    {GRAMMAR_REGEX, ERR_LIMIT, "((a{1000}){1000}){1000}", "use smaller counts"},
    {GRAMMAR_REGEX, ERR_ARGUMENT, "a**", "a count of a count"},
    {GRAMMAR_REGEX, ERR_ARGUMENT, "a{2}?{3}", "a count of a count"},
    {GRAMMAR_REGEX, ERR_ARGUMENT, "(ab){2}{3}", "a count of a count"},
    {GRAMMAR_CHOICE, ERR_ARGUMENT, "[]", "1 to 10000 strings"},
    {GRAMMAR_CHOICE, ERR_ARGUMENT, "[\"a\",1]", "not an integer"},
    {GRAMMAR_CHOICE, ERR_ARGUMENT, "[\"\"]", "must not be empty"},
};

/* Each name is looked for among all that are required. */
static void test_required_names_are_bounded(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    struct grammar *grammar = NULL;
    struct grammar_source source;
    struct buf text;
    struct err err;
    rig_init(rig);
    buf_init(&text);
    buf_append_text(&text, "{\"required\":[");
    for (uint32_t i = 0; i < 15001; i++) {
        buf_append_text(&text, i == 0 ? "\"a\"" : ",\"a\"");
    }
    buf_append_text(&text, "]}");
    struct json_t *value = read_source(GRAMMAR_SCHEMA, buf_text(&text), &source);
    test_eq_u64(grammar_cache_get(rig->cache, &source, &grammar, &err), ERR_LIMIT);
    test_eq_str(err.message, "schema: 15001 names are required, at most 15000 may be");
    json_release(value);
    buf_fini(&text);
    rig_fini(rig);
    mem_free(rig);
}

static void test_refusals_say_what_and_where(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_init(rig);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct grammar_source source;
        struct grammar *grammar = NULL;
        struct err err = {0};
        struct json_t *value = read_source(refused[i].kind, refused[i].source, &source);
        enum err_code code = grammar_cache_get(rig->cache, &source, &grammar, &err);
        if (code != refused[i].code || strstr(err.message, refused[i].message) == NULL) {
            test_fail(__FILE__, __LINE__, "%s: code %d, %s", refused[i].source, (int)code,
                      err.message);
        }
        grammar_release(grammar);
        json_release(value);
    }
    rig_fini(rig);
    mem_free(rig);
}

static void test_calls_in_their_own_syntax(void)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},"
        "\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";
    static const struct {
        const char *text;
        const char *tool;
        enum verdict verdict;
    } rows[] = {
        {"<|tool_call>call:get{city:<|\"|>a \"b\" {<|\"|>,n:-4}<tool_call|>", NULL, TAKEN},
        {"<|tool_call>call:now{}<tool_call|>", NULL, TAKEN},
        {"<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>", NULL, TAKEN},
        {"<|tool_call>call:now{}<tool_call|>", "get", REFUSED},
        {"<|tool_call>call:get{n:1}<tool_call|>", NULL, REFUSED},
        {"<|tool_call>call:get{city:Paris}<tool_call|>", NULL, REFUSED},
        {"<|tool_call>call:other{}<tool_call|>", NULL, REFUSED},
        {"Hello", NULL, REFUSED},
    };
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_init(rig);
    struct json_t *value = parse(tools);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct grammar_source source = {
            .tools = value, .tool = rows[i].tool, .has_one_call = rows[i].tool != NULL};
        struct grammar *grammar = NULL;
        struct err err;
        test_ok(grammar_cache_get(rig->cache, &source, &grammar, &err), &err);
        enum verdict verdict = judge(rig, grammar, rows[i].text);
        if (verdict != rows[i].verdict) {
            test_fail(__FILE__, __LINE__, "%s: %d", rows[i].text, (int)verdict);
        }
        grammar_release(grammar);
    }
    json_release(value);
    rig_fini(rig);
    mem_free(rig);
}

static void test_thoughts_come_first(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_init(rig);
    struct json_t *value = parse("[\"yes\"]");
    struct grammar_source source = {.kind = GRAMMAR_CHOICE, .value = value};
    struct grammar *grammar = NULL;
    struct err err;
    test_ok(grammar_cache_get(rig->cache, &source, &grammar, &err), &err);
    uint32_t open = tok_find(rig->tokenizer, "<|channel>");
    uint32_t close = tok_find(rig->tokenizer, "<channel|>");
    uint32_t end = tok_find(rig->tokenizer, "<turn|>");
    struct constraint_grammar options = {.grammar = grammar,
                                         .end_ids = &end,
                                         .end_count = 1,
                                         .may_think = true,
                                         .channel_open = open,
                                         .channel_close = close};
    struct constraint *constraint = constraint_grammar_create(&options);
    struct tok_ids ids = {0};
    static const char text[] = "<|channel>thought\nWhat?<channel|>yes";
    tok_encode(rig->tokenizer, text, strlen(text), TOK_SPECIAL_PARSE, &ids);
    uint32_t words = (tok_vocab_count(rig->tokenizer) + 31) / 32;
    for (uint32_t i = 0; i <= ids.count; i++) {
        constraint->fill(constraint, ids.at, i, rig->words, words);
        uint32_t id = i < ids.count ? ids.at[i] : end;
        test_true((rig->words[id / 32] >> id % 32 & 1) != 0);
        bool may_end = (rig->words[end / 32] >> end % 32 & 1) != 0;
        test_true(may_end == (i == ids.count));
    }
    constraint_release(constraint);
    tok_ids_fini(&ids);
    grammar_release(grammar);
    json_release(value);
    rig_fini(rig);
    mem_free(rig);
}

static void test_a_cache_compiles_once_and_stays_bounded(void)
{
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_init(rig);
    struct grammar_cache_stats stats;
    for (uint32_t i = 0; i < 2000; i++) {
        char text[32];
        struct grammar *grammar = NULL;
        struct err err;
        (void)snprintf(text, sizeof(text), "[a-c]{%u}x", i % 1000 + 1); /* fits */
        struct grammar_source source = {
            .kind = GRAMMAR_REGEX, .regex = text, .regex_bytes = strlen(text)};
        test_ok(grammar_cache_get(rig->cache, &source, &grammar, &err), &err);
        test_ok(grammar_cache_get(rig->cache, &source, &grammar, &err), &err);
        grammar_release(grammar);
        grammar_release(grammar);
    }
    grammar_cache_get_stats(rig->cache, &stats);
    test_eq_u64(stats.hits, 2000);
    test_eq_u64(stats.misses, 2000);
    test_true(stats.bytes <= 64UL << 20 && stats.grammars > 0 && stats.grammars <= 512);
    rig_fini(rig);
    mem_free(rig);
}

static const struct test_case cases[] = {
    TEST(test_texts),
    TEST(test_refusals_say_what_and_where),
    TEST(test_required_names_are_bounded),
    TEST(test_calls_in_their_own_syntax),
    TEST(test_thoughts_come_first),
    TEST(test_a_cache_compiles_once_and_stays_bounded),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
