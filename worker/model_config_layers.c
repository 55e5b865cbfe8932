/* Layers of a model: which family each belongs to, its geometry in either style of config.json, and
 * whose KV it reads. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/num.h"
#include "worker/faults.h"
#include "worker/model_config_internal.h"

enum {
    FULL_EVERY = 6, /* without layer_types, layers 5, 11, ... are full attention */
    MAX_KEY_DIGITS = 9,
    GLOBAL_HEAD_DIM = 512 /* of full layers where nothing is said */
};

static enum err_code read_layer_type(const struct checkpoint_object *source,
                                     const struct json_t *types, uint32_t index,
                                     enum runner_family *out_family, struct err *err)
{
    const struct json_t *type = json_element(types, index);
    if (json_kind(type) == JSON_KIND_TEXT) {
        for (int family = 0; family < RUNNER_FAMILY_COUNT; family++) {
            if (strcmp(json_text(type, NULL), model_family_text((enum runner_family)family)) == 0) {
                *out_family = (enum runner_family)family;
                return ERR_OK;
            }
        }
    }
    return err_set(err, ERR_CONFIG,
                   "%s%slayer_types[%u] is %.64s, must be sliding_attention or full_attention",
                   source->path, model_dot(source), index,
                   json_kind(type) == JSON_KIND_TEXT ? json_text(type, NULL)
                                                     : json_kind_text(json_kind(type)));
}

static enum err_code read_layer_types(const struct checkpoint_object *source,
                                      struct model_config *config, struct err *err)
{
    const struct json_t *types = model_member(source->json, "layer_types");
    uint32_t last = config->layer_count - 1;
    for (uint32_t i = 0; types == NULL && i <= last; i++) {
        config->layers[i].family =
            (i + 1) % FULL_EVERY == 0 ? RUNNER_FAMILY_GLOBAL : RUNNER_FAMILY_LOCAL;
    }
    if (types != NULL &&
        (json_kind(types) != JSON_KIND_ARRAY || json_count(types) != config->layer_count)) {
        return err_set(err, ERR_CONFIG,
                       "%s%slayer_types is %s of %zu, must be an array of num_hidden_layers = %u",
                       source->path, model_dot(source), json_kind_text(json_kind(types)),
                       json_count(types), config->layer_count);
    }
    for (uint32_t i = 0; types != NULL && i <= last; i++) {
        enum err_code code = read_layer_type(source, types, i, &config->layers[i].family, err);
        if (code != ERR_OK) {
            return code;
        }
    }
    /* Whatever the list says, the reference makes the last layer one of full attention. */
    config->layers[last].family = RUNNER_FAMILY_GLOBAL;
    return ERR_OK;
}

/* Geometry that every layer has unless something says otherwise. */
struct layer_base {
    uint32_t head_dim;
    uint32_t kv_heads;
    uint32_t intermediate_elems;
    uint32_t window_tokens;
    bool k_eq_v;
    bool double_wide;      /* layers that share KV have twice the MLP width */
    uint32_t first_shared; /* layers from here on own no KV */
    /* Of full layers in the style of published files; as above where not given. */
    uint32_t global_head_dim;
    uint32_t global_kv_heads;
};

/* What full layers have of their own; the rest of base is set. */
static enum err_code read_global_base(const struct checkpoint_object *source,
                                      const struct model_config *config, struct layer_base *base,
                                      struct err *err)
{
    bool has_overrides = model_member(source->json, "per_layer_config") != NULL;
    base->global_head_dim = has_overrides ? base->head_dim : GLOBAL_HEAD_DIM;
    base->global_kv_heads = base->kv_heads;
    if (has_overrides) {
        return ERR_OK; /* they say it all: the global_* keys are of the older style */
    }
    enum err_code code = checkpoint_get_u32(source, "global_head_dim", 1, MODEL_MAX_HEAD_DIM,
                                            &base->global_head_dim, err);
    if (code == ERR_OK && base->k_eq_v) {
        code = checkpoint_get_u32(source, "num_global_key_value_heads", 1, config->heads,
                                  &base->global_kv_heads, err);
    }
    return code;
}

static void read_base(const struct checkpoint_object *source, const struct model_config *config,
                      struct layer_base *base, struct faults *faults)
{
    const struct {
        const char *key;
        uint32_t max_value;
        uint32_t *value;
    } needed[] = {{"head_dim", MODEL_MAX_HEAD_DIM, &base->head_dim},
                  {"num_key_value_heads", config->heads, &base->kv_heads},
                  {"intermediate_size", MODEL_MAX_INTERMEDIATE_ELEMS, &base->intermediate_elems},
                  {"sliding_window", MODEL_MAX_POSITIONS, &base->window_tokens}};
    const struct {
        const char *key;
        bool *value;
    } flags[] = {{"attention_k_eq_v", &base->k_eq_v}, {"use_double_wide_mlp", &base->double_wide}};
    uint32_t shared = 0;
    struct err err;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        enum err_code code =
            model_need_u32(source, needed[i].key, 1, needed[i].max_value, needed[i].value, &err);
        (void)faults_note(faults, code, &err); /* noted, as all below */
    }
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        enum err_code code =
            json_get_bool_or(source->json, source->path, flags[i].key, false, flags[i].value, &err);
        (void)faults_note(faults, code, &err);
    }
    enum err_code code = checkpoint_get_u32(source, "num_kv_shared_layers", 0,
                                            config->layer_count - 1, &shared, &err);
    (void)faults_note(faults, code, &err);
    base->first_shared = config->layer_count - shared;
    (void)faults_note(faults, read_global_base(source, config, base, &err), &err);
}

/* The layer that a key of per_layer_config names, in decimal digits, padded with zeros or not, so
 * that keys may sort by layer; layer_count: none. */
static uint32_t layer_of_key(const char *key, uint32_t layer_count)
{
    uint32_t index = 0;
    size_t digits = strspn(key, "0123456789");
    if (digits == 0 || digits > MAX_KEY_DIGITS || key[digits] != '\0') {
        return layer_count;
    }
    for (size_t i = 0; i < digits; i++) {
        index = index * 10 + (uint32_t)(key[i] - '0');
    }
    return num_min(index, layer_count);
}

/* per_layer_config["<index>"]: the keys in which this layer differs from the rest. */
static enum err_code read_override(const struct checkpoint_object *source, const char *key,
                                   const struct json_t *override, const struct model_config *config,
                                   struct model_layer *layer, struct err *err)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "%s%sper_layer_config.%.32s", source->path,
                   model_dot(source), key);
    if (json_kind(override) == JSON_KIND_NULL) {
        return ERR_OK;
    }
    if (json_kind(override) != JSON_KIND_OBJECT) {
        return err_set(err, ERR_CONFIG, "%s is %s, must be an object", path,
                       json_kind_text(json_kind(override)));
    }
    const struct {
        const char *key;
        uint32_t max_value;
        uint32_t *value;
    } known[] = {{"head_dim", MODEL_MAX_HEAD_DIM, &layer->head_dim},
                 {"num_key_value_heads", config->heads, &layer->kv_heads},
                 {"intermediate_size", MODEL_MAX_INTERMEDIATE_ELEMS, &layer->intermediate_elems}};
    const struct checkpoint_object object = {.json = override, .path = path};
    size_t known_count = sizeof(known) / sizeof(known[0]);
    size_t found_count = 0;
    for (size_t i = 0; i < known_count; i++) {
        found_count += json_member(override, known[i].key) != NULL;
        enum err_code code =
            checkpoint_get_u32(&object, known[i].key, 1, known[i].max_value, known[i].value, err);
        if (code != ERR_OK) {
            return code;
        }
    }
    if (found_count != json_count(override)) {
        return err_set(err, ERR_CONFIG,
                       "%s holds another key than head_dim, num_key_value_heads and "
                       "intermediate_size",
                       path);
    }
    return ERR_OK;
}

static enum err_code check_layer(const struct model_config *config, uint32_t index, struct err *err)
{
    const struct model_layer *layer = &config->layers[index];
    if (layer->head_dim % MODEL_HEAD_DIM_MULTIPLE != 0) {
        return err_set(err, ERR_CONFIG, "head_dim of layer %u is %u, must be a multiple of %u",
                       index, layer->head_dim, MODEL_HEAD_DIM_MULTIPLE);
    }
    if (config->heads % layer->kv_heads != 0) {
        return err_set(err, ERR_CONFIG,
                       "layer %u has %u key-value heads, which do not divide num_attention_heads = "
                       "%u",
                       index, layer->kv_heads, config->heads);
    }
    if (layer->intermediate_elems % MODEL_ELEM_MULTIPLE != 0 ||
        layer->intermediate_elems > MODEL_MAX_INTERMEDIATE_ELEMS) {
        return err_set(err, ERR_CONFIG,
                       "intermediate_size of layer %u is %u, must be a multiple of %u up to %u",
                       index, layer->intermediate_elems, MODEL_ELEM_MULTIPLE,
                       MODEL_MAX_INTERMEDIATE_ELEMS);
    }
    return ERR_OK;
}

/* Every layer at most once. */
static enum err_code read_overrides(const struct checkpoint_object *source,
                                    struct model_config *config, struct err *err)
{
    const struct json_t *overrides;
    bool seen[MODEL_MAX_LAYERS] = {false};
    char why[64];
    struct json_iter iter;
    enum err_code code = model_get_object(source, "per_layer_config", &overrides, err);
    if (code != ERR_OK || overrides == NULL) {
        return code;
    }
    json_iter_start(&iter, overrides);
    while (code == ERR_OK && json_iter_next(&iter)) {
        uint32_t index = layer_of_key(iter.key, config->layer_count);
        if (index == config->layer_count || seen[index]) {
            (void)snprintf(why, sizeof(why), "is no layer, num_hidden_layers is %u",
                           config->layer_count);
            return err_set(
                err, ERR_CONFIG, "%s%sper_layer_config.%.32s %s", source->path, model_dot(source),
                iter.key, index == config->layer_count ? why : "names a layer for the second time");
        }
        seen[index] = true;
        code = read_override(source, iter.key, iter.value, config, &config->layers[index], err);
    }
    return code;
}

static enum err_code read_geometry(const struct checkpoint_object *source,
                                   struct model_config *config, const struct layer_base *base,
                                   struct err *err)
{
    for (uint32_t i = 0; i < config->layer_count; i++) {
        struct model_layer *layer = &config->layers[i];
        bool is_global = layer->family == RUNNER_FAMILY_GLOBAL;
        layer->head_dim = is_global ? base->global_head_dim : base->head_dim;
        layer->kv_heads = is_global ? base->global_kv_heads : base->kv_heads;
        layer->window_tokens = is_global ? 0 : base->window_tokens;
        layer->k_eq_v = is_global && base->k_eq_v;
        layer->owns_kv = i < base->first_shared;
        layer->intermediate_elems = base->intermediate_elems;
    }
    enum err_code code = read_overrides(source, config, err);
    for (uint32_t i = 0; code == ERR_OK && i < config->layer_count; i++) {
        struct model_layer *layer = &config->layers[i];
        layer->intermediate_elems *= base->double_wide && !layer->owns_kv ? 2 : 1;
        code = check_layer(config, i, err);
    }
    return code;
}

/* Layers without KV read the last owner of their family before them. */
static enum err_code assign_kv(struct model_config *config, struct err *err)
{
    uint32_t owner[RUNNER_FAMILY_COUNT] = {0};
    for (uint32_t i = 0; i < config->layer_count; i++) {
        struct model_layer *layer = &config->layers[i];
        struct model_family *family = &config->families[layer->family];
        if (layer->owns_kv) {
            owner[layer->family] = i;
            family->kv_layers++;
        } else if (family->kv_layers == 0) {
            return err_set(
                err, ERR_CONFIG,
                "num_kv_shared_layers leaves layer %u (%s) no earlier layer to read from", i,
                model_family_text(layer->family));
        }
        layer->kv_source_layer = owner[layer->family];
        layer->kv_slot = family->kv_layers - 1;
    }
    return ERR_OK;
}

/* One page of a family holds the KV of all its layers, so that they must agree. */
static enum err_code collect_families(struct model_config *config, struct err *err)
{
    for (uint32_t i = 0; i < config->layer_count; i++) {
        struct model_layer *layer = &config->layers[i];
        struct model_family *family = &config->families[layer->family];
        if (family->layers++ == 0) {
            family->head_dim = layer->head_dim;
            family->kv_heads = layer->kv_heads;
            family->window_tokens = layer->window_tokens;
        } else if (family->head_dim != layer->head_dim || family->kv_heads != layer->kv_heads) {
            return err_set(err, ERR_CONFIG,
                           "layer %u has %u key-value heads of %u, other %s layers have %u of %u",
                           i, layer->kv_heads, layer->head_dim, model_family_text(layer->family),
                           family->kv_heads, family->head_dim);
        }
    }
    return ERR_OK;
}

/* What follows from the layers' families and base. */
static enum err_code derive(const struct checkpoint_object *source, struct model_config *config,
                            const struct layer_base *base, struct err *err)
{
    enum err_code code = read_geometry(source, config, base, err);
    if (code == ERR_OK) {
        code = collect_families(config, err);
    }
    if (code == ERR_OK) {
        code = assign_kv(config, err);
    }
    if (code == ERR_OK) {
        code = model_read_ropes(source, config, err);
    }
    return code;
}

void model_read_layers(const struct checkpoint_object *source, struct model_config *config,
                       struct faults *faults)
{
    struct layer_base base = {0};
    struct err err;
    enum err_code code = model_need_u32(source, "num_hidden_layers", 1, MODEL_MAX_LAYERS,
                                        &config->layer_count, &err);
    if (faults_note(faults, code, &err) != ERR_OK) {
        return;
    }
    uint32_t count_before = faults->count;
    (void)faults_note(faults, read_layer_types(source, config, &err), &err); /* noted, as below */
    read_base(source, config, &base, faults);
    if (faults->count == count_before) {
        (void)faults_note(faults, derive(source, config, &base, &err), &err);
    }
}
