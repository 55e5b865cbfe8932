#include "common/checkpoint.h"

#include <math.h>
#include <stdio.h>

#include "common/json.h"

static const char generation_path[] = "generation_config.json";

static const char *dot(const char *path)
{
    return path[0] == '\0' ? "" : ".";
}

/* An integer of either spelling. */
static enum err_code read_u32(const struct json_t *value, const char *name, uint32_t min_value,
                              uint32_t max_value, uint32_t *out_value, struct err *err)
{
    enum json_kind kind = json_kind(value);
    if (kind != JSON_KIND_INTEGER && kind != JSON_KIND_BIG_INTEGER && kind != JSON_KIND_REAL) {
        return err_set(err, ERR_CONFIG, "%s is %s, must be an integer from %u to %u", name,
                       json_kind_text(kind), min_value, max_value);
    }
    double number = json_number(value);
    if (!(number >= min_value && number <= max_value) || floor(number) < number) {
        return err_set(err, ERR_CONFIG, "%s is %.10g, must be an integer from %u to %u", name,
                       number, min_value, max_value);
    }
    *out_value = (uint32_t)number;
    return ERR_OK;
}

enum err_code checkpoint_get_u32(const struct checkpoint_object *object, const char *key,
                                 uint32_t min_value, uint32_t max_value, uint32_t *out_value,
                                 struct err *err)
{
    const struct json_t *value = json_member(object->json, key);
    if (value == NULL || json_kind(value) == JSON_KIND_NULL) {
        return ERR_OK;
    }
    char name[128];
    (void)snprintf(name, sizeof(name), "%s%s%s", object->path, dot(object->path), key);
    return read_u32(value, name, min_value, max_value, out_value, err);
}

struct checkpoint_object checkpoint_text_config(const struct json_t *config)
{
    const struct json_t *text = json_member(config, "text_config");
    bool is_wrapper = text != NULL && json_kind(text) == JSON_KIND_OBJECT;
    return is_wrapper ? (struct checkpoint_object){.json = text, .path = "text_config"}
                      : (struct checkpoint_object){.json = config, .path = ""};
}

struct id_list {
    uint32_t *ids; /* [cap] */
    uint32_t cap;
    uint32_t count;
    uint32_t vocab_tokens;
    bool drop_outside; /* ids outside the vocabulary are left out; otherwise refused */
};

static enum err_code add_id(struct id_list *list, const struct json_t *value, const char *name,
                            struct err *err)
{
    uint32_t max_id = list->drop_outside ? INT32_MAX : list->vocab_tokens - 1;
    uint32_t id = 0;
    enum err_code code = read_u32(value, name, 0, max_id, &id, err);
    if (code != ERR_OK || id >= list->vocab_tokens) {
        return code;
    }
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->ids[i] == id) {
            return ERR_OK;
        }
    }
    if (list->count == list->cap) {
        return err_set(err, ERR_CONFIG, "%s holds more than %u ids", name, list->cap);
    }
    list->ids[list->count++] = id;
    return ERR_OK;
}

/* object[key] is an id, a list of ids, null or absent. */
static enum err_code add_ids(struct id_list *list, const struct checkpoint_object *object,
                             const char *key, struct err *err)
{
    const struct json_t *value = json_member(object->json, key);
    if (value == NULL || json_kind(value) == JSON_KIND_NULL) {
        return ERR_OK;
    }
    char name[128];
    (void)snprintf(name, sizeof(name), "%s%s%s", object->path, dot(object->path), key);
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return add_id(list, value, name, err);
    }
    for (size_t i = 0; i < json_count(value); i++) {
        enum err_code code = add_id(list, json_element(value, i), name, err);
        if (code != ERR_OK) {
            return code;
        }
    }
    return ERR_OK;
}

/* Both styles of the key: image_token_id and image_token_index. */
static enum err_code read_modality_ids(const struct json_t *config, struct checkpoint_info *info,
                                       struct err *err)
{
    static const char *const names[] = {"image_token", "audio_token", "video_token", "boi_token",
                                        "eoi_token",   "boa_token",   "eoa_token"};
    static const char *const suffixes[] = {"_id", "_index"};
    const struct checkpoint_object root = {.json = config, .path = ""};
    struct id_list list = {.ids = info->modality_ids,
                           .cap = sizeof(info->modality_ids) / sizeof(info->modality_ids[0]),
                           .vocab_tokens = info->vocab_tokens,
                           .drop_outside = true};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t j = 0; j < sizeof(suffixes) / sizeof(suffixes[0]); j++) {
            char key[32];
            (void)snprintf(key, sizeof(key), "%s%s", names[i], suffixes[j]);
            enum err_code code = add_ids(&list, &root, key, err);
            if (code != ERR_OK) {
                return code;
            }
        }
    }
    info->modality_count = list.count;
    return ERR_OK;
}

static enum err_code read_eos_ids(const struct json_t *config, const struct json_t *generation,
                                  struct checkpoint_info *info, struct err *err)
{
    const struct checkpoint_object sources[] = {
        {.json = generation, .path = generation_path},
        {.json = config, .path = ""},
        checkpoint_text_config(config),
    };
    struct id_list list = {
        .ids = info->eos_ids, .cap = CHECKPOINT_MAX_EOS_IDS, .vocab_tokens = info->vocab_tokens};
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]) && list.count == 0; i++) {
        if (sources[i].json == NULL) {
            continue;
        }
        enum err_code code = add_ids(&list, &sources[i], "eos_token_id", err);
        if (code != ERR_OK) {
            return code;
        }
    }
    if (list.count == 0) {
        return err_set(err, ERR_CONFIG,
                       "eos_token_id is in neither generation_config.json nor config.json");
    }
    info->eos_count = list.count;
    return ERR_OK;
}

static enum err_code get_f32(const struct json_t *generation, const char *key, double max_value,
                             float *out_value, struct err *err)
{
    double value = 0;
    enum err_code code =
        json_get_f64_or(generation, generation_path, key, (double)*out_value, &value, err);
    if (code != ERR_OK) {
        return code;
    }
    if (!(value >= 0 && value <= max_value)) {
        return err_set(err, ERR_CONFIG, "%s.%s is %.6g, must be from 0 to %.6g", generation_path,
                       key, value, max_value);
    }
    *out_value = (float)value;
    return ERR_OK;
}

static enum err_code read_generation(const struct json_t *generation, struct checkpoint_info *info,
                                     struct err *err)
{
    const struct checkpoint_object object = {.json = generation, .path = generation_path};
    struct checkpoint_sampling *sampling = &info->sampling;
    *sampling = (struct checkpoint_sampling){.temperature = 1, .top_p = 1};
    if (generation == NULL) {
        return ERR_OK;
    }
    if (json_kind(generation) != JSON_KIND_OBJECT) {
        return err_set(err, ERR_CONFIG, "%s is %s, must be an object", generation_path,
                       json_kind_text(json_kind(generation)));
    }
    struct id_list list = {.ids = info->suppress_ids,
                           .cap = CHECKPOINT_MAX_IDS,
                           .vocab_tokens = info->vocab_tokens,
                           .drop_outside = true};
    enum err_code code = add_ids(&list, &object, "suppress_tokens", err);
    if (code == ERR_OK) {
        info->suppress_count = list.count;
        code = json_get_bool_or(generation, generation_path, "do_sample", false,
                                &sampling->do_sample, err);
    }
    if (code == ERR_OK) {
        code = get_f32(generation, "temperature", 100, &sampling->temperature, err);
    }
    if (code == ERR_OK) {
        code = get_f32(generation, "top_p", 1, &sampling->top_p, err);
    }
    if (code == ERR_OK) {
        code = checkpoint_get_u32(&object, "top_k", 0, CHECKPOINT_MAX_VOCAB_TOKENS,
                                  &sampling->top_k, err);
    }
    return code;
}

/* The id at the root, else in text_config. */
static enum err_code read_one_id(const struct json_t *config, const char *key,
                                 uint32_t vocab_tokens, uint32_t *out_id, struct err *err)
{
    *out_id = CHECKPOINT_NO_ID;
    const struct checkpoint_object root = {.json = config, .path = ""};
    const struct checkpoint_object text = checkpoint_text_config(config);
    enum err_code code = checkpoint_get_u32(&text, key, 0, vocab_tokens - 1, out_id, err);
    return code != ERR_OK ? code : checkpoint_get_u32(&root, key, 0, vocab_tokens - 1, out_id, err);
}

enum err_code checkpoint_read_info(const struct json_t *config, const struct json_t *generation,
                                   struct checkpoint_info *out_info, struct err *err)
{
    if (json_kind(config) != JSON_KIND_OBJECT) {
        return err_set(err, ERR_CONFIG, "config.json is %s, must be an object",
                       json_kind_text(json_kind(config)));
    }
    const struct checkpoint_object text = checkpoint_text_config(config);
    struct checkpoint_info info = {0};
    enum err_code code = checkpoint_get_u32(&text, "vocab_size", 1, CHECKPOINT_MAX_VOCAB_TOKENS,
                                            &info.vocab_tokens, err);
    if (code == ERR_OK && info.vocab_tokens == 0) {
        code = err_set(err, ERR_CONFIG, "vocab_size is missing");
    }
    if (code == ERR_OK) {
        code = read_one_id(config, "bos_token_id", info.vocab_tokens, &info.bos_id, err);
    }
    if (code == ERR_OK) {
        code = read_one_id(config, "pad_token_id", info.vocab_tokens, &info.pad_id, err);
    }
    if (code == ERR_OK) {
        code = read_generation(generation, &info, err);
    }
    if (code == ERR_OK) {
        code = read_eos_ids(config, generation, &info, err);
    }
    if (code == ERR_OK) {
        code = read_modality_ids(config, &info, err);
    }
    if (code == ERR_OK) {
        *out_info = info;
    }
    return code;
}

bool checkpoint_is_modality(const struct checkpoint_info *info, uint32_t token_id)
{
    for (uint32_t i = 0; i < info->modality_count; i++) {
        if (info->modality_ids[i] == token_id) {
            return true;
        }
    }
    return false;
}
