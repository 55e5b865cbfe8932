/* Experts stored one by one load to the same bytes as those stored together. */
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "tests/testlib/st_writer.h"
#include "tests/testlib/test.h"
#include "worker/model_config.h"
#include "worker/weights.h"

/* How the rewritten checkpoint differs. */
struct edit {
    const char *folder; /* "experts" or "moe.experts" */
    const char *skip;   /* parts of names left out; null: none */
    const char *skip_too;
    const char *misshape; /* part of a name stored with twice the rows of half the length */
    const char *extra;    /* a whole name of one more tensor */
};

static bool names(const char *part, const char *name)
{
    return part != NULL && strstr(name, part) != NULL;
}

static void add_matrix(struct st_writer *writer, const struct edit *edit, const char *name,
                       const uint64_t dims[2], const unsigned char *bytes)
{
    char shape[64];
    unsigned long long factor = names(edit->misshape, name) ? 2 : 1;
    (void)snprintf(shape, sizeof(shape), "[%llu,%llu]", dims[0] * factor, dims[1] / factor);
    if (!names(edit->skip, name) && !names(edit->skip_too, name)) {
        st_writer_add(writer, name, "BF16", shape, bytes, dims[0] * dims[1] * 2);
    }
}

/* stem: the tensor's name up to "experts.". */
static void add_split(struct st_writer *writer, const struct edit *edit, const char *stem,
                      const struct st_tensor *tensor, const unsigned char *bytes)
{
    static const char *const parts[] = {"gate", "up"};
    bool is_down = strstr(tensor->name, "down_proj") != NULL;
    uint32_t part_count = is_down ? 1 : 2;
    uint64_t dims[2] = {tensor->dims[1] / part_count, tensor->dims[2]};
    uint64_t matrix_bytes = dims[0] * dims[1] * 2;
    for (uint64_t e = 0; e < tensor->dims[0]; e++) {
        for (uint32_t part = 0; part < part_count; part++) {
            char name[512];
            (void)snprintf(name, sizeof(name), "%s%s.%llu.%s_proj.weight", stem, edit->folder,
                           (unsigned long long)e, is_down ? "down" : parts[part]);
            add_matrix(writer, edit, name, dims, bytes);
            bytes += matrix_bytes;
        }
    }
}

static void add_tensor(struct st_writer *writer, const struct edit *edit, const struct st_set *set,
                       const struct st_tensor *tensor)
{
    struct err err = {0};
    char shape[128];
    unsigned char *bytes = mem_zalloc(tensor->byte_count, 1);
    test_ok(st_read(set, tensor, 0, bytes, tensor->byte_count, &err), &err);
    const char *experts = strstr(tensor->name, "experts.");
    if (experts != NULL) {
        char stem[256];
        (void)snprintf(stem, sizeof(stem), "%.*s", (int)(experts - tensor->name), tensor->name);
        add_split(writer, edit, stem, tensor, bytes);
    } else {
        st_writer_add(writer, tensor->name, "BF16", st_shape_text(tensor, shape, sizeof(shape)),
                      bytes, tensor->byte_count);
    }
    mem_free(bytes);
}

static void write_split(const char *dir, const struct edit *edit, const struct st_set *set)
{
    struct st_writer writer;
    char path[128];
    st_writer_init(&writer);
    for (uint32_t i = 0; i < st_count(set); i++) {
        add_tensor(&writer, edit, set, st_at(set, i));
    }
    if (edit->extra != NULL) {
        st_writer_add(&writer, edit->extra, "BF16", "[16]", NULL, 32);
    }
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    st_writer_save(&writer, path);
    st_writer_fini(&writer);
}

struct rig {
    char dir[4096];
    struct model_config config;
    struct st_set *set;
};

static void rig_open(struct rig *rig)
{
    struct err err = {0};
    (void)snprintf(rig->dir, sizeof(rig->dir), "%s/checkpoints/moe", test_golden_dir());
    test_ok(model_config_load(rig->dir, &rig->config, &err), &err);
    test_ok(st_open_folder(rig->dir, &rig->set, &err), &err);
}

static enum err_code load_split(const struct rig *rig, const struct edit *edit,
                                struct weights *weights, struct err *err)
{
    char dir[ST_DIR_BYTES];
    st_dir_make(dir);
    write_split(dir, edit, rig->set);
    enum err_code code = weights_open_host(dir, &rig->config, NULL, weights, err);
    st_dir_remove(dir);
    return code;
}

static void test_split_experts_load_to_the_same_bytes(void)
{
    static const char *const folders[] = {"experts", "moe.experts"};
    struct err err = {0};
    struct rig rig;
    struct weights together;
    rig_open(&rig);
    uint64_t part_bytes = (uint64_t)rig.config.experts * rig.config.hidden_elems *
                          rig.config.expert_intermediate_elems * sizeof(uint16_t);
    test_ok(weights_open_host(rig.dir, &rig.config, NULL, &together, &err), &err);
    for (size_t f = 0; f < sizeof(folders) / sizeof(folders[0]); f++) {
        const struct edit edit = {.folder = folders[f]};
        struct weights split;
        test_ok(load_split(&rig, &edit, &split, &err), &err);
        test_eq_u64(split.block_bytes, together.block_bytes);
        for (uint32_t i = 0; i < rig.config.layer_count; i++) {
            const struct weights_layer *a = &split.layers[i];
            const struct weights_layer *b = &together.layers[i];
            test_true(memcmp(a->experts_gate_up, b->experts_gate_up, 2 * part_bytes) == 0);
            test_true(memcmp(a->experts_down, b->experts_down, part_bytes) == 0);
            test_eq_u64((uintptr_t)a->experts_down % WEIGHTS_ALIGN_BYTES, 0);
        }
        weights_fini(&split);
    }
    weights_fini(&together);
    st_close(rig.set);
}

/* The name that the first exports gave a tensor, into older. */
static const char *older_name(const char *name, char older[256])
{
    static const char *const renamed[][2] = {{"router.per_expert_scale", "moe.per_expert_scale"},
                                             {"experts.", "moe."}};
    for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++) {
        const char *at = strstr(name, renamed[i][0]);
        if (at != NULL) {
            (void)snprintf(older, 256, "%.*s%s%s", (int)(at - name), name, renamed[i][1],
                           at + strlen(renamed[i][0]));
            return older;
        }
    }
    return name;
}

static void write_older(const char *dir, const struct st_set *set)
{
    struct st_writer writer;
    struct err err = {0};
    char path[128];
    st_writer_init(&writer);
    for (uint32_t i = 0; i < st_count(set); i++) {
        const struct st_tensor *tensor = st_at(set, i);
        char older[256];
        char shape[128];
        unsigned char *bytes = mem_zalloc(tensor->byte_count, 1);
        test_ok(st_read(set, tensor, 0, bytes, tensor->byte_count, &err), &err);
        st_writer_add(&writer, older_name(tensor->name, older), "BF16",
                      st_shape_text(tensor, shape, sizeof(shape)), bytes, tensor->byte_count);
        mem_free(bytes);
    }
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    st_writer_save(&writer, path);
    st_writer_fini(&writer);
}

static void test_names_of_the_first_exports(void)
{
    char dir[ST_DIR_BYTES];
    struct err err = {0};
    struct rig rig;
    struct weights now;
    struct weights older;
    rig_open(&rig);
    st_dir_make(dir);
    write_older(dir, rig.set);
    test_ok(weights_open_host(rig.dir, &rig.config, NULL, &now, &err), &err);
    enum err_code code = weights_open_host(dir, &rig.config, NULL, &older, &err);
    st_dir_remove(dir);
    test_ok(code, &err);
    test_eq_u64(older.block_bytes, now.block_bytes);
    test_true(memcmp(older.host_block, now.host_block, now.block_bytes) == 0);
    weights_fini(&older);
    weights_fini(&now);
    st_close(rig.set);
}

static void check_refused(const struct rig *rig, const struct edit *edit, const char *want)
{
    struct err err = {0};
    struct weights weights;
    test_true(load_split(rig, edit, &weights, &err) == ERR_CONFIG);
    if (strstr(err.message, want) == NULL) {
        test_fail(__FILE__, __LINE__, "'%s' has no '%s'", err.message, want);
    }
}

static void test_faults_of_split_experts_are_named(void)
{
    struct rig rig;
    rig_open(&rig);
    check_refused(&rig,
                  &(struct edit){.folder = "experts",
                                 .skip = "layers.2.experts.7.up_proj",
                                 .misshape = "layers.3.experts.0.gate_proj"},
                  "2 faulty tensors: layers.2.experts.7.up_proj.weight is missing; "
                  "layers.3.experts.0.gate_proj.weight is [128, 32], must be [64, 64]");
    check_refused(&rig,
                  &(struct edit){.folder = "experts",
                                 .skip = "layers.0.experts.0.",
                                 .skip_too = "layers.6.experts.15.down_proj"},
                  "4 faulty tensors: layers.0.experts.0.gate_proj.weight is missing; "
                  "layers.0.experts.0.up_proj.weight is missing; "
                  "layers.0.experts.0.down_proj.weight is missing");
    check_refused(
        &rig,
        &(struct edit){.folder = "experts", .extra = "model.layers.1.experts.16.up_proj.weight"},
        "1 faulty tensor: layers.1.experts.16.up_proj.weight is not part of the model");
    st_close(rig.set);
}

static const struct test_case cases[] = {
    TEST(test_split_experts_load_to_the_same_bytes),
    TEST(test_names_of_the_first_exports),
    TEST(test_faults_of_split_experts_are_named),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
