#include "tests/testlib/linear_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/num.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/dtype.h"
#include "tests/testlib/test.h"

#define SEED        71
#define GAP_ELEMS   256 /* NaN, between matrices that do not lie side by side */
#define LABEL_BYTES 160

const struct linear_layer linear_layer_12b = {"12b", 3840, 15360, 16, 8, 1, 512, 16384};
const struct linear_layer linear_layer_31b = {"31b", 5376, 21504, 32, 16, 4, 512, 16384};
const struct linear_layer linear_layer_demo = {"demo", 192, 512, 2, 1, 1, 512, 2048};
const struct linear_layer linear_layer_tiny = {"tiny", 64, 128, 4, 2, 4, 256, 512};

static bool is_head(const struct linear_shape *shape)
{
    return shape->kind == LINEAR_KIND_HEAD || shape->kind == LINEAR_KIND_HEAD_UNCAPPED;
}

static float softcap_of(const struct linear_shape *shape)
{
    return shape->kind == LINEAR_KIND_HEAD ? LINEAR_RIG_SOFTCAP : 0.0F;
}

/* ---- operators over either side's memory ---- */

struct operands {
    const uint16_t *x;
    const uint16_t *weights;
    const uint32_t *token_index;
    uint16_t *out;
};

static struct operands host_operands(const struct linear_case *at)
{
    return (struct operands){at->x.host, at->weights.host, at->token_index.host, at->out.host};
}

static struct operands device_operands(const struct linear_case *at)
{
    return (struct operands){at->x.device, at->weights.device, at->token_index.device,
                             at->out.device};
}

static void run(const struct linear_case *at, const struct operands *on,
                const struct linear_source *source, uint32_t rows)
{
    const struct linear_shape *shape = at->shape;
    struct err err = {0};
    if (shape->kind == LINEAR_KIND_PLAIN) {
        struct k_linear_args args = {
            .x = on->x,
            .rows = rows,
            .in_elems = shape->in_elems,
            .part_count = at->part_count,
            .out = on->out,
        };
        for (uint32_t part = 0; part < at->part_count; part++) {
            args.weights[part] = on->weights + at->part_offsets[part];
            args.out_elems[part] = shape->outs[part];
        }
        test_ok(source->ops->linear(source->stream, &args, &err), &err);
    } else if (shape->kind == LINEAR_KIND_GATE_UP) {
        const struct k_gate_up_args args = {
            .x = on->x,
            .rows = rows,
            .in_elems = shape->in_elems,
            .gate = on->weights,
            .up = on->weights + at->part_offsets[1],
            .intermediate_elems = shape->outs[0],
            .out = on->out,
        };
        test_ok(source->ops->gate_up(source->stream, &args, &err), &err);
    } else {
        const struct k_head_args args = {
            .x = on->x,
            .token_index = on->token_index,
            .rows = rows,
            .hidden_elems = shape->in_elems,
            .table = on->weights,
            .vocab_tokens = shape->outs[0],
            .softcap = softcap_of(shape),
            .logits = on->out,
        };
        test_ok(source->ops->head(source->stream, &args, &err), &err);
    }
}

void linear_case_run(const struct linear_case *at, const struct linear_source *source,
                     uint32_t rows)
{
    const struct operands on = device_operands(at);
    run(at, &on, source, rows);
}

/* ---- operands ---- */

/* Logits spread over what the soft-cap bends; all other products have the deviation of x. */
static double weight_deviation(const struct linear_shape *shape)
{
    return (is_head(shape) ? 12.0 : 1.0) / sqrt(shape->in_elems);
}

static void make_weights(struct linear_case *at, uint64_t *random)
{
    const struct linear_shape *shape = at->shape;
    uint64_t elems = 0;
    for (uint32_t part = 0; part < K_MAX_LINEAR_PARTS && shape->outs[part] > 0; part++) {
        at->part_offsets[part] = elems;
        at->columns += part == 0 || shape->kind == LINEAR_KIND_PLAIN ? shape->outs[part] : 0;
        elems += (uint64_t)shape->outs[part] * shape->in_elems;
        elems += shape->is_joined ? 0 : GAP_ELEMS;
        at->part_count++;
    }
    uint16_t *weights = twin_random_bf16(elems, weight_deviation(shape), random);
    for (uint32_t part = 0; part < at->part_count && !shape->is_joined; part++) {
        uint64_t end = at->part_offsets[part] + (uint64_t)shape->outs[part] * shape->in_elems;
        memset(weights + end, 0xff, GAP_ELEMS * sizeof(*weights));
    }
    at->weights = twin_in(weights, elems * sizeof(*weights));
}

void linear_case_init(struct linear_case *at, const struct linear_shape *shape, uint32_t max_rows,
                      uint64_t *random)
{
    *at = (struct linear_case){.shape = shape, .error = LINEAR_RIG_ERROR, .max_rows = max_rows};
    make_weights(at, random);
    uint64_t x_elems = (uint64_t)max_rows * shape->in_elems;
    double x_deviation = shape->kind == LINEAR_KIND_GATE_UP ? 2.0 : 1.0;
    at->x = twin_in(twin_random_bf16(x_elems, x_deviation, random), x_elems * sizeof(uint16_t));
    uint32_t *token_index = mem_zalloc(max_rows, sizeof(*token_index));
    for (uint32_t i = 0; i < max_rows; i++) {
        token_index[i] = i % 5 == 3 ? max_rows / 2 : max_rows - 1 - i;
    }
    at->token_index = twin_in(token_index, max_rows * sizeof(*token_index));
    at->out = twin_out((uint64_t)max_rows * at->columns * sizeof(uint16_t));
    const struct linear_source twin = {k_cpu_ops(), twin_stream(1000, LINEAR_RIG_SOFTCAP), 0.0};
    const struct operands on = host_operands(at);
    run(at, &on, &twin, max_rows);
    k_cpu_stream_destroy(twin.stream);
}

void linear_case_fini(struct linear_case *at)
{
    twin_free(&at->x);
    twin_free(&at->weights);
    twin_free(&at->token_index);
    twin_free(&at->out);
}

uint16_t *linear_case_got(const struct linear_case *at, const struct linear_source *source,
                          uint32_t rows)
{
    twin_poison(&at->out);
    linear_case_run(at, source, rows);
    return twin_read(&at->out, (size_t)rows * at->columns * sizeof(uint16_t), at->shape->name);
}

/* ---- what is permitted ---- */

/* x w of one row and column, and how far f32 may be off. */
static struct twin_interval product_of(const struct linear_case *at, uint32_t part, uint32_t row,
                                       uint32_t column)
{
    uint32_t elems = at->shape->in_elems;
    uint32_t token = is_head(at->shape) ? ((const uint32_t *)at->token_index.host)[row] : row;
    const uint16_t *x = (const uint16_t *)at->x.host + (uint64_t)token * elems;
    const uint16_t *w =
        (const uint16_t *)at->weights.host + at->part_offsets[part] + (uint64_t)column * elems;
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
    return twin_rounded(sum, at->error * sqrt(x_squares * w_squares));
}

static struct twin_interval either(struct twin_interval a, struct twin_interval b)
{
    return (struct twin_interval){.low = fminf(a.low, b.low), .high = fmaxf(a.high, b.high)};
}

static struct twin_interval permitted(void *context, uint32_t row, uint32_t column)
{
    const struct linear_case *at = context;
    const struct linear_shape *shape = at->shape;
    uint32_t part = 0;
    while (shape->kind == LINEAR_KIND_PLAIN && column >= shape->outs[part]) {
        column -= shape->outs[part++];
    }
    struct twin_interval sum = product_of(at, part, row, column);
    if (shape->kind == LINEAR_KIND_GATE_UP) {
        struct twin_interval gelu = either(twin_gelu(sum.low), twin_gelu(sum.high));
        return twin_product(gelu, product_of(at, 1, row, column));
    }
    float cap = softcap_of(shape);
    return either(twin_softcapped(sum.low, cap), twin_softcapped(sum.high, cap));
}

struct twin_compare linear_case_compare(struct linear_case *at, const uint16_t *got, uint32_t rows,
                                        const char *label)
{
    return (struct twin_compare){
        .label = label,
        .got = got,
        .want = at->out.host,
        .rows = rows,
        .columns = at->columns,
        .permitted = permitted,
        .context = at,
    };
}

/* ---- many shapes ---- */

void linear_rig_check(const struct linear_source *source, const struct linear_shape *shape,
                      const uint32_t *row_counts, uint32_t count_count)
{
    uint64_t random = SEED;
    uint32_t max_rows = 0;
    for (uint32_t i = 0; i < count_count; i++) {
        max_rows = num_max(max_rows, row_counts[i]);
    }
    struct linear_case at;
    struct twin_totals totals = {0};
    linear_case_init(&at, shape, max_rows, &random);
    at.error = source->error;
    for (uint32_t i = 0; i < count_count; i++) {
        char label[LABEL_BYTES];
        uint16_t *got = linear_case_got(&at, source, row_counts[i]);
        (void)snprintf(label, sizeof(label), "%s, %u inputs, %u outputs, %u rows", shape->name,
                       shape->in_elems, at.columns, row_counts[i]);
        const struct twin_compare compare = linear_case_compare(&at, got, row_counts[i], label);
        twin_check(&compare, &totals);
        mem_free(got);
    }
    twin_print(shape->name, &totals);
    linear_case_fini(&at);
}

void linear_rig_check_layer(const struct linear_source *source, const struct linear_layer *layer,
                            const uint32_t *row_counts, uint32_t count_count)
{
    uint32_t q = layer->heads * 256;
    uint32_t kv = layer->local_kv_heads * 256;
    uint32_t full_q = layer->heads * layer->full_head_dim;
    uint32_t full_kv = layer->full_kv_heads * layer->full_head_dim;
    uint32_t hidden = layer->hidden;
    uint32_t inner = layer->intermediate;
    const struct linear_shape shapes[] = {
        {"q, k, v of a sliding layer", LINEAR_KIND_PLAIN, hidden, {q, kv, kv}, false},
        {"q, k of a full layer", LINEAR_KIND_PLAIN, hidden, {full_q, full_kv}, true},
        {"o of a sliding layer", LINEAR_KIND_PLAIN, q, {hidden}, true},
        {"o of a full layer", LINEAR_KIND_PLAIN, full_q, {hidden}, true},
        {"gate and up", LINEAR_KIND_GATE_UP, hidden, {inner, inner}, false},
        {"down", LINEAR_KIND_PLAIN, inner, {hidden}, true},
        {"head", LINEAR_KIND_HEAD, hidden, {layer->vocab}, true},
    };
    (void)printf("%s:\n", layer->name);
    for (uint32_t i = 0; i < TWIN_COUNT_OF(shapes); i++) {
        linear_rig_check(source, &shapes[i], row_counts, count_count);
    }
}

struct k_cuda_shape linear_rig_shape(void)
{
    return (struct k_cuda_shape){
        .max_tokens = 256,
        .max_rows = 16,
        .slots = 16,
        .max_context_tokens = 1024,
        .hidden_elems = 5376,
        .max_linear_out_elems = 24576,
        .heads = 32,
        .max_head_dim = 512,
        .max_kv_heads = 16,
        .vocab_tokens = 1000,
    };
}
