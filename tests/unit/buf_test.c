#include <string.h>

#include "common/buf.h"
#include "tests/testlib/test.h"

static void test_append_grows_and_terminates(void)
{
    struct buf buf;
    buf_init(&buf);
    test_eq_str(buf_text(&buf), "");
    for (int i = 0; i < 1000; i++) {
        buf_printf(&buf, "%03d", i);
    }
    test_eq_u64(buf.used_bytes, 3000);
    test_eq_u64(strlen(buf_text(&buf)), 3000);
    test_true(memcmp(buf.at + 2997, "999", 3) == 0);
    buf_reset(&buf);
    test_eq_str(buf_text(&buf), "");
    buf_fini(&buf);
}

static void test_append_keeps_zero_bytes(void)
{
    struct buf buf;
    buf_init(&buf);
    buf_append(&buf, "a\0b", 3);
    buf_append_char(&buf, 'c');
    test_eq_u64(buf.used_bytes, 4);
    test_true(memcmp(buf.at, "a\0bc", 5) == 0);
    buf_fini(&buf);
}

static const struct test_case cases[] = {
    TEST(test_append_grows_and_terminates),
    TEST(test_append_keeps_zero_bytes),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
