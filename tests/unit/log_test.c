/* Log lines on a standard error that nobody reads for a while. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/log.h"
#include "tests/testlib/test.h"

enum {
    STUCK_S = 20, /* ends the program: a line that waits for its reader waits for ever */
    MORE_LINES = 9
};

/* Standard error is a pipe until restore. */
struct caught {
    int read_fd;
    int old_fd;
};

static void catch_log(struct caught *caught)
{
    int ends[2];
    caught->old_fd = dup(STDERR_FILENO);
    test_true(caught->old_fd >= 0 && pipe(ends) == 0);
    test_true(dup2(ends[1], STDERR_FILENO) >= 0);
    (void)close(ends[1]); /* standard error is the writer */
    caught->read_fd = ends[0];
}

static void restore(struct caught *caught)
{
    (void)dup2(caught->old_fd, STDERR_FILENO); /* back to what it was */
    (void)close(caught->old_fd);
    (void)close(caught->read_fd);
}

static void read_waiting(const struct caught *caught, struct buf *text)
{
    char bytes[4096];
    ssize_t got;
    (void)fcntl(caught->read_fd, F_SETFL, O_NONBLOCK); /* cannot fail for a pipe */
    while ((got = read(caught->read_fd, bytes, sizeof(bytes))) > 0) {
        buf_append(text, bytes, (size_t)got);
    }
}

static uint32_t count_of(const char *text, const char *what)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) {
        count++;
    }
    return count;
}

static void test_a_full_pipe_stops_nobody(void)
{
    struct caught caught;
    struct buf text;
    buf_init(&text);
    (void)alarm(STUCK_S);
    log_init("log_test", LOG_LEVEL_INFO);
    catch_log(&caught);
    uint32_t filler = (uint32_t)fcntl(caught.read_fd, F_GETPIPE_SZ) / 64; /* more than fit */
    for (uint32_t i = 0; i < filler; i++) {
        log_info("test", "filler", "a=%040u", i);
    }
    read_waiting(&caught, &text);
    uint32_t arrived = count_of(buf_text(&text), " filler ");
    buf_reset(&text);
    log_info("test", "after", "b=%d", 1);
    read_waiting(&caught, &text);
    restore(&caught);
    (void)alarm(0);
    test_true(arrived > 0 && arrived < filler);
    char lost[64];
    (void)snprintf(lost, sizeof(lost), "warn log_test log lines_lost count=%u\n", filler - arrived);
    const char *notice = strstr(buf_text(&text), lost);
    test_true(notice != NULL); /* ahead of the line that found room again */
    test_true(strstr(notice, "info log_test test after b=1\n") != NULL);
    test_eq_u64(count_of(buf_text(&text), "\n"), 2);
    buf_fini(&text);
}

static void test_lines_come_whole_and_in_order(void)
{
    struct caught caught;
    struct buf text;
    buf_init(&text);
    log_init("log_test", LOG_LEVEL_WARN);
    catch_log(&caught);
    log_info("test", "silent", "a=%d", 1);
    char long_value[2000];
    memset(long_value, 'x', sizeof(long_value) - 1);
    long_value[sizeof(long_value) - 1] = '\0';
    log_warn("test", "long", "v=%s", long_value);
    for (int i = 0; i < MORE_LINES; i++) {
        log_error("test", "next", "i=%d", i);
    }
    read_waiting(&caught, &text);
    restore(&caught);
    test_eq_u64(count_of(buf_text(&text), "silent"), 0);
    test_eq_u64(count_of(buf_text(&text), "\n"), 1 + MORE_LINES);
    test_true(strstr(buf_text(&text), "i=7\n") < strstr(buf_text(&text), "i=8\n"));
    buf_fini(&text);
}

static const struct test_case cases[] = {
    TEST(test_a_full_pipe_stops_nobody),
    TEST(test_lines_come_whole_and_in_order),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
