#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/config_texts.h"
#include "tests/testlib/test.h"
#include "worker/model_config.h"

static void load_golden(const char *name, struct model_config *config)
{
    char path[4096];
    struct err err = {0};
    (void)snprintf(path, sizeof(path), "%s/%s", test_golden_dir(), name);
    test_ok(model_config_load(path, config, &err), &err);
}

static void test_reads_published_style(void)
{
    struct model_config config;
    struct err err = {0};
    test_ok(config_read_texts(config_base_text, NULL, &config, &err), &err);
    test_eq_u64(config.info.vocab_tokens, 512);
    test_eq_u64(config.hidden_elems, 64);
    test_eq_u64(config.heads, 4);
    test_eq_u64(config.max_positions, 4096);
    test_true(config.rms_eps > 0.99e-6F && config.rms_eps < 1.01e-6F);
    test_true(config.softcap > 29.9F && config.softcap < 30.1F);
    test_true(config.tied_lm_head);
}

static void test_reads_families_and_layers(void)
{
    struct model_config config;
    struct err err = {0};
    test_ok(config_read_texts(config_base_text, NULL, &config, &err), &err);
    test_eq_u64(config.layer_count, 5);
    const struct model_family *local = &config.families[RUNNER_FAMILY_LOCAL];
    const struct model_family *global = &config.families[RUNNER_FAMILY_GLOBAL];
    test_eq_u64(local->layers, 3);
    test_eq_u64(local->kv_layers, 3);
    test_eq_u64(local->head_dim, 256);
    test_eq_u64(local->kv_heads, 2);
    test_eq_u64(local->window_tokens, 64);
    test_eq_u64(local->rope.rotated_pairs, 128);
    test_eq_u64(local->rope.exponent_dim, 256);
    test_true(fabs(local->rope.theta - 1e4) < 1e-9);
    test_eq_u64(global->layers, 2);
    test_eq_u64(global->head_dim, 512);
    test_eq_u64(global->kv_heads, 1);
    test_eq_u64(global->window_tokens, 0);
    test_eq_u64(global->rope.rotated_pairs, 64);
    test_eq_u64(global->rope.exponent_dim, 512);
    test_true(fabs(global->rope.theta - 1e6) < 1e-6);
    test_true(fabs(global->rope.factor - 1) < 1e-12);
    const struct model_layer *last = &config.layers[4];
    test_true(last->family == RUNNER_FAMILY_GLOBAL && last->k_eq_v && last->owns_kv);
    test_eq_u64(last->kv_source_layer, 4);
    test_eq_u64(last->kv_slot, 1);
    test_eq_u64(last->intermediate_elems, 128);
    test_true(!config.layers[3].k_eq_v);
    test_eq_u64(config.layers[3].kv_slot, 2);
    test_ok(model_config_check_supported(&config, &err), &err);
}

static void test_styles_agree_on_golden_checkpoints(void)
{
    static const struct {
        const char *name;
        uint32_t layers, local_kv_heads, global_kv_heads, window, hidden, vocab;
    } want[] = {
        {"checkpoints/dense-unified", 7, 2, 1, 64, 64, 512},
        {"checkpoints/dense-sharded", 7, 4, 2, 64, 64, 512},
        {"checkpoints/dense-window1024", 4, 2, 1, 1024, 64, 512},
        {"checkpoints/ple-shared", 8, 1, 1, 64, 64, 512},
        {"../../deploy/demo-model", 6, 1, 1, 128, 192, 2048},
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct model_config config;
        struct err err = {0};
        load_golden(want[i].name, &config);
        test_eq_u64(config.layer_count, want[i].layers);
        test_eq_u64(config.hidden_elems, want[i].hidden);
        test_eq_u64(config.info.vocab_tokens, want[i].vocab);
        test_eq_u64(config.families[RUNNER_FAMILY_LOCAL].kv_heads, want[i].local_kv_heads);
        test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].kv_heads, want[i].global_kv_heads);
        test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].head_dim, 512);
        test_eq_u64(config.families[RUNNER_FAMILY_LOCAL].window_tokens, want[i].window);
        test_ok(model_config_check_supported(&config, &err), &err);
    }
}

static void test_demo_model_ids(void)
{
    struct model_config config;
    load_golden("../../deploy/demo-model", &config);
    const struct checkpoint_info *info = &config.info;
    test_eq_u64(info->bos_id, 2);
    test_eq_u64(info->pad_id, 0);
    test_eq_u64(info->eos_count, 3);
    test_eq_u64(info->eos_ids[0], 1);
    test_eq_u64(info->eos_ids[1], 6);
    test_eq_u64(info->eos_ids[2], 14);
    test_eq_u64(info->suppress_count, 2);
    test_eq_u64(info->suppress_ids[0], 19);
    test_eq_u64(info->suppress_ids[1], 22);
    test_true(info->sampling.do_sample);
    test_eq_u64(info->sampling.top_k, 64);
    test_true(info->sampling.top_p > 0.949F && info->sampling.top_p < 0.951F);
    test_eq_u64(info->modality_count, 7); /* 17..23 */
    for (uint32_t id = 0; id < 64; id++) {
        test_eq_u64(checkpoint_is_modality(info, id), id >= 17 && id <= 23);
    }
}

static void test_ids_outside_the_vocabulary(void)
{
    struct model_config config;
    struct err err = {0};
    /* The wrapper declares image ids that the small vocabulary does not reach: nothing to refuse. */
    load_golden("checkpoints/dense-unified", &config);
    test_eq_u64(config.info.modality_count, 0);
    test_eq_u64(config.info.eos_count, 1);
    test_ok(config_read_texts(config_base_text, "{\"suppress_tokens\": [511, 512, 511]}", &config,
                              &err),
            &err);
    test_eq_u64(config.info.suppress_count, 1);
    test_true(config_read_texts(config_base_text, "{\"eos_token_id\": [1, 512]}", &config, &err) ==
              ERR_CONFIG);
    test_eq_str(err.message, "generation_config.json.eos_token_id is 512, must be an integer from "
                             "0 to 511");
}

static void test_eos_precedence(void)
{
    struct model_config config;
    struct err err = {0};
    test_ok(config_read_texts(config_base_text, "{\"eos_token_id\": [5, 6]}", &config, &err), &err);
    test_eq_u64(config.info.eos_count, 2);
    test_eq_u64(config.info.eos_ids[1], 6);
    test_ok(config_read_texts(config_base_text, "{\"eos_token_id\": null}", &config, &err), &err);
    test_eq_u64(config.info.eos_count, 1);
    test_eq_u64(config.info.eos_ids[0], 1);
    char *wrapped = config_replaced(
        "{\"model_type\": \"gemma4\", \"eos_token_id\": [7.0, 8], \"text_config\": @}", "@",
        config_base_text);
    enum err_code code = config_read_texts(wrapped, NULL, &config, &err);
    mem_free(wrapped);
    test_ok(code, &err);
    test_eq_u64(config.info.eos_count, 2);
    test_eq_u64(config.info.eos_ids[0], 7);
    char *none = config_replaced(config_base_text, "\"eos_token_id\": 1", "\"eos_token_id\": null");
    code = config_read_texts(none, NULL, &config, &err);
    mem_free(none);
    test_true(code == ERR_CONFIG);
    test_true(strstr(err.message, "eos_token_id") != NULL);
}

static void test_modality_ids_in_both_spellings(void)
{
    struct model_config config;
    struct err err = {0};
    char *wrapped = config_replaced("{\"image_token_id\": 9, \"image_token_index\": 9, "
                                    "\"audio_token_index\": 10, \"eoa_token_index\": 11.0, "
                                    "\"video_token_id\": null, \"text_config\": @}",
                                    "@", config_base_text);
    enum err_code code = config_read_texts(wrapped, NULL, &config, &err);
    mem_free(wrapped);
    test_ok(code, &err);
    test_eq_u64(config.info.modality_count, 3);
    test_true(checkpoint_is_modality(&config.info, 9));
    test_true(checkpoint_is_modality(&config.info, 10));
    test_true(checkpoint_is_modality(&config.info, 11));
    test_true(!checkpoint_is_modality(&config.info, 12));
}

static void test_layer_types_absent(void)
{
    struct model_config config;
    char layers[64];
    for (uint32_t count = 1; count <= 13; count++) {
        (void)snprintf(layers, sizeof(layers), "\"num_hidden_layers\": %u,", count);
        char *text = config_replaced(config_base_text, "\"num_hidden_layers\": 5,", layers);
        char *again = config_replaced(text, "\"layer_types\"", "\"unused\"");
        struct err err = {0};
        enum err_code code = config_read_texts(again, NULL, &config, &err);
        mem_free(text);
        mem_free(again);
        test_ok(code, &err);
        for (uint32_t i = 0; i < count; i++) {
            bool is_global = i == 5 || i == 11 || i == count - 1;
            test_eq_u64(config.layers[i].family == RUNNER_FAMILY_GLOBAL, is_global);
        }
    }
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].layers, 3);
}

static void test_null_global_heads_fall_back(void)
{
    struct model_config config;
    config_read_edited("\"num_global_key_value_heads\": 1", "\"num_global_key_value_heads\": null",
                       &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].kv_heads, 2);
    /* Without k_eq_v the key is not used. */
    config_read_edited("\"attention_k_eq_v\": true", "\"attention_k_eq_v\": false", &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].kv_heads, 2);
    test_true(!config.layers[4].k_eq_v);
    config_read_edited("\"global_head_dim\": 512", "\"global_head_dim\": null", &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].head_dim, 512);
}

static void test_integers_written_as_reals(void)
{
    struct model_config config;
    config_read_edited("\"intermediate_size\": 128", "\"intermediate_size\": 128.0", &config);
    test_eq_u64(config.layers[0].intermediate_elems, 128);
}

static void test_per_layer_config(void)
{
    struct model_config config;
    config_read_edited("\"vocab_size\": 512",
                       "\"vocab_size\": 512, \"per_layer_config\": {\"2\": {\"head_dim\": 384, "
                       "\"num_key_value_heads\": 4}, \"4\": {\"head_dim\": 384.0, "
                       "\"num_key_value_heads\": 4, \"intermediate_size\": 256}, \"0\": null}",
                       &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].head_dim, 384);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].kv_heads, 4);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].rope.rotated_pairs, 48);
    test_eq_u64(config.families[RUNNER_FAMILY_LOCAL].head_dim, 256);
    test_eq_u64(config.layers[4].intermediate_elems, 256);
    test_eq_u64(config.layers[2].intermediate_elems, 128);
}

static void test_older_rope_spellings(void)
{
    struct model_config config;
    char *text = config_replaced(config_base_text, "\"rope_parameters\"", "\"rope_scaling\"");
    struct err err = {0};
    enum err_code code = config_read_texts(text, NULL, &config, &err);
    mem_free(text);
    test_ok(code, &err);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].rope.rotated_pairs, 64);
    text = config_replaced(config_base_text, "\"rope_parameters\"",
                           "\"rope_theta\": 500000, \"rope_local_base_freq\": 20000, \"unused\"");
    code = config_read_texts(text, NULL, &config, &err);
    mem_free(text);
    test_ok(code, &err);
    test_true(fabs(config.families[RUNNER_FAMILY_GLOBAL].rope.theta - 5e5) < 1e-6);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].rope.rotated_pairs, 64);
    test_true(fabs(config.families[RUNNER_FAMILY_LOCAL].rope.theta - 2e4) < 1e-6);
    test_eq_u64(config.families[RUNNER_FAMILY_LOCAL].rope.rotated_pairs, 128);
    config_read_edited("\"rope_theta\": 1000000.0, \"rope_type\": \"proportional\"",
                       "\"factor\": 8.0, \"type\": \"proportional\"", &config);
    test_true(fabs(config.layers[4].rope.factor - 8) < 1e-12);
    test_true(fabs(config.layers[4].rope.theta - 1e6) < 1e-6);
    config_read_edited("\"rope_theta\": 10000.0, \"rope_type\": \"default\"",
                       "\"rope_theta\": 10000.0, \"rope_type\": \"linear\", \"factor\": 4",
                       &config);
    test_true(fabs(config.layers[0].rope.factor - 4) < 1e-12);
}

static void test_shared_kv_and_wide_mlp(void)
{
    struct model_config config;
    struct err err = {0};
    char *text = config_replaced(config_base_text, "\"num_kv_shared_layers\": 0",
                                 "\"num_kv_shared_layers\": 2");
    char *wide =
        config_replaced(text, "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true");
    enum err_code code = config_read_texts(wide, NULL, &config, &err);
    mem_free(text);
    mem_free(wide);
    test_ok(code, &err);
    test_true(config.layers[2].owns_kv && !config.layers[3].owns_kv && !config.layers[4].owns_kv);
    test_eq_u64(config.layers[3].kv_source_layer, 1);
    test_eq_u64(config.layers[3].kv_slot, 1);
    test_eq_u64(config.layers[4].kv_source_layer, 2);
    test_eq_u64(config.layers[4].kv_slot, 0);
    test_eq_u64(config.layers[2].intermediate_elems, 128);
    test_eq_u64(config.layers[3].intermediate_elems, 256);
    test_eq_u64(config.families[RUNNER_FAMILY_LOCAL].kv_layers, 2);
    test_ok(model_config_check_supported(&config, &err), &err);
}

static void test_variants_are_parsed_and_those_not_run_refused(void)
{
    struct model_config config;
    struct err err = {0};
    config_read_edited("\"vocab_size\": 512",
                       "\"vocab_size\": 512, \"enable_moe_block\": true, \"num_experts\": 16, "
                       "\"top_k_experts\": 4, \"expert_intermediate_size\": 64",
                       &config);
    test_eq_u64(config.experts, 16);
    test_eq_u64(config.top_experts, 4);
    test_eq_u64(config.expert_intermediate_elems, 64);
    test_ok(model_config_check_supported(&config, &err), &err);
    config_read_edited("\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 32",
                       &config);
    test_eq_u64(config.ple_elems, 32);
    test_eq_u64(config.ple_vocab_tokens, 512);
    test_ok(model_config_check_supported(&config, &err), &err);
    config_read_edited("\"hidden_size_per_layer_input\": 0",
                       "\"hidden_size_per_layer_input\": 32, \"vocab_size_per_layer_input\": 511",
                       &config);
    test_true(model_config_check_supported(&config, &err) == ERR_UNSUPPORTED);
    test_true(strstr(err.message,
                     "vocab_size_per_layer_input is 511, must be at least vocab_size = 512") !=
              NULL);
    config_read_edited(
        "\"vocab_size\": 512",
        "\"vocab_size\": 512, \"quantization_config\": {\"quant_method\": \"modelopt\"}", &config);
    test_true(model_config_check_supported(&config, &err) == ERR_UNSUPPORTED);
    test_true(strstr(err.message, "modelopt") != NULL);
}

static const struct test_case cases[] = {
    TEST(test_reads_published_style),
    TEST(test_reads_families_and_layers),
    TEST(test_styles_agree_on_golden_checkpoints),
    TEST(test_demo_model_ids),
    TEST(test_ids_outside_the_vocabulary),
    TEST(test_eos_precedence),
    TEST(test_modality_ids_in_both_spellings),
    TEST(test_layer_types_absent),
    TEST(test_null_global_heads_fall_back),
    TEST(test_integers_written_as_reals),
    TEST(test_per_layer_config),
    TEST(test_older_rope_spellings),
    TEST(test_shared_kv_and_wide_mlp),
    TEST(test_variants_are_parsed_and_those_not_run_refused),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
