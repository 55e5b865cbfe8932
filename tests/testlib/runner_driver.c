#include "tests/testlib/runner_driver.h"

#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/test.h"
#include "worker/stage.h"

#define WAIT_NS (60 * CLOCK_NS_PER_SEC)

void driver_options_default(struct driver_options *options, const char *model_dir)
{
    *options = (struct driver_options){
        .backend = backend_under_test(),
        .model_dir = model_dir,
        .slots = 4,
        .page_tokens = 64,
        .max_step_rows = 16,
        .max_step_tokens = 256,
        .max_context_tokens = 2048,
        .pipeline_depth = 2,
    };
}

static uint32_t context_pages(const struct driver *driver)
{
    const struct runner_limits *limits = &driver->runner->limits;
    return num_ceil_div(limits->max_context_tokens, limits->page_tokens);
}

static struct runner_limits limits_of(const struct driver_options *options,
                                      const struct model_config *config)
{
    struct runner_limits limits = {
        .slots = options->slots,
        .max_step_rows = options->max_step_rows,
        .max_step_tokens = options->max_step_tokens,
        .max_context_tokens = options->max_context_tokens,
        .vocab_tokens = config->info.vocab_tokens,
        .window_tokens = config->families[RUNNER_FAMILY_LOCAL].window_tokens,
        .page_tokens = options->page_tokens,
        .pipeline_depth = options->pipeline_depth,
    };
    if (options->is_pinned) {
        backend_pin_limits(&limits);
    }
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        uint32_t most = options->slots * stage_table_pages(&limits, (enum runner_family)family);
        limits.pages[family] = options->pages[family] != 0 ? options->pages[family] : most;
    }
    return limits;
}

struct driver *driver_create(const struct driver_options *options)
{
    struct err err = {0};
    struct driver *driver = mem_zalloc(1, sizeof(*driver));
    test_ok(model_config_load(options->model_dir, &driver->config, &err), &err);
    const struct backend_runner_options runner_options = {
        .model_dir = options->model_dir,
        .config = &driver->config,
        .limits = limits_of(options, &driver->config),
        .inject = options->inject,
        .threads = options->threads,
        .is_pinned = options->is_pinned,
    };
    options->backend->open_runner(options->backend, &runner_options, &driver->held);
    driver->runner = driver->held.runner;
    driver->slots = mem_zalloc(options->slots, sizeof(*driver->slots));
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        uint32_t pages = runner_options.limits.pages[family];
        driver->free_pages[family] = mem_zalloc(pages, sizeof(uint32_t));
        for (uint32_t page = 0; page < pages; page++) {
            driver->free_pages[family][driver->free_counts[family]++] = page;
        }
        for (uint32_t slot = 0; slot < options->slots; slot++) {
            driver->slots[slot].physical[family] =
                mem_zalloc(context_pages(driver), sizeof(uint32_t));
        }
    }
    driver->patch_cap = (uint32_t)stage_max_patches(&runner_options.limits);
    driver->patches = mem_zalloc(driver->patch_cap, sizeof(*driver->patches));
    return driver;
}

void driver_destroy(struct driver *driver)
{
    for (uint32_t slot = 0; slot < driver->runner->limits.slots; slot++) {
        mem_free(driver->slots[slot].prompt);
        mem_free(driver->slots[slot].physical[RUNNER_FAMILY_LOCAL]);
        mem_free(driver->slots[slot].physical[RUNNER_FAMILY_GLOBAL]);
    }
    backend_close_runner(&driver->held);
    mem_free(driver->free_pages[RUNNER_FAMILY_LOCAL]);
    mem_free(driver->free_pages[RUNNER_FAMILY_GLOBAL]);
    mem_free(driver->slots);
    mem_free(driver->patches);
    mem_free(driver);
}

struct plan_admit driver_admit_greedy(const uint32_t *prompt, uint32_t prompt_count,
                                      uint32_t max_total)
{
    return (struct plan_admit){
        .seq_id = 1,
        .prompt = {.at = prompt, .count = prompt_count},
        .output_start = prompt_count,
        .max_total = max_total,
        .top_p = 1.0F,
        .repetition_penalty = 1.0F,
    };
}

void driver_open(struct driver *driver, uint32_t slot, const struct plan_admit *admit)
{
    struct err err = {0};
    struct driver_slot *state = &driver->slots[slot];
    test_ok(driver->runner->table->slot_open(driver->runner, slot, admit, &err), &err);
    mem_free(state->prompt);
    state->prompt_count = admit->prompt.count;
    state->prompt = mem_zalloc(state->prompt_count, sizeof(uint32_t));
    memcpy(state->prompt, admit->prompt.at, state->prompt_count * sizeof(uint32_t));
    state->is_constrained = admit->constrained;
    state->frontier = 0;
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        state->origin_pages[family] = 0;
        state->mapped_pages[family] = 0;
        state->most_resident[family] = 0;
    }
}

static void release_to(struct driver *driver, uint32_t slot, uint32_t family, uint32_t origin)
{
    struct driver_slot *state = &driver->slots[slot];
    for (; state->origin_pages[family] < origin; state->origin_pages[family]++) {
        driver->free_pages[family][driver->free_counts[family]++] =
            state->physical[family][state->origin_pages[family]];
    }
}

void driver_release(struct driver *driver, uint32_t slot)
{
    driver->runner->table->slot_stop(driver->runner, slot);
    for (uint32_t family = 0; family < RUNNER_FAMILY_COUNT; family++) {
        release_to(driver, slot, family, driver->slots[slot].mapped_pages[family]);
    }
}

static void grant(struct driver *driver, uint32_t slot, uint32_t family, uint32_t end_tokens)
{
    struct driver_slot *state = &driver->slots[slot];
    uint32_t need = num_ceil_div(end_tokens, driver->runner->limits.page_tokens);
    for (; state->mapped_pages[family] < need; state->mapped_pages[family]++) {
        test_true(driver->free_counts[family] > 0);
        uint32_t page = driver->free_pages[family][--driver->free_counts[family]];
        state->physical[family][state->mapped_pages[family]] = page;
        test_true(driver->patch_count < driver->patch_cap);
        driver->patches[driver->patch_count++] = (struct runner_patch){
            .slot = slot,
            .family = (enum runner_family)family,
            .logical_page = state->mapped_pages[family],
            .physical_page = page,
        };
    }
    uint32_t resident = state->mapped_pages[family] - state->origin_pages[family];
    state->most_resident[family] = num_max(state->most_resident[family], resident);
}

static struct runner_row build_row(struct driver *driver, const struct driver_row *row)
{
    struct driver_slot *state = &driver->slots[row->slot];
    bool is_prompt = row->count > 0;
    uint32_t end = state->frontier + (is_prompt ? row->count : 1);
    grant(driver, row->slot, RUNNER_FAMILY_LOCAL, end);
    grant(driver, row->slot, RUNNER_FAMILY_GLOBAL, end);
    return (struct runner_row){
        .slot = row->slot,
        .start = state->frontier,
        .count = end - state->frontier,
        .tokens = is_prompt ? state->prompt + state->frontier : NULL,
        .samples = !row->no_sample && end >= state->prompt_count,
        .prompt_logprobs = row->prompt_logprobs,
        .constrained = state->is_constrained,
        .mask = row->mask,
    };
}

void driver_launch(struct driver *driver, const struct driver_row *rows, uint32_t row_count)
{
    struct err err = {0};
    struct runner_row *built = mem_zalloc(row_count, sizeof(*built));
    uint32_t **next = mem_zalloc(row_count, sizeof(*next));
    driver->patch_count = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        const struct driver_slot *state = &driver->slots[rows[i].slot];
        built[i] = build_row(driver, &rows[i]);
        if (built[i].prompt_logprobs) {
            next[i] = mem_zalloc(built[i].count, sizeof(uint32_t));
            for (uint32_t t = 0; t < built[i].count; t++) {
                uint32_t position = built[i].start + t + 1;
                next[i][t] = position < state->prompt_count ? state->prompt[position] : UINT32_MAX;
            }
            built[i].next_tokens = next[i];
        }
    }
    struct runner_step step = {
        .rows = built,
        .row_count = row_count,
        .patches = driver->patches,
        .patch_count = driver->patch_count,
    };
    test_ok(driver->runner->table->launch(driver->runner, &step, &err), &err);
    for (uint32_t i = 0; i < row_count; i++) {
        mem_free(next[i]);
    }
    mem_free(next);
    mem_free(built);
}

void driver_collect(struct driver *driver, const struct driver_row *rows, uint32_t row_count,
                    struct runner_result *out_result)
{
    struct runner *runner = driver->runner;
    uint64_t deadline_ns = clock_now_ns() + WAIT_NS;
    while (!runner->table->wait(runner, deadline_ns)) {
        test_true(clock_now_ns() < deadline_ns);
    }
    test_true(runner->table->is_done(runner));
    runner->table->collect(runner, out_result);
    for (uint32_t i = 0; out_result->status == ERR_OK && i < row_count; i++) {
        enum runner_outcome outcome = out_result->picks[i].outcome;
        struct driver_slot *state = &driver->slots[rows[i].slot];
        if (outcome == RUNNER_OUTCOME_MASKED || outcome == RUNNER_OUTCOME_HELD ||
            outcome == RUNNER_OUTCOME_BAD) {
            continue;
        }
        state->frontier += rows[i].count > 0 ? rows[i].count : 1;
        uint32_t window = runner->limits.window_tokens;
        uint32_t behind = state->frontier > window ? state->frontier - window : 0;
        release_to(driver, rows[i].slot, RUNNER_FAMILY_LOCAL, behind / runner->limits.page_tokens);
    }
}

struct runner_result driver_step(struct driver *driver, const struct driver_row *rows,
                                 uint32_t row_count)
{
    struct runner_result result = {0};
    driver_launch(driver, rows, row_count);
    driver_collect(driver, rows, row_count, &result);
    test_ok(result.status, &result.error);
    return result;
}

bool driver_is_same_logprob(const struct runner_logprob *a, const struct runner_logprob *b)
{
    bool is_same = a->token == b->token && a->logprob == b->logprob && a->rank == b->rank &&
                   a->pair_count == b->pair_count;
    for (uint32_t i = 0; is_same && i < a->pair_count; i++) {
        is_same = a->ids[i] == b->ids[i] && a->logprobs[i] == b->logprobs[i];
    }
    return is_same;
}

uint32_t driver_generate(struct driver *driver, uint32_t slot, const struct plan_admit *admit,
                         uint32_t chunk, uint32_t *tokens, uint32_t cap)
{
    uint32_t count = 0;
    driver_open(driver, slot, admit);
    while (count < cap) {
        uint32_t frontier = driver->slots[slot].frontier;
        uint32_t left = frontier < admit->prompt.count ? admit->prompt.count - frontier : 0;
        struct driver_row row = {.slot = slot, .count = num_min(left, chunk)};
        struct runner_result result = driver_step(driver, &row, 1);
        if (result.picks[0].outcome == RUNNER_OUTCOME_NONE) {
            continue;
        }
        test_true(result.picks[0].outcome == RUNNER_OUTCOME_TOKEN ||
                  result.picks[0].outcome == RUNNER_OUTCOME_STOP ||
                  result.picks[0].outcome == RUNNER_OUTCOME_LENGTH);
        tokens[count++] = result.picks[0].token;
        if (result.picks[0].outcome != RUNNER_OUTCOME_TOKEN) {
            break;
        }
    }
    driver_release(driver, slot);
    return count;
}
