/* The demo model through a backend's runner gives the reference's greedy tokens. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/runner_driver.h"
#include "tests/testlib/test.h"

#define MAX_OUTPUT 512
#define NEAR_TIE   0.25F /* one step of bf16 where logits are largest */

static struct driver *demo_driver(char *path, size_t path_bytes)
{
    struct driver_options options;
    (void)snprintf(path, path_bytes, "%s/../../deploy/demo-model", test_golden_dir());
    driver_options_default(&options, path);
    return driver_create(&options);
}

/* How much better than the second the best token is behind this context. */
static float margin_of(struct driver *driver, const struct golden_prompt *prompt, uint32_t kept)
{
    uint32_t count = prompt->prompt_count + kept;
    uint32_t *context = mem_zalloc(count, sizeof(*context));
    memcpy(context, prompt->prompt_ids, prompt->prompt_count * sizeof(*context));
    memcpy(context + prompt->prompt_count, prompt->output_ids, kept * sizeof(*context));
    struct plan_admit admit = driver_admit_greedy(context, count, count + 2);
    admit.logprobs = 3;
    driver_open(driver, 0, &admit);
    struct runner_result result = {0};
    for (uint32_t done = 0; done < count;) {
        struct driver_row row = {.slot = 0, .count = count - done < 256 ? count - done : 256};
        result = driver_step(driver, &row, 1);
        done += row.count;
    }
    test_true(result.picks != NULL && result.picks[0].logprob != NULL);
    const struct runner_logprob *record = result.picks[0].logprob;
    float margin = record->logprobs[0] - record->logprobs[1];
    driver_release(driver, 0);
    mem_free(context);
    return margin;
}

/* Where bits depend on shapes, a choice between equals in bf16 may fall either way. */
static bool is_near_tie(struct driver *driver, const struct golden_prompt *prompt, uint32_t kept)
{
    float margin = margin_of(driver, prompt, kept);
    printf("%s: margin %.4f\n", prompt->name, (double)margin);
    return !backend_under_test()->is_exact && margin <= NEAR_TIE;
}

/* chunk tokens of a prompt per step. */
static void check_prompts(uint32_t chunk)
{
    char path[1024];
    struct golden_prompts prompts;
    uint32_t tokens[MAX_OUTPUT];
    uint32_t different = 0;
    struct driver *driver = demo_driver(path, sizeof(path));
    golden_prompts_load(&prompts);
    test_true(prompts.count >= 16);
    for (uint32_t i = 0; i < prompts.count; i++) {
        const struct golden_prompt *prompt = &prompts.at[i];
        struct plan_admit admit = driver_admit_greedy(prompt->prompt_ids, prompt->prompt_count,
                                                      prompt->prompt_count + prompt->output_count);
        uint32_t count = driver_generate(driver, i % 4, &admit, chunk, tokens, MAX_OUTPUT);
        for (uint32_t t = 0; t < prompt->output_count; t++) {
            test_true(t < count);
            if (tokens[t] != prompt->output_ids[t]) {
                printf("%s: token %u is %u, reference %u\n", prompt->name, t, tokens[t],
                       prompt->output_ids[t]);
                different += is_near_tie(driver, prompt, t) ? 0 : 1;
                break;
            }
        }
    }
    test_eq_u64(different, 0);
    golden_prompts_fini(&prompts);
    driver_destroy(driver);
}

static void test_prompts_give_reference_tokens(void)
{
    check_prompts(256);
}

static void test_prompts_in_chunks_give_reference_tokens(void)
{
    check_prompts(13);
}

static const struct test_case cases[] = {
    TEST(test_prompts_give_reference_tokens),
    TEST(test_prompts_in_chunks_give_reference_tokens),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
