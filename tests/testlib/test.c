#include "tests/testlib/test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"

enum {
    SKIPPED = 2,
    FAILED = 1
};

static jmp_buf end_of_test;
static bool times_count;
static char checkpoints_dir[1024]; /* empty until it is known */

void test_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "%s:%d: ", file, line);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    longjmp(end_of_test, FAILED);
}

void test_skip(const char *reason)
{
    (void)fprintf(stderr, "skipped: %s\n", reason);
    longjmp(end_of_test, SKIPPED);
}

void test_check_eq_u64(const char *file, int line, const char *what, uint64_t got, uint64_t want)
{
    if (got != want) {
        test_fail(file, line, "%s is %llu, want %llu", what, (unsigned long long)got,
                  (unsigned long long)want);
    }
}

void test_check_eq_str(const char *file, int line, const char *what, const char *got,
                       const char *want)
{
    if (got == NULL || strcmp(got, want) != 0) {
        test_fail(file, line, "%s is '%s', want '%s'", what, got == NULL ? "(null)" : got, want);
    }
}

void test_check_ok(const char *file, int line, const char *what, int code, const struct err *err)
{
    if (code != ERR_OK) {
        test_fail(file, line, "%s: %s: %s", what, err_code_text((enum err_code)code), err->message);
    }
}

/* gcc defines macros, clang answers a question. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED true
#elif defined(__has_feature)
#define IS_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define IS_SANITIZED false
#endif

bool test_times_count(void)
{
    return times_count;
}

uint64_t test_patience(uint64_t time)
{
    return times_count ? time : 10 * time;
}

bool test_is_sanitized(void)
{
    return IS_SANITIZED;
}

uint64_t test_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ULL;
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
}

const char *test_golden_dir(void)
{
    /* A build that was copied to another machine runs in the root of the sources there. */
    return access(TEST_GOLDEN_DIR, R_OK) == 0 ? TEST_GOLDEN_DIR : "tests/golden";
}

const char *test_checkpoints_dir(void)
{
    if (checkpoints_dir[0] == '\0') {
        (void)snprintf(checkpoints_dir, sizeof(checkpoints_dir), "%s/checkpoints",
                       test_golden_dir());
    }
    return checkpoints_dir;
}

/* The part of a name that is left, "" where there is none. */
static const char *read_arguments(int argc, char **argv)
{
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--times") == 0) {
            times_count = true;
        } else if (strcmp(argv[at], "--checkpoints") == 0 && at + 1 < argc) {
            (void)snprintf(checkpoints_dir, sizeof(checkpoints_dir), "%s", argv[++at]);
        } else {
            (void)fprintf(stderr, "%s: %s is no option, or lacks a value\n", argv[0], argv[at]);
            exit(EXIT_FAILURE);
        }
    }
    return at < argc ? argv[at] : "";
}

int test_main(int argc, char **argv, const struct test_case *cases, size_t case_count)
{
    const char *filter = read_arguments(argc, argv);
    volatile unsigned passed = 0;
    volatile unsigned failed = 0;
    volatile unsigned skipped = 0;
    for (volatile size_t i = 0; i < case_count; i++) {
        if (strstr(cases[i].name, filter) == NULL) {
            continue;
        }
        switch (setjmp(end_of_test)) {
        case 0:
            cases[i].run();
            passed++;
            break;
        case SKIPPED:
            skipped++;
            (void)printf("SKIP %s\n", cases[i].name);
            break;
        default: /* foreign */ failed++; (void)printf("FAIL %s\n", cases[i].name);
        }
    }
    (void)printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    if (failed > 0 || passed + skipped == 0) {
        return EXIT_FAILURE;
    }
    return passed == 0 ? 77 : EXIT_SUCCESS;
}
