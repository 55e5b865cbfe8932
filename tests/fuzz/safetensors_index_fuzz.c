/* model.safetensors.index.json of a folder that holds two shards, one.safetensors (a, b) and
 * two.safetensors (b, c), and a folder named sub. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "worker/safetensors.h"

#define SHARD(first, second)                                                  \
    "\x6d\0\0\0\0\0\0\0"                                                      \
    "{\"" first "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}," \
    "\"" second "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}    xyz"

static void put_file(const char *dir, const char *name, const void *bytes, size_t byte_count)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, byte_count, file) != byte_count || fclose(file) != 0) {
        abort();
    }
}

static void remove_file(const char *dir, const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (unlink(path) != 0) {
        abort();
    }
}

static void check_set(const struct st_set *set)
{
    struct err err = {0};
    for (uint32_t i = 0; i < st_count(set); i++) {
        char bytes[2];
        const struct st_tensor *tensor = st_at(set, i);
        if (tensor->byte_count > sizeof(bytes) ||
            st_read(set, tensor, 0, bytes, tensor->byte_count, &err) != ERR_OK ||
            bytes[0] != (tensor->byte_count == 2 ? 'x' : 'z')) {
            abort();
        }
    }
    if (st_count(set) == 0 || st_count(set) > 3) {
        abort();
    }
}

static void check_folder(const char *dir)
{
    struct st_set *set = NULL;
    struct err err = {0};
    enum err_code code = st_open_folder(dir, &set, &err);
    if (code == ERR_OK) {
        check_set(set);
    } else if ((code != ERR_FORMAT && code != ERR_LIMIT && code != ERR_NOT_FOUND &&
                code != ERR_CONFIG) ||
               err.message[0] == '\0' || set != NULL) {
        abort();
    }
    st_close(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static const char one[] = SHARD("a", "b");
    static const char two[] = SHARD("b", "c");
    char dir[] = "/tmp/bezel_fuzz_XXXXXX";
    if (mkdtemp(dir) == NULL) {
        abort();
    }
    char sub[64];
    (void)snprintf(sub, sizeof(sub), "%s/sub", dir);
    if (mkdir(sub, 0700) != 0) {
        abort();
    }
    put_file(dir, "one.safetensors", one, sizeof(one) - 1);
    put_file(dir, "two.safetensors", two, sizeof(two) - 1);
    put_file(dir, "model.safetensors.index.json", bytes, byte_count);
    check_folder(dir);
    remove_file(dir, "one.safetensors");
    remove_file(dir, "two.safetensors");
    remove_file(dir, "model.safetensors.index.json");
    if (rmdir(sub) != 0 || rmdir(dir) != 0) {
        abort();
    }
    return 0;
}
