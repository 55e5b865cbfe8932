#include "common/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/testlib/test.h"

enum {
    SEGMENT_BYTES = 3 * 4096
};

static const char *segment_name(char out[64])
{
    (void)snprintf(out, 64, "/bezel-shm-test-%d", (int)getpid());
    return out;
}

static void test_two_mappings_share_bytes(void)
{
    char name[64];
    struct err err;
    struct shm_segment made = {0};
    struct shm_segment seen = {0};
    test_ok(shm_create(&made, segment_name(name), SEGMENT_BYTES, &err), &err);
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    struct stat info;
    test_true(fd >= 0 && fstat(fd, &info) == 0);
    test_eq_u64(info.st_mode & 0777, 0600);
    test_eq_u64((uint64_t)info.st_blocks * 512, SEGMENT_BYTES); /* reserved, not sparse */
    (void)close(fd);
    unsigned char *bytes = made.at;
    for (size_t i = 0; i < SEGMENT_BYTES; i++) {
        test_true(bytes[i] == 0);
    }
    test_ok(shm_open_existing(&seen, name, SEGMENT_BYTES, &err), &err);
    bytes[SEGMENT_BYTES - 1] = 7;
    test_eq_u64(((unsigned char *)seen.at)[SEGMENT_BYTES - 1], 7);

    shm_unlink_name(&seen);
    shm_unlink_name(&seen);
    bytes[0] = 9; /* mappings live on */
    test_eq_u64(((unsigned char *)seen.at)[0], 9);
    struct shm_segment again;
    test_true(shm_open_existing(&again, name, SEGMENT_BYTES, &err) == ERR_SYSTEM);
    test_eq_u64((uint64_t)err.errno_value, ENOENT);
    shm_close(&seen);
    shm_close(&made);
    shm_close(&made);
    test_true(made.at == NULL);
}

static void test_close_removes_the_name(void)
{
    char name[64];
    struct err err;
    struct shm_segment segment;
    test_ok(shm_create(&segment, segment_name(name), SEGMENT_BYTES, &err), &err);
    shm_close(&segment);
    test_true(shm_unlink(name) != 0 && errno == ENOENT);
}

static void test_creation_is_exclusive(void)
{
    char name[64];
    char want[128];
    struct err err;
    struct shm_segment first;
    struct shm_segment second;
    test_ok(shm_create(&first, segment_name(name), SEGMENT_BYTES, &err), &err);
    test_true(shm_create(&second, name, SEGMENT_BYTES, &err) == ERR_SYSTEM);
    (void)snprintf(want, sizeof(want), "creating shared memory '%s': File exists", name);
    test_eq_str(err.message, want);
    test_true(shm_open_existing(&second, name, (size_t)SEGMENT_BYTES * 2, &err) == ERR_PROTOCOL);
    (void)snprintf(want, sizeof(want), "shared memory '%s' has 12288 bytes, expected 24576", name);
    test_eq_str(err.message, want);
    shm_close(&first);
}

static void test_full_filesystem_is_an_error_here(void)
{
    char name[64];
    struct err err;
    struct shm_segment segment;
    size_t too_many_bytes = (size_t)1 << 45;
    test_true(shm_create(&segment, segment_name(name), too_many_bytes, &err) == ERR_SYSTEM);
    test_true(err.errno_value == ENOSPC || err.errno_value == EFBIG);
    test_true(shm_unlink(name) != 0 && errno == ENOENT);
}

static void test_bad_names_are_refused(void)
{
    struct err err;
    struct shm_segment segment;
    char longest[80];
    memset(longest, 'x', sizeof(longest));
    longest[0] = '/';
    longest[64] = '\0';
    test_true(shm_create(&segment, longest, 4096, &err) == ERR_ARGUMENT);
    test_true(shm_create(&segment, "bezel", 4096, &err) == ERR_ARGUMENT);
    test_true(shm_create(&segment, "/bezel", 0, &err) == ERR_ARGUMENT);
}

static const struct test_case cases[] = {
    TEST(test_two_mappings_share_bytes), TEST(test_close_removes_the_name),
    TEST(test_creation_is_exclusive),    TEST(test_full_filesystem_is_an_error_here),
    TEST(test_bad_names_are_refused),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
