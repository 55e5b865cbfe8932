/* Slot state on cuda against the cpu twin: opening, the step's prologue and its tail.  All of it is
 * integers: every byte of the state, of the page tables and of the step's tables must be equal, and
 * what lies beyond them untouched.
 *
 * A captured step keeps its width, so rows that do not live leave tokens of no slot behind; the
 * twin's compact tables are the device's without them. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/slots_twin.h"
#include "tests/testlib/test.h"

#define LABEL_BYTES 96

static uint32_t below(struct slots_twin *rig, uint32_t limit)
{
    return twin_random_below(&rig->random, limit);
}

/* ---- opening ---- */

static struct k_sampler *random_sampler(struct slots_twin *rig)
{
    struct k_sampler *sampler = mem_zalloc(1, sizeof(*sampler));
    sampler->seed = test_random(&rig->random);
    sampler->output_start = below(rig, 40);
    sampler->max_total = 30 + below(rig, 60);
    sampler->counts_tokens = below(rig, 2) == 1;
    sampler->ignore_eos = below(rig, 4) == 0;
    sampler->logprobs = below(rig, 3);
    sampler->prompt_logprobs = below(rig, 3);
    sampler->stop_count = below(rig, K_MAX_STOP_IDS + 1);
    for (uint32_t i = 0; i < sampler->stop_count; i++) {
        sampler->stop_ids[i] = below(rig, SLOTS_TWIN_VOCAB);
    }
    sampler->bias_count = 1;
    sampler->bias_ids[K_MAX_BIAS - 1] = 77; /* the last words are copied too */
    sampler->bias_values[K_MAX_BIAS - 1] = -1.5F;
    return sampler;
}

/* On both sides.  sampler is freed. */
static void open_slot(struct slots_twin *rig, uint32_t slot, uint32_t generation,
                      struct k_sampler *sampler, uint32_t context_count)
{
    struct err err = {0};
    uint32_t *context = mem_zalloc(context_count + 1UL, sizeof(*context));
    for (uint32_t i = 0; i < context_count; i++) {
        context[i] = i % 3 == 0 ? below(rig, 5) : below(rig, SLOTS_TWIN_VOCAB);
    }
    struct twin_buffer context_copy = twin_in(context, (context_count + 1UL) * sizeof(*context));
    struct twin_buffer sampler_copy = twin_in(sampler, sizeof(*sampler));
    struct k_open_args args = {
        .slots = slots_twin_slots(rig, false),
        .slot = slot,
        .generation = generation,
        .sampler = sampler,
        .context = context,
        .context_count = context_count,
    };
    test_ok(k_cpu_ops()->open(rig->twin, &args, &err), &err);
    args.slots = slots_twin_slots(rig, true);
    args.sampler = sampler_copy.device;
    args.context = context_copy.device;
    test_ok(k_cuda_ops()->open(rig->cuda.k, &args, &err), &err);
    cuda_rig_wait(&rig->cuda);
    twin_free(&context_copy);
    twin_free(&sampler_copy);
}

/* Twice each: the counts of a slot's last sequence must be gone, or never have been. */
static void test_opening(void)
{
    static const uint32_t contexts[] = {0, 1, 39, 700, 5000};
    for (int is_dependent = 0; is_dependent < 2; is_dependent++) {
        struct slots_twin rig;
        slots_twin_open(&rig, is_dependent == 1);
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t slot = i % 10 == 9 ? SLOTS_TWIN_SLOTS - 1 : i % 10;
            char label[LABEL_BYTES];
            (void)snprintf(label, sizeof(label), "open slot %u, time %u", slot, i / 10);
            open_slot(&rig, slot, i + 1, random_sampler(&rig),
                      contexts[i % TWIN_COUNT_OF(contexts)]);
            slots_twin_check_state(&rig, label);
        }
        slots_twin_close(&rig);
    }
}

static void test_a_slot_that_is_none_is_refused(void)
{
    struct err err = {0};
    struct slots_twin rig;
    slots_twin_open(&rig, false);
    const struct k_open_args args = {.slots = slots_twin_slots(&rig, true),
                                     .slot = SLOTS_TWIN_SLOTS};
    test_eq_u64(k_cuda_ops()->open(rig.cuda.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "open: slot 640 of 640");
    slots_twin_check_state(&rig, "a slot refused");
    if (cuda_rig_is_stand_in()) {
        open_slot(&rig, 0, 1, random_sampler(&rig), 0); /* planted errors show here */
        slots_twin_check_state(&rig, "another slot");
    }
    slots_twin_close(&rig);
}

/* ---- steps ---- */

/* Every slot opened, at lengths of their own, some stopped. */
static void open_all(struct slots_twin *rig)
{
    uint32_t *length = rig->arrays[SLOTS_TWIN_LENGTH].host;
    uint32_t *next_token = rig->arrays[SLOTS_TWIN_NEXT_TOKEN].host;
    uint32_t *generation = rig->arrays[SLOTS_TWIN_GENERATION].host;
    uint32_t *stopped = rig->arrays[SLOTS_TWIN_STOPPED].host;
    struct k_sampler *samplers = rig->arrays[SLOTS_TWIN_SAMPLERS].host;
    for (uint32_t slot = 0; slot < SLOTS_TWIN_SLOTS; slot++) {
        struct k_sampler *sampler = random_sampler(rig);
        samplers[slot] = *sampler;
        mem_free(sampler);
        length[slot] = below(rig, 60);
        next_token[slot] = below(rig, SLOTS_TWIN_VOCAB);
        generation[slot] = 1 + below(rig, 3);
        stopped[slot] = below(rig, 8) == 0 ? 1 : 0;
    }
    for (int array = 0; array < SLOTS_TWIN_STATE_COUNT; array++) {
        twin_write(&rig->arrays[array]);
    }
}

/* Rows of distinct slots: decode rows, prompts, held ones, and rows of sequences that are gone. */
static void make_rows(struct slots_twin *rig, uint32_t row_count)
{
    struct k_row *rows = rig->arrays[SLOTS_TWIN_ROWS].host;
    uint32_t *stop_request = rig->arrays[SLOTS_TWIN_STOP_REQUEST].host;
    const uint32_t *generation = rig->arrays[SLOTS_TWIN_GENERATION].host;
    uint32_t first_slot = below(rig, SLOTS_TWIN_SLOTS);
    uint32_t ids = 0;
    memset(rows, 0xff, rig->arrays[SLOTS_TWIN_ROWS].bytes);
    rig->row_count = row_count;
    for (uint32_t r = 0; r < row_count; r++) {
        uint32_t slot =
            (first_slot + r * 7) % SLOTS_TWIN_SLOTS; /* 7 and 640 have no common factor */
        bool is_prompt = below(rig, 3) == 0 && ids + 1200 < SLOTS_TWIN_MAX_IDS;
        uint32_t count = !is_prompt           ? 1
                         : below(rig, 8) == 0 ? 400 + below(rig, 700)
                                              : 1 + below(rig, 40);
        rows[r] = (struct k_row){
            .slot = slot,
            .generation = below(rig, 10) == 0 ? 77 : generation[slot],
            .start = below(rig, 50),
            .count = count,
            .first_id = is_prompt ? ids : K_NONE,
            .mask_row = below(rig, 4) == 0 ? below(rig, 9) : K_NONE,
            .flags = below(rig, 4) == 0 ? 0 : K_ROW_SAMPLES,
        };
        rows[r].flags |= is_prompt && below(rig, 2) == 0 ? K_ROW_PROMPT_LOGPROBS : 0;
        rows[r].flags |= below(rig, 10) == 0 ? K_ROW_HELD : 0;
        ids += is_prompt ? count : 0;
        stop_request[slot] = below(rig, 12) == 0 ? generation[slot] : below(rig, 2);
    }
    twin_write(&rig->arrays[SLOTS_TWIN_ROWS]);
    twin_write(&rig->arrays[SLOTS_TWIN_STOP_REQUEST]);
}

static void make_uploads(struct slots_twin *rig, uint32_t patch_count)
{
    struct k_patch *patches = rig->arrays[SLOTS_TWIN_PATCHES].host;
    uint32_t *prompt_ids = rig->arrays[SLOTS_TWIN_PROMPT_IDS].host;
    uint32_t *next_ids = rig->arrays[SLOTS_TWIN_NEXT_IDS].host;
    rig->patch_count = patch_count;
    for (uint32_t i = 0; i < patch_count; i++) {
        uint32_t family = i % 2;
        uint32_t pages = family == 0 ? SLOTS_TWIN_LOCAL_PAGES : SLOTS_TWIN_GLOBAL_PAGES;
        uint32_t at = i / 2 * 31 % (SLOTS_TWIN_SLOTS * pages); /* no entry twice */
        patches[i] = (struct k_patch){at / pages, family, at % pages, below(rig, 1000)};
    }
    for (uint32_t i = 0; i < SLOTS_TWIN_MAX_IDS; i++) {
        prompt_ids[i] = below(rig, SLOTS_TWIN_VOCAB);
        next_ids[i] = i % 11 == 10 ? K_NONE : prompt_ids[i] + 1;
    }
    twin_write(&rig->arrays[SLOTS_TWIN_PATCHES]);
    twin_write(&rig->arrays[SLOTS_TWIN_PROMPT_IDS]);
    twin_write(&rig->arrays[SLOTS_TWIN_NEXT_IDS]);
}

/* What the device left in its step tables, each cut to what the counts say was written. */
struct step_tables {
    uint32_t *ids;
    uint32_t *positions;
    uint32_t *token_slots;
    struct k_pick *picks;
    struct k_sample_row *sample_rows;
    uint32_t *sample_tokens;
    struct k_logprob_row *sample_logprobs;
    uint32_t *prompt_tokens;
    struct k_logprob_row *prompt_logprobs;
    struct k_step_counts counts;
};

static void tables_read(const struct slots_twin *rig, struct step_tables *out)
{
    struct k_step_counts *counts = slots_twin_read(rig, SLOTS_TWIN_STEP_COUNTS, 1, sizeof(*counts));
    *out = (struct step_tables){.counts = *counts};
    mem_free(counts);
    test_true(out->counts.tokens <= SLOTS_TWIN_MAX_TOKENS &&
              out->counts.sample_rows <= rig->row_count &&
              out->counts.prompt_logprob_rows <= SLOTS_TWIN_MAX_IDS);
    out->ids = slots_twin_read(rig, SLOTS_TWIN_IDS, out->counts.tokens, sizeof(uint32_t));
    out->positions =
        slots_twin_read(rig, SLOTS_TWIN_POSITIONS, out->counts.tokens, sizeof(uint32_t));
    out->token_slots =
        slots_twin_read(rig, SLOTS_TWIN_TOKEN_SLOTS, out->counts.tokens, sizeof(uint32_t));
    out->picks = slots_twin_read(rig, SLOTS_TWIN_PICKS, rig->row_count, sizeof(struct k_pick));
    out->sample_rows = slots_twin_read(rig, SLOTS_TWIN_SAMPLE_ROWS, out->counts.sample_rows,
                                       sizeof(struct k_sample_row));
    out->sample_tokens =
        slots_twin_read(rig, SLOTS_TWIN_SAMPLE_TOKENS, out->counts.sample_rows, sizeof(uint32_t));
    out->sample_logprobs = slots_twin_read(rig, SLOTS_TWIN_SAMPLE_LOGPROBS, out->counts.sample_rows,
                                           sizeof(struct k_logprob_row));
    out->prompt_tokens = slots_twin_read(rig, SLOTS_TWIN_PROMPT_TOKENS,
                                         out->counts.prompt_logprob_rows, sizeof(uint32_t));
    out->prompt_logprobs =
        slots_twin_read(rig, SLOTS_TWIN_PROMPT_LOGPROBS, out->counts.prompt_logprob_rows,
                        sizeof(struct k_logprob_row));
}

static void tables_free(struct step_tables *tables)
{
    mem_free(tables->ids);
    mem_free(tables->positions);
    mem_free(tables->token_slots);
    mem_free(tables->picks);
    mem_free(tables->sample_rows);
    mem_free(tables->sample_tokens);
    mem_free(tables->sample_logprobs);
    mem_free(tables->prompt_tokens);
    mem_free(tables->prompt_logprobs);
}

/* Where the walk has come to in the device's wide tables and the twin's compact ones. */
struct walk {
    struct k_step_counts wide;
    struct k_step_counts compact;
};

static void check_tokens(const struct slots_twin *rig, const struct step_tables *got,
                         struct walk *walk, uint32_t row_index)
{
    const struct k_expand_args twin = slots_twin_expand_args(rig, false);
    const struct k_row *row = &twin.rows[row_index];
    bool is_live = twin.picks[row_index].outcome == K_OUTCOME_NONE;
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t token = walk->wide.tokens + i;
        uint32_t from = walk->compact.tokens + i;
        test_eq_u64(got->ids[token], is_live ? twin.ids[from] : 0);
        test_eq_u64(got->positions[token], is_live ? twin.positions[from] : i);
        test_eq_u64(got->token_slots[token], is_live ? twin.token_slots[from] : K_SLOT_NONE);
        if ((row->flags & K_ROW_PROMPT_LOGPROBS) == 0) {
            continue;
        }
        const struct k_logprob_row *wanted = &got->prompt_logprobs[walk->wide.prompt_logprob_rows];
        test_eq_u64(got->prompt_tokens[walk->wide.prompt_logprob_rows++], token);
        if (is_live) {
            twin_check_equal("a prompt row", wanted,
                             &twin.prompt_logprobs[walk->compact.prompt_logprob_rows++], 1,
                             sizeof(*wanted));
        } else {
            test_eq_u64(wanted->want, 0);
        }
    }
    walk->wide.tokens += row->count;
    walk->compact.tokens += is_live ? row->count : 0;
}

static void check_sampled(const struct slots_twin *rig, const struct step_tables *got,
                          struct walk *walk, uint32_t row_index)
{
    const struct k_expand_args twin = slots_twin_expand_args(rig, false);
    bool is_live = twin.picks[row_index].outcome == K_OUTCOME_NONE;
    if ((twin.rows[row_index].flags & K_ROW_SAMPLES) == 0) {
        return;
    }
    uint32_t at = walk->wide.sample_rows++;
    uint32_t from = walk->compact.sample_rows;
    test_eq_u64(got->sample_tokens[at], walk->wide.tokens - 1);
    test_eq_u64(got->sample_logprobs[at].target, K_NONE);
    if (is_live) {
        walk->compact.sample_rows++;
        twin_check_equal("a sample row", &got->sample_rows[at], &twin.sample_rows[from], 1,
                         sizeof(struct k_sample_row));
        twin_check_equal("its logprobs", &got->sample_logprobs[at], &twin.sample_logprobs[from], 1,
                         sizeof(struct k_logprob_row));
    } else {
        test_eq_u64(got->sample_rows[at].row, K_NONE);
        test_eq_u64(got->sample_logprobs[at].want, 0);
    }
}

/* Tokens after the last row's, up to the multiple. */
static void check_padding(const struct slots_twin *rig, const struct step_tables *got,
                          const struct walk *walk)
{
    uint32_t multiple = rig->pad_multiple;
    uint32_t padded = (walk->wide.tokens + multiple - 1) / multiple * multiple;
    test_eq_u64(got->counts.tokens, padded);
    test_eq_u64(got->counts.sample_rows, walk->wide.sample_rows);
    test_eq_u64(got->counts.prompt_logprob_rows, walk->wide.prompt_logprob_rows);
    for (uint32_t token = walk->wide.tokens; token < got->counts.tokens; token++) {
        test_eq_u64(got->ids[token], 0);
        test_eq_u64(got->positions[token], token - walk->wide.tokens);
        test_eq_u64(got->token_slots[token], K_SLOT_NONE);
    }
}

static void check_tables(const struct slots_twin *rig, const char *label)
{
    struct step_tables got;
    struct walk walk = {0};
    tables_read(rig, &got);
    twin_check_equal(label, got.picks, rig->arrays[SLOTS_TWIN_PICKS].host, rig->row_count,
                     sizeof(struct k_pick));
    for (uint32_t row = 0; row < rig->row_count; row++) {
        check_tokens(rig, &got, &walk, row);
        check_sampled(rig, &got, &walk, row);
    }
    check_padding(rig, &got, &walk);
    tables_free(&got);
}

static void expand_twin(const struct slots_twin *rig)
{
    struct err err = {0};
    struct k_expand_args args = slots_twin_expand_args(rig, false);
    args.pad_tokens_multiple = 1;
    test_ok(k_cpu_ops()->expand(rig->twin, &args, &err), &err);
}

static void expand_device(struct slots_twin *rig)
{
    struct err err = {0};
    const struct k_expand_args args = slots_twin_expand_args(rig, true);
    test_ok(k_cuda_ops()->expand(rig->cuda.k, &args, &err), &err);
}

static void poison_tables(const struct slots_twin *rig)
{
    for (int array = SLOTS_TWIN_IDS; array < SLOTS_TWIN_COUNT; array++) {
        twin_poison(&rig->arrays[array]);
    }
}

static void test_prologues_of_random_steps(void)
{
    static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11, 12,
                                          13, 14, 15, 16, 17, 33, 64, 200, 512, 513, 600};
    static const uint32_t multiples[] = {1, 8, 64};
    struct slots_twin rig;
    slots_twin_open(&rig, true);
    open_all(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(row_counts); i++) {
        char label[LABEL_BYTES];
        (void)snprintf(label, sizeof(label), "expand of %u rows", row_counts[i]);
        rig.pad_multiple = multiples[i % 3];
        make_rows(&rig, row_counts[i]);
        make_uploads(&rig, row_counts[i] * 2);
        poison_tables(&rig);
        expand_device(&rig);
        cuda_rig_wait(&rig.cuda);
        expand_twin(&rig);
        check_tables(&rig, label);
        slots_twin_check_state(&rig, label);
    }
    slots_twin_close(&rig);
}

/* Patches alone, as of a step that failed; then nothing at all. */
static void test_a_step_of_patches(void)
{
    struct slots_twin rig;
    slots_twin_open(&rig, true);
    open_all(&rig);
    for (uint32_t patches = 0; patches <= SLOTS_TWIN_MAX_PATCHES;
         patches += SLOTS_TWIN_MAX_PATCHES / 2) {
        make_rows(&rig, 0);
        make_uploads(&rig, patches);
        poison_tables(&rig);
        expand_device(&rig);
        cuda_rig_wait(&rig.cuda);
        expand_twin(&rig);
        check_tables(&rig, "patches");
        slots_twin_check_state(&rig, "patches");
    }
    slots_twin_close(&rig);
}

/* Outcomes as the sampler leaves them: tokens that stop, fill up or go on, and bad rows. */
static void make_picks(struct slots_twin *rig)
{
    struct k_pick *picks = rig->arrays[SLOTS_TWIN_PICKS].host;
    const struct k_row *rows = rig->arrays[SLOTS_TWIN_ROWS].host;
    const struct k_sampler *samplers = rig->arrays[SLOTS_TWIN_SAMPLERS].host;
    for (uint32_t r = 0; r < rig->row_count; r++) {
        const struct k_sampler *sampler = &samplers[rows[r].slot];
        bool may_stop = sampler->stop_count > 0 && below(rig, 3) == 0;
        if (picks[r].outcome == K_OUTCOME_NONE && below(rig, 5) > 0) {
            picks[r].outcome = below(rig, 8) == 0 ? K_OUTCOME_BAD : K_OUTCOME_TOKEN;
            picks[r].token = may_stop ? sampler->stop_ids[sampler->stop_count - 1]
                                      : below(rig, SLOTS_TWIN_VOCAB);
        }
    }
    twin_write(&rig->arrays[SLOTS_TWIN_PICKS]);
}

static void advance_twin(const struct slots_twin *rig)
{
    struct err err = {0};
    const struct k_advance_args args = slots_twin_advance_args(rig, false);
    test_ok(k_cpu_ops()->advance(rig->twin, &args, &err), &err);
}

static void advance_device(struct slots_twin *rig)
{
    struct err err = {0};
    const struct k_advance_args args = slots_twin_advance_args(rig, true);
    test_ok(k_cuda_ops()->advance(rig->cuda.k, &args, &err), &err);
}

static void check_advanced(const struct slots_twin *rig, const char *label)
{
    struct k_pick *picks =
        slots_twin_read(rig, SLOTS_TWIN_PICKS, SLOTS_TWIN_MAX_ROWS, sizeof(*picks));
    twin_check_equal(label, picks, rig->arrays[SLOTS_TWIN_PICKS].host, rig->row_count,
                     sizeof(*picks));
    mem_free(picks);
    slots_twin_check_state(rig, label);
}

/* Steps one after another over one state, so that stops and lengths of one bear on the next. */
static void test_tails_of_random_steps(void)
{
    static const uint32_t row_counts[] = {1, 2, 7, 8, 16, 17, 33, 64, 200, 512, 513, 600, 640};
    struct slots_twin rig;
    slots_twin_open(&rig, true);
    open_all(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(row_counts); i++) {
        char label[LABEL_BYTES];
        (void)snprintf(label, sizeof(label), "advance of %u rows", row_counts[i]);
        rig.publishing = (enum slots_twin_publishing)(i / 2 % SLOTS_TWIN_PUBLISHING_COUNT);
        make_rows(&rig, row_counts[i]);
        make_uploads(&rig, 0);
        expand_twin(&rig);
        make_picks(&rig);
        advance_device(&rig);
        cuda_rig_wait(&rig.cuda);
        advance_twin(&rig);
        check_advanced(&rig, label);
    }
    slots_twin_close(&rig);
}

/* A stamp in each turn, behind the picks of its step; the other turns' stay. */
static void test_a_stamp_tells_when_a_step_ran(void)
{
    struct slots_twin rig;
    slots_twin_open(&rig, true);
    open_all(&rig);
    struct twin_buffer begin = twin_out(sizeof(uint64_t));
    struct twin_buffer stamps = twin_in(mem_zalloc(SLOTS_TWIN_TURNS, sizeof(struct k_stamp)),
                                        SLOTS_TWIN_TURNS * sizeof(struct k_stamp));
    struct k_stamp before[SLOTS_TWIN_TURNS] = {0};
    uint64_t last_ns = 0;
    for (uint32_t step = 0; step < 2 * SLOTS_TWIN_TURNS; step++) {
        struct err err = {0};
        make_rows(&rig, 9);
        make_uploads(&rig, 0);
        struct k_expand_args expand = slots_twin_expand_args(&rig, true);
        struct k_advance_args advance = slots_twin_advance_args(&rig, true);
        expand.begin_ns = begin.device;
        advance.begin_ns = begin.device;
        advance.stamps = stamps.device;
        test_ok(k_cuda_ops()->expand(rig.cuda.k, &expand, &err), &err);
        test_ok(k_cuda_ops()->advance(rig.cuda.k, &advance, &err), &err);
        cuda_rig_wait(&rig.cuda);
        struct k_stamp *after = twin_read(&stamps, sizeof(before), "stamps");
        const struct k_stamp *own = &after[step % SLOTS_TWIN_TURNS];
        test_true(own->begin_ns >= last_ns && own->begin_ns != 0 && own->end_ns >= own->begin_ns);
        last_ns = own->end_ns;
        before[step % SLOTS_TWIN_TURNS] = *own;
        test_true(memcmp(after, before, sizeof(before)) == 0);
        mem_free(after);
    }
    twin_free(&stamps);
    twin_free(&begin);
    slots_twin_close(&rig);
}

/* ---- graphs ---- */

static void record(void *context)
{
    struct slots_twin *rig = context;
    expand_device(rig);
    advance_device(rig);
}

/* Steady decode: rows that never change, lengths that the graph moves on, rows that are stopped from
 * outside between two launches, and rows of nobody that fill the bucket. */
static void check_steady_decode(uint32_t row_count, bool uses_dependent_launch)
{
    struct slots_twin rig;
    slots_twin_open(&rig, uses_dependent_launch);
    open_all(&rig);
    rig.row_count = row_count;
    struct k_row *rows = rig.arrays[SLOTS_TWIN_ROWS].host;
    uint32_t *stop_request = rig.arrays[SLOTS_TWIN_STOP_REQUEST].host;
    const uint32_t *generation = rig.arrays[SLOTS_TWIN_GENERATION].host;
    for (uint32_t r = 0; r < row_count; r++) {
        bool is_nobody = r % 4 == 3;
        rows[r] = (struct k_row){.slot = is_nobody ? 0 : r + 1,
                                 .generation = is_nobody ? 0 : generation[r + 1],
                                 .count = 1,
                                 .first_id = K_NONE,
                                 .mask_row = K_NONE,
                                 .flags = K_ROW_SAMPLES};
    }
    twin_write(&rig.arrays[SLOTS_TWIN_ROWS]);
    struct cuda_rig_graph *graph = cuda_rig_capture(&rig.cuda, record, &rig);
    for (uint32_t turn = 0; turn < 5; turn++) {
        uint32_t stopping = turn * 3 % row_count;
        stop_request[rows[stopping].slot] = rows[stopping].generation;
        twin_write(&rig.arrays[SLOTS_TWIN_STOP_REQUEST]);
        poison_tables(&rig);
        cuda_rig_launch(&rig.cuda, graph);
        cuda_rig_wait(&rig.cuda);
        expand_twin(&rig);
        struct k_pick *expanded = mem_zalloc(row_count, sizeof(*expanded));
        memcpy(expanded, rig.arrays[SLOTS_TWIN_PICKS].host, row_count * sizeof(*expanded));
        advance_twin(&rig);
        check_tables(&rig, "a step of the graph");
        slots_twin_check_state(&rig, "a step of the graph");
        twin_check_equal("picks of a row not sampled", rig.arrays[SLOTS_TWIN_PICKS].host, expanded,
                         row_count, sizeof(*expanded));
        mem_free(expanded);
    }
    cuda_rig_graph_free(graph);
    slots_twin_close(&rig);
}

static void test_a_graph_moves_slots_on(void)
{
    check_steady_decode(1, true);
    check_steady_decode(8, true);
    check_steady_decode(24, false);
}

/* ---- that these tests can fail ---- */

/* Every byte of the state and of the rows' picks is under the comparison. */
static void test_planted_errors_are_seen(void)
{
    struct slots_twin rig;
    slots_twin_open(&rig, true);
    open_all(&rig);
    make_rows(&rig, 33);
    make_uploads(&rig, 40);
    poison_tables(&rig);
    expand_device(&rig);
    cuda_rig_wait(&rig.cuda);
    expand_twin(&rig);
    check_tables(&rig, "before");
    slots_twin_check_state(&rig, "before");
    for (int array = 0; array < SLOTS_TWIN_STATE_COUNT; array++) {
        const struct twin_buffer *buffer = &rig.arrays[array];
        unsigned char *got = twin_read(buffer, buffer->bytes, "planted");
        test_true(memcmp(got, buffer->host, buffer->bytes) == 0);
        got[buffer->bytes - 1] ^= 1;
        test_true(memcmp(got, buffer->host, buffer->bytes) != 0);
        mem_free(got);
    }
    slots_twin_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_opening),
    TEST(test_a_slot_that_is_none_is_refused),
    TEST(test_prologues_of_random_steps),
    TEST(test_a_step_of_patches),
    TEST(test_tails_of_random_steps),
    TEST(test_a_stamp_tells_when_a_step_ran),
    TEST(test_a_graph_moves_slots_on),
    TEST(test_planted_errors_are_seen),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
