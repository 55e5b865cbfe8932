#include "worker/weights_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/mem.h"
#include "common/num.h"

enum {
    MAX_DIMS = 3
};

enum weights_when {
    WEIGHTS_WHEN_ALWAYS,
    WEIGHTS_WHEN_OWNS_KV, /* dead weight in files of layers that share KV */
    WEIGHTS_WHEN_OWNS_V,  /* the same; none where the key projection serves as value */
    WEIGHTS_WHEN_PLE,
    WEIGHTS_WHEN_MOE,
};

enum weights_dim {
    WEIGHTS_DIM_NONE,
    WEIGHTS_DIM_ONE,
    WEIGHTS_DIM_VOCAB,
    WEIGHTS_DIM_HIDDEN,
    WEIGHTS_DIM_HEAD,
    WEIGHTS_DIM_Q_ROWS,
    WEIGHTS_DIM_KV_ROWS,
    WEIGHTS_DIM_MLP,
    WEIGHTS_DIM_PLE,
    WEIGHTS_DIM_PLE_ALL,
    WEIGHTS_DIM_PLE_VOCAB,
    WEIGHTS_DIM_EXPERTS,
    WEIGHTS_DIM_EXPERT,
    WEIGHTS_DIM_EXPERT_TWO, /* gate and up rows, one after the other */
};

struct row {
    const char *name;
    size_t slot_offset; /* of the pointer within its struct */
    enum weights_when when;
    enum weights_dim dims[MAX_DIMS];
};

static const struct row global_rows[] = {
#define GLOBAL(field, name, when, dim0, dim1, dim2) \
    {name,                                          \
     offsetof(struct weights, field),               \
     WEIGHTS_WHEN_##when,                           \
     {WEIGHTS_DIM_##dim0, WEIGHTS_DIM_##dim1, WEIGHTS_DIM_##dim2}},
#define LAYER(field, name, when, dim0, dim1, dim2)
#include "worker/weights.def"
#undef GLOBAL
#undef LAYER
};

static const struct row layer_rows[] = {
#define GLOBAL(field, name, when, dim0, dim1, dim2)
#define LAYER(field, name, when, dim0, dim1, dim2) \
    {name,                                         \
     offsetof(struct weights_layer, field),        \
     WEIGHTS_WHEN_##when,                          \
     {WEIGHTS_DIM_##dim0, WEIGHTS_DIM_##dim1, WEIGHTS_DIM_##dim2}},
#include "worker/weights.def"
#undef GLOBAL
#undef LAYER
};

/* Only of a model whose output matrix is not the embedding. */
static const struct row lm_head_row = {
    "lm_head.weight",
    offsetof(struct weights, lm_head),
    WEIGHTS_WHEN_ALWAYS,
    {WEIGHTS_DIM_VOCAB, WEIGHTS_DIM_HIDDEN},
};

static const struct row ple_table_row = {
    "embed_tokens_per_layer.weight",
    offsetof(struct weights, ple_embed_tokens),
    WEIGHTS_WHEN_PLE,
    {WEIGHTS_DIM_PLE_VOCAB, WEIGHTS_DIM_PLE_ALL},
};

enum {
    GLOBAL_ROWS = sizeof(global_rows) / sizeof(global_rows[0]),
    LAYER_ROWS = sizeof(layer_rows) / sizeof(layer_rows[0])
};

static uint64_t dim_elems(const struct model_config *config, const struct model_layer *layer,
                          enum weights_dim dim)
{
    switch (dim) {
    case WEIGHTS_DIM_NONE: return 0;
    case WEIGHTS_DIM_ONE: return 1;
    case WEIGHTS_DIM_VOCAB: return config->info.vocab_tokens;
    case WEIGHTS_DIM_HIDDEN: return config->hidden_elems;
    case WEIGHTS_DIM_HEAD: return layer->head_dim;
    case WEIGHTS_DIM_Q_ROWS: return (uint64_t)config->heads * layer->head_dim;
    case WEIGHTS_DIM_KV_ROWS: return (uint64_t)layer->kv_heads * layer->head_dim;
    case WEIGHTS_DIM_MLP: return layer->intermediate_elems;
    case WEIGHTS_DIM_PLE: return config->ple_elems;
    case WEIGHTS_DIM_PLE_ALL: return (uint64_t)config->ple_elems * config->layer_count;
    case WEIGHTS_DIM_PLE_VOCAB: return config->ple_vocab_tokens;
    case WEIGHTS_DIM_EXPERTS: return config->experts;
    case WEIGHTS_DIM_EXPERT: return config->expert_intermediate_elems;
    case WEIGHTS_DIM_EXPERT_TWO: return 2 * (uint64_t)config->expert_intermediate_elems;
    }
    return 0;
}

enum need {
    NEED_YES,
    NEED_NO,      /* a tensor of this name is a fault */
    NEED_IGNORED, /* may be there, is not read */
};

static enum need row_need(const struct model_config *config, const struct model_layer *layer,
                          enum weights_when when)
{
    switch (when) {
    case WEIGHTS_WHEN_ALWAYS: return NEED_YES;
    case WEIGHTS_WHEN_OWNS_KV: return layer->owns_kv ? NEED_YES : NEED_IGNORED;
    case WEIGHTS_WHEN_OWNS_V:
        if (!layer->owns_kv) {
            return NEED_IGNORED;
        }
        return layer->k_eq_v ? NEED_NO : NEED_YES;
    case WEIGHTS_WHEN_PLE: return config->ple_elems > 0 ? NEED_YES : NEED_NO;
    case WEIGHTS_WHEN_MOE: return config->experts > 0 ? NEED_YES : NEED_NO;
    }
    return NEED_NO;
}

bool weights_plan_check(struct weights_plan *plan, const struct st_tensor *tensor,
                        const struct st_tensor *want, const char *short_name)
{
    char got_text[96];
    char want_text[96];
    if (tensor->dtype != ST_DTYPE_BF16) {
        faults_add(&plan->faults, "%s is %s, must be BF16", short_name,
                   st_dtype_text(tensor->dtype));
        return false;
    }
    if (tensor->rank != want->rank ||
        memcmp(tensor->dims, want->dims, want->rank * sizeof(want->dims[0])) != 0) {
        faults_add(&plan->faults, "%s is %s, must be %s", short_name,
                   st_shape_text(tensor, got_text, sizeof(got_text)),
                   st_shape_text(want, want_text, sizeof(want_text)));
        return false;
    }
    return true;
}

static const struct st_tensor *find(struct weights_plan *plan, const char *name)
{
    const struct st_tensor *tensor = st_find(plan->set, name);
    if (tensor != NULL) {
        plan->known[tensor - st_at(plan->set, 0)] = true;
    }
    return tensor;
}

const struct st_tensor *weights_plan_find(struct weights_plan *plan, const char *short_name)
{
    char name[WEIGHTS_MAX_NAME_BYTES];
    (void)snprintf(name, sizeof(name), "%s%s", plan->prefix, short_name); /* fits */
    return find(plan, name);
}

void weights_plan_add(struct weights_plan *plan, const struct st_tensor *tensor,
                      const uint16_t **slot, uint64_t offset_bytes)
{
    plan->entries[plan->count++] =
        (struct weights_entry){.tensor = tensor, .slot = slot, .offset_bytes = offset_bytes};
    plan->data_bytes += tensor->byte_count;
}

static void add_entry(struct weights_plan *plan, const struct st_tensor *tensor,
                      const uint16_t **slot)
{
    weights_plan_add(plan, tensor, slot, plan->block_bytes);
    plan->block_bytes += num_align_up(tensor->byte_count, WEIGHTS_ALIGN_BYTES);
}

/* Names of the first exports, when experts and their scale were one module. */
static const struct {
    const char *name, *older;
} older_names[] = {
    {"router.per_expert_scale", "moe.per_expert_scale"},
    {"experts.gate_up_proj", "moe.gate_up_proj"},
    {"experts.down_proj", "moe.down_proj"},
};

/* A row's tensor by its name or an older one; null where there is neither. */
static const struct st_tensor *find_row(struct weights_plan *plan, const struct row *row,
                                        const char *short_name)
{
    const struct st_tensor *tensor = weights_plan_find(plan, short_name);
    size_t stem_bytes = strlen(short_name) - strlen(row->name);
    for (size_t i = 0; tensor == NULL && i < sizeof(older_names) / sizeof(older_names[0]); i++) {
        if (strcmp(row->name, older_names[i].name) == 0) {
            char older[WEIGHTS_MAX_NAME_BYTES / 2];
            (void)snprintf(older, sizeof(older), "%.*s%s", (int)stem_bytes, short_name,
                           older_names[i].older); /* fits */
            tensor = weights_plan_find(plan, older);
        }
    }
    return tensor;
}

/* layer is null for a global row; short_name is what messages call the tensor. */
static void plan_row(struct weights_plan *plan, const struct row *row,
                     const struct model_layer *layer, const char *short_name, const uint16_t **slot)
{
    struct st_tensor want = {0};
    enum need need = row_need(plan->config, layer, row->when);
    if (need == NEED_NO) {
        return;
    }
    const struct st_tensor *tensor = find_row(plan, row, short_name);
    if (need == NEED_IGNORED) {
        return;
    }
    if (tensor == NULL) {
        faults_add(&plan->faults, "%s is missing", short_name);
        return;
    }
    for (int i = 0; i < MAX_DIMS && row->dims[i] != WEIGHTS_DIM_NONE; i++) {
        want.dims[want.rank++] = dim_elems(plan->config, layer, row->dims[i]);
    }
    if (weights_plan_check(plan, tensor, &want, short_name)) {
        add_entry(plan, tensor, slot);
    }
}

static const uint16_t **slot_at(void *object, size_t offset)
{
    return (const uint16_t **)(void *)((char *)object + offset);
}

/* Beside the text model.  A copy of the embedding in a tied model's file is checked and not read. */
static void plan_lm_head(struct weights_plan *plan)
{
    static const char nested[] = "language_model.lm_head.weight";
    const char *name = lm_head_row.name;
    const struct st_tensor want = {
        .rank = 2, .dims = {plan->config->info.vocab_tokens, plan->config->hidden_elems}};
    const struct st_tensor *tensor = find(plan, name);
    tensor = tensor != NULL ? tensor : find(plan, nested);
    if (tensor == NULL) {
        if (!plan->config->tied_lm_head) {
            faults_add(&plan->faults, "%s is missing and tie_word_embeddings is false", name);
        }
        return;
    }
    if (weights_plan_check(plan, tensor, &want, name) && !plan->config->tied_lm_head) {
        add_entry(plan, tensor, &plan->weights->lm_head);
    }
}

/* A tensor of a layer that the config does not have: another model than the one described. */
static void find_unexpected(struct weights_plan *plan)
{
    char layers[WEIGHTS_MAX_NAME_BYTES];
    (void)snprintf(layers, sizeof(layers), "%slayers.", plan->prefix); /* fits */
    for (uint32_t i = 0; i < st_count(plan->set); i++) {
        const char *name = st_at(plan->set, i)->name;
        if (!plan->known[i] && strncmp(name, layers, strlen(layers)) == 0) {
            faults_add(&plan->faults, "%.80s is not part of the model that config.json describes",
                       name + strlen(plan->prefix));
        }
    }
}

/* What may stand before the names of weights.def: multimodal checkpoints in both orders, text-only
 * ones, and the bare tower. */
static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "model.",
                                       ""};

static bool begins_with(const char *name, const char *prefix, const char *rest)
{
    size_t prefix_bytes = strlen(prefix);
    return strncmp(name, prefix, prefix_bytes) == 0 &&
           strncmp(name + prefix_bytes, rest, strlen(rest)) == 0;
}

/* The first prefix under which a layer or the embedding is found. */
static const char *find_prefix(const struct st_set *set)
{
    for (size_t p = 0; p < sizeof(prefixes) / sizeof(prefixes[0]); p++) {
        for (uint32_t i = 0; i < st_count(set); i++) {
            const char *name = st_at(set, i)->name;
            if (begins_with(name, prefixes[p], "layers.") ||
                begins_with(name, prefixes[p], "embed_tokens.")) {
                return prefixes[p];
            }
        }
    }
    return "model.";
}

/* The tensors of a layer's experts, all in one or one for each. */
static bool is_of_experts(const struct row *row, bool *out_is_down)
{
    *out_is_down = row->slot_offset == offsetof(struct weights_layer, experts_down);
    return *out_is_down || row->slot_offset == offsetof(struct weights_layer, experts_gate_up);
}

static void plan_layer(struct weights_plan *plan, uint32_t index)
{
    bool has_split = plan->config->experts > 0 && weights_experts_are_split(plan, index);
    for (uint32_t j = 0; j < LAYER_ROWS; j++) {
        const struct row *row = &layer_rows[j];
        const uint16_t **slot = slot_at(&plan->weights->layers[index], row->slot_offset);
        char short_name[WEIGHTS_MAX_NAME_BYTES / 2];
        bool is_down = false;
        if (has_split && is_of_experts(row, &is_down)) {
            weights_experts_plan(plan, index, is_down, slot);
            continue;
        }
        (void)snprintf(short_name, sizeof(short_name), "layers.%u.%s", index, row->name);
        plan_row(plan, row, &plan->config->layers[index], short_name, slot);
    }
}

static void plan_all(struct weights_plan *plan)
{
    struct weights *weights = plan->weights;
    for (uint32_t i = 0; i < GLOBAL_ROWS; i++) {
        plan_row(plan, &global_rows[i], NULL, global_rows[i].name,
                 slot_at(weights, global_rows[i].slot_offset));
    }
    for (uint32_t i = 0; i < plan->config->layer_count; i++) {
        plan_layer(plan, i);
    }
    plan_lm_head(plan);
    plan_row(plan, &ple_table_row, NULL, ple_table_row.name, &weights->ple_embed_tokens);
    find_unexpected(plan);
}

static void plan_fini(struct weights_plan *plan)
{
    mem_free(plan->known);
    mem_free(plan->entries);
}

/* What to load, faults included.  weights->layers is allocated; pointers are filled later. */
static void plan_make(struct weights_plan *plan, const struct model_config *config,
                      const struct st_set *set, struct weights *weights)
{
    size_t most_entries =
        GLOBAL_ROWS + 2 + (LAYER_ROWS + weights_experts_most_entries(config)) * config->layer_count;
    plan->config = config;
    plan->set = set;
    plan->prefix = find_prefix(set);
    plan->weights = weights;
    plan->known = mem_zalloc(st_count(set) + 1, sizeof(plan->known[0]));
    plan->entries = mem_zalloc(most_entries, sizeof(plan->entries[0]));
    plan_all(plan);
}

static enum err_code plan_init(struct weights_plan *plan, const struct model_config *config,
                               const struct st_set *set, struct weights *weights, struct err *err)
{
    *plan = (struct weights_plan){0};
    plan_make(plan, config, set, weights);
    enum err_code code = faults_result(&plan->faults, ERR_CONFIG, "faulty tensor", err);
    if (code != ERR_OK) {
        plan_fini(plan);
    }
    return code;
}

static void weights_init(struct weights *weights, const struct model_config *config)
{
    *weights = (struct weights){.layer_count = config->layer_count};
    weights->layers = mem_zalloc(config->layer_count, sizeof(weights->layers[0]));
}

enum err_code weights_check(const struct model_config *config, const struct st_set *set,
                            uint64_t *out_bytes, struct err *err)
{
    struct weights unused;
    struct weights_plan plan;
    weights_init(&unused, config);
    enum err_code code = plan_init(&plan, config, set, &unused, err);
    if (code == ERR_OK) {
        *out_bytes = plan.block_bytes;
        plan_fini(&plan);
    }
    weights_fini(&unused);
    return code;
}

uint64_t weights_ple_table_bytes(const struct model_config *config)
{
    uint64_t elems = dim_elems(config, NULL, WEIGHTS_DIM_PLE_VOCAB) *
                     dim_elems(config, NULL, WEIGHTS_DIM_PLE_ALL);
    return num_align_up(elems * sizeof(uint16_t), WEIGHTS_ALIGN_BYTES);
}

uint32_t weights_check_each(const struct model_config *config, const struct st_set *set,
                            void (*on_fault)(void *owner, const char *clause), void *owner)
{
    struct weights unused;
    struct weights_plan plan = {.faults = {.on_fault = on_fault, .owner = owner}};
    weights_init(&unused, config);
    plan_make(&plan, config, set, &unused);
    plan_fini(&plan);
    weights_fini(&unused);
    return plan.faults.count;
}

/* One part of a tensor, at most WEIGHTS_PROGRESS_BYTES. */
struct part {
    const struct weights_entry *entry;
    uint64_t start_bytes; /* within the tensor */
    size_t byte_count;
};

/* Straight into host memory, or by way of a bounce buffer. */
static enum err_code load_part(const struct weights_plan *plan, const struct part *part,
                               const struct weights_store *store, unsigned char *bounce,
                               struct err *err)
{
    uint64_t offset_bytes = part->entry->offset_bytes + part->start_bytes;
    unsigned char *at = store->write == NULL    ? store->base + offset_bytes
                        : store->buffer != NULL ? store->buffer(store->owner)
                                                : bounce;
    enum err_code code =
        st_read(plan->set, part->entry->tensor, part->start_bytes, at, part->byte_count, err);
    if (code == ERR_OK && store->write != NULL) {
        code = store->write(store->owner, offset_bytes, at, part->byte_count, err);
    }
    return code;
}

static enum err_code load_entries(const struct weights_plan *plan,
                                  const struct weights_store *store,
                                  const struct weights_progress *progress, struct err *err)
{
    enum err_code code = ERR_OK;
    uint64_t loaded_bytes = 0;
    bool has_own = store->write != NULL && store->buffer == NULL;
    unsigned char *bounce = has_own ? mem_zalloc(WEIGHTS_PROGRESS_BYTES, 1) : NULL;
    for (uint32_t i = 0; code == ERR_OK && i < plan->count; i++) {
        const struct weights_entry *entry = &plan->entries[i];
        uint64_t byte_count = entry->tensor->byte_count;
        for (uint64_t done = 0; code == ERR_OK && done < byte_count;) {
            uint64_t rest = byte_count - done;
            struct part part = {.entry = entry,
                                .start_bytes = done,
                                .byte_count =
                                    rest < WEIGHTS_PROGRESS_BYTES ? rest : WEIGHTS_PROGRESS_BYTES};
            code = load_part(plan, &part, store, bounce, err);
            done += part.byte_count;
            loaded_bytes += part.byte_count;
            if (code == ERR_OK && progress != NULL && progress->on_progress != NULL) {
                progress->on_progress(progress->owner, loaded_bytes, plan->data_bytes);
            }
        }
        if (entry->slot != NULL) {
            *entry->slot = (const uint16_t *)(void *)(store->base + entry->offset_bytes);
        }
    }
    mem_free(bounce);
    return code;
}

enum err_code weights_load(const struct model_config *config, const struct st_set *set,
                           const struct weights_store *store,
                           const struct weights_progress *progress, struct weights *out_weights,
                           struct err *err)
{
    struct weights weights;
    struct weights_plan plan;
    weights_init(&weights, config);
    enum err_code code = plan_init(&plan, config, set, &weights, err);
    if (code != ERR_OK) {
        weights_fini(&weights);
        return code;
    }
    weights.block_bytes = plan.block_bytes;
    if (store->cap_bytes < plan.block_bytes) {
        code = err_set(err, ERR_LIMIT, "the weights need %llu bytes, the memory for them has %llu",
                       (unsigned long long)plan.block_bytes, (unsigned long long)store->cap_bytes);
    } else {
        code = load_entries(&plan, store, progress, err);
    }
    plan_fini(&plan);
    if (code != ERR_OK) {
        weights_fini(&weights);
        return code;
    }
    if (config->tied_lm_head) {
        weights.lm_head = weights.embed_tokens;
    }
    *out_weights = weights;
    return ERR_OK;
}

static enum err_code load_host(const struct st_set *set, const struct model_config *config,
                               const struct weights_progress *progress, struct weights *out_weights,
                               struct err *err)
{
    struct weights_store store = {0};
    enum err_code code = weights_check(config, set, &store.cap_bytes, err);
    if (code != ERR_OK) {
        return code;
    }
    void *block =
        mmap(NULL, store.cap_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
        int number = errno;
        return err_set(err, ERR_MEMORY, "the weights need %llu bytes of memory: %s",
                       (unsigned long long)store.cap_bytes, strerrordesc_np(number));
    }
    /* Fewer TLB misses where the kernel grants it; nothing is lost where it does not. */
    (void)madvise(block, store.cap_bytes, MADV_HUGEPAGE);
    store.base = block;
    code = weights_load(config, set, &store, progress, out_weights, err);
    if (code != ERR_OK) {
        (void)munmap(block, store.cap_bytes); /* ours, whole: cannot fail */
        return code;
    }
    out_weights->host_block = block;
    return ERR_OK;
}

enum err_code weights_open_host(const char *model_dir, const struct model_config *config,
                                const struct weights_progress *progress,
                                struct weights *out_weights, struct err *err)
{
    struct st_set *set = NULL;
    enum err_code code = st_open_folder(model_dir, &set, err);
    if (code == ERR_OK) {
        code = load_host(set, config, progress, out_weights, err);
        code = code == ERR_OK ? code : err_wrap(err, "weights of '%.80s'", model_dir);
    }
    st_close(set);
    return code;
}

struct layout {
    const struct model_config *config;
    const unsigned char *base;
    void (*visit)(void *owner, const struct weights_tensor *tensor);
    void *owner;
    uint64_t block_bytes;
};

static void lay_out_row(struct layout *layout, const struct row *row,
                        const struct model_layer *layer, const uint16_t **slot)
{
    if (row_need(layout->config, layer, row->when) != NEED_YES) {
        return;
    }
    struct weights_tensor tensor = {
        .name = row->name, .offset_bytes = layout->block_bytes, .elems = 1};
    for (int i = 0; i < MAX_DIMS && row->dims[i] != WEIGHTS_DIM_NONE; i++) {
        uint64_t elems = dim_elems(layout->config, layer, row->dims[i]);
        tensor.elems *= elems;
        tensor.in_elems = i > 0 ? elems : 0;
    }
    layout->block_bytes += num_align_up(tensor.elems * sizeof(uint16_t), WEIGHTS_ALIGN_BYTES);
    if (layout->base != NULL) {
        *slot = (const uint16_t *)(const void *)(layout->base + tensor.offset_bytes);
    }
    if (layout->visit != NULL) {
        layout->visit(layout->owner, &tensor);
    }
}

void weights_lay_out(const struct model_config *config, const unsigned char *base,
                     void (*visit)(void *owner, const struct weights_tensor *tensor), void *owner,
                     struct weights *out_weights)
{
    struct layout layout = {.config = config, .base = base, .visit = visit, .owner = owner};
    weights_init(out_weights, config);
    for (uint32_t i = 0; i < GLOBAL_ROWS; i++) {
        /* A global row's shape asks nothing of the layer. */
        lay_out_row(&layout, &global_rows[i], &config->layers[0],
                    slot_at(out_weights, global_rows[i].slot_offset));
    }
    for (uint32_t i = 0; i < config->layer_count; i++) {
        for (uint32_t j = 0; j < LAYER_ROWS; j++) {
            lay_out_row(&layout, &layer_rows[j], &config->layers[i],
                        slot_at(&out_weights->layers[i], layer_rows[j].slot_offset));
        }
    }
    if (config->tied_lm_head) {
        out_weights->lm_head = out_weights->embed_tokens;
    } else {
        lay_out_row(&layout, &lm_head_row, &config->layers[0], &out_weights->lm_head);
    }
    lay_out_row(&layout, &ple_table_row, &config->layers[0], &out_weights->ple_embed_tokens);
    out_weights->block_bytes = layout.block_bytes;
}

uint64_t weights_block_bytes(const struct model_config *config)
{
    struct weights weights;
    weights_lay_out(config, NULL, NULL, NULL, &weights);
    uint64_t block_bytes = weights.block_bytes;
    weights_fini(&weights);
    return block_bytes;
}

void weights_fini(struct weights *weights)
{
    if (weights->host_block != NULL) {
        (void)munmap(weights->host_block, weights->block_bytes); /* ours, whole: cannot fail */
    }
    mem_free(weights->layers);
    *weights = (struct weights){0};
}
