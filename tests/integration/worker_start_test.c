/* A worker that cannot serve what it was pointed at says why in one line and exits 2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/mem.h"
#include "tests/testlib/st_writer.h"
#include "tests/testlib/test.h"
#include "tests/testlib/worker_process.h"

enum {
    DEADLINE_MS = 20000,
    EXIT_CAN_NEVER_WORK = 2,
    LINE_BYTES = 2048
};

static void read_file(const char *path, struct buf *out)
{
    char block[8192];
    FILE *file = fopen(path, "rb");
    test_true(file != NULL);
    for (size_t got = sizeof(block); got == sizeof(block);) {
        got = fread(block, 1, sizeof(block), file);
        buf_append(out, block, got);
    }
    (void)fclose(file); /* read only */
}

static void demo_file(const char *name, struct buf *out)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/../../deploy/demo-model/%s", test_golden_dir(), name);
    read_file(path, out);
}

static void put(const char *dir, const char *name, const struct buf *bytes)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    st_write_file(path, bytes);
}

static void put_text(const char *dir, const char *name, const char *text)
{
    struct buf bytes;
    buf_init(&bytes);
    buf_append_text(&bytes, text);
    put(dir, name, &bytes);
    buf_fini(&bytes);
}

/* The demo model's config.json with one part replaced; find null: as it is. */
static void put_config(const char *dir, const char *find, const char *replacement)
{
    struct buf text;
    struct buf edited;
    buf_init(&text);
    buf_init(&edited);
    demo_file("config.json", &text);
    if (find == NULL) {
        put(dir, "config.json", &text);
    } else {
        const char *at = strstr(text.at, find);
        test_true(at != NULL && strstr(at + 1, find) == NULL);
        buf_append(&edited, text.at, (size_t)(at - text.at));
        buf_append_text(&edited, replacement);
        buf_append_text(&edited, at + strlen(find));
        put(dir, "config.json", &edited);
    }
    buf_fini(&edited);
    buf_fini(&text);
}

/* The demo model's weights: the first byte_count bytes, 0 for all, with find replaced by another
 * text of its length, once. */
static void put_weights(const char *dir, size_t byte_count, const char *find,
                        const char *replacement)
{
    struct buf bytes;
    buf_init(&bytes);
    demo_file("model.safetensors", &bytes);
    if (find != NULL) {
        size_t part_bytes = strlen(find);
        char *at = memmem(bytes.at, bytes.used_bytes, find, part_bytes);
        test_true(at != NULL && part_bytes == strlen(replacement));
        memcpy(at, replacement, part_bytes);
    }
    if (byte_count > 0) {
        test_true(byte_count < bytes.used_bytes);
        bytes.used_bytes = byte_count;
    }
    put(dir, "model.safetensors", &bytes);
    buf_fini(&bytes);
}

/* One error line that holds text, exit 2, nothing left in the run directory but the log. */
static void expect_refusal(const char *model_dir, const char *text)
{
    static const char *const no_args[] = {NULL};
    char line[LINE_BYTES];
    struct worker_process process;
    worker_process_start_model(&process, model_dir, no_args);
    int code = worker_process_wait(&process, DEADLINE_MS);
    uint32_t lines = worker_process_log_lines(&process);
    worker_process_last_line(&process, line, sizeof(line));
    worker_process_forget(&process);
    if (lines != 1 || code != EXIT_CAN_NEVER_WORK || strstr(line, " error bezel-worker ") == NULL ||
        strstr(line, text) == NULL) {
        test_fail(__FILE__, __LINE__, "exit %d, %u lines, the last is: %s\n... and wants: %s", code,
                  lines, line, text);
    }
}

static void test_missing_folder(void)
{
    expect_refusal("/nowhere/model", "there is no model folder '/nowhere/model'");
}

static void test_folder_without_files(void)
{
    char dir[ST_DIR_BYTES];
    st_dir_make(dir);
    expect_refusal(dir, "/config.json'");
    put_config(dir, NULL, NULL);
    expect_refusal(dir, "holds neither model.safetensors nor model.safetensors.index.json");
    st_dir_remove(dir);
}

static void test_bad_configs(void)
{
    static const struct {
        const char *find, *replacement, *text;
    } bad[] = {
        {"\"num_attention_heads\": 2", "\"num_attention_heads\": 0",
         "text_config.num_attention_heads is 0, must be an integer from 1 to 256"},
        {"\"hidden_size\": 192", "\"hidden_size\": \"192\"",
         "text_config.hidden_size is a string, must be an integer"},
        {"\"gemma4_unified_text\"", "\"llama\"", "model_type is 'llama'"},
        {"\"sliding_window\": 128,", "", "text_config.sliding_window is missing"},
        {"\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 6", "num_kv_shared_layers is 6"},
        {"\"vocab_size\": 2048", "\"vocab_size\": 2048, \"vocab_size\": 2049", "duplicate key"},
        {"\"proportional\"", "\"yarn\"", "rope_type is 'yarn'"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char dir[ST_DIR_BYTES];
        st_dir_make(dir);
        put_config(dir, bad[i].find, bad[i].replacement);
        put_weights(dir, 0, NULL, NULL);
        expect_refusal(dir, bad[i].text);
        st_dir_remove(dir);
    }
}

static void test_config_that_is_no_json(void)
{
    char dir[ST_DIR_BYTES];
    st_dir_make(dir);
    put_text(dir, "config.json", "{\"vocab_size\": ");
    expect_refusal(dir, "code=format");
    st_dir_remove(dir);
}

static void test_truncated_weights(void)
{
    static const struct {
        size_t byte_count;
        const char *text;
    } cuts[] = {
        {5, "has 5 bytes, a safetensors file at least 8"},
        {5000, "declares a header of 10248 bytes, at most 4992"},
        {1000000, "outside the file's 989744 data bytes"},
    };
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        char dir[ST_DIR_BYTES];
        st_dir_make(dir);
        put_config(dir, NULL, NULL);
        put_weights(dir, cuts[i].byte_count, NULL, NULL);
        expect_refusal(dir, cuts[i].text);
        st_dir_remove(dir);
    }
}

static void test_wrong_dtypes_and_shapes(void)
{
    static const struct {
        const char *find, *replacement, *text;
    } bad[] = {
        /* Of the same size, so that the header itself holds. */
        {"\"dtype\":\"BF16\",\"shape\":[2048,192]", "\"dtype\":\"F16\" ,\"shape\":[2048,192]",
         "1 faulty tensor: embed_tokens.weight is F16, must be BF16"},
        {"\"dtype\":\"BF16\",\"shape\":[2048,192]", "\"dtype\":\"BF16\",\"shape\":[192,2048]",
         "1 faulty tensor: embed_tokens.weight is [192, 2048], must be [2048, 192]"},
        {"layers.3.mlp.up_proj.weight", "layers.3.mlp.up_prok.weight",
         "2 faulty tensors: layers.3.mlp.up_proj.weight is missing; layers.3.mlp.up_prok.weight "
         "is not part of the model"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char dir[ST_DIR_BYTES];
        st_dir_make(dir);
        put_config(dir, NULL, NULL);
        put_weights(dir, 0, bad[i].find, bad[i].replacement);
        expect_refusal(dir, bad[i].text);
        st_dir_remove(dir);
    }
}

static void test_missing_shards(void)
{
    char dir[ST_DIR_BYTES];
    st_dir_make(dir);
    put_config(dir, NULL, NULL);
    put_text(dir, "model.safetensors.index.json",
             "{\"weight_map\": {\"a\": \"model-1.safetensors\", \"b\": \"model-2.safetensors\"}}");
    expect_refusal(dir, "2 missing shards: model-1.safetensors; model-2.safetensors");
    st_dir_remove(dir);
}

static const struct test_case cases[] = {
    TEST(test_missing_folder),    TEST(test_folder_without_files),
    TEST(test_bad_configs),       TEST(test_config_that_is_no_json),
    TEST(test_truncated_weights), TEST(test_wrong_dtypes_and_shapes),
    TEST(test_missing_shards),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
