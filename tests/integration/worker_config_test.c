/* Configurations that cannot work: one line naming value and limit, exit 2; and those that may work
 * later: exit 1. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

enum {
    DEADLINE_MS = 20000,
    EXIT_LATER = 1,
    EXIT_NEVER = 2,
};

static void expect_end(const struct worker_process_options *options, int code, const char *text)
{
    struct worker_process process;
    worker_process_start_with(&process, options);
    test_eq_u64((uint64_t)worker_process_wait(&process, DEADLINE_MS), (uint64_t)code);
    char line[1024];
    worker_process_last_line(&process, line, sizeof(line));
    if (strstr(line, text) == NULL) {
        test_fail(__FILE__, __LINE__, "'%s', want '%s'", line, text);
    }
    worker_process_forget(&process);
}

static void test_bad_options_are_named(void)
{
    static const struct {
        const char *args[3];
        const char *text;
    } bad[] = {
        {{"--no-such-option"}, "no-such-option"},
        {{"--max-slots", "none"}, "none"},
        {{"--max-slots", "1025"}, "1025"},
        {{"--max-step-tokens", "lots"}, "lots"},
        {{"--page-tokens", "48"}, "--page-tokens 48: want a power of two"},
        {{"--ring-records", "1000"}, "--ring-records 1000: want a power of two"},
        {{"--device", "tpu"}, "--device 'tpu': want auto, cpu or cuda:N"},
        {{"--device", "cuda:999"}, "device cuda:999: "}, /* no such device, or no such backend */
        {{"--inject", "nowhere:1"}, "inject 'nowhere:1': no such stage"},
        {{"--max-context-tokens", "1000000"},
         "--max-context-tokens 1000000: the model has at most"},
        {{"--kv-memory-mb", "1"}, "1 MB for both page pools, one sequence of"},
        {{"--log-level", "loud"}, "loud"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct worker_process_options options = {.args = bad[i].args};
        expect_end(&options, EXIT_NEVER, bad[i].text);
    }
    static const char *const both[] = {"--record", "/tmp/a", "--replay", "/tmp/b", NULL};
    const struct worker_process_options options = {.args = both};
    expect_end(&options, EXIT_NEVER, "--record '/tmp/a' with --replay '/tmp/b'");
}

static void test_a_second_worker_is_refused(void)
{
    static const char *const no_args[] = {NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, NULL);
    char text[64];
    (void)snprintf(text, sizeof(text), "is in use by worker process %d", rig.process.pid);
    struct worker_process second;
    const struct worker_process_options options = {.args = no_args, .run_dir = rig.process.run_dir};
    worker_process_start_with(&second, &options);
    test_eq_u64((uint64_t)worker_process_wait(&second, DEADLINE_MS), EXIT_LATER);
    test_true(worker_process_logged(&second, text));
    test_eq_u64(worker_process_log_lines(&second), 1);
    (void)remove(second.log_path);     /* the run directory is not its own */
    worker_client_attach(&rig.client); /* the first is not disturbed */
    worker_rig_close(&rig);
}

static void test_run_directories_that_cannot_be_used(void)
{
    static const char *const no_args[] = {NULL};
    char dir[] = "/tmp/bezel-test-XXXXXX";
    test_true(mkdtemp(dir) != NULL);
    test_true(chmod(dir, 0755) == 0);
    struct worker_process_options options = {.args = no_args, .run_dir = dir};
    expect_end(&options, EXIT_NEVER, "has mode 0755, want 0700"); /* removes it */

    char file[] = "/tmp/bezel-test-XXXXXX";
    int fd = mkstemp(file);
    test_true(fd >= 0);
    (void)close(fd);
    options.run_dir = file;
    expect_end(&options, EXIT_NEVER, "is not a directory");

    options.run_dir = "/tmp/bezel-test-none/below/it";
    expect_end(&options, EXIT_LATER, "cannot be created: No such file or directory");
}

static void test_a_full_shared_memory_is_an_attach_error(void)
{
    static const char *const args[] = {NULL};
    char first[512] = "";
    struct worker_rig rig;
    const struct worker_process_options options = {.args = args, .max_file_bytes = 256 << 10};
    worker_process_start_with(&rig.process, &options);
    worker_client_open(&rig.client, rig.process.run_dir);
    for (uint64_t nonce = 1; nonce <= 3; nonce++) {
        struct hello_fault fault = {0};
        test_true(!worker_client_try_attach(&rig.client, nonce, &fault));
        test_eq_u64(fault.code, ERR_SYSTEM);
        test_true(strstr(fault.text.at, "bytes of shared memory in /dev/shm: ") != NULL);
        if (nonce == 1) {
            (void)snprintf(first, sizeof(first), "%s", fault.text.at);
        }
        test_eq_str(fault.text.at, first); /* a frontend logs each new text, and tries for ever */
        test_eq_u64(worker_client_stats(&rig.client).sessions, 0);
    }
    worker_rig_close(&rig); /* nothing is left behind */
}

static void test_a_stop_while_loading_is_obeyed(void)
{
    static const char *const args[] = {NULL};
    struct worker_process process;
    worker_process_start(&process, args);
    struct worker_client client;
    worker_client_open_early(&client, process.run_dir); /* the control socket answers */
    worker_client_close(&client);
    worker_process_stop(&process);
}

static void test_help_fits_a_screen(void)
{
    static const char *const args[] = {"--help", NULL};
    struct worker_process process;
    worker_process_start(&process, args);
    test_eq_u64((uint64_t)worker_process_wait(&process, DEADLINE_MS), 0);
    test_true(worker_process_logged(&process, "usage: bezel-worker [options] MODEL_DIR"));
    test_true(worker_process_logged(&process, "--session-timeout-ms MS"));
    test_true(!worker_process_logged(&process, "inject"));
    test_true(worker_process_log_lines(&process) <= 40);
    worker_process_forget(&process);
}

static const struct test_case cases[] = {
    TEST(test_bad_options_are_named),
    TEST(test_a_second_worker_is_refused),
    TEST(test_run_directories_that_cannot_be_used),
    TEST(test_a_full_shared_memory_is_an_attach_error),
    TEST(test_a_stop_while_loading_is_obeyed),
    TEST(test_help_fits_a_screen),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
