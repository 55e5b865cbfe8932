/* A real worker and a small client: attach, generate, cancel, release, what is refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/testlib/test.h"
#include "tests/testlib/worker_client.h"
#include "tests/testlib/worker_drive.h"
#include "tests/testlib/worker_process.h"

static const char *const no_args[] = {NULL};

static void test_reference_tokens_from_two_processes(void)
{
    struct worker_process process;
    struct worker_client client;
    worker_process_start(&process, no_args);
    worker_client_open(&client, process.run_dir);
    worker_client_attach(&client);
    struct drive_prompt *prompts = NULL;
    uint32_t count = drive_load_prompts(&prompts);
    struct drive_sequence *sequences = calloc(count, sizeof(*sequences));
    test_true(sequences != NULL);
    for (uint32_t i = 0; i < count; i++) {
        drive_greedy(&sequences[i], prompts[i].ids, prompts[i].count, prompts[i].output_count);
    }
    struct drive drive;
    drive_init(&drive, &client);
    drive_run(&drive, sequences, count);
    for (uint32_t i = 0; i < count; i++) {
        test_eq_u64(sequences[i].token_count, prompts[i].output_count);
        for (uint32_t k = 0; k < prompts[i].output_count; k++) {
            test_eq_u64(sequences[i].tokens[k], prompts[i].output[k]);
        }
    }
    test_eq_u64(drive.refused, 0);
    worker_client_expect_all_free(&client, 5000);
    free(sequences);
    free(prompts);
    worker_client_close(&client);
    worker_process_stop(&process);
}

static const struct test_case cases[] = {
    TEST(test_reference_tokens_from_two_processes),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
