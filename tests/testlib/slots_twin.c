#include "tests/testlib/slots_twin.h"

#include <stdio.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"

#define SEED        97
#define LABEL_BYTES 192

static const char *const array_names[] = {
    [SLOTS_TWIN_NEXT_TOKEN] = "next_token",
    [SLOTS_TWIN_LENGTH] = "length",
    [SLOTS_TWIN_GENERATION] = "generation",
    [SLOTS_TWIN_STOPPED] = "stopped",
    [SLOTS_TWIN_STOP_REQUEST] = "stop_request",
    [SLOTS_TWIN_SAMPLERS] = "samplers",
    [SLOTS_TWIN_COUNTS] = "counts",
    [SLOTS_TWIN_LOCAL_TABLE] = "local table",
    [SLOTS_TWIN_GLOBAL_TABLE] = "global table",
    [SLOTS_TWIN_TURN] = "turn",
    [SLOTS_TWIN_PUBLISHED] = "published",
    [SLOTS_TWIN_PATCHES] = "patches",
    [SLOTS_TWIN_ROWS] = "rows",
    [SLOTS_TWIN_PROMPT_IDS] = "prompt_ids",
    [SLOTS_TWIN_NEXT_IDS] = "next_ids",
    [SLOTS_TWIN_IDS] = "ids",
    [SLOTS_TWIN_POSITIONS] = "positions",
    [SLOTS_TWIN_TOKEN_SLOTS] = "token_slots",
    [SLOTS_TWIN_PICKS] = "picks",
    [SLOTS_TWIN_SAMPLE_ROWS] = "sample_rows",
    [SLOTS_TWIN_SAMPLE_TOKENS] = "sample_tokens",
    [SLOTS_TWIN_SAMPLE_LOGPROBS] = "sample_logprobs",
    [SLOTS_TWIN_PROMPT_TOKENS] = "prompt_tokens",
    [SLOTS_TWIN_PROMPT_LOGPROBS] = "prompt_logprobs",
    [SLOTS_TWIN_STEP_COUNTS] = "step counts",
};

static void *array_at(const struct slots_twin *rig, enum slots_twin_array array, bool is_on_device)
{
    const struct twin_buffer *buffer = &rig->arrays[array];
    return is_on_device ? buffer->device : buffer->host;
}

struct k_slots slots_twin_slots(const struct slots_twin *rig, bool is_on_device)
{
    return (struct k_slots){
        .slot_count = SLOTS_TWIN_SLOTS,
        .vocab_tokens = SLOTS_TWIN_VOCAB,
        .next_token = array_at(rig, SLOTS_TWIN_NEXT_TOKEN, is_on_device),
        .length = array_at(rig, SLOTS_TWIN_LENGTH, is_on_device),
        .generation = array_at(rig, SLOTS_TWIN_GENERATION, is_on_device),
        .stopped = array_at(rig, SLOTS_TWIN_STOPPED, is_on_device),
        .stop_request = array_at(rig, SLOTS_TWIN_STOP_REQUEST, is_on_device),
        .samplers = array_at(rig, SLOTS_TWIN_SAMPLERS, is_on_device),
        .counts = array_at(rig, SLOTS_TWIN_COUNTS, is_on_device),
    };
}

struct k_expand_args slots_twin_expand_args(const struct slots_twin *rig, bool is_on_device)
{
    return (struct k_expand_args){
        .slots = slots_twin_slots(rig, is_on_device),
        .patches = array_at(rig, SLOTS_TWIN_PATCHES, is_on_device),
        .patch_count = rig->patch_count,
        .page_tables = {array_at(rig, SLOTS_TWIN_LOCAL_TABLE, is_on_device),
                        array_at(rig, SLOTS_TWIN_GLOBAL_TABLE, is_on_device)},
        .table_pages = {SLOTS_TWIN_LOCAL_PAGES, SLOTS_TWIN_GLOBAL_PAGES},
        .rows = array_at(rig, SLOTS_TWIN_ROWS, is_on_device),
        .row_count = rig->row_count,
        .pad_tokens_multiple = rig->pad_multiple,
        .prompt_ids = array_at(rig, SLOTS_TWIN_PROMPT_IDS, is_on_device),
        .next_ids = array_at(rig, SLOTS_TWIN_NEXT_IDS, is_on_device),
        .ids = array_at(rig, SLOTS_TWIN_IDS, is_on_device),
        .positions = array_at(rig, SLOTS_TWIN_POSITIONS, is_on_device),
        .token_slots = array_at(rig, SLOTS_TWIN_TOKEN_SLOTS, is_on_device),
        .picks = array_at(rig, SLOTS_TWIN_PICKS, is_on_device),
        .sample_rows = array_at(rig, SLOTS_TWIN_SAMPLE_ROWS, is_on_device),
        .sample_tokens = array_at(rig, SLOTS_TWIN_SAMPLE_TOKENS, is_on_device),
        .sample_logprobs = array_at(rig, SLOTS_TWIN_SAMPLE_LOGPROBS, is_on_device),
        .prompt_tokens = array_at(rig, SLOTS_TWIN_PROMPT_TOKENS, is_on_device),
        .prompt_logprobs = array_at(rig, SLOTS_TWIN_PROMPT_LOGPROBS, is_on_device),
        .counts = array_at(rig, SLOTS_TWIN_STEP_COUNTS, is_on_device),
    };
}

struct k_advance_args slots_twin_advance_args(const struct slots_twin *rig, bool is_on_device)
{
    bool publishes = rig->publishing != SLOTS_TWIN_PUBLISHES_NOTHING;
    bool turns = rig->publishing == SLOTS_TWIN_PUBLISHES_IN_TURN;
    return (struct k_advance_args){
        .slots = slots_twin_slots(rig, is_on_device),
        .rows = array_at(rig, SLOTS_TWIN_ROWS, is_on_device),
        .row_count = rig->row_count,
        .picks = array_at(rig, SLOTS_TWIN_PICKS, is_on_device),
        .published = publishes ? array_at(rig, SLOTS_TWIN_PUBLISHED, is_on_device) : NULL,
        .turn = turns ? array_at(rig, SLOTS_TWIN_TURN, is_on_device) : NULL,
        .turns = SLOTS_TWIN_TURNS,
        .turn_rows = SLOTS_TWIN_MAX_ROWS,
    };
}

static size_t bytes_of(enum slots_twin_array array)
{
    static const size_t bytes[] = {
        [SLOTS_TWIN_NEXT_TOKEN] = SLOTS_TWIN_SLOTS * sizeof(uint32_t),
        [SLOTS_TWIN_LENGTH] = SLOTS_TWIN_SLOTS * sizeof(uint32_t),
        [SLOTS_TWIN_GENERATION] = SLOTS_TWIN_SLOTS * sizeof(uint32_t),
        [SLOTS_TWIN_STOPPED] = SLOTS_TWIN_SLOTS * sizeof(uint32_t),
        [SLOTS_TWIN_STOP_REQUEST] = SLOTS_TWIN_SLOTS * sizeof(uint32_t),
        [SLOTS_TWIN_SAMPLERS] = SLOTS_TWIN_SLOTS * sizeof(struct k_sampler),
        [SLOTS_TWIN_COUNTS] = sizeof(uint32_t) * SLOTS_TWIN_SLOTS * SLOTS_TWIN_VOCAB,
        [SLOTS_TWIN_LOCAL_TABLE] = sizeof(uint32_t) * SLOTS_TWIN_SLOTS * SLOTS_TWIN_LOCAL_PAGES,
        [SLOTS_TWIN_GLOBAL_TABLE] = sizeof(uint32_t) * SLOTS_TWIN_SLOTS * SLOTS_TWIN_GLOBAL_PAGES,
        [SLOTS_TWIN_TURN] = sizeof(uint32_t),
        [SLOTS_TWIN_PUBLISHED] = sizeof(struct k_pick) * SLOTS_TWIN_TURNS * SLOTS_TWIN_MAX_ROWS,
        [SLOTS_TWIN_PATCHES] = SLOTS_TWIN_MAX_PATCHES * sizeof(struct k_patch),
        [SLOTS_TWIN_ROWS] = SLOTS_TWIN_MAX_ROWS * sizeof(struct k_row),
        [SLOTS_TWIN_PROMPT_IDS] = SLOTS_TWIN_MAX_IDS * sizeof(uint32_t),
        [SLOTS_TWIN_NEXT_IDS] = SLOTS_TWIN_MAX_IDS * sizeof(uint32_t),
        [SLOTS_TWIN_IDS] = SLOTS_TWIN_MAX_TOKENS * sizeof(uint32_t),
        [SLOTS_TWIN_POSITIONS] = SLOTS_TWIN_MAX_TOKENS * sizeof(uint32_t),
        [SLOTS_TWIN_TOKEN_SLOTS] = SLOTS_TWIN_MAX_TOKENS * sizeof(uint32_t),
        [SLOTS_TWIN_PICKS] = SLOTS_TWIN_MAX_ROWS * sizeof(struct k_pick),
        [SLOTS_TWIN_SAMPLE_ROWS] = SLOTS_TWIN_MAX_ROWS * sizeof(struct k_sample_row),
        [SLOTS_TWIN_SAMPLE_TOKENS] = SLOTS_TWIN_MAX_ROWS * sizeof(uint32_t),
        [SLOTS_TWIN_SAMPLE_LOGPROBS] = SLOTS_TWIN_MAX_ROWS * sizeof(struct k_logprob_row),
        [SLOTS_TWIN_PROMPT_TOKENS] = SLOTS_TWIN_MAX_IDS * sizeof(uint32_t),
        [SLOTS_TWIN_PROMPT_LOGPROBS] = SLOTS_TWIN_MAX_IDS * sizeof(struct k_logprob_row),
        [SLOTS_TWIN_STEP_COUNTS] = sizeof(struct k_step_counts),
    };
    return bytes[array];
}

void slots_twin_open(struct slots_twin *rig, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = {
        .max_tokens = 256,
        .max_rows = 16,
        .slots = SLOTS_TWIN_SLOTS,
        .max_context_tokens = 1024,
        .hidden_elems = 64,
        .max_linear_out_elems = 64,
        .heads = 2,
        .max_head_dim = 256,
        .max_kv_heads = 1,
        .vocab_tokens = SLOTS_TWIN_VOCAB,
    };
    *rig = (struct slots_twin){.pad_multiple = 1, .random = SEED};
    cuda_rig_open(&rig->cuda, &shape, uses_dependent_launch);
    rig->twin = twin_stream(SLOTS_TWIN_VOCAB, 0.0F);
    for (int array = 0; array < SLOTS_TWIN_COUNT; array++) {
        size_t bytes = bytes_of((enum slots_twin_array)array);
        rig->arrays[array] =
            array < SLOTS_TWIN_STATE_COUNT ? twin_in(mem_zalloc(bytes, 1), bytes) : twin_out(bytes);
    }
}

void slots_twin_close(struct slots_twin *rig)
{
    for (int array = 0; array < SLOTS_TWIN_COUNT; array++) {
        twin_free(&rig->arrays[array]);
    }
    k_cpu_stream_destroy(rig->twin);
    cuda_rig_close(&rig->cuda);
}

void slots_twin_check_state(const struct slots_twin *rig, const char *label)
{
    for (int array = 0; array < SLOTS_TWIN_STATE_COUNT; array++) {
        const struct twin_buffer *buffer = &rig->arrays[array];
        char text[LABEL_BYTES];
        (void)snprintf(text, sizeof(text), "%s: %s", label, array_names[array]);
        uint32_t *got = twin_read(buffer, buffer->bytes, text);
        twin_check_equal(text, got, buffer->host, buffer->bytes / sizeof(*got), sizeof(*got));
        mem_free(got);
    }
}

void *slots_twin_read(const struct slots_twin *rig, enum slots_twin_array array, uint32_t count,
                      size_t elem_bytes)
{
    return twin_read(&rig->arrays[array], count * elem_bytes, array_names[array]);
}
