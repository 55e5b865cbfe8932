/* One network in the spellings of config.json that files have had: each must read as the base text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/config_texts.h"
#include "tests/testlib/test.h"

static void check_same_layers(const struct model_config *got, const struct model_config *want)
{
    test_eq_u64(got->layer_count, want->layer_count);
    for (uint32_t i = 0; i < want->layer_count; i++) {
        const struct model_layer *left = &got->layers[i];
        const struct model_layer *right = &want->layers[i];
        test_eq_u64(left->family, right->family);
        test_eq_u64(left->head_dim, right->head_dim);
        test_eq_u64(left->kv_heads, right->kv_heads);
        test_eq_u64(left->window_tokens, right->window_tokens);
        test_eq_u64(left->intermediate_elems, right->intermediate_elems);
        test_eq_u64(left->k_eq_v, right->k_eq_v);
        test_eq_u64(left->owns_kv, right->owns_kv);
        test_eq_u64(left->kv_source_layer, right->kv_source_layer);
        test_eq_u64(left->kv_slot, right->kv_slot);
        test_eq_u64(left->rope.rotated_pairs, right->rope.rotated_pairs);
        test_eq_u64(left->rope.exponent_dim, right->rope.exponent_dim);
        test_true(fabs(left->rope.theta - right->rope.theta) < 1e-9);
        test_true(fabs(left->rope.factor - right->rope.factor) < 1e-12);
    }
}

static void check_same_network(const struct model_config *got, const struct model_config *want)
{
    test_eq_u64(got->info.vocab_tokens, want->info.vocab_tokens);
    test_eq_u64(got->hidden_elems, want->hidden_elems);
    test_eq_u64(got->heads, want->heads);
    test_eq_u64(got->max_positions, want->max_positions);
    test_eq_u64(got->tied_lm_head, want->tied_lm_head);
    test_eq_u64(got->ple_elems, want->ple_elems);
    test_eq_u64(got->experts, want->experts);
    test_true(fabsf(got->softcap - want->softcap) < 1e-6F);
    test_true(fabsf(got->rms_eps - want->rms_eps) < 1e-12F);
    for (int i = 0; i < RUNNER_FAMILY_COUNT; i++) {
        test_eq_u64(got->families[i].layers, want->families[i].layers);
        test_eq_u64(got->families[i].kv_layers, want->families[i].kv_layers);
    }
    check_same_layers(got, want);
}

#define GLOBAL_KEYS "\"head_dim\": 256, \"global_head_dim\": 512,"
#define ROPE                                                                        \
    "\"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 0.25,\n" \
    "    \"rope_theta\": 1000000.0, \"rope_type\": \"proportional\"},\n"            \
    "   \"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}},\n"

static const struct {
    const char *what, *find, *replacement;
} spellings[] = {
    {"per_layer_config", "\"num_global_key_value_heads\": 1",
     "\"per_layer_config\": {\"2\": {\"head_dim\": 512, \"num_key_value_heads\": 1}, "
     "\"4\": {\"head_dim\": 512, \"num_key_value_heads\": 1}}"},
    {"per_layer_config, keys that sort", "\"num_global_key_value_heads\": 1",
     "\"per_layer_config\": {\"02\": {\"head_dim\": 512, \"num_key_value_heads\": 1}, "
     "\"04\": {\"head_dim\": 512, \"num_key_value_heads\": 1}}"},
    {"per_layer_config, every layer", "\"num_global_key_value_heads\": 1",
     "\"per_layer_config\": {\"0\": {\"head_dim\": 256, \"num_key_value_heads\": 2},"
     "\"1\": {\"head_dim\": 256, \"num_key_value_heads\": 2},"
     "\"2\": {\"head_dim\": 512, \"num_key_value_heads\": 1},"
     "\"3\": {\"head_dim\": 256, \"num_key_value_heads\": 2},"
     "\"4\": {\"head_dim\": 512, \"num_key_value_heads\": 1}}"},
    {"per_layer_config beside an older key that says otherwise",
     "\"num_global_key_value_heads\": 1",
     "\"num_global_key_value_heads\": 4,"
     "\"per_layer_config\": {\"2\": {\"head_dim\": 512, \"num_key_value_heads\": 1}, "
     "\"4\": {\"head_dim\": 512, \"num_key_value_heads\": 1}}"},
    {"no global_head_dim", GLOBAL_KEYS, "\"head_dim\": 256,"},
    {"global_head_dim null", GLOBAL_KEYS, "\"head_dim\": 256, \"global_head_dim\": null,"},
    {"integers as reals", GLOBAL_KEYS, "\"head_dim\": 256.0, \"global_head_dim\": 512.0,"},
    {"the last layer is full whatever the list says",
     "   \"sliding_attention\", \"full_attention\"],",
     "   \"sliding_attention\", \"sliding_attention\"],"},
    {"no rope_parameters", ROPE, ""},
    {"rope_parameters null", ROPE, "\"rope_parameters\": null,"},
    {"rope_scaling", "\"rope_parameters\"", "\"rope_scaling\""},
    {"two bases", ROPE, "\"rope_theta\": 1000000.0, \"rope_local_base_freq\": 10000.0,"},
    {"type of rope", "\"rope_type\": \"proportional\"", "\"type\": \"proportional\""},
    {"factor 1", "\"rope_type\": \"proportional\"",
     "\"rope_type\": \"proportional\", \"factor\": 1.0"},
    {"eos as a list", "\"eos_token_id\": 1", "\"eos_token_id\": [1]"},
    {"unified", "\"gemma4_text\"", "\"gemma4_unified_text\""},
    {"untold flags", "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": null"},
    {"experts off", "\"vocab_size\"",
     "\"enable_moe_block\": false, \"num_experts\": null, \"top_k_experts\": null, "
     "\"moe_intermediate_size\": null, \"vocab_size\""},
    {"bidirectional images", "\"vocab_size\"",
     "\"use_bidirectional_attention\": \"vision\", \"vocab_size\""},
    {"bidirectional, older", "\"vocab_size\"",
     "\"use_bidirectional_attention\": false, \"vocab_size\""},
    {"no tying key", "\"tie_word_embeddings\": true,", ""},
    {"unknown keys", "\"vocab_size\"",
     "\"transformers_version\": \"5.17.0\", \"dtype\": \"bfloat16\", \"vocab_size\""},
};

static void check_spelling(const char *what, const char *text, const struct model_config *base)
{
    struct model_config config;
    struct err err = {0};
    enum err_code code = config_read_texts(text, NULL, &config, &err);
    if (code != ERR_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", what, err.message);
    }
    (void)printf("%s\n", what);
    check_same_network(&config, base);
}

static void test_spellings_of_one_network(void)
{
    struct model_config base;
    struct err err = {0};
    test_ok(config_read_texts(config_base_text, NULL, &base, &err), &err);
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        char *text = config_replaced(config_base_text, spellings[i].find, spellings[i].replacement);
        check_spelling(spellings[i].what, text, &base);
        mem_free(text);
    }
}

static const char *const wrappers[] = {
    "{\"text_config\": @}",
    "{\"model_type\": \"gemma4\", \"text_config\": @, \"vision_config\": {\"hidden_size\": 7}}",
    "{\"model_type\": \"gemma4_unified\", \"vision_config\": null, \"text_config\": @}",
    "{\"eos_token_id\": [1, 106], \"audio_config\": null, \"text_config\": @}",
};

/* Every spelling in every wrapper. */
static void test_wrappers(void)
{
    struct model_config base;
    struct err err = {0};
    test_ok(config_read_texts(config_base_text, NULL, &base, &err), &err);
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        for (size_t j = 0; j < sizeof(spellings) / sizeof(spellings[0]); j++) {
            char *text =
                config_replaced(config_base_text, spellings[j].find, spellings[j].replacement);
            char *wrapped = config_replaced(wrappers[i], "@", text);
            check_spelling(spellings[j].what, wrapped, &base);
            mem_free(wrapped);
            mem_free(text);
        }
    }
}

/* As written for a model of thirty layers: keys are padded to the length of the longest. */
static void test_padded_layers_beyond_ten(void)
{
    struct model_config config;
    struct err err = {0};
    char *longer = config_replaced(config_base_text, "\"num_hidden_layers\": 5,",
                                   "\"num_hidden_layers\": 12,");
    char *untyped = config_replaced(longer, "\"layer_types\"", "\"unused\"");
    char *text = config_replaced(untyped, "\"num_global_key_value_heads\": 1",
                                 "\"per_layer_config\": {\"05\": {\"head_dim\": 512}, "
                                 "\"11\": {\"head_dim\": 512}}");
    enum err_code code = config_read_texts(text, NULL, &config, &err);
    mem_free(text);
    mem_free(untyped);
    mem_free(longer);
    test_ok(code, &err);
    for (uint32_t i = 0; i < config.layer_count; i++) {
        bool is_global = i == 5 || i == 11;
        test_eq_u64(config.layers[i].family == RUNNER_FAMILY_GLOBAL, is_global);
        test_eq_u64(config.layers[i].head_dim, is_global ? 512 : 256);
        test_eq_u64(config.layers[i].kv_heads, 2);
    }
}

/* A file that leaves the key out means the default of its kind. */
static void test_per_layer_embeddings_by_default(void)
{
    struct model_config config;
    struct err err = {0};
    char *text = config_replaced(config_base_text, "\"hidden_size_per_layer_input\": 0, ", "");
    test_ok(config_read_texts(text, NULL, &config, &err), &err);
    test_eq_u64(config.ple_elems, 256);
    test_eq_u64(config.ple_vocab_tokens, 512);
    char *unified = config_replaced(text, "gemma4_text", "gemma4_unified_text");
    enum err_code code = config_read_texts(unified, NULL, &config, &err);
    mem_free(unified);
    mem_free(text);
    test_ok(code, &err);
    test_eq_u64(config.ple_elems, 0);
}

static void test_expert_width_in_both_spellings(void)
{
    static const char *const keys[] = {"moe_intermediate_size", "expert_intermediate_size"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct model_config config;
        char replacement[192];
        (void)snprintf(replacement, sizeof(replacement),
                       "\"enable_moe_block\": true, \"num_experts\": 16, \"top_k_experts\": 4, "
                       "\"%s\": 72, \"vocab_size\"",
                       keys[i]);
        config_read_edited("\"vocab_size\"", replacement, &config);
        test_eq_u64(config.expert_intermediate_elems, 72);
        test_eq_u64(config.experts, 16);
        test_eq_u64(config.top_experts, 4);
    }
}

/* Twice the width that the layer has, also where that is its own. */
static void test_wide_layers_of_their_own_width(void)
{
    struct model_config config;
    struct err err = {0};
    char *shared = config_replaced(config_base_text, "\"num_kv_shared_layers\": 0",
                                   "\"num_kv_shared_layers\": 2");
    char *wide =
        config_replaced(shared, "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true");
    char *text = config_replaced(wide, "\"num_global_key_value_heads\": 1",
                                 "\"per_layer_config\": {\"3\": {\"intermediate_size\": 96}, "
                                 "\"1\": {\"intermediate_size\": 96}}");
    enum err_code code = config_read_texts(text, NULL, &config, &err);
    mem_free(text);
    mem_free(wide);
    mem_free(shared);
    test_ok(code, &err);
    static const uint32_t want[] = {128, 96, 128, 192, 256};
    for (uint32_t i = 0; i < config.layer_count; i++) {
        test_eq_u64(config.layers[i].intermediate_elems, want[i]);
    }
}

static const struct {
    const char *generation;
    uint32_t eos_count, first_eos, suppress_count;
} generations[] = {
    {NULL, 1, 1, 0},
    {"{}", 1, 1, 0},
    {"{\"eos_token_id\": 7}", 1, 7, 0},
    {"{\"eos_token_id\": 7.0}", 1, 7, 0},
    {"{\"eos_token_id\": [106, 1, 50]}", 3, 106, 0},
    {"{\"eos_token_id\": [9, 9, 9]}", 1, 9, 0},
    {"{\"eos_token_id\": []}", 1, 1, 0},
    {"{\"eos_token_id\": null, \"suppress_tokens\": null}", 1, 1, 0},
    {"{\"suppress_tokens\": [500, 501]}", 1, 1, 2},
    {"{\"suppress_tokens\": 500}", 1, 1, 1},
    {"{\"suppress_tokens\": [258883, 500]}", 1, 1, 1},
    {"{\"suppress_tokens\": []}", 1, 1, 0},
};

static void test_generation_ids(void)
{
    for (size_t i = 0; i < sizeof(generations) / sizeof(generations[0]); i++) {
        struct model_config config;
        struct err err = {0};
        test_ok(config_read_texts(config_base_text, generations[i].generation, &config, &err),
                &err);
        test_eq_u64(config.info.eos_count, generations[i].eos_count);
        test_eq_u64(config.info.eos_ids[0], generations[i].first_eos);
        test_eq_u64(config.info.suppress_count, generations[i].suppress_count);
    }
}

static void test_generation_defaults(void)
{
    struct model_config config;
    struct err err = {0};
    test_ok(config_read_texts(config_base_text,
                              "{\"do_sample\": true, \"temperature\": 0.7, \"top_k\": 64, "
                              "\"top_p\": 0.95, \"pad_token_id\": 0, \"max_length\": 20}",
                              &config, &err),
            &err);
    test_true(config.info.sampling.do_sample && config.info.sampling.top_k == 64);
    test_true(fabsf(config.info.sampling.temperature - 0.7F) < 1e-6F);
    test_true(fabsf(config.info.sampling.top_p - 0.95F) < 1e-6F);
    test_ok(config_read_texts(config_base_text,
                              "{\"temperature\": null, \"top_k\": null, \"top_p\": null}", &config,
                              &err),
            &err);
    test_true(!config.info.sampling.do_sample && config.info.sampling.top_k == 0);
    test_true(fabsf(config.info.sampling.temperature - 1) < 1e-6F);
    test_true(fabsf(config.info.sampling.top_p - 1) < 1e-6F);
}

static const struct test_case cases[] = {
    TEST(test_spellings_of_one_network),
    TEST(test_wrappers),
    TEST(test_padded_layers_beyond_ten),
    TEST(test_per_layer_embeddings_by_default),
    TEST(test_expert_width_in_both_spellings),
    TEST(test_wide_layers_of_their_own_width),
    TEST(test_generation_ids),
    TEST(test_generation_defaults),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
