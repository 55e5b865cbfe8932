/* Stop strings: what comes out, wherever the text is cut into pieces. */
#include "frontend/stop.h"

#include <string.h>

#include "tests/testlib/test.h"

#define NO_MATCH 99

struct scenario {
    const char *strings[4]; /* null entries end the list */
    const char *text;
    const char *want; /* without the match */
    const char *want_included;
    uint32_t want_index; /* NO_MATCH: none */
};

static const struct scenario scenarios[] = {
    {{"END"}, "one END two", "one ", "one END", 0},
    {{"END"}, "one EN", "one EN", "one EN", NO_MATCH},
    {{"END"}, "EENEND", "EEN", "EENEND", 0},
    {{"END"}, "", "", "", NO_MATCH},
    {{"a"}, "a", "", "a", 0},
    {{"aab"}, "aaaab", "aa", "aaaab", 0},
    {{"\n\n"}, "x\n\n\n", "x", "x\n\n", 0},
    /* The match that ends first wins. */
    {{"abcd", "bc"}, "xabcdx", "xa", "xabc", 1},
    /* Of those that end together, the one that starts first. */
    {{"cd", "abcd"}, "xabcd", "x", "xabcd", 1},
    {{"abcd", "cd"}, "xabcd", "x", "xabcd", 0},
    {{"abab", "bb"}, "aabbabab", "aa", "aabb", 1},
    /* A candidate that fails leaves a shorter one inside it alive. */
    {{"abcx", "bcd"}, "abcd", "a", "abcd", 1},
    {{"aaaa", "aab"}, "aaab", "a", "aaab", 1},
    /* Whole characters of several bytes, and their parts in common. */
    {{"\u4f60\u597d"}, "say \u4f60\u4f60\u597d!", "say \u4f60", "say \u4f60\u4f60\u597d", 0},
    {{"\U0001f600"}, "\U0001f601\U0001f600", "\U0001f601", "\U0001f601\U0001f600", 0},
    {{"\u00e9"}, "\u00e8e\u0301", "\u00e8e\u0301", "\u00e8e\u0301", NO_MATCH},
};

static void add_all(struct stop *stop, const struct scenario *scenario)
{
    struct err err = {0};
    for (size_t i = 0; i < 4 && scenario->strings[i] != NULL; i++) {
        test_ok(stop_add(stop, scenario->strings[i], strlen(scenario->strings[i]), &err), &err);
    }
}

/* Pushes the text cut at each position whose bit is set; gives the index of the match. */
static uint32_t run(const struct scenario *scenario, bool include_match, uint64_t cuts,
                    struct buf *out)
{
    struct stop stop;
    stop_init(&stop, include_match);
    add_all(&stop, scenario);
    uint32_t index = NO_MATCH;
    size_t byte_count = strlen(scenario->text);
    size_t start = 0;
    bool has_matched = false;
    for (size_t i = 0; i <= byte_count && !has_matched; i++) {
        if (i == byte_count || ((cuts >> i) & 1) != 0) {
            has_matched = stop_push(&stop, scenario->text + start, i - start, out, &index);
            start = i;
        }
    }
    if (!has_matched) {
        stop_finish(&stop, out);
    }
    stop_fini(&stop);
    return index;
}

/* Every way to cut a short text, many of a longer one. */
static void test_any_pieces_equal_whole(void)
{
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        size_t byte_count = strlen(scenarios[i].text);
        size_t round_count = byte_count < 11 ? (size_t)1 << byte_count : 2000;
        for (size_t round = 0; round < round_count; round++) {
            uint64_t cuts = byte_count < 11 ? round : test_random(&state);
            for (int included = 0; included < 2; included++) {
                struct buf out;
                buf_init(&out);
                test_eq_u64(run(&scenarios[i], included == 1, cuts, &out), scenarios[i].want_index);
                test_eq_str(buf_text(&out),
                            included == 1 ? scenarios[i].want_included : scenarios[i].want);
                buf_fini(&out);
            }
        }
    }
}

/* The rule, straight from its words. */
static uint32_t whole_match(const char *text, size_t byte_count, const char *const strings[],
                            size_t string_count, size_t *out_start)
{
    for (size_t end = 1; end <= byte_count; end++) {
        uint32_t index = NO_MATCH;
        for (uint32_t i = 0; i < string_count; i++) {
            size_t length = strlen(strings[i]);
            if (length <= end && memcmp(text + end - length, strings[i], length) == 0 &&
                (index == NO_MATCH || end - length < *out_start)) {
                index = i;
                *out_start = end - length;
            }
        }
        if (index != NO_MATCH) {
            return index;
        }
    }
    *out_start = byte_count;
    return NO_MATCH;
}

static void test_random_text_of_two_letters(void)
{
    static const char *const strings[] = {"abba", "bab", "aaaa", "bbabb", "babba"};
    uint64_t state = 77;
    for (int round = 0; round < 20000; round++) {
        char text[33] = {0};
        size_t byte_count = 1 + test_random(&state) % 32;
        for (size_t i = 0; i < byte_count; i++) {
            text[i] = "ab"[test_random(&state) % 2];
        }
        struct scenario scenario = {.text = text};
        size_t string_count = 1 + test_random(&state) % 3;
        for (size_t i = 0; i < string_count; i++) {
            scenario.strings[i] = strings[(round + i) % 5];
        }
        size_t start = 0;
        uint32_t index = whole_match(text, byte_count, scenario.strings, string_count, &start);
        struct buf out;
        buf_init(&out);
        test_eq_u64(run(&scenario, false, test_random(&state), &out), index);
        test_eq_u64(out.used_bytes, start);
        test_true(memcmp(buf_text(&out), text, start) == 0);
        buf_fini(&out);
    }
}

/* Text that cannot be part of a match is not kept back. */
static void test_certain_text_comes_at_once(void)
{
    struct scenario scenario = {.strings = {"STOP"}};
    struct stop stop;
    stop_init(&stop, false);
    add_all(&stop, &scenario);
    struct buf out;
    buf_init(&out);
    uint32_t index = 0;
    test_true(!stop_push(&stop, "word", 4, &out, &index));
    test_eq_str(buf_text(&out), "word");
    test_true(!stop_push(&stop, " ST", 3, &out, &index));
    test_eq_str(buf_text(&out), "word ");
    test_true(!stop_push(&stop, "ART", 3, &out, &index));
    test_eq_str(buf_text(&out), "word START");
    buf_fini(&out);
    stop_fini(&stop);
}

static void test_limits(void)
{
    struct stop stop;
    struct err err = {0};
    static char long_text[STOP_MAX_BYTES + 1];
    memset(long_text, 'x', sizeof(long_text));
    stop_init(&stop, false);
    test_eq_u64(stop_add(&stop, "", 0, &err), ERR_ARGUMENT);
    test_eq_u64(stop_add(&stop, long_text, sizeof(long_text), &err), ERR_LIMIT);
    for (int i = 0; i < STOP_MAX_STRINGS; i++) {
        test_ok(stop_add(&stop, long_text, STOP_MAX_BYTES, &err), &err);
    }
    test_eq_u64(stop_add(&stop, "x", 1, &err), ERR_LIMIT);
    test_eq_str(err.message, "more than 16 stop strings");
    stop_fini(&stop);
}

static void test_no_strings_pass_everything(void)
{
    struct stop stop;
    struct buf out;
    uint32_t index = 0;
    stop_init(&stop, true);
    buf_init(&out);
    test_true(!stop_push(&stop, "text", 4, &out, &index));
    stop_finish(&stop, &out);
    test_eq_str(buf_text(&out), "text");
    buf_fini(&out);
    stop_fini(&stop);
}

static const struct test_case cases[] = {
    TEST(test_any_pieces_equal_whole),     TEST(test_random_text_of_two_letters),
    TEST(test_certain_text_comes_at_once), TEST(test_limits),
    TEST(test_no_strings_pass_everything),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
