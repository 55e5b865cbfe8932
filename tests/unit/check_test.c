#include "worker/check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/testlib/config_texts.h"
#include "tests/testlib/st_writer.h"
#include "tests/testlib/test.h"

enum {
    MAX_ARGS = 12,
    HELP_COLUMNS = 100,
    HELP_LINES = 24,
    PATH_BYTES = 4096,
};

struct run {
    enum err_code code;
    bool can_be_served;
    struct buf out;
    struct err err;
};

/* `bezel check model_dir more`, the words of more separated by single spaces; null model_dir: none. */
static void run_check(struct run *run, const char *model_dir, const char *more)
{
    char command[] = "check";
    char words[256];
    char dir[PATH_BYTES];
    char *argv[MAX_ARGS] = {command};
    int argc = 1;
    char *rest = NULL;
    if (model_dir != NULL) {
        (void)snprintf(dir, sizeof(dir), "%s", model_dir);
        argv[argc++] = dir;
    }
    (void)snprintf(words, sizeof(words), "%s", more);
    for (char *word = strtok_r(words, " ", &rest); word != NULL && argc < MAX_ARGS;
         word = strtok_r(NULL, " ", &rest)) {
        argv[argc++] = word;
    }
    *run = (struct run){0};
    buf_init(&run->out);
    run->code = check_run(argc, argv, &run->out, &run->can_be_served, &run->err);
}

static void expect(const struct run *run, const char *text)
{
    if (strstr(buf_text(&run->out), text) == NULL) {
        test_fail(__FILE__, __LINE__, "wants: %s\n... in:\n%s", text, buf_text(&run->out));
    }
}

static const char *in_sources(const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/../../%s", test_golden_dir(), name);
    return path;
}

static void put_text(const char *dir, const char *name, const char *text)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "we");
    test_true(file != NULL && fputs(text, file) >= 0);
    test_true(fclose(file) == 0);
}

/* The figures of the published models, in the units in which they are told. */
static void test_sizes_without_tensors(void)
{
    static const struct {
        const char *name;
        const char *texts[6];
    } models[] = {
        {"e2b",
         {"8.62 GiB, 4,628,569,379 parameters", "the per-layer table is 4.38 GiB",
          "sliding layers 12,288 B a token, 6.0 MiB a full window",
          "full layers 6,144 B a token, 768.0 MiB a full context", "the last 20 share KV",
          "28 sliding (window 512), 7 full"}},
        {"e4b",
         {"13.90 GiB, 7,463,013,418 parameters", "the per-layer table is 5.25 GiB",
          "sliding layers 40,960 B a token, 20.0 MiB a full window",
          "full layers 16,384 B a token, 2.00 GiB a full context", "the last 18 share KV",
          "35 sliding (window 512), 7 full"}},
        {"12b",
         {"22.18 GiB, 11,907,350,320 parameters", "vocabulary 262,144",
          "sliding layers 327,680 B a token, 320.0 MiB a full window",
          "full layers 16,384 B a token, 4.00 GiB a full context", "context up to 262,144 tokens",
          "40 sliding (window 1024), 8 full"}},
        {"26b-a4b",
         {"47.00 GiB, 25,233,141,790 parameters", "a token reads 7.12 GiB",
          "sliding layers 204,800 B a token, 200.0 MiB a full window",
          "full layers 20,480 B a token, 5.00 GiB a full context", "8 of 128 experts",
          "25 sliding (window 1024), 5 full"}},
        {"31b",
         {"57.18 GiB, 30,697,345,340 parameters", "vocabulary 262,144",
          "sliding layers 819,200 B a token, 800.0 MiB a full window",
          "full layers 81,920 B a token, 20.00 GiB a full context", "context up to 262,144 tokens",
          "50 sliding (window 1024), 10 full"}},
    };
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        char name[64];
        char path[PATH_BYTES];
        struct run run;
        (void)snprintf(name, sizeof(name), "tests/bench/configs/gemma-4-%s", models[i].name);
        run_check(&run, in_sources(name, path), "--backend cuda --memory-mb 143000");
        test_ok(run.code, &run.err);
        test_true(!run.can_be_served);
        for (size_t j = 0; j < sizeof(models[i].texts) / sizeof(models[i].texts[0]); j++) {
            expect(&run, models[i].texts[j]);
        }
        expect(&run, "It cannot be served, for ");
        expect(&run, "the tensors are missing: ");
        expect(&run, "no tokenizer.json: prompts and answers are token ids only");
        buf_fini(&run.out);
    }
}

static void test_what_can_be_served(void)
{
    static const char *const names[] = {"deploy/demo-model",
                                        "tests/golden/checkpoints/dense-unified",
                                        "tests/golden/checkpoints/dense-sharded",
                                        "tests/golden/checkpoints/dense-window1024",
                                        "tests/golden/checkpoints/moe",
                                        "tests/golden/checkpoints/ple-shared"};
    static const char *const backends[] = {"--backend cpu", "--backend cuda --memory-mb 8000"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t j = 0; j < sizeof(backends) / sizeof(backends[0]); j++) {
            char path[PATH_BYTES];
            struct run run;
            run_check(&run, in_sources(names[i], path), backends[j]);
            test_ok(run.code, &run.err);
            expect(&run, "It can be served.\n");
            test_true(run.can_be_served);
            buf_fini(&run.out);
        }
    }
}

static void test_one_context(void)
{
    char path[PATH_BYTES];
    struct run run;
    run_check(&run, in_sources("tests/bench/configs/gemma-4-12b", path),
              "--backend cuda --memory-mb 143000 --context 100000");
    expect(&run, "\n  100,000     360.0 MiB      1.53 GiB");
    test_true(strstr(buf_text(&run.out), "\n    8,192") == NULL);
    buf_fini(&run.out);
    run_check(&run, path, "--context 262145");
    expect(&run, "--context 262145: the model has at most 262144");
    test_true(!run.can_be_served);
    buf_fini(&run.out);
}

/* 13.90 GiB of weights, 5.25 of which a GPU need not hold. */
static void test_the_per_layer_table_stays_on_the_host(void)
{
    char path[PATH_BYTES];
    struct run run;
    run_check(&run, in_sources("tests/bench/configs/gemma-4-e4b", path),
              "--backend cuda --memory-mb 14000 --context 1000");
    expect(&run, "and 5.25 GiB of host memory for the per-layer table\n");
    test_true(strstr(buf_text(&run.out), "one request of 1000 tokens takes") == NULL);
    buf_fini(&run.out);
    run_check(&run, path, "--backend cuda --memory-mb 14000 --context 1000 --ple-on-device");
    test_true(strstr(buf_text(&run.out), "of host memory") == NULL);
    expect(&run, "  - one request of 1000 tokens takes 14.");
    buf_fini(&run.out);
    run_check(&run, path, "--backend cpu --memory-mb 14000 --context 1000");
    expect(&run, "  - one request of 1000 tokens takes 14.");
    buf_fini(&run.out);
}

static void test_memory_that_is_not_enough(void)
{
    char path[PATH_BYTES];
    struct run run;
    run_check(&run, in_sources("deploy/demo-model", path), "--memory-mb 20 --context 2000");
    expect(&run, "It cannot be served, for 1 reason:\n  - one request of 2000 tokens takes ");
    expect(&run, " with weights and workspace, 20.0 MiB may be taken\n");
    test_true(!run.can_be_served);
    buf_fini(&run.out);
    run_check(&run, path, "--memory-mb 60 --context 2000");
    test_true(run.can_be_served);
    buf_fini(&run.out);
}

static void test_config_faults_together(void)
{
    char dir[ST_DIR_BYTES];
    struct run run;
    st_dir_make(dir);
    put_text(dir, "config.json",
             "{\"model_type\": \"gemma4_text\", \"vocab_size\": 512, \"eos_token_id\": 1,"
             " \"hidden_size\": 63, \"hidden_activation\": \"silu\", \"attention_bias\": true,"
             " \"num_attention_heads\": 4, \"num_key_value_heads\": 5, \"head_dim\": \"256\","
             " \"num_hidden_layers\": 2, \"layer_types\": [\"sliding_attention\"],"
             " \"enable_moe_block\": true, \"tie_word_embeddings\": 1}");
    run_check(&run, dir, "");
    st_dir_remove(dir);
    static const char *const faults[] = {
        "It cannot be served, for 11 reasons:\n",
        "  - hidden_activation is 'silu', must be gelu_pytorch_tanh\n",
        "  - attention_bias is true, must be false\n",
        "  - hidden_size is 63, must be a multiple of 8\n",
        "  - max_position_embeddings is missing, must be an integer from 1 to 1048576\n",
        "  - num_experts is missing, must be an integer from 1 to 1024\n",
        "  - tie_word_embeddings is 1, needs true or false\n",
        "  - layer_types is an array of 1, must be an array of num_hidden_layers = 2\n",
        "  - head_dim is a string, must be an integer from 1 to 512\n",
        "  - num_key_value_heads is 5, must be an integer from 1 to 4\n",
        "  - intermediate_size is missing, must be an integer from 1 to 262144\n",
        "  - sliding_window is missing, must be an integer from 1 to 1048576\n",
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        expect(&run, faults[i]);
    }
    buf_fini(&run.out);
}

/* Every tensor that is missing or wrong, be they more than an error's line holds. */
static void test_tensor_faults_together(void)
{
    char dir[ST_DIR_BYTES];
    char path[PATH_BYTES];
    struct st_writer writer;
    struct run run;
    st_dir_make(dir);
    put_text(dir, "config.json", config_base_text);
    st_writer_init(&writer);
    st_writer_add(&writer, "model.embed_tokens.weight", "BF16", "[512,64]", NULL, 65536);
    st_writer_add(&writer, "model.norm.weight", "BF16", "[65]", NULL, 130);
    st_writer_add(&writer, "model.layers.3.layer_scalar", "F32", "[1]", NULL, 4);
    st_writer_add(&writer, "model.layers.5.layer_scalar", "BF16", "[1]", NULL, 2);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    st_writer_save(&writer, path);
    st_writer_fini(&writer);
    run_check(&run, dir, "");
    st_dir_remove(dir);
    test_true(!run.can_be_served);
    expect(&run, "  - norm.weight is [65], must be [64]\n");
    expect(&run, "  - layers.3.layer_scalar is F32, must be BF16\n");
    expect(&run, "  - layers.5.layer_scalar is not part of the model that config.json describes\n");
    for (int i = 0; i < 5; i++) {
        char text[96];
        (void)snprintf(text, sizeof(text), "  - layers.%d.mlp.down_proj.weight is missing\n", i);
        expect(&run, text);
    }
    /* Five layers of 14 or 13 tensors, less the one of a wrong type, and the three above. */
    expect(&run, "It cannot be served, for 70 reasons:\n");
    buf_fini(&run.out);
}

static void test_folders_that_are_none(void)
{
    char dir[ST_DIR_BYTES];
    struct run run;
    run_check(&run, "/nowhere/model", "");
    expect(&run,
           "It cannot be served, for 1 reason:\n  - there is no model folder '/nowhere/model'");
    buf_fini(&run.out);
    st_dir_make(dir);
    run_check(&run, dir, "");
    expect(&run, "config.json");
    test_true(run.code == ERR_OK && !run.can_be_served);
    buf_fini(&run.out);
    put_text(dir, "config.json", "{\"model_type\": \"llama\"}");
    run_check(&run, dir, "");
    expect(&run, "for 1 reason:\n  - model_type is 'llama', this is a server for gemma4 models\n");
    buf_fini(&run.out);
    st_dir_remove(dir);
}

static void test_quantised_files_are_refused_by_name(void)
{
    char dir[ST_DIR_BYTES];
    struct run run;
    st_dir_make(dir);
    char *text = config_replaced(config_base_text, "\"vocab_size\": 512",
                                 "\"vocab_size\": 512, \"quantization_config\": "
                                 "{\"quant_method\": \"compressed-tensors\"}");
    put_text(dir, "config.json", text);
    mem_free(text);
    run_check(&run, dir, "");
    st_dir_remove(dir);
    expect(&run, "for 1 reason:\n  - quantization_config.quant_method is 'compressed-tensors'");
    buf_fini(&run.out);
}

static void test_wrong_options(void)
{
    struct run run;
    run_check(&run, NULL, "");
    test_eq_u64(run.code, ERR_ARGUMENT);
    test_true(strstr(run.err.message, "check needs a model directory") != NULL);
    buf_fini(&run.out);
    run_check(&run, "m", "--page-tokens 48");
    test_eq_u64(run.code, ERR_ARGUMENT);
    buf_fini(&run.out);
    run_check(&run, "m", "--backend tpu");
    test_eq_u64(run.code, ERR_ARGUMENT);
    test_true(strstr(run.err.message, "tpu") != NULL);
    buf_fini(&run.out);
}

static void test_help_fits_the_screen(void)
{
    struct run run;
    run_check(&run, NULL, "--help");
    test_ok(run.code, &run.err);
    uint32_t lines = 0;
    for (const char *at = buf_text(&run.out); *at != '\0'; lines++) {
        size_t columns = strcspn(at, "\n");
        test_true(columns <= HELP_COLUMNS);
        at += columns + (at[columns] == '\n');
    }
    test_true(lines >= 10 && lines <= HELP_LINES);
    buf_fini(&run.out);
}

static const struct test_case cases[] = {
    TEST(test_sizes_without_tensors),
    TEST(test_what_can_be_served),
    TEST(test_one_context),
    TEST(test_the_per_layer_table_stays_on_the_host),
    TEST(test_memory_that_is_not_enough),
    TEST(test_config_faults_together),
    TEST(test_tensor_faults_together),
    TEST(test_folders_that_are_none),
    TEST(test_quantised_files_are_refused_by_name),
    TEST(test_wrong_options),
    TEST(test_help_fits_the_screen),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
