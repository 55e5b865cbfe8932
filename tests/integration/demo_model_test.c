/* The demo model through the cpu runner gives the reference's greedy tokens. */
#include <stdio.h>
#include <string.h>

#include "tests/testlib/golden.h"
#include "tests/testlib/runner_driver.h"
#include "tests/testlib/test.h"

#define MAX_OUTPUT 512

static struct driver *demo_driver(char *path, size_t path_bytes)
{
    struct driver_options options;
    (void)snprintf(path, path_bytes, "%s/../../deploy/demo-model", test_golden_dir());
    driver_options_default(&options, path);
    return driver_create(&options);
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
        test_eq_u64(count, prompt->output_count);
        for (uint32_t t = 0; t < count; t++) {
            if (tokens[t] != prompt->output_ids[t]) {
                printf("%s: token %u is %u, reference %u\n", prompt->name, t, tokens[t],
                       prompt->output_ids[t]);
                different++;
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
