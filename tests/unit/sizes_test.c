/* Sizes of the five published models, from tests/bench/configs.  The wanted numbers are those of the
 * published files: headers of their safetensors, and sizes less the towers of other modalities. */
#include <stdio.h>

#include "tests/testlib/test.h"
#include "worker/sizes.h"

enum {
    LOCAL = RUNNER_FAMILY_LOCAL,
    GLOBAL = RUNNER_FAMILY_GLOBAL,
};

struct model {
    const char *name;
    uint32_t hidden, layers, heads, max_positions, window;
    uint32_t family_layers[RUNNER_FAMILY_COUNT];
    uint32_t kv_layers[RUNNER_FAMILY_COUNT];
    uint32_t kv_heads[RUNNER_FAMILY_COUNT];
    uint64_t params;
    uint64_t weight_bytes;
    uint64_t ple_table_bytes;
    uint64_t ple_row_bytes;
    uint64_t active_params; /* with experts: what one token reads of all */
    uint64_t kv_token_bytes[RUNNER_FAMILY_COUNT];
};

static const struct model models[] = {
    {
        .name = "gemma-4-e2b",
        .hidden = 1536,
        .layers = 35,
        .heads = 8,
        .max_positions = 131072,
        .window = 512,
        .family_layers = {28, 7},
        .kv_layers = {12, 3},
        .kv_heads = {1, 1},
        .params = 4628569379,
        .weight_bytes = 9257138758,
        .ple_table_bytes = 4697620480,
        .ple_row_bytes = 17920,
        .active_params = 4628569379,
        .kv_token_bytes = {12288, 6144},
    },
    {
        .name = "gemma-4-e4b",
        .hidden = 2560,
        .layers = 42,
        .heads = 8,
        .max_positions = 131072,
        .window = 512,
        .family_layers = {35, 7},
        .kv_layers = {20, 4},
        .kv_heads = {2, 2},
        .params = 7463013418,
        .weight_bytes = 14926026836,
        .ple_table_bytes = 5637144576,
        .ple_row_bytes = 21504,
        .active_params = 7463013418,
        .kv_token_bytes = {40960, 16384},
    },
    {
        .name = "gemma-4-12b",
        .hidden = 3840,
        .layers = 48,
        .heads = 16,
        .max_positions = 262144,
        .window = 1024,
        .family_layers = {40, 8},
        .kv_layers = {40, 8},
        .kv_heads = {8, 1},
        .params = 11907350320,
        .weight_bytes = 23814700640,
        .active_params = 11907350320,
        .kv_token_bytes = {327680, 16384},
    },
    {
        .name = "gemma-4-26b-a4b",
        .hidden = 2816,
        .layers = 30,
        .heads = 16,
        .max_positions = 262144,
        .window = 1024,
        .family_layers = {25, 5},
        .kv_layers = {25, 5},
        .kv_heads = {8, 2},
        .params = 25233141790,
        .weight_bytes = 50466283580,
        .active_params = 3822530590,
        .kv_token_bytes = {204800, 20480},
    },
    {
        .name = "gemma-4-31b",
        .hidden = 5376,
        .layers = 60,
        .heads = 32,
        .max_positions = 262144,
        .window = 1024,
        .family_layers = {50, 10},
        .kv_layers = {50, 10},
        .kv_heads = {16, 4},
        .params = 30697345340,
        .weight_bytes = 61394690680,
        .active_params = 30697345340,
        .kv_token_bytes = {819200, 81920},
    },
};

enum {
    MODEL_COUNT = sizeof(models) / sizeof(models[0])
};

static void load(const struct model *model, struct model_config *config)
{
    char path[4096];
    struct err err = {0};
    (void)snprintf(path, sizeof(path), "%s/../bench/configs/%s", test_golden_dir(), model->name);
    test_ok(model_config_load(path, config, &err), &err);
}

static void test_configs_are_those_published(void)
{
    for (size_t i = 0; i < MODEL_COUNT; i++) {
        struct model_config config;
        const struct model *want = &models[i];
        load(want, &config);
        test_eq_u64(config.info.vocab_tokens, 262144);
        test_eq_u64(config.hidden_elems, want->hidden);
        test_eq_u64(config.layer_count, want->layers);
        test_eq_u64(config.heads, want->heads);
        test_eq_u64(config.max_positions, want->max_positions);
        test_true(config.tied_lm_head && config.softcap > 29.9F && config.softcap < 30.1F);
        test_eq_u64(config.info.bos_id, 2);
        test_eq_u64(config.info.eos_count, 2);
        test_eq_u64(config.info.modality_count, 7);
        for (int j = 0; j < RUNNER_FAMILY_COUNT; j++) {
            const struct model_family *family = &config.families[j];
            test_eq_u64(family->layers, want->family_layers[j]);
            test_eq_u64(family->kv_layers, want->kv_layers[j]);
            test_eq_u64(family->kv_heads, want->kv_heads[j]);
            test_eq_u64(family->head_dim, j == LOCAL ? 256 : 512);
            test_eq_u64(family->window_tokens, j == LOCAL ? want->window : 0);
            test_eq_u64(family->rope.rotated_pairs, j == LOCAL ? 128 : 64);
        }
    }
}

static void test_shared_layers_of_the_small_models(void)
{
    static const struct {
        uint32_t first_shared, local_source, global_source, mlp, shared_mlp;
    } want[] = {{15, 13, 14, 6144, 12288}, {24, 22, 23, 10240, 10240}};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct model_config config;
        load(&models[i], &config);
        for (uint32_t j = 0; j < config.layer_count; j++) {
            const struct model_layer *layer = &config.layers[j];
            bool is_shared = j >= want[i].first_shared;
            uint32_t source = !is_shared                             ? j
                              : layer->family == RUNNER_FAMILY_LOCAL ? want[i].local_source
                                                                     : want[i].global_source;
            test_eq_u64(layer->owns_kv, !is_shared);
            test_eq_u64(layer->kv_source_layer, source);
            test_eq_u64(layer->intermediate_elems, is_shared ? want[i].shared_mlp : want[i].mlp);
            test_true(!layer->k_eq_v);
        }
        test_eq_u64(config.ple_elems, 256);
        test_eq_u64(config.ple_vocab_tokens, 262144);
        test_eq_u64(config.experts, 0);
    }
}

static void test_weights(void)
{
    for (size_t i = 0; i < MODEL_COUNT; i++) {
        struct model_config config;
        struct sizes sizes;
        load(&models[i], &config);
        sizes_measure(&config, &sizes);
        test_eq_u64(sizes.params, models[i].params);
        test_eq_u64(sizes.weight_bytes, models[i].weight_bytes);
        test_eq_u64(sizes.ple_table_bytes, models[i].ple_table_bytes);
        test_eq_u64(sizes.ple_row_bytes, models[i].ple_row_bytes);
        uint64_t idle_bytes = sizes.expert_bytes - sizes.active_expert_bytes;
        test_eq_u64(sizes.params - idle_bytes / 2, models[i].active_params);
    }
}

static void test_kv(void)
{
    for (size_t i = 0; i < MODEL_COUNT; i++) {
        struct model_config config;
        struct sizes sizes;
        load(&models[i], &config);
        sizes_measure(&config, &sizes);
        test_eq_u64(sizes.kv_token_bytes[LOCAL], models[i].kv_token_bytes[LOCAL]);
        test_eq_u64(sizes.kv_token_bytes[GLOBAL], models[i].kv_token_bytes[GLOBAL]);
    }
}

/* 2 + 50 * 14 + 10 * 13, as in the header of the published file; eight more per layer with experts. */
static void test_tensor_counts(void)
{
    static const struct {
        size_t model;
        uint64_t tensors;
    } want[] = {{4, 832}, {3, 2 + 25 * 22 + 5 * 21}};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct model_config config;
        struct sizes sizes;
        load(&models[want[i].model], &config);
        sizes_measure(&config, &sizes);
        test_eq_u64(sizes.tensors, want[i].tensors);
    }
}

static void test_an_output_matrix_of_its_own(void)
{
    struct model_config config;
    struct sizes sizes;
    load(&models[2], &config);
    config.tied_lm_head = false;
    sizes_measure(&config, &sizes);
    test_eq_u64(sizes.params, models[2].params + 262144ULL * 3840);
}

static const struct test_case cases[] = {
    TEST(test_configs_are_those_published),
    TEST(test_shared_layers_of_the_small_models),
    TEST(test_weights),
    TEST(test_kv),
    TEST(test_tensor_counts),
    TEST(test_an_output_matrix_of_its_own),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
