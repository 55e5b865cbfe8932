/* Streaming detokenizer: certain text only, the same text however the tokens fall. */
#include "frontend/detok.h"

#include <stdio.h>
#include <string.h>

#include "common/utf8.h"
#include "tests/testlib/test.h"

#define FFFD UTF8_REPLACEMENT

static struct tokenizer *load(void)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    test_ok(tok_load(TEST_DEMO_MODEL_DIR "/tokenizer.json", NULL, &tokenizer, &err), &err);
    return tokenizer;
}

static uint32_t byte_id(const struct tokenizer *tokenizer, unsigned char byte)
{
    char name[8];
    (void)snprintf(name, sizeof(name), "<0x%02X>", byte); /* fits */
    return tok_find(tokenizer, name);
}

struct scenario {
    const char *bytes; /* as byte tokens; '|' stands for the token "e", '!' for <bos> */
    const char *want;
};

static const struct scenario scenarios[] = {
    {"\xe2\x82\xac", "\u20ac"},
    {"\xf0\x9f\x98\x80", "\U0001f600"},
    {"\x41\x0a", "A\n"},
    /* Families and combining marks are characters of their own to a decoder. */
    {"\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9", "\U0001f468\u200d\U0001f469"},
    {"|\xcc\x81", "e\u0301"},
    /* One replacement per byte token. */
    {"\xff", FFFD},
    {"\x80\x80", FFFD FFFD},
    {"\xe2\x82", FFFD FFFD},
    {"\xe2\x82|", FFFD FFFD "e"},
    {"\xe2|\x82\xac", FFFD "e" FFFD FFFD},
    {"\xf0\x9f\x98", FFFD FFFD FFFD},
    {"\xe2\x82\xe2\x82\xac", FFFD FFFD "\u20ac"},
    {"\xc3\xc3\xa9", FFFD "\u00e9"},
    {"\xe2\x82\x41", FFFD FFFD "A"},
    /* Overlong forms, surrogates and code points past the last. */
    {"\xc0\xaf", FFFD FFFD},
    {"\xe0\x80\xaf", FFFD FFFD FFFD},
    {"\xed\xa0\x80", FFFD FFFD FFFD},
    {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD},
    /* A special token ends a run. */
    {"\xe2\x82!\xac", FFFD FFFD "<bos>" FFFD},
};

static void push(struct detok *detok, char mark, struct buf *out)
{
    const struct tokenizer *tokenizer = detok->tokenizer;
    uint32_t id = mark == '|'   ? tok_find(tokenizer, "e")
                  : mark == '!' ? tok_find(tokenizer, "<bos>")
                                : byte_id(tokenizer, (unsigned char)mark);
    test_true(id != TOK_NONE);
    detok_push(detok, id, out);
}

static void test_byte_runs(void)
{
    struct tokenizer *tokenizer = load();
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        struct detok detok;
        struct buf out;
        buf_init(&out);
        detok_init(&detok, tokenizer, false);
        for (const char *at = scenarios[i].bytes; *at != '\0'; at++) {
            push(&detok, *at, &out);
            test_true(utf8_is_valid(buf_text(&out), out.used_bytes));
        }
        detok_finish(&detok, &out);
        test_eq_str(buf_text(&out), scenarios[i].want);
        buf_fini(&out);
    }
    tok_destroy(tokenizer);
}

static void test_character_comes_with_its_last_byte(void)
{
    struct tokenizer *tokenizer = load();
    struct detok detok;
    struct buf out;
    buf_init(&out);
    detok_init(&detok, tokenizer, false);
    push(&detok, '\xf0', &out);
    push(&detok, '\x9f', &out);
    push(&detok, '\x98', &out);
    test_eq_u64(out.used_bytes, 0);
    push(&detok, '\x80', &out);
    test_eq_str(buf_text(&out), "\U0001f600");
    /* A byte that cannot follow makes the ones before it certain. */
    push(&detok, '\xe2', &out);
    push(&detok, '\xe2', &out);
    test_eq_str(buf_text(&out), "\U0001f600" FFFD);
    detok_finish(&detok, &out);
    test_eq_str(buf_text(&out), "\U0001f600" FFFD FFFD);
    detok_finish(&detok, &out);
    test_eq_str(buf_text(&out), "\U0001f600" FFFD FFFD);
    buf_fini(&out);
    tok_destroy(tokenizer);
}

static void test_special_tokens(void)
{
    struct tokenizer *tokenizer = load();
    struct buf out;
    buf_init(&out);
    for (int skip = 0; skip < 2; skip++) {
        struct detok detok;
        detok_init(&detok, tokenizer, skip == 1);
        buf_reset(&out);
        push(&detok, '!', &out);
        push(&detok, '|', &out);
        test_eq_str(buf_text(&out), skip == 1 ? "e" : "<bos>e");
        /* Skipped or not, it ends a run of bytes. */
        push(&detok, '\xe2', &out);
        push(&detok, '!', &out);
        test_eq_str(buf_text(&out), skip == 1 ? "e" FFFD : "<bos>e" FFFD "<bos>");
    }
    buf_fini(&out);
    tok_destroy(tokenizer);
}

static void test_unknown_id(void)
{
    struct tokenizer *tokenizer = load();
    struct detok detok;
    struct buf out;
    buf_init(&out);
    detok_init(&detok, tokenizer, true);
    detok_push(&detok, tok_vocab_count(tokenizer), &out);
    detok_push(&detok, TOK_NONE, &out);
    test_eq_str(buf_text(&out), FFFD FFFD);
    buf_fini(&out);
    tok_destroy(tokenizer);
}

/* Any tokens give valid UTF-8 at every moment, and valid text gives itself. */
static void test_random_tokens(void)
{
    struct tokenizer *tokenizer = load();
    uint64_t state = 31;
    for (int round = 0; round < 2000; round++) {
        struct detok detok;
        struct buf out;
        buf_init(&out);
        detok_init(&detok, tokenizer, false);
        size_t certain = 0;
        for (int i = 0; i < 40; i++) {
            uint32_t id = test_random(&state) % 3 == 0
                              ? (uint32_t)(test_random(&state) % tok_vocab_count(tokenizer))
                              : byte_id(tokenizer, (unsigned char)test_random(&state));
            detok_push(&detok, id, &out);
            test_true(out.used_bytes >= certain);
            test_true(utf8_is_valid(buf_text(&out), out.used_bytes));
            certain = out.used_bytes;
        }
        detok_finish(&detok, &out);
        test_true(utf8_is_valid(buf_text(&out), out.used_bytes));
        buf_fini(&out);
    }
    tok_destroy(tokenizer);
}

static void test_encoded_text_comes_back(void)
{
    struct tokenizer *tokenizer = load();
    uint64_t state = 32;
    for (int round = 0; round < 2000; round++) {
        struct buf text;
        struct buf out;
        buf_init(&text);
        buf_init(&out);
        for (int i = 0; i < 20; i++) {
            uint32_t limit = i % 2 == 0 ? 0x80 : 0x110000;
            uint32_t code_point = (uint32_t)(test_random(&state) % limit);
            char bytes[4];
            if ((code_point < 0xd800 || code_point >= 0xe000) && code_point != 0x2581) {
                buf_append(&text, bytes, utf8_encode(code_point, bytes));
            }
        }
        struct tok_ids ids = {0};
        struct detok detok;
        detok_init(&detok, tokenizer, true);
        tok_encode(tokenizer, buf_text(&text), text.used_bytes, TOK_SPECIAL_AS_TEXT, &ids);
        for (size_t i = 0; i < ids.count; i++) {
            detok_push(&detok, ids.at[i], &out);
        }
        test_eq_u64(detok.pending_count, 0);
        test_eq_u64(out.used_bytes, text.used_bytes);
        test_true(memcmp(buf_text(&out), buf_text(&text), text.used_bytes) == 0);
        tok_ids_fini(&ids);
        buf_fini(&out);
        buf_fini(&text);
    }
    tok_destroy(tokenizer);
}

static const struct test_case cases[] = {
    TEST(test_byte_runs),      TEST(test_character_comes_with_its_last_byte),
    TEST(test_special_tokens), TEST(test_unknown_id),
    TEST(test_random_tokens),  TEST(test_encoded_text_comes_back),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
