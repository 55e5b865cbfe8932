/* Per-layer embeddings on cuda against the cpu twin.
 *
 * ple_inputs: a norm's factor may be off by 2^-18 of itself, then every rounding that kernels/ple.h
 * names.  ple_layer: two norms and two products lie between its operands and its results, and a last
 * place anywhere moves what follows; x may be off by two last places of itself and of what the layer
 * adds, normed by four of itself and of its weight.  A row, weight or piece of a sum that is wrong
 * changes some tenths of either. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/cuda_twin.h"
#include "tests/testlib/linear_rig.h"
#include "tests/testlib/test.h"

#define SEED        61
#define EPS         1e-6F
#define VOCAB       300
#define MAX_ROWS    TWIN_MAX_ROWS
#define LABEL_BYTES 96

static const uint32_t row_counts[] = TWIN_ROW_COUNTS;

/* E2B and E4B with fewer layers, the tiny checkpoint, odd ones. */
static const struct layout {
    uint32_t hidden;
    uint32_t layers;
    uint32_t elems;
} layouts[] = {{1536, 3, 256}, {2560, 3, 256}, {64, 8, 32}, {72, 2, 8}, {520, 3, 264}};

static void open_rig(struct cuda_rig *rig)
{
    struct k_cuda_shape shape = linear_rig_shape();
    cuda_rig_open(rig, &shape, true);
}

static void *at_side(const struct twin_buffer *buffer, bool is_on_device)
{
    return is_on_device ? buffer->device : buffer->host;
}

static struct twin_buffer random_in(uint64_t elems, double deviation, uint64_t *random)
{
    return twin_in(twin_random_bf16(elems, deviation, random), elems * sizeof(uint16_t));
}

static uint16_t *copy_of(const struct twin_buffer *buffer)
{
    uint16_t *copy = mem_zalloc(buffer->bytes, 1);
    test_true(buffer->host != NULL);
    memcpy(copy, buffer->host, buffer->bytes);
    return copy;
}

/* ---- what every layer gets ---- */

struct inputs {
    const struct layout *layout;
    struct twin_buffer ids;
    struct twin_buffer table;
    struct twin_buffer weight;
    struct twin_buffer values;  /* the host's is the twin's */
    struct twin_buffer fetched; /* the device's alone */
    uint16_t *before;           /* owned, what values held */
};

static struct k_ple_inputs_args inputs_args(const struct inputs *at, uint32_t rows,
                                            bool is_on_device)
{
    return (struct k_ple_inputs_args){
        .ids = at_side(&at->ids, is_on_device),
        .rows = rows,
        .table = at_side(&at->table, is_on_device),
        .norm_weight = at_side(&at->weight, is_on_device),
        .table_scale = k_round_bf16(sqrtf((float)at->layout->elems)),
        .inputs_scale = 1.0F / sqrtf((float)at->layout->hidden),
        .eps = EPS,
        .vocab_tokens = VOCAB,
        .layers = at->layout->layers,
        .elems = at->layout->elems,
        .inputs = at_side(&at->values, is_on_device),
    };
}

static void inputs_init(struct inputs *at, const struct layout *layout, uint64_t *random)
{
    struct err err = {0};
    uint64_t row_elems = (uint64_t)layout->layers * layout->elems;
    uint32_t *ids = mem_zalloc(MAX_ROWS, sizeof(*ids));
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        ids[i] = i < 2 ? (VOCAB - 1) * i : twin_random_below(random, VOCAB);
    }
    *at = (struct inputs){.layout = layout};
    at->ids = twin_in(ids, MAX_ROWS * sizeof(*ids));
    at->table = random_in(VOCAB * row_elems, 0.05, random);
    at->weight = random_in(layout->elems, 1.0, random);
    at->values = random_in(MAX_ROWS * row_elems, 20.0, random);
    at->fetched = twin_out(MAX_ROWS * row_elems * sizeof(uint16_t));
    at->before = copy_of(&at->values);
    struct k_stream *twin = twin_stream(VOCAB, 0.0F);
    const struct k_ple_inputs_args args = inputs_args(at, MAX_ROWS, false);
    test_ok(k_cpu_ops()->ple_inputs(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static void inputs_fini(struct inputs *at)
{
    twin_free(&at->ids);
    twin_free(&at->table);
    twin_free(&at->weight);
    twin_free(&at->values);
    twin_free(&at->fetched);
    mem_free(at->before);
}

static struct twin_interval exactly(float value)
{
    return (struct twin_interval){value, value};
}

static struct twin_interval inputs_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct inputs *at = context;
    const struct k_ple_inputs_args args = inputs_args(at, MAX_ROWS, false);
    uint32_t elems = at->layout->elems;
    uint64_t row_elems = (uint64_t)at->layout->layers * elems;
    const uint16_t *before = at->before + row * row_elems + (uint64_t)(column / elems) * elems;
    uint16_t scaled[512];
    for (uint32_t i = 0; i < elems; i++) {
        scaled[i] = k_bf16_from_f32(k_f32_from_bf16(before[i]) * args.inputs_scale);
    }
    struct twin_interval b = twin_normed(exactly(k_f32_from_bf16(scaled[column % elems])),
                                         twin_rms_factor(scaled, elems, EPS),
                                         (double)k_f32_from_bf16(args.norm_weight[column % elems]));
    float a = k_f32_from_bf16(args.table[args.ids[row] * row_elems + column]) * args.table_scale;
    return twin_product(twin_sum(b, exactly(k_round_bf16(a))), exactly((float)M_SQRT1_2));
}

static void run_inputs(struct cuda_rig *rig, const struct inputs *at, uint32_t rows,
                       bool is_fetched)
{
    struct err err = {0};
    struct k_ple_inputs_args args = inputs_args(at, rows, true);
    args.fetched = is_fetched ? at->fetched.device : NULL;
    cuda_rig_write(at->values.device, at->before, at->values.bytes);
    if (is_fetched && k_cuda_ops()->ple_fetch != NULL) {
        test_ok(k_cuda_ops()->ple_fetch(rig->k, &args, &err), &err);
    }
    test_ok(k_cuda_ops()->ple_inputs(rig->k, &args, &err), &err);
}

static void test_inputs_read_where_they_lie_or_fetched(void)
{
    uint64_t random = SEED;
    struct cuda_rig rig;
    struct twin_totals totals = {0};
    open_rig(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(layouts); i++) {
        struct inputs at;
        inputs_init(&at, &layouts[i], &random);
        uint32_t columns = layouts[i].layers * layouts[i].elems;
        for (uint32_t c = 0; c < 2 * TWIN_COUNT_OF(row_counts); c++) {
            char label[LABEL_BYTES];
            uint32_t rows = row_counts[c / 2];
            (void)snprintf(label, sizeof(label), "ple_inputs, %u layers of %u, %u rows%s",
                           layouts[i].layers, layouts[i].elems, rows,
                           c % 2 == 1 ? ", fetched" : "");
            run_inputs(&rig, &at, rows, c % 2 == 1);
            uint16_t *got = twin_read(&at.values, at.values.bytes, label);
            struct twin_compare compare = {
                .label = label,
                .got = got,
                .want = at.values.host,
                .rows = rows,
                .columns = columns,
                .permitted = inputs_permitted,
                .context = &at,
            };
            twin_check(&compare, &totals);
            uint64_t used = (uint64_t)rows * columns;
            twin_check_equal(label, got + used, at.before + used,
                             (uint64_t)MAX_ROWS * columns - used, sizeof(uint16_t));
            mem_free(got);
        }
        inputs_fini(&at);
    }
    twin_print("ple_inputs", &totals);
    cuda_rig_close(&rig);
}

/* ---- the end of a layer ---- */

enum {
    OPERANDS = 6, /* post, gate, projection, ple, scalar, next */
};

struct layer {
    const struct layout *layout;
    struct twin_buffer weights[OPERANDS];
    struct twin_buffer input; /* [MAX_ROWS, layers, elems]: the second layer's is taken */
    struct twin_buffer h;
    struct twin_buffer gated;
    struct twin_buffer x; /* the host's is the twin's, as is normed's */
    struct twin_buffer normed;
    uint16_t *h_before; /* owned, as x_before */
    uint16_t *x_before;
};

static struct k_ple_layer_args layer_args(const struct layer *at, uint32_t rows, bool is_on_device)
{
    return (struct k_ple_layer_args){
        .post_weight = at_side(&at->weights[0], is_on_device),
        .gate = at_side(&at->weights[1], is_on_device),
        .projection = at_side(&at->weights[2], is_on_device),
        .ple_weight = at_side(&at->weights[3], is_on_device),
        .layer_scalar = at_side(&at->weights[4], is_on_device),
        .next_weight = at_side(&at->weights[5], is_on_device),
        .input = (const uint16_t *)at_side(&at->input, is_on_device) + at->layout->elems,
        .input_stride_elems = (uint64_t)at->layout->layers * at->layout->elems,
        .eps = EPS,
        .rows = rows,
        .hidden_elems = at->layout->hidden,
        .elems = at->layout->elems,
        .h = at_side(&at->h, is_on_device),
        .gated = at_side(&at->gated, is_on_device),
        .x = at_side(&at->x, is_on_device),
        .normed = at_side(&at->normed, is_on_device),
    };
}

static void layer_init(struct layer *at, const struct layout *layout, uint64_t *random)
{
    struct err err = {0};
    uint64_t hidden = layout->hidden;
    uint64_t elems = layout->elems;
    *at = (struct layer){.layout = layout};
    at->weights[0] = random_in(hidden, 1.0, random);
    at->weights[1] = random_in(elems * hidden, 1.0 / sqrt((double)hidden), random);
    at->weights[2] = random_in(hidden * elems, 1.0 / sqrt((double)elems), random);
    at->weights[3] = random_in(hidden, 1.0, random);
    at->weights[4] = random_in(1, 0.6, random);
    at->weights[5] = random_in(hidden, 1.0, random);
    at->input = random_in((uint64_t)MAX_ROWS * layout->layers * elems, 1.0, random);
    at->h = random_in(MAX_ROWS * hidden, 1.0, random);
    at->x = random_in(MAX_ROWS * hidden, 2.0, random);
    at->gated = twin_out(MAX_ROWS * elems * sizeof(uint16_t));
    at->normed = twin_out(MAX_ROWS * hidden * sizeof(uint16_t));
    at->h_before = copy_of(&at->h);
    at->x_before = copy_of(&at->x);
    struct k_stream *twin = twin_stream(VOCAB, 0.0F);
    const struct k_ple_layer_args args = layer_args(at, MAX_ROWS, false);
    test_ok(k_cpu_ops()->ple_layer(twin, &args, &err), &err);
    k_cpu_stream_destroy(twin);
}

static void layer_fini(struct layer *at)
{
    for (uint32_t i = 0; i < OPERANDS; i++) {
        twin_free(&at->weights[i]);
    }
    twin_free(&at->input);
    twin_free(&at->h);
    twin_free(&at->gated);
    twin_free(&at->x);
    twin_free(&at->normed);
    mem_free(at->h_before);
    mem_free(at->x_before);
}

static double value_at(const struct twin_buffer *buffer, uint64_t index)
{
    return (double)k_f32_from_bf16(((const uint16_t *)buffer->host)[index]);
}

static struct twin_interval x_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct layer *at = context;
    double x = value_at(&at->x, (uint64_t)row * at->layout->hidden + column);
    double added = value_at(&at->weights[3], column) * value_at(&at->weights[4], 0);
    return twin_rounded(x, 0x1p-7 * (fabs(x) + 2.0 * fabs(added)));
}

static struct twin_interval normed_permitted(void *context, uint32_t row, uint32_t column)
{
    const struct layer *at = context;
    double normed = value_at(&at->normed, (uint64_t)row * at->layout->hidden + column);
    double weight = value_at(&at->weights[5], column);
    return twin_rounded(normed, 0x1p-6 * (fabs(normed) + fabs(weight)));
}

static void run_layer(struct cuda_rig *rig, const struct layer *at, uint32_t rows)
{
    struct err err = {0};
    const struct k_ple_layer_args args = layer_args(at, rows, true);
    cuda_rig_write(at->h.device, at->h_before, at->h.bytes);
    cuda_rig_write(at->x.device, at->x_before, at->x.bytes);
    twin_poison(&at->gated);
    twin_poison(&at->normed);
    test_ok(k_cuda_ops()->ple_layer(rig->k, &args, &err), &err);
}

static void check_layer(struct cuda_rig *rig, struct layer *at, uint32_t rows,
                        struct twin_totals *totals)
{
    char label[LABEL_BYTES];
    uint64_t used = (uint64_t)rows * at->layout->hidden;
    (void)snprintf(label, sizeof(label), "ple_layer, hidden %u, %u elements, %u rows",
                   at->layout->hidden, at->layout->elems, rows);
    run_layer(rig, at, rows);
    uint16_t *x = twin_read(&at->x, at->x.bytes, label);
    uint16_t *normed = twin_read(&at->normed, used * sizeof(*normed), label);
    struct twin_compare compare = {
        .label = label,
        .got = x,
        .want = at->x.host,
        .rows = rows,
        .columns = at->layout->hidden,
        .permitted = x_permitted,
        .context = at,
    };
    twin_check(&compare, totals);
    twin_check_equal(label, x + used, at->x_before + used,
                     (uint64_t)MAX_ROWS * at->layout->hidden - used, sizeof(*x));
    compare.got = normed;
    compare.want = at->normed.host;
    compare.permitted = normed_permitted;
    twin_check(&compare, totals);
    mem_free(x);
    mem_free(normed);
}

static void test_ends_of_layers(void)
{
    uint64_t random = SEED + 1;
    struct cuda_rig rig;
    struct twin_totals totals = {0};
    open_rig(&rig);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(layouts); i++) {
        struct layer at;
        layer_init(&at, &layouts[i], &random);
        for (uint32_t c = 0; c < TWIN_COUNT_OF(row_counts); c++) {
            check_layer(&rig, &at, row_counts[c], &totals);
        }
        layer_fini(&at);
    }
    twin_print("ple_layer", &totals);
    cuda_rig_close(&rig);
}

/* Rows in another order give the same bits, and so does the same order once more. */
static void test_the_order_of_rows_changes_nothing(void)
{
    enum {
        ROWS = 16
    };
    uint64_t random = SEED + 2;
    struct cuda_rig rig;
    struct layer at;
    open_rig(&rig);
    layer_init(&at, &layouts[1], &random);
    uint64_t row_elems = at.layout->hidden;
    uint64_t input_elems = (uint64_t)at.layout->layers * at.layout->elems;
    run_layer(&rig, &at, ROWS);
    uint16_t *first = twin_read(&at.normed, ROWS * row_elems * sizeof(*first), "in order");
    for (uint32_t r = 0; r < ROWS / 2; r++) { /* backwards */
        for (uint64_t i = 0; i < row_elems; i++) {
            uint64_t a = r * row_elems + i;
            uint64_t b = (ROWS - 1 - r) * row_elems + i;
            uint16_t h = at.h_before[a];
            uint16_t x = at.x_before[a];
            at.h_before[a] = at.h_before[b];
            at.x_before[a] = at.x_before[b];
            at.h_before[b] = h;
            at.x_before[b] = x;
        }
        uint16_t *input = at.input.host;
        for (uint64_t i = 0; i < input_elems; i++) {
            uint64_t b = (ROWS - 1 - r) * input_elems + i;
            uint16_t value = input[r * input_elems + i];
            input[r * input_elems + i] = input[b];
            input[b] = value;
        }
    }
    twin_write(&at.input);
    run_layer(&rig, &at, ROWS);
    uint16_t *second = twin_read(&at.normed, ROWS * row_elems * sizeof(*second), "backwards");
    for (uint32_t r = 0; r < ROWS; r++) {
        twin_check_equal("a row at another place", second + (ROWS - 1 - r) * row_elems,
                         first + r * row_elems, row_elems, sizeof(*first));
    }
    mem_free(first);
    mem_free(second);
    layer_fini(&at);
    cuda_rig_close(&rig);
}

struct recording {
    struct cuda_rig *rig;
    const struct inputs *inputs;
    uint32_t rows;
};

static void record(void *context)
{
    struct recording *at = context;
    struct err err = {0};
    struct k_ple_inputs_args args = inputs_args(at->inputs, at->rows, true);
    args.fetched = at->inputs->fetched.device;
    if (k_cuda_ops()->ple_fetch != NULL) {
        test_ok(k_cuda_ops()->ple_fetch(at->rig->k, &args, &err), &err);
    }
    test_ok(k_cuda_ops()->ple_inputs(at->rig->k, &args, &err), &err);
}

/* The stream that rows are fetched on leaves a captured step and comes back to it. */
static void test_a_graph_that_fetches(void)
{
    uint64_t random = SEED + 3;
    struct cuda_rig rig;
    struct inputs at;
    open_rig(&rig);
    inputs_init(&at, &layouts[1], &random);
    for (uint32_t rows = 16; rows <= 64; rows += 24) {
        struct recording recording = {&rig, &at, rows};
        uint64_t bytes = (uint64_t)rows * layouts[1].layers * layouts[1].elems * sizeof(uint16_t);
        struct cuda_rig_graph *graph = cuda_rig_capture(&rig, record, &recording);
        cuda_rig_write(at.values.device, at.before, at.values.bytes);
        cuda_rig_launch(&rig, graph);
        uint16_t *replayed = twin_read(&at.values, at.values.bytes, "a graph");
        run_inputs(&rig, &at, rows, false);
        uint16_t *eager = twin_read(&at.values, at.values.bytes, "no graph");
        twin_check_equal("a graph and the table itself", replayed, eager, bytes / sizeof(*eager),
                         sizeof(*eager));
        struct twin_compare compare = {
            .label = "a graph that fetches",
            .got = replayed,
            .want = at.values.host,
            .rows = rows,
            .columns = layouts[1].layers * layouts[1].elems,
            .permitted = inputs_permitted,
            .context = &at,
        };
        twin_check(&compare, NULL);
        cuda_rig_graph_free(graph);
        mem_free(replayed);
        mem_free(eager);
    }
    inputs_fini(&at);
    cuda_rig_close(&rig);
}

static const struct test_case cases[] = {
    TEST(test_inputs_read_where_they_lie_or_fetched),
    TEST(test_ends_of_layers),
    TEST(test_the_order_of_rows_changes_nothing),
    TEST(test_a_graph_that_fetches),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
