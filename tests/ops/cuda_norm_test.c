/* Embedding with its norm, and residual with two norms, on cuda against the cpu twin.
 *
 * x of embed_norm is one rounding of one product: equal bits.  Elsewhere a norm's factor may be off
 * by 2^-18 of itself (TWIN_NORM_ERROR), and every rounding that kernels/ops.h names is taken. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/test.h"

#define SEED        79
#define EPS         1e-6F
#define VOCAB       300
#define MAX_ROWS    TWIN_MAX_ROWS
#define LABEL_BYTES 96

static const uint32_t row_counts[] = TWIN_ROW_COUNTS;
/* 12B, 31B, demo and tiny; one piece, pieces that leave threads idle, and the most there is. */
static const uint32_t hidden_sizes[] = {3840, 5376, 192, 64, 8, 2056, 4104, 6144};

static void open_rig(struct cuda_rig *rig, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = {
        .max_tokens = MAX_ROWS,
        .max_rows = 16,
        .slots = 16,
        .max_context_tokens = 1024,
        .hidden_elems = 6144,
        .max_linear_out_elems = 6144,
        .heads = 2,
        .max_head_dim = 512,
        .max_kv_heads = 1,
        .vocab_tokens = VOCAB,
    };
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

static uint64_t bytes_of(uint32_t rows, uint32_t hidden)
{
    return (uint64_t)rows * hidden * sizeof(uint16_t);
}

/* ---- embedding ---- */

struct embedding {
    uint32_t hidden;
    float scale;
    struct twin_buffer ids;    /* [MAX_ROWS] */
    struct twin_buffer table;  /* [VOCAB, hidden] */
    struct twin_buffer weight; /* [hidden] */
    struct twin_buffer x;      /* [MAX_ROWS, hidden]; the host's is the twin's, as is normed's */
    struct twin_buffer normed;
};

static struct k_embed_norm_args embed_args(const struct embedding *at, uint32_t rows,
                                           bool is_on_device)
{
    return (struct k_embed_norm_args){
        .tokens = {.count = rows, .ids = is_on_device ? at->ids.device : at->ids.host},
        .table = is_on_device ? at->table.device : at->table.host,
        .scale = at->scale,
        .norm_weight = is_on_device ? at->weight.device : at->weight.host,
        .eps = EPS,
        .vocab_tokens = VOCAB,
        .hidden_elems = at->hidden,
        .x = is_on_device ? at->x.device : at->x.host,
        .normed = is_on_device ? at->normed.device : at->normed.host,
    };
}

static void embed_twin(struct embedding *at)
{
    struct err err = {0};
    struct k_stream *twin = twin_stream(VOCAB, 0.0F);
    const struct k_embed_norm_args args = embed_args(at, MAX_ROWS, false);
    test_ok(k_cpu_ops()->embed_norm(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

/* Some rows have values so small that eps decides. */
static void embedding_init(struct embedding *at, uint32_t hidden, uint64_t *random)
{
    *at = (struct embedding){.hidden = hidden, .scale = k_round_bf16(sqrtf((float)hidden))};
    uint32_t *ids = mem_zalloc(MAX_ROWS, sizeof(*ids));
    uint16_t *table = twin_random_bf16((uint64_t)VOCAB * hidden, 0.03, random);
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        ids[i] = i < 2 ? (VOCAB - 1) * i : twin_random_below(random, VOCAB);
    }
    for (uint64_t i = 0; i < hidden; i++) {
        table[i] = i % 3 == 0 ? 0 : 0x3000;
    }
    at->ids = twin_in(ids, MAX_ROWS * sizeof(*ids));
    at->table = twin_in(table, bytes_of(VOCAB, hidden));
    at->weight = twin_in(twin_random_bf16(hidden, 1.0, random), bytes_of(1, hidden));
    at->x = twin_out(bytes_of(MAX_ROWS, hidden));
    at->normed = twin_out(bytes_of(MAX_ROWS, hidden));
    embed_twin(at);
}

static void embedding_fini(struct embedding *at)
{
    twin_free(&at->ids);
    twin_free(&at->table);
    twin_free(&at->weight);
    twin_free(&at->x);
    twin_free(&at->normed);
}

static struct twin_interval embed_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct embedding *at = context;
    const uint16_t *x = (const uint16_t *)at->x.host + (uint64_t)row * at->hidden;
    float value = k_f32_from_bf16(x[column]);
    float weight = k_f32_from_bf16(((const uint16_t *)at->weight.host)[column]);
    return twin_normed((struct twin_interval){value, value}, twin_rms_factor(x, at->hidden, EPS),
                       (double)weight);
}

static void check_embedded(struct embedding *at, uint32_t rows, struct twin_totals *totals)
{
    char label[LABEL_BYTES];
    (void)snprintf(label, sizeof(label), "embed_norm, hidden %u, %u rows", at->hidden, rows);
    uint16_t *x = twin_read(&at->x, bytes_of(rows, at->hidden), label);
    uint16_t *normed = twin_read(&at->normed, bytes_of(rows, at->hidden), label);
    struct twin_compare compare = {
        .label = label, .got = x, .want = at->x.host, .rows = rows, .columns = at->hidden};
    twin_check(&compare, NULL);
    compare.got = normed;
    compare.want = at->normed.host;
    compare.permitted = embed_permitted;
    compare.context = at;
    twin_check(&compare, totals);
    mem_free(x);
    mem_free(normed);
}

static void run_embed(struct cuda_rig *rig, const struct embedding *at, uint32_t rows)
{
    struct err err = {0};
    const struct k_embed_norm_args args = embed_args(at, rows, true);
    test_ok(k_cuda_ops()->embed_norm(rig->k, &args, &err), &err);
}

static void test_embeddings_of_every_layout(void)
{
    uint64_t random = SEED;
    struct cuda_rig rig;
    struct twin_totals totals = {0};
    open_rig(&rig, true);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(hidden_sizes); i++) {
        struct embedding at;
        embedding_init(&at, hidden_sizes[i], &random);
        for (uint32_t c = 0; c < TWIN_COUNT_OF(row_counts); c++) {
            twin_poison(&at.x);
            twin_poison(&at.normed);
            run_embed(&rig, &at, row_counts[c]);
            check_embedded(&at, row_counts[c], &totals);
        }
        embedding_fini(&at);
    }
    twin_print("embed_norm", &totals);
    cuda_rig_close(&rig);
}

/* ---- residual ---- */

struct residual {
    uint32_t hidden;
    bool is_in_place;   /* normed takes the place of h */
    uint16_t *x_before; /* owned, what x and h held before the twin ran */
    uint16_t *h_before;
    struct twin_buffer h;
    struct twin_buffer post;
    struct twin_buffer next;
    struct twin_buffer scalar; /* device null: none */
    struct twin_buffer x;      /* the host's is the twin's, as is normed's */
    struct twin_buffer normed;
    const uint16_t *x_got; /* the device's, which it norms; null: as the twin's */
};

static struct k_residual_norm_args residual_args(const struct residual *at, uint32_t rows,
                                                 bool is_on_device)
{
    const struct twin_buffer *normed = at->is_in_place ? &at->h : &at->normed;
    return (struct k_residual_norm_args){
        .h = is_on_device ? at->h.device : at->h.host,
        .post_weight = is_on_device ? at->post.device : at->post.host,
        .layer_scalar = is_on_device ? at->scalar.device : at->scalar.host,
        .next_weight = is_on_device ? at->next.device : at->next.host,
        .eps = EPS,
        .rows = rows,
        .hidden_elems = at->hidden,
        .x = is_on_device ? at->x.device : at->x.host,
        .normed = is_on_device ? normed->device : normed->host,
    };
}

static uint16_t *copy_of(const uint16_t *from, uint64_t bytes)
{
    uint16_t *to = mem_zalloc(bytes, 1);
    memcpy(to, from, bytes);
    return to;
}

static void residual_init(struct residual *at, uint32_t hidden, bool has_scalar, uint64_t *random)
{
    struct err err = {0};
    uint64_t elems = (uint64_t)MAX_ROWS * hidden;
    uint64_t bytes = bytes_of(MAX_ROWS, hidden);
    *at = (struct residual){.hidden = hidden};
    uint16_t *h = twin_random_bf16(elems, 1.0, random);
    uint16_t *x = twin_random_bf16(elems, 3.0, random);
    memset(h, 0, bytes_of(1, hidden)); /* nothing but eps under the root */
    for (uint32_t i = 0; i < hidden; i++) {
        h[hidden + i] = i % 2 == 0 ? 0x3a80 : 0xba60; /* squares as large as eps */
    }
    at->h_before = copy_of(h, bytes);
    at->x_before = copy_of(x, bytes);
    at->h = twin_in(h, bytes);
    at->x = twin_in(x, bytes);
    at->post = twin_in(twin_random_bf16(hidden, 1.0, random), bytes_of(1, hidden));
    at->next = twin_in(twin_random_bf16(hidden, 1.0, random), bytes_of(1, hidden));
    at->normed = twin_out(bytes);
    if (has_scalar) {
        at->scalar = twin_in(twin_random_bf16(1, 0.6, random), sizeof(uint16_t));
    }
    struct k_stream *twin = twin_stream(VOCAB, 0.0F);
    const struct k_residual_norm_args args = residual_args(at, MAX_ROWS, false);
    test_ok(k_cpu_ops()->residual_norm(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static void residual_fini(struct residual *at)
{
    mem_free(at->h_before);
    mem_free(at->x_before);
    twin_free(&at->h);
    twin_free(&at->post);
    twin_free(&at->next);
    twin_free(&at->scalar);
    twin_free(&at->x);
    twin_free(&at->normed);
}

static struct twin_interval exactly(uint16_t bits)
{
    return (struct twin_interval){k_f32_from_bf16(bits), k_f32_from_bf16(bits)};
}

static double weight_at(const struct twin_buffer *weight, uint32_t column)
{
    return (double)k_f32_from_bf16(((const uint16_t *)weight->host)[column]);
}

static struct twin_interval x_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct residual *at = context;
    uint64_t first = (uint64_t)row * at->hidden;
    double factor = twin_rms_factor(at->h_before + first, at->hidden, EPS);
    struct twin_interval y =
        twin_normed(exactly(at->h_before[first + column]), factor, weight_at(&at->post, column));
    struct twin_interval total = twin_sum(exactly(at->x_before[first + column]), y);
    return at->scalar.host == NULL
               ? total
               : twin_product(total, exactly(*(const uint16_t *)at->scalar.host));
}

/* Each norms its own x, of which a few elements differ in their last bit. */
static struct twin_interval normed_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct residual *at = context;
    uint64_t first = (uint64_t)row * at->hidden;
    const uint16_t *twin_x = at->x.host;
    struct twin_interval x = x_permitted(context, row, column);
    double weight = weight_at(&at->next, column);
    struct twin_interval of_twin =
        twin_normed(x, twin_rms_factor(twin_x + first, at->hidden, EPS), weight);
    if (at->x_got == NULL) {
        return of_twin;
    }
    struct twin_interval of_device =
        twin_normed(x, twin_rms_factor(at->x_got + first, at->hidden, EPS), weight);
    return (struct twin_interval){fminf(of_twin.low, of_device.low),
                                  fmaxf(of_twin.high, of_device.high)};
}

/* h and x as they were before, on the device. */
static void residual_prepare(const struct residual *at)
{
    cuda_rig_write(at->h.device, at->h_before, at->h.bytes);
    cuda_rig_write(at->x.device, at->x_before, at->x.bytes);
    twin_poison(&at->normed);
}

/* Rows beyond the count keep what they had. */
static void check_rest(const struct residual *at, const uint16_t *got, const uint16_t *before,
                       uint32_t rows, const char *label)
{
    uint64_t used = (uint64_t)rows * at->hidden;
    twin_check_equal(label, got + used, before + used, (uint64_t)MAX_ROWS * at->hidden - used,
                     sizeof(uint16_t));
}

static void check_residual(struct residual *at, uint32_t rows, struct twin_totals *totals)
{
    char label[LABEL_BYTES];
    (void)snprintf(label, sizeof(label), "residual_norm, hidden %u, %u rows%s%s", at->hidden, rows,
                   at->scalar.host != NULL ? ", scalar" : "", at->is_in_place ? ", in place" : "");
    uint64_t used = bytes_of(rows, at->hidden);
    uint16_t *x = twin_read(&at->x, at->x.bytes, label);
    const struct twin_buffer *out = at->is_in_place ? &at->h : &at->normed;
    uint16_t *normed = twin_read(out, at->is_in_place ? out->bytes : used, label);
    struct twin_compare compare = {
        .label = label,
        .got = x,
        .want = at->x.host,
        .rows = rows,
        .columns = at->hidden,
        .permitted = x_permitted,
        .context = at,
    };
    twin_check(&compare, totals);
    check_rest(at, x, at->x_before, rows, label);
    at->x_got = x;
    compare.got = normed;
    compare.want = at->normed.host;
    compare.permitted = normed_permitted;
    twin_check(&compare, totals);
    if (at->is_in_place) {
        check_rest(at, normed, at->h_before, rows, label);
    }
    at->x_got = NULL;
    mem_free(x);
    mem_free(normed);
}

static void run_residual(struct cuda_rig *rig, const struct residual *at, uint32_t rows)
{
    struct err err = {0};
    const struct k_residual_norm_args args = residual_args(at, rows, true);
    test_ok(k_cuda_ops()->residual_norm(rig->k, &args, &err), &err);
}

static void test_residuals_of_every_layout(void)
{
    uint64_t random = SEED + 1;
    struct cuda_rig rig;
    struct twin_totals totals = {0};
    open_rig(&rig, true);
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(hidden_sizes); i++) {
        struct residual at;
        residual_init(&at, hidden_sizes[i / 2], i % 2 == 1, &random);
        for (uint32_t c = 0; c < TWIN_COUNT_OF(row_counts); c++) {
            at.is_in_place = c % 3 == 1;
            residual_prepare(&at);
            run_residual(&rig, &at, row_counts[c]);
            check_residual(&at, row_counts[c], &totals);
        }
        residual_fini(&at);
    }
    twin_print("residual_norm", &totals);
    cuda_rig_close(&rig);
}

/* A row's bits are the same at each place and beside any others. */
static void test_a_row_is_the_same_at_every_place(void)
{
    enum {
        PLACES = 17
    };
    uint64_t random = SEED + 2;
    struct cuda_rig rig;
    struct residual at;
    open_rig(&rig, true);
    residual_init(&at, 3840, true, &random);
    uint64_t row_elems = at.hidden;
    uint64_t row_bytes = bytes_of(1, at.hidden);
    uint16_t *alone = NULL;
    for (uint32_t place = 0; place < PLACES; place++) {
        residual_prepare(&at);
        cuda_rig_write((unsigned char *)at.h.device + place * row_bytes,
                       at.h_before + 50 * row_elems, row_bytes);
        cuda_rig_write((unsigned char *)at.x.device + place * row_bytes,
                       at.x_before + 50 * row_elems, row_bytes);
        run_residual(&rig, &at, place % 2 == 0 ? place + 1 : PLACES);
        cuda_rig_wait(&rig);
        uint16_t *got = twin_read(&at.normed, (place % 2 == 0 ? place + 1 : PLACES) * row_bytes,
                                  "a row at a place");
        if (alone == NULL) {
            alone = copy_of(got, row_bytes);
        }
        twin_check_equal("a row at a place", got + place * row_elems, alone, row_elems,
                         sizeof(*got));
        mem_free(got);
    }
    mem_free(alone);
    residual_fini(&at);
    cuda_rig_close(&rig);
}

/* ---- graphs ---- */

struct recording {
    struct cuda_rig *rig;
    const struct embedding *embedding;
    const struct residual *residual;
    uint32_t rows;
};

static void record(void *context)
{
    const struct recording *recording = context;
    run_embed(recording->rig, recording->embedding, recording->rows);
    run_residual(recording->rig, recording->residual, recording->rows);
}

/* One graph, replayed after the ids have changed. */
static void test_a_graph_of_norms(void)
{
    static const uint32_t rows[] = {1, 8, 24};
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(rows); i++) {
        uint64_t random = SEED + 3;
        struct cuda_rig rig;
        struct embedding embedding;
        struct residual residual;
        open_rig(&rig, i % 2 == 0);
        embedding_init(&embedding, 192, &random);
        residual_init(&residual, 192, true, &random);
        struct recording recording = {&rig, &embedding, &residual, rows[i / 2]};
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        for (uint32_t turn = 0; turn < 2; turn++) {
            uint32_t *ids = embedding.ids.host;
            for (uint32_t row = 0; turn == 1 && row < MAX_ROWS; row++) {
                ids[row] = (ids[row] + 17) % VOCAB;
            }
            embed_twin(&embedding);
            twin_write(&embedding.ids);
            residual_prepare(&residual);
            twin_poison(&embedding.x);
            twin_poison(&embedding.normed);
            cuda_rig_launch(&rig, graph);
            cuda_rig_wait(&rig);
            check_embedded(&embedding, rows[i / 2], NULL);
            check_residual(&residual, rows[i / 2], NULL);
        }
        cuda_rig_graph_free(graph);
        embedding_fini(&embedding);
        residual_fini(&residual);
        cuda_rig_close(&rig);
    }
}

/* ---- that these tests can fail ---- */

enum mistake {
    MISTAKE_NONE,
    MISTAKE_NORM_NOT_ROUNDED,  /* x + y with y in f32 */
    MISTAKE_SUM_NOT_ROUNDED,   /* scalar * (x + y) with the sum in f32 */
    MISTAKE_WEIGHT_PLUS_ONE,   /* 1 + w */
    MISTAKE_EPS_OUTSIDE,       /* 1 / (root + eps) */
    MISTAKE_SCALAR_BEFORE_SUM, /* the norm alone is scaled */
    MISTAKE_LAST_LEFT_OUT,     /* one element's square is not in the sum */
    MISTAKE_COUNT,
};

/* residual_norm's x with a mistake, in f32. */
static uint16_t *mistaken_x(const struct residual *at, enum mistake mistake, uint32_t rows)
{
    uint16_t *out = mem_zalloc((size_t)rows * at->hidden, sizeof(*out));
    float scalar = k_f32_from_bf16(*(const uint16_t *)at->scalar.host);
    for (uint64_t i = 0; i < (uint64_t)rows * at->hidden; i++) {
        uint32_t column = (uint32_t)(i % at->hidden);
        const uint16_t *row = at->h_before + i - column;
        double exact = mistake == MISTAKE_EPS_OUTSIDE
                           ? 1.0 / (1.0 / twin_rms_factor(row, at->hidden, 0.0F) + (double)EPS)
                           : twin_rms_factor(row, at->hidden, EPS);
        if (mistake == MISTAKE_LAST_LEFT_OUT) {
            double last = (double)k_f32_from_bf16(row[at->hidden - 1]);
            exact = 1.0 / sqrt(1.0 / (exact * exact) - last * last / at->hidden);
        }
        float weight = (float)weight_at(&at->post, column);
        weight += mistake == MISTAKE_WEIGHT_PLUS_ONE ? 1.0F : 0.0F;
        float y = k_f32_from_bf16(row[column]) * (float)exact * weight;
        y = mistake == MISTAKE_NORM_NOT_ROUNDED ? y : k_round_bf16(y);
        y = mistake == MISTAKE_SCALAR_BEFORE_SUM ? k_round_bf16(y * scalar) : y;
        float sum = k_f32_from_bf16(at->x_before[i]) + y;
        sum = mistake == MISTAKE_SUM_NOT_ROUNDED ? sum : k_round_bf16(sum);
        out[i] = k_bf16_from_f32(mistake == MISTAKE_SCALAR_BEFORE_SUM ? sum : sum * scalar);
    }
    return out;
}

/* The rule passes the formula and refuses each way to get it wrong; the device's own result with one
 * unit added is refused too. */
static void test_planted_errors_are_seen(void)
{
    enum {
        ROWS = 9
    };
    uint64_t random = SEED + 4;
    struct cuda_rig rig;
    struct residual at;
    struct twin_report report;
    open_rig(&rig, true);
    residual_init(&at, 192, true, &random);
    struct twin_compare compare = {
        .label = "planted",
        .want = at.x.host,
        .rows = ROWS,
        .columns = at.hidden,
        .permitted = x_permitted,
        .context = &at,
    };
    for (int mistake = MISTAKE_NONE; mistake < MISTAKE_COUNT; mistake++) {
        uint16_t *got = mistaken_x(&at, (enum mistake)mistake, ROWS);
        compare.got = got;
        bool is_right = twin_agrees(&compare, &report);
        (void)printf("mistake %d: %u refused\n", mistake, (unsigned)report.refused);
        test_true(is_right == (mistake == MISTAKE_NONE));
        mem_free(got);
    }
    residual_prepare(&at);
    run_residual(&rig, &at, ROWS);
    cuda_rig_wait(&rig);
    uint16_t *got = twin_read(&at.normed, bytes_of(ROWS, at.hidden), "planted");
    compare.got = got;
    compare.want = at.normed.host;
    compare.permitted = normed_permitted;
    test_true(twin_agrees(&compare, &report));
    got[ROWS * at.hidden - 3] += 1;
    test_true(!twin_agrees(&compare, &report));
    test_eq_u64(report.row, ROWS - 1);
    test_eq_u64(report.column, at.hidden - 3);
    mem_free(got);
    residual_fini(&at);
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
    struct k_embed_norm_args embed = {.tokens = {.count = 1}, .hidden_elems = 12};
    test_eq_u64(k_cuda_ops()->embed_norm(rig.k, &embed, &err), ERR_SHAPE);
    test_eq_str(err.message, "embed_norm: hidden size 12, a multiple of 8 and at most 6144");
    embed.hidden_elems = 6152;
    test_eq_u64(k_cuda_ops()->embed_norm(rig.k, &embed, &err), ERR_SHAPE);
    struct k_residual_norm_args residual = {.rows = 1, .hidden_elems = 0};
    test_eq_u64(k_cuda_ops()->residual_norm(rig.k, &residual, &err), ERR_SHAPE);
    uint16_t *at = cuda_rig_alloc(256);
    residual = (struct k_residual_norm_args){
        .h = at, .x = at, .normed = at, .rows = 1, .hidden_elems = 64};
    test_eq_u64(k_cuda_ops()->residual_norm(rig.k, &residual, &err), ERR_SHAPE);
    test_eq_str(err.message, "residual_norm: x must not be h nor normed");
    residual.x = at + 1;
    test_eq_u64(k_cuda_ops()->residual_norm(rig.k, &residual, &err), ERR_ALIGN);
    test_eq_str(err.message, "residual_norm: x is not 16-byte aligned");
    embed = (struct k_embed_norm_args){.table = at + 4, .hidden_elems = 64};
    test_eq_u64(k_cuda_ops()->embed_norm(rig.k, &embed, &err), ERR_ALIGN);
    cuda_rig_free(at);
    embed = (struct k_embed_norm_args){.hidden_elems = 64};
    test_ok(k_cuda_ops()->embed_norm(rig.k, &embed, &err), &err);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_embeddings_of_every_layout),       TEST(test_residuals_of_every_layout),
    TEST(test_a_row_is_the_same_at_every_place), TEST(test_a_graph_of_norms),
    TEST(test_planted_errors_are_seen),          TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
