/* Tokens per second of the cpu runner over the demo model: decode alone and at 16 streams with
 * run-ahead, and prompt tokens.  usage: cpu_runner_bench MODEL_DIR [THREADS] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "tests/testlib/runner_driver.h"
#include "tests/testlib/test.h"

#define PROMPT_TOKENS 256
#define DECODE_STEPS  256

/* Processor time of all threads, for machines that are busy otherwise. */
static double cpu_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* cannot fail for this clock */
    return (double)now.tv_sec + (double)now.tv_nsec / (double)CLOCK_NS_PER_SEC;
}

static double seconds_since(uint64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) / (double)CLOCK_NS_PER_SEC;
}

/* Prompts of all streams, each in one segment: prompt tokens per second. */
static double run_prompts(struct driver *driver, const uint32_t *prompt, uint32_t streams)
{
    uint64_t begin_ns = clock_now_ns();
    for (uint32_t s = 0; s < streams; s++) {
        struct plan_admit admit =
            driver_admit_greedy(prompt, PROMPT_TOKENS, PROMPT_TOKENS + 2 * DECODE_STEPS);
        driver_open(driver, s, &admit);
        struct driver_row row = {.slot = s, .count = PROMPT_TOKENS};
        (void)driver_step(driver, &row, 1);
    }
    return (double)streams * PROMPT_TOKENS / seconds_since(begin_ns);
}

/* One step in flight beside the one being read, as the executor does it. */
static double run_decode(struct driver *driver, uint32_t streams)
{
    struct driver_row rows[16];
    struct runner_result result;
    for (uint32_t s = 0; s < streams; s++) {
        rows[s] = (struct driver_row){.slot = s};
    }
    uint64_t begin_ns = clock_now_ns();
    driver_launch(driver, rows, streams);
    for (uint32_t step = 1; step < DECODE_STEPS; step++) {
        for (uint32_t s = 0; s < streams; s++) {
            driver->slots[s].frontier++;
        }
        driver_launch(driver, rows, streams);
        for (uint32_t s = 0; s < streams; s++) {
            driver->slots[s].frontier--;
        }
        driver_collect(driver, rows, streams, &result);
    }
    driver_collect(driver, rows, streams, &result);
    return (double)streams * DECODE_STEPS / seconds_since(begin_ns);
}

int main(int argc, char **argv)
{
    struct driver_options options;
    uint32_t prompt[PROMPT_TOKENS];
    static const uint32_t stream_counts[] = {1, 4, 16};
    if (argc < 2) {
        (void)fprintf(stderr, "usage: cpu_runner_bench MODEL_DIR [THREADS]\n");
        return 1;
    }
    driver_options_default(&options, argv[1]);
    options.threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2;
    options.slots = 16;
    options.max_step_tokens = PROMPT_TOKENS;
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++) {
        prompt[i] = 300 + i * 7 % 1500;
    }
    for (uint32_t i = 0; i < sizeof(stream_counts) / sizeof(stream_counts[0]); i++) {
        struct driver *driver = driver_create(&options);
        uint32_t streams = stream_counts[i];
        double prompt_rate = run_prompts(driver, prompt, streams);
        double cpu_begin = cpu_seconds();
        double decode_rate = run_decode(driver, streams);
        double cpu_us = 1e6 * (cpu_seconds() - cpu_begin) / (streams * DECODE_STEPS);
        printf("streams %u: decode %.0f tokens/s, %.3f ms per step, %.0f cpu us per token; "
               "prompt %.0f tokens/s\n",
               streams, decode_rate, 1e3 * streams / decode_rate, cpu_us, prompt_rate);
        driver_destroy(driver);
    }
    return 0;
}
