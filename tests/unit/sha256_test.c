/* SHA-256 against the examples of FIPS 180-4. */
#include <string.h>

#include "common/mem.h"
#include "common/sha256.h"
#include "tests/testlib/test.h"

static void check(const char *bytes, size_t byte_count, const char *want)
{
    char hex[SHA256_HEX_BYTES];
    struct err err;
    test_ok(sha256_hex(bytes, byte_count, hex, &err), &err);
    test_eq_str(hex, want);
}

static void test_published_digests(void)
{
    check("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check(two_blocks, strlen(two_blocks),
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_a_million_bytes(void)
{
    size_t byte_count = 1000000;
    char *bytes = mem_zalloc(byte_count, 1);
    memset(bytes, 'a', byte_count);
    check(bytes, byte_count, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    mem_free(bytes);
}

static const struct test_case cases[] = {
    TEST(test_published_digests),
    TEST(test_a_million_bytes),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
