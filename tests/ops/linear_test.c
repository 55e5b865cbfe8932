/* Products with weights: linear, gate_up, head. */
#include <math.h>

#include "common/mem.h"
#include "kernels/dtype.h"
#include "tests/testlib/ops_rig.h"
#include "tests/testlib/test.h"

#define SEED 11

/* Rows around the row block and its tiles, inputs with and without a tail, columns around tiles. */
static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 16, 17, 35};
static const uint32_t in_counts[] = {1, 15, 16, 24, 192, 333};
static const uint32_t out_counts[] = {1, 7, 48, 50, 131};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* sum over k of x[row, k] w[col, k], and of the absolute terms. */
static double dot(const uint16_t *x, const uint16_t *w, uint32_t elems, double *out_absolute)
{
    double sum = 0.0;
    *out_absolute = 0.0;
    for (uint32_t k = 0; k < elems; k++) {
        double term = ops_f64(x, k) * ops_f64(w, k);
        sum += term;
        *out_absolute += fabs(term);
    }
    return sum;
}

static void check_linear(struct k_stream *stream, uint64_t *random, uint32_t rows, uint32_t in,
                         uint32_t out_elems)
{
    struct err err = {0};
    uint32_t second = out_elems / 2 + 1;
    uint32_t cols = out_elems + second;
    uint16_t *x = ops_random_bf16(random, (uint64_t)rows * in, 1.0);
    uint16_t *w = ops_random_bf16(random, (uint64_t)cols * in, 0.1);
    uint16_t *out = mem_zalloc((uint64_t)rows * cols, sizeof(*out));
    struct k_linear_args args = {
        .x = x,
        .rows = rows,
        .in_elems = in,
        .part_count = 2,
        .weights = {w, w + (uint64_t)out_elems * in},
        .out_elems = {out_elems, second},
        .out = out,
    };
    test_ok(k_cpu_ops()->linear(stream, &args, &err), &err);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            double absolute = 0.0;
            double want = dot(x + (uint64_t)r * in, w + (uint64_t)c * in, in, &absolute);
            uint64_t index = (uint64_t)r * cols + c;
            ops_check_bf16(out[index], want, absolute, "linear", index);
        }
    }
    mem_free(out);
    mem_free(w);
    mem_free(x);
}

static void check_shapes(struct k_stream *stream, uint32_t rows)
{
    uint64_t random = SEED + rows;
    for (uint32_t i = 0; i < COUNT_OF(in_counts); i++) {
        for (uint32_t o = 0; o < COUNT_OF(out_counts); o++) {
            check_linear(stream, &random, rows, in_counts[i], out_counts[o]);
        }
    }
}

static void test_linear_is_the_product(void)
{
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        struct k_stream *stream = ops_stream((enum ops_loops)loops, 0.0F);
        for (uint32_t r = 0; r < COUNT_OF(row_counts); r++) {
            check_shapes(stream, row_counts[r]);
        }
        k_cpu_stream_destroy(stream);
    }
}

static void test_a_row_has_the_same_bits_in_any_company(void)
{
    struct err err = {0};
    uint64_t random = SEED;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    enum {
        ROWS = 19,
        IN = 333,
        OUT = 101
    };
    uint16_t *x = ops_random_bf16(&random, (uint64_t)ROWS * IN, 1.0);
    uint16_t *w = ops_random_bf16(&random, (uint64_t)OUT * IN, 0.1);
    uint16_t all[ROWS * OUT];
    uint16_t some[ROWS * OUT];
    struct k_linear_args args = {
        .x = x,
        .rows = ROWS,
        .in_elems = IN,
        .part_count = 1,
        .weights = {w},
        .out_elems = {OUT},
        .out = all,
    };
    test_ok(k_cpu_ops()->linear(stream, &args, &err), &err);
    for (uint32_t rows = 1; rows <= 7; rows++) {
        for (uint32_t first = 0; first + rows <= ROWS; first++) {
            args.x = x + (uint64_t)first * IN;
            args.rows = rows;
            args.out = some;
            test_ok(k_cpu_ops()->linear(stream, &args, &err), &err);
            for (uint32_t i = 0; i < rows * OUT; i++) {
                test_eq_u64(some[i], all[first * OUT + i]);
            }
        }
    }
    mem_free(w);
    mem_free(x);
    k_cpu_stream_destroy(stream);
}

static void check_gate_up(struct k_stream *stream, uint64_t *random, uint32_t rows, uint32_t in,
                          uint32_t inner)
{
    struct err err = {0};
    uint16_t *x = ops_random_bf16(random, (uint64_t)rows * in, 1.0);
    uint16_t *gate = ops_random_bf16(random, (uint64_t)inner * in, 2.0 / sqrt(in));
    uint16_t *up = ops_random_bf16(random, (uint64_t)inner * in, 1.0 / sqrt(in));
    uint16_t *out = mem_zalloc((uint64_t)rows * inner, sizeof(*out));
    struct k_gate_up_args args = {
        .x = x,
        .rows = rows,
        .in_elems = in,
        .gate = gate,
        .up = up,
        .intermediate_elems = inner,
        .out = out,
    };
    test_ok(k_cpu_ops()->gate_up(stream, &args, &err), &err);
    for (uint64_t i = 0; i < (uint64_t)rows * inner; i++) {
        const uint16_t *row = x + i / inner * in;
        double absolute = 0.0;
        double g = dot(row, gate + i % inner * in, in, &absolute);
        double u = dot(row, up + i % inner * in, in, &absolute);
        double gelu = 0.5 * g * (1.0 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
        /* Three roundings before the last, the first through a function of slope below 1.13. */
        double slack = 3.5 * 0x1p-8 * (fabs(g * u) + fabs(gelu * u)) + 1e-5 * fabs(u);
        ops_check_bf16(out[i], gelu * u, slack / 2e-6, "gate_up", i);
    }
    mem_free(out);
    mem_free(up);
    mem_free(gate);
    mem_free(x);
}

static void test_gate_up_is_geglu(void)
{
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        uint64_t random = SEED;
        struct k_stream *stream = ops_stream((enum ops_loops)loops, 0.0F);
        for (uint32_t r = 0; r < COUNT_OF(row_counts); r++) {
            check_gate_up(stream, &random, row_counts[r], 192, 130);
            check_gate_up(stream, &random, row_counts[r], 72, 48);
        }
        k_cpu_stream_destroy(stream);
    }
}

/* Every bf16 gate value through the table: exact but for the rounding of f32 tanh. */
static void test_gelu_of_every_value(void)
{
    struct err err = {0};
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    const uint16_t one = k_bf16_from_f32(1.0F);
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t gate = (uint16_t)bits;
        uint16_t out = 0;
        struct k_gate_up_args args = {
            .x = &one,
            .rows = 1,
            .in_elems = 1,
            .gate = &gate,
            .up = &one,
            .intermediate_elems = 1,
            .out = &out,
        };
        double g = ops_f64(&gate, 0);
        if (!(fabs(g) < 1e30)) {
            continue; /* g^3 leaves f32: not a gate that a model makes */
        }
        double want = 0.5 * g * (1.0 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
        test_ok(k_cpu_ops()->gate_up(stream, &args, &err), &err);
        ops_check_bf16(out, want, fabs(g) * 0.1, "gelu", bits);
    }
    k_cpu_stream_destroy(stream);
}

static void test_head_gathers_and_caps(void)
{
    enum {
        TOKENS = 9,
        HIDDEN = 200
    };
    static const uint32_t index[] = {8, 0, 3, 3};
    for (int loops = 0; loops < OPS_LOOPS_COUNT; loops++) {
        struct err err = {0};
        uint64_t random = SEED;
        struct k_stream *stream = ops_stream((enum ops_loops)loops, 30.0F);
        uint16_t *x = ops_random_bf16(&random, (uint64_t)TOKENS * HIDDEN, 1.0);
        uint16_t *table = ops_random_bf16(&random, (uint64_t)OPS_VOCAB * HIDDEN, 2.0);
        uint16_t *logits = mem_zalloc(COUNT_OF(index) * OPS_VOCAB, sizeof(*logits));
        struct k_head_args args = {
            .x = x,
            .token_index = index,
            .rows = COUNT_OF(index),
            .hidden_elems = HIDDEN,
            .table = table,
            .vocab_tokens = OPS_VOCAB,
            .softcap = 30.0F,
            .logits = logits,
        };
        test_ok(k_cpu_ops()->head(stream, &args, &err), &err);
        for (uint64_t i = 0; i < COUNT_OF(index) * OPS_VOCAB; i++) {
            const uint16_t *row = x + (uint64_t)index[i / OPS_VOCAB] * HIDDEN;
            double absolute = 0.0;
            double raw = dot(row, table + i % OPS_VOCAB * HIDDEN, HIDDEN, &absolute);
            double capped = 30.0 * tanh(raw / 30.0);
            /* Three roundings before the last. */
            ops_check_bf16(logits[i], capped, (3.2 * 0x1p-8 * fabs(raw) + 2e-6 * absolute) / 2e-6,
                           "head", i);
        }
        args.softcap = 0.0F;
        test_ok(k_cpu_ops()->head(stream, &args, &err), &err);
        for (uint64_t i = 0; i < COUNT_OF(index) * OPS_VOCAB; i++) {
            const uint16_t *row = x + (uint64_t)index[i / OPS_VOCAB] * HIDDEN;
            double absolute = 0.0;
            double raw = dot(row, table + i % OPS_VOCAB * HIDDEN, HIDDEN, &absolute);
            ops_check_bf16(logits[i], raw, absolute, "head without cap", i);
        }
        args.softcap = 20.0F;
        test_eq_u64(k_cpu_ops()->head(stream, &args, &err), ERR_SHAPE);
        mem_free(logits);
        mem_free(table);
        mem_free(x);
        k_cpu_stream_destroy(stream);
    }
}

/* The soft-cap of every logit has the three roundings of the reference. */
static void test_softcap_of_every_value(void)
{
    struct err err = {0};
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 30.0F);
    const uint16_t one = k_bf16_from_f32(1.0F);
    const uint32_t zero = 0;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t raw = (uint16_t)bits;
        uint16_t logit = 0;
        struct k_head_args args = {
            .x = &one,
            .token_index = &zero,
            .rows = 1,
            .hidden_elems = 1,
            .table = &raw,
            .vocab_tokens = 1,
            .softcap = 30.0F,
            .logits = &logit,
        };
        test_ok(k_cpu_ops()->head(stream, &args, &err), &err);
        double value = ops_f64(&raw, 0);
        if (isnan(value)) {
            test_true(isnan(ops_f64(&logit, 0)));
            continue;
        }
        double want = ops_round(30.0 * ops_round(tanh(ops_round(value / 30.0))));
        test_true(ops_f64(&logit, 0) == want);
    }
    k_cpu_stream_destroy(stream);
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t value = 0;
    struct k_linear_args args = {
        .x = &value,
        .rows = 1,
        .in_elems = 1025,
        .part_count = 1,
        .weights = {&value},
        .out_elems = {1},
        .out = &value,
    };
    test_eq_u64(k_cpu_ops()->linear(stream, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "linear: 1025 inputs, the stream was made for 1 to 1024");
    args.in_elems = 1;
    args.part_count = 4;
    test_eq_u64(k_cpu_ops()->linear(stream, &args, &err), ERR_SHAPE);
    k_cpu_stream_destroy(stream);
}

/* gate, gelu, up and product round one after the other: the parts come from linear, and from the
 * operator itself with an up of one. */
static void test_gate_up_rounds_at_each_step(void)
{
    enum {
        ROWS = 6,
        IN = 64,
        INNER = 100
    };
    struct err err = {0};
    uint64_t random = SEED;
    struct k_stream *stream = ops_stream(OPS_LOOPS_BEST, 0.0F);
    uint16_t *x = ops_random_bf16(&random, (uint64_t)ROWS * IN, 1.0);
    uint16_t *w = ops_random_bf16(&random, 2UL * INNER * IN, 0.2);
    uint16_t parts[ROWS * 2 * INNER]; /* [rows, gate | up] */
    uint16_t out[ROWS * INNER];
    const uint16_t one = k_bf16_from_f32(1.0F);
    struct k_linear_args linear = {
        .x = x,
        .rows = ROWS,
        .in_elems = IN,
        .part_count = 2,
        .weights = {w, w + (uint64_t)INNER * IN},
        .out_elems = {INNER, INNER},
        .out = parts,
    };
    struct k_gate_up_args args = {
        .x = x,
        .rows = ROWS,
        .in_elems = IN,
        .gate = w,
        .up = w + (uint64_t)INNER * IN,
        .intermediate_elems = INNER,
        .out = out,
    };
    test_ok(k_cpu_ops()->linear(stream, &linear, &err), &err);
    test_ok(k_cpu_ops()->gate_up(stream, &args, &err), &err);
    for (uint32_t i = 0; i < ROWS * INNER; i++) {
        const uint16_t *row = parts + (uint64_t)(i / INNER) * 2 * INNER;
        uint16_t gelu = 0;
        struct k_gate_up_args single = {
            .x = &one,
            .rows = 1,
            .in_elems = 1,
            .gate = &row[i % INNER],
            .up = &one,
            .intermediate_elems = 1,
            .out = &gelu,
        };
        test_ok(k_cpu_ops()->gate_up(stream, &single, &err), &err);
        double up = ops_f64(row, INNER + i % INNER);
        test_true(ops_f64(out, i) == ops_round(ops_f64(&gelu, 0) * up));
    }
    mem_free(w);
    mem_free(x);
    k_cpu_stream_destroy(stream);
}

static const struct test_case cases[] = {
    TEST(test_gate_up_rounds_at_each_step),
    TEST(test_linear_is_the_product),
    TEST(test_a_row_has_the_same_bits_in_any_company),
    TEST(test_gate_up_is_geglu),
    TEST(test_gelu_of_every_value),
    TEST(test_head_gathers_and_caps),
    TEST(test_softcap_of_every_value),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
