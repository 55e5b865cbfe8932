#include "worker/model_config.h"

#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "worker/faults.h"
#include "worker/model_config_internal.h"

enum {
    DEFAULT_PLE_ELEMS = 256
};

const char *model_dot(const struct checkpoint_object *source)
{
    return source->path[0] == '\0' ? "" : ".";
}

const char *model_family_text(enum runner_family family)
{
    static const char *const texts[RUNNER_FAMILY_COUNT] = {"sliding_attention", "full_attention"};
    return texts[family];
}

const struct json_t *model_member(const struct json_t *object, const char *key)
{
    const struct json_t *value = object == NULL ? NULL : json_member(object, key);
    return value != NULL && json_kind(value) == JSON_KIND_NULL ? NULL : value;
}

enum err_code model_get_object(const struct checkpoint_object *source, const char *key,
                               const struct json_t **out_object, struct err *err)
{
    const struct json_t *value = model_member(source->json, key);
    if (value != NULL && json_kind(value) != JSON_KIND_OBJECT) {
        return err_set(err, ERR_CONFIG, "%s%s%s is %s, must be an object", source->path,
                       model_dot(source), key, json_kind_text(json_kind(value)));
    }
    *out_object = value;
    return ERR_OK;
}

enum err_code model_need_u32(const struct checkpoint_object *source, const char *key,
                             uint32_t min_value, uint32_t max_value, uint32_t *out_value,
                             struct err *err)
{
    if (model_member(source->json, key) == NULL) {
        return err_set(err, ERR_CONFIG, "%s%s%s is missing, must be an integer from %u to %u",
                       source->path, model_dot(source), key, min_value, max_value);
    }
    return checkpoint_get_u32(source, key, min_value, max_value, out_value, err);
}

static enum err_code check_multiple(const struct checkpoint_object *source, const char *key,
                                    uint32_t value, uint32_t multiple, struct err *err)
{
    if (value % multiple != 0) {
        return err_set(err, ERR_CONFIG, "%s%s%s is %u, must be a multiple of %u", source->path,
                       model_dot(source), key, value, multiple);
    }
    return ERR_OK;
}

static enum err_code check_model_type(const struct json_t *config,
                                      const struct checkpoint_object *source, struct err *err)
{
    static const char *const known[] = {"gemma4", "gemma4_text", "gemma4_unified",
                                        "gemma4_unified_text"};
    const char *type;
    enum err_code code =
        json_get_text_or(source->json, source->path, "model_type", NULL, &type, err);
    if (code == ERR_OK && type == NULL) {
        code = json_get_text_or(config, "", "model_type", NULL, &type, err);
    }
    if (code != ERR_OK) {
        return code;
    }
    if (type == NULL) {
        return err_set(err, ERR_CONFIG,
                       "model_type is missing, must be gemma4_text or one of its kin");
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(type, known[i]) == 0) {
            return ERR_OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "model_type is '%.64s', this is a server for gemma4 models", type);
}

static enum err_code check_activation(const struct checkpoint_object *source, struct err *err)
{
    static const char wanted[] = "gelu_pytorch_tanh";
    const char *activation;
    enum err_code code =
        json_get_text_or(source->json, source->path, "hidden_activation", wanted, &activation, err);
    return code != ERR_OK || strcmp(activation, wanted) == 0
               ? code
               : err_set(err, ERR_CONFIG, "%s%shidden_activation is '%.64s', must be %s",
                         source->path, model_dot(source), activation, wanted);
}

static enum err_code check_bias(const struct checkpoint_object *source, struct err *err)
{
    bool has_bias = false;
    enum err_code code =
        json_get_bool_or(source->json, source->path, "attention_bias", false, &has_bias, err);
    return code != ERR_OK || !has_bias
               ? code
               : err_set(err, ERR_CONFIG, "%s%sattention_bias is true, must be false", source->path,
                         model_dot(source));
}

/* "vision" lets image blocks look ahead, which text prompts do not have; "all" is no causal model.
 * Older files hold a boolean. */
static enum err_code check_direction(const struct checkpoint_object *source, struct err *err)
{
    const struct json_t *both = model_member(source->json, "use_bidirectional_attention");
    if (both == NULL || (json_kind(both) == JSON_KIND_BOOL && !json_bool(both)) ||
        (json_kind(both) == JSON_KIND_TEXT && strcmp(json_text(both, NULL), "vision") == 0)) {
        return ERR_OK;
    }
    return err_set(err, ERR_CONFIG,
                   "%s%suse_bidirectional_attention is %s, must be null, false or \"vision\"",
                   source->path, model_dot(source),
                   json_kind(both) == JSON_KIND_TEXT ? json_text(both, NULL)
                                                     : json_kind_text(json_kind(both)));
}

/* Keys whose other values would change the network in ways that no Gemma 4 model does. */
static void check_fixed_keys(const struct checkpoint_object *source, struct faults *faults)
{
    struct err err;
    (void)faults_note(faults, check_activation(source, &err), &err); /* noted, as all below */
    (void)faults_note(faults, check_bias(source, &err), &err);
    (void)faults_note(faults, check_direction(source, &err), &err);
}

static enum err_code read_f32(const struct checkpoint_object *source, const char *key,
                              const double bounds[2], float *value, struct err *err)
{
    double number = 0;
    enum err_code code =
        json_get_f64_or(source->json, source->path, key, (double)*value, &number, err);
    if (code != ERR_OK) {
        return code;
    }
    if (!(number >= bounds[0] && number <= bounds[1])) {
        return err_set(err, ERR_CONFIG, "%s%s%s is %.6g, must be from %.6g to %.6g", source->path,
                       model_dot(source), key, number, bounds[0], bounds[1]);
    }
    *value = (float)number;
    return ERR_OK;
}

static enum err_code read_hidden(const struct checkpoint_object *source,
                                 struct model_config *config, struct err *err)
{
    enum err_code code = model_need_u32(source, "hidden_size", 1, MODEL_MAX_HIDDEN_ELEMS,
                                        &config->hidden_elems, err);
    return code != ERR_OK ? code
                          : check_multiple(source, "hidden_size", config->hidden_elems,
                                           MODEL_ELEM_MULTIPLE, err);
}

static void read_sizes(const struct checkpoint_object *source, struct model_config *config,
                       struct faults *faults)
{
    static const double eps_bounds[2] = {1e-12, 1e-2};
    static const double softcap_bounds[2] = {0, 1e6};
    struct err err;
    config->rms_eps = 1e-6F;
    (void)faults_note(faults, read_hidden(source, config, &err), &err); /* noted, as all below */
    (void)faults_note(faults,
                      model_need_u32(source, "max_position_embeddings", 1, MODEL_MAX_POSITIONS,
                                     &config->max_positions, &err),
                      &err);
    (void)faults_note(faults, read_f32(source, "rms_norm_eps", eps_bounds, &config->rms_eps, &err),
                      &err);
    (void)faults_note(
        faults, read_f32(source, "final_logit_softcapping", softcap_bounds, &config->softcap, &err),
        &err);
}

/* A file that leaves a key out means the default of its model_type: only unified models have none. */
static uint32_t default_ple_elems(const struct checkpoint_object *source)
{
    const struct json_t *type = model_member(source->json, "model_type");
    bool is_plain = type != NULL && json_kind(type) == JSON_KIND_TEXT &&
                    strcmp(json_text(type, NULL), "gemma4_text") == 0;
    return is_plain && json_member(source->json, "hidden_size_per_layer_input") == NULL
               ? DEFAULT_PLE_ELEMS
               : 0;
}

static enum err_code read_ple(const struct checkpoint_object *source, struct model_config *config,
                              struct err *err)
{
    config->ple_elems = default_ple_elems(source);
    enum err_code code = checkpoint_get_u32(source, "hidden_size_per_layer_input", 0,
                                            MODEL_MAX_HIDDEN_ELEMS, &config->ple_elems, err);
    if (code != ERR_OK || config->ple_elems == 0) {
        return code;
    }
    code = check_multiple(source, "hidden_size_per_layer_input", config->ple_elems,
                          MODEL_ELEM_MULTIPLE, err);
    config->ple_vocab_tokens = config->info.vocab_tokens;
    if (code == ERR_OK) {
        code = checkpoint_get_u32(source, "vocab_size_per_layer_input", 1,
                                  CHECKPOINT_MAX_VOCAB_TOKENS, &config->ple_vocab_tokens, err);
    }
    return code;
}

static enum err_code read_experts(const struct checkpoint_object *source,
                                  struct model_config *config, struct err *err)
{
    bool has_experts = false;
    enum err_code code =
        json_get_bool_or(source->json, source->path, "enable_moe_block", false, &has_experts, err);
    if (code != ERR_OK || !has_experts) {
        return code;
    }
    code = model_need_u32(source, "num_experts", 1, MODEL_MAX_EXPERTS, &config->experts, err);
    if (code == ERR_OK) {
        code =
            model_need_u32(source, "top_k_experts", 1, config->experts, &config->top_experts, err);
    }
    const char *key = model_member(source->json, "moe_intermediate_size") != NULL
                          ? "moe_intermediate_size"
                          : "expert_intermediate_size";
    if (code == ERR_OK) {
        code = model_need_u32(source, key, 1, MODEL_MAX_INTERMEDIATE_ELEMS,
                              &config->expert_intermediate_elems, err);
    }
    if (code == ERR_OK) {
        code = check_multiple(source, key, config->expert_intermediate_elems, MODEL_ELEM_MULTIPLE,
                              err);
    }
    return code;
}

static enum err_code read_tying(const struct json_t *config, const struct checkpoint_object *source,
                                bool *out_tied, struct err *err)
{
    bool root = true;
    enum err_code code = json_get_bool_or(config, "", "tie_word_embeddings", true, &root, err);
    return code != ERR_OK ? code
                          : json_get_bool_or(source->json, source->path, "tie_word_embeddings",
                                             root, out_tied, err);
}

/* quantization_config lies at the root, or in text_config of some exports. */
static enum err_code read_quantization(const struct json_t *config,
                                       const struct checkpoint_object *source,
                                       struct model_config *out_config, struct err *err)
{
    const struct json_t *found = model_member(config, "quantization_config");
    found = found != NULL ? found : model_member(source->json, "quantization_config");
    if (found == NULL) {
        return ERR_OK;
    }
    if (json_kind(found) != JSON_KIND_OBJECT) {
        return err_set(err, ERR_CONFIG, "quantization_config is %s, must be an object",
                       json_kind_text(json_kind(found)));
    }
    const char *method;
    enum err_code code =
        json_get_text_or(found, "quantization_config", "quant_method", "unnamed", &method, err);
    if (code == ERR_OK) {
        (void)snprintf(out_config->quant_method, sizeof(out_config->quant_method), "%s", method);
    }
    return code;
}

/* Goes on after a fault wherever what follows does not depend on it. */
void model_read_all(const struct json_t *config, const struct json_t *generation,
                    struct model_config *read, struct faults *faults)
{
    struct err err;
    if (json_kind(config) != JSON_KIND_OBJECT) {
        (void)faults_note(faults, checkpoint_read_info(config, generation, &read->info, &err),
                          &err);
        return; /* noted, as all below */
    }
    const struct checkpoint_object source = checkpoint_text_config(config);
    if (faults_note(faults, check_model_type(config, &source, &err), &err) != ERR_OK) {
        return; /* every key of another model would be a fault */
    }
    (void)faults_note(faults, checkpoint_read_info(config, generation, &read->info, &err), &err);
    check_fixed_keys(&source, faults);
    read_sizes(&source, read, faults);
    (void)faults_note(faults, read_ple(&source, read, &err), &err);
    (void)faults_note(faults, read_experts(&source, read, &err), &err);
    (void)faults_note(faults, read_tying(config, &source, &read->tied_lm_head, &err), &err);
    (void)faults_note(faults, read_quantization(config, &source, read, &err), &err);
    enum err_code code =
        model_need_u32(&source, "num_attention_heads", 1, MODEL_MAX_HEADS, &read->heads, &err);
    if (faults_note(faults, code, &err) == ERR_OK) {
        model_read_layers(&source, read, faults);
    }
}

enum err_code model_config_read(const struct json_t *config, const struct json_t *generation,
                                struct model_config *out_config, struct err *err)
{
    struct model_config read = {0};
    struct faults faults = {0};
    model_read_all(config, generation, &read, &faults);
    enum err_code code = faults_noted(&faults, "fault", err);
    if (code == ERR_OK) {
        *out_config = read;
    }
    return code;
}

enum err_code model_config_check_supported(const struct model_config *config, struct err *err)
{
    if (config->quant_method[0] != '\0') {
        return err_set(
            err, ERR_UNSUPPORTED,
            "quantization_config.quant_method is '%s': this build runs bf16 weights only",
            config->quant_method);
    }
    if (config->ple_elems > 0 && config->experts > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "hidden_size_per_layer_input is %u beside enable_moe_block: this build runs "
                       "models with one of them",
                       config->ple_elems);
    }
    if (config->ple_elems > 0 && config->ple_vocab_tokens < config->info.vocab_tokens) {
        return err_set(err, ERR_UNSUPPORTED,
                       "vocab_size_per_layer_input is %u, must be at least vocab_size = %u",
                       config->ple_vocab_tokens, config->info.vocab_tokens);
    }
    if (config->families[RUNNER_FAMILY_LOCAL].layers == 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "layer_types holds no sliding_attention layer: both kinds are needed");
    }
    return ERR_OK;
}
