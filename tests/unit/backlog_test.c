/* Retry-After from what was served and what waits. */
#include "frontend/backlog.h"

#include "tests/testlib/test.h"

#define MS 1000000ULL

/* Steps of 50 ms back to back for so long, each with prompt and output tokens. */
static uint64_t serve(struct backlog *backlog, uint64_t from_ns, uint32_t seconds,
                      uint32_t prompt_tokens, uint32_t output_tokens)
{
    for (uint32_t i = 0; i < seconds * 20; i++) {
        backlog_note_step(backlog, from_ns - 10 * MS, from_ns + 50 * MS, prompt_tokens,
                          output_tokens);
        from_ns += 50 * MS;
    }
    return from_ns;
}

static void test_nothing_measured_says_a_second(void)
{
    struct backlog backlog = {0};
    test_eq_u64(backlog_retry_s(&backlog, 1000000, 100), 1);
}

static void test_a_quarter_of_what_waits(void)
{
    struct backlog backlog = {0};
    /* 80 prompt and 10 output tokens per 50 ms: 2,000 units of work a second */
    (void)serve(&backlog, 1000 * MS, 20, 80, 10);
    backlog_note_output(&backlog, 100);
    /* 50 requests of 600 + 100: 40,000 units, 20 s; a quarter of them in 5 */
    uint32_t seconds = backlog_retry_s(&backlog, 50ULL * 600, 50);
    test_true(seconds == 5 || seconds == 6);
    test_eq_u64(backlog_retry_s(&backlog, 600, 1), 1);
    test_eq_u64(backlog_retry_s(&backlog, 100000000, 50), BACKLOG_MAX_RETRY_S);
}

static void test_idle_time_does_not_count(void)
{
    struct backlog backlog = {0};
    uint64_t now_ns = serve(&backlog, 1000 * MS, 10, 80, 10);
    (void)serve(&backlog, now_ns + 3600000 * MS, 10, 80, 10);
    backlog_note_output(&backlog, 100);
    uint32_t seconds = backlog_retry_s(&backlog, 50ULL * 600, 50);
    test_true(seconds == 5 || seconds == 6);
}

static void test_the_last_half_minute_counts(void)
{
    struct backlog backlog = {0};
    uint64_t now_ns = serve(&backlog, 1000 * MS, 300, 80, 10);
    (void)serve(&backlog, now_ns, 120, 8, 1); /* ten times slower by now */
    backlog_note_output(&backlog, 100);
    uint32_t seconds = backlog_retry_s(&backlog, 50ULL * 600, 50);
    test_true(seconds >= 30 && seconds <= 52);
}

static void test_output_follows_what_requests_have(void)
{
    struct backlog backlog = {0};
    for (uint32_t i = 0; i < 200; i++) {
        backlog_note_output(&backlog, i < 100 ? 10 : 500);
    }
    test_true(backlog.output_tokens > 490 && backlog.output_tokens <= 500);
}

static const struct test_case cases[] = {
    TEST(test_nothing_measured_says_a_second),    TEST(test_a_quarter_of_what_waits),
    TEST(test_idle_time_does_not_count),          TEST(test_the_last_half_minute_counts),
    TEST(test_output_follows_what_requests_have),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
