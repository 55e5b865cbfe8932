/* Golden cases of both tokenizers, properties on random text, and a naive twin of the merging. */
#include "frontend/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/utf8.h"
#include "tests/testlib/test.h"

#define MAX_FILE_BYTES (64UL << 20)

static struct tokenizer *load(const char *path)
{
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    test_ok(tok_load(path, NULL, &tokenizer, &err), &err);
    return tokenizer;
}

static struct json_t *load_json(const char *dir, const char *name)
{
    char path[4096];
    struct err err = {0};
    struct json_t *value = NULL;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name); /* fits */
    test_ok(json_parse_file(path, MAX_FILE_BYTES, &value, &err), &err);
    return value;
}

static const char *text_of(const struct json_t *value)
{
    size_t byte_count = 0;
    return json_text(value, &byte_count);
}

static void print_ids(const char *name, const uint32_t *ids, size_t count)
{
    (void)fprintf(stderr, "%s:", name);
    for (size_t i = 0; i < count && i < 200; i++) {
        (void)fprintf(stderr, " %u", ids[i]);
    }
    (void)fputc('\n', stderr);
}

static void check_ids(const char *label, const struct tok_ids *got, const struct json_t *want)
{
    size_t count = json_count(want);
    struct tok_ids expected = {0};
    for (size_t i = 0; i < count; i++) {
        tok_ids_push(&expected, (uint32_t)json_int64(json_element(want, i)));
    }
    bool is_same = got->count == count &&
                   (count == 0 || memcmp(got->at, expected.at, count * sizeof(uint32_t)) == 0);
    if (!is_same) {
        print_ids("got", got->at, got->count);
        print_ids("want", expected.at, expected.count);
        test_fail(__FILE__, __LINE__, "ids of '%s' differ", label);
    }
    tok_ids_fini(&expected);
}

static void test_official_cases(void)
{
    struct tokenizer *tokenizer = load(TEST_OFFICIAL_TOKENIZER);
    struct json_t *file = load_json(test_golden_dir(), "tokenizer/tokenizer_cases.json");
    const struct json_t *cases = json_member(file, "cases");
    test_true(json_count(cases) > 80);
    for (size_t i = 0; i < json_count(cases); i++) {
        const struct json_t *one = json_element(cases, i);
        size_t byte_count = 0;
        const char *text = json_text(json_member(one, "text"), &byte_count);
        struct tok_ids ids = {0};
        tok_encode(tokenizer, text, byte_count, TOK_SPECIAL_PARSE, &ids);
        check_ids(text, &ids, json_member(one, "ids"));
        tok_ids_fini(&ids);
    }
    json_release(file);
    tok_destroy(tokenizer);
}

static void test_official_vocabulary(void)
{
    struct tokenizer *tokenizer = load(TEST_OFFICIAL_TOKENIZER);
    test_eq_u64(tok_vocab_count(tokenizer), 262144);
    test_eq_u64(tok_find(tokenizer, "<bos>"), 2);
    test_eq_u64(tok_find(tokenizer, "<|turn>"), 105);
    test_eq_u64(tok_find(tokenizer, "<turn|>"), 106);
    test_eq_u64(tok_find(tokenizer, "<|video|>"), 258884);
    test_eq_u64(tok_find(tokenizer, "thought"), 45518);
    test_eq_u64(tok_find(tokenizer, "no such entry"), TOK_NONE);
    test_true(tok_is_special(tokenizer, 105));
    test_true(!tok_is_special(tokenizer, 5));
    test_true(!tok_is_special(tokenizer, 262144));
    test_true(tok_is_byte(tokenizer, 238) && tok_is_byte(tokenizer, 493));
    test_true(!tok_is_byte(tokenizer, 237) && !tok_is_byte(tokenizer, 494));
    uint32_t byte_count = 0;
    test_true(memcmp(tok_bytes(tokenizer, 238 + 0xe2, &byte_count), "\xe2", 1) == 0);
    test_eq_u64(byte_count, 1);
    test_true(memcmp(tok_bytes(tokenizer, 138, &byte_count), "  ", 2) == 0);
    test_eq_u64(byte_count, 2);
    test_true(memcmp(tok_bytes(tokenizer, 105, &byte_count), "<|turn>", 7) == 0);
    test_eq_u64(byte_count, 7);
    test_true(tok_bytes(tokenizer, 262144, &byte_count) == NULL);
    tok_destroy(tokenizer);
}

static void test_demo_prompts(void)
{
    struct tokenizer *tokenizer = load(TEST_DEMO_MODEL_DIR "/tokenizer.json");
    struct json_t *file = load_json(TEST_DEMO_MODEL_DIR, "reference-greedy.json");
    test_true(json_count(file) > 5);
    for (size_t i = 0; i < json_count(file); i++) {
        const struct json_t *one = json_element(file, i);
        size_t byte_count = 0;
        const char *text = json_text(json_member(one, "prompt"), &byte_count);
        struct tok_ids ids = {0};
        tok_encode(tokenizer, text, byte_count, TOK_SPECIAL_PARSE, &ids);
        check_ids(text_of(json_member(one, "name")), &ids, json_member(one, "prompt_ids"));
        tok_ids_fini(&ids);
    }
    json_release(file);
    tok_destroy(tokenizer);
}

/* Pieces that meet the tokenizer's odd corners. */
static const char *const odd_pieces[] = {
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t",
    "a",
    "e",
    "th",
    "the",
    " the",
    "ing",
    ">",
    "> ",
    "<",
    "<table>",
    "\u2581",
    "\u00e9",
    "e\u0301",
    "\u4f60\u597d",
    "\u0416",
    "\U0001f600",
    "\U0001f468\u200d\U0001f469",
    "\U000e0001",
    "\U0010ffff",
    "1",
    "23",
    "<0x41>",
    "<|turn>",
    "<turn|>",
    "<bos>",
    "<|turn",
    "user\n",
    "aaaaaaa",
    "=====",
    "----",
    "\r\n",
    "\u3000",
    "\ufeff",
    ".\n",
    "'s",
    "\x7f",
    "",
};

static void random_text(uint64_t *state, size_t piece_count, struct buf *out)
{
    for (size_t i = 0; i < piece_count; i++) {
        uint64_t pick = test_random(state);
        size_t known = sizeof(odd_pieces) / sizeof(odd_pieces[0]);
        if (pick % 8 < 5) {
            buf_append_text(out, odd_pieces[(pick >> 8) % known]);
        } else {
            uint32_t code_point = (uint32_t)(pick >> 8) % (pick % 8 == 5 ? 0x80 : 0x110000);
            char bytes[4];
            if (code_point < 0xd800 || code_point >= 0xe000) {
                buf_append(out, bytes, utf8_encode(code_point, bytes));
            }
        }
    }
}

/* Bytes of all tokens in a row. */
static void decode(const struct tokenizer *tokenizer, const struct tok_ids *ids, struct buf *out)
{
    for (size_t i = 0; i < ids->count; i++) {
        uint32_t byte_count = 0;
        const char *bytes = tok_bytes(tokenizer, ids->at[i], &byte_count);
        test_true(bytes != NULL);
        buf_append(out, bytes, byte_count);
    }
}

/* A literal U+2581 comes back as a space. */
static void space_marks_to_spaces(struct buf *text)
{
    size_t written = 0;
    for (size_t i = 0; i < text->used_bytes; i++) {
        if (text->used_bytes - i >= 3 && memcmp(text->at + i, "\u2581", 3) == 0) {
            text->at[written++] = ' ';
            i += 2;
        } else {
            text->at[written++] = text->at[i];
        }
    }
    text->used_bytes = written;
}

static void check_round_trip(const struct tokenizer *tokenizer, uint64_t seed, size_t round_count)
{
    uint64_t state = seed;
    for (size_t round = 0; round < round_count; round++) {
        struct buf text;
        struct buf back;
        buf_init(&text);
        buf_init(&back);
        random_text(&state, 1 + test_random(&state) % 60, &text);
        for (int special = 0; special < 2; special++) {
            struct tok_ids ids = {0};
            tok_encode(tokenizer, buf_text(&text), text.used_bytes, (enum tok_special)special,
                       &ids);
            buf_reset(&back);
            decode(tokenizer, &ids, &back);
            for (size_t i = 0; i < ids.count && special == TOK_SPECIAL_AS_TEXT; i++) {
                test_true(!tok_is_special(tokenizer, ids.at[i]));
            }
            tok_ids_fini(&ids);
            struct buf want;
            buf_init(&want);
            buf_append(&want, buf_text(&text), text.used_bytes);
            space_marks_to_spaces(&want);
            test_eq_u64(back.used_bytes, want.used_bytes);
            test_true(memcmp(buf_text(&back), buf_text(&want), want.used_bytes) == 0);
            buf_fini(&want);
        }
        buf_fini(&back);
        buf_fini(&text);
    }
}

static void test_round_trip(void)
{
    struct tokenizer *tokenizer = load(TEST_OFFICIAL_TOKENIZER);
    check_round_trip(tokenizer, 11, 3000);
    tok_destroy(tokenizer);
    tokenizer = load(TEST_DEMO_MODEL_DIR "/tokenizer.json");
    check_round_trip(tokenizer, 12, 3000);
    tok_destroy(tokenizer);
}

static void test_malformed_bytes_become_byte_tokens(void)
{
    struct tokenizer *tokenizer = load(TEST_OFFICIAL_TOKENIZER);
    struct tok_ids ids = {0};
    tok_encode(tokenizer, "\xff\xc3", 2, TOK_SPECIAL_PARSE, &ids);
    test_eq_u64(ids.count, 2);
    test_eq_u64(ids.at[0], 238 + 0xff);
    test_eq_u64(ids.at[1], 238 + 0xc3);
    tok_ids_fini(&ids);
    tok_destroy(tokenizer);
}

/* The textbook algorithm over the merges as the file lists them. */
struct naive {
    struct tokenizer *tokenizer;
    struct json_t *file;
    const struct json_t *merges;
};

static uint32_t naive_find(const struct naive *naive, const char *text, size_t byte_count)
{
    char entry[512];
    test_true(byte_count < sizeof(entry));
    memcpy(entry, text, byte_count);
    entry[byte_count] = '\0';
    return tok_find(naive->tokenizer, entry);
}

struct naive_symbol {
    char text[256]; /* as the vocabulary spells it */
};

static size_t naive_start(const struct naive *naive, const char *text, size_t byte_count,
                          struct naive_symbol *symbols)
{
    size_t count = 0;
    for (size_t at = 0; at < byte_count;) {
        uint32_t code_point = 0;
        size_t one = utf8_decode(text + at, byte_count - at, &code_point);
        test_true(one > 0);
        const char *spelled = text[at] == ' ' ? "\u2581" : text + at;
        size_t spelled_bytes = text[at] == ' ' ? 3 : one;
        if (naive_find(naive, spelled, spelled_bytes) != TOK_NONE) {
            memcpy(symbols[count].text, spelled, spelled_bytes);
            symbols[count++].text[spelled_bytes] = '\0';
        } else {
            for (size_t i = 0; i < spelled_bytes; i++) {
                (void)snprintf(symbols[count++].text, sizeof(symbols[0].text), "<0x%02X>",
                               (unsigned char)spelled[i]); /* fits */
            }
        }
        at += one;
    }
    return count;
}

/* Rank of a pair by looking through all merges. */
static size_t naive_rank(const struct naive *naive, const char *left, const char *right)
{
    for (size_t rank = 0; rank < json_count(naive->merges); rank++) {
        const struct json_t *merge = json_element(naive->merges, rank);
        if (strcmp(text_of(json_element(merge, 0)), left) == 0 &&
            strcmp(text_of(json_element(merge, 1)), right) == 0) {
            return rank;
        }
    }
    return SIZE_MAX;
}

static size_t naive_merge(const struct naive *naive, struct naive_symbol *symbols, size_t count)
{
    for (;;) {
        size_t best = SIZE_MAX;
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            size_t rank = naive_rank(naive, symbols[i].text, symbols[i + 1].text);
            if (rank < best) {
                best = rank;
                best_at = i;
            }
        }
        if (best == SIZE_MAX) {
            return count;
        }
        size_t left_bytes = strlen(symbols[best_at].text);
        size_t right_bytes = strlen(symbols[best_at + 1].text);
        test_true(left_bytes + right_bytes < sizeof(symbols[0].text));
        memmove(symbols[best_at].text + left_bytes, symbols[best_at + 1].text, right_bytes + 1);
        memmove(&symbols[best_at + 1], &symbols[best_at + 2],
                (count - best_at - 2) * sizeof(*symbols));
        count--;
    }
}

/* Text that merges much, some of it longer than the border between both ways of merging. */
static void test_merging_equals_naive(void)
{
    struct naive naive = {.tokenizer = load(TEST_DEMO_MODEL_DIR "/tokenizer.json"),
                          .file = load_json(TEST_DEMO_MODEL_DIR, "tokenizer.json")};
    naive.merges = json_member(json_member(naive.file, "model"), "merges");
    struct naive_symbol *symbols = mem_zalloc(4096, sizeof(*symbols));
    uint64_t state = 21;
    for (int round = 0; round < 45; round++) {
        struct buf text;
        buf_init(&text);
        if (round % 3 == 0) {
            random_text(&state, 1 + test_random(&state) % 20, &text);
        }
        size_t letter_count = test_random(&state) % (round % 3 == 1 ? 160 : 40);
        for (size_t i = 0; i < letter_count; i++) {
            buf_append_char(&text, "etaoinshr"[test_random(&state) % 9]);
        }
        struct tok_ids ids = {0};
        tok_encode(naive.tokenizer, buf_text(&text), text.used_bytes, TOK_SPECIAL_AS_TEXT, &ids);
        size_t count = naive_start(&naive, buf_text(&text), text.used_bytes, symbols);
        count = naive_merge(&naive, symbols, count);
        test_eq_u64(ids.count, count);
        for (size_t i = 0; i < count; i++) {
            test_eq_u64(ids.at[i], tok_find(naive.tokenizer, symbols[i].text));
        }
        tok_ids_fini(&ids);
        buf_fini(&text);
    }
    mem_free(symbols);
    json_release(naive.file);
    tok_destroy(naive.tokenizer);
}

/* Long segments go through the queue, short ones do not: where the merges join nothing across a
 * border of words, both must give the same. */
static void test_runs_of_one_character(void)
{
    struct tokenizer *tokenizer = load(TEST_OFFICIAL_TOKENIZER);
    static const char *const units[] = {"a", "\n", " ", "=", "\t", "\u4e00", "ab", "\U0001f600"};
    for (size_t unit = 0; unit < sizeof(units) / sizeof(units[0]); unit++) {
        struct buf text;
        buf_init(&text);
        for (int i = 0; i < 100000; i++) {
            buf_append_text(&text, units[unit]);
        }
        struct tok_ids ids = {0};
        struct buf back;
        buf_init(&back);
        tok_encode(tokenizer, text.at, text.used_bytes, TOK_SPECIAL_AS_TEXT, &ids);
        decode(tokenizer, &ids, &back);
        test_eq_u64(back.used_bytes, text.used_bytes);
        test_true(memcmp(back.at, text.at, text.used_bytes) == 0);
        tok_ids_fini(&ids);
        buf_fini(&back);
        buf_fini(&text);
    }
    tok_destroy(tokenizer);
}

static const struct test_case cases[] = {
    TEST(test_official_cases),
    TEST(test_official_vocabulary),
    TEST(test_demo_prompts),
    TEST(test_round_trip),
    TEST(test_malformed_bytes_become_byte_tokens),
    TEST(test_merging_equals_naive),
    TEST(test_runs_of_one_character),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
