#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/testlib/st_writer.h"
#include "tests/testlib/test.h"
#include "worker/faults.h"
#include "worker/safetensors.h"

static void test_header_is_read(void)
{
    static const char json[] =
        "{\"__metadata__\": {\"format\": \"pt\"},\n"
        " \"b\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [12, 16]},\n"
        " \"a\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [0, 12]},\n"
        " \"none\": {\"shape\": [5, 0], \"dtype\": \"I64\", \"data_offsets\": [12, 12]}}   \n";
    struct st_header header;
    struct err err = {0};
    char shape[32];
    test_ok(st_header_parse(json, sizeof(json) - 1, 100, 16, &header, &err), &err);
    test_eq_u64(header.count, 3);
    test_eq_str(header.tensors[0].name, "a");
    test_true(header.tensors[0].dtype == ST_DTYPE_BF16);
    test_eq_u64(header.tensors[0].elem_count, 6);
    test_eq_u64(header.tensors[0].byte_count, 12);
    test_eq_u64(header.tensors[0].file_offset, 100);
    test_eq_str(st_shape_text(&header.tensors[0], shape, sizeof(shape)), "[2, 3]");
    test_eq_str(header.tensors[1].name, "b");
    test_eq_u64(header.tensors[1].elem_count, 1);
    test_eq_u64(header.tensors[1].file_offset, 112);
    test_eq_str(st_shape_text(&header.tensors[1], shape, sizeof(shape)), "[]");
    test_eq_u64(header.tensors[2].elem_count, 0);
    st_header_fini(&header);
}

#define T(dtype, shape, begin, end) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *json, *message; /* message is the end of the whole */
    uint64_t data_bytes;
} bad_headers[] = {
    {"[]", "the header is an array, must be an object", 0},
    {"{", NULL, 0},
    {"{\"a\":" T("U8", "[1]", 0, 1) ",\"a\":" T("U8", "[1]", 1, 2) "}", NULL, 2},
    {"{\"a\":" T("U8", "[1]", 0, 1) "} x", NULL, 1},
    {"{\"a\":3}", "1 fault: a is not an object", 0},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", "1 fault: a has no dtype text", 1},
    {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,1]}}", "1 fault: a has no dtype text",
     1},
    {"{\"a\":" T("F7", "[1]", 0, 1) "}", "1 fault: a has the unknown dtype 'F7'", 1},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", "1 fault: a has no shape array", 1},
    {"{\"a\":" T("U8", "3", 0, 1) "}", "1 fault: a has no shape array", 1},
    {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", "1 fault: a has 9 dimensions, at most 8",
     1},
    {"{\"a\":" T("U8", "[-1]", 0, 1) "}", "1 fault: a has a dimension that is no integer from 0 up",
     1},
    {"{\"a\":" T("U8", "[1.0]", 0, 1) "}",
     "1 fault: a has a dimension that is no integer from 0 up", 1},
    {"{\"a\":" T("U8", "[18446744073709551616]", 0, 1) "}",
     "1 fault: a has a dimension that is no integer from 0 up", 1},
    {"{\"a\":" T("U8", "[4294967296,4294967296]", 0, 1) "}",
     "1 fault: a has more elements than 64 bits count", 1},
    {"{\"a\":" T("F64", "[4611686018427387904]", 0, 1) "}",
     "1 fault: a has more bytes than 64 bits count", 1},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", "1 fault: a has no data_offsets pair of integers",
     1},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}",
     "1 fault: a has no data_offsets pair of integers", 1},
    {"{\"a\":" T("U8", "[1]", -1, 1) "}", "1 fault: a has no data_offsets pair of integers", 1},
    {"{\"a\":" T("U8", "[1]", 1, 0) "}",
     "1 fault: a lies at bytes 1 to 0, outside the file's 1 data bytes", 1},
    {"{\"a\":" T("U8", "[2]", 0, 2) "}",
     "1 fault: a lies at bytes 0 to 2, outside the file's 1 data bytes", 1},
    {"{\"a\":" T("BF16", "[2,2]", 0, 6) "}",
     "1 fault: a has 6 bytes of data, [2, 2] of BF16 needs 8", 6},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}",
     "1 fault: a has a key besides dtype, shape and data_offsets", 1},
    {"{\"a\":" T("U8", "[2]", 0, 2) ",\"b\":" T("U8", "[2]", 1, 3) "}", "1 fault: b overlaps a", 3},
    {"{\"a\":" T("U8", "[2]", 0, 2) ",\"b\":" T("U8", "[1]", 3, 4) "}",
     "1 fault: 1 bytes before b belong to no tensor", 4},
    {"{\"a\":" T("U8", "[2]", 0, 2) "}", "1 fault: 3 bytes at the end belong to no tensor", 5},
    {"{}", "1 fault: 5 bytes at the end belong to no tensor", 5},
    {"{\"__metadata__\":[]}", "1 fault: __metadata__ is not an object", 0},
    {"{\"__metadata__\":{\"a\":1}}", "1 fault: __metadata__ holds a value that is no text", 0},
    {"{\"\":" T("U8", "[1]", 0, 1) "}", "1 fault: '...' has a name of 0 bytes, must be 1 to 512",
     1},
    {"{\"a\":" T("U9", "[1]", 0, 1) ",\"b\":" T("U8", "[1]", 0, 9) ",\"c\":1}",
     "3 faults: a has the unknown dtype 'U9'; b lies at bytes 0 to 9, outside the file's 1 "
     "data bytes; c is not an object",
     1},
};

static void test_faults_are_named(void)
{
    for (size_t i = 0; i < sizeof(bad_headers) / sizeof(bad_headers[0]); i++) {
        struct st_header header = {0};
        struct err err = {0};
        enum err_code code = st_header_parse(bad_headers[i].json, strlen(bad_headers[i].json), 0,
                                             bad_headers[i].data_bytes, &header, &err);
        test_true(code == ERR_FORMAT && header.tensors == NULL);
        bool is_json = bad_headers[i].message != NULL;
        test_eq_str(is_json ? err.message : "", is_json ? bad_headers[i].message : "");
        test_true(is_json || strncmp(err.message, "header: ", 8) == 0);
    }
}

static void test_many_faults_are_counted(void)
{
    struct buf json;
    struct st_header header;
    struct err err = {0};
    buf_init(&json);
    for (int i = 0; i < 500; i++) {
        buf_printf(&json, "%s\"model.layers.%d.mlp.up_proj.weight\":1", i == 0 ? "{" : ",", i);
    }
    buf_append_char(&json, '}');
    enum err_code code = st_header_parse(json.at, json.used_bytes, 0, 0, &header, &err);
    buf_fini(&json);
    test_true(code == ERR_FORMAT);
    test_true(strncmp(err.message, "500 faults: model.layers.0.mlp.up_proj.weight is not an object",
                      62) == 0);
    const char *more = strstr(err.message, "; and ");
    test_true(more != NULL && strtoul(more + 6, NULL, 10) > 490);
    test_eq_str(strstr(more, " more"), " more");
}

static void test_a_long_fault_is_cut(void)
{
    struct faults faults = {0};
    struct err err = {0};
    char long_text[400];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    test_ok(faults_result(&faults, ERR_FORMAT, "fault", &err), &err);
    faults_add(&faults, "%s", long_text);
    faults_add(&faults, "b");
    test_true(faults_result(&faults, ERR_FORMAT, "fault", &err) == ERR_FORMAT);
    test_true(strncmp(err.message, "2 faults: xxxx", 14) == 0);
    test_eq_str(strstr(err.message, ";"), "; and 1 more");
}

struct folder {
    char dir[ST_DIR_BYTES];
    char path[128];
};

static const char *path_in(struct folder *folder, const char *name)
{
    (void)snprintf(folder->path, sizeof(folder->path), "%s/%s", folder->dir, name);
    return folder->path;
}

static void write_text(struct folder *folder, const char *name, const char *text)
{
    struct buf bytes;
    buf_init(&bytes);
    buf_append_text(&bytes, text);
    st_write_file(path_in(folder, name), &bytes);
    buf_fini(&bytes);
}

static void write_shard(struct folder *folder, const char *name, const char *first,
                        const char *second)
{
    struct st_writer writer;
    st_writer_init(&writer);
    st_writer_add(&writer, first, "U8", "[4]", "abcd", 4);
    st_writer_add(&writer, second, "U16", "[2]", "efgh", 4);
    st_writer_save(&writer, path_in(folder, name));
    st_writer_fini(&writer);
}

static void check_bytes(const struct st_set *set, const char *name, const char *want)
{
    char bytes[5] = "";
    struct err err = {0};
    const struct st_tensor *tensor = st_find(set, name);
    test_true(tensor != NULL);
    test_ok(st_read(set, tensor, 0, bytes, 4, &err), &err);
    test_eq_str(bytes, want);
    test_ok(st_read(set, tensor, 3, bytes, 1, &err), &err);
    test_eq_u64((unsigned char)bytes[0], (unsigned char)want[3]);
    test_true(st_read(set, tensor, 3, bytes, 2, &err) == ERR_INTERNAL);
}

static void test_single_file(void)
{
    struct folder folder;
    struct st_set *set = NULL;
    struct err err = {0};
    st_dir_make(folder.dir);
    write_shard(&folder, "model.safetensors", "x", "y");
    write_text(&folder, "model.safetensors.index.json", "not read");
    test_ok(st_open_folder(folder.dir, &set, &err), &err);
    test_eq_u64(st_count(set), 2);
    check_bytes(set, "x", "abcd");
    check_bytes(set, "y", "efgh");
    test_true(st_find(set, "z") == NULL && st_at(set, 2) == NULL);
    st_close(set);
    st_dir_remove(folder.dir);
}

static void test_bad_files(void)
{
    static const struct {
        const char *bytes;
        size_t byte_count;
        const char *message; /* after the path */
    } bad[] = {
        {"", 0, "' has 0 bytes, a safetensors file at least 8"},
        {"\x01\0\0\0\0\0\0", 7, "' has 7 bytes, a safetensors file at least 8"},
        {"\x03\0\0\0\0\0\0\0{}", 10, "' declares a header of 3 bytes, at most 2"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10,
         "' declares a header of 18446744073709551615 bytes, at most 2"},
        {"\x02\0\0\0\0\0\0\0{}x", 11, "': 1 fault: 1 bytes at the end belong to no tensor"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct folder folder;
        struct buf bytes;
        struct st_set *set = NULL;
        struct err err = {0};
        st_dir_make(folder.dir);
        buf_init(&bytes);
        buf_append(&bytes, bad[i].bytes, bad[i].byte_count);
        st_write_file(path_in(&folder, "model.safetensors"), &bytes);
        buf_fini(&bytes);
        test_true(st_open_folder(folder.dir, &set, &err) == ERR_FORMAT);
        test_eq_str(err.message + 1 + strlen(folder.path), bad[i].message);
        st_dir_remove(folder.dir);
    }
}

static void test_a_folder_is_no_file(void)
{
    struct st_set *set = NULL;
    struct err err = {0};
    test_true(st_open_file("/tmp", &set, &err) == ERR_CONFIG);
    test_eq_str(err.message, "'/tmp' is not a regular file");
    test_true(st_open_file("/nowhere/model.safetensors", &set, &err) == ERR_NOT_FOUND);
    test_eq_str(err.message, "there is no file '/nowhere/model.safetensors'");
    st_close(NULL);
}

static void test_sharded(void)
{
    struct folder folder;
    struct st_set *set = NULL;
    struct err err = {0};
    st_dir_make(folder.dir);
    write_shard(&folder, "one.safetensors", "a", "d");
    write_shard(&folder, "two.safetensors", "c", "b");
    write_text(&folder, "model.safetensors.index.json",
               "{\"metadata\": {\"total_size\": 12}, \"weight_map\": {\"d\": \"one.safetensors\", "
               "\"c\": \"two.safetensors\", \"a\": \"one.safetensors\"}}");
    test_ok(st_open_folder(folder.dir, &set, &err), &err);
    test_eq_u64(st_count(set), 3);
    test_eq_str(st_at(set, 0)->name, "a");
    test_eq_str(st_at(set, 2)->name, "d");
    check_bytes(set, "a", "abcd");
    check_bytes(set, "c", "abcd");
    check_bytes(set, "d", "efgh");
    test_true(st_find(set, "b") == NULL); /* in a shard, not in the index */
    st_close(set);
    st_dir_remove(folder.dir);
}

#define TEXT_64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_bad_indexes(void)
{
    static const struct {
        const char *text, *message; /* the end of the message */
    } bad[] = {
        {"[]", "the index has no weight_map object with tensors in it"},
        {"{\"weight_map\": []}", "the index has no weight_map object with tensors in it"},
        {"{\"weight_map\": {}}", "the index has no weight_map object with tensors in it"},
        {"{\"weight_map\": {\"a\": 3}}",
         "weight_map.a is '', must be the name of a file beside the index"},
        {"{\"weight_map\": {\"a\": \"../one.safetensors\"}}",
         "weight_map.a is '../one.safetensors', must be the name of a file beside the index"},
        {"{\"weight_map\": {\"a\": \"/one.safetensors\"}}",
         "weight_map.a is '/one.safetensors', must be the name of a file beside the index"},
        {"{\"weight_map\": {\"a\": \"" TEXT_64 TEXT_64 TEXT_64 TEXT_64 "\"}}",
         "weight_map.a is '" TEXT_64 "0123456789abcdef', must be the name of a file beside the "
         "index"},
        {"{\"weight_map\": {\"a\": \"..\"}}",
         "weight_map.a is '..', must be the name of a file beside the index"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"x\": \"gone\", \"y\": \"lost\"}}",
         "2 missing shards: gone; lost"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"q\": \"one.safetensors\"}}",
         "1 missing indexed tensor: q is not in one.safetensors"},
        {"{\"weight_map\": {\"a\": \"bad.safetensors\"}}",
         "/bad.safetensors' has 1 bytes, a safetensors file at least 8"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct folder folder;
        struct st_set *set = NULL;
        struct err err = {0};
        st_dir_make(folder.dir);
        write_shard(&folder, "one.safetensors", "a", "b");
        write_text(&folder, "bad.safetensors", "x");
        write_text(&folder, "model.safetensors.index.json", bad[i].text);
        enum err_code code = st_open_folder(folder.dir, &set, &err);
        st_dir_remove(folder.dir);
        test_true(code == ERR_FORMAT || code == ERR_NOT_FOUND);
        size_t length = strlen(err.message);
        size_t end = strlen(bad[i].message);
        test_eq_str(length < end ? err.message : err.message + length - end, bad[i].message);
        test_true(strncmp(err.message, "weights of '/tmp/", 17) == 0);
    }
}

static void test_too_many_shards(void)
{
    struct folder folder;
    struct buf index;
    struct st_set *set = NULL;
    struct err err = {0};
    st_dir_make(folder.dir);
    buf_init(&index);
    for (unsigned i = 0; i <= ST_MAX_SHARDS; i++) {
        buf_printf(&index, "%s\"%u\": \"%u\"", i == 0 ? "{\"weight_map\": {" : ",", i, i);
    }
    buf_append_text(&index, "}}");
    st_write_file(path_in(&folder, "model.safetensors.index.json"), &index);
    buf_fini(&index);
    enum err_code code = st_open_folder(folder.dir, &set, &err);
    st_dir_remove(folder.dir);
    test_true(code == ERR_LIMIT);
    test_true(strstr(err.message, "more than 1024 files") != NULL);
}

static void test_no_weights(void)
{
    struct folder folder;
    struct st_set *set = NULL;
    struct err err = {0};
    st_dir_make(folder.dir);
    enum err_code code = st_open_folder(folder.dir, &set, &err);
    test_true(code == ERR_NOT_FOUND);
    test_true(strstr(err.message, "neither model.safetensors nor") != NULL);
    write_text(&folder, "model.safetensors.index.json", "{");
    test_true(st_open_folder(folder.dir, &set, &err) == ERR_FORMAT);
    st_dir_remove(folder.dir);
}

static const struct test_case cases[] = {
    TEST(test_header_is_read),      TEST(test_faults_are_named), TEST(test_many_faults_are_counted),
    TEST(test_a_long_fault_is_cut), TEST(test_single_file),      TEST(test_bad_files),
    TEST(test_a_folder_is_no_file), TEST(test_sharded),          TEST(test_bad_indexes),
    TEST(test_too_many_shards),     TEST(test_no_weights),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
