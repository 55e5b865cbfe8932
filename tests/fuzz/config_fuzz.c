/* config.json, then optionally a zero byte and generation_config.json.  What is accepted must be a
 * model that memory can be sized for: every count positive and within its limit. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "tests/fuzz/fuzz.h"
#include "worker/model_config.h"

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void check_ids(const uint32_t *ids, uint32_t count, uint32_t vocab_tokens)
{
    for (uint32_t i = 0; i < count; i++) {
        require(ids[i] < vocab_tokens);
    }
}

static void check_layer(const struct model_config *config, uint32_t index)
{
    const struct model_layer *layer = &config->layers[index];
    const struct model_family *family = &config->families[layer->family];
    const struct model_layer *source = &config->layers[layer->kv_source_layer];
    require(layer->head_dim > 0 && layer->head_dim <= MODEL_MAX_HEAD_DIM);
    require(layer->head_dim % 2 == 0 && config->heads % layer->kv_heads == 0);
    require(layer->head_dim == family->head_dim && layer->kv_heads == family->kv_heads);
    require(layer->rope.rotated_pairs <= layer->head_dim / 2 && layer->rope.theta >= 1);
    require(layer->intermediate_elems > 0 && layer->intermediate_elems % MODEL_ELEM_MULTIPLE == 0);
    require(layer->kv_source_layer <= index && source->owns_kv && source->family == layer->family);
    require(layer->kv_slot == source->kv_slot && layer->kv_slot < family->kv_layers);
    require(layer->owns_kv == (layer->kv_source_layer == index));
    require((layer->family == RUNNER_FAMILY_LOCAL) == (layer->window_tokens > 0));
}

static void check_accepted(const struct model_config *config)
{
    const struct checkpoint_info *info = &config->info;
    struct err err = {0};
    require(info->vocab_tokens > 0 && info->vocab_tokens <= CHECKPOINT_MAX_VOCAB_TOKENS);
    require(info->eos_count > 0 && info->eos_count <= CHECKPOINT_MAX_EOS_IDS);
    require(info->suppress_count <= CHECKPOINT_MAX_IDS && info->modality_count <= 16);
    check_ids(info->eos_ids, info->eos_count, info->vocab_tokens);
    check_ids(info->suppress_ids, info->suppress_count, info->vocab_tokens);
    check_ids(info->modality_ids, info->modality_count, info->vocab_tokens);
    require(info->modality_count == 0 || checkpoint_is_modality(info, info->modality_ids[0]));
    require(info->sampling.top_p >= 0 && info->sampling.top_p <= 1);
    require(config->layer_count > 0 && config->layer_count <= MODEL_MAX_LAYERS);
    require(config->hidden_elems > 0 && config->hidden_elems % MODEL_ELEM_MULTIPLE == 0);
    require(config->heads > 0 && config->heads <= MODEL_MAX_HEADS && config->rms_eps > 0);
    require(config->max_positions > 0 && config->max_positions <= MODEL_MAX_POSITIONS);
    for (uint32_t i = 0; i < config->layer_count; i++) {
        check_layer(config, i);
    }
    enum err_code code = model_config_check_supported(config, &err);
    require(code == ERR_OK || (code == ERR_UNSUPPORTED && err.message[0] != '\0'));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    struct json_t *config_json = NULL;
    struct json_t *generation = NULL;
    struct model_config config;
    struct err err = {0};
    const uint8_t *zero = byte_count == 0 ? NULL : memchr(bytes, 0, byte_count);
    size_t config_bytes = zero == NULL ? byte_count : (size_t)(zero - bytes);
    if (json_parse((const char *)bytes, config_bytes, 32, &config_json, &err) != ERR_OK) {
        return 0;
    }
    if (zero != NULL && json_parse((const char *)zero + 1, byte_count - config_bytes - 1, 32,
                                   &generation, &err) != ERR_OK) {
        json_release(config_json);
        return 0;
    }
    enum err_code code = model_config_read(config_json, generation, &config, &err);
    if (code == ERR_OK) {
        check_accepted(&config);
    } else {
        require((code == ERR_CONFIG || code == ERR_UNSUPPORTED) && err.message[0] != '\0');
    }
    json_release(config_json);
    json_release(generation);
    return 0;
}
