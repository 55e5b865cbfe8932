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
#include "tests/testlib/test.h"

#define SEED         97
#define VOCAB        1000
#define SLOTS        640
#define MAX_ROWS     SLOTS
#define MAX_IDS      4096 /* of prompts in a step */
#define MAX_TOKENS   (MAX_IDS + MAX_ROWS + 64)
#define MAX_PATCHES  1500
#define LOCAL_PAGES  7
#define GLOBAL_PAGES 12
#define TURNS        3
#define LABEL_BYTES  96

enum publishing {
    PUBLISHES_IN_TURN,
    PUBLISHES_IN_ONE_ROW,
    PUBLISHES_NOTHING,
    PUBLISHING_COUNT,
};

enum array {
    ARRAY_NEXT_TOKEN,
    ARRAY_LENGTH,
    ARRAY_GENERATION,
    ARRAY_STOPPED,
    ARRAY_STOP_REQUEST,
    ARRAY_SAMPLERS,
    ARRAY_COUNTS,
    ARRAY_LOCAL_TABLE,
    ARRAY_GLOBAL_TABLE,
    ARRAY_TURN,
    ARRAY_PUBLISHED,
    ARRAY_STATE_COUNT, /* of the above: what lives from step to step */
    ARRAY_PATCHES = ARRAY_STATE_COUNT,
    ARRAY_ROWS,
    ARRAY_PROMPT_IDS,
    ARRAY_NEXT_IDS,
    ARRAY_IDS,
    ARRAY_POSITIONS,
    ARRAY_TOKEN_SLOTS,
    ARRAY_PICKS,
    ARRAY_SAMPLE_ROWS,
    ARRAY_SAMPLE_TOKENS,
    ARRAY_SAMPLE_LOGPROBS,
    ARRAY_PROMPT_TOKENS,
    ARRAY_PROMPT_LOGPROBS,
    ARRAY_STEP_COUNTS,
    ARRAY_COUNT,
};

static const char *const array_names[] = {
    [ARRAY_NEXT_TOKEN] = "next_token",
    [ARRAY_LENGTH] = "length",
    [ARRAY_GENERATION] = "generation",
    [ARRAY_STOPPED] = "stopped",
    [ARRAY_STOP_REQUEST] = "stop_request",
    [ARRAY_SAMPLERS] = "samplers",
    [ARRAY_COUNTS] = "counts",
    [ARRAY_LOCAL_TABLE] = "local table",
    [ARRAY_GLOBAL_TABLE] = "global table",
    [ARRAY_TURN] = "turn",
    [ARRAY_PUBLISHED] = "published",
    [ARRAY_PATCHES] = "patches",
    [ARRAY_ROWS] = "rows",
    [ARRAY_PROMPT_IDS] = "prompt_ids",
    [ARRAY_NEXT_IDS] = "next_ids",
    [ARRAY_IDS] = "ids",
    [ARRAY_POSITIONS] = "positions",
    [ARRAY_TOKEN_SLOTS] = "token_slots",
    [ARRAY_PICKS] = "picks",
    [ARRAY_SAMPLE_ROWS] = "sample_rows",
    [ARRAY_SAMPLE_TOKENS] = "sample_tokens",
    [ARRAY_SAMPLE_LOGPROBS] = "sample_logprobs",
    [ARRAY_PROMPT_TOKENS] = "prompt_tokens",
    [ARRAY_PROMPT_LOGPROBS] = "prompt_logprobs",
    [ARRAY_STEP_COUNTS] = "step counts",
};

struct rig {
    struct cuda_rig cuda;
    struct k_stream *twin;
    struct twin_buffer arrays[ARRAY_COUNT];
    uint32_t row_count;
    uint32_t patch_count;
    uint32_t pad_multiple;
    enum publishing publishing;
    uint64_t random;
};

/* ---- both sides ---- */

static void *array_at(const struct rig *rig, enum array array, bool is_on_device)
{
    const struct twin_buffer *buffer = &rig->arrays[array];
    return is_on_device ? buffer->device : buffer->host;
}

static struct k_slots slots_of(const struct rig *rig, bool is_on_device)
{
    return (struct k_slots){
        .slot_count = SLOTS,
        .vocab_tokens = VOCAB,
        .next_token = array_at(rig, ARRAY_NEXT_TOKEN, is_on_device),
        .length = array_at(rig, ARRAY_LENGTH, is_on_device),
        .generation = array_at(rig, ARRAY_GENERATION, is_on_device),
        .stopped = array_at(rig, ARRAY_STOPPED, is_on_device),
        .stop_request = array_at(rig, ARRAY_STOP_REQUEST, is_on_device),
        .samplers = array_at(rig, ARRAY_SAMPLERS, is_on_device),
        .counts = array_at(rig, ARRAY_COUNTS, is_on_device),
    };
}

static struct k_expand_args expand_args(const struct rig *rig, bool is_on_device)
{
    return (struct k_expand_args){
        .slots = slots_of(rig, is_on_device),
        .patches = array_at(rig, ARRAY_PATCHES, is_on_device),
        .patch_count = rig->patch_count,
        .page_tables = {array_at(rig, ARRAY_LOCAL_TABLE, is_on_device),
                        array_at(rig, ARRAY_GLOBAL_TABLE, is_on_device)},
        .table_pages = {LOCAL_PAGES, GLOBAL_PAGES},
        .rows = array_at(rig, ARRAY_ROWS, is_on_device),
        .row_count = rig->row_count,
        .pad_tokens_multiple = rig->pad_multiple,
        .prompt_ids = array_at(rig, ARRAY_PROMPT_IDS, is_on_device),
        .next_ids = array_at(rig, ARRAY_NEXT_IDS, is_on_device),
        .ids = array_at(rig, ARRAY_IDS, is_on_device),
        .positions = array_at(rig, ARRAY_POSITIONS, is_on_device),
        .token_slots = array_at(rig, ARRAY_TOKEN_SLOTS, is_on_device),
        .picks = array_at(rig, ARRAY_PICKS, is_on_device),
        .sample_rows = array_at(rig, ARRAY_SAMPLE_ROWS, is_on_device),
        .sample_tokens = array_at(rig, ARRAY_SAMPLE_TOKENS, is_on_device),
        .sample_logprobs = array_at(rig, ARRAY_SAMPLE_LOGPROBS, is_on_device),
        .prompt_tokens = array_at(rig, ARRAY_PROMPT_TOKENS, is_on_device),
        .prompt_logprobs = array_at(rig, ARRAY_PROMPT_LOGPROBS, is_on_device),
        .counts = array_at(rig, ARRAY_STEP_COUNTS, is_on_device),
    };
}

static struct k_advance_args advance_args(const struct rig *rig, bool is_on_device)
{
    bool publishes = rig->publishing != PUBLISHES_NOTHING;
    bool turns = rig->publishing == PUBLISHES_IN_TURN;
    return (struct k_advance_args){
        .slots = slots_of(rig, is_on_device),
        .rows = array_at(rig, ARRAY_ROWS, is_on_device),
        .row_count = rig->row_count,
        .picks = array_at(rig, ARRAY_PICKS, is_on_device),
        .published = publishes ? array_at(rig, ARRAY_PUBLISHED, is_on_device) : NULL,
        .turn = turns ? array_at(rig, ARRAY_TURN, is_on_device) : NULL,
        .turns = TURNS,
        .turn_rows = MAX_ROWS,
    };
}

static size_t bytes_of(enum array array)
{
    static const size_t bytes[] = {
        [ARRAY_NEXT_TOKEN] = SLOTS * sizeof(uint32_t),
        [ARRAY_LENGTH] = SLOTS * sizeof(uint32_t),
        [ARRAY_GENERATION] = SLOTS * sizeof(uint32_t),
        [ARRAY_STOPPED] = SLOTS * sizeof(uint32_t),
        [ARRAY_STOP_REQUEST] = SLOTS * sizeof(uint32_t),
        [ARRAY_SAMPLERS] = SLOTS * sizeof(struct k_sampler),
        [ARRAY_COUNTS] = sizeof(uint32_t) * SLOTS * VOCAB,
        [ARRAY_LOCAL_TABLE] = sizeof(uint32_t) * SLOTS * LOCAL_PAGES,
        [ARRAY_GLOBAL_TABLE] = sizeof(uint32_t) * SLOTS * GLOBAL_PAGES,
        [ARRAY_TURN] = sizeof(uint32_t),
        [ARRAY_PUBLISHED] = sizeof(struct k_pick) * TURNS * MAX_ROWS,
        [ARRAY_PATCHES] = MAX_PATCHES * sizeof(struct k_patch),
        [ARRAY_ROWS] = MAX_ROWS * sizeof(struct k_row),
        [ARRAY_PROMPT_IDS] = MAX_IDS * sizeof(uint32_t),
        [ARRAY_NEXT_IDS] = MAX_IDS * sizeof(uint32_t),
        [ARRAY_IDS] = MAX_TOKENS * sizeof(uint32_t),
        [ARRAY_POSITIONS] = MAX_TOKENS * sizeof(uint32_t),
        [ARRAY_TOKEN_SLOTS] = MAX_TOKENS * sizeof(uint32_t),
        [ARRAY_PICKS] = MAX_ROWS * sizeof(struct k_pick),
        [ARRAY_SAMPLE_ROWS] = MAX_ROWS * sizeof(struct k_sample_row),
        [ARRAY_SAMPLE_TOKENS] = MAX_ROWS * sizeof(uint32_t),
        [ARRAY_SAMPLE_LOGPROBS] = MAX_ROWS * sizeof(struct k_logprob_row),
        [ARRAY_PROMPT_TOKENS] = MAX_IDS * sizeof(uint32_t),
        [ARRAY_PROMPT_LOGPROBS] = MAX_IDS * sizeof(struct k_logprob_row),
        [ARRAY_STEP_COUNTS] = sizeof(struct k_step_counts),
    };
    return bytes[array];
}

static void rig_open(struct rig *rig, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = {
        .max_tokens = 256,
        .max_rows = 16,
        .slots = SLOTS,
        .max_context_tokens = 1024,
        .hidden_elems = 64,
        .max_linear_out_elems = 64,
        .heads = 2,
        .max_head_dim = 256,
        .max_kv_heads = 1,
        .vocab_tokens = VOCAB,
    };
    *rig = (struct rig){.pad_multiple = 1, .random = SEED};
    cuda_rig_open(&rig->cuda, &shape, uses_dependent_launch);
    rig->twin = twin_stream(VOCAB, 0.0F);
    for (int array = 0; array < ARRAY_COUNT; array++) {
        size_t bytes = bytes_of((enum array)array);
        rig->arrays[array] =
            array < ARRAY_STATE_COUNT ? twin_in(mem_zalloc(bytes, 1), bytes) : twin_out(bytes);
    }
}

static void rig_close(struct rig *rig)
{
    for (int array = 0; array < ARRAY_COUNT; array++) {
        twin_free(&rig->arrays[array]);
    }
    k_cpu_stream_destroy(rig->twin);
    cuda_rig_close(&rig->cuda);
}

/* The state's bytes are equal on both sides. */
static void check_state(const struct rig *rig, const char *label)
{
    for (int array = 0; array < ARRAY_STATE_COUNT; array++) {
        const struct twin_buffer *buffer = &rig->arrays[array];
        char text[2 * LABEL_BYTES];
        (void)snprintf(text, sizeof(text), "%s: %s", label, array_names[array]);
        uint32_t *got = twin_read(buffer, buffer->bytes, text);
        twin_check_equal(text, got, buffer->host, buffer->bytes / sizeof(*got), sizeof(*got));
        mem_free(got);
    }
}

static uint32_t below(struct rig *rig, uint32_t limit)
{
    return twin_random_below(&rig->random, limit);
}

/* ---- opening ---- */

static struct k_sampler *random_sampler(struct rig *rig)
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
        sampler->stop_ids[i] = below(rig, VOCAB);
    }
    sampler->bias_count = 1;
    sampler->bias_ids[K_MAX_BIAS - 1] = 77; /* the last words are copied too */
    sampler->bias_values[K_MAX_BIAS - 1] = -1.5F;
    return sampler;
}

/* On both sides.  sampler is freed. */
static void open_slot(struct rig *rig, uint32_t slot, uint32_t generation,
                      struct k_sampler *sampler, uint32_t context_count)
{
    struct err err = {0};
    uint32_t *context = mem_zalloc(context_count + 1UL, sizeof(*context));
    for (uint32_t i = 0; i < context_count; i++) {
        context[i] = i % 3 == 0 ? below(rig, 5) : below(rig, VOCAB);
    }
    struct twin_buffer context_copy = twin_in(context, (context_count + 1UL) * sizeof(*context));
    struct twin_buffer sampler_copy = twin_in(sampler, sizeof(*sampler));
    struct k_open_args args = {
        .slots = slots_of(rig, false),
        .slot = slot,
        .generation = generation,
        .sampler = sampler,
        .context = context,
        .context_count = context_count,
    };
    test_ok(k_cpu_ops()->open(rig->twin, &args, &err), &err);
    args.slots = slots_of(rig, true);
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
        struct rig rig;
        rig_open(&rig, is_dependent == 1);
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t slot = i % 10 == 9 ? SLOTS - 1 : i % 10;
            char label[LABEL_BYTES];
            (void)snprintf(label, sizeof(label), "open slot %u, time %u", slot, i / 10);
            open_slot(&rig, slot, i + 1, random_sampler(&rig),
                      contexts[i % TWIN_COUNT_OF(contexts)]);
            check_state(&rig, label);
        }
        rig_close(&rig);
    }
}

static void test_a_slot_that_is_none_is_refused(void)
{
    struct err err = {0};
    struct rig rig;
    rig_open(&rig, false);
    const struct k_open_args args = {.slots = slots_of(&rig, true), .slot = SLOTS};
    test_eq_u64(k_cuda_ops()->open(rig.cuda.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "open: slot 640 of 640");
    check_state(&rig, "a slot refused");
    if (cuda_rig_is_stand_in()) {
        open_slot(&rig, 0, 1, random_sampler(&rig), 0); /* planted errors show here */
        check_state(&rig, "another slot");
    }
    rig_close(&rig);
}

/* ---- steps ---- */

/* Every slot opened, at lengths of their own, some stopped. */
static void open_all(struct rig *rig)
{
    uint32_t *length = rig->arrays[ARRAY_LENGTH].host;
    uint32_t *next_token = rig->arrays[ARRAY_NEXT_TOKEN].host;
    uint32_t *generation = rig->arrays[ARRAY_GENERATION].host;
    uint32_t *stopped = rig->arrays[ARRAY_STOPPED].host;
    struct k_sampler *samplers = rig->arrays[ARRAY_SAMPLERS].host;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct k_sampler *sampler = random_sampler(rig);
        samplers[slot] = *sampler;
        mem_free(sampler);
        length[slot] = below(rig, 60);
        next_token[slot] = below(rig, VOCAB);
        generation[slot] = 1 + below(rig, 3);
        stopped[slot] = below(rig, 8) == 0 ? 1 : 0;
    }
    for (int array = 0; array < ARRAY_STATE_COUNT; array++) {
        twin_write(&rig->arrays[array]);
    }
}

/* Rows of distinct slots: decode rows, prompts, held ones, and rows of sequences that are gone. */
static void make_rows(struct rig *rig, uint32_t row_count)
{
    struct k_row *rows = rig->arrays[ARRAY_ROWS].host;
    uint32_t *stop_request = rig->arrays[ARRAY_STOP_REQUEST].host;
    const uint32_t *generation = rig->arrays[ARRAY_GENERATION].host;
    uint32_t first_slot = below(rig, SLOTS);
    uint32_t ids = 0;
    memset(rows, 0xff, rig->arrays[ARRAY_ROWS].bytes);
    rig->row_count = row_count;
    for (uint32_t r = 0; r < row_count; r++) {
        uint32_t slot = (first_slot + r * 7) % SLOTS; /* 7 and 640 have no common factor */
        bool is_prompt = below(rig, 3) == 0 && ids + 1200 < MAX_IDS;
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
    twin_write(&rig->arrays[ARRAY_ROWS]);
    twin_write(&rig->arrays[ARRAY_STOP_REQUEST]);
}

static void make_uploads(struct rig *rig, uint32_t patch_count)
{
    struct k_patch *patches = rig->arrays[ARRAY_PATCHES].host;
    uint32_t *prompt_ids = rig->arrays[ARRAY_PROMPT_IDS].host;
    uint32_t *next_ids = rig->arrays[ARRAY_NEXT_IDS].host;
    rig->patch_count = patch_count;
    for (uint32_t i = 0; i < patch_count; i++) {
        uint32_t family = i % 2;
        uint32_t pages = family == 0 ? LOCAL_PAGES : GLOBAL_PAGES;
        uint32_t at = i / 2 * 31 % (SLOTS * pages); /* no entry twice */
        patches[i] = (struct k_patch){at / pages, family, at % pages, below(rig, 1000)};
    }
    for (uint32_t i = 0; i < MAX_IDS; i++) {
        prompt_ids[i] = below(rig, VOCAB);
        next_ids[i] = i % 11 == 10 ? K_NONE : prompt_ids[i] + 1;
    }
    twin_write(&rig->arrays[ARRAY_PATCHES]);
    twin_write(&rig->arrays[ARRAY_PROMPT_IDS]);
    twin_write(&rig->arrays[ARRAY_NEXT_IDS]);
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

static void *read_used(const struct rig *rig, enum array array, uint32_t count, size_t elem_bytes)
{
    return twin_read(&rig->arrays[array], count * elem_bytes, array_names[array]);
}

static void tables_read(const struct rig *rig, struct step_tables *out)
{
    struct k_step_counts *counts = read_used(rig, ARRAY_STEP_COUNTS, 1, sizeof(*counts));
    *out = (struct step_tables){.counts = *counts};
    mem_free(counts);
    test_true(out->counts.tokens <= MAX_TOKENS && out->counts.sample_rows <= rig->row_count &&
              out->counts.prompt_logprob_rows <= MAX_IDS);
    out->ids = read_used(rig, ARRAY_IDS, out->counts.tokens, sizeof(uint32_t));
    out->positions = read_used(rig, ARRAY_POSITIONS, out->counts.tokens, sizeof(uint32_t));
    out->token_slots = read_used(rig, ARRAY_TOKEN_SLOTS, out->counts.tokens, sizeof(uint32_t));
    out->picks = read_used(rig, ARRAY_PICKS, rig->row_count, sizeof(struct k_pick));
    out->sample_rows =
        read_used(rig, ARRAY_SAMPLE_ROWS, out->counts.sample_rows, sizeof(struct k_sample_row));
    out->sample_tokens =
        read_used(rig, ARRAY_SAMPLE_TOKENS, out->counts.sample_rows, sizeof(uint32_t));
    out->sample_logprobs = read_used(rig, ARRAY_SAMPLE_LOGPROBS, out->counts.sample_rows,
                                     sizeof(struct k_logprob_row));
    out->prompt_tokens =
        read_used(rig, ARRAY_PROMPT_TOKENS, out->counts.prompt_logprob_rows, sizeof(uint32_t));
    out->prompt_logprobs = read_used(rig, ARRAY_PROMPT_LOGPROBS, out->counts.prompt_logprob_rows,
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

static void check_tokens(const struct rig *rig, const struct step_tables *got, struct walk *walk,
                         uint32_t row_index)
{
    const struct k_expand_args twin = expand_args(rig, false);
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

static void check_sampled(const struct rig *rig, const struct step_tables *got, struct walk *walk,
                          uint32_t row_index)
{
    const struct k_expand_args twin = expand_args(rig, false);
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
static void check_padding(const struct rig *rig, const struct step_tables *got,
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

static void check_tables(const struct rig *rig, const char *label)
{
    struct step_tables got;
    struct walk walk = {0};
    tables_read(rig, &got);
    twin_check_equal(label, got.picks, rig->arrays[ARRAY_PICKS].host, rig->row_count,
                     sizeof(struct k_pick));
    for (uint32_t row = 0; row < rig->row_count; row++) {
        check_tokens(rig, &got, &walk, row);
        check_sampled(rig, &got, &walk, row);
    }
    check_padding(rig, &got, &walk);
    tables_free(&got);
}

static void expand_twin(const struct rig *rig)
{
    struct err err = {0};
    struct k_expand_args args = expand_args(rig, false);
    args.pad_tokens_multiple = 1;
    test_ok(k_cpu_ops()->expand(rig->twin, &args, &err), &err);
}

static void expand_device(struct rig *rig)
{
    struct err err = {0};
    const struct k_expand_args args = expand_args(rig, true);
    test_ok(k_cuda_ops()->expand(rig->cuda.k, &args, &err), &err);
}

static void poison_tables(const struct rig *rig)
{
    for (int array = ARRAY_IDS; array < ARRAY_COUNT; array++) {
        twin_poison(&rig->arrays[array]);
    }
}

static void test_prologues_of_random_steps(void)
{
    static const uint32_t row_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11, 12,
                                          13, 14, 15, 16, 17, 33, 64, 200, 512, 513, 600};
    static const uint32_t multiples[] = {1, 8, 64};
    struct rig rig;
    rig_open(&rig, true);
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
        check_state(&rig, label);
    }
    rig_close(&rig);
}

/* Patches alone, as of a step that failed; then nothing at all. */
static void test_a_step_of_patches(void)
{
    struct rig rig;
    rig_open(&rig, true);
    open_all(&rig);
    for (uint32_t patches = 0; patches <= MAX_PATCHES; patches += MAX_PATCHES / 2) {
        make_rows(&rig, 0);
        make_uploads(&rig, patches);
        poison_tables(&rig);
        expand_device(&rig);
        cuda_rig_wait(&rig.cuda);
        expand_twin(&rig);
        check_tables(&rig, "patches");
        check_state(&rig, "patches");
    }
    rig_close(&rig);
}

/* Outcomes as the sampler leaves them: tokens that stop, fill up or go on, and bad rows. */
static void make_picks(struct rig *rig)
{
    struct k_pick *picks = rig->arrays[ARRAY_PICKS].host;
    const struct k_row *rows = rig->arrays[ARRAY_ROWS].host;
    const struct k_sampler *samplers = rig->arrays[ARRAY_SAMPLERS].host;
    for (uint32_t r = 0; r < rig->row_count; r++) {
        const struct k_sampler *sampler = &samplers[rows[r].slot];
        bool may_stop = sampler->stop_count > 0 && below(rig, 3) == 0;
        if (picks[r].outcome == K_OUTCOME_NONE && below(rig, 5) > 0) {
            picks[r].outcome = below(rig, 8) == 0 ? K_OUTCOME_BAD : K_OUTCOME_TOKEN;
            picks[r].token =
                may_stop ? sampler->stop_ids[sampler->stop_count - 1] : below(rig, VOCAB);
        }
    }
    twin_write(&rig->arrays[ARRAY_PICKS]);
}

static void advance_twin(const struct rig *rig)
{
    struct err err = {0};
    const struct k_advance_args args = advance_args(rig, false);
    test_ok(k_cpu_ops()->advance(rig->twin, &args, &err), &err);
}

static void advance_device(struct rig *rig)
{
    struct err err = {0};
    const struct k_advance_args args = advance_args(rig, true);
    test_ok(k_cuda_ops()->advance(rig->cuda.k, &args, &err), &err);
}

static void check_advanced(const struct rig *rig, const char *label)
{
    struct k_pick *picks = read_used(rig, ARRAY_PICKS, MAX_ROWS, sizeof(*picks));
    twin_check_equal(label, picks, rig->arrays[ARRAY_PICKS].host, rig->row_count, sizeof(*picks));
    mem_free(picks);
    check_state(rig, label);
}

/* Steps one after another over one state, so that stops and lengths of one bear on the next. */
static void test_tails_of_random_steps(void)
{
    static const uint32_t row_counts[] = {1, 2, 7, 8, 16, 17, 33, 64, 200, 512, 513, 600, 640};
    struct rig rig;
    rig_open(&rig, true);
    open_all(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(row_counts); i++) {
        char label[LABEL_BYTES];
        (void)snprintf(label, sizeof(label), "advance of %u rows", row_counts[i]);
        rig.publishing = (enum publishing)(i / 2 % PUBLISHING_COUNT);
        make_rows(&rig, row_counts[i]);
        make_uploads(&rig, 0);
        expand_twin(&rig);
        make_picks(&rig);
        advance_device(&rig);
        cuda_rig_wait(&rig.cuda);
        advance_twin(&rig);
        check_advanced(&rig, label);
    }
    rig_close(&rig);
}

/* A stamp in each turn, behind the picks of its step; the other turns' stay. */
static void test_a_stamp_tells_when_a_step_ran(void)
{
    struct rig rig;
    rig_open(&rig, true);
    open_all(&rig);
    struct twin_buffer begin = twin_out(sizeof(uint64_t));
    struct twin_buffer stamps =
        twin_in(mem_zalloc(TURNS, sizeof(struct k_stamp)), TURNS * sizeof(struct k_stamp));
    struct k_stamp before[TURNS] = {0};
    uint64_t last_ns = 0;
    for (uint32_t step = 0; step < 2 * TURNS; step++) {
        struct err err = {0};
        make_rows(&rig, 9);
        make_uploads(&rig, 0);
        struct k_expand_args expand = expand_args(&rig, true);
        struct k_advance_args advance = advance_args(&rig, true);
        expand.begin_ns = begin.device;
        advance.begin_ns = begin.device;
        advance.stamps = stamps.device;
        test_ok(k_cuda_ops()->expand(rig.cuda.k, &expand, &err), &err);
        test_ok(k_cuda_ops()->advance(rig.cuda.k, &advance, &err), &err);
        cuda_rig_wait(&rig.cuda);
        struct k_stamp *after = twin_read(&stamps, sizeof(before), "stamps");
        const struct k_stamp *own = &after[step % TURNS];
        test_true(own->begin_ns >= last_ns && own->begin_ns != 0 && own->end_ns >= own->begin_ns);
        last_ns = own->end_ns;
        before[step % TURNS] = *own;
        test_true(memcmp(after, before, sizeof(before)) == 0);
        mem_free(after);
    }
    twin_free(&stamps);
    twin_free(&begin);
    rig_close(&rig);
}

/* ---- graphs ---- */

static void record(void *context)
{
    struct rig *rig = context;
    expand_device(rig);
    advance_device(rig);
}

/* Steady decode: rows that never change, lengths that the graph moves on, rows that are stopped from
 * outside between two launches, and rows of nobody that fill the bucket. */
static void check_steady_decode(uint32_t row_count, bool uses_dependent_launch)
{
    struct rig rig;
    rig_open(&rig, uses_dependent_launch);
    open_all(&rig);
    rig.row_count = row_count;
    struct k_row *rows = rig.arrays[ARRAY_ROWS].host;
    uint32_t *stop_request = rig.arrays[ARRAY_STOP_REQUEST].host;
    const uint32_t *generation = rig.arrays[ARRAY_GENERATION].host;
    for (uint32_t r = 0; r < row_count; r++) {
        bool is_nobody = r % 4 == 3;
        rows[r] = (struct k_row){.slot = is_nobody ? 0 : r + 1,
                                 .generation = is_nobody ? 0 : generation[r + 1],
                                 .count = 1,
                                 .first_id = K_NONE,
                                 .mask_row = K_NONE,
                                 .flags = K_ROW_SAMPLES};
    }
    twin_write(&rig.arrays[ARRAY_ROWS]);
    struct cuda_rig_graph *graph = cuda_rig_capture(&rig.cuda, record, &rig);
    for (uint32_t turn = 0; turn < 5; turn++) {
        uint32_t stopping = turn * 3 % row_count;
        stop_request[rows[stopping].slot] = rows[stopping].generation;
        twin_write(&rig.arrays[ARRAY_STOP_REQUEST]);
        poison_tables(&rig);
        cuda_rig_launch(&rig.cuda, graph);
        cuda_rig_wait(&rig.cuda);
        expand_twin(&rig);
        struct k_pick *expanded = mem_zalloc(row_count, sizeof(*expanded));
        memcpy(expanded, rig.arrays[ARRAY_PICKS].host, row_count * sizeof(*expanded));
        advance_twin(&rig);
        check_tables(&rig, "a step of the graph");
        check_state(&rig, "a step of the graph");
        twin_check_equal("picks of a row not sampled", rig.arrays[ARRAY_PICKS].host, expanded,
                         row_count, sizeof(*expanded));
        mem_free(expanded);
    }
    cuda_rig_graph_free(graph);
    rig_close(&rig);
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
    struct rig rig;
    rig_open(&rig, true);
    open_all(&rig);
    make_rows(&rig, 33);
    make_uploads(&rig, 40);
    poison_tables(&rig);
    expand_device(&rig);
    cuda_rig_wait(&rig.cuda);
    expand_twin(&rig);
    check_tables(&rig, "before");
    check_state(&rig, "before");
    for (int array = 0; array < ARRAY_STATE_COUNT; array++) {
        const struct twin_buffer *buffer = &rig.arrays[array];
        unsigned char *got = twin_read(buffer, buffer->bytes, "planted");
        test_true(memcmp(got, buffer->host, buffer->bytes) == 0);
        got[buffer->bytes - 1] ^= 1;
        test_true(memcmp(got, buffer->host, buffer->bytes) != 0);
        mem_free(got);
    }
    rig_close(&rig);
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
