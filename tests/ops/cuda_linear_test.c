/* Products of few and of many rows on cuda against the cpu twin: every product of the 12B, 31B, demo
 * and tiny layouts, the whole vocabulary, and sizes that fit nothing.  What is permitted is stated
 * in linear_rig.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/dtype.h"
#include "tests/testlib/linear_rig.h"
#include "tests/testlib/test.h"

#define SEED 73

static const uint32_t all_counts[] = TWIN_ROW_COUNTS;
static const uint32_t few_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void open_rig(struct cuda_rig *rig, bool uses_dependent_launch)
{
    const struct k_cuda_shape shape = linear_rig_shape();
    cuda_rig_open(rig, &shape, uses_dependent_launch);
}

static struct linear_source source_of(const struct cuda_rig *rig)
{
    return (struct linear_source){k_cuda_ops(), rig->k, LINEAR_RIG_ERROR};
}

static void check_layer(const struct linear_layer *layer)
{
    struct cuda_rig rig;
    open_rig(&rig, true);
    const struct linear_source source = source_of(&rig);
    linear_rig_check_layer(&source, layer, all_counts, TWIN_COUNT_OF(all_counts));
    cuda_rig_close(&rig);
}

static void test_products_of_the_tiny_layout(void)
{
    check_layer(&linear_layer_tiny);
}

static void test_products_of_the_demo_layout(void)
{
    check_layer(&linear_layer_demo);
}

/* Large ones cost minutes where the plain loops stand in for the device. */
static void check_large_layer(const struct linear_layer *layer)
{
    if (cuda_rig_is_stand_in()) {
        test_skip("a large layout; the cpu stands in");
    }
    check_layer(layer);
}

static void test_products_of_the_12b_layout(void)
{
    check_large_layer(&linear_layer_12b);
}

static void test_products_of_the_31b_layout(void)
{
    check_large_layer(&linear_layer_31b);
}

/* More logits than 2^31 bytes of table. */
static void test_head_over_the_whole_vocabulary(void)
{
    static const struct linear_shape head = {
        "head of 12b, whole", LINEAR_KIND_HEAD, 3840, {262144}, true};
    struct cuda_rig rig;
    if (cuda_rig_is_stand_in()) {
        test_skip("a large vocabulary; the cpu stands in");
    }
    open_rig(&rig, true);
    const struct linear_source source = source_of(&rig);
    linear_rig_check(&source, &head, few_counts, TWIN_COUNT_OF(few_counts));
    cuda_rig_close(&rig);
}

/* Every number of warps, steps and slices, fewer rows of weights than multiprocessors, ends of tiles
 * in every place, and inputs that the streaming kernels do not take. */
static const struct linear_shape odd_shapes[] = {
    {"one of eight", LINEAR_KIND_PLAIN, 8, {1}, true},
    {"three small matrices", LINEAR_KIND_PLAIN, 24, {5, 3, 1}, false},
    {"a last piece of eight", LINEAR_KIND_PLAIN, 1032, {17, 2}, true},
    {"6 warps of 4 steps, 1 output", LINEAR_KIND_PLAIN, 768, {1}, true},
    {"6 warps of 4 steps, 131 outputs", LINEAR_KIND_PLAIN, 768, {131}, true},
    {"7 warps of 4 steps, parts end in tiles", LINEAR_KIND_PLAIN, 896, {133, 7, 260}, false},
    {"16 warps of 4 steps", LINEAR_KIND_PLAIN, 2048, {2113}, true},
    {"9 warps of 8 steps", LINEAR_KIND_PLAIN, 2304, {300, 1, 99}, false},
    {"12 warps of 12 steps", LINEAR_KIND_PLAIN, 4608, {150}, true},
    {"7 warps of 24 steps", LINEAR_KIND_GATE_UP, 5376, {70, 70}, false},
    {"2 slices", LINEAR_KIND_PLAIN, 4096, {129, 131}, true},
    {"4 slices", LINEAR_KIND_PLAIN, 9216, {71}, true},
    {"8 slices", LINEAR_KIND_PLAIN, 16384, {133}, true},
    {"gate and up, odd", LINEAR_KIND_GATE_UP, 768, {1061, 1061}, false},
    {"gate and up, few", LINEAR_KIND_GATE_UP, 1536, {7, 7}, true},
    {"gate and up, plain", LINEAR_KIND_GATE_UP, 200, {37, 37}, true},
    {"head, odd vocabulary", LINEAR_KIND_HEAD, 768, {2111}, true},
    {"head, odd and plain", LINEAR_KIND_HEAD, 72, {999}, true},
    {"head without a cap", LINEAR_KIND_HEAD_UNCAPPED, 1024, {515}, true},
};

static void test_odd_sizes(void)
{
    static const uint32_t fewer_counts[] = {1, 4, 8, 9, 16, 17, 33};
    uint32_t most = cuda_rig_is_stand_in() ? 5 : 7;
    for (int is_dependent = cuda_rig_is_stand_in() ? 1 : 0; is_dependent < 2; is_dependent++) {
        struct cuda_rig rig;
        open_rig(&rig, is_dependent == 1);
        const struct linear_source source = source_of(&rig);
        for (uint32_t i = 0; i < TWIN_COUNT_OF(odd_shapes); i++) {
            linear_rig_check(&source, &odd_shapes[i], fewer_counts, most);
        }
        cuda_rig_close(&rig);
    }
}

/* Rows of one kernel: a row's bits depend neither on its place nor on how many there are. */
static void check_places(const struct linear_source *source, const struct linear_shape *shape,
                         uint32_t least, uint32_t most)
{
    uint64_t random = SEED;
    struct linear_case at;
    linear_case_init(&at, shape, most, &random);
    size_t columns = at.columns;
    size_t row_elems = shape->in_elems;
    uint16_t *first = linear_case_got(&at, source, most);
    for (uint32_t rows = least; rows < most; rows++) {
        uint16_t *got = linear_case_got(&at, source, rows);
        twin_check_equal("fewer rows", got, first, rows * columns, sizeof(*got));
        mem_free(got);
    }
    for (uint32_t place = 1; place < most; place++) {
        uint16_t *x = at.x.host;
        memcpy(x + place * row_elems, x, row_elems * sizeof(*x));
        twin_write(&at.x);
        uint16_t *got = linear_case_got(&at, source, most);
        twin_check_equal("another place", got + place * columns, first, columns, sizeof(*got));
        mem_free(got);
    }
    mem_free(first);
    linear_case_fini(&at);
}

static void test_a_row_is_the_same_at_every_place(void)
{
    static const struct linear_shape shapes[] = {
        {"2 slices", LINEAR_KIND_PLAIN, 4096, {260}, true},
        {"plain", LINEAR_KIND_PLAIN, 192, {133}, true},
        {"gate and up", LINEAR_KIND_GATE_UP, 1024, {300, 300}, true},
    };
    struct cuda_rig rig;
    open_rig(&rig, true);
    const struct linear_source source = source_of(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
        check_places(&source, &shapes[i], 1, 8);
        check_places(&source, &shapes[i], 9, 16);
        check_places(&source, &shapes[i], 17, 33);
    }
    cuda_rig_close(&rig);
}

struct recording {
    const struct linear_case *at;
    struct linear_source source;
    uint32_t rows;
};

static void record(void *context)
{
    const struct recording *recording = context;
    linear_case_run(recording->at, &recording->source, recording->rows);
}

/* Captured at a bucket's size, replayed over inputs that have changed since. */
static void check_graph(struct cuda_rig *rig, const struct linear_shape *shape, uint32_t rows)
{
    uint64_t random = SEED + rows;
    char label[96];
    struct linear_case at;
    struct linear_case later;
    (void)snprintf(label, sizeof(label), "%s, a graph of %u rows", shape->name, rows);
    linear_case_init(&at, shape, rows, &random);
    struct recording recording = {&at, source_of(rig), rows};
    struct cuda_rig_graph *graph = cuda_rig_capture(rig, record, &recording);
    linear_case_init(&later, shape, rows, &random);
    for (int turn = 0; turn < 2; turn++) {
        struct linear_case *now = turn == 0 ? &at : &later;
        cuda_rig_write(at.x.device, now->x.host, at.x.bytes);
        cuda_rig_write(at.weights.device, now->weights.host, at.weights.bytes);
        twin_poison(&at.out);
        cuda_rig_launch(rig, graph);
        cuda_rig_wait(rig);
        uint16_t *got = twin_read(&at.out, at.out.bytes, label);
        const struct twin_compare compare = linear_case_compare(now, got, rows, label);
        twin_check(&compare, NULL);
        mem_free(got);
    }
    cuda_rig_graph_free(graph);
    linear_case_fini(&later);
    linear_case_fini(&at);
}

static void test_a_graph_of_products(void)
{
    static const struct linear_shape shapes[] = {
        {"one slice", LINEAR_KIND_PLAIN, 768, {133, 8, 40}, false},
        {"2 slices", LINEAR_KIND_PLAIN, 4096, {40}, true},
        {"plain", LINEAR_KIND_PLAIN, 192, {50}, true},
        {"gate and up", LINEAR_KIND_GATE_UP, 768, {50, 50}, true},
        {"head", LINEAR_KIND_HEAD, 768, {150}, true},
    };
    for (int is_dependent = cuda_rig_is_stand_in() ? 1 : 0; is_dependent < 2; is_dependent++) {
        struct cuda_rig rig;
        open_rig(&rig, is_dependent == 1);
        for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
            check_graph(&rig, &shapes[i], 1);
            check_graph(&rig, &shapes[i], 8);
            check_graph(&rig, &shapes[i], 16);
        }
        cuda_rig_close(&rig);
    }
}

/* ---- a product that feeds a norm ---- */

enum {
    FED_ROWS = 16,
    FED_HIDDEN = 264,
};

struct fed {
    struct twin_buffer weight; /* of both norms */
    struct twin_buffer x;
    struct twin_buffer normed;
};

/* What residual_norm makes of a product, whose slices it may add up itself; to be freed. */
static void *run_fed(struct cuda_rig *rig, const struct linear_case *at, uint32_t rows, bool feeds,
                     const struct fed *fed)
{
    size_t used = (size_t)rows * FED_HIDDEN * sizeof(uint16_t);
    struct err err = {0};
    const struct k_linear_args product = {
        .x = at->x.device,
        .rows = rows,
        .in_elems = at->shape->in_elems,
        .part_count = 1,
        .weights = {at->weights.device},
        .out_elems = {FED_HIDDEN},
        .feeds_residual_norm = feeds,
        .out = at->out.device,
    };
    const struct k_residual_norm_args norm = {
        .h = at->out.device,
        .post_weight = fed->weight.device,
        .next_weight = fed->weight.device,
        .eps = 1e-6F,
        .rows = rows,
        .hidden_elems = FED_HIDDEN,
        .x = fed->x.device,
        .normed = fed->normed.device,
    };
    twin_write(&fed->x);
    twin_poison(&fed->normed);
    twin_poison(&at->out);
    test_ok(k_cuda_ops()->linear(rig->k, &product, &err), &err);
    test_ok(k_cuda_ops()->residual_norm(rig->k, &norm, &err), &err);
    cuda_rig_wait(rig);
    return twin_read(&fed->normed, used, at->shape->name);
}

/* Bits must not depend on who adds the slices; the product itself is checked above. */
static void test_a_norm_that_adds_the_slices_changes_no_bit(void)
{
    static const struct linear_shape shapes[] = {
        {"1 slice", LINEAR_KIND_PLAIN, 3840, {FED_HIDDEN}, true},
        {"2 slices", LINEAR_KIND_PLAIN, 4096, {FED_HIDDEN}, true},
        {"4 slices", LINEAR_KIND_PLAIN, 15360, {FED_HIDDEN}, true},
        {"8 slices", LINEAR_KIND_PLAIN, 21504, {FED_HIDDEN}, true},
    };
    uint64_t random = SEED;
    struct cuda_rig rig;
    open_rig(&rig, true);
    size_t bytes = (size_t)FED_ROWS * FED_HIDDEN * sizeof(uint16_t);
    struct fed fed = {
        .weight =
            twin_in(twin_random_bf16(FED_HIDDEN, 1.0, &random), FED_HIDDEN * sizeof(uint16_t)),
        .x = twin_in(twin_random_bf16((uint64_t)FED_ROWS * FED_HIDDEN, 1.0, &random), bytes),
        .normed = twin_out(bytes),
    };
    for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
        struct linear_case at;
        linear_case_init(&at, &shapes[i], FED_ROWS, &random);
        for (uint32_t rows = 1; rows <= FED_ROWS; rows++) {
            void *apart = run_fed(&rig, &at, rows, false, &fed);
            void *together = run_fed(&rig, &at, rows, true, &fed);
            twin_check_equal(shapes[i].name, together, apart, (size_t)rows * FED_HIDDEN,
                             sizeof(uint16_t));
            mem_free(apart);
            mem_free(together);
        }
        linear_case_fini(&at);
    }
    twin_free(&fed.weight);
    twin_free(&fed.x);
    twin_free(&fed.normed);
    cuda_rig_close(&rig);
}

/* ---- that these tests can fail ---- */

/* The comparison with one thing wrong in what the device made. */
static bool is_seen(struct linear_case *at, const uint16_t *got)
{
    struct twin_report report;
    const struct twin_compare compare = linear_case_compare(at, got, at->max_rows, "planted");
    return !twin_agrees(&compare, &report);
}

/* One product of a sum left out moves some rows past a rounding boundary that they may not pass. */
static void test_planted_errors_are_seen(void)
{
    static const struct linear_shape plain = {"plain", LINEAR_KIND_PLAIN, 768, {40, 24}, true};
    static const struct linear_shape gate = {"gate", LINEAR_KIND_GATE_UP, 768, {64, 64}, true};
    const struct linear_shape *shapes[] = {&plain, &gate};
    uint64_t random = SEED;
    struct cuda_rig rig;
    open_rig(&rig, true);
    const struct linear_source source = source_of(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
        struct linear_case at;
        linear_case_init(&at, shapes[i], 16, &random);
        uint16_t *got = linear_case_got(&at, &source, 16);
        test_true(!is_seen(&at, got));
        got[5 * at.columns + 7] ^= 1;
        bool is_one_bit_seen = is_seen(&at, got);
        mem_free(got);
        uint16_t *weights = at.weights.host;
        uint16_t kept[64];
        for (uint32_t row = 0; row < 64; row++) {
            uint16_t *last = weights + (uint64_t)(row + 1) * 768 - 1;
            kept[row] = *last;
            *last = 0;
        }
        twin_write(&at.weights);
        for (uint32_t row = 0; row < 64; row++) {
            weights[(uint64_t)(row + 1) * 768 - 1] = kept[row];
        }
        got = linear_case_got(&at, &source, 16);
        test_true(is_one_bit_seen);
        test_true(is_seen(&at, got));
        mem_free(got);
        linear_case_fini(&at);
    }
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
    struct k_linear_args args = {.rows = 1, .in_elems = 12, .part_count = 1, .out_elems = {8}};
    test_eq_u64(k_cuda_ops()->linear(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "linear: 12 input elements, a multiple of 8");
    args.in_elems = 16;
    args.part_count = 4;
    test_eq_u64(k_cuda_ops()->linear(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "linear: 4 matrices, 1 to 3 are taken");
    args.part_count = 1;
    args.out_elems[0] = 24577;
    test_eq_u64(k_cuda_ops()->linear(rig.k, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "linear: 24577 outputs, the stream was made for 24576");
    const struct k_gate_up_args gate = {.rows = 1, .in_elems = 4, .intermediate_elems = 8};
    test_eq_u64(k_cuda_ops()->gate_up(rig.k, &gate, &err), ERR_SHAPE);
    const struct k_head_args head = {.rows = 1, .hidden_elems = 0, .vocab_tokens = 8};
    test_eq_u64(k_cuda_ops()->head(rig.k, &head, &err), ERR_SHAPE);
    _Alignas(16) const uint16_t odd[16] = {0};
    args.out_elems[0] = 8;
    args.x = odd + 1;
    test_eq_u64(k_cuda_ops()->linear(rig.k, &args, &err), ERR_ALIGN);
    test_eq_str(err.message, "linear: x is not 16-byte aligned");
    const struct k_head_args table = {.table = odd + 4, .hidden_elems = 8, .vocab_tokens = 8};
    test_eq_u64(k_cuda_ops()->head(rig.k, &table, &err), ERR_ALIGN);
    test_eq_str(err.message, "head: table is not 16-byte aligned");
    args.x = NULL;
    args.rows = 0;
    test_ok(k_cuda_ops()->linear(rig.k, &args, &err), &err);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_products_of_the_tiny_layout),
    TEST(test_products_of_the_demo_layout),
    TEST(test_products_of_the_12b_layout),
    TEST(test_products_of_the_31b_layout),
    TEST(test_head_over_the_whole_vocabulary),
    TEST(test_odd_sizes),
    TEST(test_a_row_is_the_same_at_every_place),
    TEST(test_a_graph_of_products),
    TEST(test_a_norm_that_adds_the_slices_changes_no_bit),
    TEST(test_planted_errors_are_seen),
    TEST(test_shapes_are_checked),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
