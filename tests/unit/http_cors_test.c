/* Lists of origins: what they may hold, and whom they let ask. */
#include <string.h>

#include "frontend/http_cors.h"
#include "tests/testlib/test.h"

static const struct {
    const char *list;
    const char *refused; /* the entry that the error names; null: accepted */
} lists[] = {
    {"*", NULL},
    {"https://a.example", NULL},
    {"http://localhost:3000,https://a.example , app://x", NULL},
    {"https://a.example/", "https://a.example/"},
    {"https://a.example,b.example", "b.example"},
    {"https://a.example,https://b.example/path", "https://b.example/path"},
    {"://a.example", "://a.example"},
    {"https://", "https://"},
    {"**", "**"},
    {" , ", "names no origin"},
};

static void test_lists(void)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct err err;
        enum err_code code = http_cors_check(lists[i].list, &err);
        test_eq_u64(code, lists[i].refused ? ERR_ARGUMENT : ERR_OK);
        if (lists[i].refused && !strstr(err.message, lists[i].refused)) {
            test_fail(__FILE__, __LINE__, "'%s' does not name '%s'", err.message, lists[i].refused);
        }
    }
}

static bool allows(const char *list, const char *origin)
{
    return http_cors_allows(list, origin, strlen(origin));
}

static void test_origins(void)
{
    static const char list[] = "http://localhost:3000, https://a.example,https://b.example";
    test_true(allows(list, "http://localhost:3000"));
    test_true(allows(list, "https://a.example"));
    test_true(allows(list, "https://b.example"));
    test_true(allows("*", "https://c.example"));
    static const char *const others[] = {
        "http://localhost:300",
        "http://localhost:30000",
        "https://a.example,",
        "https://A.example",
        "https://a.example.c.example",
        "null",
        ",",
        "https://a.example,https://b.example",
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        test_true(!allows(list, others[i]));
    }
}

static const struct test_case cases[] = {
    TEST(test_lists),
    TEST(test_origins),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
