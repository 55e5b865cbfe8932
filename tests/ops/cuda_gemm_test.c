/* The operator table of the cuda worker: products of more than 16 rows go to cuBLAS, with GeGLU,
 * gathered rows and soft-cap around them; fewer go to the kernels.
 *
 * Permitted as in linear_rig.h, but 2^-19 |x| |w| in a sum: the library adds all of k in one
 * register, each step cut off rather than rounded, and the cuts add up. */
#include <stdio.h>

#include "common/mem.h"
#include "tests/testlib/linear_rig.h"
#include "tests/testlib/test.h"
#include "worker/gemm.h"

#define ERROR    0x1p-19
#define MAX_ROWS TWIN_MAX_ROWS

static const uint32_t row_counts[] = {1, 8, 16, 17, 33, 64, 200};

struct gemm_rig {
    struct cuda_rig cuda;
    unsigned char *workspace;
    struct gemm *gemm;
    struct k_stream *stream; /* has gemm as its owner */
    struct linear_source source;
};

static void open_rig(struct gemm_rig *rig)
{
    struct err err = {0};
    const struct k_cuda_shape shape = linear_rig_shape();
    cuda_rig_open(&rig->cuda, &shape, true);
    rig->workspace = cuda_rig_alloc(gemm_workspace_bytes(MAX_ROWS, MAX_ROWS, 5376, 21504));
    const struct gemm_options options = {
        .stream = rig->cuda.stream,
        .workspace = rig->workspace,
        .max_tokens = MAX_ROWS,
        .max_rows = MAX_ROWS,
        .hidden_elems = 5376,
        .max_intermediate_elems = 21504,
        .small_rows = K_CUDA_SMALL_ROWS,
    };
    test_ok(gemm_create(&options, &rig->gemm, &err), &err);
    const struct k_cuda_options stream_options = {
        .stream = rig->cuda.stream,
        .shape = shape,
        .scratch = rig->cuda.scratch,
        .uses_dependent_launch = true,
        .owner = rig->gemm,
    };
    test_ok(k_cuda_stream_create(&stream_options, &rig->stream, &err), &err);
    rig->source = (struct linear_source){gemm_ops(rig->gemm), rig->stream, ERROR};
}

static void close_rig(struct gemm_rig *rig)
{
    cuda_rig_wait(&rig->cuda);
    k_cuda_stream_destroy(rig->stream);
    gemm_destroy(rig->gemm);
    cuda_rig_free(rig->workspace);
    cuda_rig_close(&rig->cuda);
}

static void check_layer(const struct linear_layer *layer)
{
    struct gemm_rig rig;
    open_rig(&rig);
    linear_rig_check_layer(&rig.source, layer, row_counts, TWIN_COUNT_OF(row_counts));
    close_rig(&rig);
}

static void test_products_of_the_tiny_layout(void)
{
    check_layer(&linear_layer_tiny);
}

static void test_products_of_the_demo_layout(void)
{
    check_layer(&linear_layer_demo);
}

static void test_products_of_the_12b_layout(void)
{
    check_layer(&linear_layer_12b);
}

static void test_products_of_the_31b_layout(void)
{
    check_layer(&linear_layer_31b);
}

/* Matrices side by side are one product, others one each. */
static void test_matrices_side_by_side_and_apart(void)
{
    static const struct linear_shape shapes[] = {
        {"three together", LINEAR_KIND_PLAIN, 768, {512, 256, 256}, true},
        {"three apart", LINEAR_KIND_PLAIN, 768, {512, 256, 256}, false},
        {"gate and up together", LINEAR_KIND_GATE_UP, 768, {520, 520}, true},
        {"gate and up apart", LINEAR_KIND_GATE_UP, 768, {520, 520}, false},
        {"head without a cap", LINEAR_KIND_HEAD_UNCAPPED, 768, {1000}, true},
    };
    struct gemm_rig rig;
    open_rig(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
        linear_rig_check(&rig.source, &shapes[i], row_counts, TWIN_COUNT_OF(row_counts));
    }
    close_rig(&rig);
}

struct recording {
    const struct linear_case *at;
    const struct linear_source *source;
    uint32_t rows;
};

static void record(void *context)
{
    const struct recording *recording = context;
    linear_case_run(recording->at, recording->source, recording->rows);
}

static void test_a_graph_of_many_rows(void)
{
    static const struct linear_shape shape = {
        "gate and up", LINEAR_KIND_GATE_UP, 256, {128, 128}, true};
    uint64_t random = 91;
    struct gemm_rig rig;
    struct linear_case at;
    open_rig(&rig);
    linear_case_init(&at, &shape, 24, &random);
    at.error = ERROR;
    linear_case_run(&at, &rig.source, 24); /* the library makes itself ready */
    cuda_rig_wait(&rig.cuda);
    struct recording recording = {&at, &rig.source, 24};
    struct cuda_rig_graph *graph = cuda_rig_capture(&rig.cuda, record, &recording);
    twin_poison(&at.out);
    cuda_rig_launch(&rig.cuda, graph);
    cuda_rig_wait(&rig.cuda);
    uint16_t *got = twin_read(&at.out, at.out.bytes, shape.name);
    const struct twin_compare compare = linear_case_compare(&at, got, 24, "24 rows in a graph");
    twin_check(&compare, NULL);
    cuda_rig_graph_free(graph);
    mem_free(got);
    linear_case_fini(&at);
    close_rig(&rig);
}

static void test_more_rows_than_it_was_made_for(void)
{
    struct err err = {0};
    struct gemm_rig rig;
    open_rig(&rig);
    const struct k_head_args args = {
        .rows = MAX_ROWS + 1, .hidden_elems = 64, .vocab_tokens = 64, .softcap = 30.0F};
    test_eq_u64(gemm_ops(rig.gemm)->head(rig.stream, &args, &err), ERR_SHAPE);
    test_eq_str(err.message, "head: 201 rows, at most 200");
    close_rig(&rig);
}

static const struct test_case cases[] = {
    TEST(test_products_of_the_tiny_layout),     TEST(test_products_of_the_demo_layout),
    TEST(test_products_of_the_12b_layout),      TEST(test_products_of_the_31b_layout),
    TEST(test_matrices_side_by_side_and_apart), TEST(test_a_graph_of_many_rows),
    TEST(test_more_rows_than_it_was_made_for),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
