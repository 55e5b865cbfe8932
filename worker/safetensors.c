#include "worker/safetensors.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "worker/faults.h"

enum {
    MAX_PATH_BYTES = 4096,
    SHARD_PATH_BYTES = MAX_PATH_BYTES + NAME_MAX + 2,
    LENGTH_BYTES = 8, /* of the header's length, before it */
    MAX_INDEX_BYTES = 64 << 20,
    MAX_READ_BYTES = 1 << 30 /* of one pread, which Linux cuts at 2 GiB */
};

struct shard {
    char *path;              /* owned */
    int fd;                  /* owned; -1 when not open */
    struct st_header header; /* emptied once the set has its tensors */
};

struct st_set {
    struct shard *shards; /* owned */
    uint32_t shard_count;
    struct st_tensor *tensors; /* owned, with their names; sorted by name */
    uint32_t count;
};

static enum err_code read_exact(const struct shard *shard, uint64_t file_offset, void *out_bytes,
                                size_t byte_count, struct err *err)
{
    unsigned char *at = out_bytes;
    size_t done_bytes = 0;
    while (done_bytes < byte_count) {
        size_t part = byte_count - done_bytes;
        part = part < MAX_READ_BYTES ? part : MAX_READ_BYTES;
        ssize_t got = pread(shard->fd, at + done_bytes, part, (off_t)(file_offset + done_bytes));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return err_errno(err, errno, "cannot read '%s'", shard->path);
        }
        if (got == 0) {
            return err_set(err, ERR_FORMAT,
                           "'%s' has become shorter while open: nothing at byte %zu", shard->path,
                           (size_t)file_offset + done_bytes);
        }
        done_bytes += (size_t)got;
    }
    return ERR_OK;
}

static enum err_code read_header(struct shard *shard, uint64_t file_bytes, struct err *err)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t header_bytes = 0;
    if (file_bytes < LENGTH_BYTES) {
        return err_set(err, ERR_FORMAT, "'%s' has %llu bytes, a safetensors file at least %d",
                       shard->path, (unsigned long long)file_bytes, LENGTH_BYTES);
    }
    enum err_code code = read_exact(shard, 0, length, sizeof(length), err);
    if (code != ERR_OK) {
        return code;
    }
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        header_bytes = header_bytes << 8 | length[i];
    }
    uint64_t most_bytes = file_bytes - LENGTH_BYTES;
    most_bytes = most_bytes < ST_MAX_HEADER_BYTES ? most_bytes : ST_MAX_HEADER_BYTES;
    if (header_bytes > most_bytes) {
        return err_set(err, ERR_FORMAT, "'%s' declares a header of %llu bytes, at most %llu",
                       shard->path, (unsigned long long)header_bytes,
                       (unsigned long long)most_bytes);
    }
    char *json = mem_try_zalloc(header_bytes + 1, 1);
    if (json == NULL) {
        return err_set(err, ERR_MEMORY, "'%s' has a header of %llu bytes: out of memory",
                       shard->path, (unsigned long long)header_bytes);
    }
    code = read_exact(shard, LENGTH_BYTES, json, header_bytes, err);
    if (code == ERR_OK) {
        uint64_t data_offset = LENGTH_BYTES + header_bytes;
        code = st_header_parse(json, header_bytes, data_offset, file_bytes - data_offset,
                               &shard->header, err);
        code = code == ERR_OK ? code : err_wrap(err, "'%s'", shard->path);
    }
    mem_free(json);
    return code;
}

static enum err_code open_shard(struct shard *shard, struct err *err)
{
    uint64_t file_bytes = 0;
    enum err_code code = file_open(shard->path, &shard->fd, &file_bytes, err);
    return code != ERR_OK ? code : read_header(shard, file_bytes, err);
}

static struct st_set *new_set(uint32_t shard_cap)
{
    struct st_set *set = mem_zalloc(1, sizeof(*set));
    set->shards = mem_zalloc(shard_cap, sizeof(set->shards[0]));
    return set;
}

static struct shard *add_shard(struct st_set *set, const char *path)
{
    struct shard *shard = &set->shards[set->shard_count++];
    shard->path = mem_strdup(path);
    shard->fd = -1;
    return shard;
}

enum err_code st_open_file(const char *path, struct st_set **out_set, struct err *err)
{
    struct st_set *set = new_set(1);
    struct shard *shard = add_shard(set, path);
    enum err_code code = open_shard(shard, err);
    if (code != ERR_OK) {
        st_close(set);
        return code;
    }
    set->tensors = shard->header.tensors;
    set->count = shard->header.count;
    shard->header = (struct st_header){0};
    *out_set = set;
    return ERR_OK;
}

/* A plain file name beside the index: nothing that could leave the folder. */
static bool is_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL &&
           strlen(name) <= NAME_MAX;
}

static struct shard *find_shard(struct st_set *set, const char *path)
{
    for (uint32_t i = 0; i < set->shard_count; i++) {
        if (strcmp(set->shards[i].path, path) == 0) {
            return &set->shards[i];
        }
    }
    return NULL;
}

/* Every file that the index names, each once. */
static enum err_code list_shards(struct st_set *set, const char *model_dir,
                                 const struct json_t *weight_map, struct err *err)
{
    struct json_iter iter;
    json_iter_start(&iter, weight_map);
    while (json_iter_next(&iter)) {
        char path[SHARD_PATH_BYTES];
        const char *name =
            json_kind(iter.value) == JSON_KIND_TEXT ? json_text(iter.value, NULL) : "";
        if (!is_plain_name(name)) {
            return err_set(err, ERR_FORMAT,
                           "weight_map.%.80s is '%.80s', must be the name of a file beside the "
                           "index",
                           iter.key, name);
        }
        (void)snprintf(path, sizeof(path), "%s/%s", model_dir, name); /* fits */
        if (find_shard(set, path) != NULL) {
            continue;
        }
        if (set->shard_count == ST_MAX_SHARDS) {
            return err_set(err, ERR_LIMIT, "weight_map names more than %u files", ST_MAX_SHARDS);
        }
        (void)add_shard(set, path);
    }
    return ERR_OK;
}

/* Missing files are told together; any other trouble at once. */
static enum err_code open_shards(struct st_set *set, struct err *err)
{
    struct faults missing = {0};
    for (uint32_t i = 0; i < set->shard_count; i++) {
        enum err_code code = open_shard(&set->shards[i], err);
        if (code == ERR_NOT_FOUND) {
            const char *name = strrchr(set->shards[i].path, '/');
            faults_add(&missing, "%.80s", name == NULL ? set->shards[i].path : name + 1);
        } else if (code != ERR_OK) {
            return code;
        }
    }
    return faults_result(&missing, ERR_NOT_FOUND, "missing shard", err);
}

static int compare_name(const void *key, const void *element)
{
    const struct st_tensor *tensor = element;
    return strcmp(key, tensor->name);
}

static struct st_tensor *find_in(struct st_tensor *tensors, uint32_t count, const char *name)
{
    return count == 0 ? NULL : bsearch(name, tensors, count, sizeof(tensors[0]), compare_name);
}

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *left = a;
    const struct st_tensor *right = b;
    return strcmp(left->name, right->name);
}

/* Take each listed tensor from its shard; the shards keep, and free, what the index leaves out. */
static enum err_code collect_tensors(struct st_set *set, const char *model_dir,
                                     const struct json_t *weight_map, struct err *err)
{
    struct faults absent = {0};
    struct json_iter iter;
    set->tensors = mem_zalloc(json_count(weight_map) + 1, sizeof(set->tensors[0]));
    json_iter_start(&iter, weight_map);
    while (json_iter_next(&iter)) {
        char path[SHARD_PATH_BYTES];
        const char *name = json_text(iter.value, NULL);
        (void)snprintf(path, sizeof(path), "%s/%s", model_dir, name); /* fits */
        struct shard *shard = find_shard(set, path);
        struct st_tensor *found = find_in(shard->header.tensors, shard->header.count, iter.key);
        if (found == NULL) {
            faults_add(&absent, "%.80s is not in %.80s", iter.key, name);
            continue;
        }
        struct st_tensor *taken = &set->tensors[set->count++];
        *taken = *found;
        taken->name = mem_strdup(found->name);
        taken->shard = (uint32_t)(shard - set->shards);
    }
    qsort(set->tensors, set->count, sizeof(set->tensors[0]), by_name);
    for (uint32_t i = 0; i < set->shard_count; i++) {
        st_header_fini(&set->shards[i].header);
    }
    return faults_result(&absent, ERR_FORMAT, "missing indexed tensor", err);
}

static enum err_code open_index(const char *model_dir, const struct json_t *index,
                                struct st_set **out_set, struct err *err)
{
    const struct json_t *weight_map =
        json_kind(index) == JSON_KIND_OBJECT ? json_member(index, "weight_map") : NULL;
    if (weight_map == NULL || json_kind(weight_map) != JSON_KIND_OBJECT ||
        json_count(weight_map) == 0) {
        return err_set(err, ERR_FORMAT, "the index has no weight_map object with tensors in it");
    }
    if (json_count(weight_map) > ST_MAX_TENSORS) {
        return err_set(err, ERR_LIMIT, "weight_map names %zu tensors, at most %u",
                       json_count(weight_map), ST_MAX_TENSORS);
    }
    struct st_set *set = new_set(ST_MAX_SHARDS);
    enum err_code code = list_shards(set, model_dir, weight_map, err);
    if (code == ERR_OK) {
        code = open_shards(set, err);
    }
    if (code == ERR_OK) {
        code = collect_tensors(set, model_dir, weight_map, err);
    }
    if (code != ERR_OK) {
        st_close(set);
        return code;
    }
    *out_set = set;
    return ERR_OK;
}

enum err_code st_open_folder(const char *model_dir, struct st_set **out_set, struct err *err)
{
    char path[MAX_PATH_BYTES];
    struct json_t *index = NULL;
    if (snprintf(path, sizeof(path), "%s/model.safetensors.index.json", model_dir) >=
        (int)sizeof(path)) {
        return err_set(err, ERR_LIMIT, "the path of the weights is longer than %d bytes",
                       MAX_PATH_BYTES);
    }
    char *end = strstr(path + strlen(model_dir), ".index.json");
    *end = '\0';
    enum err_code code = st_open_file(path, out_set, err);
    if (code != ERR_NOT_FOUND) {
        return code;
    }
    *end = '.';
    code = json_parse_file(path, MAX_INDEX_BYTES, &index, err);
    if (code == ERR_NOT_FOUND) {
        return err_set(err, ERR_NOT_FOUND,
                       "'%.120s' holds neither model.safetensors nor model.safetensors.index.json",
                       model_dir);
    }
    if (code == ERR_OK) {
        code = open_index(model_dir, index, out_set, err);
        code = code == ERR_OK ? code : err_wrap(err, "weights of '%.80s'", model_dir);
    }
    json_release(index);
    return code;
}

void st_close(struct st_set *set)
{
    if (set == NULL) {
        return;
    }
    for (uint32_t i = 0; i < set->shard_count; i++) {
        st_header_fini(&set->shards[i].header);
        if (set->shards[i].fd >= 0) {
            (void)close(set->shards[i].fd); /* only read: nothing can be lost */
        }
        mem_free(set->shards[i].path);
    }
    for (uint32_t i = 0; i < set->count; i++) {
        mem_free(set->tensors[i].name);
    }
    mem_free(set->tensors);
    mem_free(set->shards);
    mem_free(set);
}

uint32_t st_count(const struct st_set *set)
{
    return set->count;
}

const struct st_tensor *st_at(const struct st_set *set, uint32_t index)
{
    return index < set->count ? &set->tensors[index] : NULL;
}

const struct st_tensor *st_find(const struct st_set *set, const char *name)
{
    return find_in(set->tensors, set->count, name);
}

enum err_code st_read(const struct st_set *set, const struct st_tensor *tensor,
                      uint64_t byte_offset, void *out_bytes, size_t byte_count, struct err *err)
{
    if (byte_offset > tensor->byte_count || byte_count > tensor->byte_count - byte_offset) {
        return err_set(err, ERR_INTERNAL, "read of %zu bytes at %llu from '%s', which has %llu",
                       byte_count, (unsigned long long)byte_offset, tensor->name,
                       (unsigned long long)tensor->byte_count);
    }
    return read_exact(&set->shards[tensor->shard], tensor->file_offset + byte_offset, out_bytes,
                      byte_count, err);
}
