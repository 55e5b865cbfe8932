#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json.h"
#include "common/mem.h"
#include "tests/testlib/test.h"
#include "worker/model_config.h"

/* A flat text config in the style of published files; tests replace parts of it. */
static const char base_text[] =
    "{\"model_type\": \"gemma4_text\", \"attention_k_eq_v\": true, \"bos_token_id\": 2,\n"
    " \"pad_token_id\": 0, \"eos_token_id\": 1, \"final_logit_softcapping\": 30.0,\n"
    " \"head_dim\": 256, \"global_head_dim\": 512, \"hidden_size\": 64,\n"
    " \"hidden_activation\": \"gelu_pytorch_tanh\", \"attention_bias\": false,\n"
    " \"hidden_size_per_layer_input\": 0, \"intermediate_size\": 128,\n"
    " \"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\",\n"
    "   \"sliding_attention\", \"full_attention\"],\n"
    " \"max_position_embeddings\": 4096, \"num_attention_heads\": 4,\n"
    " \"num_hidden_layers\": 5, \"num_key_value_heads\": 2, \"num_global_key_value_heads\": 1,\n"
    " \"num_kv_shared_layers\": 0, \"rms_norm_eps\": 1e-06, \"sliding_window\": 64,\n"
    " \"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 0.25,\n"
    "    \"rope_theta\": 1000000.0, \"rope_type\": \"proportional\"},\n"
    "   \"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}},\n"
    " \"tie_word_embeddings\": true, \"use_double_wide_mlp\": false, \"vocab_size\": 512}";

/* text with its only occurrence of `find` replaced; the caller frees. */
static char *replaced(const char *text, const char *find, const char *replacement)
{
    const char *at = strstr(text, find);
    test_true(at != NULL && strstr(at + 1, find) == NULL);
    struct buf out;
    buf_init(&out);
    buf_append(&out, text, (size_t)(at - text));
    buf_append_text(&out, replacement);
    buf_append_text(&out, at + strlen(find));
    return out.at;
}

static enum err_code read_texts(const char *config_text, const char *generation_text,
                                struct model_config *config, struct err *err)
{
    struct json_t *json = NULL;
    struct json_t *generation = NULL;
    test_ok(json_parse(config_text, strlen(config_text), 32, &json, err), err);
    if (generation_text != NULL) {
        test_ok(json_parse(generation_text, strlen(generation_text), 32, &generation, err), err);
    }
    enum err_code code = model_config_read(json, generation, config, err);
    json_release(json);
    json_release(generation);
    return code;
}

static void read_edited(const char *find, const char *replacement, struct model_config *config)
{
    struct err err = {0};
    char *text = replaced(base_text, find, replacement);
    enum err_code code = read_texts(text, NULL, config, &err);
    mem_free(text);
    test_ok(code, &err);
}

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
    test_ok(read_texts(base_text, NULL, &config, &err), &err);
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
    test_ok(read_texts(base_text, NULL, &config, &err), &err);
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
    test_ok(read_texts(base_text, "{\"suppress_tokens\": [511, 512, 511]}", &config, &err), &err);
    test_eq_u64(config.info.suppress_count, 1);
    test_true(read_texts(base_text, "{\"eos_token_id\": [1, 512]}", &config, &err) == ERR_CONFIG);
    test_eq_str(err.message, "generation_config.json.eos_token_id is 512, must be an integer from "
                             "0 to 511");
}

static void test_eos_precedence(void)
{
    struct model_config config;
    struct err err = {0};
    test_ok(read_texts(base_text, "{\"eos_token_id\": [5, 6]}", &config, &err), &err);
    test_eq_u64(config.info.eos_count, 2);
    test_eq_u64(config.info.eos_ids[1], 6);
    test_ok(read_texts(base_text, "{\"eos_token_id\": null}", &config, &err), &err);
    test_eq_u64(config.info.eos_count, 1);
    test_eq_u64(config.info.eos_ids[0], 1);
    char *wrapped =
        replaced("{\"model_type\": \"gemma4\", \"eos_token_id\": [7.0, 8], \"text_config\": @}",
                 "@", base_text);
    enum err_code code = read_texts(wrapped, NULL, &config, &err);
    mem_free(wrapped);
    test_ok(code, &err);
    test_eq_u64(config.info.eos_count, 2);
    test_eq_u64(config.info.eos_ids[0], 7);
    char *none = replaced(base_text, "\"eos_token_id\": 1", "\"eos_token_id\": null");
    code = read_texts(none, NULL, &config, &err);
    mem_free(none);
    test_true(code == ERR_CONFIG);
    test_true(strstr(err.message, "eos_token_id") != NULL);
}

static void test_modality_ids_in_both_spellings(void)
{
    struct model_config config;
    struct err err = {0};
    char *wrapped = replaced("{\"image_token_id\": 9, \"image_token_index\": 9, "
                             "\"audio_token_index\": 10, \"eoa_token_index\": 11.0, "
                             "\"video_token_id\": null, \"text_config\": @}",
                             "@", base_text);
    enum err_code code = read_texts(wrapped, NULL, &config, &err);
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
        char *text = replaced(base_text, "\"num_hidden_layers\": 5,", layers);
        char *again = replaced(text, "\"layer_types\"", "\"unused\"");
        struct err err = {0};
        enum err_code code = read_texts(again, NULL, &config, &err);
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
    read_edited("\"num_global_key_value_heads\": 1", "\"num_global_key_value_heads\": null",
                &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].kv_heads, 2);
    /* Without k_eq_v the key is not used. */
    read_edited("\"attention_k_eq_v\": true", "\"attention_k_eq_v\": false", &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].kv_heads, 2);
    test_true(!config.layers[4].k_eq_v);
    read_edited("\"global_head_dim\": 512", "\"global_head_dim\": null", &config);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].head_dim, 256);
}

static void test_integers_written_as_reals(void)
{
    struct model_config config;
    read_edited("\"intermediate_size\": 128", "\"intermediate_size\": 128.0", &config);
    test_eq_u64(config.layers[0].intermediate_elems, 128);
}

static void test_per_layer_config(void)
{
    struct model_config config;
    read_edited("\"vocab_size\": 512",
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
    char *text = replaced(base_text, "\"rope_parameters\"", "\"rope_scaling\"");
    struct err err = {0};
    enum err_code code = read_texts(text, NULL, &config, &err);
    mem_free(text);
    test_ok(code, &err);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].rope.rotated_pairs, 64);
    text = replaced(base_text, "\"rope_parameters\"",
                    "\"rope_theta\": 500000, \"rope_local_base_freq\": 20000, \"unused\"");
    code = read_texts(text, NULL, &config, &err);
    mem_free(text);
    test_ok(code, &err);
    test_true(fabs(config.families[RUNNER_FAMILY_GLOBAL].rope.theta - 5e5) < 1e-6);
    test_eq_u64(config.families[RUNNER_FAMILY_GLOBAL].rope.rotated_pairs, 64);
    test_true(fabs(config.families[RUNNER_FAMILY_LOCAL].rope.theta - 2e4) < 1e-6);
    test_eq_u64(config.families[RUNNER_FAMILY_LOCAL].rope.rotated_pairs, 128);
    read_edited("\"rope_theta\": 1000000.0, \"rope_type\": \"proportional\"",
                "\"factor\": 8.0, \"type\": \"proportional\"", &config);
    test_true(fabs(config.layers[4].rope.factor - 8) < 1e-12);
    test_true(fabs(config.layers[4].rope.theta - 1e6) < 1e-6);
    read_edited("\"rope_theta\": 10000.0, \"rope_type\": \"default\"",
                "\"rope_theta\": 10000.0, \"rope_type\": \"linear\", \"factor\": 4", &config);
    test_true(fabs(config.layers[0].rope.factor - 4) < 1e-12);
}

static void test_shared_kv_and_wide_mlp(void)
{
    struct model_config config;
    struct err err = {0};
    char *text = replaced(base_text, "\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 2");
    char *wide = replaced(text, "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true");
    enum err_code code = read_texts(wide, NULL, &config, &err);
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
    test_true(model_config_check_supported(&config, &err) == ERR_UNSUPPORTED);
    test_true(strstr(err.message, "num_kv_shared_layers") != NULL);
}

static void test_variants_are_parsed_and_refused(void)
{
    struct model_config config;
    struct err err = {0};
    read_edited("\"vocab_size\": 512",
                "\"vocab_size\": 512, \"enable_moe_block\": true, \"num_experts\": 16, "
                "\"top_k_experts\": 4, \"expert_intermediate_size\": 64",
                &config);
    test_eq_u64(config.experts, 16);
    test_eq_u64(config.top_experts, 4);
    test_eq_u64(config.expert_intermediate_elems, 64);
    test_true(model_config_check_supported(&config, &err) == ERR_UNSUPPORTED);
    test_true(strstr(err.message, "enable_moe_block") != NULL);
    read_edited("\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 32",
                &config);
    test_eq_u64(config.ple_elems, 32);
    test_eq_u64(config.ple_vocab_tokens, 512);
    test_true(model_config_check_supported(&config, &err) == ERR_UNSUPPORTED);
    test_true(strstr(err.message, "hidden_size_per_layer_input") != NULL);
    read_edited("\"vocab_size\": 512",
                "\"vocab_size\": 512, \"quantization_config\": {\"quant_method\": \"modelopt\"}",
                &config);
    test_true(model_config_check_supported(&config, &err) == ERR_UNSUPPORTED);
    test_true(strstr(err.message, "modelopt") != NULL);
}

static const struct {
    const char *find, *replacement, *message;
} bad_values[] = {
    {"\"num_attention_heads\": 4", "\"num_attention_heads\": 0",
     "num_attention_heads is 0, must be an integer from 1 to 256"},
    {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
     "layer 0 has 3 key-value heads, which do not divide num_attention_heads = 4"},
    {"\"head_dim\": 256", "\"head_dim\": 248",
     "head_dim of layer 0 is 248, must be a multiple of 16"},
    {"\"head_dim\": 256", "\"head_dim\": 1024",
     "head_dim is 1024, must be an integer from 1 to 512"},
    {"\"head_dim\": 256, ", "", "head_dim is missing, must be an integer from 1 to 512"},
    {"\"hidden_size\": 64", "\"hidden_size\": \"64\"",
     "hidden_size is a string, must be an integer from 1 to 32768"},
    {"\"hidden_size\": 64", "\"hidden_size\": 64.5",
     "hidden_size is 64.5, must be an integer from 1 to 32768"},
    {"\"hidden_size\": 64", "\"hidden_size\": 99999999999999999999",
     "hidden_size is 1e+20, must be an integer from 1 to 32768"},
    {"\"hidden_size\": 64", "\"hidden_size\": 60", "hidden_size is 60, must be a multiple of 8"},
    {"\"num_hidden_layers\": 5", "\"num_hidden_layers\": 6",
     "layer_types is an array of 5, must be an array of num_hidden_layers = 6"},
    {"\"num_hidden_layers\": 5", "\"num_hidden_layers\": 129",
     "num_hidden_layers is 129, must be an integer from 1 to 128"},
    {"\"full_attention\"],", "\"sliding_attention\"],",
     "layer_types[4] is sliding_attention, the last must be full_attention"},
    {"\"full_attention\"],", "\"linear_attention\"],",
     "layer_types[4] is linear_attention, must be sliding_attention or full_attention"},
    {"\"full_attention\"],", "null],",
     "layer_types[4] is null, must be sliding_attention or full_attention"},
    {"\"rope_type\": \"proportional\"", "\"rope_type\": \"yarn\"",
     "rope_parameters.full_attention.rope_type is 'yarn', must be default, linear or "
     "proportional"},
    {"\"rope_theta\": 10000.0", "\"rope_theta\": 0",
     "rope_parameters.sliding_attention.rope_theta is 0, must be from 1 to 1e+12"},
    {"\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"factor\": 2",
     "rope_parameters.sliding_attention.factor is 2, must be 1 for rope_type default"},
    {"\"rope_type\": \"default\"", "\"partial_rotary_factor\": 0.5",
     "rope_parameters.sliding_attention.partial_rotary_factor is 0.5, must be 1 unless "
     "rope_type is proportional"},
    {"\"sliding_attention\": {", "\"slidin_attention\": {",
     "rope_parameters.sliding_attention is missing, must be an object"},
    {"gelu_pytorch_tanh", "silu", "hidden_activation is 'silu', must be gelu_pytorch_tanh"},
    {"\"attention_bias\": false", "\"attention_bias\": true",
     "attention_bias is true, must be false"},
    {"\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 5",
     "num_kv_shared_layers is 5, must be an integer from 0 to 4"},
    {"\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 3",
     "num_kv_shared_layers leaves layer 2 (full_attention) no earlier layer to read from"},
    {"\"sliding_window\": 64", "\"sliding_window\": null",
     "sliding_window is missing, must be an integer from 1 to 1048576"},
    {"\"vocab_size\": 512", "\"vocab_size\": 0",
     "vocab_size is 0, must be an integer from 1 to 1048576"},
    {"\"vocab_size\"", "\"vocab\"", "vocab_size is missing"},
    {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0",
     "rms_norm_eps is 0, must be from 1e-12 to 0.01"},
    {"\"gemma4_text\"", "\"llama\"", "model_type is 'llama', this is a server for gemma4 models"},
    {"\"vocab_size\"", "\"use_bidirectional_attention\": \"all\", \"vocab_size\"",
     "use_bidirectional_attention is all, must be null, false or \"vision\""},
    {"\"vocab_size\"", "\"per_layer_config\": {\"5\": {}}, \"vocab_size\"",
     "per_layer_config.5 is no layer, must be from 0 to 4"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"02\": {}}, \"vocab_size\"",
     "per_layer_config.02 is no layer, must be from 0 to 4"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"2\": {\"rope\": 1}}, \"vocab_size\"",
     "per_layer_config.2 holds another key than head_dim, num_key_value_heads and "
     "intermediate_size"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"2\": {\"head_dim\": 256}}, \"vocab_size\"",
     "layer 4 has 1 key-value heads of 512, other full_attention layers have 1 of 256"},
    {"\"vocab_size\"", "\"per_layer_config\": [], \"vocab_size\"",
     "per_layer_config is an array, must be an object"},
    {"\"vocab_size\"", "\"enable_moe_block\": true, \"vocab_size\"",
     "num_experts is missing, must be an integer from 1 to 1024"},
    {"\"vocab_size\"", "\"quantization_config\": 4, \"vocab_size\"",
     "quantization_config is an integer, must be an object"},
};

static void test_bad_values_are_named(void)
{
    for (size_t i = 0; i < sizeof(bad_values) / sizeof(bad_values[0]); i++) {
        struct model_config config;
        struct err err = {0};
        char *text = replaced(base_text, bad_values[i].find, bad_values[i].replacement);
        enum err_code code = read_texts(text, NULL, &config, &err);
        mem_free(text);
        test_eq_str(err.message, bad_values[i].message);
        test_true(code == ERR_CONFIG || code == ERR_UNSUPPORTED);
    }
}

static void test_path_names_the_wrapper(void)
{
    struct model_config config;
    struct err err = {0};
    char *text = replaced(base_text, "\"hidden_size\": 64", "\"hidden_size\": 0");
    char *wrapped = replaced("{\"text_config\": @}", "@", text);
    enum err_code code = read_texts(wrapped, NULL, &config, &err);
    mem_free(text);
    mem_free(wrapped);
    test_true(code == ERR_CONFIG);
    test_eq_str(err.message, "text_config.hidden_size is 0, must be an integer from 1 to 32768");
}

static void test_bad_generation_values(void)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"[]", "generation_config.json is an array, must be an object"},
        {"{\"temperature\": -1}",
         "generation_config.json.temperature is -1, must be from 0 to 100"},
        {"{\"top_p\": 1.5}", "generation_config.json.top_p is 1.5, must be from 0 to 1"},
        {"{\"top_k\": -1}",
         "generation_config.json.top_k is -1, must be an integer from 0 to 1048576"},
        {"{\"suppress_tokens\": [\"a\"]}", "generation_config.json.suppress_tokens is a string, "
                                           "must be an integer from 0 to 2147483647"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct model_config config;
        struct err err = {0};
        test_true(read_texts(base_text, bad[i].text, &config, &err) == ERR_CONFIG);
        test_eq_str(err.message, bad[i].message);
    }
}

static void test_missing_files(void)
{
    char dir[] = "/tmp/model_config_XXXXXX";
    char want[256];
    struct model_config config;
    struct err err = {0};
    test_true(mkdtemp(dir) != NULL);
    test_true(model_config_load(dir, &config, &err) == ERR_NOT_FOUND);
    (void)snprintf(want, sizeof(want), "there is no file '%s/config.json'", dir);
    test_eq_str(err.message, want);
    test_true(rmdir(dir) == 0);
    test_true(model_config_load(dir, &config, &err) == ERR_NOT_FOUND);
    (void)snprintf(want, sizeof(want), "there is no model folder '%s'", dir);
    test_eq_str(err.message, want);
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
    TEST(test_variants_are_parsed_and_refused),
    TEST(test_bad_values_are_named),
    TEST(test_path_names_the_wrapper),
    TEST(test_bad_generation_values),
    TEST(test_missing_files),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
