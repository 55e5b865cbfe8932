/* Rotary frequencies of both families: rope_parameters in its spellings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "worker/model_config_internal.h"

enum rope_type {
    ROPE_DEFAULT,      /* every pair rotates; factor is not used */
    ROPE_LINEAR,       /* the same, frequencies divided by factor */
    ROPE_PROPORTIONAL, /* only the first pairs rotate, with the whole head's exponents */
};

struct rope_source {
    char path[96];
    const struct json_t *object; /* null: all defaults */
    enum rope_type type;
};

static enum err_code read_rope_type(struct rope_source *rope, struct err *err)
{
    static const char *const texts[] = {"default", "linear", "proportional"};
    const char *key = model_member(rope->object, "rope_type") != NULL ? "rope_type" : "type";
    const char *text;
    if (rope->object == NULL) {
        return ERR_OK;
    }
    enum err_code code =
        json_get_text_or(rope->object, rope->path, key, texts[rope->type], &text, err);
    if (code != ERR_OK) {
        return code;
    }
    for (int type = 0; type <= ROPE_PROPORTIONAL; type++) {
        if (strcmp(texts[type], text) == 0) {
            rope->type = (enum rope_type)type;
            return ERR_OK;
        }
    }
    return err_set(err, ERR_CONFIG, "%s.%s is '%.64s', must be default, linear or proportional",
                   rope->path, key, text);
}

static enum err_code get_rope_f64(const struct rope_source *rope, const char *key,
                                  const double bounds[2], double *value, struct err *err)
{
    if (model_member(rope->object, key) == NULL) {
        return ERR_OK;
    }
    double number = 0;
    enum err_code code = json_get_f64_or(rope->object, rope->path, key, *value, &number, err);
    if (code != ERR_OK) {
        return code;
    }
    if (!(number >= bounds[0] && number <= bounds[1])) {
        return err_set(err, ERR_CONFIG, "%s.%s is %.6g, must be from %.6g to %.6g", rope->path, key,
                       number, bounds[0], bounds[1]);
    }
    *value = number;
    return ERR_OK;
}

static enum err_code read_rope(struct rope_source *source, double theta, uint32_t head_dim,
                               struct model_rope *rope, struct err *err)
{
    static const double theta_bounds[2] = {1, 1e12};
    static const double factor_bounds[2] = {1e-3, 1e6};
    static const double partial_bounds[2] = {0, 1};
    enum err_code code = read_rope_type(source, err);
    double partial = source->object == NULL && source->type == ROPE_PROPORTIONAL ? 0.25 : 1;
    double factor = 1;
    if (code == ERR_OK) {
        code = get_rope_f64(source, "rope_theta", theta_bounds, &theta, err);
    }
    if (code == ERR_OK) {
        code = get_rope_f64(source, "factor", factor_bounds, &factor, err);
    }
    if (code == ERR_OK) {
        code = get_rope_f64(source, "partial_rotary_factor", partial_bounds, &partial, err);
    }
    if (code != ERR_OK) {
        return code;
    }
    if (source->type == ROPE_DEFAULT && fabs(factor - 1) > 0) {
        return err_set(err, ERR_CONFIG, "%s.factor is %.6g, must be 1 for rope_type default",
                       source->path, factor);
    }
    if (source->type != ROPE_PROPORTIONAL && partial < 1) {
        return err_set(err, ERR_CONFIG,
                       "%s.partial_rotary_factor is %.6g, must be 1 unless rope_type is "
                       "proportional",
                       source->path, partial);
    }
    *rope = (struct model_rope){.theta = theta,
                                .factor = factor,
                                .exponent_dim = head_dim,
                                .rotated_pairs = (uint32_t)floor(partial * head_dim / 2)};
    return ERR_OK;
}

/* rope_parameters (rope_scaling before it) holds an object per layer type.  Without them the bases
 * are rope_theta and rope_local_base_freq, else those of every published model. */
enum err_code model_read_ropes(const struct checkpoint_object *source, struct model_config *config,
                               struct err *err)
{
    static const char *const theta_keys[RUNNER_FAMILY_COUNT] = {"rope_local_base_freq",
                                                                "rope_theta"};
    static const double thetas[RUNNER_FAMILY_COUNT] = {1e4, 1e6};
    static const enum rope_type types[RUNNER_FAMILY_COUNT] = {ROPE_DEFAULT, ROPE_PROPORTIONAL};
    const char *key =
        model_member(source->json, "rope_parameters") != NULL ? "rope_parameters" : "rope_scaling";
    const struct json_t *parameters;
    enum err_code code = model_get_object(source, key, &parameters, err);
    for (int i = 0; code == ERR_OK && i < RUNNER_FAMILY_COUNT; i++) {
        double theta = 0;
        struct rope_source rope = {
            .object = model_member(parameters, model_family_text((enum runner_family)i)),
            .type = types[i]};
        (void)snprintf(rope.path, sizeof(rope.path), "%s%s%s.%s", source->path, model_dot(source),
                       key, model_family_text((enum runner_family)i));
        if (parameters != NULL &&
            (rope.object == NULL || json_kind(rope.object) != JSON_KIND_OBJECT)) {
            return err_set(err, ERR_CONFIG, "%s is %s, must be an object", rope.path,
                           rope.object == NULL ? "missing"
                                               : json_kind_text(json_kind(rope.object)));
        }
        code = json_get_f64_or(source->json, source->path, theta_keys[i], thetas[i], &theta, err);
        if (code == ERR_OK && !(theta >= 1 && theta <= 1e12)) {
            code = err_set(err, ERR_CONFIG, "%s%s%s is %.6g, must be from 1 to 1e12", source->path,
                           model_dot(source), theta_keys[i], theta);
        }
        if (code == ERR_OK) {
            struct model_family *family = &config->families[i];
            code = read_rope(&rope, theta, family->head_dim, &family->rope, err);
        }
    }
    for (uint32_t i = 0; code == ERR_OK && i < config->layer_count; i++) {
        config->layers[i].rope = config->families[config->layers[i].family].rope;
    }
    return code;
}
