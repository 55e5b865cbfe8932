/* Test tables: a test file lists its functions, test_main runs them and prints the closing line.
 *
 * Exit 0 all passed, 1 some failed, 77 all skipped.  A check that fails ends its test at once. */
#ifndef TESTS_TESTLIB_TEST_H
#define TESTS_TESTLIB_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef NDEBUG
#error "tests need assert: build without NDEBUG"
#endif

struct test_case {
    const char *name;
    void (*run)(void);
};

#define TEST(function)      \
    {                       \
#function, function \
    }

/* Runs each case; prints the closing line.  Arguments: [--times] [--checkpoints FOLDER] [PART OF A
 * NAME], the latter for only those cases. */
int test_main(int argc, char **argv, const struct test_case *cases, size_t case_count);

/* Ends the running test as failed or skipped; does not return. */
_Noreturn void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *reason);

/* An expression, not a statement: lists of checks stay flat for the complexity check. */
#define test_true(cond) ((cond) ? (void)0 : test_fail(__FILE__, __LINE__, "%s is false", #cond))

#define test_eq_u64(got, want) test_check_eq_u64(__FILE__, __LINE__, #got, (got), (want))
#define test_eq_str(got, want) test_check_eq_str(__FILE__, __LINE__, #got, (got), (want))
/* An enum err_code with its struct err: prints the message where it is not ERR_OK. */
#define test_ok(call, err_at) test_check_ok(__FILE__, __LINE__, #call, (call), (err_at))

struct err;
void test_check_eq_u64(const char *file, int line, const char *what, uint64_t got, uint64_t want);
void test_check_eq_str(const char *file, int line, const char *what, const char *got,
                       const char *want);
void test_check_ok(const char *file, int line, const char *what, int code, const struct err *err);

/* True when the program was started with --times: then limits on time hold too.  For a quiet machine and
 * a release build; elsewhere how long something takes says nothing. */
bool test_times_count(void);

/* How long to wait at most for what should take this time, in any unit: as long with --times, else ten
 * times that, for busy machines and sanitizer builds. */
uint64_t test_patience(uint64_t time);

/* True in a sanitizer build, where code runs many times slower: tests of endurance do less. */
bool test_is_sanitized(void);

/* Seeded numbers for property tests: splitmix64. */
uint64_t test_random(uint64_t *state);

/* Directory of golden data: the tests/golden folder of the sources that were built, or where those are
 * not, of the working directory. */
const char *test_golden_dir(void);

/* Folder of the checkpoints with references: the golden ones, or what --checkpoints names, as
 * tests/tools/make_checkpoints.py writes it. */
const char *test_checkpoints_dir(void);

#endif
