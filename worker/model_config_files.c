/* A model's config from the files of its folder. */
#include "common/json.h"
#include "worker/faults.h"
#include "worker/model_config.h"
#include "worker/model_config_internal.h"

uint32_t model_config_check(const char *model_dir, struct model_config *out_config,
                            void (*on_fault)(void *owner, const char *clause), void *owner)
{
    struct model_config read = {0};
    struct json_t *config = NULL;
    struct json_t *generation = NULL;
    struct faults faults = {.on_fault = on_fault, .owner = owner};
    struct err err;
    enum err_code code = checkpoint_parse_files(model_dir, &config, &generation, &err);
    if (faults_note(&faults, code, &err) == ERR_OK) {
        model_read_all(config, generation, &read, &faults);
        json_release(config);
        json_release(generation);
    }
    if (faults.count == 0) {
        *out_config = read;
    }
    return faults.count;
}

enum err_code model_config_load(const char *model_dir, struct model_config *out_config,
                                struct err *err)
{
    struct json_t *config = NULL;
    struct json_t *generation = NULL;
    enum err_code code = checkpoint_parse_files(model_dir, &config, &generation, err);
    if (code != ERR_OK) {
        return code;
    }
    code = model_config_read(config, generation, out_config, err);
    if (code != ERR_OK) {
        code = err_wrap(err, "config of '%s'", model_dir);
    }
    json_release(config);
    json_release(generation);
    return code;
}
