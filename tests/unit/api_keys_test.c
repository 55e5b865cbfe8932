/* The file of API keys: what it may hold, what is refused, and who is found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/api_keys.h"
#include "tests/testlib/test.h"

/* A file with that text; the name is good until the next call. */
static const char *file_with(const char *text, size_t byte_count)
{
    static char path[64];
    (void)snprintf(path, sizeof(path), "/tmp/api-keys-test-XXXXXX");
    int fd = mkstemp(path);
    test_true(fd >= 0);
    test_true(write(fd, text, byte_count) == (ssize_t)byte_count);
    test_true(close(fd) == 0);
    return path;
}

static enum err_code load(const char *text, struct api_keys **out_keys, struct err *err)
{
    const char *path = file_with(text, strlen(text));
    enum err_code code = api_keys_load(path, out_keys, err);
    test_true(unlink(path) == 0);
    return code;
}

static enum api_key_scope find(const struct api_keys *keys, const char *key)
{
    return api_keys_find(keys, key, strlen(key));
}

static void test_keys_are_found(void)
{
    struct api_keys *keys = NULL;
    struct err err;
    test_ok(load("# who may\n\n  first-key-1\t\r\nsecond-key \t admin \n#third-key\nlast=key/+",
                 &keys, &err),
            &err);
    test_eq_u64(api_keys_count(keys), 3);
    test_eq_u64(find(keys, "first-key-1"), API_KEY_USER);
    test_eq_u64(find(keys, "second-key"), API_KEY_ADMIN);
    test_eq_u64(find(keys, "last=key/+"), API_KEY_USER);
    static const char *const others[] = {
        "",           "first-key-",       "first-key-11", "First-key-1",
        "#third-key", "second-key admin", " first-key-1", "admin",
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        test_eq_u64(find(keys, others[i]), API_KEY_UNKNOWN);
    }
    test_eq_u64(api_keys_find(keys, "first-key-1\0", 12), API_KEY_UNKNOWN);
    api_keys_destroy(keys);
}

static const struct {
    const char *text;
    enum err_code code;
    const char *says; /* in the one line */
} refused[] = {
    {"", ERR_CONFIG, "holds no key"},
    {"# only words\n\n", ERR_CONFIG, "holds no key"},
    {"good-key-1\nshort\n", ERR_CONFIG, "line 2: a key of 5 characters, must be 8 to 512"},
    {"good-key-1\n\ngood-key-2 root\n", ERR_CONFIG, "line 3: only 'admin' may follow a key"},
    {"good-key-1 admin admin\n", ERR_CONFIG, "line 1: only 'admin' may follow a key"},
    {"good-key-1\ngood-key-2\ngood-key-1 admin\n", ERR_CONFIG, "line 3: the key stands"},
    {"k\303\244y-with-umlaut\n", ERR_CONFIG, "line 1: byte 0xc3 in a key"},
    {"key-with-\001-control\n", ERR_CONFIG, "line 1: byte 0x01 in a key"},
};

static void test_refused_files(void)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct api_keys *keys = NULL;
        struct err err;
        test_eq_u64(load(refused[i].text, &keys, &err), refused[i].code);
        if (!strstr(err.message, refused[i].says)) {
            test_fail(__FILE__, __LINE__, "'%s' does not say '%s'", err.message, refused[i].says);
        }
        test_true(strstr(err.message, "good-key") == NULL); /* never a key */
    }
}

static void test_sizes(void)
{
    struct api_keys *keys = NULL;
    struct err err;
    char text[520];
    memset(text, 'k', sizeof(text));
    text[512] = '\n';
    text[513] = '\0';
    test_ok(load(text, &keys, &err), &err);
    api_keys_destroy(keys);
    text[512] = 'k';
    text[513] = '\0';
    test_eq_u64(load(text, &keys, &err), ERR_CONFIG);
    static char big[(1 << 20) + 1];
    memset(big, '#', sizeof(big));
    const char *path = file_with(big, sizeof(big));
    test_eq_u64(api_keys_load(path, &keys, &err), ERR_LIMIT);
    test_true(unlink(path) == 0);
    test_eq_u64(api_keys_load(path, &keys, &err), ERR_NOT_FOUND);
    test_eq_u64(api_keys_load("/tmp", &keys, &err), ERR_CONFIG);
}

static const struct test_case cases[] = {
    TEST(test_keys_are_found),
    TEST(test_refused_files),
    TEST(test_sizes),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
