/* Shared by model_config.c, model_config_files.c, model_config_layers.c and model_config_rope.c only. */
#ifndef WORKER_MODEL_CONFIG_INTERNAL_H
#define WORKER_MODEL_CONFIG_INTERNAL_H

#include "worker/model_config.h"

struct faults;

/* Everything of a model's config; faults are noted, *read is whole when there are none. */
void model_read_all(const struct json_t *config, const struct json_t *generation,
                    struct model_config *read, struct faults *faults);

/* What stands between path and a key in messages. */
const char *model_dot(const struct checkpoint_object *source);

/* The name of a family in layer_types and rope_parameters. */
const char *model_family_text(enum runner_family family);

/* object[key]; null where object is, or where the key is absent or JSON's null. */
const struct json_t *model_member(const struct json_t *object, const char *key);

/* text[key], null where absent; ERR_CONFIG where it is something else than an object. */
ERR_NODISCARD enum err_code model_get_object(const struct checkpoint_object *source,
                                             const char *key, const struct json_t **out_object,
                                             struct err *err);

/* As checkpoint_get_u32; an absent or null key is ERR_CONFIG. */
ERR_NODISCARD enum err_code model_need_u32(const struct checkpoint_object *source, const char *key,
                                           uint32_t min_value, uint32_t max_value,
                                           uint32_t *out_value, struct err *err);

/* Fills config->layers and config->families from layer_types, the per-layer geometry in either
 * style and num_kv_shared_layers; heads is set before.  Faults are noted. */
void model_read_layers(const struct checkpoint_object *source, struct model_config *config,
                       struct faults *faults);

/* Fills families[].rope, whose head_dim is set, and layers[].rope. */
ERR_NODISCARD enum err_code model_read_ropes(const struct checkpoint_object *source,
                                             struct model_config *config, struct err *err);

#endif
