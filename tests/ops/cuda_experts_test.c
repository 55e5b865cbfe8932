/* Products of experts on cuda against the cpu twin, at every width of a block; route and join_norm have
 * cuda_route_test.c.
 *
 * Permitted in a sum: as for dense products, linear_rig.h.  Between widths of a block, beside other
 * pairs and in a graph: equal bits.  An expert without pairs has weights of NaN, which would show. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/linear_rig.h"
#include "tests/testlib/test.h"

#define SEED        91
#define MAX_ROWS    TWIN_MAX_ROWS
#define LABEL_BYTES 128

static const uint32_t row_counts[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, MAX_ROWS};
static const uint32_t widths[] = {8, 16, 32, 64, 128};

/* 26B-A4B with fewer experts, the tiny layout, ends of tiles and of k in every place, more experts than
 * four to a lane. */
static const struct layout {
    const char *name;
    uint32_t hidden;
    uint32_t inner;
    uint32_t experts;
    uint32_t top;
    bool is_large;
} layouts[] = {
    {"26b", 2816, 704, 24, 8, true},   {"tiny", 64, 64, 17, 4, false},
    {"odd", 72, 40, 6, 3, false},      {"one of eight", 8, 8, 4, 1, false},
    {"many", 264, 136, 131, 2, false},
};

struct products {
    const struct layout *layout;
    uint32_t rows;             /* of the routing */
    uint32_t *ids;             /* [MAX_ROWS, top]; K_EXPERT_NONE of padding */
    struct twin_buffer pairs;  /* [MAX_ROWS * top] */
    struct twin_buffer starts; /* [experts + 1] */
    struct twin_buffer x;      /* [MAX_ROWS, hidden] */
    struct twin_buffer gate_up;
    struct twin_buffer down;
    struct twin_buffer gated; /* [MAX_ROWS * top, inner]: the host's is the twin's, as is out's */
    struct twin_buffer gated_in; /* the twin's, input of down */
    struct twin_buffer out;      /* [MAX_ROWS * top, hidden] */
};

static void open_rig(struct cuda_rig *rig, bool uses_dependent_launch)
{
    struct k_cuda_shape shape = linear_rig_shape();
    shape.experts = 256;
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

/* ---- operands ---- */

/* Distinct experts of each row, never the last one; every seventh row is padding. */
static void draw_ids(struct products *at, uint64_t *random)
{
    const struct layout *layout = at->layout;
    for (uint32_t p = 0; p < MAX_ROWS * layout->top; p++) {
        uint32_t *row = at->ids + (size_t)(p / layout->top) * layout->top;
        uint32_t k = p % layout->top;
        bool is_new = false;
        while (!is_new) {
            row[k] = twin_random_below(random, layout->experts - 1);
            is_new = true;
            for (uint32_t before = 0; before < k; before++) {
                is_new = is_new && row[before] != row[k];
            }
        }
    }
    for (uint32_t p = 0; p < MAX_ROWS * layout->top; p++) {
        at->ids[p] = p / layout->top % 7 == 5 ? K_EXPERT_NONE : at->ids[p];
    }
}

/* Pairs by expert, of the first rows; on both sides. */
static void sort(struct products *at, uint32_t rows)
{
    uint32_t *pairs = at->pairs.host;
    uint32_t *starts = at->starts.host;
    uint32_t count = 0;
    test_true(pairs != NULL && starts != NULL);
    for (uint32_t e = 0; e < at->layout->experts; e++) {
        starts[e] = count;
        for (uint32_t p = 0; p < rows * at->layout->top; p++) {
            if (at->ids[p] == e) {
                pairs[count++] = p;
            }
        }
    }
    starts[at->layout->experts] = count;
    at->rows = rows;
    twin_write(&at->pairs);
    twin_write(&at->starts);
}

static struct k_expert_args args_of(const struct products *at, bool is_down, bool is_on_device)
{
    const struct layout *layout = at->layout;
    const struct twin_buffer *x = is_down ? &at->gated_in : &at->x;
    const struct twin_buffer *weights = is_down ? &at->down : &at->gate_up;
    const struct twin_buffer *out = is_down ? &at->out : &at->gated;
    return (struct k_expert_args){
        .x = is_on_device ? x->device : x->host,
        .routing = {.pairs = is_on_device ? at->pairs.device : at->pairs.host,
                    .starts = is_on_device ? at->starts.device : at->starts.host},
        .rows = at->rows,
        .experts = layout->experts,
        .top_experts = layout->top,
        .in_elems = is_down ? layout->inner : layout->hidden,
        .out_elems = is_down ? layout->hidden : layout->inner,
        .weights = is_on_device ? weights->device : weights->host,
        .out = is_on_device ? out->device : out->host,
    };
}

static struct twin_buffer weights_of(const struct layout *layout, uint32_t matrices, uint32_t in,
                                     uint64_t *random)
{
    uint64_t matrix = (uint64_t)matrices * layout->hidden * layout->inner;
    uint16_t *weights = twin_random_bf16(layout->experts * matrix, 1.0 / sqrt(in), random);
    memset(weights + (layout->experts - 1) * matrix, 0xff, matrix * sizeof(*weights));
    return twin_in(weights, layout->experts * matrix * sizeof(*weights));
}

static void products_init(struct products *at, const struct layout *layout)
{
    struct err err = {0};
    uint64_t random = SEED;
    uint64_t pairs = (uint64_t)MAX_ROWS * layout->top;
    uint64_t gated_bytes = pairs * layout->inner * sizeof(uint16_t);
    *at = (struct products){.layout = layout};
    at->ids = mem_zalloc(pairs, sizeof(*at->ids));
    draw_ids(at, &random);
    at->pairs = twin_out(pairs * sizeof(uint32_t));
    at->starts = twin_out((layout->experts + 1ULL) * sizeof(uint32_t));
    at->x = twin_in(twin_random_bf16((uint64_t)MAX_ROWS * layout->hidden, 2.0, &random),
                    (uint64_t)MAX_ROWS * layout->hidden * sizeof(uint16_t));
    at->gate_up = weights_of(layout, 2, layout->hidden, &random);
    at->down = weights_of(layout, 1, layout->inner, &random);
    at->gated = twin_out(gated_bytes);
    at->out = twin_out(pairs * layout->hidden * sizeof(uint16_t));
    sort(at, MAX_ROWS);
    struct k_stream *twin = twin_stream(1000, 0.0F);
    struct k_expert_args args = args_of(at, false, false);
    test_ok(k_cpu_ops()->expert_gate_up(twin, &args, &err), &err);
    uint16_t *gated = mem_zalloc(gated_bytes, 1);
    memcpy(gated, at->gated.host, gated_bytes);
    at->gated_in = twin_in(gated, gated_bytes);
    args = args_of(at, true, false);
    test_ok(k_cpu_ops()->expert_down(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static void products_fini(struct products *at)
{
    mem_free(at->ids);
    twin_free(&at->pairs);
    twin_free(&at->starts);
    twin_free(&at->x);
    twin_free(&at->gate_up);
    twin_free(&at->down);
    twin_free(&at->gated);
    twin_free(&at->gated_in);
    twin_free(&at->out);
}

static void run(struct cuda_rig *rig, const struct products *at, bool is_down, uint32_t width)
{
    struct err err = {0};
    struct k_expert_args args = args_of(at, is_down, true);
    args.block_rows = width;
    test_ok(is_down ? k_cuda_ops()->expert_down(rig->k, &args, &err)
                    : k_cuda_ops()->expert_gate_up(rig->k, &args, &err),
            &err);
}

/* What the device makes, to be freed; nothing else of the buffer may change. */
static uint16_t *result_of(struct cuda_rig *rig, const struct products *at, bool is_down,
                           uint32_t width, const char *label)
{
    const struct twin_buffer *out = is_down ? &at->out : &at->gated;
    uint32_t columns = is_down ? at->layout->hidden : at->layout->inner;
    twin_poison(out);
    run(rig, at, is_down, width);
    cuda_rig_wait(rig);
    return twin_read(out, (size_t)at->rows * at->layout->top * columns * sizeof(uint16_t), label);
}

/* ---- what is permitted ---- */

struct permission {
    const struct products *at;
    bool is_down;
};

static struct twin_interval dot(const uint16_t *x, const uint16_t *w, uint32_t elems)
{
    double sum = 0.0;
    double x_squares = 0.0;
    double w_squares = 0.0;
    for (uint32_t k = 0; k < elems; k++) {
        double a = (double)k_f32_from_bf16(x[k]);
        double b = (double)k_f32_from_bf16(w[k]);
        sum += a * b;
        x_squares += a * a;
        w_squares += b * b;
    }
    return twin_rounded(sum, LINEAR_RIG_ERROR * sqrt(x_squares * w_squares));
}

static struct twin_interval permitted(void *context, uint32_t pair, uint32_t column)
{
    const struct permission *permission = context;
    const struct products *at = permission->at;
    uint64_t hidden = at->layout->hidden;
    uint64_t inner = at->layout->inner;
    uint64_t expert = at->ids[pair];
    if (expert == K_EXPERT_NONE) { /* NaN on both sides, checked before */
        return (struct twin_interval){.low = 0.0F, .high = 0.0F};
    }
    if (permission->is_down) {
        const uint16_t *w = (const uint16_t *)at->down.host + (expert * hidden + column) * inner;
        return dot((const uint16_t *)at->gated_in.host + pair * inner, w, (uint32_t)inner);
    }
    const uint16_t *x = (const uint16_t *)at->x.host + pair / at->layout->top * hidden;
    const uint16_t *gate =
        (const uint16_t *)at->gate_up.host + (expert * 2 * inner + column) * hidden;
    struct twin_interval sum = dot(x, gate, (uint32_t)hidden);
    struct twin_interval a = twin_gelu(sum.low);
    struct twin_interval b = twin_gelu(sum.high);
    struct twin_interval gelu = {.low = fminf(a.low, b.low), .high = fmaxf(a.high, b.high)};
    return twin_product(gelu, dot(x, gate + inner * hidden, (uint32_t)hidden));
}

/* Pair by pair: of padding the bits must be the twin's, which are those of before. */
static void check_result(const struct products *at, bool is_down, const uint16_t *got,
                         const char *label, struct twin_totals *totals)
{
    struct permission permission = {at, is_down};
    uint32_t columns = is_down ? at->layout->hidden : at->layout->inner;
    const uint16_t *want = is_down ? at->out.host : at->gated.host;
    for (uint32_t p = 0; p < at->rows * at->layout->top; p++) {
        if (at->ids[p] == K_EXPERT_NONE) {
            uint64_t from = (uint64_t)p * columns;
            twin_check_equal(label, got + from, want + from, columns, sizeof(*got));
        }
    }
    const struct twin_compare compare = {
        .label = label,
        .got = got,
        .want = want,
        .rows = at->rows * at->layout->top,
        .columns = columns,
        .permitted = permitted,
        .context = &permission,
    };
    twin_check(&compare, totals);
}

/* ---- tests ---- */

static void check_rows(struct cuda_rig *rig, struct products *at, bool is_down,
                       struct twin_totals *totals)
{
    char label[LABEL_BYTES];
    size_t used =
        (size_t)at->rows * at->layout->top * (is_down ? at->layout->hidden : at->layout->inner);
    (void)snprintf(label, sizeof(label), "%s of %s, %u rows", is_down ? "down" : "gate and up",
                   at->layout->name, at->rows);
    uint16_t *chosen = result_of(rig, at, is_down, 0, label);
    check_result(at, is_down, chosen, label, totals);
    for (uint32_t w = 0; w < TWIN_COUNT_OF(widths); w++) {
        (void)snprintf(label, sizeof(label), "%s of %s, %u rows in blocks of %u",
                       is_down ? "down" : "gate and up", at->layout->name, at->rows, widths[w]);
        uint16_t *other = result_of(rig, at, is_down, widths[w], label);
        twin_check_equal(label, other, chosen, used, sizeof(*other));
        mem_free(other);
    }
    mem_free(chosen);
}

static void test_products_at_every_width(void)
{
    for (int is_dependent = 0; is_dependent < 2; is_dependent++) {
        struct cuda_rig rig;
        open_rig(&rig, is_dependent == 1);
        for (uint32_t l = 0; l < TWIN_COUNT_OF(layouts); l++) {
            struct twin_totals totals = {0};
            struct products at;
            if (layouts[l].is_large && cuda_rig_is_stand_in()) {
                continue; /* minutes by the plain loops */
            }
            products_init(&at, &layouts[l]);
            for (uint32_t c = 0; c < TWIN_COUNT_OF(row_counts); c++) {
                sort(&at, row_counts[c]);
                check_rows(&rig, &at, false, &totals);
                check_rows(&rig, &at, true, &totals);
            }
            twin_print(layouts[l].name, &totals);
            products_fini(&at);
        }
        cuda_rig_close(&rig);
    }
}

/* A pair's bits are the same when its row is alone, whatever the others are. */
static void test_a_row_alone_has_its_bits(void)
{
    const struct layout *layout = &layouts[1];
    uint64_t row_elems = (uint64_t)layout->top * layout->inner;
    struct cuda_rig rig;
    struct products at;
    open_rig(&rig, true);
    products_init(&at, layout);
    uint16_t *together = result_of(&rig, &at, false, 0, "together");
    for (uint32_t row = 0; row < MAX_ROWS; row += 11) {
        uint32_t first_ids[8];
        uint16_t *x = at.x.host;
        memcpy(first_ids, at.ids, layout->top * sizeof(uint32_t));
        memcpy(at.ids, at.ids + (size_t)row * layout->top, layout->top * sizeof(uint32_t));
        cuda_rig_write(at.x.device, x + (size_t)row * layout->hidden, layout->hidden * sizeof(*x));
        sort(&at, 1);
        uint16_t *alone = result_of(&rig, &at, false, 0, "alone");
        twin_check_equal("a row alone", alone, together + row * row_elems, row_elems,
                         sizeof(*alone));
        mem_free(alone);
        memcpy(at.ids, first_ids, layout->top * sizeof(uint32_t));
        twin_write(&at.x);
    }
    /* Planted errors lie in the last element, which no row above has. */
    struct twin_totals totals = {0};
    sort(&at, MAX_ROWS);
    check_result(&at, false, together, "together", &totals);
    mem_free(together);
    products_fini(&at);
    cuda_rig_close(&rig);
}

struct recording {
    struct cuda_rig *rig;
    const struct products *at;
};

static void record(void *context)
{
    const struct recording *recording = context;
    run(recording->rig, recording->at, false, 0);
    run(recording->rig, recording->at, true, 0);
}

/* One graph, replayed after every token has changed its experts. */
static void test_a_graph_of_products(void)
{
    static const uint32_t rows[] = {1, 8, 16, 64};
    for (uint32_t i = 0; i < 2 * TWIN_COUNT_OF(rows); i++) {
        struct cuda_rig rig;
        struct products at;
        struct twin_totals totals = {0};
        open_rig(&rig, i % 2 == 0);
        products_init(&at, &layouts[1]);
        sort(&at, rows[i / 2]);
        struct recording recording = {&rig, &at};
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        for (uint32_t turn = 0; turn < 2; turn++) {
            const uint32_t top = at.layout->top;
            for (uint32_t p = 0; turn == 1 && p < rows[i / 2] * top; p++) {
                at.ids[p] = at.ids[p + (MAX_ROWS / 2) * top]; /* other rows' choice */
            }
            sort(&at, rows[i / 2]);
            twin_poison(&at.gated);
            twin_poison(&at.out);
            cuda_rig_launch(&rig, graph);
            cuda_rig_wait(&rig);
            if (turn == 1) { /* the twin of the new choice */
                struct err err = {0};
                struct k_stream *twin = twin_stream(1000, 0.0F);
                struct k_expert_args args = args_of(&at, false, false);
                memset(at.gated.host, 0xff, at.gated.bytes);
                test_ok(k_cpu_ops()->expert_gate_up(twin, &args, &err), &err);
                k_cpu_stream_destroy(twin);
            }
            uint16_t *got =
                twin_read(&at.gated,
                          (size_t)rows[i / 2] * top * at.layout->inner * sizeof(uint16_t), "graph");
            check_result(&at, false, got, "graph", &totals);
            mem_free(got);
        }
        cuda_rig_graph_free(graph);
        products_fini(&at);
        cuda_rig_close(&rig);
    }
}

static void test_shapes_are_checked(void)
{
    struct err err = {0};
    struct cuda_rig rig;
    if (cuda_rig_is_stand_in()) {
        test_skip("the cpu backend takes other shapes");
    }
    open_rig(&rig, false);
    struct k_expert_args args = {.rows = 1, .experts = 4, .top_experts = 1};
    args.in_elems = 12;
    args.out_elems = 8;
    test_eq_u64(k_cuda_ops()->expert_down(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "experts: 12 inputs, 8 outputs, multiples of 8");
    args.in_elems = 16;
    args.block_rows = 24;
    test_eq_u64(k_cuda_ops()->expert_down(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "experts: blocks of 24 pairs, must be 8, 16, 32, 64 or 128");
    args.block_rows = 8;
    args.experts = 1025;
    test_eq_u64(k_cuda_ops()->expert_gate_up(rig.k, &args, &err), ERR_SHAPE);
    uint16_t *at = cuda_rig_alloc(256);
    args.experts = 4;
    args.x = at + 1;
    test_eq_u64(k_cuda_ops()->expert_gate_up(rig.k, &args, &err), ERR_ALIGN);
    test_eq_str(err.message, "experts: x is not 16-byte aligned");
    cuda_rig_free(at);
    args = (struct k_expert_args){.experts = 4, .top_experts = 1, .in_elems = 8, .out_elems = 8};
    test_ok(k_cuda_ops()->expert_gate_up(rig.k, &args, &err), &err);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_products_at_every_width),
    TEST(test_a_row_alone_has_its_bits),
    TEST(test_a_graph_of_products),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
