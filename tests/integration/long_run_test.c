/* What takes many tokens or many rows: 3,000 tokens across the window against the cpu backend, every
 * slot at the ceiling of the context, and requests that come, stop and go by the thousand beside
 * neighbours that notice nothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "tests/testlib/core_drive.h"
#include "tests/testlib/golden.h"
#include "tests/testlib/paged_forward.h"
#include "tests/testlib/runner_driver.h"
#include "tests/testlib/test.h"

/* ---- 3,000 tokens ---- */

enum {
    LONG_OUTPUT = 3000,
    LONG_PAIRS = 16, /* best tokens of each position that are compared */
};

struct long_run {
    uint32_t *ids; /* [prompt and output] */
    uint32_t prompt_count;
    struct runner_logprob *logprobs; /* [output] */
};

/* Drawn, not greedy: greedy text of so small a model falls into a loop. */
static void generate_long(const struct golden *golden, struct long_run *run)
{
    struct driver_options options;
    const struct golden_case *prompt = &golden->cases[0];
    driver_options_default(&options, golden->dir);
    options.slots = 1;
    options.max_context_tokens = 4096;
    struct driver *driver = driver_create(&options);
    run->prompt_count = prompt->count;
    run->ids = mem_zalloc(prompt->count + LONG_OUTPUT, sizeof(*run->ids));
    run->logprobs = mem_zalloc(LONG_OUTPUT, sizeof(*run->logprobs));
    memcpy(run->ids, prompt->ids, prompt->count * sizeof(*run->ids));
    struct plan_admit admit =
        driver_admit_greedy(prompt->ids, prompt->count, prompt->count + LONG_OUTPUT);
    admit.temperature = 1.0F;
    admit.seed = 3;
    admit.logprobs = LONG_PAIRS + 1;
    driver_open(driver, 0, &admit);
    struct driver_row row = {.slot = 0, .count = prompt->count};
    for (uint32_t t = 0; t < LONG_OUTPUT; t++) {
        struct runner_result result = driver_step(driver, &row, 1);
        test_eq_u64(result.picks[0].outcome,
                    t + 1 < LONG_OUTPUT ? RUNNER_OUTCOME_TOKEN : RUNNER_OUTCOME_LENGTH);
        run->ids[prompt->count + t] = result.picks[0].token;
        run->logprobs[t] = *result.picks[0].logprob;
        row.count = 0;
    }
    uint32_t window_pages = num_ceil_div(driver->runner->limits.window_tokens, options.page_tokens);
    test_true(driver->slots[0].most_resident[RUNNER_FAMILY_LOCAL] <= window_pages + 1);
    test_true(driver->slots[0].origin_pages[RUNNER_FAMILY_LOCAL] > window_pages);
    driver_destroy(driver);
}

/* The same tokens through the cpu backend, in segments. */
static uint16_t *compute_long(const struct golden *golden, const struct long_run *run)
{
    const struct paged_options options = {
        .backend = &backend_cpu,
        .model_dir = golden->dir,
        .threads = backend_under_test()->is_cuda ? 8 : 2,
        .slots = 1,
        .page_tokens = 64,
        .max_step_tokens = 256,
        .max_context_tokens = 4096,
        .pad_tokens_multiple = 1,

        .seed = 1,
    };
    struct paged *paged = paged_create(&options);
    uint32_t count = run->prompt_count + LONG_OUTPUT - 1;
    uint16_t *logits = mem_zalloc((uint64_t)count * golden->vocab_tokens, sizeof(*logits));
    paged_sequence(paged, run->ids, count, 256, logits);
    paged_destroy(paged);
    return logits;
}

struct long_distance {
    struct golden_distance all;
    struct golden_distance beyond; /* the window */
    uint32_t best_same;
    uint32_t beyond_count;
};

static void compare_long(const struct golden *golden, const struct long_run *run,
                         const uint16_t *logits, uint32_t window_tokens, struct long_distance *out)
{
    float logprobs[LONG_PAIRS];
    *out = (struct long_distance){0};
    for (uint32_t t = 0; t < LONG_OUTPUT; t++) {
        uint32_t position = run->prompt_count + t - 1;
        const struct runner_logprob *record = &run->logprobs[t];
        const struct paged_rows row = {
            .logits = logits + (uint64_t)position * golden->vocab_tokens,
            .rows = 1,
            .vocab_tokens = golden->vocab_tokens,
        };
        uint32_t best = 0;
        test_eq_u64(record->pair_count, LONG_PAIRS);
        test_eq_u64(record->token, run->ids[position + 1]);
        paged_logprobs(&row, record->ids, LONG_PAIRS, logprobs, &best);
        double mean = 0.0;
        for (uint32_t i = 0; i < LONG_PAIRS; i++) {
            double apart = fabs((double)logprobs[i] - (double)record->logprobs[i]);
            mean += apart / LONG_PAIRS;
            out->all.max = apart > out->all.max || isnan(apart) ? apart : out->all.max;
        }
        out->all.mean += mean / LONG_OUTPUT;
        out->best_same += best == record->ids[0] ? 1 : 0;
        if (position >= window_tokens) {
            out->beyond.mean += mean;
            out->beyond_count++;
        }
        if (best != record->ids[0]) {
            double margin = (double)record->logprobs[0] - (double)record->logprobs[1];
            test_true(margin <= golden->yardstick.max);
        }
    }
    out->beyond.mean /= out->beyond_count == 0 ? 1 : out->beyond_count;
}

static void check_long(const char *name, uint32_t window_tokens)
{
    struct golden *golden = golden_load(name);
    struct long_run run = {0};
    struct long_distance apart;
    generate_long(golden, &run);
    uint16_t *logits = compute_long(golden, &run);
    compare_long(golden, &run, logits, window_tokens, &apart);
    printf("%s, %u tokens, window %u: mean %.4f max %.4f (yardstick %.4f %.4f), mean beyond the "
           "window %.4f, best token agrees %.4f\n",
           name, LONG_OUTPUT, window_tokens, apart.all.mean, apart.all.max, golden->yardstick.mean,
           golden->yardstick.max, apart.beyond.mean, (double)apart.best_same / LONG_OUTPUT);
    test_true(apart.beyond_count > LONG_OUTPUT / 2);
    test_true(apart.all.mean <= 1.25 * golden->yardstick.mean);
    test_true(apart.beyond.mean <= 1.25 * golden->yardstick.mean);
    test_true(apart.all.max <= 2.0 * golden->yardstick.max);
    test_true((double)apart.best_same / LONG_OUTPUT >= golden->top1_rate - 0.02);
    mem_free(logits);
    mem_free(run.logprobs);
    mem_free(run.ids);
    golden_destroy(golden);
}

static void test_3000_tokens_across_the_window_agree_with_the_cpu(void)
{
    check_long("dense-window1024", 1024);
    if (backend_under_test()->is_cuda) {
        check_long("dense-unified", 64);
    }
}

/* ---- a full house ---- */

enum {
    HOUSE_KINDS = 4,
    HOUSE_OUTPUT = 9,
};

/* Prompt and output of every request reach the ceiling exactly. */
static void run_full_house(const char *name, uint32_t slots, uint32_t ceiling_tokens)
{
    struct golden *golden = golden_load(name);
    const struct golden_case *longest = &golden->cases[golden->case_count - 1];
    uint32_t prompt_count = ceiling_tokens - HOUSE_OUTPUT;
    uint32_t *prompt = mem_zalloc(prompt_count + HOUSE_KINDS, sizeof(*prompt));
    struct drive_seq *seqs = mem_zalloc(slots, sizeof(*seqs));
    struct drive_model model;
    struct drive_options options = {
        .limits =
            {
                .slots = slots,
                .max_step_rows = slots,
                .max_step_tokens = 256,
                .max_context_tokens = ceiling_tokens,
                .page_tokens = 64,
                .pipeline_depth = 2,
            },
        .chunk_tokens = 256,
        .ahead = 3,
        .is_pinned = true,
        .checks_local_pages = true,
    };
    for (uint32_t i = 0; i < prompt_count + HOUSE_KINDS; i++) {
        prompt[i] = longest->ids[i % longest->count];
    }
    for (uint32_t i = 0; i < slots; i++) {
        uint32_t kind = i % HOUSE_KINDS;
        seqs[i].admit = rig_plain_admit(1, prompt + kind, prompt_count, ceiling_tokens);
        seqs[i].admit.seed = 9 + kind;
        seqs[i].admit.temperature = kind == 1 ? 1.0F : 0.0F;
        seqs[i].admit.presence_penalty = kind == 2 ? 0.7F : 0.0F;
        seqs[i].admit.logprobs = 4;
    }
    drive_model_load(&model, golden->dir);
    struct drive *drive = drive_create(&model, &options);
    drive_run(drive, seqs, slots);
    test_eq_u64(drive->refused_count, 0);
    test_eq_u64(drive->drained_count, 0);
    for (uint32_t i = 0; i < slots; i++) {
        test_eq_u64(seqs[i].finish, RESULT_FINISH_LENGTH);
        test_eq_u64(seqs[i].token_count, HOUSE_OUTPUT);
        if (seqs[i].digest != seqs[i % HOUSE_KINDS].digest) {
            test_fail(__FILE__, __LINE__, "request %u of %u differs from request %u, its equal", i,
                      slots, i % HOUSE_KINDS);
        }
    }
    drive_destroy(drive); /* checks that every page came back */
    mem_free(seqs);
    mem_free(prompt);
    golden_destroy(golden);
}

static void test_a_full_house_at_the_ceiling(void)
{
    if (backend_under_test()->is_cuda) { /* as many as a server takes by default */
        run_full_house("dense-window1024", 128, 1537);
        run_full_house("dense-unified", 128, 1024);
    } else {
        run_full_house("dense-window1024", 9, 1153);
        run_full_house("dense-unified", 12, 320);
    }
}

/* ---- a thousand comings and goings ---- */

enum {
    NEIGHBOURS = 4,
    GUESTS = 8,
    CROWD = NEIGHBOURS + GUESTS,
    EVENTS = 1000,
    NEIGHBOUR_OUTPUT = 1100,
    PROMPT_MOST = 12,
};

enum guest {
    GUEST_STOP,      /* a stop id ends it */
    GUEST_CANCELLED, /* with steps in flight */
    GUEST_DRAWN,
    GUEST_PENALISED,
    GUEST_LOGPROBS,
    GUEST_AT_CAP,   /* its first token is its last */
    GUEST_NEAR_CAP, /* its second is */
    GUEST_DROPPED,  /* released while it runs */
    GUEST_KINDS,
};

struct guests {
    uint32_t prompt[PROMPT_MOST];
    uint32_t stop_id;
    uint32_t started_count;
    uint32_t ended[GUEST_KINDS];
    enum guest kinds[CROWD];       /* of each place */
    bool is_counted[CROWD];        /* its last guest has gone */
    uint64_t digests[GUEST_KINDS]; /* of the first of a kind that ends by itself */
    uint64_t random;
    bool checks_bits;
};

static struct plan_admit guest_admit(const struct guests *guests, enum guest kind)
{
    static const uint32_t outputs[GUEST_KINDS] = {6, 500, 6, 6, 6, 1, 2, 500};
    struct plan_admit admit =
        rig_plain_admit(1, guests->prompt, PROMPT_MOST, PROMPT_MOST + outputs[kind]);
    admit.seed = 1000 + (uint32_t)kind;
    admit.temperature = kind == GUEST_DRAWN ? 1.2F : 0.0F;
    admit.top_k = kind == GUEST_DRAWN ? 30 : 0;
    admit.min_p = kind == GUEST_DRAWN ? 0.01F : 0.0F;
    admit.presence_penalty = kind == GUEST_PENALISED ? 0.8F : 0.0F;
    admit.repetition_penalty = kind == GUEST_PENALISED ? 1.3F : 1.0F;
    admit.logprobs = kind == GUEST_LOGPROBS ? 20 : 0;
    if (kind == GUEST_STOP) {
        admit.stop_ids = (struct wire_u32_array){.at = &guests->stop_id, .count = 1};
    }
    return admit;
}

static void on_turn(void *context, struct drive *drive)
{
    struct guests *guests = context;
    for (uint32_t i = NEIGHBOURS; i < drive->seq_count; i++) {
        const struct drive_seq *seq = &drive->seqs[i];
        bool is_ripe = !seq->is_over && seq->token_count > test_random(&guests->random) % 4;
        if (is_ripe && guests->kinds[i] == GUEST_CANCELLED) {
            drive_cancel(drive, i);
        } else if (is_ripe && guests->kinds[i] == GUEST_DROPPED) {
            drive_drop(drive, i);
        }
    }
}

/* How each kind must end, and that all of a kind end alike. */
static void check_guest(struct guests *guests, const struct drive_seq *seq, enum guest kind)
{
    static const uint32_t finishes[GUEST_KINDS] = {
        RESULT_FINISH_STOP,   RESULT_FINISH_CANCEL, RESULT_FINISH_LENGTH, RESULT_FINISH_LENGTH,
        RESULT_FINISH_LENGTH, RESULT_FINISH_LENGTH, RESULT_FINISH_LENGTH, 0};
    /* Without pinned shapes noise may take the choice that the stop id lies on. */
    bool is_unsure = kind == GUEST_STOP && !guests->checks_bits;
    test_true(!seq->has_failed);
    test_true(seq->finish == finishes[kind] || (is_unsure && seq->finish == RESULT_FINISH_LENGTH));
    if (kind == GUEST_CANCELLED || kind == GUEST_DROPPED || !guests->checks_bits) {
        return;
    }
    if (guests->ended[kind] == 0) {
        guests->digests[kind] = seq->digest;
    } else if (seq->digest != guests->digests[kind]) {
        test_fail(__FILE__, __LINE__, "guest %u of kind %u: its %u tokens differ from the first's",
                  guests->ended[kind], (uint32_t)kind, seq->token_count);
    }
}

/* Neighbours stay; a guest's place goes to another until there were enough. */
static bool next_guest(void *context, struct drive *drive, uint32_t index)
{
    struct guests *guests = context;
    struct drive_seq *seq = &drive->seqs[index];
    if (index < NEIGHBOURS || guests->is_counted[index]) {
        return false;
    }
    check_guest(guests, seq, guests->kinds[index]);
    guests->ended[guests->kinds[index]]++;
    guests->is_counted[index] = guests->started_count == EVENTS;
    if (guests->is_counted[index]) {
        return false;
    }
    guests->started_count++;
    guests->kinds[index] = (enum guest)(test_random(&guests->random) % GUEST_KINDS);
    seq->admit = guest_admit(guests, guests->kinds[index]);
    return true;
}

static struct drive_options crowd_options(uint32_t depth, bool is_pinned)
{
    return (struct drive_options){
        .limits =
            {
                .slots = CROWD + 16, /* spare ones, as the worker has them */
                .max_step_rows = CROWD,
                .max_step_tokens = 256,
                .max_context_tokens = 1536,
                .page_tokens = 16,
                .pipeline_depth = depth,
            },
        .chunk_tokens = 256,
        .ahead = depth + 1,
        .sequences = CROWD,
        .is_pinned = is_pinned,
    };
}

static void prepare_neighbours(const struct golden_prompts *prompts, struct drive_seq *seqs)
{
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        const struct golden_prompt *prompt = &prompts->at[i];
        struct plan_admit admit = rig_plain_admit(1, prompt->prompt_ids, prompt->prompt_count,
                                                  prompt->prompt_count + NEIGHBOUR_OUTPUT);
        admit.temperature = i == 0 ? 0.0F : 1.0F;
        admit.top_p = i == 1 ? 0.95F : 1.0F;
        admit.frequency_penalty = i == 2 ? 0.2F : 0.0F;
        admit.logprobs = i == 3 ? 6 : 0;
        admit.seed = 50 + i;
        seqs[i] = (struct drive_seq){.admit = admit};
    }
}

/* The third token that the guests' prompt gives. */
static uint32_t find_stop_id(const struct drive_model *model, const struct guests *guests)
{
    struct drive_options options = crowd_options(1, true);
    struct drive *drive = drive_create(model, &options);
    struct drive_seq *seq = mem_zalloc(1, sizeof(*seq));
    seq->admit = guest_admit(guests, GUEST_LOGPROBS);
    drive_run(drive, seq, 1);
    test_eq_u64(seq->token_count, 6);
    uint32_t stop_id = seq->tokens[2];
    mem_free(seq);
    drive_destroy(drive);
    return stop_id;
}

struct comings {
    struct drive_model model;
    struct golden_prompts prompts;
    struct drive_seq *alone; /* owned, [NEIGHBOURS] */
    struct drive_seq *seqs;  /* owned, [CROWD] */
    struct guests guests;
};

static void comings_init(struct comings *comings)
{
    char path[1024];
    *comings = (struct comings){0};
    (void)snprintf(path, sizeof(path), "%s/../../deploy/demo-model", test_golden_dir());
    drive_model_load(&comings->model, path);
    golden_prompts_load(&comings->prompts);
    comings->alone = mem_zalloc(NEIGHBOURS, sizeof(*comings->alone));
    comings->seqs = mem_zalloc(CROWD, sizeof(*comings->seqs));
    memcpy(comings->guests.prompt, comings->prompts.at[0].prompt_ids,
           sizeof(comings->guests.prompt));
    comings->guests.stop_id = find_stop_id(&comings->model, &comings->guests);
}

static void comings_fini(struct comings *comings)
{
    mem_free(comings->seqs);
    mem_free(comings->alone);
    golden_prompts_fini(&comings->prompts);
}

static void run_comings(struct comings *comings, uint32_t depth, bool is_pinned)
{
    struct drive_options options = crowd_options(depth, is_pinned);
    struct guests *guests = &comings->guests;
    guests->started_count = GUESTS;
    guests->random = 7;
    guests->checks_bits = is_pinned || backend_under_test()->is_exact;
    memset(guests->ended, 0, sizeof(guests->ended));
    memset(guests->is_counted, 0, sizeof(guests->is_counted));
    prepare_neighbours(&comings->prompts, comings->seqs);
    for (uint32_t i = NEIGHBOURS; i < CROWD; i++) {
        guests->kinds[i] = (enum guest)(i % GUEST_KINDS);
        comings->seqs[i] = (struct drive_seq){.admit = guest_admit(guests, guests->kinds[i])};
    }
    struct drive *drive = drive_create(&comings->model, &options);
    drive->on_turn = on_turn;
    drive->next = next_guest;
    drive->context = guests;
    drive_run(drive, comings->seqs, CROWD);
    uint32_t ended = 0;
    for (uint32_t kind = 0; kind < GUEST_KINDS; kind++) {
        test_true(guests->ended[kind] > EVENTS / GUEST_KINDS / 2);
        ended += guests->ended[kind];
    }
    test_eq_u64(ended, EVENTS);
    test_eq_u64(drive->refused_count, 0);
    test_eq_u64(drive->drained_count, 0);
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        test_eq_u64(comings->seqs[i].finish, RESULT_FINISH_LENGTH);
        test_eq_u64(comings->seqs[i].token_count, NEIGHBOUR_OUTPUT);
        if (guests->checks_bits && comings->seqs[i].digest != comings->alone[i].digest) {
            test_fail(__FILE__, __LINE__, "%s, depth %u: neighbour %u is not what it is alone",
                      backend_under_test()->name, depth, i);
        }
    }
    drive_destroy(drive);
}

static void test_a_thousand_guests_disturb_no_neighbour(void)
{
    struct comings comings;
    comings_init(&comings);
    struct drive_options options = crowd_options(1, true);
    struct drive *drive = drive_create(&comings.model, &options);
    prepare_neighbours(&comings.prompts, comings.alone);
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        drive_run(drive, &comings.alone[i], 1);
    }
    drive_destroy(drive);
    run_comings(&comings, 2, true);
    if (!backend_under_test()->is_exact) {
        run_comings(&comings, 3, false); /* mixed steps, as a server plans them */
    }
    comings_fini(&comings);
}

static const struct test_case cases[] = {
    TEST(test_3000_tokens_across_the_window_agree_with_the_cpu),
    TEST(test_a_full_house_at_the_ceiling),
    TEST(test_a_thousand_guests_disturb_no_neighbour),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
