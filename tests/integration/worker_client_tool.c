/* A client process for tests that stop or kill one: worker_client_tool RUN_DIR SEQUENCES TOKENS
 *
 * Attaches, runs SEQUENCES greedy sequences of TOKENS output tokens each (stop ids ignored), prints
 * "attached ATTACH_US", "running" after the first token, "done DIGEST" at the end.  Exit 0; 3 when
 * the worker closed the session. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_client.h"
#include "tests/testlib/worker_drive.h"

enum {
    EXIT_CLOSED = 3
};

static struct {
    const char *run_dir;
    uint32_t sequences;
    uint32_t tokens;
} job;

struct progress {
    uint32_t token_count;
};

static void say(const char *text)
{
    (void)puts(text);
    (void)fflush(stdout);
}

static void on_record(void *owner, const struct result_record *record)
{
    struct progress *progress = owner;
    if (record->kind == RESULT_TOKEN && progress->token_count++ == 0) {
        say("running");
    }
}

static void on_closed(void *owner)
{
    _exit(EXIT_CLOSED); /* what was said is flushed */
}

static void run_job(void)
{
    struct worker_client client;
    worker_client_open(&client, job.run_dir);
    uint64_t start_ns = clock_now_ns();
    worker_client_attach(&client);
    char line[64];
    (void)snprintf(line, sizeof(line), "attached %" PRIu64, (clock_now_ns() - start_ns) / 1000);
    say(line);
    struct drive_prompt *prompts = NULL;
    uint32_t prompt_count = drive_load_prompts(&prompts);
    struct drive_sequence *sequences = calloc(job.sequences, sizeof(*sequences));
    test_true(sequences != NULL);
    for (uint32_t i = 0; i < job.sequences; i++) {
        const struct drive_prompt *prompt = &prompts[i % prompt_count];
        drive_greedy(&sequences[i], prompt->ids, prompt->count, job.tokens);
        sequences[i].admit.ignore_eos = true;
    }
    struct progress progress = {0};
    struct drive drive;
    drive_init(&drive, &client);
    drive.on_record = on_record;
    drive.on_closed = on_closed;
    drive.owner = &progress;
    drive_run(&drive, sequences, job.sequences);
    (void)snprintf(line, sizeof(line), "done %016" PRIx64, drive.digest);
    say(line);
    free(sequences);
    free(prompts);
    worker_client_close(&client);
}

static const struct test_case cases[] = {
    TEST(run_job),
};

int main(int argc, char **argv)
{
    if (argc != 4) {
        (void)fprintf(stderr, "usage: worker_client_tool RUN_DIR SEQUENCES TOKENS\n");
        return EXIT_FAILURE;
    }
    job.run_dir = argv[1];
    job.sequences = (uint32_t)strtoul(argv[2], NULL, 10);
    job.tokens = (uint32_t)strtoul(argv[3], NULL, 10);
    return test_main(1, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
