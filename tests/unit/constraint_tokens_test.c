#include <string.h>

#include "frontend/constraint_tokens.h"
#include "tests/testlib/test.h"

enum {
    VOCAB = 70,
    WORDS = 3
};

static bool has(const uint32_t *words, uint32_t token)
{
    return (words[token / 32] >> token % 32 & 1U) != 0;
}

static uint32_t count(const uint32_t *words, uint32_t word_count)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 32 * word_count; i++) {
        bits += has(words, i);
    }
    return bits;
}

static void test_allowed_ids_alone(void)
{
    const uint32_t allowed[] = {0, 31, 32, 69, 32};
    struct constraint_tokens tokens = {
        .allowed = allowed, .allowed_count = 5, .vocab_tokens = VOCAB};
    struct constraint *constraint = constraint_tokens_create(&tokens);
    uint32_t words[WORDS + 1];
    memset(words, 0xff, sizeof(words));
    constraint->fill(constraint, NULL, 0, words, WORDS + 1);
    test_eq_u64(count(words, WORDS + 1), 4);
    test_true(has(words, 0) && has(words, 31) && has(words, 32) && has(words, 69));
    constraint_release(constraint);
}

/* Rows 5 6 7, 6 8, and 9 alone. */
static struct constraint *create_rows(const uint32_t *allowed, uint32_t allowed_count)
{
    static const uint32_t ids[3][3] = {{5, 6, 7}, {6, 8}, {9}};
    static const uint32_t counts[3] = {3, 2, 1};
    struct tok_ids rows[3] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t at = 0; at < counts[i]; at++) {
            tok_ids_push(&rows[i], ids[i][at]);
        }
    }
    struct constraint_tokens tokens = {.allowed = allowed,
                                       .allowed_count = allowed_count,
                                       .rows = rows,
                                       .row_count = 3,
                                       .vocab_tokens = VOCAB};
    struct constraint *constraint = constraint_tokens_create(&tokens);
    for (uint32_t i = 0; i < 3; i++) {
        tok_ids_fini(&rows[i]);
    }
    return constraint;
}

static void test_rows_end_before_their_last_token(void)
{
    static const struct {
        uint32_t output[3];
        uint32_t output_count;
        uint32_t gone; /* beside 9; 0 none */
        uint32_t gone_too;
    } rows[] = {
        {{0}, 0, 0, 0},       {{5}, 1, 0, 0},       {{6}, 1, 8, 0},       {{5, 6}, 2, 7, 8},
        {{1, 5, 6}, 3, 7, 8}, {{5, 6, 1}, 3, 0, 0}, {{6, 5, 6}, 3, 7, 8}, {{5, 1, 6}, 3, 8, 0},
    };
    struct constraint *constraint = create_rows(NULL, 0);
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t words[WORDS];
        constraint->fill(constraint, rows[i].output, rows[i].output_count, words, WORDS);
        uint32_t gone = 1U + (rows[i].gone != 0) + (rows[i].gone_too != 0);
        test_eq_u64(count(words, WORDS), VOCAB - gone);
        test_true(!has(words, 9));
        test_true(rows[i].gone == 0 || !has(words, rows[i].gone));
        test_true(rows[i].gone_too == 0 || !has(words, rows[i].gone_too));
    }
    constraint_release(constraint);
}

static void test_rows_never_leave_nothing(void)
{
    const uint32_t allowed[] = {8};
    const uint32_t output[] = {6};
    struct constraint *constraint = create_rows(allowed, 1);
    uint32_t words[WORDS];
    constraint->fill(constraint, output, 1, words, WORDS);
    test_true(has(words, 8) && count(words, WORDS) == 1);
    constraint_release(constraint);
}

static const struct test_case cases[] = {
    TEST(test_allowed_ids_alone),
    TEST(test_rows_end_before_their_last_token),
    TEST(test_rows_never_leave_nothing),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
