/* Norms of query, key and value heads, rotation and the write into pages, on cuda against the cpu
 * twin.  The whole pool is compared: what no token owns keeps its bits, live pages stay clear of
 * padding tokens.
 *
 * Permitted: TWIN_NORM_ERROR in a head's factor, then every rounding of kernels/ops.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/test.h"

#define SEED        83
#define EPS         1e-6F
#define POSITIONS   2200
#define SLOTS       5
#define TABLE_PAGES 4 /* of a slot, fewer than its positions span from 0 */
#define SPARE_PAGES 3 /* of nobody */
#define KV_LAYERS   2
#define KV_LAYER    1
#define MAX_TOKENS  TWIN_MAX_ROWS
#define LABEL_BYTES 128

static const uint32_t token_counts[] = TWIN_ROW_COUNTS;

struct shape {
    const char *name;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t pairs;
    uint32_t page_tokens;
    bool has_v;
    bool writes_kv;
};

static const struct shape shapes[] = {
    {"12b sliding", 16, 8, 256, 128, 64, true, true},
    {"12b full", 16, 1, 512, 64, 64, false, true},
    {"31b sliding", 32, 16, 256, 128, 16, true, true},
    {"31b full", 32, 4, 512, 64, 16, false, true},
    {"demo sliding", 2, 1, 256, 128, 16, true, true},
    {"demo full", 2, 1, 512, 64, 16, false, true},
    {"tiny sliding", 4, 2, 256, 128, 16, true, true},
    {"tiny full", 4, 4, 256, 32, 16, false, true},
    {"odd", 3, 1, 256, 5, 16, true, true},
    {"odd and wide", 1, 3, 512, 256, 16, true, true},
    {"not rotated", 2, 1, 256, 0, 16, true, true},
    {"another's KV", 8, 1, 512, 64, 16, false, false},
};

struct rope_case {
    const struct shape *shape;
    uint32_t row_heads;
    uint32_t page_count;
    uint64_t pool_rows;           /* [head_dim] each */
    struct twin_buffer positions; /* [MAX_TOKENS] */
    struct twin_buffer slots;
    struct twin_buffer table; /* [SLOTS, TABLE_PAGES] */
    struct twin_buffer cos_sin;
    struct twin_buffer q_norm;
    struct twin_buffer k_norm;
    struct twin_buffer qkv;  /* the host's is the twin's result, as is the pool's */
    struct twin_buffer pool; /* [page_count + 1, KV_LAYERS, 2, kv_heads, page_tokens, head_dim] */
    uint16_t *qkv_before;    /* owned */
    uint32_t *owners;        /* owned, [pool_rows] token that writes the row, or K_NONE */
};

static void open_rig(struct cuda_rig *rig, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = {
        .max_tokens = MAX_TOKENS,
        .max_rows = 16,
        .slots = SLOTS,
        .max_context_tokens = POSITIONS,
        .hidden_elems = 64,
        .max_linear_out_elems = 64,
        .heads = 32,
        .max_head_dim = 512,
        .max_kv_heads = 16,
        .vocab_tokens = 64,
    };
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

static uint64_t row_elems(const struct rope_case *at)
{
    return (uint64_t)at->row_heads * at->shape->head_dim;
}

static struct k_pages pages_of(const struct rope_case *at, bool is_on_device)
{
    return (struct k_pages){
        .base = is_on_device ? at->pool.device : at->pool.host,
        .table = is_on_device ? at->table.device : at->table.host,
        .table_pages = TABLE_PAGES,
        .pages = at->page_count,
        .page_tokens = at->shape->page_tokens,
        .kv_layers = KV_LAYERS,
        .kv_heads = at->shape->kv_heads,
        .head_dim = at->shape->head_dim,
    };
}

static struct k_qkv_norm_rope_args args_of(const struct rope_case *at, uint32_t tokens,
                                           bool is_on_device)
{
    return (struct k_qkv_norm_rope_args){
        .tokens = {.count = tokens,
                   .positions = is_on_device ? at->positions.device : at->positions.host,
                   .slots = is_on_device ? at->slots.device : at->slots.host},
        .pages = pages_of(at, is_on_device),
        .kv_layer = KV_LAYER,
        .writes_kv = at->shape->writes_kv,
        .has_v = at->shape->has_v,
        .qkv = is_on_device ? at->qkv.device : at->qkv.host,
        .q_norm = is_on_device ? at->q_norm.device : at->q_norm.host,
        .k_norm = is_on_device ? at->k_norm.device : at->k_norm.host,
        .cos_sin = is_on_device ? at->cos_sin.device : at->cos_sin.host,
        .rotated_pairs = at->shape->pairs,
        .heads = at->shape->heads,
        .eps = EPS,
    };
}

/* ---- operands ---- */

/* Token t is the next of slot t % SLOTS, from a position of its own; every period-th is padding. */
static void place_tokens(struct rope_case *at, uint32_t first_live, uint32_t period)
{
    static const uint32_t starts[SLOTS] = {0, 61, 1023, 15, 2100};
    uint32_t *positions = at->positions.host;
    uint32_t *slots = at->slots.host;
    for (uint32_t t = 0; t < MAX_TOKENS; t++) {
        bool is_padding = t < first_live || t % period == period - 1;
        positions[t] = is_padding ? t % 9 : starts[t % SLOTS] + t / SLOTS;
        slots[t] = is_padding ? K_SLOT_NONE : t % SLOTS;
    }
    twin_write(&at->positions);
    twin_write(&at->slots);
}

static uint16_t *make_cos_sin(uint32_t pairs)
{
    uint16_t *out = mem_zalloc((size_t)POSITIONS * 2 * pairs + 1, sizeof(*out));
    for (uint32_t position = 0; position < POSITIONS; position++) {
        for (uint32_t pair = 0; pair < pairs; pair++) {
            double angle = position * pow(10000.0, -(double)pair / pairs);
            uint16_t *to = out + (size_t)position * 2 * pairs + pair;
            to[0] = k_bf16_from_f32((float)cos(angle));
            to[pairs] = k_bf16_from_f32((float)sin(angle));
        }
    }
    return out;
}

static void rope_case_init(struct rope_case *at, const struct shape *shape, uint64_t *random)
{
    uint32_t own = shape->writes_kv ? shape->kv_heads * (shape->has_v ? 2 : 1) : 0;
    *at = (struct rope_case){
        .shape = shape,
        .row_heads = shape->heads + own,
        .page_count = SLOTS * TABLE_PAGES + SPARE_PAGES,
    };
    const struct k_pages pages = pages_of(at, false);
    uint64_t pool_elems = k_page_offset(&pages, at->page_count + 1, 0, 0, 0);
    at->pool_rows = pool_elems / shape->head_dim;
    at->owners = mem_zalloc(at->pool_rows, sizeof(*at->owners));
    uint32_t *table = mem_zalloc((size_t)SLOTS * TABLE_PAGES, sizeof(*table));
    for (uint32_t i = 0; i < SLOTS * TABLE_PAGES; i++) {
        table[i] = (i * 7 + 4) % at->page_count; /* 7 and 23 have no common factor */
    }
    uint64_t qkv_elems = MAX_TOKENS * row_elems(at);
    at->qkv_before = twin_random_bf16(qkv_elems, 1.5, random);
    at->positions = twin_in(mem_zalloc(MAX_TOKENS, sizeof(uint32_t)), MAX_TOKENS * 4UL);
    at->slots = twin_in(mem_zalloc(MAX_TOKENS, sizeof(uint32_t)), MAX_TOKENS * 4UL);
    at->table = twin_in(table, sizeof(*table) * SLOTS * TABLE_PAGES);
    at->cos_sin = twin_in(make_cos_sin(shape->pairs), (4UL * POSITIONS * shape->pairs) + 2);
    at->q_norm = twin_in(twin_random_bf16(shape->head_dim, 1.0, random), shape->head_dim * 2UL);
    at->k_norm = twin_in(twin_random_bf16(shape->head_dim, 1.0, random), shape->head_dim * 2UL);
    at->qkv = twin_out(qkv_elems * sizeof(uint16_t));
    at->pool = twin_out(pool_elems * sizeof(uint16_t));
    place_tokens(at, 0, 7);
}

static void rope_case_fini(struct rope_case *at)
{
    mem_free(at->qkv_before);
    mem_free(at->owners);
    twin_free(&at->positions);
    twin_free(&at->slots);
    twin_free(&at->table);
    twin_free(&at->cos_sin);
    twin_free(&at->q_norm);
    twin_free(&at->k_norm);
    twin_free(&at->qkv);
    twin_free(&at->pool);
}

/* ---- what is permitted ---- */

static struct twin_interval exactly(float value)
{
    return (struct twin_interval){value, value};
}

/* Element `column` of a head after its norm; weight null: none. */
static struct twin_interval normed_element(const uint16_t *head, uint32_t head_dim,
                                           const uint16_t *weight, uint32_t column)
{
    double w = weight == NULL ? 1.0 : (double)k_f32_from_bf16(weight[column]);
    return twin_normed(exactly(k_f32_from_bf16(head[column])), twin_rms_factor(head, head_dim, EPS),
                       w);
}

/* The same after rotation at a position. */
static struct twin_interval rotated_element(const struct rope_case *at, const uint16_t *head,
                                            const uint16_t *weight, uint32_t position,
                                            uint32_t column)
{
    uint32_t half = at->shape->head_dim / 2;
    uint32_t pair = column % half;
    uint32_t pairs = at->shape->pairs;
    struct twin_interval own = normed_element(head, half * 2, weight, column);
    if (pair >= pairs) {
        return own;
    }
    struct twin_interval other =
        normed_element(head, half * 2, weight, column < half ? column + half : column - half);
    if (column < half) {
        other = (struct twin_interval){-other.high, -other.low};
    }
    const uint16_t *cos_sin = (const uint16_t *)at->cos_sin.host + (size_t)position * 2 * pairs;
    float c = k_f32_from_bf16(cos_sin[pair]);
    float s = k_f32_from_bf16(cos_sin[pairs + pair]);
    return twin_sum(twin_product(own, exactly(c)), twin_product(other, exactly(s)));
}

static struct twin_interval qkv_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct rope_case *at = context;
    uint32_t head_dim = at->shape->head_dim;
    uint32_t head = column / head_dim;
    const uint16_t *before = at->qkv_before + row * row_elems(at);
    if (head >= at->shape->heads) {
        return exactly(k_f32_from_bf16(before[column])); /* keys and values are only read */
    }
    uint32_t position = ((const uint32_t *)at->positions.host)[row];
    return rotated_element(at, before + (uint64_t)head * head_dim, at->q_norm.host, position,
                           column % head_dim);
}

static struct twin_interval pool_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct rope_case *at = context;
    const struct shape *shape = at->shape;
    uint32_t token = at->owners[row];
    if (token == K_NONE) {
        return exactly(k_f32_from_bf16(((const uint16_t *)at->pool.host)[column]));
    }
    uint32_t head = row / shape->page_tokens % shape->kv_heads;
    uint32_t part = row / shape->page_tokens / shape->kv_heads % 2;
    uint32_t source = shape->heads + head + (part == 1 && shape->has_v ? shape->kv_heads : 0);
    const uint16_t *from =
        at->qkv_before + token * row_elems(at) + (uint64_t)source * shape->head_dim;
    uint32_t position = ((const uint32_t *)at->positions.host)[token];
    return part == 1 ? normed_element(from, shape->head_dim, NULL, column)
                     : rotated_element(at, from, at->k_norm.host, position, column);
}

/* ---- a run ---- */

/* The twin's result over the first tokens, and who wrote which row of the pool. */
static void run_twin(struct rope_case *at, struct k_stream *twin, uint32_t tokens)
{
    struct err err = {0};
    const struct k_pages pages = pages_of(at, false);
    const uint32_t *positions = at->positions.host;
    const uint32_t *slots = at->slots.host;
    memcpy(at->qkv.host, at->qkv_before, at->qkv.bytes);
    memset(at->pool.host, 0xff, at->pool.bytes);
    memset(at->owners, 0xff, at->pool_rows * sizeof(*at->owners));
    const struct k_qkv_norm_rope_args args = args_of(at, tokens, false);
    test_ok(k_cpu_ops()->qkv_norm_rope(twin, &args, &err), &err);
    for (uint32_t t = 0; at->shape->writes_kv && t < tokens; t++) {
        uint32_t page =
            slots[t] == K_SLOT_NONE ? pages.pages : k_page_of(&pages, slots[t], positions[t]);
        for (uint32_t i = 0; i < 2 * pages.kv_heads; i++) {
            uint64_t first = k_page_offset(&pages, page, KV_LAYER, i % 2, i / 2) / pages.head_dim;
            at->owners[first + positions[t] % pages.page_tokens] = t;
        }
    }
}

/* Padding tokens of one position overwrite each other: their page holds any one of them. */
static void forget_padding(const struct rope_case *at, uint16_t *pool)
{
    const struct k_pages pages = pages_of(at, false);
    test_true(pages.head_dim > 0);
    uint64_t begin = k_page_offset(&pages, at->page_count, 0, 0, 0) / pages.head_dim;
    for (uint64_t row = begin; row < at->pool_rows; row++) {
        if (at->owners[row] != K_NONE) {
            memset(pool + row * pages.head_dim, 0xff, pages.head_dim * sizeof(*pool));
        }
    }
}

static void prepare(const struct rope_case *at)
{
    cuda_rig_write(at->qkv.device, at->qkv_before, at->qkv.bytes);
    twin_poison(&at->pool);
}

/* What no token owns must hold 0xffff still, bit for bit; a NaN anywhere else is refused. */
static void check_untouched(const struct rope_case *at, const uint16_t *pool, const char *label)
{
    uint32_t head_dim = at->shape->head_dim;
    for (uint64_t row = 0; row < at->pool_rows; row++) {
        for (uint32_t i = 0; at->owners[row] == K_NONE && i < head_dim; i++) {
            if (pool[row * head_dim + i] != 0xffff) {
                test_fail(__FILE__, __LINE__, "%s: row %llu of the pool [%u] was written: 0x%04x",
                          label, (unsigned long long)row, i, pool[row * head_dim + i]);
            }
        }
    }
}

static void check_results(struct rope_case *at, uint32_t tokens, struct twin_totals *totals)
{
    char label[LABEL_BYTES];
    (void)snprintf(label, sizeof(label), "qkv_norm_rope, %s, %u tokens", at->shape->name, tokens);
    uint16_t *qkv = twin_read(&at->qkv, at->qkv.bytes, label);
    uint16_t *pool = twin_read(&at->pool, at->pool.bytes, label);
    struct twin_compare compare = {
        .label = label,
        .got = qkv,
        .want = at->qkv.host,
        .rows = tokens,
        .columns = (uint32_t)row_elems(at),
        .permitted = qkv_permitted,
        .context = at,
    };
    twin_check(&compare, totals);
    uint64_t used = tokens * row_elems(at);
    twin_check_equal(label, qkv + used, at->qkv_before + used, MAX_TOKENS * row_elems(at) - used,
                     sizeof(*qkv));
    check_untouched(at, pool, label);
    forget_padding(at, pool);
    forget_padding(at, at->pool.host);
    (void)snprintf(label, sizeof(label), "pool of qkv_norm_rope, %s, %u tokens", at->shape->name,
                   tokens);
    compare.got = pool;
    compare.want = at->pool.host;
    compare.rows = (uint32_t)at->pool_rows;
    compare.columns = at->shape->head_dim;
    compare.permitted = pool_permitted;
    twin_check(&compare, totals);
    mem_free(qkv);
    mem_free(pool);
}

static void run_device(struct cuda_rig *rig, const struct rope_case *at, uint32_t tokens)
{
    struct err err = {0};
    const struct k_qkv_norm_rope_args args = args_of(at, tokens, true);
    test_ok(k_cuda_ops()->qkv_norm_rope(rig->k, &args, &err), &err);
}

/* ---- tests ---- */

static void test_heads_of_every_layout(void)
{
    uint64_t random = SEED;
    struct cuda_rig rig;
    struct k_stream *twin = twin_stream(64, 0.0F);
    open_rig(&rig, true);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
        struct rope_case at;
        struct twin_totals totals = {0};
        rope_case_init(&at, &shapes[i], &random);
        for (uint32_t c = 0; c < TWIN_COUNT_OF(token_counts); c++) {
            prepare(&at);
            run_device(&rig, &at, token_counts[c]);
            cuda_rig_wait(&rig);
            run_twin(&at, twin, token_counts[c]);
            check_results(&at, token_counts[c], &totals);
        }
        twin_print(shapes[i].name, &totals);
        rope_case_fini(&at);
    }
    k_cpu_stream_destroy(twin);
    cuda_rig_close(&rig);
}

struct recording {
    struct cuda_rig *rig;
    const struct rope_case *at;
    uint32_t tokens;
};

static void record(void *context)
{
    const struct recording *recording = context;
    run_device(recording->rig, recording->at, recording->tokens);
}

/* A bucket of 8 tokens replayed with all, some and none of them live: padding stays in its page. */
static void test_a_graph_keeps_padding_in_its_page(void)
{
    static const uint32_t first_live[] = {0, 5, 8, 3};
    static const uint32_t tried[] = {4, 5, 8};
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(tried); i++) {
        uint64_t random = SEED + 1;
        struct cuda_rig rig;
        struct rope_case at;
        struct k_stream *twin = twin_stream(64, 0.0F);
        open_rig(&rig, i % 2 == 0);
        rope_case_init(&at, &shapes[tried[i / 2]], &random);
        struct recording recording = {&rig, &at, 8};
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        for (uint32_t turn = 0; turn < TWIN_COUNT_OF(first_live); turn++) {
            place_tokens(&at, first_live[turn], 6);
            prepare(&at);
            cuda_rig_launch(&rig, graph);
            cuda_rig_wait(&rig);
            run_twin(&at, twin, 8);
            check_results(&at, 8, NULL);
        }
        cuda_rig_graph_free(graph);
        rope_case_fini(&at);
        k_cpu_stream_destroy(twin);
        cuda_rig_close(&rig);
    }
}

/* The last live token's keys, in a step of any size, are what they are in the smallest. */
static void test_a_token_is_the_same_beside_any_others(void)
{
    uint64_t random = SEED + 2;
    struct cuda_rig rig;
    struct rope_case at;
    open_rig(&rig, true);
    rope_case_init(&at, &shapes[0], &random);
    prepare(&at);
    run_device(&rig, &at, MAX_TOKENS);
    cuda_rig_wait(&rig);
    uint16_t *all = twin_read(&at.qkv, at.qkv.bytes, "all tokens");
    for (uint32_t tokens = 1; tokens <= 33; tokens++) {
        prepare(&at);
        run_device(&rig, &at, tokens);
        cuda_rig_wait(&rig);
        uint16_t *got = twin_read(&at.qkv, at.qkv.bytes, "fewer tokens");
        twin_check_equal("fewer tokens", got, all, tokens * row_elems(&at), sizeof(*got));
        mem_free(got);
    }
    mem_free(all);
    rope_case_fini(&at);
    cuda_rig_close(&rig);
}

/* ---- that these tests can fail ---- */

enum mistake {
    MISTAKE_NONE,
    MISTAKE_PRODUCTS_NOT_ROUNDED, /* bf16(x c - y s) */
    MISTAKE_NORM_NOT_ROUNDED,     /* the norm's result goes into the products as f32 */
    MISTAKE_NEIGHBOURS_PAIRED,    /* pairs (2i, 2i + 1) */
    MISTAKE_TURNED_BACKWARDS,
    MISTAKE_NEXT_POSITION,
    MISTAKE_COUNT,
};

static float mistaken_norm(const struct rope_case *at, const uint16_t *head, uint32_t column,
                           enum mistake mistake)
{
    double factor = twin_rms_factor(head, at->shape->head_dim, EPS);
    float weight = k_f32_from_bf16(((const uint16_t *)at->q_norm.host)[column]);
    float y = k_f32_from_bf16(head[column]) * (float)factor * weight;
    return mistake == MISTAKE_NORM_NOT_ROUNDED ? y : k_round_bf16(y);
}

/* Query heads with a mistake; what is not a query stays. */
static uint16_t *mistaken_qkv(const struct rope_case *at, enum mistake mistake, uint32_t tokens)
{
    uint32_t half = at->shape->head_dim / 2;
    uint16_t *out = mem_zalloc(tokens * row_elems(at), sizeof(*out));
    memcpy(out, at->qkv_before, tokens * row_elems(at) * sizeof(*out));
    for (uint32_t i = 0; i < tokens * at->row_heads * half; i++) {
        uint32_t head = i / half;
        uint32_t pair = i % half;
        if (head % at->row_heads >= at->shape->heads) {
            continue;
        }
        uint32_t position = ((const uint32_t *)at->positions.host)[head / at->row_heads];
        position += mistake == MISTAKE_NEXT_POSITION ? 1 : 0;
        const uint16_t *cos_sin =
            (const uint16_t *)at->cos_sin.host + (size_t)position * 2 * at->shape->pairs;
        float c = k_f32_from_bf16(cos_sin[pair]);
        float s = k_f32_from_bf16(cos_sin[at->shape->pairs + pair]);
        s = mistake == MISTAKE_TURNED_BACKWARDS ? -s : s;
        uint32_t low = mistake == MISTAKE_NEIGHBOURS_PAIRED ? 2 * pair : pair;
        uint32_t high = mistake == MISTAKE_NEIGHBOURS_PAIRED ? 2 * pair + 1 : pair + half;
        const uint16_t *from = at->qkv_before + (uint64_t)head * half * 2;
        float x = mistaken_norm(at, from, low, mistake);
        float y = mistaken_norm(at, from, high, mistake);
        bool rounds = mistake != MISTAKE_PRODUCTS_NOT_ROUNDED;
        uint16_t *to = out + (uint64_t)head * half * 2;
        to[low] =
            k_bf16_from_f32(rounds ? k_round_bf16(x * c) - k_round_bf16(y * s) : x * c - y * s);
        to[high] =
            k_bf16_from_f32(rounds ? k_round_bf16(y * c) + k_round_bf16(x * s) : y * c + x * s);
    }
    return out;
}

static void test_planted_errors_are_seen(void)
{
    enum {
        TOKENS = 17
    };
    uint64_t random = SEED + 3;
    struct cuda_rig rig;
    struct rope_case at;
    struct twin_report report;
    struct k_stream *twin = twin_stream(64, 0.0F);
    open_rig(&rig, true);
    rope_case_init(&at, &shapes[6], &random);
    run_twin(&at, twin, TOKENS);
    struct twin_compare compare = {
        .label = "planted",
        .want = at.qkv.host,
        .rows = TOKENS,
        .columns = (uint32_t)row_elems(&at),
        .permitted = qkv_permitted,
        .context = &at,
    };
    for (int mistake = MISTAKE_NONE; mistake < MISTAKE_COUNT; mistake++) {
        uint16_t *got = mistaken_qkv(&at, (enum mistake)mistake, TOKENS);
        compare.got = got;
        bool is_right = twin_agrees(&compare, &report);
        (void)printf("mistake %d: %u refused\n", mistake, (unsigned)report.refused);
        test_true(is_right == (mistake == MISTAKE_NONE));
        mem_free(got);
    }
    prepare(&at);
    run_device(&rig, &at, TOKENS);
    cuda_rig_wait(&rig);
    check_results(&at, TOKENS, NULL);
    k_cpu_stream_destroy(twin);
    rope_case_fini(&at);
    cuda_rig_close(&rig);
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    struct cuda_rig rig;
    if (cuda_rig_is_stand_in()) {
        test_skip("the cpu backend takes other shapes");
    }
    open_rig(&rig, false);
    struct k_qkv_norm_rope_args args = {.tokens = {.count = 1}, .pages = {.head_dim = 128}};
    test_eq_u64(k_cuda_ops()->qkv_norm_rope(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "qkv_norm_rope: head_dim 128, 256 or 512");
    args.pages.head_dim = 256;
    args.rotated_pairs = 129;
    test_eq_u64(k_cuda_ops()->qkv_norm_rope(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "qkv_norm_rope: 129 rotated pairs in 256 elements of a head");
    args.rotated_pairs = 128;
    _Alignas(16) uint16_t odd[16] = {0};
    args.qkv = odd + 2;
    test_eq_u64(k_cuda_ops()->qkv_norm_rope(rig.k, &args, &err), ERR_ALIGN);
    test_eq_str(err.message, "qkv_norm_rope: qkv is not 16-byte aligned");
    args.qkv = NULL;
    args.tokens.count = 0;
    test_ok(k_cuda_ops()->qkv_norm_rope(rig.k, &args, &err), &err);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_heads_of_every_layout),
    TEST(test_a_graph_keeps_padding_in_its_page),
    TEST(test_a_token_is_the_same_beside_any_others),
    TEST(test_planted_errors_are_seen),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
