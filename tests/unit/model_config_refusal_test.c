/* Configs that are refused, each in one line that names key, value and limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/testlib/config_texts.h"
#include "tests/testlib/test.h"

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
     "per_layer_config.5 is no layer, num_hidden_layers is 5"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"2x\": {}}, \"vocab_size\"",
     "per_layer_config.2x is no layer, num_hidden_layers is 5"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"\": {}}, \"vocab_size\"",
     "per_layer_config. is no layer, num_hidden_layers is 5"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"-1\": {}}, \"vocab_size\"",
     "per_layer_config.-1 is no layer, num_hidden_layers is 5"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"4294967298\": {}}, \"vocab_size\"",
     "per_layer_config.4294967298 is no layer, num_hidden_layers is 5"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"2\": {}, \"02\": {}}, \"vocab_size\"",
     "per_layer_config.02 names a layer for the second time"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"2\": {\"rope\": 1}}, \"vocab_size\"",
     "per_layer_config.2 holds another key than head_dim, num_key_value_heads and "
     "intermediate_size"},
    {"\"vocab_size\"", "\"per_layer_config\": {\"2\": {\"head_dim\": 512}}, \"vocab_size\"",
     "layer 4 has 2 key-value heads of 256, other full_attention layers have 2 of 512"},
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
        char *text =
            config_replaced(config_base_text, bad_values[i].find, bad_values[i].replacement);
        enum err_code code = config_read_texts(text, NULL, &config, &err);
        mem_free(text);
        test_eq_str(err.message, bad_values[i].message);
        test_true(code == ERR_CONFIG || code == ERR_UNSUPPORTED);
    }
}

static void test_path_names_the_wrapper(void)
{
    struct model_config config;
    struct err err = {0};
    char *text = config_replaced(config_base_text, "\"hidden_size\": 64", "\"hidden_size\": 0");
    char *wrapped = config_replaced("{\"text_config\": @}", "@", text);
    enum err_code code = config_read_texts(wrapped, NULL, &config, &err);
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
        test_true(config_read_texts(config_base_text, bad[i].text, &config, &err) == ERR_CONFIG);
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
    TEST(test_bad_values_are_named),
    TEST(test_path_names_the_wrapper),
    TEST(test_bad_generation_values),
    TEST(test_missing_files),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
