#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/st_writer.h"
#include "tests/testlib/test.h"
#include "worker/model_config.h"
#include "worker/weights.h"

/* Two layers, one of each family, with every size different where it may be. */
enum {
    HIDDEN = 16,
    VOCAB = 24,
    HEADS = 4,
    LOCAL_HEAD = 8,
    GLOBAL_HEAD = 16,
    MLP = 40
};

static struct model_config tiny_config(void)
{
    struct model_config config = {.hidden_elems = HIDDEN,
                                  .heads = HEADS,
                                  .tied_lm_head = true,
                                  .layer_count = 2,
                                  .info = {.vocab_tokens = VOCAB}};
    config.layers[0] = (struct model_layer){.family = RUNNER_FAMILY_LOCAL,
                                            .head_dim = LOCAL_HEAD,
                                            .kv_heads = 2,
                                            .intermediate_elems = MLP,
                                            .owns_kv = true};
    config.layers[1] = (struct model_layer){.family = RUNNER_FAMILY_GLOBAL,
                                            .head_dim = GLOBAL_HEAD,
                                            .kv_heads = 1,
                                            .intermediate_elems = MLP,
                                            .owns_kv = true,
                                            .k_eq_v = true,
                                            .kv_source_layer = 1};
    return config;
}

struct tensor_row {
    const char *name; /* without prefix */
    unsigned rows;
    unsigned cols; /* 0: one dimension */
};

static const struct tensor_row tiny_rows[] = {
    {"embed_tokens.weight", VOCAB, HIDDEN},
    {"norm.weight", HIDDEN, 0},
    {"layers.0.input_layernorm.weight", HIDDEN, 0},
    {"layers.0.layer_scalar", 1, 0},
    {"layers.0.mlp.down_proj.weight", HIDDEN, MLP},
    {"layers.0.mlp.gate_proj.weight", MLP, HIDDEN},
    {"layers.0.mlp.up_proj.weight", MLP, HIDDEN},
    {"layers.0.post_attention_layernorm.weight", HIDDEN, 0},
    {"layers.0.post_feedforward_layernorm.weight", HIDDEN, 0},
    {"layers.0.pre_feedforward_layernorm.weight", HIDDEN, 0},
    {"layers.0.self_attn.k_norm.weight", LOCAL_HEAD, 0},
    {"layers.0.self_attn.k_proj.weight", 2 * LOCAL_HEAD, HIDDEN},
    {"layers.0.self_attn.o_proj.weight", HIDDEN, HEADS *LOCAL_HEAD},
    {"layers.0.self_attn.q_norm.weight", LOCAL_HEAD, 0},
    {"layers.0.self_attn.q_proj.weight", HEADS *LOCAL_HEAD, HIDDEN},
    {"layers.0.self_attn.v_proj.weight", 2 * LOCAL_HEAD, HIDDEN},
    {"layers.1.input_layernorm.weight", HIDDEN, 0},
    {"layers.1.layer_scalar", 1, 0},
    {"layers.1.mlp.down_proj.weight", HIDDEN, MLP},
    {"layers.1.mlp.gate_proj.weight", MLP, HIDDEN},
    {"layers.1.mlp.up_proj.weight", MLP, HIDDEN},
    {"layers.1.post_attention_layernorm.weight", HIDDEN, 0},
    {"layers.1.post_feedforward_layernorm.weight", HIDDEN, 0},
    {"layers.1.pre_feedforward_layernorm.weight", HIDDEN, 0},
    {"layers.1.self_attn.k_norm.weight", GLOBAL_HEAD, 0},
    {"layers.1.self_attn.k_proj.weight", GLOBAL_HEAD, HIDDEN},
    {"layers.1.self_attn.o_proj.weight", HIDDEN, HEADS *GLOBAL_HEAD},
    {"layers.1.self_attn.q_norm.weight", GLOBAL_HEAD, 0},
    {"layers.1.self_attn.q_proj.weight", HEADS *GLOBAL_HEAD, HIDDEN},
};

enum {
    TINY_ROWS = sizeof(tiny_rows) / sizeof(tiny_rows[0])
};

/* How a file differs from the right one: one row at a time, and tensors after the last row. */
struct tiny_edit {
    const char *prefix;
    const char *skip;      /* part of a name left out; null: none */
    const char *misshape;  /* part of a name with one row too many */
    const char *retype;    /* part of a name stored as F32 */
    const char *extra;     /* name of one more BF16 [16] tensor */
    unsigned lm_head_cols; /* of an lm_head.weight; 0: none */
};

static bool names(const char *part, const char *name)
{
    return part != NULL && strstr(name, part) != NULL;
}

static void add_row(struct st_writer *writer, const struct tiny_edit *edit,
                    const struct tensor_row *row)
{
    char name[256];
    char shape[64];
    unsigned rows = row->rows + names(edit->misshape, row->name);
    bool is_f32 = names(edit->retype, row->name);
    size_t elem_count = (size_t)rows * (row->cols == 0 ? 1 : row->cols);
    (void)snprintf(name, sizeof(name), "%s%s", edit->prefix, row->name);
    if (row->cols == 0) {
        (void)snprintf(shape, sizeof(shape), "[%u]", rows);
    } else {
        (void)snprintf(shape, sizeof(shape), "[%u,%u]", rows, row->cols);
    }
    st_writer_add(writer, name, is_f32 ? "F32" : "BF16", shape, NULL,
                  elem_count * (is_f32 ? 4 : 2));
}

static void write_tiny(const char *dir, const struct tiny_edit *edit)
{
    struct st_writer writer;
    char path[128];
    st_writer_init(&writer);
    for (size_t i = 0; i < TINY_ROWS; i++) {
        if (!names(edit->skip, tiny_rows[i].name)) {
            add_row(&writer, edit, &tiny_rows[i]);
        }
    }
    if (edit->extra != NULL) {
        st_writer_add(&writer, edit->extra, "BF16", "[16]", NULL, 32);
    }
    if (edit->lm_head_cols > 0) {
        char shape[64];
        (void)snprintf(shape, sizeof(shape), "[%d,%u]", VOCAB, edit->lm_head_cols);
        st_writer_add(&writer, "lm_head.weight", "BF16", shape, NULL,
                      (size_t)2 * VOCAB * edit->lm_head_cols);
    }
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    st_writer_save(&writer, path);
    st_writer_fini(&writer);
}

static enum err_code load_tiny(const struct tiny_edit *edit, const struct model_config *config,
                               struct weights *weights, struct err *err)
{
    char dir[ST_DIR_BYTES];
    st_dir_make(dir);
    write_tiny(dir, edit);
    enum err_code code = weights_open_host(dir, config, NULL, weights, err);
    st_dir_remove(dir);
    return code;
}

/* Message without the "weights of '<folder>': " in front. */
static const char *reason(const struct err *err)
{
    const char *at = strstr(err->message, "': ");
    return at == NULL ? err->message : at + 3;
}

/* Each beside a tensor of another modality, which is no part of the text model. */
static const struct {
    const char *prefix, *extra;
} prefixes[] = {
    {"model.", "vision_tower.encoder.layers.0.mlp.up_proj.weight"},
    {"model.", "model.vision_tower.encoder.layers.0.x"},
    {"model.language_model.", "model.embed_audio.y"},
    {"model.language_model.", "model.vision_embedder.pos_embedding"},
    {"model.language_model.", "model.audio_tower.layers.0.self_attn.q_proj.weight"},
    {"language_model.model.", "vision_tower.vision_model.embeddings.patch_embedding.weight"},
    {"language_model.model.", "multi_modal_projector.mm_input_projection_weight"},
    {"", "embed_vision.embedding_projection.weight"},
};

static void test_loads_every_prefix(void)
{
    struct model_config config = tiny_config();
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        struct tiny_edit edit = {.prefix = prefixes[i].prefix, .extra = prefixes[i].extra};
        struct weights weights;
        struct err err = {0};
        test_ok(load_tiny(&edit, &config, &weights, &err), &err);
        test_true(weights.lm_head == weights.embed_tokens);
        test_true(weights.layers[0].v_proj != NULL && weights.layers[1].v_proj == NULL);
        test_true(weights.layers[0].router_proj == NULL && weights.ple_embed_tokens == NULL);
        test_eq_u64((uintptr_t)weights.layers[1].layer_scalar % WEIGHTS_ALIGN_BYTES, 0);
        /* The embedding is first in the file: its bytes are those of offsets 0, 1, 2, ... */
        const unsigned char *bytes = (const unsigned char *)weights.embed_tokens;
        for (size_t j = 0; j < (size_t)2 * VOCAB * HIDDEN; j++) {
            test_eq_u64(bytes[j], j * 37 % 251);
        }
        weights_fini(&weights);
    }
}

/* Every slot holds the bytes that its tensor has in the file. */
static void check_slot(const struct st_set *set, const char *name, const uint16_t *slot)
{
    struct err err = {0};
    const struct st_tensor *tensor = st_find(set, name);
    test_true(tensor != NULL && slot != NULL);
    unsigned char *bytes = mem_zalloc(tensor->byte_count, 1);
    test_ok(st_read(set, tensor, 0, bytes, tensor->byte_count, &err), &err);
    bool is_same = memcmp(bytes, slot, tensor->byte_count) == 0;
    mem_free(bytes);
    test_true(is_same);
}

static void check_checkpoint(const char *name, const char *prefix)
{
    char dir[4096];
    struct model_config config;
    struct weights weights;
    struct st_set *set = NULL;
    struct err err = {0};
    (void)snprintf(dir, sizeof(dir), "%s/%s", test_golden_dir(), name);
    test_ok(model_config_load(dir, &config, &err), &err);
    test_ok(weights_open_host(dir, &config, NULL, &weights, &err), &err);
    test_ok(st_open_folder(dir, &set, &err), &err);
    test_eq_u64(weights.layer_count, config.layer_count);
    char tensor[256];
    (void)snprintf(tensor, sizeof(tensor), "%snorm.weight", prefix);
    check_slot(set, tensor, weights.norm);
    for (uint32_t i = 0; i < weights.layer_count; i++) {
        (void)snprintf(tensor, sizeof(tensor), "%slayers.%u.self_attn.q_proj.weight", prefix, i);
        check_slot(set, tensor, weights.layers[i].q_proj);
        (void)snprintf(tensor, sizeof(tensor), "%slayers.%u.mlp.down_proj.weight", prefix, i);
        check_slot(set, tensor, weights.layers[i].down_proj);
        (void)snprintf(tensor, sizeof(tensor), "%slayers.%u.layer_scalar", prefix, i);
        check_slot(set, tensor, weights.layers[i].layer_scalar);
        test_eq_u64(weights.layers[i].v_proj == NULL,
                    config.layers[i].k_eq_v || !config.layers[i].owns_kv);
        test_eq_u64(weights.layers[i].k_proj == NULL, !config.layers[i].owns_kv);
        test_eq_u64(weights.layers[i].ple_gate == NULL, config.ple_elems == 0);
    }
    st_close(set);
    weights_fini(&weights);
}

static void test_loads_golden_checkpoints(void)
{
    check_checkpoint("checkpoints/dense-unified", "model.language_model.");
    check_checkpoint("checkpoints/dense-sharded", "model.");
    check_checkpoint("checkpoints/dense-window1024", "model.");
    check_checkpoint("checkpoints/moe", "model.");
    check_checkpoint("checkpoints/ple-shared", "model.");
    check_checkpoint("../../deploy/demo-model", "model.language_model.");
}

/* Values of the shape's deviation, the same for the same config; in large matrices too: the embedding
 * has 67 MB here and ends within a page. */
static void test_made_up_weights(void)
{
    char dir[4096];
    struct model_config config;
    struct weights weights;
    struct weights again;
    struct err err = {0};
    (void)snprintf(dir, sizeof(dir), "%s/checkpoints/ple-shared", test_golden_dir());
    test_ok(model_config_load(dir, &config, &err), &err);
    config.info.vocab_tokens = 520009;
    config.ple_vocab_tokens = 16001; /* rows of 256 */
    test_ok(weights_make_host(&config, &weights, &err), &err);
    test_ok(weights_make_host(&config, &again, &err), &err);
    test_true(memcmp(weights.host_block, again.host_block, weights.block_bytes) == 0);
    uint64_t elems = 520009ULL * 64;
    double squares = 0;
    for (uint64_t i = 0; i < elems; i++) {
        double value = (double)k_f32_from_bf16(weights.embed_tokens[i]);
        squares += value * value;
        uint64_t row = i / 64;
        test_true(i % 64 != 63 || squares > 0.3 * (double)row); /* no row is left out */
    }
    test_true(fabs(squares / (double)elems * 64 - 1.0) < 0.01);
    test_true(k_f32_from_bf16(weights.ple_embed_tokens[16001ULL * 256 - 1]) != 0.0F);
    for (uint32_t i = 0; i < 64; i++) {
        test_true(fabs((double)k_f32_from_bf16(weights.norm[i]) - 1.0) < 0.3);
    }
    weights_fini(&again);
    weights_fini(&weights);
}

static void test_lm_head(void)
{
    struct model_config config = tiny_config();
    struct weights weights;
    struct err err = {0};
    struct tiny_edit edit = {.prefix = "model.", .lm_head_cols = HIDDEN};
    test_ok(load_tiny(&edit, &config, &weights, &err), &err);
    test_true(weights.lm_head == weights.embed_tokens);
    weights_fini(&weights);
    config.tied_lm_head = false;
    test_ok(load_tiny(&edit, &config, &weights, &err), &err);
    test_true(weights.lm_head != NULL && weights.lm_head != weights.embed_tokens);
    weights_fini(&weights);
    edit.lm_head_cols = HIDDEN + 8;
    test_true(load_tiny(&edit, &config, &weights, &err) == ERR_CONFIG);
    test_eq_str(reason(&err), "1 faulty tensor: lm_head.weight is [24, 24], must be [24, 16]");
    edit.lm_head_cols = 0;
    test_true(load_tiny(&edit, &config, &weights, &err) == ERR_CONFIG);
    test_eq_str(reason(&err), "1 faulty tensor: lm_head.weight is missing and "
                              "tie_word_embeddings is false");
}

static void test_all_faults_are_told_at_once(void)
{
    struct model_config config = tiny_config();
    struct weights weights;
    struct err err = {0};
    struct tiny_edit edit = {.prefix = "model.",
                             .skip = "1.mlp.up_proj",
                             .misshape = "1.self_attn.k_norm",
                             .retype = "layers.0.layer_scalar"};
    test_true(load_tiny(&edit, &config, &weights, &err) == ERR_CONFIG);
    test_true(strstr(err.message, "3 faulty tensors") != NULL);
    test_true(strstr(err.message, "layers.0.layer_scalar is F32, must be BF16") != NULL);
    test_true(strstr(err.message, "layers.1.self_attn.k_norm.weight is [17], must be [16]") !=
              NULL);
    test_true(strstr(err.message, "up_proj.weight is missing") != NULL ||
              strstr(err.message, "and 1 more") != NULL);
    edit = (struct tiny_edit){.prefix = "model.", .skip = "layers.1."};
    test_true(load_tiny(&edit, &config, &weights, &err) == ERR_CONFIG);
    test_true(strstr(err.message, "13 faulty tensors: layers.1.input_layernorm.weight is missing; "
                                  "layers.1.self_attn.q_proj.weight is missing") != NULL);
    test_true(strstr(err.message, " more") != NULL);
}

static void test_unexpected_tensors(void)
{
    struct model_config config = tiny_config();
    struct weights weights;
    struct err err = {0};
    static const char *const names_of[] = {
        "model.layers.2.layer_scalar",                       /* a third layer */
        "model.layers.1.self_attn.v_proj.weight",            /* k_eq_v has none */
        "model.layers.0.router.scale",                       /* no experts declared */
        "model.layers.0.mlp.gate_proj.weight_scale_inverse", /* some quantised export */
    };
    for (size_t i = 0; i < sizeof(names_of) / sizeof(names_of[0]); i++) {
        char want[256];
        struct tiny_edit edit = {.prefix = "model.", .extra = names_of[i]};
        test_true(load_tiny(&edit, &config, &weights, &err) == ERR_CONFIG);
        (void)snprintf(want, sizeof(want),
                       "1 faulty tensor: %s is not part of the model that config.json describes",
                       names_of[i] + strlen("model."));
        test_eq_str(reason(&err), want);
    }
}

/* Layers that share KV: the published files still hold the three tensors, later exports do not. */
static void test_dead_weights_of_shared_layers(void)
{
    struct model_config config = tiny_config();
    config.layers[1].owns_kv = false;
    config.layers[1].k_eq_v = false;
    struct weights weights;
    struct err err = {0};
    struct tiny_edit edit = {.prefix = "model."};
    test_ok(load_tiny(&edit, &config, &weights, &err), &err);
    test_true(weights.layers[1].k_proj == NULL && weights.layers[1].k_norm == NULL);
    weights_fini(&weights);
    edit.skip = "1.self_attn.k_";
    test_ok(load_tiny(&edit, &config, &weights, &err), &err);
    weights_fini(&weights);
}

struct progress_log {
    uint64_t last_bytes;
    uint64_t total_bytes;
    uint32_t calls;
};

static void on_progress(void *owner, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress_log *log = owner;
    test_true(done_bytes > log->last_bytes && done_bytes <= total_bytes);
    test_true(log->calls == 0 || log->total_bytes == total_bytes);
    *log = (struct progress_log){
        .last_bytes = done_bytes, .total_bytes = total_bytes, .calls = log->calls + 1};
}

static void test_progress_reaches_the_total(void)
{
    char dir[4096];
    struct model_config config;
    struct weights weights;
    struct err err = {0};
    struct progress_log log = {0};
    struct weights_progress progress = {.on_progress = on_progress, .owner = &log};
    (void)snprintf(dir, sizeof(dir), "%s/checkpoints/dense-sharded", test_golden_dir());
    test_ok(model_config_load(dir, &config, &err), &err);
    test_ok(weights_open_host(dir, &config, &progress, &weights, &err), &err);
    test_true(log.calls >= 80 && log.last_bytes == log.total_bytes);
    test_true(log.total_bytes > 4000000 && log.total_bytes < weights.block_bytes);
    weights_fini(&weights);
}

struct memory_store {
    unsigned char *at;
    uint64_t written_bytes;
    uint64_t full_at_bytes;
};

static enum err_code on_write(void *owner, uint64_t offset_bytes, const void *bytes,
                              size_t byte_count, struct err *err)
{
    struct memory_store *memory = owner;
    memcpy(memory->at + offset_bytes, bytes, byte_count);
    memory->written_bytes += byte_count;
    return memory->written_bytes > memory->full_at_bytes
               ? err_set(err, ERR_DEVICE, "the device is full")
               : ERR_OK;
}

/* A device store sees the same bytes, and its failure ends the load. */
static void test_store_with_a_writer(void)
{
    char dir[ST_DIR_BYTES];
    struct model_config config = tiny_config();
    struct st_set *set = NULL;
    struct weights weights;
    struct err err = {0};
    uint64_t block_bytes = 0;
    struct tiny_edit edit = {.prefix = "model."};
    st_dir_make(dir);
    write_tiny(dir, &edit);
    test_ok(st_open_folder(dir, &set, &err), &err);
    test_ok(weights_check(&config, set, &block_bytes, &err), &err);
    struct memory_store memory = {.at = mem_zalloc(block_bytes, 1), .full_at_bytes = UINT64_MAX};
    /* Slots count from base, which a host never reads. */
    struct weights_store store = {
        .base = memory.at, .cap_bytes = block_bytes, .write = on_write, .owner = &memory};
    test_ok(weights_load(&config, set, &store, NULL, &weights, &err), &err);
    check_slot(set, "model.layers.1.self_attn.o_proj.weight", weights.layers[1].o_proj);
    test_true(memory.written_bytes < block_bytes && memory.written_bytes > block_bytes / 2);
    weights_fini(&weights);
    store.cap_bytes--;
    test_true(weights_load(&config, set, &store, NULL, &weights, &err) == ERR_LIMIT);
    store.cap_bytes++;
    memory.full_at_bytes = memory.written_bytes + 1000;
    test_true(weights_load(&config, set, &store, NULL, &weights, &err) == ERR_DEVICE);
    test_eq_str(err.message, "the device is full");
    mem_free(memory.at);
    st_close(set);
    st_dir_remove(dir);
}

/* Cut after opening: an error of the read, with the file's name, and no signal. */
static void test_file_cut_short_after_opening(void)
{
    char dir[ST_DIR_BYTES];
    char path[128];
    struct model_config config = tiny_config();
    struct st_set *set = NULL;
    struct weights weights;
    struct err err = {0};
    struct tiny_edit edit = {.prefix = "model."};
    st_dir_make(dir);
    write_tiny(dir, &edit);
    test_ok(st_open_folder(dir, &set, &err), &err);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    test_true(truncate(path, 8000) == 0);
    struct weights_store store = {.cap_bytes = 1 << 20};
    store.base = mem_zalloc(store.cap_bytes, 1);
    test_true(weights_load(&config, set, &store, NULL, &weights, &err) == ERR_FORMAT);
    test_true(strstr(err.message, "/model.safetensors' has become shorter while open") != NULL);
    mem_free(store.base);
    st_close(set);
    st_dir_remove(dir);
}

static const struct test_case cases[] = {
    TEST(test_loads_every_prefix),
    TEST(test_loads_golden_checkpoints),
    TEST(test_made_up_weights),
    TEST(test_lm_head),
    TEST(test_all_faults_are_told_at_once),
    TEST(test_unexpected_tensors),
    TEST(test_dead_weights_of_shared_layers),
    TEST(test_progress_reaches_the_total),
    TEST(test_store_with_a_writer),
    TEST(test_file_cut_short_after_opening),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
