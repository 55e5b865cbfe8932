/* RMSNorm and what is fused around it: embed_norm, residual_norm, qkv_norm_rope. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/ops_rig.h"
#include "tests/testlib/test.h"

#define SEED 12
#define EPS  1e-6F

/* Twin of RMSNorm over values already in f64; weight may be null. */
static void norm(const double *in, const uint16_t *weight, uint32_t elems, double *out)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < elems; i++) {
        sum += in[i] * in[i];
    }
    double factor = 1.0 / sqrt(sum / elems + (double)EPS);
    for (uint32_t i = 0; i < elems; i++) {
        out[i] = in[i] * factor * (weight == NULL ? 1.0 : ops_f64(weight, i));
    }
}

static void check_embed(uint32_t tokens, uint32_t hidden)
{
    struct err err = {0};
    uint64_t random = SEED + tokens;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t *table = ops_random_bf16(&random, (uint64_t)OPS_VOCAB * hidden, 0.05);
    uint16_t *weight = ops_random_bf16(&random, hidden, 1.0);
    uint16_t *x = mem_zalloc((uint64_t)tokens * hidden, sizeof(*x));
    uint16_t *normed = mem_zalloc((uint64_t)tokens * hidden, sizeof(*normed));
    uint32_t *ids = mem_zalloc(tokens, sizeof(*ids));
    double *row = mem_zalloc(hidden, sizeof(*row));
    double *want = mem_zalloc(hidden, sizeof(*want));
    float scale = k_round_bf16(sqrtf((float)hidden));
    for (uint32_t t = 0; t < tokens; t++) {
        ids[t] = t == 0 ? OPS_VOCAB - 1 : (uint32_t)(test_random(&random) % OPS_VOCAB);
    }
    struct k_embed_norm_args args = {
        .tokens = {.count = tokens, .ids = ids},
        .table = table,
        .scale = scale,
        .norm_weight = weight,
        .eps = EPS,
        .vocab_tokens = OPS_VOCAB,
        .hidden_elems = hidden,
        .x = x,
        .normed = normed,
    };
    test_ok(k_cpu_ops()->embed_norm(stream, &args, &err), &err);
    for (uint32_t t = 0; t < tokens; t++) {
        for (uint32_t i = 0; i < hidden; i++) {
            row[i] = ops_round(ops_f64(table, (uint64_t)ids[t] * hidden + i) * (double)scale);
            test_true(ops_f64(x, (uint64_t)t * hidden + i) == row[i]);
        }
        norm(row, weight, hidden, want);
        for (uint32_t i = 0; i < hidden; i++) {
            ops_check_bf16(normed[(uint64_t)t * hidden + i], want[i], fabs(want[i]), "embed", i);
        }
    }
    ids[tokens - 1] = OPS_VOCAB;
    test_eq_u64(k_cpu_ops()->embed_norm(stream, &args, &err), ERR_SHAPE);
    mem_free(want);
    mem_free(row);
    mem_free(ids);
    mem_free(normed);
    mem_free(x);
    mem_free(weight);
    mem_free(table);
    k_cpu_stream_destroy(stream);
}

static void test_embed_scales_and_norms(void)
{
    check_embed(1, 192);
    check_embed(7, 65);
    check_embed(33, 8);
}

static void check_residual(uint32_t rows, uint32_t hidden, bool has_scalar)
{
    struct err err = {0};
    uint64_t random = SEED + rows;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint64_t elems = (uint64_t)rows * hidden;
    uint16_t *h = ops_random_bf16(&random, elems, 3.0);
    uint16_t *x = ops_random_bf16(&random, elems, 1.0);
    uint16_t *before = mem_zalloc(elems, sizeof(*before));
    uint16_t *post = ops_random_bf16(&random, hidden, 1.0);
    uint16_t *next = ops_random_bf16(&random, hidden, 1.0);
    uint16_t *h_copy = mem_zalloc(elems, sizeof(*h_copy));
    double *row = mem_zalloc(hidden, sizeof(*row));
    double *want = mem_zalloc(hidden, sizeof(*want));
    uint16_t scalar = k_bf16_from_f32(0.37F);
    memcpy(before, x, elems * sizeof(*x));
    memcpy(h_copy, h, elems * sizeof(*h));
    struct k_residual_norm_args args = {
        .h = h,
        .post_weight = post,
        .layer_scalar = has_scalar ? &scalar : NULL,
        .next_weight = next,
        .eps = EPS,
        .rows = rows,
        .hidden_elems = hidden,
        .x = x,
        .normed = h, /* allowed */
    };
    test_ok(k_cpu_ops()->residual_norm(stream, &args, &err), &err);
    double factor = has_scalar ? ops_f64(&scalar, 0) : 1.0;
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t from = (uint64_t)r * hidden;
        for (uint32_t i = 0; i < hidden; i++) {
            row[i] = ops_f64(h_copy, from + i);
        }
        norm(row, post, hidden, want);
        for (uint32_t i = 0; i < hidden; i++) {
            /* Up to two roundings before the last. */
            double sum = ops_f64(before, from + i) + want[i];
            double slack = (fabs(want[i]) + fabs(sum)) * factor * 0x1p-8;
            ops_check_bf16(x[from + i], sum * factor, slack / 2e-6, "residual", from + i);
            row[i] = ops_f64(x, from + i);
        }
        norm(row, next, hidden, want);
        for (uint32_t i = 0; i < hidden; i++) {
            ops_check_bf16(h[from + i], want[i], fabs(want[i]), "residual norm", from + i);
        }
    }
    args.normed = x;
    test_eq_u64(k_cpu_ops()->residual_norm(stream, &args, &err), ERR_SHAPE);
    mem_free(want);
    mem_free(row);
    mem_free(h_copy);
    mem_free(next);
    mem_free(post);
    mem_free(before);
    mem_free(x);
    mem_free(h);
    k_cpu_stream_destroy(stream);
}

static void test_residual_adds_scales_and_norms(void)
{
    for (int has_scalar = 0; has_scalar <= 1; has_scalar++) {
        check_residual(1, 192, has_scalar != 0);
        check_residual(9, 65, has_scalar != 0);
        check_residual(17, 8, has_scalar != 0);
    }
}

/* A zero row stays zero: eps keeps the factor finite. */
static void test_a_zero_row_norms_to_zero(void)
{
    struct err err = {0};
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t h[16] = {0};
    uint16_t x[16] = {0};
    uint16_t normed[16];
    uint16_t weight[16];
    for (uint32_t i = 0; i < 16; i++) {
        weight[i] = k_bf16_from_f32(2.0F);
    }
    struct k_residual_norm_args args = {
        .h = h,
        .post_weight = weight,
        .next_weight = weight,
        .eps = EPS,
        .rows = 1,
        .hidden_elems = 16,
        .x = x,
        .normed = normed,
    };
    test_ok(k_cpu_ops()->residual_norm(stream, &args, &err), &err);
    for (uint32_t i = 0; i < 16; i++) {
        test_eq_u64(normed[i], 0);
    }
    k_cpu_stream_destroy(stream);
}

enum {
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    PAIRS = 24, /* of 32: the others pass through */
    PAGE_TOKENS = 8,
    TABLE_PAGES = 4,
    SLOTS = 2,
    PAGES = SLOTS * TABLE_PAGES,
    KV_LAYERS = 3,
};

/* Twin of norm and rotation with the rounding points of the operator. */
static void head_twin(const uint16_t *in, const uint16_t *weight, const uint16_t *cos_sin,
                      double *out)
{
    double row[HEAD_DIM];
    for (uint32_t i = 0; i < HEAD_DIM; i++) {
        row[i] = ops_f64(in, i);
    }
    norm(row, weight, HEAD_DIM, out);
    for (uint32_t i = 0; i < PAIRS && cos_sin != NULL; i++) {
        double c = ops_f64(cos_sin, i);
        double s = ops_f64(cos_sin, PAIRS + i);
        double low = out[i];
        double high = out[i + HEAD_DIM / 2];
        out[i] = low * c - high * s;
        out[i + HEAD_DIM / 2] = high * c + low * s;
    }
}

static void check_head(const uint16_t *got, const uint16_t *in, const uint16_t *weight,
                       const uint16_t *cos_sin, const char *what)
{
    double want[HEAD_DIM];
    head_twin(in, weight, cos_sin, want);
    for (uint32_t i = 0; i < HEAD_DIM; i++) {
        uint32_t pair = i % (HEAD_DIM / 2);
        bool is_rotated = cos_sin != NULL && pair < PAIRS;
        double size = hypot(want[pair], want[pair + HEAD_DIM / 2]);
        /* Rotated: norm and two products were rounded before the sum. */
        double slack = is_rotated ? 3.0 * 0x1p-8 * size : 2e-6 * fabs(want[i]);
        ops_check_bf16(got[i], want[i], slack / 2e-6, what, i);
    }
}

/* Two sequences across page borders and around the table, and a padding token. */
static const uint32_t qkv_positions[] = {6, 7, 8, 9, 31, 32, 33, 0};
static const uint32_t qkv_slots[] = {0, 0, 0, 0, 1, 1, 1, K_SLOT_NONE};
enum {
    TOKENS = 8
};

struct qkv_rig {
    bool has_v;
    bool writes_kv;
    uint32_t row_heads;
    uint16_t *qkv;
    uint16_t *before; /* qkv as it was */
    uint16_t *q_norm;
    uint16_t *k_norm;
    uint16_t *cos_sin;
    uint32_t table[SLOTS * TABLE_PAGES];
    struct k_pages pages;
    uint64_t pool_elems;
};

static void qkv_rig_init(struct qkv_rig *rig, bool has_v, bool writes_kv)
{
    uint64_t random = SEED;
    *rig = (struct qkv_rig){.has_v = has_v, .writes_kv = writes_kv};
    rig->row_heads = HEADS + (writes_kv ? KV_HEADS * (has_v ? 2 : 1) : 0);
    uint64_t elems = (uint64_t)TOKENS * rig->row_heads * HEAD_DIM;
    rig->qkv = ops_random_bf16(&random, elems, 2.0);
    rig->before = mem_zalloc(elems, sizeof(*rig->before));
    memcpy(rig->before, rig->qkv, elems * sizeof(*rig->qkv));
    rig->q_norm = ops_random_bf16(&random, HEAD_DIM, 1.0);
    rig->k_norm = ops_random_bf16(&random, HEAD_DIM, 1.0);
    rig->cos_sin = ops_random_bf16(&random, 64UL * 2 * PAIRS, 0.6);
    rig->pages = (struct k_pages){
        .table = rig->table,
        .table_pages = TABLE_PAGES,
        .pages = PAGES,
        .page_tokens = PAGE_TOKENS,
        .kv_layers = KV_LAYERS,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
    };
    rig->pool_elems = (PAGES + 1) * k_page_offset(&rig->pages, 1, 0, 0, 0);
    rig->pages.base = mem_zalloc(rig->pool_elems, sizeof(uint16_t));
    memset(rig->pages.base, 0xff, rig->pool_elems * sizeof(uint16_t));
    for (uint32_t i = 0; i < SLOTS * TABLE_PAGES; i++) {
        rig->table[i] = PAGES - 1 - i;
    }
}

static void qkv_rig_fini(struct qkv_rig *rig)
{
    mem_free(rig->pages.base);
    mem_free(rig->cos_sin);
    mem_free(rig->k_norm);
    mem_free(rig->q_norm);
    mem_free(rig->before);
    mem_free(rig->qkv);
}

/* Checks one token's heads; returns elements that it must have written to the pool. */
static uint64_t check_token(const struct qkv_rig *rig, uint32_t t)
{
    uint64_t row_from = (uint64_t)t * rig->row_heads * HEAD_DIM;
    const uint16_t *row = rig->before + row_from;
    const uint16_t *angles = rig->cos_sin + (uint64_t)qkv_positions[t] * 2 * PAIRS;
    bool is_padding = qkv_slots[t] == K_SLOT_NONE;
    uint32_t page = is_padding ? PAGES : k_page_of(&rig->pages, qkv_slots[t], qkv_positions[t]);
    uint64_t within = (uint64_t)(qkv_positions[t] % PAGE_TOKENS) * HEAD_DIM;
    uint64_t written = 0;
    for (uint32_t head = 0; head < HEADS; head++) {
        uint64_t from = (uint64_t)head * HEAD_DIM;
        check_head(rig->qkv + row_from + from, row + from, rig->q_norm, angles, "q");
    }
    for (uint32_t head = 0; rig->writes_kv && head < KV_HEADS; head++) {
        const uint16_t *k = row + (uint64_t)(HEADS + head) * HEAD_DIM;
        const uint16_t *v = rig->has_v ? k + (uint64_t)KV_HEADS * HEAD_DIM : k;
        check_head(rig->pages.base + k_page_offset(&rig->pages, page, 1, 0, head) + within, k,
                   rig->k_norm, angles, "k");
        check_head(rig->pages.base + k_page_offset(&rig->pages, page, 1, 1, head) + within, v, NULL,
                   NULL, "v");
        written += 2UL * HEAD_DIM;
    }
    return written;
}

static void check_qkv(bool has_v, bool writes_kv)
{
    struct err err = {0};
    struct qkv_rig rig;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    qkv_rig_init(&rig, has_v, writes_kv);
    struct k_qkv_norm_rope_args args = {
        .tokens = {.count = TOKENS, .positions = qkv_positions, .slots = qkv_slots},
        .pages = rig.pages,
        .kv_layer = 1,
        .writes_kv = writes_kv,
        .has_v = has_v,
        .qkv = rig.qkv,
        .q_norm = rig.q_norm,
        .k_norm = rig.k_norm,
        .cos_sin = rig.cos_sin,
        .rotated_pairs = PAIRS,
        .heads = HEADS,
        .eps = EPS,
    };
    test_ok(k_cpu_ops()->qkv_norm_rope(stream, &args, &err), &err);
    uint64_t written = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        written += check_token(&rig, t);
    }
    for (uint64_t i = 0; i < rig.pool_elems; i++) {
        written -= rig.pages.base[i] != 0xffff ? 1 : 0;
    }
    test_eq_u64(written, 0); /* nothing else was touched */
    qkv_rig_fini(&rig);
    k_cpu_stream_destroy(stream);
}

static void test_qkv_norms_rotates_and_writes_pages(void)
{
    check_qkv(true, true);
    check_qkv(false, true);
    check_qkv(true, false);
}

/* The three roundings of a rotation, bit for bit: normed heads come from a run whose angles are all
 * zero, which passes them through. */
static void test_rotation_rounds_three_times(void)
{
    struct err err = {0};
    struct qkv_rig still;
    struct qkv_rig turned;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    qkv_rig_init(&still, true, false);
    qkv_rig_init(&turned, true, false);
    for (uint32_t i = 0; i < 64U * 2 * PAIRS; i++) {
        bool is_cos = i / PAIRS % 2 == 0;
        still.cos_sin[i] = k_bf16_from_f32(is_cos ? 1.0F : 0.0F);
    }
    struct k_qkv_norm_rope_args args = {
        .tokens = {.count = TOKENS, .positions = qkv_positions, .slots = qkv_slots},
        .pages = still.pages,
        .has_v = true,
        .qkv = still.qkv,
        .q_norm = still.q_norm,
        .cos_sin = still.cos_sin,
        .rotated_pairs = PAIRS,
        .heads = HEADS,
        .eps = EPS,
    };
    test_ok(k_cpu_ops()->qkv_norm_rope(stream, &args, &err), &err);
    args.qkv = turned.qkv;
    args.cos_sin = turned.cos_sin;
    test_ok(k_cpu_ops()->qkv_norm_rope(stream, &args, &err), &err);
    for (uint32_t i = 0; i < TOKENS * HEADS * HEAD_DIM / 2; i++) {
        uint32_t pair = i % (HEAD_DIM / 2);
        uint32_t at = i / (HEAD_DIM / 2) * HEAD_DIM + pair;
        const uint16_t *angles =
            turned.cos_sin + (uint64_t)qkv_positions[at / HEAD_DIM / HEADS] * 2 * PAIRS;
        double c = pair < PAIRS ? ops_f64(angles, pair) : 1.0;
        double s = pair < PAIRS ? ops_f64(angles, PAIRS + pair) : 0.0;
        double low = ops_f64(still.qkv, at);
        double high = ops_f64(still.qkv, at + HEAD_DIM / 2);
        test_true(ops_f64(turned.qkv, at) == ops_round(ops_round(low * c) - ops_round(high * s)));
        test_true(ops_f64(turned.qkv, at + HEAD_DIM / 2) ==
                  ops_round(ops_round(high * c) + ops_round(low * s)));
    }
    qkv_rig_fini(&turned);
    qkv_rig_fini(&still);
    k_cpu_stream_destroy(stream);
}

/* norm, sum and scalar round one after the other, bit for bit: the norm's own bits come from a run
 * that adds it to zero. */
static void test_residual_rounds_at_each_step(void)
{
    enum {
        ROWS = 5,
        HIDDEN = 96
    };
    struct err err = {0};
    uint64_t random = SEED;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t *h = ops_random_bf16(&random, (uint64_t)ROWS * HIDDEN, 3.0);
    uint16_t *x = ops_random_bf16(&random, (uint64_t)ROWS * HIDDEN, 1.0);
    uint16_t *weight = ops_random_bf16(&random, HIDDEN, 1.0);
    uint16_t normed[ROWS * HIDDEN];
    uint16_t alone[ROWS * HIDDEN] = {0};
    uint16_t before[ROWS * HIDDEN];
    uint16_t scalar = k_bf16_from_f32(0.37F);
    memcpy(before, x, sizeof(before));
    struct k_residual_norm_args args = {
        .h = h,
        .post_weight = weight,
        .next_weight = weight,
        .eps = EPS,
        .rows = ROWS,
        .hidden_elems = HIDDEN,
        .x = alone,
        .normed = normed,
    };
    test_ok(k_cpu_ops()->residual_norm(stream, &args, &err), &err);
    args.x = x;
    args.layer_scalar = &scalar;
    test_ok(k_cpu_ops()->residual_norm(stream, &args, &err), &err);
    for (uint32_t i = 0; i < ROWS * HIDDEN; i++) {
        double sum = ops_round(ops_f64(before, i) + ops_f64(alone, i));
        test_true(ops_f64(x, i) == ops_round(sum * ops_f64(&scalar, 0)));
    }
    mem_free(weight);
    mem_free(x);
    mem_free(h);
    k_cpu_stream_destroy(stream);
}

static const struct test_case cases[] = {
    TEST(test_rotation_rounds_three_times), TEST(test_residual_rounds_at_each_step),
    TEST(test_embed_scales_and_norms),      TEST(test_residual_adds_scales_and_norms),
    TEST(test_a_zero_row_norms_to_zero),    TEST(test_qkv_norms_rotates_and_writes_pages),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
