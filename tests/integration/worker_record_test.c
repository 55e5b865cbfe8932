/* --record and --replay: the recorded stream, run again without a frontend, gives the same tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/testlib/test.h"
#include "tests/testlib/worker_rig.h"

enum {
    SEQUENCES = 6,
    TOKENS = 40
};

static void record(const char *path, uint64_t *out_digest, uint32_t *out_steps)
{
    const char *const args[] = {"--record", path, NULL};
    struct worker_rig rig;
    worker_rig_open(&rig, args);
    *out_digest = 0;
    *out_steps = 0;
    for (uint32_t session = 0; session < 2; session++) {
        worker_client_attach(&rig.client);
        struct drive_sequence *sequences = worker_rig_sequences(SEQUENCES, TOKENS);
        struct drive drive;
        drive_init(&drive, &rig.client);
        drive.next_seq_id = session * 100 + 1;
        drive_run(&drive, sequences, SEQUENCES);
        *out_digest += drive.digest;
        *out_steps += drive.steps_done;
        free(sequences);
        worker_client_detach(&rig.client);
    }
    worker_rig_close(&rig);
}

static void test_replay_gives_the_recorded_tokens(void)
{
    char path[] = "/tmp/bezel-record-XXXXXX";
    test_true(mkstemp(path) >= 0);
    uint64_t digest = 0;
    uint32_t steps = 0;
    record(path, &digest, &steps);
    for (uint32_t depth = 1; depth <= 2; depth++) {
        const char *const args[] = {"--pipeline-depth", depth == 1 ? "1" : "2", "--replay", path,
                                    NULL};
        struct worker_process process;
        worker_process_start(&process, args);
        test_eq_u64((uint64_t)worker_process_wait(&process, 60000), 0);
        test_eq_u64(worker_process_logged_u64(&process, "sessions", 10), 2);
        test_eq_u64(worker_process_logged_u64(&process, "steps", 10), steps);
        test_eq_u64(worker_process_logged_u64(&process, "tokens", 10), 2ULL * SEQUENCES * TOKENS);
        test_eq_u64(worker_process_logged_u64(&process, "refused", 10), 0);
        test_eq_u64(worker_process_logged_u64(&process, "digest", 16), digest);
        worker_process_forget(&process);
    }
    (void)remove(path);
}

static void expect_refused(const char *path, int code, const char *text)
{
    const char *const args[] = {"--replay", path, NULL};
    struct worker_process process;
    worker_process_start(&process, args);
    test_eq_u64((uint64_t)worker_process_wait(&process, 60000), (uint64_t)code);
    if (!worker_process_logged(&process, text)) {
        test_fail(__FILE__, __LINE__, "'%s' is not in the log", text);
    }
    worker_process_forget(&process);
}

static void write_file(const char *path, const char *bytes, size_t byte_count)
{
    FILE *file = fopen(path, "wb");
    test_true(file != NULL);
    test_true(fwrite(bytes, 1, byte_count, file) == byte_count && fclose(file) == 0);
}

static void test_bad_records_are_refused(void)
{
    char path[] = "/tmp/bezel-record-XXXXXX";
    test_true(mkstemp(path) >= 0);
    expect_refused("/nonexistent/record", 1, "No such file");
    write_file(path, "something else\n", 15);
    expect_refused(path, 2, "is no plan record of version 1");
    static const char foreign[] = "bezel-record 1 table_hash=0000000000000001 vocab_tokens=2048 "
                                  "page_tokens=64 max_step_tokens=512 model=m\n";
    write_file(path, foreign, sizeof(foreign) - 1);
    expect_refused(path, 1, "has message tables 0000000000000001, this worker ");
    char cut[256];
    int length = snprintf(cut, sizeof(cut),
                          "bezel-record 1 table_hash=%016llx vocab_tokens=2048 page_tokens=64 "
                          "max_step_tokens=512 model=m\n1234",
                          (unsigned long long)hello_table_hash());
    write_file(path, cut, (size_t)length);
    expect_refused(path, 2, "");
    (void)remove(path);
}

static const struct test_case cases[] = {
    TEST(test_replay_gives_the_recorded_tokens),
    TEST(test_bad_records_are_refused),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
