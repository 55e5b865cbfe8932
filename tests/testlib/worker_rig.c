#include "tests/testlib/worker_rig.h"

#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "tests/testlib/test.h"

void worker_rig_open(struct worker_rig *rig, const char *const *args)
{
    /* Instrumented builds on a busy machine take seconds for a step; tests that wait for one record
     * send nothing meanwhile. */
    static const char *const patient[] = {"--session-timeout-ms", "120000", "--watchdog-ms",
                                          "60000", NULL};
    worker_process_start(&rig->process, args == NULL ? patient : args);
    worker_client_open(&rig->client, rig->process.run_dir);
}

void worker_rig_close(struct worker_rig *rig)
{
    worker_client_close(&rig->client);
    worker_process_stop(&rig->process);
}

struct drive_sequence *worker_rig_sequences(uint32_t count, uint32_t output_tokens)
{
    struct drive_prompt *prompts = NULL;
    uint32_t prompt_count = drive_load_prompts(&prompts);
    struct drive_sequence *sequences = calloc(count, sizeof(*sequences));
    test_true(sequences != NULL);
    for (uint32_t i = 0; i < count; i++) {
        const struct drive_prompt *prompt = &prompts[i % prompt_count];
        drive_greedy(&sequences[i], prompt->ids, prompt->count, output_tokens);
        sequences[i].admit.ignore_eos = true;
    }
    free(prompts);
    return sequences;
}

void worker_rig_expect_same(const struct drive_sequence *got, const struct drive_sequence *want,
                            uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        test_eq_u64(got[i].token_count, want[i].token_count);
        for (uint32_t k = 0; k < want[i].token_count; k++) {
            if (got[i].tokens[k] != want[i].tokens[k]) {
                test_fail(__FILE__, __LINE__, "sequence %u, token %u: %u, want %u", i, k,
                          got[i].tokens[k], want[i].tokens[k]);
            }
        }
    }
}

void worker_rig_wait_stats(struct worker_client *client, worker_rig_stats_fn pred, uint64_t wanted,
                           uint32_t wait_ms)
{
    const struct timespec brief = {.tv_nsec = 2000000};
    uint64_t deadline_ns = clock_now_ns() + wait_ms * CLOCK_NS_PER_MS;
    for (;;) {
        struct hello_stats_answer stats = worker_client_stats(client);
        if (pred(&stats, wanted)) {
            return;
        }
        if (clock_now_ns() > deadline_ns) {
            struct buf text;
            buf_init(&text);
            const struct hello_message message = {.type = HELLO_STATS_ANSWER,
                                                  .as.stats_answer = stats};
            hello_dump(&message, &text);
            test_fail(__FILE__, __LINE__, "after %u ms, wanted %llu: %s", wait_ms,
                      (unsigned long long)wanted, buf_text(&text));
        }
        (void)nanosleep(&brief, NULL); /* between polls of a state that has no event */
    }
}
