#include "common/utf8.h"

#include <string.h>

#include "tests/testlib/test.h"

static void test_every_code_point_survives(void)
{
    for (uint32_t code_point = 0; code_point <= 0x10ffff; code_point++) {
        if (code_point >= 0xd800 && code_point <= 0xdfff) {
            continue;
        }
        char text[4];
        size_t byte_count = utf8_encode(code_point, text);
        uint32_t got = UINT32_MAX;
        test_eq_u64(utf8_decode(text, byte_count, &got), byte_count);
        test_eq_u64(got, code_point);
        test_true(utf8_is_valid(text, byte_count));
        for (size_t cut = 1; cut < byte_count; cut++) {
            test_eq_u64(utf8_decode(text, cut, &got), 0);
            test_eq_u64(utf8_complete_prefix(text, cut), 0);
        }
        test_eq_u64(utf8_complete_prefix(text, byte_count), byte_count);
    }
}

/* A second opinion, written from the definition: decode the value, then check its range. */
static bool is_valid_by_value(const unsigned char *text, size_t byte_count)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t at = 0; at < byte_count;) {
        size_t ones = 0;
        while (ones < 8 && (text[at] & (0x80u >> ones)) != 0) {
            ones++;
        }
        size_t sequence_bytes = ones == 0 ? 1 : ones;
        if (ones == 1 || ones > 4 || at + sequence_bytes > byte_count) {
            return false;
        }
        uint32_t value = ones == 0 ? text[at] : text[at] & (0xffu >> (ones + 1));
        for (size_t i = 1; i < sequence_bytes; i++) {
            if ((text[at + i] & 0xc0) != 0x80) {
                return false;
            }
            value = value << 6 | (text[at + i] & 0x3fu);
        }
        bool is_surrogate = value >= 0xd800 && value <= 0xdfff;
        if ((ones > 0 && value < least[ones]) || value > 0x10ffff || is_surrogate) {
            return false;
        }
        at += sequence_bytes;
    }
    return true;
}

static void test_random_bytes_agree_with_definition(void)
{
    static const unsigned char pieces[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f,
                                           0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0, 0xe1,
                                           0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    uint64_t seed = 20240611;
    unsigned valid_count = 0;
    for (int round = 0; round < 400000; round++) {
        unsigned char text[12];
        size_t byte_count = test_random(&seed) % (sizeof(text) + 1);
        for (size_t i = 0; i < byte_count; i++) {
            text[i] = pieces[test_random(&seed) % sizeof(pieces)];
        }
        bool want = is_valid_by_value(text, byte_count);
        valid_count += want;
        test_true(utf8_is_valid((const char *)text, byte_count) == want);
    }
    test_true(valid_count > 1000);
}

static void test_complete_prefix_holds_back_open_sequences_only(void)
{
    static const struct {
        const char *text;
        size_t want;
    } rows[] = {
        {"", 0},
        {"abc", 3},
        {"ab\xe2\x82", 2},
        {"ab\xe2\x82\xac", 5},
        {"ab\xf0\x9f\x98", 2},
        {"ab\xf0", 2},
        {"ab\xc3", 2},
        {"ab\x80\x80\x80", 5}, /* continuation bytes without a lead are complete */
        {"ab\xed\xa0", 4},     /* a surrogate can never be completed */
        {"ab\xe0\x80", 4},     /* nor an overlong form */
        {"ab\xf5", 3},         /* nor a value past U+10FFFF */
        {"\xc3\xc3", 1},       /* the first is malformed, the second open */
        {"\xf0\x9f\x98\x80\xf0", 4},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_eq_u64(utf8_complete_prefix(rows[i].text, strlen(rows[i].text)), rows[i].want);
    }
}

static const struct test_case cases[] = {
    TEST(test_every_code_point_survives),
    TEST(test_random_bytes_agree_with_definition),
    TEST(test_complete_prefix_holds_back_open_sequences_only),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
