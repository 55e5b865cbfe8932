/* The two files of a checkpoint folder. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/checkpoint.h"
#include "common/json.h"

enum {
    MAX_PATH_BYTES = 4096
};

/* ERR_NOT_FOUND where nothing is at path; whether it can be read is the opener's business. */
static enum err_code find(const char *path, const char *what, struct err *err)
{
    struct stat status;
    if (stat(path, &status) == 0) {
        return ERR_OK;
    }
    return errno == ENOENT || errno == ENOTDIR
               ? err_set(err, ERR_NOT_FOUND, "there is no %s '%s'", what, path)
               : err_errno(err, errno, "cannot read %s '%s'", what, path);
}

static enum err_code parse(const char *model_dir, const char *name, struct json_t **out_value,
                           struct err *err)
{
    char path[MAX_PATH_BYTES];
    if (snprintf(path, sizeof(path), "%s/%s", model_dir, name) >= (int)sizeof(path)) {
        return err_set(err, ERR_ARGUMENT, "the path of %s is longer than %d bytes", name,
                       MAX_PATH_BYTES);
    }
    enum err_code code = find(path, "file", err);
    return code != ERR_OK ? code : json_parse_file(path, CHECKPOINT_MAX_FILE_BYTES, out_value, err);
}

enum err_code checkpoint_parse_files(const char *model_dir, struct json_t **out_config,
                                     struct json_t **out_generation, struct err *err)
{
    struct json_t *config = NULL;
    struct json_t *generation = NULL;
    enum err_code code = find(model_dir, "model folder", err);
    if (code == ERR_OK) {
        code = parse(model_dir, "config.json", &config, err);
    }
    if (code != ERR_OK) {
        return code;
    }
    code = parse(model_dir, "generation_config.json", &generation, err);
    if (code != ERR_OK && code != ERR_NOT_FOUND) {
        json_release(config);
        return code;
    }
    *out_config = config;
    *out_generation = generation;
    return ERR_OK;
}

enum err_code checkpoint_load_info(const char *model_dir, struct checkpoint_info *out_info,
                                   struct err *err)
{
    struct json_t *config = NULL;
    struct json_t *generation = NULL;
    enum err_code code = checkpoint_parse_files(model_dir, &config, &generation, err);
    if (code == ERR_OK) {
        code = checkpoint_read_info(config, generation, out_info, err);
    }
    if (code != ERR_OK && code != ERR_NOT_FOUND) {
        code = err_wrap(err, "model folder '%s'", model_dir);
    }
    json_release(config);
    json_release(generation);
    return code;
}
