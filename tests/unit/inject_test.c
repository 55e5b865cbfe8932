#include "worker/inject.h"

#include <string.h>

#include "tests/testlib/test.h"

static void test_nothing_hits_by_default(void)
{
    struct inject inject;
    struct err err;
    test_ok(inject_parse(&inject, NULL, &err), &err);
    test_ok(inject_parse(&inject, "", &err), &err);
    for (int i = 0; i < 100; i++) {
        test_true(!inject_hits(&inject, INJECT_LAUNCH));
    }
}

static void test_the_nth_passage_hits(void)
{
    struct inject inject;
    struct err err;
    test_ok(inject_parse(&inject, "launch:3,reserve-local:1,commit:2+", &err), &err);
    const bool launch[] = {false, false, true, false, false};
    const bool commit[] = {false, true, true, true, true};
    for (int i = 0; i < 5; i++) {
        test_true(inject_hits(&inject, INJECT_LAUNCH) == launch[i]);
        test_true(inject_hits(&inject, INJECT_COMMIT) == commit[i]);
        test_true(inject_hits(&inject, INJECT_RESERVE_LOCAL) == (i == 0));
        test_true(!inject_hits(&inject, INJECT_RESERVE_GLOBAL));
    }
}

static void test_bad_texts_are_refused(void)
{
    static const char *const texts[] = {
        "launch",
        "launch:",
        "launch:0",
        "launch:x",
        "launch:-1",
        "launch:1x",
        "launch:1++",
        ":1",
        "nope:1",
        ",",
        "launch:1,",
        "launch:1,,stage:1",
        "launch:99999999999999999999",
        "launch: 1",
    };
    struct inject inject = {0};
    inject.at[INJECT_SAMPLE] = 5;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct err err;
        if (inject_parse(&inject, texts[i], &err) != ERR_ARGUMENT) {
            test_fail(__FILE__, __LINE__, "'%s' is taken", texts[i]);
        }
        test_true(strstr(err.message, "inject '") == err.message);
    }
    test_eq_u64(inject.at[INJECT_SAMPLE], 5);
}

static const struct test_case cases[] = {
    TEST(test_nothing_hits_by_default),
    TEST(test_the_nth_passage_hits),
    TEST(test_bad_texts_are_refused),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
