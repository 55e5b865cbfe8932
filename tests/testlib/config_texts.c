#include "tests/testlib/config_texts.h"

#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/mem.h"
#include "tests/testlib/test.h"

const char config_base_text[] =
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

char *config_replaced(const char *text, const char *find, const char *replacement)
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

enum err_code config_read_texts(const char *config_text, const char *generation_text,
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

void config_read_edited(const char *find, const char *replacement, struct model_config *config)
{
    struct err err = {0};
    char *text = config_replaced(config_base_text, find, replacement);
    enum err_code code = config_read_texts(text, NULL, config, &err);
    mem_free(text);
    test_ok(code, &err);
}
