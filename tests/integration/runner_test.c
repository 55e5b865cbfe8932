/* A backend's runner over the demo model: rows mixed in any way give what each gives alone, and rows
 * end as they should.  Where bits depend on the shapes of a step, shapes are pinned, or answers may
 * part where noise decides. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/demo_rig.h"
#include "tests/testlib/test.h"

/* ---- rows of one step against rows alone ---- */

enum {
    SEQUENCES = 4
};

/* Tokens and logprobs of one sequence. */
struct output {
    uint32_t tokens[DEMO_OUTPUT];
    struct runner_logprob logprobs[DEMO_OUTPUT];
    uint32_t count;
};

static void check_same_output(const struct output *got, const struct output *want, uint32_t which)
{
    test_eq_u64(got->count, want->count);
    for (uint32_t i = 0; i < got->count; i++) {
        if (got->tokens[i] != want->tokens[i] ||
            !driver_is_same_logprob(&got->logprobs[i], &want->logprobs[i])) {
            test_fail(__FILE__, __LINE__,
                      "%s: sequence %u token %u is %u (logprob %a), want %u (logprob %a)",
                      backend_under_test()->name, which, i, got->tokens[i],
                      (double)got->logprobs[i].logprob, want->tokens[i],
                      (double)want->logprobs[i].logprob);
        }
    }
}

/* bf16 logits of this model are a quarter apart at most where they are largest. */
#define NOISE_MAX  1.0F
#define NOISE_MEAN 0.1F

/* The records stand for the same logits, computed in other shapes. */
static float logprob_apart(const struct runner_logprob *a, const struct runner_logprob *b)
{
    return a->token == b->token ? fabsf(a->logprob - b->logprob) : INFINITY;
}

static struct plan_admit varied_admit(const struct demo_rig *rig, uint32_t sequence)
{
    struct plan_admit admit = demo_admit(rig, 3 * sequence);
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
        test_true(pick->logprob != NULL && output->count < DEMO_OUTPUT);
        output->tokens[output->count] = pick->token;
        output->logprobs[output->count++] = *pick->logprob;
    }
}

static uint32_t prompt_left(const struct driver *driver, uint32_t slot)
{
    const struct driver_slot *state = &driver->slots[slot];
    return state->frontier < state->prompt_count ? state->prompt_count - state->frontier : 0;
}

static void run_alone(struct demo_rig *rig, uint32_t sequence, struct output *output)
{
    struct plan_admit admit = varied_admit(rig, sequence);
    driver_open(rig->driver, 0, &admit);
    while (output->count < DEMO_OUTPUT) {
        struct driver_row row = {.slot = 0, .count = prompt_left(rig->driver, 0)};
        struct runner_result result = driver_step(rig->driver, &row, 1);
        take(output, &result.picks[0]);
    }
    driver_release(rig->driver, 0);
}

/* Rows of a step, in random order: segments of any length beside decode rows.  With pinned shapes a
 * prompt runs alone. */
static uint32_t draw_rows(struct demo_rig *rig, const struct output *mixed, uint64_t *random,
                          struct driver_row *rows)
{
    uint32_t row_count = 0;
    uint32_t first = (uint32_t)(test_random(random) % SEQUENCES);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        uint32_t slot = (first + i) % SEQUENCES;
        uint32_t left = prompt_left(rig->driver, slot);
        uint32_t count = left == 0 ? 0 : 1 + (uint32_t)(test_random(random) % left);
        if (mixed[slot].count == DEMO_OUTPUT || test_random(random) % 3 == 0) {
            continue;
        }
        if (rig->options.is_pinned && left > 0) {
            rows[0] = (struct driver_row){.slot = slot, .count = left};
            return 1;
        }
        rows[row_count++] = (struct driver_row){.slot = slot, .count = count};
    }
    return row_count;
}

static void test_mixed_steps_give_what_each_gives_alone(void)
{
    struct demo_rig *rig = demo_rig_create_stopped();
    struct output *alone = mem_zalloc(SEQUENCES, sizeof(*alone));
    struct output *mixed = mem_zalloc(SEQUENCES, sizeof(*mixed));
    uint64_t random = 5;
    rig->options.is_pinned = !rig->options.backend->is_exact;
    demo_rig_start(rig);
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
        uint32_t row_count = draw_rows(rig, mixed, &random, rows);
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
        check_same_output(&mixed[s], &alone[s], s);
    }
    mem_free(mixed);
    mem_free(alone);
    demo_rig_destroy(rig);
}

/* Step k + 1 is launched before step k is read. */
static void test_run_ahead_gives_the_same_tokens(void)
{
    struct demo_rig *rig = demo_rig_create(NULL);
    struct plan_admit admit = varied_admit(rig, 1);
    struct output *alone = mem_zalloc(1, sizeof(*alone));
    struct output *ahead = mem_zalloc(1, sizeof(*ahead));
    struct runner_result result;
    run_alone(rig, 1, alone);
    driver_open(rig->driver, 0, &admit);
    struct driver_row first = {.slot = 0, .count = admit.prompt.count};
    struct driver_row decode = {.slot = 0};
    driver_launch(rig->driver, &first, 1);
    for (uint32_t i = 0; i + 1 < DEMO_OUTPUT; i++) {
        /* What core does: the launched frontier is ahead of the answers. */
        rig->driver->slots[0].frontier += i == 0 ? first.count : 1;
        driver_launch(rig->driver, &decode, 1);
        rig->driver->slots[0].frontier -= i == 0 ? first.count : 1;
        driver_collect(rig->driver, i == 0 ? &first : &decode, 1, &result);
        take(ahead, &result.picks[0]);
    }
    driver_collect(rig->driver, &decode, 1, &result);
    take(ahead, &result.picks[0]);
    check_same_output(ahead, alone, 1);
    mem_free(ahead);
    mem_free(alone);
    demo_rig_destroy(rig);
}

static void check_prompt_logprobs(const struct runner_logprob *got,
                                  const struct runner_logprob *want, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++) {
        bool is_same = driver_is_same_logprob(&got[t], &want[t]);
        bool is_near = got[t].token == UINT32_MAX || logprob_apart(&got[t], &want[t]) <= NOISE_MAX;
        if (backend_under_test()->is_exact ? !is_same : !is_near) {
            test_fail(__FILE__, __LINE__, "record %u: token %u logprob %f, want %u %f", t,
                      got[t].token, (double)got[t].logprob, want[t].token, (double)want[t].logprob);
        }
    }
}

static void test_prompt_logprobs_do_not_depend_on_segments(void)
{
    struct demo_rig *rig = demo_rig_create(NULL);
    struct plan_admit admit = demo_admit(rig, 0);
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
        check_prompt_logprobs(result.picks[0].prompt_logprobs, whole + done, row.count);
    }
    mem_free(whole);
    demo_rig_destroy(rig);
}

/* ---- how rows end ---- */

static void test_stop_id_masks_rows_launched_after_it(void)
{
    struct demo_rig *rig = demo_rig_create(NULL);
    const struct golden_prompt *prompt = &rig->prompts.at[0];
    struct plan_admit admit = demo_admit(rig, 0);
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
    demo_rig_destroy(rig);
}

static void test_slot_stop_masks_until_the_slot_is_opened_again(void)
{
    struct demo_rig *rig = demo_rig_create("delay-step-10ms:1");
    struct runner *runner = rig->driver->runner;
    struct plan_admit admit = demo_admit(rig, 1);
    struct plan_admit next = demo_admit(rig, 0);
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
    uint32_t tokens[DEMO_OUTPUT];
    uint32_t count = driver_generate(rig->driver, 0, &next, 256, tokens, 3);
    test_eq_u64(count, 3);
    test_true(memcmp(tokens, rig->prompts.at[0].output_ids, sizeof(tokens[0]) * 3) == 0);
    demo_rig_destroy(rig);
}

static void test_constrained_rows_wait_for_their_mask(void)
{
    struct demo_rig *rig = demo_rig_create(NULL);
    struct plan_admit admit = demo_admit(rig, 0);
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
    demo_rig_destroy(rig);
}

/* Keys and values computed again in one piece are those of single tokens but for noise: until a
 * greedy choice between near equals, or a draw, falls otherwise. */
static void check_continued(const struct output *got, const struct output *want, uint32_t kept,
                            bool is_greedy)
{
    float sum = 0.0F;
    uint32_t count = 0;
    for (; count < got->count && got->tokens[count] == want->tokens[kept + count]; count++) {
        float apart = logprob_apart(&got->logprobs[count], &want->logprobs[kept + count]);
        test_true(apart <= NOISE_MAX);
        sum += apart;
    }
    test_true(sum <= NOISE_MEAN * (float)(count == 0 ? 1 : count));
    if (count < got->count && is_greedy) {
        const struct runner_logprob *here = &got->logprobs[count];
        test_true(here->logprobs[0] - here->logprobs[1] <= NOISE_MAX);
    }
    test_true(!backend_under_test()->is_exact || count == got->count);
}

/* A request admitted again with its output so far goes on as if nothing had happened. */
static void test_readmission_continues_the_same_text(void)
{
    enum {
        KEPT = 9
    };
    struct demo_rig *rig = demo_rig_create(NULL);
    struct output *whole = mem_zalloc(1, sizeof(*whole));
    struct output *rest = mem_zalloc(1, sizeof(*rest));
    for (uint32_t sequence = 0; sequence < SEQUENCES; sequence++) {
        struct plan_admit admit = varied_admit(rig, sequence);
        uint32_t count = admit.prompt.count;
        uint32_t *context = mem_zalloc(count + KEPT, sizeof(*context));
        *whole = (struct output){0};
        *rest = (struct output){0};
        run_alone(rig, sequence, whole);
        memcpy(context, admit.prompt.at, count * sizeof(*context));
        memcpy(context + count, whole->tokens, KEPT * sizeof(*context));
        admit.prompt = (struct wire_u32_array){.at = context, .count = count + KEPT};
        driver_open(rig->driver, 2, &admit);
        while (rest->count < DEMO_OUTPUT - KEPT) {
            uint32_t left = prompt_left(rig->driver, 2);
            struct driver_row row = {.slot = 2, .count = left < 64 ? left : 64};
            struct runner_result result = driver_step(rig->driver, &row, 1);
            take(rest, &result.picks[0]);
        }
        driver_release(rig->driver, 2);
        check_continued(rest, whole, KEPT, admit.temperature == 0.0F);
        mem_free(context);
    }
    mem_free(rest);
    mem_free(whole);
    demo_rig_destroy(rig);
}

/* A presence penalty that nothing overcomes: no output token twice, whether the runner saw it picked
 * or got it back in a prompt.  A repetition penalty like it keeps out the prompt's tokens too. */
static void test_penalties_see_prompt_and_output(void)
{
    enum {
        KEPT = 9
    };
    struct demo_rig *rig = demo_rig_create(NULL);
    struct plan_admit admit = demo_admit(rig, 0);
    uint32_t count = admit.prompt.count;
    uint32_t context[256];
    bool seen[2048] = {0};
    test_true(count + DEMO_OUTPUT <= sizeof(context) / sizeof(context[0]));
    memcpy(context, admit.prompt.at, count * sizeof(context[0]));
    admit.presence_penalty = 100.0F;
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, context + count, KEPT), KEPT);
    admit.prompt = (struct wire_u32_array){.at = context, .count = count + KEPT};
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, context + count + KEPT, DEMO_OUTPUT),
                DEMO_OUTPUT - KEPT);
    for (uint32_t i = 0; i < DEMO_OUTPUT; i++) {
        test_true(!seen[context[count + i]]);
        seen[context[count + i]] = true;
    }
    admit = demo_admit(rig, 0);
    admit.repetition_penalty = 1e9F;
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, context + count, 3), 3);
    for (uint32_t i = 0; i < 3 * count; i++) {
        test_true(context[count + i / count] != context[i % count]);
    }
    demo_rig_destroy(rig);
}

static void test_long_output_in_a_local_pool_of_two_windows(void)
{
    enum {
        TOKENS = 3000
    };
    struct demo_rig *rig = demo_rig_create_stopped();
    uint32_t *wide = mem_zalloc(TOKENS, sizeof(*wide));
    uint32_t *narrow = mem_zalloc(TOKENS, sizeof(*narrow));
    struct golden_prompt *prompt = &rig->prompts.at[0];
    struct plan_admit admit = driver_admit_greedy(prompt->prompt_ids, prompt->prompt_count,
                                                  prompt->prompt_count + TOKENS);
    admit.temperature = 1.0F; /* greedy text of so small a model falls into a loop */
    admit.seed = 3;
    rig->options.max_context_tokens = 4096;
    rig->options.max_step_tokens = 64;
    demo_rig_start(rig);
    uint32_t window = rig->driver->runner->limits.window_tokens;
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, wide, TOKENS), TOKENS);
    driver_destroy(rig->driver);
    rig->options.pages[RUNNER_FAMILY_LOCAL] = 2 * window / rig->options.page_tokens;
    rig->options.slots = 1;
    demo_rig_start(rig);
    test_eq_u64(driver_generate(rig->driver, 0, &admit, 64, narrow, TOKENS), TOKENS);
    test_true(rig->driver->slots[0].most_resident[RUNNER_FAMILY_LOCAL] <=
              window / rig->options.page_tokens + 1);
    test_true(memcmp(wide, narrow, TOKENS * sizeof(*wide)) == 0);
    mem_free(narrow);
    mem_free(wide);
    demo_rig_destroy(rig);
}

/* While the same rows decode, greedy, drawn, penalised and with logprobs, nothing is copied to the
 * device, and a step is one launch, two where a row turns a page. */
static void test_steady_decode_copies_nothing(void)
{
    enum {
        STEPS = 200,
    };
    struct demo_rig *rig = demo_rig_create(NULL);
    struct runner *runner = rig->driver->runner;
    struct runner_counters before;
    struct runner_counters after;
    struct driver_row rows[SEQUENCES];
    uint64_t patch_count = 0;
    if (runner->table->counters == NULL) {
        demo_rig_destroy(rig);
        test_skip("this backend counts nothing");
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct plan_admit admit = varied_admit(rig, s);
        admit.max_total = admit.prompt.count + STEPS + 10;
        driver_open(rig->driver, s, &admit);
        struct driver_row row = {.slot = s, .count = admit.prompt.count};
        (void)driver_step(rig->driver, &row, 1);
        rows[s] = (struct driver_row){.slot = s};
    }
    (void)driver_step(rig->driver, rows, SEQUENCES);
    runner->table->counters(runner, &before);
    for (uint32_t step = 0; step < STEPS; step++) {
        (void)driver_step(rig->driver, rows, SEQUENCES);
        patch_count += rig->driver->patch_count;
    }
    runner->table->counters(runner, &after);
    uint64_t turns = after.steady_turns - before.steady_turns;
    uint64_t launches = after.steady_launches - before.steady_launches;
    printf("counters: %u steps, %llu page turns in %llu of them, %llu launches\n", STEPS,
           (unsigned long long)patch_count, (unsigned long long)turns,
           (unsigned long long)launches);
    test_eq_u64(after.steady_steps - before.steady_steps, STEPS);
    test_true(turns > 0 && turns <= patch_count);
    test_eq_u64(after.steady_uploads - before.steady_uploads, 0);
    if (rig->options.backend->uses_graphs) {
        test_eq_u64(launches, STEPS + turns);
    }
    demo_rig_destroy(rig);
}

static const struct test_case cases[] = {
    TEST(test_mixed_steps_give_what_each_gives_alone),
    TEST(test_run_ahead_gives_the_same_tokens),
    TEST(test_prompt_logprobs_do_not_depend_on_segments),
    TEST(test_stop_id_masks_rows_launched_after_it),
    TEST(test_slot_stop_masks_until_the_slot_is_opened_again),
    TEST(test_constrained_rows_wait_for_their_mask),
    TEST(test_readmission_continues_the_same_text),
    TEST(test_penalties_see_prompt_and_output),
    TEST(test_long_output_in_a_local_pool_of_two_windows),
    TEST(test_steady_decode_copies_nothing),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
