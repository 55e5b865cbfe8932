/* The JSON header of one safetensors file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/mem.h"
#include "common/num.h"
#include "worker/faults.h"
#include "worker/safetensors.h"

enum {
    MAX_DEPTH = 4,
    SHOWN_NAME_BYTES = 80
};

static const struct {
    const char *text;
    uint32_t bytes;
} dtypes[ST_DTYPE_COUNT] = {
#define ST_DTYPE(name, byte_count) {#name, byte_count},
    ST_DTYPES(ST_DTYPE)
#undef ST_DTYPE
};

const char *st_dtype_text(enum st_dtype dtype)
{
    return dtypes[dtype].text;
}

uint32_t st_dtype_bytes(enum st_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *st_shape_text(const struct st_tensor *tensor, char *text, size_t cap_bytes)
{
    size_t used_bytes = 0;
    for (uint32_t i = 0; i < tensor->rank && used_bytes < cap_bytes; i++) {
        int written = snprintf(text + used_bytes, cap_bytes - used_bytes, "%s%llu",
                               i == 0 ? "[" : ", ", (unsigned long long)tensor->dims[i]);
        used_bytes += written > 0 ? (size_t)written : 0;
    }
    if (used_bytes < cap_bytes) {
        (void)snprintf(text + used_bytes, cap_bytes - used_bytes, tensor->rank == 0 ? "[]" : "]");
    }
    return text;
}

struct parser {
    uint64_t data_offset;
    uint64_t data_bytes;
    struct faults faults;
};

static void fault(struct parser *parser, const char *name, const char *what)
{
    faults_add(&parser->faults, "%.*s %s", SHOWN_NAME_BYTES, name, what);
}

static bool read_dtype(struct parser *parser, const struct json_t *value, struct st_tensor *tensor)
{
    if (value == NULL || json_kind(value) != JSON_KIND_TEXT) {
        fault(parser, tensor->name, "has no dtype text");
        return false;
    }
    for (int dtype = 0; dtype < ST_DTYPE_COUNT; dtype++) {
        if (strcmp(dtypes[dtype].text, json_text(value, NULL)) == 0) {
            tensor->dtype = (enum st_dtype)dtype;
            return true;
        }
    }
    faults_add(&parser->faults, "%.*s has the unknown dtype '%.16s'", SHOWN_NAME_BYTES,
               tensor->name, json_text(value, NULL));
    return false;
}

static bool read_size(const struct json_t *value, uint64_t *out_value)
{
    if (json_kind(value) != JSON_KIND_INTEGER || json_int64(value) < 0) {
        return false;
    }
    *out_value = (uint64_t)json_int64(value);
    return true;
}

static bool read_shape(struct parser *parser, const struct json_t *value, struct st_tensor *tensor)
{
    if (value == NULL || json_kind(value) != JSON_KIND_ARRAY) {
        fault(parser, tensor->name, "has no shape array");
        return false;
    }
    if (json_count(value) > ST_MAX_RANK) {
        faults_add(&parser->faults, "%.*s has %zu dimensions, at most %u", SHOWN_NAME_BYTES,
                   tensor->name, json_count(value), ST_MAX_RANK);
        return false;
    }
    tensor->rank = (uint32_t)json_count(value);
    size_t elem_count = 1;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (!read_size(json_element(value, i), &tensor->dims[i])) {
            fault(parser, tensor->name, "has a dimension that is no integer from 0 up");
            return false;
        }
        if (!num_mul(elem_count, tensor->dims[i], &elem_count)) {
            fault(parser, tensor->name, "has more elements than 64 bits count");
            return false;
        }
    }
    tensor->elem_count = elem_count;
    size_t byte_count = 0;
    if (!num_mul(elem_count, dtypes[tensor->dtype].bytes, &byte_count)) {
        fault(parser, tensor->name, "has more bytes than 64 bits count");
        return false;
    }
    tensor->byte_count = byte_count;
    return true;
}

static bool read_offsets(struct parser *parser, const struct json_t *value,
                         struct st_tensor *tensor)
{
    uint64_t begin = 0;
    uint64_t end = 0;
    if (value == NULL || json_kind(value) != JSON_KIND_ARRAY || json_count(value) != 2 ||
        !read_size(json_element(value, 0), &begin) || !read_size(json_element(value, 1), &end)) {
        fault(parser, tensor->name, "has no data_offsets pair of integers");
        return false;
    }
    if (begin > end || end > parser->data_bytes) {
        faults_add(&parser->faults,
                   "%.*s lies at bytes %llu to %llu, outside the file's %llu data bytes",
                   SHOWN_NAME_BYTES, tensor->name, (unsigned long long)begin,
                   (unsigned long long)end, (unsigned long long)parser->data_bytes);
        return false;
    }
    if (end - begin != tensor->byte_count) {
        char shape[128];
        faults_add(&parser->faults, "%.*s has %llu bytes of data, %s of %s needs %llu",
                   SHOWN_NAME_BYTES, tensor->name, (unsigned long long)(end - begin),
                   st_shape_text(tensor, shape, sizeof(shape)), dtypes[tensor->dtype].text,
                   (unsigned long long)tensor->byte_count);
        return false;
    }
    tensor->file_offset = parser->data_offset + begin;
    return true;
}

/* Fills tensor, whose name is set; false after adding the fault. */
static bool read_tensor(struct parser *parser, const struct json_t *value, struct st_tensor *tensor)
{
    if (json_kind(value) != JSON_KIND_OBJECT) {
        fault(parser, tensor->name, "is not an object");
        return false;
    }
    size_t name_bytes = strlen(tensor->name);
    if (name_bytes == 0 || name_bytes > ST_MAX_NAME_BYTES) {
        faults_add(&parser->faults, "'%.*s...' has a name of %zu bytes, must be 1 to %u",
                   SHOWN_NAME_BYTES, tensor->name, name_bytes, ST_MAX_NAME_BYTES);
        return false;
    }
    if (!read_dtype(parser, json_member(value, "dtype"), tensor) ||
        !read_shape(parser, json_member(value, "shape"), tensor) ||
        !read_offsets(parser, json_member(value, "data_offsets"), tensor)) {
        return false;
    }
    if (json_count(value) != 3) {
        fault(parser, tensor->name, "has a key besides dtype, shape and data_offsets");
        return false;
    }
    return true;
}

/* "__metadata__" maps texts to texts; nothing in it is used. */
static void check_metadata(struct parser *parser, const struct json_t *value)
{
    struct json_iter iter;
    if (json_kind(value) != JSON_KIND_OBJECT) {
        fault(parser, "__metadata__", "is not an object");
        return;
    }
    json_iter_start(&iter, value);
    while (json_iter_next(&iter)) {
        if (json_kind(iter.value) != JSON_KIND_TEXT) {
            fault(parser, "__metadata__", "holds a value that is no text");
            return;
        }
    }
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *left = a;
    const struct st_tensor *right = b;
    if (left->file_offset != right->file_offset) {
        return left->file_offset < right->file_offset ? -1 : 1;
    }
    /* An empty tensor at the offset of another one comes first. */
    return (left->byte_count > right->byte_count) - (left->byte_count < right->byte_count);
}

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *left = a;
    const struct st_tensor *right = b;
    return strcmp(left->name, right->name);
}

/* The tensors must tile the data: no byte of two, no byte of none. */
static void check_tiling(struct parser *parser, const struct st_header *header)
{
    uint64_t covered = parser->data_offset;
    qsort(header->tensors, header->count, sizeof(header->tensors[0]), by_offset);
    for (uint32_t i = 0; i < header->count; i++) {
        const struct st_tensor *tensor = &header->tensors[i];
        if (tensor->file_offset < covered) {
            faults_add(&parser->faults, "%.*s overlaps %.*s", SHOWN_NAME_BYTES, tensor->name,
                       SHOWN_NAME_BYTES, header->tensors[i - 1].name);
        } else if (tensor->file_offset > covered) {
            faults_add(&parser->faults, "%llu bytes before %.*s belong to no tensor",
                       (unsigned long long)(tensor->file_offset - covered), SHOWN_NAME_BYTES,
                       tensor->name);
        }
        uint64_t end = tensor->file_offset + tensor->byte_count;
        covered = end > covered ? end : covered;
    }
    uint64_t data_end = parser->data_offset + parser->data_bytes;
    if (covered < data_end) {
        faults_add(&parser->faults, "%llu bytes at the end belong to no tensor",
                   (unsigned long long)(data_end - covered));
    }
}

static void read_all(struct parser *parser, const struct json_t *root, struct st_header *header)
{
    struct json_iter iter;
    header->tensors = mem_zalloc(json_count(root) + 1, sizeof(header->tensors[0]));
    json_iter_start(&iter, root);
    while (json_iter_next(&iter)) {
        if (strcmp(iter.key, "__metadata__") == 0) {
            check_metadata(parser, iter.value);
            continue;
        }
        struct st_tensor tensor = {.name = mem_strdup(iter.key)};
        if (read_tensor(parser, iter.value, &tensor)) {
            header->tensors[header->count++] = tensor;
        } else {
            mem_free(tensor.name);
        }
    }
    /* With a tensor missing the others cannot tile, which would only add noise. */
    if (parser->faults.count == 0) {
        check_tiling(parser, header);
    }
    qsort(header->tensors, header->count, sizeof(header->tensors[0]), by_name);
}

enum err_code st_header_parse(const char *json, size_t json_bytes, uint64_t data_offset,
                              uint64_t data_bytes, struct st_header *out_header, struct err *err)
{
    struct json_t *root = NULL;
    struct st_header header = {0};
    struct parser parser = {.data_offset = data_offset, .data_bytes = data_bytes};
    enum err_code code = json_parse(json, json_bytes, MAX_DEPTH, &root, err);
    if (code != ERR_OK) {
        return err_wrap(err, "header");
    }
    if (json_kind(root) != JSON_KIND_OBJECT) {
        code = err_set(err, ERR_FORMAT, "the header is %s, must be an object",
                       json_kind_text(json_kind(root)));
        goto out;
    }
    if (json_count(root) > ST_MAX_TENSORS) {
        code = err_set(err, ERR_FORMAT, "the header names %zu tensors, at most %u",
                       json_count(root), ST_MAX_TENSORS);
        goto out;
    }
    read_all(&parser, root, &header);
    code = faults_result(&parser.faults, ERR_FORMAT, "fault", err);
    if (code == ERR_OK) {
        *out_header = header;
        header = (struct st_header){0};
    }
out:
    st_header_fini(&header);
    json_release(root);
    return code;
}

void st_header_fini(struct st_header *header)
{
    for (uint32_t i = 0; i < header->count; i++) {
        mem_free(header->tensors[i].name);
    }
    mem_free(header->tensors);
    *header = (struct st_header){0};
}
