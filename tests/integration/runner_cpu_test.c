/* The cpu runner over the demo model: what its seam promises. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/runner_driver.h"
#include "tests/testlib/test.h"

#define OUTPUT 24

/* Demo model, its prompts, and a driver. */
struct rig {
    char path[1024];
    struct driver_options options;
    struct golden_prompts prompts;
    struct driver *driver;
    struct inject inject;
};

static void rig_open(struct rig *rig)
{
    (void)snprintf(rig->path, sizeof(rig->path), "%s/../../deploy/demo-model", test_golden_dir());
    driver_options_default(&rig->options, rig->path);
    golden_prompts_load(&rig->prompts);
}

static struct rig *rig_create(const char *inject)
{
    struct err err = {0};
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_open(rig);
    test_ok(inject_parse(&rig->inject, inject, &err), &err);
    rig->options.inject = &rig->inject;
    rig->driver = driver_create(&rig->options);
    return rig;
}

static void rig_destroy(struct rig *rig)
{
    driver_destroy(rig->driver);
    golden_prompts_fini(&rig->prompts);
    mem_free(rig);
}

static struct plan_admit admit_of(const struct rig *rig, uint32_t prompt)
{
    const struct golden_prompt *at = &rig->prompts.at[prompt];
    return driver_admit_greedy(at->prompt_ids, at->prompt_count, at->prompt_count + OUTPUT);
}

/* ---- rows of one step against rows alone ---- */

enum {
    SEQUENCES = 4
};

/* Tokens and logprobs of one sequence. */
struct output {
    uint32_t tokens[OUTPUT];
    struct runner_logprob logprobs[OUTPUT];
    uint32_t count;
};

static bool is_same_logprob(const struct runner_logprob *a, const struct runner_logprob *b)
{
    bool is_same = a->token == b->token && a->logprob == b->logprob && a->rank == b->rank &&
                   a->pair_count == b->pair_count;
    for (uint32_t i = 0; is_same && i < a->pair_count; i++) {
        is_same = a->ids[i] == b->ids[i] && a->logprobs[i] == b->logprobs[i];
    }
    return is_same;
}

static bool is_same_output(const struct output *a, const struct output *b)
{
    bool is_same = a->count == b->count;
    for (uint32_t i = 0; is_same && i < a->count; i++) {
        is_same = a->tokens[i] == b->tokens[i] && is_same_logprob(&a->logprobs[i], &b->logprobs[i]);
    }
    return is_same;
}

static struct plan_admit varied_admit(const struct rig *rig, uint32_t sequence)
{
    struct plan_admit admit = admit_of(rig, 3 * sequence);
    admit.seed = 1000 + sequence;
    admit.temperature = sequence % 2 == 0 ? 0.0F : 1.2F;
    admit.top_k = sequence == 3 ? 20 : 0;
    admit.repetition_penalty = sequence == 1 ? 1.3F : 1.0F;
    admit.frequency_penalty = sequence == 2 ? 0.5F : 0.0F;
    admit.logprobs = 4;
    return admit;
}

static void take(struct output *output, const struct runner_pick *pick)
{
    if (pick->outcome == RUNNER_OUTCOME_TOKEN || pick->outcome == RUNNER_OUTCOME_LENGTH) {
        test_true(pick->logprob != NULL && output->count < OUTPUT);
        output->tokens[output->count] = pick->token;
        output->logprobs[output->count++] = *pick->logprob;
    }
}

static uint32_t prompt_left(const struct driver *driver, uint32_t slot)
{
    const struct driver_slot *state = &driver->slots[slot];
    return state->frontier < state->prompt_count ? state->prompt_count - state->frontier : 0;
}

static void run_alone(struct rig *rig, uint32_t sequence, struct output *output)
{
    struct plan_admit admit = varied_admit(rig, sequence);
    driver_open(rig->driver, 0, &admit);
    while (output->count < OUTPUT) {
        struct driver_row row = {.slot = 0, .count = prompt_left(rig->driver, 0)};
        struct runner_result result = driver_step(rig->driver, &row, 1);
        take(output, &result.picks[0]);
    }
    driver_release(rig->driver, 0);
}

/* Random rows in random order: segments of any length beside decode rows. */
static void test_mixed_steps_give_what_each_gives_alone(void)
{
    struct rig *rig = rig_create(NULL);
    struct output *alone = mem_zalloc(SEQUENCES, sizeof(*alone));
    struct output *mixed = mem_zalloc(SEQUENCES, sizeof(*mixed));
    uint64_t random = 5;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        run_alone(rig, s, &alone[s]);
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct plan_admit admit = varied_admit(rig, s);
        driver_open(rig->driver, s, &admit);
    }
    uint32_t finished = 0;
    while (finished < SEQUENCES) {
        struct driver_row rows[SEQUENCES];
        uint32_t row_count = 0;
        uint32_t first = (uint32_t)(test_random(&random) % SEQUENCES);
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint32_t slot = (first + i) % SEQUENCES;
            uint32_t left = prompt_left(rig->driver, slot);
            uint32_t count = left == 0 ? 0 : 1 + (uint32_t)(test_random(&random) % left);
            if (mixed[slot].count < OUTPUT && test_random(&random) % 3 != 0) {
                rows[row_count++] = (struct driver_row){.slot = slot, .count = count};
            }
        }
        if (row_count == 0) {
            continue;
        }
        struct runner_result result = driver_step(rig->driver, rows, row_count);
        for (uint32_t i = 0; i < row_count; i++) {
            take(&mixed[rows[i].slot], &result.picks[i]);
            finished += result.picks[i].outcome == RUNNER_OUTCOME_LENGTH ? 1 : 0;
        }
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        test_true(is_same_output(&mixed[s], &alone[s]));
    }
    mem_free(mixed);
    mem_free(alone);
    rig_destroy(rig);
}

/* Step k + 1 is launched before step k is read. */
static void test_run_ahead_gives_the_same_tokens(void)
{
    struct rig *rig = rig_create(NULL);
    struct plan_admit admit = varied_admit(rig, 1);
    struct output *alone = mem_zalloc(1, sizeof(*alone));
    struct output *ahead = mem_zalloc(1, sizeof(*ahead));
    struct runner_result result;
    run_alone(rig, 1, alone);
    driver_open(rig->driver, 0, &admit);
    struct driver_row first = {.slot = 0, .count = admit.prompt.count};
    struct driver_row decode = {.slot = 0};
    driver_launch(rig->driver, &first, 1);
    for (uint32_t i = 0; i + 1 < OUTPUT; i++) {
        /* What core does: the launched frontier is ahead of the answers. */
        rig->driver->slots[0].frontier += i == 0 ? first.count : 1;
        driver_launch(rig->driver, &decode, 1);
        rig->driver->slots[0].frontier -= i == 0 ? first.count : 1;
        driver_collect(rig->driver, i == 0 ? &first : &decode, 1, &result);
        take(ahead, &result.picks[0]);
    }
    driver_collect(rig->driver, &decode, 1, &result);
    take(ahead, &result.picks[0]);
    test_true(is_same_output(ahead, alone));
    mem_free(ahead);
    mem_free(alone);
    rig_destroy(rig);
}

static void test_prompt_logprobs_do_not_depend_on_segments(void)
{
    struct rig *rig = rig_create(NULL);
    struct plan_admit admit = admit_of(rig, 0);
    uint32_t count = admit.prompt.count;
    struct runner_logprob *whole = mem_zalloc(count, sizeof(*whole));
    admit.prompt_logprobs = 3;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = count, .prompt_logprobs = true};
    struct runner_result result = driver_step(rig->driver, &row, 1);
    test_true(result.picks[0].logprob == NULL); /* not asked for */
    memcpy(whole, result.picks[0].prompt_logprobs, count * sizeof(*whole));
    driver_release(rig->driver, 0);
    for (uint32_t t = 0; t + 1 < count; t++) {
        test_eq_u64(whole[t].token, admit.prompt.at[t + 1]);
        test_eq_u64(whole[t].pair_count, 2);
        test_true(whole[t].logprob <= 0.0F && whole[t].logprobs[0] >= whole[t].logprob);
    }
    test_eq_u64(whole[count - 1].token, UINT32_MAX);
    driver_open(rig->driver, 1, &admit);
    for (uint32_t done = 0; done < count; done += row.count) {
        row = (struct driver_row){.slot = 1, .count = 5, .prompt_logprobs = true};
        row.count = count - done < 5 ? count - done : 5;
        result = driver_step(rig->driver, &row, 1);
        test_true(
            memcmp(result.picks[0].prompt_logprobs, whole + done, row.count * sizeof(*whole)) == 0);
    }
    mem_free(whole);
    rig_destroy(rig);
}

/* ---- how rows end ---- */

static void test_stop_id_masks_rows_launched_after_it(void)
{
    struct rig *rig = rig_create(NULL);
    const struct golden_prompt *prompt = &rig->prompts.at[0];
    struct plan_admit admit = admit_of(rig, 0);
    uint32_t stop = prompt->output_ids[1];
    admit.stop_ids = (struct wire_u32_array){.at = &stop, .count = 1};
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = prompt->prompt_count};
    struct runner_result result = driver_step(rig->driver, &row, 1);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_TOKEN);
    row.count = 0;
    driver_launch(rig->driver, &row, 1);
    driver_launch(rig->driver, &row, 1);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_STOP);
    test_eq_u64(result.picks[0].token, stop);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_MASKED);
    rig_destroy(rig);
}

static void test_slot_stop_masks_until_the_slot_is_opened_again(void)
{
    struct rig *rig = rig_create("delay-step-10ms:1");
    struct runner *runner = rig->driver->runner;
    struct plan_admit admit = admit_of(rig, 1);
    struct plan_admit next = admit_of(rig, 0);
    struct runner_result result;
    driver_open(rig->driver, 0, &admit);
    driver_open(rig->driver, 1, &admit);
    struct driver_row other = {.slot = 1, .count = admit.prompt.count};
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    driver_launch(rig->driver, &other, 1); /* 10 ms in front of the row */
    driver_launch(rig->driver, &row, 1);
    runner->table->slot_stop(runner, 0);
    /* The slot goes to another sequence while a row of the first is still to run. */
    driver_release(rig->driver, 0);
    driver_collect(rig->driver, &other, 1, &result);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_TOKEN);
    driver_open(rig->driver, 0, &next);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_MASKED);
    uint32_t tokens[OUTPUT];
    uint32_t count = driver_generate(rig->driver, 0, &next, 256, tokens, 3);
    test_eq_u64(count, 3);
    test_true(memcmp(tokens, rig->prompts.at[0].output_ids, sizeof(tokens[0]) * 3) == 0);
    rig_destroy(rig);
}

static void test_constrained_rows_wait_for_their_mask(void)
{
    struct rig *rig = rig_create(NULL);
    struct plan_admit admit = admit_of(rig, 0);
    uint32_t mask[2048 / 32] = {0};
    admit.constrained = true;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    struct runner_result result = driver_step(rig->driver, &row, 1);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_HELD);
    mask[77 / 32] = 1U << (77 % 32);
    row.mask = mask;
    result = driver_step(rig->driver, &row, 1);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_TOKEN);
    test_eq_u64(result.picks[0].token, 77);
    row = (struct driver_row){.slot = 0};
    result = driver_step(rig->driver, &row, 1);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_HELD);
    mask[77 / 32] = 0;
    row.mask = mask;
    result = driver_step(rig->driver, &row, 1);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_BAD); /* nothing is allowed */
    result = driver_step(rig->driver, &row, 1);
    test_eq_u64(result.picks[0].outcome, RUNNER_OUTCOME_MASKED);
    rig_destroy(rig);
}

/* A request admitted again with its output so far goes on as if nothing had happened. */
static void test_readmission_continues_the_same_text(void)
{
    struct rig *rig = rig_create(NULL);
    struct output *whole = mem_zalloc(1, sizeof(*whole));
    uint32_t tokens[OUTPUT];
    for (uint32_t sequence = 0; sequence < SEQUENCES; sequence++) {
        enum {
            KEPT = 9
        };
        struct plan_admit admit = varied_admit(rig, sequence);
        uint32_t count = admit.prompt.count;
        uint32_t *context = mem_zalloc(count + KEPT, sizeof(*context));
        *whole = (struct output){0};
        run_alone(rig, sequence, whole);
        memcpy(context, admit.prompt.at, count * sizeof(*context));
        memcpy(context + count, whole->tokens, KEPT * sizeof(*context));
        admit.prompt = (struct wire_u32_array){.at = context, .count = count + KEPT};
        admit.logprobs = 0;
        test_eq_u64(driver_generate(rig->driver, 2, &admit, 64, tokens, OUTPUT), OUTPUT - KEPT);
        test_true(memcmp(tokens, whole->tokens + KEPT, (OUTPUT - KEPT) * sizeof(*tokens)) == 0);
        mem_free(context);
    }
    mem_free(whole);
    rig_destroy(rig);
}

/* ---- failures ---- */

/* Step `failing` fails and so does the one launched after it; both are launched again. */
static void check_failure(const char *inject, const uint32_t *expected)
{
    struct rig *rig = rig_create(inject);
    struct plan_admit admit = admit_of(rig, 0);
    struct runner_result result;
    uint32_t tokens[8];
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    result = driver_step(rig->driver, &row, 1);
    tokens[0] = result.picks[0].token;
    struct driver_row decode = {.slot = 0};
    for (uint32_t i = 1; i < 8;) {
        driver_launch(rig->driver, &decode, 1);
        driver_launch(rig->driver, &decode, 1);
        driver_collect(rig->driver, &decode, 1, &result);
        bool has_failed = result.status != ERR_OK;
        if (has_failed) {
            test_eq_u64(result.status, ERR_STEP);
            test_true(strstr(result.error.message, "injected") != NULL);
        } else {
            tokens[i++] = result.picks[0].token;
        }
        driver_collect(rig->driver, &decode, 1, &result);
        test_eq_u64(result.status, has_failed ? ERR_STEP : ERR_OK);
        if (!has_failed && i < 8) {
            tokens[i++] = result.picks[0].token;
        }
    }
    test_true(memcmp(tokens, expected, sizeof(tokens)) == 0);
    rig_destroy(rig);
}

static void test_failed_steps_move_nothing(void)
{
    struct rig *rig = rig_create(NULL);
    struct plan_admit admit = admit_of(rig, 0);
    uint32_t expected[8];
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 256, expected, 8), 8);
    rig_destroy(rig);
    check_failure("forward:4", expected);
    check_failure("sample:2", expected);
}

/* The pages of a failed prompt step stay granted: the step that runs it again sends no patch. */
static void test_patches_of_a_failed_step_hold(void)
{
    struct rig *rig = rig_create("forward:1");
    struct plan_admit admit = admit_of(rig, 0);
    struct runner_result result;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    driver_launch(rig->driver, &row, 1);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.status, ERR_STEP);
    result = driver_step(rig->driver, &row, 1);
    test_eq_u64(rig->driver->patch_count, 0);
    test_eq_u64(result.picks[0].token, rig->prompts.at[0].output_ids[0]);
    rig_destroy(rig);
}

static void test_a_lost_device_stays_lost(void)
{
    struct err err = {0};
    struct rig *rig = rig_create("device-lost:2");
    struct runner *runner = rig->driver->runner;
    struct plan_admit admit = admit_of(rig, 0);
    struct runner_result result;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    (void)driver_step(rig->driver, &row, 1);
    row.count = 0;
    driver_launch(rig->driver, &row, 1);
    driver_collect(rig->driver, &row, 1, &result);
    test_eq_u64(result.status, ERR_DEVICE);
    struct runner_step step = {0};
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_DEVICE);
    rig_destroy(rig);
}

static void *wake_runner(void *context)
{
    struct runner *runner = context;
    runner->table->wake(runner);
    return NULL;
}

static void test_a_frozen_step_is_waited_for_no_longer_than_asked(void)
{
    struct rig *rig = rig_create("freeze:1");
    struct runner *runner = rig->driver->runner;
    struct plan_admit admit = admit_of(rig, 0);
    pthread_t waker;
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    driver_launch(rig->driver, &row, 1);
    test_true(!runner->table->wait(runner, clock_now_ns() + 5 * CLOCK_NS_PER_MS));
    test_true(!runner->table->is_done(runner));
    /* A wake ends a wait that would last an hour. */
    test_eq_u64((uint64_t)pthread_create(&waker, NULL, wake_runner, runner), 0);
    test_true(!runner->table->wait(runner, clock_now_ns() + 3600 * CLOCK_NS_PER_SEC));
    (void)pthread_join(waker, NULL);
    rig_destroy(rig); /* ends the frozen step */
}

static void test_a_delayed_step_takes_its_time(void)
{
    struct rig *rig = rig_create("delay-step-10ms:1");
    struct plan_admit admit = admit_of(rig, 0);
    driver_open(rig->driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = admit.prompt.count};
    struct runner_result result = driver_step(rig->driver, &row, 1);
    test_true(result.device_ns >= 10 * CLOCK_NS_PER_MS);
    rig_destroy(rig);
}

static void test_steps_outside_the_limits_are_refused(void)
{
    struct err err = {0};
    struct rig *rig = rig_create(NULL);
    struct runner *runner = rig->driver->runner;
    uint32_t token = 2048;
    struct runner_row row = {.slot = 0, .count = 1, .tokens = &token};
    struct runner_step step = {.rows = &row, .row_count = 1};
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: token id 2048, the vocabulary has 2048");
    token = 1;
    row.start = 2048;
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: tokens 2048 + 1, the context ends at 2048");
    row.start = 0;
    row.slot = 4;
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    test_eq_str(err.message, "row 0: slot 4 of 4");
    row.slot = 0;
    struct runner_patch patch = {.physical_page = 1U << 20};
    step.patches = &patch;
    step.patch_count = 1;
    test_eq_u64(runner->table->launch(runner, &step, &err), ERR_STEP);
    struct plan_admit admit = admit_of(rig, 0);
    admit.stop_ids = (struct wire_u32_array){.at = &token, .count = 1};
    token = 5000;
    test_eq_u64(runner->table->slot_open(runner, 0, &admit, &err), ERR_ARGUMENT);
    test_eq_str(err.message, "stop_ids: token id 5000, the vocabulary has 2048");
    rig_destroy(rig);
}

/* ---- long runs ---- */

static void test_long_output_in_a_local_pool_of_two_windows(void)
{
    enum {
        TOKENS = 3000
    };
    struct rig *rig = mem_zalloc(1, sizeof(*rig));
    rig_open(rig);
    uint32_t *wide = mem_zalloc(TOKENS, sizeof(*wide));
    uint32_t *narrow = mem_zalloc(TOKENS, sizeof(*narrow));
    struct golden_prompt *prompt = &rig->prompts.at[0];
    struct plan_admit admit = driver_admit_greedy(prompt->prompt_ids, prompt->prompt_count,
                                                  prompt->prompt_count + TOKENS);
    admit.temperature = 1.0F; /* greedy text of so small a model falls into a loop */
    admit.seed = 3;
    rig->options.max_context_tokens = 4096;
    rig->options.max_step_tokens = 64;
    rig->driver = driver_create(&rig->options);
    uint32_t window = rig->driver->runner->limits.window_tokens;
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, wide, TOKENS), TOKENS);
    driver_destroy(rig->driver);
    rig->options.pages[RUNNER_FAMILY_LOCAL] = 2 * window / rig->options.page_tokens;
    rig->options.slots = 1;
    rig->driver = driver_create(&rig->options);
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, narrow, TOKENS), TOKENS);
    test_true(rig->driver->slots[0].most_resident[RUNNER_FAMILY_LOCAL] <=
              window / rig->options.page_tokens + 1);
    test_true(memcmp(wide, narrow, TOKENS * sizeof(*wide)) == 0);
    mem_free(narrow);
    mem_free(wide);
    rig_destroy(rig);
}

static const struct test_case cases[] = {
    TEST(test_mixed_steps_give_what_each_gives_alone),
    TEST(test_run_ahead_gives_the_same_tokens),
    TEST(test_prompt_logprobs_do_not_depend_on_segments),
    TEST(test_stop_id_masks_rows_launched_after_it),
    TEST(test_slot_stop_masks_until_the_slot_is_opened_again),
    TEST(test_constrained_rows_wait_for_their_mask),
    TEST(test_readmission_continues_the_same_text),
    TEST(test_failed_steps_move_nothing),
    TEST(test_patches_of_a_failed_step_hold),
    TEST(test_a_lost_device_stays_lost),
    TEST(test_a_frozen_step_is_waited_for_no_longer_than_asked),
    TEST(test_a_delayed_step_takes_its_time),
    TEST(test_steps_outside_the_limits_are_refused),
    TEST(test_long_output_in_a_local_pool_of_two_windows),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
