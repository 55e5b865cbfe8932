/* Sizes of real models: pages and offsets beyond 32 bits. */
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/test.h"
#include "worker/forward.h"

/* The 12B: 48 layers, every sixth full.  Source: Gemma 4 12B config. */
static struct model_config *config_12b(void)
{
    struct model_config *config = mem_zalloc(1, sizeof(*config));
    config->info.vocab_tokens = 262144;
    config->hidden_elems = 3840;
    config->heads = 16;
    config->max_positions = 262144;
    config->layer_count = 48;
    config->families[RUNNER_FAMILY_LOCAL] = (struct model_family){
        .layers = 40,
        .kv_layers = 40,
        .head_dim = 256,
        .kv_heads = 8,
        .window_tokens = 1024,
        .rope = {.theta = 1e4, .factor = 1.0, .exponent_dim = 256, .rotated_pairs = 128},
    };
    config->families[RUNNER_FAMILY_GLOBAL] = (struct model_family){
        .layers = 8,
        .kv_layers = 8,
        .head_dim = 512,
        .kv_heads = 1,
        .rope = {.theta = 1e6, .factor = 1.0, .exponent_dim = 512, .rotated_pairs = 64},
    };
    for (uint32_t i = 0; i < config->layer_count; i++) {
        bool is_global = i % 6 == 5;
        const struct model_family *family =
            &config->families[is_global ? RUNNER_FAMILY_GLOBAL : RUNNER_FAMILY_LOCAL];
        config->layers[i] = (struct model_layer){
            .family = is_global ? RUNNER_FAMILY_GLOBAL : RUNNER_FAMILY_LOCAL,
            .head_dim = family->head_dim,
            .kv_heads = family->kv_heads,
            .window_tokens = family->window_tokens,
            .rope = family->rope,
            .intermediate_elems = 15360,
            .k_eq_v = is_global,
            .owns_kv = true,
        };
    }
    return config;
}

static void test_page_bytes_of_the_12b(void)
{
    struct model_config *config = config_12b();
    test_eq_u64(forward_page_bytes(config, RUNNER_FAMILY_LOCAL, 64), 327680ULL * 64);
    test_eq_u64(forward_page_bytes(config, RUNNER_FAMILY_GLOBAL, 64), 16384ULL * 64);
    mem_free(config);
}

/* Page 5,000 of the local pool begins 105 GB into it. */
static void test_offsets_beyond_32_bits(void)
{
    struct k_pages pages = {
        .pages = 6000, .page_tokens = 64, .kv_layers = 40, .kv_heads = 8, .head_dim = 256};
    uint64_t page_elems = 327680ULL * 64 / 2;
    test_eq_u64(k_page_offset(&pages, 5000, 0, 0, 0), 5000 * page_elems);
    test_eq_u64(k_page_offset(&pages, 5000, 39, 1, 7),
                5001 * page_elems - (uint64_t)pages.page_tokens * pages.head_dim);
}

static void test_workspace_of_the_12b(void)
{
    struct model_config *config = config_12b();
    struct runner_limits limits = {
        .slots = 64,
        .max_step_rows = 64,
        .max_step_tokens = 8192,
        .max_context_tokens = 262144,
        .vocab_tokens = 262144,
        .window_tokens = 1024,
        .page_tokens = 64,
        .pipeline_depth = 2,
    };
    /* Activations: 3 hidden, qkv (16 + 2 * 8) * 256 or (16 + 1) * 512, heads 16 * 512, one MLP;
     * rotation tables of both families. */
    uint64_t per_token = 3 * 3840 + 17 * 512 + 16 * 512 + 15360;
    uint64_t rope = 262144ULL * 2 * (128 + 64);
    test_eq_u64(forward_workspace_bytes(config, &limits), (per_token * 8192 + rope) * 2);
    mem_free(config);
}

/* Counts what it is asked for; nothing is ever touched. */
struct counter {
    uint64_t byte_count;
    uint32_t allocations;
};

static void *count_bytes(void *context, size_t count, size_t elem_bytes)
{
    static unsigned char nowhere[256];
    struct counter *counter = context;
    counter->byte_count += (uint64_t)count * elem_bytes;
    counter->allocations++;
    return nowhere;
}

static enum err_code write_nothing(void *context, void *to, const void *from, size_t byte_count,
                                   struct err *err)
{
    (void)context;
    (void)to;
    (void)from;
    (void)byte_count;
    (void)err;
    return ERR_OK;
}

/* Memory that a forward pass takes is what the workspace's size says, but for alignment. */
static void check_taken(const struct model_config *config)
{
    enum {
        ALIGN_BYTES = 256
    };
    struct err err = {0};
    struct counter counter = {0};
    struct forward forward;
    const struct stage_tables tables = {0};
    const struct forward_options options = {
        .config = config,
        .allocator = {.context = &counter, .alloc = count_bytes, .write = write_nothing},
        .tables = &tables,
        .limits = {.slots = 4,
                   .max_step_rows = 4,
                   .max_step_tokens = 2048,
                   .max_context_tokens = 4096,
                   .page_tokens = 64,
                   .pages = {7, 9}},
    };
    test_ok(forward_create(&options, &forward, &err), &err);
    uint64_t pools = forward_page_bytes(config, RUNNER_FAMILY_LOCAL, 64) * 8 +
                     forward_page_bytes(config, RUNNER_FAMILY_GLOBAL, 64) * 10;
    uint64_t told = forward_workspace_bytes(config, &options.limits);
    uint64_t taken = counter.byte_count - pools;
    test_true(taken <= told && told - taken <= (uint64_t)counter.allocations * ALIGN_BYTES);
}

static void test_no_more_is_taken_than_is_told(void)
{
    struct model_config *config = config_12b();
    check_taken(config);
    config->experts = 128;
    config->top_experts = 8;
    config->expert_intermediate_elems = 704;
    check_taken(config);
    mem_free(config);
}

static const struct test_case cases[] = {
    TEST(test_page_bytes_of_the_12b),
    TEST(test_offsets_beyond_32_bits),
    TEST(test_workspace_of_the_12b),
    TEST(test_no_more_is_taken_than_is_told),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
