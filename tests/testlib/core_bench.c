#include "tests/testlib/core_bench.h"

#include "common/num.h"
#include "tests/testlib/model_runner.h"
#include "tests/testlib/test.h"

struct runner_limits bench_limits(void)
{
    return (struct runner_limits){
        .slots = BENCH_SLOTS,
        .max_step_rows = 16,
        .max_step_tokens = 128,
        .max_context_tokens = 1024,
        .vocab_tokens = BENCH_VOCAB,
        .window_tokens = 64,
        .page_tokens = 16,
        .pages = {40, 80},
        .pipeline_depth = 2,
    };
}

void bench_setup_runner(struct core_bench *bench, struct runner *runner, bool is_model,
                        uint32_t ring_records)
{
    static const uint32_t modality_ids[] = {90, 91};
    for (uint32_t i = 0; i < BENCH_PROMPT; i++) {
        bench->prompt[i] = (i * 7 + 3) % 89;
    }
    bench->runner = runner;
    const struct session_limits session_limits = {
        .slots = num_min(runner->limits.slots, BENCH_SLOTS),
        .ring_records = ring_records,
        .modality_ids = modality_ids,
        .modality_id_count = 2,
        .keeps_prefixes = bench->keeps_prefixes,
    };
    rig_init(&bench->rig, runner, is_model, &session_limits, &bench->inject);
    rig_open(&bench->rig, &bench->session, NULL);
}

void bench_setup_limits(struct core_bench *bench, const struct runner_limits *limits,
                        uint32_t ring_records)
{
    *bench = (struct core_bench){0};
    const struct model_runner_options options = {.limits = *limits, .inject = &bench->inject};
    bench_setup_runner(bench, model_runner_create(&options), true, ring_records);
}

void bench_setup_prefixes(struct core_bench *bench, const struct runner_limits *limits)
{
    *bench = (struct core_bench){.keeps_prefixes = true};
    const struct model_runner_options options = {.limits = *limits, .inject = &bench->inject};
    bench_setup_runner(bench, model_runner_create(&options), true, 1024);
}

void bench_setup(struct core_bench *bench)
{
    struct runner_limits limits = bench_limits();
    bench_setup_limits(bench, &limits, 1024);
}

void bench_run(struct core_bench *bench)
{
    do {
        rig_advance(&bench->rig);
    } while (bench->rig.is_model && model_runner_complete(bench->runner, 8) > 0);
    rig_advance(&bench->rig);
}

void bench_teardown(struct core_bench *bench)
{
    if (bench->session.session != NULL) {
        rig_close(&bench->session);
    }
    bench_run(bench);
    struct session_stats stats;
    session_core_stats(bench->rig.core, &stats);
    for (uint32_t f = 0; f < RUNNER_FAMILY_COUNT; f++) {
        test_eq_u64(stats.pages_free[f] + stats.pages_cached[f], bench->runner->limits.pages[f]);
    }
    rig_fini(&bench->rig);
    bench->runner->table->destroy(bench->runner);
}

uint64_t bench_row(struct core_bench *bench, uint64_t seq_id, uint32_t start, uint32_t count)
{
    struct wire_row row = {.seq_id = seq_id, .start = start, .count = count};
    return rig_step(&bench->session, 0, &row, 1);
}

static bool is_stop_id(const struct plan_admit *admit, uint32_t token)
{
    for (uint32_t i = 0; i < admit->stop_ids.count; i++) {
        if (admit->stop_ids.at[i] == token) {
            return !admit->ignore_eos;
        }
    }
    return false;
}

uint32_t bench_reference(const struct plan_admit *admit, uint32_t *out_tokens, uint32_t count)
{
    uint64_t fold = model_fold_start(admit->seed);
    for (uint32_t i = 0; i < admit->prompt.count; i++) {
        fold = model_fold_add(fold, i, admit->prompt.at[i]);
    }
    uint32_t known = admit->prompt.count;
    uint32_t made = 0;
    while (made < count && known < admit->max_total) {
        uint32_t token = model_fold_next(fold, BENCH_VOCAB, admit, known, NULL);
        out_tokens[made++] = token;
        fold = model_fold_add(fold, known++, token);
        if (is_stop_id(admit, token)) {
            break;
        }
    }
    return made;
}
